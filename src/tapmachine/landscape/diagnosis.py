"""What a landscape says about a machine, in words."""

from copy import deepcopy
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tapmachine.likelihood.compare import MOST_DEEP_ROWS
from tapmachine.likelihood.score import EstimateError, check_rows, in_double, spaced
from tapmachine.likelihood.unbiased import has_drifted, unbiased_log_likelihood, unbiased_log_partition
from tapmachine.machine import BoltzmannMachine
from tapmachine.training.monitor import GLASSY

MANY_STARTS = 20  # fewer do not tell
MOST = 0.9  # of the starts, in one solution
MANY_SOLUTIONS = 10  # fewer do not make bands
CLOSE = 0.05  # of the support, root mean square: a start that moves less was a solution before
SCORED_ROWS = 1000  # of the data, for the log-likelihood
SURE = 3.0  # standard errors
LARGEST_ERROR = 0.5  # nats, of an ln Z that is evidence
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


class _Evidence(NamedTuple):
    """What an unbiased log-likelihood says, in nats for each row.

    Attributes:
        method: by which it was found, "exact" or "annealed".
        mean: of the training data.
        gain, gain_error: over independent units that fit the same data, and its standard error.
        log_partition, log_partition_error: the ln Z behind it.
        gap, gap_error: by how much held-out data are below the training data; None without any.
    """

    method: str
    mean: float
    gain: float
    gain_error: float
    log_partition: float
    log_partition_error: float
    gap: float | None
    gap_error: float


def diagnose(
    found: Found,
    machine: BoltzmannMachine | None = None,
    x: Tensor | None = None,
    held_out: Tensor | None = None,
) -> list[str]:
    """Describe what a landscape says about its machine, one sentence for each finding.

    The number of solutions alone does not tell an untrained machine from a trained one. With the machine and its
    training data, its log-likelihood (exact if it can be enumerated, annealed otherwise) is compared with that of
    independent units fitted to the data, with that of held-out data, and with the free energies of the solutions.

    Args:
        found: a `Landscape` or a `Snapshot`.
        machine: the machine whose solutions they are.
        x: its training data, (N, n_visible).
        held_out: other data, (M, n_visible).

    Example:
        >>> import torch
        >>> from tapmachine import Binary, diagnose, find_solutions, rbm
        >>> machine, x = rbm(Binary(6), Binary(3)), torch.eye(6).repeat(4, 1)
        >>> landscape = find_solutions(machine, x)
        >>> diagnose(landscape)[0]
        '1 solution from 24 starts.'
        >>> diagnose(landscape, machine, x)[2][:66]
        'The log-likelihood of the training data is -4.16 nats (exact), 1.4'
    """
    n_starts, n_solutions = len(found.basin), len(found.free_energy)
    ended = found.basin[found.basin >= 0]
    failed = n_starts - len(ended)
    evidence = None if machine is None or x is None else _evidence(machine, x, held_out)
    said = []
    if n_solutions == 0:
        said.append(f"None of {n_starts} starts has converged: raise max_sweeps, or look for parameters that diverged.")
    else:
        said.append(f"{n_solutions} solution{'s' if n_solutions > 1 else ''} from {len(ended)} starts.")
        said += _on_basins(found, ended)
    if evidence is not None:
        said += _on_likelihood(evidence, found)
    elif machine is not None and x is not None:
        said.append("There is no reliable log-likelihood to tell how much the machine has learnt.")
    elif n_solutions and len(ended) >= MANY_STARTS:
        said.append("How much the machine has learnt, its solutions alone do not tell: compare its log-likelihood.")
    if n_solutions == 0:
        return said
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


