"""The numbers behind the tables of a page: columns of data and of samples, one by one and in pairs."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tapmachine.analysis.features import hidden_means
from tapmachine.beliefs import Tilt
from tapmachine.likelihood.products import ProductMixture, is_product_mixture
from tapmachine.likelihood.slabs import is_gaussian_mixture
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_rows, in_double
from tapmachine.machine.gibbs_sampling import gibbs
from tapmachine.posterior.table import mixture_of
from tapmachine.runs.data import RunData

N_SAMPLES = 2000
N_CHAINS, SAMPLE_SWEEPS = 500, 200  # Gibbs chains, where samples cannot be drawn independently
MOST_COLUMNS = 40  # columns whose distributions are drawn
MOST_PAIRED = 24  # columns of a matrix of associations
MOST_UNITS = 24  # hidden units whose responses are shown
N_BINS = 24
FEW_VALUES = 30  # whole numbers with a bin each

Array = np.ndarray[Any, Any]


class Column(NamedTuple):
    """A column in the units of the data: its place in rows, its kind, and the names of its categories."""

    name: str
    kind: str  # real, count, binary or categorical
    place: slice
    categories: tuple[str, ...] = ()
    shift: float = 0.0
    scale: float = 1.0

    @property
    def is_number(self) -> bool:
        """Whether its values are numbers, not categories."""
        return self.kind in ("real", "count")

    def values(self, rows: Tensor) -> Array:  # (N, n) -> (N,), float64
        """Numbers, or indices of categories; NaN for gaps."""
        part = rows[:, self.place].double().cpu().numpy()
        if self.kind == "categorical" and part.shape[1] > 1:
            codes: Array = np.where(np.isnan(part).any(1), np.nan, np.nan_to_num(part).argmax(1))
            return codes
        values: Array = part[:, 0]
        if self.kind == "binary":  # 0 and 1, or −1 and 1
            return np.where(np.isnan(values), np.nan, values > (0 if "−1" in self.categories else 0.5))
        return self.shift + self.scale * values


class ColumnSummary(NamedTuple):
    """One column of the data beside that of samples.

    Attributes:
        column: the column.
        gaps: share of the values that are missing.
        mean, deviation: of data and of samples; NaN for categories.
        edges: of bins, for numbers.
        shares: of the data and of the samples in each bin or category.
    """

    column: Column
    gaps: float
    mean: tuple[float, float]
    deviation: tuple[float, float]
    edges: list[float]
    shares: tuple[list[float], list[float]]

    @property
    def difference(self) -> float:
        """Total variation distance of the two distributions: 0 if they are equal, 1 if they do not overlap."""
        return 0.5 * sum(abs(a - b) for a, b in zip(*self.shares, strict=True))


class ClassSummary(NamedTuple):
    """A class of the rows of a table.

    Attributes:
        share: of the rows.
        values: the mean of each number; of each category, the most probable one with its probability.
        pulls: how far from all rows, for shading: in standard deviations, or as a difference of probabilities.
    """

    share: float
    values: list[str]
    pulls: list[float]


class TableFindings(NamedTuple):
    """What a page says about a table.

    Attributes:
        summaries: some or all columns, in the order of the table.
        n_columns: number of all columns.
        paired: names of the columns whose associations are shown.
        associations: those of the data and of samples, (n, n) each.
        units: names of hidden units.
        responses: association of each hidden unit with the columns that are paired, (units, n).
        classes: the classes of the rows, if the machine has any.
        n_rows, n_gappy: number of rows, and of those with gaps.
        independent: whether the samples are independent draws.
    """

    summaries: list[ColumnSummary]
    n_columns: int
    paired: list[str]
    associations: tuple[Array, Array]
    units: list[str]
    responses: Array
    classes: list[ClassSummary]
    n_rows: int
    n_gappy: int
    independent: bool


def columns_of(data: RunData[Tensor], machine: BoltzmannMachine) -> list[Column]:
    """The columns of data by name."""
    if data.schema is not None:
        places = data.schema.components
        return [
            Column(own.name, own.kind, places[own.name], tuple(map(str, own.categories)), own.shift, own.scale)
            for own in data.schema.columns
        ]
    units, n = machine.layers[0], data.train.shape[1]
    names = data.names or tuple(f"column {place}" for place in range(n))
    kind, categories = "real", tuple[str, ...]()
    if units.is_categorical:
        kind, categories = "categorical", tuple(map(str, range(units.state_shape[1])))
    elif units.has_two_states:
        kind, categories = "binary", ("−1", "1") if float(units.bounds()[0].min()) < 0 else ("0", "1")
    elif units.support.is_countable:
        kind = "count"
    return [Column(name, kind, slice(place, place + 1), categories) for place, name in enumerate(names)]


@torch.no_grad()
def table_findings(data: RunData[Tensor], machine: BoltzmannMachine, seed: int = 0) -> TableFindings:
    """Compare the columns of data, which may have gaps, with those of samples.

    Args:
        data: Data of a run, with NaN for gaps.
        machine: The machine.
        seed: Random seed of the samples.
    """
    x, columns = data.train, columns_of(data, machine)
    samples, independent = draw_rows(machine, x, seed)
    values = [(own.values(x), own.values(samples)) for own in columns]
    summaries = [summarize(column, *both) for column, both in zip(columns, values, strict=True)]
    if len(summaries) > MOST_COLUMNS:
        worst = sorted(range(len(summaries)), key=lambda i: -summaries[i].difference)[:MOST_COLUMNS]
        summaries = [summaries[i] for i in sorted(worst)]
    chosen = _most_associated(columns, [own for own, _ in values])
    pairs = [[values[i][side] for i in chosen] for side in (0, 1)]
    kinds = [columns[i] for i in chosen]
    names, responses = _responses(machine, x, kinds)
    is_gappy = x.isnan().any(1) if x.is_floating_point() else torch.zeros(len(x), dtype=torch.bool)
    return TableFindings(
        summaries,
        len(columns),
        [own.name for own in kinds],
        (associations(kinds, pairs[0]), associations(kinds, pairs[1])),
        names,
        responses,
        _classes(machine, columns) if is_product_mixture(machine) else [],
        len(x),
        int(is_gappy.sum()),
        independent,
    )


def draw_rows(machine: BoltzmannMachine, x: Tensor, seed: int) -> tuple[Tensor, bool]:  # (K, n)
    """Samples as rows of data, and whether they are independent; chains start from complete rows of the data."""
    generator = torch.Generator(machine.device).manual_seed(seed)
    if is_product_mixture(machine) or is_gaussian_mixture(machine):
        return mixture_of(in_double(machine)).sample(N_SAMPLES, generator).cpu(), True
    complete = x[~x.isnan().any(1)] if x.is_floating_point() else x
    which = torch.randint(len(complete), (N_CHAINS,), generator=torch.Generator().manual_seed(seed))
    start = check_rows(machine, complete[which].to(machine.device))
    drawn = gibbs(machine, start, SAMPLE_SWEEPS, generator)[0].cpu()
    return drawn.argmax(-1) if machine.layers[0].is_categorical else drawn, False


def summarize(column: Column, data: Array, samples: Array) -> ColumnSummary:
    """One column of the data beside that of samples."""
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
    """Edges of bins that hold all data and almost all samples; one for each of a few whole numbers."""
    every = np.concatenate((data, np.quantile(samples, [0.002, 0.998]) if len(samples) else []))
    low, high = (float(every.min()), float(every.max())) if len(every) else (0.0, 1.0)
    if whole and high - low < FEW_VALUES:
        return np.arange(np.floor(low), np.ceil(high) + 2) - 0.5
    return np.linspace(low, high, N_BINS + 1) if high > low else np.array([low - 0.5, low + 0.5])


def _shares(counts: Array) -> list[float]:
    return [float(count) for count in counts / max(1, counts.sum())]


# ----- pairs of columns


def associations(columns: list[Column], values: list[Array]) -> Array:  # (n, n)
    """Association of each pair of columns over rows in which both are known, from −1 or 0 to 1; 1 on the diagonal.

    Of numbers and binary columns, their correlation; of a number and a category, the correlation ratio; of two
    categories, Cramér's V. NaN if a column is constant.
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
    """Association of two columns without gaps; see `associations`."""
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


