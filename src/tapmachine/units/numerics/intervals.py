"""Integrals of exp(ux − ½vx²) over an interval: logarithm, mean, variance, cumulants and exact draws.

These are all the integrals that a truncated Gaussian needs, for either sign of v and across v = 0. The textbook forms
with erf and erfi overflow and cancel at ordinary fields, so they are not used. Instead one Gauss–Legendre rule
integrates exp(−slope·t − ½curvature·t²) over t in [0, 1] wherever that is smooth enough, and an interval consists of

- **one panel**, if the integrand is smooth enough on the whole interval (the plain rule), or
- **two windows** otherwise (the window rule): the interval is split at the exponent's stationary point into two
  monotone pieces, each measured as a distance from its peak and truncated where the integrand becomes negligible. The
  rest of a piece is smooth however large u and v are.

This module contains the window rule, which is accurate everywhere. `truncation` adds the plain rule and selects
between the two. `docs/design_notes.md` gives the reasons and the measured errors.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Rule(NamedTuple):
    """Quadrature for results of one dtype: its size, and the domain in which it is accurate."""

    dtype: torch.dtype  # of the values at the nodes, which are positive and add up without loss
    plain_nodes: int
    max_slope: float  # plain rule: bound on the exponent's slope at the heavier edge, per length of the interval
    max_curvature: float  # plain rule: bound on v, per squared length of the interval
    window_nodes: int
    drop: float  # a window ends where the integrand has fallen by exp(-drop)


# On these domains the plain rule is well within the tolerances of the tests (docs/design_notes.md).
RULES = {
    torch.float32: Rule(torch.float32, plain_nodes=10, max_slope=15.0, max_curvature=45.0, window_nodes=16, drop=20.0),
    torch.float64: Rule(torch.float64, plain_nodes=24, max_slope=60.0, max_curvature=100.0, window_nodes=32, drop=40.0),
}


class Integral(NamedTuple):
    """∫ exp(ux − ½vx²) dx over an interval, relative to the integrand at an anchor point in the interval.

    Attributes:
        anchor: A point x* at the integrand's maximum.
        slope: U − v·x*, exactly zero where x* is an interior maximum.
        log_mass: ln ∫ exp(g(x) − g(x*)) dx with g(x) = ux − ½vx².
        cumulants: Mean, variance and, for order 4, the third and fourth cumulants.
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
    """Convert to float64, in which fields that nearly cancel can be added without loss.

    On a device without float64 the tensor is returned unchanged.
    """
    return x if x.device.type == "mps" else x.double()


