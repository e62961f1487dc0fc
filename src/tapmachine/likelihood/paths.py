"""From independent units to a machine: the distributions in between, and chains that walk along them.

P_β(x) ∝ Π P(x) · exp((1 − β) Σ D x + β Σ x W x'): at β = 0 independent units with a field D that gives them sensible
means, and a normaliser that is known; at β = 1 the machine. Every unit type can be drawn and summed over on the way,
since all that reaches it is a tilt.
"""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.inference.replay import Replay
from tapmachine.likelihood.score import check_rows, spaced
from tapmachine.machine import BoltzmannMachine
from tapmachine.precision import products_in
from tapmachine.sampling import sweep_units

STRIDE = 20  # steps between looks at the chains; on a GPU, those in one CUDA graph
BASE_ROWS = 2000  # rows of data that the base's means are taken from, at most
BASE_CHAINS = 100  # chains that the base's means are taken from, without data
BASE_SWEEPS = 50  # that they are averaged over, after as many
DEEP_SWEEPS = 10  # to draw the layers above the first hidden one, given data

States = tuple[Tensor, ...]
Beta = Tensor | float
Chain = list[Tensor | None]  # states of all layers; None where they are summed over


class AnnealingPath(ABC):
    """The way to one machine, with chains of any number on it.

    Args:
        machine: where it leads.
        base: the field D on each layer, of shape state_shape or (rows, *state_shape).
    """

    def __init__(self, machine: BoltzmannMachine, base: list[Tensor]) -> None:
        self.machine, self.layers, self.base, self.n_rows = machine, machine.units(), base, machine.n_rows
        self._senders: list[list[tuple[int, Tensor]]] = [[] for _ in self.layers]
        for below, above, weights in machine.edges():
            self._senders[above].append((below, weights.detach()))
            if below != above:
                self._senders[below].append((above, weights.detach().T))

    def log_partition_at_start(self) -> Tensor:  # () or (rows,), float64
        """ln Z at β = 0: the units are independent."""
        per_layer = [
            layer.log_partition(Tilt(field, 0.0)).sum(-1, dtype=torch.float64)
            for layer, field in zip(self.layers, self.base, strict=True)
        ]
        return torch.stack(torch.broadcast_tensors(*per_layer)).sum(0)

    def draw(self, n_chains: int, generator: torch.Generator) -> States:
        """Exact draws at β = 0 of the layers that make up a state."""
        return tuple(self._draw(number, self._base(number, n_chains), generator) for number in self.kept)

    def _base(self, number: int, n_chains: int) -> Tensor:
        """The base's field on a layer, once for every chain."""
        batch = (n_chains,) if self.n_rows is None else (n_chains, self.n_rows)
        return self.base[number].expand(*batch, *self.layers[number].state_shape)

    def _field(self, number: int, chain: Chain) -> Tensor:
        """ΣWx', what a layer's neighbours send to it at β = 1."""
        parts = [self._flat(sender, chain) @ weights for sender, weights in self._senders[number]]
        field: Tensor = sum(parts[1:], parts[0]).unflatten(-1, self.layers[number].state_shape)
        return field

    def _flat(self, number: int, chain: Chain) -> Tensor:
        x, shape = chain[number], self.layers[number].state_shape
        assert x is not None
        return x.flatten(-len(shape)) if len(shape) > 1 else x

    def _draw(self, number: int, field: Tensor, generator: torch.Generator) -> Tensor:
        return self.layers[number].sample(Tilt(field, 0.0), generator)

    def _overlap(self, number: int, x: Tensor) -> Tensor:  # (chains, ...), float64
        """Σ D x of a layer."""
        base, first = self.base[number], -len(self.layers[number].state_shape)
        if self.n_rows is None:
            return (x.flatten(first) @ base.flatten()).double()
        return (x * base).flatten(first).sum(-1).double()

    @property
    @abstractmethod
    def kept(self) -> tuple[int, ...]:
        """The layers whose states make up a state on the path; the others are summed over."""

    @abstractmethod
    def step(self, states: States, before: Beta, after: Beta, generator: torch.Generator) -> tuple[States, Tensor]:
        """States drawn by a sweep at the β after, and by how much that β changes ln of the weight of the given ones."""

    @abstractmethod
    def all_layers(self, states: States, generator: torch.Generator) -> list[Tensor]:
        """States of all layers at β = 1, given those of the kept ones."""


