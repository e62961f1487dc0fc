"""Which solutions of a machine are the same."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Solution, Tilt
from tapmachine.machine import BoltzmannMachine
from tapmachine.units import Units

SAME = 1e-3  # root mean square over units, of their support: solutions closer than this are the same
ROUGHLY_SAME = 0.01  # likewise, where solutions have only converged to 1e-8
SKETCH = 32  # directions in which points are compared first; no distance is longer there
CELL = 8  # of them, by which points are sorted into cells
COMPARED_VALUES = 2**24  # numbers compared at a time


@dataclass(frozen=True, eq=False)
class Unique:
    """The different ones among many solutions.

    Attributes:
        solutions: one for each of those that differ, by rising free energy: the one that has converged best.
        index: which of them each of the given solutions is, (K,); −1 for one that has not converged.
        counts: how many of the given ones each of them is.
    """

    solutions: Solution
    index: Tensor
    counts: Tensor

    @property
    def n_excluded(self) -> int:
        """How many of the given solutions have not converged, and were left out."""
        return int((self.index < 0).sum())

    def __len__(self) -> int:
        return len(self.solutions)


@torch.no_grad()
def unique(machine: BoltzmannMachine, solutions: Solution, *, same: float = SAME) -> Unique:
    """The different ones among solutions; those that have not converged are left out.

    Two are the same if they are closer than `same`, or joined by others that are, each closer than that to the next;
    so the order of the solutions does not matter. Their distance is the root mean square, over all units, of the
    difference of their means as a share of the unit's support (of its prior's standard deviation, if that is infinite).

    Solutions that have only converged to 1e-8, the default of `solve`, may be further apart than that where the free
    energy is flat; to count them, solve in float64 with tol=1e-14, as `find_solutions` does.

    Args:
        machine: that was solved.
        solutions: by `solve`.
        same: as above.

    Example:
        >>> from tapmachine import Binary, random_start, rbm, solve, unique
        >>> machine = rbm(Binary(8), Binary(4))
        >>> unique(machine, solve(machine, random_start(machine, n_particles=20))).counts
        tensor([20])
    """
    if machine.n_rows is not None:
        raise ValueError("solutions for different rows of evidence are not to be compared; take those of one row")
    if not same >= 0:
        raise ValueError(f"same is {same!r}; it must be 0 or more")
    kept = solutions.converged.nonzero().squeeze(-1)
    points = as_points(machine, [Moments(*(z[kept] for z in own)) for own in solutions.moments])
    group = groups(points, same)
    n_groups = int(group.max()) + 1 if len(group) else 0

    by_residual = solutions.residual[kept].argsort(stable=True)
    best = torch.full((n_groups,), len(kept), device=kept.device)
    rank = torch.empty_like(by_residual)
    rank[by_residual] = torch.arange(len(kept), device=kept.device)
    best = by_residual[best.scatter_reduce(0, group, rank, "amin")]  # of each group, the one that has converged best
    # Mirror images have the same free energy: a coordinate tells which comes first, whatever their order was.
    first = points[best].sum(-1).argsort(stable=True)
    order = first[solutions.free_energy[kept[best[first]]].argsort(stable=True)]
    number = torch.empty_like(order)
    number[order] = torch.arange(n_groups, device=kept.device)

    index = torch.full_like(solutions.n_sweeps, -1)
    index[kept] = number[group]
    return Unique(solutions.select(kept[best[order]]), index, torch.bincount(number[group], minlength=n_groups))


def as_points(machine: BoltzmannMachine, moments: list[Moments]) -> Tensor:  # (K, n), float64
    """The means of all layers, such that the distance of two points is the root mean square over units."""
    layers = machine.units()
    size = sum(layer.n for layer in layers)
    scaled = [(own.mean / spread(layer)).flatten(1).double() for layer, own in zip(layers, moments, strict=True)]
    points: Tensor = torch.cat(scaled, dim=-1) / size**0.5
    return points


def spread(units: Units) -> Tensor:
    """The scale of each component's mean: the length of its support or, if that is infinite, its prior's deviation."""
    lower, upper = units.bounds()
    length = (upper - lower).expand(units.state_shape)
    zero = torch.zeros(units.state_shape, dtype=units.dtype, device=units.device)
    deviation = units.moments(Tilt(zero, 0.0)).variance.sqrt()
    scale = torch.where(torch.isfinite(length), length, deviation)
    return torch.where(scale > 0, scale, 1.0)  # a unit that is held


def distances(first: Tensor, second: Tensor) -> Tensor:  # (K, n), (K, n) -> (K,)
    """The distance of each point to the other in its row."""
    chunk = max(1, COMPARED_VALUES // max(1, first.shape[-1]))
    parts = zip(first.split(chunk), second.split(chunk), strict=True)
    return torch.cat([torch.linalg.vector_norm(a - b, dim=-1) for a, b in parts])


def groups(points: Tensor, radius: float) -> Tensor:  # (K, n) -> (K,)
    """The number of the group of each point: those within the radius of each other, or joined by others that are.

    Comparing all pairs would take minutes. Points are sorted into cells by a few coordinates, and most join the first
    one in their cell, their leader. What is left is to compare leaders, and the members of those that are within three
    radii. A projection shortens distances only, so it rules out nearly all pairs, and no pair wrongly.
    """
    from scipy.sparse import coo_matrix  # here, since it takes a while
    from scipy.sparse.csgraph import connected_components

    count, n = points.shape
    if count == 0:
        return torch.empty(0, dtype=torch.long, device=points.device)
    generator = torch.Generator().manual_seed(0)
    directions = torch.linalg.qr(torch.randn(n, min(n, SKETCH), generator=generator, dtype=torch.float64)).Q
    sketch = points @ directions.to(points.device)
    numbers = torch.arange(count, device=points.device)
    leader = _leaders(points, sketch, radius)
    leaders = (leader == numbers).nonzero().squeeze(-1)
    edges = [torch.stack((numbers, leader)), *_edges(points, sketch, leader, leaders, radius)]
    tail, head = torch.cat(edges, 1).cpu().numpy()
    _, labels = connected_components(coo_matrix((torch.ones(len(tail)).numpy(), (tail, head)), shape=(count, count)))
    return torch.from_numpy(labels).to(points.device, torch.long)


def _leaders(points: Tensor, sketch: Tensor, radius: float) -> Tensor:
    """For each point another one within the radius, which most points of a group share; itself, if there is none."""
    numbers = torch.arange(len(points), device=points.device)
    width = max(radius, torch.finfo(points.dtype).tiny)
    _, cell = torch.unique((sketch[:, :CELL] / width).floor(), dim=0, return_inverse=True)
    first = torch.full_like(numbers, len(points)).scatter_reduce(0, cell, numbers, "amin")
    leader = first[cell]
    return torch.where(distances(points, points[leader]) <= radius, leader, numbers)


def _edges(points: Tensor, sketch: Tensor, leader: Tensor, leaders: Tensor, radius: float) -> list[Tensor]:
    """Pairs within the radius that join the groups of different leaders, each (2, ·)."""
    slack = 1e-6 * (1.0 + radius)  # the fast distances below are not exact
    reach = 3 * radius + slack
    own = sketch[leaders]
    chunk = max(1, COMPARED_VALUES // len(leaders))
    found = []
    for begin in range(0, len(leaders), chunk):
        near = (torch.cdist(own[begin : begin + chunk], own) <= reach).nonzero()
        near[:, 0] += begin
        pairs = leaders[near[near[:, 0] < near[:, 1]]].T
        if pairs.shape[1] == 0:
            continue
        apart = distances(points[pairs[0]], points[pairs[1]])
        found.append(pairs[:, apart <= radius])
        open_ = pairs[:, (apart > radius) & (apart <= reach)]
        found += [_between(points, leader, a, b, radius) for a, b in open_.T]
    return found


def _between(points: Tensor, leader: Tensor, first: Tensor, second: Tensor, radius: float) -> Tensor:  # (2, 0 or 1)
    """A pair within the radius of points that follow two leaders, if there is one."""
    mine, others = ((leader == number).nonzero().squeeze(-1) for number in (first, second))
    chunk = max(1, COMPARED_VALUES // (len(others) * points.shape[-1]))
    for part in mine.split(chunk):
        apart = torch.linalg.vector_norm(points[part].unsqueeze(1) - points[others], dim=-1)
        near = (apart <= radius).nonzero()
        if len(near):
            return torch.stack((part[near[:1, 0]], others[near[:1, 1]]))
    return torch.empty(2, 0, dtype=torch.long, device=points.device)
