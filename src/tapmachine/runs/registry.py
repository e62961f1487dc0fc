"""Names on the command line, and the classes they stand for. Does not import torch, so that `--help` is fast.

Settings, the construction of a training and the commands read these tables; the unit types are in `units.registry`, the
schemes in `solver.registry`. An objective, a start or a channel becomes available to users with its line here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tapmachine.units.registry import UNIT_TYPES


@dataclass(frozen=True)
class ObjectiveWord:
    """A training objective.

    Attributes:
        home: Location of the class, as `module:name`; None for the default of `fit`.
        arguments: Arguments of the class, by the settings that they come from.
        n_sweeps: Default of `n_sweeps`.
        scheme: Location of the class of its mean-field scheme; None for the default.
        fixed: Other arguments of the class.
        scheme_arguments: Arguments of the class of the scheme.
    """

    home: str | None
    arguments: Mapping[str, str]
    n_sweeps: int = 10
    scheme: str | None = None
    fixed: Mapping[str, bool] = field(default_factory=dict)
    scheme_arguments: Mapping[str, str | float] = field(default_factory=dict)


@dataclass(frozen=True)
class ChannelWord:
    """A noisy channel.

    Attributes:
        home: Location of the class, as `module:name`.
        parameter: Name of the option of `tapmachine denoise` and of the attribute of the class.
        needs: Requirement on the visible units: `states` (finitely many), `numbers`, `bounded numbers`, or `anything`.
        limits: Smallest and largest value of the parameter.
        required: Whether the parameter is required.
    """

    home: str
    parameter: str
    needs: str
    limits: tuple[float, float]
    required: bool = False


@dataclass(frozen=True)
class MeasurementWord:
    """A kind of measurements that mix the components of a signal.

    Attributes:
        home: Location of the class, as `module:name`.
        has_noise: Whether the class has an argument `noise`.
        has_edges: Whether the class has an argument `edges`.
    """

    home: str
    has_noise: bool = True
    has_edges: bool = False


_TRAINING, _CHANNELS = "tapmachine.training", "tapmachine.posterior.channels"
_MEASUREMENTS = "tapmachine.posterior.measurements"

_TAP = f"{_TRAINING}:TAPObjective", {"start": "start", "n_particles": "n_particles", "n_sweeps": "n_sweeps"}
_UNIQUE = {"merged": False, "unique": True}
_SCHEME = "tapmachine.solver:TAP"
_EXPLICIT: dict[str, str | float] = {"update": "explicit", "damping": 0.0}  # [alg:rbmInf]

OBJECTIVES: dict[str, ObjectiveWord] = {
    "default": ObjectiveWord(None, {}),
    "tap": ObjectiveWord(*_TAP),
    "tap-average": ObjectiveWord(*_TAP, fixed={"merged": False}),
    "tap-unique": ObjectiveWord(*_TAP, fixed=_UNIQUE),
    "tap-average-explicit": ObjectiveWord(*_TAP, 100, _SCHEME, {"merged": False}, _EXPLICIT),
    "tap-unique-explicit": ObjectiveWord(*_TAP, 100, _SCHEME, _UNIQUE, _EXPLICIT),  # the paper's, as printed
    "adaptive-tap": ObjectiveWord(*_TAP, scheme="tapmachine.solver:AdaptiveTAP"),
    "belief-propagation": ObjectiveWord(*_TAP, n_sweeps=20, scheme="tapmachine.solver:BeliefPropagation"),
    "relaxed-bp": ObjectiveWord(*_TAP, n_sweeps=20, scheme="tapmachine.solver:RelaxedBP"),
    "cd": ObjectiveWord(f"{_TRAINING}:CD", {"n_sweeps": "k"}, n_sweeps=1),
    "pcd": ObjectiveWord(f"{_TRAINING}:PCD", {"n_sweeps": "k", "n_particles": "n_chains"}),
}

STARTS: dict[str, str] = {
    "batch": f"{_TRAINING}:FromBatch",
    "data": f"{_TRAINING}:FromData",
    "noisy": f"{_TRAINING}:NoisyBatch",
    "random": f"{_TRAINING}:RandomPoints",
    "persistent": f"{_TRAINING}:Persistent",
    "chains": f"{_TRAINING}:Chains",
}

CHANNELS: dict[str, ChannelWord] = {  # the first that suits the units is their default
    "bsc": ChannelWord(f"{_CHANNELS}:BinarySymmetric", "p", "states", (0.0, 1.0)),
    "gaussian": ChannelWord(f"{_CHANNELS}:GaussianNoise", "sigma", "numbers", (1e-15, 1e15)),
    "erasure": ChannelWord(f"{_CHANNELS}:BinaryErasure", "p", "anything", (0.0, 1.0)),
    "poisson": ChannelWord(f"{_CHANNELS}:PoissonNoise", "rate", "bounded numbers", (1e-15, 1e15), required=True),
}

MEASUREMENTS: dict[str, MeasurementWord] = {
    "linear": MeasurementWord(f"{_MEASUREMENTS}:LinearMeasurements"),
    "sign": MeasurementWord(f"{_MEASUREMENTS}:SignMeasurements"),
    "magnitude": MeasurementWord(f"{_MEASUREMENTS}:MagnitudeMeasurements"),
    "quantized": MeasurementWord(f"{_MEASUREMENTS}:QuantizedMeasurements", has_edges=True),
    "counts": MeasurementWord(f"{_MEASUREMENTS}:CountMeasurements", has_noise=False),
}


def visible_words() -> tuple[str, ...]:
    """Types of visible units; `auto` infers one from the data."""
    return ("auto", *UNIT_TYPES)


def hidden_words() -> tuple[str, ...]:
    """Types of hidden units; `auto` follows from the visible ones."""
    return ("auto", *(word for word, unit_type in UNIT_TYPES.items() if unit_type.hidden))
