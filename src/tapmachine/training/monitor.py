"""What is measured after each epoch: numbers that say whether training goes well."""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from tapmachine.conditioning import hidden_given
from tapmachine.inference import TAP, AdaptiveTAP, solve
from tapmachine.likelihood.exact import exact_log_likelihood, is_gaussian
from tapmachine.likelihood.score import EstimateError, check_rows, spaced
from tapmachine.likelihood.tap import tap_log_likelihood
from tapmachine.machine import BoltzmannMachine, rescaled
from tapmachine.merging import ROUGHLY_SAME, unique
from tapmachine.training.free_energies import CLAMPED_SWEEPS, average, clamped_free_energy, sweep_from
from tapmachine.units import Gaussian

GLASSY = 0.9  # of the starts that end in solutions of their own: the spin-glass phase


class TrainingWarning(UserWarning):
    """Something about a training that its user should know."""


@dataclass(frozen=True)
class Monitor:
    """Measures a machine on some of the data, deterministically.

    It gives `log_likelihood` (TAP; adaptive TAP with Gaussian hidden units, and exact if all units are Gaussian; a mean
    in nats) and `log_likelihood_per_unit`, `log_sum_exp`, `n_unique` solutions,
    `converged` (share of the starts), `reconstruction_error` (mean squared, of visible means after a step up and down)
    and, with validation data, `validation_log_likelihood` (also `_per_unit`) and `free_energy_gap`: mean F of the
    machine clamped to validation data less that for training data, which rises with over-fitting. Of deep machines
    also `variation_1`, `variation_2`, …: by how much the means of each hidden layer differ from row to row, a root mean
    square. With hardly any in a layer, the machine resembles one without it.

    Attributes:
        n_starts: rows that solutions are started from; 0 for no solutions, and no log-likelihood.
        n_rows: rows that are scored.
        max_sweeps: of the solver.
        scale, shift: if machine and data are in units of their own, shift + scale·x are those to measure in.
        every: epochs from one measurement to the next; the first and the last epoch are always measured.
    """

    n_starts: int = 100
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
    ) -> dict[str, float]:
        """The record of one epoch; rows of the training data count as much as their weights."""
        rows = spaced(train, self.n_rows)
        held_out = None if validation is None else check_rows(machine, spaced(validation, self.n_rows))
        if self.scale != 1 or torch.as_tensor(self.shift).any():
            machine = rescaled(machine, self.scale, self.shift)
            bounds = machine.units()[0].bounds()  # which rounding might leave
            shift = torch.as_tensor(self.shift).to(rows)
            rows = (shift + self.scale * rows).clamp(*bounds)
            held_out = None if held_out is None else (shift + self.scale * held_out).clamp(*bounds)
        share = None if weights is None else spaced(weights, self.n_rows).double()
        above = _layers_above(machine, rows)
        record = {"reconstruction_error": float(average(_reconstruction_errors(machine, rows, above).double(), share))}
        if len(above) > 1:
            record |= {f"variation_{n}": _variation(means.double(), share) for n, means in enumerate(above, 1)}
        if held_out is not None:
            on_train = average(clamped_free_energy(machine, rows).double(), share)
            record["free_energy_gap"] = float(clamped_free_energy(machine, held_out).mean() - on_train)
        if self.n_starts:
            measure = _exact_log_likelihoods if is_gaussian(machine) else self._log_likelihoods
            record |= measure(machine, rows, held_out, share)
        return record

    def _log_likelihoods(
        self, machine: BoltzmannMachine, rows: Tensor, held_out: Tensor | None, share: Tensor | None
    ) -> dict[str, float]:
        starts = spaced(rows, self.n_starts)
        # Plain TAP has no solution for Gaussian hidden units with strong couplings, though Z is finite.
        has_gaussians = any(isinstance(units, Gaussian) for units in machine.units()[1:])
        scheme = AdaptiveTAP() if has_gaussians else TAP()
        solutions = solve(machine, starts, scheme, max_sweeps=self.max_sweeps)
        found = unique(machine, solutions, same=ROUGHLY_SAME)
        record = {"n_unique": float(len(found)), "converged": float(solutions.converged.double().mean())}
        if len(found) > GLASSY * len(starts) and len(starts) >= 20:
            warnings.warn(
                f"{len(found)} of {len(starts)} starts end in solutions of their own: the machine may have entered a "
                "spin-glass phase, as by over-training",
                TrainingWarning,
                stacklevel=5,
            )
        nan = float("nan")
        names = ("log_likelihood", "log_likelihood_per_unit", "log_sum_exp")
        record |= dict.fromkeys(names, nan)
        try:
            scored = tap_log_likelihood(machine, rows, solutions, scheme=scheme)
            known = scored.scored
            counts = None if share is None else share[known]
            mean, log_sum_exp = (float(average(z.values[known], counts)) for z in (scored, scored.log_sum_exp))
            record |= dict(zip(names, (mean, mean / scored.n_units, log_sum_exp), strict=True))
            if held_out is not None:
                beside = tap_log_likelihood(machine, held_out, solutions, scheme=scheme)
                record["validation_log_likelihood"] = float(beside.mean)
                record["validation_log_likelihood_per_unit"] = float(beside.per_unit)
        except EstimateError as error:
            warnings.warn(f"there is no log-likelihood: {error}", TrainingWarning, stacklevel=5)
        return record


def _exact_log_likelihoods(
    machine: BoltzmannMachine, rows: Tensor, held_out: Tensor | None, share: Tensor | None
) -> dict[str, float]:
    """Of two layers of Gaussian units, whose only solution is exact; NaN if they cannot be normalised."""
    names = ("log_likelihood", "log_likelihood_per_unit", "log_sum_exp")
    try:
        scored = exact_log_likelihood(machine, rows)
        mean = float(average(scored.values, share))
        record = dict(zip(names, (mean, mean / scored.n_units, mean), strict=True))
        if held_out is not None:
            beside = exact_log_likelihood(machine, held_out)
            record["validation_log_likelihood"] = float(beside.mean)
            record["validation_log_likelihood_per_unit"] = float(beside.per_unit)
        return record | {"n_unique": 1.0, "converged": 1.0}
    except EstimateError as error:
        warnings.warn(f"there is no log-likelihood: {error}", TrainingWarning, stacklevel=5)
        return dict.fromkeys(names, float("nan")) | {"n_unique": 0.0, "converged": 0.0}


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
