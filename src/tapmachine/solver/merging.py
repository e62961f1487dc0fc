"""Merging of equal solutions of a machine."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Solution, Tilt
from tapmachine.machine import BoltzmannMachine
from tapmachine.units import Units

SAME = 1e-3  # root mean square over units, relative to their support: closer solutions are the same
ROUGHLY_SAME = 0.01  # the same for solutions that have only converged to 1e-8
SKETCH = 32  # number of directions in which points are compared first; projected distances are never longer
CELL = 8  # number of these by which points are sorted into cells
COMPARED_VALUES = 2**24  # numbers compared at a time
CROWDED = 20  # number of neighbors of a point in the sketch from which all distances are computed at once
FEW_PAIRS = 256  # pairs of members of two groups


@dataclass(frozen=True, eq=False)
class MergedSolutions:
    """Distinct solutions among many.

    Attributes:
        solutions: One for each group of equal solutions, the best converged one, in order of free energy.
        index: Index in `solutions` of each original solution, (K,); −1 if it did not converge.
        counts: Number of original solutions for each of `solutions`.
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
    """Merge equal solutions; solutions that did not converge are excluded.

    Two solutions are the same if their distance is below `same`, or if they are connected by a chain of such solutions,
    so their order does not matter. The distance is the root mean square, over all units, of the difference of their
    means relative to the length of the unit's support (its prior's standard deviation, if infinite).

    Solutions that have only converged to 1e-8, the default of `solve`, may be further apart if the free energy is flat;
    to count them, solve in float64 with tol=1e-14, as `find_solutions` does.

    Args:
        machine: The machine that was solved.
        solutions: The result of `solve`.
        same: Distance below which solutions are the same.

    Example:
        >>> from tapmachine import Binary, rbm, solve
        >>> from tapmachine.solver import random_start, merge_solutions
        >>> machine = rbm(Binary(8), Binary(4))
        >>> merge_solutions(machine, solve(machine, random_start(machine, n_particles=20))).counts
        tensor([20])
    """
    if machine.n_rows is not None:
        raise ValueError("solutions belong to different rows of evidence; merge those of one row at a time")
    if not same >= 0:
        raise ValueError(f"same is {same!r}; it must be 0 or more")
    kept = solutions.converged.nonzero().squeeze(-1)
    points = as_points(machine, [Moments(*(z[kept] for z in moments)) for moments in solutions.moments])
    group = groups(points, same)
    n_groups = int(group.max()) + 1 if len(group) else 0

    by_residual = solutions.residual[kept].argsort(stable=True)
    best = torch.full((n_groups,), len(kept), device=kept.device)
    rank = torch.empty_like(by_residual)
    rank[by_residual] = torch.arange(len(kept), device=kept.device)
    best = by_residual[best.scatter_reduce(0, group, rank, "amin")]  # the best converged one of each group
    # Mirror images have the same free energy up to rounding: a coordinate determines their order.
    first = points[best].sum(-1).argsort(stable=True)
    order = first[_rounded(solutions.free_energy[kept[best[first]]]).argsort(stable=True)]
    place = torch.empty_like(order)
    place[order] = torch.arange(n_groups, device=kept.device)

    index = torch.full_like(solutions.n_sweeps, -1)
    index[kept] = place[group]
    return MergedSolutions(solutions.select(kept[best[order]]), index, torch.bincount(place[group], minlength=n_groups))


def _rounded(free_energy: Tensor) -> Tensor:
    return (free_energy.double() * 1e8).round()


def as_points(machine: BoltzmannMachine, moments: list[Moments]) -> Tensor:  # (K, n), float64
    """Means of all layers, scaled so that the distance of two points is the root mean square over units."""
    layers = list(machine.layers)
    size = sum(layer.n for layer in layers)
    scaled = [(mean / spread(layer)).flatten(1).double() for layer, (mean, _) in zip(layers, moments, strict=True)]
    points: Tensor = torch.cat(scaled, dim=-1) / size**0.5
    return points


def spread(units: Units) -> Tensor:
    """Scale of each component's mean: the length of its support or, if infinite, its prior's standard deviation."""
    lower, upper = units.bounds()
    length = (upper - lower).expand(units.state_shape)
    zero = torch.zeros(units.state_shape, dtype=units.dtype, device=units.device)
    deviation = units.moments(Tilt(zero, 0.0)).variance.sqrt()
    scale = torch.where(torch.isfinite(length), length, deviation)
    return torch.where(scale > 0, scale, 1.0)  # 0 for a clamped unit


def distances(first: Tensor, second: Tensor) -> Tensor:  # (K, n), (K, n) -> (K,)
    """Distance between the points in each row."""
    chunk = max(1, COMPARED_VALUES // max(1, first.shape[-1]))
    parts = zip(first.split(chunk), second.split(chunk), strict=True)
    return torch.cat([torch.linalg.vector_norm(a - b, dim=-1) for a, b in parts])


def groups(points: Tensor, radius: float) -> Tensor:  # (K, n) -> (K,)
    """Group of each point: points within the radius of each other, or connected by others.

    Comparing all pairs would take minutes. Points are sorted into cells by a few coordinates, and most join the first
    one in their cell, their leader. Then only leaders are compared, and the members of those that are within three
    radii. Projections only shorten distances, so they rule out nearly all pairs, and none wrongly.
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
    """For each point another one within the radius, shared by most points of a group; itself, if there is none."""
    numbers = torch.arange(len(points), device=points.device)
    width = max(radius, torch.finfo(points.dtype).tiny)
    _, cell = torch.unique((sketch[:, :CELL] / width).floor(), dim=0, return_inverse=True)
    first = torch.full_like(numbers, len(points)).scatter_reduce(0, cell, numbers, "amin")
    leader = first[cell]
    return torch.where(distances(points, points[leader]) <= radius, leader, numbers)


class _Joined:
    """Groups of points, joined as pairs within the radius are found."""

    def __init__(self, points: Tensor, leader: Tensor, radius: float) -> None:
        self.points, self.radius = points, radius
        self.leaders, self.follows = torch.unique(leader, return_inverse=True)
        self.label = torch.arange(len(self.leaders), device=points.device)  # current group of each leader
        # The members of leader i are sizes[i] entries of members, starting at begins[i].
        self.members = self.follows.argsort(stable=True)
        self.sizes = torch.bincount(self.follows)
        self.begins = self.sizes.cumsum(0) - self.sizes

    def of_leaders(self, sketch: Tensor) -> Tensor:  # (K,)
        """Join all leaders that belong together. Returns the group of each point."""
        reach = 3 * self.radius * (1 + 1e-9) + 1e-9
        sketches = sketch[self.leaders]
        at = self.points[self.leaders]
        for rows in torch.arange(len(sketches), device=sketches.device).split(max(1, COMPARED_VALUES // len(sketches))):
            near = torch.cdist(sketches[rows], sketches) <= reach
            if int(near.sum()) > CROWDED * len(rows):  # then computing all at once is faster
                apart, alone = torch.cdist(at[rows], at), self.sizes == 1
                near &= apart <= torch.where(alone[rows].unsqueeze(1) & alone, reach / 3, reach)
            pairs = near.nonzero()
            pairs[:, 0] += rows[0]
            self._compare(pairs[pairs[:, 0] < pairs[:, 1]].T, reach)
        group: Tensor = torch.unique(self.label[self.follows], return_inverse=True)[1]
        return group

    def _compare(self, pairs: Tensor, reach: float) -> None:  # (2, ·), numbers of leaders
        """Join leaders within the radius, and those close enough that their members may be."""
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
        """Whether any members of two large groups are within the radius."""
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
