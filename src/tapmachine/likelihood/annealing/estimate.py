"""Estimates of ln Z and log-likelihoods by annealed importance sampling, with standard errors."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tapmachine.data.checks import check_count
from tapmachine.data.errors import EstimateError, LikelihoodWarning, warn
from tapmachine.likelihood.annealing.bases import independent_base
from tapmachine.likelihood.annealing.paths import Base, draw_evenly, seeded
from tapmachine.likelihood.annealing.runs import BLOCK, make_runs
from tapmachine.likelihood.result import LogLikelihood
from tapmachine.likelihood.weight import check_normalizable, log_weight
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_machine, check_rows, fingerprint, for_scoring, n_units
from tapmachine.machine.conditioning import hidden_machine

ENOUGH_TEMPERATURES = (1_000, 4_000, 16_000)  # numbers of temperatures tried in turn by default
ENOUGH_WEIGHT = 0.5  # sufficient effective sample size, as a fraction of the number of runs
COLLAPSED = 0.1  # effective sample size, as a fraction of the number of runs, below which the weights have collapsed
FEW = 3  # effective sample size below which the weights have collapsed for any number of runs
LARGEST = 1e7  # nats; a larger ln Z is due to diverging chains


@dataclass(frozen=True, eq=False)
class Annealing:
    """Options of annealed importance sampling; see `ais_log_partition`.

    Attributes:
        schedule: Inverse temperatures, or their number (default: as many as needed).
        n_runs: Number of runs (default: 100).
        seed: Random seed (default: 0).

    Example:
        >>> from tapmachine.likelihood import Annealing
        >>> Annealing(1000).n_runs
        100
    """

    schedule: Tensor | Sequence[float] | int | None = None
    n_runs: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("n_runs", self.n_runs, 2)
        self.betas()

    def betas(self) -> Tensor | None:
        """Return the inverse temperatures, or None if there are as many as needed."""
        return None if self.schedule is None else _check_schedule(self.schedule)


@dataclass(frozen=True, eq=False)
class AnnealedEstimate:
    """Estimate of ln Z of a machine from independent runs.

    Attributes:
        log_partition: Value of ln Z in float64, a scalar, or shape (rows,) if the machine is conditioned on rows. The
            value is relative to normalized priors and is 0 without couplings. In expectation, the value is too low.
        standard_error: Standard error of ln Z, estimated from the scatter of the runs, with the shape of
            `log_partition`.
        effective_sample_size: Number of equally weighted runs with the same accuracy, with the shape of
            `log_partition`.
        log_weights: Estimate of ln Z from each run, shape (n_runs,) or (n_runs, rows). Z is the mean of the
            exponentials.
        samples: Final states of all layers, which are samples of the machine if weighted by exp(log_weights).
        betas: Inverse temperatures.
        seed: Random seed of the runs.
        machine: Fingerprint of the machine.

    Example:
        >>> from tapmachine import Binary, ais_log_partition, rbm
        >>> estimate = ais_log_partition(rbm(Binary(4), Binary(2)), 10, n_runs=20)
        >>> estimate.log_weights.shape
        torch.Size([20])
    """

    log_partition: Tensor
    standard_error: Tensor
    effective_sample_size: Tensor
    log_weights: Tensor
    samples: tuple[Tensor, ...]
    betas: Tensor
    seed: int
    machine: str

    @property
    def n_runs(self) -> int:
        """Number of runs."""
        return len(self.log_weights)

    def weighted_samples(self, count: int | None = None, seed: int = 0) -> tuple[Tensor, ...]:
        """Return samples of all layers: the final states, resampled in proportion to their weights.

        Args:
            count: Number of samples (default: one per run).
            seed: Random seed (default: 0).
        """
        generator = seeded(self.log_weights.device, seed, "resample")
        index = draw_evenly(self.log_weights, self.n_runs if count is None else count, generator)
        return tuple(
            x.take_along_dim(index.view(*index.shape, *[1] * (x.dim() - index.dim())), 0) for x in self.samples
        )

    def __repr__(self) -> str:
        runs = f"{self.n_runs} runs over {len(self.betas) - 1} temperatures"
        if self.log_partition.dim():
            return f"AnnealedEstimate(ln Z of {len(self.log_partition)} rows, {runs})"
        ess = f"effective sample size {self.effective_sample_size:.0f}"
        return f"AnnealedEstimate(ln Z = {self.log_partition:.4f} ± {self.standard_error:.4f}, {runs}, {ess})"


@torch.no_grad()
def ais_log_partition(
    machine: BoltzmannMachine,
    schedule: Tensor | Sequence[float] | int | None = None,
    n_runs: int = 100,
    *,
    data: Tensor | None = None,
    base: Base | None = None,
    seed: int = 0,
) -> AnnealedEstimate:
    """Estimate ln Z by annealed importance sampling (Neal 2001), for any unit types and any number of layers.

    Chains move from independent units to the machine, with one block Gibbs sweep per temperature. Every other layer is
    summed over analytically, and weights are accumulated in float64.

    In expectation, the estimate is too low, and it is much too low if all chains miss a mode. Other initial states,
    other random seeds and `exact_log_partition` can detect a missed mode.

    Args:
        machine: Machine of any type. If it is conditioned on rows of evidence, ln Z is estimated for each row.
        schedule: Inverse temperatures β, increasing from 0 to 1, or a number of equal steps. By default, 1,000, 4,000
            and 16,000 equal steps are tried in turn, until the effective sample size is at least half the number of
            runs.
        n_runs: Number of independent runs (default: 100).
        data: Rows that determine the means at β = 0. Visible units have the mean of the rows, and hidden units have
            their conditional mean given the rows. By default, the visible means are estimated from short chains of the
            machine. If the machine fits the data, fewer temperatures are needed. However, rows from a single mode
            attract all chains to this mode.
        seed: Random seed (default: 0). Each block of 100 runs has a separate random number generator.

    Warns:
        LikelihoodWarning: If the weights have collapsed, which means that the effective sample size is below a tenth of
            the number of runs.

    Example:
        >>> from tapmachine import Binary, ais_log_partition, exact_log_partition, rbm
        >>> machine = rbm(Binary(10), Binary(5))
        >>> estimate = ais_log_partition(machine, schedule=100)
        >>> bool((estimate.log_partition - exact_log_partition(machine)).abs() < 0.01)
        True
    """
    check_machine(machine)
    check_normalizable(machine)
    check_count("n_runs", n_runs, 2)
    check_count("seed", seed, 0)
    if machine.n_rows is not None and data is not None:
        raise ValueError("data cannot be used with a machine that is conditioned on rows")
    if schedule is None:
        estimate = anneal_until(_is_enough, machine, ENOUGH_TEMPERATURES, n_runs, data=data, base=base, seed=seed)
    else:
        estimate = _annealed(machine, _check_schedule(schedule), n_runs, data, base, seed)
    _warn_if_collapsed(estimate)
    return estimate


def anneal_until(
    is_enough: Callable[[AnnealedEstimate], bool],
    machine: BoltzmannMachine,
    temperatures: Sequence[int],
    n_runs: int,
    **options: Any,
) -> AnnealedEstimate:
    """Return the first estimate that is accurate enough, or the last one, without warnings.

    Args:
        is_enough: Function that returns whether an estimate is accurate enough.
        machine: Machine of any type.
        temperatures: Numbers of temperatures, tried in turn.
        n_runs: Number of independent runs.
        options: Keyword arguments passed to `ais_log_partition`.
    """
    for n_temperatures in temperatures:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LikelihoodWarning)
            estimate = ais_log_partition(machine, n_temperatures, n_runs, **options)
        if is_enough(estimate):
            break
    return estimate


def _is_enough(estimate: AnnealedEstimate) -> bool:
    return float(estimate.effective_sample_size.min()) >= ENOUGH_WEIGHT * estimate.n_runs


def _annealed(
    machine: BoltzmannMachine, betas: Tensor, n_runs: int, data: Tensor | None, base: Base | None, seed: int
) -> AnnealedEstimate:
    blocks = {block: min(BLOCK, n_runs - block * BLOCK) for block in range(-(-n_runs // BLOCK))}
    log_weights, states = make_runs(
        machine, betas, blocks, lambda part: base or independent_base(part, data, seed), seed
    )
    if not bool((log_weights.abs() < LARGEST).all()):
        raise EstimateError(
            "ln Z is infinite or NaN: the couplings are too strong for unbounded units, or weights overflow"
        )
    share = log_weights.softmax(0)
    return AnnealedEstimate(
        log_partition=log_weights.logsumexp(0) - log(n_runs),
        standard_error=((share - 1 / n_runs).square().sum(0) * n_runs / (n_runs - 1)).sqrt(),
        effective_sample_size=1 / share.square().sum(0),
        log_weights=log_weights,
        samples=tuple(states),
        betas=betas,
        seed=seed,
        machine=fingerprint(machine),
    )


@torch.no_grad()
def ais_log_likelihood(
    machine: BoltzmannMachine,
    x: Tensor,
    estimate: AnnealedEstimate | None = None,
    *,
    schedule: Tensor | Sequence[float] | int | None = None,
    n_runs: int = 100,
    seed: int = 0,
) -> LogLikelihood:
    """Estimate ln P(x) of each row, with ln Z estimated by annealed importance sampling.

    With at most one hidden layer, the weight of a row is exact. With several hidden layers, the weight is estimated by
    separate runs on the machine clamped to each row, which is feasible only for a few rows.

    Args:
        machine: Unconditioned machine.
        x: Data, shape (N, n_visible).
        estimate: Result of `ais_log_partition` for the machine (default: computed by this function).
        schedule, n_runs, seed: See `ais_log_partition`. The arguments apply to the runs computed by this function.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, ais_log_likelihood, rbm
        >>> round(float(ais_log_likelihood(rbm(Binary(4), Binary(2)), torch.eye(4), schedule=100)), 2)
        -2.77
    """
    double, rows = for_scoring(machine, x)
    if estimate is None:
        estimate = ais_log_partition(machine, schedule, n_runs, seed=seed)
    if not isinstance(estimate, AnnealedEstimate):
        raise ValueError(f"estimate is a {type(estimate).__name__}; expected the result of ais_log_partition()")
    if estimate.machine != fingerprint(machine):
        raise ValueError("estimate belongs to another machine, or the machine's parameters have changed since")
    if len(machine.layers) <= 2:
        weights, of_rows = log_weight(double, rows), torch.zeros_like(estimate.standard_error)
    else:
        betas = estimate.betas if schedule is None else schedule
        hidden = hidden_machine(machine, check_rows(machine, x))
        clamped_estimate = ais_log_partition(hidden, betas, n_runs, seed=seed)
        weights = clamped_estimate.log_partition + double.layers[0].log_prior(rows).sum(-1, dtype=torch.float64)
        of_rows = clamped_estimate.standard_error.square().sum().sqrt() / len(
            rows
        )  # standard error of the mean over rows
    log_partition, error = estimate.log_partition, estimate.standard_error
    return LogLikelihood(weights - log_partition, log_partition, error.hypot(of_rows), n_units(machine))


def _warn_if_collapsed(estimate: AnnealedEstimate) -> None:
    effective = estimate.effective_sample_size
    least = float(effective.min())
    enough = max(COLLAPSED * estimate.n_runs, min(FEW, estimate.n_runs))
    if least >= enough:
        return
    n_rows = int((effective < enough).sum())
    where = f" on {n_rows} of {len(effective)} rows" if effective.dim() else ""
    warn(
        f"the weights of annealed importance sampling have collapsed{where}: the effective sample size is {least:.1f} "
        f"of {estimate.n_runs} runs. ln Z is probably too low, and its error too small; use more than "
        f"{len(estimate.betas) - 1} temperatures, or other `data`",
        LikelihoodWarning,
    )


def _check_schedule(schedule: Tensor | Sequence[float] | int) -> Tensor:
    if isinstance(schedule, int | np.integer):
        return torch.linspace(0.0, 1.0, check_count("schedule", schedule) + 1, dtype=torch.float64)
    try:
        betas = torch.as_tensor(schedule).detach().double().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(
            f"schedule is {schedule!r}; expected a number of temperatures or a sequence of inverse temperatures"
        ) from None
    good = betas.dim() == 1 and len(betas) >= 2 and betas[0] == 0 and betas[-1] == 1 and bool((betas.diff() > 0).all())
    if not good:
        raise ValueError("schedule does not increase from 0 to 1; expected inverse temperatures, or their number")
    return betas
