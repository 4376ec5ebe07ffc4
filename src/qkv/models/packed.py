"""A Transformer packed for inference: the same function in fewer and larger calls.

Axes: B sentences, W prefixes of each, R rows (B · W, those of a sentence side by side), S source length, C columns, Y
decoder layers, Z keys and values (2), D width, H heads of the queries, G heads of keys and values, X sentences times
key heads (B · G), V all heads of a projection, K width of a head, L vocabulary, O outputs.

`blocks` and `attention` say readably what is computed; here it is laid out for speed, and tests prove the two equal in
float64. The model takes the readable path for whatever this one cannot do: see `packed`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qkv.attention.attend import Attend
from qkv.attention.columns import Columns, for_heads, in_lanes, look
from qkv.attention.dropout import Dropout
from qkv.attention.heads import MultiHeadAttention
from qkv.attention.normalize import softmax
from qkv.attention.positions import POSITIONS, Position
from qkv.attention.scores import Dot
from qkv.blocks.embed import Embedding
from qkv.blocks.feedforward import FeedForward
from qkv.blocks.layer import Layer, Layers
from qkv.errors import QkvError
from qkv.models.interface import State, counting
from qkv.models.sources import FOLD_UP_TO, ByHead, Folded, Folds, hidden_of, in_columns

if TYPE_CHECKING:
    from qkv.models.transformer import Transformer

PACK_FROM = 400_000
"""Products (rows × inputs × outputs) from which oneDNN's speed outweighs what a call of it costs more."""
LARGEST = 1 << 24
"""Elements of the encoder's scores; the readable path goes beyond, in row blocks."""
WIDEST = 32
"""Prefixes of a sentence; more would look at too many columns of one another."""


Function = Callable[[Tensor], Tensor]


class Product:
    """x·Wᵀ + b of linear maps that read the same input, in one call.

    The weights are laid out once as oneDNN wants them, with the operators that torch's own compiler uses: 250 instead of
    105 GFLOP/s on a Zen 5 core, and in full fp32 on every CPU, which `set_float32_matmul_precision` does not promise.
    """

    def __init__(self, weight_OD: Tensor, bias_O: Tensor | None):
        self.weight, self.bias, self.size, self.packed = weight_OD, bias_O, weight_OD.numel(), None
        if weight_OD.dtype != torch.float64 and torch.backends.mkldnn.is_available():
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight_OD)

    @classmethod
    def of(cls, *maps: nn.Linear, scales: Sequence[float] = ()) -> Self:
        """Of these maps, the first of them times these scales."""
        scales = [*scales, *[1.0] * (len(maps) - len(scales))]
        weight = torch.cat([linear.weight * scale for linear, scale in zip(maps, scales, strict=True)])
        if maps[0].bias is None:
            return cls(weight, None)
        return cls(
            weight, torch.cat([linear.bias * scale for linear, scale in zip(maps, scales, strict=True)])
        )

    def __call__(self, x_RD: Tensor) -> Tensor:
        if self.packed is None or x_RD.shape[0] * self.size < PACK_FROM:
            return F.linear(x_RD, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x_RD, self.packed, self.bias, "none", [], "")


