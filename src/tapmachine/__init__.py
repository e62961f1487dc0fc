"""Boltzmann machines trained, scored and inspected deterministically, by the TAP mean field."""

from tapmachine.beliefs import Moments, Solution, Status, Tilt
from tapmachine.conditioning import clamp, condition
from tapmachine.inference import TAP, NaiveMeanField, Progress, Scheme, ThirdOrderTAP, random_start, solve
from tapmachine.likelihood import ExactMoments, exact_log_partition, exact_moments
from tapmachine.machine import BoltzmannMachine, dbm, pairwise, rbm
from tapmachine.sampling import gibbs
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
    "TAP",
    "Binary",
    "BoltzmannMachine",
    "Categorical",
    "Custom",
    "ExactMoments",
    "Gaussian",
    "Moments",
    "NaiveMeanField",
    "Progress",
    "Scheme",
    "Solution",
    "Spin",
    "Status",
    "ThirdOrderTAP",
    "Tilt",
    "TruncatedGaussBernoulli",
    "TruncatedGaussian",
    "Units",
    "__version__",
    "clamp",
    "condition",
    "dbm",
    "exact_log_partition",
    "exact_moments",
    "gibbs",
    "pairwise",
    "random_start",
    "rbm",
    "solve",
]
