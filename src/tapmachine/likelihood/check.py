"""Comparison of samples of a machine with rows of data, and the entropy of a machine."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from tapmachine.data.checks import check_count
from tapmachine.data.rows import Rows, spaced
from tapmachine.likelihood.sampling import equilibrium
from tapmachine.likelihood.unbiased import THOROUGH, Effort, unbiased_log_likelihood, unbiased_log_partition
from tapmachine.likelihood.weight import log_weight
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_machine, check_rows

N_SAMPLES, MOST_ROWS, N_COMPARED = 1000, 10_000, 500  # samples; rows for moments; rows and samples for distances
N_TRIPLES, N_EIGENVALUES, MOST_COLUMNS = 10_000, 10, 1000
SIGNIFICANT = 5.0  # standard errors
FAR_OFF = 1.0  # difference of mean log-weights or mean sums, in standard deviations of the rows, that is reported
STEEP = 1.5  # slope of the covariances that is reported
OUTSIDE = 0.3  # share of the samples outside the data that is reported
EDGE = 0.99  # quantile of the distances between rows that is the edge of the data


@dataclass(frozen=True)
class Entropy:
    """Entropy of the visible units of a machine, in nats.

    Attributes:
        nats: Entropy, which for real-valued units is a differential entropy.
        error: Standard error in nats.

    Example:
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.likelihood import entropy
        >>> round(entropy(rbm(Binary(4), Binary(2))).bits, 2)
        4.0
    """

    nats: float
    error: float

    @property
    def bits(self) -> float:
        """Entropy in bits."""
        return self.nats / math.log(2)

    @property
    def error_in_bits(self) -> float:
        """Standard error in bits."""
        return self.error / math.log(2)

    def __repr__(self) -> str:
        return f"Entropy({self.nats:.4g} ± {self.error:.2g} nats, {self.bits:.4g} ± {self.error_in_bits:.2g} bits)"


@torch.no_grad()
def entropy(
    machine: BoltzmannMachine,
    data: Tensor | None = None,
    n_samples: int = 1000,
    effort: Effort = THOROUGH,
    seed: int = 0,
) -> Entropy:
    """Estimate the entropy −Σ P(x) ln P(x) of the visible units from samples in equilibrium.

    Args:
        machine: Machine that is not conditioned on rows.
        data: Rows near which the machine may have modes, shape (N, n_visible) (default: none).
        n_samples: Number of samples (default: 1000).
        effort: Limits on the computation of ln Z (default: `THOROUGH`).
        seed: Random seed (default: 0).

    Example:
        >>> from tapmachine import Spin, pairwise
        >>> from tapmachine.likelihood import entropy
        >>> import torch
        >>> entropy(pairwise(Spin(3), torch.zeros(3, 3)))  # three independent fair spins
        Entropy(2.079 ± ... nats, 3 ± ... bits)
    """
    check_machine(machine)
    samples = equilibrium(machine, check_count("n_samples", n_samples, 2), data, seed=seed)
    partition = unbiased_log_partition(machine, data, effort, seed)
    values = unbiased_log_likelihood(machine, samples.states[0], partition, effort, seed).values
    n_independent = min(n_samples, samples.effective_sample_size * max(1.0, n_samples / samples.n_runs))
    return Entropy(-float(values.mean()), math.hypot(float(values.std()) / math.sqrt(n_independent), partition.error))


@dataclass(frozen=True)
class SampleCheck:
    """Comparison of samples in equilibrium with rows of data.

    Slopes are those of regressions of the samples' moments on the rows' moments; they are 1 if the moments agree.
    States of categorical units are counted as one-hot vectors.

    Attributes:
        n_rows: Number of rows.
        effective_sample_size: Number of independent samples.
        slope_of_means: Slope of the means.
        slope_of_covariances: Slope of the covariances of different units.
        slope_of_third_moments: Slope of the third central moments of different units.
        spectrum_of_rows, spectrum_of_samples: Largest eigenvalues of the covariance matrices.
        active_in_rows, active_in_samples: Mean sum over all units, which is the number of active units of binary data.
        log_weight_of_rows, log_weight_of_samples: Mean of ln P(x) + ln Z; NaN for machines with several hidden layers.
        adversarial_accuracy: Nearest-neighbor adversarial accuracy (Yale et al. 2020), the probability that a row or
            sample is closer to its own kind. The value is 0.5 if rows and samples cannot be distinguished, near 1 if
            they are far apart, and near 0 if the samples are copies of rows.
        outside: Share of the samples that are farther from the rows than 99% of the rows are from each other.
        problems: Sentences about significant differences.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.likelihood import check_samples
        >>> x = (torch.rand(200, 8, generator=torch.Generator().manual_seed(0)) < 0.5).float()
        >>> check_samples(rbm(Binary(8), Binary(4)), x).problems
        ()
    """

    n_rows: int
    effective_sample_size: float
    slope_of_means: float
    slope_of_covariances: float
    slope_of_third_moments: float
    spectrum_of_rows: tuple[float, ...]
    spectrum_of_samples: tuple[float, ...]
    active_in_rows: float
    active_in_samples: float
    log_weight_of_rows: float
    log_weight_of_samples: float
    adversarial_accuracy: float
    outside: float
    problems: tuple[str, ...]

    def as_record(self) -> dict[str, Any]:
        """Return all results, which are JSON-serializable."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


