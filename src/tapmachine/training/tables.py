"""Where the training of real-valued tables starts: the maximum likelihood of a small machine, found exactly.

Columns of tables differ in scale and are correlated, many of them strongly; rows form clusters and have heavy tails. In
the coordinates of the columns a machine for them is so stiff that gradient steps crawl. The start is therefore found in
whitened coordinates y, where the covariance is the identity, in four steps:

1. The covariance is shrunk toward its diagonal by as much as cross-validation asks for.
2. A mixture of Gaussians with one covariance is fitted by expectation maximization: a machine with one categorical
   hidden unit, each state of which moves the mean of the visible units. Cross-validation determines the number of
   clusters. The coordinates are then changed to those in which the covariance of the clusters is the identity.
3. A few spike-and-slab hidden units are fitted with ln Z summed over all sets of active units. With weights w_j, the
   visible units have the precision matrix q + Σ_j w_j w_jᵀ if all units are inactive, and an active unit takes its term
   out, so that Z is finite for all weights. Cross-validation, with the whitening inside, determines when to stop.
4. The coordinates are changed once more, to those in which that precision matrix is the identity.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot, softplus

from tapmachine.data.rows import spaced
from tapmachine.likelihood.slabs import active_sets_log_partition
from tapmachine.machine import BoltzmannMachine, rbm
from tapmachine.units import Categorical, Gaussian, Mixed, SpikeSlab, Units

MOST_SLABS = 8  # hidden units that the start fits; the sum has 2^8 terms
CLUSTERS = (2, 3, 4, 6, 8)  # numbers of clusters to choose from, besides 1
SHRINKAGES = (1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 0.03, 0.1, 0.2, 0.4, 0.7)
N_FOLDS = 5
FEW_ROWS = 20  # with fewer, the start is a Gaussian
MOST_ROWS = 20_000  # for the covariance
FITTED_ROWS = 1000  # for the clusters and the slabs
N_PARTITIONS, PARTITION_STEPS, MIXTURE_STEPS = 5, 20, 20  # k-means from several starts, then expectation maximization
WIDTH = 0.01  # least variance of clusters, relative to that of all rows: a column of few values is no density otherwise
MOST_STEPS, EVERY = 400, 10  # of the fit, and between two evaluations on the rows left out
LEARNING_RATE = 0.02
INITIAL_SPREAD = 0.2  # length of the initial weights of a unit
INITIAL_ODDS = -1.0  # log-odds of an active unit
LOG_2PI = math.log(2 * math.pi)


class TableStart(NamedTuple):
    """A machine for real-valued rows x = shift + transform·z, with mean 0 and variance 1 of its visible units z.

    Attributes:
        machine: `Gaussian` visible and `SpikeSlab` hidden units, with a `Categorical` one for clusters; in float64.
        transform: (n, n).
        shift: (n,).
        notes: What was noticed about the data, one line each.
    """

    machine: BoltzmannMachine
    transform: Tensor
    shift: Tensor
    notes: list[str]


def start_for_table(x: Tensor, n_hidden: int, seed: int = 0) -> TableStart:  # (N, n)
    """Fit the start of a machine to the rows of a table.

    Args:
        x: Rows of real numbers, on any scales; constant and collinear columns are fine.
        n_hidden: Number of hidden units, which includes one for each cluster. Of the others the first few, at most 8,
            are fitted; the remaining ones have no weights yet.
        seed: Random seed of the initial weights, of the clusters and of the folds.

    Example:
        >>> import torch
        >>> from tapmachine.training.tables import start_for_table
        >>> x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 100.0, 0.01])
        >>> start_for_table(x, 16).machine.summary()
        '3 Gaussian – 16 SpikeSlab'
    """
    x = spaced(x, MOST_ROWS).detach().double().cpu()
    some = spaced(x, FITTED_ROWS)
    shrinkage = _best_shrinkage(x, seed)
    columns = _Columns.of(x, shrinkage)
    n_clusters, n_steps = 1, 0
    if len(x) >= FEW_ROWS:
        n_clusters = _best_n_clusters(some, shrinkage, [k for k in CLUSTERS if k < n_hidden], seed)
        n_slabs = min(n_hidden - (n_clusters if n_clusters > 1 else 0), MOST_SLABS)
        n_steps = _best_n_steps(some, shrinkage, n_clusters, n_slabs, seed)
    clusters = _Clusters.of(columns, some, n_clusters, seed)
    slabs = _Slabs(clusters, n_slabs if n_steps else 0, seed)
    slabs.fit(clusters.whitened(some), n_steps)
    machine, transform, shift = slabs.machine(n_hidden)
    notes = columns.notes(len(x)) + ([f"{n_clusters} clusters"] if n_clusters > 1 else [])
    return TableStart(machine, clusters.transform @ transform, clusters.mean + clusters.transform @ shift, notes)


class _Columns(NamedTuple):
    """The Gaussian of a table: x = mean + deviation·u, with correlations of u that are shrunk toward 0."""

    mean: Tensor
    deviation: Tensor
    correlations: Tensor
    shrinkage: float
    constant: Tensor
    smallest: float  # eigenvalue of the correlations before they are shrunk

    @staticmethod
    def of(x: Tensor, shrinkage: float) -> "_Columns":
        units = Gaussian(x.shape[1]).double().fit_to(x)
        mean, deviation = x.mean(0), units.precision.detach().rsqrt()
        u = (x - mean) / deviation
        correlations = (u.T @ u / len(u)).fill_diagonal_(1.0)  # 1 also for columns that are constant
        smallest = float(torch.linalg.eigvalsh(correlations)[0])
        return _Columns(mean, deviation, _shrunk(correlations, shrinkage), shrinkage, x.amin(0) == x.amax(0), smallest)

    def standardized(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.deviation

    def notes(self, n_rows: int) -> list[str]:
        notes = []
        constant = self.constant.nonzero().flatten().tolist()
        if constant:
            some = ", ".join(map(str, constant[:5])) + (", …" if len(constant) > 5 else "")
            notes.append(f"constant columns: {some}")
        if n_rows <= len(self.mean):
            notes.append(f"{n_rows} rows for {len(self.mean)} columns: correlations shrunk by {self.shrinkage:.0%}")
        elif self.smallest < SHRINKAGES[0]:
            notes.append("some columns are linear combinations of others")
        return notes


def _shrunk(covariance: Tensor, shrinkage: float) -> Tensor:
    """A covariance matrix with its off-diagonal entries reduced by a share."""
    return (1 - shrinkage) * covariance + shrinkage * covariance.diagonal().diag()


def _folds(n_rows: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Rows to fit to and rows left out, of each fold."""
    fold = torch.randperm(n_rows, generator=torch.Generator().manual_seed(seed)) % min(N_FOLDS, n_rows)
    return [((fold != k).nonzero().flatten(), (fold == k).nonzero().flatten()) for k in range(int(fold.max()) + 1)]


