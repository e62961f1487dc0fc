"""The TAP log-likelihood [eq:tapll]: deterministic, without sampling."""

import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Solution, Tilt
from tapmachine.conditioning import hidden_given
from tapmachine.inference import TAP, Scheme, solve
from tapmachine.likelihood.score import (
    CHUNK_VALUES,
    EstimateError,
    LikelihoodWarning,
    LogLikelihood,
    for_scoring,
    in_double,
    log_weight,
    n_units,
    spaced,
)
from tapmachine.machine import BoltzmannMachine
from tapmachine.merging import ROUGHLY_SAME, Unique, unique

N_STARTS = 1000  # rows that solutions are started from, unless they are given
TOLERANCE = 1e-14  # to which those are solved, so that they can be told apart
MAX_SWEEPS = 5000
SAME_FREE_ENERGY = 0.01  # nats: solutions whose F has changed by more are others


@dataclass(frozen=True, repr=False, eq=False)
class TAPLogLikelihood(LogLikelihood):
    """ln P(x) ≈ F − F(x), with the free energy F of the machine averaged over its different solutions, as in the paper.

    Attributes:
        log_sum_exp: the same with ln Z ≈ ln Σ exp(−F_k), a sum over the solutions as if they were states apart. It is
            lower. On machines trained on data it was three times closer to the truth; where couplings are so strong
            that solutions mean nothing, neither is any guide.
        free_energies: F of each different solution, rising.
        n_excluded: solutions that had not converged and were left out.
    """

    log_sum_exp: LogLikelihood
    free_energies: Tensor
    n_excluded: int

    @property
    def n_unique(self) -> int:
        """How many different solutions there were."""
        return len(self.free_energies)

    def _summary(self) -> str:
        left_out = f", {self.n_excluded} not converged" if self.n_excluded else ""
        solutions = f"{self.n_unique} solution{'s' if self.n_unique > 1 else ''}{left_out}"
        return f"{super()._summary()}, {solutions}; {self.log_sum_exp.mean:.4f} by log-sum-exp"


@torch.no_grad()
def tap_log_likelihood(
    machine: BoltzmannMachine,
    x: Tensor,
    solutions: Solution | None = None,
    *,
    scheme: Scheme | None = None,
) -> TAPLogLikelihood:
    """ln P(x) by the TAP mean field: Σ ln P_i(x_i) + Σ_j ln Z_j(Σ_i W_ij x_i, 0) + F [eq:tapll], for any unit types.

    F is the free energy of the machine, averaged over its different solutions; the log-sum-exp over them is given, too.
    With one hidden layer or none the rest is exact. With more, F(x) is that of the machine clamped to the row, by the
    same scheme, and a row whose solution does not converge is not scored.

    With given solutions a row's value does not depend on the other rows, nor on the order of either, nor on how the
    work is split.

    Args:
        machine: any machine that is not conditioned. It is scored in float64, whatever its dtype.
        x: data, (N, n_visible).
        solutions: of the free machine as it is now, by `solve`. Those that have not converged are left out and counted.
            Without solutions, the machine is solved from up to 1,000 of the rows, in float64 to 1e-14; to score
            different data with the same ln Z, solve once and pass the solutions.
        scheme: by which it was or is solved; `TAP()` unless given.

    Raises:
        EstimateError: if no solution has converged, or no row could be scored.
        ValueError: if the solutions are not those of this machine as it is now.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm, tap_log_likelihood
        >>> likelihood = tap_log_likelihood(rbm(Binary(4), Binary(2)), torch.eye(4))
        >>> likelihood
        TAPLogLikelihood(-2.7724 ± 0.0005 nats over 4 rows, 1 solution; -2.7724 by log-sum-exp)
        >>> likelihood.values.shape
        torch.Size([4])
    """
    double, rows = for_scoring(machine, x)
    scheme = scheme or TAP()
    solutions = solve_from_rows(machine, x, scheme) if solutions is None else solutions
    found = different_solutions(machine, solutions, scheme)
    free_energies = found.solutions.free_energy.double()
    weights = log_weight(double, rows) if len(double.layers) <= 2 else clamped_log_weight(double, rows, scheme)
    estimates = [-free_energies.mean(), (-free_energies).logsumexp(0)]
    not_known, size = torch.full_like(estimates[0], torch.nan), n_units(machine)
    average, log_sum_exp = (LogLikelihood(weights - ln_z, ln_z, not_known, size) for ln_z in estimates)
    return TAPLogLikelihood(
        average.values, average.log_partition, not_known, size, log_sum_exp, free_energies, found.n_excluded
    )


