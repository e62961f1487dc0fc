"""What a landscape says about a machine, in words."""

from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

GLASSY = 0.9  # of the starts end in solutions of their own: the spin-glass phase
MANY_STARTS = 20  # fewer do not tell
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
    margin = 0.05 * float(values[-1] - values[0])
    at = torch.linspace(float(values[0]) - margin, float(values[-1]) + margin, GRID, dtype=torch.float64)
    cuts = _valleys(density(values, at).tolist())
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
        'All 24 starts end in one solution: ...'
    """
    n_starts, n_solutions = len(found.basin), len(found.free_energy)
    failed = int((found.basin < 0).sum())
    said = []
    if n_solutions == 0:
        return [f"None of {n_starts} starts has converged: raise max_sweeps, or look for parameters that diverged."]
    ended = n_starts - failed
    close = float((found.distance[found.basin >= 0] < CLOSE).double().mean())
    if n_solutions == 1 and n_starts > 1:
        said.append(
            f"All {ended} starts end in one solution: the machine sees no structure in them (under-fitting, or too "
            "early in its training)."
        )
    elif ended >= MANY_STARTS and n_solutions > GLASSY * ended:
        where = ", most of them where they started: it memorises its data" if close > 0.5 else ""
        said.append(
            f"{n_solutions} of {ended} starts end in solutions of their own{where} (a spin-glass phase, as by "
            "over-training; or there are too few starts to tell)."
        )
    elif n_solutions > 1:
        said.append(f"{n_solutions} solutions from {ended} starts ({n_solutions / ended:.1%}).")
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
