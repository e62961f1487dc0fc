"""Statistics of a landscape: diversity of basins, agreement with classes, bands, spatial correlation, and overlaps."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from scipy.stats import gaussian_kde
from sklearn.metrics.cluster import contingency_matrix
from torch import Tensor

from reproduction.temperature import at_temperature
from tapmachine.analysis.landscape.find import find_solutions
from tapmachine.data.checks import check_count
from tapmachine.machine import BoltzmannMachine
from tapmachine.solver import Scheme
from tapmachine.solver.starts import StartingPoint

N_NEIGHBORS, N_PERMUTATIONS = 10, 199
GRID = 512  # number of evenly spaced points at which a density is evaluated
VALLEY = 0.7  # a valley separates two bands if it is below this fraction of the lower of the two peaks
PEAK = 0.05  # peaks below this fraction of the highest peak are not bands
MOST_POINTS = 2000  # maximum number of points, because the cost grows quadratically


def effective_number(counts: Tensor) -> float:
    """Compute the effective number of basins, the exponential of the entropy of their relative sizes.

    Args:
        counts: Number of starts that converge to each solution, shape (n,).

    Example:
        >>> import torch
        >>> round(effective_number(torch.tensor([10, 10, 10])), 6)
        3.0
    """
    if len(counts) == 0:
        return 0.0
    shares = counts.double() / counts.sum()
    return float((-torch.xlogy(shares, shares).sum()).exp())


def purity(basin: Tensor, labels: Tensor) -> float:
    """Compute the fraction of the starts whose class is the most frequent one in their basin.

    The purity is 1 if each start has a separate basin, so it is not informative if there are many basins.

    Args:
        basin: Index of the solution to which each start converges, shape (K,).
        labels: Integer class of each start, shape (K,).

    Example:
        >>> import torch
        >>> purity(torch.tensor([0, 0, 1, 1]), torch.tensor([7, 7, 3, 7]))
        0.75
    """
    table = contingency_matrix(labels.cpu().numpy(), basin.cpu().numpy())
    return float(table.max(0).sum() / max(1, table.sum()))


def density_curve(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return points that cover the range of the values, and a Gaussian kernel density estimate at these points.

    The points are denser where there are more values. The bandwidth follows Silverman's rule,
    0.9·min(σ, IQR/1.34)·n^(−1/5).
    """
    values = values.double().cpu().sort().values
    low, high = torch.quantile(values, torch.tensor([0.25, 0.75], dtype=torch.float64))
    deviation, range_ = values.std(), (high - low) / 1.34
    width = 0.9 * (min(deviation, range_) if range_ > 0 else deviation) * len(values) ** -0.2
    width = width.clamp(min=1e-9 * (1 + values.abs().max()))
    knots = values[torch.linspace(0, len(values) - 1, min(len(values), GRID)).round().long()]
    margin = 0.1 * (knots[-1] - knots[0])
    even = torch.linspace(float(knots[0] - margin), float(knots[-1] + margin), GRID, dtype=torch.float64)
    at = torch.cat((knots, (knots[1:] + knots[:-1]) / 2, even)).unique()
    estimate = gaussian_kde(knots.numpy(), float(width / knots.std()))
    return at, torch.from_numpy(estimate(at.numpy()))


def energy_bands(free_energy: Tensor) -> list[int]:
    """Return the numbers of solutions in bands of free energies, which are separated by valleys of their density.

    Example:
        >>> import torch
        >>> energy_bands(torch.cat((torch.linspace(-1, 0, 50), torch.linspace(5, 6, 30))))
        [50, 30]
    """
    values = free_energy.double().cpu().sort().values
    if len(values) < 2 or float(values[-1] - values[0]) == 0:
        return [len(values)] if len(values) else []
    at, heights = density_curve(values)
    edges = torch.searchsorted(values, at[_valleys(heights.tolist())], right=True).tolist()
    counts = [high - low for low, high in pairwise((0, *edges, len(values)))]
    return [count for count in counts if count]


def _valleys(heights: list[float]) -> list[int]:
    """Return the indices of the lowest points of sufficiently deep valleys between peaks."""
    cuts: list[int] = []
    peak = lowest = 0  # the last peak, and the lowest point after it
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


class SpatialCorrelation(NamedTuple):
    """Moran's I, whose mean is −1/(n − 1) without correlation, and the p-value of a permutation test."""

    morans_i: float
    p_value: float


def spatial_correlation(
    values: Tensor, points: Tensor, n_neighbors: int = N_NEIGHBORS, n_permutations: int = N_PERMUTATIONS
) -> SpatialCorrelation:
    """Compute Moran's I, which measures whether neighboring points have similar values, with a permutation test.

    Args:
        values: Value at each point, shape (n,), such as the free energies of solutions.
        points: Coordinates of shape (n, d), such as positions on a map or the means of solutions. At most 2,000 points
            are used.
        n_neighbors: Number of nearest neighbors to compare. The result is NaN if there are at most 2·n_neighbors
            points.
        n_permutations: Number of permutations; the smallest possible p-value is 1/(n_permutations + 1).

    Example:
        >>> import torch
        >>> x = torch.linspace(0, 1, 50).unsqueeze(1)
        >>> correlation = spatial_correlation(x.squeeze(1), x)
        >>> correlation.morans_i > 0.8, correlation.p_value
        (True, 0.005)
    """
    n_neighbors = check_count("n_neighbors", n_neighbors)
    n_permutations = check_count("n_permutations", n_permutations)
    values, points = values.double().cpu(), points.double().cpu().flatten(1)
    if len(values) != len(points):
        raise ValueError(f"values has {len(values)} entries for {len(points)} points; expected one value per point")
    if len(values) > MOST_POINTS:
        some = torch.linspace(0, len(values) - 1, MOST_POINTS).round().long()
        values, points = values[some], points[some]
    deviation = values - values.mean()
    if len(values) <= 2 * n_neighbors or float(deviation.square().sum()) == 0:
        return SpatialCorrelation(float("nan"), float("nan"))
    apart = torch.cdist(points, points).fill_diagonal_(torch.inf)
    near = apart.topk(min(n_neighbors, len(values) - 1), largest=False).indices

    def index(z: Tensor) -> Tensor:
        return (z * z[near].mean(1)).sum() / z.square().sum()

    found = float(index(deviation))
    generator = torch.Generator().manual_seed(0)
    shuffled = (deviation[torch.randperm(len(values), generator=generator)] for _ in range(n_permutations))
    reached = sum(float(index(z)) >= found for z in shuffled)
    return SpatialCorrelation(found, (reached + 1) / (n_permutations + 1))


