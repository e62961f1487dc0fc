"""Maximum-likelihood fit of a table by a small machine: latent classes, correlated numbers, and slabs for heavy tails.

The model of rows with missing cells and columns of several types is

    P(x) = Σ_k π_k N(x_real; μ_k, Σ) Π_j P_j(x_j; U_j + W_jk),

which is the distribution of a machine with one categorical hidden unit. Real columns are standardized first.
Expectation maximization integrates over missing cells exactly, so that each step increases the likelihood of the
observed cells, up to shrinkage and smoothing. The shrinkage of the correlations, the number of classes and the width of
the covariance are chosen by cross-validation, scored by the likelihood of the observed cells in held-out rows. For
complete tables of numbers, a few spike-and-slab hidden units are added in coordinates in which Σ is the identity
(`slabs.py`). In the coordinates of the data, the problem would be so ill-conditioned that gradient descent is slow.
"""

import math
import warnings
from copy import deepcopy
from typing import NamedTuple

import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold
from torch import Tensor
from torch.nn.functional import one_hot

from tapmachine.beliefs import Tilt
from tapmachine.data.rows import Rows, spaced
from tapmachine.exact import Mixture, row_groups
from tapmachine.exact.gaussian import blocks_of, in_coordinates, is_real
from tapmachine.exact.parts import RowGroup
from tapmachine.machine import BoltzmannMachine, rbm
from tapmachine.tables.slabs import MOST_SLABS, SlabFit, best_n_steps
from tapmachine.units import Categorical, Gaussian, Mixed, Units

MOST_ROWS = 20_000  # maximum number of rows that are fitted
SELECTION_ROWS = 1000  # maximum number of rows for cross-validation, and for spike-and-slab units
FEW_ROWS, ROWS_PER_CLASS = 20, 15  # with fewer rows, there is one class, and fewer classes
N_FOLDS = 5
CLASSES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # numbers of classes to choose from
MOST_WITH_SLABS = 8  # maximum number of classes beside spike-and-slab units, which explain tails better than classes do
SHRINKAGES = (0.7, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 1e-4, 1e-5, 1e-6)
MORE_SHRINKAGE = (3.0, 10.0)  # factors to try with several classes, because correlations within classes are weaker
WIDTHS = (1.0, 1.1, 1.2, 1.35, 1.5)  # factors of the covariance to choose from
# Minimum variance within classes, relative to all rows; otherwise, few values have infinite densities.
LEAST_WIDTH = 0.01
COLLINEAR = 1e-6  # columns are linear combinations if an eigenvalue of their correlations is smaller
# Steps of expectation maximization: at most, from k-means, from a similar fit.
N_STEPS, COLD_STEPS, WARM_STEPS = 40, 20, 8
N_PARTITIONS = 5  # number of runs of k-means
LEAST_GROUP = 32  # minimum number of rows with the same missing cells that are treated together
TOLERANCE = 1e-4  # gain of a step, in nats per row, below which the iteration stops
PATIENCE = 2  # number of candidates without a gain after which the search stops
SHARE_OF_ERROR, WITH_SLABS = 0.5, 1.0  # gain in standard errors below which fewer classes are preferred
MEAN_SMOOTHING = 0.1  # pseudo-rows per class for the means of real columns, relative to those for other columns


