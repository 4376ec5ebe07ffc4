"""Configs return from TOML, JSON and --set as they went; what cannot is refused in one sentence."""

import json
import math
import tomllib
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.config import config
from qkv.errors import QkvError
from qkv.recipe.config import from_json, from_toml, json_schema, override, to_json, to_toml


@config
class Attention:
    """How heads attend."""

    heads: int = 8
    """How many heads."""
    beta: float | None = None
    """Inverse temperature; none is 1/sqrt(key width)."""
    limit: float | None = math.inf
    """None where the default is something else."""
    position: Literal["none", "rotary", "alibi"] = "none"
    """A choice called none, which is a string."""
    grid: tuple[int, int] | None = (3, 5)
    scales: tuple[float | None, ...] = (0.5, math.inf)


@config
class Text:
    path: str
    vocabulary: int | str = "word"
    """A number of pieces, or a way to split."""
    languages: list[str] | None = None
    aliases: dict[str, str] | None = None
    weights: dict[str, float | None] | None = None


@config
class Recipe:
    model: Attention = Attention()
    data: Text | None = None
    stack: tuple[Attention, ...] = ()
    named: dict[str, Attention] | None = None
    seed: int | None = 0
    rate: float = 1e-9
    fast: bool = True
    note: str | None = None
    mixed: int | float | bool | str | None = None


EXAMPLE = Recipe(
    model=Attention(beta=math.inf, limit=None, grid=None, scales=(None, -math.inf, 1e-9)),
    data=Text(path='a "quoted" \\ path\nof two lines, β → ∞, 🙂\x7f\t', aliases={"a.b c": "none", "": "inf"}),
    stack=(Attention(heads=2), Attention(beta=0.0)),
    named={"decoder": Attention(heads=3)},
    seed=None,
    mixed=1.0,
)

# Strings that resemble every notation there is, beside those that hypothesis invents.
strings = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    [
        "none",
        "None",
        "inf",
        "-inf",
        "nan",
        "true",
        "8",
        "1e3",
        "[1]",
        '"',
        "'",
        "=",
        "#",
        "a\nb",
        "a\r\nb",
        " ",
        "\\",
    ]
)
optional_strings = st.none() | strings.filter(lambda text: text != "none")  # see the test of ambiguity
floats = st.floats(allow_nan=True)
attentions = st.builds(
    Attention,
    heads=st.integers(),
    beta=st.none() | floats,
    limit=st.none() | floats,
    position=st.sampled_from(["none", "rotary", "alibi"]),
    grid=st.none() | st.tuples(st.integers(), st.integers()),
    scales=st.lists(st.none() | floats, max_size=3).map(tuple),
)
texts = st.builds(
    Text,
    path=strings,
    vocabulary=st.integers() | strings,
    languages=st.none() | st.lists(strings, max_size=3),
    aliases=st.none() | st.dictionaries(strings, strings, max_size=3),
    weights=st.none() | st.dictionaries(strings, st.none() | floats, max_size=3),
)
words = {"none", "inf", "-inf", "nan"}
recipes = st.builds(
    Recipe,
    model=attentions,
    data=st.none() | texts,
    stack=st.lists(attentions, max_size=2).map(tuple),
    named=st.none() | st.dictionaries(strings, attentions, max_size=2),
    seed=st.none() | st.integers(),
    rate=floats,
    fast=st.booleans(),
    note=optional_strings,
    mixed=st.none() | st.booleans() | st.integers() | floats | strings.filter(lambda text: text not in words),
)


def same(one: Any, other: Any) -> bool:
    """`==`, with nan equal to itself and 1, 1.0 and True told apart."""
    return repr(one) == repr(other)


@given(recipes)
def test_json_returns_what_it_was_given(recipe: Recipe):
    assert same(from_json(Recipe, to_json(recipe)), recipe)


@given(recipes)
def test_toml_returns_what_it_was_given(recipe: Recipe):
    assert same(from_toml(Recipe, to_toml(recipe)), recipe)


@given(recipes)
def test_json_is_strict(recipe: Recipe):
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    json.loads(to_json(recipe), parse_constant=refuse)


def as_set(value: Any) -> str:
    """What a person would type: words as they are, all else as TOML."""
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return f"[{', '.join(repr('none') if part is None else as_set(part) for part in value)}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


