"""Machines with layers: every other layer at a time, at its exact minimum."""

from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.inference.couplings import Couplings, Incoming, free_energy
from tapmachine.inference.process import Equations, MeanFieldProcess, choose, from_below
from tapmachine.units import Units


class LayeredState(NamedTuple):
    """Moments of all layers and the tilts they arise from, what the odd layers receive next, F, how far to extrapolate,
    and which particles failed. F is only known where sweeps are extrapolated.
    """

    moments: tuple[Moments, ...]
    tilts: tuple[Tilt, ...]
    received: tuple[Incoming, ...]
    free_energy: Tensor
    reach: Tensor
    unnormalisable: Tensor


class _Sweep(NamedTuple):
    moments: tuple[Moments, ...]
    tilts: tuple[Tilt, ...]
    received: tuple[Incoming, ...]  # by the odd layers, from these moments
    unnormalisable: Tensor  # in this sweep or before


INITIAL_REACH = 4.0
SMALLEST_REACH = 2.0


@final
class LayeredDescent(MeanFieldProcess):
    """Implicit half-steps: all odd layers at their exact minimum with the even ones fixed, then the even layers.

    Every half-step lowers F. After two sweeps x₀ → x₁ → x₂ of what the odd layers receive, the third starts from the
    squared extrapolation x₀ + 2αr + α²v with r = x₁ − x₀, v = (x₂ − x₁) − r and α = |r|/|v| (Varadhan and Roland 2008),
    and is kept for the particles whose F it lowers. α is limited to a reach that grows with success.
    """

    def __init__(self, equations: Equations, couplings: Couplings, accelerate: bool = True) -> None:
        super().__init__(equations, couplings)
        self.accelerate = accelerate
        self.sweeps_per_step = 3

    def begin(self, layers: list[Units], moments: list[Moments | None]) -> LayeredState:
        first = from_below(layers, self.couplings.weights, moments)
        tilts = [Tilt(torch.zeros_like(own.mean), 0.0) for own in first]
        incoming = [self.equations.incoming(self.couplings, layer, first) for layer in self.odd]
        steps = None if self.root_steps is None else 4 * self.root_steps
        reach = torch.full_like(first[0].mean.flatten(1)[:, 0], INITIAL_REACH)
        value = torch.full_like(reach, torch.inf, dtype=torch.float64)
        sweep = self._sweep(layers, tilts, incoming, torch.zeros_like(reach, dtype=torch.bool), steps)
        return _layered_state(sweep, value, reach)

    def moments(self, state: LayeredState) -> list[Moments]:
        return list(state.moments)

    def beliefs(self, layers: list[Units], state: LayeredState) -> tuple[list[Moments], list[Tilt]]:
        return list(state.moments), list(state.tilts)

    def plain_sweep(self, layers: list[Units], state: LayeredState) -> LayeredState:
        """One sweep without extrapolation."""
        sweep = self._sweep(layers, state.tilts, state.received, state.unnormalisable, self.root_steps)
        return _layered_state(sweep, state.free_energy, state.reach)

    def half_steps(self, layers: list[Units], state: LayeredState) -> tuple[LayeredState, list[Tensor]]:
        """One plain sweep, and F after each of its two half-sweeps, for those who want to watch F fall."""
        moments, tilts = list(state.moments), list(state.tilts)
        self._settle(layers, self.odd, moments, tilts, state.received, self.root_steps)
        first = self.equations.value(layers, self.couplings, moments, tilts)
        sweep = self._sweep(layers, state.tilts, state.received, state.unnormalisable, self.root_steps)
        second = self._value(layers, sweep)
        return _layered_state(sweep, second, state.reach), [first, second]

    def step(self, layers: list[Units], state: LayeredState) -> tuple[LayeredState, Tensor]:
        steps = self.root_steps
        first = self._sweep(layers, state.tilts, state.received, state.unnormalisable, steps)
        second = self._sweep(layers, first.tilts, first.received, first.unnormalisable, steps)
        if not self.accelerate:
            third = self._sweep(layers, second.tilts, second.received, second.unnormalisable, steps)
            new = _layered_state(third, state.free_energy, state.reach)
            return new, self._residual(layers, new)
        extrapolated, at_limit = self._extrapolate(state.received, first.received, second.received, state.reach)
        third = self._sweep(layers, second.tilts, extrapolated, second.unnormalisable, steps)
        before, after = self._value(layers, second), self._value(layers, third)
        noise = 100 * torch.finfo(state.reach.dtype).eps
        lower = after <= before + noise * (1 + before.abs())
        longer = torch.where(at_limit, 2 * state.reach, state.reach)
        shorter = (0.5 * state.reach).clamp(min=SMALLEST_REACH)
        kept: LayeredState = choose(
            lower, _layered_state(third, after, longer), _layered_state(second, before, shorter)
        )
        return kept, self._residual(layers, kept)

    def _sweep(
        self,
        layers: list[Units],
        start: Sequence[Tilt],
        incoming: Sequence[Incoming],
        failed: Tensor,
        steps: int | None,
    ) -> _Sweep:
        tilts = list(start)
        fields = [torch.as_tensor(tilt.field) for tilt in start]
        moments = [Moments(field, field) for field in fields]  # placeholders: no layer is read before it is written
        self._settle(layers, self.odd, moments, tilts, incoming, steps)
        at_even = [self.equations.incoming(self.couplings, layer, moments) for layer in self.even]
        self._settle(layers, self.even, moments, tilts, at_even, steps)
        for layer, own in zip((*self.odd, *self.even), (*incoming, *at_even), strict=True):
            failed = self.add_failures(failed, layer, Tilt(*own), moments[layer])
        at_odd = tuple(self.equations.incoming(self.couplings, layer, moments) for layer in self.odd)
        return _Sweep(tuple(moments), tuple(tilts), at_odd, failed)

    def _settle(
        self,
        layers: list[Units],
        group: tuple[int, ...],
        moments: list[Moments],
        tilts: list[Tilt],
        incoming: Sequence[Incoming],
        steps: int | None,
    ) -> None:
        """Puts the minimum of F over a group of layers, and the tilts there, into the lists; from the fields there."""
        for layer, own in zip(group, incoming, strict=True):
            start = torch.as_tensor(tilts[layer].field)
            moments[layer], field = layers[layer].settle(own.field, own.reaction, start, steps=steps)
            tilts[layer] = Tilt(field, own.precision())

    def _value(self, layers: list[Units], sweep: _Sweep) -> Tensor:
        return free_energy(layers, self.couplings, sweep.moments, sweep.tilts, sweep.received)

    def _extrapolate(
        self, x0: Sequence[Incoming], x1: Sequence[Incoming], x2: Sequence[Incoming], reach: Tensor
    ) -> tuple[list[Incoming], Tensor]:
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
            size = alpha.view(-1, *[1] * (old.field.dim() - 1))
            field = old.field + 2 * size * first[0] + size**2 * second[0]
            reaction = new.reaction  # a matrix that is extrapolated may stop being a covariance
            if old.reaction.dim() == old.field.dim():
                reaction = (old.reaction + 2 * size * first[1] + size**2 * second[1]).clamp(min=0)
            result.append(Incoming(field, reaction))
        return result, at_limit

    def _residual(self, layers: list[Units], state: LayeredState) -> Tensor:
        """The even layers are at their root, so only the odd ones would move."""
        moved = list(state.moments)
        for layer, own in zip(self.odd, state.received, strict=True):
            moved[layer] = layers[layer].respond(own.field, own.reaction, state.moments[layer].mean)
        return self.change(list(state.moments), moved, only=self.odd)


def _layered_state(sweep: _Sweep, value: Tensor, reach: Tensor) -> LayeredState:
    return LayeredState(sweep.moments, sweep.tilts, sweep.received, value, reach, sweep.unnormalisable)
