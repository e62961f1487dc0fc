"""Core types: tilts on units, the moments they lead to, and the solutions of a machine."""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor


class Tilt(NamedTuple):
    """The factor exp(Bx − ½Ax²) that multiplies a unit's prior.

    Neighbors send tilts (the TAP fields), a noisy observation acts as one, and clamping is the limiting case.

    Attributes:
        field: B, a tensor of shape (..., n), or a number that applies to every unit.
        precision: A, with the same shapes. May be negative: in TAP, A = −Σ W² c ≤ 0.

    Both must be finite; otherwise `normalizable` of the unit type is False.

    Example:
        >>> import torch
        >>> Tilt(field=torch.zeros(3), precision=0.0).field
        tensor([0., 0., 0.])
    """

    field: Tensor | float
    precision: Tensor | float


class Moments(NamedTuple):
    """Mean a and variance c of every unit under its tilted prior, each of shape (..., n).

    Example:
        >>> import torch
        >>> from tapmachine import Binary
        >>> Binary(2).moments(Tilt(torch.zeros(2), 0.0)).mean
        tensor([0.5000, 0.5000], grad_fn=<SigmoidBackward0>)
    """

    mean: Tensor
    variance: Tensor


class Status(IntEnum):
    """Status of the solution of one particle.

    - CONVERGED: another sweep changes the solution by less than the tolerance.
    - MAX_SWEEPS: not converged within the maximum number of sweeps.
    - NONFINITE: a field or a moment overflowed, or a parameter is non-finite.
    - UNNORMALIZABLE: a unit on an unbounded support received a tilt under which it cannot be normalized. A different
      initial state may still lead to a solution, and the machine itself may be well defined.
    """

    CONVERGED = 0
    MAX_SWEEPS = 1
    NONFINITE = 2
    UNNORMALIZABLE = 3


@dataclass(frozen=True)
class Solution:
    """Solutions of a machine's mean-field equations, one for each particle.

    If the status is NONFINITE or UNNORMALIZABLE there is no solution: the moments are the last finite ones, the tilts
    are 0, and the free energy and the residual are inf. The tensors carry no gradients; see `Scheme.free_energy`.

    Attributes:
        moments: Mean and variance for each layer, of shape (K, *state_shape).
        tilts: The tilt that the neighbors send to each layer, of the same shapes.
        free_energy: Free energy F of each particle, (K,). Before convergence it mixes moments and tilts that do not yet
            belong together.
        residual: Mean over all units of the squared change of their mean and variance when the equations are applied
            once more, (K,).
        n_sweeps: Number of sweeps performed, (K,).
        status: A `Status` for each particle, (K,).
    """

    moments: tuple[Moments, ...]
    tilts: tuple[Tilt, ...]
    free_energy: Tensor
    residual: Tensor
    n_sweeps: Tensor
    status: Tensor

    @property
    def converged(self) -> Tensor:  # (K,), bool
        """Mask of the particles that converged."""
        return self.status == Status.CONVERGED

    def __len__(self) -> int:
        return len(self.status)

    def select(self, index: Tensor | int) -> "Solution":
        """Select particles by a mask or by their indices."""
        index = torch.atleast_1d(torch.as_tensor(index, device=self.status.device))
        return Solution(
            tuple(Moments(*(z[index] for z in moments)) for moments in self.moments),
            tuple(Tilt(*(torch.as_tensor(z)[index] for z in tilt)) for tilt in self.tilts),
            *(z[index] for z in (self.free_energy, self.residual, self.n_sweeps, self.status)),
        )

    def counts(self) -> dict[str, int]:
        """Number of particles per status, omitting zeros."""
        counts = {status.name.lower(): int((self.status == status).sum()) for status in Status}
        return {name: count for name, count in counts.items() if count}

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.counts().items())
        return f"Solution({counts or 'no particles'})"