class Table(NamedTuple):
    """Rows with standardized real columns, and units fitted to each column independently.

    Attributes:
        x: Rows with NaN for missing values, shape (N, n).
        weights: Weight of each row, shape (N,).
        blocks: Units in the order of the columns, fitted to the columns, with the indices of their first columns.
        real: Indices of the Gaussian columns.
        mean, deviation: Mean and standard deviation of the Gaussian columns before standardization.
    """

    x: Tensor
    weights: Tensor
    blocks: list[tuple[Units, int]]
    real: Tensor
    mean: Tensor
    deviation: Tensor

    @staticmethod
    def of(x: Tensor, units: Units, weights: Tensor | None = None) -> "Table":
        """Fit each column independently to its observed values.

        Raises:
            ValueError: If all values of a column are missing.
        """
        x = x.detach().double().cpu()
        weights = torch.ones(len(x), dtype=x.dtype) if weights is None else weights.detach().double().cpu()
        some = ~x.isnan().all(1) & (weights > 0)
        x, weights = x[some].clone(), weights[some]
        empty = x.isnan().all(0).nonzero().flatten().tolist()
        if empty or len(x) == 0:
            raise ValueError(f"column {empty[0] if empty else 0} has no observed values; remove it")
        placed, real = blocks_of(deepcopy(units).double().cpu()), [torch.arange(0)]
        for block, place in placed:
            part = x[:, place : place + math.prod(block.state_shape)]
            _fit_columns(block, part.unflatten(1, block.state_shape), weights)
            real += [torch.arange(place, place + block.n)] if is_real(block) else []
        gaussians = [block for block, _ in placed if isinstance(block, Gaussian)]
        precision = torch.cat([x.new_zeros(0), *(block.precision.detach() for block in gaussians)])
        mean = torch.cat([x.new_zeros(0), *(block.field.detach() for block in gaussians)]) / precision
        table = Table(x, weights, placed, torch.cat(real), mean, precision.rsqrt())
        x[:, table.real] = (x[:, table.real] - mean) / table.deviation
        return table

    def rows(self, index: Tensor) -> "Table":
        """Return a table with only the rows at `index`."""
        return self._replace(x=self.x[index], weights=self.weights[index])

    def one_class(self) -> Mixture:
        """Return a mixture with one class and independent columns."""
        others = [(block, place) for block, place in self.blocks if not is_real(block)]
        n, zero = len(self.real), self.x.new_zeros(1)
        return Mixture(
            zero,
            zero.new_zeros(1, n),
            torch.eye(n, dtype=zero.dtype).unsqueeze(0),
            self.real,
            [block for block, _ in others],
            [place for _, place in others],
            [zero.new_zeros(1, *block.state_shape) for block, _ in others],
        )


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


# ----- expectation maximization


class Statistics(NamedTuple):
    """Expected statistics for the M step, summed over rows and weighted by class probabilities."""

    log_likelihood: Tensor  # log-likelihood of each row, (N,)
    belongs: Tensor  # weights of rows times the probabilities of classes, (N, K)
    shifts: Tensor  # sums of the deviations from the means, (K, n_real)
    squares: Tensor  # sum of the expected squares of the deviations, (n_real, n_real)


@torch.no_grad()
def fit_classes(
    table: Table,
    start: Mixture,
    shrinkage: float,
    n_steps: int = N_STEPS,
    smoothing: float = 1.0,
    width: float = LEAST_WIDTH,
) -> Mixture:
    """Fit a mixture of latent classes to a table by expectation maximization.

    Args:
        table: Rows to fit.
        start: Initial mixture, such as `table.one_class()` or the result of `split`.
        shrinkage: Fraction by which the correlations are shrunk toward 0.
        n_steps: Maximum number of steps (default: 40).
        smoothing: Number of pseudo-rows added to each class, with the distribution of all rows (default: 1). A tenth of
            them is added for the means of real columns.
        width: Minimum variance within classes, relative to the variance of all rows (default: 0.01).
    """
    mixture, before, total = start, -math.inf, float(table.weights.sum())
    groups = row_groups(table.x, table.real, LEAST_GROUP)
    for _ in range(n_steps):
        statistics = expectations(mixture, table, groups)
        mixture = maximized(mixture, table, statistics, shrinkage, smoothing, width)
        now = float(table.weights @ statistics.log_likelihood)
        if now - before < TOLERANCE * total:
            break
        before = now
    return mixture


