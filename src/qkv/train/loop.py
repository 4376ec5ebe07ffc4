"""The training loop: batches to updates, updates to validations and checkpoints, the same after any interruption."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from qkv.errors import QkvError
from qkv.store import checkpoint
from qkv.store.checkpoint import Checkpoint
from qkv.tasks.task import Epoch, Task
from qkv.train.average import Average
from qkv.train.faults import describe_fault
from qkv.train.log import Log
from qkv.train.optim import Optimizer, clip
from qkv.train.precision import computing_in
from qkv.train.progress import Display
from qkv.train.run import Run
from qkv.train.state import Progress, State


class Interrupted(QkvError):
    """The run was asked to stop, by `signal`; what it has is in a checkpoint."""

    signal = 0


class Loop:
    """One sitting of a run, from its start or from a checkpoint to its end or an interruption."""

    def __init__(
        self,
        task: Task[Any],
        run: Run,
        display: Display,
        resume: Checkpoint | None = None,
        began: float | None = None,
    ):
        """`began` is when the command was given, by `time.perf_counter`: a run's minutes count from there."""
        self.task, self.run_, self.display, self.config = task, run, display, task.training
        model, c = task.model, self.config
        self.state = State(model, Optimizer(model, c.optimizer), Average(c.average), Progress())
        if resume:
            self.state.load(resume)
        if c.compile:
            model.compile(dynamic=True)
        self.stopping = 0
        """The number of the signal that asked to stop, if any did."""
        now = time.perf_counter() if began is None else began
        self._offset = self.state.progress.seconds - now
        self._saved_at = time.perf_counter()
        self._random = torch.get_rng_state()
        self._log = Log(run.log, keep=self.state.progress.lines)
        self._board = run.board(self.state.progress.step) if c.tensorboard else None

    def run(self) -> Progress:
        """Train to the end; the best weights are then in the model."""
        self.task.model.train()
        progress = self.state.progress
        while not progress.finished:
            self._epoch()
            over = self._done() >= 1
            if self.config.average.kind == "last":
                self.state.average.update(self.task.model)
            due = (
                progress.epoch % self.config.validate_every == 0
                and progress.epoch >= self.config.validate_from
            )
            if due or over:
                self._validate()
            patient = self.config.patience is None or progress.worse < self.config.patience
            progress.finished = over or not patient
            if progress.finished or self.stopping or self._checkpoint_due():
                self._save()
            if self.stopping and not progress.finished:
                raise self._interrupted()
        self._use_best()
        return progress

    def stop(self, signal: int) -> None:
        """Stop after the present update or validation."""
        self.stopping = signal
        self.display.say(
            "stopping once the present update or validation is done, and saved; once more: at once"
        )

    def close(self) -> None:
        """Write out what is still on its way to TensorBoard."""
        if self._board is not None:
            self._board.close()

    def _epoch(self) -> None:
        """From where the epoch stands to its end, or that of the run."""
        progress = self.state.progress
        epoch = self.task.epoch(progress.epoch)
        self.display.epoch(progress.epoch + 1, len(epoch))
        for group in _groups(epoch, progress.batch, self.config.accumulate):
            self._update(group, len(epoch))
            if progress.batch == len(epoch):
                break  # what follows an epoch belongs to the same step, and is saved with it
            if self._done(len(epoch)) >= 1:
                return
            if self.stopping or self._checkpoint_due():
                self._save()
            if self.stopping:
                raise self._interrupted()
        progress.epoch, progress.batch = progress.epoch + 1, 0

    def _update(self, group: Sequence[Any], batches: int) -> None:
        """One step of the optimiser."""
        c, task, progress = self.config, self.task, self.state.progress
        self._random = torch.get_rng_state()  # to find the fault with, if there is one
        targets = sum(task.targets(batch) for batch in group)
        self.state.optimizer.zero()
        total = 0.0
        for batch in group:
            with computing_in(task.model, c.precision):
                loss = task.loss(batch)
                (loss / targets).backward()
            total += loss.item()
        norm = clip(task.model, c.clip)
        self._expect_finite(group, total, norm)
        progress.step += 1
        progress.batch += len(group)
        progress.targets += targets
        factor = c.schedule.factor(progress.step, self._done(batches) if c.schedule.needs_end else None)
        self.state.optimizer.step(factor)
        if c.average.kind == "ema":
            self.state.average.update(task.model)
        progress.logged = [progress.logged[0] + total, progress.logged[1] + targets]
        if progress.step % c.log_every == 0:
            self._report(factor, norm, self._done(batches))

    def _report(self, factor: float, norm: float, done: float) -> None:
        progress = self.state.progress
        total, targets = progress.logged
        progress.logged = [0.0, 0.0]
        loss = total / targets
        self._write({"loss": loss, "norm": norm, "rate": self.config.optimizer.rate * factor})
        self.display.update(progress, loss, self._seconds(), done)

    def _validate(self) -> None:
        """Score the averaged weights, and keep them if they are the best so far."""
        progress, model = self.state.progress, self.task.model
        with self.state.average.applied(model):
            model.eval()
            with self.display.validating(), torch.no_grad():
                scores = self.task.validate()
            model.train()
            best = progress.best is None or scores is None or scores.best > progress.best
            if best:
                self.state.keep_best()
        if scores is None:  # nothing to choose by: the last weights are the best
            return
        progress.worse = 0 if best else progress.worse + 1
        if best:
            progress.best, progress.best_step = scores.best, progress.step
            progress.best_scores, progress.signatures = dict(scores.values), dict(scores.signatures)
        self._write({"best": best} | {f"valid_{name}": value for name, value in scores.values.items()})
        self.display.validated(progress, scores, best, self._seconds())

    def _use_best(self) -> None:
        with torch.no_grad():
            weights = self.task.model.state_dict()
            for name, tensor in self.state.best.items():
                weights[name].copy_(tensor)
        self.task.model.eval()

    def _write(self, values: dict[str, Any]) -> None:
        progress = self.state.progress
        seconds = round(self._seconds(), 2)
        record = {
            "step": progress.step,
            "epoch": progress.epoch,
            "targets": progress.targets,
            "seconds": seconds,
        }
        self._log.write(record | values)
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name.replace("valid_", "valid/"), float(value), progress.step)

    def _save(self) -> None:
        progress = self.state.progress
        progress.seconds, progress.lines = self._seconds(), self._log.lines
        checkpoint.save(self.run_.path, progress.step, self.state.tensors(), self.state.facts())
        self._saved_at = time.perf_counter()

    def _interrupted(self) -> Interrupted:
        interrupted = Interrupted(
            f"stopped after step {self.state.progress.step:,}, and everything is saved: go on with "
            f"qkv train --resume --out {self.run_.path}"
        )
        interrupted.signal = int(self.stopping)
        return interrupted

    def _checkpoint_due(self) -> bool:
        return time.perf_counter() - self._saved_at >= 60 * self.config.checkpoint_minutes

    def _expect_finite(self, group: Sequence[Any], total: float, norm: float) -> None:
        fault = describe_fault(self.task, group, total, norm, self._random, self.config.precision)
        if fault:
            raise QkvError(
                f"step {self.state.progress.step + 1}: {fault}; nothing was changed by this step: lower the rate, "
                "lengthen the warm-up, train in fp32, or look at those examples"
            )

    def _seconds(self) -> float:
        return self._offset + time.perf_counter()

    def _done(self, batches: int | None = None) -> float:
        """The share of the run that is behind."""
        c, progress = self.config, self.state.progress
        inside = progress.batch / batches if batches else 0.0
        shares = [0.0]
        if c.epochs:
            shares.append((progress.epoch + inside) / c.epochs)
        if c.steps:
            shares.append(progress.step / c.steps)
        if c.minutes:
            shares.append(self._seconds() / (60 * c.minutes))
        return max(shares)


def _groups(epoch: Epoch[Any], start: int, size: int) -> Iterator[list[Any]]:
    """The batches of each update, from `start` on; the last group of an epoch may be smaller."""
    for first in range(start, len(epoch), size):
        yield [epoch[number] for number in range(first, min(first + size, len(epoch)))]
