"""From words to parts: the machine, the objective and the trainer that settings ask for."""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tapmachine.likelihood.score import check_rows
from tapmachine.machine import BoltzmannMachine, dbm, rescaled
from tapmachine.settings import Settings, SettingsError
from tapmachine.training import (
    CD,
    PCD,
    FromBatch,
    FromData,
    Herded,
    HerdedPCD,
    Monitor,
    NoisyBatch,
    Objective,
    Persistent,
    Pretraining,
    PretrainingTrainer,
    RandomPoints,
    Start,
    TAPObjective,
    Trainer,
    default_learning_rate,
    geometric_decay,
    paper_sgd,
)
from tapmachine.training.pretraining import monitor_of_layer
from tapmachine.units import Binary, Categorical, Gaussian, Spin, TruncatedGaussBernoulli, TruncatedGaussian, Units

FEWEST, MOST, BATCHES = 10, 100, 50  # rows of a batch, and batches of an epoch, unless told
LARGEST_SCALED = 8.0  # value, where there is no shift
TYPICAL_DEVIATION = 0.3  # of a column of data that fill [0, 1]
SMALLEST_VALUE, LARGEST_VALUE = 1e-12, 1e12  # precisions go with the square, and must fit into float32
MOST_STATES = 30  # whole numbers up to this may be categories
MANY_ZEROS = 0.05  # share of values that are exactly 0, beyond which they are taken for a state of their own

STARTS: dict[str, Callable[[], Start]] = {
    "batch": FromBatch,
    "data": FromData,
    "noisy": NoisyBatch,
    "random": RandomPoints,
    "persistent": Persistent,
    "herded": Herded,
}
HIDDEN: dict[str, Callable[[int], Units]] = {"binary": Binary, "spin": Spin, "gaussian": Gaussian}


@dataclass(frozen=True)
class NewMachine:
    """A machine to be trained, in units in which data deviate by about 0.3, as those that fill [0, 1].

    Attributes:
        machine: with small random weights.
        scale, shift: shift + scale·x are the data; scale is a power of two.
        bounds: of the visible units, for the data.
        why: a word on its visible units.
    """

    machine: BoltzmannMachine
    scale: float
    shift: Tensor
    bounds: tuple[Tensor, Tensor]
    why: str

    @property
    def is_in_units_of_data(self) -> bool:
        """Whether nothing is scaled or shifted."""
        return self.scale == 1 and not bool(self.shift.any())

    def in_units_of_data(self) -> BoltzmannMachine:
        """The machine as it is now, for the data as they are; a copy."""
        if self.is_in_units_of_data:
            return deepcopy(self.machine)
        machine = rescaled(self.machine, self.scale, self.shift)
        for own, bound in zip(machine.units()[0].bounds(), self.bounds, strict=True):
            own.copy_(bound)  # without what rounding made of them
        return machine

    def scaled(self, x: Tensor) -> Tensor:
        """Data for the machine as it is trained; a ValueError that names the first value that is none."""
        lower, upper = (bound.to(x.device) for bound in self.bounds)
        outside = (x < lower) | (x > upper) if x.is_floating_point() else torch.zeros_like(x, dtype=torch.bool)
        if bool(outside.any()):
            row, column = outside.nonzero()[0].tolist()
            raise ValueError(
                f"row {row}, column {column} is {x[row, column]:g}; it must lie between {lower:g} and {upper:g}"
            )
        if self.is_in_units_of_data:
            return x
        return ((x - self.shift.to(x)) / self.scale).clamp(
            *(bound.to(x.device) for bound in self.machine.units()[0].bounds())
        )


