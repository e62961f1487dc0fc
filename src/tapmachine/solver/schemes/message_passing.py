"""Message passing iteration shared by both variants of belief propagation.

A message to a unit is a factor exp(w + ux − ½kx²) that multiplies its prior, that is, a tilt and a scale. The message
from a unit to a neighbor is computed from the unit's prior under all tilts except the one from that neighbor.
"""

import copy
import os
from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.machine import BoltzmannMachine
from tapmachine.solver.schemes.process import Outcome, Process, State, from_below
from tapmachine.units import Units


class Link(NamedTuple):
    """Directed couplings from the units of one layer to the units of another; every edge has two links."""

    sender: int
    receiver: int
    weights: Tensor  # (states of a receiving unit, n_receiver, *state_shape of the sender)
    back: int  # index of the link in the opposite direction


class Message(NamedTuple):
    """Messages from all senders of a link to all receivers, with one value per state."""

    field: Tensor  # u, (K, n_sender, *state_shape of the receiver)
    spread: Tensor  # k, with the shape of the field
    log_scale: Tensor  # w, (K, n_sender, n_receiver)


class Messages(NamedTuple):
    """State of the iteration: messages of all links, moments of all layers, and a mask of failed particles."""

    links: tuple[Message, ...]
    moments: tuple[Moments, ...]
    unnormalizable: Tensor


