"""Adaptive TAP: units with their own priors on one side, all couplings in a Gaussian on the other [alg:rbmInfada].

Both sides have the same means a and variances c at a solution. On the one, each unit is its prior under a tilt (B, A).
On the other it is Gaussian, of variance v before the couplings J act, and C = (diag(1/v) − J)⁻¹ after. Written in v and
in the reaction κ of the others, nothing diverges where a unit is certain, c = v = 0 (erratum E16):

    v = c/(1 − Ac),   κ = diag(J + JCJ),   A = −κ/(1 + vκ),   B = Ja + Aa.
"""

from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.inference.gaussian_side import Bipartite, Dense, GaussianSide, SelfAveraging
from tapmachine.inference.mean_field import Scheme
from tapmachine.inference.process import Outcome, Process, State, from_below
from tapmachine.machine import BoltzmannMachine
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
    unnormalisable: Tensor


class AdaptiveProcess(Process):
    """The iteration: means with the precisions A held, layer by layer as for TAP; then new precisions, damped.

    With A held the means descend to a solution; to update both at once, as printed, is chaotic on trained machines.
    """

    def __init__(self, machine: BoltzmannMachine, damping: float, self_averaging: bool) -> None:
        self.damping = damping
        self.can_be_captured = self_averaging  # matrix factorisations wait for the device
        self.layout = _Layout(machine)
        self.couplings = _couplings(machine, self.layout, self_averaging)
        limits = [lowest_precision(layer, BEARABLE) for layer in machine.units()]
        self.limit = self.layout.joined([limit.unsqueeze(0) for limit in limits])

    def values_per_particle(self) -> int:
        return 16 * int(sum(self.layout.sizes)) + self.couplings.values_per_particle()

    def begin(self, layers: list[Units], moments: list[Moments | None]) -> State:
        started = from_below(layers, self.layout.weights, moments)
        c = self.layout.joined([own.variance for own in started])
        tilts = [Tilt(torch.zeros_like(own.mean), torch.zeros_like(own.mean)) for own in started]
        v = c if not isinstance(self.couplings, SelfAveraging) else self.couplings.averaged(c)
        scale, direction = self.couplings.safe(v, self.couplings.first_direction(v))
        v = v * scale.unsqueeze(1)
        precision = self._precision(v, self.couplings.reaction(v))
        failed = torch.zeros_like(c[:, 0], dtype=torch.bool)
        return self._sweep(layers, AdaptiveState(tuple(tilts), tuple(started), precision, direction, failed))[0]

    def step(self, layers: list[Units], state: AdaptiveState) -> tuple[State, Tensor]:
        return self._sweep(layers, state)

    def moments(self, state: AdaptiveState) -> list[Moments]:
        return list(state.moments)

    def beliefs(self, layers: list[Units], state: AdaptiveState) -> tuple[list[Moments], list[Tilt]]:
        return list(state.moments), list(state.tilts)

    def unnormalisable(self, state: AdaptiveState) -> Tensor:
        return state.unnormalisable

    def outcome(self, layers: list[Units], state: AdaptiveState) -> Outcome:
        precision = self.layout.joined([torch.as_tensor(tilt.precision) for tilt in state.tilts])
        v = self._uncoupled(state.moments, precision)
        value = _free_energy(layers, self.layout, self.couplings, state.moments, state.tilts)
        variance = v * (1 + v * self.couplings.reaction(v))
        everywhere = range(len(layers))
        mismatch = self._mismatch(layers, state.moments, precision, variance, everywhere)
        return Outcome(list(state.tilts), mismatch, value)

    def _sweep(self, layers: list[Units], state: AdaptiveState) -> tuple[AdaptiveState, Tensor]:
        moments, tilts, failed = list(state.moments), list(state.tilts), state.unnormalisable
        precisions = self.layout.split(state.precision)
        for _ in range(INNER_SWEEPS):
            for number in (*self.layout.odd, *self.layout.even):
                field = self.layout.field(number, moments)
                moments[number], tilts[number] = self._settled(
                    layers[number], field, precisions[number], moments[number], tilts[number]
                )
        for layer, tilt in zip(layers, tilts, strict=True):
            failed = failed | ~layer.normalisable(tilt).all(1)
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
        self, units: Units, field: Tensor, precision: Tensor, moments: Moments, tilt: Tilt
    ) -> tuple[Moments, Tilt]:
        """A layer at the root of B = Ja + A·mean; with couplings among its units, at that of a field halfway there."""
        before = torch.as_tensor(tilt.field)
        if isinstance(self.couplings, Dense):
            field = 0.5 * (field + before - precision * moments.mean)
        reaction = -precision if precision.dim() == 2 else torch.diag_embed(-precision)
        _, own = units.settle(field, reaction, before, steps=self.root_steps)
        tilt = Tilt(own, precision)
        return units.moments(tilt), tilt

    def _uncoupled(self, moments: Sequence[Moments], precision: Tensor) -> Tensor:
        """v."""
        c = self.layout.joined([own.variance for own in moments])
        c = self.couplings.averaged(c) if isinstance(self.couplings, SelfAveraging) else c
        return c / (1 - precision * c)

    def _precision(self, v: Tensor, reaction: Tensor) -> Tensor:
        """A = −κ/(1 + vκ), within what a unit on the whole real line can bear on the way."""
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
        c = self.layout.joined([own.variance for own in moments])
        c = self.couplings.averaged(c) if isinstance(self.couplings, SelfAveraging) else c
        total = (variance - c).square().sum(1)
        for number in moving:
            a = moments[number].mean
            field = self.layout.field(number, moments) + precisions[number] * a
            moved = layers[number].moments(Tilt(field, precisions[number])).mean
            total = total + (moved - a).flatten(1).square().sum(1)
        return total / c.shape[1]


