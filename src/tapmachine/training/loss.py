"""Training loss: the free energy F of the machine clamped to the data minus F of the free machine.

This module is a good place to start reading. With F = −ln Z, the log-likelihood of a row is ln P(x) = F(free) −
F(clamped to x). The gradient is not coded explicitly. Because F is stationary in the moments of a solution, automatic
differentiation of F with fixed moments (or samples) gives the gradient.

F of the clamped machine is computed in `free_energies.py`. Objectives differ in how they compute F of the free machine:
`objectives.py` evaluates F at TAP solutions, and `chains.py` evaluates F at samples of Gibbs chains, with one matrix
product for both terms. `step.py` computes the gradient and updates the parameters.
"""

from abc import ABC, abstractmethod
from itertools import pairwise

from torch import Tensor

from tapmachine.machine import BoltzmannMachine
from tapmachine.solver import Scheme
from tapmachine.training.context import Carry, Context
from tapmachine.training.free_energies import clamped_free_energy
from tapmachine.units import Gaussian


class Objective(ABC):
    """Base class for training objectives, which compute F of the free machine (the negative phase).

    By default, a step can be captured as a CUDA graph. Capturing requires fixed shapes and code that reads no tensor
    values.

    Attributes:
        can_be_captured: Whether a step can be captured as a CUDA graph.
        gains_by_compilation: Whether the loss can be compiled, which pays off in long training runs. Compilers cannot
            trace draws from a generator.
        has_many_sweeps: Whether to compile only the sweeps. The compiler unrolls the loop over the sweeps, so that
            compiling the whole step would take minutes.
        keeps_chains: Whether the state consists of states of all layers of persistent chains, number of steps, weights
            and F of the chains. The chains are compared with draws from the machine (`clusters.py`).
        is_split: Whether each of several processes computes only its share of F.
        scheme: Mean-field scheme, which is also used for clamped machines with several hidden layers; None for `TAP()`.
        maximized: Name of the log-likelihood recorded by `Monitor` that training maximizes, if it is an approximation.

    Example:
        >>> from tapmachine import PCD, TAPObjective
        >>> TAPObjective().scheme, PCD(2).scheme
        (TAP(), None)
    """

    can_be_captured: bool = True
    gains_by_compilation: bool = False
    has_many_sweeps: bool = False
    keeps_chains: bool = False
    is_split: bool = False
    scheme: Scheme | None = None
    maximized: str | None = None

    @abstractmethod
    def prepare(self, context: Context) -> Carry:
        """Return the initial state for the first step."""

    @abstractmethod
    def model_free_energy(self, context: Context, carry: Carry) -> tuple[Tensor, Carry]:
        """Return F of the free machine, a differentiable scalar, and the state for the next step.

        If `is_split` is True, the result is the share of this process. The shares of all processes add up to F.
        """

    def excluded(self, carry: Carry) -> Tensor | None:
        """Number of particles excluded so far because of a non-finite F, or None if particles are never excluded."""
        return None

    def advice(self, machine: BoltzmannMachine) -> str:
        """Return advice on how to prevent divergence."""
        are_gaussian = [isinstance(units, Gaussian) for units in list(machine.layers)[1:]]
        if any(below and above for below, above in pairwise(are_gaussian)):
            return "use a single Gaussian hidden layer, because stacked Gaussian layers are no more expressive"
        return "try a smaller learning rate, more sweeps, or data on another scale"

    def loss(self, context: Context, carry: Carry) -> tuple[Tensor, Carry]:
        """Return the negative log-likelihood averaged over the batch, and the state for the next step.

        With several processes, the result is the contribution of this process.
        """
        on_data = clamped_free_energy(
            context.machine, context.rows, self.scheme, context.hidden, context.compile_sweeps
        )  # (M,)
        on_model, carry = self.model_free_energy(context, carry)  # ()
        return self.difference(context, on_data, on_model), carry

    def difference(self, context: Context, on_data: Tensor, on_model: Tensor) -> Tensor:
        """Return the difference of the free energies, averaged over the batch.

        With several processes, the result is the contribution of this process; all contributions add up to the loss.

        Args:
            context: Inputs to the loss.
            on_data: F of the machine clamped to the rows of this process, shape (M,).
            on_model: F of the free machine, a scalar.
        """
        weights, world, batch_size = context.weights, context.world, len(context.batch)
        if world.size == 1:
            return on_data.mean() - on_model if weights is None else (weights * (on_data - on_model)).mean()
        on_model = on_model if self.is_split else on_model / world.size
        if weights is None:
            return on_data.sum() / batch_size - on_model
        return (weights[world.part(batch_size)] * on_data).sum() / batch_size - weights.mean() * on_model
