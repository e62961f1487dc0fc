"""Integrals of exp(ux − ½vx²) over an interval: logarithm, mean, variance and higher cumulants.

These integrals define truncated Gaussian units, for v of either sign and for v = 0. The textbook formulas with erf and
erfi overflow or cancel for moderate values of u and v, so they are not used. Instead, Gauss–Legendre quadrature
integrates exp(−slope·t − ½curvature·t²) over t in [0, 1]. Two rules are available:

- The **plain rule** uses one panel for the whole interval. It requires a sufficiently smooth integrand.
- The **window rule** splits the interval at the stationary point of the exponent into two monotone pieces. Each piece
  is truncated where the integrand becomes negligible, and is smooth for arbitrarily large u and v.

This module contains the window rule, which is accurate for all u and v. `truncation_rules` adds the plain rule and
selects between the two. See `docs/design_notes.md` for the reasons and the measured errors.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Rule(NamedTuple):
    """Number of quadrature nodes for results of a dtype, and the domain in which the plain rule is accurate."""

    dtype: torch.dtype  # dtype of the values at the nodes, which are positive and can be added without cancellation
    plain_nodes: int
    max_slope: float  # plain rule: bound on the exponent's slope at the heavier edge, times the interval's length
    max_curvature: float  # plain rule: bound on v, times the squared length of the interval
    window_nodes: int
    drop: float  # a window ends where the integrand has decreased by the factor exp(-drop)


# In these domains, the error of the plain rule is well below the tolerances of the tests (docs/design_notes.md).
RULES = {
    torch.float32: Rule(torch.float32, plain_nodes=10, max_slope=15.0, max_curvature=45.0, window_nodes=16, drop=20.0),
    torch.float64: Rule(torch.float64, plain_nodes=24, max_slope=60.0, max_curvature=100.0, window_nodes=32, drop=40.0),
}


class Integral(NamedTuple):
    """Integral of exp(ux − ½vx²) over an interval, relative to the maximum of the integrand.

    Attributes:
        anchor: Position x* of the integrand's maximum.
        slope: Slope u − v·x* of the exponent at the maximum, exactly 0 if the maximum is inside the interval.
        log_mass: Logarithm of ∫ exp(g(x) − g(x*)) dx with g(x) = ux − ½vx².
        cumulants: Mean, variance and, for order 4 or 5, the cumulants up to that order.
    """

    anchor: Tensor
    slope: Tensor
    log_mass: Tensor
    cumulants: tuple[Tensor, ...]

    def select(self, index: Tensor) -> "Integral":
        """Select elements by index."""
        return Integral(
            self.anchor[index], self.slope[index], self.log_mass[index], tuple(z[index] for z in self.cumulants)
        )


def wide(x: Tensor) -> Tensor:
    """Convert a tensor to float64, in which fields that nearly cancel can be added accurately.

    On a device without float64 support, the tensor is returned unchanged.
    """
    return x if x.device.type == "mps" else x.double()


def gauss_legendre(n_nodes: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the nodes and weights of the Gauss–Legendre rule on [0, 1]."""
    return _gauss_legendre(n_nodes, dtype, device)


