"""TAP log-likelihood [eq:tapll], which is deterministic and needs no sampling."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Solution, Tilt
from tapmachine.data.checks import check_count
from tapmachine.data.errors import EstimateError, LikelihoodWarning, warn
from tapmachine.data.rows import spaced
from tapmachine.likelihood.result import LogLikelihood
from tapmachine.likelihood.weight import CHUNK_VALUES, log_weight
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import for_scoring, n_units
from tapmachine.machine.conditioning import hidden_machine
from tapmachine.solver import TAP, Scheme, solve
from tapmachine.solver.merging import ROUGHLY_SAME, merge_solutions

N_STARTS = 1000  # default number of rows from which solutions start
TOLERANCE = 1e-14  # tolerance of these solutions, small enough to separate distinct ones
MAX_SWEEPS = 5000
SAME_FREE_ENERGY = 0.01  # nats: solutions whose F differs by more belong to another machine


@dataclass(frozen=True, repr=False, eq=False)
class TAPLogLikelihood(LogLikelihood):
    """Log-likelihoods ln P(x) ≈ F − F(x), with F averaged over the distinct solutions of the machine, as in the paper.

    Attributes:
        log_sum_exp: Log-likelihood with ln Z ≈ ln Σ exp(−F_k), which treats distinct solutions as separate states and
            gives lower values. For machines trained on data, this estimate was three times closer to the exact value
            than the average over solutions. If the couplings are too strong for the mean field, neither estimate is
            reliable.
        free_energies: Free energy F of each distinct solution, in increasing order.
        n_excluded: Number of solutions excluded because they did not converge.
    """

    log_sum_exp: LogLikelihood
    free_energies: Tensor
    n_excluded: int

    @property
    def n_unique(self) -> int:
        """Number of distinct solutions."""
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
    """Estimate ln P(x) of each row by TAP, for any unit types [eq:tapll].

    The estimate is Σ ln P_i(x_i) + Σ_j ln Z_j(Σ_i W_ij x_i, 0) + F, where F is the free energy of the machine, averaged
    over its distinct solutions. The attribute `log_sum_exp` of the result uses the log-sum-exp over the solutions
    instead. With at most one hidden layer, all other terms are exact. With several hidden layers, these terms are
    replaced by the negative free energy of the machine clamped to the row, computed by the same scheme. A row whose
    solution does not converge is not scored.

    For fixed `solutions`, the value of a row does not depend on the other rows or their order.

    Args:
        machine: Unconditioned machine, scored in float64.
        x: Data, shape (N, n_visible).
        solutions: Solutions of the unclamped machine from `solve` (default: solved from at most 1,000 of the rows).
            Solutions that did not converge are excluded, and their number is reported. To score several data sets with
            the same ln Z, call `solve_from_rows` once and pass its result.
        scheme: Mean-field scheme of the solutions (default: `TAP()`).

    Raises:
        EstimateError: If no solution converged, or no row could be scored.
        ValueError: If the solutions do not belong to this machine with its current parameters.

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
    distinct = merge_solutions(double, _evaluated(double, solutions, scheme), same=ROUGHLY_SAME)
    if len(distinct) == 0:
        raise EstimateError(
            f"none of the {len(solutions)} solutions converged ({solutions}), so F is not available; increase "
            "max_sweeps of solve(), or use other initial states"
        )
    free_energies = distinct.solutions.free_energy.double()
    weights = log_weight(double, rows) if len(double.layers) <= 2 else clamped_log_weight(double, rows, scheme)
    estimates = [-free_energies.mean(), (-free_energies).logsumexp(0)]
    not_known, size = torch.full_like(estimates[0], torch.nan), n_units(machine)
    average, log_sum_exp = (LogLikelihood(weights - ln_z, ln_z, not_known, size) for ln_z in estimates)
    return TAPLogLikelihood(
        average.values, average.log_partition, not_known, size, log_sum_exp, free_energies, distinct.n_excluded
    )


@torch.no_grad()
def solve_from_rows(
    machine: BoltzmannMachine, x: Tensor, scheme: Scheme | None = None, n_starts: int = N_STARTS
) -> Solution:
    """Solve a machine from evenly spaced rows, in float64 and with a tolerance of 1e-14.

    By default, `tap_log_likelihood` uses this function to solve a machine.

    Args:
        machine: Unconditioned machine.
        x: Data, shape (N, n_visible).
        scheme: Mean-field scheme (default: `TAP()`).
        n_starts: Maximum number of rows to start from (default: 1,000).

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm, tap_log_likelihood
        >>> from tapmachine.likelihood.tap import solve_from_rows
        >>> machine, x = rbm(Binary(4), Binary(2)), torch.eye(4)
        >>> solutions = solve_from_rows(machine, x)
        >>> round(float(tap_log_likelihood(machine, 1 - x, solutions)), 2)
        -2.77
    """
    double, starts = for_scoring(machine, spaced(x, check_count("n_starts", n_starts)))
    return solve(double, starts, scheme or TAP(), tol=TOLERANCE, max_sweeps=MAX_SWEEPS)


def _evaluated(machine: BoltzmannMachine, solutions: Solution, scheme: Scheme) -> Solution:
    """Evaluate F of solutions in float64.

    Raises:
        ValueError: If the solutions belong to another machine or scheme.
    """
    shapes = [layer.state_shape for layer in machine.layers]
    if not isinstance(solutions, Solution) or [tuple(mean.shape[1:]) for mean, _ in solutions.moments] != shapes:
        raise ValueError("solutions do not belong to this machine; expected the result of solve() for this machine")
    evaluated = solutions.free_energy.to(machine.device, machine.dtype, copy=True)
    index = solutions.converged.nonzero().squeeze(-1)
    for rows in index.split(max(1, CHUNK_VALUES // sum(machine.sizes))):
        part = solutions.select(rows)
        moments = [Moments(*(z.to(machine.device, machine.dtype) for z in layer)) for layer in part.moments]
        tilts = [Tilt(*(torch.as_tensor(z).to(machine.device, machine.dtype) for z in layer)) for layer in part.tilts]
        value = scheme.free_energy(machine, moments, tilts)
        stated = evaluated[rows]
        off = ((value - stated).abs() > SAME_FREE_ENERGY + 1e-4 * stated.abs()).nonzero()
        if len(off):
            row = int(rows[off[0]])
            raise ValueError(
                f"solution {row} has F = {solutions.free_energy[row]:.3f}, but F = {value[off[0]].item():.3f} by "
                f"{scheme!r} of this machine: it was solved with another scheme, or the parameters have changed since"
            )
        evaluated[rows] = value
    return replace(solutions, free_energy=evaluated)


@torch.no_grad()
def clamped_log_weight(machine: BoltzmannMachine, x: Tensor, scheme: Scheme) -> Tensor:
    """Return −F of the machine clamped to each row, with NaN for rows whose solution did not converge."""
    solution = solve(hidden_machine(machine, x), None, scheme, tol=TOLERANCE, max_sweeps=MAX_SWEEPS)
    if not bool(solution.converged.any()):
        raise EstimateError(
            f"no row could be scored, because no solution of the clamped machine converged ({solution})"
        )
    if not bool(solution.converged.all()):
        warn(
            f"{int((~solution.converged).sum())} of {len(x)} rows are not scored and are excluded from the mean, "
            f"because the solution of the clamped machine did not converge ({solution})",
            LikelihoodWarning,
        )
    log_prior = machine.layers[0].log_prior(x).sum(-1, dtype=torch.float64)
    return torch.where(solution.converged, log_prior - solution.free_energy.double(), torch.nan)
