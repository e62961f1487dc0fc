"""What settings mean: the training objective, the codec of the data, and the scaling of bytes."""

from collections.abc import Sequence
from pkgutil import resolve_name

from tapmachine.data.sources import INTENSITIES
from tapmachine.runs.registry import OBJECTIVES
from tapmachine.runs.settings import Settings
from tapmachine.tables.codec import Codec
from tapmachine.tables.schema import Schema
from tapmachine.training import Objective
from tapmachine.units.registry import UNIT_TYPES


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


def bytes_scaled_beyond(settings: Settings) -> int | None:
    """Return the argument `scale_beyond` of `data.sources.read`: None if bytes are states, otherwise 1."""
    values = (*(settings.interval or ()), settings.binarize or 0.0)
    are_states = settings.visible != "auto" and UNIT_TYPES[settings.visible].raw_bytes
    return None if are_states or max(values) > 1 or settings.binarize == 1 else INTENSITIES


def codec_of(settings: Settings, schema: Schema | None = None, names: Sequence[str] | None = None) -> Codec:
    """Return the codec of data with the given settings."""
    names = None if names is None else tuple(names)
    return Codec(names, schema, None, settings.binarize, settings.visible == "categorical", settings.dtype)