class PackedLayer:
    """One layer's products, each between its norm and its residual sum."""

    def __init__(self, layer: Layer):
        c, own, feedforward = layer.config.attention, layer.own, layer.feedforward
        self.heads, self.groups, self.key_width = c.heads, c.key_heads, c.query_head_width
        scale = self.key_width**-0.5  # folded into the queries, so that the scores need no pass for it
        self.own_norm, self.feedforward_norm = _normed(layer.own_norm), _normed(layer.feedforward_norm)
        self.own_in, self.own_out = (
            Product.of(own.query, own.key, own.value, scales=[scale]),
            Product.of(own.out),
        )
        if layer.config.cross:
            self.cross_norm = _normed(layer.cross_norm)
            self.cross_in, self.cross_out = (
                Product.of(layer.cross.query, scales=[scale]),
                Product.of(layer.cross.out),
            )
        self.gate = None if feedforward.gate is None else Product.of(feedforward.gate)
        self.up, self.down = Product.of(feedforward.up), Product.of(feedforward.down)
        self.curve, self.is_pre = feedforward.activation.curve, layer.config.order == "pre"

    def ask_own(self, x_RD: Tensor, rotate: Function | None) -> tuple[Tensor, Tensor]:
        """What the rows ask, q_RHK, and what they offer: the keys of all heads, then their values, offered_RVK."""
        heads_RVK = self.own_in(self.enter(self.own_norm, x_RD)).view(x_RD.shape[0], -1, self.key_width)
        if rotate is not None:
            turned = self.heads + self.groups
            heads_RVK = torch.cat([rotate(heads_RVK[:, :turned]), heads_RVK[:, turned:]], dim=1)
        return heads_RVK[:, : self.heads], heads_RVK[:, self.heads :]

    def take_own(self, x_RD: Tensor, h_RD: Tensor) -> Tensor:
        return self._leave(self.own_norm, x_RD, h_RD)

    def ask_source(self, x_RD: Tensor) -> Tensor:
        """q_RHK."""
        return self.cross_in(self.enter(self.cross_norm, x_RD)).view(
            x_RD.shape[0], self.heads, self.key_width
        )

    def take_source(self, x_RD: Tensor, h_RD: Tensor) -> Tensor:
        return self._leave(self.cross_norm, x_RD, h_RD)

    def feedforward(self, x_RD: Tensor) -> Tensor:
        h_RD = self.enter(self.feedforward_norm, x_RD)
        hidden = (
            self.curve(self.up(h_RD)) if self.gate is None else self.curve(self.gate(h_RD)) * self.up(h_RD)
        )
        return self._leave(self.feedforward_norm, x_RD, self.down(hidden))

    def enter(self, norm: Function, x_RD: Tensor) -> Tensor:
        return norm(x_RD) if self.is_pre else x_RD

    def _leave(self, norm: Function, x_RD: Tensor, h_RD: Tensor) -> Tensor:
        """The residual sum, in the memory of h."""
        return h_RD.add_(x_RD) if self.is_pre else norm(h_RD.add_(x_RD))


@dataclass
class PackedState(State):
    """The source's keys and values in every decoder layer; and the prefixes', once there are any."""

    packed: "Packed"
    x_BSD: Tensor
    """What the encoder wrote, of all sentences that it read; with `keep_BS` and `here_B`, for the readable path."""
    keep_BS: Tensor
    here_B: Tensor
    """Which of them are still here."""
    source: ByHead | Folded
    own: Columns | None = None
    width: int = 1
    length: int = 0
    shares: bool = True
    """Whether another state may read the source's keys and values from the same memory."""
    consumed: bool = False

    def pick(self, rows_R: Tensor, width: int = 1) -> "PackedState":
        self.expect_unconsumed()
        stays_B = rows_R[::width]
        stays_B = stays_B if self.width == 1 else stays_B // self.width
        B = self.here_B.shape[0]
        same = stays_B.shape[0] == B and torch.equal(stays_B, counting(B, rows_R.device))
        self.consumed = self.own is not None
        own = self.own and self.own.pick(rows_R, width, None if same else stays_B)
        if same:
            return replace(self, own=own, width=width, consumed=False)
        return replace(
            self,
            here_B=self.here_B[stays_B],
            source=self.source.pick(stays_B, in_place=not self.shares),
            own=own,
            width=width,
            shares=False,
            consumed=False,
        )

    def expect_unconsumed(self) -> None:
        """Raise if the columns have gone on without this state."""
        if self.consumed:
            raise QkvError(
                f"this state of {self.length} tokens was consumed by a step or a pick: use the state that it returned"
            )


