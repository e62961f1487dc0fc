"""Latent class models of rows with missing values and columns of several types, fitted by expectation maximization.

The model is P(x) = Σ_k π_k N(x_real; μ_k, Σ) Π_j P_j(x_j; U_j + W_jk). Missing cells are integrated over exactly, so
that each step increases the likelihood of the observed cells.
"""

import math
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.exact import Mixture, row_groups
from tapmachine.exact.mixture import RowGroup
from tapmachine.tables.clusters import WIDTH, k_means, shrunk
from tapmachine.units import Gaussian, Mixed, Units

N_STEPS = 40  # maximum number of steps of expectation maximization
TOLERANCE = 1e-4  # gain of a step, in nats per row, below which the iteration stops


class Table(NamedTuple):
    """Rows with standardized real columns, and units fitted to each column independently.

    Attributes:
        x: Rows with NaN for missing values, shape (N, n).
        weights: Weight of each row, shape (N,).
        blocks: Units in the order of the columns, fitted to the columns.
        real: Indices of the Gaussian columns.
        mean, deviation: Mean and standard deviation of the Gaussian columns before standardization.
        others: Blocks that are not Gaussian.
        places: Indices of the first components of the blocks in `others`.
    """

    x: Tensor
    weights: Tensor
    blocks: list[Units]
    real: Tensor
    mean: Tensor
    deviation: Tensor
    others: list[Units]
    places: list[int]

    @staticmethod
    def of(x: Tensor, units: Units, weights: Tensor | None = None) -> "Table":
        """Fit each column independently to its observed values.

        Raises:
            ValueError: If all values of a column are missing.
        """
        x = x.detach().double().cpu()
        weights = torch.ones(len(x), dtype=x.dtype) if weights is None else weights.detach().double().cpu()
        some = ~x.isnan().all(1) & (weights > 0)
        x, weights = x[some], weights[some]
        empty = x.isnan().all(0).nonzero().flatten().tolist()
        if empty or len(x) == 0:
            raise ValueError(f"column {empty[0] if empty else 0} has no observed values; remove it")
        blocks: list[Units] = list(units.blocks) if isinstance(units, Mixed) else [units]  # type: ignore[arg-type]
        blocks = [deepcopy(block).double().cpu() for block in blocks]
        sizes = [math.prod(block.state_shape) for block in blocks]
        for block, part in zip(blocks, x.split(sizes, 1), strict=True):
            _fit_columns(block, part.unflatten(1, block.state_shape), weights)
        firsts = [sum(sizes[:index]) for index in range(len(blocks))]
        columns = [block for block in blocks if type(block) is Gaussian]
        places = [torch.arange(first, first + b.n) for b, first in zip(blocks, firsts, strict=True) if b in columns]
        real = torch.cat([torch.arange(0), *places])
        nothing = x.new_zeros(0)
        precision = torch.cat([nothing, *(block.precision.detach() for block in columns)])
        mean = torch.cat([nothing, *(block.field.detach() for block in columns)]) / precision
        deviation = precision.rsqrt()
        x = x.clone()
        x[:, real] = (x[:, real] - mean) / deviation
        others = [(block, first) for block, first in zip(blocks, firsts, strict=True) if type(block) is not Gaussian]
        return Table(
            x, weights, blocks, real, mean, deviation, [block for block, _ in others], [first for _, first in others]
        )

    def rows(self, index: Tensor) -> "Table":
        """Return a table with only the rows at `index`."""
        return self._replace(x=self.x[index], weights=self.weights[index])


def _fit_columns(block: Units, x: Tensor, weights: Tensor) -> None:  # (N, *state_shape)
    """Fit each unit of a block to the rows in which it is observed."""
    missing = block.per_unit(x.isnan().to(x.dtype)) > 0  # (N, n)
    if not bool(missing.any()):
        block.fit_to(x, weights)
        return
    for column in range(block.n):
        seen = ~missing[:, column]
        part = x[seen].clone()
        part[:] = part[:, column : column + 1]  # the values of other columns do not matter
        one = deepcopy(block).fit_to(part, weights[seen])
        with torch.no_grad():
            for name, value in one.state_dict().items():  # precisions are buffers
                if value.shape[:1] == (block.n,):
                    block.state_dict()[name][column] = value[column]