def _best_shrinkage(x: Tensor, seed: int) -> float:
    """The share of the diagonal in the correlations with the highest likelihood of rows left out."""
    if len(x) < 3:
        return SHRINKAGES[-1]
    totals = torch.zeros(len(SHRINKAGES), dtype=x.dtype)
    for fitted, left_out in _folds(len(x), seed):
        for index, shrinkage in enumerate(SHRINKAGES):
            gaussian = _Clusters.of(_Columns.of(x[fitted], shrinkage), x[fitted], 1, seed)
            totals[index] += gaussian.log_density(x[left_out]).sum()
    return SHRINKAGES[int(totals.argmax())]


def _best_n_clusters(x: Tensor, shrinkage: float, candidates: list[int], seed: int) -> int:
    """The number of clusters with the highest likelihood of rows left out; 1 if it is no better than the Gaussian's."""
    gains = []  # over the Gaussian, of each row left out
    for fitted, left_out in _folds(len(x), seed):
        columns = _Columns.of(x[fitted], shrinkage)
        scores = [_Clusters.of(columns, x[fitted], k, seed).log_density(x[left_out]) for k in (1, *candidates)]
        gains.append(torch.stack(scores) - scores[0])
    return (1, *candidates)[_significantly_best(torch.cat(gains, 1))]


def _best_n_steps(x: Tensor, shrinkage: float, n_clusters: int, n_slabs: int, seed: int) -> int:
    """The number of steps with the highest likelihood of rows left out; 0 if it is no better than without slabs."""
    gains = []  # over the mixture, of each row left out, after 0, EVERY, … steps
    for fitted, left_out in _folds(len(x), seed):
        columns = _Columns.of(x[fitted], shrinkage)
        clusters = _Clusters.of(columns, x[fitted], n_clusters, seed)
        y = clusters.whitened(x[left_out])
        curve = _Slabs(clusters, n_slabs, seed).fit(clusters.whitened(x[fitted]), MOST_STEPS, y)
        gains.append(curve - clusters.log_joint(y).logsumexp(1))
    return EVERY * _significantly_best(torch.cat(gains, 1))


