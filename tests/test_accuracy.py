"""Errors of every unit type against mpmath at points that stress every regime: a part of them by default."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from mpmath import mp, mpf
from oracles import integral_by_quadrature, truncated_gaussian_integral
from unit_cases import CASES, Case, parameters_of

from tapmachine import Custom, Mixed, Tilt


class Limits(NamedTuple):
    mean: float  # of the interval, or of the distribution's own scale where that is infinite
    variance: float  # relative
    log_partition: float  # relative, absolute near 0


# What the package promises (docs/design_notes.md has the table), not what rounding asks for: of 20,000 points the worst
# variance in float32 comes to half of its limit, everything else to a fifth or less.
LIMITS = {torch.float64: Limits(1e-10, 1e-8, 1e-10), torch.float32: Limits(1e-5, 1e-4, 1e-5)}


class Errors(NamedTuple):
    mean: float
    variance: float
    log_partition: float
    worst: tuple  # the points at which they occur

    def within(self, limits: Limits) -> bool:
        return all(error <= limit for error, limit in zip(self[:3], limits, strict=True))


def measure(case: Case, n_points: int, dtype: torch.dtype, seed: int = 0) -> Errors:
    """The largest errors over seeded points."""
    units, field, precision = case.stressed(np.random.default_rng(seed), n_points, dtype)
    tilt = Tilt(field, precision)
    with torch.no_grad():
        log_partition, (mean, variance) = units.log_partition_and_moments(tilt)
        finite = units.normalizable(tilt)
    for value in (log_partition, mean, variance):  # what cannot be normalized is said to be so, by all three
        assert torch.equal(torch.isinf(value.reshape(n_points, -1)).any(-1), ~finite)
        assert not torch.isnan(value).any()
    smallest = torch.finfo(dtype).tiny
    ends = [bound.detach().double() for bound in units.bounds()]
    lengths = (ends[1] - ends[0]).expand(n_points).tolist()
    worst, points = [0.0, 0.0, 0.0], [None, None, None]
    for i in finite.nonzero().flatten().tolist():
        parameters, B, A = parameters_of(units, case, i), field[i].tolist(), precision[i].tolist()
        answer = case.oracle(parameters, B, A)
        means, variances = mean[i].flatten().tolist(), variance[i].flatten().tolist()
        exact_means = answer.mean if isinstance(answer.mean, list) else [answer.mean]
        exact_variances = answer.variance if isinstance(answer.variance, list) else [answer.variance]
        errors = [0.0, 0.0, float(abs(log_partition[i].item() - answer.log) / max(1, abs(answer.log)))]
        for a, c, exact_a, exact_c in zip(means, variances, exact_means, exact_variances, strict=True):
            scale = lengths[i] if np.isfinite(lengths[i]) else max(abs(float(exact_a)), float(exact_c) ** 0.5)
            errors[0] = max(errors[0], float(abs(a - exact_a)) / scale)
            underflow = exact_c < smallest and c <= smallest  # no relative accuracy below the normal numbers
            errors[1] = max(errors[1], 0.0 if underflow else float(abs(c - exact_c) / exact_c))
        for j, error in enumerate(errors):
            if not error <= worst[j]:  # a NaN counts as the worst
                worst[j], points[j] = error, (parameters, B, A)
    return Errors(*worst, worst=tuple(points))


@pytest.mark.parametrize("n_points", [100, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_values_against_mpmath(case, dtype, n_points):
    errors = measure(case, n_points, dtype, seed=1 if n_points == 100 else 0)
    print(f"{case.name}, {dtype}:", *(f"{error:.1e}" for error in errors[:3]))
    assert errors.within(LIMITS[dtype]), errors


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 40))])
def test_the_oracle_itself(seed):
    """The error-function oracle against mpmath's own quadrature."""
    rng = np.random.default_rng(seed)
    u, v = rng.normal() * 20, rng.normal() * 30
    lower, upper = [(0, 1), (-1, 2), (0, mp.inf), (-0.5, 40)][seed % 4]
    if mp.isinf(upper):
        v = abs(v)
    exact, by_quadrature = truncated_gaussian_integral(u, v, lower, upper), integral_by_quadrature(u, v, lower, upper)
    for a, b in zip(exact, by_quadrature, strict=True):
        assert abs(a - b) <= mpf("1e-15") * max(1, abs(a))


