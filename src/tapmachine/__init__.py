"""Boltzmann machines trained, scored and inspected deterministically, by the TAP mean field."""

from tapmachine.beliefs import Moments, Solution, Status, Tilt
from tapmachine.conditioning import clamp, condition
from tapmachine.inference import TAP, NaiveMeanField, Progress, Scheme, ThirdOrderTAP, random_start, solve
from tapmachine.landscape import Unique, unique
from tapmachine.likelihood import (
    AnnealedEstimate,
    Comparison,
    ExactMoments,
    LikelihoodWarning,
    LogLikelihood,
    TAPLogLikelihood,
    adaptive_schedule,
    ais_log_likelihood,
    ais_log_partition,
    compare_likelihoods,
    exact_log_likelihood,
    exact_log_partition,
    exact_moments,
    linear_schedule,
    paper_schedule,
    pseudo_log_likelihood,
    tap_log_likelihood,
)
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
    "AnnealedEstimate",
    "Binary",
    "BoltzmannMachine",
    "Categorical",
    "Comparison",
    "Custom",
    "ExactMoments",
    "Gaussian",
    "LikelihoodWarning",
    "LogLikelihood",
    "Moments",
    "NaiveMeanField",
    "Progress",
    "Scheme",
    "Solution",
    "Spin",
    "Status",
    "TAPLogLikelihood",
    "ThirdOrderTAP",
    "Tilt",
    "TruncatedGaussBernoulli",
    "TruncatedGaussian",
    "Unique",
    "Units",
    "__version__",
    "adaptive_schedule",
    "ais_log_likelihood",
    "ais_log_partition",
    "clamp",
    "compare_likelihoods",
    "condition",
    "dbm",
    "exact_log_likelihood",
    "exact_log_partition",
    "exact_moments",
    "gibbs",
    "linear_schedule",
    "pairwise",
    "paper_schedule",
    "pseudo_log_likelihood",
    "random_start",
    "rbm",
    "solve",
    "tap_log_likelihood",
    "unique",
]
