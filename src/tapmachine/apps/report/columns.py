"""Statistics of single columns and pairs of columns in data and samples."""

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from tapmachine.machine import BoltzmannMachine
from tapmachine.runs.data import RunData

N_BINS = 24
FEW_VALUES = 30  # maximum range for which integers have one bin per value

Array = np.ndarray[Any, Any]


class Column(NamedTuple):
    """A column of the data.

    Attributes:
        name: Name of the column.
        kind: Kind of the column: real, count, binary or categorical.
        place: Position of the column in encoded rows.
        categories: Names of the categories; empty for numbers.
        shift, scale: Parameters that convert encoded numbers to the units of the data.
    """

    name: str
    kind: str
    place: slice
    categories: tuple[str, ...] = ()
    shift: float = 0.0
    scale: float = 1.0

    @property
    def is_number(self) -> bool:
        """Whether the values of the column are numbers rather than categories."""
        return self.kind in ("real", "count")

    def values(self, rows: Tensor) -> Array:  # (N, n) -> (N,), float64
        """Return the values of the column: numbers, or indices of categories. Missing values are NaN."""
        part = rows[:, self.place].double().cpu().numpy()
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
        gaps: Fraction of missing values in the data.
        mean, deviation: Mean and standard deviation in data and samples; NaN for categories.
        edges: Bin edges of the histograms; empty for categories.
        shares: Fraction of the data and of the samples in each bin or category.
    """

    column: Column
    gaps: float
    mean: tuple[float, float]
    deviation: tuple[float, float]
    edges: list[float]
    shares: tuple[list[float], list[float]]

    @property
    def difference(self) -> float:
        """Total variation distance between data and samples: 0 for equal distributions, 1 if they do not overlap."""
        return 0.5 * sum(abs(a - b) for a, b in zip(*self.shares, strict=True))


def columns_of(data: RunData[Tensor], machine: BoltzmannMachine) -> list[Column]:
    """Return the columns of the data, which are inferred from the visible units if the data have no schema."""
    if data.schema is not None:
        places = data.schema.components
        return [
            Column(own.name, own.kind, places[own.name], tuple(map(str, own.categories)), own.shift, own.scale)
            for own in data.schema.columns
        ]
    units, n = machine.layers[0], data.train.shape[1]
    names = data.names or tuple(f"column {place}" for place in range(n))
    kind, categories = "real", tuple[str, ...]()
    if len(units.state_shape) == 2:
        kind, categories = "categorical", tuple(map(str, range(units.state_shape[1])))
    elif units.has_two_states:
        kind, categories = "binary", ("−1", "1") if float(units.bounds()[0].min()) < 0 else ("0", "1")
    elif units.support.is_countable:
        kind = "count"
    return [Column(name, kind, slice(place, place + 1), categories) for place, name in enumerate(names)]


def summarize(column: Column, data: Array, samples: Array) -> ColumnSummary:
    """Compare the distribution of one column between data and samples."""
    seen = data[~np.isnan(data)]
    gaps = 1 - len(seen) / max(1, len(data))
    if not column.is_number:
        n = len(column.categories)
        counts = [np.bincount(own.astype(int), minlength=n)[:n] for own in (seen, samples)]
        nan = (np.nan, np.nan)
        return ColumnSummary(column, gaps, nan, nan, [], (_shares(counts[0]), _shares(counts[1])))
    edges = bin_edges(seen, samples, column.kind == "count")
    counts = [np.histogram(np.clip(own, edges[0], edges[-1]), edges)[0] for own in (seen, samples)]
    means = [float(own.mean()) if len(own) else np.nan for own in (seen, samples)]
    deviations = [float(own.std()) if len(own) else np.nan for own in (seen, samples)]
    both = (_shares(counts[0]), _shares(counts[1]))
    return ColumnSummary(column, gaps, (means[0], means[1]), (deviations[0], deviations[1]), edges.tolist(), both)


def bin_edges(data: Array, samples: Array, whole: bool) -> Array:
    """Choose bin edges that cover all data and almost all samples. Integers in a small range have one bin per value."""
    every = np.concatenate((data, np.quantile(samples, [0.002, 0.998]) if len(samples) else []))
    low, high = (float(every.min()), float(every.max())) if len(every) else (0.0, 1.0)
    if whole and high - low < FEW_VALUES:
        return np.arange(np.floor(low), np.ceil(high) + 2) - 0.5
    return np.linspace(low, high, N_BINS + 1) if high > low else np.array([low - 0.5, low + 0.5])


def _shares(counts: Array) -> list[float]:
    return [float(count) for count in counts / max(1, counts.sum())]


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
        groups = [number[code == own] for own in np.unique(code)]
        between = sum(len(own) * (own.mean() - number.mean()) ** 2 for own in groups)
        return float(np.sqrt(between / ((number - number.mean()) ** 2).sum()))
    table = np.zeros((len(np.unique(first)), len(np.unique(second))))
    places = (np.unique(first, return_inverse=True)[1], np.unique(second, return_inverse=True)[1])
    np.add.at(table, places, 1)
    expected = table.sum(1, keepdims=True) * table.sum(0) / table.sum()
    statistic = ((table - expected) ** 2 / expected).sum()
    return float(np.sqrt(statistic / (table.sum() * (min(table.shape) - 1))))
