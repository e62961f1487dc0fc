"""Merging equal solutions of a machine."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Solution, Tilt
from tapmachine.machine import BoltzmannMachine
from tapmachine.units import Units

SAME = 1e-3  # default distance below which two solutions are considered equal
ROUGHLY_SAME = 0.01  # value of SAME for solutions that have only converged to 1e-8
SKETCH = 32  # number of directions onto which points are projected first; projection never increases a distance
CELL = 8  # number of these directions that define the cells
COMPARED_VALUES = 2**24  # number of values compared at a time
CROWDED = 20  # average number of neighbors in the sketch above which all distances are computed at once
FEW_PAIRS = 256  # two groups with at most this number of pairs of members are compared at once


@dataclass(frozen=True, eq=False)
class MergedSolutions:
    """Distinct solutions, as returned by `merge_solutions`.

    Attributes:
        solutions: The distinct solutions in order of increasing free energy. The solution with the smallest residual
            represents its group of equal solutions.
        index: For each original solution, the index of its group in `solutions`, or −1 if it did not converge;
            shape (K,).
        counts: Number of original solutions in each group.
    """

    solutions: Solution
    index: Tensor
    counts: Tensor

    @property
    def n_excluded(self) -> int:
        """Number of original solutions that were excluded because they did not converge."""
        return int((self.index < 0).sum())

    def __len__(self) -> int:
        return len(self.solutions)


@torch.no_grad()
def merge_solutions(machine: BoltzmannMachine, solutions: Solution, *, same: float = SAME) -> MergedSolutions:
    """Merge equal solutions and exclude solutions that did not converge.

    Two solutions are merged if their distance is below `same`, or if they are connected by a chain of solutions in
    which successive distances are below `same`. The result does not depend on the order of the solutions. The distance
    is the root mean square, over all units, of the difference between the means divided by the length of the unit's
    support. For a unit with infinite support, the prior's standard deviation replaces the length.

    With the default tolerance of `solve` in float32 (1e-8), equal solutions can differ by more than `same` if the free
    energy is flat. To count solutions, solve in float64, as `find_solutions` does.

    Args:
        machine: The machine that was solved.
        solutions: The result of `solve`.
        same: Distance below which two solutions are considered equal (default: 1e-3).

    Returns:
        The distinct solutions, the group of each original solution, and the size of each group.

    Raises:
        ValueError: If `same` is negative, or if the solutions belong to different rows of evidence.

    Example:
        >>> from tapmachine import Binary, rbm, solve
        >>> from tapmachine.solver import random_start, merge_solutions
        >>> machine = rbm(Binary(8), Binary(4))
        >>> merge_solutions(machine, solve(machine, random_start(machine, n_particles=20))).counts
        tensor([20])
    """
    if machine.n_rows is not None:
        raise ValueError("solutions belong to different rows of evidence; merge the solutions of one row at a time")
    if not same >= 0:
        raise ValueError(f"same is {same!r}; expected a non-negative number")
    kept = solutions.converged.nonzero().squeeze(-1)
    points = as_points(machine, [Moments(*(z[kept] for z in moments)) for moments in solutions.moments])
    group = groups(points, same)
    n_groups = int(group.max()) + 1 if len(group) else 0

    by_residual = solutions.residual[kept].argsort(stable=True)
    best = torch.full((n_groups,), len(kept), device=kept.device)
    rank = torch.empty_like(by_residual)
    rank[by_residual] = torch.arange(len(kept), device=kept.device)
    best = by_residual[best.scatter_reduce(0, group, rank, "amin")]  # the smallest residual of each group
    # Mirror images have equal free energies up to rounding; a coordinate makes their order unique.
    first = points[best].sum(-1).argsort(stable=True)
    order = first[_rounded(solutions.free_energy[kept[best[first]]]).argsort(stable=True)]
    position = torch.empty_like(order)
    position[order] = torch.arange(n_groups, device=kept.device)

    index = torch.full_like(solutions.n_sweeps, -1)
    index[kept] = position[group]
    return MergedSolutions(
        solutions.select(kept[best[order]]), index, torch.bincount(position[group], minlength=n_groups)
    )


def _rounded(free_energy: Tensor) -> Tensor:
    return (free_energy.double() * 1e8).round()


def as_points(machine: BoltzmannMachine, moments: list[Moments]) -> Tensor:  # (K, n), float64
    """Return the means of all layers, scaled so that Euclidean distances are root mean squares over units."""
    layers = list(machine.layers)
    size = sum(layer.n for layer in layers)
    scaled = [(mean / spread(layer)).flatten(1).double() for layer, (mean, _) in zip(layers, moments, strict=True)]
    points: Tensor = torch.cat(scaled, dim=-1) / size**0.5
    return points


def spread(units: Units) -> Tensor:
    """Return the length of each component's support, or the prior's standard deviation if the length is infinite."""
    lower, upper = units.bounds()
    length = (upper - lower).expand(units.state_shape)
    zero = torch.zeros(units.state_shape, dtype=units.dtype, device=units.device)
    deviation = units.moments(Tilt(zero, 0.0)).variance.sqrt()
    scale = torch.where(torch.isfinite(length), length, deviation)
    return torch.where(scale > 0, scale, 1.0)  # 0 for a clamped unit


def distances(first: Tensor, second: Tensor) -> Tensor:  # (K, n), (K, n) -> (K,)
    """Return the Euclidean distance between corresponding rows of two tensors."""
    chunk = max(1, COMPARED_VALUES // max(1, first.shape[-1]))
    parts = zip(first.split(chunk), second.split(chunk), strict=True)
    return torch.cat([torch.linalg.vector_norm(a - b, dim=-1) for a, b in parts])


def groups(points: Tensor, radius: float) -> Tensor:  # (K, n) -> (K,)
    """Return the group of each point; a group contains all points connected by a chain of distances below the radius.

    Comparing all pairs would take minutes. Points are sorted into cells by a few coordinates, and most points are
    assigned to a leader, the first point in their cell. After that, leaders are compared with each other, and members
    are compared only if their leaders are closer than three radii. Nearly all pairs are ruled out by their projected
    distances, which are lower bounds on the true distances.
    """
    count, n = points.shape
    if count == 0:
        return torch.empty(0, dtype=torch.long, device=points.device)
    points = points - points.mean(0)  # the fast distances below would be inaccurate far from 0
    generator = torch.Generator().manual_seed(0)
    directions = torch.linalg.qr(torch.randn(n, min(n, SKETCH), generator=generator, dtype=torch.float64)).Q
    sketch = points @ directions.to(points.device)
    leader = _leaders(points, sketch, radius)
    return _Joined(points, leader, radius).of_leaders(sketch)


def _leaders(points: Tensor, sketch: Tensor, radius: float) -> Tensor:
    """Return the index of each point's leader, a point within the radius; a point can be its own leader."""
    numbers = torch.arange(len(points), device=points.device)
    width = max(radius, torch.finfo(points.dtype).tiny)
    _, cell = torch.unique((sketch[:, :CELL] / width).floor(), dim=0, return_inverse=True)
    first = torch.full_like(numbers, len(points)).scatter_reduce(0, cell, numbers, "amin")
    leader = first[cell]
    return torch.where(distances(points, points[leader]) <= radius, leader, numbers)


