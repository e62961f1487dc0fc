"""Core data types: tilts, moments, and mean-field solutions with their status."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Tilt(NamedTuple):
    """The factor exp(Bx − ½Ax²) that multiplies a unit's prior.

    The influence of neighboring units (the TAP fields) and of noisy observations is described by tilts. Clamping a unit
    is the limit of an infinitely strong tilt.

    Attributes:
        field: Field B, a tensor of shape (..., n), or a number that applies to every unit.
        precision: Precision A, a tensor of shape (..., n) or a number. It may be negative: in TAP, A = −Σ W² c ≤ 0.

    If the field or the precision of a unit is non-finite, `Units.normalizable` returns False for this unit.

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


class Received(NamedTuple):
    """What units receive in a machine: the distribution of the neighbors' field, and evidence.

    Attributes:
        field: Mean θ of the field, of shape (..., *state_shape).
        reaction: Variance κ of the field, of shape (..., *reaction_shape), which causes the Onsager reaction.
        precision: Precision of the evidence on the units (default: 0).
    """

    field: Tensor
    reaction: Tensor
    precision: Tensor | float = 0.0


class Status(IntEnum):
    """Outcome of the mean-field iteration for one particle.

    - CONVERGED: another sweep changes the solution by less than the tolerance.
    - MAX_SWEEPS: not converged within the maximum number of sweeps.
    - NONFINITE: a field or a moment overflowed, or a parameter is non-finite.
    - UNNORMALIZABLE: a unit with unbounded support received a tilt under which its distribution cannot be normalized.
      The iteration may still converge from a different initial state.

    Example:
        >>> from tapmachine import Binary, rbm, solve
        >>> from tapmachine.solver import Status
        >>> Status(int(solve(rbm(Binary(4), Binary(2))).status[0])).name
        'CONVERGED'
    """

    CONVERGED = 0
    MAX_SWEEPS = 1
    NONFINITE = 2
    UNNORMALIZABLE = 3


@dataclass(frozen=True)
class Solution:
    """Solutions of a machine's mean-field equations, one for each of K particles.

    A particle with the status NONFINITE or UNNORMALIZABLE has no solution. Its moments are the last finite values, its
    tilts are 0, and its free energy and residual are inf. The tensors carry no gradients; use `Scheme.free_energy` to
    differentiate the free energy.

    Attributes:
        moments: Mean and variance of the units in each layer, each of shape (K, *state_shape).
        tilts: Tilt that each layer receives from its neighbors, of shape (K, *state_shape).
        free_energy: Free energy F of each particle, of shape (K,). It is meaningful only for converged particles.
        residual: Mean squared change in the units' means and variances when the equations are applied once more, of
            shape (K,).
        n_sweeps: Number of sweeps performed for each particle, of shape (K,).
        status: `Status` of each particle as an integer, of shape (K,); `outcomes` are the same in words.

    Example:
        >>> from tapmachine import Binary, rbm, solve
        >>> solution = solve(rbm(Binary(4), Binary(2)))
        >>> solution, solution.outcomes
        (Solution(1 converged), ['converged'])
        >>> solution.moments[0].mean.shape
        torch.Size([1, 4])
    """

    moments: tuple[Moments, ...]
    tilts: tuple[Tilt, ...]
    free_energy: Tensor
    residual: Tensor
    n_sweeps: Tensor
    status: Tensor

    @property
    def converged(self) -> Tensor:  # (K,), bool
        """Boolean mask of the converged particles."""
        return self.status == Status.CONVERGED

    @property
    def outcomes(self) -> list[str]:
        """Status of each particle in words, such as "converged" or "max_sweeps"."""
        return [Status(value).name.lower() for value in self.status.tolist()]

    def __len__(self) -> int:
        return len(self.status)

    def select(self, index: Tensor | int) -> "Solution":
        """Select particles by index or by a boolean mask."""
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


def over_tensors(function: Callable[..., Tensor], *states: Any) -> Any:
    """Apply a function to the corresponding tensors of nested tuples; return the results as a nested tuple."""
    if isinstance(states[0], Tensor):
        return function(*states)
    parts = [over_tensors(function, *each) for each in zip(*states, strict=True)]
    return type(states[0])(*parts) if hasattr(states[0], "_fields") else type(states[0])(parts)
