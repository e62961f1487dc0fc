"""Numbers for a landscape: how many solutions count, whether they follow classes, and whether F has structure."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.analysis.landscape.find import find_solutions
from tapmachine.data.checks import check_count
from tapmachine.machine import BoltzmannMachine, at_temperature
from tapmachine.solver import Scheme
from tapmachine.solver.starts import StartingPoint

N_NEIGHBORS, N_PERMUTATIONS = 10, 199
MOST_POINTS = 2000  # of a correlation in space, and of overlaps: the time grows with their square


def effective_number(counts: Tensor) -> float:
    """exp of the entropy of the basins' shares: the number of equally large basins that would be as diverse.

    Args:
        counts: number of starts that lead to each solution, (n,).

    Example:
        >>> import torch
        >>> round(effective_number(torch.tensor([10, 10, 10])), 6)
        3.0
    """
    if len(counts) == 0:
        return 0.0
    shares = counts.double() / counts.sum()
    return float((-torch.xlogy(shares, shares).sum()).exp())


class Agreement(NamedTuple):
    """How well basins agree with classes.

    Attributes:
        purity: share of the starts whose class is the most frequent one in their basin. It is 1 if each start has a
            basin to itself, so that it says little where there are many basins.
        adjusted_rand_index: share of the pairs of starts that both divisions treat alike, less what is expected by
            chance: 0 for unrelated ones, 1 for the same ones (Hubert and Arabie 1985).
    """

    purity: float
    adjusted_rand_index: float


def basin_agreement(basin: Tensor, labels: Tensor) -> Agreement:
    """How well the basins of starts agree with their classes.

    Args:
        basin: index of the solution that each start leads to, (K,), as in `Landscape.basin`; −1 is left out.
        labels: class of each start, (K,), integers.

    Example:
        >>> import torch
        >>> basin_agreement(torch.tensor([0, 0, 1, 1]), torch.tensor([7, 7, 3, 3]))
        Agreement(purity=1.0, adjusted_rand_index=1.0)
    """
    if len(basin) != len(labels):
        raise ValueError(f"labels has {len(labels)} entries for {len(basin)} starts")
    kept = (basin >= 0).cpu()
    if not bool(kept.any()):
        return Agreement(float("nan"), float("nan"))
    basins = basin.cpu()[kept].unique(return_inverse=True)[1]
    classes = labels.cpu()[kept].unique(return_inverse=True)[1]
    table = torch.zeros(int(basins.max()) + 1, int(classes.max()) + 1, dtype=torch.float64)
    table.index_put_((basins, classes), torch.ones(len(basins), dtype=torch.float64), accumulate=True)
    total, rows, columns = table.sum(), table.sum(1), table.sum(0)

    def pairs(z: Tensor) -> float:
        return float((z * (z - 1) / 2).sum())

    expected = pairs(rows) * pairs(columns) / max(1.0, pairs(total))
    largest = (pairs(rows) + pairs(columns)) / 2
    same = largest == expected  # one basin and one class, or all of one start each
    index = 1.0 if same else (pairs(table) - expected) / (largest - expected)
    return Agreement(float(table.amax(1).sum() / total), index)


class SpatialCorrelation(NamedTuple):
    """Moran's I, −1/(n − 1) on average without correlation, and the share of permutations that reach it."""

    morans_i: float
    p_value: float


def spatial_correlation(
    values: Tensor, points: Tensor, n_neighbors: int = N_NEIGHBORS, n_permutations: int = N_PERMUTATIONS
) -> SpatialCorrelation:
    """Moran's I of values at points: whether neighbors have similar values, with a permutation test.

    Args:
        values: a value for each point, (n,), as F of solutions.
        points: coordinates, (n, d): places on a map, or the solutions themselves. At most 2,000 are used.
        n_neighbors: number of nearest neighbors that count. With at most twice as many points, the result is NaN.
        n_permutations: number of permutations of the test; the smallest p-value is 1/(n_permutations + 1).

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
        raise ValueError(f"there are {len(values)} values for {len(points)} points")
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
    """Overlaps q of pairs of solutions, drawn at random: correlations of their means over the units, (n_pairs,).

    Their histogram is the distribution P(q). A pair of a solution with itself has q = 1.

    Args:
        means: of one layer at each solution, (n, units).
        weights: weight of each solution, (n,), such as the number of starts that lead to it (default: equal weights).
        n_pairs: number of pairs.
        seed: random seed.

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
    """The complexity Σ(f) = ln(dn/df)/N over the free energy per unit f = F/N, with n the number of solutions.

    It is counted from the solutions that were found, so that it is a lower bound where there are many.

    Args:
        free_energy: F of each solution, (n,).
        n_units: number N of units of the machine.
        n_bins: number of bins of the histogram.

    Returns:
        f at the centers of the bins with solutions, and Σ there.

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
    """The solutions of a machine at one inverse temperature: how many there are, and F of the lowest, per unit."""

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
    """The number of solutions of a machine at several inverse temperatures, from the same starts.

    Args:
        machine: any machine that `at_temperature` takes.
        starts: as for `find_solutions`.
        betas: inverse temperatures.
        scheme: mean-field scheme (default: `TAP()`).
        couplings_only: as for `at_temperature`.
        max_sweeps: as for `find_solutions`.

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