@torch.no_grad()
def different_solutions(machine: BoltzmannMachine, solutions: Solution, scheme: Scheme | None = None) -> Unique:
    """The different ones of a machine's solutions, with F in float64; an EstimateError, if none has converged."""
    double = in_double(machine)
    found = unique(double, _evaluated(double, solutions, scheme or TAP()), same=ROUGHLY_SAME)
    if len(found) == 0:
        raise EstimateError(
            f"none of {len(solutions)} solutions has converged ({solutions}), so that there is no F; raise max_sweeps "
            "of solve(), or start it elsewhere"
        )
    return found


@torch.no_grad()
def solve_from_rows(
    machine: BoltzmannMachine, x: Tensor, scheme: Scheme | None = None, n_starts: int = N_STARTS
) -> Solution:
    """Solutions from some of the rows, evenly spaced, as `tap_log_likelihood` takes them: in float64, to 1e-14."""
    double, starts = for_scoring(machine, spaced(x, n_starts))
    return solve(double, starts, scheme or TAP(), tol=TOLERANCE, max_sweeps=MAX_SWEEPS)


def _evaluated(machine: BoltzmannMachine, solutions: Solution, scheme: Scheme) -> Solution:
    """The solutions with F as this machine and scheme have it, in float64; a ValueError, if that is another one."""
    layers = machine.units()
    shapes = [layer.state_shape for layer in layers]
    if not isinstance(solutions, Solution) or [tuple(own.mean.shape[1:]) for own in solutions.moments] != shapes:
        raise ValueError("solutions must be those of this machine, by solve()")
    evaluated = solutions.free_energy.to(machine.device, machine.dtype, copy=True)
    index = solutions.converged.nonzero().squeeze(-1)
    for rows in index.split(max(1, CHUNK_VALUES // sum(machine.sizes))):
        own = solutions.select(rows)
        moments = [Moments(*(z.to(machine.device, machine.dtype) for z in layer)) for layer in own.moments]
        tilts = [Tilt(*(torch.as_tensor(z).to(machine.device, machine.dtype) for z in layer)) for layer in own.tilts]
        value = scheme.free_energy(machine, moments, tilts)
        told = evaluated[rows]
        off = ((value - told).abs() > SAME_FREE_ENERGY + 1e-4 * told.abs()).nonzero()
        if len(off):
            number = int(rows[off[0]])
            raise ValueError(
                f"solution {number} has F = {solutions.free_energy[number]:.3f}, but F = {value[off[0]].item():.3f} by "
                f"{scheme!r} of this machine: it was solved with another scheme, or the parameters changed since"
            )
        evaluated[rows] = value
    return replace(solutions, free_energy=evaluated)


@torch.no_grad()
def clamped_log_weight(machine: BoltzmannMachine, x: Tensor, scheme: Scheme) -> Tensor:
    """−F of the machine clamped to each row; NaN where it does not converge."""
    solution = solve(hidden_given(machine, x), None, scheme, tol=TOLERANCE, max_sweeps=MAX_SWEEPS)
    if not bool(solution.converged.any()):
        raise EstimateError(f"no row could be scored: clamped to them, the machine has no solution ({solution})")
    if not bool(solution.converged.all()):
        warnings.warn(
            f"{int((~solution.converged).sum())} of {len(x)} rows are not scored and left out of the mean: clamped to "
            f"them, the machine has no solution ({solution})",
            LikelihoodWarning,
            stacklevel=4,  # past the decorator
        )
    own = machine.units()[0].log_prior(x).sum(-1, dtype=torch.float64)
    return torch.where(solution.converged, own - solution.free_energy.double(), torch.nan)
