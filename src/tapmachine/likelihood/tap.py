"""The TAP log-likelihood [eq:tapll]: deterministic, without sampling."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tapmachine.beliefs import Solution, Status
from tapmachine.conditioning import clamp
from tapmachine.inference import Scheme, solve
from tapmachine.landscape import unique
from tapmachine.likelihood.score import LogLikelihood, check_rows, in_double, log_weight, n_units
from tapmachine.machine import BoltzmannMachine

N_STARTS = 1000  # rows that solutions are started from, unless they are given
TOLERANCE = 1e-14  # to which those are solved, so that they can be told apart


@dataclass(frozen=True, repr=False)
class TAPLogLikelihood(LogLikelihood):
    """ln P(x) ≈ F − F(x), with the free energy F of the machine averaged over its different solutions, as in the paper.

    Attributes:
        log_sum_exp: the same with ln Z ≈ ln Σ exp(−F_k), a sum over the solutions as if they were states apart. It is
            lower, and closer to the truth where the solutions are well separated.
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

    def __repr__(self) -> str:
        left_out = f", {self.n_excluded} not converged" if self.n_excluded else ""
        unscored = int((~self.scored).sum())
        rows = f"{len(self.values)} rows" + (f", {unscored} of them not scored" if unscored else "")
        return (
            f"TAPLogLikelihood({self.mean:.4f} ± {self.standard_error:.4f} nats, {rows}, "
            f"{self.n_unique} solutions{left_out}; {self.log_sum_exp.mean:.4f} by log-sum-exp)"
        )


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

    The result is the same whatever the order of the rows and of the solutions is, and however the work is split.

    Args:
        machine: any machine that is not conditioned. It is scored in float64, whatever its dtype.
        x: data, (N, n_visible).
        solutions: of the free machine, by `solve`. Those that have not converged are left out and counted. Without
            solutions, the machine is solved from up to 1,000 of the rows, in float64 to 1e-14.
        scheme: for what is solved here; `TAP()` unless given.

    Raises:
        ValueError: if no solution has converged, or no row could be scored.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm, tap_log_likelihood
        >>> likelihood = tap_log_likelihood(rbm(Binary(4), Binary(2)), torch.eye(4))
        >>> likelihood
        TAPLogLikelihood(-2.7724 ± 0.0005 nats, 4 rows, 1 solutions; -2.7724 by log-sum-exp)
        >>> likelihood.values.shape
        torch.Size([4])
    """
    double = in_double(machine)
    rows = check_rows(double, x)
    if solutions is None:
        starts = rows[:: -(-len(rows) // N_STARTS)]
        solutions = solve(double, starts, scheme, tol=TOLERANCE)
    found = unique(double, _checked(double, solutions))
    if len(found) == 0:
        raise ValueError(f"none of {len(solutions)} solutions has converged ({solutions.counts()}): there is no F")
    free_energies = found.solutions.free_energy.double()
    weights = log_weight(double, rows) if len(double.layers) <= 2 else _clamped_log_weight(double, rows, scheme)
    estimates = [-free_energies.mean(), (-free_energies).logsumexp(0)]
    no_error, size = torch.zeros_like(estimates[0]), n_units(machine)
    average, log_sum_exp = (LogLikelihood(weights - ln_z, ln_z, no_error, size) for ln_z in estimates)
    return TAPLogLikelihood(
        average.values, average.log_partition, no_error, size, log_sum_exp, free_energies, found.n_excluded
    )


def _checked(machine: BoltzmannMachine, solutions: Solution) -> Solution:
    shapes = [layer.state_shape for layer in machine.units()]
    if not isinstance(solutions, Solution) or [tuple(own.mean.shape[1:]) for own in solutions.moments] != shapes:
        raise ValueError("solutions must be those of this machine, by solve()")
    return solutions


def _clamped_log_weight(machine: BoltzmannMachine, x: Tensor, scheme: Scheme | None) -> Tensor:
    """−F of the machine clamped to each row; NaN where it does not converge."""
    solution = solve(clamp(machine, x), None, scheme, tol=TOLERANCE)
    if not bool(solution.converged.any()):
        raise ValueError(f"no row could be scored: the machine clamped to them has no solution ({solution.counts()})")
    return torch.where(solution.status == Status.CONVERGED, -solution.free_energy.double(), torch.nan)
