"""A truncated Gaussian prior under a tilt: log-partition, mean and variance, with their derivatives.

On a CPU the plain rule serves the tame elements and only the others pay for the window rule. Compiled code and
other devices take the window rule for all, which needs no branch and no look at the values.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.special import RULES, Integral, Rule, exact_rise, gauss_legendre, normalisable, wide, window_integral

# Elements at a time: enough to share among threads, few enough for the values at their nodes to stay in cache.
PLAIN_CHUNK = 98_304
WINDOW_CHUNK = 32_768


class TiltedInterval(NamedTuple):
    """A log-integral, and the mean and variance of the normalised integrand."""

    log: Tensor
    mean: Tensor
    variance: Tensor


def tilted_interval(
    U: Tensor, V: Tensor, B: Tensor, A: Tensor, lower: Tensor, upper: Tensor, normalised: bool = True
) -> TiltedInterval:
    """ln Z(B,A), mean and variance of the prior ∝ exp(Ux − ½Vx²) on [lower, upper] under exp(Bx − ½Ax²).

    All three are differentiable in U, V, B and A, the logarithm twice. Where the tilted prior cannot be
    normalised (only possible on a half-infinite interval) the logarithm, the size of the mean and the variance
    are inf.

    Args:
        U, V: the prior, shape (n,).
        B, A: the tilt, both of shape (..., n).
        lower, upper: the interval, shape () or (n,); one of the two bounds may be infinite.
        normalised: whether the prior is; if not, the logarithm is ln ∫ exp((U+B)x − ½(V+A)x²) dx itself.
    """
    if torch.is_grad_enabled() and any(z.requires_grad for z in (U, V, B, A)):
        return TiltedInterval(*_TiltedInterval.apply(U, V, B, A, lower, upper, normalised))
    return evaluate(U.detach(), V.detach(), B.detach(), A.detach(), lower, upper, normalised)


def log_density(U: Tensor, V: Tensor, x: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """ln of the normalised density ∝ exp(Ux − ½Vx²) on [lower, upper], differentiable in U, V and x."""
    density: Tensor = _LogDensity.apply(U, V, x, lower, upper)
    return density


class _TiltedInterval(torch.autograd.Function):
    """The derivatives of a log-normaliser are cumulants, which the same rules give to full accuracy."""

    @staticmethod
    def forward(ctx, U, V, B, A, lower, upper, normalised):  # type: ignore[no-untyped-def]
        log, mean, variance = evaluate(U, V, B, A, lower, upper, normalised)
        ctx.save_for_backward(U, V, B, A, lower, upper, mean, variance)
        ctx.normalised = normalised
        ctx.set_materialize_grads(False)
        return log, mean, variance

    @staticmethod
    def backward(ctx, d_log, d_mean, d_variance):  # type: ignore[no-untyped-def]
        U, V, B, A, lower, upper, mean, variance = ctx.saved_tensors
        d_u = d_v = torch.zeros_like(mean)
        if d_log is not None:
            d_u = d_u + d_log * mean
            d_v = d_v - 0.5 * d_log * (variance + mean**2)
        if d_mean is not None or d_variance is not None:
            if torch.is_grad_enabled():
                raise NotImplementedError("second derivatives of truncated-Gaussian moments are not available")
            terms = [wide(z) for z in (U + B, V + A, lower, upper)]
            integral = window_integral(*terms, RULES[mean.dtype], order=4)
            third, fourth = (z.to(mean.dtype) for z in integral.cumulants[2:])
            if d_mean is not None:
                d_u = d_u + d_mean * variance
                d_v = d_v - 0.5 * d_mean * (third + 2 * mean * variance)
            if d_variance is not None:
                d_u = d_u + d_variance * third
                d_v = d_v - 0.5 * d_variance * (fourth + 2 * variance**2 + 2 * mean * third)
        d_U, d_V = d_u.sum_to_size(U.shape), d_v.sum_to_size(V.shape)
        if d_log is not None and ctx.normalised:
            prior_mean, prior_second = _prior_moments(U, V, lower, upper)
            d_U = d_U - d_log.sum_to_size(U.shape) * prior_mean
            d_V = d_V + 0.5 * d_log.sum_to_size(V.shape) * prior_second
        return d_U, d_V, d_u, d_v, None, None, None


class _LogDensity(torch.autograd.Function):
    @staticmethod
    def forward(ctx, U, V, x, lower, upper):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(U, V, x, lower, upper)
        prior = window_integral(*(wide(z) for z in (U, V, lower, upper)), RULES[x.dtype])
        shift = wide(x) - prior.anchor
        return (shift * (prior.slope - 0.5 * wide(V) * shift) - prior.log_mass).to(x.dtype)

    @staticmethod
    def backward(ctx, d_log):  # type: ignore[no-untyped-def]
        U, V, x, lower, upper = ctx.saved_tensors
        prior_mean, prior_second = _prior_moments(U, V, lower, upper)
        d_U = (d_log * (x - prior_mean)).sum_to_size(U.shape)
        d_V = -0.5 * (d_log * (x**2 - prior_second)).sum_to_size(V.shape)
        return d_U, d_V, d_log * (U - V * x), None, None


def _prior_moments(U: Tensor, V: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and second moment without a tilt, differentiable."""
    no_tilt = torch.zeros_like(U)
    _, mean, variance = tilted_interval(U, V, no_tilt, no_tilt, lower, upper, normalised=False)
    return mean, variance + mean**2