class Packed:
    """The products of a whole model; the arguments of its methods are those of the model's."""

    def __init__(self, model: "Transformer"):
        self.source_embedding, self.target_embedding = model.source_embedding, model.target_embedding
        self.source_positions, self.target_positions = model.source_positions, model.target_positions
        self.encoder = [PackedLayer(layer) for layer in model.encoder]
        self.decoder = [PackedLayer(layer) for layer in model.decoder]
        self.encoder_norm, self.decoder_norm = _normed(model.encoder_norm), _normed(model.decoder_norm)
        # Every decoder layer's keys and values of the source, in one product.
        crosses = [
            projection for layer in model.decoder for projection in (layer.cross.key, layer.cross.value)
        ]
        self.source_in = Product.of(*crosses)
        self.output = Product(model.output_table, None if model.output is None else model.output.bias)
        self.observers = [module._forward_hooks for module in model.decoder.modules()]
        first = self.decoder[0]
        self.heads, self.groups, self.key_width = first.heads, first.groups, first.key_width
        self.folds = Folds(list(model.decoder))
        self._waves: dict[int, Tensor] = {}

    def encode(self, source_BS: Tensor, keep_BS: Tensor) -> PackedState:
        B, S = source_BS.shape
        hidden_B1C, blank_B = hidden_of(keep_BS, self.output.weight.dtype), ~keep_BS.any(1)
        hidden_X1C = for_heads(hidden_B1C, self.heads, self.groups)
        x_BSD = self.source_positions.embed(self.source_embedding(source_BS))
        x_RD, rotate = x_BSD.flatten(0, 1), _rotation(self.source_positions, S)
        for layer in self.encoder:
            q_RHK, offered_RVK = layer.ask_own(x_RD, rotate)
            offered = offered_RVK.view(B, S, 1, 2, self.groups, -1).permute(2, 3, 0, 4, 1, 5)
            keys_XCK, values_XCK = in_columns(offered, blank_B)[0].flatten(1, 2)
            found_RD = look(q_RHK, keys_XCK, values_XCK, hidden_X1C, B)
            x_RD = layer.feedforward(layer.take_own(x_RD, layer.own_out(found_RD)))
        x_RD = self.encoder_norm(x_RD)
        offered = (
            self.source_in(x_RD).view(B, S, len(self.decoder), 2, self.groups, -1).permute(2, 3, 0, 4, 1, 5)
        )
        if hidden_B1C.numel() * self.heads <= FOLD_UP_TO:
            source = self.folds(offered, blank_B, hidden_B1C)
        else:
            source = ByHead(in_columns(offered, blank_B), hidden_B1C, self.heads)
        return PackedState(self, x_RD.view(B, S, -1), keep_BS, counting(B, source_BS.device), source)

    def step(self, tokens_RT: Tensor, state: PackedState) -> tuple[Tensor, PackedState]:
        state.expect_unconsumed()
        own, layer = state.own, self.decoder[0]
        if own is None:
            shape = len(self.decoder), layer.groups, layer.key_width
            own = Columns(shape, len(state.here_B), state.width, like=state.source.held)
            self.target_embedding(
                tokens_RT
            )  # what is given is checked, once; what the search chooses need not be
        else:
            state.consumed = True
        x_RD, length = tokens_RT, state.length
        for tokens_R in tokens_RT.unbind(1):
            x_RD = self._read(tokens_R, length, own, state)
            length += 1
        return self.output(x_RD), replace(state, own=own, length=length, consumed=False)

    def _read(self, tokens_R: Tensor, length: int, own: Columns, state: PackedState) -> Tensor:
        """One more token of every prefix; x_RD, normalised."""
        x_RD = F.embedding(tokens_R, self.target_embedding.table)
        x_RD = torch.add(self._wave(length), x_RD, alpha=self.target_embedding.scale)
        B, rotate = len(state.here_B), _rotation(self.target_positions, 1, length)
        new_YZBGWK, seen, hidden_BWC = own.append()
        hidden_XNC = for_heads(hidden_BWC, self.heads, self.groups)
        for number, layer in enumerate(self.decoder):
            q_RHK, offered_RVK = layer.ask_own(x_RD, rotate)
            new_YZBGWK[number].copy_(
                offered_RVK.view(B, -1, 2, self.groups, self.key_width).permute(2, 0, 3, 1, 4)
            )
            found_RD = look(q_RHK, *seen[number], hidden_XNC, B)
            x_RD = layer.take_own(x_RD, layer.own_out(found_RD))
            x_RD = layer.feedforward(state.source.read(number, layer, x_RD))
        return self.decoder_norm(x_RD)

    def _wave(self, length: int) -> Tensor:
        """What its position adds to the token after so many, wave_1D: the same for every sentence."""
        if length not in self._waves:
            nothing_11D = self.output.weight.new_zeros(1, 1, self.output.weight.shape[1])
            self._waves[length] = self.target_positions.embed(nothing_11D, length)[0]
        return self._waves[length]


