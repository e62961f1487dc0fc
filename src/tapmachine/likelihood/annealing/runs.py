"""Runs of annealed importance sampling, computed in reproducible blocks."""

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from tapmachine.accelerator.distributed import gathered, world
from tapmachine.accelerator.precision import full_precision
from tapmachine.data.progress import report
from tapmachine.likelihood.annealing.paths import AnnealingPath, Base, States, path_from, seeded
from tapmachine.machine import BoltzmannMachine

if TYPE_CHECKING:
    from tapmachine.accelerator.replay import Replay

BLOCK = 100  # number of runs that share a random number generator, so that further blocks of runs can be added later
STRIDE = 20  # on a GPU, steps in one CUDA graph
CHAIN_VALUES = 2**26  # maximum number of values in the states of a block's chains, for a machine conditioned on rows


class Runs(NamedTuple):
    """Results of annealing runs: the estimate of ln Z from each run, and the states of all layers.

    The estimates have shape (runs,) or (runs, rows).
    """

    log_weights: Tensor
    states: list[Tensor]


def make_runs(
    machine: BoltzmannMachine,
    betas: Tensor,
    blocks: dict[int, int],
    base_of: Callable[[BoltzmannMachine], Base],
    seed: int,
) -> Runs:
    """Compute all runs of several blocks, with the blocks divided among the processes.

    Args:
        machine, seed: See `ais_log_partition`.
        betas: Inverse temperatures in increasing order.
        blocks: Number of runs for each block index.
        base_of: Function that returns the base of a machine, or of a part of its rows.
    """
    is_split = world().size > 1 and machine.n_rows is None
    if is_split:
        blocks = dict(list(blocks.items())[world().part(len(blocks))])
        if not blocks:
            return _gathered(_no_runs(machine))
    parts = _fitting_parts(machine)
    runs_of_parts = []
    for part_index, part in enumerate(parts):
        path = path_from(base_of(part), part)
        at_start = path.log_partition_at_start()
        runs = []
        for block, n_runs in blocks.items():
            generator = seeded(machine.device, seed, "forward", (part_index << 32) + block)
            walk = anneal(path, betas, path.draw(n_runs, generator), generator)
            runs.append(Runs(at_start + walk.log_weights, path.all_layers(walk.states, generator)))
        runs_of_parts.append(join(runs, dim=0))
    together = join(runs_of_parts, dim=1)
    return _gathered(together) if is_split else together


class Walk(NamedTuple):
    """State of annealing chains between two temperatures.

    Attributes:
        position: Number of completed steps, shape (1,).
        log_weights: Sum of the changes of ln P_β so far, shape (chains,) or (chains, rows), in float64.
        states: States of the kept layers.
    """

    position: Tensor
    log_weights: Tensor
    states: States


@torch.no_grad()
@full_precision()
def anneal(
    path: AnnealingPath,
    betas: Tensor,  # (steps + 1,)
    states: States,
    generator: torch.Generator,
) -> Walk:
    """Move chains through all β, from states drawn at the first β.

    On a GPU, 20 steps are captured as a CUDA graph. Capturing is possible because shapes are fixed and no tensor values
    are read.
    """
    device = path.machine.device
    batch = states[0].shape[: -len(path.layers[0].state_shape)]
    walk = Walk(
        torch.zeros(1, dtype=torch.long, device=device),
        torch.zeros(batch, dtype=torch.float64, device=device),
        states,
    )
    if device.type == "cuda":
        captured = _captured(path, betas, walk, generator)
        for _ in range(0, len(betas) - 1, STRIDE):
            walk = captured(walk)[0]
        return walk
    for done, (before, after) in enumerate(pairwise(betas.tolist())):
        report("annealing", done, len(betas) - 1)
        states, gain = path.step(walk.states, before, after, generator)
        walk = Walk(walk.position + 1, walk.log_weights + gain, states)
    return walk


def _captured(path: AnnealingPath, betas: Tensor, walk: Walk, generator: torch.Generator) -> "Replay":
    """Return the next 20 steps as a CUDA graph, which looks up temperatures by the position of the walk."""
    from tapmachine.accelerator.replay import Replay  # only for GPUs

    beyond = betas[-1:].expand((1 - len(betas)) % STRIDE)  # steps past the last one change nothing
    all_betas = torch.cat((betas, beyond)).to(path.machine.device, path.machine.dtype)

    def step(walk: Walk) -> tuple[Walk, Tensor]:
        before, after = (all_betas.index_select(0, walk.position + ahead).squeeze(0) for ahead in (0, 1))
        states, gain = path.step(walk.states, before, after, generator)
        return Walk(walk.position + 1, walk.log_weights + gain, states), gain

    return Replay(step, walk, STRIDE, generator)


def join(parts: list[Runs], dim: int) -> Runs:
    """Concatenate runs of several blocks (dimension 0) or of several sets of rows (dimension 1)."""
    if len(parts) == 1:
        return parts[0]
    log_weights, states = zip(*parts, strict=True)
    return Runs(torch.cat(log_weights, dim), [torch.cat(layer, dim) for layer in zip(*states, strict=True)])


def _fitting_parts(machine: BoltzmannMachine) -> list[BoltzmannMachine]:
    """Split the rows of a machine into groups that fit into memory together with the chains of a block."""
    if machine.n_rows is None:
        return [machine]
    size = max(1, CHAIN_VALUES // (BLOCK * sum(machine.sizes)))
    parts = torch.arange(machine.n_rows, device=machine.device).split(size)
    return [machine.rows(rows) for rows in parts]


def _gathered(runs: Runs) -> Runs:
    """Return the runs of all processes."""
    return Runs(gathered(runs.log_weights), [gathered(states) for states in runs.states])


def _no_runs(machine: BoltzmannMachine) -> Runs:
    states = [torch.empty((0, *layer.state_shape), dtype=layer.dtype, device=layer.device) for layer in machine.layers]
    return Runs(torch.empty(0, dtype=torch.float64, device=machine.device), states)
