"""Sampling from truncated Gaussians by inverting the CDF."""

import torch
from torch import Tensor

from tapmachine.units.numerics.intervals import Rule, cut_into_pieces, panel_moments, standardize

INVERSION_STEPS = 8  # sufficient for float64; most draws need five
SETTLED = 1e-12  # on a CPU, iterations stop when all steps are smaller than this fraction of the piece
FAR = 30.0  # distance of the interval from the mean, in standard deviations, beyond which the normal CDF underflows
NARROW = 1e-3  # width of an interval, in standard deviations, below which the normal CDF changes too little
SMALLEST_SHARE = 2.0**-64  # smallest probability below a draw; with 0, a draw on a half-line would be infinite


def sample_interval(u: Tensor, v: Tensor, lower: Tensor, upper: Tensor, uniform: Tensor, rule: Rule) -> Tensor:
    """Draw from the density ∝ exp(ux − ½vx²) on [lower, upper] by inverting its CDF at uniform numbers.

    For any u and v, a draw increases with its uniform number, so numbers that are evenly spread over several chains
    result in evenly spread draws.

    If the Gaussian is neither much wider than the interval nor far from it, a CPU uses the normal CDF and its inverse,
    which is several times faster. All tensors are float64, and the integral of the density must be finite.
    """
    if u.device.type != "cpu" or torch.compiler.is_compiling():
        return _invert_pieces(u, v, lower, upper, uniform, rule)
    root = v.clamp(min=0).sqrt()
    from_mean = torch.maximum(lower * v - u, u - upper * v)  # distance of the interval from the mean, times v
    curved = (v > 0) & ((upper - lower) * root > NARROW) & (from_mean < FAR * root)
    if bool(curved.all()):
        return _invert_normal(u, v, lower, upper, uniform)
    draw = torch.empty_like(u)
    for some, is_curved in ((curved, True), (~curved, False)):
        some_u, some_v, low, high, fraction = (z[some] for z in (u, v, lower, upper, uniform))
        if is_curved:
            draw[some] = _invert_normal(some_u, some_v, low, high, fraction)
        else:
            draw[some] = _invert_pieces(some_u, some_v, low, high, fraction, rule)
    return draw


def _invert_normal(u: Tensor, v: Tensor, lower: Tensor, upper: Tensor, uniform: Tensor) -> Tensor:
    """Invert the CDF for v > 0 with the normal CDF, reflected such that the interval's center is below the mean."""
    mean, root = u / v, v.sqrt()
    low, high = (lower - mean) * root, (upper - mean) * root
    flip = low + high > 0
    start, end = torch.where(flip, -high, low), torch.where(flip, -low, high)
    fraction = torch.where(flip, 1 - uniform, uniform).clamp(min=SMALLEST_SHARE)
    below, above = (0.5 * torch.erfc(-(0.5**0.5) * z) for z in (start, end))  # torch.special.ndtr cancels in the tail
    z = torch.special.ndtri(below + fraction * (above - below)).clamp(start, end)
    return (mean + torch.where(flip, -z, z) / root).clamp(lower, upper)


def _invert_pieces(u: Tensor, v: Tensor, lower: Tensor, upper: Tensor, uniform: Tensor, rule: Rule) -> Tensor:
    """Invert the CDF for any u and v, by steps that would be exact for an exponential density.

    All shapes are fixed. On devices other than a CPU, the number of steps is also fixed.
    """
    looks = u.device.type == "cpu" and not torch.compiler.is_compiling()
    s, k, length, origin, scale = standardize(u, v, lower, upper)
    anchor, _, pieces = cut_into_pieces(s, k, length, rule.drop)
    masses = panel_moments(pieces.slope * pieces.width, k * pieces.width**2, rule.window_nodes, 1)[0]
    masses = masses * pieces.width * pieces.log_height.exp()
    left_share, right_share = masses / masses.sum(0)
    # Probabilities to the left and right of the draw. If only the upper bound is finite, coordinates increase leftward.
    left, right = (torch.where(scale > 0, a, b) for a, b in ((uniform, 1 - uniform), (1 - uniform, uniform)))
    go_right = right < right_share
    # Fraction of the piece between the draw and its outer end; rounding may make it exceed 1.
    outer = torch.where(go_right, right / right_share, left / left_share).clamp(max=1)
    # Distances are measured from the peak of a piece, which is where the pieces meet or, if that is a valley, at
    # the outer end.
    survival = torch.where(k >= 0, outer, 1 - outer)
    slope, width, log_height, start, direction = (torch.where(go_right, z[1], z[0]) for z in pieces)
    target = survival * torch.where(go_right, masses[1], masses[0]) * (-log_height).exp()

    low, high = torch.zeros_like(s), width
    distance = 0.5 * width
    for _ in range(INVERSION_STEPS):
        rest = width - distance
        rate = slope + k * distance
        beyond = panel_moments(rate * rest, k * rest**2, rule.window_nodes, 1)[0] * rest
        missing = beyond - target * (distance * (slope + 0.5 * k * distance)).exp()  # remaining mass
        low, high = torch.where(missing > 0, distance, low), torch.where(missing > 0, high, distance)
        # The step is exact for an exponential integrand; the bracket prevents overshoots.
        decay = rate * missing
        step = torch.where(decay.abs() < 1e-8, missing, -torch.log1p(-decay) / rate)
        # Steps beyond the end of the piece are set to the end instead of being halved, since draws may be close to it.
        next_distance = torch.minimum((distance + step).clamp(min=0), width)
        inside = (next_distance >= low) & (next_distance <= high)
        before, distance = distance, torch.where(inside, next_distance, 0.5 * (low + high))
        if looks and not bool(((distance - before).abs() > SETTLED * width).any()):
            break
    return (origin + scale * (anchor + start + direction * distance)).clamp(lower, upper)