@torch.no_grad()
def split(single: Mixture, table: Table, n_classes: int, shrinkage: float, seed: int = 0) -> Mixture:
    """Split a mixture of one class into several classes, by k-means of rows without missing values.

    Missing real values are replaced by conditional means given one class, and other columns are standardized.
    """
    x, n = table.x.clone(), len(table.real)
    for part in single.parts(table.x):
        x[part.rows.unsqueeze(1), table.real] = single.means_given(table.x, part)[:, 0]
    off = x[:, table.real] - single.means
    for index, (block, field) in enumerate(zip(single.blocks, single.fields, strict=True)):
        moments, states = block.moments(Tilt(torch.zeros_like(field[0]), 0.0)), single.states_of(index, x)
        states.copy_(((states - moments.mean) / moments.variance.sqrt().clamp(min=0.1)).nan_to_num(0.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than classes
        k_means = KMeans(n_classes, n_init=N_PARTITIONS, random_state=seed)
        labels = k_means.fit(x.numpy(), sample_weight=table.weights.numpy()).labels_
    belongs = one_hot(torch.from_numpy(labels).long(), n_classes) * table.weights.unsqueeze(1)
    start = single.replace(
        log_weights=x.new_zeros(n_classes),
        means=single.means.expand(n_classes, n),
        fields=[torch.zeros_like(field).expand(n_classes, *field.shape[1:]) for field in single.fields],
    )
    statistics = expectations(single, table)._replace(belongs=belongs, shifts=belongs.T @ off)
    return maximized(start, table, statistics, shrinkage)


@torch.no_grad()
def expectations(mixture: Mixture, table: Table, groups: list[RowGroup] | None = None) -> Statistics:
    """Compute the class probabilities of each row and the expected moments of its Gaussian columns."""
    n = len(table.real)
    log_joint = table.x.new_empty((len(table.x), len(mixture.log_weights)))
    shifts, squares = torch.zeros_like(mixture.means), table.x.new_zeros(n * n)
    for part in mixture.parts(table.x, groups):
        log_joint[part.rows] = part.log_joint
        weights = table.weights[part.rows]
        belongs = part.log_joint.softmax(1) * weights.unsqueeze(1)
        off = mixture.means_given(table.x, part) - mixture.means
        shifts += torch.einsum("rk,rkn->kn", belongs, off)
        squares += ((belongs.unsqueeze(2) * off).flatten(0, 1).T @ off.flatten(0, 1)).flatten()
        if part.places.shape[1]:
            of_patterns = weights if len(part.places) > 1 else weights.sum().unsqueeze(0)
            pairs = part.places.unsqueeze(2) * n + part.places.unsqueeze(1)
            squares.index_add_(0, pairs.flatten(), (part.covariances[:, 0] * of_patterns.view(-1, 1, 1)).flatten())
    belongs = log_joint.softmax(1) * table.weights.unsqueeze(1)
    return Statistics(log_joint.logsumexp(1), belongs, shifts, squares.view(n, n))


def maximized(
    mixture: Mixture,
    table: Table,
    found: Statistics,
    shrinkage: float,
    smoothing: float = 1.0,
    width: float = LEAST_WIDTH,
) -> Mixture:
    """Return the mixture that maximizes the expected log-likelihood, up to shrinkage and smoothing."""
    counts = found.belongs.sum(0)
    total = counts.sum()
    log_shares = ((counts + smoothing) / (total + smoothing * len(counts))).log()
    # μ' = (Nμ + Σ(x − μ))/(N + s) and Σ' = Σ (x − μ')(x − μ')ᵀ/N
    one = len(counts) == 1
    pull = 0.0 if one else MEAN_SMOOTHING * smoothing
    means = (counts.unsqueeze(1) * mixture.means + found.shifts) / (counts + pull).clamp(min=1e-300).unsqueeze(1)
    moves = means - mixture.means
    cross = moves.T @ found.shifts
    within = (found.squares - cross - cross.T + (moves.T * counts) @ moves) / total
    if pull:
        within = within + pull / total * means.T @ means  # contribution of the pseudo-rows
    within = 0.5 * (within + within.T)
    within = (1 - shrinkage) * within + shrinkage * within.diagonal().diag()
    if not one and width:
        overall = within + ((counts / total) * means.T) @ means
        within = (1 - width) * within + width * overall
    within.diagonal().clamp_(min=LEAST_WIDTH)  # for constant columns
    fields = []
    for index, (block, field) in enumerate(zip(mixture.blocks, mixture.fields, strict=True)):
        x = mixture.states_of(index, table.x)
        missing = x.isnan()
        sums = torch.tensordot(found.belongs.T, torch.where(missing, 0.0, x), 1)
        seen = torch.tensordot(found.belongs.T, (~missing).to(x.dtype), 1)
        at_rest = block.moments(Tilt(torch.zeros_like(field[0]), 0.0)).mean
        fields.append(block.field_with_mean((sums + smoothing * at_rest) / (seen + smoothing)))
    return mixture.replace(log_weights=log_shares, means=means, covariances=within.unsqueeze(0), fields=fields)


# ----- cross-validation


class Selection(NamedTuple):
    """Parameters chosen by cross-validation.

    Attributes:
        shrinkage: Fraction by which correlations are shrunk toward 0.
        n_classes: Number of classes.
        width: Factor applied to the covariance, which corrects for few rows and for heavy tails.
    """

    shrinkage: float = SHRINKAGES[0]
    n_classes: int = 1
    width: float = 1.0


Folds = list[tuple[Table, Table]]  # training and held-out rows of each fold


def folds(table: Table, seed: int) -> Folds:
    """Return the training rows and the held-out rows of each fold."""
    splits = KFold(min(N_FOLDS, len(table.x)), shuffle=True, random_state=seed).split(table.x)
    return [(table.rows(torch.from_numpy(fitted)), table.rows(torch.from_numpy(others))) for fitted, others in splits]


@torch.no_grad()
def select(table: Table, candidates: list[int], seed: int, share_of_error: float = SHARE_OF_ERROR) -> Selection:
    """Choose the shrinkage, the number of classes and the width that best predict held-out rows.

    Args:
        table: Rows to fit.
        candidates: Candidate numbers of classes in increasing order, starting with 1.
        seed: Random seed for the folds and for k-means.
        share_of_error: Gain in standard errors below which fewer classes are preferred (default: 0.5).
    """
    if len(table.x) < 3:
        return Selection()
    parts = folds(table, seed)
    shrinkage = _best_shrinkage(parts) if len(table.real) > 1 else 0.0
    singles = [fit_classes(some, some.one_class(), shrinkage) for some, _ in parts]
    fits, gains = {1: singles}, {1: _best_width(singles, parts)}
    best, without_gain = 1, 0
    for n_classes in candidates[1:] if len(table.x) >= FEW_ROWS else ():
        fits[n_classes] = [
            fit_classes(some, split(single, some, n_classes, shrinkage, seed), shrinkage, COLD_STEPS)
            for (some, _), single in zip(parts, singles, strict=True)
        ]
        gains[n_classes] = _best_width(fits[n_classes], parts)
        without_gain = 0 if gains[n_classes][1].sum() > gains[best][1].sum() else without_gain + 1
        best = n_classes if without_gain == 0 else best
        if without_gain == PATIENCE:
            break
    n_classes = next(k for k in fits if _is_as_good(gains[k][1], gains[best][1], share_of_error))
    chosen, score = Selection(shrinkage, n_classes, gains[n_classes][0]), float(gains[n_classes][1].sum())
    warm = fits[n_classes]
    for factor in MORE_SHRINKAGE if n_classes > 1 and 0 < shrinkage < SHRINKAGES[0] else ():
        more = min(factor * shrinkage, 1.0)
        warm = [fit_classes(some, start, more, WARM_STEPS) for (some, _), start in zip(parts, warm, strict=True)]
        width, scores = _best_width(warm, parts)
        if float(scores.sum()) < score:
            break
        chosen, score = Selection(more, n_classes, width), float(scores.sum())
    return chosen


def fit_selected(table: Table, selection: Selection, seed: int) -> Mixture:
    """Fit a mixture with parameters chosen by cross-validation."""
    mixture = fit_classes(table, table.one_class(), selection.shrinkage)
    if selection.n_classes > 1:
        start = split(mixture, table, selection.n_classes, selection.shrinkage, seed)
        mixture = fit_classes(table, start, selection.shrinkage)
    return mixture.replace(covariances=selection.width * mixture.covariances)


def _best_shrinkage(parts: Folds) -> float:
    """Return the shrinkage that maximizes the held-out likelihood of a single class."""
    mixtures, totals = [some.one_class() for some, _ in parts], list[float]()
    for shrinkage in SHRINKAGES:
        mixtures = [
            fit_classes(some, start, shrinkage, WARM_STEPS) for (some, _), start in zip(parts, mixtures, strict=True)
        ]
        scores = [
            float(others.weights @ mixture.log_density(others.x))
            for mixture, (_, others) in zip(mixtures, parts, strict=True)
        ]
        totals.append(sum(scores))
        if len(totals) > PATIENCE and max(totals[-PATIENCE:]) < max(totals[:-PATIENCE]):
            break
    return SHRINKAGES[totals.index(max(totals))]


def _best_width(fits: list[Mixture], parts: Folds) -> tuple[float, Tensor]:
    """Return the width that maximizes the held-out likelihood, and the weighted log-likelihoods of held-out rows."""
    scores = []
    for width in WIDTHS if len(fits[0].real) else WIDTHS[:1]:
        wider = [fit.replace(covariances=width * fit.covariances) for fit in fits]
        of_folds = [others.weights * fit.log_density(others.x) for fit, (_, others) in zip(wider, parts, strict=True)]
        scores.append(torch.cat(of_folds))
    best = int(torch.stack(scores).sum(1).argmax())
    return WIDTHS[best], scores[best]


def _is_as_good(scores: Tensor, best: Tensor, share_of_error: float) -> bool:
    """Return whether the difference between two scores is small compared with its standard error."""
    loss = best - scores
    return float(loss.sum()) <= share_of_error * float(loss.std()) * math.sqrt(len(loss))


# ----- the machine


class TableFit(NamedTuple):
    """Machine fitted to a table, in float64 and in the units of the data, with notes on the data, one line each."""

    machine: BoltzmannMachine
    notes: list[str]


def fit_table(
    x: Rows, n_hidden: int, seed: int = 0, weights: Tensor | None = None, units: Units | None = None
) -> TableFit:  # (N, n)
    """Fit a machine to the rows of a table.

    Args:
        x: Rows of real numbers on any scale, shape (N, n). Columns may be constant or collinear. NaN marks missing
            values, and rows without any value are ignored. Categorical columns are one-hot, with NaN in all components
            of a missing value. At most 20,000 evenly spaced rows are fitted, and 1,000 of them determine the number of
            classes, the shrinkage, the width and the spike-and-slab units.
        n_hidden: Maximum number of classes. For complete tables of numbers, number of hidden units besides one per
            column: at most 8 spike-and-slab units are fitted, and the rest have zero weights.
        seed: Random seed for the initial weights, the classes and the folds (default: 0).
        weights: Row weights, shape (N,); 1 by default. A row of weight 2 counts as two rows.
        units: Visible units of the columns, such as `Mixed([Gaussian(3), Binary(2)])` (default: `Gaussian`).

    Raises:
        ValueError: If all values of a column are missing.

    Example:
        >>> import torch
        >>> from tapmachine.tables.fit import fit_table
        >>> x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 100.0, 0.01])
        >>> fit_table(x, 3).machine.summary()
        '3 Gaussian – 6 Mixed'
    """
    n_rows, x = len(x), spaced(x, MOST_ROWS).detach().double().cpu()
    weights = None if weights is None else spaced(weights.unsqueeze(1), MOST_ROWS).flatten()
    is_plain = units is None or is_real(units)
    has_slabs = is_plain and not bool(x.isnan().any())
    table = Table.of(x, Gaussian(x.shape[1]) if units is None else units, weights)
    some = table.rows(spaced(torch.arange(len(table.x)), SELECTION_ROWS))
    most = min(n_hidden - 1, MOST_WITH_SLABS) if has_slabs else n_hidden
    most = min(most, len(some.x) // ROWS_PER_CLASS)
    share = WITH_SLABS if has_slabs else SHARE_OF_ERROR
    selection = select(some, [k for k in CLASSES if k <= max(1, most)], seed, share)
    mixture = fit_selected(table, selection, seed)
    notes = _notes(table, selection) if has_slabs else []
    notes += [f"{selection.n_classes} classes"] if selection.n_classes > 1 else []
    if len(x) < n_rows:
        notes.append(f"fitted to {len(x)} evenly spaced rows of {n_rows}")
    if len(some.x) < len(table.x):
        notes.append(f"classes and shrinkage chosen for {len(some.x)} of these rows")
    if is_plain and not has_slabs:
        notes.append("no spike-and-slab units for heavy tails, because values are missing")
    slabs = None
    if has_slabs:
        n_steps = 0
        if len(table.x) >= FEW_ROWS:
            parts = [
                (fit_selected(fold, selection, seed), (fold.x, fold.weights), (others.x, others.weights))
                for fold, others in folds(some, seed)
            ]
            n_steps = best_n_steps(parts, n_hidden, seed)
        slabs = SlabFit(mixture, n_hidden, seed, MOST_SLABS if n_steps else 0)
        slabs.fit(some.x, some.weights, n_steps)
    return TableFit(machine_of(mixture, table, slabs), notes)


def _notes(table: Table, selection: Selection) -> list[str]:
    """Describe constant and collinear columns, and correlations that few rows do not determine."""
    x, notes = table.x, []
    constant = (x.amin(0) == x.amax(0)).nonzero().flatten().tolist()
    if constant:
        notes.append(f"constant columns: {', '.join(map(str, constant[:5]))}{', …' if len(constant) > 5 else ''}")
    if len(x) <= x.shape[1]:
        notes.append(f"{len(x)} rows for {x.shape[1]} columns: correlations shrunk by {selection.shrinkage:.0%}")
    elif float(torch.linalg.eigvalsh((x.T @ x / len(x)).fill_diagonal_(1.0))[0]) < COLLINEAR:
        notes.append("some columns are linear combinations of others")
    return notes


@torch.no_grad()
def machine_of(mixture: Mixture, table: Table, slabs: SlabFit | None = None) -> BoltzmannMachine:
    """Return the machine of a mixture of latent classes, in the units of the data and in float64.

    The constant ln Z is 0, up to the normalization of the hidden priors. The hidden layer has one `Gaussian` unit per
    real column, which models the correlations, followed by the spike-and-slab units, if any, and a `Categorical` unit
    for the classes.
    """
    if slabs is not None:
        whitened, transform, shift = slabs.machine()
        return in_coordinates(whitened, table.deviation.unsqueeze(1) * transform, table.mean + table.deviation * shift)
    n_classes = max(2, len(mixture.log_weights))  # a single class is represented by two equal classes
    log_shares, means = mixture.log_weights, mixture.means
    fields = [field.flatten(1) for field in mixture.fields]
    of_others = [b.log_partition(Tilt(f, 0.0)).sum(1) for b, f in zip(mixture.blocks, mixture.fields, strict=True)]
    if len(log_shares) < n_classes:
        log_shares, means, *fields = (z.repeat(2, *[1] * (z.dim() - 1)) for z in (log_shares, means, *fields))
        of_others = [z.repeat(2) for z in of_others]
    for z in of_others:
        log_shares = log_shares - z
    hidden: Units = Categorical(1, n_classes, field=log_shares.unsqueeze(0))
    n_real, blocks = len(table.real), [block for block, _ in table.blocks]
    weights = torch.zeros(table.x.shape[1], n_real + n_classes, dtype=torch.float64)
    if n_real:
        lower = torch.linalg.cholesky(mixture.covariances[0])
        centers = torch.linalg.solve_triangular(lower, means.T, upper=False)
        hidden = Categorical(1, n_classes, field=(log_shares - 0.5 * (centers**2).sum(0)).unsqueeze(0))
        independent = rbm(Gaussian(n_real, field=torch.zeros(n_real, dtype=torch.float64)), hidden, centers)
        real = in_coordinates(independent, table.deviation.unsqueeze(1) * lower, table.mean)
        weights[table.real] = real.weights[0]
        columns, hidden = real.layers[0], real.layers[1]
        assert isinstance(columns, Gaussian)
        first = 0
        for index, block in enumerate(blocks):
            if is_real(block):
                some = slice(first, first + block.n)
                blocks[index] = Gaussian(block.n, columns.field[some], columns.precision[some])
                first = some.stop
    for block, place, field in zip(mixture.blocks, mixture.places, fields, strict=True):
        weights[place : place + math.prod(block.state_shape), n_real:] = field.T
    visible = Mixed(blocks) if len(blocks) > 1 or not is_real(blocks[0]) else blocks[0]
    return rbm(visible, hidden, weights)
