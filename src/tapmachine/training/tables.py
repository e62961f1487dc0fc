"""Where the training of real-valued tables starts: the maximum likelihood of a small machine, found exactly.

Columns of tables differ in scale and are correlated, many of them strongly, and have heavy tails. In the
coordinates of the columns a machine for them is so stiff that gradient steps crawl. The start is therefore found in
whitened coordinates z, where the covariance is the identity, in three steps:

1. The covariance is shrunk toward its diagonal by as much as cross-validation asks for.
2. A few spike-and-slab hidden units are fitted with ln Z summed over all sets of active units. With weights w_j, the
   visible units have the precision matrix q + Σ_j w_j w_jᵀ if all units are inactive, and an active unit takes its term
   out, so that Z is finite for all weights. Cross-validation, with the whitening inside, determines when to stop.
3. The coordinates are changed once more, to those in which that precision matrix is the identity.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from tapmachine.data.rows import spaced
from tapmachine.likelihood.slabs import active_sets_log_partition
from tapmachine.machine import BoltzmannMachine, rbm
from tapmachine.units import Gaussian, SpikeSlab

MOST_SLABS = 8  # hidden units that the start fits; the sum has 2^8 terms
SHRINKAGES = (1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 0.03, 0.1, 0.2, 0.4, 0.7)
N_FOLDS = 5
FEW_ROWS = 20  # with fewer, the start is a Gaussian
MOST_ROWS = 20_000  # for the covariance
FITTED_ROWS = 1000  # for the slabs
MOST_STEPS, EVERY = 400, 10  # of the fit, and between two looks at the rows left out
LEARNING_RATE = 0.02
INITIAL_SPREAD = 0.2  # length of the initial weights of a unit
INITIAL_ODDS = -1.0  # log-odds of an active unit
LOG_2PI = math.log(2 * math.pi)


class TableStart(NamedTuple):
    """A machine for real-valued rows x = shift + transform·z, with mean 0 and variance 1 of its visible units z.

    Attributes:
        machine: `Gaussian` visible and `SpikeSlab` hidden units, in float64.
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
        n_hidden: Number of hidden units. The first few, at most 8, are fitted; the others have no weights yet.
        seed: Random seed of the initial weights and of the folds.

    Example:
        >>> import torch
        >>> from tapmachine.training.tables import start_for_table
        >>> x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 100.0, 0.01])
        >>> start_for_table(x, 16).machine.summary()
        '3 Gaussian – 16 SpikeSlab'
    """
    x = spaced(x, MOST_ROWS).detach().double().cpu()
    shrinkage = _best_shrinkage(x, seed)
    columns = _Columns.of(x, shrinkage)
    n, n_slabs = x.shape[1], min(n_hidden, MOST_SLABS)
    slabs = _Slabs(n, n_slabs, seed)
    n_steps = 0 if len(x) < FEW_ROWS else _best_n_steps(spaced(x, FITTED_ROWS), shrinkage, n_slabs, seed)
    slabs.fit(columns.whitened(spaced(x, FITTED_ROWS)), n_steps)
    if n_steps == 0:
        slabs = _Slabs(n, 0, seed)
    machine, transform, shift = slabs.machine(n_hidden)
    notes = columns.notes(len(x), shrinkage)
    return TableStart(machine, columns.transform @ transform, columns.mean + columns.transform @ shift, notes)


class _Columns(NamedTuple):
    """The Gaussian of a table: x = mean + transform·z."""

    mean: Tensor
    deviation: Tensor
    transform: Tensor  # lower triangular
    constant: Tensor
    smallest: float  # eigenvalue of the correlations

    @staticmethod
    def of(x: Tensor, shrinkage: float) -> "_Columns":
        units = Gaussian(x.shape[1]).double().fit_to(x)
        mean, deviation = x.mean(0), units.precision.detach().rsqrt()
        correlations = _correlations((x - mean) / deviation)
        shrunk = (1 - shrinkage) * correlations + shrinkage * torch.eye(len(mean), dtype=x.dtype)
        transform = deviation.unsqueeze(1) * torch.linalg.cholesky(shrunk)
        smallest = float(torch.linalg.eigvalsh(correlations)[0])
        return _Columns(mean, deviation, transform, x.amin(0) == x.amax(0), smallest)

    def whitened(self, x: Tensor) -> Tensor:
        z: Tensor = torch.linalg.solve_triangular(self.transform.T, x - self.mean, upper=True, left=False)
        return z

    def log_density(self, z: Tensor) -> Tensor:  # (N, n) -> (N,)
        return -0.5 * (z**2).sum(1) - 0.5 * z.shape[1] * LOG_2PI - self.log_volume

    @property
    def log_volume(self) -> Tensor:
        return self.transform.diagonal().log().sum()

    def notes(self, n_rows: int, shrinkage: float) -> list[str]:
        notes = []
        constant = self.constant.nonzero().flatten().tolist()
        if constant:
            some = ", ".join(map(str, constant[:5])) + (", …" if len(constant) > 5 else "")
            notes.append(f"constant columns: {some}")
        if n_rows <= len(self.mean):
            notes.append(f"{n_rows} rows for {len(self.mean)} columns: correlations shrunk by {shrinkage:.0%}")
        elif self.smallest < SHRINKAGES[0]:
            notes.append("some columns are linear combinations of others")
        return notes


def _correlations(z: Tensor) -> Tensor:
    """Of columns with mean 0 and variance 1; 1 on the diagonal, also for those that are constant."""
    return (z.T @ z / len(z)).fill_diagonal_(1.0)


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
            columns = _Columns.of(x[fitted], shrinkage)
            totals[index] += columns.log_density(columns.whitened(x[left_out])).sum()
    return SHRINKAGES[int(totals.argmax())]


def _best_n_steps(x: Tensor, shrinkage: float, n_slabs: int, seed: int) -> int:
    """The number of steps with the highest likelihood of rows left out; 0 if it is no better than the Gaussian's."""
    gains = []  # over the Gaussian, of each row left out, after 0, EVERY, … steps
    for fitted, left_out in _folds(len(x), seed):
        columns = _Columns.of(x[fitted], shrinkage)
        z = columns.whitened(x[left_out])
        curve = _Slabs(x.shape[1], n_slabs, seed).fit(columns.whitened(x[fitted]), MOST_STEPS, z)
        gains.append(curve - columns.log_density(z) - columns.log_volume)
    gain = torch.cat(gains, 1)  # (looks, N)
    best = int(gain.mean(1).argmax())
    error = gain[best].std() / len(x) ** 0.5
    return best * EVERY if float(gain[best].mean()) > float(error) else 0


