"""Statistics of the solutions of a machine, and machines at other temperatures."""

from copy import deepcopy

import numpy as np
import torch
from scipy.signal import find_peaks
from scipy.stats import gaussian_kde
from sklearn.metrics.cluster import contingency_matrix
from torch import Tensor
from torch.nn.functional import softplus

from tapmachine.machine import BoltzmannMachine
from tapmachine.units import Binary, Gaussian, TruncatedGaussBernoulli, TruncatedGaussian

GRID = 512  # number of evenly spaced points at which a density is evaluated
VALLEY = 0.7  # a valley separates two bands if it is below this fraction of the lower of the two peaks
PEAK = 0.05  # peaks below this fraction of the highest peak are not bands
N_NEIGHBORS, N_PERMUTATIONS = 10, 199
MOST_POINTS = 2000  # maximum number of points for Moran's I, because the cost grows quadratically


def effective_number(counts: Tensor) -> float:
    """Compute the effective number of basins, the exponential of the entropy of their relative sizes."""
    fractions = counts.double() / counts.sum()
    return float((-torch.xlogy(fractions, fractions).sum()).exp())


def purity(basin: Tensor, labels: Tensor) -> float:
    """Compute the fraction of the starts whose class is the most frequent one in their basin."""
    return float(contingency_matrix(labels, basin).max(0).sum() / len(basin))


def density_curve(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return points that are denser where there are more values, and a kernel density estimate by Silverman's rule."""
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


def count_bands(free_energy: Tensor) -> int:
    """Count the bands of free energies: peaks of their density that are separated by valleys."""
    if len(free_energy) < 2 or float(free_energy.max() - free_energy.min()) == 0:
        return min(1, len(free_energy))
    heights = density_curve(free_energy)[1].numpy()
    _, peaks = find_peaks(np.pad(heights, 1), height=PEAK * heights.max(), prominence=0)
    return int((peaks["prominences"] > (1 - VALLEY) * peaks["peak_heights"]).sum())


def morans_i(values: Tensor, points: Tensor) -> tuple[float, float]:
    """Compute Moran's I, the correlation of values at neighboring points, and its p-value by permutation."""
    values, points = values.double().cpu(), points.double().cpu()
    if len(values) > MOST_POINTS:
        some = torch.linspace(0, len(values) - 1, MOST_POINTS).round().long()
        values, points = values[some], points[some]
    deviation = values - values.mean()
    if len(values) <= 2 * N_NEIGHBORS or float(deviation.square().sum()) == 0:
        return float("nan"), float("nan")
    near = torch.cdist(points, points).fill_diagonal_(torch.inf).topk(N_NEIGHBORS, largest=False).indices

    def index(z: Tensor) -> float:
        return float((z * z[near].mean(1)).sum() / z.square().sum())

    found, generator = index(deviation), torch.Generator().manual_seed(0)
    shuffled = (deviation[torch.randperm(len(values), generator=generator)] for _ in range(N_PERMUTATIONS))
    return found, (sum(index(z) >= found for z in shuffled) + 1) / (N_PERMUTATIONS + 1)


def overlaps(means: Tensor, weights: Tensor, edges: Tensor) -> Tensor:
    """Return the density of the overlaps q of two solutions, the correlations between their means, in some bins."""
    q, pairs = np.corrcoef(means.cpu().numpy()), np.outer(weights.cpu(), weights.cpu())
    return torch.from_numpy(np.histogram(q, edges.numpy(), weights=pairs, density=True)[0])


def complexity(free_energy: Tensor, n_units: int, n_bins: int) -> tuple[Tensor, Tensor]:
    """Estimate the complexity Σ(f) = ln(dn/df)/N of n solutions with f = F/N, from a histogram with `n_bins` bins."""
    f = free_energy.double().cpu() / n_units
    low, high = float(f.min()), float(f.max())
    if high == low:
        return f[:1], torch.zeros(1, dtype=torch.float64)
    counts, edges = torch.histogram(f, n_bins, range=(low, high))
    width, middle = edges[1] - edges[0], (edges[1:] + edges[:-1]) / 2
    return middle[counts > 0], (counts[counts > 0] / width).log() / n_units


@torch.no_grad()
def at_temperature(machine: BoltzmannMachine, beta: float, couplings_only: bool) -> BoltzmannMachine:
    """Return a binary machine with P(x) ∝ P₁(x)^β over all layers, or with couplings βW as in [eq:taylorexp]."""
    result = deepcopy(machine)
    fields = [] if couplings_only else [layer.prior_field for layer in result.layers]
    for values in (*result.weights, *fields):
        assert values is not None
        values.mul_(beta)
    return result


@torch.no_grad()
def prior_log_normalizer(machine: BoltzmannMachine) -> float:
    """Compute the sum of ln ∫ exp(Ux − ½Vx²) dx over all units, the log-normalizer of the priors.

    In this package, F is −ln Z with normalized priors. The paper uses unnormalized weights exp(Σ Ux + Σ xWx)
    [eq:rbmPartition]; in this convention, the free energy is F − `prior_log_normalizer(machine)`.
    """
    total = 0.0
    for layer in machine.layers:
        units = deepcopy(layer).double()
        assert isinstance(units, Binary | Gaussian | TruncatedGaussian | TruncatedGaussBernoulli)
        if isinstance(units, TruncatedGaussian):
            total += float(units.log_normalizer().sum())
            continue
        at_zero = units.log_prior(torch.zeros(units.n, dtype=torch.float64, device=units.device))
        odds = softplus(units.active_logit) if isinstance(units, TruncatedGaussBernoulli) else 0.0
        total -= float((at_zero + odds).sum())
    return total