class LayeredPath(AnnealingPath):
    """For machines with layers: the odd ones are summed over, the even ones kept."""

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(range(0, len(self.layers), 2))

    @property
    def _odd(self) -> range:
        return range(1, len(self.layers), 2)

    def _chain(self, states: States) -> Chain:
        chain: Chain = [None] * len(self.layers)
        for number, x in zip(self.kept, states, strict=True):
            chain[number] = x
        return chain

    def step(self, states: States, before: Beta, after: Beta, generator: torch.Generator) -> tuple[States, Tensor]:
        chain = self._chain(states)
        overlaps = [self._overlap(number, x) for number, x in zip(self.kept, states, strict=True)]
        gain = (before - after) * sum(overlaps[1:], overlaps[0])
        for number in self._odd:
            full = self._field(number, chain)
            old, new = (torch.lerp(self.base[number], full, beta) for beta in (before, after))
            gain = gain + self.layers[number].log_partition_gain(old, new)
            chain[number] = self._draw(number, new, generator)
        for number in self.kept:
            field = torch.lerp(self.base[number], self._field(number, chain), after)
            chain[number] = self._draw(number, field, generator)
        return tuple(x for x in chain[::2] if x is not None), gain

    def all_layers(self, states: States, generator: torch.Generator) -> list[Tensor]:
        chain = self._chain(states)
        for number in self._odd:
            chain[number] = self._draw(number, self._field(number, chain), generator)
        return [x for x in chain if x is not None]


class PairwisePath(AnnealingPath):
    """For pairwise machines: nothing is summed over, and units are drawn one after the other."""

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


class Walk(NamedTuple):
    """Chains on their way.

    Attributes:
        position: steps done, (1,).
        log_weights: sum of the changes of ln of the weights so far, (chains,) or (chains, rows), float64.
        states: of the kept layers.
    """

    position: Tensor
    log_weights: Tensor
    states: States


@torch.no_grad()
@products_in("float32")
def anneal(
    path: AnnealingPath,
    betas: Tensor,  # (steps + 1,)
    states: States,
    generator: torch.Generator,
    callback: Callable[[int, Walk], None] | None = None,
) -> Walk:
    """The walk of chains through all β, up or down, from states drawn at the first one.

    The callback is called with the number of steps done and the walk so far, every 20 steps. On a GPU these are
    captured as a CUDA graph: the shapes are fixed, and nothing looks at the values.
    """
    device, n_steps = path.machine.device, len(betas) - 1
    batch = states[0].shape[: -len(path.layers[0].state_shape)]
    walk = Walk(
        torch.zeros(1, dtype=torch.long, device=device),
        torch.zeros(batch, dtype=torch.float64, device=device),
        states,
    )
    on_cuda = device.type == "cuda"
    advance = _captured_stride(path, betas, walk, generator) if on_cuda else _stride(path, betas, generator)
    for first in range(0, n_steps, STRIDE):
        walk = advance(walk, first)
        if callback is not None:
            callback(min(first + STRIDE, n_steps), walk)
    return walk


Stride = Callable[[Walk, int], Walk]  # some steps from the given one on


def _stride(path: AnnealingPath, betas: Tensor, generator: torch.Generator) -> Stride:
    values = betas.tolist()

    def advance(walk: Walk, first: int) -> Walk:
        for before, after in pairwise(values[first : first + STRIDE + 1]):
            states, gain = path.step(walk.states, before, after, generator)
            walk = Walk(walk.position + 1, walk.log_weights + gain, states)
        return walk

    return advance


