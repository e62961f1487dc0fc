"""Results shown on the report page of a table: columns of data and samples, hidden units and classes."""

from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tapmachine.analysis.features import hidden_means
from tapmachine.apps.report.columns import (
    Array,
    Column,
    ColumnSummary,
    association,
    associations,
    columns_of,
    summarize,
)
from tapmachine.apps.report.quality import Imputation, Unusual, imputation, unusual
from tapmachine.data.rows import spaced
from tapmachine.display.html import readable
from tapmachine.exact import mixture_of
from tapmachine.likelihood.report import LikelihoodReport
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_rows
from tapmachine.runs.data import RunData
from tapmachine.tables.cells import draw
from tapmachine.tables.codec import Codec

N_SAMPLES = 2000
N_CHAINS, SAMPLE_SWEEPS = 500, 200  # for machines without independent samples
MOST_COLUMNS = 40  # maximum number of columns whose distributions are shown
MOST_PAIRED = 24  # maximum number of columns in the matrix of associations
MOST_UNITS = 24  # maximum number of hidden units shown
SAME_CLASS = 1e-6  # standard deviation over rows below which the probability of a class is constant
MOST_SCORED, MOST_CHAINED = 5000, 200  # maximum numbers of rows of which cells are scored, exactly and by chains
MOST_ROWS = 2000  # maximum number of data rows used to compute the associations of hidden units


class ClassSummary(NamedTuple):
    """One class of the rows of a table.

    Attributes:
        probability: Probability that a row belongs to the class.
        values: Typical value of each column: the mean, or the most probable category and its probability.
        deviations: Deviation of each column from the average of all rows, shown as the color of the table cell: that of
            the mean in standard deviations, that of the probability of the second value of binary columns, and twice
            the total variation distance for categories.
    """

    probability: float
    values: list[str]
    deviations: list[float]


class TableResults(NamedTuple):
    """Results on the columns of a table.

    Attributes:
        columns: Columns of the table.
        summaries: Comparisons of data and samples for the columns shown, in the order of the table.
        paired: Names of the columns in the matrices of associations.
        associations: Associations between columns in the data and in the samples, (n_paired, n_paired) each.
        units: Names of the hidden units shown.
        responses: Association of each hidden unit with the paired columns, (n_units, n_paired).
        classes: Classes of the rows; empty for machines without classes.
        n_rows, n_incomplete: Number of rows, and number of rows with missing values.
        independent: Whether the samples are independent.
        binary_fractions: Fraction of the second value of each binary column in the data and in the samples.
        imputation: Errors of imputed cells by column.
        is_held_out: Whether these cells are in held-out rows.
        unusual: Most surprising rows and cells.
    """

    columns: list[Column]
    summaries: list[ColumnSummary]
    paired: list[str]
    associations: tuple[Array, Array]
    units: list[str]
    responses: Array
    classes: list[ClassSummary]
    n_rows: int
    n_incomplete: int
    independent: bool
    binary_fractions: list[tuple[float, float]]
    imputation: list[Imputation]
    is_held_out: bool
    unusual: Unusual | None


@torch.no_grad()
def table_results(
    data: RunData[Tensor], machine: BoltzmannMachine, codec: Codec, report: LikelihoodReport | None, seed: int = 0
) -> TableResults:
    """Compare the columns of data and samples, fill in hidden cells, and find unusual rows and cells.

    Args:
        data: Data of a run, with NaN for missing values.
        machine: Machine to draw samples from.
        codec: Codec of the data.
        report: Log-likelihoods of the training rows and the held-out rows, if available.
        seed: Random seed of the samples (default: 0).
    """
    x, columns = data.train, columns_of(data, machine)
    independent = mixture_of(machine) is not None

    count, generator = N_SAMPLES if independent else N_CHAINS, torch.Generator(machine.device).manual_seed(seed)
    samples = draw(machine, count, lambda: _complete(x).to(machine.device), SAMPLE_SWEEPS, generator).cpu()
    samples = samples if independent else machine.layers[0].to_data(samples)
    values = [(column.values(x), column.values(samples)) for column in columns]
    summaries = [summarize(column, *both) for column, both in zip(columns, values, strict=True)]
    worst = sorted(range(len(columns)), key=lambda index: -summaries[index].difference)[:MOST_COLUMNS]
    chosen = _most_associated([in_data for in_data, _ in values])
    paired = [columns[index] for index in chosen]
    in_data, in_samples = (associations(paired, [values[index][side] for index in chosen]) for side in (0, 1))
    units, responses = hidden_responses(machine, x, paired)
    quality: list[Imputation] = []
    strange = None
    if len(machine.layers[0].state_shape) == 1:
        quality = imputation(machine, columns, x if data.held_out is None else data.held_out, x)
        of_rows = None if report is None else -next(iter(report.scores.values())).values.cpu().numpy()
        few = spaced(torch.arange(len(x)), MOST_SCORED if independent else MOST_CHAINED)
        if of_rows is not None and len(of_rows) == len(x):
            strange = unusual(machine, codec, columns, x[few], of_rows[few.numpy()], few.tolist())
    return TableResults(
        columns,
        [summaries[index] for index in sorted(worst)],
        [column.name for column in paired],
        (in_data, in_samples),
        units,
        responses,
        classes_of(machine, columns, check_rows(machine, samples.to(machine.device))),
        len(x),
        len(x) - len(_complete(x)),
        independent,
        [(s.fractions[0][1], s.fractions[1][1]) for s in summaries if s.column.kind == "binary"],
        quality,
        data.held_out is not None,
        strange,
    )


