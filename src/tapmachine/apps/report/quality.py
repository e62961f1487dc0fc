"""How well a machine fills in the cells of a table, and which rows and cells surprise it."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tapmachine.apps.report.columns import Array, Column
from tapmachine.machine import BoltzmannMachine
from tapmachine.tables.cells import posterior_of, surprise
from tapmachine.tables.codec import Codec

HIDDEN = 0.2  # fraction of the cells that are hidden
LEVEL = 0.9  # coverage of the intervals
MOST_ROWS = 500  # maximum number of rows of which cells are hidden
N_ROWS, N_CELLS, N_OF_ROW = 8, 10, 3  # numbers of unusual rows, of unusual cells, and of cells listed for a row


class Imputation(NamedTuple):
    """Imputation of hidden cells of a column.

    Attributes:
        column: Name of the column.
        n_hidden: Number of hidden cells.
        error: Root mean square error of numbers in the units of the data, or fraction of wrong categories.
        baseline: The same error if cells are filled in with the mean or the most frequent category of the column.
        coverage: Fraction of the hidden numbers within intervals that cover 90 % by their construction, or NaN.
        is_number: Whether the column contains numbers.
    """

    column: str
    n_hidden: int
    error: float
    baseline: float
    coverage: float
    is_number: bool


class UnusualCell(NamedTuple):
    """Cell with a high surprise.

    Attributes:
        row: Index of the row.
        column: Column of the cell.
        value, expected: Value of the cell, and the value expected from the rest of its row, as in `Column.values`.
        nats: Surprise of the cell, for numbers in units of the standard deviation of the column.
    """

    row: int
    column: Column
    value: float
    expected: float
    nats: float


@torch.no_grad()
def imputation(machine: BoltzmannMachine, columns: list[Column], x: Tensor, train: Tensor) -> list[Imputation]:
    """Hide random cells, fill them in, and compare them with their values.

    Args:
        machine: Machine of the table.
        columns: Columns of the table.
        x: Rows, preferably held out, with NaN for missing cells.
        train: Training rows, which determine the baseline.
    """
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:MOST_ROWS].sort().values
    x, draws = x[chosen], np.random.default_rng(0)
    hidden = draws.random((len(x), len(columns))) < HIDDEN
    gappy = x.clone()
    for place, column in enumerate(columns):
        gappy[torch.from_numpy(hidden[:, place]), column.components] = torch.nan
    posterior = posterior_of(machine, gappy.to(machine.device))
    mean, low, high = (z.cpu() for z in (posterior.moments.mean, *posterior.intervals(LEVEL)))
    results = []
    for place, column in enumerate(columns):
        truth, filled, lower, upper = (column.values(rows) for rows in (x, mean, low, high))
        known, usual = hidden[:, place] & ~np.isnan(truth), column.values(train)
        usual = usual[~np.isnan(usual)]
        if not known.any() or not len(usual):
            continue
        truth, filled, coverage = truth[known], filled[known], float("nan")
        if column.is_number:
            error, baseline = (float(np.sqrt(((truth - z) ** 2).mean())) for z in (filled, usual.mean()))
            coverage = float(((lower[known] <= truth) & (truth <= upper[known])).mean())
        else:
            error, baseline = (float((truth != z).mean()) for z in (filled, np.bincount(usual.astype(int)).argmax()))
        results.append(Imputation(column.name, int(known.sum()), error, baseline, coverage, column.is_number))
    return results


class Unusual(NamedTuple):
    """Rows and cells with the highest surprise.

    Attributes:
        rows: Indices and surprise −ln P of rows, in nats, with the most surprising cells of each row.
        cells: Most surprising cells of the table.
    """

    rows: list[tuple[int, float, list[UnusualCell]]]
    cells: list[UnusualCell]


@torch.no_grad()
def unusual(
    machine: BoltzmannMachine, codec: Codec, columns: list[Column], x: Tensor, of_rows: Array, numbers: list[int]
) -> Unusual:
    """Find the most surprising rows and cells, with the values that are expected from the rest of each row.

    Args:
        machine: Machine of the table.
        codec: Codec of the table.
        columns: Columns of the table.
        x: Rows, with NaN for missing cells.
        of_rows: Surprise of each row in nats.
        numbers: Index of each row in the data.
    """
    nats = np.nan_to_num(surprise(machine, codec, x.to(machine.device), standardized=True), nan=-np.inf)
    rows = np.argsort(-np.nan_to_num(of_rows, nan=-np.inf))[:N_ROWS].tolist()
    of_table = [divmod(int(place), len(columns)) for place in np.argsort(-nats, axis=None)[:N_CELLS]]
    in_rows = [(row, int(place)) for row in rows for place in np.argsort(-nats[row])[:N_OF_ROW]]
    pairs = [pair for pair in (*of_table, *in_rows) if np.isfinite(nats[pair])]
    gappy = x[[row for row, _ in pairs]].clone()
    for index, (_, place) in enumerate(pairs):
        gappy[index, columns[place].components] = torch.nan
    mean = posterior_of(machine, gappy.to(machine.device)).moments.mean.cpu()
    found = {}
    for index, (row, place) in enumerate(pairs):
        value, expected = (float(columns[place].values(own)[0]) for own in (x[row : row + 1], mean[index : index + 1]))
        found[row, place] = UnusualCell(numbers[row], columns[place], value, expected, float(nats[row, place]))
    of_row = {row: [found[pair] for pair in in_rows if pair[0] == row and pair in found] for row in rows}
    return Unusual(
        [(numbers[row], float(of_rows[row]), cells) for row, cells in of_row.items()],
        [found[pair] for pair in of_table if pair in found],
    )
