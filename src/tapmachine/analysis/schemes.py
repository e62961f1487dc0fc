"""Comparison of mean-field schemes, and correlations by linear response."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Solution, Tilt
from tapmachine.data.errors import EstimateError
from tapmachine.likelihood.exact import can_enumerate, exact_moments
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_machine, in_double
from tapmachine.machine.conditioning import condition
from tapmachine.machine.sampler import gibbs, sweep_chain
from tapmachine.solver import (
    TAP,
    AdaptiveTAP,
    BeliefPropagation,
    NaiveMeanField,
    RelaxedBP,
    Scheme,
    ThirdOrderTAP,
    solve,
)
from tapmachine.solver.merging import merge_solutions
from tapmachine.solver.starts import StartingPoint, fitting, starting_moments

SCHEMES: tuple[Callable[[], Scheme], ...] = (
    NaiveMeanField,
    TAP,
    ThirdOrderTAP,
    RelaxedBP,
    BeliefPropagation,
    AdaptiveTAP,
)
COMPARED = ("TAP", "ThirdOrderTAP", "AdaptiveTAP")  # schemes that agree if the couplings are weak
DISAGREEMENT = 0.1  # nats
NUDGE = 1e-4  # size of the field perturbation that measures the linear response
IMPLAUSIBLE = 100.0  # a response larger than this multiple of the variances means that the solution has changed
TOLERANCE = 1e-20
MAX_SWEEPS = 5000
MOST_ENUMERATED = 20  # exact values are computed if the smaller side has at most 2^20 states
GIBBS_SWEEPS = 2000
MOST_NUDGED = 1000  # maximum number of units for which the table contains correlations


@torch.no_grad()
def correlations(
    machine: BoltzmannMachine, solution: Solution, scheme: Scheme | None = None
) -> list[Tensor]:  # (size below, size above) for each weight matrix
    """Compute the covariance of every coupled pair of units at a solution by linear response.

    Each unit is perturbed by small positive and negative fields, and the equations are solved again, starting from the
    solution. The covariances follow from the changes of the neighbors' means. The method works for every scheme.

    Args:
        machine: A machine that is not conditioned on rows.
        solution: A `Solution` with a single particle, such as `solve(…).select(0)`.
        scheme: Mean-field scheme of the solution (default: `TAP()`).

    Returns:
        For each weight matrix, the covariances of the pairs of units that it couples, in the shape of the matrix.

    Raises:
        EstimateError: If the perturbed equations do not converge, or if they converge to a different solution.

    Example:
        >>> import torch
        >>> from tapmachine import Spin, pairwise, solve
        >>> from tapmachine.analysis import correlations
        >>> from tapmachine.likelihood import exact_moments
        >>> magnet = pairwise(Spin(3).double(), weights=0.2 * (torch.ones(3, 3) - torch.eye(3)).double())
        >>> correlations(magnet, solve(magnet))[0][0, 1], exact_moments(magnet).covariances[0][0, 1]
        (tensor(0.2298, dtype=torch.float64), tensor(0.2345, dtype=torch.float64))
    """
    if len(solution) != 1:
        raise ValueError(f"solution has {len(solution)} particles; select one of them with .select(index)")
    if machine.n_rows is not None:
        raise ValueError(f"the machine is conditioned on {machine.n_rows} rows; select one of them with .rows()")
    double, covariances = in_double(machine), []
    for below, above, weights in double.edges():
        size = weights.shape[0]
        shape = double.layers[below].state_shape
        nudges = NUDGE * torch.eye(size, dtype=double.dtype, device=double.device).view(size, *shape)
        means = []
        for sign in (1.0, -1.0):
            nudged = condition(double, Tilt(sign * nudges, 0.0), layer=below)
            start = [
                Moments(*(z.to(double.dtype).expand(size, *z.shape[1:]) for z in layer)) for layer in solution.moments
            ]
            solved = solve(nudged, start, scheme, tol=TOLERANCE, max_sweeps=MAX_SWEEPS)
            if not bool(solved.converged.all()):
                raise EstimateError(f"the equations did not converge after perturbing the units: {solved}")
            means.append(solved.moments[above].mean.flatten(1))
        response = (means[0] - means[1]) / (2 * NUDGE)
        largest = (solution.moments[below].variance.max() * solution.moments[above].variance.max()).sqrt()
        if bool(response.abs().max() > IMPLAUSIBLE * largest):  # `largest` is an upper bound on the covariances
            raise EstimateError(
                "the iteration does not return to the solution after a perturbation; the solution may be a saddle"
            )
        covariances.append(response)
    return covariances


@dataclass(frozen=True)
class SchemeRow:
    """Results of one scheme in a comparison.

    Attributes:
        scheme: Name of the scheme.
        log_partition: Estimate of ln Z, the negative free energy of the lowest solution; NaN if no start converged.
        log_partition_sum: Logarithm of the sum of exp(−F) over the distinct solutions, an estimate of ln Z that
            includes all states found from the starts.
        log_partition_error: Difference between the estimate and the exact ln Z; NaN if ln Z is unknown.
        mean_error: Root mean square error of the means of all units, relative to exact or sampled means.
        correlation_error: Root mean square error of the covariances of coupled pairs; NaN for large machines, or if the
            linear response cannot be computed.
        converged: Fraction of the starts that converged.
        sweeps: Mean number of sweeps per start.
        seconds: Computing time for all starts, in seconds.
    """

    scheme: str
    log_partition: float
    log_partition_sum: float
    log_partition_error: float
    mean_error: float
    correlation_error: float
    converged: float
    sweeps: float
    seconds: float


@dataclass(frozen=True)
class SchemeComparison:
    """Comparison of several schemes with reference values.

    Attributes:
        rows: Results, one `SchemeRow` per scheme.
        reference: Description of the reference values.

    Example:
        >>> from tapmachine import TAP, Binary, NaiveMeanField, rbm
        >>> from tapmachine.analysis import compare_schemes
        >>> table = compare_schemes(rbm(Binary(4), Binary(2)), schemes=[NaiveMeanField(), TAP()])
        >>> [row.scheme for row in table.rows]
        ['NaiveMeanField', 'TAP']
    """

    rows: tuple[SchemeRow, ...]
    reference: str

    @property
    def disagreement(self) -> float:
        """Largest difference in ln Z between TAP, third-order TAP and adaptive TAP; NaN if fewer than two converged."""
        values = [
            row.log_partition for row in self.rows if row.scheme in COMPARED and not math.isnan(row.log_partition)
        ]
        return max(values) - min(values) if len(values) > 1 else math.nan

    def table(self) -> str:
        """Format the results as a text table."""
        names = (
            "scheme",
            "ln Z",
            "of the sum",
            "its error",
            "RMSE means",
            "RMSE corr.",
            "converged",
            "sweeps",
            "seconds",
        )
        lines = ["{:20}{:>12}{:>12}{:>11}{:>11}{:>11}{:>11}{:>9}{:>9}".format(*names)]
        for row in self.rows:
            sums = (row.log_partition, row.log_partition_sum)
            errors = (row.log_partition_error, row.mean_error, row.correlation_error)
            cells = [*(f"{v:12.4f}" for v in sums), *(f"{v:11.2e}" for v in errors)]
            line = f"{row.scheme:20}{''.join(cells)}{row.converged:11.1%}{row.sweeps:9.0f}{row.seconds:9.2f}"
            lines.append(line.replace("nan", "  –"))
        lines.append(f"Errors are relative to {self.reference}. RMSE is over all units or all coupled pairs of units.")
        lines.append("ln Z is −F of the lowest solution; the sum is over the distinct solutions found from the starts.")
        if self.disagreement > DISAGREEMENT:
            lines.append(
                f"TAP, third-order TAP and adaptive TAP differ by {self.disagreement:.2f} nats: the couplings are too "
                "strong for an expansion, so trust none of the schemes without exact values."
            )
        if any(isinstance(value, float) and math.isnan(value) for row in self.rows for value in astuple(row)):
            lines.append(
                "– means not available: ln Z is exact for up to 2^20 states of the smaller side, and correlations are "
                "limited to small machines. Schemes that did not converge have no values."
            )
        return "\n".join(lines)

    def as_dicts(self) -> list[dict[str, float | str]]:
        """Return the results as a list of dictionaries, one per scheme."""
        return [asdict(row) for row in self.rows]

    def __repr__(self) -> str:
        return self.table()


class _Reference(NamedTuple):
    """Means of each layer and covariances of coupled units to compare with, and ln Z, which is NaN if unknown."""

    description: str
    log_partition: float
    means: list[Tensor]
    covariances: list[Tensor]


def _reference(machine: BoltzmannMachine, starts: Moments) -> _Reference:
    """Compute reference values by enumeration if feasible, and by Gibbs sampling otherwise."""
    if can_enumerate(machine, MOST_ENUMERATED):
        exact = exact_moments(machine)
        means = [moments.mean for moments in exact.moments]
        return _Reference("exact values from enumeration", float(exact.log_partition), means, [*exact.covariances])
    generator = torch.Generator(machine.device).manual_seed(0)
    units, edges = machine.layers[0], list(machine.edges())
    start = units.sample(Tilt(units.field_with_mean(starts.mean), 0.0), generator)
    chain = gibbs(machine, start, GIBBS_SWEEPS // 10, generator)
    sums = [torch.zeros_like(x[0], dtype=torch.float64) for x in chain]
    products = [torch.zeros_like(weights, dtype=torch.float64) for weights in machine.weights]
    for _ in range(GIBBS_SWEEPS):
        chain = sweep_chain(machine, chain, generator)
        for total, x in zip(sums, chain, strict=True):
            total += x.double().mean(0)
        for (below, above, _), total in zip(edges, products, strict=True):
            total += chain[below].flatten(1).double().T @ chain[above].flatten(1).double() / len(start)
    means = [total / GIBBS_SWEEPS for total in sums]
    covariances = [
        total / GIBBS_SWEEPS - means[below].flatten().outer(means[above].flatten())
        for (below, above, _), total in zip(edges, products, strict=True)
    ]
    description = f"means over {GIBBS_SWEEPS} Gibbs sweeps of {len(start)} chains"
    return _Reference(description, math.nan, means, covariances)


@torch.no_grad()
def compare_schemes(
    machine: BoltzmannMachine,
    starts: StartingPoint = None,
    schemes: Sequence[Scheme] | None = None,
    *,
    tol: float = 1e-14,
    max_sweeps: int = 2000,
) -> SchemeComparison:
    """Compare the free energies, means and correlations of several schemes with exact or sampled values.

    Small machines are compared with exact values, using the solution with the lowest free energy of each scheme. Larger
    machines are compared with Gibbs chains from the same starts, using the average over all converged solutions.

    Args:
        machine: A machine that is not conditioned on rows. It is solved in float64.
        starts: Starting points, in the same form as for `solve`.
        schemes: Schemes to compare (default: all schemes that support the machine's units).
        tol: Convergence tolerance for the residual (default: 1e-14).
        max_sweeps: Maximum number of sweeps per start (default: 2000).

    Returns:
        One row of results per scheme, and a description of the reference values. The table warns if TAP, third-order
        TAP and adaptive TAP disagree.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.analysis import compare_schemes
        >>> weights = 0.5 * torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
        >>> table = compare_schemes(rbm(Binary(6), Binary(4), weights=weights))
        >>> [row.scheme for row in table.rows][:3]
        ['NaiveMeanField', 'TAP', 'ThirdOrderTAP']
    """
    check_machine(machine)
    if machine.n_rows is not None:
        raise ValueError(f"the machine is conditioned on {machine.n_rows} rows; expected an unconditioned machine")
    double = in_double(machine)
    moments = [layer for layer in starting_moments(double, fitting(double, starts)) if layer is not None]
    reference = _reference(double, moments[0])
    rows = []
    for scheme in schemes or _usual_schemes(double):
        begin = time.perf_counter()
        solution = solve(double, moments, scheme, tol=tol, max_sweeps=max_sweeps)
        rows.append(_row(double, scheme, solution, reference, time.perf_counter() - begin))
    return SchemeComparison(tuple(rows), reference.description)


def _usual_schemes(machine: BoltzmannMachine) -> list[Scheme]:
    """Return all schemes that support a machine's units."""
    usual: list[Scheme] = []
    for scheme in (scheme_class() for scheme_class in SCHEMES):
        with suppress(ValueError):
            scheme.bind(machine)
            usual.append(scheme)
    return usual


def _row(
    machine: BoltzmannMachine, scheme: Scheme, solution: Solution, reference: _Reference, seconds: float
) -> SchemeRow:
    """Compare the solutions of one scheme with the reference values."""
    name = type(scheme).__name__
    converged, sweeps = float(solution.converged.double().mean()), float(solution.n_sweeps.double().mean())
    good = solution.converged.nonzero().squeeze(-1)
    if len(good) == 0:
        return SchemeRow(name, math.nan, math.nan, math.nan, math.nan, math.nan, converged, sweeps, seconds)
    best = solution.select(int(good[solution.free_energy[good].argmin()]))
    is_exact = not math.isnan(reference.log_partition)
    chosen = best if is_exact else solution.select(good)
    errors = [own.mean.mean(0) - mean for own, mean in zip(chosen.moments, reference.means, strict=True)]
    correlation_error = math.nan
    if sum(machine.sizes) <= MOST_NUDGED and (is_exact or len(good) == 1):
        with suppress(EstimateError):  # the error stays NaN
            covariances = correlations(machine, best, scheme)
            correlation_error = _rms([a - b for a, b in zip(covariances, reference.covariances, strict=True)])
    value = -float(best.free_energy)
    together = float((-merge_solutions(machine, solution).solutions.free_energy).logsumexp(0))
    off = value - reference.log_partition
    return SchemeRow(name, value, together, off, _rms(errors), correlation_error, converged, sweeps, seconds)


def _rms(errors: list[Tensor]) -> float:
    return float(torch.cat([error.flatten() for error in errors]).square().mean().sqrt())