# --------------------------------------------------------------------------------------------------------------
# Values: the plain rule where it is accurate, the window rule elsewhere
# --------------------------------------------------------------------------------------------------------------


def evaluate(
    U: Tensor, V: Tensor, B: Tensor, A: Tensor, lower: Tensor, upper: Tensor, normalised: bool = True
) -> TiltedInterval:
    """`tilted_interval` without derivatives."""
    shape, dtype = B.shape, B.dtype
    n = shape[-1]
    rule = RULES[dtype]
    B, A = B.reshape(-1, n), A.reshape(-1, n)  # (rows, n)
    interval = [wide(z).expand(n) for z in (U, V, lower, upper)]

    if B.device.type != "cpu" or torch.compiler.is_compiling():
        prior = window_integral(*interval, rule) if normalised else None
        result = _by_windows(*interval, wide(B), wide(A), prior, rule)
        return TiltedInterval(*(z.to(dtype).view(shape) for z in result))

    log_offset = torch.zeros(n, dtype=dtype)
    if normalised:
        no_tilt = torch.zeros(1, n, dtype=dtype)
        log_offset = -evaluate(U, V, no_tilt, no_tilt, lower, upper, normalised=False).log[0]
    result, hard = _by_plain_rule(U, V, B, A, lower, upper, log_offset, rule)
    for index in hard.split(WINDOW_CHUNK) if len(hard) else ():
        row, unit = index // n, index % n
        there = [z[unit] for z in interval]
        tilt = [wide(z[row, unit]) for z in (B, A)]
        prior = window_integral(*there, rule) if normalised else None
        for out, value in zip(result, _by_windows(*there, *tilt, prior, rule), strict=True):
            out[row, unit] = value.to(dtype)
    return TiltedInterval(*(z.view(shape) for z in result))


def _by_windows(
    U: Tensor, V: Tensor, lower: Tensor, upper: Tensor, B: Tensor, A: Tensor, prior: Integral | None, rule: Rule
) -> TiltedInterval:
    """The window rule in float64, relative to the prior's integral where that is given."""
    u, v = U + B, V + A
    finite = normalisable(u, v, lower, upper)
    inward = torch.where(torch.isinf(upper), -1.0, 1.0)
    rise = exact_rise(U, V, B, A, lower, upper)
    tilted = window_integral(
        torch.where(finite, u, inward), torch.where(finite, v, 1.0), lower, upper, rule, rise=rise
    )
    log = tilted.anchor * (u - 0.5 * v * tilted.anchor) + tilted.log_mass
    if prior is not None:
        log = _log_ratio(U, V, B, A, tilted, prior)
    mean, variance = tilted.cumulants
    variance = torch.minimum(variance, 0.25 * (upper - lower) ** 2)  # rounding may exceed the bound by an ulp
    return TiltedInterval(
        log=torch.where(finite, log, torch.inf),
        mean=torch.where(finite, mean.clamp(lower, upper), torch.copysign(torch.full_like(u, torch.inf), u)),
        variance=torch.where(finite, variance, torch.inf),
    )