def _most_associated(columns: list[Column], values: list[Array]) -> list[int]:
    """Columns that are not constant; of many, those with the strongest correlations."""
    varied = [i for i, own in enumerate(values) if len(own[~np.isnan(own)]) and np.ptp(own[~np.isnan(own)]) > 0]
    if len(varied) <= MOST_PAIRED:
        return varied
    filled = [np.where(np.isnan(values[i]), np.nanmean(values[i]), values[i]) for i in varied]
    strength = np.abs(np.corrcoef(filled) - np.eye(len(varied))).max(1)
    return sorted(varied[i] for i in np.argsort(-strength, kind="stable")[:MOST_PAIRED])


# ----- hidden units and classes


def _responses(machine: BoltzmannMachine, x: Tensor, columns: list[Column]) -> tuple[list[str], Array]:
    """Association of the means of hidden units, given complete rows, with columns; those that vary most."""
    if machine.is_pairwise or not columns:
        return [], np.zeros((0, len(columns)))
    complete = x[~x.isnan().any(1)] if x.is_floating_point() else x
    rows = check_rows(machine, complete[:N_SAMPLES].to(machine.device))
    means = hidden_means(machine, rows)[0].flatten(1).double().cpu().numpy()
    spread = means.std(0) * _is_latent(machine, means.shape[1])
    order = [unit for unit in np.argsort(-spread, kind="stable")[:MOST_UNITS] if spread[unit] > 1e-6]
    of_columns = [own.values(complete[:N_SAMPLES]) for own in columns]
    kinds = [own.kind != "categorical" for own in columns]
    table = [
        [association(means[:, unit], own, True, kind) for own, kind in zip(of_columns, kinds, strict=True)]
        for unit in order
    ]
    return [f"unit {unit}" for unit in order], np.array(table).reshape(len(order), len(columns))