def make_machine(settings: Settings, x: Tensor, held_out: Tensor | None = None) -> NewMachine:
    """A new machine for data, (N, n), whose visible units can take what is held out, too."""
    dtype = getattr(torch, settings.dtype)
    visible, why = make_visible(settings, x if held_out is None else torch.cat((x, held_out)))
    visible = visible.to(dtype)
    bounds = visible.bounds()
    scale, shift = 1.0, torch.zeros(())
    if visible.n_states() is None:
        scale, shift = _units_of_measurement(visible, x)
        visible = visible.rescaled(1 / scale, -shift / scale)
    layers = [visible, *(HIDDEN[settings.hidden_units](n).to(dtype) for n in settings.hidden)]
    generator = torch.Generator().manual_seed(settings.seed)
    machine = dbm(layers, generator=generator)
    return NewMachine(machine, scale, shift, (bounds[0].clone(), bounds[1].clone()), why)


def make_visible(settings: Settings, x: Tensor) -> tuple[Units, str]:
    """Visible units for data, and a word on them."""
    n = x.shape[1]
    low, high = settings.interval or _interval(x)
    lower, upper = (torch.tensor(bound, dtype=getattr(torch, settings.dtype)) for bound in (low, high))
    zero = torch.zeros_like(lower)
    makers: dict[str, Callable[[], Units]] = {
        "binary": lambda: Binary(n),
        "spin": lambda: Spin(n),
        "gaussian": lambda: Gaussian(n),
        "truncated-gaussian": lambda: TruncatedGaussian(n, lower, upper),
        "gauss-bernoulli": lambda: TruncatedGaussBernoulli(n, torch.minimum(lower, zero), torch.maximum(upper, zero)),
        "categorical": lambda: Categorical(n, max(2, int(x.max()) + 1)),
    }
    if settings.visible != "auto":
        return makers[settings.visible](), f"{settings.visible}, as asked for"
    name, why = pick_visible(x, (low, high), settings.interval is not None)
    return makers[name](), f"{name}: {why}"


def _hint_of_categories(x: Tensor) -> str:
    """Small whole numbers may be names of states."""
    is_likely = bool((x == x.round()).all()) and float(x.min()) >= 0 and float(x.max()) <= MOST_STATES
    return " (if they are the numbers of categories, ask for categorical units)" if is_likely else ""


def pick_visible(x: Tensor, interval: tuple[float, float], given: bool) -> tuple[str, str]:
    """The type of units that suits data, and why; none with two states, if an interval of real values was given."""
    low, high = interval
    if not given and bool(((x == 0) | (x == 1)).all()):
        return "binary", "all values are 0 or 1"
    if not given and bool((x.abs() == 1).all()):
        return "spin", "all values are -1 or 1"
    zeros = float((x == 0).double().mean())
    between = f"values lie between {low:g} and {high:g}"
    if zeros > MANY_ZEROS and low <= 0 <= high:
        return "gauss-bernoulli", f"{between}, and {zeros:.0%} are exactly 0{_hint_of_categories(x)}"
    return "truncated-gaussian", f"{between}{_hint_of_categories(x)}"


def _interval(x: Tensor) -> tuple[float, float]:
    """That the values lie in: [0, 1], if they fill it; else from the smallest to the largest."""
    low, high = float(x.min()), float(x.max())
    if low >= 0 and 0.5 < high <= 1:
        return 0.0, 1.0
    if low == high:  # all the same: an interval must have a width
        width = 0.5 * abs(low) or 1.0
        return low - width, high + width
    return low, high


def _units_of_measurement(visible: Units, x: Tensor) -> tuple[float, Tensor]:
    """Scale and shift: a power of two near the data's deviation over 0.3; the lower bound, or each column's mean.

    Where 0 has a probability of its own, there is no shift.
    """
    values = x.double()
    deviation = float(values.var(0, correction=0).mean().sqrt())
    largest = float(values.abs().max())
    size = (deviation or largest or 1.0) / TYPICAL_DEVIATION
    if visible.atoms() is not None:
        return 2.0 ** round(math.log2(max(size, largest / LARGEST_SCALED))), torch.zeros(())
    scale = 2.0 ** round(math.log2(size))
    return scale, visible.bounds()[0].cpu() if visible.is_bounded() else values.mean(0).to(x.dtype).cpu()


