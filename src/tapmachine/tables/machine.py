"""From rows to a machine and its training: new machines for scaled data, and machines that are fitted to tables."""

import math
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tapmachine.data.errors import TrainingWarning, check_memory, warn
from tapmachine.data.rows import Rows, by_rows, has_gaps, parts, place_of, spaced
from tapmachine.exact import mixture_of
from tapmachine.machine import BoltzmannMachine, dbm
from tapmachine.machine.rescaling import rescale
from tapmachine.tables.options import MachineOptions
from tapmachine.tables.schema import Schema
from tapmachine.tables.units import UnitMaker, given_units, make_visible
from tapmachine.training.gaps import fill_columns
from tapmachine.training.loop import Training
from tapmachine.training.monitor import Record
from tapmachine.training.options import Hyperparameters, TrainingOptions
from tapmachine.training.state import TrainingState
from tapmachine.training.trainer import Trainer
from tapmachine.units import Gaussian, Mixed, Units
from tapmachine.units.registry import UNIT_TYPES

MOST_SCORED = 20_000  # maximum number of rows whose log-likelihood is measured
LARGEST_SCALED = 8.0  # largest value after scaling, if the data are not shifted
COPIES = 4  # of the parameters in training: their gradients, momenta and averages
UNUSED = (  # options of training by gradient steps
    *("epochs", "batch_size", "learning_rate", "decay", "momentum", "weight_decay", "l1", "centered", "averaged"),
    *("objective", "n_sweeps", "n_particles"),
)
TYPICAL_DEVIATION = 0.3  # standard deviation of data that are uniform in [0, 1]


@dataclass(frozen=True)
class ScaledMachine:
    """Machine for data that are scaled to a standard deviation of about 0.3, as for uniform data in [0, 1].

    Attributes:
        machine: Machine with small random weights, or fitted to a table.
        scale: Factor between the states of the machine and the data, a power of two.
        shift: Offset of the data, which are shift + scale·x for states x of the machine.
        bounds: Bounds of the visible units, in the units of the data.
        why: Visible unit type, and the reason for its choice.
        is_fitted: Whether the machine was fitted to a table by maximum likelihood, in float64 and without scaling.
    """

    machine: BoltzmannMachine
    scale: float
    shift: Tensor
    bounds: tuple[Tensor, Tensor]
    why: str
    is_fitted: bool = False

    @property
    def is_in_units_of_data(self) -> bool:
        """Whether the machine is trained on unscaled data."""
        return self.scale == 1 and not bool(self.shift.any())

    def in_units_of_data(self) -> BoltzmannMachine:
        """Return a copy of the current machine in the units of the data."""
        if self.is_in_units_of_data:
            return deepcopy(self.machine)
        machine = rescale(self.machine, self.scale, self.shift)
        for rounded, bound in zip(machine.layers[0].bounds(), self.bounds, strict=True):
            rounded.copy_(bound)
        return machine

    def scaled(self, x: Rows) -> Rows:
        """Scale data for the machine.

        Raises:
            ValueError: If a value is out of bounds.
        """
        for first, part in parts(x):
            self._check_bounds(x, first, part)
        if self.is_in_units_of_data:
            return x
        device = x.device if isinstance(x, Tensor) else torch.device("cpu")
        shift, *bounds = (z.to(device) for z in (self.shift, *self.machine.layers[0].bounds()))
        return by_rows(lambda part: ((part - shift.to(part)) / self.scale).clamp(*bounds), x)

    def _check_bounds(self, x: Rows, first: int, part: Tensor) -> None:
        if not part.is_floating_point():
            return
        lower, upper = (bound.to(part.device) for bound in self.bounds)
        outside = (part < lower) | (part > upper)
        if bool(outside.any()):
            row, column = outside.nonzero()[0].tolist()
            value = f"{place_of(first + row, x)}, column {column} is {part[row, column]:g}"
            ends = (float(bound.expand(part.shape[1])[column]) for bound in (lower, upper))
            raise ValueError("{}; expected a value from {:g} to {:g}".format(value, *ends))


