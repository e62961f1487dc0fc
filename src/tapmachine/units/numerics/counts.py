"""Summing over counts with weights exp(Bx − ½Ax²)/x!, and sampling counts by inverting the CDF."""

import torch
from torch import Tensor

NODES = 64  # number of counts on each side of the mode
NODES_PER_DEVIATION = 3  # counts in between are skipped, as in a trapezoidal rule with an error of exp(−2π²·3²)
NEWTON_STEPS = 12
DEVIATIONS, MARGIN = 12, 40  # half-width of the window of counts that can be drawn, in standard deviations plus counts
CHUNK = 2**22  # maximum number of weights in memory


def mode_and_deviation(field: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the approximate mode of the weights, and the standard deviation of a Gaussian with the same curvature.

    The mode m is the solution of B = Am + ln(m + ½), where ln(m + ½) approximates the derivative of ln m!. The equation
    is convex in y = ln(m + ½), so Newton's method approaches its root from above.
    """
    target = field + 0.5 * precision
    y = torch.minimum(target, (target.clamp(min=1) / precision.clamp(min=1e-300)).log()).clamp(max=80)
    for _ in range(NEWTON_STEPS):
        y = y - (precision * y.exp() + y - target) / (precision * y.exp() + 1)
    mode = (y.exp() - 0.5).clamp(min=0)
    return mode.round(), (1 / (mode + 1) + precision).rsqrt()


def count_weights(field: Tensor, precision: Tensor) -> tuple[Tensor, Tensor]:  # (...) -> (..., 129) each
    """Return counts centered at the mode, and their log-weights.

    If the standard deviation is large, only every h-th count is included, with h times its weight.

    Args:
        field, precision: Field B and precision A ≥ 0 in float64.
    """
    with torch.no_grad():
        mode, deviation = mode_and_deviation(field, precision)
        stride = (deviation / NODES_PER_DEVIATION).floor().clamp(min=1)
        steps = torch.arange(-NODES, NODES + 1, dtype=field.dtype, device=field.device)
        k = mode.unsqueeze(-1) + stride.unsqueeze(-1) * steps
    counted = k.clamp(min=0)
    exponent = counted * (field.unsqueeze(-1) - 0.5 * precision.unsqueeze(-1) * counted) - torch.lgamma(counted + 1)
    return counted, torch.where(k < 0, -torch.inf, exponent + stride.log().unsqueeze(-1))


def draw_poisson(rate: Tensor, uniform: Tensor) -> Tensor:
    """Draw Poisson counts by inverting the CDF P(X ≤ k) = Q(k + 1, rate).

    The search starts from an asymptotic expansion of the quantile, which is accurate to a few counts.
    """
    z = torch.special.ndtri(uniform.clamp(1e-16, 1 - 1e-16))
    guess = (rate + rate.sqrt() * z + (z**2 - 1) / 6).floor()
    low = torch.where(rate < 4, -1.0, (guess - 17).clamp(min=-1))  # P(X ≤ low) ≤ u < P(X ≤ high)
    high = low + 32
    for _ in range(5):
        middle = ((low + high) / 2).floor()
        below = torch.special.gammaincc((middle + 1).clamp(min=1e-300), rate) <= uniform
        below |= middle < 0
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return high


def draw_counts(field: Tensor, precision: Tensor, uniform: Tensor) -> Tensor:
    """Draw counts with weights exp(Bx − ½Ax²)/x! by inverting the CDF in a window around the mode."""
    mode, deviation = mode_and_deviation(field, precision)
    half = int(DEVIATIONS * deviation.nan_to_num(0, 0, 0).max()) + MARGIN if deviation.numel() else MARGIN
    window = torch.arange(-half, half + 1, dtype=field.dtype, device=field.device)
    n_rows = max(1, CHUNK // len(window))
    parts = []
    for b, a, m, u in zip(*(z.flatten().split(n_rows) for z in (field, precision, mode, uniform)), strict=True):
        k = m.unsqueeze(-1) + window
        counted = k.clamp(min=0)
        exponent = counted * (b.unsqueeze(-1) - 0.5 * a.unsqueeze(-1) * counted) - torch.lgamma(counted + 1)
        below = torch.where(k < 0, -torch.inf, exponent).softmax(-1).cumsum(-1) <= u.unsqueeze(-1)
        parts.append(k.gather(-1, below.sum(-1, keepdim=True).clamp(max=2 * half)).squeeze(-1))
    return torch.cat(parts).view(field.shape) if parts else field.clone()