@torch.no_grad()
def check_samples(machine: BoltzmannMachine, data: Rows, n_samples: int = N_SAMPLES, seed: int = 0) -> SampleCheck:
    """Compare samples of a machine in equilibrium with rows of data, whatever the objective of its training was.

    If a machine has learned the distribution of the data, its samples have the moments of the rows and are not closer
    to each other than to the rows. A machine that has mass where the data have none is reported in `problems`.

    Args:
        machine: Machine that is not conditioned on rows.
        data: Rows without missing values, shape (N, n_visible), of which at most 10,000 are used.
        n_samples: Number of samples (default: 1000).
        seed: Random seed (default: 0).

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.likelihood import check_samples
        >>> check = check_samples(rbm(Binary(8), Binary(4), weights=torch.zeros(8, 4)), torch.zeros(100, 8))
        >>> check.problems[0]
        'samples have a mean of 4... active units, and the rows 0'
    """
    check_machine(machine)
    rows = check_rows(machine, spaced(data, MOST_ROWS))
    drawn = equilibrium(machine, check_count("n_samples", n_samples, 2), rows, seed=seed)
    samples, effective = drawn.states[0], max(1.0, min(n_samples, drawn.effective_sample_size))
    sums = [z.flatten(1).double().sum(1) for z in (rows, samples)]
    x, y = (z.flatten(1)[:, :: -(-sum(machine.sizes[:1]) // MOST_COLUMNS)].double() for z in (rows, samples))
    covariances = [torch.cov(z.T).view(z.shape[1], -1) for z in (x, y)]
    off = torch.triu(torch.ones_like(covariances[0]), 1) > 0
    of_rows, of_samples = (covariance[off] for covariance in covariances)
    variances = covariances[1].diagonal()
    noise = (of_rows.square() * variances.outer(variances)[off]).sum() / effective
    error = float(noise.sqrt() / of_rows.square().sum())
    triples = _triples(x.shape[1], seed).to(x.device)
    third = [(z - z.mean(0))[:, triples].prod(2).mean(0) for z in (x, y)]
    spectra = [torch.linalg.eigvalsh(c).flip(0)[:N_EIGENVALUES].tolist() for c in covariances]
    accuracy, outside = _nearest(spaced(x, N_COMPARED), spaced(y, N_COMPARED))
    weights = [
        log_weight(machine, z) if len(machine.layers) <= 2 else x.new_full((1,), torch.nan) for z in (rows, samples)
    ]
    problems = []
    if _is_far_off(sums[0], sums[1], effective):
        what = "active units" if set(machine.layers[0].support.bounds) == {0.0, 1.0} else "for the sum of all units"
        problems.append(f"samples have a mean of {sums[1].mean():.3g} {what}, and the rows {sums[0].mean():.3g}")
    if (slope := _slope(of_rows, of_samples)) > STEEP + SIGNIFICANT * error:
        problems.append(f"the covariances of samples are {slope:.2g} times those of the rows")
    if _is_far_off(weights[0], weights[1], effective):
        problems.append(
            f"the mean log-weight is {weights[1].mean():.4g} for samples and {weights[0].mean():.4g} for the rows"
        )
    if outside > OUTSIDE:
        problems.append(f"{outside:.0%} of the samples are farther from the rows than the rows are from each other")
    return SampleCheck(
        n_rows=len(rows),
        effective_sample_size=effective,
        slope_of_means=_slope(x.mean(0), y.mean(0)),
        slope_of_covariances=slope,
        slope_of_third_moments=_slope(third[0], third[1]),
        spectrum_of_rows=tuple(spectra[0]),
        spectrum_of_samples=tuple(spectra[1]),
        active_in_rows=float(sums[0].mean()),
        active_in_samples=float(sums[1].mean()),
        log_weight_of_rows=float(weights[0].mean()),
        log_weight_of_samples=float(weights[1].mean()),
        adversarial_accuracy=accuracy,
        outside=outside,
        problems=tuple(problems),
    )


def _is_far_off(rows: Tensor, samples: Tensor, effective: float) -> bool:
    """Return whether the means differ by much more than their errors and than the rows among each other."""
    difference = abs(float(samples.mean() - rows.mean()))
    error = math.hypot(float(rows.std()) / math.sqrt(len(rows)), float(samples.std()) / math.sqrt(effective))
    return difference > SIGNIFICANT * error and difference > FAR_OFF * float(rows.std())


def _slope(x: Tensor, y: Tensor) -> float:
    """Slope of a regression of y on x through the origin; NaN if x is 0."""
    return float((x * y).sum() / x.square().sum()) if bool(x.any()) else math.nan


def _triples(n: int, seed: int) -> Tensor:  # (T, 3)
    """Return random triples of different units, sampled with replacement."""
    drawn = torch.randint(n, (N_TRIPLES, 3), generator=torch.Generator().manual_seed(seed))
    return drawn[(drawn[:, 0] != drawn[:, 1]) & (drawn[:, 1] != drawn[:, 2]) & (drawn[:, 0] != drawn[:, 2])]


def _nearest(x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return the nearest-neighbor adversarial accuracy, and the share of y outside of x; ties count half."""
    to_other = torch.cdist(x, y)
    own = [torch.cdist(z, z).fill_diagonal_(torch.inf).amin(1) for z in (x, y)]
    pairs = zip((to_other.amin(1), to_other.amin(0)), own, strict=True)
    shares = [
        float(((other > nearest).double() + 0.5 * (other == nearest).double()).mean()) for other, nearest in pairs
    ]
    return sum(shares) / 2, float((to_other.amin(0) > own[0].quantile(EDGE)).double().mean())