def _normed(norm: nn.Module) -> Function:
    """The norm as a bare function: a module's call costs as much as the sums of a few rows."""
    if isinstance(norm, nn.LayerNorm):
        shape, weight, bias, epsilon = norm.normalized_shape, norm.weight, norm.bias, norm.eps
        return lambda x_RD: torch.layer_norm(x_RD, shape, weight, bias, epsilon)
    return norm


def _rotation(positions: Position, T: int, offset: int = 0) -> Function | None:
    """How rows of T tokens each are turned, if they are."""
    if type(positions).rotate is Position.rotate:
        return None

    def rotate(x_RHK: Tensor) -> Tensor:
        x_BHTK = x_RHK.unflatten(0, (-1, T)).transpose(1, 2)
        return positions.rotate(x_BHTK, offset).transpose(1, 2).flatten(0, 1)

    return rotate


# ---- which path a model takes ------------------------------------------------------------------------------------


_KNOWN = (
    nn.Linear,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.Identity,
    Attend,
    Dot,
    Dropout,
    Embedding,
    FeedForward,
    Layer,
    Layers,
)
_PACKED: "WeakKeyDictionary[Transformer, tuple[list[object], Packed | None]]" = WeakKeyDictionary()


def packed(model: "Transformer", source_BS: Tensor) -> Packed | None:
    """The packed model, made when it is first asked for and again when its weights change; None: take the readable path.

    That path is for gradients, autocast and compilers, for training mode and observers (`qkv.watch`, forward hooks) in
    any module, for other devices, and for sources too long to attend to without row blocks; and for models with other
    modules, scores or normalisers than this file knows, or with positions that are a bias.
    """
    B, S = source_BS.shape
    scores = B * model.config.heads * S * in_lanes(S)
    if source_BS.device.type != "cpu" or not scores <= LARGEST or not _answers_only():
        return None
    now = _weights_of(model)
    if now is None:
        return None
    before, found = _PACKED.get(model, (None, None))
    if before != now:
        found = Packed(model) if _is_packable(model) else None
        _PACKED[model] = now, found
    return found


def goes_on(state: PackedState) -> bool:
    """Whether what began packed can take its next step so."""
    return _answers_only() and state.width <= WIDEST and not any(state.packed.observers)


def _answers_only() -> bool:
    """Nothing else is wanted of the products than their results, in the dtype of the weights."""
    return not (torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling())


def _weights_of(model: nn.Module) -> list[object] | None:
    """What changes whenever a module or a weight does; None if some module trains or is observed."""
    found, modules = [], [model]
    while modules:
        module = modules.pop()
        if module.training or module._forward_hooks or module._forward_pre_hooks:
            return None
        found.append(id(module))
        if isinstance(module, Attend):
            found += [id(module.beta), id(module.normalize)]
        modules.extend(child for child in module._modules.values() if child is not None)
        for weight in module._parameters.values():
            if weight is not None:
                # What inference mode made does not count its versions: such a model is packed for every batch.
                found += [weight.data_ptr(), object() if weight.is_inference() else weight._version]
    return found


def _is_packable(model: "Transformer") -> bool:
    for module in [module for child in model.children() for module in child.modules()]:
        known = type(module) in _KNOWN
        if isinstance(module, Position):
            known = type(module) in POSITIONS.values() and type(module).bias is Position.bias
        if isinstance(module, MultiHeadAttention):
            c = module.config
            known = (
                type(module) is MultiHeadAttention
                and c.bias
                and not c.inputs
                and c.value_head_width == c.query_head_width
            )
        if isinstance(module, Attend):
            known = known and module.beta is None and module.normalize is softmax
        if isinstance(module, Embedding):
            known = known and module.dtype in (None, module.table.dtype)
        if not known:
            return False
    dtypes = {parameter.dtype for parameter in model.parameters()}
    return len(dtypes) == 1 and dtypes <= {torch.float32, torch.float64, torch.bfloat16}
