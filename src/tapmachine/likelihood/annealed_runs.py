"""Runs of annealed importance sampling, in blocks that can be made at different times and still be the same."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.distributed import gathered, world
from tapmachine.likelihood.paths import States, Walk, anneal, path_to, seeded, states_of, untilted_path
from tapmachine.machine import BoltzmannMachine

BLOCK = 100  # runs that share a random generator: more runs are more blocks, so that they can be added later
CHAIN_VALUES = 2**26  # numbers in the states of all chains of a block, on a machine conditioned on rows

Report = Callable[[int, int], None]  # temperatures done, of how many


class Found(NamedTuple):
    """What runs have found: each one's value for ln Z, (runs,) or (runs, rows), and its states of all layers."""

    log_weights: Tensor
    states: list[Tensor]


def make_runs(
    machine: BoltzmannMachine,
    betas: Tensor,
    blocks: dict[int, int],
    *,
    data: Tensor | None,
    reverse: bool,
    samples: Sequence[Tensor] | None,
    seed: int,
    report: Report | None,
) -> Found:
    """All runs of the given blocks, which have so many runs each; of several processes, each makes some of the blocks.

    Args:
        machine, data, reverse, seed: as for `ais_log_partition`.
        betas: the temperatures, rising.
        blocks: from the number of a block to how many runs it has.
        samples: states of all layers where reverse runs start, (S, *state_shape) or (S, rows, *state_shape) each.
        report: called as the runs proceed.
    """
    is_split = world().size > 1 and machine.n_rows is None
    if is_split:
        blocks = dict(list(blocks.items())[world().share(len(blocks))])
        if not blocks:
            return _gathered(_no_runs(machine))
    parts = _fitting_parts(machine)
    counter = _Counter(len(parts) * len(blocks) * (len(betas) - 1), report)
    found = []
    for number, (rows, part) in enumerate(parts):
        starts = None if samples is None else [x if rows is None else x[:, rows] for x in samples]
        runs = _Runs(part, number, betas, data, starts if reverse else None, seed)
        found.append(join([runs.block(block, n_runs, counter) for block, n_runs in blocks.items()], dim=0))
    together = join(found, dim=1)
    return _gathered(together) if is_split else together


def _gathered(own: Found) -> Found:
    return Found(gathered(own.log_weights), [gathered(states) for states in own.states])


def _no_runs(machine: BoltzmannMachine) -> Found:
    states = [torch.empty((0, *units.state_shape), dtype=units.dtype, device=units.device) for units in machine.units()]
    return Found(torch.empty(0, dtype=torch.float64, device=machine.device), states)


class _Counter:
    """Adds up the temperatures done, over all blocks."""

    def __init__(self, total: int, report: Report | None) -> None:
        self.total, self.report, self.before, self.last = total, report, 0, 0

    def __call__(self, done: int, walk: Walk) -> None:
        if done < self.last:  # another block has begun
            self.before += self.last
        self.last = done
        if self.report is not None:
            self.report(self.before + done, self.total)


class _Runs:
    """Runs on one machine, or on some of the rows that it is conditioned on; in reverse, if they start from samples."""

    def __init__(
        self,
        machine: BoltzmannMachine,
        number: int,
        betas: Tensor,
        data: Tensor | None,
        samples: list[Tensor] | None,
        seed: int,
    ) -> None:
        self.machine, self.number, self.betas, self.samples, self.seed = machine, number, betas, samples, seed
        self.path = path_to(machine, data, seed)
        self.log_partition_at_start = self.path.log_partition_at_start()

    def block(self, block: int, n_runs: int, counter: _Counter) -> Found:
        purpose = "forward" if self.samples is None else "reverse"
        generator = seeded(self.machine.device, self.seed, purpose, (self.number << 32) + block)
        if self.samples is None:
            walk = anneal(self.path, self.betas, self.path.draw(n_runs, generator), generator, counter)
            ends = self.path.all_layers(walk.states, generator)
            return Found(self.log_partition_at_start + walk.log_weights, ends)
        index = torch.arange(n_runs, device=self.machine.device) + block * BLOCK
        starts = [x[index % len(x)] for x in self.samples]  # each about as often as any other
        kept = tuple(starts[layer] for layer in self.path.kept)
        walk = anneal(self.path, self.betas.flip(0), kept, generator, counter)
        return Found(self.log_partition_at_start - walk.log_weights, starts)


def join(parts: list[Found], dim: int) -> Found:
    """Runs of several blocks (dimension 0) or of several sets of rows (dimension 1) together."""
    if len(parts) == 1:
        return parts[0]
    log_weights, states = zip(*parts, strict=True)
    return Found(torch.cat(log_weights, dim), [torch.cat(layer, dim) for layer in zip(*states, strict=True)])


def _fitting_parts(machine: BoltzmannMachine) -> list[tuple[Tensor | None, BoltzmannMachine]]:
    """The machine for so many rows at a time that the chains of a block fit into memory; itself, without rows."""
    if machine.n_rows is None:
        return [(None, machine)]
    size = max(1, CHAIN_VALUES // (BLOCK * sum(machine.sizes)))
    parts = torch.arange(machine.n_rows, device=machine.device).split(size)
    return [(rows, machine.rows(rows)) for rows in parts]


def resample(log_weights: Tensor, generator: torch.Generator) -> Tensor:  # (chains,) or (chains, rows), of both
    """As many chains, drawn by their weights."""
    weights = log_weights.softmax(0)
    index = torch.multinomial(weights.transpose(0, -1), len(weights), replacement=True, generator=generator)
    return index.transpose(0, -1)


def pick(index: Tensor, states: Sequence[Tensor]) -> States:
    """The states of the given chains."""
    return tuple(x.gather(0, index.view(*index.shape, *[1] * (x.dim() - index.dim())).expand_as(x)) for x in states)


def check_samples(machine: BoltzmannMachine, samples: Tensor | Sequence[Tensor], seed: int) -> list[Tensor]:
    """States of all layers; where only the visible ones are given, with those above drawn given them."""
    if isinstance(samples, Tensor):
        generator = seeded(machine.device, seed, "layers above")
        return states_of(untilted_path(machine), samples, generator)
    if not isinstance(samples, Sequence):
        raise ValueError(f"samples is a {type(samples).__name__}; it must be a torch.Tensor, or a list of them")
    layers = machine.check_states([x.to(machine.device) if isinstance(x, Tensor) else x for x in samples])
    lengths = {len(x) for x in layers}
    if len(lengths) > 1 or 0 in lengths:
        raise ValueError(f"samples of the layers have {sorted(lengths)} rows; they must have as many, 1 or more")
    return layers
