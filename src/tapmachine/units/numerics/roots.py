"""Root finding for implicit updates, in which the field on a unit depends on the mean of the same unit.

Let θ and κ ≥ 0 be the mean and the variance of the neighbors' field. The field B on the unit solves B + κ f_a(B) = θ.
The left side has the slope 1 + κ f_c ≥ 1, so the root is unique, and the residual at any point is an upper bound on the
distance of this point from the root.
"""

from collections.abc import Callable
from math import isfinite

import torch
from torch import Tensor

from tapmachine.beliefs import Moments

MOST_STEPS = 100  # sufficient for float64 even if each step only halves the bracket

PATIENCE = 8  # number of steps after which the threshold for small steps allows for rounding errors

# A Newton step smaller than this leaves an error of about its square.
SMALL_STEP = {torch.float32: 5e-3, torch.float64: 1e-6}


def logistic_root(total: Tensor, reaction: Tensor, start: Tensor, steps: int | None = None) -> Tensor:
    """Solve z + κσ(z) = t for the logit z of a two-state unit.

    The root lies between 0 and t − ½κ, where the function is convex or concave. Newton's method, restricted to this
    interval, therefore overshoots at most once and then converges from one side. Its error is at most half the square
    of the last step.

    Args:
        total: Right-hand side t.
        reaction: Reaction κ ≥ 0.
        start: Initial guess for z.
        steps: Number of Newton steps (default: until convergence).
    """
    middle = torch.sub(total, reaction, alpha=0.5)
    lower, upper = middle.clamp(max=0), middle.clamp_(min=0)
    z = start.clamp(lower, upper)
    one = z.new_ones(())
    for step in range(MOST_STEPS if steps is None else steps):
        mean = torch.sigmoid(z)
        slope = torch.addcmul(one, reaction, torch.addcmul(mean, mean, mean, value=-1))
        excess = torch.addcmul(z - total, reaction, mean)
        new = torch.addcdiv(z, excess, slope, value=-1)
        if step == 0:  # later steps stay inside automatically
            new = new.clamp(lower, upper)
        if steps is None and is_small(new - z, new, step):
            return new
        z = new
    return z


def is_small(change: Tensor, z: Tensor, step: int) -> bool:
    """Return whether all Newton steps are small.

    After several steps, the threshold is relative to z, to allow for rounding errors.
    """
    if step > PATIENCE:
        change = change / (1 + z.abs())
    size = _size(change)
    if not isfinite(size):  # failed elements must not affect the other elements
        size = _size(torch.nan_to_num(change, nan=0.0, posinf=0.0, neginf=0.0))
    return size <= SMALL_STEP[z.dtype]


def _size(change: Tensor) -> float:
    smallest, largest = torch.aminmax(change)
    return max(-smallest.item(), largest.item())


def bracketed_root(
    moments: Callable[[Tensor], Moments],
    field: Tensor,
    reaction: Tensor,
    start: Tensor,
    bounds: tuple[Tensor, Tensor],
    steps: int | None = None,
) -> tuple[Moments, Tensor]:
    """Solve B + κ f_a(B) = θ for any unit type by a bracketed Newton method.

    For units with non-finite moments, the equation has no root, and the moments are returned unchanged.

    Args:
        moments: Function that maps the field B to the moments of the units.
        field: Right-hand side θ.
        reaction: Reaction κ ≥ 0.
        start: Initial guess for B.
        bounds: Lower and upper bound of the mean.
        steps: Number of Newton steps (default: until convergence).

    Returns:
        The moments and the field B.
    """
    at_lower, at_upper = (torch.where(reaction > 0, field - reaction * bound, field) for bound in bounds)
    lower, upper = at_upper, at_lower
    z = torch.nan_to_num(start).clamp(lower, upper)
    found = moments(z)
    length = torch.full_like(z, torch.inf)
    last = False
    for step in range(MOST_STEPS if steps is None else steps):
        residual = z + reaction * found.mean - field
        finite = torch.isfinite(found.variance) & torch.isfinite(residual)
        residual = torch.where(finite, residual, 0.0)
        above = residual > 0
        # The root lies below a point with a positive residual, and their distance is at most the residual.
        upper = torch.where(above, z, torch.minimum(upper, z - residual))
        lower = torch.where(above, torch.maximum(lower, z - residual), z)
        newton = z - residual / (1 + reaction * torch.where(finite, found.variance, 0.0))
        # Steps that reach an end of the bracket, or do not become shorter, could oscillate indefinitely.
        wild = (newton <= lower) | (newton >= upper) | ((newton - z).abs() > 0.5 * length)
        new = torch.where(wild & (residual != 0), 0.5 * (lower + upper), newton)
        length = (new - z).abs()
        if steps is None:
            last = is_small(torch.where(finite, new - z, 0.0), z, step)
        z = torch.where(finite, new, z)
        found = moments(z)
        if last:
            break
    return found, field - reaction * found.mean


def simplex_root(
    log_weights: Tensor, field: Tensor, reaction: Tensor, start: Tensor, steps: int | None = None
) -> Tensor:
    """Solve B + K·p(B) = θ, where p(B) ∝ exp(log_weights + B), for the fields of a unit with q states.

    The probabilities p minimize the convex function Σ p ln(p/weights) − θp + ½ pKp. Newton steps are halved until this
    function decreases. B is defined up to a constant, which is chosen such that B and θ − Kp have the same mean over
    the states. All computations are in float64, since float32 cannot resolve the minimum for strong couplings.

    Args:
        log_weights: Log-weights of the states, of shape (..., q).
        field: Right-hand side θ, of shape (..., q).
        reaction: Symmetric and positive semidefinite matrix K, of shape (..., q, q).
        start: Initial guess for B, of shape (..., q).
        steps: Number of Newton steps (default: until convergence).
    """
    dtype = field.dtype
    log_weights, field, reaction, start = (z.double() for z in (log_weights, field, reaction, start))
    identity = torch.eye(field.shape[-1], dtype=field.dtype, device=field.device)

    def apply(p: Tensor) -> Tensor:
        return (reaction @ p.unsqueeze(-1)).squeeze(-1)

    def value(own: Tensor) -> tuple[Tensor, Tensor]:
        log_p = torch.log_softmax(log_weights + own, -1)
        p = log_p.exp()
        return (p * (log_p - log_weights - field + 0.5 * apply(p))).sum(-1), p

    own = torch.nan_to_num(start).expand_as(field)
    best, p = value(own)
    for number in range(MOST_STEPS if steps is None else steps):
        residual = own + apply(p) - field
        residual = torch.nan_to_num(residual - residual.mean(-1, keepdim=True))
        covariance = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
        matrix = identity + reaction @ covariance
        matrix = torch.where(torch.isfinite(matrix).all(-1).all(-1)[..., None, None], matrix, identity)
        step = torch.linalg.solve_ex(matrix, residual.unsqueeze(-1)).result.squeeze(-1)  # does not check for errors
        for _ in range(20 if steps is None else 4):
            new = own - step
            new_value, new_p = value(new)
            rises = new_value > best + 1e-13 * (1 + best.abs())
            if steps is None and not bool(rises.any()):
                break
            step = torch.where(rises.unsqueeze(-1), 0.5 * step, step)
        keep = rises.unsqueeze(-1)
        own, p, best = torch.where(keep, own, new), torch.where(keep, p, new_p), torch.where(rises, best, new_value)
        if steps is None and is_small(step, own, number):
            break
    return (field - apply(p)).to(dtype)