def make_machine(
    options: MachineOptions,
    x: Rows,
    held_out: Rows | None = None,
    units: UnitMaker | None = None,
    schema: Schema | None = None,
    weights: Tensor | None = None,
    seed: int = 0,
) -> ScaledMachine:
    """Create a machine for data of shape (N, n). Its visible units also support the held-out rows.

    Tables of numbers with different ranges and of several kinds of columns are fitted by maximum likelihood, unless the
    hidden units are specified.

    Args:
        options: Options of the machine, such as the settings of a run.
        x: Training data, with NaN for missing values.
        held_out: Held-out rows.
        units: Visible units, or a function that creates them, instead of the type in the options. The data are not
            rescaled then.
        schema: Kinds of the columns, if the rows are those of a table, which determine the visible units.
        weights: Weight of each row, shape (N,).
        seed: Random seed of the weights, and of the fit of a table (default: 0).
    """
    dtype, sizes = getattr(torch, options.dtype), (x.shape[1], *options.hidden)
    n_values = sum(sizes) + sum(map(math.prod, pairwise(sizes)))
    check_memory(
        COPIES * n_values * dtype.itemsize, f"a machine with {', '.join(map(str, options.hidden))} hidden units"
    )
    if schema is not None:
        visible, why = schema.units(), "from the columns of the table"
    elif units is None:
        visible, why = make_visible(options, *(_complete(z, x) for z in (x, held_out) if z is not None))
    else:
        visible, why = given_units(units, x.shape[1])
    visible = visible.to(dtype)
    bounds = visible.bounds()[0].clone(), visible.bounds()[1].clone()
    is_table = isinstance(visible, Mixed) or (units is None and isinstance(visible, Gaussian))
    if is_table and options.hidden_units == "auto" and len(options.hidden) == 1:
        from tapmachine.tables.fit import fit_table  # for tables only

        fitted = fit_table(x, options.hidden[0], seed, weights, visible)
        return ScaledMachine(
            fitted.machine, 1.0, torch.zeros(()), bounds, "; ".join([why, *fitted.notes]), is_fitted=True
        )
    scale, shift = 1.0, torch.zeros(())
    if units is None and schema is None and not visible.support.is_countable:  # counts and categories are not scaled
        scale, shift = _units_of_measurement(visible, _complete(x, x))
        visible = visible.rescaled(1 / scale, -shift / scale)
    hidden = UNIT_TYPES["binary" if options.hidden_units == "auto" else options.hidden_units]
    layers = [visible, *(hidden.make_hidden(n).to(dtype) for n in options.hidden)]
    machine = dbm(layers, generator=torch.Generator().manual_seed(seed))
    return ScaledMachine(machine, scale, shift, bounds, why)


def _complete(x: Rows, train: Rows) -> Rows:
    """Replace missing values of rows in memory by values of the same columns."""
    if not (isinstance(x, Tensor) and has_gaps(x)):
        return x
    return fill_columns(x) if x is train else torch.where(x.isnan(), spaced(_complete(train, train), 1)[:1].to(x), x)


