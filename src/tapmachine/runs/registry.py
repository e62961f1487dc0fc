"""Command-line names of objectives, channels and measurements, and the classes they refer to.

An entry in one of these tables makes a class available in settings and commands. Unit types are registered in
`units.registry`. The module does not import torch, so that `--help` is fast.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tapmachine.runs.settings import Settings
    from tapmachine.training import Objective


@dataclass(frozen=True)
class ObjectiveWord:
    """Entry for a training objective.

    Attributes:
        home: Location of the class as `module:name`; None for the default of `fit`.
        arguments: Mapping from settings to arguments of the class.
        n_sweeps: Default of the setting `n_sweeps`.
    """

    home: str | None
    arguments: Mapping[str, str]
    n_sweeps: int = 10


@dataclass(frozen=True)
class ModelWord:
    """Entry for a noisy channel, or for a type of measurement that mixes the components of a signal.

    Attributes:
        home: Location of the class as `module:name`.
        parameters: Arguments of the class that are options of `tapmachine denoise` or `tapmachine recover`, with the
            help texts of the options.
        required: Arguments for which the commands require values.
    """

    home: str
    parameters: Mapping[str, str]
    required: tuple[str, ...] = ()


_TRAINING, _CHANNELS = "tapmachine.training", "tapmachine.posterior.channels"
_MEASUREMENTS = "tapmachine.posterior.measurements"

_PARTICLES = {"n_particles": "n_particles", "n_sweeps": "n_sweeps"}

OBJECTIVES: dict[str, ObjectiveWord] = {
    "default": ObjectiveWord(None, {}),
    "tap": ObjectiveWord(f"{_TRAINING}:TAPObjective", _PARTICLES),
    "cd": ObjectiveWord(f"{_TRAINING}:CD", {"n_sweeps": "k"}, n_sweeps=1),
    "pcd": ObjectiveWord(f"{_TRAINING}:PCD", {"n_sweeps": "k", "n_particles": "n_chains"}),
}

CHANNELS: dict[str, ModelWord] = {  # the first channel that supports the units is the default
    "bsc": ModelWord(f"{_CHANNELS}:BinarySymmetric", {"p": "Probability of a flip (default: estimated)."}),
    "gaussian": ModelWord(
        f"{_CHANNELS}:GaussianNoise", {"sigma": "Standard deviation of Gaussian noise (default: estimated)."}
    ),
    "erasure": ModelWord(f"{_CHANNELS}:Erasure", {"p": "Probability of an erasure; does not change the results."}),
    "poisson": ModelWord(f"{_CHANNELS}:PoissonNoise", {"rate": "Mean count for a value of 1."}, ("rate",)),
}

_BIAS = {"bias": "Bias b of the measurements Fx + b: a number, or a file with one number per measurement (default: 0)."}
_NOISE = {
    "noise": "Standard deviation of the noise (default: estimated for linear measurements, 0 otherwise).",
    **_BIAS,
}
_EDGES = {"edges": "Edges between the intervals of quantized measurements, in increasing order, such as 0,0.5,1."}

MEASUREMENTS: dict[str, ModelWord] = {
    "linear": ModelWord(f"{_MEASUREMENTS}:LinearMeasurements", _NOISE),
    "sign": ModelWord(f"{_MEASUREMENTS}:SignMeasurements", _NOISE),
    "magnitude": ModelWord(f"{_MEASUREMENTS}:MagnitudeMeasurements", _NOISE),
    "quantized": ModelWord(f"{_MEASUREMENTS}:QuantizedMeasurements", {**_NOISE, **_EDGES}, ("edges",)),
    "counts": ModelWord(f"{_MEASUREMENTS}:CountMeasurements", _BIAS),
}


def make_objective(settings: "Settings") -> "Objective | None":
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
