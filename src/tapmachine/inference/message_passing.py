"""Belief propagation: messages on every edge, exact for discrete units or in two moments for any.

A message to a unit is a factor exp(w + ux − ½kx²) that multiplies its prior: a tilt, and a number. What a unit sends to
a neighbour follows from its own prior under all tilts but the one that came from there.
"""

import os
from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.inference.mean_field import Scheme
from tapmachine.inference.process import Outcome, Process, State, from_below
from tapmachine.machine import BoltzmannMachine
from tapmachine.units import Gaussian, TruncatedGaussian, Units
from tapmachine.units.conditioned import Tilted, lowest_precision, unconditioned

DAMPING = 0.5
CLIPPED_SHARE = 0.95


class Link(NamedTuple):
    """The couplings from the units of one layer to those of another: every edge is two of them."""

    sender: int
    receiver: int
    weights: Tensor  # (states of a receiving unit, n_receiver, *state_shape of the sender)
    back: int  # the number of the link the other way


class Message(NamedTuple):
    """What all units of a link send to all others; of q states there is one number for each."""

    field: Tensor  # u, (K, n_sender, *state_shape of the receiver)
    spread: Tensor  # k, likewise
    log_scale: Tensor  # w, (K, n_sender, n_receiver)


class Messages(NamedTuple):
    """The state of an iteration."""

    links: tuple[Message, ...]
    moments: tuple[Moments, ...]
    unnormalisable: Tensor


