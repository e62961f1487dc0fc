"""Distributions between a mixture of independent units and a machine, and annealing steps between neighbors.

The distributions are P_β(x) ∝ Π P(x) · Σ_k exp((1 − β)(c_k + Σ D_k x) + β Σ x W x'). At β = 0, the units are
independent in each component k, with fields D_k, and ln Z is known. At β = 1, the distribution is that of the machine.
Units interact only through tilts, so that every unit type can be sampled and summed over at any β. The component is one
more categorical variable: it is summed over in the weights, and drawn given the units in each Gibbs sweep.
"""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.sampler import sweep_units
from tapmachine.units import Units

States = tuple[Tensor, ...]
Beta = Tensor | float
Chain = list[Tensor | None]  # states of all layers; None for layers that are summed over


@dataclass(frozen=True, eq=False)
class Base:
    """Mixture of independent units, from which annealing starts.

    Each component multiplies the priors of the even layers by exp(c_k + Σ D_k x). The odd layers are summed over in
    annealing, and have the same field in all components.

    Attributes:
        name: Name for messages, such as `solutions`.
        fields: Fields of each layer, shape (K, *state_shape), or (K, rows, *state_shape) for a machine conditioned on
            rows. For odd layers, K is 1.
        offsets: Constants c_k in float64, shape (K,) or (K, rows).
    """

    name: str
    fields: tuple[Tensor, ...]
    offsets: Tensor

    def __len__(self) -> int:
        return len(self.offsets)


