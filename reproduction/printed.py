"""Adaptive TAP exactly as printed in the paper [alg:rbmInfada], for comparison."""

from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.machine import BoltzmannMachine
from tapmachine.solver.process import Outcome, Process, State, from_below
from tapmachine.solver.schemes.adaptive_tap.layout import Layout
from tapmachine.solver.schemes.base import Scheme, refuse_mixed_states
from tapmachine.solver.schemes.mean_field import TAP
from tapmachine.units import Units

LEAST_VARIANCE = 1e-6  # for smaller variances c, rounding errors of 1/c would dominate A₁ = 1/C_ii − A₂


class PrintedState(NamedTuple):
    """State of the iteration: fields B₁, precisions A₁, the resulting moments, and a mask of failed particles."""

    field: Tensor  # (K, N)
    precision: Tensor  # (K, N)
    moments: tuple[Moments, ...]
    unnormalizable: Tensor


class PrintedProcess(Process):
    """Iteration of [alg:rbmInfada], with the fields H as part of the priors, which does not change the moments."""

    can_be_captured = False

    def __init__(self, machine: BoltzmannMachine, damping: float) -> None:
        self.machine, self.damping, self.layout = machine, damping, Layout(machine)
        with torch.no_grad():
            if machine.is_pairwise:
                self.J = machine.coupling(0).detach()
            else:
                W, n = self.layout.between(machine).detach(), sum(machine.sizes)
                self.J = W.new_zeros(n, n)
                self.J[: self.layout.n_even, self.layout.n_even :] = W
                self.J[self.layout.n_even :, : self.layout.n_even] = W.T

    def values_per_particle(self) -> int:
        return 4 * self.J.numel()

    def begin(self, layers: list[Units], moments: list[Moments | None]) -> State:
        first = from_below(layers, self.layout.weights, moments)
        field = self.layout.joined([self.layout.mean_field(index, first) for index in range(len(layers))])
        failed = torch.zeros_like(field[:, 0], dtype=torch.bool)
        return self._at(layers, field, torch.zeros_like(field), failed)

    def step(self, layers: list[Units], state: PrintedState) -> tuple[State, Tensor]:
        field, precision, residual = self._interaction(state)
        d = self.damping
        new = self._at(
            layers,
            d * state.field + (1 - d) * field,
            d * state.precision + (1 - d) * precision,
            state.unnormalizable,
        )
        return new, residual

    def moments(self, state: PrintedState) -> list[Moments]:
        return list(state.moments)

    def beliefs(self, layers: list[Units], state: PrintedState) -> tuple[list[Moments], list[Tilt]]:
        return list(state.moments), self._tilts(state)

    def outcome(self, layers: list[Units], state: PrintedState) -> Outcome:
        tilts = self._tilts(state)
        value = TAP().free_energy(self.machine, state.moments, tilts)
        return Outcome(tilts, self._interaction(state)[2], value)

    def unnormalizable(self, state: PrintedState) -> Tensor:
        return state.unnormalizable

    def _tilts(self, state: PrintedState) -> list[Tilt]:
        parts = zip(self.layout.split(state.field), self.layout.split(state.precision), strict=True)
        return [Tilt(field, precision) for field, precision in parts]

    def _at(self, layers: list[Units], field: Tensor, precision: Tensor, failed: Tensor) -> PrintedState:
        """Apply the prior updates a₁ = f_a(B₁, A₁) and c₁ = f_c(B₁, A₁)."""
        state = PrintedState(field, precision, (), failed)
        moments = []
        for layer, tilt in zip(layers, self._tilts(state), strict=True):
            failed = failed | ~layer.normalizable(tilt).all(1)
            moments.append(layer.moments(tilt))
        return PrintedState(field, precision, tuple(moments), failed)

    def _interaction(self, state: PrintedState) -> tuple[Tensor, Tensor, Tensor]:
        """Apply the interaction updates; return B₁, A₁ and the mean squared difference between a₁, c₁ and a₂, c₂."""
        a = self.layout.joined([mean for mean, _ in state.moments])
        c = self.layout.joined([variance for _, variance in state.moments]).clamp(min=LEAST_VARIANCE)
        A2, B2 = 1 / c - state.precision, a / c - state.field
        C = torch.linalg.inv_ex(torch.diag_embed(A2) - self.J).inverse  # (K, N, N)
        a2, c2 = (C @ B2.unsqueeze(-1)).squeeze(-1), C.diagonal(dim1=1, dim2=2)
        residual = (a2 - a).square().mean(1) + (c2 - c).square().mean(1)
        return a2 / c2 - B2, 1 / c2 - A2, residual


@final
class PrintedAdaptiveTAP(Scheme):
    """Adaptive TAP exactly as printed in the paper, for comparison with `AdaptiveTAP`.

    Each sweep inverts the full matrix diag(A₂) − J for every particle and updates means and precisions together, which
    often fails to converge for trained machines. As in the paper, the gradient is TAP's expression −(aa' + Wcc')
    evaluated at the moments of adaptive TAP. Accordingly, the free energy is that of TAP at these moments, not the
    adaptive TAP estimate of −ln Z. For all other purposes, use `AdaptiveTAP`.

    Args:
        damping: Weight of the previous tilts in an update, at least 0 and less than 1 (default: 0.5).
    """

    can_be_captured = False

    def __init__(self, damping: float = 0.5) -> None:
        if not 0 <= damping < 1:
            raise ValueError(f"damping is {damping!r}; expected a number in [0, 1)")
        self.damping = damping

    def __repr__(self) -> str:
        return f"PrintedAdaptiveTAP(damping={self.damping})"

    def bind(self, machine: BoltzmannMachine) -> Process:
        refuse_mixed_states(machine, "PrintedAdaptiveTAP")
        if any(layer.is_categorical for layer in machine.layers):
            raise ValueError("PrintedAdaptiveTAP does not support Categorical units; use AdaptiveTAP()")
        return PrintedProcess(machine, self.damping)

    def free_energy(self, machine: BoltzmannMachine, moments: Sequence[Moments], tilts: Sequence[Tilt]) -> Tensor:
        return TAP().free_energy(machine, moments, tilts)
