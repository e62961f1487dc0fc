"""Adaptive TAP exactly as printed in the paper [alg:rbmInfada], for comparison."""

from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.machine import BoltzmannMachine
from tapmachine.solver import TAP
from tapmachine.solver.schemes.base import Scheme
from tapmachine.solver.schemes.process import Outcome, Process, State, from_below
from tapmachine.units import Units

LEAST_VARIANCE = 1e-6  # for smaller variances c, rounding errors of 1/c would dominate A₁ = 1/C_ii − A₂


class PrintedState(NamedTuple):
    """Fields B₁ and precisions A₁ of all units, shape (K, N), and the moments of both layers."""

    field: Tensor
    precision: Tensor
    moments: tuple[Moments, ...]


class PrintedProcess(Process):
    """Iteration of [alg:rbmInfada] for two layers, with the fields H as part of the priors."""

    can_be_captured = False

    def __init__(self, machine: BoltzmannMachine, damping: float) -> None:
        self.machine, self.damping, self.sizes = machine, damping, machine.sizes
        self.weights = [machine.weights[0].detach()]
        n, W = self.sizes[0], self.weights[0]
        self.J = W.new_zeros(sum(self.sizes), sum(self.sizes))
        self.J[:n, n:], self.J[n:, :n] = W, W.T

    def values_per_particle(self) -> int:
        return 4 * self.J.numel()

    def begin(self, layers: list[Units], moments: list[Moments | None]) -> State:
        (a, _), (b, _) = from_below(layers, self.weights, moments)
        field = torch.cat((b @ self.weights[0].T, a @ self.weights[0]), 1)
        return self._at(layers, field, torch.zeros_like(field))

    def step(self, layers: list[Units], state: PrintedState) -> tuple[State, Tensor]:
        (field, precision, residual), d = self._interaction(state), self.damping
        field, precision = (d * old + (1 - d) * new for old, new in zip(state, (field, precision), strict=False))
        return self._at(layers, field, precision), residual

    def moments(self, state: PrintedState) -> list[Moments]:
        return list(state.moments)

    def beliefs(self, layers: list[Units], state: PrintedState) -> tuple[list[Moments], list[Tilt]]:
        return list(state.moments), self._tilts(state.field, state.precision)

    def outcome(self, layers: list[Units], state: PrintedState) -> Outcome:
        tilts = self._tilts(state.field, state.precision)
        value = TAP().free_energy(self.machine, state.moments, tilts)
        return Outcome(tilts, self._interaction(state)[2], value)

    def unnormalizable(self, state: PrintedState) -> Tensor:
        return torch.zeros_like(state.field[:, 0], dtype=torch.bool)

    def _tilts(self, field: Tensor, precision: Tensor) -> list[Tilt]:
        return [Tilt(*parts) for parts in zip(field.split(self.sizes, 1), precision.split(self.sizes, 1), strict=True)]

    def _at(self, layers: list[Units], field: Tensor, precision: Tensor) -> PrintedState:
        """Apply the prior updates a₁ = f_a(B₁, A₁) and c₁ = f_c(B₁, A₁)."""
        tilts = self._tilts(field, precision)
        return PrintedState(field, precision, tuple(u.moments(tilt) for u, tilt in zip(layers, tilts, strict=True)))

    def _interaction(self, state: PrintedState) -> tuple[Tensor, Tensor, Tensor]:
        """Apply the interaction updates; return B₁, A₁ and the mean squared difference between a₁, c₁ and a₂, c₂."""
        a, c = (torch.cat(parts, 1) for parts in zip(*state.moments, strict=True))
        c = c.clamp(min=LEAST_VARIANCE)
        A2, B2 = 1 / c - state.precision, a / c - state.field
        C = torch.linalg.inv_ex(torch.diag_embed(A2) - self.J).inverse  # (K, N, N)
        a2, c2 = (C @ B2.unsqueeze(-1)).squeeze(-1), C.diagonal(dim1=1, dim2=2)
        residual = (a2 - a).square().mean(1) + (c2 - c).square().mean(1)
        return a2 / c2 - B2, 1 / c2 - A2, residual


@final
class PrintedAdaptiveTAP(Scheme):
    """Adaptive TAP exactly as printed in the paper, for RBMs whose units have finite moments under every tilt.

    Each sweep inverts the full matrix diag(A₂) − J for every particle and updates means and precisions together, which
    often fails to converge for trained machines. As in the paper, the gradient is TAP's expression −(aa' + Wcc')
    evaluated at the moments of adaptive TAP. Accordingly, the free energy is that of TAP at these moments, not the
    adaptive TAP estimate of −ln Z.

    Args:
        damping: Weight of the previous tilts in an update, at least 0 and less than 1 (default: 0.5).
    """

    can_be_captured = False

    def __init__(self, damping: float = 0.5) -> None:
        self.damping = damping

    def __repr__(self) -> str:
        return f"PrintedAdaptiveTAP(damping={self.damping})"

    def bind(self, machine: BoltzmannMachine) -> Process:
        return PrintedProcess(machine, self.damping)

    def free_energy(self, machine: BoltzmannMachine, moments: Sequence[Moments], tilts: Sequence[Tilt]) -> Tensor:
        return TAP().free_energy(machine, moments, tilts)
