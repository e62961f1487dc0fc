"""Bayesian inference with machines as priors: denoising, imputation, recovery of signals, and anomaly scores."""

from tapmachine.data.errors import PosteriorWarning
from tapmachine.posterior.anomaly import anomaly_score, conditional_surprise
from tapmachine.posterior.denoising import denoise, estimate_channel, gibbs_posterior, impute
from tapmachine.posterior.mixture import Posterior

__all__ = [
    "Posterior",
    "PosteriorWarning",
    "anomaly_score",
    "conditional_surprise",
    "denoise",
    "estimate_channel",
    "gibbs_posterior",
    "impute",
]
