"""Spike-and-slab units above whitened Gaussian units, fitted with ln Z summed over all sets of active units."""

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from tapmachine.exact import Mixture
from tapmachine.exact.gaussian import active_sets_log_partition
from tapmachine.machine import BoltzmannMachine, rbm
from tapmachine.units import Categorical, Gaussian, Mixed, SpikeSlab, Units

LOG_2PI = math.log(2 * math.pi)
MOST_SLABS = 8  # maximum number of fitted hidden units; the sum has 2^8 terms
MOST_STEPS, EVERY = 400, 10  # maximum number of steps, and steps between evaluations on held-out rows
LEARNING_RATE = 0.02
INITIAL_SPREAD = 0.2  # length of the initial weights of a unit
INITIAL_ODDS = -1.0  # log-odds of an active unit

WeightedRows = tuple[Tensor, Tensor]  # rows of shape (N, n) and their weights of shape (N,)


def best_n_steps(parts: list[tuple[Mixture, WeightedRows, WeightedRows]], n_hidden: int, seed: int) -> int:
    """Return the number of training steps that maximizes the held-out likelihood, or 0 if slabs do not increase it.

    Args:
        parts: For each fold, the mixture fitted to it, its rows and the held-out rows, with their weights.
        n_hidden: Number of hidden units beside those that model the correlations.
        seed: Random seed for the initial weights.
    """
    gains = []  # gains over the mixture for each held-out row, after 0, EVERY, … steps
    for mixture, fitted, left_out in parts:
        slabs = SlabFit(mixture, n_hidden, seed)
        if not slabs.n_slabs:
            return 0
        curve = slabs.fit(*fitted, MOST_STEPS, left_out[0])
        gains.append(left_out[1] * (curve - (mixture.log_density(left_out[0]) + slabs.log_volume)))
    gain = torch.cat(gains, 1)
    best = int(gain.mean(1).argmax())
    error = gain[best].std() / gain.shape[1] ** 0.5
    return EVERY * best if float(gain[best].mean()) > float(error) else 0


