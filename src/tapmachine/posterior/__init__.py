"""Bayesian inference with machines as priors: denoising, imputation, recovery of signals, and anomaly scores."""

from typing import TYPE_CHECKING

from tapmachine.lazy import lazy_names

if TYPE_CHECKING:
    from tapmachine.data.errors import PosteriorWarning as PosteriorWarning
    from tapmachine.posterior.anomaly import anomaly_score as anomaly_score
    from tapmachine.posterior.anomaly import conditional_surprise as conditional_surprise
    from tapmachine.posterior.denoising import denoise as denoise
    from tapmachine.posterior.denoising import estimate_channel as estimate_channel
    from tapmachine.posterior.denoising import gibbs_posterior as gibbs_posterior
    from tapmachine.posterior.denoising import impute as impute
    from tapmachine.posterior.driver import PosteriorOptions as PosteriorOptions
    from tapmachine.posterior.mixture import Posterior as Posterior

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
