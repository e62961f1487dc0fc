"""Results shown on the report page of a table."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tapmachine.apps.report.columns import Array, Column, ColumnSummary, associations, columns_of, summarize
from tapmachine.apps.report.responses import ClassSummary, classes_of, hidden_responses
from tapmachine.exact import mixture_of
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_rows
from tapmachine.machine.sampler import gibbs
from tapmachine.runs.data import RunData

N_SAMPLES = 2000
N_CHAINS, SAMPLE_SWEEPS = 500, 200  # for machines without independent samples
MOST_COLUMNS = 40  # maximum number of columns whose distributions are shown
MOST_PAIRED = 24  # maximum number of columns in the matrix of associations


class TableFindings(NamedTuple):
    """Results on the columns of a table.

    Attributes:
        summaries: Comparisons of data and samples for the columns shown, in the order of the table.
        n_columns: Total number of columns.
        paired: Names of the columns in the matrices of associations.
        associations: Associations between columns in the data and in the samples, (n_paired, n_paired) each.
        units: Names of the hidden units shown.
        responses: Association of each hidden unit with the paired columns, (n_units, n_paired).
        classes: Classes of a mixture model; empty for other machines.
        n_rows, n_gappy: Number of rows, and number of rows with missing values.
        independent: Whether the samples are independent.
        binary_shares: Fraction of the second value of each binary column in the data and in the samples.
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
    binary_shares: list[tuple[float, float]]


@torch.no_grad()
def table_findings(data: RunData[Tensor], machine: BoltzmannMachine, seed: int = 0) -> TableFindings:
    """Compare the columns of data and samples. The data may have missing values.

    Args:
        data: Data of a run, with NaN for missing values.
        machine: Machine to draw samples from.
        seed: Random seed of the samples (default: 0).
    """
    x, columns = data.train, columns_of(data, machine)
    samples, independent = draw_rows(machine, x, seed)
    values = [(own.values(x), own.values(samples)) for own in columns]
    summaries = [summarize(column, *both) for column, both in zip(columns, values, strict=True)]
    binary = [(own.shares[0][1], own.shares[1][1]) for own in summaries if own.column.kind == "binary"]
    if len(summaries) > MOST_COLUMNS:
        worst = sorted(range(len(summaries)), key=lambda i: -summaries[i].difference)[:MOST_COLUMNS]
        summaries = [summaries[i] for i in sorted(worst)]
    chosen = _most_associated(columns, [own for own, _ in values])
    pairs = [[values[i][side] for i in chosen] for side in (0, 1)]
    kinds = [columns[i] for i in chosen]
    names, responses = hidden_responses(machine, x, kinds)
    is_gappy = x.isnan().any(1) if x.is_floating_point() else torch.zeros(len(x), dtype=torch.bool)
    return TableFindings(
        summaries,
        len(columns),
        [own.name for own in kinds],
        (associations(kinds, pairs[0]), associations(kinds, pairs[1])),
        names,
        responses,
        classes_of(machine, columns),
        len(x),
        int(is_gappy.sum()),
        independent,
        binary,
    )


def draw_rows(machine: BoltzmannMachine, x: Tensor, seed: int) -> tuple[Tensor, bool]:  # (K, n)
    """Draw samples from a machine. Gibbs chains start from complete rows of the data.

    Returns:
        The samples, one per row, and whether they are independent.
    """
    generator = torch.Generator(machine.device).manual_seed(seed)
    mixture = mixture_of(machine)
    if mixture is not None:
        return mixture.sample(N_SAMPLES, generator).cpu(), True
    complete = x[~x.isnan().any(1)] if x.is_floating_point() else x
    which = torch.randint(len(complete), (N_CHAINS,), generator=torch.Generator().manual_seed(seed))
    start = check_rows(machine, complete[which].to(machine.device))
    drawn = gibbs(machine, start, SAMPLE_SWEEPS, generator)[0].cpu()
    return machine.layers[0].to_data(drawn), False


def _most_associated(columns: list[Column], values: list[Array]) -> list[int]:
    """Return the indices of the non-constant columns, limited to those with the strongest correlations."""
    varied = [i for i, own in enumerate(values) if len(own[~np.isnan(own)]) and np.ptp(own[~np.isnan(own)]) > 0]
    if len(varied) <= MOST_PAIRED:
        return varied
    filled = [np.where(np.isnan(values[i]), np.nanmean(values[i]), values[i]) for i in varied]
    strength = np.abs(np.corrcoef(filled) - np.eye(len(varied))).max(1)
    return sorted(varied[i] for i in np.argsort(-strength, kind="stable")[:MOST_PAIRED])
