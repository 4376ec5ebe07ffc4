"""The schedule against its formulas, and what a run needs to be one."""

import math

import pytest

from qkv.errors import QkvError
from qkv.recipe.config import from_json, from_toml, override, to_json, to_toml
from qkv.recipe.training import AverageConfig, OptimConfig, ScheduleConfig, TrainConfig


def test_inverse_square_root_is_that_of_the_paper():
    """Vaswani et al. 2017, equation 3, divided by its peak: min(step^-½, step · warmup^-1½) · warmup^½."""
    schedule = ScheduleConfig(kind="inverse_sqrt", warmup=40)
    for step in (1, 2, 39, 40, 41, 160, 1000):
        paper = min(step**-0.5, step * 40**-1.5) * 40**0.5
        assert schedule.factor(step) == pytest.approx(paper, rel=1e-12)
    assert schedule.factor(160) == 0.5
    assert [ScheduleConfig(kind="inverse_sqrt", warmup=0).factor(step) for step in (1, 4)] == [1.0, 0.5]


@pytest.mark.parametrize("kind", ["constant", "inverse_sqrt", "cosine", "linear", "wsd"])
@pytest.mark.parametrize("warmup", [0, 1, 5])
def test_the_rate_rises_in_equal_parts(kind: str, warmup: int):
    schedule = ScheduleConfig(kind=kind, warmup=warmup)
    rise = [schedule.factor(step, done=0.0) for step in range(1, warmup + 1)]
    assert rise == pytest.approx([step / warmup for step in range(1, warmup + 1)])
    assert schedule.factor(max(1, warmup), done=0.0) == 1


@pytest.mark.parametrize("final", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("done", [0.0, 0.1, 0.5, 0.77, 0.9, 1.0])
def test_the_curves_by_hand(done: float, final: float):
    def factor(kind: str) -> float:
        return ScheduleConfig(kind=kind, warmup=0, final=final, decay=0.25).factor(7, done)

    assert factor("constant") == 1
    assert factor("cosine") == pytest.approx(final + (1 - final) * (1 + math.cos(math.pi * done)) / 2)
    assert factor("linear") == pytest.approx(final + (1 - final) * (1 - done))
    assert factor("wsd") == pytest.approx(1 if done <= 0.75 else final + (1 - final) * (1 - done) / 0.25)


def test_time_that_runs_over_its_end_leaves_the_last_factor():
    for kind in ("cosine", "linear", "wsd"):
        assert ScheduleConfig(kind=kind, warmup=0, final=0.3).factor(9, done=1.2) == pytest.approx(0.3)


def test_only_what_needs_the_end_asks_for_it():
    for kind, needs in (
        ("constant", False),
        ("inverse_sqrt", False),
        ("cosine", True),
        ("linear", True),
        ("wsd", True),
    ):
        schedule = ScheduleConfig(kind=kind)
        assert schedule.needs_end == needs
        if needs:
            with pytest.raises(AssertionError, match="needs to know how much of the run is done"):
                schedule.factor(1)
        else:
            schedule.factor(1)
    with pytest.raises(AssertionError, match="counted from 1"):
        ScheduleConfig().factor(0)


def test_a_run_needs_an_end():
    with pytest.raises(QkvError, match="a run needs an end: set epochs, steps or minutes"):
        TrainConfig(epochs=None)
    assert TrainConfig(epochs=None, minutes=0.5).steps is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("epochs", 0), ("steps", 0), ("minutes", 0.0), ("clip", 0.0), ("accumulate", 0), ("patience", 0), ("seed", -1),
     ("checkpoint_minutes", 0.0), ("log_every", 0), ("validate_every", 0), ("precision", "fp16")],
)  # fmt: skip
def test_values_that_make_no_sense_are_refused_by_name(field: str, value: object):
    with pytest.raises(QkvError, match=f"^{field} is {value!r}; it should be"):
        TrainConfig(**{field: value})


def test_all_of_it_returns_from_toml_json_and_set():
    config = TrainConfig(
        epochs=None, steps=3, minutes=0.1, clip=None, patience=4, seed=9,
        optimizer=OptimConfig(kind="muon", betas=(0.1, 0.2)), schedule=ScheduleConfig(kind="wsd", decay=1.0),
        average=AverageConfig(kind="last", count=2),
    )  # fmt: skip
    assert from_toml(TrainConfig, to_toml(config)) == config
    assert from_json(TrainConfig, to_json(config)) == config
    changes = [
        "epochs=none",
        "steps=3",
        "minutes=0.1",
        "clip=none",
        "patience=4",
        "seed=9",
        "optimizer.kind=muon",
    ]
    changes += [
        "optimizer.betas=[0.1, 0.2]",
        "schedule.kind=wsd",
        "schedule.decay=1",
        "average.kind=last",
        "average.count=2",
    ]
    assert override(TrainConfig(), changes) == config
