"""Initialization of machines from data: fitted visible units, or a factor analysis for two Gaussian layers.

The visible units of machines with two Gaussian layers have the precision matrix D(V) − W D(1/V') Wᵀ. With
uniquenesses Ψ = 1/V and loadings Λ, the covariance of the visible units is Ψ + ΛΛᵀ. Near its maximum, the likelihood is
so ill-conditioned that gradient descent diverges or is too slow at any learning rate. The curvature with respect to the
weights grows with the squared ratio of explained to unique variance.
"""

from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse.linalg import eigsh
from torch import Tensor

from tapmachine.data.rows import Rows
from tapmachine.exact.gaussian import is_gaussian
from tapmachine.machine import BoltzmannMachine
from tapmachine.training.batches import Batches
from tapmachine.units import Gaussian

MOST_ITERATIONS, FEWEST_ITERATIONS = 1000, 3
MOST_WORK = 3e10  # iterations times the cube of the number of columns
SMALL_GAIN = 1e-6  # nats per column: the search stops when an iteration gains less
LEAST_UNIQUE = 1e-4  # minimum unique share of a column's variance; without it, the likelihood may have no maximum
FEW_COLUMNS = 500  # up to this number, computing all eigenvectors is as fast as computing the leading ones
MARGIN = 100  # in units of the rounding error


class Factors(NamedTuple):
    """Factor analysis of standardized columns.

    Attributes:
        unique: Unique share Ψ of the variance of each column, (n,).
        directions: Orthonormal eigenvectors, (n, k), of Ψ^(−½) R Ψ^(−½), where R is the correlation matrix.
        variances: Corresponding eigenvalues, (k,), with values below 1 replaced by 1. The eigenvalues are the
            marginal variances of hidden units with precision 1.
    """

    unique: Tensor
    directions: Tensor
    variances: Tensor


def start_from_data(machine: BoltzmannMachine, batches: Batches) -> None:
    """Fit the visible units, or all parameters of a machine with two Gaussian layers, to the training data in place.

    If the data have missing values, a fit of two Gaussian layers alternates with draws of the missing values.
    """
    _, weights = batches.to_fit

    def start(machine: BoltzmannMachine, x: Rows) -> None:
        machine.layers[0].fit_to(x, weights)  # type: ignore[arg-type]
        if is_gaussian(machine) and isinstance(x, Tensor):
            start_from_factors(machine, x, batches.sample_weights)

    if batches.gaps is not None and is_gaussian(machine):
        batches.gaps.improve(start)
    start(machine, batches.to_fit[0])


@torch.no_grad()
def start_from_factors(machine: BoltzmannMachine, x: Tensor, weights: Tensor | None = None) -> Factors:
    """Initialize a machine with two Gaussian layers in place, by a factor analysis of the data.

    All parameters are set, except for the precisions of the hidden units.

    Args:
        machine: Machine with two layers of Gaussian units. The visible units must already be fitted to the data.
        x: Data, shape (N, n_visible).
        weights: Row weights, shape (N,); equal by default.
    """
    visible, hidden = machine.layers
    assert isinstance(visible, Gaussian)
    assert isinstance(hidden, Gaussian)
    precision, hidden_precision = visible.precision.double().cpu(), hidden.precision.double().cpu()
    mean = visible.field.double().cpu() / precision
    factors = find_factors(_correlations(x, weights, mean, precision), min(hidden.n, visible.n))
    explained = (1 - 1 / factors.variances).clamp(max=1 - _margin(machine))
    visible.precision = precision / factors.unique
    visible.field.copy_(visible.precision.double().cpu() * mean)
    loadings = (precision / factors.unique).sqrt().unsqueeze(1) * factors.directions * explained.sqrt()
    machine.weights[0].zero_()[:, : len(explained)] = (loadings * hidden_precision[: len(explained)].sqrt()).to(
        machine.weights[0]
    )
    hidden.field.copy_(-mean @ machine.weights[0].double().cpu())  # hidden units have mean 0
    # The curvature in ln V becomes ½, as for a single unit of mean 0. Hidden precisions only scale the weights.
    slower = factors.unique / (1 + 2 * mean**2 * precision).sqrt()
    visible.growth_rate.mul_(slower.to(visible.growth_rate))
    hidden.growth_rate.zero_()
    return factors


def largest_variance(machine: BoltzmannMachine) -> float:
    """Return the largest variance of the hidden units in any direction, in units of their prior variance."""
    s, s_above = (units.precision.detach().rsqrt() for units in machine.layers if isinstance(units, Gaussian))
    couplings = s.unsqueeze(1) * machine.weights[0].detach() * s_above
    return 1 / max(1 - float(torch.linalg.matrix_norm(couplings.cpu().double(), 2)) ** 2, _margin(machine))


def find_factors(correlations: Tensor, n_factors: int) -> Factors:
    """Compute the factor analysis of a correlation matrix R by alternating maximization (Zhao et al. 2008).

    For fixed Ψ, the best loadings are Ψ^½ u √(d − 1), where u and d > 1 are the leading eigenvectors and eigenvalues of
    Ψ^(−½) R Ψ^(−½). For fixed loadings, Ψ = 1 − diag(ΛΛᵀ).

    Args:
        correlations: Correlation matrix, shape (n, n).
        n_factors: Number of factors.
    """
    n = len(correlations)
    most = max(FEWEST_ITERATIONS, min(MOST_ITERATIONS, int(MOST_WORK / n**3)))
    unique, best = torch.ones_like(correlations[0]), -torch.inf
    for _ in range(most):
        root = unique.rsqrt()
        values, directions = _leading(root.unsqueeze(1) * correlations * root, n_factors)
        gain = (values - 1).clamp(min=0)
        factors = Factors(unique, directions, 1 + gain)
        # mean ln P of a row, up to a constant
        value = -0.5 * float(unique.log().sum() + gain.log1p().sum() + (1 / unique).sum() - gain.sum())
        if not value - best > SMALL_GAIN * n:
            break
        best = value
        unique = (1 - unique * (directions**2 @ gain)).clamp(min=LEAST_UNIQUE)
    return factors


def _margin(machine: BoltzmannMachine) -> float:
    """Minimum distance of the couplings' largest singular value from 1, the value at which Z becomes infinite."""
    return MARGIN * torch.finfo(machine.dtype).eps


def _correlations(x: Tensor, weights: Tensor | None, mean: Tensor, precision: Tensor) -> Tensor:
    """Correlation matrix of the columns, with ones on the diagonal even for constant columns."""
    weights = (torch.ones(len(x)) if weights is None else weights).double().cpu()
    scaled = (x.double().cpu() - mean) * precision.sqrt() * (weights / weights.sum()).sqrt().unsqueeze(1)
    return (scaled.T @ scaled).fill_diagonal_(1.0)


def _leading(matrix: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Compute the `count` largest eigenvalues of a symmetric matrix and the corresponding eigenvectors."""
    if len(matrix) <= FEW_COLUMNS or 4 * count >= len(matrix):
        values, vectors = torch.linalg.eigh(matrix)
    else:
        pairs = eigsh(matrix.numpy(), count, v0=np.ones(len(matrix)))  # fixed initial vector, for reproducibility
        values, vectors = (torch.from_numpy(z) for z in pairs)
    return values[-count:], vectors[:, -count:]
