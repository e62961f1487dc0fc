"""The training loss: F of the machine clamped to the data minus F of the free machine. Start reading here.

With F = −ln Z, the log-likelihood of a row is ln P(x) = F(free) − F(clamped to x). Its gradient is not coded
explicitly: F is stationary in the moments of a solution, so autodiff of F with the moments (or samples) fixed gives it.

F clamped to rows is in `free_energies.py`. Objectives differ in F of the free machine: it is evaluated at TAP solutions
(`objectives.py`) or at samples of Gibbs chains (`chains.py`), which compute both terms in one matrix product if
possible. `step.py` computes the gradient and the update.
"""

from abc import ABC, abstractmethod

from torch import Tensor

from tapmachine.solver import Scheme
from tapmachine.training.context import Carry, Context
from tapmachine.training.free_energies import clamped_free_energy


def loss(context: Context, objective: "Objective", carry: Carry) -> tuple[Tensor, Carry]:
    """Negative log-likelihood, averaged over the batch, (), and the state that the objective carries over."""
    on_data, on_model, carry = objective.free_energies(context, carry)  # (M,), ()
    if context.weights is None and context.world.size == 1:
        return on_data.mean() - on_model, carry
    return _weighted_share(context, on_data, on_model, objective.is_split), carry


class Objective(ABC):
    """The negative phase: a method to compute F of the free machine.

    By default shapes are fixed and no tensor's value is read, so that a step can be captured as a CUDA graph.

    Attributes:
        can_be_captured: Whether a step can be captured as a CUDA graph.
        gains_by_compilation: Whether compiling a step is worthwhile in a long training.
        has_many_sweeps: Whether to compile only the sweeps. The compiler unrolls the loop over them, so compiling the
            whole step would take minutes.
        is_split: Whether each of several processes computes its share of F, rather than all of it.
        scheme: Scheme that is also used to clamp machines with several hidden layers; None for `TAP()`.
    """

    can_be_captured: bool = True
    gains_by_compilation: bool = False
    has_many_sweeps: bool = False
    is_split: bool = False
    scheme: Scheme | None = None

    @abstractmethod
    def prepare(self, context: Context) -> Carry:
        """Initial state for the first step."""

    @abstractmethod
    def model_free_energy(self, context: Context, carry: Carry) -> tuple[Tensor, Carry]:
        """F of the free machine, (), differentiable in its parameters, and the state for the next step.

        If split, this process's share of F: the shares of all processes add up to it.
        """

    def excluded(self, carry: Carry) -> Tensor | None:
        """Number of particles excluded so far because their F is non-finite, (); None if they cannot be excluded."""
        return None

    def free_energies(self, context: Context, carry: Carry) -> tuple[Tensor, Tensor, Carry]:
        """F of the machine clamped to each of this process's rows, (M,); F of the free one, (); and the next state."""
        on_data = clamped_free_energy(
            context.machine, context.rows, self.scheme, context.hidden, context.compile_sweeps
        )
        return on_data, *self.model_free_energy(context, carry)


def _weighted_share(context: Context, on_data: Tensor, on_model: Tensor, is_split: bool) -> Tensor:
    """Loss with weighted rows, or this process's share of it: the shares of all processes add up to it."""
    weights, world, batch_size = context.weights, context.world, len(context.batch)
    if world.size == 1:
        assert weights is not None
        return (weights * (on_data - on_model)).mean()
    on_model = on_model if is_split else on_model / world.size
    if weights is None:
        return on_data.sum() / batch_size - on_model
    return (weights[world.share(batch_size)] * on_data).sum() / batch_size - weights.mean() * on_model
