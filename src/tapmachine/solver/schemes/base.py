"""Base class for the mean-field schemes."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.machine import BoltzmannMachine
from tapmachine.solver.schemes.process import Process, State


class Scheme(ABC):
    """Mean-field approximation of a machine, defined by equations for the units' moments and by a free energy.

    Attributes:
        can_be_captured: Whether a training step with this scheme can be captured as a CUDA graph.

    Example:
        >>> from tapmachine import TAP, Binary, rbm, solve
        >>> machine = rbm(Binary(4), Binary(2))
        >>> solution = solve(machine, scheme=TAP())
        >>> TAP().free_energy(machine, solution.moments, solution.tilts).shape
        torch.Size([1])
    """

    can_be_captured: bool = True

    @abstractmethod
    def bind(self, machine: BoltzmannMachine) -> Process:
        """Return the iteration that solves the equations for a machine."""

    @abstractmethod
    def free_energy(
        self, machine: BoltzmannMachine, moments: Sequence[Moments], tilts: Sequence[Tilt]
    ) -> Tensor:  # (K,)
        """Compute the free energy F in float64, differentiable with respect to the machine's parameters.

        F is stationary in the moments at a solution, so its gradient is computed with the moments fixed.

        Args:
            machine: The machine whose free energy is computed.
            moments: Moments of all layers.
            tilts: Tilts of all layers that produce these moments.

        Returns:
            Free energy of each particle, shape (K,).

        Example:
            >>> from tapmachine import TAP, Binary, rbm, solve
            >>> machine = rbm(Binary(4), Binary(2))
            >>> solution = solve(machine)
            >>> TAP().free_energy(machine, solution.moments, solution.tilts).sum().backward()
            >>> machine.weights[0].grad.shape
            torch.Size([4, 2])
        """

    def free_energy_of_state(self, machine: BoltzmannMachine, process: Process, state: State) -> Tensor:  # (K,)
        """Compute the free energy at a state of the iteration.

        Schemes whose free energy depends on more than the moments override this method.
        """
        with torch.no_grad():
            moments, tilts = process.beliefs(list(machine.layers), state)
        return self.free_energy(machine, moments, tilts)


def refuse_mixed_states(machine: BoltzmannMachine, scheme: str) -> None:
    """Raise a ValueError if a mixed layer has categorical units, for schemes that need separate layers."""
    for index, layer in enumerate(machine.layers):
        if layer.categorical_blocks and len(layer.state_shape) == 1:
            raise ValueError(f"layer {index}: {scheme} does not support Categorical units in a Mixed layer; use TAP()")