def _units_of_measurement(visible: Units, x: Rows) -> tuple[float, Tensor]:
    """Return the scale and the shift of the data.

    The scale is a power of two near the standard deviation divided by 0.3. The shift is the lower bound of bounded
    units, and the column means for other units. For units with a separate probability for the value 0, the shift is 0.
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


def warn_of_unused(options: Hyperparameters, others: Sequence[str] = ()) -> None:
    """Warn about options without effect on a machine that was fitted to a table.

    Args:
        options: Options as specified by the user, such as the settings of a run.
        others: Names of further options that were specified.
    """
    names = [own.name for own in fields(options) if own.name in UNUSED and getattr(options, own.name) != own.default]
    names = [name for name in names if name != "epochs" or options.epochs] + [*others]
    if names:
        listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        has_or_have = "has" if len(names) == 1 else "have"
        warn(
            f"{listed} {has_or_have} no effect: the table is fitted by maximum likelihood, without gradient steps",
            TrainingWarning,
        )


def make_training(
    new: ScaledMachine, x: Rows, options: TrainingOptions, held_out: Rows | None = None, pretrain_epochs: int = 0
) -> Training:
    """Create the training of a machine on unscaled data.

    Args:
        new: Machine and the scaling of its data.
        x: Training data, with NaN for missing values.
        options: Options of training, without held-out rows.
        held_out: Held-out rows, of which those that the monitor of the options scores are used.
        pretrain_epochs: Number of epochs for pretraining the first hidden layer of a deep machine (default: 0).
    """
    if new.is_fitted:
        log_scale = None if options.monitor is None else options.monitor.log_scale
        return Fitted(new.machine, x, options.weights, held_out, 0 if options.epochs == 0 else 1, log_scale)
    x = new.scaled(x)
    if held_out is not None:
        held_out = new.scaled(held_out)
        n_rows = len(held_out) if options.monitor is None else options.monitor.n_rows
        options = replace(options, validation=held_out if isinstance(held_out, Tensor) else spaced(held_out, n_rows))
    if pretrain_epochs:
        from tapmachine.training.pretraining import PretrainingTrainer  # imported for deep machines only

        return PretrainingTrainer(new.machine, x, options, pretrain_epochs)
    return Trainer(new.machine, x, options)


class Fitted:
    """Training of a machine that was fitted to a table: a single epoch, which measures the log-likelihood.

    Args:
        machine: Fitted machine, whose visible units are a mixture.
        x: Training rows, with NaN for missing values.
        weights: Row weights, shape (N,).
        held_out: Held-out rows.
        epochs: Number of epochs, 1 or 0 (default: 1).
        log_scale: Function that returns the logarithm of the Jacobian of each row; see `Monitor`.
    """

    is_mid_epoch = False
    current = None

    def __init__(
        self,
        machine: BoltzmannMachine,
        x: Rows,
        weights: Tensor | None = None,
        held_out: Rows | None = None,
        epochs: int = 1,
        log_scale: Callable[[np.ndarray[Any, Any]], Any] | None = None,
    ) -> None:
        self.machine, self.epochs, self.finished, self.stopping = machine, epochs, 0, False
        self.rows, self.held_out, self.weights, self.log_scale = x, held_out, weights, log_scale

    @property
    def is_over(self) -> bool:
        """Whether the machine was measured."""
        return self.finished >= self.epochs

    def epoch(self) -> Record:
        """Measure the log-likelihood of the training rows and of the held-out rows, which is exact."""
        start = time.perf_counter()
        weights = None if self.weights is None else spaced(self.weights.double().unsqueeze(1), MOST_SCORED).flatten()
        values = self._log_density(self.rows)
        share = torch.ones_like(values) if weights is None else weights.to(values)
        seen = share > 0
        mean = float((share[seen] @ values[seen]) / share.sum())
        record: Record = {
            "epoch": 1,
            "is_fitted": True,
            "log_likelihood": mean,
            "log_likelihood_error": 0.0,
            "log_likelihood_method": "exact",
        }
        if self.held_out is not None:
            others = self._log_density(self.held_out)
            record["validation_log_likelihood"] = float(others.mean())
            record["validation_log_likelihood_error"] = float(others.std() / len(others) ** 0.5)
        self.finished = 1
        return record | {"seconds": time.perf_counter() - start}

    def _log_density(self, x: Rows) -> Tensor:  # (N,)
        mixture, rows = mixture_of(self.machine), spaced(x, MOST_SCORED).double()
        assert mixture is not None
        values = mixture.log_density(rows)
        return values - (
            0.0 if self.log_scale is None else torch.as_tensor(self.log_scale(rows.cpu().numpy())).to(values)
        )

    def joint(self) -> "Fitted":
        """Return this training."""
        return self

    def state(self) -> TrainingState:
        """Return the parameters of the machine, on the CPU."""
        tensors = {name: z.detach().cpu().clone() for name, z in self.machine.state_dict().items()}
        return TrainingState(tensors, {"finished": self.finished})

    def restore(self, state: TrainingState) -> None:
        """Restore the state of another training of this machine."""
        self.machine.load_state_dict(state.tensors)
        self.finished = int(state.values["finished"])
