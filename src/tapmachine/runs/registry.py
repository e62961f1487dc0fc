"""Command-line names of objectives, channels and measurements, and the classes they refer to.

An entry in one of these tables makes a class available in settings and commands. Unit types are registered in
`units.registry` and schemes in `solver.registry`. The module does not import torch, so that `--help` is fast.
"""

from collections.abc import Mapping
from dataclasses import dataclass


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
class ChannelWord:
    """Entry for a noisy channel.

    Attributes:
        home: Location of the class as `module:name`.
        parameters: Arguments of the class that are options of `tapmachine denoise`, with the help texts of the options.
        required: Whether `tapmachine denoise` requires values for these arguments.
    """

    home: str
    parameters: Mapping[str, str]
    required: bool = False


@dataclass(frozen=True)
class MeasurementWord:
    """Entry for a type of measurement that mixes the components of a signal.

    Attributes:
        home: Location of the class as `module:name`.
        has_noise: Whether the class has an argument `noise`.
        has_edges: Whether the class has an argument `edges`.
    """

    home: str
    has_noise: bool = True
    has_edges: bool = False


_TRAINING, _CHANNELS = "tapmachine.training", "tapmachine.posterior.channels"
_MEASUREMENTS = "tapmachine.posterior.measurements"

_PARTICLES = {"n_particles": "n_particles", "n_sweeps": "n_sweeps"}

OBJECTIVES: dict[str, ObjectiveWord] = {
    "default": ObjectiveWord(None, {}),
    "tap": ObjectiveWord(f"{_TRAINING}:TAPObjective", _PARTICLES),
    "cd": ObjectiveWord(f"{_TRAINING}:CD", {"n_sweeps": "k"}, n_sweeps=1),
    "pcd": ObjectiveWord(f"{_TRAINING}:PCD", {"n_sweeps": "k", "n_particles": "n_chains"}),
}

CHANNELS: dict[str, ChannelWord] = {  # the first channel that supports the units is the default
    "bsc": ChannelWord(f"{_CHANNELS}:BinarySymmetric", {"p": "Probability of a flip (default: estimated)."}),
    "gaussian": ChannelWord(
        f"{_CHANNELS}:GaussianNoise", {"sigma": "Standard deviation of Gaussian noise (default: estimated)."}
    ),
    "erasure": ChannelWord(f"{_CHANNELS}:Erasure", {"p": "Probability of an erasure; does not change the results."}),
    "poisson": ChannelWord(f"{_CHANNELS}:PoissonNoise", {"rate": "Mean count for a value of 1."}, required=True),
}

MEASUREMENTS: dict[str, MeasurementWord] = {
    "linear": MeasurementWord(f"{_MEASUREMENTS}:LinearMeasurements"),
    "sign": MeasurementWord(f"{_MEASUREMENTS}:SignMeasurements"),
    "magnitude": MeasurementWord(f"{_MEASUREMENTS}:MagnitudeMeasurements"),
    "quantized": MeasurementWord(f"{_MEASUREMENTS}:QuantizedMeasurements", has_edges=True),
    "counts": MeasurementWord(f"{_MEASUREMENTS}:CountMeasurements", has_noise=False),
}
