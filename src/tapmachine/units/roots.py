"""The roots behind the implicit half-step: a unit's mean in a field that its own mean reacts on.

With θ the mean and κ ≥ 0 the variance of the neighbours' field, the unit's own field B solves B + κ f_a(B) = θ. The
left side rises with slope 1 + κ f_c ≥ 1, so the root is unique, and any point z lies within its own residual of it.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from tapmachine.beliefs import Moments

MOST_STEPS = 60  # a bracket halves at worst: enough for float64

# A Newton step smaller than this, relative to 1 + |z|, leaves an error of about its square.
SMALL_STEP = {torch.float32: 3e-4, torch.float64: 1e-7}


def logistic_root(total: Tensor, reaction: Tensor, start: Tensor, steps: int | None = None) -> Tensor:
    """z with z + κσ(z) = t: the logit of a two-state unit.

    On either side of z = 0 the function bends one way only. So Newton's method, kept on the root's side, overshoots at
    most once, and then approaches the root from one side, with an error of at most half its last step squared.

    Args:
        total: t.
        reaction: κ ≥ 0.
        start: a guess of z.
        steps: number of Newton steps; without it, until they are small.
    """
    middle = total - 0.5 * reaction  # has the sign of the root
    lower = torch.maximum(total - reaction, middle.clamp(max=0))
    upper = torch.minimum(total, middle.clamp_(min=0))
    z = start.clamp(lower, upper)
    for step in range(MOST_STEPS if steps is None else steps):
        mean = torch.sigmoid(z)
        slope = torch.addcmul(mean, mean, mean, value=-1).mul_(reaction).add_(1)
        change = mean.mul_(reaction).add_(z).sub_(total).div_(slope)
        z = z - change
        if step == 0:  # later steps stay inside by themselves
            z = z.clamp(lower, upper)
        if steps is None and not bool((change.abs() > SMALL_STEP[z.dtype] * (1 + z.abs())).any()):
            break
    return z


def bracketed_root(
    moments: Callable[[Tensor], Moments],
    field: Tensor,
    reaction: Tensor,
    start: Tensor,
    bounds: tuple[Tensor, Tensor],
    steps: int | None = None,
) -> tuple[Moments, Tensor]:
    """The moments at the root of B + κ f_a(B) = θ, and B, for any unit type; by Newton's method inside a bracket.

    Where the moments are not finite there is no root; they are returned as they are.

    Args:
        moments: of the units as a function of B.
        field: θ.
        reaction: κ ≥ 0.
        start: a guess of B.
        bounds: of the mean.
        steps: number of Newton steps; without it, until they are small.
    """
    at_lower, at_upper = (torch.where(reaction > 0, field - reaction * bound, field) for bound in bounds)
    lower, upper = at_upper, at_lower
    z = torch.nan_to_num(start).clamp(lower, upper)
    found = moments(z)
    last = False
    for _ in range(MOST_STEPS if steps is None else steps):
        residual = z + reaction * found.mean - field
        finite = torch.isfinite(found.variance) & torch.isfinite(residual)
        residual = torch.where(finite, residual, 0.0)
        above = residual > 0
        # The root lies below a point with a positive residual, and not further away than that residual.
        upper = torch.where(above, z, torch.minimum(upper, z - residual))
        lower = torch.where(above, torch.maximum(lower, z - residual), z)
        newton = z - residual / (1 + reaction * torch.where(finite, found.variance, 0.0))
        outside = (newton < lower) | (newton > upper)
        new = torch.where(outside, 0.5 * (lower + upper), newton)
        if steps is None:
            last = not bool(((new - z).abs() > SMALL_STEP[z.dtype] * (1 + z.abs())).any())
        z = torch.where(finite, new, z)
        found = moments(z)
        if last:
            break
    return found, field - reaction * found.mean


def simplex_root(
    log_weights: Tensor, field: Tensor, reaction: Tensor, start: Tensor, steps: int | None = None
) -> Tensor:
    """B with B + K·p(B) = θ, where p(B) ∝ exp(log_weights + B): the fields of a unit with q states.

    p minimises the convex function Σ p ln(p/weights) − θp + ½ pKp, which serves to halve Newton steps that are too
    long; as B only matters up to a constant, its mean over the states is that of θ − Kp.

    Args:
        log_weights: of shape (..., q), as the others but
        reaction: K of shape (..., q, q), symmetric and positive semidefinite.
        field: θ.
        start: a guess of B.
        steps: number of Newton steps; without it, until they are small.
    """
    identity = torch.eye(field.shape[-1], dtype=field.dtype, device=field.device)

    def apply(p: Tensor) -> Tensor:
        return (reaction @ p.unsqueeze(-1)).squeeze(-1)

    def value(own: Tensor) -> tuple[Tensor, Tensor]:
        log_p = torch.log_softmax(log_weights + own, -1)
        p = log_p.exp()
        return (p * (log_p - log_weights - field + 0.5 * apply(p))).sum(-1), p

    own = torch.nan_to_num(start).expand_as(field)
    best, p = value(own)
    for _ in range(MOST_STEPS if steps is None else steps):
        residual = own + apply(p) - field
        residual = torch.nan_to_num(residual - residual.mean(-1, keepdim=True))
        covariance = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
        matrix = torch.nan_to_num(identity + reaction @ covariance)
        step = torch.linalg.solve(matrix, residual.unsqueeze(-1)).squeeze(-1)
        for _ in range(20 if steps is None else 4):
            new = own - step
            new_value, new_p = value(new)
            rises = new_value > best + 1e-6 * SMALL_STEP[own.dtype] * (1 + best.abs())
            if steps is None and not bool(rises.any()):
                break
            step = torch.where(rises.unsqueeze(-1), 0.5 * step, step)
        keep = rises.unsqueeze(-1)
        own, p, best = torch.where(keep, own, new), torch.where(keep, p, new_p), torch.where(rises, best, new_value)
        if steps is None and not bool((step.abs() > SMALL_STEP[own.dtype] * (1 + own.abs())).any()):
            break
    return field - apply(p)
