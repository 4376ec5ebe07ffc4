"""Training in bfloat16: passes run on rounded images of the weights, which themselves stay in fp32.

`torch.autocast` would round at each product and go back to fp32 between them; here everything between two products,
most of the time of a small model, is rounded too, and moves half the bytes. Sums inside a kernel (norms, softmax,
the loss) are in fp32 as always.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from qkv.blocks.embed import Embedding
from qkv.recipe.training import Precision


@contextmanager
def computing_in(model: nn.Module, precision: Precision) -> Iterator[None]:
    """While it lasts, the model computes in this precision; at its end, gradients have arrived at the model's own weights.

    So forward and backward pass both belong inside.
    """
    if precision == "fp32":
        yield
        return
    places = _places(model)
    image_of = {
        weight: weight.detach().bfloat16().requires_grad_(weight.requires_grad) for _, _, weight in places
    }
    try:
        for module, name, weight in places:
            _put(module, name, image_of[weight])
        _round(model, torch.bfloat16)
        yield
    finally:
        for module, name, weight in places:
            _put(module, name, weight)
        _round(model, None)
    for weight, image in image_of.items():
        if image.grad is not None:
            gradient = image.grad.to(weight.dtype)
            weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)


def _places(model: nn.Module) -> list[tuple[nn.Module, str, nn.Parameter]]:
    """Where weights stand that are to be rounded: all but tables, as a frequent token's gradient is a long sum."""
    return [
        (module, name, weight)
        for module in model.modules()
        if not isinstance(module, Embedding)
        for name, weight in module.named_parameters(recurse=False, remove_duplicate=False)
        if weight.is_floating_point()
    ]


def _round(model: nn.Module, dtype: torch.dtype | None) -> None:
    """What a table gives out is rounded, if not the table."""
    for module in model.modules():
        if isinstance(module, Embedding):
            module.dtype = dtype


def _put(module: nn.Module, name: str, weight: Tensor) -> None:
    """Let `module.name` be this tensor, without asking whether it is a parameter."""
    module._parameters[name] = weight  # pyright: ignore[reportArgumentType]
    if isinstance(module, nn.RNNBase):  # which keeps a list of its own
        module._flat_weights[module._flat_weights_names.index(name)] = weight  # pyright: ignore[reportArgumentType]
