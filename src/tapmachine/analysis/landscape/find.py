"""Search for the distinct solutions of a machine and their basins."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tapmachine.accelerator.distributed import gathered_solutions, world
from tapmachine.beliefs import Moments, Solution, Status
from tapmachine.data.errors import plural
from tapmachine.likelihood.tap import MAX_SWEEPS, TOLERANCE
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_machine, in_double
from tapmachine.solver import TAP, Scheme, solve
from tapmachine.solver.driver import Progress
from tapmachine.solver.merging import SAME, as_points, distances, merge_solutions, spread
from tapmachine.solver.starts import StartingPoint, fitting, starting_moments
from tapmachine.units import Units

ROUGH_TOLERANCE = 1e-10  # easily reached in float32
NUDGE = 3e-3  # size of the perturbation that tests stability, as a fraction of the distance to a random point
NUDGED_SWEEPS = 31  # number of sweeps after each of two perturbations


@dataclass(frozen=True, eq=False)
class Landscape:
    """Distinct solutions of a machine, found from K starts.

    Attributes:
        solutions: The n distinct solutions in order of increasing free energy, in float64.
        basin: Index of the solution to which each start converges, shape (K,); −1 if it does not converge.
        counts: Number of starts that converge to each solution, shape (n,).
        stable: Whether the iteration returns to each solution after a small perturbation, shape (n,); None if not
            tested. An unstable solution is a saddle, or its basin is smaller than the perturbation.
        status: `Status` of each start, shape (K,).
        distance: Distance between each start and its solution in the visible layer, shape (K,), as the root mean square
            over units relative to their support.
        units: Visible units of the machine, in float64.

    Example:
        >>> from tapmachine import Binary, find_solutions, rbm
        >>> from tapmachine.solver import random_start
        >>> machine = rbm(Binary(4), Binary(2))
        >>> find_solutions(machine, random_start(machine, 5)).counts
        tensor([5])
    """

    solutions: Solution
    basin: Tensor
    counts: Tensor
    stable: Tensor | None
    status: Tensor
    distance: Tensor
    units: Units

    @property
    def free_energy(self) -> Tensor:  # (n,)
        """Free energy of each solution."""
        return self.solutions.free_energy

    @property
    def states(self) -> Tensor:  # (n, n_visible)
        """Visible states nearest to each solution, in the format of the data, such as the numbers of categories."""
        return self.units.to_data(self.units.nearest_states(self.solutions.moments[0].mean))

    @property
    def n_starts(self) -> int:
        """Number of starts."""
        return len(self.basin)

    @property
    def n_not_converged(self) -> int:
        """Number of starts that did not converge."""
        return int((self.basin < 0).sum())

    def members(self, solution: int) -> Tensor:
        """Return the indices of the starts that converge to the solution with index `solution`."""
        return (self.basin == solution).nonzero().squeeze(-1)

    def __len__(self) -> int:
        return len(self.solutions)

    def __repr__(self) -> str:
        kind = "" if self.stable is None else f", {int(self.stable.sum())} of them stable"
        failed = f", {self.n_not_converged} not converged" if self.n_not_converged else ""
        starts = f"{self.n_starts} {plural(self.n_starts, 'start')}"
        return f"Landscape({len(self)} {plural(len(self))}{kind}, from {starts}{failed})"

    def _repr_html_(self) -> str:
        from tapmachine.display.charts import scatter
        from tapmachine.display.figures import svg
        from tapmachine.display.html import card, escape
        from tapmachine.display.summaries import thumbnails

        pictures, chart = "", ""
        if len(self):
            largest = self.counts.argsort(descending=True, stable=True)
            pictures = thumbnails(self.solutions.moments[0].mean[largest], "largest basins first")
            points = list(zip(self.counts.tolist(), self.free_energy.tolist(), strict=True))
            chart = svg("free energies", scatter, points, "starts in the basin", "free energy (nats)")
        return card("Landscape", f"<div>{escape(repr(self)[10:-1])}</div>", pictures, chart)


@torch.no_grad()
def find_solutions(
    machine: BoltzmannMachine,
    starts: StartingPoint | np.ndarray = None,
    scheme: Scheme | None = None,
    *,
    same: float = SAME,
    stability: bool = True,
    max_sweeps: int = MAX_SWEEPS,
    callback: Callable[[Progress], None] | None = None,
) -> Landscape:
    """Find the distinct solutions of a machine from many starts, in float64 with a tolerance of 1e-14.

    With several processes (torchrun), each process computes the solutions for some of the starts, and every process
    returns all solutions. All processes must call the function with the same arguments.

    Args:
        machine: A machine that is not conditioned on rows.
        starts: Starting points, in the same form as for `solve`: data of shape (K, n_visible),
            `random_start(machine, K)`, `noisy_start(machine, x, 0.1)`, or a `Solution`.
        scheme: Mean-field scheme (default: `TAP()`).
        same: Distance below which solutions are merged (see `merge_solutions`).
        stability: Whether to test if the iteration returns to each solution after a perturbation of relative size 3e-3
            toward a random point (default: True).
        max_sweeps: Maximum number of sweeps per start.
        callback: Function called with the `Progress` of the solver.

    Returns:
        The distinct solutions, their basins, and the status of each start.

    Example:
        >>> import torch
        >>> from tapmachine import Spin, find_solutions, pairwise
        >>> from tapmachine.solver import random_start
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
        raise ValueError(f"the machine is conditioned on {machine.n_rows} rows; expected an unconditioned machine")
    double, scheme = in_double(machine), scheme or TAP()
    moments = [layer for layer in starting_moments(machine, fitting(machine, starts)) if layer is not None]
    visible = moments[0].mean.double()
    share = world().part(len(visible))
    moments = [Moments(*(z[share] for z in layer)) for layer in moments]
    if machine.dtype != double.dtype and machine.device.type == "cpu":  # float32 halves the time of most sweeps
        rough = solve(machine, moments, scheme, tol=ROUGH_TOLERANCE, max_sweeps=max_sweeps)
        moments = list(rough.moments)
    pairs = zip(double.layers, moments, strict=False)
    moments = [Moments(units.normalized(mean.double()), variance.double()) for units, (mean, variance) in pairs]
    solutions = solve(double, moments, scheme, tol=TOLERANCE, max_sweeps=max_sweeps, callback=callback)
    solutions = gathered_solutions(solutions)
    distinct = merge_solutions(double, solutions, same=same)
    scale = spread(double.layers[0]) * double.layers[0].n ** 0.5
    return Landscape(
        distinct.solutions,
        distinct.index,
        distinct.counts,
        _is_stable(double, distinct.solutions, scheme) if stability else None,
        solutions.status,
        distances((visible / scale).flatten(1), (solutions.moments[0].mean / scale).flatten(1)),
        double.layers[0],
    )