@pytest.mark.parametrize("n", [15, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gradients_against_mpmath(case, n):
    """∂ ln Z in B, A and every parameter against central differences in high precision: 1e-7 relative."""
    units, field, precision = case.stressed(np.random.default_rng(3), n, torch.float64, 30.0)
    finite = units.normalizable(Tilt(field, precision))
    field.requires_grad_()
    precision.requires_grad_()
    log_partition = units.log_partition(Tilt(field, precision))
    log_partition[finite].sum().backward()
    found = {"B": field.grad, "A": precision.grad} | {
        case.stored.get(name, name): parameter.grad / chain_rule_factor(units, name)
        for name, parameter in units.named_parameters()
        if not isinstance(units, Mixed)  # its blocks are cases of their own
    }
    reach = max(map(abs, case.support)) if np.isfinite(case.support).all() else 1.0
    for i in finite.nonzero().flatten().tolist():
        parameters, B, A = parameters_of(units, case, i), field[i].tolist(), precision[i].tolist()
        for name, gradient in found.items():
            exact = central_difference(case, parameters, B, A, name)
            # A derivative in a prior's parameter is a difference of two averages of x or ½x²; near 0 it can be no
            # more accurate than they are.
            floor = 1e-6 * (0.5 * reach**2 if name in ("A", "precision") else reach)
            for value, expected in zip(gradient[i].flatten().tolist(), exact, strict=True):
                assert abs(value - expected) <= 1e-7 * max(abs(expected), floor), (name, parameters, B, A)


def chain_rule_factor(units, name):
    """d(public)/d(stored) of a parameter that is stored as its logarithm."""
    if name.endswith("log_growth"):
        return units.precision.detach()
    if name.endswith("free_precision"):
        return torch.where(torch.isfinite(units.upper - units.lower), 1.0, units.precision).detach()
    return 1.0


def central_difference(case, parameters, B, A, name):
    """∂ ln Z/∂name from the oracle; one entry for each component of a vector."""
    with mp.workdps(110):
        step = mpf("1e-30")

        def log_partition(values):
            inputs = {"B": B, "A": A} | parameters | {name: values}
            tilt = inputs.pop("B"), inputs.pop("A")
            return case.oracle(inputs, *tilt).log

        here = {"B": B, "A": A, **parameters}[name]
        if not isinstance(here, list):
            return [(log_partition(mpf(here) + step) - log_partition(mpf(here) - step)) / (2 * step)]
        slopes = []
        for j in range(len(here)):
            up, down = list(map(mpf, here)), list(map(mpf, here))
            up[j] += step
            down[j] -= step
            slopes.append((log_partition(up) - log_partition(down)) / (2 * step))
        return slopes


@pytest.mark.parametrize(("n_parts", "part"), [(1, 30_000), pytest.param(4, 250_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_many_points_stay_in_range(case, dtype, n_parts, part):
    """No non-finite value, the mean inside the support and 0 ≤ variance ≤ (upper − lower)²/4."""
    lower, upper = case.support
    for seed in range(n_parts):
        units, field, precision = case.stressed(np.random.default_rng(100 + seed), part, dtype)
        if isinstance(units, Custom):  # its tilts do not depend on its parameters: fewer units, more rows
            units, _, _ = case.stressed(np.random.default_rng(100 + seed), part // 500, dtype)
            field, precision = field.view(500, -1), precision.view(500, -1)
        tilt = Tilt(field, precision)
        with torch.no_grad():
            finite = units.normalizable(tilt)
            log_partition, (mean, variance) = units.log_partition_and_moments(tilt)
        assert torch.isfinite(log_partition[finite]).all()
        assert torch.isfinite(mean[finite]).all()
        assert torch.isfinite(variance[finite]).all()
        assert bool((mean[finite] >= torch.tensor(lower, dtype=dtype)).all())
        assert bool((mean[finite] <= torch.tensor(upper, dtype=dtype)).all())
        assert bool((variance[finite] >= 0).all())
        assert bool((variance[finite] <= torch.tensor((upper - lower) ** 2 / 4, dtype=dtype)).all())
        assert finite.float().mean() > 0.5
