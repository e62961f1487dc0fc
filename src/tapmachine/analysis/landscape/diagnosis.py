"""Diagnosis of a machine from its landscape."""

import torch
from torch import Tensor

from tapmachine.analysis.landscape.find import Landscape
from tapmachine.analysis.landscape.tracking import Snapshot
from tapmachine.data.errors import EstimateError
from tapmachine.data.rows import spaced
from tapmachine.likelihood.report import LikelihoodReport, likelihood_report
from tapmachine.likelihood.result import disagreement
from tapmachine.likelihood.unbiased import unbiased_log_partition
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_rows, in_double
from tapmachine.training.monitor import GLASSY

MANY_STARTS = 20  # minimum number of converged starts for statements about basins
MOST = 0.9  # fraction of the starts above which a solution is dominant
CLOSE = 0.05  # RMS distance, relative to the support, below which a start is close to its solution
SCORED_ROWS = 1000  # maximum number of rows used to compute the log-likelihood
SURE = 3.0  # number of standard errors above which a difference is significant
LARGEST_ERROR = 0.5  # maximum standard error, in nats, of an estimate of ln Z that is used


def diagnose(
    landscape: Landscape | Snapshot,
    machine: BoltzmannMachine | None = None,
    x: Tensor | None = None,
    held_out: Tensor | None = None,
) -> list[str]:
    """Describe what a landscape implies about its machine, in one sentence per finding.

    The number of solutions does not distinguish an untrained machine from a trained one. If `machine` and `x` are
    passed, the log-likelihood of the training data is therefore compared with three other quantities: the
    log-likelihood of independent units fitted to the same data, the log-likelihood of the held-out data, and the free
    energies of the solutions. The log-likelihood is exact if the machine can be enumerated, and annealed otherwise.

    Args:
        landscape: Solutions of the machine, as a `Landscape` or a `Snapshot`.
        machine: The machine that has these solutions (default: none).
        x: Training data of shape (N, n_visible) (default: none).
        held_out: Held-out data of shape (M, n_visible) (default: none).

    Returns:
        A list of sentences.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, find_solutions, rbm
        >>> from tapmachine.landscape import diagnose
        >>> machine, x = rbm(Binary(6), Binary(3)), torch.eye(6).repeat(4, 1)
        >>> landscape = find_solutions(machine, x)
        >>> diagnose(landscape)[0]
        '1 solution from 24 starts.'
        >>> diagnose(landscape, machine, x)[2][:66]
        'The log-likelihood of the training data is -4.16 nats (exact), 1.4'
    """
    if machine is not None and x is not None:
        return describe(landscape, _report(machine, x, held_out))
    sentences = _on_starts(landscape)
    if len(landscape.free_energy) and int((landscape.basin >= 0).sum()) >= MANY_STARTS:
        sentences.append("Solutions alone do not show how much the machine has learned; compare log-likelihoods.")
    return sentences + _on_solutions(landscape)


def describe(landscape: Landscape | Snapshot, report: LikelihoodReport | None) -> list[str]:
    """Describe a landscape and the log-likelihoods of its machine in sentences. See `diagnose`."""
    if report is None or report.partition.error > LARGEST_ERROR:
        sentences = ["No reliable log-likelihood is available, so it is unknown how much the machine has learned."]
    else:
        sentences = _on_likelihood(report, landscape)
    return [*_on_starts(landscape), *sentences, *_on_solutions(landscape)]


def describe_solutions(landscape: Landscape | Snapshot) -> list[str]:
    """Describe the number of solutions, their basins and their stability in sentences."""
    return _on_starts(landscape) + _on_solutions(landscape)


def _on_starts(landscape: Landscape | Snapshot) -> list[str]:
    """Describe the number of solutions and the distribution of the starts over the solutions."""
    n_starts, n_solutions = len(landscape.basin), len(landscape.free_energy)
    ended = landscape.basin[landscape.basin >= 0]
    if n_solutions == 0:
        return [f"None of {n_starts} starts has converged; increase max_sweeps, or check for diverged parameters."]
    count = f"{n_solutions} solution{'s' if n_solutions > 1 else ''} from {len(ended)} starts."
    sizes = torch.bincount(ended, minlength=n_solutions)
    n_unseen = round(n_unseen_solutions(sizes))
    if n_unseen:
        count += f" At least about {n_unseen} more would be found from further starts (Chao1 estimate)."
    return [count, *_on_basins(landscape, ended)]