class MessagePassing(Process):
    """Base class for the message passing iterations, which update messages to odd layers and then to even layers."""

    def __init__(self, machine: BoltzmannMachine, damping: float) -> None:
        self.damping = damping
        layers = list(machine.layers)
        self.shapes = [layer.state_shape for layer in layers]
        self.weights = [weights.detach() for weights in machine.weights]
        self.links = _links(machine)
        receivers = [link.receiver for link in self.links]
        # `into` lists the links by receiving layer; `groups` lists the links into odd layers and into even layers.
        self.into = [[link for link, r in enumerate(receivers) if r == index] for index in range(len(layers))]
        self.groups = [[link for link, r in enumerate(receivers) if r % 2 == parity] for parity in (1, 0)]
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
                f"{self.n_messages} messages take {needed / 2**30:.1f} GB per particle, but only "
                f"{available / 2**30:.1f} GB are available; use TAP() or AdaptiveTAP(), which need no messages"
            )

    # ----- the iteration

    def begin(self, layers: list[Units], moments: list[Moments | None]) -> State:
        first = from_below(layers, self.weights, moments)
        messages = [self._from_moments(link, first[link.sender]) for link in self.links]
        failed = torch.zeros(len(first[0].mean), dtype=torch.bool, device=first[0].mean.device)
        return self._sweep(layers, Messages(tuple(messages), tuple(first), failed), 0.0)

    def step(self, layers: list[Units], state: Messages) -> tuple[State, Tensor]:
        new = self._sweep(layers, state, self.damping)
        return new, self._change(state, new) / (1 - self.damping) ** 2

    def moments(self, state: Messages) -> list[Moments]:
        return list(state.moments)

    def outcome(self, layers: list[Units], state: Messages) -> Outcome:
        tilts = [self._tilt(state.links, index) for index in range(len(layers))]
        change = self._change(state, self._sweep(layers, state, 0.0))
        return Outcome(tilts, change, self._free_energy(layers, state.links, tilts))

    def unnormalizable(self, state: Messages) -> Tensor:
        return state.unnormalizable

    def _sweep(self, layers: list[Units], state: Messages, damping: float) -> Messages:
        messages, failed = list(state.links), state.unnormalizable
        for group in self.groups:
            before = list(messages)
            for link_index in group:
                units, cavity = self._cavity(layers, before, link_index)
                failed = failed | ~units.normalizable(cavity).reshape(len(failed), -1).all(1)
                new = self.send(self.links[link_index], units, cavity)
                damped = (damping * old + (1 - damping) * z for z, old in zip(new, before[link_index], strict=True))
                messages[link_index] = Message(*damped) if damping else new
        tilts = [self._tilt(messages, index) for index in range(len(layers))]
        for layer, tilt in zip(layers, tilts, strict=True):
            failed = failed | ~layer.normalizable(tilt).all(1)
        moments = [layer.moments(tilt) for layer, tilt in zip(layers, tilts, strict=True)]
        return Messages(tuple(messages), tuple(moments), failed)

    @abstractmethod
    def send(self, link: Link, units: Units, cavity: Tilt) -> Message:
        """Compute the messages of a link.

        Args:
            link: The link over which messages are sent.
            units: The sending units, with one row for each pair of a particle and a receiving unit.
            cavity: Tilt on the sending units from all units except the receiving one, shape
                (K·n_receiver, *state_shape of the sender).
        """

    def bounded(self, layer_index: int, tilt: Tilt) -> Tilt:
        """Limit a tilt on a layer's units; by default, tilts are not limited."""
        return tilt

    def _sums(self, messages: Sequence[Message], layer_index: int) -> tuple[Tensor, Tensor]:
        """Return the sums of u and k over all messages to a layer."""
        received = [messages[link_index] for link_index in self.into[layer_index]]
        field = torch.stack([message.field.sum(1) for message in received]).sum(0)
        spread = torch.stack([message.spread.sum(1) for message in received]).sum(0)
        return field, spread

    def _tilt(self, messages: Sequence[Message], layer_index: int) -> Tilt:
        """Return the total tilt that a layer receives from its neighbors."""
        return self.bounded(layer_index, Tilt(*self._sums(messages, layer_index)))

    def _cavity(self, layers: list[Units], messages: Sequence[Message], link_index: int) -> tuple[Units, Tilt]:
        """Return a link's sending units, repeated for each receiver, and their tilts without the receiver's message."""
        link = self.links[link_index]
        back = messages[link.back]
        all_fields, all_spreads = self._sums(messages, link.sender)
        field, spread = all_fields.unsqueeze(1) - back.field, all_spreads.unsqueeze(1) - back.spread
        tilt = self.bounded(link.sender, Tilt(field.flatten(0, 1), spread.flatten(0, 1)))
        units = layers[link.sender]
        if units.n_rows is not None:
            rows = torch.arange(len(field), device=field.device).repeat_interleave(field.shape[1])
            units = units.rows(rows)
        return units, tilt

    def _from_moments(self, link: Link, moments: Moments) -> Message:
        """Compute the messages of units with known means and zero variance."""
        field = received(link.weights * moments.mean.unsqueeze(1).unsqueeze(1), self.shapes[link.receiver])
        return Message(field, torch.zeros_like(field), field.new_zeros(field.shape[:3]))

    def _change(self, old: Messages, new: Messages) -> Tensor:  # (K,)
        """Return the mean squared change in the units' moments plus the mean squared change in the messages."""
        layers = zip(old.moments, new.moments, strict=True)
        pairs = [pair for old_and_new in layers for pair in zip(*old_and_new, strict=True)]
        of_units = sum((after - before).flatten(1).square().sum(-1) for before, after in pairs)
        of_messages = sum(
            (after - before).flatten(1).square().sum(-1)
            for first, second in zip(old.links, new.links, strict=True)
            for before, after in zip(first[:2], second[:2], strict=True)
        )
        return torch.as_tensor(of_units / self.n_units + of_messages / self.n_messages)

    def _free_energy(self, layers: list[Units], messages: Sequence[Message], tilts: Sequence[Tilt]) -> Tensor:
        """Compute the Bethe free energy F = −Σ_i (1 − ½d_i) ln Z_i − ½ Σ_{i→j} (ln Z_{i→j} + w_{i→j}) (erratum E15).

        Unit i receives d_i messages. Z_i is the normalizer of unit i under all messages, and Z_{i→j} under all messages
        except the one from unit j. The result has the shape (K,) and the dtype float64.
        """
        value = torch.zeros(len(messages[0].field), dtype=torch.float64, device=messages[0].field.device)
        for layer_index, (layer, tilt) in enumerate(zip(layers, tilts, strict=True)):
            degree = sum(self.shapes[self.links[link_index].sender][0] for link_index in self.into[layer_index])
            value = value - (1 - 0.5 * degree) * layer.log_partition(tilt).sum(-1, dtype=torch.float64)
        for link_index, message in enumerate(messages):
            units, cavity = self._cavity(layers, messages, link_index)
            without = units.log_partition(cavity).reshape(len(value), -1).sum(-1, dtype=torch.float64)
            value = value - 0.5 * (without + message.log_scale.flatten(1).sum(-1, dtype=torch.float64))
        return value

    def differentiable_free_energy(self, machine: BoltzmannMachine, state: Messages) -> Tensor:
        """Compute the free energy, of shape (K,), differentiable with respect to the machine's parameters.

        F is stationary in the messages and cavity tilts, which are therefore held fixed. Its gradient is the gradient
        of −Σ_i ln Z_i − ½ Σ_{i→j} ln Z_ij, where Z_ij normalizes a pair of units under the tilts from all other units.
        """
        fixed = [copy.deepcopy(layer).requires_grad_(False) for layer in machine.layers]
        with torch.no_grad():
            tilts = [self._tilt(state.links, index) for index in range(len(fixed))]
            value = self._free_energy(fixed, state.links, tilts)
            cavities = [self._cavity(fixed, state.links, link_index) for link_index in range(len(self.links))]
        varying = torch.zeros_like(value)
        for layer, tilt in zip(machine.layers, tilts, strict=True):
            varying = varying - layer.log_partition(tilt).sum(-1, dtype=torch.float64)
        for link, (units, cavity) in zip(_links(machine, differentiable=True), cavities, strict=True):
            message, (receivers, alone) = self.send(link, units, cavity), cavities[link.back]
            pair = Tilt(alone.field + message.field.flatten(0, 1), alone.precision + message.spread.flatten(0, 1))
            together = receivers.log_partition(self.bounded(link.receiver, pair)).reshape(len(value), -1)
            ln_z = together.sum(-1, dtype=torch.float64) + message.log_scale.flatten(1).sum(-1, dtype=torch.float64)
            varying = varying - 0.5 * ln_z
        return value + (varying - varying.detach())