class SlabFit:
    """Spike-and-slab units above whitened Gaussian units, with weights w_j and precision matrix q + Σ_j w_j w_jᵀ.

    With B_j = w_j·(y − m) and centers b_k of the classes, the density is

        P(y) ∝ N(y; m, (q + WWᵀ)⁻¹) Σ_k e^{a_k + b_k·(y − m)} Π_j (1 + e^{r_j} ∫ exp((B_j + U_j)h − ½h²) dh).
    """

    def __init__(self, mixture: Mixture, n_hidden: int, seed: int, most: int = MOST_SLABS) -> None:
        lower = torch.linalg.cholesky(mixture.covariances[0])
        offset, shares = mixture.probabilities @ mixture.means, mixture.probabilities
        n, n_classes = mixture.means.T.shape
        self.n_hidden, self.lower, self.offset = n_hidden, lower, offset
        self.n_slabs = min(n_hidden - (n_classes if n_classes > 1 else 0), most)
        generator = torch.Generator().manual_seed(seed)
        weights = torch.randn(n, self.n_slabs, generator=generator, dtype=torch.float64)
        self.weights = INITIAL_SPREAD / n**0.5 * weights
        self.mean, self.log_q = (torch.zeros(size, dtype=torch.float64) for size in (n, 1))
        self.field = torch.zeros(self.n_slabs, dtype=torch.float64)
        self.log_odds = torch.full_like(self.field, INITIAL_ODDS - 0.5 * LOG_2PI)
        self.centers = torch.linalg.solve_triangular(lower, (mixture.means - offset).T, upper=False)
        self.log_shares = shares.log() - 0.5 * (self.centers**2).sum(0)
        self.parameters = [self.weights, self.mean, self.log_q, self.field, self.log_odds]
        if n_classes > 1:
            self.parameters += [self.centers, self.log_shares]

    @property
    def log_volume(self) -> Tensor:  # ()
        """Log-density in whitened coordinates minus that of standardized rows."""
        volume: Tensor = self.lower.diagonal().log().sum()
        return volume

    def whitened(self, x: Tensor) -> Tensor:  # (N, n)
        """Transform standardized rows to coordinates in which the covariance of the mixture is the identity."""
        y: Tensor = torch.linalg.solve_triangular(self.lower.T, x - self.offset, upper=True, left=False)
        return y

    def log_density(self, y: Tensor) -> Tensor:  # (N, n) -> (N,)
        n, n_slabs = self.weights.shape
        q, y = self.log_q.exp(), y - self.mean
        sent = y @ self.weights
        inner = q * torch.eye(n_slabs, dtype=y.dtype) + self.weights.T @ self.weights
        log_det = (n - n_slabs) * self.log_q + torch.logdet(inner)
        gaussian = 0.5 * (log_det - n * LOG_2PI - q * (y**2).sum(1) - (sent**2).sum(1))
        of_classes = (self.log_shares + y @ self.centers).logsumexp(1)
        of_slabs = softplus(self.log_odds + 0.5 * (sent + self.field) ** 2 + 0.5 * LOG_2PI).sum(1)
        log_density: Tensor = gaussian + of_classes + of_slabs - self._log_partition(q, inner)
        return log_density

    def _log_partition(self, q: Tensor, inner: Tensor) -> Tensor:
        """Return ln Z relative to the Gaussian, in coordinates in which the Gaussian has unit precision.

        In these coordinates, WᵀW becomes 1 − q/(q + WᵀW), Wᵀb becomes (q + WᵀW)⁻¹Wᵀb, and b² becomes (b² − bᵀW(q +
        WᵀW)⁻¹Wᵀb)/q.
        """
        inverse, sent = torch.linalg.inv(inner), self.weights.T @ self.centers
        overlaps = torch.eye(len(inner), dtype=inner.dtype) - q * inverse
        squares = ((self.centers**2).sum(0) - (sent * (inverse @ sent)).sum(0)) / q
        field, ones = self.field + (inverse @ sent).T, torch.ones_like(self.field)
        of_sets = active_sets_log_partition(overlaps, field, self.log_odds, ones)
        log_partition: Tensor = (self.log_shares + 0.5 * squares + of_sets).logsumexp(0)
        return log_partition

    def fit(
        self, x: Tensor, weights: Tensor, n_steps: int, left_out: Tensor | None = None
    ) -> Tensor:  # -> (evaluations, N of left_out)
        """Maximize the likelihood of standardized rows with weights, in whitened coordinates.

        Returns:
            Log-densities of held-out rows in whitened coordinates, before the first step and after every ten steps.
        """
        curve, y = list[Tensor](), self.whitened(x)
        left_out = None if left_out is None else self.whitened(left_out)
        optimizer = torch.optim.Adam([p.requires_grad_() for p in self.parameters], LEARNING_RATE)
        for step in range(n_steps + 1):
            if left_out is not None and step % EVERY == 0:
                with torch.no_grad():
                    curve.append(self.log_density(left_out))
            if step < n_steps:
                optimizer.zero_grad()
                (-(weights / weights.mean() * self.log_density(y)).mean()).backward()
                optimizer.step()
        return torch.stack(curve) if curve else torch.empty(0)

    @torch.no_grad()
    def machine(self) -> tuple[BoltzmannMachine, Tensor, Tensor]:
        """Return the machine in coordinates u in which the precision matrix is the identity.

        Returns the machine, the matrix `transform` and the vector `shift`, where x = shift + transform·u for
        standardized rows x.
        """
        n, n_slabs = self.weights.shape
        n_classes = len(self.log_shares) if len(self.log_shares) > 1 else 0
        precision = self.log_q.exp() * torch.eye(n, dtype=torch.float64) + self.weights @ self.weights.T
        lower = torch.linalg.cholesky(precision)
        slabs = SpikeSlab(self.n_hidden - n_classes, active_probability=torch.tensor(0.5, dtype=torch.float64))
        slabs.log_odds.fill_(INITIAL_ODDS - 0.5 * LOG_2PI)
        slabs.log_odds[:n_slabs] = self.log_odds
        slabs.field[:n_slabs] = self.field
        hidden: Units = slabs
        weights = torch.zeros(n, self.n_hidden, dtype=torch.float64)
        weights[:, :n_slabs] = torch.linalg.solve_triangular(lower, self.weights, upper=False)
        if n_classes:
            weights[:, -n_classes:] = torch.linalg.solve_triangular(lower, self.centers, upper=False)
            hidden = Mixed([slabs, Categorical(1, n_classes, self.log_shares.unsqueeze(0))])
        machine = rbm(Gaussian(n, field=torch.zeros(n, dtype=torch.float64)), hidden, weights)
        transform = self.lower @ torch.linalg.inv(lower).T
        return machine, transform, self.offset + self.lower @ self.mean.detach()
