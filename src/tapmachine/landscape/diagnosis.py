"""What a landscape says about a machine, in words."""

from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tapmachine.training.monitor import GLASSY

MANY_STARTS = 20  # fewer do not tell
MOST = 0.9  # of the starts, in one solution
MANY_SOLUTIONS = 10  # fewer do not make bands
CLOSE = 0.05  # of the support, root mean square: a start that moves less was a solution before
GRID = 512  # points at which a density is evaluated
VALLEY = 0.7  # of the lower of two peaks: where the density falls below, there are two bands
PEAK = 0.05  # of the highest: what is lower is a straggler, and no band


class Band(NamedTuple):
    """An interval of free energies in which solutions are dense, and how many there are."""

    low: float
    high: float
    n_solutions: int


class Found(Protocol):
    """A `Landscape` or a `Snapshot`."""

    @property
    def free_energy(self) -> Tensor: ...  # noqa: D102

    @property
    def basin(self) -> Tensor: ...  # noqa: D102

    @property
    def distance(self) -> Tensor: ...  # noqa: D102

    @property
    def stable(self) -> Tensor | None: ...  # noqa: D102


def density(values: Tensor, at: Tensor) -> Tensor:
    """A kernel density estimate: Gaussian, with the bandwidth of Silverman's rule (0.9·min(σ, IQR/1.34)·n^(−1/5))."""
    values, at = values.double().cpu(), at.double().cpu()
    quartiles = torch.quantile(values, torch.tensor([0.25, 0.75], dtype=torch.float64))
    deviation = values.std() if len(values) > 1 else values.new_tensor(0.0)
    range_ = (quartiles[1] - quartiles[0]) / 1.34
    width = 0.9 * (min(deviation, range_) if range_ > 0 else deviation) * len(values) ** -0.2
    width = torch.clamp(width, min=1e-9 * (1 + values.abs().max()))
    z = (at.unsqueeze(-1) - values) / width
    heights: Tensor = (-0.5 * z**2).exp().mean(-1) / (width * (2 * torch.pi) ** 0.5)
    return heights


def density_curve(values: Tensor) -> tuple[Tensor, Tensor]:
    """Points from below the smallest to above the largest value, dense where the values are, and the density there."""
    values = values.double().cpu().sort().values
    some = values[torch.linspace(0, len(values) - 1, min(len(values), GRID)).round().long()]
    margin = 0.1 * (some[-1] - some[0])
    even = torch.linspace(float(some[0] - margin), float(some[-1] + margin), GRID, dtype=torch.float64)
    at = torch.cat((some, (some[1:] + some[:-1]) / 2, even)).unique()
    return at, density(some, at)


def bands(free_energy: Tensor) -> list[Band]:
    """The bands of a distribution of free energies: where a density estimate has peaks with a valley between them.

    Example:
        >>> import torch
        >>> [band.n_solutions for band in bands(torch.cat((torch.linspace(-1, 0, 50), torch.linspace(5, 6, 30))))]
        [50, 30]
    """
    values = free_energy.double().cpu().sort().values
    if len(values) < 2 or float(values[-1] - values[0]) == 0:
        return [Band(float(values[0]), float(values[-1]), len(values))] if len(values) else []
    at, heights = density_curve(values)
    cuts = _valleys(heights.tolist())
    edges = [float("-inf"), *(float(at[cut]) for cut in cuts), float("inf")]
    found = []
    for low, high in pairwise(edges):
        inside = values[(values > low) & (values <= high)]
        if len(inside):
            found.append(Band(float(inside[0]), float(inside[-1]), len(inside)))
    return found


def _valleys(heights: list[float]) -> list[int]:
    """Where between two peaks the curve is lowest, if it falls far enough below both."""
    cuts: list[int] = []
    peak = lowest = 0  # the last peak, and the lowest point since
    for here, height in enumerate(heights):
        if height < heights[lowest]:
            lowest = here
        is_peak = min(heights[peak], height) >= PEAK * max(heights)
        if is_peak and heights[lowest] < VALLEY * min(heights[peak], height):
            cuts.append(lowest)
            peak = lowest = here
        elif height > heights[peak]:
            peak = lowest = here
    return cuts


def diagnose(found: Found) -> list[str]:
    """What a `Landscape` or a `Snapshot` says about its machine: a sentence for each thing that a user should know.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, diagnose, find_solutions, rbm
        >>> diagnose(find_solutions(rbm(Binary(6), Binary(3)), torch.eye(6).repeat(4, 1)))[0]
        '1 solution from 24 starts.'
    """
    n_starts, n_solutions = len(found.basin), len(found.free_energy)
    ended = found.basin[found.basin >= 0]
    failed = n_starts - len(ended)
    if n_solutions == 0:
        return [f"None of {n_starts} starts has converged: raise max_sweeps, or look for parameters that diverged."]
    counts = torch.bincount(ended, minlength=n_solutions)
    alone, largest = int((counts == 1).sum()), int(counts.max())
    said = [f"{n_solutions} solution{'s' if n_solutions > 1 else ''} from {len(ended)} starts."]
    if len(ended) < MANY_STARTS:
        said.append("There are too few starts that converged to say more.")
    elif n_solutions == 1:
        said.append(
            "All starts end in it: the machine sees no structure in them (under-fitting, or too early in its training)."
        )
    elif alone > GLASSY * len(ended):
        close = float((found.distance[found.basin >= 0] < CLOSE).double().mean())
        where = ", most of them where they started: it memorises its data" if close > 0.5 else ""
        said.append(
            f"{alone} starts end in solutions of their own{where} (a spin-glass phase, as by over-training; or there "
            "are too few starts to tell)."
        )
    elif largest > MOST * len(ended):
        said.append(
            f"{largest} of the starts end in the same one: there is little more than one state (under-fitting, or "
            "chains that mix so well that modes are not apart)."
        )
    groups = bands(found.free_energy)
    if len(groups) > 1 and n_solutions >= MANY_SOLUTIONS:
        listed = ", ".join(f"{band.n_solutions} from {band.low:.1f} to {band.high:.1f}" for band in groups[:5])
        said.append(f"The free energies lie in {len(groups)} bands: {listed}{', …' if len(groups) > 5 else ''}.")
    if found.stable is not None and not bool(found.stable.all()):
        said.append(
            f"{int((~found.stable).sum())} of {n_solutions} solutions are left after a nudge: saddles, or tiny basins."
        )
    if failed:
        said.append(f"{failed} of {n_starts} starts have not converged, and are left out.")
    return said
