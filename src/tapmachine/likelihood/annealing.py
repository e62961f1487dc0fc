"""ln Z by annealed importance sampling, forwards and in reverse, with an error bar that says when not to trust it."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from tapmachine.conditioning import clamp
from tapmachine.likelihood.paths import Path, States, Walk, anneal, path_to, seeded, states_of
from tapmachine.likelihood.schedules import linear_schedule, paper_schedule
from tapmachine.likelihood.score import (
    LikelihoodWarning,
    LogLikelihood,
    check_normalisable,
    check_rows,
    in_double,
    log_weight,
    n_units,
)
from tapmachine.machine import BoltzmannMachine

BLOCK = 100  # runs that share a random generator: more runs are more blocks, so that they can be added later
COLLAPSED = 0.1  # effective share of the runs, below which an estimate is not to be trusted
CHAIN_VALUES = 2**26  # numbers in the states of all chains of a block, on a machine conditioned on rows


@dataclass(frozen=True)
class AnnealedEstimate:
    """ln Z of a machine, estimated from independent runs.

    Attributes:
        log_partition: ln Z, () or one for each row the machine is conditioned on; float64. It is low in expectation if
            the runs went forwards, and high if they went in reverse from exact samples: the truth lies between.
        standard_error: of ln Z, of the same shape, from the scatter of the runs.
        effective_sample_size: how many runs of equal weight would be as good, of the same shape.
        log_weights: every run's own value for ln Z, (n_runs,) or (n_runs, rows). Forwards, Z is the average of their
            exponentials; in reverse, 1/Z is that of the inverse ones.
        samples: states of all layers at the end of the runs. Forwards, they are samples of the machine if weighted by
            exp(log_weights).
        betas: the temperatures.
        seed: that the runs were made with.
        reverse: in which direction.
    """

    log_partition: Tensor
    standard_error: Tensor
    effective_sample_size: Tensor
    log_weights: Tensor
    samples: tuple[Tensor, ...]
    betas: Tensor
    seed: int
    reverse: bool

    @property
    def n_runs(self) -> int:
        """Number of runs."""
        return len(self.log_weights)

    def weighted_samples(self, seed: int = 0) -> tuple[Tensor, ...]:
        """As many samples of the machine: the ends of forward runs, drawn by their weights."""
        if self.reverse:
            return self.samples
        generator = seeded(self.log_weights.device, seed, "resample")
        return resample(self.log_weights, self.samples, generator)

    def __repr__(self) -> str:
        direction = "reverse" if self.reverse else "forward"
        runs = f"{self.n_runs} {direction} runs over {len(self.betas) - 1} temperatures"
        if self.log_partition.dim():
            return f"AnnealedEstimate(ln Z of {len(self.log_partition)} rows, {runs})"
        ess = f"effective sample size {self.effective_sample_size:.0f}"
        return f"AnnealedEstimate(ln Z = {self.log_partition:.4f} ± {self.standard_error:.4f}, {runs}, {ess})"


@torch.no_grad()
def ais_log_partition(
    machine: BoltzmannMachine,
    schedule: Tensor | int | None = None,
    n_runs: int = 100,
    *,
    data: Tensor | None = None,
    reverse: bool = False,
    samples: Tensor | Sequence[Tensor] | None = None,
    seed: int = 0,
    resume: AnnealedEstimate | None = None,
    callback: Callable[[int, int], None] | None = None,
) -> AnnealedEstimate:
    """ln Z by annealed importance sampling (Neal 2001), for any unit types and depth.

    Chains go from independent units, with the means that they have in the data, to the machine, one block Gibbs sweep
    at each temperature. Every other layer is summed over, and the weights are kept in float64. In reverse (Burda and
    others 2015) the chains go from samples of the machine to independent units. The forward estimate is low
    in expectation and the reverse one high, if the samples are exact: where the two agree, ln Z is known.

    Args:
        machine: any machine. If it is conditioned on rows of evidence, every row gets its ln Z.
        schedule: the inverse temperatures β, rising from 0 to 1; a number of equal steps; or None, for the paper's
            14,500. See `linear_schedule`, `paper_schedule` and `adaptive_schedule`.
        n_runs: independent runs.
        data: rows that the means of the independent units are taken from; without them, from short chains of the
            machine. It makes the runs better, but any start is right.
        reverse: whether to go from the machine to the independent units.
        samples: for reverse runs, samples of the machine's visible layer, or of all its layers. Without them they come
            from as many forward runs, drawn by their weights.
        seed: the same seed, the same result. Blocks of 100 runs draw from generators of their own.
        resume: an estimate to be continued, with the same schedule, data, seed and direction: only those runs are made
            that it lacks. The result is the same as with all runs made at once.
        callback: called with the number of temperatures done and of all that there are, of all blocks together.

    Warns:
        LikelihoodWarning: if the weights have collapsed: less than a tenth of the runs carries all of the estimate.

    Example:
        >>> from tapmachine import Binary, ais_log_partition, exact_log_partition, rbm
        >>> machine = rbm(Binary(10), Binary(5))
        >>> estimate = ais_log_partition(machine, schedule=100)
        >>> bool((estimate.log_partition - exact_log_partition(machine)).abs() < 1e-4)
        True
    """
    betas = _check_schedule(schedule)
    _check_runs(n_runs)
    first = 0
    if resume is not None:
        _check_resume(resume, betas, seed, reverse)
        if resume.n_runs >= n_runs:
            return resume
        first = resume.n_runs // BLOCK
    if samples is not None and not reverse:
        raise ValueError("samples are where reverse runs start; pass reverse=True with them")
    check_normalisable(machine)
    if machine.n_rows is not None and (data is not None or samples is not None):
        raise ValueError("a machine that is conditioned on rows takes no data and no samples")
    parts = [
        _Runs(part, betas, data, reverse, samples, seed, number) for number, part in enumerate(_fitting_parts(machine))
    ]
    blocks = {block: min(BLOCK, n_runs - block * BLOCK) for block in range(first, -(-n_runs // BLOCK))}
    report = _Counter(len(parts) * len(blocks) * (len(betas) - 1), callback)
    log_weights, states = _join([part.make(blocks, report) for part in parts], dim=1)
    if resume is not None:
        complete = (resume.log_weights[: first * BLOCK], [x[: first * BLOCK] for x in resume.samples])
        log_weights, states = _join([complete, (log_weights, states)], dim=0)
    estimate = _estimate(log_weights, states, betas, seed, reverse)
    _warn_if_collapsed(estimate)
    return estimate


@torch.no_grad()
def ais_log_likelihood(
    machine: BoltzmannMachine,
    x: Tensor,
    estimate: AnnealedEstimate | None = None,
    *,
    schedule: Tensor | int | None = None,
    n_runs: int = 100,
    seed: int = 0,
) -> LogLikelihood:
    """ln P(x) with ln Z by annealed importance sampling.

    The weight of a row is exact with one hidden layer or none. With more it is intractable itself, and is estimated by
    runs of its own for each row, on the machine clamped to it, with the same schedule; score few rows then.

    Args:
        machine: any machine that is not conditioned.
        x: data, (N, n_visible).
        estimate: of ln Z, by `ais_log_partition`; made with the data themselves as `data`, unless given.
        schedule, n_runs, seed: as for `ais_log_partition`, where runs are made.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, ais_log_likelihood, rbm
        >>> round(float(ais_log_likelihood(rbm(Binary(4), Binary(2)), torch.eye(4), schedule=100)), 2)
        -2.77
    """
    check_rows(machine, x)
    if estimate is None:
        estimate = ais_log_partition(machine, schedule, n_runs, data=x, seed=seed)
    if estimate.log_partition.dim():
        raise ValueError("estimate is of a machine conditioned on rows; it must be of the free one")
    double = in_double(machine)
    rows = check_rows(double, x)
    if len(machine.layers) <= 2:
        weights = log_weight(double, rows)
    else:
        clamped = clamp(machine, check_rows(machine, x))
        schedule = estimate.betas if schedule is None else schedule
        weights = ais_log_partition(clamped, schedule, n_runs, seed=seed).log_partition
    log_partition = estimate.log_partition
    return LogLikelihood(weights - log_partition, log_partition, estimate.standard_error, n_units(machine))


class _Counter:
    """Tells a callback how many temperatures are done, in all blocks."""

    def __init__(self, total: int, callback: Callable[[int, int], None] | None) -> None:
        self.total, self.callback, self.before = total, callback, 0

    def __call__(self, done: int, walk: Walk) -> None:
        if self.callback is not None:
            self.callback(self.before + done, self.total)

    def block_done(self, n_steps: int) -> None:
        self.before += n_steps


class _Runs:
    """Runs on one machine, or on some of the rows that it is conditioned on."""

    def __init__(
        self,
        machine: BoltzmannMachine,
        betas: Tensor,
        data: Tensor | None,
        reverse: bool,
        samples: Tensor | Sequence[Tensor] | None,
        seed: int,
        part: int,
    ) -> None:
        self.machine, self.betas, self.reverse, self.seed, self.part = machine, betas, reverse, seed, part
        self.path = path_to(machine, data, seed)
        self.log_partition_at_start = self.path.log_partition_at_start()
        self.samples = None if samples is None else _check_samples(self.path, samples, seed)

    def make(self, blocks: dict[int, int], report: _Counter) -> "_Found":
        """All runs of the given blocks, which have so many each."""
        found = []
        for block, n_runs in blocks.items():
            found.append(self._reverse(block, n_runs, report) if self.reverse else self._forward(block, n_runs, report))
            report.block_done(len(self.betas) - 1)
        return _join(found, dim=0)

    def _generator(self, purpose: str, block: int) -> torch.Generator:
        return seeded(self.machine.device, self.seed, purpose, (self.part << 32) + block)

    def _forward(self, block: int, n_runs: int, report: _Counter) -> "_Found":
        generator = self._generator("forward", block)
        walk = anneal(self.path, self.betas, self.path.draw(n_runs, generator), generator, report)
        return self.log_partition_at_start + walk.log_weights, self.path.all_layers(walk.states, generator)

    def _reverse(self, block: int, n_runs: int, report: _Counter) -> "_Found":
        generator = self._generator("reverse", block)
        if self.samples is None:
            forward = self._generator("samples", block)
            ends = anneal(self.path, self.betas, self.path.draw(n_runs, forward), forward)
            start = resample(ends.log_weights, ends.states, forward)
        else:  # each about as often as any other
            index = (torch.arange(n_runs, device=self.machine.device) + block * BLOCK) % len(self.samples[0])
            start = tuple(x[index] for x in self.samples)
        walk = anneal(self.path, self.betas.flip(0), start, generator, report)
        return self.log_partition_at_start - walk.log_weights, self.path.all_layers(start, generator)


_Found = tuple[Tensor, list[Tensor]]  # every run's value for ln Z, and its states of all layers


def _join(parts: list[_Found], dim: int) -> _Found:
    """Runs of several blocks (dimension 0) or of several sets of rows (dimension 1) together."""
    if len(parts) == 1:
        return parts[0]
    log_weights, states = zip(*parts, strict=True)
    return torch.cat(log_weights, dim), [torch.cat(layer, dim) for layer in zip(*states, strict=True)]


def _fitting_parts(machine: BoltzmannMachine) -> list[BoltzmannMachine]:
    """The machine for so many rows at a time that the chains of a block fit into memory; itself, without rows."""
    if machine.n_rows is None:
        return [machine]
    size = max(1, CHAIN_VALUES // (BLOCK * sum(machine.sizes)))
    return [machine.rows(rows) for rows in torch.arange(machine.n_rows, device=machine.device).split(size)]


def resample(log_weights: Tensor, states: States, generator: torch.Generator) -> States:
    """States of as many chains, drawn by their weights."""
    weights = log_weights.softmax(0)
    index = torch.multinomial(weights.transpose(0, -1), len(weights), replacement=True, generator=generator)
    index = index.transpose(0, -1)  # (chains[, rows])
    return tuple(x.gather(0, index.view(*index.shape, *[1] * (x.dim() - index.dim())).expand_as(x)) for x in states)


def _estimate(log_weights: Tensor, states: list[Tensor], betas: Tensor, seed: int, reverse: bool) -> AnnealedEstimate:
    if not bool(torch.isfinite(log_weights).all()):
        raise ValueError(
            "ln Z is not finite: a weight or a parameter of the machine is not, or the couplings are too strong "
            "for its units on unbounded supports"
        )
    sign = -1 if reverse else 1
    n_runs = len(log_weights)
    log_partition = sign * ((sign * log_weights).logsumexp(0) - log(n_runs))
    share = (sign * log_weights).softmax(0)
    effective = 1 / share.square().sum(0)
    standard_error = ((n_runs / effective - 1).clamp(min=0) / (n_runs - 1)).sqrt()
    return AnnealedEstimate(log_partition, standard_error, effective, log_weights, tuple(states), betas, seed, reverse)


def _warn_if_collapsed(estimate: AnnealedEstimate) -> None:
    effective = estimate.effective_sample_size
    least = float(effective.min())
    if least >= COLLAPSED * estimate.n_runs:
        return
    n_rows = int((effective < COLLAPSED * estimate.n_runs).sum())
    where = f" on {n_rows} of {len(effective)} rows" if effective.dim() else ""
    direction = "high" if estimate.reverse else "low"
    warnings.warn(
        f"the weights of annealed importance sampling have collapsed{where}: the effective sample size is {least:.1f} "
        f"of {estimate.n_runs} runs, so that ln Z is probably too {direction} and its error bar too small; use more "
        f"temperatures than {len(estimate.betas) - 1}, or an adaptive_schedule",
        LikelihoodWarning,
        stacklevel=4,  # past the decorator
    )


def _check_schedule(schedule: Tensor | int | None) -> Tensor:
    if schedule is None:
        return paper_schedule()
    if not isinstance(schedule, Tensor):
        return linear_schedule(schedule)
    betas = schedule.detach().double().cpu()
    good = betas.dim() == 1 and len(betas) >= 2 and betas[0] == 0 and betas[-1] == 1 and bool((betas.diff() > 0).all())
    if not good:
        raise ValueError("schedule must rise from 0 to 1, step by step; see linear_schedule and adaptive_schedule")
    return betas


def _check_runs(n_runs: int) -> None:
    if isinstance(n_runs, bool) or not (isinstance(n_runs, int) and n_runs >= 2):
        raise ValueError(f"n_runs is {n_runs!r}; it must be a whole number, 2 or more")


def _check_resume(resume: AnnealedEstimate, betas: Tensor, seed: int, reverse: bool) -> None:
    if resume.reverse != reverse or resume.seed != seed or not torch.equal(resume.betas, betas):
        raise ValueError("resume was made with another schedule, seed or direction; only the same can be continued")


def _check_samples(path: Path, samples: Tensor | Sequence[Tensor], seed: int) -> States:
    """States of the kept layers; where only the visible ones are given, with those above drawn given them."""
    if isinstance(samples, Tensor):
        generator = seeded(path.machine.device, seed, "layers above")
        layers = states_of(path, samples, generator, most_rows=len(samples))
    else:
        layers = path.machine.check_states([x.to(path.machine.device) for x in samples])
        lengths = {len(x) for x in layers}
        if len(lengths) > 1 or 0 in lengths:
            raise ValueError(f"samples of the layers have {sorted(lengths)} rows; they must have as many, 1 or more")
    return tuple(layers[number] for number in path.kept)
