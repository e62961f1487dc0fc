"""What is measured after each epoch: numbers that say whether training goes well."""

import warnings
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tapmachine.conditioning import hidden_given
from tapmachine.inference import TAP, AdaptiveTAP, solve
from tapmachine.likelihood.exact import is_gaussian
from tapmachine.likelihood.score import EstimateError, LogLikelihood, check_rows, spaced
from tapmachine.likelihood.tap import tap_log_likelihood
from tapmachine.likelihood.unbiased import CHEAP, unbiased_log_likelihood, unbiased_log_partition
from tapmachine.machine import BoltzmannMachine, rescaled
from tapmachine.merging import ROUGHLY_SAME, unique
from tapmachine.training.free_energies import CLAMPED_SWEEPS, average, clamped_free_energy, sweep_from
from tapmachine.units import Gaussian

Record = dict[str, Any]  # numbers by their names, and words on how they were found

GLASSY = 0.9  # of the starts that end in solutions of their own: the spin-glass phase


class TrainingWarning(UserWarning):
    """Something about a training that its user should know."""


@dataclass(frozen=True)
class Monitor:
    """Measures a machine on some of the data, deterministically.

    It records `log_likelihood`, a mean in nats, with its `log_likelihood_method` (`exact` for small and for Gaussian
    machines, otherwise `annealed`) and `log_likelihood_error`, the standard error of ln Z; beside it TAP's (adaptive
    TAP's with Gaussian hidden units) `tap_log_likelihood`, `tap_log_likelihood_per_unit` and `tap_log_sum_exp`, the
    number of different solutions, `n_unique`, and the share of the starts that `converged`; and
    `reconstruction_error`, the mean squared error of visible means after a step up and down. With validation data also
    `validation_log_likelihood`, `validation_tap_log_likelihood` (and `_per_unit`) and `free_energy_gap`: mean F of the
    machine clamped to validation data less that for training data, which rises with over-fitting. Of deep machines also
    `variation_1`, `variation_2`, …: by how much the means of each hidden layer differ from row to row, a root mean
    square. With hardly any in a layer, the machine resembles one without it.

    Attributes:
        n_starts: rows that solutions are started from; 0 for no solutions, and no TAP log-likelihood.
        likelihood: whether to measure the exact or annealed log-likelihood; by default, where there is TAP's.
        n_rows: rows that are scored.
        max_sweeps: of the solver.
        scale, shift: if machine and data are in units of their own, shift + scale·x are those to measure in.
        every: epochs from one measurement to the next; the first and the last epoch are always measured.
    """

    n_starts: int = 100
    likelihood: bool | None = None
    n_rows: int = 1000
    max_sweeps: int = 500
    every: int = 1
    scale: float = 1.0
    shift: Tensor | float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("n_starts", 0), ("n_rows", 1), ("max_sweeps", 1), ("every", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not (isinstance(value, int) and value >= least):
                raise ValueError(f"{name} is {value!r}; it must be a whole number, {least} or more")

    @torch.no_grad()
    def __call__(
        self,
        machine: BoltzmannMachine,
        train: Tensor,
        validation: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Record:
        """The record of one epoch; rows of the training data count as much as their weights."""
        rows = spaced(train, self.n_rows)
        held_out = None if validation is None else check_rows(machine, spaced(validation, self.n_rows))
        machine, rows, held_out = self._as_measured(machine, rows, held_out)
        share = None if weights is None else spaced(weights, self.n_rows).double()
        above = _layers_above(machine, rows)
        record: Record = {
            "reconstruction_error": float(average(_reconstruction_errors(machine, rows, above).double(), share))
        }
        if len(above) > 1:
            record |= {f"variation_{n}": _variation(means.double(), share) for n, means in enumerate(above, 1)}
        if held_out is not None:
            on_train = average(clamped_free_energy(machine, rows).double(), share)
            record["free_energy_gap"] = float(clamped_free_energy(machine, held_out).mean() - on_train)
        if self.n_starts and not is_gaussian(machine):  # which has one solution, and an exact ln Z
            record |= self._by_tap(machine, rows, held_out, share)
        if self.n_starts > 0 if self.likelihood is None else self.likelihood:
            record |= self._unbiased(machine, rows, held_out, share)
        return record

    def _by_tap(self, machine: BoltzmannMachine, rows: Tensor, held_out: Tensor | None, share: Tensor | None) -> Record:
        starts = spaced(rows, self.n_starts)
        # Plain TAP has no solution for Gaussian hidden units with strong couplings, though Z is finite.
        has_gaussians = any(isinstance(units, Gaussian) for units in machine.units()[1:])
        scheme = AdaptiveTAP() if has_gaussians else TAP()
        solutions = solve(machine, starts, scheme, max_sweeps=self.max_sweeps)
        found = unique(machine, solutions, same=ROUGHLY_SAME)
        record: Record = {"n_unique": float(len(found)), "converged": float(solutions.converged.double().mean())}
        if len(found) > GLASSY * len(starts) and len(starts) >= 20:
            warnings.warn(
                f"{len(found)} of {len(starts)} starts end in solutions of their own: the machine may have memorised "
                "its data or entered a spin-glass phase, or there are too few starts to tell",
                TrainingWarning,
                stacklevel=5,
            )
        names = ("tap_log_likelihood", "tap_log_likelihood_per_unit", "tap_log_sum_exp")
        record |= dict.fromkeys(names, float("nan"))
        try:
            scored = tap_log_likelihood(machine, rows, solutions, scheme=scheme)
            mean, log_sum_exp = (_mean(z, share) for z in (scored, scored.log_sum_exp))
            record |= dict(zip(names, (mean, mean / scored.n_units, log_sum_exp), strict=True))
            if held_out is not None:
                beside = tap_log_likelihood(machine, held_out, solutions, scheme=scheme)
                record["validation_tap_log_likelihood"] = float(beside.mean)
                record["validation_tap_log_likelihood_per_unit"] = float(beside.per_unit)
        except EstimateError as error:
            warnings.warn(f"TAP has no log-likelihood: {error}", TrainingWarning, stacklevel=5)
        return record

    def _unbiased(
        self, machine: BoltzmannMachine, rows: Tensor, held_out: Tensor | None, share: Tensor | None
    ) -> Record:
        """What does not rest on TAP."""
        try:
            partition = unbiased_log_partition(machine, rows, CHEAP)
        except EstimateError as error:
            warnings.warn(f"there is no log-likelihood: {error}", TrainingWarning, stacklevel=5)
            return {"log_likelihood": float("nan")}
        scored = unbiased_log_likelihood(machine, rows, partition, CHEAP)
        record = {
            "log_likelihood": _mean(scored, share),
            "log_likelihood_error": partition.error,
            "log_likelihood_method": partition.method,
        }
        if held_out is not None:
            beside = unbiased_log_likelihood(machine, held_out, partition, CHEAP)
            record["validation_log_likelihood"] = float(beside.mean)
        return record

    @torch.no_grad()
    def independent(self, machine: BoltzmannMachine, train: Tensor, weights: Tensor | None = None) -> float:
        """The mean log-likelihood of independent units that are fitted to the data, in nats: what to do better than."""
        rows = spaced(train, self.n_rows)
        share = None if weights is None else spaced(weights, self.n_rows).double()
        fitted = deepcopy(machine)
        fitted.units()[0].fit_to(train, weights)
        fitted, rows, _ = self._as_measured(fitted, rows)
        return float(average(fitted.units()[0].log_prior(rows, validate=False).sum(-1, dtype=torch.float64), share))

    def _as_measured(
        self, machine: BoltzmannMachine, rows: Tensor, held_out: Tensor | None = None
    ) -> tuple[BoltzmannMachine, Tensor, Tensor | None]:
        """The machine and rows in the units to measure in."""
        if self.scale == 1 and not torch.as_tensor(self.shift).any():
            return machine, rows, held_out
        machine = rescaled(machine, self.scale, self.shift)
        bounds = machine.units()[0].bounds()  # which rounding might leave
        shift = torch.as_tensor(self.shift).to(rows)
        scaled = [None if z is None else (shift + self.scale * z).clamp(*bounds) for z in (rows, held_out)]
        assert scaled[0] is not None
        return machine, scaled[0], scaled[1]


def _mean(scored: LogLikelihood, weights: Tensor | None) -> float:
    """Of the rows that could be scored, which count as much as their weights."""
    known = scored.scored
    return float(average(scored.values[known], None if weights is None else weights[known]))


def _reconstruction_errors(machine: BoltzmannMachine, x: Tensor, above: list[Tensor]) -> Tensor:  # (N,)
    """Mean squared error of each row's visible means, given the means of the hidden layers."""
    if machine.is_pairwise:
        return (machine.conditional(0, [x]).mean - x).flatten(1).square().mean(-1)
    back = machine.conditional(0, [None, *above])
    return (back.mean - x).flatten(1).square().mean(-1)


def _variation(means: Tensor, weights: Tensor | None) -> float:
    """The root mean square over units of the deviation of their means over rows."""
    flat = means.flatten(1)
    share = flat.new_ones(len(flat)) if weights is None else weights
    share = share / share.sum().clamp(min=torch.finfo(flat.dtype).tiny)
    return float((share @ (flat - share @ flat).square()).mean().sqrt())


def _layers_above(machine: BoltzmannMachine, x: Tensor) -> list[Tensor]:
    """The means of all hidden layers given the data."""
    if machine.is_pairwise:
        return []
    if len(machine.layers) == 2:
        return [machine.conditional(1, [x, None]).mean]
    return [own.mean for own in sweep_from(hidden_given(machine, x, validate=False), None, TAP(), CLAMPED_SWEEPS)[0]]
