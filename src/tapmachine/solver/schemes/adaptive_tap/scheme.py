"""Adaptive TAP: scheme, iteration and free energy [alg:rbmInfada].

Adaptive TAP matches two approximations, which have the same means a and variances c at a solution. In the first, each
unit follows its prior under a tilt (B, A). In the second, all units are jointly Gaussian: their variances are v without
the couplings J, and their covariance matrix with the couplings is C = (diag(1/v) − J)⁻¹. Expressed in v and in the
reaction κ of the neighbors, the equations remain finite for units without uncertainty, c = v = 0 (erratum E16):

    v = c/(1 − Ac),   κ = diag(J + JCJ),   A = −κ/(1 + vκ),   B = Ja + Aa.
"""

from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Received, Tilt
from tapmachine.machine import BoltzmannMachine
from tapmachine.solver.schemes.adaptive_tap.gaussian_side import GaussianSide, gaussian_side
from tapmachine.solver.schemes.adaptive_tap.layout import Layout
from tapmachine.solver.schemes.base import Scheme, refuse_mixed_states
from tapmachine.solver.schemes.process import Outcome, Process, State, from_below
from tapmachine.units import Units
from tapmachine.units.conditioned import lowest_precision

BEARABLE = 0.99  # largest fraction of a Gaussian unit's precision that the couplings may subtract
INNER_SWEEPS = 2  # sweeps over the means between two updates of the precisions


class AdaptiveState(NamedTuple):
    """State of the iteration: tilts and moments of all layers, next precisions, and a mask of failed particles."""

    tilts: tuple[Tilt, ...]
    moments: tuple[Moments, ...]
    precision: Tensor  # A of the next sweep, (K, N)
    direction: Tensor  # estimated eigenvector of the largest eigenvalue for each particle
    unnormalizable: Tensor


