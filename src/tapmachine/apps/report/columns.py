"""Statistics of single columns and pairs of columns in data and samples."""

from typing import Any, NamedTuple

import numpy as np
from scipy.stats import contingency
from torch import Tensor

from tapmachine.machine import BoltzmannMachine
from tapmachine.runs.data import RunData

N_BINS = 24
WHOLE = 1e-3  # distance from an integer below which a decoded value is an integer
FEW_VALUES = 30  # range below which integers have one bin per value

Array = np.ndarray[Any, Any]


class Column(NamedTuple):
    """A column of the data.

    Attributes:
        name: Name of the column.
        kind: Kind of the column: real, count, binary or categorical.
        components: Components of the column in encoded rows.
        categories: Names of the categories; empty for numbers.
        shift, scale: Parameters that convert encoded numbers to the units of the data.
    """

    name: str
    kind: str
    components: slice
    categories: tuple[str, ...] = ()
    shift: float = 0.0
    scale: float = 1.0

    @property
    def is_number(self) -> bool:
        """Whether the values of the column are numbers rather than categories."""
        return self.kind in ("real", "count")

    def values(self, rows: Tensor) -> Array:  # (N, n) -> (N,), float64
        """Return the values of the column: numbers, or indices of categories. Missing values are NaN."""
        part = rows[:, self.components].double().cpu().numpy()
        if self.kind == "categorical" and part.shape[1] > 1:
            codes: Array = np.where(np.isnan(part).any(1), np.nan, np.nan_to_num(part).argmax(1))
            return codes
        values: Array = part[:, 0]
        if self.kind == "binary":  # 0 and 1, or −1 and 1
            return np.where(np.isnan(values), np.nan, values > (0 if "−1" in self.categories else 0.5))
        return self.shift + self.scale * values


class ColumnSummary(NamedTuple):
    """Comparison of one column between data and samples.

    Attributes:
        column: The compared column.
        missing: Fraction of missing values in the data.
        edges: Bin edges of the histograms; empty for categories.
        fractions: Fraction of the data and of the samples in each bin or category.
    """

    column: Column
    missing: float
    edges: list[float]
    fractions: list[list[float]]

    @property
    def difference(self) -> float:
        """Total variation distance between data and samples: 0 for equal distributions, 1 if they do not overlap."""
        data, samples = self.fractions
        return 0.5 * float(np.abs(np.subtract(data, samples)).sum())


def columns_of(data: RunData[Tensor], machine: BoltzmannMachine) -> list[Column]:
    """Return the columns of the data, which are inferred from the visible units if the data have no schema."""
    if data.schema is not None:
        parts = data.schema.components
        return [
            Column(c.name, c.kind, parts[c.name], tuple(map(str, c.categories)), c.shift, c.scale)
            for c in data.schema.columns
        ]
    units, n = machine.layers[0], data.train.shape[1]
    names = data.names or tuple(f"column {index}" for index in range(n))
    kind, categories = "real", tuple[str, ...]()
    if len(units.state_shape) == 2:
        kind, categories = "categorical", tuple(map(str, range(units.state_shape[1])))
    elif units.has_two_states:
        kind, categories = "binary", ("−1", "1") if float(units.bounds()[0].min()) < 0 else ("0", "1")
    elif units.support.is_countable:
        kind = "count"
    return [Column(name, kind, slice(index, index + 1), categories) for index, name in enumerate(names)]


def summarize(column: Column, data: Array, samples: Array) -> ColumnSummary:
    """Compare the distribution of one column between data and samples."""
    both = known, _ = data[~np.isnan(data)], samples
    missing, edges = 1 - len(known) / max(1, len(data)), np.empty(0)
    if column.is_number:
        edges = bin_edges(known, samples, bool((abs(known - np.rint(known)) < WHOLE).all()))
        counts = [np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0] for values in both]
    else:
        n = len(column.categories)
        counts = [np.bincount(values.astype(int), minlength=n)[:n] for values in both]
    fractions = [(count / max(1, count.sum())).tolist() for count in counts]
    return ColumnSummary(column, missing, edges.tolist(), fractions)


def bin_edges(data: Array, samples: Array, whole: bool) -> Array:
    """Choose bin edges that cover all data and almost all samples. Bins of integers contain equally many integers."""
    every = np.concatenate((data, np.quantile(samples, [0.002, 0.998]) if len(samples) else []))
    low, high = (float(every.min()), float(every.max())) if len(every) else (0.0, 1.0)
    if whole:
        first, last = np.rint(low), np.rint(high)
        width = 1 if last - first < FEW_VALUES else np.ceil((last - first + 1) / N_BINS)
        return np.arange(first, last + width + 1, width) - 0.5
    return np.linspace(low, high, N_BINS + 1) if high > low else np.array([low - 0.5, low + 0.5])


# ----- pairs of columns


def associations(columns: list[Column], values: list[Array]) -> Array:  # (n, n)
    """Compute the association between each pair of columns, using the rows in which both values are known.

    The association is the correlation for two numeric or binary columns, the correlation ratio for a numeric and a
    categorical column, or Cramér's V for two categorical columns. It is NaN if a column is constant, and 1 on the
    diagonal.
    """
    n = len(columns)
    matrix = np.eye(n)
    for i in range(n):
        for j in range(i):
            both = ~np.isnan(values[i]) & ~np.isnan(values[j])
            first, second = values[i][both], values[j][both]
            are_numbers = columns[i].kind != "categorical", columns[j].kind != "categorical"
            matrix[i, j] = matrix[j, i] = association(first, second, *are_numbers)
    return matrix


def association(first: Array, second: Array, first_is_number: bool, second_is_number: bool) -> float:
    """Compute the association between two columns without missing values. See `associations`."""
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return float("nan")
    if first_is_number and second_is_number:
        return float(np.corrcoef(first, second)[0, 1])
    if first_is_number or second_is_number:
        number, code = (first, second) if first_is_number else (second, first)
        groups = [number[code == value] for value in np.unique(code)]
        between = sum(len(group) * (group.mean() - number.mean()) ** 2 for group in groups)
        return float(np.sqrt(between / ((number - number.mean()) ** 2).sum()))
    return float(contingency.association(contingency.crosstab(first, second).count, method="cramer"))
