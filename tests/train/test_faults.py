"""A number that is not finite stops the run in its step, is traced to where it arose, and leaves all as it was."""

import json
from pathlib import Path

import pytest
import torch
from tests.train.toy import CLASSES, FEATURES, PLAIN, WIDTH, Rows, changed, loop, net, same_bits, weights
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.train.faults import describe_fault


class Broken(nn.Module):
    """Passes its input on; `when` it is asked to, with a number that is none."""

    def __init__(self, when=lambda x: True, value: float = torch.nan):
        super().__init__()
        self.when, self.value = when, value

    def forward(self, x: Tensor) -> Tensor:
        return x * self.value if self.when(x) else x


class BrokenBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


class Behind(nn.Module):
    """The gradient of what comes before is multiplied."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return BrokenBackward.apply(x, self.factor)


def around(middle: nn.Module) -> nn.Sequential:
    """net() with a module in the middle: first, middle.inner, last."""
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("first", nn.Linear(FEATURES, WIDTH))
    model.add_module("middle", nn.Sequential())
    model.middle.add_module("inner", middle)
    model.add_module("last", nn.Linear(WIDTH, CLASSES))
    return model.double()


def on_call(number: int):
    """True at one call and those after it."""
    calls = iter(range(1000))
    return lambda x: next(calls) >= number


def test_the_first_bad_module_the_step_and_the_examples_are_named(tmp_path: Path):
    task = Rows(model=around(Broken(on_call(4))))
    with pytest.raises(QkvError) as raised:
        loop(task, tmp_path).run()
    assert str(raised.value).startswith(
        f"step 5: the loss is nan, first in the output of middle.inner (examples: rows {task.seen[4]}, …); "
        "nothing was changed by this step: lower the rate"
    )
    assert len(task.seen) == 6  # the batch, once more to find the module, and none after it


def test_nothing_is_overwritten(tmp_path: Path):
    task = Rows(changed(checkpoint_minutes=1e-9), model=around(Broken(on_call(4))))
    sitting = loop(task, tmp_path)
    after_four: dict[str, Tensor] = {}
    save = sitting._save

    def note() -> None:
        save()
        after_four.update(weights(task.model))

    sitting._save = note
    with pytest.raises(QkvError, match="step 5"):
        sitting.run()
    assert same_bits(task.model.state_dict(), after_four)
    assert sitting.state.progress.step == 4
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["00000003", "00000004"]
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]

    # Mended, the run goes on from there to where it would have come.
    again = Rows(changed(checkpoint_minutes=1e-9), model=around(Broken(on_call(1000))))
    loop(again, tmp_path, resume=True).run()
    sound = Rows(changed(), model=around(Broken(on_call(1000))))
    loop(sound, tmp_path / "sound").run()
    assert same_bits(again.model.state_dict(), sound.model.state_dict())


def test_of_accumulated_batches_the_bad_one_is_named(tmp_path: Path):
    task = Rows(changed(accumulate=3), size=3)
    bad = task.epoch(0)[4][1]  # in the second batch of the second update
    task.inputs[bad] = torch.inf
    batch = task.epoch(0)[4].tolist()
    with pytest.raises(QkvError) as raised:
        loop(task, tmp_path).run()
    assert f"step 2: the loss is nan, first in the output of 0 (examples: rows {batch}, …);" in str(
        raised.value
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_fault_that_chance_brought_is_found_again(tmp_path: Path, seed: int):
    """Such as one under a certain dropout: the second pass draws the numbers of the first."""
    torch.manual_seed(seed)
    task = Rows(model=around(Broken(lambda x: bool(torch.rand(()) < 0.3))))
    torch.manual_seed(seed)
    with pytest.raises(QkvError, match=r"first in the output of middle.inner"):
        loop(task, tmp_path).run()


@pytest.mark.parametrize(("factor", "kind"), [(torch.nan, "nan"), (torch.inf, "inf")])
def test_a_bad_gradient_is_named_where_it_arose(tmp_path: Path, factor: float, kind: str):
    """Backwards, all before the fault is bad too: first.bias is the last parameter that it reached."""
    task = Rows(model=around(Behind(factor)))
    before = weights(task.model)
    with pytest.raises(QkvError) as raised:
        loop(task, tmp_path).run()
    text = str(raised.value)
    assert f"step 1: the gradient of first.bias has {kind}" in text.replace("has nan", f"has {kind}")
    assert f"and 2 of 4 gradients are not finite (examples: rows {task.seen[0]}, …)" in text
    assert same_bits(task.model.state_dict(), before)


def test_a_norm_beyond_all_numbers_is_said_to_be_one(tmp_path: Path):
    task = Rows(model=around(Behind(1e200)))
    with pytest.raises(
        QkvError, match=r"the norm of the gradient is inf, though each of its parts is finite"
    ):
        loop(task, tmp_path).run()


def test_a_weight_that_is_no_number_is_the_cause(tmp_path: Path):
    task = Rows()
    with torch.no_grad():
        task.model[3].bias[1] = torch.nan
    with pytest.raises(QkvError, match=r"step 1: the loss is nan, because the weight 3.bias is not finite"):
        loop(task, tmp_path).run()


def test_a_loss_outside_of_all_modules_is_said_to_be_one(tmp_path: Path):
    class Outside(Rows):
        def loss(self, batch: Tensor) -> Tensor:
            return super().loss(batch) / 0

    with pytest.raises(QkvError, match=r"the loss is inf, though the output of every module is finite"):
        loop(Outside(), tmp_path).run()


def test_modules_with_several_outputs_are_looked_into(tmp_path: Path):
    class Two(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x / 0

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.two, self.net = Two(), net()

        def forward(self, x: Tensor) -> Tensor:
            one, other = self.two(x)
            return self.net(one + other)

    with pytest.raises(QkvError, match=r"first in the output of two "):
        loop(Rows(model=Pair()), tmp_path).run()


def test_a_compiled_model_is_looked_into():
    """Observers never fire in it, so it runs as it was written."""
    torch.compiler.reset()
    task = Rows(model=around(Broken(value=torch.inf)))
    task.model.compile(backend="eager")
    batch = task.epoch(0)[0]
    with torch.no_grad():
        loss = task.loss(batch)
    assert not loss.isfinite()
    found = describe_fault(task, [batch], float(loss), 1.0, torch.get_rng_state(), "fp32")
    assert found is not None
    assert "first in the output of middle.inner" in found


def test_bf16_faults_are_looked_for_in_bf16(tmp_path: Path):
    """1 + 2⁻⁹ is 1 there, and so infinitely far from everything in 1 / (x - 1)."""

    class Near(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1 / (torch.ones_like(x) + 2**-9 - 1)

    task = Rows(changed(precision="bf16"), model=around(Near()).float())
    with pytest.raises(QkvError, match=r"first in the output of middle.inner"):
        loop(task, tmp_path).run()
    loop(Rows(changed(epochs=1), model=around(Near()).float()), tmp_path / "fp32").run()


def test_finite_numbers_are_no_fault():
    task = Rows(PLAIN)
    assert describe_fault(task, [task.epoch(0)[0]], 1.0, 2.0, torch.get_rng_state(), "fp32") is None


def test_of_a_batch_the_bad_examples_are_named(tmp_path: Path):
    class Third(nn.Module):
        """The third example of a batch has no numbers; its axes are (examples, 1, width)."""

        def forward(self, x: Tensor) -> Tensor:
            spoilt = torch.zeros(len(x), 1, 1).index_fill_(0, torch.tensor([2]), torch.nan).to(x)
            return (x.unsqueeze(1) + spoilt).squeeze(1) if len(x) < 3 else x.unsqueeze(1) + spoilt

    class Flat(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)

    task = Rows(model=around(nn.Sequential(Third(), Flat())))
    with pytest.raises(QkvError) as raised:
        loop(task, tmp_path).run()
    third = task.seen[-1][2]
    assert f"first in the output of middle.inner.0 (examples: rows [{third}])" in str(raised.value)
