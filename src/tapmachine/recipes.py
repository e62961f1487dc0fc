"""From words to parts: the machine, the objective and the trainer that settings ask for."""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from tapmachine.datasets import INTENSITIES
from tapmachine.likelihood.score import check_rows
from tapmachine.machine import BoltzmannMachine, dbm, rescaled
from tapmachine.rows_on_disk import RowsOnDisk
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
from tapmachine.training.data import Array, Rows, check_all_rows, held_in_memory, parts, place_of, some_rows
from tapmachine.training.optimizers import SOME_ROWS
from tapmachine.training.pretraining import monitor_of_layer
from tapmachine.units import Binary, Gaussian, Spin, Units
from tapmachine.units.checks import from_array
from tapmachine.visible_units import make_visible

FEWEST, MOST, BATCHES = 10, 100, 50  # rows of a batch, and batches of an epoch, unless told
LARGEST_SCALED = 8.0  # value, where there is no shift
TYPICAL_DEVIATION = 0.3  # of a column of data that fill [0, 1]
SMALLEST_VALUE, LARGEST_VALUE = 1e-12, 1e12  # precisions go with the square, and must fit into float32

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

    def scaled(self, x: Rows) -> Rows:
        """Data for the machine as it is trained; a ValueError that names the first value that is none."""
        for first, part in parts(x):
            self._check_bounds(x, first, part)
        if self.is_in_units_of_data:
            return x
        device = x.device if isinstance(x, Tensor) else torch.device("cpu")
        shift, *bounds = (z.to(device) for z in (self.shift, *self.machine.units()[0].bounds()))

        def in_own_units(part: Tensor) -> Tensor:
            return ((part - shift.to(part)) / self.scale).clamp(*bounds)

        return _by_rows(in_own_units, x)

    def _check_bounds(self, x: Rows, first: int, part: Tensor) -> None:
        if not part.is_floating_point():
            return
        lower, upper = (bound.to(part.device) for bound in self.bounds)
        outside = (part < lower) | (part > upper)
        if bool(outside.any()):
            row, column = outside.nonzero()[0].tolist()
            found = f"{place_of(first + row, x)}, column {column} is {part[row, column]:g}"
            raise ValueError(f"{found}; it must lie between {lower:g} and {upper:g}")


def _by_rows(function: Callable[[Tensor], Tensor], x: Rows) -> Rows:
    """What a function makes of rows: some at a time, or when they are read from disk."""
    if isinstance(x, RowsOnDisk):
        return x.mapped(lambda part: function(torch.from_numpy(part)).numpy())
    found: Tensor | None = None
    for first, part in parts(x):
        own = function(part)
        found = own.new_empty((len(x), *own.shape[1:])) if found is None else found
        found[first : first + len(own)] = own
    assert found is not None
    return found


def make_machine(settings: Settings, x: Rows, held_out: Rows | None = None) -> NewMachine:
    """A new machine for data, (N, n), whose visible units can take what is held out, too."""
    dtype = getattr(torch, settings.dtype)
    visible, why = make_visible(settings, *((x,) if held_out is None else (x, held_out)))
    visible = visible.to(dtype)
    bounds = visible.bounds()
    scale, shift = 1.0, torch.zeros(())
    if not visible.is_countable():  # counts and categories have no unit of measurement
        scale, shift = _units_of_measurement(visible, x)
        visible = visible.rescaled(1 / scale, -shift / scale)
    layers = [visible, *(HIDDEN[settings.hidden_units](n).to(dtype) for n in settings.hidden)]
    generator = torch.Generator().manual_seed(settings.seed)
    machine = dbm(layers, generator=generator)
    return NewMachine(machine, scale, shift, (bounds[0].clone(), bounds[1].clone()), why)


