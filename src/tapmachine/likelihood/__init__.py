"""Log-likelihoods and ln Z, computed exactly, by TAP or by annealed importance sampling, and pseudo-likelihoods."""

from tapmachine.data.errors import EstimateError, LikelihoodWarning
from tapmachine.likelihood.annealing.estimate import AnnealedEstimate, ais_log_likelihood, ais_log_partition
from tapmachine.likelihood.annealing.schedules import adaptive_schedule, linear_schedule
from tapmachine.likelihood.compare import LikelihoodComparison, compare_likelihoods
from tapmachine.likelihood.exact import ExactMoments, exact_log_likelihood, exact_log_partition, exact_moments
from tapmachine.likelihood.pseudo import pseudo_log_likelihood
from tapmachine.likelihood.result import LogLikelihood
from tapmachine.likelihood.tap import tap_log_likelihood

__all__ = [
    "AnnealedEstimate",
    "EstimateError",
    "ExactMoments",
    "LikelihoodComparison",
    "LikelihoodWarning",
    "LogLikelihood",
    "adaptive_schedule",
    "ais_log_likelihood",
    "ais_log_partition",
    "compare_likelihoods",
    "exact_log_likelihood",
    "exact_log_partition",
    "exact_moments",
    "linear_schedule",
    "pseudo_log_likelihood",
    "tap_log_likelihood",
]
