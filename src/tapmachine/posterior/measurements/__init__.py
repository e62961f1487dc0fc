"""Recovery of signals from measurements that mix their components, such as y = g(Fx + b + noise)."""

from tapmachine.posterior.measurements.base import Measurements, Response
from tapmachine.posterior.measurements.evolution import state_evolution
from tapmachine.posterior.measurements.kinds import (
    CountMeasurements,
    LinearMeasurements,
    MagnitudeMeasurements,
    QuantizedMeasurements,
    SignMeasurements,
)
from tapmachine.posterior.measurements.operators import FunctionOperator
from tapmachine.posterior.measurements.recovery import recover

__all__ = [
    "CountMeasurements",
    "FunctionOperator",
    "LinearMeasurements",
    "MagnitudeMeasurements",
    "Measurements",
    "QuantizedMeasurements",
    "Response",
    "SignMeasurements",
    "recover",
    "state_evolution",
]