class MessagePassing(Process):
    """The iteration of both kinds: messages to layers with odd numbers, then to those with even ones."""

    def __init__(self, machine: BoltzmannMachine, damping: float) -> None:
        self.damping = damping
        layers = machine.units()
        self.shapes = [layer.state_shape for layer in layers]
        self.weights = [weights.detach() for weights in machine.weights]
        self.links = _links(machine)
        self.into = [[n for n, link in enumerate(self.links) if link.receiver == layer] for layer in range(len(layers))]
        self.groups = [[n for n, link in enumerate(self.links) if link.receiver % 2 == parity] for parity in (1, 0)]
        self.n_units = sum(layer.n for layer in layers)
        self.n_messages = sum(link.weights[0].numel() for link in self.links)
        self._check_memory(machine)

    def values_per_particle(self) -> int:
        return 12 * sum(link.weights.numel() for link in self.links)

    def _check_memory(self, machine: BoltzmannMachine) -> None:
        needed = self.values_per_particle() * torch.finfo(machine.dtype).bits // 8
        if machine.device.type == "cuda":
            available = torch.cuda.mem_get_info(machine.device)[0]
        else:
            available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if needed > available:
            raise ValueError(
                f"{self.n_messages} messages take {needed / 2**30:.1f} GB a particle, and there are "
                f"{available / 2**30:.1f} GB; use TAP() or AdaptiveTAP(), which send none"
            )

    # ----- the iteration

    def begin(self, layers: list[Units], moments: list[Moments | None]) -> State:
        layers = [self.as_used(layer) for layer in layers]
        started = from_below(layers, self.weights, moments)
        links = [self._from_moments(link, started[link.sender]) for link in self.links]
        failed = torch.zeros(len(started[0].mean), dtype=torch.bool, device=started[0].mean.device)
        return self._sweep(layers, Messages(tuple(links), tuple(started), failed), 0.0)

    def step(self, layers: list[Units], state: Messages) -> tuple[State, Tensor]:
        new = self._sweep([self.as_used(layer) for layer in layers], state, self.damping)
        return new, self._change(state, new) / (1 - self.damping) ** 2

    def moments(self, state: Messages) -> list[Moments]:
        return list(state.moments)

    def outcome(self, layers: list[Units], state: Messages) -> Outcome:
        layers = [self.as_used(layer) for layer in layers]
        tilts = [self._tilt(state.links, layer) for layer in range(len(layers))]
        change = self._change(state, self._sweep(layers, state, 0.0))
        return Outcome(tilts, change, self._free_energy(layers, state.links, tilts))

    def unnormalisable(self, state: Messages) -> Tensor:
        return state.unnormalisable

    def _sweep(self, layers: list[Units], state: Messages, damping: float) -> Messages:
        links, failed = list(state.links), state.unnormalisable
        for group in self.groups:
            before = list(links)
            for number in group:
                units, cavity = self._cavity(layers, before, number)
                failed = failed | ~units.normalisable(cavity).reshape(len(failed), -1).all(1)
                new = self.send(self.links[number], units, cavity)
                kept = (damping * old + (1 - damping) * z for z, old in zip(new, before[number], strict=True))
                links[number] = Message(*kept) if damping else new
        tilts = [self._tilt(links, layer) for layer in range(len(layers))]
        for layer, tilt in zip(layers, tilts, strict=True):
            failed = failed | ~layer.normalisable(tilt).all(1)
        moments = [layer.moments(tilt) for layer, tilt in zip(layers, tilts, strict=True)]
        return Messages(tuple(links), tuple(moments), failed)

    @abstractmethod
    def send(self, link: Link, units: Units, cavity: Tilt) -> Message:
        """The messages of a link.

        Args:
            link: the link.
            units: the sending units, for particles that are pairs of a particle and a receiving unit.
            cavity: the tilt on them from all but that unit, (K·n_receiver, *state_shape of the sender).
        """

    def bounded(self, layer: int, tilt: Tilt) -> Tilt:
        """A tilt on a layer's units, limited where a kind of messages needs that."""
        return tilt

    def as_used(self, units: Units) -> Units:
        """The units whose messages are sent, where they are not the machine's own."""
        return units

    def _tilt(self, links: Sequence[Message], layer: int) -> Tilt:
        """What all neighbours together send to a layer."""
        field = torch.stack([links[number].field.sum(1) for number in self.into[layer]]).sum(0)
        spread = torch.stack([links[number].spread.sum(1) for number in self.into[layer]]).sum(0)
        return self.bounded(layer, Tilt(field, spread))

    def _cavity(self, layers: list[Units], links: Sequence[Message], number: int) -> tuple[Units, Tilt]:
        """The sending units of a link, once for each receiver, and the tilts on them without what that one sent."""
        link = self.links[number]
        back = links[link.back]
        field, spread = (
            torch.stack([getattr(links[n], name).sum(1) for n in self.into[link.sender]]).sum(0).unsqueeze(1)
            - getattr(back, name)
            for name in ("field", "spread")
        )
        tilt = self.bounded(link.sender, Tilt(field.flatten(0, 1), spread.flatten(0, 1)))
        units = layers[link.sender]
        if units.n_rows is not None:
            index = torch.arange(len(field), device=field.device).repeat_interleave(field.shape[1])
            units = units.rows(index)
        return units, tilt

    def _from_moments(self, link: Link, moments: Moments) -> Message:
        """What units send that have the given means for sure."""
        field = _received(link, link.weights * moments.mean.unsqueeze(1).unsqueeze(1), self.shapes[link.receiver])
        return Message(field, torch.zeros_like(field), field.new_zeros(field.shape[:3]))

    def _change(self, old: Messages, new: Messages) -> Tensor:  # (K,)
        """The mean squared change: of the mean and variance of units, and of messages."""
        pairs = [pair for own in zip(old.moments, new.moments, strict=True) for pair in zip(*own, strict=True)]
        of_units = sum((after - before).flatten(1).square().sum(-1) for before, after in pairs)
        of_messages = sum(
            (after - before).flatten(1).square().sum(-1)
            for first, second in zip(old.links, new.links, strict=True)
            for before, after in zip(first[:2], second[:2], strict=True)
        )
        return torch.as_tensor(of_units / self.n_units + of_messages / self.n_messages)

    def _free_energy(self, layers: list[Units], links: Sequence[Message], tilts: Sequence[Tilt]) -> Tensor:
        """Bethe's F = −Σ_i (1 − ½d_i) ln Z_i − ½ Σ_{i→j} (ln Z_{i→j} + w_{i→j}), (K,), in float64 (erratum E15).

        ln Z_i is that of a unit under all its messages, ln Z_{i→j} without the one from j, and d_i counts them.
        """
        total = torch.zeros(len(links[0].field), dtype=torch.float64, device=links[0].field.device)
        for number, (layer, tilt) in enumerate(zip(layers, tilts, strict=True)):
            degree = sum(self.shapes[self.links[n].sender][0] for n in self.into[number])
            total = total - (1 - 0.5 * degree) * layer.log_partition(tilt).sum(-1, dtype=torch.float64)
        for number in range(len(self.links)):
            units, cavity = self._cavity(layers, links, number)
            alone = units.log_partition(cavity).reshape(len(total), -1).sum(-1, dtype=torch.float64)
            total = total - 0.5 * (alone + links[number].log_scale.flatten(1).sum(-1, dtype=torch.float64))
        return total


