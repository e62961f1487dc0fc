"""Gaussian approximation used by adaptive TAP: Gaussian units of variance v, coupled by J.

The covariance matrix C = (diag(1/v) − J)⁻¹ is positive definite if all eigenvalues of √v J √v are below 1.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from tapmachine.machine import BoltzmannMachine
from tapmachine.solver.schemes.adaptive_tap.layout import Layout

LARGEST = 0.995  # largest allowed eigenvalue of √v J √v; at 1, the Gaussian distribution would not be normalizable
POWER_STEPS = 12  # steps of the power method per sweep
MOST_HALVINGS = 20  # maximum number of halvings of couplings that are too strong


class GaussianSide(ABC):
    """Gaussian units coupled by a machine's couplings J.

    Without couplings, the units have the variances v of shape (K, N), with the units of all layers concatenated.

    Attributes:
        within_layers: Whether units of the same layer are coupled.
        can_be_captured: Whether a step can be captured as a CUDA graph. Matrix factorizations prevent this because they
            synchronize with the device.
    """

    within_layers: bool = False
    can_be_captured: bool = False

    @abstractmethod
    def values_per_particle(self) -> int:
        """Return the approximate number of floating-point values stored per particle."""

    @abstractmethod
    def first_direction(self, v: Tensor) -> Tensor:
        """Return the initial vectors for the power method in `safe`."""

    @abstractmethod
    def safe(self, v: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:  # (K,), as first_direction
        """Return factors for v that make C positive definite, and updated vectors for the power method.

        A factor is 1 where C is already positive definite.
        """

    @abstractmethod
    def reaction(self, v: Tensor) -> Tensor:  # (K, N)
        """Return the reaction κ = diag(J + JCJ)."""

    @abstractmethod
    def log_det(self, v: Tensor) -> Tensor:  # (K,)
        """Return ln det(1 − √v J √v), differentiable with respect to the weights."""


@final
class Bipartite(GaussianSide):
    """Couplings between two groups of units; only a matrix of the size of the smaller group is inverted."""

    def __init__(self, weights: Tensor) -> None:  # (N_first, N_second)
        self.n_first = weights.shape[0]
        self.swapped = weights.shape[0] < weights.shape[1]
        self.weights = weights.T if self.swapped else weights  # (many, few)

    def values_per_particle(self) -> int:
        many, few = self.weights.shape
        return int(3 * many * few + 8 * few**2)

    def _split(self, z: Tensor) -> tuple[Tensor, Tensor]:
        first, second = z[:, : self.n_first], z[:, self.n_first :]
        return (second, first) if self.swapped else (first, second)

    def _join(self, many: Tensor, few: Tensor) -> Tensor:
        return torch.cat((few, many) if self.swapped else (many, few), 1)

    def first_direction(self, v: Tensor) -> Tensor:  # (K, few)
        return torch.ones_like(self._split(v)[1])

    def safe(self, v: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        many, few = self._split(v)
        root = few.sqrt()

        def apply(z: Tensor) -> Tensor:
            return root * ((many * ((root * z) @ self.weights.T)) @ self.weights)

        largest, direction = _largest_eigenvalue(apply, direction)
        return _shrunk(largest).sqrt(), direction

    def covariance(self, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the covariance matrix of the smaller group, WᵀvW and ln det(1 − √v J √v).

        The matrix WᵀvW contains the effective couplings within the smaller group that the larger group mediates.
        """
        many, few = self._split(v)
        root, through = few.sqrt(), self.weights.T @ (many.unsqueeze(-1) * self.weights)
        inner, log_det = _inverse(root.unsqueeze(-1) * through * root.unsqueeze(-2))
        return root.unsqueeze(-1) * inner * root.unsqueeze(-2), through, log_det

    def reaction(self, v: Tensor) -> Tensor:
        inner, through, _ = self.covariance(v)
        of_many = ((self.weights @ inner) * self.weights).sum(-1)
        of_few = through.diagonal(dim1=-2, dim2=-1) + ((through @ inner) * through).sum(-1)
        return self._join(of_many, of_few)

    def log_det(self, v: Tensor) -> Tensor:
        return self.covariance(v)[2]


@final
class Dense(GaussianSide):
    """Couplings between all pairs of units, for pairwise machines."""

    within_layers = True

    def __init__(self, weights: Tensor) -> None:  # (N, N)
        self.weights = weights

    def values_per_particle(self) -> int:
        return 6 * self.weights.numel()

    def first_direction(self, v: Tensor) -> Tensor:
        return torch.ones_like(v)

    def safe(self, v: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        # The power method finds the eigenvalue of largest magnitude; the shift makes all eigenvalues non-negative.
        root = v.sqrt()
        shift = (root * (root @ self.weights.abs())).amax(1)  # bound on the magnitude of eigenvalues (Gershgorin)

        def apply(z: Tensor) -> Tensor:
            return root * ((root * z) @ self.weights) + shift.unsqueeze(1) * z

        largest, direction = _largest_eigenvalue(apply, direction)
        return _shrunk(largest - shift), direction

    def covariance(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the covariance matrix C and ln det(1 − √v J √v)."""
        root = v.sqrt()
        inner, log_det = _inverse(root.unsqueeze(-1) * self.weights * root.unsqueeze(-2))
        return root.unsqueeze(-1) * inner * root.unsqueeze(-2), log_det

    def reaction(self, v: Tensor) -> Tensor:
        reaction: Tensor = ((self.weights @ self.covariance(v)[0]) * self.weights).sum(-1)
        return reaction

    def log_det(self, v: Tensor) -> Tensor:
        return self.covariance(v)[1]


def gaussian_side(machine: BoltzmannMachine, layout: Layout, differentiable: bool = False) -> GaussianSide:
    """Return the Gaussian approximation that fits the structure of a machine's couplings."""
    weights = machine.coupling(0) if machine.is_pairwise else layout.between(machine)
    weights = weights if differentiable else weights.detach()
    return Dense(weights) if machine.is_pairwise else Bipartite(weights)


def _shrunk(largest: Tensor) -> Tensor:
    """Return the factor that reduces an eigenvalue to the limit; exactly 1 for eigenvalues below the limit."""
    return torch.where(largest > LARGEST, LARGEST / largest.clamp(min=LARGEST), 1.0)


def _inverse(s: Tensor) -> tuple[Tensor, Tensor]:
    """Return (1 − S)⁻¹ and ln det(1 − S); S is halved until 1 − S is positive definite."""
    identity = torch.eye(s.shape[-1], dtype=s.dtype, device=s.device)
    lower, failed = torch.linalg.cholesky_ex(identity - s)
    for _ in range(MOST_HALVINGS):  # rarely needed, if the largest eigenvalue was underestimated
        if not bool(failed.any()):
            break
        s = torch.where((failed > 0)[..., None, None], 0.5 * s, s)
        lower, failed = torch.linalg.cholesky_ex(identity - s)
    return torch.cholesky_inverse(lower), 2 * lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _largest_eigenvalue(apply: Callable[[Tensor], Tensor], direction: Tensor) -> tuple[Tensor, Tensor]:
    """Estimate the largest eigenvalue of a symmetric matrix and its eigenvector by a few power iterations."""
    for _ in range(POWER_STEPS):
        direction = direction / torch.linalg.vector_norm(direction, dim=1, keepdim=True).clamp(min=1e-30)
        moved = apply(direction)
        value = (moved * direction).sum(1)
        off = torch.linalg.vector_norm(moved - value.unsqueeze(1) * direction, dim=1)
        direction = moved + 1e-6 * direction  # never 0
    return value + off, direction  # the distance to the nearest eigenvalue is at most `off`
