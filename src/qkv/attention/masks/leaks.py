"""Find what sees what it must not: the future, or padding.

Axes: B batch, T length, D width.

A mask that is wrong by one position trains to 99 % and means nothing. `check_leaks` changes exactly
what must not be seen, and asks every module of a model whether its output moved where it must not.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from qkv.attention.scores import Score
from qkv.errors import QkvError

TOLERANCE = 1e-6
"""Largest relative change that counts as none; masks block exactly, so this is for kernels that do not."""


class _Trial(NamedTuple):
    """One change of the input, and the positions (B, T) that must not notice it."""

    changed_BT: Tensor
    protected_BT: Tensor
    what: str
    pooled: bool
    """Whether an answer to the whole sentence must not notice it either."""


def check_leaks(
    model: nn.Module, x: Tensor, *arguments: object, causal: bool = True, keep_BT: Tensor | None = None
) -> None:
    """Raise a `QkvError` that names the first module and position that see the future or padding.

    `model(x, *arguments)` is run in eval mode on x, token ids (B, T) or numbers (B, T, D), and again with
    everything after some position changed (`causal`), and with the padding changed (`keep_BT`, True =
    real token; a model that tells padding by its ids will see words there, and rightly be named). A module
    counts if its output, or the first of several, has the axes (B, T, …) or (B, …, T, width) of the input;
    a `Score` does not, for masks act on what it returns. One answer for each sentence (B, …) counts for padding.
    """
    if x.dim() < 2 or not x.shape[0]:
        raise QkvError(
            f"check_leaks got an input of shape {tuple(x.shape)}; (batch, length) ids or (batch, length, width) is wanted"
        )
    trials = [*(_futures(x) if causal else []), *(_paddings(x, keep_BT) if keep_BT is not None else [])]
    if not trials:
        raise QkvError(
            "check_leaks has nothing to check: pass causal=True, or keep_BT with some padding in it"
        )
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            before = _outputs(model, x, arguments)
            for trial in trials:
                after = _outputs(model, _perturb(x, trial.changed_BT), arguments)
                _compare(before, after, trial)
    finally:
        for module in training:  # one by one: parts of a model may be frozen in eval mode
            module.training = True


def _futures(x: Tensor) -> Iterator[_Trial]:
    """Change all after position t, for every t, or for 64 that are evenly spread over a longer sequence."""
    B, T = x.shape[:2]
    if T < 2:
        raise QkvError(f"check_leaks got length {T}; a causal check needs 2 positions or more")
    position = torch.arange(T, device=x.device).expand(B, T)
    for t in sorted({round(share) for share in torch.linspace(0, T - 2, min(T - 1, 64)).tolist()}):
        yield _Trial(
            position > t,
            position <= t,
            f"the future: its output moved when only positions {t + 1} to {T - 1} changed",
            pooled=False,
        )


def _paddings(x: Tensor, keep_BT: Tensor) -> Iterator[_Trial]:
    if keep_BT.shape != x.shape[:2] or keep_BT.dtype != torch.bool:
        raise QkvError(
            f"keep_BT is {keep_BT.dtype} of shape {tuple(keep_BT.shape)}; booleans {tuple(x.shape[:2])} are wanted"
        )
    if bool(keep_BT.all()):
        return
    yield _Trial(
        ~keep_BT, keep_BT, "padding: its output moved when only padded positions changed", pooled=True
    )


def _perturb(x: Tensor, changed_BT: Tensor) -> Tensor:
    """Other tokens from the same batch, or shifted numbers, at the changed positions."""
    if x.is_floating_point():
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
        return torch.where(
            changed_BT.reshape(*changed_BT.shape, *[1] * (x.dim() - 2)), x + 1 + noise.abs(), x
        )
    known = x.unique()
    if len(known) < 2:
        raise QkvError(
            f"check_leaks got only the token {int(known[0])}; "
            "two different tokens or more are wanted, to change one into the other"
        )
    rank = torch.searchsorted(known, x.contiguous())
    return torch.where(changed_BT, known[(rank + 1) % len(known)], x)


@contextmanager
def _recording(model: nn.Module, seen: list[tuple[str, Tensor]]) -> Iterator[None]:
    def record(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: object, output: object) -> None:
            if isinstance(output, (tuple, list)) and output:
                output = output[0]
            if isinstance(output, Tensor):
                seen.append((name, output.clone()))  # what follows may add to it in place

        return hook

    watched = [(name, module) for name, module in model.named_modules() if not isinstance(module, Score)]
    handles = [module.register_forward_hook(record(name)) for name, module in watched]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _outputs(model: nn.Module, x: Tensor, arguments: tuple[object, ...]) -> list[tuple[str, Tensor]]:
    """The output of every module in the order in which they finished."""
    seen: list[tuple[str, Tensor]] = []
    with _recording(model, seen):
        model(x, *arguments)
    return seen


def _compare(before: list[tuple[str, Tensor]], after: list[tuple[str, Tensor]], trial: _Trial) -> None:
    size, compared = trial.protected_BT.shape, 0
    for (name, one), (_, two) in zip(before, after, strict=True):
        # With as many heads as positions an output reads two ways: it leaks only if it does in both.
        moves = [_moved(*pair) for pair in zip(_by_position(one, size), _by_position(two, size), strict=True)]
        leaks = [trial.protected_BT & ~(moved_BT <= TOLERANCE) for moved_BT in moves]
        compared += len(moves)
        if moves and all(leaks_BT.any() for leaks_BT in leaks):
            row, position = leaks[0].nonzero()[0].tolist()
            raise QkvError(
                f"position {position} of '{name or 'the model'}' (sentence {row}) sees {trial.what} "
                f"(by {float(moves[0][row, position]):.2g} of its size): check the mask it gets"
            )
    whole = (before[-1], after[-1]) if before and before[-1][0] == "" else None
    if whole and not _by_position(whole[0][1], size):
        compared += _compare_whole(whole[0][1], whole[1][1], trial)
    if not compared:
        raise QkvError(
            f"no module's output has axes (batch, length) = {tuple(size)} like the input: there is nothing to compare"
        )


def _compare_whole(one: Tensor, two: Tensor, trial: _Trial) -> int:
    """The model's own output, where it has no axis of positions: one answer for each sentence."""
    (B, T), shape = trial.protected_BT.shape, tuple(one.shape)
    if shape[:2] == (T, B):
        raise QkvError(
            f"the model's output has shape {shape}, positions first; (batch, length, …) = ({B}, {T}, …) is wanted: "
            "check it with batch_first=True, or behind a transposition"
        )
    if not trial.pooled or not shape or shape[0] != B:
        return 0
    moved_B = _moved(one.reshape(B, -1).float(), two.reshape(B, -1).float())
    if bool((moved_B > TOLERANCE).any()):
        row = int(moved_B.argmax())
        raise QkvError(
            f"the model's answer to sentence {row} sees {trial.what} (by {float(moved_B[row]):.2g} of its size): "
            "leave padding out where it pools"
        )
    return 1


def _moved(one_BTX: Tensor, two_BTX: Tensor) -> Tensor:
    """How far each position moved, as a share of the largest number if that is above 1; moved_BT."""
    return (one_BTX - two_BTX).abs().amax(-1) / one_BTX.abs().amax().clamp(min=1)


def _by_position(output: Tensor, size: torch.Size) -> list[Tensor]:
    """The output as (B, T, everything else), in each way in which it has such axes."""
    readings = []
    if output.dim() > 3 and output.shape[0] == size[0] and output.shape[-2] == size[1]:
        readings.append(
            output.movedim(-2, 1).flatten(2).float()
        )  # heads before positions, as attention has them
    if output.dim() > 1 and output.shape[:2] == size:
        readings.append(output.reshape(*size, -1).float())
    return readings
