"""Block coordinate descent for layered machines, which alternates between odd and even layers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, final

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Received, Tilt
from tapmachine.solver.schemes.couplings import Couplings, Incoming, free_energy
from tapmachine.solver.schemes.process import MeanFieldProcess, choose, from_below
from tapmachine.units import Units

if TYPE_CHECKING:
    from tapmachine.solver.schemes.mean_field import MeanField


class LayeredState(NamedTuple):
    """State of the iteration after a sweep."""

    moments: tuple[Moments, ...]  # moments of all layers
    tilts: tuple[Tilt, ...]  # tilts that produce these moments
    received: tuple[Incoming, ...]  # fields on the odd layers, computed from these moments
    free_energy: Tensor  # computed only if sweeps are extrapolated
    reach: Tensor  # upper limit of the extrapolation factor α
    unnormalizable: Tensor  # mask of failed particles


INITIAL_REACH = 4.0
SMALLEST_REACH = 2.0


@final
class LayeredDescent(MeanFieldProcess):
    """Block coordinate descent with extrapolation.

    Each half-step moves the odd layers (or the even layers) to the exact minimum of F with the other layers fixed, so F
    never increases. Let x₀, x₁ and x₂ be the fields on the odd layers in two successive sweeps. The third sweep starts
    from the squared extrapolation x₀ + 2αr + α²v, with r = x₁ − x₀, v = (x₂ − x₁) − r and α = |r|/|v| (Varadhan and
    Roland 2008). The extrapolation is accepted for the particles whose F it lowers. The upper limit of α grows with
    each success.
    """

    def __init__(self, equations: "MeanField", couplings: Couplings, accelerate: bool = True) -> None:
        super().__init__(equations, couplings)
        self.accelerate = accelerate
        self.sweeps_per_step = 3

    def begin(self, layers: list[Units], moments: list[Moments | None]) -> LayeredState:
        first = from_below(layers, self.couplings.weights, moments)
        no_tilts = tuple(Tilt(torch.zeros_like(mean), 0.0) for mean, _ in first)
        received = tuple(self.equations.incoming(self.couplings, index, first) for index in self.odd)
        reach = torch.full_like(first[0].mean.flatten(1)[:, 0], INITIAL_REACH)
        value = torch.full_like(reach, torch.inf, dtype=torch.float64)
        start = LayeredState(tuple(first), no_tilts, received, value, reach, torch.zeros_like(reach, dtype=torch.bool))
        return self.sweep(layers, start, None if self.root_steps is None else 4 * self.root_steps)

    def moments(self, state: LayeredState) -> list[Moments]:
        return list(state.moments)

    def beliefs(self, layers: list[Units], state: LayeredState) -> tuple[list[Moments], list[Tilt]]:
        return list(state.moments), list(state.tilts)

    def step(self, layers: list[Units], state: LayeredState) -> tuple[LayeredState, Tensor]:
        first = self.sweep(layers, state, self.root_steps)
        second = self.sweep(layers, first, self.root_steps)
        if not self.accelerate:
            third = self.sweep(layers, second, self.root_steps)
            return third, self._residual(layers, third)
        extrapolated, at_limit = self._extrapolate(state.received, first.received, second.received, state.reach)
        third = self.sweep(layers, second._replace(received=extrapolated), self.root_steps)
        before, after = self._value(layers, second), self._value(layers, third)
        noise = 100 * torch.finfo(state.reach.dtype).eps
        lower = after <= before + noise * (1 + before.abs())
        longer = torch.where(at_limit, 2 * state.reach, state.reach)
        shorter = (0.5 * state.reach).clamp(min=SMALLEST_REACH)
        kept: LayeredState = choose(
            lower,
            third._replace(free_energy=after, reach=longer),
            second._replace(free_energy=before, reach=shorter),
        )
        return kept, self._residual(layers, kept)

    def sweep(self, layers: list[Units], state: LayeredState, root_steps: int | None) -> LayeredState:
        """Do one sweep without extrapolation, first over the odd layers and then over the even layers."""
        tilts, failed = list(state.tilts), state.unnormalizable
        fields = [torch.as_tensor(tilt.field) for tilt in state.tilts]
        moments = [Moments(field, field) for field in fields]  # placeholders: no layer is read before it is written
        self.settle(layers, self.odd, moments, tilts, state.received, root_steps)
        at_even = [self.equations.incoming(self.couplings, index, moments) for index in self.even]
        self.settle(layers, self.even, moments, tilts, at_even, root_steps)
        for index, incoming in zip((*self.odd, *self.even), (*state.received, *at_even), strict=True):
            failed = self.add_failures(failed, index, Tilt(*incoming), moments[index])
        at_odd = tuple(self.equations.incoming(self.couplings, index, moments) for index in self.odd)
        return LayeredState(tuple(moments), tuple(tilts), at_odd, state.free_energy, state.reach, failed)

    def settle(
        self,
        layers: list[Units],
        group: tuple[int, ...],
        moments: list[Moments],
        tilts: list[Tilt],
        received: Sequence[Incoming],
        root_steps: int | None,
    ) -> None:
        """Minimize F over a group of layers by solving B = θ − κa, where a is the mean under the field B.

        The root search starts from the fields in `tilts`. The lists `moments` and `tilts` are updated in place.
        """
        for index, incoming in zip(group, received, strict=True):
            start = torch.as_tensor(tilts[index].field)
            moments[index], field = layers[index].settle(Received(*incoming), start, root_steps)
            tilts[index] = Tilt(field, layers[index].reaction_precision(incoming.variance))

    def _value(self, layers: list[Units], state: LayeredState) -> Tensor:
        return free_energy(layers, self.couplings, state.moments, state.tilts, state.received)

    def _extrapolate(
        self, x0: Sequence[Incoming], x1: Sequence[Incoming], x2: Sequence[Incoming], reach: Tensor
    ) -> tuple[tuple[Incoming, ...], Tensor]:
        change, bend = torch.zeros_like(reach), torch.zeros_like(reach)
        differences = []
        for old, middle, new in zip(x0, x1, x2, strict=True):
            first = [b - a for a, b in zip(old, middle, strict=True)]
            second = [(c - b).sub_(r) for b, c, r in zip(middle, new, first, strict=True)]
            change = change + sum(z.flatten(1).square().sum(-1) for z in first)
            bend = bend + sum(z.flatten(1).square().sum(-1) for z in second)
            differences.append((first, second))
        smallest = torch.finfo(reach.dtype).tiny
        alpha = (change / bend.clamp(min=smallest)).sqrt()
        at_limit = alpha >= reach
        alpha = torch.minimum(alpha, reach).clamp(min=1.0)
        result = []
        for old, new, (first, second) in zip(x0, x2, differences, strict=True):
            size = alpha.view(-1, *[1] * (old.mean.dim() - 1))
            mean = old.mean + 2 * size * first[0] + size**2 * second[0]
            variance = new.variance  # an extrapolated matrix may not be a covariance
            if old.variance.shape == old.mean.shape:
                variance = (old.variance + 2 * size * first[1] + size**2 * second[1]).clamp(min=0)
            result.append(Incoming(mean, variance))
        return tuple(result), at_limit

    def _residual(self, layers: list[Units], state: LayeredState) -> Tensor:
        """Compute the residual from the odd layers; the even layers satisfy their equations after a sweep."""
        moved = list(state.moments)
        for index, incoming in zip(self.odd, state.received, strict=True):
            moved[index] = layers[index].respond(incoming.mean, incoming.variance, state.moments[index].mean)
        return self.change(list(state.moments), moved, only=self.odd)
