"""Where the training of two layers of Gaussian units starts: at the maximum of its likelihood, a factor analysis.

The visible units of such a machine have the precision matrix D(V) − W D(1/V') Wᵀ and, with the uniquenesses Ψ = 1/V,
the covariance Ψ + ΛΛᵀ. Its likelihood is so stiff near the maximum that gradient steps of any one size diverge or
crawl: the curvature in the weights goes with the square of the ratio of explained to unique variance.
"""

from copy import deepcopy
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse.linalg import eigsh
from torch import Tensor

from tapmachine.machine import BoltzmannMachine
from tapmachine.units import Gaussian

MOST_ITERATIONS, FEWEST_ITERATIONS = 1000, 3
MOST_WORK = 3e10  # iterations times the cube of the number of columns
SMALL_GAIN = 1e-6  # nats for each column: an iteration that gains less is the last
LEAST_UNIQUE = 1e-4  # share of a column's variance: without a limit, the likelihood of some data has no maximum
FEW_COLUMNS = 500  # for which all eigenvectors are found as quickly as the leading ones
MARGIN = 100  # in units of the rounding of a number


class Factors(NamedTuple):
    """A factor analysis of columns in units of their standard deviations.

    Attributes:
        unique: Ψ, the share of each column's variance that is its own, (n,).
        directions: orthonormal eigenvectors of Ψ^(−½) R Ψ^(−½), (n, k).
        variances: their eigenvalues, or 1 for those below it, (k,): the marginal variances of hidden units of
            precision 1.
    """

    unique: Tensor
    directions: Tensor
    variances: Tensor


@torch.no_grad()
def start_from_factors(machine: BoltzmannMachine, x: Tensor, weights: Tensor | None = None) -> Factors:
    """Sets all parameters, in place, to those of a factor analysis of the data; those of the hidden precisions stay.

    Args:
        machine: two layers of Gaussian units, the visible ones fitted to the data.
        x: data, (N, n_visible).
        weights: of the rows.
    """
    visible, hidden = machine.layers
    assert isinstance(visible, Gaussian)
    assert isinstance(hidden, Gaussian)
    precision, hidden_precision = visible.precision.double().cpu(), hidden.precision.double().cpu()
    mean = visible.field.double().cpu() / precision
    factors = find_factors(_correlations(x, weights, mean, precision), min(hidden.n, visible.n))
    share = (1 - 1 / factors.variances).clamp(max=1 - _margin(machine))
    visible.precision = precision / factors.unique
    visible.field.copy_(visible.precision.double().cpu() * mean)
    loadings = (precision / factors.unique).sqrt().unsqueeze(1) * factors.directions * share.sqrt()
    machine.weights[0].zero_()[:, : len(share)] = (loadings * hidden_precision[: len(share)].sqrt()).to(
        machine.weights[0]
    )
    hidden.field.copy_(-mean @ machine.weights[0].double().cpu())  # so that their means are 0
    # So that the curvature in ln V is ½, as for a unit by itself of mean 0. Hidden precisions only scale the weights.
    slower = factors.unique / (1 + 2 * mean**2 * precision).sqrt()
    visible.growth_rate.mul_(slower.to(visible.growth_rate))
    hidden.growth_rate.zero_()
    return factors


def largest_variance(machine: BoltzmannMachine, x: Tensor | None) -> float:
    """That of hidden units of precision 1 in any direction: where training on data starts, or as the machine is."""
    if x is not None:
        fitted = deepcopy(machine)
        fitted.layers[0].fit_to(x)
        return float(start_from_factors(fitted, x).variances.max())
    s, s_above = (units.precision.detach().rsqrt() for units in machine.layers if isinstance(units, Gaussian))
    couplings = s.unsqueeze(1) * machine.weights[0].detach() * s_above
    return 1 / max(1 - float(torch.linalg.matrix_norm(couplings.cpu().double(), 2)) ** 2, _margin(machine))


def find_factors(correlations: Tensor, n_factors: int) -> Factors:
    """The factor analysis of a correlation matrix, (n, n), by alternating maximization (Zhao and others 2008).

    With Ψ held, the best loadings are Ψ^½ u √(d − 1), for the leading eigenvectors u and eigenvalues d > 1 of
    Ψ^(−½) R Ψ^(−½). With the loadings held, Ψ = 1 − diag(ΛΛᵀ).
    """
    n = len(correlations)
    most = max(FEWEST_ITERATIONS, min(MOST_ITERATIONS, int(MOST_WORK / n**3)))
    unique, best = torch.ones_like(correlations[0]), -torch.inf
    for _ in range(most):
        root = unique.rsqrt()
        values, directions = _leading(root.unsqueeze(1) * correlations * root, n_factors)
        gain = (values - 1).clamp(min=0)
        factors = Factors(unique, directions, 1 + gain)
        # ln P of a row on average, up to a constant
        value = -0.5 * float(unique.log().sum() + gain.log1p().sum() + (1 / unique).sum() - gain.sum())
        if not value - best > SMALL_GAIN * n:
            break
        best = value
        unique = (1 - unique * (directions**2 @ gain)).clamp(min=LEAST_UNIQUE)
    return factors


def _margin(machine: BoltzmannMachine) -> float:
    """Between the largest eigenvalue of the couplings and 1, beyond which Z is infinite."""
    return MARGIN * torch.finfo(machine.dtype).eps


def _correlations(x: Tensor, weights: Tensor | None, mean: Tensor, precision: Tensor) -> Tensor:
    """Of the columns, with 1 on the diagonal, also for those that are constant."""
    share = torch.ones(len(x)) if weights is None else weights
    share = share.double().cpu() / share.double().sum().cpu()
    scaled = (x.double().cpu() - mean) * precision.sqrt() * share.sqrt().unsqueeze(1)
    return (scaled.T @ scaled).fill_diagonal_(1.0)


def _leading(matrix: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest eigenvalues of a symmetric matrix and their eigenvectors."""
    if len(matrix) <= FEW_COLUMNS or 4 * count >= len(matrix):
        values, vectors = torch.linalg.eigh(matrix)
    else:
        pairs = eigsh(matrix.numpy(), count, v0=np.ones(len(matrix)))  # a fixed start, for a reproducible result
        values, vectors = (torch.from_numpy(z) for z in pairs)
    return values[-count:], vectors[:, -count:]
