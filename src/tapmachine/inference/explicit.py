"""Any machine: the equations with the last moments put into them; and one unit after the other."""

from typing import NamedTuple, final

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.inference.couplings import Couplings
from tapmachine.inference.process import Equations, MeanFieldProcess, State, choose
from tapmachine.units import Units


@final
class FixedDamping(MeanFieldProcess):
    """The paper's iteration [alg:rbmInf]: odd layers, then even ones, from the last moments; all units, if pairwise.

    A damping d keeps a share d of the last moments. Nothing guarantees that it converges.
    """

    def __init__(self, equations: Equations, couplings: Couplings, damping: float) -> None:
        super().__init__(equations, couplings)
        self.damping = damping
        self.sweeps_per_step = 4

    def begin(self, layers: list[Units], moments: list[Moments | None]) -> State:
        return self.sweep(layers, tuple(self.upwards(layers, moments)))

    def moments(self, state: State) -> list[Moments]:
        return list(state)

    def step(self, layers: list[Units], state: State) -> tuple[State, Tensor]:
        for _ in range(self.sweeps_per_step):
            last, state = state, self.sweep(layers, state)
        return state, self.change(last, state)

    def sweep(self, layers: list[Units], state: State) -> State:
        """One sweep."""
        moments = list(state)
        for group in (self.odd, self.even):
            for layer in group:
                field, reaction = self.equations.incoming(self.couplings, layer, moments)
                new = layers[layer].respond(field, reaction, moments[layer].mean)
                if self.damping:
                    new = Moments(*(torch.lerp(b, a, self.damping) for a, b in zip(moments[layer], new, strict=True)))
                moments[layer] = new
        return tuple(moments)


class DampedState(NamedTuple):
    """Moments, the tilts they arise from, F, the last residual, and the size of the next step."""

    moments: tuple[Moments, ...]
    tilts: tuple[Tilt, ...]
    free_energy: Tensor
    residual: Tensor
    size: Tensor


SMALLEST_SIZE = 2.0**-10


@final
class DampedDescent(MeanFieldProcess):
    """Explicit updates of the tilts, each particle's shortened until F falls.

    A tilt that moves from its value towards what the equations ask for goes downhill: F's gradient in the moments is
    the difference of the two, and moments move with tilts by a covariance matrix. So some step size lowers F on every
    machine, to every order; it is halved where F rises, and grows back.
    """

    def begin(self, layers: list[Units], moments: list[Moments | None]) -> DampedState:
        found, tilts = self.upwards(layers, moments), [Tilt(0.0, 0.0)] * len(layers)
        for layer in (*self.odd, *self.even):
            tilts[layer] = self.equations.tilt(layers, self.couplings, layer, found)
            found[layer] = layers[layer].moments(tilts[layer])
        value = self.equations.value(layers, self.couplings, found, tilts)
        infinite = torch.full_like(found[0].mean.flatten(1)[:, 0], torch.inf)
        return DampedState(tuple(found), tuple(tilts), value, infinite, torch.ones_like(infinite))

    def moments(self, state: DampedState) -> list[Moments]:
        return list(state.moments)

    def step(self, layers: list[Units], state: DampedState) -> tuple[DampedState, Tensor]:
        moments, tilts = list(state.moments), list(state.tilts)
        for layer in (*self.odd, *self.even):
            wanted = self.equations.tilt(layers, self.couplings, layer, moments)
            size = state.size.view(-1, *[1] * (moments[layer].mean.dim() - 1))
            tilts[layer] = Tilt(*(a + size * (b - a) for a, b in zip(tilts[layer], wanted, strict=True)))
            moments[layer] = layers[layer].moments(tilts[layer])
        value = self.equations.value(layers, self.couplings, moments, tilts)
        residual = self.change(list(state.moments), moments) / state.size**2
        noise = 100 * torch.finfo(residual.dtype).eps * (1 + value.abs())
        # Where F is flat to rounding, the residual has to fall instead.
        worse = (value > state.free_energy + noise) | (
            (value > state.free_energy - noise) & (residual > state.residual)
        )
        failed = ~torch.isfinite(value)
        worse = worse & ~failed
        new = DampedState(tuple(moments), tuple(tilts), value, residual, (1.25 * state.size).clamp(max=1.0))
        old = state._replace(size=(0.5 * state.size).clamp(min=SMALLEST_SIZE), residual=2 * state.residual)
        kept = choose(~worse, new, old)
        return kept, torch.where(worse, torch.finfo(residual.dtype).max, residual)


@final
class SequentialDescent(MeanFieldProcess):
    """A pairwise machine, one unit after the other at its exact minimum with the others fixed. F falls every time."""

    def begin(self, layers: list[Units], moments: list[Moments | None]) -> State:
        own = self.upwards(layers, moments)[0]
        return self._sweep(layers[0], (own, torch.zeros_like(own.mean)))

    def moments(self, state: State) -> list[Moments]:
        return [state[0]]

    def step(self, layers: list[Units], state: State) -> tuple[State, Tensor]:
        new = self._sweep(layers[0], state)
        return new, self.change([state[0]], [new[0]])

    def _sweep(self, units: Units, state: State) -> State:
        (mean, variance), fields = state
        mean, variance, fields = mean.clone(), variance.clone(), fields.clone()
        for unit in range(units.n):
            incoming = self.equations.incoming(self.couplings, 0, [Moments(mean, variance)])
            settled, own = units.settle(incoming.field, incoming.reaction, fields, steps=self.root_steps)
            mean[:, unit], variance[:, unit] = settled.mean[:, unit], settled.variance[:, unit]
            fields[:, unit] = own[:, unit]
        return Moments(mean, variance), fields