def gauss_legendre(n_nodes: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes and weights of the Gauss–Legendre rule on [0, 1]."""
    return _gauss_legendre(n_nodes, dtype, device)


# Like torch.compiler.assume_constant_result, without importing the compiler, which takes as long as importing torch.
gauss_legendre._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache(maxsize=32)
def _gauss_legendre(n_nodes: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    nodes, weights = np.polynomial.legendre.leggauss(n_nodes)
    return (
        torch.as_tensor((nodes + 1) / 2, dtype=dtype, device=device),
        torch.as_tensor(weights / 2, dtype=dtype, device=device),
    )


def panel_moments(slope: Tensor, curvature: Tensor, n_nodes: int, n_moments: int) -> Tensor:
    """∫₀¹ t^m exp(−slope·t − ½curvature·t²) dt for m = 0, 1, …, shape (n_moments, ...)."""
    nodes, weights = gauss_legendre(n_nodes, slope.dtype, slope.device)
    to_moments = torch.stack([weights * nodes**power for power in range(n_moments)])
    if slope.device.type != "cpu" or torch.compiler.is_compiling():
        values = (-nodes * (slope.unsqueeze(-1) + curvature.unsqueeze(-1) * (0.5 * nodes))).exp()
        return torch.stack([(values * row).sum(-1) for row in to_moments])  # fuses into one kernel
    # On a CPU, two matrix products around one exponential are several times as fast.
    to_exponent = torch.stack((-nodes, -0.5 * nodes**2), 1)
    coefficients = torch.stack((slope, curvature)).view(2, -1)
    return torch.mm(to_moments, torch.mm(to_exponent, coefficients).exp_()).view(n_moments, *slope.shape)


# --------------------------------------------------------------------------------------------------------------
# The window rule: accurate everywhere
# --------------------------------------------------------------------------------------------------------------


class _Pieces(NamedTuple):
    """The two monotone pieces of exp(st − ½kt²), each tensor of shape (2, ...): left, then right.

    At a distance d from its peak, 0 ≤ d ≤ width, a piece is exp(log_height − slope·d − ½k·d²) times the value at
    the anchor, and lies at start + direction·d from the anchor.
    """

    slope: Tensor
    width: Tensor
    log_height: Tensor
    start: Tensor
    direction: Tensor


def cut_into_pieces(
    s: Tensor, k: Tensor, length: Tensor, drop: float, rise: Tensor | None = None
) -> tuple[Tensor, Tensor, _Pieces]:
    """Anchor, slope there, and the two windowed pieces of exp(st − ½kt²) on [0, length]; length may be inf.

    `rise` is the exponent at the end minus that at 0, if known more accurately than from s and k.
    """
    concave = k >= 0
    # At k = 0 the integrand is monotone: its maximum is at the end that the slope points to.
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
    # The distance at which slope·d + ½k·d² = drop; beyond the valley if the exponent never falls that far.
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
    """Map x = origin + scale·t onto t in [0, 1] or [0, ∞); returns s, k, length, origin, scale."""
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
    """Integrate by the window rule, for elements with a finite integral.

    Args:
        u, v: Coefficients of exp(ux − ½vx²), float64, broadcast against the bounds.
        lower, upper: Bounds of the interval, float64; one of them may be infinite.
        rule: The quadrature, which determines the accuracy.
        order: Number of cumulants, 2 or 4.
        rise: Exponent at upper minus exponent at lower, if known more accurately than from u and v (`exact_rise`).
    """
    s, k, length, origin, scale = standardize(u, v, lower, upper)
    anchor, slope, pieces = cut_into_pieces(s, k, length, rule.drop, rise)
    coefficients = pieces.slope * pieces.width, k * pieces.width**2
    if order == 2:  # higher cumulants cancel
        coefficients = coefficients[0].to(rule.dtype), coefficients[1].to(rule.dtype)
    moments = panel_moments(*coefficients, rule.window_nodes, order + 1).to(u.dtype)
    mass = pieces.width * pieces.log_height.exp() * moments[0]
    total = mass.sum(0)
    share = mass / total
    raw = moments[1:] / moments[0]
    # A piece falls from its peak, so its standard deviation is of the order of its mean distance: nothing cancels.
    mean = pieces.start + pieces.direction * pieces.width * raw[0]
    variance = pieces.width**2 * (raw[1] - raw[0] ** 2)
    gap = mean[0] - mean[1]
    mixed_variance = (share * variance).sum(0) + share[0] * share[1] * gap**2
    cumulants = [origin + scale * (anchor + (share * mean).sum(0)), scale**2 * mixed_variance]
    if order > 2:
        deviation = torch.stack((share[1] * gap, -share[0] * gap))
        third = (pieces.direction * pieces.width) ** 3 * (raw[2] - 3 * raw[1] * raw[0] + 2 * raw[0] ** 3)
        fourth = pieces.width**4 * (raw[3] - 4 * raw[2] * raw[0] + 6 * raw[1] * raw[0] ** 2 - 3 * raw[0] ** 4)
        mixed_third = (share * (third + 3 * variance * deviation + deviation**3)).sum(0)
        mixed_fourth = (share * (fourth + 4 * third * deviation + 6 * variance * deviation**2 + deviation**4)).sum(0)
        cumulants += [scale**3 * mixed_third, scale**4 * (mixed_fourth - 3 * mixed_variance**2)]
    return Integral(
        anchor=origin + scale * anchor,
        slope=slope / scale,
        log_mass=total.log() + scale.abs().log(),
        cumulants=tuple(cumulants),
    )


def exact_rise(U: Tensor, V: Tensor, B: Tensor, A: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """(upper − lower)·(u − v·middle) for u = U + B, v = V + A, with a single rounding.

    If v < 0 and both edges have nearly the same weight, this small difference of large numbers decides between them, so
    the rounding errors of the two sums and of the product are included.
    """
    u, u_error = _two_sum(U, B)
    v, v_error = _two_sum(V, A)
    middle, middle_error = _two_sum(0.5 * lower, 0.5 * upper)
    product, product_error = _two_product(v, middle)
    return (upper - lower) * ((u - product) + (u_error - product_error - v * middle_error - v_error * middle))


def smaller_terms(first: Sequence[Tensor], second: Sequence[Tensor]) -> Tensor:
    """Of two sums with the same value, elementwise the one with smaller terms, which loses less to rounding."""
    sums = [torch.stack(torch.broadcast_tensors(*terms)) for terms in (first, second)]
    sizes = [terms.abs().sum(0) for terms in sums]
    return torch.where(sizes[0] < sizes[1], sums[0].sum(0), sums[1].sum(0))


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Rounded sum a + b and its rounding error (Knuth)."""
    total = a + b
    b_seen = total - a
    return total, (a - (total - b_seen)) + (b - b_seen)


def _two_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Rounded product a·b and its rounding error (Veltkamp's split and Dekker's product, for float64)."""
    product = a * b
    a_high, b_high = (134217729.0 * z - (134217729.0 * z - z) for z in (a, b))
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def normalizable(u: Tensor, v: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Whether ∫ exp(ux − ½vx²) dx is finite: u and v are finite, and the interval is finite or the tail decays."""
    rises = torch.where(torch.isinf(upper), u >= 0, u <= 0)  # the linear exponent, toward the infinite end
    falls_off = (torch.isfinite(lower) & torch.isfinite(upper)) | (v > 0) | ((v == 0) & ~rises)
    return falls_off & torch.isfinite(u) & torch.isfinite(v)


def make_normalizable(u: Tensor, v: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mask of the finite integrals, and u and v with harmless values elsewhere."""
    finite = normalizable(u, v, lower, upper)
    inward = torch.where(torch.isinf(upper), -1.0, 1.0)
    return finite, torch.where(finite, u, inward), torch.where(finite, v, 1.0)


# --------------------------------------------------------------------------------------------------------------
# Draws
# --------------------------------------------------------------------------------------------------------------