def _links(machine: BoltzmannMachine, differentiable: bool = False) -> list[Link]:
    """Return the links in both directions of all edges; a pairwise machine has a single link."""
    layers = list(machine.layers)
    shapes = [(layer.n, *layer.state_shape[1:]) for layer in layers]
    links: list[Link] = []

    def arranged(weights: Tensor, sender: int, receiver: int) -> Tensor:  # (size of the sender, size of the receiver)
        n_states = shapes[receiver][1] if len(shapes[receiver]) > 1 else 1
        by_state = (weights if differentiable else weights.detach()).view(
            weights.shape[0], shapes[receiver][0], n_states
        )
        return by_state.permute(2, 1, 0).reshape(n_states, shapes[receiver][0], *shapes[sender]).contiguous()

    for below, above, weights in machine.edges():
        index, weights = len(links), weights if differentiable else weights.detach()
        if below == above:
            links.append(Link(0, 0, arranged(weights, 0, 0), 0))
        else:
            links.append(Link(below, above, arranged(weights, below, above), index + 1))
            links.append(Link(above, below, arranged(weights.T, above, below), index))
    return links


def received(terms: Tensor, shape: tuple[int, ...]) -> Tensor:  # (K, n_sender, *shape of the receiver)
    """Sum terms over the sender's states and move the receiver's dimensions last.

    `terms` has the shape (K, states of a receiver, n_receiver, *state_shape of the sender).
    """
    terms = terms.sum(-1) if terms.dim() > 4 else terms
    arrived = terms.permute(0, 3, 2, 1)  # (K, n_sender, n_receiver, states)
    return arrived if len(shape) > 1 else arrived.squeeze(-1)