class Statistics(NamedTuple):
    """Expected statistics for the M step, summed over rows and weighted by class probabilities."""

    log_likelihood: Tensor  # log-likelihood of each row, (N,)
    belongs: Tensor  # weights of rows times the probabilities of classes, (N, K)
    shifts: Tensor  # sums of the deviations from the means, (K, n_real)
    squares: Tensor  # sum of the expected squares of the deviations, (n_real, n_real)


@torch.no_grad()
def fit_classes(
    table: Table,
    n_classes: int,
    shrinkage: float,
    smoothing: float = 1.0,
    seed: int = 0,
    n_steps: int = N_STEPS,
    start: Mixture | None = None,
    width: float = WIDTH,
    single: Mixture | None = None,
) -> Mixture:
    """Fit a mixture of latent classes to a table by expectation maximization.

    Args:
        table: Rows to fit.
        n_classes: Number of classes.
        shrinkage: Fraction by which the correlations are shrunk toward 0.
        smoothing: Number of pseudo-rows added to each class, with the distribution of all rows (default: 1).
        seed: Random seed for the initial classes (default: 0).
        n_steps: Maximum number of steps (default: 40).
        start: Initial mixture (default: classes obtained by k-means).
        width: Minimum variance within classes, relative to the variance of all rows (default: 0.01).
        single: Mixture with one class fitted to the table, used to fill in missing values for k-means (default: fitted
            by this function).
    """
    mixture = start
    if mixture is None:
        mixture = _first_classes(table, n_classes, shrinkage, smoothing, seed, width, single)
    before, total = -math.inf, float(table.weights.sum())
    groups = row_groups(table.x, table.real)
    for _ in range(n_steps):
        statistics = expectations(mixture, table, groups)
        mixture = _maximized(mixture, table, statistics, shrinkage, smoothing, width)
        now = float(table.weights @ statistics.log_likelihood)
        if now - before < TOLERANCE * total:
            break
        before = now
    return mixture


def expectations(mixture: Mixture, table: Table, groups: list[RowGroup] | None = None) -> Statistics:
    """Compute the class probabilities of each row and the expected moments of its Gaussian columns.

    Args:
        mixture: Classes with a common covariance.
        table: Rows.
        groups: Result of `row_groups` for these rows (default: computed by this function).
    """
    log_joint = table.x.new_empty((len(table.x), len(mixture.log_weights)))
    shifts, squares = torch.zeros_like(mixture.means), torch.zeros_like(mixture.covariances[0])
    for rows, of_rows, means, places, covariances in mixture.parts(table.x, groups):
        log_joint[rows] = of_rows
        belongs, off = of_rows.softmax(1) * table.weights[rows].unsqueeze(1), means - mixture.means
        shifts += torch.einsum("rk,rkn->kn", belongs, off)
        squares += (belongs.unsqueeze(2) * off).flatten(0, 1).T @ off.flatten(0, 1)
        weights = table.weights[rows] if len(places) > 1 else table.weights[rows].sum().view(1)
        pairs = places.unsqueeze(2) * len(squares) + places.unsqueeze(1)
        squares.view(-1).index_add_(0, pairs.flatten(), (covariances[:, 0] * weights.view(-1, 1, 1)).flatten())
    return Statistics(log_joint.logsumexp(1), log_joint.softmax(1) * table.weights.unsqueeze(1), shifts, squares)


