"""The iterations that solve mean-field equations: what a sweep is, for each way of doing it.

A process knows nothing of batches or stopping; `solve` drives it. Its states are nested tuples of tensors whose first
dimension counts particles, and no particle looks at another.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Protocol, final

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.inference.couplings import Couplings, Incoming, received
from tapmachine.units import Units

State = Any  # a nested tuple of tensors

SWEEPS_TO_FAILURE = 20  # that are traced again to see why a particle failed


class Equations(Protocol):
    """What a process needs of a mean-field scheme."""

    def incoming(self, couplings: Couplings, layer: int, moments: list[Moments]) -> Incoming:
        """The field on a layer's units."""

    def tilt(self, layers: list[Units], couplings: Couplings, layer: int, moments: list[Moments]) -> Tilt:
        """The tilt that a layer gets where all layers have the given moments."""

    def value(self, layers: list[Units], couplings: Couplings, moments: list[Moments], tilts: list[Tilt]) -> Tensor:
        """The free energy of each particle."""


class Outcome(NamedTuple):
    """What the equations say of given moments: the tilts they lead to, the residual, and F."""

    tilts: list[Tilt]
    residual: Tensor
    free_energy: Tensor


class Process(ABC):
    """An iteration on one machine.

    The layers are an argument of every method: a conditioned machine has other ones for other particles.
    """

    sweeps_per_step: int = 1
    root_steps: int | None = None  # Newton steps for each root; None until it is accurate, which looks at the values

    @abstractmethod
    def begin(self, layers: list[Units], moments: list[Moments | None]) -> State:
        """The state after a first sweep from the given moments."""

    @abstractmethod
    def step(self, layers: list[Units], state: State) -> tuple[State, Tensor]:
        """The state after the next sweeps, and about the residual of it, to be confirmed by `outcome`."""

    @abstractmethod
    def moments(self, state: State) -> list[Moments]:
        """The moments of all layers."""

    @abstractmethod
    def outcome(self, layers: list[Units], moments: list[Moments]) -> Outcome:
        """The equations, with these moments put into them."""

    @abstractmethod
    def cannot_be_normalised(self, layers: list[Units], moments: list[Moments]) -> Tensor:  # (K,), bool
        """For particles that failed after these moments: whether because a unit could not be normalised."""

    @abstractmethod
    def values_per_particle(self) -> int:
        """About how many numbers a particle needs while it is in the batch."""


class _MeanFieldProcess(Process):
    """What the iterations of the mean-field schemes have in common."""

    def __init__(self, equations: Equations, couplings: Couplings) -> None:
        self.equations, self.couplings = equations, couplings
        n_layers = len(couplings.shapes)
        self.odd, self.even = range(1, n_layers, 2), range(0, n_layers, 2)
        sizes = [1 if len(shape) == 1 else shape[1] for shape in couplings.shapes]
        self.n_values = sum(shape[0] * q for shape, q in zip(couplings.shapes, sizes, strict=True))
        self.n_matrix_values = sum(shape[0] * q * q for shape, q in zip(couplings.shapes, sizes, strict=True))

    def values_per_particle(self) -> int:
        return 24 * self.n_values + 4 * self.n_matrix_values

    def outcome(self, layers: list[Units], moments: list[Moments]) -> Outcome:
        tilts = [self.equations.tilt(layers, self.couplings, number, moments) for number in range(len(layers))]
        moved = [layer.moments(tilt) for layer, tilt in zip(layers, tilts, strict=True)]
        value = self.equations.value(layers, self.couplings, moments, tilts)
        return Outcome(tilts, self.change(moments, moved), value)

    def cannot_be_normalised(self, layers: list[Units], moments: list[Moments]) -> Tensor:
        moments = list(moments)
        found = torch.zeros(len(moments[0].mean), dtype=torch.bool, device=moments[0].mean.device)
        for _ in range(SWEEPS_TO_FAILURE):
            for layer in (*self.odd, *self.even):
                tilt = self.equations.tilt(layers, self.couplings, layer, moments)
                finite = torch.stack([torch.isfinite(torch.as_tensor(z)).flatten(1).all(-1) for z in tilt]).all(0)
                found = found | (finite & ~layers[layer].normalisable(tilt).all(-1))
                moments[layer] = layers[layer].moments(tilt)
        return found

    def change(self, old: list[Moments], new: list[Moments], only: range | None = None) -> Tensor:  # (K,)
        """The mean over all units of the squared change of mean and variance; of some layers, if the rest stays."""
        total = 0.0
        for number in range(len(old)) if only is None else only:
            for before, after in zip(old[number], new[number], strict=True):
                total = total + (after - before).flatten(1).square().sum(-1)
        return torch.as_tensor(total) / self.n_values

    def upwards(self, layers: list[Units], moments: list[Moments | None]) -> list[Moments]:
        """Moments for all layers: those that are missing follow from the means of the layer below, given nothing else."""
        found: list[Moments] = []
        for number, own in enumerate(moments):
            if own is None:
                sender = next(s for s in self.couplings.senders[number] if s.layer == number - 1)
                field = found[-1].mean.flatten(1) @ sender.weights
                own = layers[number].moments(Tilt(field.unflatten(-1, self.couplings.shapes[number]), 0.0))
            found.append(own)
        return found