class _Joined:
    """Groups of points; two groups are joined if they contain a pair of points within the radius."""

    def __init__(self, points: Tensor, leader: Tensor, radius: float) -> None:
        self.points, self.radius = points, radius
        self.leaders, self.follows = torch.unique(leader, return_inverse=True)
        self.label = torch.arange(len(self.leaders), device=points.device)  # current group of each leader
        # The members of leader i are sizes[i] entries of members, starting at begins[i].
        self.members = self.follows.argsort(stable=True)
        self.sizes = torch.bincount(self.follows)
        self.begins = self.sizes.cumsum(0) - self.sizes

    def of_leaders(self, sketch: Tensor) -> Tensor:  # (K,)
        """Join all leaders that belong together and return the group of each point."""
        reach = 3 * self.radius * (1 + 1e-9) + 1e-9
        sketches = sketch[self.leaders]
        at = self.points[self.leaders]
        for rows in torch.arange(len(sketches), device=sketches.device).split(max(1, COMPARED_VALUES // len(sketches))):
            near = torch.cdist(sketches[rows], sketches) <= reach
            if int(near.sum()) > CROWDED * len(rows):  # computing all distances at once is faster
                apart, alone = torch.cdist(at[rows], at), self.sizes == 1
                near &= apart <= torch.where(alone[rows].unsqueeze(1) & alone, reach / 3, reach)
            pairs = near.nonzero()
            pairs[:, 0] += rows[0]
            self._compare(pairs[pairs[:, 0] < pairs[:, 1]].T, reach)
        group: Tensor = torch.unique(self.label[self.follows], return_inverse=True)[1]
        return group

    def _compare(self, pairs: Tensor, reach: float) -> None:  # (2, ·), numbers of leaders
        """Join leaders within the radius, and compare the members of leaders at up to three radii."""
        for part in pairs.split(self._chunk(), 1):
            first, second = part[:, self.label[part[0]] != self.label[part[1]]]
            apart = distances(self.points[self.leaders[first]], self.points[self.leaders[second]])
            self._join(first[apart <= self.radius], second[apart <= self.radius])
            counts = self.sizes[first] * self.sizes[second]
            open_ = (self.label[first] != self.label[second]) & (apart <= reach) & (counts > 1)
            for few in torch.stack((first, second))[:, open_ & (counts <= FEW_PAIRS)].split(self._chunk(), 1):
                self._compare_members(*few[:, self.label[few[0]] != self.label[few[1]]])
            for a, b in torch.stack((first, second))[:, open_ & (counts > FEW_PAIRS)].T:
                if self.label[a] != self.label[b] and self._members_meet(a, b):
                    self._join(a.view(1), b.view(1))

    def _chunk(self) -> int:
        return max(1, COMPARED_VALUES // self.points.shape[1])

    def _compare_members(self, first: Tensor, second: Tensor) -> None:
        """Join leaders with members within the radius, comparing all pairs of members at once."""
        counts = self.sizes[first] * self.sizes[second]
        pair = torch.repeat_interleave(counts)
        rank = torch.arange(len(pair), device=pair.device) - (counts.cumsum(0) - counts)[pair]
        a = self.members[self.begins[first[pair]] + rank // self.sizes[second[pair]]]
        b = self.members[self.begins[second[pair]] + rank % self.sizes[second[pair]]]
        for which, x, y in zip(*(z.split(self._chunk()) for z in (pair, a, b)), strict=True):
            meet = which[distances(self.points[x], self.points[y]) <= self.radius]
            self._join(first[meet], second[meet])

    def _members_meet(self, first: Tensor, second: Tensor) -> bool:
        """Return whether any two members of two large groups are within the radius of each other."""
        mine, others = (
            self.points[self.members[self.begins[i] : self.begins[i] + self.sizes[i]]] for i in (first, second)
        )
        chunk = max(1, COMPARED_VALUES // len(others))
        return any(bool((torch.cdist(part, others) <= self.radius).any()) for part in mine.split(chunk))

    def _join(self, first: Tensor, second: Tensor) -> None:
        from scipy.sparse import coo_matrix  # imported here because it is slow
        from scipy.sparse.csgraph import connected_components

        if len(first) == 0:
            return
        edges = torch.stack((self.label[first], self.label[second])).cpu().numpy()
        shape = (len(self.label), len(self.label))
        _, label = connected_components(coo_matrix((torch.ones(len(first)).numpy(), edges), shape=shape))
        self.label = torch.from_numpy(label).to(self.label)[self.label]
