"""Interface of the iterations that find fixed points, and the common part of the mean-field schemes.

A process defines the iteration, while `solve` manages batches and decides when to stop. The state of a process is a
nested tuple of tensors whose first dimension indexes particles. Particles are independent of each other.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt, over_tensors
from tapmachine.machine.boltzmann import field_from_below
from tapmachine.solver.schemes.couplings import Couplings
from tapmachine.units import Units

if TYPE_CHECKING:
    from tapmachine.solver.schemes.mean_field import MeanField

State = Any  # a nested tuple of tensors


class Outcome(NamedTuple):
    """Tilts, residual and free energy that result from evaluating the equations at a state."""

    tilts: list[Tilt]
    residual: Tensor
    free_energy: Tensor


class Process(ABC):
    """Base class for iterations bound to one machine.

    The layers are an argument of every method because the layers of a conditioned machine depend on the particles.
    """

    sweeps_per_step: int = 1
    can_be_captured: bool = True  # whether a step can be captured as a CUDA graph
    root_steps: int | None = None  # Newton steps per root; None iterates until accurate, which synchronizes

    @abstractmethod
    def begin(self, layers: list[Units], moments: list[Moments | None]) -> State:
        """Return the state after the first sweep; moments that are None are computed from the layer below."""

    @abstractmethod
    def step(self, layers: list[Units], state: State) -> tuple[State, Tensor]:
        """Return the state after the next sweeps, and an estimate of its residual that `outcome` verifies."""

    @abstractmethod
    def moments(self, state: State) -> list[Moments]:
        """Return the moments of all layers."""

    @abstractmethod
    def outcome(self, layers: list[Units], state: State) -> Outcome:
        """Evaluate the equations at the state."""

    def beliefs(self, layers: list[Units], state: State) -> tuple[list[Moments], list[Tilt]]:
        """Return, for all layers, the moments and tilts used to evaluate the free energy of the state."""
        return self.moments(state), self.outcome(layers, state).tilts

    @abstractmethod
    def unnormalizable(self, state: State) -> Tensor:  # (K,), bool
        """Return a mask of the particles that failed because a unit could not be normalized."""

    @abstractmethod
    def values_per_particle(self) -> int:
        """Return the approximate number of floating-point values stored per particle."""


class MeanFieldProcess(Process):
    """Common part of the iterations of the mean-field schemes."""

    def __init__(self, equations: "MeanField", couplings: Couplings) -> None:
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
        return self.moments(state), self._next_tilts(layers, state)

    def tilts(self, state: State) -> list[Tilt] | None:
        """Return the tilts under which the units have their moments, or None if the state does not contain them."""
        return None

    def _next_tilts(self, layers: list[Units], state: State) -> list[Tilt]:
        """Return the tilts on all layers, computed from their moments."""
        moments, tilts = self.moments(state), self.tilts(state)
        return [self.equations.tilt(layers, self.couplings, index, moments, tilts) for index in range(len(layers))]

    def outcome(self, layers: list[Units], state: State) -> Outcome:
        moments = self.moments(state)
        tilts = self._next_tilts(layers, state)
        moved = [layer.moments(tilt) for layer, tilt in zip(layers, tilts, strict=True)]
        value = self.equations.value(layers, self.couplings, moments, tilts)
        return Outcome(tilts, self.change(moments, moved), value)

    def unnormalizable(self, state: State) -> Tensor:
        failed: Tensor = state.unnormalizable
        return failed

    def add_failures(self, failed: Tensor, layer_index: int, tilt: Tilt, moments: Moments) -> Tensor:  # (K,), bool
        """Add particles to the mask of failed particles if a unit cannot be normalized under its tilt."""
        if not self.unbounded[layer_index]:
            return failed
        finite = [torch.isfinite(torch.as_tensor(z)).flatten(1) for z in tilt]
        if finite[0].shape != finite[1].shape:  # the reaction of a mixed layer has more components
            finite[1] = finite[1].all(-1, keepdim=True)
        return failed | (torch.isinf(moments.variance) & finite[0] & finite[1]).any(-1)

    def change(self, old: list[Moments], new: list[Moments], only: tuple[int, ...] | None = None) -> Tensor:  # (K,)
        """Return the mean, over all units, of the squared changes in mean and variance.

        `only` lists the layers that have changed (default: all layers).
        """
        layer_indices = tuple(range(len(old))) if only is None else only
        pairs = [pair for index in layer_indices for pair in zip(old[index], new[index], strict=True)]
        norms = [torch.linalg.vector_norm((after - before).flatten(1), dim=-1) for before, after in pairs]
        return torch.stack(norms).square().sum(0) / self.n_values


def from_below(layers: list[Units], weights: Sequence[Tensor], moments: Sequence[Moments | None]) -> list[Moments]:
    """Return moments for all layers; missing moments are computed from the means of the layer below."""
    complete: list[Moments] = []
    for layer_index, layer_moments in enumerate(moments):
        if layer_moments is None:
            field = field_from_below(layers, weights, layer_index, complete[-1].mean)
            layer_moments = layers[layer_index].moments(Tilt(field, 0.0))
        complete.append(layer_moments)
    return complete


def choose(mask: Tensor, yes: Any, no: Any) -> Any:
    """Combine two states, taking particles from `yes` where the mask is True and from `no` elsewhere."""
    return over_tensors(lambda a, b: torch.where(mask.view(-1, *[1] * (a.dim() - 1)), a, b), yes, no)


def select(state: Any, index: Tensor) -> Any:
    """Select the particles of a state at the indices `index`."""
    return over_tensors(lambda z: z[index], state)


def join(first: Any, second: Any) -> Any:
    """Concatenate the particles of two states."""
    return over_tensors(lambda a, b: torch.cat((a, b)), first, second)