class AdaptiveProcess(Process):
    """Iteration that alternates between updates of the means at fixed precisions A and damped updates of A.

    At fixed A, sweeps over the layers lower the free energy, as in TAP. If means and precisions are updated together,
    as printed in the paper, the iteration is chaotic for trained machines.
    """

    def __init__(self, machine: BoltzmannMachine, damping: float) -> None:
        self.damping = damping
        self.layout = Layout(machine)
        self.couplings = gaussian_side(machine, self.layout)
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
        moving = self.layout.odd or self.layout.even  # the even layers already satisfy their equations
        mismatch = self._mismatch(layers, moments, state.precision, variance, moving)
        new = AdaptiveState(tuple(tilts), tuple(moments), precision, direction, failed)
        return new, torch.where(scale < 1, torch.inf, mismatch)

    def _settled(
        self, layer: Units, mean_field: Tensor, precision: Tensor, moments: Moments, tilt: Tilt
    ) -> tuple[Moments, Tilt]:
        """Return the moments and tilt of a layer that solve B = Ja + Aa.

        If units of the layer are coupled to each other, Ja is averaged with its previous value.
        """
        before = torch.as_tensor(tilt.field)
        if self.couplings.within_layers:
            mean_field = 0.5 * (mean_field + before - precision * moments.mean)
        reaction = -precision if precision.dim() == 2 else torch.diag_embed(-precision)
        _, field = layer.settle(Received(mean_field, reaction), before, self.root_steps)
        tilt = Tilt(field, precision)
        return layer.moments(tilt), tilt

    def _variances(self, moments: Sequence[Moments]) -> Tensor:  # (K, N)
        """Return the variances c of all units."""
        return self.layout.joined([variance for _, variance in moments])

    def _uncoupled(self, moments: Sequence[Moments], precision: Tensor) -> Tensor:
        """Return v = c/(1 − Ac), the variances of the Gaussian units without couplings."""
        c = self._variances(moments)
        return c / (1 - precision * c)

    def _precision(self, v: Tensor, reaction: Tensor) -> Tensor:
        """Return A = −κ/(1 + vκ), limited such that Gaussian units remain normalizable during the iteration."""
        return torch.maximum(-reaction / (1 + v * reaction), self.limit)

    def _mismatch(
        self,
        layers: list[Units],
        moments: Sequence[Moments],
        precision: Tensor,
        variance: Tensor,
        moving: Sequence[int],
    ) -> Tensor:  # (K,)
        """Return the mean squared difference between the moments of the two approximations.

        Args:
            layers: Layers of the machine.
            moments: Moments of all layers under their tilts.
            precision: Precisions A of the tilts, shape (K, N).
            variance: Variances of the coupled Gaussian units, shape (K, N).
            moving: Indices of the layers whose means may differ.
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
    """Compute F = Σ KL(tilted prior ‖ prior) − ½aJa + ½ΣAc + ½ ln det(1 − √v J √v) + ½Σ ln(c/v).

    F is stationary in the moments and tilts at a solution, so its gradient with respect to J is −½(aaᵀ + C).
    """
    value = torch.zeros(len(moments[0].mean), dtype=torch.float64, device=moments[0].mean.device)
    for layer, tilt, layer_moments in zip(layers, tilts, moments, strict=True):
        value = value + layer.divergence(tilt, layer_moments).sum(-1, dtype=torch.float64)
    mean_fields = [layout.mean_field(index, moments) for index in range(len(moments))]
    coupled = sum((Ja * mean).flatten(1).sum(1) for Ja, (mean, _) in zip(mean_fields, moments, strict=True))
    c = layout.joined([variance for _, variance in moments])
    precision = layout.joined(
        [torch.as_tensor(tilt.precision).expand_as(torch.as_tensor(tilt.field)) for tilt in tilts]
    )
    rest = 1 - precision * c  # c/v
    terms = 0.5 * (precision * c + rest.log()).sum(1, dtype=torch.float64)
    return value + terms - 0.5 * torch.as_tensor(coupled).double() + 0.5 * couplings.log_det(c / rest).double()


@final
class AdaptiveTAP(Scheme):
    """Adaptive TAP, whose reaction term accounts for correlations between couplings.

    TAP treats couplings as independent. For correlated couplings, as in trained machines, adaptive TAP is more
    accurate. It inverts one matrix per particle and sweep; in a layered machine, the matrix has the size of the smaller
    of two groups, the units of even layers and the units of odd layers. All unit types are supported; the states of
    categorical units are treated as separate units.

    The iteration may not converge for large machines whose units are strongly correlated, such as a machine of MNIST
    digits trained by default; conditioned on observations, most machines converge.

    Args:
        damping: Weight of the previous precisions in an update, at least 0 and less than 1 (default: 0.7).

    Example:
        >>> import torch
        >>> from tapmachine import TAP, AdaptiveTAP, Spin, exact_log_partition, pairwise, solve
        >>> magnet = pairwise(Spin(8).double(), weights=0.1 * (torch.ones(8, 8) - torch.eye(8)).double())
        >>> [round(float(-solve(magnet, scheme=s).free_energy - exact_log_partition(magnet)), 4)
        ...  for s in (TAP(), AdaptiveTAP())]
        [-0.0829, -0.0055]
    """

    can_be_captured = False

    def __init__(self, damping: float = 0.7) -> None:
        if not 0 <= damping < 1:
            raise ValueError(f"damping is {damping!r}; expected a number in [0, 1)")
        self.damping = damping

    def __repr__(self) -> str:
        return f"AdaptiveTAP(damping={self.damping})"

    def bind(self, machine: BoltzmannMachine) -> Process:
        refuse_mixed_states(machine, "AdaptiveTAP")
        return AdaptiveProcess(machine, self.damping)

    def free_energy(self, machine: BoltzmannMachine, moments: Sequence[Moments], tilts: Sequence[Tilt]) -> Tensor:
        layout = Layout(machine)
        couplings = gaussian_side(machine, layout, differentiable=True)
        return free_energy(list(machine.layers), layout, couplings, moments, tilts)