def _captured_stride(path: AnnealingPath, betas: Tensor, walk: Walk, generator: torch.Generator) -> Stride:
    beyond = betas[-1:].expand((1 - len(betas)) % STRIDE)  # steps after the last one stay where they are
    all_betas = torch.cat((betas, beyond)).to(path.machine.device, path.machine.dtype)

    def step(walk: Walk) -> tuple[Walk, Tensor]:
        before, after = (all_betas.index_select(0, walk.position + ahead).squeeze(0) for ahead in (0, 1))
        states, gain = path.step(walk.states, before, after, generator)
        return Walk(walk.position + 1, walk.log_weights + gain, states), gain

    replay = Replay(step, walk, STRIDE, generator)
    return lambda walk, first: replay(walk)[0]


def seeded(device: torch.device, seed: int, purpose: str, number: int = 0) -> torch.Generator:
    """A generator of its own for each purpose, block of runs and seed."""
    entropy = np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), number])
    return torch.Generator(device).manual_seed(int(entropy.generate_state(1, np.uint64)[0] >> np.uint64(1)))


@torch.no_grad()
def path_to(machine: BoltzmannMachine, data: Tensor | None, seed: int) -> AnnealingPath:
    """The path to a machine from its priors with the means that they have in the data, or in short chains.

    Without data only the visible layer gets a field: fields on the hidden ones, too, would lead all chains to the one
    of several modes that the short chains happen to favour.
    """
    untilted = untilted_path(machine)
    generator = seeded(machine.device, seed, "base")
    if data is None:
        means, weight = [_typical_mean(untilted, generator)], BASE_CHAINS
    else:
        states = states_of(untilted, spaced(check_rows(machine, data), BASE_ROWS), generator)
        means, weight = [x.mean(0) for x in states], len(states[0])
    base = list(untilted.base)
    for number, mean in enumerate(means):
        units = machine.units()[number]
        at_rest = units.moments(Tilt(base[number], 0.0)).mean
        inside = (weight * mean + at_rest) / (weight + 1)  # one pseudo-observation keeps it off the edges
        base[number] = units.field_with_mean(inside)
    return type(untilted)(machine, base)


def untilted_path(machine: BoltzmannMachine) -> AnnealingPath:
    """The path to a machine from its priors as they are."""
    nowhere = [_zeros(machine, layer) for layer in range(len(machine.layers))]
    return PairwisePath(machine, nowhere) if machine.is_pairwise else LayeredPath(machine, nowhere)


def _zeros(machine: BoltzmannMachine, layer: int) -> Tensor:
    """No field on a layer, for every row of evidence."""
    rows = () if machine.n_rows is None else (machine.n_rows,)
    return torch.zeros((*rows, *machine.units()[layer].state_shape), dtype=machine.dtype, device=machine.device)


def _typical_mean(path: AnnealingPath, generator: torch.Generator) -> Tensor:
    """Mean of the visible layer over some sweeps of the machine, after as many from draws of its priors."""
    states = path.draw(BASE_CHAINS, generator)
    total = torch.zeros_like(path.base[0])
    for sweep in range(2 * BASE_SWEEPS):
        states, _ = path.step(states, 1.0, 1.0, generator)
        total += states[0].mean(0) if sweep >= BASE_SWEEPS else 0.0
    return total / BASE_SWEEPS


def states_of(path: AnnealingPath, data: Tensor, generator: torch.Generator) -> list[Tensor]:
    """States of all layers, the visible one held at rows of data."""
    x = check_rows(path.machine, data)
    states = (x, *path.draw(len(x), generator)[1:])
    for _ in range(DEEP_SWEEPS if len(states) > 1 else 0):
        states = (x, *path.step(states, 1.0, 1.0, generator)[0][1:])
    return path.all_layers(states, generator)
