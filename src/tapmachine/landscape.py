"""The solutions of a machine as a landscape: which of them are the same."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tapmachine.beliefs import Solution, Tilt
from tapmachine.machine import BoltzmannMachine
from tapmachine.units import Units

SAME_MEAN = 0.01  # of the support, or of the prior's deviation: means closer than this are the same
SAME_FREE_ENERGY = 0.01  # nats: and so are free energies
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
def unique(machine: BoltzmannMachine, solutions: Solution, *, same: float = SAME_MEAN) -> Unique:
    """The different ones among solutions; those that have not converged are left out.

    Two are the same if no unit's mean differs by more than `same`, as a share of the unit's support (of its prior's
    standard deviation, if that is infinite), and their free energies by no more than 0.01 nats. Solutions that have
    only converged to 1e-8, the default of `solve`, may be further apart than that where the free energy is flat; to
    count them, solve in float64 with tol=1e-14.

    Args:
        machine: that was solved.
        solutions: by `solve`.
        same: as above.

    Example:
        >>> from tapmachine import Binary, random_start, rbm, solve
        >>> from tapmachine.landscape import unique
        >>> machine = rbm(Binary(8), Binary(4))
        >>> unique(machine, solve(machine, random_start(machine, n_particles=20))).counts
        tensor([20])
    """
    if machine.n_rows is not None:
        raise ValueError("solutions for different rows of evidence are not to be compared; take those of one row")
    kept = solutions.converged.nonzero().squeeze(-1)
    order = kept[solutions.free_energy[kept].argsort(stable=True)]
    points = torch.cat(
        [
            (own.mean[order] / _spread(layer)).flatten(1)
            for layer, own in zip(machine.units(), solutions.moments, strict=True)
        ],
        dim=-1,
    )
    group = _group(points.cpu(), solutions.free_energy[order].double().cpu(), same).to(order.device)
    index = torch.full_like(solutions.n_sweeps, -1)
    index[order] = group
    counts = torch.bincount(group)
    members = order[group.argsort(stable=True)].split(counts.tolist())
    best = [own[solutions.residual[own].argmin()] for own in members if len(own)]
    return Unique(solutions.select(torch.stack(best) if best else order), index, counts)


def _group(points: Tensor, free_energy: Tensor, same: float) -> Tensor:  # (K, n), (K,) -> (K,)
    """The number of the group of each point. Sorted by free energy, those that can be the same are neighbours.

    Each in turn claims what is near and not yet claimed.
    """
    ends = torch.searchsorted(free_energy, free_energy + SAME_FREE_ENERGY, right=True).tolist()
    group = torch.full((len(points),), -1)
    n_groups = 0
    chunk = max(1, COMPARED_VALUES // max(1, points.shape[-1]))
    for first, end in enumerate(ends):
        if group[first] >= 0:
            continue
        for begin in range(first, end, chunk):
            part = slice(begin, min(end, begin + chunk))
            near = (points[part] - points[first]).abs().amax(-1) <= same
            group[part] = torch.where(near & (group[part] < 0), n_groups, group[part])
        n_groups += 1
    return group


def _spread(units: Units) -> Tensor:
    """The scale of each component's mean: the length of its support or, if that is infinite, its prior's deviation."""
    lower, upper = units.bounds()
    length = (upper - lower).expand(units.state_shape)
    zero = torch.zeros(units.state_shape, dtype=units.dtype, device=units.device)
    deviation = units.moments(Tilt(zero, 0.0)).variance.sqrt()
    spread = torch.where(torch.isfinite(length), length, deviation)
    return torch.where(spread > 0, spread, 1.0)  # a unit that is held