# Equivalent to torch.compiler.assume_constant_result, but does not import the compiler, which is slow.
gauss_legendre._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache(maxsize=32)
def _gauss_legendre(n_nodes: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    nodes, weights = np.polynomial.legendre.leggauss(n_nodes)
    return (
        torch.as_tensor((nodes + 1) / 2, dtype=dtype, device=device),
        torch.as_tensor(weights / 2, dtype=dtype, device=device),
    )


def moments_at_nodes(parts: Iterable[tuple[Tensor, Tensor]], shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Compute means and variances, of the given shape, from chunks of nodes and of log-masses at the nodes."""
    means, variances = [], []
    for x, log_masses in parts:
        probability = log_masses.softmax(-1)
        mean = (probability * x).sum(-1, keepdim=True)
        means.append(mean.squeeze(-1))
        variances.append((probability * (x - mean) ** 2).sum(-1))
    return torch.cat(means).view(shape), torch.cat(variances).view(shape)


def panel_moments(slope: Tensor, curvature: Tensor, n_nodes: int, n_moments: int) -> Tensor:
    """Compute ∫₀¹ t^m exp(−slope·t − ½curvature·t²) dt for m = 0, …, n_moments − 1, of shape (n_moments, ...)."""
    nodes, weights = gauss_legendre(n_nodes, slope.dtype, slope.device)
    to_moments = torch.stack([weights * nodes**power for power in range(n_moments)])
    if slope.device.type != "cpu" or torch.compiler.is_compiling():
        values = (-nodes * (slope.unsqueeze(-1) + curvature.unsqueeze(-1) * (0.5 * nodes))).exp()
        return torch.stack([(values * row).sum(-1) for row in to_moments])  # fuses into one kernel
    # On a CPU, two matrix products around one exponential are several times faster.
    to_exponent = torch.stack((-nodes, -0.5 * nodes**2), 1)
    coefficients = torch.stack((slope, curvature)).view(2, -1)
    return torch.mm(to_moments, torch.mm(to_exponent, coefficients).exp_()).view(n_moments, *slope.shape)


# --------------------------------------------------------------------------------------------------------------
# The window rule, accurate for all u and v
# --------------------------------------------------------------------------------------------------------------


class _Pieces(NamedTuple):
    """The two monotone pieces of exp(st − ½kt²) on an interval.

    Each tensor has shape (2, ...), with the left piece first. At a distance d ≤ width from the peak of a piece, the
    integrand relative to its value at the anchor is exp(log_height − slope·d − ½k·d²). The position of this point
    relative to the anchor is start + direction·d.
    """

    slope: Tensor
    width: Tensor
    log_height: Tensor
    start: Tensor
    direction: Tensor


def cut_into_pieces(
    s: Tensor, k: Tensor, length: Tensor, drop: float, rise: Tensor | None = None
) -> tuple[Tensor, Tensor, _Pieces]:
    """Split exp(st − ½kt²) on [0, length] into two monotone pieces, truncated where they become negligible.

    Args:
        s, k: Coefficients of the exponent.
        length: Length of the interval, possibly inf.
        drop: Decrease of the exponent at which a piece is truncated.
        rise: Exponent at the end of the interval minus exponent at 0 (default: computed from s and k).

    Returns:
        The anchor, the slope of the exponent at the anchor, and the two pieces.
    """
    concave = k >= 0
    # For k = 0 the integrand is monotone, and the sign of the slope determines the end with the maximum.
    stationary = torch.where(k == 0, torch.copysign(torch.full_like(s, torch.inf), s), s / k)
    cut = torch.minimum(stationary.clamp(min=0), length)
    slope_at_cut = torch.where((stationary > 0) & (stationary < length), 0.0, s - k * cut)
    end = torch.where(torch.isinf(length), 0.0, length)  # a convex exponent needs a finite length
    slope_at_end = s - k * end
    rise = end * (s - 0.5 * k * end) if rise is None else torch.where(torch.isinf(length), 0.0, rise)
    peak_at_end = ~concave & (rise > 0)

    zero, one = torch.zeros_like(s), torch.ones_like(s)
    slope = torch.stack(
        (torch.where(concave, slope_at_cut, -s), torch.where(concave, -slope_at_cut, slope_at_end))
    ).clamp(min=0)
    # Distance d at which slope·d + ½k·d² = drop; beyond the valley if the exponent does not decrease that much.
    window = 2 * drop / (slope + (slope * slope + 2 * drop * k).clamp(min=0).sqrt())
    pieces = _Pieces(
        slope=slope,
        width=torch.minimum(torch.stack((cut, length - cut)), window),
        log_height=torch.where(concave, zero, torch.stack((-rise.clamp(min=0), rise.clamp(max=0)))),
        start=torch.stack(
            (torch.where(peak_at_end, -end, zero), torch.where(concave | peak_at_end, zero, end)),
        ),
        direction=torch.where(concave, torch.stack((-one, one)), torch.stack((one, -one))),
    )
    anchor = torch.where(concave, cut, torch.where(peak_at_end, end, zero))
    slope_at_anchor = torch.where(concave, slope_at_cut, torch.where(peak_at_end, slope_at_end, s))
    return anchor, slope_at_anchor, pieces


def standardize(u: Tensor, v: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, ...]:
    """Substitute x = origin + scale·t, so that t is in [0, 1] or [0, ∞); return s, k, length, origin and scale."""
    bounded = torch.isfinite(lower) & torch.isfinite(upper)
    origin = torch.where(torch.isfinite(lower), lower, upper)
    scale = torch.where(bounded, upper - lower, torch.where(torch.isfinite(lower), 1.0, -1.0))
    length = torch.where(bounded, 1.0, torch.inf).to(u.dtype)
    terms: tuple[Tensor, ...] = torch.broadcast_tensors(
        (u - v * origin) * scale, v * scale * scale, length, origin, scale
    )
    return terms


def window_integral(
    u: Tensor, v: Tensor, lower: Tensor, upper: Tensor, rule: Rule, order: int = 2, rise: Tensor | None = None
) -> Integral:
    """Integrate exp(ux − ½vx²) over an interval by the window rule; the integral must be finite.

    Args:
        u, v: Coefficients of the exponent in float64; they are broadcast against the bounds.
        lower, upper: Bounds of the interval in float64; one of them may be infinite.
        rule: Quadrature rule, which determines the accuracy.
        order: Number of cumulants, 2, 4 or 5 (default: 2).
        rise: Exponent at the upper bound minus exponent at the lower bound, as computed by `exact_rise` (default:
            computed from u and v).
    """
    s, k, length, origin, scale = standardize(u, v, lower, upper)
    anchor, slope, pieces = cut_into_pieces(s, k, length, rule.drop, rise)
    coefficients = pieces.slope * pieces.width, k * pieces.width**2
    if order == 2:  # higher cumulants cancel
        coefficients = coefficients[0].to(rule.dtype), coefficients[1].to(rule.dtype)
    moments = panel_moments(*coefficients, rule.window_nodes, order + 1).to(u.dtype)
    mass = pieces.width * pieces.log_height.exp() * moments[0]
    total = mass.sum(0)
    probability = mass / total
    raw = moments[1:] / moments[0]
    # The standard deviation of a piece is of the order of the mean distance from its peak, so nothing cancels.
    mean = pieces.start + pieces.direction * pieces.width * raw[0]
    variance = pieces.width**2 * (raw[1] - raw[0] ** 2)
    gap = mean[0] - mean[1]
    mixed_variance = (probability * variance).sum(0) + probability[0] * probability[1] * gap**2
    cumulants = [origin + scale * (anchor + (probability * mean).sum(0)), scale**2 * mixed_variance]
    if order > 2:
        deviation = torch.stack((probability[1] * gap, -probability[0] * gap))
        third = (pieces.direction * pieces.width) ** 3 * (raw[2] - 3 * raw[1] * raw[0] + 2 * raw[0] ** 3)
        fourth = pieces.width**4 * (raw[3] - 4 * raw[2] * raw[0] + 6 * raw[1] * raw[0] ** 2 - 3 * raw[0] ** 4)
        mixed_third = (probability * (third + 3 * variance * deviation + deviation**3)).sum(0)
        mixed_fourth = (
            probability * (fourth + 4 * third * deviation + 6 * variance * deviation**2 + deviation**4)
        ).sum(0)
        cumulants += [scale**3 * mixed_third, scale**4 * (mixed_fourth - 3 * mixed_variance**2)]
    if order > 4:
        r1, r2, r3, r4, r5 = raw
        fifth = (pieces.direction * pieces.width) ** 5 * (r5 - 5 * r4 * r1 + 10 * (r3 - r2 * r1) * r1**2 + 4 * r1**5)
        lower_moments = 5 * fourth * deviation + 10 * (third * deviation**2 + variance * deviation**3)
        mixed_fifth = (probability * (fifth + lower_moments + deviation**5)).sum(0)
        cumulants.append(scale**5 * (mixed_fifth - 10 * mixed_third * mixed_variance))
    return Integral(
        anchor=origin + scale * anchor,
        slope=slope / scale,
        log_mass=total.log() + scale.abs().log(),
        cumulants=tuple(cumulants),
    )


def exact_rise(U: Tensor, V: Tensor, B: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Compute (upper − lower)·(u − v·middle) for u = U + B and v = V + A with a single rounding.

    If v < 0 and both edges have nearly the same weight, the result is a small difference of large numbers that
    determines which edge is heavier. The rounding errors of the two sums and of the product are therefore compensated.
    """
    u, u_error = _two_sum(U, B)
    v, v_error = _two_sum(V, A)
    middle, middle_error = _two_sum(0.5 * lower, 0.5 * upper)
    product, product_error = _two_product(v, middle)
    return (upper - lower) * ((u - product) + (u_error - product_error - v * middle_error - v_error * middle))


def smaller_terms(first: Sequence[Tensor], second: Sequence[Tensor]) -> Tensor:
    """Return, for each element, the more accurate of two equal sums, which is the sum with the smaller terms."""
    sums = [torch.stack(torch.broadcast_tensors(*terms)) for terms in (first, second)]
    sizes = [terms.abs().sum(0) for terms in sums]
    return torch.where(sizes[0] < sizes[1], sums[0].sum(0), sums[1].sum(0))


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rounded sum a + b and its rounding error (Knuth's algorithm)."""
    total = a + b
    b_seen = total - a
    return total, (a - (total - b_seen)) + (b - b_seen)


def _two_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rounded product a·b in float64 and its rounding error (Veltkamp's split and Dekker's product)."""
    product = a * b
    a_high, b_high = (134217729.0 * z - (134217729.0 * z - z) for z in (a, b))
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def normalizable(u: Tensor, v: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Return a mask of finite integrals ∫ exp(ux − ½vx²) dx.

    An integral is finite if u and v are finite, and if the interval is finite or the tail decays.
    """
    rises = torch.where(torch.isinf(upper), u >= 0, u <= 0)  # the linear exponent, toward the infinite end
    falls_off = (torch.isfinite(lower) & torch.isfinite(upper)) | (v > 0) | ((v == 0) & ~rises)
    return falls_off & torch.isfinite(u) & torch.isfinite(v)


def make_normalizable(u: Tensor, v: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a mask of the finite integrals, and u and v with all other elements replaced by valid values."""
    finite = normalizable(u, v, lower, upper)
    inward = torch.where(torch.isinf(upper), -1.0, 1.0)
    return finite, torch.where(finite, u, inward), torch.where(finite, v, 1.0)