def _is_latent(machine: BoltzmannMachine, n: int) -> Array:
    """Which hidden components are more than a way to write the correlations of Gaussian columns."""
    from tapmachine.units import Gaussian, Mixed

    hidden = machine.layers[1]
    if not isinstance(hidden, Mixed):
        return np.ones(n)
    return np.concatenate(
        [
            np.full(size, float(type(block) is not Gaussian))
            for block, size in zip(hidden.blocks, hidden.sizes, strict=True)
        ]
    )


def _classes(machine: BoltzmannMachine, columns: list[Column]) -> list[ClassSummary]:
    """The classes of a table, by falling share; nothing if there are other hidden units beside them."""
    mixture = mixture_of(in_double(machine))
    if len(mixture.covariances) > 1:
        return []
    shares = mixture.log_weights.softmax(0)
    means = _means_of(mixture)
    overall = shares @ means
    spread = (shares @ (means - overall) ** 2).sqrt()
    spread[mixture.real] = (spread[mixture.real] ** 2 + mixture.covariances[0].diagonal()).sqrt()
    found = []
    for index in shares.argsort(descending=True).tolist():
        texts, pulls = [], []
        for column in columns:
            part, usual = means[index][column.place], overall[column.place]
            if column.is_number:
                texts.append(f"{column.shift + column.scale * float(part[0]):.4g}")
                pulls.append(float((part[0] - usual[0]) / spread[column.place][0].clamp(min=1e-12)))
                continue
            chances = torch.stack((1 - part[0], part[0])) if column.kind == "binary" else part
            before = torch.stack((1 - usual[0], usual[0])) if column.kind == "binary" else usual
            best = int(chances.argmax())
            texts.append(f"{column.categories[best]} {100 * float(chances[best]):.0f} %")
            pulls.append(2 * float(chances[best] - before[best]))
        found.append(ClassSummary(float(shares[index]), texts, pulls))
    return found


def _means_of(mixture: ProductMixture) -> Tensor:  # (C, n)
    """Means of all components of the visible states in each class."""
    means = mixture.log_weights.new_zeros((len(mixture.log_weights), mixture.n))
    means[:, mixture.real] = mixture.means
    for index, (block, field) in enumerate(zip(mixture.blocks, mixture.fields, strict=True)):
        mixture.states_of(index, means).copy_(block.moments(Tilt(field, 0.0)).mean)
    return means
