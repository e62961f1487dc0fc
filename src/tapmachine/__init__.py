"""Train, score, inspect and apply restricted and deep Boltzmann machines, based on the TAP mean-field approximation.

The most common functions and classes can be imported from `tapmachine` directly. All other functions and classes are in
the following namespaces:

- `tapmachine.units`: unit types and their base class `Units`
- `tapmachine.machine`: machines, conditioning, rescaling, Gibbs sampling, file formats
- `tapmachine.solver`: mean-field schemes, initial states, merging of solutions
- `tapmachine.likelihood`: estimators of the log-likelihood and their comparison
- `tapmachine.channels`: noisy channels (an alias of `tapmachine.posterior.channels`)
- `tapmachine.measurements`: measurements that mix units (an alias of `tapmachine.posterior.measurements`)
- `tapmachine.posterior`: denoising, imputation, anomaly scores
- `tapmachine.training`: objectives, optimizers, monitors, pretraining
- `tapmachine.landscape`: mean-field solutions and their evolution during training (an alias of
  `tapmachine.analysis.landscape`)
- `tapmachine.analysis`: features, receptive fields, comparison of schemes
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tapmachine.analysis import landscape as landscape
    from tapmachine.analysis.landscape import find_solutions as find_solutions
    from tapmachine.apps.estimator import RBM as RBM
    from tapmachine.beliefs import Moments as Moments
    from tapmachine.beliefs import Tilt as Tilt
    from tapmachine.data.errors import TapmachineError as TapmachineError
    from tapmachine.data.errors import TapmachineWarning as TapmachineWarning
    from tapmachine.likelihood import ais_log_likelihood as ais_log_likelihood
    from tapmachine.likelihood import ais_log_partition as ais_log_partition
    from tapmachine.likelihood import compare_likelihoods as compare_likelihoods
    from tapmachine.likelihood import exact_log_likelihood as exact_log_likelihood
    from tapmachine.likelihood import exact_log_partition as exact_log_partition
    from tapmachine.likelihood import pseudo_log_likelihood as pseudo_log_likelihood
    from tapmachine.likelihood import tap_log_likelihood as tap_log_likelihood
    from tapmachine.machine import clamp as clamp
    from tapmachine.machine import condition as condition
    from tapmachine.machine import dbm as dbm
    from tapmachine.machine import gibbs as gibbs
    from tapmachine.machine import load as load
    from tapmachine.machine import pairwise as pairwise
    from tapmachine.machine import rbm as rbm
    from tapmachine.machine import save as save
    from tapmachine.posterior import channels as channels
    from tapmachine.posterior import denoise as denoise
    from tapmachine.posterior import impute as impute
    from tapmachine.posterior import measurements as measurements
    from tapmachine.posterior.channels import BinarySymmetric as BinarySymmetric
    from tapmachine.posterior.channels import CustomNoise as CustomNoise
    from tapmachine.posterior.channels import Erasure as Erasure
    from tapmachine.posterior.channels import GaussianNoise as GaussianNoise
    from tapmachine.posterior.channels import Missing as Missing
    from tapmachine.posterior.channels import PoissonNoise as PoissonNoise
    from tapmachine.posterior.measurements import CountMeasurements as CountMeasurements
    from tapmachine.posterior.measurements import FunctionOperator as FunctionOperator
    from tapmachine.posterior.measurements import LinearMeasurements as LinearMeasurements
    from tapmachine.posterior.measurements import MagnitudeMeasurements as MagnitudeMeasurements
    from tapmachine.posterior.measurements import QuantizedMeasurements as QuantizedMeasurements
    from tapmachine.posterior.measurements import SignMeasurements as SignMeasurements
    from tapmachine.posterior.measurements import recover as recover
    from tapmachine.solver import TAP as TAP
    from tapmachine.solver import AdaptiveTAP as AdaptiveTAP
    from tapmachine.solver import BeliefPropagation as BeliefPropagation
    from tapmachine.solver import NaiveMeanField as NaiveMeanField
    from tapmachine.solver import RelaxedBP as RelaxedBP
    from tapmachine.solver import ThirdOrderTAP as ThirdOrderTAP
    from tapmachine.solver import solve as solve
    from tapmachine.training import CD as CD
    from tapmachine.training import PCD as PCD
    from tapmachine.training import TAPObjective as TAPObjective
    from tapmachine.training import fit as fit
    from tapmachine.training import pretrain as pretrain
    from tapmachine.units import Binary as Binary
    from tapmachine.units import Categorical as Categorical
    from tapmachine.units import Custom as Custom
    from tapmachine.units import Gaussian as Gaussian
    from tapmachine.units import Mixed as Mixed
    from tapmachine.units import Poisson as Poisson
    from tapmachine.units import SpikeSlab as SpikeSlab
    from tapmachine.units import Spin as Spin
    from tapmachine.units import TruncatedGaussBernoulli as TruncatedGaussBernoulli
    from tapmachine.units import TruncatedGaussian as TruncatedGaussian

__version__ = "0.1.0"

# Public names by defining module. Each name is imported on first access, so that the command line starts quickly.
_GROUPS = {
    "beliefs": ("Tilt", "Moments"),
    "units": (
        "Binary", "Spin", "Gaussian", "TruncatedGaussian", "TruncatedGaussBernoulli", "Categorical", "Custom",
        "SpikeSlab", "Poisson", "Mixed",
    ),
    "machine": ("rbm", "dbm", "pairwise", "clamp", "condition", "gibbs", "save", "load"),
    "solver": (
        "solve", "TAP", "NaiveMeanField", "ThirdOrderTAP", "BeliefPropagation", "RelaxedBP", "AdaptiveTAP",
    ),
    "likelihood": (
        "exact_log_partition", "exact_log_likelihood", "ais_log_partition", "ais_log_likelihood",
        "tap_log_likelihood", "pseudo_log_likelihood", "compare_likelihoods",
    ),
    "posterior": ("denoise", "impute"),
    "posterior.channels": (
        "BinarySymmetric", "Erasure", "GaussianNoise", "PoissonNoise", "CustomNoise", "Missing",
    ),
    "posterior.measurements": (
        "recover", "LinearMeasurements", "SignMeasurements", "MagnitudeMeasurements", "QuantizedMeasurements",
        "CountMeasurements", "FunctionOperator",
    ),
    "training": ("fit", "pretrain", "TAPObjective", "CD", "PCD"),
    "analysis.landscape": ("find_solutions",),
    "apps.estimator": ("RBM",),
    "data.errors": ("TapmachineError", "TapmachineWarning"),
}  # fmt: skip
_HOMES = {name: home for home, names in _GROUPS.items() for name in names}
_NAMESPACES = {
    **{name: name for name in ("units", "machine", "solver", "likelihood", "posterior", "training", "analysis")},
    "channels": "posterior.channels",
    "measurements": "posterior.measurements",
    "landscape": "analysis.landscape",
}

__all__ = [*_HOMES, *_NAMESPACES]


def __getattr__(name: str) -> Any:
    if name in _NAMESPACES:
        value = import_module(f"tapmachine.{_NAMESPACES[name]}")
    elif name in _HOMES:
        value = getattr(import_module(f"tapmachine.{_HOMES[name]}"), name)
    else:
        raise AttributeError(f"module 'tapmachine' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