class AnnealingPath(ABC):
    """Base class for distributions P_β between a mixture of independent units and a machine.

    Args:
        machine: Machine at β = 1.
        base: Mixture at β = 0.
    """

    def __init__(self, machine: BoltzmannMachine, base: Base) -> None:
        self.machine, self.layers, self.n_rows = machine, list(machine.layers), machine.n_rows
        self.offsets, self.base = base.offsets, list(base.fields)
        if self.n_rows is not None:
            self.base = [self._with_rows(*pair) for pair in zip(self.layers, self.base, strict=True)]
            self.offsets = self.offsets.view(len(base), -1)
        self._senders: list[list[tuple[int, Tensor]]] = [[] for _ in self.layers]
        for below, above, weights in machine.edges():
            self._senders[above].append((below, weights.detach()))
            if below != above:
                self._senders[below].append((above, weights.detach().T))

    @property
    @abstractmethod
    def kept(self) -> tuple[int, ...]:
        """Indices of the layers whose states are kept; the other layers are summed over."""

    @abstractmethod
    def step(self, states: States, before: Beta, after: Beta, generator: torch.Generator) -> tuple[States, Tensor]:
        """Perform one annealing step from β = `before` to β = `after`, followed by a Gibbs sweep.

        Returns:
            The states after the sweep, and the change of ln P_β for the states before the sweep, in float64, with shape
            (chains,) or (chains, rows).
        """

    @abstractmethod
    def all_layers(self, states: States, generator: torch.Generator) -> list[Tensor]:
        """Return states of all layers at β = 1, given the states of the kept layers."""

    def log_partition_at_start(self) -> Tensor:  # () or (rows,), float64
        """Value of ln Z at β = 0, minus the logarithm of the number of components, which are summed over at β = 1."""
        return self.log_weights().logsumexp(0) - log(len(self.offsets))

    def draw(self, n_chains: int, generator: torch.Generator) -> States:
        """Draw exact samples of the kept layers at β = 0, with evenly spaced quantiles of the component."""
        labels = None
        if len(self.offsets) > 1:
            labels = draw_evenly(self.log_weights(), n_chains, generator)
        batch = (n_chains,) if self.n_rows is None else (n_chains, self.n_rows)
        return tuple(
            self._draw(index, self._field_of(index, labels).expand(*batch, *self.layers[index].state_shape), generator)
            for index in self.kept
        )

    def shares(self, states: Sequence[Tensor], weights: Tensor | None = None) -> Tensor:  # (K,), float64
        """Return the share of the states of all layers that are most probable in each component of the base.

        Args:
            states: States of all layers, shape (S, *state_shape).
            weights: Weights of the states, shape (S,) (default: equal).
        """
        nearest = self._exponents(tuple(states[index] for index in self.kept)).argmax(-1)
        counts = torch.bincount(nearest, weights, minlength=len(self.offsets)).double()
        return counts / counts.sum()

    def log_weights(self) -> Tensor:  # (K,) or (K, rows), float64
        """Logarithms of the weights of the components at β = 0."""
        per_layer = [
            layer.log_partition(Tilt(field, 0.0)).sum(-1, dtype=torch.float64)
            for layer, field in zip(self.layers, self.base, strict=True)
        ]
        return self.offsets + torch.stack(torch.broadcast_tensors(*per_layer)).sum(0)

    def _with_rows(self, layer: Units, field: Tensor) -> Tensor:
        """Insert a dimension for rows into fields that all rows share."""
        return field if field.dim() > 1 + len(layer.state_shape) else field.unsqueeze(1)

    def _field(self, layer_index: int, chain: Chain) -> Tensor:
        """Return the field ΣWx' on a layer from its neighbors at β = 1."""
        parts = [self._flat(sender, chain) @ weights for sender, weights in self._senders[layer_index]]
        field: Tensor = sum(parts[1:], parts[0]).unflatten(-1, self.layers[layer_index].state_shape)
        return field

    def _flat(self, layer_index: int, chain: Chain) -> Tensor:
        x, shape = chain[layer_index], self.layers[layer_index].state_shape
        assert x is not None
        return x.flatten(-len(shape)) if len(shape) > 1 else x

    def _draw(self, layer_index: int, field: Tensor, generator: torch.Generator) -> Tensor:
        return self.layers[layer_index].sample(Tilt(field, 0.0), generator)

    # ----- the components

    def labels(self, states: States) -> Tensor:  # (chains,) or (chains, rows)
        """Return the most probable component at β = 0, given states of the kept layers."""
        return self._exponents(states).argmax(-1)

    def _field_of(self, layer_index: int, labels: Tensor | None) -> Tensor:
        """Return the field of each chain's component on a layer, or that of the only component."""
        field = self.base[layer_index]
        if labels is None or len(field) == 1:
            return field[0]
        if self.n_rows is None:
            return field[labels]
        return field.expand(-1, self.n_rows, *field.shape[2:])[labels, torch.arange(self.n_rows, device=field.device)]

    def _exponents(self, states: States) -> Tensor:  # (chains, K) or (chains, rows, K), float64
        """Return c_k + Σ D_k x over the kept layers."""
        parts = [self._overlap(layer_index, x) for layer_index, x in zip(self.kept, states, strict=True)]
        return sum(parts[1:], parts[0]) + self.offsets.movedim(0, -1)

    def _overlap(self, layer_index: int, x: Tensor) -> Tensor:  # (chains, K) or (chains, rows, K), float64
        """Return Σ D_k x of a layer."""
        base, first = self.base[layer_index], -len(self.layers[layer_index].state_shape)
        if len(base) > 1:
            return torch.einsum("c...n,k...n->c...k", x.flatten(first), base.flatten(first)).double()
        if self.n_rows is None:
            return (x.flatten(first) @ base[0].flatten()).double().unsqueeze(-1)
        return (x * base[0]).flatten(first).sum(-1).double().unsqueeze(-1)

    def _leave_base(
        self, states: States, before: Beta, after: Beta, generator: torch.Generator
    ) -> tuple[Tensor, Tensor | None]:
        """Return the change of ln Σ_k exp((1 − β)(c_k + Σ D_k x)), and the component of each chain, drawn given x."""
        exponents = self._exponents(states)
        if len(self.offsets) == 1:
            return (before - after) * exponents.squeeze(-1), None
        at_after = (1 - after) * exponents
        gain = at_after.logsumexp(-1) - ((1 - before) * exponents).logsumexp(-1)
        arrivals = torch.empty_like(at_after).exponential_(generator=generator)
        return gain, (at_after.softmax(-1) / arrivals).argmax(-1)


