"""The two rules of the truncated Gaussian, and how work is shared between them."""

import pytest
import torch
from marks import needs_compiler

from tapmachine import Tilt, TruncatedGaussian
from tapmachine.units.numerics import truncation_rules
from tapmachine.units.numerics.intervals import RULES, exact_rise, window_integral
from tapmachine.units.numerics.truncation import evaluate
from tapmachine.units.numerics.truncation_rules import Prior, by_one_kernel, by_windows_only


def spread_out(n_rows, n, dtype=torch.float64, size=50.0):
    generator = torch.Generator().manual_seed(0)
    return tuple(size * torch.randn(n_rows, n, generator=generator, dtype=dtype) for _ in range(2))


def prior(n, dtype=torch.float64, lower=0.0, upper=1.0):
    return Prior(
        torch.full((n,), 2.0, dtype=dtype),
        torch.full((n,), 5.0, dtype=dtype),
        torch.tensor(lower, dtype=dtype),
        torch.tensor(upper, dtype=dtype),
    )


@pytest.mark.parametrize("dtype", RULES, ids=str)
@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 2.0), (5.0, 6.0), (100.0, 101.0)], ids=str)
def test_both_rules_agree(dtype, bounds):
    """What the plain rule gives on a CPU is what the window rule alone gives on other devices."""
    B, A = spread_out(200, 30, dtype, size=5.0)
    together = evaluate(prior(30, dtype, *bounds), B, A)
    windows_only = by_windows_only(prior(30, dtype, *bounds), B, A, normalized=True)
    limit = 1e-4 if dtype == torch.float32 else 1e-10  # ln Z is summed from terms of 50 in size
    for a, b in zip(together, windows_only, strict=True):
        torch.testing.assert_close(a, b, rtol=2 * limit, atol=limit)


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_results_do_not_depend_on_the_chunks(chunk, monkeypatch):
    B, A = spread_out(40, 30)
    whole = evaluate(prior(30), B, A)
    monkeypatch.setattr(truncation_rules, "PLAIN_CHUNK", chunk)
    monkeypatch.setattr(truncation_rules, "WINDOW_CHUNK", chunk)
    for a, b in zip(whole, evaluate(prior(30), B, A), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)


def test_only_the_hard_elements_take_the_slow_rule(monkeypatch):
    """Of a batch that is tame but for three elements, the window rule sees those three."""
    seen = []
    slow = truncation_rules._by_windows

    def counted(p, B, *rest):
        seen.append(B.numel())
        return slow(p, B, *rest)

    monkeypatch.setattr(truncation_rules, "_by_windows", counted)
    B, A = spread_out(50, 20, size=1.0)
    B[3, 4], B[10, 0], A[49, 19] = 500.0, -400.0, -300.0
    evaluate(prior(20), B, A)
    assert seen == [3]


@pytest.mark.parametrize("dtype", RULES, ids=str)
def test_the_plain_rule_is_accurate_up_to_the_edge_of_its_domain(dtype):
    """Along the border of the domain, against the window rule at the highest setting."""
    rule = RULES[dtype]
    border = 0.9999 * rule.max_slope
    curvature = torch.linspace(-2 * border, 0.9999 * rule.max_curvature, 400, dtype=torch.float64)
    slopes = [torch.full_like(curvature, -border), curvature + border, curvature / 2]
    # In float32 a variance of 1/15² is what is left of squares that are rounded at 1e-7: 6e-5 of it are seen.
    limit, variance_limit = (1e-5, 1e-3) if dtype == torch.float32 else (1e-10, 1e-8)
    zero, one = torch.tensor(0.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)
    for slope in slopes:
        inside = torch.maximum(-slope, slope - curvature) <= 1.00001 * border
        u, v = slope[inside].to(dtype), curvature[inside].to(dtype)
        flat = Prior(torch.zeros_like(u), torch.zeros_like(v), zero.to(dtype), one.to(dtype))
        found, hard = truncation_rules._by_plain_rule(flat, u[None], v[None], torch.zeros_like(u), rule)
        assert len(hard) == 0
        assert len(u) > 100
        exact = window_integral(u.double(), v.double(), zero, one, RULES[torch.float64])
        mean, variance = exact.cumulants
        assert (found.mean[0] - mean).abs().max() < limit
        assert (found.variance[0] / variance - 1).abs().max() < variance_limit


def test_the_rise_between_balanced_edges_is_exact():
    """A difference that plain float64 gets wrong in the second digit."""
    U, V, B, A = (torch.tensor([z], dtype=torch.float64) for z in (9999.1, -20.3, 101.4750000001, 0.1))
    lower, upper = torch.tensor(1e-3, dtype=torch.float64), torch.tensor(1e3, dtype=torch.float64)
    from fractions import Fraction

    exact = [Fraction(z.item()) for z in (U, V, B, A, lower, upper)]
    expected = (exact[5] - exact[4]) * ((exact[0] + exact[2]) - (exact[1] + exact[3]) * (exact[4] + exact[5]) / 2)
    assert exact_rise(U, V, B, A, lower, upper).item() == pytest.approx(float(expected), rel=4e-15)
    A_balanced = (2 * (U + B) / (lower + upper)) - V
    exact[3] = Fraction(A_balanced.item())
    expected = (exact[5] - exact[4]) * ((exact[0] + exact[2]) - (exact[1] + exact[3]) * (exact[4] + exact[5]) / 2)
    assert exact_rise(U, V, B, A_balanced, lower, upper).item() == pytest.approx(float(expected), rel=1e-12)


def test_more_units_than_a_chunk_holds(monkeypatch):
    units = TruncatedGaussian(100, field=torch.linspace(-3, 3, 100, dtype=torch.float64), precision=2.0)
    tilt = Tilt(*spread_out(6, 100))
    log_partition, moments = units.log_partition_and_moments(tilt)
    monkeypatch.setattr(truncation_rules, "PLAIN_CHUNK", 32)
    split_log_partition, split_moments = units.log_partition_and_moments(tilt)
    torch.testing.assert_close(log_partition, split_log_partition, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(moments.mean, split_moments.mean, rtol=1e-12, atol=1e-12)


def test_second_derivatives_of_moments_are_refused():
    units = TruncatedGaussian(2)
    field = torch.zeros(2, requires_grad=True)
    mean = units.moments(Tilt(field, 0.0)).mean
    with pytest.raises(NotImplementedError, match="second derivatives"):
        torch.autograd.grad(mean.sum(), field, create_graph=True)


@pytest.mark.slow
@needs_compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
@pytest.mark.parametrize("normalized", [True, False])
def test_the_compiled_kernel_agrees(normalized, monkeypatch):
    """Also where it is given its elements in parts, and in numbers that are no powers of two."""
    monkeypatch.setattr(truncation_rules, "DEVICE_CHUNK", 512)
    monkeypatch.setattr(truncation_rules, "SMALLEST_KERNEL", 64)
    B, A = spread_out(37, 30, torch.float32, size=30.0)
    given = prior(30, torch.float32, -1.0, 2.0)
    plain = by_windows_only(given, B, A, normalized)
    for a, b in zip(by_one_kernel(given, B, A, normalized), plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
