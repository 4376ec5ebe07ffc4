"""The loop against loops by hand: what an update is, when a run validates, stops and saves, and what it keeps."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.toy import Rows, changed, loop, net, same_bits, weights
from torch.nn import functional as F

from qkv.recipe.training import AverageConfig, OptimConfig, ScheduleConfig, TrainConfig
from qkv.store import checkpoint
from qkv.train.loop import Interrupted

SHUFFLED = 6  # batches of an epoch


def rows(path: Path, key: str | None = None) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (path / "log.jsonl").read_text().splitlines()]
    return [row for row in found if key is None or key in row]


def by_hand(config: TrainConfig, steps: int, group: int = 1) -> tuple[torch.nn.Module, list[float]]:
    """torch's AdamW over the same batches, one after another."""
    task, model, losses = Rows(config), net(), []
    optimizer = torch.optim.AdamW(
        [{"params": [model[0].weight, model[3].weight]}, {"params": [model[0].bias, model[3].bias], "weight_decay": 0.0}],
        lr=config.optimizer.rate, betas=config.optimizer.betas, eps=config.optimizer.epsilon,
        weight_decay=config.optimizer.weight_decay,
    )  # fmt: skip
    for epoch in range(99):
        batches = task.epoch(epoch)
        for first in range(0, len(batches), group):
            union = torch.cat(list(batches[first : first + group]))
            optimizer.zero_grad()
            loss = F.cross_entropy(model(task.inputs[union]), task.labels[union])
            loss.backward()
            if config.clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == steps:
                return model, losses
    raise AssertionError


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_k_accumulated_batches_are_one_batch_of_their_union(
    tmp_path: Path, accumulate: int, clip: float | None
):
    """Also with batches of 4 and of 2 rows: it is a mean over rows, not over batches."""
    config = changed(accumulate=accumulate, clip=clip)
    task = Rows(config)
    progress = loop(task, tmp_path).run()
    steps = 3 * math.ceil(SHUFFLED / accumulate)
    model, losses = by_hand(config, steps, accumulate)
    assert progress.step == steps
    assert [row["loss"] for row in rows(tmp_path, "loss")] == pytest.approx(losses, rel=1e-10)
    task.model.load_state_dict(
        checkpoint.newest(tmp_path)[0].tensors["model"]
    )  # the last weights, not the best
    for one, other in zip(task.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_a_line_of_the_log_is_about_all_updates_since_the_one_before(tmp_path: Path):
    config = changed(log_every=4)
    loop(Rows(config), tmp_path).run()
    _, losses = by_hand(config, 16)
    sizes = [4, 4, 4, 4, 4, 2] * 3
    found = rows(tmp_path, "loss")
    assert [row["step"] for row in found] == [4, 8, 12, 16]
    for number, row in enumerate(found):
        part = slice(4 * number, 4 * number + 4)
        weighted = sum(map(float.__mul__, losses[part], map(float, sizes[part]))) / sum(sizes[part])
        assert row["loss"] == pytest.approx(weighted, rel=1e-10)
    assert [row["targets"] for row in found] == [16, 30, 44, 60]
    assert [row["epoch"] for row in found] == [0, 1, 1, 2]


@pytest.mark.parametrize("kind", ["constant", "inverse_sqrt", "cosine", "linear", "wsd"])
def test_the_rate_follows_the_schedule(tmp_path: Path, kind: str):
    schedule = ScheduleConfig(kind=kind, warmup=5, final=0.1, decay=0.5)
    loop(Rows(changed(schedule=schedule)), tmp_path).run()
    found = [row["rate"] for row in rows(tmp_path, "loss")]
    expected = [0.05 * schedule.factor(step, done=step / 18) for step in range(1, 19)]
    assert found == pytest.approx(expected, rel=1e-12)


def test_the_logged_norm_is_that_before_clipping(tmp_path: Path):
    loop(Rows(changed(clip=None, epochs=1)), tmp_path / "a").run()
    loop(Rows(changed(clip=1e-3, epochs=1)), tmp_path / "b").run()
    one, other = (rows(tmp_path / name, "norm")[0]["norm"] for name in "ab")
    assert one == other > 1e-3


@pytest.mark.parametrize(
    ("values", "steps", "epochs"),
    [
        ({"epochs": 2}, 12, 2),
        ({"epochs": 2, "steps": 100}, 12, 2),
        ({"epochs": None, "steps": 12}, 12, 2),
        ({"epochs": None, "steps": 13}, 13, 2),
        ({"epochs": 9, "steps": 1}, 1, 0),
        ({"epochs": None, "steps": 3, "accumulate": 4}, 3, 1),
    ],
)
def test_a_run_ends_with_the_first_end_that_is_reached(
    tmp_path: Path, values: dict[str, Any], steps: int, epochs: int
):
    task = Rows(changed(**values))
    progress = loop(task, tmp_path).run()
    assert (progress.step, progress.epoch, progress.finished) == (steps, epochs, True)
    assert rows(tmp_path)[-1]["step"] == steps  # whenever it ends, it ends with a validation
    assert "valid_loss" in rows(tmp_path)[-1]
    found, _ = checkpoint.newest(tmp_path)
    assert found is not None
    assert found.step == steps
    assert found.facts["finished"]


def test_a_run_of_minutes_ends(tmp_path: Path):
    progress = loop(
        Rows(changed(epochs=None, minutes=0.002, schedule=ScheduleConfig(kind="linear", warmup=0))), tmp_path
    ).run()
    assert 0.12 <= progress.seconds < 5
    rates = [row["rate"] for row in rows(tmp_path, "loss")]
    assert sorted(rates, reverse=True) == rates
    assert rates[-1] < 0.01 < rates[0]


@pytest.mark.parametrize(
    ("every", "since", "at"), [(1, 1, [1, 2, 3, 4, 5, 6, 7]), (3, 1, [3, 6, 7]), (2, 5, [6, 7]), (1, 9, [7])]
)
def test_validations_come_when_they_are_due_and_at_the_end(
    tmp_path: Path, every: int, since: int, at: list[int]
):
    loop(Rows(changed(epochs=7, validate_every=every, validate_from=since)), tmp_path).run()
    assert [row["epoch"] for row in rows(tmp_path, "best")] == at


def scripted(*scores: float):
    """These scores, one after another; and the weights that had them."""
    seen: list[dict[str, Any]] = []

    def score(task: Rows) -> float:
        seen.append(weights(task.model))
        return scores[len(seen) - 1]

    return score, seen


@pytest.mark.parametrize("kind", ["none", "ema", "last"])
def test_the_best_weights_end_in_the_model(tmp_path: Path, kind: str):
    score, seen = scripted(1.0, 5.0, 5.0, 2.0)
    task = Rows(changed(epochs=4, average=AverageConfig(kind=kind, decay=0.5, count=2)), score=score)
    progress = loop(task, tmp_path).run()
    assert (progress.best, progress.best_step, progress.worse) == (5.0, 12, 2)  # of equals, the first
    assert progress.best_scores == {"score": 5.0}
    assert progress.signatures == {"score": "s|1"}
    assert same_bits(task.model.state_dict(), seen[1])
    assert not task.model.training
    assert [row["best"] for row in rows(tmp_path, "best")] == [True, True, False, False]
    last = checkpoint.newest(tmp_path)[0].tensors["model"]
    assert not same_bits(last, seen[1])
    assert same_bits(last, seen[3]) == (kind == "none")


@pytest.mark.parametrize(
    ("scores", "patience", "validations"),
    [
        ([1, 2, 3, 4, 5, 6, 7], 1, 7),
        ([1, 2, 1, 3, 1, 1, 9], 1, 3),
        ([1, 2, 1, 3, 1, 1, 9], 2, 6),
        ([1, 2, 1, 3, 1, 1, 9], 3, 7),
        ([5, 5, 5, 5, 5, 5, 5], 3, 4),  # equal is not better
    ],
)
def test_patience_ends_a_run(tmp_path: Path, scores: list[float], patience: int, validations: int):
    score, seen = scripted(*scores)
    progress = loop(Rows(changed(epochs=7, patience=patience), score=score), tmp_path).run()
    assert len(seen) == progress.epoch == validations
    assert progress.finished


def test_without_validation_data_the_last_weights_are_the_best(tmp_path: Path):
    task = Rows(changed(average=AverageConfig(kind="last", count=3)), score=lambda _: None)
    ends = []
    sitting = loop(task, tmp_path)
    update = sitting.state.average.update

    def note(model: torch.nn.Module) -> None:
        update(model)
        ends.append(weights(model))

    sitting.state.average.update = note
    progress = sitting.run()
    assert progress.best is None
    assert len(ends) == 3
    for name, tensor in task.model.state_dict().items():
        mean = sum(end[name] for end in ends) / 3
        torch.testing.assert_close(tensor, mean, rtol=1e-6, atol=1e-6)
    assert not rows(tmp_path, "best")


def test_ema_takes_every_update_and_last_only_the_ends_of_epochs(tmp_path: Path):
    for kind, count in (("ema", 18), ("last", 3), ("none", 0)):
        sitting = loop(Rows(changed(average=AverageConfig(kind=kind))), tmp_path / kind)
        sitting.run()
        assert int(sitting.state.average.tensors()["updates"]) == count


def test_validation_leaves_no_trace_in_training(tmp_path: Path):
    """Whether it validates often or once, it learns the same."""
    ema = AverageConfig(kind="ema")
    often, once = Rows(changed(average=ema), dropout=0.5), Rows(changed(validate_from=3), dropout=0.5)
    for task, name in ((often, "often"), (once, "once")):
        torch.manual_seed(4)
        loop(task, tmp_path / name).run()
    assert (often.validations, once.validations) == (3, 1)
    one, other = (checkpoint.newest(tmp_path / name)[0].tensors["model"] for name in ("often", "once"))
    assert same_bits(one, other)


EXACT = {
    "adamw": {},
    "ema": {"average": AverageConfig(kind="ema", decay=0.9), "patience": 2},
    "last": {"average": AverageConfig(kind="last", count=2), "accumulate": 2},
    "muon": {"optimizer": OptimConfig(kind="muon", rate=0.05), "schedule": ScheduleConfig(kind="cosine", warmup=3)},
    "bf16": {"precision": "bf16", "steps": 16, "log_every": 5},
}  # fmt: skip


def small(config: TrainConfig) -> Rows:
    """With dropout, in fp32."""
    return Rows(config, model=net(dropout=0.3).float())


def stopped_at(task: Rows, path: Path, step: int, resume: bool = False) -> bool:
    """Train until the loop is asked to stop after this step; True if it did stop."""
    sitting = loop(task, path, resume)
    update = sitting._update

    def watch(group: Any, batches: int) -> None:
        update(group, batches)
        if sitting.state.progress.step == step:
            sitting.stopping = 15

    sitting._update = watch
    try:
        sitting.run()
    except Interrupted as stop:
        said = f"stopped after step {step}, and everything is saved: go on with qkv train --resume"
        return stop.signal == 15 and str(stop).startswith(said)
    return False


@pytest.mark.parametrize("name", EXACT)
def test_a_run_stopped_after_every_step_is_the_run_that_never_was(tmp_path: Path, name: str):
    config = changed(**EXACT[name])
    whole = small(config)
    torch.manual_seed(4)
    total = loop(whole, tmp_path / "whole").run().step
    for step in range(1, total + 1):
        task = small(config)
        torch.manual_seed(4 if step == 1 else 1000 + step)  # what the process drew before does not matter
        assert stopped_at(task, tmp_path / "parts", step, resume=step > 1) == (step < total)
    assert same_bits(whole.model.state_dict(), task.model.state_dict())
    one, other = (checkpoint.newest(tmp_path / part)[0] for part in ("whole", "parts"))
    assert one.step == other.step == total
    for group, tensors in one.tensors.items():
        assert same_bits(tensors, other.tensors[group]), group
    assert one.facts | {"seconds": 0} == other.facts | {"seconds": 0}
    for first, second in zip(rows(tmp_path / "whole"), rows(tmp_path / "parts"), strict=True):
        assert first | {"seconds": 0} == second | {"seconds": 0}


def test_asked_to_stop_in_its_last_step_a_run_ends(tmp_path: Path):
    assert not stopped_at(Rows(), tmp_path, 18)
    assert checkpoint.newest(tmp_path)[0].facts["finished"]


def test_a_finished_run_only_takes_its_best_weights(tmp_path: Path):
    score, seen = scripted(1.0, 5.0, 2.0)
    loop(Rows(score=score), tmp_path).run()
    again = Rows(score=score)
    sitting = loop(again, tmp_path, resume=True)
    sitting.run()
    assert not again.seen
    assert len(seen) == 3
    assert same_bits(again.model.state_dict(), seen[1])


def test_time_is_counted_over_all_sittings(tmp_path: Path):
    stopped_at(Rows(), tmp_path, 3)
    before = checkpoint.newest(tmp_path)[0].facts["seconds"]
    sitting = loop(Rows(), tmp_path, resume=True)
    sitting._offset += 100  # as if it had begun earlier
    progress = sitting.run()
    assert before + 100 < progress.seconds < before + 110
    assert [row["seconds"] for row in rows(tmp_path)] == sorted(row["seconds"] for row in rows(tmp_path))


def test_checkpoints_come_as_often_as_asked_and_two_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    saved: list[int] = []
    save = checkpoint.save

    def note(path: Path, step: int, *rest: Any) -> Path:
        saved.append(step)
        return save(path, step, *rest)

    monkeypatch.setattr(checkpoint, "save", note)
    loop(Rows(changed(checkpoint_minutes=1e-9)), tmp_path / "often").run()
    assert saved == list(range(1, 19))
    assert len(list((tmp_path / "often" / "checkpoints").iterdir())) == 2
    saved.clear()
    loop(Rows(), tmp_path / "seldom").run()
    assert saved == [18]