def n_unseen_solutions(counts: Tensor) -> float:  # (n,)
    """Estimate a lower bound of the number of solutions that no start has reached, by the bias-corrected Chao1 formula.

    Args:
        counts: Number of starts that converge to each solution.
    """
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    return once * (once - 1) / (2 * (twice + 1))


def _on_solutions(landscape: Landscape | Snapshot) -> list[str]:
    """Describe unstable solutions, and starts that did not converge."""
    n_starts, n_solutions = len(landscape.basin), len(landscape.free_energy)
    failed, sentences = int((landscape.basin < 0).sum()), list[str]()
    if n_solutions == 0:
        return sentences
    if landscape.stable is not None and not bool(landscape.stable.all()):
        sentences.append(
            f"{int((~landscape.stable).sum())} of {n_solutions} solutions are unstable under a small perturbation; "
            "they are saddles or have very small basins."
        )
    if failed:
        sentences.append(f"{failed} of {n_starts} starts have not converged and are excluded.")
    return sentences


def _on_basins(landscape: Landscape | Snapshot, ended: Tensor) -> list[str]:
    """Describe the distribution of the starts over the solutions."""
    counts = torch.bincount(ended, minlength=len(landscape.free_energy))
    alone, largest = int((counts == 1).sum()), int(counts.max())
    if len(ended) < MANY_STARTS:
        return ["Too few starts converged for statements about basins."]
    if len(counts) == 1:
        return ["All starts converge to the same solution, so the mean field has a single state."]
    if alone > GLASSY * len(ended):
        close = float((landscape.distance[landscape.basin >= 0] < CLOSE).double().mean())
        where = ", most of them close to the start" if close > 0.5 else ""
        return [
            f"{alone} starts converge to separate solutions{where}. The machine has memorized its data or is in a "
            "spin-glass phase, or the number of starts is too small."
        ]
    if largest > MOST * len(ended):
        return [f"{largest} starts converge to the same solution, so a single state dominates the mean field."]
    return []


def _on_likelihood(report: LikelihoodReport, landscape: Landscape | Snapshot) -> list[str]:
    """Describe, based on the log-likelihood, the success of training and the accuracy of the free energies."""
    (gain, gain_error), mean, partition = (
        report.gain(),
        float(next(iter(report.scores.values())).mean),
        report.partition,
    )
    value = f"The log-likelihood of the training data is {mean:.2f} nats ({partition.method})"
    if gain < -SURE * gain_error:
        sentences = [
            f"{value}, {-gain:.2f} below that of independent units ({mean - gain:.2f}). The machine is untrained, or "
            "its training has diverged."
        ]
    elif gain <= SURE * gain_error:
        sentences = [
            f"{value}, no better than that of independent units ({mean - gain:.2f}). The machine has learned no more "
            "than the means of its data, because it is early in training or underfits."
        ]
    else:
        one = len(landscape.free_energy) == 1 and len(landscape.basin) >= MANY_STARTS
        hidden = ", though not as separate solutions" if one else ""
        sentences = [
            f"{value}, {gain:.2f} above that of independent units ({mean - gain:.2f}). The machine has learned "
            f"dependencies{hidden}."
        ]
    if len(report.scores) > 1:
        gap, gap_error = report.gap()
        if gap > SURE * gap_error:
            sentences.append(
                f"The machine overfits: the log-likelihood of held-out data is {gap:.2f} nats lower than that of "
                "training data."
            )
    if len(landscape.free_energy):
        by_tap = mean + partition.value + float(landscape.free_energy.double().mean())
        advice = "the couplings are too strong for the mean field, so the values of F are not accurate"
        drift = disagreement("TAP", by_tap, partition.method, mean, partition.error, advice)
        sentences += [] if drift is None else [f"{drift}."]
    return sentences


@torch.no_grad()
def _report(machine: BoltzmannMachine, x: Tensor, held_out: Tensor | None) -> LikelihoodReport | None:
    """Compare an unbiased log-likelihood with that of independent units, or return None if it is unreliable."""
    machine = in_double(machine)
    x, *others = (
        check_rows(machine, z.to(machine.dtype) if z.is_floating_point() else z) for z in (x, held_out) if z is not None
    )
    try:
        partition = unbiased_log_partition(machine, x)
    except EstimateError:
        return None
    sets = zip(("train", "held out"), (x, *others), strict=False)
    scored = {name: (spaced(z, SCORED_ROWS), None) for name, z in sets}
    return likelihood_report(machine, scored, partition, baseline=x)