def overlaps(means: Tensor, weights: Tensor | None = None, n_pairs: int = 100_000, seed: int = 0) -> Tensor:
    """Compute the overlaps q of random pairs of solutions, defined as correlations between means over the units.

    The histogram of the overlaps estimates the distribution P(q). A pair may contain the same solution twice, which
    gives q = 1.

    Args:
        means: Means of one layer at each solution, shape (n, units).
        weights: Weight of each solution, shape (n,), such as the number of starts that converge to it (default: equal
            weights).
        n_pairs: Number of pairs (default: 100,000).
        seed: Random seed.

    Returns:
        Overlap of each pair, shape (n_pairs,).

    Example:
        >>> import torch
        >>> overlaps(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), n_pairs=20).round().unique()
        tensor([-1.,  1.], dtype=torch.float64)
    """
    means, n_pairs = means.double().cpu().flatten(1), check_count("n_pairs", n_pairs)
    chance = torch.ones(len(means), dtype=torch.float64) if weights is None else weights.double().cpu()
    pairs = chance.expand(2, -1).multinomial(n_pairs, True, generator=torch.Generator().manual_seed(seed))
    centered = means - means.mean(1, keepdim=True)
    units = centered / centered.norm(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    found: Tensor = (units[pairs[0]] * units[pairs[1]]).sum(1).clamp(-1, 1)
    return found


def complexity(free_energy: Tensor, n_units: int, n_bins: int = 30) -> tuple[Tensor, Tensor]:
    """Estimate the complexity Σ(f) = ln(dn/df)/N, where n is the number of solutions and f = F/N.

    The estimate counts the solutions in `free_energy`, so it is a lower bound if some solutions have not been found.

    Args:
        free_energy: Free energy F of each solution, shape (n,).
        n_units: Number N of units of the machine.
        n_bins: Number of bins of the histogram (default: 30).

    Returns:
        Values of f at the centers of the nonempty bins, and the values of Σ at these points.

    Example:
        >>> import torch
        >>> f, sigma = complexity(torch.linspace(-100, -50, 1000), n_units=100, n_bins=5)
        >>> round(float(sigma[0]), 4), len(f)  # 200 solutions in a bin of width 0.1
        (0.076, 5)
    """
    f, n_bins = free_energy.double().cpu() / check_count("n_units", n_units), check_count("n_bins", n_bins)
    low, high = float(f.min()), float(f.max())
    if high == low:
        return f[:1], torch.zeros(1, dtype=torch.float64)
    counts, edges = torch.histogram(f, n_bins, range=(low, high))
    width, middle = edges[1] - edges[0], (edges[1:] + edges[:-1]) / 2
    return middle[counts > 0], (counts[counts > 0] / width).log() / n_units


class SolutionsAt(NamedTuple):
    """Number of solutions at one inverse temperature, and the lowest free energy per unit."""

    beta: float
    solutions: int
    effective: float
    not_converged: int
    lowest: float


def solutions_over_temperature(
    machine: BoltzmannMachine,
    starts: StartingPoint,
    betas: Sequence[float],
    scheme: Scheme | None = None,
    couplings_only: bool = False,
    max_sweeps: int = 1000,
) -> list[SolutionsAt]:
    """Count the solutions of a machine at several inverse temperatures, from the same starts.

    Args:
        machine: A machine that `at_temperature` supports.
        starts: Starting points, in the same form as for `find_solutions`.
        betas: Inverse temperatures.
        scheme: Mean-field scheme (default: `TAP()`).
        couplings_only: Whether the inverse temperature multiplies only the couplings (see `at_temperature`).
        max_sweeps: Maximum number of sweeps per start (default: 1000).

    Returns:
        The number of solutions and the lowest free energy per unit at each inverse temperature.

    Example:
        >>> import torch
        >>> from tapmachine import Spin, pairwise
        >>> from tapmachine.solver import random_start
        >>> magnet = pairwise(Spin(20), weights=(torch.ones(20, 20) - torch.eye(20)) / 20)
        >>> [at.solutions for at in solutions_over_temperature(magnet, random_start(magnet, 50), [0.5, 2.0])]
        [1, 2]
    """
    found = []
    n_units = sum(layer.n for layer in machine.layers)
    for beta in betas:
        tempered = at_temperature(machine, beta, couplings_only)
        landscape = find_solutions(tempered, starts, scheme, stability=False, max_sweeps=max_sweeps)
        lowest = float(landscape.free_energy[0]) / n_units if len(landscape) else float("nan")
        effective = effective_number(landscape.counts)
        found.append(SolutionsAt(beta, len(landscape), effective, landscape.n_not_converged, lowest))
    return found