@given(attentions, st.booleans())
def test_set_returns_what_it_was_given(attention: Attention, fast: bool):
    changes = [f"model.{name}={as_set(getattr(attention, name))}" for name in attention.__dataclass_fields__]
    assert same(override(Recipe(), [*changes, f"fast={fast}".lower()]), Recipe(model=attention, fast=fast))


@given(strings)
def test_set_takes_bare_text_for_a_string(text: str):
    value = override(Text(path=""), [f"path={text}"]).path
    try:
        quoted = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        quoted = None
    assert value in (text, quoted)


def test_the_words_in_toml():
    text = to_toml(EXAMPLE)
    table = tomllib.loads(text)
    assert (table["seed"], table["model"]["beta"], table["model"]["limit"]) == ("none", math.inf, "none")
    assert table["model"]["position"] == "none"
    assert from_toml(Recipe, text) == EXAMPLE


def test_the_words_in_json():
    text = to_json(EXAMPLE)
    tree = json.loads(text)
    assert (tree["seed"], tree["model"]["beta"], tree["model"]["limit"]) == (None, "inf", None)
    assert tree["model"]["scales"] == [None, "-inf", 1e-9]
    assert from_json(Recipe, text) == EXAMPLE


def test_each_notation_reads_the_words_of_the_others():
    words = {"beta": "none", "limit": "-inf"}
    assert from_json(Attention, json.dumps(words)) == Attention(beta=None, limit=-math.inf)
    assert from_toml(Attention, 'beta = "none"\nlimit = "-inf"') == Attention(beta=None, limit=-math.inf)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("model.heads=3", Recipe(model=Attention(heads=3))),
        ("model.beta=none", Recipe()),
        ("model.limit=none", Recipe(model=Attention(limit=None))),
        ("model.beta=inf", Recipe(model=Attention(beta=math.inf))),
        ("model.beta=-inf", Recipe(model=Attention(beta=-math.inf))),
        ("model.beta=.5", Recipe(model=Attention(beta=0.5))),
        ("model.beta=2", Recipe(model=Attention(beta=2.0))),
        ("rate=3e-4", Recipe(rate=3e-4)),
        ("model.position=none", Recipe()),
        ("model.grid=[7, 11]", Recipe(model=Attention(grid=(7, 11)))),
        ("model.grid=none", Recipe(model=Attention(grid=None))),
        ('model.scales=["none", inf]', Recipe(model=Attention(scales=(None, math.inf)))),
        ("fast=false", Recipe(fast=False)),
        ("note=8", Recipe(note="8")),
        ("note=true", Recipe(note="true")),
        ("note=", Recipe(note="")),
        ("note=a=b", Recipe(note="a=b")),
        ('note="two words"', Recipe(note="two words")),
        ("note=two words", Recipe(note="two words")),
        ("note=none", Recipe()),
        ("mixed=8", Recipe(mixed=8)),
        ("mixed=8.0", Recipe(mixed=8.0)),
        ("mixed=true", Recipe(mixed=True)),
        ("mixed='8'", Recipe(mixed="8")),
        ("data.path=corpus.txt", Recipe(data=Text(path="corpus.txt"))),
        ("named.decoder.heads=2", Recipe(named={"decoder": Attention(heads=2)})),
        ('data={path = "x", vocabulary = 5}', Recipe(data=Text(path="x", vocabulary=5))),
        ("stack=[{heads = 2}]", Recipe(stack=(Attention(heads=2),))),
    ],
)
def test_set_is_typed_from_the_field(change: str, expected: Recipe):
    assert same(override(Recipe(), [change]), expected)


def test_set_changes_what_it_names_and_nothing_else():
    changed = override(EXAMPLE, ["model.heads=3", "data.vocabulary=100", "model.heads=5"])
    assert (changed.model.heads, changed.data and changed.data.vocabulary) == (5, 100)
    assert same(override(changed, ["model.heads=8", "data.vocabulary=word"]), EXAMPLE)