def _is_stable(machine: BoltzmannMachine, solutions: Solution, scheme: Scheme) -> Tensor:  # (n,), bool
    """Test whether the iteration returns to solutions after a small perturbation, using two power-method steps.

    A random perturbation has a component along every direction. After some sweeps, the component that decays most
    slowly or grows fastest dominates. A second perturbation of the same size along this direction shows whether it
    grows or decays.
    """
    if len(solutions) == 0:
        return torch.zeros(0, dtype=torch.bool, device=machine.device)
    generator = torch.Generator(machine.device).manual_seed(0)
    at = as_points(machine, list(solutions.moments))
    directions = [
        units.random_means(len(solutions), generator) - own.mean
        for units, own in zip(machine.layers, solutions.moments, strict=True)
    ]
    size = torch.full_like(solutions.free_energy, NUDGE)
    for _ in range(2):
        moved = [
            _moved(units, own, size.view(-1, *[1] * (own.mean.dim() - 1)) * direction)
            for units, own, direction in zip(machine.layers, solutions.moments, directions, strict=True)
        ]
        before = distances(as_points(machine, moved), at)
        ended = solve(machine, moved, scheme, tol=1e-30, max_sweeps=NUDGED_SWEEPS)
        after = distances(as_points(machine, list(ended.moments)), at)
        directions = [new.mean - own.mean for new, own in zip(ended.moments, solutions.moments, strict=True)]
        size = before / after.clamp(min=torch.finfo(after.dtype).tiny)
    failed = (ended.status != Status.CONVERGED) & (ended.status != Status.MAX_SWEEPS)
    return ~failed & (after <= before)


def _moved(units: Units, moments: Moments, by: Tensor) -> Moments:
    lower, upper = units.bounds()
    return Moments(units.normalized((moments.mean + by).clamp(lower, upper)), moments.variance)
