"""All public names of the package, which `tapmachine` hands on."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tapmachine.beliefs import Moments, Solution, Status, Tilt
from tapmachine.conditioning import clamp, condition
from tapmachine.files import FileError, load, save
from tapmachine.inference import TAP, NaiveMeanField, Progress, Scheme, ThirdOrderTAP, random_start, solve
from tapmachine.interchange import from_bernoulli_rbm, read_rbms, write_rbms
from tapmachine.landscape import Unique, unique
from tapmachine.likelihood import (
    AnnealedEstimate,
    Comparison,
    ComparisonRow,
    EstimateError,
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
from tapmachine.machine import BoltzmannMachine, dbm, pairwise, rbm, rescaled
from tapmachine.sampling import gibbs
from tapmachine.training import (
    CD,
    PCD,
    DivergenceError,
    FromBatch,
    FromData,
    Herded,
    HerdedPCD,
    History,
    Monitor,
    NoisyBatch,
    Objective,
    Persistent,
    RandomPoints,
    Start,
    TAPObjective,
    TensorBoard,
    Trainer,
    TrainingState,
    TrainingWarning,
    default_learning_rate,
    default_objective,
    fit,
    geometric_decay,
    paper_sgd,
)
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

if TYPE_CHECKING:
    from tapmachine.estimator import RBM, DataWarning

__all__ = [
    "CD",
    "PCD",
    "RBM",
    "TAP",
    "AnnealedEstimate",
    "Binary",
    "BoltzmannMachine",
    "Categorical",
    "Comparison",
    "ComparisonRow",
    "Custom",
    "DataWarning",
    "DivergenceError",
    "EstimateError",
    "ExactMoments",
    "FileError",
    "FromBatch",
    "FromData",
    "Gaussian",
    "Herded",
    "HerdedPCD",
    "History",
    "LikelihoodWarning",
    "LogLikelihood",
    "Moments",
    "Monitor",
    "NaiveMeanField",
    "NoisyBatch",
    "Objective",
    "Persistent",
    "Progress",
    "RandomPoints",
    "Scheme",
    "Solution",
    "Spin",
    "Start",
    "Status",
    "TAPLogLikelihood",
    "TAPObjective",
    "TensorBoard",
    "ThirdOrderTAP",
    "Tilt",
    "Trainer",
    "TrainingState",
    "TrainingWarning",
    "TruncatedGaussBernoulli",
    "TruncatedGaussian",
    "Unique",
    "Units",
    "adaptive_schedule",
    "ais_log_likelihood",
    "ais_log_partition",
    "clamp",
    "compare_likelihoods",
    "condition",
    "dbm",
    "default_learning_rate",
    "default_objective",
    "exact_log_likelihood",
    "exact_log_partition",
    "exact_moments",
    "fit",
    "from_bernoulli_rbm",
    "geometric_decay",
    "gibbs",
    "linear_schedule",
    "load",
    "pairwise",
    "paper_schedule",
    "paper_sgd",
    "pseudo_log_likelihood",
    "random_start",
    "rbm",
    "read_rbms",
    "rescaled",
    "save",
    "solve",
    "tap_log_likelihood",
    "unique",
    "write_rbms",
]


def __getattr__(name: str) -> Any:
    """What needs scikit-learn, whose import takes as long as all of ours, waits until it is asked for."""
    if name in ("RBM", "DataWarning"):
        return getattr(import_module("tapmachine.estimator"), name)
    raise AttributeError(f"module 'tapmachine.api' has no attribute {name!r}")
