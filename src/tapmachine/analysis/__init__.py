"""Analysis of trained machines: features, receptive fields, comparison of mean-field schemes, and metrics."""

from tapmachine.analysis.features import hidden_means
from tapmachine.analysis.receptive import ReceptiveFields, receptive_fields
from tapmachine.analysis.schemes import SchemeComparison, SchemeRow, compare_schemes, correlations
from tapmachine.analysis.scores import accuracy, f1, log_loss, mcc, mse, psnr
from tapmachine.data.errors import HiddenWarning

__all__ = [
    "HiddenWarning",
    "ReceptiveFields",
    "SchemeComparison",
    "SchemeRow",
    "accuracy",
    "compare_schemes",
    "correlations",
    "f1",
    "hidden_means",
    "log_loss",
    "mcc",
    "mse",
    "psnr",
    "receptive_fields",
]