def _links(machine: BoltzmannMachine) -> list[Link]:
    """Both directions of all edges; a pairwise machine's units are linked to each other by one."""
    layers = machine.units()
    shapes = [(layer.n, *layer.state_shape[1:]) for layer in layers]
    links: list[Link] = []

    def arranged(weights: Tensor, sender: int, receiver: int) -> Tensor:  # (size of the sender, size of the receiver)
        n_states = shapes[receiver][1] if len(shapes[receiver]) > 1 else 1
        by_state = weights.detach().view(weights.shape[0], shapes[receiver][0], n_states)
        return by_state.permute(2, 1, 0).reshape(n_states, shapes[receiver][0], *shapes[sender]).contiguous()

    for below, above, weights in machine.edges():
        number = len(links)
        if below == above:
            links.append(Link(0, 0, arranged(weights, 0, 0), 0))
        else:
            links.append(Link(below, above, arranged(weights, below, above), number + 1))
            links.append(Link(above, below, arranged(weights.T, above, below), number))
    return links


def _received(link: Link, terms: Tensor, shape: tuple[int, ...]) -> Tensor:  # (K, n_sender, *shape of the receiver)
    """What arrives, from terms (K, states of a receiver, n_receiver, *state_shape of the sender), summed over these."""
    terms = terms.sum(-1) if terms.dim() > 4 else terms
    arrived = terms.permute(0, 3, 2, 1)  # (K, n_sender, n_receiver, states)
    return arrived if len(shape) > 1 else arrived.squeeze(-1)


# ----- the two kinds of messages


class _WholeDistributions(MessagePassing):
    """Messages to discrete units, which are tilts exactly: ln E[exp(Wxx')] at each of the receiver's states x'."""

    def __init__(self, machine: BoltzmannMachine, damping: float) -> None:
        super().__init__(machine, damping)
        self.two_states = [_two_states(layer) for layer in machine.units()]

    def send(self, link: Link, units: Units, cavity: Tilt) -> Message:
        field = torch.as_tensor(cavity.field)
        by_receiver = field.unflatten(0, (-1, link.weights.shape[1]))  # (K, n_receiver, *state_shape of the sender)
        at_rest = units.log_partition(Tilt(field, 0.0)).reshape(by_receiver.shape[:3])

        def gain(shift: Tensor) -> Tensor:  # (K, n_sender, n_receiver)
            tilted = units.log_partition(Tilt((by_receiver + shift).flatten(0, 1), 0.0))
            return (tilted.reshape(at_rest.shape) - at_rest).transpose(1, 2)

        states = self.two_states[link.receiver]
        if states is None:  # one state of q, each with couplings of its own
            sent = torch.stack([gain(weights) for weights in link.weights], -1)
            return Message(sent, torch.zeros_like(sent), sent.new_zeros(sent.shape[:3]))
        low, high = states
        at_low, at_high = gain(low * link.weights[0]), gain(high * link.weights[0])
        slope = (at_high - at_low) / (high - low)
        return Message(slope, torch.zeros_like(slope), at_low - low * slope)


