"""The interface of an iteration that solves for fixed points, and what those of the mean-field schemes share.

A process knows nothing of batches or stopping; `solve` drives it. Its states are nested tuples of tensors whose first
dimension is that of particles, and particles are independent of each other.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from tapmachine.accelerator.nested import over_tensors
from tapmachine.beliefs import Moments, Tilt
from tapmachine.solver.schemes.couplings import Couplings, Incoming
from tapmachine.units import Units

State = Any  # a nested tuple of tensors


class Equations(Protocol):
    """What a process needs of a mean-field scheme."""

    def incoming(self, couplings: Couplings, layer_index: int, moments: list[Moments]) -> Incoming:
        """Mean and variance of the field on a layer's units."""

    def respond(self, layers: list[Units], couplings: Couplings, layer_index: int, moments: list[Moments]) -> Moments:
        """The moments of a layer under the tilt that follows from the moments of all layers."""

    def tilt(self, layers: list[Units], couplings: Couplings, layer_index: int, moments: list[Moments]) -> Tilt:
        """The tilt on a layer that follows from the moments of all layers."""

    def value(self, layers: list[Units], couplings: Couplings, moments: list[Moments], tilts: list[Tilt]) -> Tensor:
        """The free energy of each particle."""


class Outcome(NamedTuple):
    """The equations evaluated at some moments: the tilts that follow, the residual, and F."""

    tilts: list[Tilt]
    residual: Tensor
    free_energy: Tensor


class Process(ABC):
    """An iteration on one machine.

    The layers are an argument of every method: a conditioned machine has other ones for other particles.
    """

    sweeps_per_step: int = 1
    can_be_captured: bool = True  # whether a step can be captured as a CUDA graph
    root_steps: int | None = None  # Newton steps per root; None: until it is accurate, which needs the values

    @abstractmethod
    def begin(self, layers: list[Units], moments: list[Moments | None]) -> State:
        """The state after a first sweep from these moments; None for layers that follow from the one below."""

    @abstractmethod
    def step(self, layers: list[Units], state: State) -> tuple[State, Tensor]:
        """The state after the next sweeps, and an estimate of its residual, to be confirmed by `outcome`."""

    @abstractmethod
    def moments(self, state: State) -> list[Moments]:
        """The moments of all layers."""

    @abstractmethod
    def outcome(self, layers: list[Units], state: State) -> Outcome:
        """The equations evaluated at the state."""

    def beliefs(self, layers: list[Units], state: State) -> tuple[list[Moments], list[Tilt]]:
        """The moments of all layers, and tilts for their F: those they arise from, or else those they lead to."""
        return self.moments(state), self.outcome(layers, state).tilts

    @abstractmethod
    def unnormalizable(self, state: State) -> Tensor:  # (K,), bool
        """Which particles failed because a unit could not be normalized."""

    @abstractmethod
    def values_per_particle(self) -> int:
        """About how many values a particle needs while it is in the batch."""


class MeanFieldProcess(Process):
    """What the iterations of the mean-field schemes have in common."""

    def __init__(self, equations: Equations, couplings: Couplings) -> None:
        self.equations, self.couplings = equations, couplings
        self.unbounded = couplings.unbounded
        n_layers = len(couplings.shapes)
        self.odd, self.even = tuple(range(1, n_layers, 2)), tuple(range(0, n_layers, 2))
        sizes = [1 if len(shape) == 1 else shape[1] for shape in couplings.shapes]
        self.n_values = sum(shape[0] * q for shape, q in zip(couplings.shapes, sizes, strict=True))
        self.n_matrix_values = sum(shape[0] * q * q for shape, q in zip(couplings.shapes, sizes, strict=True))

    def values_per_particle(self) -> int:
        return 24 * self.n_values + 4 * self.n_matrix_values

    def beliefs(self, layers: list[Units], state: State) -> tuple[list[Moments], list[Tilt]]:
        moments = self.moments(state)
        return moments, self._tilts(layers, moments)

    def _tilts(self, layers: list[Units], moments: list[Moments]) -> list[Tilt]:
        """The tilts that these moments lead to."""
        return [self.equations.tilt(layers, self.couplings, layer_index, moments) for layer_index in range(len(layers))]

    def outcome(self, layers: list[Units], state: State) -> Outcome:
        moments = self.moments(state)
        tilts = self._tilts(layers, moments)
        moved = [layer.moments(tilt) for layer, tilt in zip(layers, tilts, strict=True)]
        value = self.equations.value(layers, self.couplings, moments, tilts)
        return Outcome(tilts, self.change(moments, moved), value)

    def unnormalizable(self, state: State) -> Tensor:
        failed: Tensor = state.unnormalizable
        return failed

    def add_failures(self, failed: Tensor, layer_index: int, tilt: Tilt, moments: Moments) -> Tensor:  # (K,), bool
        """The particles that failed before, and those where a unit of a layer cannot be normalized under its tilt."""
        if not self.unbounded[layer_index]:
            return failed
        finite = [torch.isfinite(torch.as_tensor(z)).flatten(1) for z in tilt]
        if finite[0].shape != finite[1].shape:  # the reaction of a mixed layer, which has further components
            finite[1] = finite[1].all(-1, keepdim=True)
        return failed | (torch.isinf(moments.variance) & finite[0] & finite[1]).any(-1)

    def change(self, old: list[Moments], new: list[Moments], only: tuple[int, ...] | None = None) -> Tensor:  # (K,)
        """The mean over all units of the squared change of mean and variance; `only` these layers may have changed."""
        layer_indices = tuple(range(len(old))) if only is None else only
        pairs = [pair for index in layer_indices for pair in zip(old[index], new[index], strict=True)]
        norms = [torch.linalg.vector_norm((after - before).flatten(1), dim=-1) for before, after in pairs]
        return torch.stack(norms).square().sum(0) / self.n_values


def from_below(layers: list[Units], weights: Sequence[Tensor], moments: Sequence[Moments | None]) -> list[Moments]:
    """Moments for all layers: missing ones follow from the means of the layer below alone."""
    complete: list[Moments] = []
    for layer_index, layer_moments in enumerate(moments):
        if layer_moments is None:
            layer = layers[layer_index]
            field = complete[-1].mean.flatten(1) @ weights[layer_index - 1]
            layer_moments = layer.moments(Tilt(field.unflatten(-1, layer.state_shape), 0.0))
        complete.append(layer_moments)
    return complete


def choose(mask: Tensor, yes: Any, no: Any) -> Any:
    """A state with some particles from one and the others from another."""
    return over_tensors(lambda a, b: torch.where(mask.view(-1, *[1] * (a.dim() - 1)), a, b), yes, no)


def select(state: Any, index: Tensor) -> Any:
    """A state of some of its particles."""
    return over_tensors(lambda z: z[index], state)


def join(first: Any, second: Any) -> Any:
    """A state of the particles of two."""
    return over_tensors(lambda a, b: torch.cat((a, b)), first, second)
