"""How a run trains: for how long, with which optimiser and schedule, in which precision; no torch here."""

import math
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from qkv.config import config
from qkv.errors import QkvError

Precision = Literal["fp32", "bf16"]
Share = Annotated[float, Field(ge=0, lt=1)]


@config
class OptimConfig:
    """How gradients become steps."""

    kind: Literal["adamw", "muon"] = "adamw"
    """adamw for all weights; muon for the matrices between hidden vectors, and adamw for the rest."""
    rate: PositiveFloat = 1e-3
    """Learning rate of adamw at its peak; the schedule multiplies it."""
    betas: tuple[Share, Share] = (0.9, 0.98)
    """Share of the past in adamw's mean of gradients, and of squared gradients."""
    epsilon: PositiveFloat = 1e-9
    """Added to the divisor of adamw."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Share of rate by which matrices shrink each step; tables, biases and norms do not."""
    muon_rate: PositiveFloat = 0.02
    """Learning rate of muon at its peak."""
    momentum: Share = 0.95
    """Share of the past in muon's mean of gradients."""
    frozen: tuple[str, ...] = ()
    """Weights that stay as they are, by patterns of their names: bert.embedding.*, bert.encoder.0.*."""
    rates: dict[str, float] = Field(default_factory=dict)
    """Factors on the rates of weights, by patterns; of several that match, the last: {"output.*" = 10.0}."""
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """A factor on the rates for each layer that lies between a weight and the model's end; 1: all learn alike."""

    def __post_init__(self) -> None:
        for pattern, factor in self.rates.items():
            if not 0 < factor < math.inf:
                raise QkvError(
                    f"rates.{pattern} is {factor}; a factor above 0 is wanted: to keep weights as they are, name them in "
                    "frozen"
                )


@config
class ScheduleConfig:
    """The factor on the learning rate: up from zero while warming up, then along a curve."""

    kind: Literal["constant", "inverse_sqrt", "cosine", "linear", "wsd"] = "inverse_sqrt"
    """The curve after the warm-up; wsd stays at 1 and comes down at the end; the last three need to know the end."""
    warmup: Annotated[int, Field(ge=0)] = 1000
    """Steps until the factor is 1, in equal parts."""
    decay: Annotated[float, Field(gt=0, le=1)] = 0.2
    """For wsd: the share of all steps over which it comes down."""
    final: Annotated[float, Field(ge=0, le=1)] = 0.0
    """For cosine, linear and wsd: the factor of the last step."""

    @property
    def needs_end(self) -> bool:
        """Whether the factor depends on how much of the run is left."""
        return self.kind in ("cosine", "linear", "wsd")

    def factor(self, step: int, done: float | None = None) -> float:
        """The factor of a step, counted from 1; `done` is the share of the run that lies behind once it is taken.

        Being a pure function, it has no state that a checkpoint would have to hold.
        """
        assert step >= 1, f"step is {step}: steps are counted from 1"
        rise = min(1.0, step / self.warmup) if self.warmup else 1.0
        if self.kind == "inverse_sqrt":  # Vaswani et al. 2017, equation 3, scaled to 1 at its peak
            return rise if rise < 1 else math.sqrt(max(self.warmup, 1) / step)
        if not self.needs_end:
            return rise
        assert done is not None, f"{self.kind} needs to know how much of the run is done"
        start = 1 - self.decay if self.kind == "wsd" else 0.0
        rest = min(
            1.0, max(0.0, (1 - done) / (1 - start))
        )  # from 1 at the start of the decay to 0 at the end
        if self.kind == "cosine":  # Loshchilov and Hutter 2017, equation 5
            rest = (1 - math.cos(math.pi * rest)) / 2
        return rise * (self.final + (1 - self.final) * rest)


@config
class AverageConfig:
    """Which average of the weights is evaluated and kept."""

    kind: Literal["none", "ema", "last"] = "none"
    """none: the weights as they are; ema: an exponential moving average; last: the mean of the last few epochs' ends."""
    decay: Share = 0.999
    """For ema: the share of the past in each update."""
    count: PositiveInt = 5
    """For last: of how many epochs; the weights of each are held in memory."""


@config
class TrainConfig:
    """One run: it ends with the first of `epochs`, `steps` and `minutes` that is reached."""

    epochs: PositiveInt | None = 20
    """Passes over the training data."""
    steps: PositiveInt | None = None
    """Updates of the weights."""
    minutes: PositiveFloat | None = None
    """Time, which the schedule then follows; such a run goes on after an interruption, but not bit for bit."""
    optimizer: OptimConfig = OptimConfig()
    """The optimiser and its rates."""
    schedule: ScheduleConfig = ScheduleConfig()
    """How the rate moves with the steps."""
    average: AverageConfig = AverageConfig()
    """Whether the average of several weights is kept instead of the last."""
    accumulate: PositiveInt = 1
    """Batches for each update."""
    clip: PositiveFloat | None = 1.0
    """Longest gradient (global norm); none: any."""
    precision: Precision = "bf16"
    """bf16 runs matrix products in bfloat16 and keeps weights in fp32; where the processor has no fast bf16, take fp32."""
    compile: bool = False
    """Whether torch.compile makes a program of the model first: a minute or more before the first step."""
    validate_every: PositiveInt = 1
    """Epochs between validations."""
    validate_from: PositiveInt = 1
    """The first epoch after which validation is worth its time."""
    patience: PositiveInt | None = None
    """Validations without a better score before the run ends early; none: never."""
    checkpoint_minutes: PositiveFloat = 5.0
    """Minutes between checkpoints; the end of a run is one anyway."""
    log_every: PositiveInt = 20
    """Updates between two lines of the log."""
    tensorboard: bool = False
    """Whether the log also goes to TensorBoard (needs the extra `log`)."""
    start: str | None = None
    """A run or model whose weights, vocabulary and preprocessing training begins with; `--from` sets it."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Decides the initial weights, the order of batches and what dropout drops."""

    def __post_init__(self) -> None:
        if self.epochs is None and self.steps is None and self.minutes is None:
            raise QkvError("a run needs an end: set epochs, steps or minutes")