# ----- layers: every other layer at a time, exactly


class LayeredState(NamedTuple):
    """Moments and own fields B of all layers, what the odd layers receive next, F, and how far to extrapolate.

    F is only known where sweeps are extrapolated.
    """

    moments: tuple[Moments, ...]
    fields: tuple[Tensor, ...]
    received: tuple[Incoming, ...]
    free_energy: Tensor
    reach: Tensor


class _Sweep(NamedTuple):
    moments: list[Moments]
    tilts: list[Tilt]
    received: list[Incoming]  # by the odd layers, from these moments


INITIAL_REACH = 4.0
SMALLEST_REACH = 2.0


@final
class LayeredDescent(_MeanFieldProcess):
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
        first = self.upwards(layers, moments)
        fields = [torch.zeros_like(own.mean) for own in first]
        incoming = [self.equations.incoming(self.couplings, layer, first) for layer in self.odd]
        steps = None if self.root_steps is None else 4 * self.root_steps
        sweep = self._sweep(layers, fields, incoming, steps)
        reach = torch.full_like(first[0].mean.flatten(1)[:, 0], INITIAL_REACH)
        return _layered_state(sweep, torch.full_like(reach, torch.inf, dtype=torch.float64), reach)

    def moments(self, state: LayeredState) -> list[Moments]:
        return list(state.moments)

    def plain_sweep(self, layers: list[Units], state: LayeredState) -> LayeredState:
        """One sweep without extrapolation."""
        sweep = self._sweep(layers, list(state.fields), list(state.received), self.root_steps)
        return _layered_state(sweep, state.free_energy, state.reach)

    def half_steps(self, layers: list[Units], state: LayeredState) -> tuple[LayeredState, list[Tensor]]:
        """One plain sweep, and F after each of its two half-sweeps, for those who want to watch F fall."""
        moments, tilts = list(state.moments), [Tilt(b, 0.0) for b in state.fields]
        for layer in self.even:
            tilts[layer] = self.equations.tilt(layers, self.couplings, layer, moments)
        self._settle(layers, self.odd, moments, tilts, state.fields, list(state.received), self.root_steps)
        first = self.equations.value(layers, self.couplings, moments, tilts)
        sweep = self._sweep(layers, list(state.fields), list(state.received), self.root_steps)
        second = self._value(layers, sweep)
        return _layered_state(sweep, second, state.reach), [first, second]

    def step(self, layers: list[Units], state: LayeredState) -> tuple[LayeredState, Tensor]:
        fields, x0 = list(state.fields), list(state.received)
        first = self._sweep(layers, fields, x0, self.root_steps)
        fields = [torch.as_tensor(tilt.field) for tilt in first.tilts]
        second = self._sweep(layers, fields, first.received, self.root_steps)
        fields = [torch.as_tensor(tilt.field) for tilt in second.tilts]
        if not self.accelerate:
            third = self._sweep(layers, fields, second.received, self.root_steps)
            new = _layered_state(third, state.free_energy, state.reach)
            return new, self._residual(layers, new)
        extrapolated, at_limit = self._extrapolate(x0, first.received, second.received, state.reach)
        third = self._sweep(layers, fields, extrapolated, self.root_steps)
        before, after = self._value(layers, second), self._value(layers, third)
        noise = 100 * torch.finfo(x0[0].field.dtype).eps
        lower = after <= before + noise * (1 + before.abs())
        longer = torch.where(at_limit, 2 * state.reach, state.reach)
        shorter = (0.5 * state.reach).clamp(min=SMALLEST_REACH)
        kept: LayeredState = choose(
            lower, _layered_state(third, after, longer), _layered_state(second, before, shorter)
        )
        return kept, self._residual(layers, kept)

    def _sweep(self, layers: list[Units], fields: list[Tensor], incoming: list[Incoming], steps: int | None) -> _Sweep:
        moments: list[Moments] = [Moments(b, b) for b in fields]  # to be replaced, the odd layers' first
        tilts = [Tilt(b, 0.0) for b in fields]
        self._settle(layers, self.odd, moments, tilts, fields, incoming, steps)
        at_even = [self.equations.incoming(self.couplings, layer, moments) for layer in self.even]
        self._settle(layers, self.even, moments, tilts, fields, at_even, steps)
        return _Sweep(moments, tilts, [self.equations.incoming(self.couplings, layer, moments) for layer in self.odd])

    def _settle(
        self,
        layers: list[Units],
        group: range,
        moments: list[Moments],
        tilts: list[Tilt],
        fields: "list[Tensor] | tuple[Tensor, ...]",
        incoming: list[Incoming],
        steps: int | None,
    ) -> None:
        """Puts the minimum of F over a group of layers, and the tilts there, into the lists."""
        for layer, own in zip(group, incoming, strict=True):
            moments[layer], field = layers[layer].settle(own.field, own.reaction, fields[layer], steps=steps)
            tilts[layer] = Tilt(field, own.precision())

    def _value(self, layers: list[Units], sweep: _Sweep) -> Tensor:
        """F, with the sums over edges that the next sweep needs anyway."""
        total = sum(
            layer.divergence(tilt, own).sum(-1, dtype=torch.float64)
            for layer, tilt, own in zip(layers, sweep.tilts, sweep.moments, strict=True)
        )
        for layer, own in zip(self.odd, sweep.received, strict=True):
            total = total - received(own, sweep.moments[layer])
        return torch.as_tensor(total)

    def _extrapolate(
        self, x0: list[Incoming], x1: list[Incoming], x2: list[Incoming], reach: Tensor
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


def _layered_state(sweep: _Sweep, free_energy: Tensor, reach: Tensor) -> LayeredState:
    fields = tuple(torch.as_tensor(tilt.field) for tilt in sweep.tilts)
    return LayeredState(tuple(sweep.moments), fields, tuple(sweep.received), free_energy, reach)


# ----- any machine: explicit updates


@final
class FixedDamping(_MeanFieldProcess):
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
class DampedDescent(_MeanFieldProcess):
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
            tilts[layer] = Tilt(*(torch.lerp(a, b, size) for a, b in zip(tilts[layer], wanted, strict=True)))
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
class SequentialDescent(_MeanFieldProcess):
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


def choose(mask: Tensor, yes: Any, no: Any) -> Any:
    """A state with some particles from one and the others from another."""
    if isinstance(yes, Tensor):
        return torch.where(mask.view(-1, *[1] * (yes.dim() - 1)), yes, no)
    parts = [choose(mask, a, b) for a, b in zip(yes, no, strict=True)]
    return type(yes)(*parts) if hasattr(yes, "_fields") else type(yes)(parts)