def test_values_that_depend_on_one_another_change_together():
    @config
    class Divided:
        width: int = 12
        heads: int = 4

        def __post_init__(self):
            if self.width % self.heads:
                raise QkvError(f"width is {self.width}, heads is {self.heads}: take a divisor")

    assert override(Divided(), ["width=15", "heads=5"]) == Divided(width=15, heads=5)
    with pytest.raises(QkvError, match=r"^--set: width is 15, heads is 4: take a divisor$"):
        override(Divided(), ["width=15"])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            "model.haeds=3",
            "--set: model.haeds is not a key of Attention: "
            "choose one of beta, grid, heads, limit, position, scales; did you mean 'heads'?",
        ),
        (
            "modle.heads=3",
            "--set: modle is not a key of Recipe: choose one of "
            "data, fast, mixed, model, named, note, rate, seed, stack; did you mean 'model'?",
        ),
        ("model.heads=eight", "--set: model.heads is 'eight'; it should be a valid integer"),
        ("model.heads=8.5", "--set: model.heads is 8.5; it should be a valid integer"),
        ("model.heads=none", "--set: model.heads is 'none'; it should be a valid integer"),
        ("model.beta=hard", "--set: model.beta is 'hard'; it should be a valid number or none"),
        ("model.position=rotery", "--set: model.position is 'rotery'; it should be 'none', 'rotary' or 'alibi'"),
        ("model.grid[0]=1", "--set: model.grid[0] is not a key of Attention: choose one of beta, grid, heads, "
                            "limit, position, scales; did you mean 'grid'?"),
        ("model.heads.x=1", "--set: model.heads is {'x': 1}; it should be a valid integer"),
        ("data.vocabulary=5", "--set: data.path is missing: Text needs it, of type str"),
        ("model", "'model' sets nothing: write key=value, e.g. model.heads=8"),
    ],
)  # fmt: skip
def test_a_wrong_change_is_one_sentence(change: str, expected: str):
    with pytest.raises(QkvError) as error:
        override(Recipe(), [change])
    assert str(error.value) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seed = '8'", "run.toml: seed is '8'; it should be a valid integer or none"),
        ("[model]\nheads = 8.0", "run.toml: model.heads is 8.0; it should be a valid integer"),
        ("[model]\nheads = true", "run.toml: model.heads is True; it should be a valid integer"),
        ("model = 3", "run.toml: model is 3; it should be an object"),
        ("[model]\ngrid = [1, 2, 3]", "run.toml: model.grid is [1, 2, 3]: tuple should have at most 2 items after validation, not 3"),
        ("[[stack]]\nheads = 1\n[[stack]]\nheads = 'x'", "run.toml: stack[1].heads is 'x'; it should be a valid integer"),
        ("[named.a]\nhead = 1", "run.toml: named.a.head is not a key of Attention: choose one of beta, grid, heads, limit, "
                                "position, scales; did you mean 'heads'?"),
        ("sed = 1\nrate = 'x'", "run.toml: sed is not a key of Recipe: choose one of data, fast, mixed, model, named, note, "
                                "rate, seed, stack; did you mean 'seed'? (also wrong: rate)"),
        ("seed =", "run.toml is not TOML: Invalid value (at end of document)"),
    ],
)  # fmt: skip
def test_wrong_toml_is_one_sentence(text: str, expected: str):
    with pytest.raises(QkvError) as error:
        from_toml(Recipe, text, "run.toml")
    assert str(error.value) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[]", "Recipe is []; it should be an object"),
        (
            "{",
            "the text is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ),
        ('{"rate": null}', "rate is None; it should be a valid number"),
    ],
)
def test_wrong_json_is_one_sentence(text: str, expected: str):
    with pytest.raises(QkvError) as error:
        from_json(Recipe, text)
    assert str(error.value) == expected


def test_what_would_return_as_another_value_is_refused():
    with pytest.raises(QkvError, match=r"^note is 'none', which would be read back as None$"):
        to_toml(Recipe(note="none"))
    with pytest.raises(QkvError, match=r"^mixed is 'inf', which would be read back as inf$"):
        to_json(Recipe(mixed="inf"))
    assert '"none"' in to_toml(Text(path="none"))  # where None is not admitted, the string is only a string


def test_the_schema_knows_the_help_the_words_and_the_closed_set_of_keys():
    schema = json_schema(Attention)
    assert schema["additionalProperties"] is False
    assert schema["description"] == "How heads attend."
    assert schema["properties"]["heads"] == {
        "default": 8,
        "description": "How many heads.",
        "title": "Heads",
        "type": "integer",
    }
    limit = schema["properties"]["limit"]
    assert limit["default"] == "inf"
    assert {"enum": [None, "none"]} in limit["anyOf"]
    json.dumps(schema, allow_nan=False)