class _Slabs:
    """Spike-and-slab units above whitened Gaussian ones: weights w_j, and the precision matrix q + Σ_j w_j w_jᵀ.

    With B_j = w_j·(z − m), P(z) ∝ N(z; m, (q + WWᵀ)⁻¹) Π_j (1 + e^{r_j} ∫ exp((B_j + U_j)h − ½h²) dh).
    """

    def __init__(self, n: int, n_slabs: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        weights = torch.randn(n, n_slabs, generator=generator, dtype=torch.float64)
        self.weights = INITIAL_SPREAD / n**0.5 * weights
        self.mean, self.log_q = (torch.zeros(size, dtype=torch.float64) for size in (n, 1))
        self.field = torch.zeros(n_slabs, dtype=torch.float64)
        self.log_odds = torch.full_like(self.field, INITIAL_ODDS - 0.5 * LOG_2PI)
        self.parameters = [self.weights, self.mean, self.log_q, self.field, self.log_odds]

    def log_density(self, z: Tensor) -> Tensor:  # (N, n) -> (N,)
        n, n_slabs = self.weights.shape
        q, y = self.log_q.exp(), z - self.mean
        sent = y @ self.weights
        inner = q * torch.eye(n_slabs, dtype=z.dtype) + self.weights.T @ self.weights
        log_det = (n - n_slabs) * self.log_q + torch.logdet(inner)
        gaussian = 0.5 * (log_det - n * LOG_2PI - q * (y**2).sum(1) - (sent**2).sum(1))
        of_hidden = softplus(self.log_odds + 0.5 * (sent + self.field) ** 2 + 0.5 * LOG_2PI).sum(1)
        # In the coordinates in which the precision matrix is the identity, WᵀW is 1 − q/(q + WᵀW).
        overlaps = torch.eye(n_slabs, dtype=z.dtype) - q * torch.linalg.inv(inner)
        ones = torch.ones_like(self.field)
        log_partition = active_sets_log_partition(overlaps, self.field, self.log_odds, ones)
        log_density: Tensor = gaussian + of_hidden - log_partition
        return log_density

    def fit(self, z: Tensor, n_steps: int, left_out: Tensor | None = None) -> Tensor:  # -> (looks, N of left_out)
        """Ascend the likelihood; return the log-densities of rows left out, every so many steps."""
        curve = []
        optimizer = torch.optim.Adam([p.requires_grad_() for p in self.parameters], LEARNING_RATE)
        for step in range(n_steps + 1):
            if left_out is not None and step % EVERY == 0:
                with torch.no_grad():
                    curve.append(self.log_density(left_out))
            if step < n_steps:
                optimizer.zero_grad()
                (-self.log_density(z).mean()).backward()
                optimizer.step()
        return torch.stack(curve) if curve else torch.empty(0)

    @torch.no_grad()
    def machine(self, n_hidden: int) -> tuple[BoltzmannMachine, Tensor, Tensor]:
        """The machine in the coordinates y with z = shift + transform·y and precision matrix 1, and these two."""
        n, n_slabs = self.weights.shape
        precision = self.log_q.exp() * torch.eye(n, dtype=torch.float64) + self.weights @ self.weights.T
        lower = torch.linalg.cholesky(precision)
        hidden = SpikeSlab(n_hidden, active_probability=torch.tensor(0.5, dtype=torch.float64))
        hidden.log_odds.fill_(INITIAL_ODDS - 0.5 * LOG_2PI)
        hidden.log_odds[:n_slabs] = self.log_odds
        hidden.field[:n_slabs] = self.field
        weights = torch.zeros(n, n_hidden, dtype=torch.float64)
        weights[:, :n_slabs] = torch.linalg.solve_triangular(lower, self.weights, upper=False)
        machine = rbm(Gaussian(n, field=torch.zeros(n, dtype=torch.float64)), hidden, weights)
        return machine, torch.linalg.inv(lower).T, self.mean.detach()