def _complete(x: Tensor) -> Tensor:
    """Return the rows without missing values."""
    return x[~x.isnan().any(1)] if x.is_floating_point() else x


def _most_associated(values: list[Array]) -> list[int]:
    """Return the indices of the non-constant columns, limited to those with the strongest correlations."""
    known = [column[~np.isnan(column)] for column in values]
    varied = [index for index, column in enumerate(known) if len(column) and np.ptp(column) > 0]
    if len(varied) <= MOST_PAIRED:
        return varied
    filled = [np.where(np.isnan(values[i]), known[i].mean(), values[i]) for i in varied]
    strength = np.abs(np.corrcoef(filled) - np.eye(len(varied))).max(1)
    return sorted(varied[i] for i in np.argsort(-strength, kind="stable")[:MOST_PAIRED])


def hidden_responses(machine: BoltzmannMachine, x: Tensor, columns: list[Column]) -> tuple[list[str], Array]:
    """Compute the associations between columns and the hidden units that vary most between rows.

    Returns:
        The names of the hidden units, and the associations, (n_units, n_columns).
    """
    if machine.is_pairwise or not columns:
        return [], np.zeros((0, len(columns)))
    complete = _complete(x)[:MOST_ROWS]
    means = hidden_means(machine, check_rows(machine, complete.to(machine.device)))[0].flatten(1).double().cpu().numpy()
    hidden = machine.layers[1]
    # Beside other hidden units, unbounded ones only encode the correlations of real columns.
    is_latent = [len(hidden.parts) == 1 or part.support.bounds[0] > -np.inf for part in hidden.parts]
    spread = means.std(0) * np.repeat(is_latent, hidden.sizes)
    order = [unit for unit in np.argsort(-spread, kind="stable")[:MOST_UNITS] if spread[unit] > 1e-6]
    values = [(column.values(complete), column.kind != "categorical") for column in columns]
    table = [[association(means[:, unit], column, True, is_number) for column, is_number in values] for unit in order]
    return [f"unit {unit}" for unit in order], np.array(table).reshape(len(order), len(columns))


def classes_of(machine: BoltzmannMachine, columns: list[Column], samples: Tensor) -> list[ClassSummary]:
    """Return the classes of the rows by decreasing probability, and their averages over samples of the machine.

    The list is empty if the machine has no hidden unit with classes, or only one class.
    """
    sizes = [0] if machine.is_pairwise else [*accumulate(machine.layers[1].sizes, initial=0)]
    parts = [] if machine.is_pairwise else machine.layers[1].parts
    of_classes = [slice(*sizes[place : place + 2]) for place, part in enumerate(parts) if len(part.state_shape) == 2]
    if len(of_classes) != 1:
        return []
    given = hidden_means(machine, samples)[0].flatten(1)[:, of_classes[0]].double()
    x, probabilities = samples.double(), given.mean(0)
    if float(given.std(0).max()) < SAME_CLASS:  # all classes are equal
        return []
    overall, spread, means = x.mean(0), x.std(0), (given / given.sum(0)).T @ x
    classes = []
    for index in probabilities.argsort(descending=True).tolist():
        values, deviations = [], []
        for column in columns:
            mean, average = means[index][column.components], overall[column.components]
            if column.is_number:
                values.append(readable(column.shift + column.scale * float(mean[0])))
                deviations.append(float((mean - average)[0] / spread[column.components][0].clamp(min=1e-12)))
                continue
            shift = (mean - average).abs().sum()
            if column.kind == "binary":
                shift, mean = 2 * (mean - average)[0], torch.cat((1 - mean, mean))
            best = int(mean.argmax())
            values.append(f"{column.categories[best]} {float(mean[best]):.0%}")
            deviations.append(float(shift))
        classes.append(ClassSummary(float(probabilities[index]), values, deviations))
    return classes