def _maximized(
    mixture: Mixture, table: Table, found: Statistics, shrinkage: float, smoothing: float, width: float
) -> Mixture:
    """Return the mixture that maximizes the expected log-likelihood, up to shrinkage and smoothing."""
    counts = found.belongs.sum(0)
    total = counts.sum()
    log_shares = ((counts + smoothing) / (total + smoothing * len(counts))).log()
    # μ' = (Nμ + Σ(x − μ))/(N + s) and Σ' = Σ (x − μ')(x − μ')ᵀ/N
    one = len(counts) == 1
    pull = 0.0 if one else smoothing
    means = (counts.unsqueeze(1) * mixture.means + found.shifts) / (counts + pull).clamp(min=1e-300).unsqueeze(1)
    moves = means - mixture.means
    cross = moves.T @ found.shifts
    within = (found.squares - cross - cross.T + (moves.T * counts) @ moves) / total
    if pull:
        within = within + pull / total * means.T @ means  # contribution of the pseudo-rows
    within = shrunk(0.5 * (within + within.T), shrinkage)
    if not one and width:
        overall = within + ((counts / total) * means.T) @ means
        within = (1 - width) * within + width * overall
    within.diagonal().clamp_(min=WIDTH)  # for constant columns
    fields = []
    for index, block in enumerate(mixture.blocks):
        x = mixture.states_of(index, table.x)
        missing = x.isnan()
        sums = torch.tensordot(found.belongs.T, torch.where(missing, 0.0, x), 1)
        seen = torch.tensordot(found.belongs.T, (~missing).to(x.dtype), 1)
        at_rest = block.moments(Tilt(torch.zeros_like(block_field(block)), 0.0)).mean
        mean = (sums + smoothing * at_rest) / (seen + smoothing)
        fields.append(block.field_with_mean(mean))
    return mixture.replace(log_weights=log_shares, means=means, covariances=within.unsqueeze(0), fields=fields)


def block_field(block: Units) -> Tensor:
    """Return a zero field for a block, with the shape of its states."""
    return torch.zeros(block.state_shape, dtype=block.dtype, device=block.device)


def _first_classes(
    table: Table,
    n_classes: int,
    shrinkage: float,
    smoothing: float,
    seed: int,
    width: float,
    single: Mixture | None,
) -> Mixture:
    """Return one class with independent columns, or classes obtained by k-means after filling in missing values."""
    n, x = len(table.real), table.x
    identity = torch.eye(n, dtype=x.dtype)
    fields = [block_field(block).unsqueeze(0) for block in table.others]
    start = Mixture(
        x.new_zeros(1), x.new_zeros(1, n), identity.unsqueeze(0), table.real, table.others, table.places, fields
    )
    if n_classes == 1:
        return start
    single = fit_classes(table, 1, shrinkage, smoothing, n_steps=10) if single is None else single
    belongs = k_means(_filled(single, table), n_classes, seed) * table.weights.unsqueeze(1)
    found, shifts = expectations(single, table), x.new_zeros(n_classes, n)
    if n:
        shifts = belongs.T @ (_expected(single, table) - single.means)
    fields = [block_field(block).expand(n_classes, *block.state_shape) for block in table.others]
    start = start.replace(means=single.means.expand(n_classes, n), log_weights=x.new_zeros(n_classes), fields=fields)
    found = found._replace(belongs=belongs, shifts=shifts)
    return _maximized(start, table, found, shrinkage, smoothing, width)


def _filled(single: Mixture, table: Table) -> Tensor:
    """Return rows for k-means, without missing values.

    Missing real values are replaced by conditional means, and other columns are standardized.
    """
    x = table.x.clone()
    x[:, table.real] = _expected(single, table)
    for index, block in enumerate(single.blocks):
        moments = block.moments(Tilt(block_field(block), 0.0))
        part = single.states_of(index, x)
        part.copy_(((part - moments.mean) / moments.variance.sqrt().clamp(min=0.1)).nan_to_num(0.0))
    return x


def _expected(single: Mixture, table: Table) -> Tensor:  # (N, n_real)
    """Return the Gaussian columns, with missing values replaced by conditional means."""
    expected = table.x[:, table.real]
    for part in single.parts(table.x):
        expected[part.rows] = part.means[:, 0]
    return expected