class LayeredPath(AnnealingPath):
    """Annealing path to a layered machine, with even layers kept and odd layers summed over."""

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(range(0, len(self.layers), 2))

    @property
    def _odd(self) -> range:
        return range(1, len(self.layers), 2)

    def _chain(self, states: States) -> Chain:
        chain: Chain = [None] * len(self.layers)
        for layer_index, x in zip(self.kept, states, strict=True):
            chain[layer_index] = x
        return chain

    def step(self, states: States, before: Beta, after: Beta, generator: torch.Generator) -> tuple[States, Tensor]:
        chain = self._chain(states)
        gain, labels = self._leave_base(states, before, after, generator)
        for layer_index in self._odd:
            from_neighbors = self._field(layer_index, chain)
            old, new = (torch.lerp(self.base[layer_index][0], from_neighbors, beta) for beta in (before, after))
            gain = gain + self.layers[layer_index].log_partition_gain(old, new)
            chain[layer_index] = self._draw(layer_index, new, generator)
        for layer_index in self.kept:
            field = torch.lerp(self._field_of(layer_index, labels), self._field(layer_index, chain), after)
            chain[layer_index] = self._draw(layer_index, field, generator)
        return tuple(x for x in chain[::2] if x is not None), gain

    def all_layers(self, states: States, generator: torch.Generator) -> list[Tensor]:
        chain = self._chain(states)
        for layer_index in self._odd:
            chain[layer_index] = self._draw(layer_index, self._field(layer_index, chain), generator)
        return [x for x in chain if x is not None]


class PairwisePath(AnnealingPath):
    """Annealing path to a pairwise machine, in which units are drawn one after another."""

    @property
    def kept(self) -> tuple[int, ...]:
        return (0,)

    def step(self, states: States, before: Beta, after: Beta, generator: torch.Generator) -> tuple[States, Tensor]:
        x = states[0]
        field = self._field(0, [x])
        energy = 0.5 * (field * x).flatten(-len(self.layers[0].state_shape)).sum(-1).double()
        gain, labels = self._leave_base(states, before, after, generator)
        offset = (1 - after) * self._field_of(0, labels)
        drawn = sweep_units(self.layers[0], self._senders[0][0][1], x, generator, after, offset)
        return (drawn,), gain + (after - before) * energy

    def all_layers(self, states: States, generator: torch.Generator) -> list[Tensor]:
        return list(states)


def path_from(base: Base, machine: BoltzmannMachine) -> AnnealingPath:
    """Return a path from a mixture of independent units to a machine."""
    return PairwisePath(machine, base) if machine.is_pairwise else LayeredPath(machine, base)


def draw_evenly(log_weights: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw indices in proportion to weights, at evenly spaced quantiles, so that shares are as exact as possible.

    Args:
        log_weights: Logarithms of the weights, shape (K,) or (K, rows).
        count: Number of indices.
        generator: Random number generator.

    Returns:
        Indices in increasing order, shape (count,) or (count, rows).
    """
    quantiles = log_weights.softmax(0).cumsum(0).movedim(0, -1).contiguous()
    shift = torch.rand((*quantiles.shape[:-1], 1), generator=generator, dtype=quantiles.dtype, device=quantiles.device)
    points = (torch.arange(count, device=quantiles.device) + shift) / count
    return torch.searchsorted(quantiles, points).clamp(max=len(log_weights) - 1).movedim(-1, 0)


def seeded(device: torch.device, seed: int, purpose: str, index: int = 0) -> torch.Generator:
    """Return a random number generator that depends on the seed, the purpose and an index."""
    entropy = np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), index])
    return torch.Generator(device).manual_seed(int(entropy.generate_state(1, np.uint64)[0] >> np.uint64(1)))
