"""Belief propagation with exact messages for discrete units, or with two-moment messages for all unit types."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.machine import BoltzmannMachine
from tapmachine.solver.schemes.base import Scheme, refuse_mixed_states
from tapmachine.solver.schemes.message_passing import Link, Message, MessagePassing, received
from tapmachine.solver.schemes.process import Process, State
from tapmachine.units import Units
from tapmachine.units.conditioned import lowest_precision, unconditioned

DAMPING = 0.5
CLIPPED_SHARE = 0.95


class _WholeDistributions(MessagePassing):
    """Exact messages ln E[exp(Wxx')] to discrete units, evaluated at each state x' of the receiver."""

    def __init__(self, machine: BoltzmannMachine, damping: float) -> None:
        super().__init__(machine, damping)
        self.two_states = [_two_states(layer) for layer in machine.layers]

    def send(self, link: Link, units: Units, cavity: Tilt) -> Message:
        field = torch.as_tensor(cavity.field)
        by_receiver = field.unflatten(0, (-1, link.weights.shape[1]))  # (K, n_receiver, *state_shape of the sender)
        at_rest = units.log_partition(Tilt(field, 0.0)).reshape(by_receiver.shape[:3])

        def gain(shift: Tensor) -> Tensor:  # (K, n_sender, n_receiver)
            tilted = units.log_partition(Tilt((by_receiver + shift).flatten(0, 1), 0.0))
            return (tilted.reshape(at_rest.shape) - at_rest).transpose(1, 2)

        states = self.two_states[link.receiver]
        if states is None:  # q states, each with separate couplings
            sent = torch.stack([gain(weights) for weights in link.weights], -1)
            return Message(sent, torch.zeros_like(sent), sent.new_zeros(sent.shape[:3]))
        low, high = states
        at_low, at_high = gain(low * link.weights[0]), gain(high * link.weights[0])
        slope = (at_high - at_low) / (high - low)
        return Message(slope, torch.zeros_like(slope), at_low - low * slope)


class _TwoMoments(MessagePassing):
    """Messages computed from the sender's mean and variance [eq:Bij], [eq:Aij], [eq:aij], [eq:cij]."""

    def __init__(self, machine: BoltzmannMachine, damping: float, clip: float) -> None:
        super().__init__(machine, damping)
        self.limits = [lowest_precision(layer, clip) for layer in machine.layers]

    def bounded(self, layer_index: int, tilt: Tilt) -> Tilt:
        return Tilt(tilt.field, torch.maximum(torch.as_tensor(tilt.precision), self.limits[layer_index]))

    def send(self, link: Link, units: Units, cavity: Tilt) -> Message:
        mean, variance = (z.unflatten(0, (-1, link.weights.shape[1])).unsqueeze(1) for z in units.moments(cavity))
        shape = self.shapes[link.receiver]
        field = received(link.weights * mean, shape)
        if len(self.shapes[link.sender]) > 1:  # a unit takes exactly one of its states: Var(Σ W_α x_α)
            spread = received(link.weights**2 * mean, shape) - field**2
        else:
            spread = received(link.weights**2 * variance, shape)
        return Message(field, -spread.clamp(min=0), field.new_zeros(field.shape[:3]))


def _two_states(units: Units) -> tuple[float, float] | None:
    """Return the two values of two-state units, or None for categorical units."""
    if len(units.state_shape) == 2:
        return None
    base = unconditioned(units)
    if not base.has_two_states:
        raise ValueError(f"BeliefPropagation: {type(base).__name__} units do not have two or q states; use RelaxedBP()")
    digits = torch.tensor([[0], [1]], device=base.device).expand(2, base.n)
    low, high = base.decode(digits)[:, 0].tolist()
    return low, high


class _MessageScheme(Scheme):
    """Common part of `BeliefPropagation` and `RelaxedBP`."""

    can_be_captured = False

    def __init__(self, damping: float) -> None:
        if not 0 <= damping < 1:
            raise ValueError(f"damping is {damping!r}; expected a number in [0, 1)")
        self.damping = damping

    def free_energy(self, machine: BoltzmannMachine, moments: Sequence[Moments], tilts: Sequence[Tilt]) -> Tensor:
        raise ValueError(
            f"{type(self).__name__}: the free energy depends on messages, not only on moments; "
            "use solve(), which returns it. For training, set n_sweeps of TAPObjective"
        )

    def free_energy_of_state(self, machine: BoltzmannMachine, process: Process, state: State) -> Tensor:
        assert isinstance(process, MessagePassing)
        return process.differentiable_free_energy(machine, state)


@final
class BeliefPropagation(_MessageScheme):
    """Belief propagation for `Binary`, `Spin` and `Categorical` units, with the Bethe free energy.

    The result is exact if the couplings form a tree. Every pair of coupled units exchanges messages, so each particle
    requires memory for about 12·N_v·N_h values, multiplied by the number of states for categorical units.

    Args:
        damping: Weight of the previous message in an update, at least 0 and less than 1 (default: 0.5).

    Example:
        >>> import torch
        >>> from tapmachine import BeliefPropagation, Spin, exact_log_partition, pairwise, solve
        >>> chain = pairwise(Spin(4), weights=torch.diag(torch.ones(3), 1) + torch.diag(torch.ones(3), -1))
        >>> -solve(chain, scheme=BeliefPropagation()).free_energy, exact_log_partition(chain)
        (tensor([1.3013]), tensor(1.3013, dtype=torch.float64))
    """

    def __init__(self, damping: float = DAMPING) -> None:
        super().__init__(damping)

    def __repr__(self) -> str:
        return f"BeliefPropagation(damping={self.damping})"

    def bind(self, machine: BoltzmannMachine) -> Process:
        return _WholeDistributions(machine, self.damping)


@final
class RelaxedBP(_MessageScheme):
    """Relaxed belief propagation for all unit types.

    Messages consist of two moments and are accurate to second order in W. Each particle requires as much memory as with
    `BeliefPropagation`. The precision that messages subtract from a `Gaussian` unit is limited because a single
    unnormalizable unit would end the iteration.

    Args:
        damping: Weight of the previous message in an update, at least 0 and less than 1 (default: 0.5).
        clip: Largest fraction of a Gaussian unit's precision that messages may subtract (default: 0.95). A fixed point
            at which this limit is active does not solve the equations of the machine.

    Example:
        >>> from tapmachine import Binary, RelaxedBP, rbm, solve
        >>> solve(rbm(Binary(4), Binary(2)), scheme=RelaxedBP()).free_energy.shape
        torch.Size([1])
    """

    def __init__(self, damping: float = DAMPING, clip: float = CLIPPED_SHARE) -> None:
        super().__init__(damping)
        if not 0 < clip < 1:
            raise ValueError(f"clip is {clip!r}; expected a number between 0 and 1")
        self.clip = clip

    def __repr__(self) -> str:
        return f"RelaxedBP(damping={self.damping}, clip={self.clip})"

    def bind(self, machine: BoltzmannMachine) -> Process:
        refuse_mixed_states(machine, "RelaxedBP")
        return _TwoMoments(machine, self.damping, self.clip)
