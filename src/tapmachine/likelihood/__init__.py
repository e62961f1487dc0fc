"""How likely a machine makes its data: exactly, by TAP, by annealed importance sampling, and by pseudo-likelihood."""

from tapmachine.likelihood.annealing import AnnealedEstimate, ais_log_likelihood, ais_log_partition
from tapmachine.likelihood.compare import Comparison, ComparisonRow, compare_likelihoods
from tapmachine.likelihood.exact import ExactMoments, exact_log_likelihood, exact_log_partition, exact_moments
from tapmachine.likelihood.pseudo import pseudo_log_likelihood
from tapmachine.likelihood.schedules import adaptive_schedule, linear_schedule, paper_schedule
from tapmachine.likelihood.score import EstimateError, LikelihoodWarning, LogLikelihood
from tapmachine.likelihood.tap import TAPLogLikelihood, tap_log_likelihood

__all__ = [
    "AnnealedEstimate",
    "Comparison",
    "ComparisonRow",
    "EstimateError",
    "ExactMoments",
    "LikelihoodWarning",
    "LogLikelihood",
    "TAPLogLikelihood",
    "adaptive_schedule",
    "ais_log_likelihood",
    "ais_log_partition",
    "compare_likelihoods",
    "exact_log_likelihood",
    "exact_log_partition",
    "exact_moments",
    "linear_schedule",
    "paper_schedule",
    "pseudo_log_likelihood",
    "tap_log_likelihood",
]
