"""The Gaussian side of adaptive TAP: all couplings J, with units of variance v before they act.

C = (diag(1/v) − J)⁻¹ is positive definite if no eigenvalue of √v J √v reaches 1.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from tapmachine.machine import BoltzmannMachine
from tapmachine.solver.schemes.adaptive_tap.layout import Layout

LARGEST = 0.995  # of 1, the eigenvalue at which the Gaussian side would stop being one
POWER_STEPS = 12  # of the power method that follows it, a sweep
MOST_HALVINGS = 20  # of couplings that are too strong for the Gaussian side to exist


class GaussianSide(ABC):
    """The couplings J of a machine, acting on Gaussian units of variance v, (K, N) for all units side by side.

    Attributes:
        within_layers: whether units of one layer are coupled.
        can_be_captured: whether a step can be captured as a CUDA graph; matrix factorizations wait for the device.
    """

    within_layers: bool = False
    can_be_captured: bool = False

    @abstractmethod
    def values_per_particle(self) -> int:
        """About how many values a particle needs."""

    @abstractmethod
    def first_direction(self, v: Tensor) -> Tensor:
        """Where the power method of `safe` starts."""

    @abstractmethod
    def safe(self, v: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:  # (K,), as first_direction
        """The factor by which v must be multiplied for C to be positive definite, 1 where it is; a better direction."""

    @abstractmethod
    def reaction(self, v: Tensor) -> Tensor:  # (K, N)
        """κ = diag(J + JCJ)."""

    @abstractmethod
    def log_det(self, v: Tensor) -> Tensor:  # (K,)
        """ln det(1 − √v J √v), differentiable in the weights."""

    def averaged(self, z: Tensor) -> Tensor:  # (K, N) -> (K, N)
        """Values of all units, averaged where only averages matter."""
        return z


@final
class Bipartite(GaussianSide):
    """Couplings between two groups of units: only a matrix of the size of the smaller one is inverted."""

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
        """C of the few, (K, few, few); WᵀvW, by which they act on each other through the many; and ln det."""
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
    """Couplings among all units, of a pairwise machine."""

    within_layers = True

    def __init__(self, weights: Tensor) -> None:  # (N, N)
        self.weights = weights

    def values_per_particle(self) -> int:
        return 6 * self.weights.numel()

    def first_direction(self, v: Tensor) -> Tensor:
        return torch.ones_like(v)

    def safe(self, v: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        # Shifted, since eigenvalues may be far below 0, which does no harm.
        root = v.sqrt()
        shift = (root * (root @ self.weights.abs())).amax(1)  # Gershgorin: none is larger in size

        def apply(z: Tensor) -> Tensor:
            return root * ((root * z) @ self.weights) + shift.unsqueeze(1) * z

        largest, direction = _largest_eigenvalue(apply, direction)
        return _shrunk(largest - shift), direction

    def covariance(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """C, and ln det."""
        root = v.sqrt()
        inner, log_det = _inverse(root.unsqueeze(-1) * self.weights * root.unsqueeze(-2))
        return root.unsqueeze(-1) * inner * root.unsqueeze(-2), log_det

    def reaction(self, v: Tensor) -> Tensor:
        reaction: Tensor = ((self.weights @ self.covariance(v)[0]) * self.weights).sum(-1)
        return reaction

    def log_det(self, v: Tensor) -> Tensor:
        return self.covariance(v)[1]


@final
class SelfAveraging(GaussianSide):
    """One variance for all units of a group, as if W were rotated at random: one SVD before, and only W² of it after.

    C is the same on all units of a group but for the directions of W, so that only the singular values s enter.
    """

    can_be_captured = True

    def __init__(self, weights: Tensor) -> None:  # (N_first, N_second)
        self.sizes = list(weights.shape)
        self.squares = torch.linalg.svdvals(weights) ** 2

    def values_per_particle(self) -> int:
        return 12 * int(sum(self.sizes))

    def averaged(self, z: Tensor) -> Tensor:
        return torch.cat([part.mean(1, keepdim=True).expand_as(part) for part in z.split(self.sizes, 1)], 1)

    def first_direction(self, v: Tensor) -> Tensor:
        return v[:, :1]

    def safe(self, v: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        largest = v[:, 0] * v[:, -1] * self.squares[0]
        return _shrunk(largest).sqrt(), direction

    def reaction(self, v: Tensor) -> Tensor:
        first, second = v[:, :1], v[:, -1:]
        power = (self.squares / (1 - first * second * self.squares)).sum(1, keepdim=True)
        parts = [second * power / self.sizes[0], first * power / self.sizes[1]]
        return torch.cat([part.expand(-1, size) for part, size in zip(parts, self.sizes, strict=True)], 1)

    def log_det(self, v: Tensor) -> Tensor:
        rest: Tensor = 1 - v[:, :1] * v[:, -1:] * self.squares
        return rest.log().sum(1)


def gaussian_side(
    machine: BoltzmannMachine, layout: Layout, self_averaging: bool, differentiable: bool = False
) -> GaussianSide:
    """The Gaussian side of a machine, of the kind that suits its couplings."""
    weights = machine.coupling(0) if machine.is_pairwise else layout.between(machine)
    weights = weights if differentiable else weights.detach()
    if machine.is_pairwise:
        if self_averaging:
            raise ValueError("AdaptiveTAP: self_averaging needs layers; it is not for a pairwise machine")
        return Dense(weights)
    return SelfAveraging(weights) if self_averaging else Bipartite(weights)


def _shrunk(largest: Tensor) -> Tensor:
    """What brings an eigenvalue below the limit; exactly 1 where it is."""
    return torch.where(largest > LARGEST, LARGEST / largest.clamp(min=LARGEST), 1.0)


def _inverse(s: Tensor) -> tuple[Tensor, Tensor]:
    """(1 − S)⁻¹ and ln det(1 − S), of a smaller S where that is not positive definite."""
    identity = torch.eye(s.shape[-1], dtype=s.dtype, device=s.device)
    lower, failed = torch.linalg.cholesky_ex(identity - s)
    for _ in range(MOST_HALVINGS):  # hardly ever: the estimate of the largest eigenvalue was too small
        if not bool(failed.any()):
            break
        s = torch.where((failed > 0)[..., None, None], 0.5 * s, s)
        lower, failed = torch.linalg.cholesky_ex(identity - s)
    return torch.cholesky_inverse(lower), 2 * lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _largest_eigenvalue(apply: Callable[[Tensor], Tensor], direction: Tensor) -> tuple[Tensor, Tensor]:
    """The largest eigenvalue of a symmetric matrix, and what it belongs to: a few steps from where one was before."""
    for _ in range(POWER_STEPS):
        direction = direction / torch.linalg.vector_norm(direction, dim=1, keepdim=True).clamp(min=1e-30)
        moved = apply(direction)
        value = (moved * direction).sum(1)
        off = torch.linalg.vector_norm(moved - value.unsqueeze(1) * direction, dim=1)
        direction = moved + 1e-6 * direction  # never 0
    return value + off, direction  # an eigenvalue is no further away than that