class _Layout:
    """Layers with even numbers first, then those with odd ones, all units side by side."""

    def __init__(self, machine: BoltzmannMachine) -> None:
        layers = machine.units()
        self.even, self.odd = range(0, len(layers), 2), range(1, len(layers), 2)
        self.order = [*self.even, *self.odd]
        self.shapes = [layer.state_shape for layer in layers]
        self.sizes = [machine.sizes[number] for number in self.order]
        self.n_even = sum(machine.sizes[0::2])
        self.weights = [weights.detach() for weights in machine.weights]
        self.senders: list[list[tuple[int, Tensor]]] = [[] for _ in layers]
        for below, above, coupling in machine.edges():
            self.senders[above].append((below, coupling))
            if below != above:
                self.senders[below].append((above, coupling.T))

    def joined(self, parts: Sequence[Tensor]) -> Tensor:  # (K, N)
        """Numbers of all layers, side by side."""
        return torch.cat([parts[number].flatten(1) for number in self.order], 1)

    def split(self, z: Tensor) -> list[Tensor]:
        """The reverse."""
        parts: list[Tensor | None] = [None] * len(self.order)
        for number, part in zip(self.order, z.split(self.sizes, 1), strict=True):
            parts[number] = part.reshape(len(z), *self.shapes[number])
        return [part for part in parts if part is not None]

    def field(self, layer: int, moments: Sequence[Moments]) -> Tensor:
        """Ja of a layer, differentiable in the couplings."""
        first, *others = (moments[sender].mean.flatten(1) @ weights for sender, weights in self.senders[layer])
        total: Tensor = sum(others, first)
        return total.view(-1, *self.shapes[layer])

    def between(self, machine: BoltzmannMachine) -> Tensor:  # (N_even, N_odd), differentiable
        """All couplings of a machine with layers."""
        rows = []
        for below in self.even:
            blocks = []
            for above in self.odd:
                if above == below + 1:
                    blocks.append(machine.coupling(below))
                elif above == below - 1:
                    blocks.append(machine.coupling(above).T)
                else:
                    like = machine.weights[0]
                    blocks.append(like.new_zeros(machine.sizes[below], machine.sizes[above]))
            rows.append(torch.cat(blocks, 1))
        return torch.cat(rows)


