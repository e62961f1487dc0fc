"""One conformance suite for every unit type."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import DENORMALS
from oracles import truncated_gaussian_integral
from unit_cases import CASES

from tapmachine import (
    Binary,
    Categorical,
    Custom,
    Gaussian,
    Mixed,
    Poisson,
    SpikeSlab,
    Spin,
    Tilt,
    TruncatedGaussBernoulli,
    TruncatedGaussian,
)
from tapmachine.units import Units

BOTH = (torch.float32, torch.float64)
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
DRAWS = 200_000  # and five times as many in the slow tests
# Of a normal distribution that is one false alarm in 10¹⁰ comparisons; of those below there are about 200.
SIGMAS = 6.5


def mild_tilt(units, batch=(), seed=0, size=1.0):
    generator = torch.Generator().manual_seed(seed)
    shape = (*batch, *units.state_shape)
    field, precision = (size * torch.randn(shape, generator=generator, dtype=units.dtype) for _ in range(2))
    return Tilt(field, 0.1 * precision.abs())  # normalizable for every unit type


def samples(units, batch, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return units.sample(Tilt(torch.zeros(*batch, *units.state_shape, dtype=units.dtype), 0.0), generator=generator)


# ----- shapes, dtypes, normalization


@every_case
@pytest.mark.parametrize("dtype", BOTH, ids=str)
@pytest.mark.parametrize("batch", [(), (1,), (7,), (2, 3), (0,)], ids=str)
def test_shapes_and_dtypes(case, dtype, batch):
    units = case.simple(dtype=dtype)
    assert units.dtype == dtype
    tilt = mild_tilt(units, batch)
    moments = units.moments(tilt)
    assert moments.mean.shape == moments.variance.shape == (*batch, *units.state_shape)
    assert units.log_partition(tilt).shape == units.normalizable(tilt).shape == (*batch, units.n)
    x = units.sample(tilt)
    assert x.shape == (*batch, *units.state_shape)
    assert units.log_prior(x).shape == (*batch, units.n)
    for value in (*moments, units.log_partition(tilt), x, units.log_prior(x)):
        assert value.dtype == dtype


@every_case
@pytest.mark.parametrize("dtype", BOTH, ids=str)
def test_the_prior_is_normalized(case, dtype):
    """Z(0,0) = 1."""
    units, field, _ = case.stressed(np.random.default_rng(0), 2000, dtype)
    zero = torch.zeros_like(field)
    assert units.log_partition(Tilt(zero, zero)).abs().max() <= 1e-6
    assert units.log_partition(Tilt(0.0, 0.0)).abs().max() <= 1e-6


@every_case
def test_numbers_serve_as_a_tilt_for_all(case):
    units = case.simple()
    spread = torch.full(units.state_shape, 0.3, dtype=units.dtype)
    assert torch.equal(units.moments(Tilt(0.3, 0.3)).mean, units.moments(Tilt(spread, spread)).mean)
    assert torch.equal(units.log_partition(Tilt(spread, 0.3)), units.log_partition(Tilt(spread, spread)))


@every_case
def test_a_row_does_not_depend_on_its_batch(case):
    units, field, precision = case.stressed(np.random.default_rng(5), 50, torch.float64, 100.0)
    rows = torch.stack([field, field / 2, field * 0.9, -field])
    together = units.moments(Tilt(rows, precision))
    for i, row in enumerate(rows):
        alone = units.moments(Tilt(row, precision))
        torch.testing.assert_close(alone.mean, together.mean[i], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(alone.variance, together.variance[i], rtol=1e-12, atol=1e-12)


# ----- the functions of a unit type agree with each other


@every_case
def test_moments_are_derivatives_of_log_partition(case):
    """f_a = ∂ ln Z/∂B, f_c = ∂² ln Z/∂B² and ∂ ln Z/∂A = −½(f_c + f_a²), by automatic differentiation."""
    units = case.simple(n=6)
    field, precision = mild_tilt(units, (4,), size=3.0)
    field.requires_grad_()
    precision.requires_grad_()
    mean, variance = units.moments(Tilt(field, precision))
    log_partition = units.log_partition(Tilt(field, precision))
    d_field, d_precision = torch.autograd.grad(log_partition.sum(), (field, precision), create_graph=True)
    torch.testing.assert_close(d_field, mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(d_precision, -0.5 * (variance + mean**2), rtol=1e-9, atol=1e-9)
    if not isinstance(units, Categorical):  # a sum over states would mix their derivatives
        second = torch.autograd.grad(d_field.sum(), field)[0]
        torch.testing.assert_close(second, variance, rtol=1e-9, atol=1e-9)


@every_case
def test_moments_by_automatic_differentiation(case):
    """The default of the base class gives what the unit types compute by formula."""
    units = case.simple(n=6)
    if isinstance(units, Categorical):
        pytest.skip("the default is for units with one number a state")
    tilt = mild_tilt(units, (4,), size=3.0)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            default, own = Units.moments(units, tilt), units.moments(tilt)
        torch.testing.assert_close(default.mean, own.mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(default.variance, own.variance, rtol=1e-9, atol=1e-9)


@every_case
def test_moments_are_differentiable(case):
    """gradcheck of mean and variance in the tilt and in every parameter."""
    units = case.simple(n=3)
    field, precision = mild_tilt(units, (2,))
    inputs = (field.requires_grad_(), precision.requires_grad_())
    names = [name for name, _ in units.named_parameters()]

    def moments(field, precision, *parameters):
        named = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(_Call(units), {f"units.{k}": v for k, v in named.items()}, (field, precision))

    assert torch.autograd.gradcheck(moments, (*inputs, *units.parameters()), eps=1e-6, atol=1e-5)


class _Call(torch.nn.Module):
    def __init__(self, units):
        super().__init__()
        self.units = units

    def forward(self, field, precision):
        return tuple(self.units.moments(Tilt(field, precision)))


@every_case
def test_log_prior_is_normalized(case):
    """Summed or integrated over the support, P is 1 and its tilted average is Z."""
    units = case.simple(n=4)
    field, precision = (z.detach() for z in mild_tilt(units))
    x, weights = support_mesh(units, case)
    log_prior = units.log_prior(x).detach()
    total = (log_prior.exp() * weights).sum(0)
    torch.testing.assert_close(total, torch.ones_like(total), rtol=1e-7, atol=0)
    if isinstance(units, Categorical):
        exponent = (x * (field - 0.5 * precision)).sum(-1)
    else:
        exponent = field * x - 0.5 * precision * x**2
    average = ((log_prior + exponent).exp() * weights).sum(0).log()
    torch.testing.assert_close(average, units.log_partition(Tilt(field, precision)).detach(), rtol=1e-7, atol=1e-7)


def support_mesh(units, case):
    """Points (m, n) and weights (m, 1) that sum or integrate over the support."""
    if isinstance(units, Categorical):
        states = torch.arange(units.q).unsqueeze(-1).expand(-1, units.n)
        return units.check_states(states), torch.ones(units.q, 1, dtype=torch.float64)
    discrete = {"Binary": [0.0, 1.0], "Spin": [-1.0, 1.0], "Custom on a set": [-1.0, 0.0, 0.5, 2.0]}
    discrete["Poisson"] = list(map(float, range(200)))
    if case.name in discrete:
        points = torch.tensor(discrete[case.name], dtype=torch.float64)
        weights = torch.ones_like(points)
    else:
        lower, upper = (max(min(bound, 60.0), -60.0) for bound in case.support)
        if case.name == "TruncatedGaussian[0.001,1000]":
            edges = torch.logspace(-3, 3, 200, dtype=torch.float64)
        else:
            edges = torch.linspace(lower, upper, 200, dtype=torch.float64)
        t, w = np.polynomial.legendre.leggauss(20)
        half = edges.diff().unsqueeze(-1) / 2
        points = (edges[:-1].unsqueeze(-1) + half * (1 + torch.from_numpy(t))).flatten()
        weights = (half * torch.from_numpy(w)).flatten()
        if isinstance(units, Mixed):
            return mixed_mesh(units, points, weights)
        if isinstance(units, TruncatedGaussBernoulli | SpikeSlab):
            points, weights = torch.cat((points, torch.zeros(1))), torch.cat((weights, torch.ones(1)))
    return points.unsqueeze(-1).expand(-1, units.n), weights.unsqueeze(-1)


def mixed_mesh(units, points, weights):
    """The mesh for the Gaussian block, then the two states of the binary one; the other block counts for nothing."""
    gaussian, binary = units.sizes
    nothing, bits = torch.zeros_like(points), torch.tensor([0.0, 1.0], dtype=torch.float64)
    x = [torch.cat((points, bits)).unsqueeze(-1).expand(-1, gaussian)]
    x += [torch.cat((nothing, bits)).unsqueeze(-1).expand(-1, binary)]
    share = [torch.cat((weights, 0 * bits)).unsqueeze(-1).expand(-1, gaussian)]
    share += [torch.cat((nothing, torch.ones_like(bits))).unsqueeze(-1).expand(-1, binary)]
    return torch.cat(x, -1), torch.cat(share, -1)


# ----- draws

BULK, EDGE, BOTH_EDGES = (3.0, 2.0), (-60.0, 2.0), (-40.0, -80.0)
SAMPLED = [
    (Binary(1, field=0.5), (-1.0, 0.3)),
    (Spin(1, field=0.5), (-1.0, 0.3)),
    (Gaussian(1, field=0.5, precision=2.0), (-1.0, -0.3)),
    *[(Poisson(1, field=0.5), tilt) for tilt in ((1.0, 0.0), (7.0, 0.0), (-2.0, 0.3), (9.0, 0.02))],
    (Categorical(1, 4, field=torch.tensor([[0.0, 1.0, -1.0, 0.5]])), (0.3, 0.1)),
    (Custom(1, lambda x: -3 * x.abs(), values=[-1.0, 0.0, 0.5, 2.0]), (0.3, 0.1)),
    *[
        (units, tilt)
        for tilt in (BULK, EDGE, BOTH_EDGES)
        for units in (
            TruncatedGaussian(1),
            TruncatedGaussian(1, -1.0, 2.0, field=0.7, precision=1.5),
            TruncatedGaussBernoulli(1, active_probability=0.4),
            TruncatedGaussBernoulli(1, -1.0, 2.0, active_probability=0.7),
            Custom(1, lambda x: -x.abs(), lower=0.0, upper=1.0),
        )
    ],
    *[(TruncatedGaussian(1, 0.0, math.inf, precision=1.0), tilt) for tilt in (BULK, EDGE, (5.0, -1.0 + 1e-3))],
    (TruncatedGaussian(1, -math.inf, 0.5, precision=1.0), BULK),
    (TruncatedGaussBernoulli(1, 0.0, math.inf, active_probability=0.4), BULK),
    (SpikeSlab(1, field=0.5, active_probability=0.4), BULK),
    (TruncatedGaussian(1, field=1e4, precision=1e4), (0.0, 0.0)),
]


every_sampled = pytest.mark.parametrize(("units", "tilt"), SAMPLED, ids=lambda value: str(value).replace("\n", ""))


@pytest.mark.parametrize("draws", [DRAWS, pytest.param(5 * DRAWS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", BOTH, ids=str)
@every_sampled
def test_draws_have_the_right_moments(units, tilt, dtype, draws):
    """Mean and variance within their standard errors; with fewer draws from a slow custom prior."""
    if isinstance(units, Custom) and dtype == torch.float32:
        pytest.skip("a custom prior computes in float64 either way")
    draws = draws // 10 if isinstance(units, Custom) else draws
    units = copy.deepcopy(units).to(dtype)
    generator = torch.Generator().manual_seed(1)
    field = torch.full((draws, *units.state_shape), tilt[0], dtype=dtype)
    with torch.no_grad():
        x = units.sample(Tilt(field, tilt[1]), generator=generator).double()
        mean, variance = (z.double() for z in units.moments(Tilt(field[0], tilt[1])))
    units.check_states(x.to(dtype))
    # and what the moments themselves are accurate to in float32
    assert bool(((x.mean(0) - mean).abs() <= SIGMAS * (variance / draws).sqrt() + 1e-6 * mean.abs()).all())
    spread = (x - mean) ** 2
    error = SIGMAS * spread.std(0) / draws**0.5 + 1e-4 * variance
    assert bool(((spread.mean(0) - variance).abs() <= error).all())


@pytest.mark.parametrize(("u", "v"), [(3.0, 2.0), (-300.0, 1.0), (10.0, 20.0), (-40.0, -80.0), (-6.0, -12.1)])
def test_truncated_gaussian_draws_follow_the_density(u, v):
    """The whole distribution, not just two moments: a Kolmogorov–Smirnov distance against the exact CDF."""
    units = TruncatedGaussian(1, field=torch.tensor(u, dtype=torch.float64), precision=torch.tensor(v))
    x = samples(units, (100_000,)).flatten().sort().values
    grid = torch.linspace(0, 1, 20_001, dtype=torch.float64)
    density = units.log_prior(grid.unsqueeze(-1)).detach().exp().flatten()
    cdf = torch.cat((torch.zeros(1), torch.cumulative_trapezoid(density, grid)))
    at_draws = torch.from_numpy(np.interp(x.numpy(), grid.numpy(), cdf.numpy()))
    empirical = torch.arange(1, len(x) + 1, dtype=torch.float64) / len(x)
    assert (at_draws - empirical).abs().max() < 3 / len(x) ** 0.5  # 2 exp(-2·3²): 3 in 10⁸


@every_case
def test_draws_repeat_with_the_seed(case):
    units = case.simple()
    assert torch.equal(samples(units, (50,), seed=3), samples(units, (50,), seed=3))
    assert not torch.equal(samples(units, (50,), seed=3), samples(units, (50,), seed=4))


# ----- parameters


@every_case
@pytest.mark.parametrize("dtype", BOTH, ids=str)
def test_fit_to_matches_the_data(case, dtype):
    units = case.simple(n=6, dtype=dtype)
    if isinstance(units, Custom):
        pytest.skip("a custom prior is left as it is")
    generator = torch.Generator().manual_seed(0)
    tilt = mild_tilt(units, (), seed=2)
    if isinstance(units, Poisson):  # of which the mean is the variance, but not under a precision
        tilt = Tilt(tilt.field, torch.zeros_like(tilt.precision))
    x = units.sample(Tilt(tilt.field.expand(20_000, *tilt.field.shape), tilt.precision), generator=generator)
    fresh = case.simple(n=6, dtype=dtype)
    assert fresh.fit_to(x) is fresh
    with torch.no_grad():
        mean, variance = fresh.moments(Tilt(0.0, 0.0))
    spread = x.std(0)
    assert bool(((mean - x.mean(0)).abs() <= 1e-3 * spread + 1e-3 * x.abs().max()).all())
    torch.testing.assert_close(variance, x.var(0), rtol=0.02, atol=1e-3 * float(x.abs().max()) ** 2)


@every_case
@pytest.mark.parametrize("dtype", BOTH, ids=str)
@pytest.mark.parametrize("rows", [1, 30, 100_000])
def test_constant_columns_leave_finite_parameters(case, dtype, rows):
    units = case.simple(n=3, dtype=dtype)
    for state in (samples(units, (1,), seed=1), samples(units, (1,), seed=2), extreme_state(units, case)):
        units.fit_to(state.expand(rows, *state.shape[1:]))
        for parameter in units.parameters():
            assert bool(torch.isfinite(parameter).all())
            assert parameter.abs().max() < 1e7
        with torch.no_grad():
            log_partition, moments = units.log_partition_and_moments(mild_tilt(units))
        assert (
            bool(torch.isfinite(torch.stack((*moments, log_partition.reshape(moments.mean.shape)))).all())
            if (moments.mean.shape == log_partition.shape)
            else bool(torch.isfinite(moments.mean).all())
        )


def extreme_state(units, case):
    """A state at the edge of the support."""
    if isinstance(units, Categorical):
        return units.check_states(torch.zeros(1, units.n, dtype=torch.long))
    edge = next((bound for bound in case.support if math.isfinite(bound)), 0.0)
    return torch.full((1, units.n), edge, dtype=units.dtype)


@every_case
def test_weights_stand_for_repeated_rows(case):
    units = case.simple(n=4)
    x = samples(units, (60,))
    repeats = torch.arange(60) % 3
    by_weight = copy.deepcopy(units).fit_to(x, weights=repeats.double())
    by_repeat = copy.deepcopy(units).fit_to(x.repeat_interleave(repeats, 0))
    for a, b in zip(by_weight.parameters(), by_repeat.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@every_case
def test_training_keeps_the_parameters_valid(case):
    """Whatever an optimizer does to the parameters, the prior stays normalizable."""
    units = case.simple(n=5)
    optimizer = torch.optim.SGD(units.parameters(), lr=5.0)
    for step in range(20):
        optimizer.zero_grad()
        tilt = mild_tilt(units, (8,), seed=step, size=3.0)
        x = units.sample(tilt, torch.Generator().manual_seed(step))
        (units.log_partition(tilt).mean() - units.log_prior(x).mean()).backward()
        optimizer.step()
        assert units.log_partition(Tilt(0.0, 0.0)).abs().max() < 1e-9
        assert bool(units.normalizable(Tilt(0.0, 0.0)).all())


def test_a_precision_that_was_set_is_kept_to_the_last_digit():
    values = torch.tensor([3.7, 1e4 / 3, 1e-4 / 7], dtype=torch.float64)
    for units in (Gaussian(3, precision=values), TruncatedGaussian(3, 0.0, math.inf, precision=values)):
        assert torch.equal(units.precision, values)
        with torch.no_grad():
            units.precision = 2 * values
        assert torch.equal(units.precision, 2 * values)


@every_case
def test_copies_and_state_dicts(case):
    units = case.simple()
    other = copy.deepcopy(units)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.linspace(0.1, 0.5, parameter.numel(), dtype=units.dtype).view_as(parameter))
    tilt = mild_tilt(units)
    assert not torch.allclose(units.log_prior(samples(units, (20,))), other.log_prior(samples(units, (20,))))
    other.load_state_dict(units.state_dict())
    assert torch.equal(units.moments(tilt).mean, other.moments(tilt).mean)
    assert f"n={units.n}" in repr(units)


@every_case
def test_float32_and_float64_agree(case):
    units = case.simple(n=20)
    tilt = mild_tilt(units, (10,), size=5.0)
    single = copy.deepcopy(units).float()
    tilt32 = Tilt(*(z.float() for z in tilt))
    torch.testing.assert_close(single.moments(tilt32).mean.double(), units.moments(tilt).mean, rtol=1e-5, atol=1e-5)
    log_partition = units.log_partition(tilt)
    torch.testing.assert_close(single.log_partition(tilt32).double(), log_partition, rtol=1e-4, atol=1e-5)


def numbers(most):
    return st.floats(-most, most, allow_subnormal=DENORMALS)


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(u=numbers(1e4), v=numbers(1e4), b=numbers(1e4), a=numbers(1e4), low=numbers(5))
def test_any_truncated_gaussian_stays_in_range(u, v, b, a, low):
    as_double = [torch.tensor([z], dtype=torch.float64) for z in (u, v, b, a)]
    units = TruncatedGaussian(1, low, low + 1.5, field=as_double[0], precision=as_double[1])
    with torch.no_grad():
        log_partition, (mean, variance) = units.log_partition_and_moments(Tilt(*as_double[2:]))
    assert torch.isfinite(log_partition)
    assert units.lower <= mean <= units.upper
    assert 0 <= variance <= 1.5**2 / 4 * (1 + 1e-12)


# ----- what cannot be normalized


@pytest.mark.parametrize(
    ("units", "tilt"),
    [
        (Gaussian(1, field=1.0, precision=2.0), (1.0, -2.0)),
        (Gaussian(1, field=1.0, precision=2.0), (-4.0, -5.0)),
        (Gaussian(1), (0.0, -1.0)),
        (TruncatedGaussian(1, 0.0, math.inf), (1.0, -2.0)),
        (TruncatedGaussian(1, 0.0, math.inf), (1.0, -1.0)),
        (TruncatedGaussian(1, -math.inf, 0.0), (-1.0, -1.0)),
        (TruncatedGaussBernoulli(1, 0.0, math.inf), (1.0, -2.0)),
        (SpikeSlab(1), (1.0, -2.0)),
    ],
    ids=str,
)
def test_what_cannot_be_normalized_is_reported(units, tilt):
    tilt = Tilt(torch.tensor([tilt[0]]), torch.tensor([tilt[1]]))
    assert not units.normalizable(tilt).any()
    assert units.log_partition(tilt).item() == math.inf
    mean, variance = units.moments(tilt)
    assert math.isinf(mean.item())
    assert variance.item() == math.inf
    assert math.isinf(units.sample(tilt).item()) or isinstance(units, TruncatedGaussBernoulli | SpikeSlab)
    units.log_partition(Tilt(tilt.field, torch.tensor([0.0]))).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in units.parameters())


def test_a_half_infinite_interval_at_zero_precision_is_an_exponential():
    units = TruncatedGaussian(1, 0.0, math.inf, precision=1.0)
    tilt = Tilt(torch.tensor([-3.0]), torch.tensor([-1.0]))
    assert units.normalizable(tilt).all()
    assert units.moments(tilt).mean.item() == pytest.approx(1 / 3, rel=1e-5)


def test_the_textbook_case_that_fails():
    """Range [0,1], V = 1, U = ±20: inf and NaN by the usual formulas in float32."""
    units = TruncatedGaussian(2, field=[-20.0, 20.0], precision=1.0)
    mean, variance = units.moments(Tilt(0.0, 0.0))
    for i, u in enumerate((-20, 20)):
        exact = truncated_gaussian_integral(u, 1, 0, 1)
        assert mean[i].item() == pytest.approx(float(exact.mean), abs=1e-6)
        assert variance[i].item() == pytest.approx(float(exact.variance), rel=1e-4)


# ----- bad input

BAD_CONSTRUCTION = [
    (lambda: Binary(0), "Binary: n is 0"),
    (lambda: Binary(2.5), "Binary: n is 2.5"),
    (lambda: Binary(3, field=[0.0, float("nan"), 0.0]), r"Binary: field\[1\] is nan; expected a finite number"),
    (lambda: Binary(3, field=[0.0, 1.0]), r"Binary: field has shape \(2,\)"),
    (lambda: Spin(2, field=torch.tensor([math.inf, 0.0])), r"Spin: field\[0\] is inf"),
    (lambda: Spin(2, field=torch.zeros(2, dtype=torch.float16)), "Spin: .* float32 or float64"),
    (lambda: Spin(2, field=torch.zeros(2, dtype=torch.complex64)), "Spin: field is torch.complex64"),
    (lambda: Gaussian(2, precision=[1.0, -3.0]), r"Gaussian: precision\[1\] is -3; expected a number greater than 0"),
    (lambda: TruncatedGaussian(2, 1.0, 1.0), "TruncatedGaussian: lower is 1; expected a number less than upper"),
    (lambda: TruncatedGaussian(2, [0.0, 2.0], [1.0, 1.0]), r"TruncatedGaussian: lower\[1\] is 2"),
    (lambda: TruncatedGaussian(2, -math.inf, math.inf), "expected a finite bound; use Gaussian"),
    (lambda: TruncatedGaussian(2, float("nan"), 1.0), "TruncatedGaussian: lower is nan"),
    (lambda: TruncatedGaussian(2, precision=[0.0, math.inf]), r"TruncatedGaussian: precision\[1\] is inf"),
    (lambda: TruncatedGaussian(2, 0.0, math.inf, precision=-1.0), r"TruncatedGaussian: precision\[0\] is -1"),
    (lambda: TruncatedGaussBernoulli(2, 0.5, 1.0), "TruncatedGaussBernoulli: lower is 0.5; expected lower ≤ 0 ≤ upper"),
    (lambda: TruncatedGaussBernoulli(2, [-1.0, -2.0], [1.0, -0.5]), r"TruncatedGaussBernoulli: upper\[1\] is -0.5"),
    (lambda: TruncatedGaussBernoulli(2, 1.0, 0.0), "TruncatedGaussBernoulli: lower is 1"),
    (lambda: TruncatedGaussBernoulli(2, active_probability=[0.5, 1.0]), r"active_probability\[1\] is 1"),
    (
        lambda: TruncatedGaussBernoulli(2, 0.0, 1.0, precision=[1.0, math.nan]),
        r"TruncatedGaussBernoulli: precision\[1\]",
    ),
    (lambda: TruncatedGaussian(2, 0.0, 1j), "TruncatedGaussian: upper is 1j; expected a real number"),
    (lambda: Binary(2, field="a"), "Binary: field is 'a'; expected a real number"),
    (lambda: Binary(2, field=None), "Binary: field is None"),
    (lambda: Categorical(2, 1), "Categorical: q is 1"),
    (lambda: Categorical(2, 3, field=torch.zeros(3, 2)), r"Categorical: field has shape \(3, 2\)"),
    (lambda: Custom(2, torch.log), "Custom: expected either lower and upper, or values"),
    (lambda: Custom(2, torch.log, 0.0, 1.0, values=[1.0]), "Custom: expected either"),
    (lambda: Custom(2, torch.log, 0.0), "Custom: upper is nan"),
    (lambda: Custom(2, torch.log, 1.0, 0.0), "Custom: lower is 1"),
    (lambda: Custom(2, torch.log, -1.0, 1.0), r"Custom: log_prior\(x\)\[0, 0\] is nan"),
    (lambda: Custom(2, lambda x: x.sum(), 0.0, 1.0, values=None), None),
    (lambda: Custom(2, lambda x: x[..., :1].repeat(1, 3), 0.0, 1.0), "expected the same shape"),
    (lambda: Custom(2, lambda x: 0 * x, values=[1.0, 1.0]), "distinct"),
]


@pytest.mark.parametrize(("build", "message"), BAD_CONSTRUCTION)
def test_bad_parameters(build, message):
    if message is None:
        build()
        return
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("units", "value", "message"),
    [
        (Binary(2), 0.5, r"Binary: x\[3, 1\] is 0.5; expected 0 or 1"),
        (Spin(2), 0.0, r"Spin: x\[3, 1\] is 0; expected -1 or 1"),
        (Gaussian(2), math.inf, r"Gaussian: x\[3, 1\] is inf; expected a finite number"),
        (TruncatedGaussian(2), 1.5, r"TruncatedGaussian: x\[3, 1\] is 1.5; expected a number between"),
        (TruncatedGaussian(2), math.nan, r"TruncatedGaussian: x\[3, 1\] is nan"),
        (TruncatedGaussian(2, 0.0, math.inf), math.inf, r"TruncatedGaussian: x\[3, 1\] is inf"),
        (TruncatedGaussBernoulli(2), -0.1, r"TruncatedGaussBernoulli: x\[3, 1\] is -0.1"),
        (Custom(2, lambda x: 0 * x, 0.0, 1.0), 2.0, r"Custom: x\[3, 1\] is 2"),
        (Custom(2, lambda x: 0 * x, values=[0.0, 1.0]), 0.5, r"Custom: x\[3, 1\] is 0.5; expected 0 or 1"),
    ],
)
def test_data_outside_the_support(units, value, message):
    x = samples(units, (5,))
    x[3, 1] = value
    for use in (units.log_prior, units.check_states, units.fit_to):
        with pytest.raises(ValueError, match=message):
            use(x)


def test_categorical_data():
    units = Categorical(2, 3)
    indices = torch.tensor([[0, 2], [1, 1]])
    one_hot = units.check_states(indices)
    assert torch.equal(units.log_prior(indices), units.log_prior(one_hot))
    assert torch.equal(units.check_states(indices.to(torch.uint16)), one_hot)
    with pytest.raises(ValueError, match=r"Categorical: x\[1, 0\] is 3; expected a state index from 0 to 2"):
        units.log_prior(torch.tensor([[0, 1], [3, 0]]))
    with pytest.raises(ValueError, match=r"x.sum\(-1\)\[0, 1\] is 2; expected 1, since"):
        units.log_prior(torch.tensor([[[1.0, 0, 0], [1.0, 1.0, 0]]]))


@every_case
def test_wrong_shapes_and_dtypes(case):
    units = case.simple(n=3)
    name = type(units).__name__
    good = torch.zeros(2, *units.state_shape, dtype=torch.float64)
    with pytest.raises(ValueError, match=f"{name}: tilt has shapes .* expected shapes ending in"):
        units.moments(Tilt(torch.zeros(2, 4, dtype=torch.float64), 0.0))
    with pytest.raises(ValueError, match=f"{name}: tilt has shapes"):
        units.log_partition(Tilt(good, torch.zeros(5, *units.state_shape, dtype=torch.float64)))
    with pytest.raises(ValueError, match=rf"{name}: tilt.precision is torch.float32, but the units are torch.float64"):
        units.moments(Tilt(good, good.float()))
    with pytest.raises(ValueError, match=f"{name}: tilt.field is torch.int64"):
        units.sample(Tilt(good.long(), 0.0))
    with pytest.raises(ValueError, match=f"{name}: x has shape"):
        units.log_prior(torch.zeros(2, 7, dtype=torch.float64))
    with pytest.raises(ValueError, match=f"{name}: x is torch.float32, but the units are torch.float64"):
        units.log_prior(good.float())
    with pytest.raises(ValueError, match=f"{name}: x is a list"):
        units.log_prior([1.0])
    with pytest.raises(ValueError, match=f"{name}: x has shape .* at least one row"):
        units.fit_to(samples(units, (0,)))
    x = samples(units, (2,))
    with pytest.raises(ValueError, match=rf"{name}: weights\[1\] is -1"):
        units.fit_to(x, weights=torch.tensor([1.0, -1.0]))
    with pytest.raises(ValueError, match=f"{name}: weights has shape"):
        units.fit_to(x, weights=torch.ones(3))
    with pytest.raises(ValueError, match=f"{name}: all weights are 0"):
        units.fit_to(x, weights=torch.zeros(2))


def test_tilts_that_are_not_tilts():
    with pytest.raises(ValueError, match="Binary: tilt is a Tensor; expected a Tilt"):
        Binary(3).moments(torch.zeros(3))
    with pytest.raises(
        ValueError, match=r"Binary: tilt has shapes \(2, 1\) and \(\); expected shapes ending in \(3,\)"
    ):
        Binary(3).moments(Tilt(torch.zeros(2, 1), 0.0))
    with pytest.raises(ValueError, match=r"TruncatedGaussian: the parameters are torch.float16"):
        TruncatedGaussian(3).half().moments(Tilt(0.0, 0.0))


@every_case
def test_a_tilt_that_is_not_finite_is_reported(case):
    units = case.simple(n=3)
    for bad in (math.nan, math.inf, -math.inf):
        field = torch.zeros(units.state_shape, dtype=torch.float64)
        field[1] = bad
        for tilt in (Tilt(field, 0.0), Tilt(0.0, field)):
            assert units.normalizable(tilt).tolist() == [True, False, True]
            assert torch.isfinite(units.moments(tilt).mean[0]).all()


@every_case
def test_validation_can_be_skipped(case):
    """Without a look at the values, but with shapes and dtypes converted as ever."""
    units = case.simple(n=3)
    x = samples(units, (4,))
    assert torch.equal(units.log_prior(x, validate=False), units.log_prior(x))
    with pytest.raises(ValueError, match="x has shape"):
        units.log_prior(torch.zeros(2, 7, dtype=torch.float64), validate=False)
    if isinstance(units, Categorical):
        indices = x.argmax(-1)
        assert torch.equal(units.log_prior(indices, validate=False), units.log_prior(x))


@pytest.mark.parametrize("smoothing", [-0.5, math.nan, math.inf, "a"])
def test_smoothing_is_checked(smoothing):
    with pytest.raises(ValueError, match="Gaussian: smoothing is"):
        Gaussian(2).fit_to(torch.randn(5, 2), smoothing=smoothing)


def test_a_failed_fit_changes_nothing():
    units = TruncatedGaussBernoulli(2)
    before = copy.deepcopy(units.state_dict())
    with pytest.raises(ValueError, match=r"TruncatedGaussBernoulli: .* never 0"):
        units.fit_to(torch.full((5, 2), 0.5), smoothing=0.0)
    assert all(torch.equal(before[name], value) for name, value in units.state_dict().items())


def test_columns_of_different_scales_do_not_disturb_each_other():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(10_000, 2, generator=generator, dtype=torch.float64) * torch.tensor([1e-3, 1e3])
    units = Gaussian(2, field=torch.zeros(2, dtype=torch.float64)).fit_to(x)
    torch.testing.assert_close(units.precision.detach() ** -0.5, x.std(0), rtol=1e-3, atol=0)
    x = torch.rand(10_000, 2, generator=generator, dtype=torch.float64) * torch.tensor([0.1, 900.0])
    units = TruncatedGaussian(2, lower=torch.zeros(2, dtype=torch.float64), upper=torch.tensor([1.0, 1000.0])).fit_to(x)
    mean, variance = units.moments(Tilt(0.0, 0.0))
    torch.testing.assert_close(mean.detach(), x.mean(0), rtol=1e-3, atol=0)
    torch.testing.assert_close(variance.detach(), x.var(0), rtol=2e-3, atol=0)


@pytest.mark.parametrize(("deviation", "dtype"), [(0.05, torch.float32), (0.01, torch.float64)])
def test_large_precisions_have_finite_gradients(deviation, dtype):
    """V far above ln of the largest float: a branch that is not taken must not spoil the gradient."""
    x = (0.5 + deviation * torch.randn(1000, 2, generator=torch.Generator().manual_seed(0))).to(dtype)
    for units in (TruncatedGaussian(2), TruncatedGaussBernoulli(2)):
        units.to(dtype).fit_to(x)
        assert units.precision.min() > 100
        (units.log_partition(Tilt(1.0, 0.0)).sum() + units.log_prior(x[:5]).sum()).backward()
        for parameter in units.parameters():
            assert torch.isfinite(parameter.grad).all()


@pytest.mark.parametrize(
    "units",
    [Gaussian(2), SpikeSlab(2), TruncatedGaussian(2, 0.0, math.inf), TruncatedGaussBernoulli(2, 0.0, math.inf)],
    ids=str,
)
def test_an_element_that_cannot_be_normalized_leaves_other_gradients_alone(units):
    field, precision = torch.tensor([[0.3, -0.2], [0.1, 0.4]]), torch.tensor([[0.0, 0.5], [0.2, -2.0]])
    good = torch.tensor([[True, True], [True, False]])

    def gradients(loss_of):
        units.zero_grad()
        b, a = field.clone().requires_grad_(), precision.clone().requires_grad_()
        log_partition, moments = units.log_partition_and_moments(Tilt(b, a))
        loss_of(log_partition, *moments).backward()
        return [p.grad.clone() for p in units.parameters()] + [b.grad, a.grad]

    def masked(*values):
        return sum(torch.where(good, z, 0.0).sum() for z in values)

    found = gradients(masked)
    precision[1, 1] = 1.0  # normalizable now, and still masked out
    expected = gradients(masked)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_numbers_keep_all_their_digits_in_float64():
    double = torch.zeros(2, dtype=torch.float64)
    assert Gaussian(2, field=double, precision=0.1).precision[0].item() == 0.1
    units = TruncatedGaussian(2, 0.1, 0.7, field=double)
    units.log_prior(torch.tensor([0.1, 0.7], dtype=torch.float64))
    assert (Custom(1, lambda x: -x, values=torch.tensor([0.1, 0.2], dtype=torch.float64)).values[0]).item() == 0.1


def test_gauss_bernoulli_with_a_narrow_slab_in_float32():
    """The weight of the slab and its integral are large and nearly cancel."""
    generator = torch.Generator().manual_seed(0)
    x = 0.8 + 0.005 * torch.randn(5000, 1, generator=generator, dtype=torch.float64)
    x[torch.rand(5000, 1, generator=generator) < 0.7] = 0.0
    units = TruncatedGaussBernoulli(1).fit_to(x.float())
    exact = copy.deepcopy(units).double()
    for b in (0.0, 5.0, -5.0):
        mean = units.moments(Tilt(b, 0.0)).mean.item()
        assert mean == pytest.approx(exact.moments(Tilt(b, 0.0)).mean.item(), abs=1e-5)


def test_the_default_moments_of_several_states():
    with pytest.raises(NotImplementedError, match="Categorical"):
        Units.moments(Categorical(2, 3), Tilt(0.0, 0.0))


def test_custom_with_a_prior_that_vanishes_somewhere():
    box = Custom(1, lambda x: torch.where((x > 0.44) & (x < 0.466), 0.0, -math.inf), 0.0, 1.0)
    x = box.sample(Tilt(torch.zeros(1000, 1), 0.0), torch.Generator().manual_seed(0))
    assert ((x > 0.43) & (x < 0.476)).all()  # draws are interpolated between points 0.01 apart at most
    assert float(x.mean()) == pytest.approx(0.453, abs=0.002)


def test_custom_in_float64_keeps_its_accuracy_after_conversion():
    function = lambda x: -3 * x.abs()  # noqa: E731
    converted, native = Custom(1, function, -1.0, 1.0).double(), None
    torch.set_default_dtype(torch.float64)
    try:
        native = Custom(1, function, -1.0, 1.0)
    finally:
        torch.set_default_dtype(torch.float32)
    tilt = Tilt(torch.tensor([1e4], dtype=torch.float64), 0.0)
    assert torch.equal(converted.moments(tilt).variance, native.moments(tilt).variance)


def test_whole_numbers_and_bool_are_converted():
    assert Categorical(2, 3).log_prior(torch.eye(3)[None, :2].bool()).shape == (1, 2)
    assert Binary(2).log_prior(torch.tensor([True, False])).dtype == torch.float32
    assert Binary(2).log_prior(torch.tensor([1, 0], dtype=torch.uint8)).shape == (2,)


def test_a_constant_column_without_smoothing_is_an_error():
    with pytest.raises(ValueError, match=r"Binary: field\[1\] is inf; a constant column"):
        Binary(2).fit_to(torch.tensor([[0.0, 1.0], [1.0, 1.0]]), smoothing=0.0)


def test_every_unit_type_is_in_the_suite():
    """A new unit type that is exported has to be added to the cases."""
    import tapmachine

    exported = {
        value.__name__
        for value in vars(tapmachine).values()
        if isinstance(value, type) and issubclass(value, Units) and value is not Units
    }
    assert exported == {type(case.simple()).__name__ for case in CASES}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@every_case
@pytest.mark.parametrize("dtype", BOTH, ids=str)
def test_cpu_and_gpu_agree(case, dtype):
    units, field, precision = case.stressed(np.random.default_rng(11), 5000, dtype)
    there = copy.deepcopy(units).cuda()
    limit = 1e-5 if dtype == torch.float32 else 1e-10
    with torch.no_grad():
        here = units.log_partition_and_moments(Tilt(field, precision))
        gpu = there.log_partition_and_moments(Tilt(field.cuda(), precision.cuda()))
    for a, b in ((here[0], gpu[0]), (here[1].mean, gpu[1].mean)):
        torch.testing.assert_close(a, b.cpu(), rtol=limit, atol=limit)


@pytest.mark.long
@every_case
def test_graphs_can_be_traced(case):
    """ln Z and moments compile without a break: no look at the values, no branch on them."""
    torch._dynamo.reset()  # compiled graphs of the other unit types count towards a limit
    units = case.simple(n=3)
    if isinstance(units, Custom):
        pytest.skip("a custom prior runs the user's function")
    tilt = mild_tilt(units, (2,), size=10.0)
    traced = torch.compile(
        lambda field, precision: units.log_partition_and_moments(Tilt(field, precision)),
        backend="aot_eager",
        fullgraph=True,
    )
    with torch.no_grad():
        log_partition, moments = traced(*tilt)
        expected, expected_moments = units.log_partition_and_moments(tilt)
    torch.testing.assert_close(log_partition, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(moments.mean, expected_moments.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(moments.variance, expected_moments.variance, rtol=1e-8, atol=1e-9)
