"""Gaussians with a shrunk covariance, and mixtures of Gaussians with a shared covariance."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from tapmachine.units import Gaussian

SHRINKAGES = (1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 0.03, 0.1, 0.2, 0.4, 0.7)
N_FOLDS = 5
N_PARTITIONS, PARTITION_STEPS, MIXTURE_STEPS = 5, 20, 20  # k-means from several starts, then expectation maximization
WIDTH = 0.01  # minimum relative variance of clusters; without it, columns with few values have infinite densities
LOG_2PI = math.log(2 * math.pi)


class Columns(NamedTuple):
    """Gaussian fitted to a table x = mean + deviation·u, with the correlations of u shrunk toward 0."""

    mean: Tensor
    deviation: Tensor
    correlations: Tensor
    shrinkage: float
    constant: Tensor
    smallest: float  # smallest eigenvalue of the correlations before shrinkage

    @staticmethod
    def of(x: Tensor, shrinkage: float) -> "Columns":
        units = Gaussian(x.shape[1]).double().fit_to(x)
        mean, deviation = x.mean(0), units.precision.detach().rsqrt()
        u = (x - mean) / deviation
        correlations = (u.T @ u / len(u)).fill_diagonal_(1.0)  # 1 for constant columns
        smallest = float(torch.linalg.eigvalsh(correlations)[0])
        return Columns(mean, deviation, shrunk(correlations, shrinkage), shrinkage, x.amin(0) == x.amax(0), smallest)

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


def shrunk(covariance: Tensor, shrinkage: float) -> Tensor:
    """Return a covariance matrix whose off-diagonal entries are reduced by a fraction."""
    return (1 - shrinkage) * covariance + shrinkage * covariance.diagonal().diag()


def folds(n_rows: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Return, for each fold, the indices of the training rows and the held-out rows."""
    fold = torch.randperm(n_rows, generator=torch.Generator().manual_seed(seed)) % min(N_FOLDS, n_rows)
    return [((fold != k).nonzero().flatten(), (fold == k).nonzero().flatten()) for k in range(int(fold.max()) + 1)]


def best_shrinkage(x: Tensor, seed: int) -> float:
    """Return the correlation shrinkage that maximizes the held-out likelihood."""
    if len(x) < 3:
        return SHRINKAGES[-1]
    totals = torch.zeros(len(SHRINKAGES), dtype=x.dtype)
    for fitted, left_out in folds(len(x), seed):
        for index, shrinkage in enumerate(SHRINKAGES):
            gaussian = Clusters.of(Columns.of(x[fitted], shrinkage), x[fitted], 1, seed)
            totals[index] += gaussian.log_density(x[left_out]).sum()
    return SHRINKAGES[int(totals.argmax())]


def best_n_clusters(x: Tensor, shrinkage: float, candidates: list[int], seed: int) -> int:
    """Return the number of clusters that maximizes the held-out likelihood.

    The result is 1 if clusters do not improve significantly on a single Gaussian.
    """
    gains = []  # gains over the single Gaussian for each held-out row
    for fitted, left_out in folds(len(x), seed):
        columns = Columns.of(x[fitted], shrinkage)
        scores = [Clusters.of(columns, x[fitted], k, seed).log_density(x[left_out]) for k in (1, *candidates)]
        gains.append(torch.stack(scores) - scores[0])
    return (1, *candidates)[significantly_best(torch.cat(gains, 1))]


def significantly_best(gain: Tensor) -> int:  # (candidates, N)
    """Return the index of the candidate with the highest mean gain, or 0 if the gain is below its standard error."""
    best = int(gain.mean(1).argmax())
    error = gain[best].std() / gain.shape[1] ** 0.5
    return best if float(gain[best].mean()) > float(error) else 0


class Clusters(NamedTuple):
    """Mixture of Gaussians with a shared covariance.

    For x = mean + transform·y, the density of y is Σ_k share_k N(y; center_k, 1).
    """

    centers: Tensor  # (n, K)
    shares: Tensor  # (K,)
    mean: Tensor
    transform: Tensor  # (n, n), lower triangular

    @staticmethod
    def of(columns: Columns, x: Tensor, n_clusters: int, seed: int) -> "Clusters":
        """Fit the mixture by expectation maximization, initialized by k-means.

        A single cluster is the Gaussian fitted to the columns.
        """
        if n_clusters == 1:
            transform = columns.deviation.unsqueeze(1) * torch.linalg.cholesky(columns.correlations)
            return Clusters(torch.zeros_like(x[:1].T), torch.ones_like(x[0, :1]), columns.mean, transform)
        u = columns.standardized(x)
        belongs = k_means(u, n_clusters, seed)
        for _ in range(MIXTURE_STEPS):
            shares = (belongs.sum(0) + 1) / (len(u) + n_clusters)
            means = (belongs.T @ u) / belongs.sum(0).clamp(min=1.0).unsqueeze(1)
            within = shrunk((u.T @ u - (means.T * belongs.sum(0)) @ means) / len(u), columns.shrinkage)
            lower = torch.linalg.cholesky((1 - WIDTH) * within + WIDTH * columns.correlations)
            centers = torch.linalg.solve_triangular(lower, means.T, upper=False)
            clusters = Clusters(centers, shares, columns.mean, columns.deviation.unsqueeze(1) * lower)
            belongs = clusters.log_joint(clusters.whitened(x)).softmax(1)
        return clusters

    def whitened(self, x: Tensor) -> Tensor:
        y: Tensor = torch.linalg.solve_triangular(self.transform.T, x - self.mean, upper=True, left=False)
        return y

    def log_joint(self, y: Tensor) -> Tensor:  # (N, n) -> (N, K)
        """Logarithm of the joint density of a row and its cluster, ln P(y, k)."""
        distances = (y.unsqueeze(2) - self.centers).square().sum(1)
        return self.shares.log() - 0.5 * distances - 0.5 * y.shape[1] * LOG_2PI

    def log_density(self, x: Tensor) -> Tensor:  # (N, n) -> (N,)
        return self.log_joint(self.whitened(x)).logsumexp(1) - self.transform.diagonal().log().sum()


def k_means(x: Tensor, k: int, seed: int) -> Tensor:  # (N, k)
    """Return the one-hot cluster assignments of all rows, from the best of several k-means runs.

    Each run starts from randomly selected rows.
    """
    generator, results = torch.Generator().manual_seed(seed), []
    for _ in range(N_PARTITIONS):
        means = x[torch.randperm(len(x), generator=generator)[:k]]
        for _ in range(PARTITION_STEPS):
            belongs = one_hot(torch.cdist(x, means).argmin(1), k).to(x.dtype)
            means = torch.where(belongs.any(0).unsqueeze(1), belongs.T @ x / belongs.sum(0).unsqueeze(1), means)
        results.append((float((x - belongs @ means).square().sum()), belongs))
    return min(results, key=lambda result: result[0])[1]
