"""Landscapes at several epochs of a training run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tapmachine.analysis.landscape.find import Landscape, find_solutions
from tapmachine.analysis.landscape.tree import SolutionTree
from tapmachine.beliefs import Moments, Solution, Status
from tapmachine.data.checks import check_count
from tapmachine.data.errors import plural
from tapmachine.data.rows import spaced
from tapmachine.likelihood.tap import MAX_SWEEPS, TOLERANCE
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import in_double
from tapmachine.solver import Scheme, solve
from tapmachine.solver.merging import SAME, merge_solutions
from tapmachine.solver.starts import StartingPoint, fitting, starting_moments

N_STARTS = 1000


class Snapshot(NamedTuple):
    """Landscape at one epoch.

    Attributes:
        epoch: Number of the epoch.
        means: Means of each layer at every solution, shape (n, *state_shape), in float32.
        free_energy: Free energy of each solution in increasing order, shape (n,), in float64.
        counts: Number of starts that converge to each solution, shape (n,).
        stable: Whether the iteration returns to each solution after a small perturbation, shape (n,).
        basin: Index of the solution to which each start converges, shape (K,); −1 if it does not converge.
        distance: Distance between each start and its solution, shape (K,).
    """

    epoch: int
    means: tuple[Tensor, ...]
    free_energy: Tensor
    counts: Tensor
    stable: Tensor
    basin: Tensor
    distance: Tensor

    @property
    def n_not_converged(self) -> int:
        """Number of starts that did not converge."""
        return int((self.basin < 0).sum())

    @property
    def n_solutions(self) -> int:
        """Number of distinct solutions."""
        return len(self.counts)

    @property
    def probabilities(self) -> Tensor:  # (n,)
        """Probability exp(−F) of each solution relative to all solutions that were found."""
        return (-self.free_energy.double()).softmax(0)

    @property
    def mean_free_energy(self) -> float:
        """Mean free energy of the solutions, as in the paper; NaN if there are no solutions."""
        return float(self.free_energy.mean())


@dataclass(frozen=True, eq=False)
class LandscapeTrack:
    """Landscapes at several epochs of a training run, as returned by `track_landscape`.

    Attributes:
        snapshots: Landscapes in order of increasing epoch.
        starts: Visible means from which the solver started, shape (K, *state_shape).
        rows: Index of each start among the rows passed to `track_landscape`, shape (K,).
        tree: Tree of the solutions of the last epoch, which merge toward earlier epochs.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.landscape import track_landscape
        >>> track = track_landscape({epoch: rbm(Binary(6), Binary(3)) for epoch in (1, 2)}, torch.eye(6))
        >>> [snapshot.epoch for snapshot in track.snapshots]
        [1, 2]
    """

    snapshots: list[Snapshot]
    starts: Tensor
    rows: Tensor
    tree: SolutionTree

    @property
    def epochs(self) -> list[int]:
        """Epochs of the snapshots."""
        return [snapshot.epoch for snapshot in self.snapshots]

    def changes(self) -> list[tuple[int, int]]:
        """Return the number of new solutions and the number of merged solutions at each epoch.

        The successor of a solution is the solution of the next epoch to which most of its starts converge. Solutions
        with the same successor have merged. A solution that is not a successor is new, and all solutions of the first
        epoch are new.
        """
        changes = [(self.snapshots[0].n_solutions, 0)]
        for before, after in pairwise(self.snapshots):
            both = (before.basin >= 0) & (after.basin >= 0)
            table = torch.zeros(before.n_solutions, after.n_solutions, dtype=torch.long)
            table.index_put_((before.basin[both], after.basin[both]), torch.tensor(1), accumulate=True)
            n_successors = len(table[table.sum(1) > 0].argmax(1).unique()) if table.numel() else 0
            changes.append((after.n_solutions - n_successors, before.n_solutions - n_successors))
        return changes

    def __repr__(self) -> str:
        counts = [snapshot.n_solutions for snapshot in self.snapshots]
        first, last = self.epochs[0], self.epochs[-1]
        solutions = f"{counts[0]} {plural(counts[0])}"
        return f"LandscapeTrack({len(counts)} epochs, {solutions} at epoch {first}, {counts[-1]} at {last})"

    def _repr_html_(self) -> str:
        from tapmachine.analysis.landscape.figures import free_energies
        from tapmachine.display.figures import svg
        from tapmachine.display.html import card

        energies = [snapshot.free_energy for snapshot in self.snapshots]
        chart = svg("solutions by epoch", free_energies, self.epochs, energies)
        summary = f"<div>{len(self.snapshots)} epochs, {len(self.starts)} starts</div>"
        return card("Landscape over the epochs", summary, chart)


@torch.no_grad()
def track_landscape(
    machines: Mapping[int, BoltzmannMachine],
    starts: StartingPoint | np.ndarray = None,
    scheme: Scheme | None = None,
    *,
    epochs: Sequence[int] | None = None,
    n_starts: int = N_STARTS,
    same: float = SAME,
    max_sweeps: int = MAX_SWEEPS,
    callback: Callable[[Snapshot], None] | None = None,
) -> LandscapeTrack:
    """Find the solutions at several epochs of a training run and compute their tree.

    Args:
        machines: Mapping from epochs to machines. For a run directory, use
            `tapmachine.runs.session.Session(folder).machines`.
        starts: Rows of shape (K, n_visible), such as `training_rows()` of the kept machines, or visible moments, such
            as `random_start(machine, K)`.
        scheme: Mean-field scheme (default: `TAP()`).
        epochs: Epochs to use (default: all epochs in `machines`).
        n_starts: Maximum number of starts. If there are more starts, evenly spaced ones are selected.
        same: Distance below which two solutions are merged (see `merge_solutions`).
        max_sweeps: Maximum number of sweeps per start.
        callback: Function called with each `Snapshot`.

    Returns:
        A snapshot of the landscape at each epoch, and the tree of the solutions.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.landscape import track_landscape
        >>> machines = {epoch: rbm(Binary(6), Binary(3)) for epoch in (1, 2)}
        >>> track_landscape(machines, torch.eye(6))
        LandscapeTrack(2 epochs, 1 solution at epoch 1, 1 at 2)
    """
    n_starts = check_count("n_starts", n_starts)
    if not isinstance(machines, Mapping):
        raise ValueError(
            f"machines is a {type(machines).__name__}; expected a mapping from epochs to machines, such as "
            "Session(folder).machines"
        )
    if not machines:
        raise ValueError("machines is empty; expected a machine for at least one epoch")
    if starts is None:
        raise ValueError("starts is missing; pass rows of data, or moments such as random_start(machine, 100)")
    chosen = _chosen(sorted(machines), epochs)
    visible = starting_moments(machines[chosen[-1]], fitting(machines[chosen[-1]], starts))[0]
    assert visible is not None
    rows = spaced(torch.arange(len(visible.mean), device=visible.mean.device), n_starts)
    begin = Moments(*(z[rows] for z in visible))
    snapshots, last = [], None
    for epoch in chosen:
        last = find_solutions(machines[epoch], begin, scheme, same=same, max_sweeps=max_sweeps)
        snapshots.append(snapshot_of(last, epoch))
        if callback is not None:
            callback(snapshots[-1])
    assert last is not None
    tree = _tree(machines, chosen, last, scheme, same, max_sweeps)
    return LandscapeTrack(snapshots, begin.mean.float().cpu(), rows.cpu(), tree)


def _chosen(kept: list[int], epochs: Sequence[int] | None) -> list[int]:
    if epochs is None:
        return kept
    if not epochs:
        raise ValueError("epochs is empty; use epochs=None for all epochs")
    missing = sorted(set(epochs) - set(kept))
    if missing:
        raise ValueError(f"epoch {missing[0]} was not kept; available epochs: {', '.join(map(str, kept))}")
    return sorted(set(epochs))


def snapshot_of(landscape: Landscape, epoch: int = 0) -> Snapshot:
    """Convert a landscape to a snapshot; if stability was not tested, all solutions are marked as stable."""
    means = tuple(moments.mean.float().cpu() for moments in landscape.solutions.moments)
    stable = torch.ones_like(landscape.counts, dtype=torch.bool) if landscape.stable is None else landscape.stable
    rest = (landscape.counts, stable, landscape.basin, landscape.distance.float())
    return Snapshot(epoch, means, landscape.free_energy.double().cpu(), *(z.cpu() for z in rest))


def _tree(
    machines: Mapping[int, BoltzmannMachine],
    epochs: list[int],
    last: Landscape,
    scheme: Scheme | None,
    same: float,
    max_sweeps: int,
) -> SolutionTree:
    """Compute the tree from the last epoch to the first, using the solutions of the next epoch as starting points."""
    current: Solution = last.solutions
    parents, failed, means = list[Tensor](), [0], [current.moments[0].mean.float().cpu()]
    for epoch in reversed(epochs[:-1]):
        parent, n_failed = torch.empty(0, dtype=torch.long), 0
        if len(current):
            double = in_double(machines[epoch])
            solutions = solve(double, current, scheme, tol=TOLERANCE, max_sweeps=max_sweeps)
            n_failed = int((~solutions.converged).sum())
            # Particles that have not converged are kept because their descendants need an ancestor.
            solutions = replace(solutions, status=torch.full_like(solutions.status, Status.CONVERGED))
            merged = merge_solutions(double, solutions, same=same)
            parent, current = merged.index.cpu(), merged.solutions
        parents.append(parent)
        failed.append(n_failed)
        means.append(current.moments[0].mean.float().cpu())
    return SolutionTree(epochs, parents[::-1], last.counts.cpu(), last.basin.cpu(), failed[::-1], means[::-1])