class _TwoMoments(MessagePassing):
    """Messages by the sender's mean and variance [eq:Bij], [eq:Aij], [eq:aij], [eq:cij]."""

    def __init__(self, machine: BoltzmannMachine, damping: float, clip: float, truncate: float | None) -> None:
        super().__init__(machine, damping)
        self.truncate = truncate
        self.limits = [None if truncate else lowest_precision(layer, clip) for layer in machine.units()]

    def as_used(self, units: Units) -> Units:
        return units if self.truncate is None else _truncated(units, self.truncate)

    def bounded(self, layer: int, tilt: Tilt) -> Tilt:
        limit = self.limits[layer]
        return tilt if limit is None else Tilt(tilt.field, torch.maximum(torch.as_tensor(tilt.precision), limit))

    def send(self, link: Link, units: Units, cavity: Tilt) -> Message:
        mean, variance = (z.unflatten(0, (-1, link.weights.shape[1])).unsqueeze(1) for z in units.moments(cavity))
        shape = self.shapes[link.receiver]
        field = _received(link, link.weights * mean, shape)
        if len(self.shapes[link.sender]) > 1:  # of one unit's states one is taken: Var(Σ W_α x_α)
            spread = _received(link, link.weights**2 * mean, shape) - field**2
        else:
            spread = _received(link, link.weights**2 * variance, shape)
        return Message(field, -spread.clamp(min=0), field.new_zeros(field.shape[:3]))


def _two_states(units: Units) -> tuple[float, float] | None:
    """The two values of units that have as many; None for units with q states."""
    counts = units.n_states()
    if counts is not None and len(units.state_shape) > 1:
        return None
    base = unconditioned(units)
    if base.n_states() != [2] * base.n:
        raise ValueError(f"BeliefPropagation: {type(base).__name__} units do not have two or q states; use RelaxedBP()")
    digits = torch.tensor([[0], [1]], device=base.device).expand(2, base.n)
    low, high = base.decode(digits)[:, 0].tolist()
    return low, high


def _truncated(units: Units, deviations: float) -> Units:
    """Gaussian units cut off so many deviations from their means, the furthest of them; others as they are."""
    if isinstance(units, Tilted):
        return Tilted(_truncated(units.base, deviations), Tilt(units.field, units.precision), validate=False)
    if not isinstance(units, Gaussian):
        return units
    field, precision = units.field.detach(), units.precision.detach()
    mean, reach = field / precision, deviations * precision.rsqrt()
    return TruncatedGaussian(units.n, (mean - reach).min(), (mean + reach).max(), field=field, precision=precision)


class _MessageScheme(Scheme):
    """What both schemes share."""

    def __init__(self, damping: float) -> None:
        if not 0 <= damping < 1:
            raise ValueError(f"damping is {damping!r}; it must be at least 0 and less than 1")
        self.damping = damping

    def free_energy(self, machine: BoltzmannMachine, moments: Sequence[Moments], tilts: Sequence[Tilt]) -> Tensor:
        raise ValueError(
            f"{type(self).__name__}: F depends on messages, which moments do not tell; solve() gives it. To train, use "
            "TAP() or AdaptiveTAP()"
        )


@final
class BeliefPropagation(_MessageScheme):
    """Belief propagation for `Binary`, `Spin` and `Categorical` units, with Bethe's free energy: exact on trees.

    Every pair of coupled units exchanges messages, so that a particle needs memory for all of them, about
    12·N_v·N_h numbers (and as many times more as units have states).

    Args:
        damping: how much of the last message is kept, from 0 to less than 1.

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
    """Relaxed belief propagation for units of any type: messages by two moments, right to second order in W.

    Memory as for `BeliefPropagation`. The precision that messages take off a `Gaussian` unit is limited, without which
    one that is not normalisable would end it all:

    Args:
        damping: how much of the last message is kept, from 0 to less than 1.
        clip: the share of a Gaussian unit's own precision that messages may take off. A solution that reaches the limit
            is not one of the machine.
        truncate: in place of that, treat Gaussian units as truncated ones, this many deviations to either side.
    """

    def __init__(self, damping: float = DAMPING, clip: float = CLIPPED_SHARE, truncate: float | None = None) -> None:
        super().__init__(damping)
        if not 0 < clip < 1:
            raise ValueError(f"clip is {clip!r}; it must be between 0 and 1")
        if truncate is not None and not truncate > 0:
            raise ValueError(f"truncate is {truncate!r}; it must be greater than 0")
        self.clip, self.truncate = clip, truncate

    def __repr__(self) -> str:
        given = f", truncate={self.truncate}" if self.truncate is not None else f", clip={self.clip}"
        return f"RelaxedBP(damping={self.damping}{given})"

    def bind(self, machine: BoltzmannMachine) -> Process:
        return _TwoMoments(machine, self.damping, self.clip, self.truncate)