def _units_of_measurement(visible: Units, x: Rows) -> tuple[float, Tensor]:
    """Scale and shift: a power of two near the data's deviation over 0.3; the lower bound, or each column's mean.

    Where 0 has a probability of its own, there is no shift.
    """
    nothing = torch.zeros((), dtype=torch.float64)
    mean = sum((part.double().sum(0) for _, part in parts(x)), nothing) / len(x)
    variance = sum((((part.double() - mean) ** 2).sum(0) for _, part in parts(x)), nothing) / len(x)
    deviation = float(variance.mean().sqrt())
    largest = max(float(part.abs().max()) for _, part in parts(x))
    size = (deviation or largest or 1.0) / TYPICAL_DEVIATION
    if visible.atoms() is not None:
        return 2.0 ** round(math.log2(max(size, largest / LARGEST_SCALED))), torch.zeros(())
    scale = 2.0 ** round(math.log2(size))
    return scale, visible.bounds()[0].cpu() if visible.is_bounded() else mean.to(visible.dtype).cpu()


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
    settings: Settings, new: NewMachine, x: Rows, held_out: Rows | None, monitor: Monitor
) -> Trainer | PretrainingTrainer:
    """The trainer of a machine that was made by the same settings, on data as they are."""
    machine = new.machine
    x = _checked(machine, new.scaled(x))
    measured = None
    if held_out is not None:
        held_out = _checked(machine, new.scaled(held_out))
        measured = held_out if isinstance(held_out, Tensor) else some_rows(held_out, monitor.n_rows)

    def make_joint() -> Trainer:
        return _trainer(
            settings, machine, x, settings.epochs, monitor, measured, warm_start=settings.pretrain_epochs > 0
        )

    def make_for_layer(own: BoltzmannMachine, states: Tensor, stage: int) -> Trainer:
        measure = monitor_of_layer(monitor, stage, settings.doubled)
        return _trainer(settings, own, states, settings.pretrain_epochs, measure, warm_start=True)

    if settings.pretrain_epochs == 0:
        return make_joint()
    pretraining = Pretraining(settings.pretrain_epochs, settings.pretrain_on, settings.doubled)
    first = held_in_memory(x)
    return PretrainingTrainer(machine, first, pretraining, make_for_layer, make_joint, settings.epochs, settings.seed)


def _checked(machine: BoltzmannMachine, x: Rows) -> Rows:
    """Rows of which all are states of the machine; those in memory as such, on its device."""
    if isinstance(x, Tensor):
        return check_rows(machine, x)
    check_all_rows(machine, x)
    return x


def _trainer(
    settings: Settings,
    machine: BoltzmannMachine,
    x: Rows,
    epochs: int,
    monitor: Monitor,
    held_out: Tensor | None = None,
    warm_start: bool = False,
) -> Trainer:
    batch_size = settings.batch_size or min(len(x), max(FEWEST, min(MOST, len(x) // BATCHES)))
    some = x if isinstance(x, Tensor) else check_rows(machine, some_rows(x, SOME_ROWS))
    n_steps = epochs * (len(x) // batch_size)
    rate = settings.learning_rate or default_learning_rate(machine, some, n_steps, warm_start)
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
        validate=False,  # they were looked at, or are means of hidden units
    )


def bytes_scaled_beyond(settings: Settings) -> int | None:
    """The `scale_beyond` of `datasets.read` for settings: None if they speak of categories, or of values beyond 1."""
    values = (*(settings.interval or ()), settings.binarise or 0.0)
    are_as_they_are = settings.visible == "categorical" or max(values) > 1 or settings.binarise == 1
    return None if are_as_they_are else INTENSITIES


def prepare_gappy_rows(settings: Settings, rows: Array) -> Tensor:
    """Rows in which NaN is what is missing, and stays so; otherwise as by `prepare_rows`."""
    values = torch.from_numpy(rows)
    missing = torch.isnan(values)
    filled: Tensor = prepare_rows(settings, torch.where(missing, 0.0, values).numpy())
    return filled.to(dtype=getattr(torch, settings.dtype)).masked_fill(missing, torch.nan)


@overload
def prepare_rows(settings: Settings, rows: Array) -> Tensor: ...


@overload
def prepare_rows(settings: Settings, rows: Array | RowsOnDisk) -> Rows: ...


def prepare_rows(settings: Settings, rows: Array | RowsOnDisk) -> Rows:
    """Rows of a data set as a tensor, binarised if that was asked for; those on disk stay there."""
    dtype, threshold = getattr(torch, settings.dtype), settings.binarise
    x = rows if isinstance(rows, RowsOnDisk) else from_array(rows, "x")
    if threshold is not None:
        return _by_rows(lambda part: (part > threshold).to(dtype), x)
    if settings.visible == "categorical":
        if not all(bool(((part >= 0) & (part == part.round())).all()) for _, part in parts(x)):
            raise SettingsError("visible is 'categorical', but not all values are whole numbers, 0 or more")
        return _by_rows(lambda part: part.long(), x)
    largest = max(float(part.abs().max()) for _, part in parts(x))
    if largest and not SMALLEST_VALUE < largest < LARGEST_VALUE:
        raise SettingsError(f"values reach {largest:g}; bring them to between {SMALLEST_VALUE:g} and {LARGEST_VALUE:g}")
    return x.to(dtype) if isinstance(x, Tensor) else _by_rows(lambda part: part.to(dtype), x)


def pick_device(name: str) -> str:
    """The device of a name: cpu, cuda, or auto, which is a GPU if there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise SettingsError("there is no CUDA device; use the device cpu")
    if name not in ("cpu", "cuda"):
        raise SettingsError(f"device is {name!r}; it must be cpu, cuda or auto")
    return name
