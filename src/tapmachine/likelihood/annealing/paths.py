"""Distributions between independent units and a machine, and annealing steps between neighboring distributions.

The distributions are P_β(x) ∝ Π P(x) · exp((1 − β) Σ D x + β Σ x W x'). At β = 0, the units are independent, with a
field D that gives them reasonable means, and ln Z is known. At β = 1, the distribution is that of the machine. Units
interact only through tilts, so that every unit type can be sampled and summed over at any β.
"""

import zlib
from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.data.rows import spaced
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_rows
from tapmachine.machine.sampler import sweep_units

BASE_ROWS = 2000  # maximum number of rows used to estimate the means at β = 0
BASE_CHAINS, BASE_SWEEPS = 100, 50  # chains used to estimate the means without data, and sweeps of burn-in and average
ROW_CHAINS, ROW_SWEEPS = (
    20,
    10,
)  # the same for each row on which a machine is conditioned
DEEP_SWEEPS = 10  # number of sweeps used to draw the layers above the first hidden layer, given data

States = tuple[Tensor, ...]
Beta = Tensor | float
Chain = list[Tensor | None]  # states of all layers; None for layers that are summed over


class AnnealingPath(ABC):
    """Base class for distributions P_β between independent units and a machine.

    Args:
        machine: Machine at β = 1.
        base: Field D on each layer at β = 0, with shape state_shape or (rows, *state_shape).
    """

    def __init__(self, machine: BoltzmannMachine, base: list[Tensor]) -> None:
        self.machine, self.layers, self.base, self.n_rows = machine, list(machine.layers), base, machine.n_rows
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
        """Value of ln Z at β = 0, where the units are independent."""
        per_layer = [
            layer.log_partition(Tilt(field, 0.0)).sum(-1, dtype=torch.float64)
            for layer, field in zip(self.layers, self.base, strict=True)
        ]
        return torch.stack(torch.broadcast_tensors(*per_layer)).sum(0)

    def draw(self, n_chains: int, generator: torch.Generator) -> States:
        """Draw exact samples of the kept layers at β = 0."""
        return tuple(self._draw(layer_index, self._base(layer_index, n_chains), generator) for layer_index in self.kept)

    def _base(self, layer_index: int, n_chains: int) -> Tensor:
        """Return the field D on a layer, repeated for every chain."""
        batch = (n_chains,) if self.n_rows is None else (n_chains, self.n_rows)
        return self.base[layer_index].expand(*batch, *self.layers[layer_index].state_shape)

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

    def _overlap(self, layer_index: int, x: Tensor) -> Tensor:  # (chains, ...), float64
        """Return Σ D x of a layer, in float64."""
        base, first = self.base[layer_index], -len(self.layers[layer_index].state_shape)
        if self.n_rows is None:
            return (x.flatten(first) @ base.flatten()).double()
        return (x * base).flatten(first).sum(-1).double()


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
        overlaps = [self._overlap(layer_index, x) for layer_index, x in zip(self.kept, states, strict=True)]
        gain = (before - after) * sum(overlaps[1:], overlaps[0])
        for layer_index in self._odd:
            from_neighbors = self._field(layer_index, chain)
            old, new = (torch.lerp(self.base[layer_index], from_neighbors, beta) for beta in (before, after))
            gain = gain + self.layers[layer_index].log_partition_gain(old, new)
            chain[layer_index] = self._draw(layer_index, new, generator)
        for layer_index in self.kept:
            field = torch.lerp(self.base[layer_index], self._field(layer_index, chain), after)
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
        gain = (after - before) * (energy - self._overlap(0, x))
        drawn = sweep_units(
            self.layers[0],
            self._senders[0][0][1],
            x,
            field,
            lambda full: torch.lerp(self.base[0], full, after),
            generator,
        )
        return (drawn,), gain

    def all_layers(self, states: States, generator: torch.Generator) -> list[Tensor]:
        return list(states)


@torch.no_grad()
def path_to(machine: BoltzmannMachine, data: Tensor | None, seed: int) -> AnnealingPath:
    """Return a path to a machine from independent units with the means of the data or of short chains.

    Without data, only the visible layer has a field. Fields on the hidden layers would attract all chains to the mode
    that the short chains happen to favor.
    """
    untilted = untilted_path(machine)
    generator = seeded(machine.device, seed, "base")
    if data is None:
        n_chains, n_sweeps = (BASE_CHAINS, BASE_SWEEPS) if machine.n_rows is None else (ROW_CHAINS, ROW_SWEEPS)
        means, weight = [_typical_mean(untilted, n_chains, n_sweeps, generator)], n_chains
    else:
        states = states_of(untilted, spaced(check_rows(machine, data), BASE_ROWS), generator)
        means, weight = [x.mean(0) for x in states], len(states[0])
    base = list(untilted.base)
    for layer_index, mean in enumerate(means):
        layer = machine.layers[layer_index]
        at_rest = layer.moments(Tilt(base[layer_index], 0.0)).mean
        inside = (weight * mean + at_rest) / (weight + 1)  # a pseudo-observation keeps means away from the bounds
        base[layer_index] = layer.field_with_mean(inside)
    return type(untilted)(machine, base)


def untilted_path(machine: BoltzmannMachine) -> AnnealingPath:
    """Return a path to a machine from its priors, with D = 0 on every layer."""
    rows = () if machine.n_rows is None else (machine.n_rows,)
    zeros = [
        torch.zeros((*rows, *layer.state_shape), dtype=machine.dtype, device=machine.device) for layer in machine.layers
    ]
    return PairwisePath(machine, zeros) if machine.is_pairwise else LayeredPath(machine, zeros)


def _typical_mean(path: AnnealingPath, n_chains: int, n_sweeps: int, generator: torch.Generator) -> Tensor:
    """Mean of the visible layer over short chains of the machine, after burn-in from the priors."""
    states = path.draw(n_chains, generator)
    total = torch.zeros_like(path.base[0])
    for sweep in range(2 * n_sweeps):
        states, _ = path.step(states, 1.0, 1.0, generator)
        total += states[0].mean(0) if sweep >= n_sweeps else 0.0
    return total / n_sweeps


def states_of(path: AnnealingPath, data: Tensor, generator: torch.Generator) -> list[Tensor]:
    """Return states of all layers, with the visible layer clamped to rows of data."""
    x = check_rows(path.machine, data)
    states = (x, *path.draw(len(x), generator)[1:])
    for _ in range(DEEP_SWEEPS if len(states) > 1 else 0):
        states = (x, *path.step(states, 1.0, 1.0, generator)[0][1:])
    return path.all_layers(states, generator)


def seeded(device: torch.device, seed: int, purpose: str, index: int = 0) -> torch.Generator:
    """Return a random number generator that depends on the seed, the purpose and an index."""
    entropy = np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), index])
    return torch.Generator(device).manual_seed(int(entropy.generate_state(1, np.uint64)[0] >> np.uint64(1)))
