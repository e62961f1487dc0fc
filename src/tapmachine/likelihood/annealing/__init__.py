"""Annealed importance sampling."""

from tapmachine.likelihood.annealing.estimate import AnnealedEstimate, ais_log_likelihood, ais_log_partition
from tapmachine.likelihood.annealing.schedules import adaptive_schedule, linear_schedule

__all__ = [
    "AnnealedEstimate",
    "adaptive_schedule",
    "ais_log_likelihood",
    "ais_log_partition",
    "linear_schedule",
]