def _log_ratio(U: Tensor, V: Tensor, B: Tensor, A: Tensor, tilted: Integral, prior: Integral) -> Tensor:
    """ln I(U+B, V+A) − ln I(U, V).

    The exponents at the two anchors differ by the tilt at the new anchor plus the prior's fall from its own anchor
    to there, which is exact for a weak tilt; or plainly by their values, which is exact where the tilt undoes the
    prior. Of the two sums, the one with the smaller terms loses less to rounding.
    """
    u, v = U + B, V + A
    x, shift = tilted.anchor, tilted.anchor - prior.anchor
    by_shift = (x * B, -0.5 * A * x**2, shift * prior.slope, -0.5 * V * shift**2)
    by_value = (x * u, -0.5 * v * x**2, -prior.anchor * U, 0.5 * V * prior.anchor**2)
    shift_is_smaller = sum(z.abs() for z in by_shift) < sum(z.abs() for z in by_value)
    difference = torch.where(shift_is_smaller, sum(by_shift), sum(by_value))
    return difference + tilted.log_mass - prior.log_mass


def _by_plain_rule(
    U: Tensor, V: Tensor, B: Tensor, A: Tensor, lower: Tensor, upper: Tensor, log_offset: Tensor, rule: Rule
) -> tuple[TiltedInterval, Tensor]:
    """One Gauss–Legendre rule over the whole interval, and the flat indices of the elements that it may not serve.

    Its logarithm is ln ∫ exp(ux − ½vx²) dx + log_offset. In t = (x − lower)/length the integrand is
    exp(slope·t − ½curvature·t²). This is the hot loop of training: memory is used again, constants stay outside,
    and nothing is selected element by element, which is slow on a CPU.
    """
    n_rows, n = B.shape
    length = upper - lower
    is_unit_interval = bool(((lower == 0) & (upper == 1)).all())
    # An interval far from 0 relative to its length would lose digits in u − v·lower.
    usable = torch.isfinite(length) & (lower.abs() <= 3 * length)
    all_usable = bool(usable.all())
    log_offset = log_offset + length.log()
    nodes, weights = gauss_legendre(rule.plain_nodes, B.dtype, B.device)
    to_exponent = torch.stack((nodes, -0.5 * nodes**2), 1)
    to_moments = torch.stack((weights, weights * (nodes - 0.5), weights * (nodes - 0.5) ** 2))

    result = TiltedInterval(*(torch.empty_like(B) for _ in range(3)))
    hard = [torch.empty(0, dtype=torch.long)]
    rows = max(1, min(n_rows, PLAIN_CHUNK // n))
    workspace = B.new_empty(2 + rule.plain_nodes + 3, rows, n)
    for start in range(0, n_rows, rows):
        tilt_field, tilt_precision, log, mean, variance = (z[start : start + rows] for z in (B, A, *result))
        if len(mean) < rows:
            workspace = B.new_empty(len(workspace), len(mean), n)
        coefficients, values, moments = (z.view(len(z), -1) for z in workspace.split((2, rule.plain_nodes, 3)))
        slope, curvature = coefficients.view(2, -1, n)
        zeroth, first, second = moments.view(3, -1, n)

        torch.add(tilt_field, U, out=slope)
        torch.add(tilt_precision, V, out=curvature)
        if not is_unit_interval:
            exponent_at_lower = lower * (slope - 0.5 * curvature * lower)
            slope.sub_(curvature * lower).mul_(length)
            curvature.mul_(length**2)
        torch.mm(to_exponent, coefficients, out=values).exp_()
        torch.mm(to_moments, values, out=moments)  # of t − ½, so that little cancels in the variance
        first /= zeroth
        torch.addcmul(second.div_(zeroth), first, first, value=-1, out=variance)
        torch.add(first, 0.5, out=mean)
        torch.add(zeroth.log_(), log_offset, out=log)
        if not is_unit_interval:
            variance.mul_(length**2)
            mean.mul_(length).add_(lower)
            log.add_(exponent_at_lower)

        slope_at_upper = torch.sub(slope, curvature, out=zeroth)
        steepest = max(-slope.amin().item(), slope_at_upper.amax().item())
        if not (steepest <= rule.max_slope and curvature.amax().item() <= rule.max_curvature and all_usable):
            gentle = (slope >= -rule.max_slope) & (slope_at_upper <= rule.max_slope)
            tame = gentle & (curvature <= rule.max_curvature) & usable
            hard.append((~tame).view(-1).nonzero().squeeze(-1) + start * n)
    return result, torch.cat(hard)
