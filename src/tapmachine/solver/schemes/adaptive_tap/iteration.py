"""Adaptive TAP: units with their own priors on one side, all couplings in a Gaussian on the other [alg:rbmInfada].

Both sides have the same means a and variances c at a solution. On the one, each unit is its prior under a tilt (B, A).
On the other it is Gaussian, of variance v before the couplings J act, and C = (diag(1/v) − J)⁻¹ after. Written in v and
in the reaction κ of the others, nothing diverges where a unit is certain, c = v = 0 (erratum E16):

    v = c/(1 − Ac),   κ = diag(J + JCJ),   A = −κ/(1 + vκ),   B = Ja + Aa.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.machine import BoltzmannMachine
from tapmachine.solver.process import Outcome, Process, State, from_below
from tapmachine.solver.schemes.adaptive_tap.gaussian_side import GaussianSide, gaussian_side
from tapmachine.solver.schemes.adaptive_tap.layout import Layout
from tapmachine.units import Units
from tapmachine.units.conditioned import lowest_precision

BEARABLE = 0.99  # share of a Gaussian unit's precision that the couplings may take off
INNER_SWEEPS = 2  # of means, for each new precision


class AdaptiveState(NamedTuple):
    """The tilts and moments of all layers, the precisions of the next sweep, and which particles failed."""

    tilts: tuple[Tilt, ...]
    moments: tuple[Moments, ...]
    precision: Tensor  # A of the next sweep, (K, N)
    direction: Tensor  # of the largest eigenvalue, for each particle
    unnormalizable: Tensor


class AdaptiveProcess(Process):
    """The iteration: means with the precisions A held, layer by layer as for TAP; then new precisions, damped.

    With A held the means descend to a solution; to update both at once, as printed, is chaotic on trained machines.
    """

    def __init__(self, machine: BoltzmannMachine, damping: float, self_averaging: bool) -> None:
        self.damping = damping
        self.layout = Layout(machine)
        self.couplings = gaussian_side(machine, self.layout, self_averaging)
        self.can_be_captured = self.couplings.can_be_captured
        limits = [lowest_precision(layer, BEARABLE) for layer in machine.layers]
        self.limit = self.layout.joined([limit.unsqueeze(0) for limit in limits])

    def values_per_particle(self) -> int:
        return 16 * int(sum(self.layout.sizes)) + self.couplings.values_per_particle()

    def begin(self, layers: list[Units], moments: list[Moments | None]) -> State:
        first = from_below(layers, self.layout.weights, moments)
        tilts = [Tilt(torch.zeros_like(mean), torch.zeros_like(mean)) for mean, _ in first]
        v = self._variances(first)
        scale, direction = self.couplings.safe(v, self.couplings.first_direction(v))
        v = v * scale.unsqueeze(1)
        precision = self._precision(v, self.couplings.reaction(v))
        failed = torch.zeros_like(v[:, 0], dtype=torch.bool)
        return self._sweep(layers, AdaptiveState(tuple(tilts), tuple(first), precision, direction, failed))[0]

    def step(self, layers: list[Units], state: AdaptiveState) -> tuple[State, Tensor]:
        return self._sweep(layers, state)

    def moments(self, state: AdaptiveState) -> list[Moments]:
        return list(state.moments)

    def beliefs(self, layers: list[Units], state: AdaptiveState) -> tuple[list[Moments], list[Tilt]]:
        return list(state.moments), list(state.tilts)

    def unnormalizable(self, state: AdaptiveState) -> Tensor:
        return state.unnormalizable

    def outcome(self, layers: list[Units], state: AdaptiveState) -> Outcome:
        precision = self.layout.joined([torch.as_tensor(tilt.precision) for tilt in state.tilts])
        v = self._uncoupled(state.moments, precision)
        value = free_energy(layers, self.layout, self.couplings, state.moments, state.tilts)
        variance = v * (1 + v * self.couplings.reaction(v))
        everywhere = range(len(layers))
        mismatch = self._mismatch(layers, state.moments, precision, variance, everywhere)
        return Outcome(list(state.tilts), mismatch, value)

    def _sweep(self, layers: list[Units], state: AdaptiveState) -> tuple[AdaptiveState, Tensor]:
        moments, tilts, failed = list(state.moments), list(state.tilts), state.unnormalizable
        precisions = self.layout.split(state.precision)
        for _ in range(INNER_SWEEPS):
            for index in (*self.layout.odd, *self.layout.even):
                mean_field = self.layout.mean_field(index, moments)
                moments[index], tilts[index] = self._settled(
                    layers[index], mean_field, precisions[index], moments[index], tilts[index]
                )
        for layer, tilt in zip(layers, tilts, strict=True):
            failed = failed | ~layer.normalizable(tilt).all(1)
        v = self._uncoupled(moments, state.precision)
        scale, direction = self.couplings.safe(v, state.direction)
        v = v * scale.unsqueeze(1)
        reaction = self.couplings.reaction(v)
        target = self._precision(v, reaction)
        precision = self.damping * state.precision + (1 - self.damping) * target
        variance = v * (1 + v * reaction)
        moving = self.layout.odd or self.layout.even  # the even layers are at their root
        mismatch = self._mismatch(layers, moments, state.precision, variance, moving)
        new = AdaptiveState(tuple(tilts), tuple(moments), precision, direction, failed)
        return new, torch.where(scale < 1, torch.inf, mismatch)

    def _settled(
        self, layer: Units, mean_field: Tensor, precision: Tensor, moments: Moments, tilt: Tilt
    ) -> tuple[Moments, Tilt]:
        """A layer at the root of B = Ja + Aa; with couplings within the layer, Ja moves only halfway."""
        before = torch.as_tensor(tilt.field)
        if self.couplings.within_layers:
            mean_field = 0.5 * (mean_field + before - precision * moments.mean)
        reaction = -precision if precision.dim() == 2 else torch.diag_embed(-precision)
        _, field = layer.settle(mean_field, reaction, before, steps=self.root_steps)
        tilt = Tilt(field, precision)
        return layer.moments(tilt), tilt

    def _variances(self, moments: Sequence[Moments]) -> Tensor:  # (K, N)
        """c of all units, averaged where the Gaussian side knows averages only."""
        return self.couplings.averaged(self.layout.joined([variance for _, variance in moments]))

    def _uncoupled(self, moments: Sequence[Moments], precision: Tensor) -> Tensor:
        """v = c/(1 − Ac), the variances before the couplings act."""
        c = self._variances(moments)
        return c / (1 - precision * c)

    def _precision(self, v: Tensor, reaction: Tensor) -> Tensor:
        """A = −κ/(1 + vκ), limited so that Gaussian units stay normalizable on the way."""
        return torch.maximum(-reaction / (1 + v * reaction), self.limit)

    def _mismatch(
        self,
        layers: list[Units],
        moments: Sequence[Moments],
        precision: Tensor,
        variance: Tensor,
        moving: Sequence[int],
    ) -> Tensor:  # (K,)
        """The mean squared difference of the moments of both sides.

        Args:
            layers, moments, precision: of the side of the units.
            variance: of the Gaussian side.
            moving: layers whose means may differ.
        """
        precisions = self.layout.split(precision)
        c = self._variances(moments)
        total = (variance - c).square().sum(1)
        for index in moving:
            a = moments[index].mean
            field = self.layout.mean_field(index, moments) + precisions[index] * a  # B = Ja + Aa
            moved = layers[index].moments(Tilt(field, precisions[index])).mean
            total = total + (moved - a).flatten(1).square().sum(1)
        return total / c.shape[1]


def free_energy(
    layers: Sequence[Units],
    layout: Layout,
    couplings: GaussianSide,
    moments: Sequence[Moments],
    tilts: Sequence[Tilt],
) -> Tensor:  # (K,), float64
    """F = Σ KL(tilted prior ‖ prior) − ½aJa + ½ΣAc + ½ ln det(1 − √v J √v) + ½Σ ln(c/v).

    It is stationary in moments and tilts at a solution, so that its gradient in J is −½(aaᵀ + C).
    """
    value = torch.zeros(len(moments[0].mean), dtype=torch.float64, device=moments[0].mean.device)
    for layer, tilt, layer_moments in zip(layers, tilts, moments, strict=True):
        value = value + layer.divergence(tilt, layer_moments).sum(-1, dtype=torch.float64)
    mean_fields = [layout.mean_field(index, moments) for index in range(len(moments))]
    coupled = sum((Ja * mean).flatten(1).sum(1) for Ja, (mean, _) in zip(mean_fields, moments, strict=True))
    c = couplings.averaged(layout.joined([variance for _, variance in moments]))
    precision = layout.joined(
        [torch.as_tensor(tilt.precision).expand_as(torch.as_tensor(tilt.field)) for tilt in tilts]
    )
    rest = 1 - precision * c  # c/v
    terms = 0.5 * (precision * c + rest.log()).sum(1, dtype=torch.float64)
    return value + terms - 0.5 * torch.as_tensor(coupled).double() + 0.5 * couplings.log_det(c / rest).double()