def _significantly_best(gain: Tensor) -> int:  # (candidates, N)
    """The candidate with the highest mean gain; 0 if that is within its standard error of 0."""
    best = int(gain.mean(1).argmax())
    error = gain[best].std() / gain.shape[1] ** 0.5
    return best if float(gain[best].mean()) > float(error) else 0


class _Clusters(NamedTuple):
    """A mixture of Gaussians with one covariance, for x = mean + transform·y: Σ_k share_k N(y; center_k, 1)."""

    centers: Tensor  # (n, K)
    shares: Tensor  # (K,)
    mean: Tensor
    transform: Tensor  # (n, n), lower triangular

    @staticmethod
    def of(columns: _Columns, x: Tensor, n_clusters: int, seed: int) -> "_Clusters":
        """Fit it by expectation maximization, from clusters by k-means; a single one is the Gaussian of the columns."""
        if n_clusters == 1:
            transform = columns.deviation.unsqueeze(1) * torch.linalg.cholesky(columns.correlations)
            return _Clusters(torch.zeros_like(x[:1].T), torch.ones_like(x[0, :1]), columns.mean, transform)
        u = columns.standardized(x)
        belongs = _k_means(u, n_clusters, seed)
        for _ in range(MIXTURE_STEPS):
            shares = (belongs.sum(0) + 1) / (len(u) + n_clusters)
            means = (belongs.T @ u) / belongs.sum(0).clamp(min=1.0).unsqueeze(1)
            within = _shrunk((u.T @ u - (means.T * belongs.sum(0)) @ means) / len(u), columns.shrinkage)
            lower = torch.linalg.cholesky((1 - WIDTH) * within + WIDTH * columns.correlations)
            centers = torch.linalg.solve_triangular(lower, means.T, upper=False)
            clusters = _Clusters(centers, shares, columns.mean, columns.deviation.unsqueeze(1) * lower)
            belongs = clusters.log_joint(clusters.whitened(x)).softmax(1)
        return clusters

    def whitened(self, x: Tensor) -> Tensor:
        y: Tensor = torch.linalg.solve_triangular(self.transform.T, x - self.mean, upper=True, left=False)
        return y

    def log_joint(self, y: Tensor) -> Tensor:  # (N, n) -> (N, K)
        """ln P(y, k)."""
        distances = (y.unsqueeze(2) - self.centers).square().sum(1)
        return self.shares.log() - 0.5 * distances - 0.5 * y.shape[1] * LOG_2PI

    def log_density(self, x: Tensor) -> Tensor:  # (N, n) -> (N,)
        return self.log_joint(self.whitened(x)).logsumexp(1) - self.transform.diagonal().log().sum()


def _k_means(x: Tensor, k: int, seed: int) -> Tensor:  # (N, k)
    """The cluster of each row, one-hot: the best of a few runs of k-means from random rows."""
    generator, results = torch.Generator().manual_seed(seed), []
    for _ in range(N_PARTITIONS):
        means = x[torch.randperm(len(x), generator=generator)[:k]]
        for _ in range(PARTITION_STEPS):
            belongs = one_hot(torch.cdist(x, means).argmin(1), k).to(x.dtype)
            means = torch.where(belongs.any(0).unsqueeze(1), belongs.T @ x / belongs.sum(0).unsqueeze(1), means)
        results.append((float((x - belongs @ means).square().sum()), belongs))
    return min(results, key=lambda result: result[0])[1]


