"""Measurements after each epoch, for monitoring training."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tapmachine import solver
from tapmachine.data.checks import check_count
from tapmachine.data.errors import EstimateError, TrainingWarning, warn
from tapmachine.data.rows import spaced
from tapmachine.exact.gaussian import is_gaussian
from tapmachine.likelihood.report import fit_visible_units, independent_log_likelihood, likelihood_report
from tapmachine.likelihood.result import LogLikelihood
from tapmachine.likelihood.tap import tap_log_likelihood
from tapmachine.likelihood.unbiased import CAREFUL, CHEAP, unbiased_log_partition
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import models_correlations, take_gaps
from tapmachine.machine.conditioning import hidden_machine
from tapmachine.machine.rescaling import rescale
from tapmachine.solver import TAP, solve
from tapmachine.solver.merging import ROUGHLY_SAME, merge_solutions
from tapmachine.training.batches import Batches
from tapmachine.training.free_energies import CLAMPED_SWEEPS, average, clamped_free_energy, free_energy_from
from tapmachine.units import Gaussian

Record = dict[str, Any]  # measured values by name, and the methods used

N_MEASURED = 20  # default number of measured epochs
GLASSY = 0.9  # a larger ratio of distinct solutions to initial states indicates a spin-glass phase


@dataclass(frozen=True)
class Monitor:
    """Measure a machine on a fixed part of the data after an epoch.

    The following quantities are recorded:

    - `log_likelihood`: Mean log-likelihood in nats. `log_likelihood_method` is `exact` for small machines and for
      Gaussian machines, and `annealed` otherwise. `log_likelihood_error` is the standard error of ln Z.
    - `tap_log_likelihood`, `tap_log_likelihood_per_unit` and `tap_log_sum_exp`: TAP estimates of the log-likelihood.
      Adaptive TAP is used for machines with Gaussian hidden units.
    - `n_unique`: Number of distinct solutions.
    - `converged`: Fraction of the initial states from which the solver converged.
    - `reconstruction_error`: Mean squared error of the visible means after one pass up and down.
    - `validation_log_likelihood`: Mean log-likelihood of the validation data. `validation_log_likelihood_error` is the
      standard error of the mean over rows.
    - `validation_tap_log_likelihood` and `validation_tap_log_likelihood_per_unit`: TAP estimates for the validation
      data.
    - `free_energy_gap`: Mean F of the machine clamped to the validation data, minus the corresponding mean for the
      training data. The gap increases with overfitting.
    - `variation_1`, `variation_2`, …: For each hidden layer of a deep machine, the standard deviation of the unit means
      over the rows, as a root mean square over units. A value close to 0 means that the machine hardly uses the layer.

    Attributes:
        n_starts: Number of rows used as initial states of solutions (default: 100). If 0, solutions and TAP
            log-likelihoods are not computed.
        likelihood: Whether to measure the exact or annealed log-likelihood (default: True if `n_starts` is positive).
        n_rows: Number of rows to score (default: 1000).
        max_sweeps: Maximum number of sweeps of the solver (default: 500).
        every: Number of epochs between measurements (default: 20 measurements at increasing intervals). The first and
            the last epoch are always measured.
        scale, shift: Transformation of rescaled data to the original units, shift + scale·x. Measurements are made in
            the original units.
        log_scale: Function that returns the logarithm of the Jacobian of each row, (N,), for tables whose columns are
            encoded; it is subtracted from log-likelihoods (default: none).

    Example:
        >>> import torch
        >>> from tapmachine import Binary, fit, rbm
        >>> from tapmachine.training import Monitor
        >>> history = fit(rbm(Binary(4), Binary(2)), torch.eye(4), epochs=2, monitor=Monitor(n_starts=4, every=1))
        >>> history.records[-1]["log_likelihood_method"]
        'exact'
    """

    n_starts: int = 100
    likelihood: bool | None = None
    n_rows: int = 1000
    max_sweeps: int = 500
    every: int | None = None
    scale: float = 1.0
    shift: Tensor | float = 0.0
    log_scale: Callable[[np.ndarray[Any, Any]], Any] | None = None

    def __post_init__(self) -> None:
        for name, least in (("n_starts", 0), ("n_rows", 1), ("max_sweeps", 1), ("every", 1)):
            if name != "every" or self.every is not None:
                check_count(name, getattr(self, name), least)

    def is_due(self, epoch: int, epochs: int) -> bool:
        """Return whether to measure after an epoch, given the total number of epochs."""
        if epoch in (1, epochs) or (self.every is None and epochs <= N_MEASURED):
            return True
        if self.every is not None:
            return epoch % self.every == 0
        return epoch in {round(epochs ** (index / (N_MEASURED - 1))) for index in range(N_MEASURED)}

    @torch.no_grad()
    def __call__(
        self,
        machine: BoltzmannMachine,
        train: Tensor,
        validation: Tensor | None = None,
        weights: Tensor | None = None,
        missing: Tensor | None = None,
    ) -> Record:
        """Measure the machine and return the results as a record.

        Args:
            machine: Machine to measure.
            train: Training rows, with missing values filled in.
            validation: Validation rows, with NaN for missing values.
            weights: Weights of the training rows, shape (N,); equal by default.
            missing: Mask of the missing training values, shape (N, n). If given, the log-likelihood of the observed
                values is measured.
        """
        rows, missing = spaced(train, self.n_rows), None if missing is None else spaced(missing, self.n_rows)
        weights = None if weights is None else spaced(weights, self.n_rows).double()
        held_out, held_out_missing = None, None
        if validation is not None:
            held_out, held_out_missing = take_gaps(machine, spaced(validation, self.n_rows))
        machine, rows, held_out = self._in_original_units(machine, rows, held_out)
        sets = {"": (rows, missing)} | ({} if held_out is None else {"validation_": (held_out, held_out_missing)})
        complete = {name: x for name, (x, gaps) in sets.items() if gaps is None}
        above = _layers_above(machine, rows)
        record: Record = {
            "reconstruction_error": float(average(_reconstruction_errors(machine, rows, above).double(), weights))
        }
        if len(above) > 1:
            record |= {f"variation_{n}": _variation(means.double(), weights) for n, means in enumerate(above, 1)}
        if len(complete) == 2:
            on_train = average(clamped_free_energy(machine, rows).double(), weights)
            record["free_energy_gap"] = float(clamped_free_energy(machine, complete["validation_"]).mean() - on_train)
        if self.n_starts and not is_gaussian(machine):  # Gaussian machines have one solution, and an exact ln Z
            record |= self._by_tap(machine, rows, complete, weights)
        if self.n_starts > 0 if self.likelihood is None else self.likelihood:
            record |= self._unbiased(machine, sets, weights)
        return record

    def _by_tap(
        self, machine: BoltzmannMachine, rows: Tensor, complete: dict[str, Tensor], weights: Tensor | None
    ) -> Record:
        """Solve the machine from some rows, and return TAP log-likelihoods of complete data sets."""
        if any(units.has_counts for units in machine.layers):
            return {}  # TAP's reaction exp(½κx²) may make the priors of counts unnormalizable
        if models_correlations(machine):
            return {}  # TAP has no solution for the strong couplings of correlated columns
        starts = spaced(rows, self.n_starts)
        # Plain TAP has no solution for Gaussian hidden units with strong couplings, although Z is finite.
        has_gaussians = any(isinstance(units, Gaussian) for units in list(machine.layers)[1:])
        scheme = solver.AdaptiveTAP() if has_gaussians else TAP()
        solutions = solve(machine, starts, scheme, max_sweeps=self.max_sweeps)
        unique = merge_solutions(machine, solutions, same=ROUGHLY_SAME)
        record: Record = {"n_unique": float(len(unique)), "converged": float(solutions.converged.double().mean())}
        if len(unique) > GLASSY * len(starts) and len(starts) >= 20:
            warn(
                f"{len(starts)} initial states lead to {len(unique)} distinct solutions: the machine may have "
                "memorized its data or entered a spin-glass phase, or there may be too few initial states",
                TrainingWarning,
            )
        if "" not in complete:
            return record
        names = ("tap_log_likelihood", "tap_log_likelihood_per_unit", "tap_log_sum_exp")
        record |= dict.fromkeys(names, float("nan"))
        try:
            for name, x in complete.items():
                scored = tap_log_likelihood(machine, x, solutions, scheme=scheme)
                of_rows = None if name else weights
                mean, log_sum_exp = (_mean(z, of_rows) for z in (scored, scored.log_sum_exp))
                values = (mean, mean / scored.n_units) if name else (mean, mean / scored.n_units, log_sum_exp)
                record |= {name + each: value for each, value in zip(names, values, strict=False)}
        except EstimateError as error:
            warn(f"the TAP log-likelihood is not available: {error}", TrainingWarning)
        return record

    def _unbiased(
        self, machine: BoltzmannMachine, sets: dict[str, tuple[Tensor, Tensor | None]], weights: Tensor | None
    ) -> Record:
        """Measure the log-likelihood without relying on TAP."""
        try:
            partition = unbiased_log_partition(machine, sets[""][0], CHEAP if len(sets) == 1 else CAREFUL)
        except EstimateError as error:
            warn(f"the log-likelihood is not available: {error}", TrainingWarning)
            return {"log_likelihood": float("nan")}
        if partition.problem and len(sets) > 1:  # few runs often disagree, and decide nothing without held-out rows
            warn(
                "the log-likelihood may be too high: annealing from different initial distributions gives different "
                "values of ln Z; see compare_likelihoods",
                TrainingWarning,
            )
        scores = likelihood_report(machine, sets, partition, CHEAP).scores
        scores = {name: score.minus(self._log_scale(*sets[name])) for name, score in scores.items()}
        record = {
            "log_likelihood": _mean(scores[""], weights),
            "log_likelihood_error": partition.error,
            "log_likelihood_method": partition.method,
        }
        if "validation_" in scores:
            record["validation_log_likelihood"] = float(scores["validation_"].mean)
            record["validation_log_likelihood_error"] = float(scores["validation_"].standard_error)
        return record

    @torch.no_grad()
    def independent(self, machine: BoltzmannMachine, batches: Batches) -> float:
        """Mean log-likelihood of independent units fitted to the training data, in nats, as a baseline."""
        rows = spaced(batches.sample, self.n_rows)
        weights = None if batches.sample_weights is None else spaced(batches.sample_weights, self.n_rows).double()
        missing = None if batches.missing is None else spaced(batches.missing, self.n_rows)
        fitted, rows, _ = self._in_original_units(fit_visible_units(machine, *batches.to_fit), rows)
        values = independent_log_likelihood(fitted, rows, missing)
        return float(average(values - self._log_scale(rows, missing).to(values), weights))

    def _log_scale(self, x: Tensor, missing: Tensor | None) -> Tensor:  # (N,)
        """Return the logarithm of the Jacobian of each row."""
        if self.log_scale is None:
            return torch.zeros(())
        rows = x.double() if missing is None else x.double().masked_fill(missing, torch.nan)
        return torch.as_tensor(self.log_scale(rows.cpu().numpy())).to(x.device)

    def _in_original_units(
        self, machine: BoltzmannMachine, rows: Tensor, held_out: Tensor | None = None
    ) -> tuple[BoltzmannMachine, Tensor, Tensor | None]:
        """Return the machine and the rows in the original units."""
        if self.scale == 1 and not torch.as_tensor(self.shift).any():
            return machine, rows, held_out
        machine = rescale(machine, self.scale, self.shift)
        bounds = machine.layers[0].bounds()  # rounding may exceed the bounds
        shift = torch.as_tensor(self.shift).to(rows)
        scaled = [None if z is None else (shift + self.scale * z).clamp(*bounds) for z in (rows, held_out)]
        assert scaled[0] is not None
        return machine, scaled[0], scaled[1]


def _mean(scored: LogLikelihood, weights: Tensor | None) -> float:
    """Weighted mean log-likelihood of the rows that could be scored."""
    known = scored.scored
    return float(average(scored.values[known], None if weights is None else weights[known]))


def _reconstruction_errors(machine: BoltzmannMachine, x: Tensor, above: list[Tensor]) -> Tensor:  # (N,)
    """For each row, the mean squared error of the visible means given the means of the hidden layers."""
    if machine.is_pairwise:
        return (machine.conditional(0, [x]).mean - x).flatten(1).square().mean(-1)
    back = machine.conditional(0, [None, *above])
    return (back.mean - x).flatten(1).square().mean(-1)


def _variation(means: Tensor, weights: Tensor | None) -> float:
    """Standard deviation of the means over rows, as a root mean square over units."""
    flat = means.flatten(1)
    weights = flat.new_ones(len(flat)) if weights is None else weights
    fractions = weights / weights.sum().clamp(min=torch.finfo(flat.dtype).tiny)
    return float((fractions @ (flat - fractions @ flat).square()).mean().sqrt())


def _layers_above(machine: BoltzmannMachine, x: Tensor) -> list[Tensor]:
    """Means of all hidden layers given the data."""
    if machine.is_pairwise:
        return []
    if len(machine.layers) == 2:
        return [machine.conditional(1, [x, None]).mean]
    moments, _ = free_energy_from(hidden_machine(machine, x, validate=False), None, TAP(), CLAMPED_SWEEPS)
    return [layer.mean for layer in moments]
