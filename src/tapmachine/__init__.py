"""Boltzmann machines trained, scored and inspected deterministically, by the TAP mean field."""

from tapmachine.beliefs import Moments, Tilt
from tapmachine.units import (
    Binary,
    Categorical,
    Custom,
    Gaussian,
    Spin,
    TruncatedGaussBernoulli,
    TruncatedGaussian,
    Units,
)

__version__ = "0.1.0"

__all__ = [
    "Binary",
    "Categorical",
    "Custom",
    "Gaussian",
    "Moments",
    "Spin",
    "Tilt",
    "TruncatedGaussBernoulli",
    "TruncatedGaussian",
    "Units",
    "__version__",
]