def _on_basins(found: Found, ended: Tensor) -> list[str]:
    """How the starts are spread over the solutions; this alone is no verdict."""
    counts = torch.bincount(ended, minlength=len(found.free_energy))
    alone, largest = int((counts == 1).sum()), int(counts.max())
    if len(ended) < MANY_STARTS:
        return ["There are too few starts that converged to say more."]
    if len(counts) == 1:
        return ["All starts end in it: the mean field has a single state."]
    if alone > GLASSY * len(ended):
        close = float((found.distance[found.basin >= 0] < CLOSE).double().mean())
        where = ", most of them where they started" if close > 0.5 else ""
        return [
            f"{alone} starts end in solutions of their own{where}: the machine has memorised its data or is in a "
            "spin-glass phase, or there are too few starts to tell."
        ]
    if largest > MOST * len(ended):
        return [f"{largest} of the starts end in the same one: the mean field has little more than one state."]
    return []


def _on_likelihood(evidence: _Evidence, found: Found) -> list[str]:
    """What the log-likelihood says, which may or may not bear out the solutions."""
    value = f"The log-likelihood of the training data is {evidence.mean:.2f} nats ({evidence.method})"
    independent = evidence.mean - evidence.gain
    if evidence.gain < -SURE * evidence.gain_error:
        said = [
            f"{value}, {-evidence.gain:.2f} below that of independent units ({independent:.2f}): the machine is "
            "untrained, or its training has diverged."
        ]
    elif evidence.gain <= SURE * evidence.gain_error:
        said = [
            f"{value}, no better than that of independent units ({independent:.2f}): the machine has learnt no more "
            "than the means of its data (too early in its training, or under-fitting)."
        ]
    else:
        one = len(found.free_energy) == 1 and len(found.basin) >= MANY_STARTS
        hidden = ", though not as separate solutions" if one else ""
        said = [
            f"{value}, {evidence.gain:.2f} above that of independent units ({independent:.2f}): the machine has learnt "
            f"dependencies{hidden}."
        ]
    if evidence.gap is not None and evidence.gap > SURE * evidence.gap_error:
        said.append(f"Held-out data are {evidence.gap:.2f} nats less likely than training data: it over-fits by that.")
    if len(found.free_energy):
        off = float(-found.free_energy.double().mean()) - evidence.log_partition
        if has_drifted(off, evidence.mean, evidence.log_partition_error):
            said.append(
                f"By their free energies ln Z would be {abs(off):.1f} nats {'higher' if off > 0 else 'lower'}: the "
                "couplings are too strong for the mean field, and its solutions need not be states of the machine."
            )
    return said


@torch.no_grad()
def _evidence(machine: BoltzmannMachine, x: Tensor, held_out: Tensor | None) -> _Evidence | None:
    """An unbiased log-likelihood beside that of independent units; None where there is none to be relied on."""
    machine = in_double(machine)
    x = check_rows(machine, x.to(machine.dtype) if x.is_floating_point() else x)
    most = SCORED_ROWS if len(machine.layers) <= 2 else MOST_DEEP_ROWS
    sets = [spaced(x, most)]
    if held_out is not None:
        other = held_out.to(machine.dtype) if held_out.is_floating_point() else held_out
        sets.append(spaced(check_rows(machine, other), most))
    rows = torch.cat(sets)
    try:
        partition = unbiased_log_partition(machine, x)
    except EstimateError:
        return None
    if partition.error > LARGEST_ERROR:
        return None
    scored = unbiased_log_likelihood(machine, rows, partition)
    values = scored.values.split([len(own) for own in sets])
    independent = deepcopy(machine.units()[0]).fit_to(x).log_prior(sets[0]).sum(-1)
    gains = values[0] - independent
    common = partition.error
    gain_error = (float(gains.var(correction=0)) / len(gains) + common**2) ** 0.5
    gap, gap_error = None, 0.0
    if len(values) > 1:
        gap = float(values[0].mean() - values[1].mean())
        gap_error = sum(float(own.var(correction=0)) / len(own) for own in values) ** 0.5
    return _Evidence(
        partition.method,
        float(values[0].mean()),
        float(gains.mean()),
        gain_error,
        float(scored.log_partition),
        common,
        gap,
        gap_error,
    )