def make_objective(settings: Settings) -> Objective | None:
    """The objective; None for `fit`'s own."""
    if settings.objective == "default":
        return None
    sweeps, particles = settings.sweeps, settings.particles
    if settings.objective == "tap":
        return TAPObjective(STARTS[settings.start](), particles, sweeps or 10)
    if settings.objective == "cd":
        return CD(sweeps or 1)
    return (HerdedPCD if settings.objective == "herded" else PCD)(sweeps or 10, particles)


def make_trainer(
    settings: Settings, new: NewMachine, x: Tensor, held_out: Tensor | None, monitor: Monitor
) -> Trainer | PretrainingTrainer:
    """The trainer of a machine that was made by the same settings, on data as they are."""
    machine = new.machine
    x = check_rows(machine, new.scaled(x))
    held_out = None if held_out is None else check_rows(machine, new.scaled(held_out))

    def make_joint() -> Trainer:
        return _trainer(
            settings, machine, x, settings.epochs, monitor, held_out, warm_start=settings.pretrain_epochs > 0
        )

    def make_for_layer(own: BoltzmannMachine, states: Tensor, stage: int) -> Trainer:
        measure = monitor_of_layer(monitor, stage, settings.doubled)
        return _trainer(settings, own, states, settings.pretrain_epochs, measure, warm_start=True, validate=False)

    if settings.pretrain_epochs == 0:
        return make_joint()
    pretraining = Pretraining(settings.pretrain_epochs, settings.pretrain_on, settings.doubled)
    return PretrainingTrainer(machine, x, pretraining, make_for_layer, make_joint, settings.epochs, settings.seed)


def _trainer(
    settings: Settings,
    machine: BoltzmannMachine,
    x: Tensor,
    epochs: int,
    monitor: Monitor,
    held_out: Tensor | None = None,
    warm_start: bool = False,
    validate: bool = True,
) -> Trainer:
    batch_size = settings.batch_size or min(len(x), max(FEWEST, min(MOST, len(x) // BATCHES)))
    rate = settings.learning_rate or default_learning_rate(machine, x, epochs * (len(x) // batch_size))
    optimizer = paper_sgd(machine, rate, settings.momentum, settings.weight_decay)
    return Trainer(
        machine,
        x,
        epochs=epochs,
        batch_size=batch_size,
        objective=make_objective(settings),
        optimizer=optimizer,
        scheduler=geometric_decay(optimizer, settings.decay, max(1, epochs)),
        validation=held_out,
        l1=settings.l1,
        centred=settings.centred,
        seed=settings.seed,
        monitor=monitor,
        warm_start=warm_start,
        validate=validate,
    )


def prepare_rows(settings: Settings, rows: np.ndarray[Any, Any], gaps: bool = False) -> Tensor:
    """Rows of a data set as a tensor, binarised if that was asked for; with gaps, NaN stays as it is."""
    dtype = getattr(torch, settings.dtype)
    values = torch.from_numpy(np.array(rows))  # a copy: these may be read-only
    if gaps:
        missing = torch.isnan(values)
        filled = prepare_rows(settings, torch.where(missing, 0.0, values).numpy())
        return filled.to(dtype).masked_fill(missing, torch.nan)
    if settings.binarise is not None:
        return (values > settings.binarise).to(dtype)
    if settings.visible == "categorical":
        if not bool(((values >= 0) & (values == values.round())).all()):
            raise SettingsError("visible is 'categorical', but not all values are whole numbers, 0 or more")
        return values.long()
    largest = float(values.abs().max())
    if largest and not SMALLEST_VALUE < largest < LARGEST_VALUE:
        raise SettingsError(f"values reach {largest:g}; bring them to between {SMALLEST_VALUE:g} and {LARGEST_VALUE:g}")
    return values.to(dtype)


def pick_device(name: str) -> str:
    """The device of a name: cpu, cuda, or auto, which is a GPU if there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise SettingsError("there is no CUDA device; use the device cpu")
    if name not in ("cpu", "cuda"):
        raise SettingsError(f"device is {name!r}; it must be cpu, cuda or auto")
    return name