class _Slabs:
    """Spike-and-slab units above whitened Gaussian ones: weights w_j, and the precision matrix q + Σ_j w_j w_jᵀ.

    With B_j = w_j·(y − m) and clusters of centers b_k,
    P(y) ∝ N(y; m, (q + WWᵀ)⁻¹) Σ_k e^{a_k + b_k·(y − m)} Π_j (1 + e^{r_j} ∫ exp((B_j + U_j)h − ½h²) dh).
    """

    def __init__(self, clusters: _Clusters, n_slabs: int, seed: int) -> None:
        generator, n = torch.Generator().manual_seed(seed), len(clusters.centers)
        weights = torch.randn(n, n_slabs, generator=generator, dtype=torch.float64)
        self.weights = INITIAL_SPREAD / n**0.5 * weights
        self.mean, self.log_q = (torch.zeros(size, dtype=torch.float64) for size in (n, 1))
        self.field = torch.zeros(n_slabs, dtype=torch.float64)
        self.log_odds = torch.full_like(self.field, INITIAL_ODDS - 0.5 * LOG_2PI)
        self.centers = clusters.centers.clone()
        self.log_shares = clusters.shares.log() - 0.5 * (clusters.centers**2).sum(0)
        self.parameters = [self.weights, self.mean, self.log_q, self.field, self.log_odds]
        if len(self.log_shares) > 1:
            self.parameters += [self.centers, self.log_shares]

    def log_density(self, y: Tensor) -> Tensor:  # (N, n) -> (N,)
        n, n_slabs = self.weights.shape
        q, y = self.log_q.exp(), y - self.mean
        sent = y @ self.weights
        inner = q * torch.eye(n_slabs, dtype=y.dtype) + self.weights.T @ self.weights
        log_det = (n - n_slabs) * self.log_q + torch.logdet(inner)
        gaussian = 0.5 * (log_det - n * LOG_2PI - q * (y**2).sum(1) - (sent**2).sum(1))
        of_clusters = (self.log_shares + y @ self.centers).logsumexp(1)
        of_slabs = softplus(self.log_odds + 0.5 * (sent + self.field) ** 2 + 0.5 * LOG_2PI).sum(1)
        log_density: Tensor = gaussian + of_clusters + of_slabs - self._log_partition(q, inner)
        return log_density

    def _log_partition(self, q: Tensor, inner: Tensor) -> Tensor:
        """ln Z relative to the Gaussian, in the coordinates in which its precision matrix is the identity.

        There, WᵀW is 1 − q/(q + WᵀW), Wᵀb is (q + WᵀW)⁻¹Wᵀb, and b² is (b² − bᵀW(q + WᵀW)⁻¹Wᵀb)/q.
        """
        inverse, sent = torch.linalg.inv(inner), self.weights.T @ self.centers
        overlaps = torch.eye(len(inner), dtype=inner.dtype) - q * inverse
        squares = ((self.centers**2).sum(0) - (sent * (inverse @ sent)).sum(0)) / q
        field, ones = self.field + (inverse @ sent).T, torch.ones_like(self.field)
        of_sets = active_sets_log_partition(overlaps, field, self.log_odds, ones)
        log_partition: Tensor = (self.log_shares + 0.5 * squares + of_sets).logsumexp(0)
        return log_partition

    def fit(self, y: Tensor, n_steps: int, left_out: Tensor | None = None) -> Tensor:  # -> (evaluations, N of left_out)
        """Ascend the likelihood; return the log-densities of rows left out, every so many steps."""
        curve = []
        optimizer = torch.optim.Adam([p.requires_grad_() for p in self.parameters], LEARNING_RATE)
        for step in range(n_steps + 1):
            if left_out is not None and step % EVERY == 0:
                with torch.no_grad():
                    curve.append(self.log_density(left_out))
            if step < n_steps:
                optimizer.zero_grad()
                (-self.log_density(y).mean()).backward()
                optimizer.step()
        return torch.stack(curve) if curve else torch.empty(0)

    @torch.no_grad()
    def machine(self, n_hidden: int) -> tuple[BoltzmannMachine, Tensor, Tensor]:
        """The machine in the coordinates u with y = shift + transform·u and precision matrix 1, and these two."""
        n, n_slabs = self.weights.shape
        n_clusters = len(self.log_shares) if len(self.log_shares) > 1 else 0
        precision = self.log_q.exp() * torch.eye(n, dtype=torch.float64) + self.weights @ self.weights.T
        lower = torch.linalg.cholesky(precision)
        slabs = SpikeSlab(n_hidden - n_clusters, active_probability=torch.tensor(0.5, dtype=torch.float64))
        slabs.log_odds.fill_(INITIAL_ODDS - 0.5 * LOG_2PI)
        slabs.log_odds[:n_slabs] = self.log_odds
        slabs.field[:n_slabs] = self.field
        hidden: Units = slabs
        weights = torch.zeros(n, n_hidden, dtype=torch.float64)
        weights[:, :n_slabs] = torch.linalg.solve_triangular(lower, self.weights, upper=False)
        if n_clusters:
            weights[:, -n_clusters:] = torch.linalg.solve_triangular(lower, self.centers, upper=False)
            hidden = Mixed([slabs, Categorical(1, n_clusters, self.log_shares.unsqueeze(0))])
        machine = rbm(Gaussian(n, field=torch.zeros(n, dtype=torch.float64)), hidden, weights)
        return machine, torch.linalg.inv(lower).T, self.mean.detach()
