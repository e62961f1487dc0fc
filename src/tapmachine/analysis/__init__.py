"""Analysis of trained machines: features, receptive fields and comparison of mean-field schemes."""

from tapmachine.analysis.features import hidden_means
from tapmachine.analysis.receptive import ReceptiveFields, receptive_fields
from tapmachine.analysis.schemes import SchemeComparison, compare_schemes, correlations
from tapmachine.data.errors import HiddenWarning

__all__ = [
    "HiddenWarning",
    "ReceptiveFields",
    "SchemeComparison",
    "compare_schemes",
    "correlations",
    "hidden_means",
    "receptive_fields",
]
