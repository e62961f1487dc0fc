"""All different solutions that some starts lead to, and the basin of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Solution, Status
from tapmachine.distributed import gathered_solutions, world
from tapmachine.inference import TAP, Progress, Scheme, solve
from tapmachine.inference.starts import Start, fitting, normalised, random_means, starting_moments
from tapmachine.likelihood.score import check_machine, in_double
from tapmachine.likelihood.tap import MAX_SWEEPS, TOLERANCE
from tapmachine.machine import BoltzmannMachine
from tapmachine.merging import SAME, as_points, distances, groups, spread, unique
from tapmachine.units import Units

ROUGH_TOLERANCE = 1e-10  # as far as float32 goes with ease
NUDGE = 3e-3  # of the way to a random point of the support: a solution is moved so far, to see whether it returns
NUDGED_SWEEPS = 31  # after which it is looked at, twice


@dataclass(frozen=True, eq=False)
class Landscape:
    """The different solutions of a machine that some starts lead to.

    Attributes:
        solutions: one of each, by rising free energy, in float64.
        basin: which solution each start leads to, (K,); −1 if it has not converged.
        counts: starts that lead to each solution, (n,).
        stable: whether a solution is come back to after a nudge, (n,); None if that was not asked for. One that is not
            is a saddle, or its basin is smaller than the nudge.
        status: a `Status` for each start, (K,).
        distance: how far each start is from where it leads, in the visible layer, (K,): the root mean square over
            units, as a share of their support.
        same: the distance below which solutions count as one.
    """

    solutions: Solution
    basin: Tensor
    counts: Tensor
    stable: Tensor | None
    status: Tensor
    distance: Tensor
    same: float

    @property
    def free_energy(self) -> Tensor:  # (n,)
        """F of each solution."""
        return self.solutions.free_energy

    @property
    def n_starts(self) -> int:
        """How many starts there were."""
        return len(self.basin)

    @property
    def n_not_converged(self) -> int:
        """How many starts did not lead to a solution; `status` says why."""
        return int((self.basin < 0).sum())

    def members(self, solution: int) -> Tensor:
        """The numbers of the starts that lead to a solution."""
        return (self.basin == solution).nonzero().squeeze(-1)

    def __len__(self) -> int:
        return len(self.solutions)

    def __repr__(self) -> str:
        kind = "" if self.stable is None else f", {int(self.stable.sum())} of them stable"
        failed = f", {self.n_not_converged} not converged" if self.n_not_converged else ""
        return f"Landscape({len(self)} solutions{kind}, from {self.n_starts} starts{failed})"


@torch.no_grad()
def find_solutions(
    machine: BoltzmannMachine,
    starts: Start | np.ndarray = None,
    scheme: Scheme | None = None,
    *,
    same: float = SAME,
    stability: bool = True,
    max_sweeps: int = MAX_SWEEPS,
    callback: Callable[[Progress], None] | None = None,
) -> Landscape:
    """The different solutions of a machine that some starts lead to, solved in float64 to 1e-14.

    Of several processes that were started together (torchrun), each solves a share of the starts, and all get all
    solutions: they have to call it alike.

    Args:
        machine: any machine that is not conditioned on rows.
        starts: as for `solve`: data of shape (K, n_visible), `random_start(machine, K)`,
            `noisy_start(machine, x, 0.1)`, or a `Solution`.
        scheme: `TAP()` unless given.
        same: solutions closer than this are one; see `unique`. `count_at` says what other values would give.
        stability: whether to find out which solutions are come back to after a nudge of 3e-3 towards a random point.
        max_sweeps: after which a start is given up, and counted as not converged.
        callback: called with the `Progress` of the solver.

    Example:
        >>> import torch
        >>> from tapmachine import Spin, find_solutions, pairwise, random_start
        >>> magnet = pairwise(Spin(20))
        >>> with torch.no_grad():
        ...     _ = magnet.weights[0].fill_(2 / 20).fill_diagonal_(0)
        >>> landscape = find_solutions(magnet, random_start(magnet, 50))
        >>> landscape
        Landscape(2 solutions, 2 of them stable, from 50 starts)
        >>> landscape.solutions.moments[0].mean.mean(1).abs()
        tensor([0.9441, 0.9441], dtype=torch.float64)
    """
    check_machine(machine)
    if machine.n_rows is not None:
        raise ValueError(
            f"the machine is conditioned on {machine.n_rows} rows, each of which has a landscape of its own"
        )
    double, scheme = in_double(machine), scheme or TAP()
    given = [own for own in starting_moments(machine, fitting(machine, starts)) if own is not None]
    visible = given[0].mean.double()
    own = world().share(len(visible))
    given = [Moments(*(z[own] for z in layer)) for layer in given]
    if machine.dtype != double.dtype and machine.device.type == "cpu":  # most of the way takes half the time
        rough = solve(machine, _as_start(given), scheme, tol=ROUGH_TOLERANCE, max_sweeps=max_sweeps)
        given = list(rough.moments)
    given = [normalised(Moments(*(z.double() for z in own))) for own in given]
    found = solve(double, _as_start(given), scheme, tol=TOLERANCE, max_sweeps=max_sweeps, callback=callback)
    found = gathered_solutions(found)
    different = unique(double, found, same=same)
    scale = spread(double.units()[0]) * double.units()[0].n ** 0.5
    return Landscape(
        different.solutions,
        different.index,
        different.counts,
        _is_stable(double, different.solutions, scheme) if stability else None,
        found.status,
        distances((visible / scale).flatten(1), (found.moments[0].mean / scale).flatten(1)),
        same,
    )


def count_at(machine: BoltzmannMachine, landscape: Landscape, thresholds: Sequence[float]) -> list[int]:
    """How many solutions there would be, if those closer than a threshold were one, for several of them.

    Example:
        >>> import torch
        >>> from tapmachine import Spin, find_solutions, pairwise, random_start
        >>> from tapmachine.landscape.find import count_at
        >>> magnet = pairwise(Spin(20))
        >>> with torch.no_grad():
        ...     _ = magnet.weights[0].fill_(2 / 20).fill_diagonal_(0)
        >>> count_at(magnet, find_solutions(magnet, random_start(magnet, 50)), [1e-3, 0.5, 1.0])
        [2, 2, 1]
    """
    if thresholds and min(thresholds) < landscape.same:
        raise ValueError(f"solutions closer than {landscape.same} were merged; no smaller threshold can be looked at")
    points = as_points(in_double(machine), list(landscape.solutions.moments))
    return [int(groups(points, threshold).max()) + 1 if len(points) else 0 for threshold in thresholds]


def _as_start(given: list[Moments]) -> Moments | list[Moments]:
    return given if len(given) > 1 else given[0]


def _is_stable(machine: BoltzmannMachine, solutions: Solution, scheme: Scheme) -> Tensor:  # (n,), bool
    """Whether solutions that are moved a little come back: the second of two steps of the power method.

    A random direction has a share of every other one, if a small one. After some sweeps little is left of it but what
    dies away most slowly, or grows; moved that way, by as much as at first, it shows which.
    """
    if len(solutions) == 0:
        return torch.zeros(0, dtype=torch.bool, device=machine.device)
    generator = torch.Generator(machine.device).manual_seed(0)
    at = as_points(machine, list(solutions.moments))
    directions = [
        random_means(units, len(solutions), generator) - own.mean
        for units, own in zip(machine.units(), solutions.moments, strict=True)
    ]
    size = torch.full_like(solutions.free_energy, NUDGE)
    for _ in range(2):
        moved = [
            _moved(units, own, size.view(-1, *[1] * (own.mean.dim() - 1)) * direction)
            for units, own, direction in zip(machine.units(), solutions.moments, directions, strict=True)
        ]
        before = distances(as_points(machine, moved), at)
        ended = solve(machine, _as_start(moved), scheme, tol=1e-30, max_sweeps=NUDGED_SWEEPS)
        after = distances(as_points(machine, list(ended.moments)), at)
        directions = [new.mean - own.mean for new, own in zip(ended.moments, solutions.moments, strict=True)]
        size = before / after.clamp(min=torch.finfo(after.dtype).tiny)
    failed = (ended.status != Status.CONVERGED) & (ended.status != Status.MAX_SWEEPS)
    return ~failed & (after <= before)


def _moved(units: Units, moments: Moments, by: Tensor) -> Moments:
    lower, upper = units.bounds()
    return normalised(Moments((moments.mean + by).clamp(lower, upper), moments.variance))
