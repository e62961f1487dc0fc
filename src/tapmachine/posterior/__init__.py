"""Machines as priors: what an observation says about states, and how surprising states are."""

from tapmachine.posterior.anomaly import anomaly_score, surprise
from tapmachine.posterior.baselines import nearest_neighbours, pointwise_estimate
from tapmachine.posterior.denoise import denoise, gibbs_posterior, impute
from tapmachine.posterior.estimation import estimate_channel
from tapmachine.posterior.mixture import Posterior, PosteriorWarning

__all__ = [
    "Posterior",
    "PosteriorWarning",
    "anomaly_score",
    "denoise",
    "estimate_channel",
    "gibbs_posterior",
    "impute",
    "nearest_neighbours",
    "pointwise_estimate",
    "surprise",
]
