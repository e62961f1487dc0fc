"""Analysis of trained machines: features, receptive fields, comparison of mean-field schemes, and metrics."""

from tapmachine.analysis.features import hidden_means
from tapmachine.analysis.receptive import ReceptiveFields, receptive_fields
from tapmachine.analysis.schemes import SchemeComparison, compare_schemes, correlations
from tapmachine.analysis.scores import accuracy, mcc
from tapmachine.data.errors import HiddenWarning

__all__ = [
    "HiddenWarning",
    "ReceptiveFields",
    "SchemeComparison",
    "accuracy",
    "compare_schemes",
    "correlations",
    "hidden_means",
    "mcc",
    "receptive_fields",
]
