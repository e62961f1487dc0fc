"""Two quadrature rules for tilted truncated Gaussian priors, and the choice between them.

On a CPU, the plain rule is used for the elements for which it is accurate, and the more expensive window rule for the
others. Other devices use the window rule for all elements, which requires neither branches nor access to values. In
compiled code on a GPU, the window rule is a single kernel.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.accelerator.compilation import compiled
from tapmachine.units.numerics.intervals import (
    RULES,
    Integral,
    Rule,
    exact_rise,
    gauss_legendre,
    make_normalizable,
    smaller_terms,
    wide,
    window_integral,
)

# Number of elements per chunk: enough to distribute over threads, few enough for the node values to stay in cache.
PLAIN_CHUNK = 57_344
WINDOW_CHUNK = 16_384
DEVICE_CHUNK = 2**21  # number of elements per chunk on other devices: half a GB of node values in float32
SMALLEST_KERNEL = 2**14  # smallest number of elements of a compiled kernel


class Prior(NamedTuple):
    """Parameters of densities ∝ exp(Ux − ½Vx²) on [lower, upper]; U and V have shape (n,), bounds (n,) or ()."""

    U: Tensor
    V: Tensor
    lower: Tensor
    upper: Tensor

    def wide(self, index: Tensor | None = None) -> "Prior":
        """Convert all tensors to float64 and shape (n,); optionally select units by index."""
        n = self.U.shape[-1]
        terms = [wide(z).expand(n) for z in self]
        return Prior(*(terms if index is None else (z[index] for z in terms)))


class TiltedInterval(NamedTuple):
    """Logarithm of an integral, and mean and variance of the normalized integrand.

    The logarithm is float64 if it is computed by the window rule, because two large logarithms may nearly cancel.
    """

    log: Tensor
    mean: Tensor
    variance: Tensor


def by_both_rules(prior: Prior, B: Tensor, A: Tensor, normalized: bool) -> TiltedInterval:  # (rows, n) each
    """Apply the plain rule where it is accurate and the window rule elsewhere; reads values from the device."""
    n, dtype = B.shape[-1], B.dtype
    rule = RULES[dtype]
    if n > PLAIN_CHUNK:
        terms = [(z if z.dim() else z.expand(n)).split(PLAIN_CHUNK, -1) for z in (*prior, B, A)]
        blocks = zip(*terms, strict=True)
        parts = [by_both_rules(Prior(U, V, low, high), b, a, normalized) for U, V, low, high, b, a in blocks]
        return TiltedInterval(*(torch.cat(z, -1) for z in zip(*parts, strict=True)))
    log_offset = torch.zeros(n, dtype=dtype)
    if normalized:
        no_tilt = torch.zeros(1, n, dtype=dtype)
        log_offset = -by_both_rules(prior, no_tilt, no_tilt, normalized=False).log[0].to(dtype)
    result, hard = _by_plain_rule(prior, B, A, log_offset, rule)
    if len(hard) == 0:
        return result
    result = TiltedInterval(wide(result.log), result.mean, result.variance)
    untilted = window_integral(*prior.wide(), rule) if normalized else None
    for index in hard.split(WINDOW_CHUNK):
        row, unit = index // n, index % n
        untilted_there = untilted and untilted.select(unit)
        part = _by_windows(prior.wide(unit), wide(B[row, unit]), wide(A[row, unit]), untilted_there, rule)
        for out, value in zip(result, part, strict=True):
            out[row, unit] = value.to(out.dtype)
    return result


def by_windows_only(prior: Prior, B: Tensor, A: Tensor, normalized: bool) -> TiltedInterval:  # (rows, n) each
    """Apply the window rule to all elements, in chunks that fit into memory."""
    tilts = zip(*(z.split(max(1, DEVICE_CHUNK // B.shape[-1])) for z in (B, A)), strict=True)
    parts = [_window_rule(prior, b, a, normalized) for b, a in tilts]
    return TiltedInterval(*(torch.cat(z) for z in zip(*parts, strict=True)))


def by_one_kernel(prior: Prior, B: Tensor, A: Tensor, normalized: bool) -> TiltedInterval:
    """Apply the compiled window rule, after padding the number of elements to a power of two.

    Padding limits the number of kernels, since a separate kernel is compiled for each number of elements.
    """
    flat = [z.expand(B.shape).reshape(-1) for z in (*prior, B, A)]
    parts = []
    for terms in zip(*(z.split(DEVICE_CHUNK) for z in flat), strict=True):
        count = len(terms[0])
        size = max(SMALLEST_KERNEL, 1 << (count - 1).bit_length())
        U, V, lower, upper, b, a = (torch.cat((z, z[:1].expand(size - count))) for z in terms)
        parts.append([z[:count] for z in _kernel(normalized)(Prior(U, V, lower, upper), b, a)])
    return TiltedInterval(*(torch.cat(z).view(B.shape) for z in zip(*parts, strict=True)))


@lru_cache(maxsize=2)
def _kernel(normalized: bool) -> Callable[[Prior, Tensor, Tensor], TiltedInterval]:
    return compiled(_ratio_rule if normalized else _integral_rule)


def _ratio_rule(prior: Prior, B: Tensor, A: Tensor) -> TiltedInterval:
    return _window_rule(prior, B, A, normalized=True)


def _integral_rule(prior: Prior, B: Tensor, A: Tensor) -> TiltedInterval:
    return _window_rule(prior, B, A, normalized=False)


def _window_rule(prior: Prior, B: Tensor, A: Tensor, normalized: bool) -> TiltedInterval:  # (..., n) each
    """Apply the window rule to all elements at once."""
    rule = RULES[B.dtype]
    untilted = window_integral(*prior.wide(), rule) if normalized else None
    log, mean, variance = _by_windows(prior.wide(), wide(B), wide(A), untilted, rule)
    return TiltedInterval(log, mean.to(B.dtype), variance.to(B.dtype))


def _by_windows(prior: Prior, B: Tensor, A: Tensor, untilted: Integral | None, rule: Rule) -> TiltedInterval:
    """Apply the window rule in float64.

    If `untilted` is specified, it is the integral of the prior, and the logarithm is relative to this integral.
    """
    U, V, lower, upper = prior
    u, v = U + B, V + A
    finite, safe_u, safe_v = make_normalizable(u, v, lower, upper)
    rise = exact_rise(U, V, B, A, lower, upper)
    tilted = window_integral(safe_u, safe_v, lower, upper, rule, rise=rise)
    if untilted is None:
        log = tilted.anchor * (u - 0.5 * v * tilted.anchor) + tilted.log_mass
    else:
        log = _log_ratio(prior, B, A, tilted, untilted)
    mean, variance = tilted.cumulants
    variance = torch.minimum(variance, 0.25 * (upper - lower) ** 2)  # rounding may exceed the bound by an ulp
    return TiltedInterval(
        log=torch.where(finite, log, torch.inf),
        mean=torch.where(finite, mean.clamp(lower, upper), torch.copysign(torch.full_like(u, torch.inf), u)),
        variance=torch.where(finite, variance, torch.inf),
    )


def _log_ratio(prior: Prior, B: Tensor, A: Tensor, tilted: Integral, untilted: Integral) -> Tensor:
    """Compute ln I(U+B, V+A) − ln I(U, V), where I(u, v) is the integral of exp(ux − ½vx²).

    The difference of the exponents at the two anchors is computed in two ways. One adds the tilt at the new anchor and
    the change in the prior between the anchors, which is accurate for a weak tilt. The other subtracts the two values,
    which is accurate where the tilt cancels the prior. The sum with the smaller terms has the smaller rounding error.
    """
    U, V, _, _ = prior
    x, shift = tilted.anchor, tilted.anchor - untilted.anchor
    by_shift = (x * B, -0.5 * A * x**2, shift * untilted.slope, -0.5 * V * shift**2)
    by_value = (x * (U + B), -0.5 * (V + A) * x**2, -untilted.anchor * U, 0.5 * V * untilted.anchor**2)
    return smaller_terms(by_shift, by_value) + tilted.log_mass - untilted.log_mass


def _by_plain_rule(prior: Prior, B: Tensor, A: Tensor, log_offset: Tensor, rule: Rule) -> tuple[TiltedInterval, Tensor]:
    """Apply one Gauss–Legendre rule over the whole interval.

    In terms of t = (x − lower)/length, the integrand is exp(slope·t − ½curvature·t²). Training spends most of its time
    in this function, so memory is reused, constants are precomputed, and elementwise selection, which is slow on a CPU,
    is avoided.

    Returns:
        The logarithm ln ∫ exp(ux − ½vx²) dx + log_offset and the moments, and the flat indices of the elements for
        which the rule is not accurate.
    """
    U, V, lower, upper = prior
    n = B.shape[-1]
    length = upper - lower
    is_unit_interval = bool(((lower == 0) & (upper == 1)).all())
    # If the interval is far from 0 relative to its length, u − v·lower loses digits.
    usable = torch.isfinite(length) & (lower.abs() <= 3 * length)
    all_usable = bool(usable.all())
    log_offset = log_offset + length.log()
    nodes, weights = gauss_legendre(rule.plain_nodes, B.dtype, B.device)
    to_exponent = torch.stack((nodes, -0.5 * nodes**2), 1)
    to_moments = torch.stack((weights, weights * (nodes - 0.5), weights * (nodes - 0.5) ** 2))

    result = B.new_empty(3, B.numel())  # raw moments of each chunk, converted in place to ln, mean and variance
    hard = [torch.empty(0, dtype=torch.long)]
    most_rows, rows = max(1, PLAIN_CHUNK // n), 0
    parts = zip(B.split(most_rows), A.split(most_rows), result.split(most_rows * n, 1), strict=True)
    for part, (tilt_field, tilt_precision, moments) in enumerate(parts):
        if len(tilt_field) != rows:  # for the first chunk, and for the last if it is shorter
            rows = len(tilt_field)
            coefficients, values = B.new_empty(2 + rule.plain_nodes, rows * n).split((2, rule.plain_nodes))
            slope, curvature = coefficients.view(2, rows, n)
            scratch = values[0].view(rows, n)
        log, mean, variance = moments.view(3, rows, n)

        torch.add(tilt_field, U, out=slope)
        torch.add(tilt_precision, V, out=curvature)
        if not is_unit_interval:
            exponent_at_lower = lower * (slope - 0.5 * curvature * lower)
            slope.sub_(curvature * lower).mul_(length)
            curvature.mul_(length**2)
        torch.mm(to_exponent, coefficients, out=values).exp_()
        torch.mm(to_moments, values, out=moments)  # moments of t − ½, which avoids cancellation in the variance
        mean /= log
        variance.div_(log).addcmul_(mean, mean, value=-1)
        mean += 0.5
        log.log_().add_(log_offset)
        if not is_unit_interval:
            variance.mul_(length**2)
            mean.mul_(length).add_(lower)
            log.add_(exponent_at_lower)

        # The outward slopes at both edges, and the curvature on the same scale, must be within the limits.
        at_upper = torch.sub(slope, curvature, out=scratch)
        curvature_scale = rule.max_slope / rule.max_curvature
        extremes = (at_upper.amax(), -slope.amin(), curvature_scale * curvature.amax())
        if not (all_usable and all(z.item() <= rule.max_slope for z in extremes)):
            excess = at_upper.maximum(-slope).maximum(curvature_scale * curvature)
            tame = (excess <= rule.max_slope).logical_and_(usable)
            hard.append(tame.logical_not_().view(-1).nonzero().squeeze(-1) + part * most_rows * n)
    return TiltedInterval(*result.view(3, *B.shape)), torch.cat(hard)
