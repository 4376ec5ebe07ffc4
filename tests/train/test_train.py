"""From a recipe to a model's directory, through whatever stops it on the way."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.toy import same_bits

from qkv.data.batches import BatchesConfig
from qkv.data.numbers import write
from qkv.data.text import Corpus, Rules
from qkv.data.tokens import TokensConfig
from qkv.decode.config import SearchConfig
from qkv.errors import QkvError
from qkv.models.transformer import TransformerConfig
from qkv.recipe.training import OptimConfig, ScheduleConfig, TrainConfig
from qkv.store import bundle, checkpoint
from qkv.tasks import task as tasks
from qkv.tasks.translate import DataConfig, TranslateConfig
from qkv.train import train as module
from qkv.train.loop import Interrupted
from qkv.train.progress import Display
from qkv.train.train import train


def recipe(folder: Path, **values: Any) -> TranslateConfig:
    """Numbers to 40 in German, from two files."""
    for language in ("en", "de"):
        (folder / f"a.{language}").write_text("".join(write(number, language) + "\n" for number in range(40)))
    corpus = Corpus(source=str(folder / "a.en"), target=str(folder / "a.de"))
    training = TrainConfig(
        epochs=2, precision="fp32", log_every=1, optimizer=OptimConfig(rate=0.01),
        schedule=ScheduleConfig(kind="constant", warmup=0),
    )  # fmt: skip
    return TranslateConfig(
        data=DataConfig(train=(corpus,), valid=(replace(corpus, limit=3),)),
        tokens=TokensConfig(size=300),
        batches=BatchesConfig(budget=120, longest=30),
        model=TransformerConfig(width=12, hidden=20, heads=3, encoder_layers=1, decoder_layers=1),
        search=SearchConfig(maximum=5, beam=1),
        train=replace(training, **values),
    )


class Shown(Display):
    """Keeps what it shows; `at` is called after the first update that is reported."""

    def __init__(self, at: Callable[[], None] = lambda: None):
        super().__init__(quiet=True)
        self.lines: list[str] = []
        self.at = at

    def say(self, text: str) -> None:
        self.lines.append(text)

    def update(self, *_: Any) -> None:
        self.at()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[TranslateConfig, Path, list[str]]:
    folder, shown = tmp_path_factory.mktemp("finished"), Shown()
    config = recipe(folder)
    assert train(config, folder / "run", display=shown) == folder / "run" / "model"
    return config, folder / "run", shown.lines


Finished = tuple[TranslateConfig, Path, list[str]]


def test_a_run_ends_in_a_model_with_its_scores_and_what_it_cost(finished: Finished):
    config, run, lines = finished
    model = bundle.read(run / "model")
    assert model.task == "translate"
    assert model.recipe["model"]["source_vocabulary"] > 256  # resolved
    card = (run / "model" / "README.md").read_text()
    best = checkpoint.newest(run)[0].facts
    for name in ("bleu", "chrf"):
        assert f"validation {name}: {best['best_scores'][name]:.2f} ({best['signatures'][name]})" in card
        assert "version:" in best["signatures"][name]
    assert "40 pairs kept, 0 skipped" in card
    assert "targets/s" in card
    assert any(line.startswith("Transformer with ") and "adamw in fp32" in line for line in lines)
    assert lines[-1].endswith(f"the model is {run / 'model'}")
    assert config.model.source_vocabulary == 0  # and the recipe of the run is as it was given
    assert tasks.kind("translate").load(model).translate(["one"]) == tasks.load(run).translate(["one"])


def test_an_existing_run_is_refused_and_unharmed(finished: Finished):
    config, run, _ = finished
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    with pytest.raises(QkvError, match=r"is a run already: go on with --resume"):
        train(config, run, display=Shown())
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*")}


def test_a_finished_run_has_nothing_to_resume(finished: Finished):
    config, run, _ = finished
    shown = Shown()
    assert train(config, run, resume=True, display=shown) == run / "model"
    assert shown.lines == [f"{run} is finished; its model is {run / 'model'}"]


def test_killed_before_its_model_was_written_a_finished_run_writes_it(finished: Finished, tmp_path: Path):
    import shutil

    config, run, _ = finished
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "model")
    shown = Shown(lambda: pytest.fail("it trained on"))
    train(config, tmp_path / "run", resume=True, display=shown)
    assert same_bits(bundle.read(run / "model").tensors, bundle.read(tmp_path / "run" / "model").tensors)


def test_nothing_is_resumed_where_there_is_no_run(tmp_path: Path):
    with pytest.raises(QkvError, match=r"run is no run, so there is nothing to resume: leave --resume out"):
        train(recipe(tmp_path), tmp_path / "run", resume=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("change", ["recipe", "data"])
def test_a_run_whose_recipe_or_data_changed_is_not_resumed(finished: Finished, tmp_path: Path, change: str):
    config, run, _ = finished
    data = Path(config.data.train[0].source)
    text = data.read_text()
    try:
        if change == "data":
            data.write_text(text.replace("seven", "heaven"))
            wanted = r"the data of .* changed since it was begun: .*a\.en: bring"
        else:
            config = replace(config, smoothing=0.2)
            wanted = r"smoothing was 0.1 and is 0.2"
        with pytest.raises(QkvError, match=wanted):
            train(config, run, resume=True)
    finally:
        data.write_text(text)


def test_with_faulty_data_there_is_no_run_that_could_not_be_begun_anew(tmp_path: Path):
    config = recipe(tmp_path)
    config = replace(config, data=replace(config.data, rules=Rules(strict=True)))
    good = (tmp_path / "a.de").read_text()
    for bad, wanted in (
        ("eins\n", "has 40 lines and .* 1:"),
        (good.replace("drei\n", "\n", 1), "is empty on one side"),
    ):
        (tmp_path / "a.de").write_text(bad)
        with pytest.raises(QkvError, match=wanted):
            train(config, tmp_path / "run", display=Shown())
    (tmp_path / "a.de").unlink()
    with pytest.raises(QkvError, match=r"a\.de cannot be read"):
        train(config, tmp_path / "run", display=Shown())
    (tmp_path / "a.de").write_text(good)
    config = replace(config, train=replace(config.train, epochs=1))
    assert train(config, tmp_path / "run", display=Shown()).exists()


def press(number: int, times: int = 1) -> Callable[[], None]:
    def act() -> None:
        for _ in range(times):
            handler = signal.getsignal(number)
            os.kill(os.getpid(), number)
            while signal.getsignal(number) is handler and handler is not signal.default_int_handler:
                time.sleep(0.001)  # another thread may have got it, and the two would be one

    return act


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_says_how_to_go_on_and_changes_nothing(
    finished: Finished, tmp_path: Path, number: int
):
    _, whole, _ = finished
    config, handlers = recipe(tmp_path), [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    shown = Shown(press(number))
    with pytest.raises(Interrupted) as raised:
        train(config, tmp_path / "run", display=shown)
    assert str(raised.value) == (
        f"stopped after step 1, and everything is saved: go on with qkv train --resume --out {tmp_path / 'run'}"
    )
    assert raised.value.signal == number
    assert handlers == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    assert checkpoint.newest(tmp_path / "run")[0].step == 1
    torch.manual_seed(77)
    model = train(config, tmp_path / "run", resume=True, display=Shown())
    assert same_bits(bundle.read(whole / "model").tensors, bundle.read(model).tensors)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """As in a terminal: a shell lets what it starts in the background ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_second_signal_stops_at_once(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        train(recipe(tmp_path), tmp_path / "run", display=Shown(press(signal.SIGINT, times=2)))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert train(recipe(tmp_path), tmp_path / "run", resume=True, display=Shown()).exists()


def test_a_signal_while_the_run_is_set_up_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Loop(module.Loop):
        def __init__(self, *rest: Any):
            press(signal.SIGTERM)()
            super().__init__(*rest)

    monkeypatch.setattr(module, "Loop", Loop)
    with pytest.raises(Interrupted, match="stopped after step 1,"):
        train(recipe(tmp_path), tmp_path / "run", display=Shown())


def test_outside_of_the_main_thread_it_trains_without_signals(tmp_path: Path):
    found: list[Path] = []
    thread = threading.Thread(
        target=lambda: found.append(train(recipe(tmp_path, epochs=1), tmp_path / "run", display=Shown()))
    )
    thread.start()
    thread.join()
    assert found == [tmp_path / "run" / "model"]


def test_a_process_that_is_asked_to_end_saves_first(tmp_path: Path):
    config = recipe(tmp_path, epochs=100_000, validate_from=100_000)
    code = (
        "import sys\nfrom pathlib import Path\nfrom qkv.train.train import train\n"
        "from tests.train.test_train import recipe\n"
        "train(recipe(Path(sys.argv[1]), epochs=100_000, validate_from=100_000), Path(sys.argv[1], 'run'))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    log = tmp_path / "run" / "log.jsonl"
    while process.poll() is None and not (log.exists() and log.read_text()):
        threading.Event().wait(0.05)
    process.terminate()
    said = process.communicate(timeout=60)[1]
    step = checkpoint.newest(tmp_path / "run")[0].step
    assert f"stopped after step {step:,}, and everything is saved: go on with qkv train --resume" in said
    assert len(log.read_text().splitlines()) == step

    config = replace(config, train=replace(config.train, checkpoint_minutes=1e-9))  # which is free to change
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", resume=True, display=Shown(press(signal.SIGINT)))
    assert checkpoint.newest(tmp_path / "run")[0].step == step + 1


def test_without_tensorboard_it_is_named_before_anything_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(QkvError, match=r"TensorBoard is not installed: pip install 'qkv\[log\]'"):
        train(recipe(tmp_path, tensorboard=True), tmp_path / "run", display=Shown())
    assert train(recipe(tmp_path, epochs=1), tmp_path / "run", display=Shown()).exists()


def test_tensorboard_gets_what_the_log_gets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written: list[tuple[str, float, int]] = []

    class Writer:
        def __init__(self, path: Path, purge_step: int):
            written.append((path.name, 0.0, purge_step))

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def close(self) -> None:
            written.append(("closed", 0.0, 0))

    fake: Any = types.ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    config = recipe(tmp_path, tensorboard=True)
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", display=Shown(press(signal.SIGINT)))
    assert [name for name, _, _ in written] == ["tensorboard", "loss", "norm", "rate", "closed"]
    train(config, tmp_path / "run", resume=True, display=Shown())
    assert ("tensorboard", 0.0, 2) in written
    rows = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    for row in rows:
        for name, value in row.items():
            if name not in ("step", "epoch", "targets", "seconds"):
                assert (name.replace("valid_", "valid/"), float(value), row["step"]) in written
    assert written[-1] == ("closed", 0.0, 0)
