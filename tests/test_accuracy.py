"""Values against mpmath. The full measurement is `make accuracy`; this is a part of it, at another seed."""

import numpy as np
import pytest
import torch
from accuracy import LIMITS, measure
from mpmath import mp, mpf
from oracles import integral_by_quadrature, truncated_gaussian_integral
from unit_cases import CASES, parameters_of

from tapmachine import Custom, Mixed, Tilt


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_values_against_mpmath(case, dtype):
    errors = measure(case, 100, dtype, seed=1)
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


SLOWEST = "Custom on an interval"


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_many_points_stay_in_range(case, dtype):
    """No non-finite value, the mean inside the support and 0 ≤ variance ≤ (upper − lower)²/4."""
    _stay_in_range(case, dtype, n_parts=1, part=50_000 if case.name == SLOWEST else 100_000)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_million_points_stay_in_range(case, dtype):
    _stay_in_range(case, dtype)


def _stay_in_range(case, dtype, n_parts=4, part=250_000):
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
