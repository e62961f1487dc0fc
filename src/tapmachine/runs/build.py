"""Construction of the machine, the objective and the trainer from settings."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pkgutil import resolve_name

import torch
from torch import Tensor

from tapmachine.data.errors import SettingsError
from tapmachine.data.rows import Rows, has_gaps, parts, spaced
from tapmachine.data.sources import INTENSITIES
from tapmachine.exact import mixture_of
from tapmachine.machine import dbm
from tapmachine.runs.registry import OBJECTIVES
from tapmachine.runs.settings import Settings
from tapmachine.tables.codec import Codec
from tapmachine.tables.machine import ScaledMachine
from tapmachine.tables.schema import Schema
from tapmachine.tables.start import MOST_ROWS, TableStart, start_for_table
from tapmachine.tables.units import UnitMaker, given_units, make_visible
from tapmachine.training import Monitor, Objective, Trainer, Training, TrainingOptions, momentum_sgd
from tapmachine.training.gaps import fill_columns
from tapmachine.training.pretraining import PretrainingTrainer
from tapmachine.units import Gaussian, Mixed, Units
from tapmachine.units.registry import UNIT_TYPES

LARGEST_SCALED = 8.0  # largest value after scaling, if the data are not shifted
TYPICAL_DEVIATION = 0.3  # standard deviation of data that are uniform in [0, 1]


def make_machine(
    settings: Settings,
    x: Rows,
    held_out: Rows | None = None,
    units: UnitMaker | None = None,
    weights: Tensor | None = None,
) -> ScaledMachine:
    """Create a machine for data of shape (N, n). Its visible units also support the held-out rows.

    If `units` is passed, the data are not rescaled. Tables with `Mixed` units, which may have missing values (NaN), are
    fitted by maximum likelihood. `weights` contains the row weights.
    """
    rows = x
    if isinstance(x, Tensor) and has_gaps(x):
        x = fill_columns(x)
    if isinstance(held_out, Tensor) and has_gaps(held_out):
        held_out = torch.where(held_out.isnan(), spaced(x, 1)[:1].to(held_out), held_out)
    dtype = getattr(torch, settings.dtype)
    data = (x,) if held_out is None else (x, held_out)
    visible, why = make_visible(settings, *data) if units is None else given_units(units, x.shape[1])
    visible = visible.to(dtype)
    bounds = visible.bounds()
    if is_table(settings, visible) and (units is None or isinstance(visible, Mixed)):
        weights = None if weights is None else spaced(weights.unsqueeze(1), MOST_ROWS).flatten()
        start = start_for_table(spaced(rows, MOST_ROWS), settings.hidden[0], settings.seed, weights, visible)
        return _for_table(start, dtype, why)
    scale, shift = 1.0, torch.zeros(())
    if units is None and not visible.support.is_countable:  # counts and categories are not scaled
        scale, shift = _units_of_measurement(visible, x)
        visible = visible.rescaled(1 / scale, -shift / scale)
    hidden = UNIT_TYPES["binary" if settings.hidden_units == "auto" else settings.hidden_units]
    layers = [visible, *(hidden.make_hidden(n).to(dtype) for n in settings.hidden)]
    generator = torch.Generator().manual_seed(settings.seed)
    machine = dbm(layers, generator=generator)
    return ScaledMachine(machine, scale, shift, (bounds[0].clone(), bounds[1].clone()), why)


def is_table(settings: Settings, visible: Units) -> bool:
    """Return whether to fit a machine for a table, which has Gaussian or `Mixed` columns and default hidden units."""
    return isinstance(visible, Gaussian | Mixed) and settings.hidden_units == "auto" and len(settings.hidden) == 1


def _for_table(start: TableStart, dtype: torch.dtype, why: str) -> ScaledMachine:
    # In the units of the data, correlations would be differences of large numbers.
    machine = start.machine.to(torch.float64 if start.transform is None else dtype)
    bounds = machine.layers[0].bounds()
    why = "; ".join([why, *start.notes])
    return ScaledMachine(machine, 1.0, start.shift, (bounds[0].clone(), bounds[1].clone()), why, start.transform, True)


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


def make_objective(settings: Settings) -> Objective | None:
    """Create the training objective, or return None for the default objective of `fit`."""
    entry = OBJECTIVES[settings.objective]
    if entry.home is None:
        return None
    values = {
        "n_particles": settings.n_particles,
        "n_sweeps": settings.n_sweeps or entry.n_sweeps,
    }
    objective: Objective = resolve_name(entry.home)(**{each: values[name] for name, each in entry.arguments.items()})
    return objective


def make_trainer(
    settings: Settings,
    new: ScaledMachine,
    x: Rows,
    held_out: Rows | None,
    monitor: Monitor,
    weights: Tensor | None = None,
    objective: Objective | None = None,
) -> Training:
    """Create the trainer of a machine for unscaled data.

    The machine of a table is already fitted. By default, the machine is trained for one epoch with a learning rate of
    0, so that it is only measured.
    """
    machine, is_fitted, settings = new.machine, new.is_fitted, settings.for_rows(len(x))
    missing: Tensor | None = None
    if is_fitted and isinstance(x, Tensor) and has_gaps(x):  # the transformed coordinates mix columns
        if settings.learning_rate:
            raise SettingsError("learning_rate cannot be set for a real-valued table with missing values; omit it")
        x, missing = _completed_table(new, x, settings.seed), x.isnan()
    if is_fitted and isinstance(held_out, Tensor) and has_gaps(held_out):
        held_out = _completed_table(new, held_out, settings.seed)
    x = new.scaled(x)
    measured = None
    if held_out is not None:
        held_out = new.scaled(held_out)
        measured = held_out if isinstance(held_out, Tensor) else spaced(held_out, monitor.n_rows)
    options = TrainingOptions.of(
        settings, objective=objective or make_objective(settings), validation=measured, weights=weights, monitor=monitor
    )
    if settings.pretrain_epochs:
        return PretrainingTrainer(machine, x, options, settings.pretrain_epochs)
    if is_fitted and settings.learning_rate is None:
        options = replace(options, epochs=min(1, settings.epochs or 0), optimizer=momentum_sgd(machine, 0.0))
        options = replace(options, decay=0.01, momentum=0.5, weight_decay=0.0)  # those of the default optimizer
    trainer = Trainer(machine, x, options, warm_start=is_fitted)
    trainer.batches.missing = missing if missing is not None else trainer.batches.missing
    return trainer


def _completed_table(new: ScaledMachine, x: Tensor, seed: int) -> Tensor:
    """Fill in the missing values of a table with draws from the fitted machine."""
    mixture = mixture_of(new.in_units_of_data())
    assert mixture is not None
    return mixture.condition(x).draws(1, torch.Generator(x.device).manual_seed(seed))[0].to(x.dtype)


def bytes_scaled_beyond(settings: Settings) -> int | None:
    """Return the argument `scale_beyond` of `data.sources.read`: None if bytes are states, otherwise 1."""
    values = (*(settings.interval or ()), settings.binarize or 0.0)
    are_states = settings.visible != "auto" and UNIT_TYPES[settings.visible].raw_bytes
    return None if are_states or max(values) > 1 or settings.binarize == 1 else INTENSITIES


def codec_of(settings: Settings, schema: Schema | None = None, names: Sequence[str] | None = None) -> Codec:
    """Return the codec of data with the given settings."""
    names = None if names is None else tuple(names)
    return Codec(names, schema, None, settings.binarize, settings.visible == "categorical", settings.dtype)