def _couplings(
    machine: BoltzmannMachine, layout: _Layout, self_averaging: bool, differentiable: bool = False
) -> GaussianSide:
    weights = machine.coupling(0) if machine.is_pairwise else layout.between(machine)
    weights = weights if differentiable else weights.detach()
    if machine.is_pairwise:
        if self_averaging:
            raise ValueError("AdaptiveTAP: self_averaging needs layers; it is not for a pairwise machine")
        return Dense(weights)
    return SelfAveraging(weights) if self_averaging else Bipartite(weights)


def _free_energy(
    layers: Sequence[Units],
    layout: _Layout,
    couplings: GaussianSide,
    moments: Sequence[Moments],
    tilts: Sequence[Tilt],
) -> Tensor:  # (K,), float64
    """F = Σ KL(tilted prior ‖ prior) − ½aJa + ½ΣAc + ½ ln det(1 − √v J √v) + ½Σ ln(c/v).

    It is stationary in moments and tilts at a solution, so that its gradient in J is −½(aaᵀ + C).
    """
    total = torch.zeros(len(moments[0].mean), dtype=torch.float64, device=moments[0].mean.device)
    for layer, tilt, own in zip(layers, tilts, moments, strict=True):
        total = total + layer.divergence(tilt, own).sum(-1, dtype=torch.float64)
    coupled = sum((layout.field(number, moments) * own.mean).flatten(1).sum(1) for number, own in enumerate(moments))
    c = layout.joined([own.variance for own in moments])
    precision = layout.joined(
        [torch.as_tensor(tilt.precision).expand_as(torch.as_tensor(tilt.field)) for tilt in tilts]
    )
    spread = couplings.averaged(c) if isinstance(couplings, SelfAveraging) else c
    rest = 1 - precision * spread
    terms = 0.5 * (precision * spread + rest.log()).sum(1, dtype=torch.float64)
    return total + terms - 0.5 * torch.as_tensor(coupled).double() + 0.5 * couplings.log_det(spread / rest).double()


@final
class AdaptiveTAP(Scheme):
    """Adaptive TAP: the reaction of the couplings on each unit adapts to the couplings as they are, correlated or not.

    TAP takes couplings for independent; on machines with correlated ones, such as trained ones, this is closer, at the
    price of a matrix inverse a particle and sweep: of the size of the smaller half of a layered machine. For all unit
    types; the states of categorical units are taken for units of their own.

    Args:
        damping: how much of the last tilts is kept, from 0 to less than 1.
        self_averaging: one variance for all units of even layers and one for all of odd ones: no inverse, but the
            singular values of W once. Right only for couplings without structure; on trained machines TAP is better.

    Example:
        >>> import torch
        >>> from tapmachine import TAP, AdaptiveTAP, Spin, exact_log_partition, pairwise, solve
        >>> magnet = pairwise(Spin(8).double(), weights=0.1 * (torch.ones(8, 8) - torch.eye(8)).double())
        >>> [round(float(-solve(magnet, scheme=s).free_energy - exact_log_partition(magnet)), 4)
        ...  for s in (TAP(), AdaptiveTAP())]
        [-0.0829, -0.0055]
    """

    can_be_captured = False

    def __init__(self, damping: float = 0.7, self_averaging: bool = False) -> None:
        if not 0 <= damping < 1:
            raise ValueError(f"damping is {damping!r}; it must be at least 0 and less than 1")
        self.damping, self.self_averaging = damping, self_averaging

    def __repr__(self) -> str:
        return f"AdaptiveTAP(damping={self.damping}{', self_averaging=True' if self.self_averaging else ''})"

    def bind(self, machine: BoltzmannMachine) -> Process:
        return AdaptiveProcess(machine, self.damping, self.self_averaging)

    def free_energy(self, machine: BoltzmannMachine, moments: Sequence[Moments], tilts: Sequence[Tilt]) -> Tensor:
        layout = _Layout(machine)
        couplings = _couplings(machine, layout, self.self_averaging, differentiable=True)
        return _free_energy(machine.units(), layout, couplings, moments, tilts)
