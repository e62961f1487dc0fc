"""The landscape at the epochs of a training."""

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
from tapmachine.data.rows import spaced
from tapmachine.likelihood.tap import MAX_SWEEPS, TOLERANCE
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import in_double
from tapmachine.solver import Scheme, solve
from tapmachine.solver.merging import SAME, merge_solutions
from tapmachine.solver.starts import StartingPoint, fitting, starting_moments

N_STARTS = 1000


class Snapshot(NamedTuple):
    """The landscape at one epoch.

    Attributes:
        epoch: the epoch.
        means: means of each layer at every solution, (n, *state_shape), in float32.
        free_energy: F of each solution, in rising order, (n,), in float64.
        counts: number of starts that lead to each solution, (n,).
        stable: whether the iteration returns to the solution after a small perturbation, (n,).
        basin: index of the solution that each start leads to, (K,); −1 if it has not converged.
        distance: distance of each start from its solution, (K,).
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
    def mean_free_energy(self) -> float:
        """The average of F over the solutions, as in the paper; NaN without any."""
        return float(self.free_energy.mean())


@dataclass(frozen=True, eq=False)
class LandscapeTrack:
    """The landscape at several epochs of a training.

    Attributes:
        snapshots: one for each epoch, rising.
        starts: what was started from, (K, *state_shape).
        rows: which rows of the data they are, (K,).
        tree: how the solutions at the last epoch merge as one goes back.
    """

    snapshots: list[Snapshot]
    starts: Tensor
    rows: Tensor
    tree: SolutionTree

    @property
    def epochs(self) -> list[int]:
        """Of the snapshots."""
        return [snapshot.epoch for snapshot in self.snapshots]

    def changes(self) -> list[tuple[int, int]]:
        """How many solutions were born and how many merged into others, from each epoch to the next.

        A solution continues as the one that most of its starts lead to at the next epoch; those that continue as
        one have merged, and one that continues no other was born, as were all of the first epoch.
        """
        found = [(self.snapshots[0].n_solutions, 0)]
        for before, after in pairwise(self.snapshots):
            both = (before.basin >= 0) & (after.basin >= 0)
            table = torch.zeros(before.n_solutions, after.n_solutions, dtype=torch.long)
            table.index_put_((before.basin[both], after.basin[both]), torch.tensor(1), accumulate=True)
            goes_on = table.sum(1) > 0
            n_successors = len(table[goes_on].argmax(1).unique()) if table.numel() else 0
            found.append((after.n_solutions - n_successors, before.n_solutions - n_successors))
        return found

    def at(self, epoch: int) -> Snapshot:
        """The snapshot of an epoch; a KeyError if there is none."""
        for snapshot in self.snapshots:
            if snapshot.epoch == epoch:
                return snapshot
        raise KeyError(f"epoch {epoch} was not kept; there are {', '.join(map(str, self.epochs))}")

    def __repr__(self) -> str:
        counts = [snapshot.n_solutions for snapshot in self.snapshots]
        first, last = self.epochs[0], self.epochs[-1]
        return f"LandscapeTrack({len(counts)} epochs, {counts[0]} solutions at epoch {first}, {counts[-1]} at {last})"

    def _repr_html_(self) -> str:
        from tapmachine.display.charts import line_chart
        from tapmachine.display.html import card, escape

        series = {
            "solutions": [(float(own.epoch), float(own.n_solutions)) for own in self.snapshots],
            "stable ones": [(float(own.epoch), float(own.stable.sum())) for own in self.snapshots],
        }
        words = f"{len(self.snapshots)} epochs, {len(self.starts)} starts"
        chart = line_chart(series, "epoch", "solutions")
        return card("Landscape over the epochs", f"<div>{escape(words)}</div>", chart)


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
    """The landscape at several epochs of a training, and the tree of its solutions.

    Args:
        machines: Machines by epoch; for those of a run, `tapmachine.runs.machines.KeptMachines(folder)`.
        starts: Rows of shape (K, n_visible), such as `training_rows()` of the kept machines, or visible moments, such
            as `random_start(machine, K)`.
        scheme: Scheme to solve by. Default: `TAP()`.
        epochs: Epochs to use. Default: all that there are machines of.
        n_starts: Maximum number of starts; if there are more, evenly spaced ones are used.
        same: Distance below which two solutions are the same; see `merge_solutions`.
        max_sweeps: Number of sweeps after which a start counts as not converged.
        callback: Function that is called with each `Snapshot`.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.analysis.landscape import track_landscape
        >>> machines = {epoch: rbm(Binary(6), Binary(3)) for epoch in (1, 2)}
        >>> track_landscape(machines, torch.eye(6))
        LandscapeTrack(2 epochs, 1 solutions at epoch 1, 1 at 2)
    """
    n_starts = check_count("n_starts", n_starts)
    if not isinstance(machines, Mapping):
        raise ValueError(
            f"machines is a {type(machines).__name__}; expected a mapping from epochs to machines, such as "
            "KeptMachines(folder)"
        )
    if not machines:
        raise ValueError("machines is empty; expected a machine for one epoch or more")
    if starts is None:
        raise ValueError("starts is missing; give rows of data, or moments such as random_start(machine, 100)")
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
        raise ValueError("epochs is empty; leave it out for all that were kept")
    missing = sorted(set(epochs) - set(kept))
    if missing:
        raise ValueError(f"epoch {missing[0]} was not kept; there are {', '.join(map(str, kept))}")
    return sorted(set(epochs))


def snapshot_of(found: Landscape, epoch: int = 0) -> Snapshot:
    """What is kept of a landscape; solutions whose stability was not looked at count as stable."""
    means = tuple(own.mean.float().cpu() for own in found.solutions.moments)
    stable = torch.ones_like(found.counts, dtype=torch.bool) if found.stable is None else found.stable
    rest = (found.counts, stable, found.basin, found.distance.float())
    return Snapshot(epoch, means, found.free_energy.double().cpu(), *(z.cpu() for z in rest))


def _tree(
    machines: Mapping[int, BoltzmannMachine],
    epochs: list[int],
    last: Landscape,
    scheme: Scheme | None,
    same: float,
    max_sweeps: int,
) -> SolutionTree:
    """From the last epoch back to the first, each solution starts from its position in the following epoch."""
    parents: list[Tensor] = []
    failed = [0]
    current: Solution = last.solutions
    means = [current.moments[0].mean.float().cpu()]
    for epoch in reversed(epochs[:-1]):
        if len(current) == 0:
            parents.append(torch.empty(0, dtype=torch.long))
            failed.append(0)
            means.append(means[-1])
            continue
        double = in_double(machines[epoch])
        found = solve(double, current, scheme, tol=TOLERANCE, max_sweeps=max_sweeps)
        failed.append(int((~found.converged).sum()))
        # Those that have not converged are somewhere, too, and their descendants need an ancestor.
        found = replace(found, status=torch.full_like(found.status, Status.CONVERGED))
        different = merge_solutions(double, found, same=same)
        parents.append(different.index.cpu())
        current = different.solutions
        means.append(current.moments[0].mean.float().cpu())
    return SolutionTree(epochs, parents[::-1], last.counts.cpu(), last.basin.cpu(), failed[::-1], means[::-1])
