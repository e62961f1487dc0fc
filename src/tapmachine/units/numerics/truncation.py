"""Log-partition function, mean and variance of a tilted truncated Gaussian prior, with their derivatives.

The values are computed by the quadrature rules in `truncation_rules.py`. In compiled code, this computation is a single
opaque operation.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tapmachine.units.numerics.intervals import RULES, make_normalizable, wide, window_integral
from tapmachine.units.numerics.truncation_rules import (
    Prior,
    TiltedInterval,
    by_both_rules,
    by_one_kernel,
    by_windows_only,
)


def tilted_interval(prior: Prior, B: Tensor, A: Tensor, normalized: bool = True) -> TiltedInterval:
    """Compute ln Z(B,A), the mean and the variance of a prior tilted by exp(Bx − ½Ax²).

    All three results are differentiable with respect to U, V, B and A; ln Z is twice differentiable. If the tilted
    prior cannot be normalized, which can happen only on a half-infinite interval, ln Z, the absolute mean and the
    variance are inf.

    Args:
        prior: Coefficients U and V, and the interval; one of its bounds may be infinite.
        B, A: Field and precision of the tilt, both of shape (..., n).
        normalized: Whether the prior is normalized (default: True). If False, ln ∫ exp((U+B)x − ½(V+A)x²) dx is
            returned instead of ln Z.
    """
    if torch.is_grad_enabled() and any(z.requires_grad for z in (*prior, B, A)):
        return TiltedInterval(*_TiltedInterval.apply(*prior, B, A, normalized))
    return evaluate(prior, B, A, normalized)


def third_cumulant(prior: Prior, B: Tensor, A: Tensor) -> Tensor:
    """Compute the third cumulant under a tilt, which is 0 if the tilted prior cannot be normalized.

    The result is differentiable once with respect to U, V, B and A.
    """
    third: Tensor = _ThirdCumulant.apply(*prior, B, A)
    return third


def log_density(prior: Prior, x: Tensor) -> Tensor:
    """Compute the normalized log-density of the prior at x, differentiable with respect to U, V and x."""
    if torch.is_grad_enabled() and any(z.requires_grad for z in (*prior, x)):
        density: Tensor = _LogDensity.apply(*prior, x)
        return density
    return _log_density(prior, x)


def _log_density(prior: Prior, x: Tensor) -> Tensor:
    if torch.compiler.is_compiling():
        density: Tensor = _density_as_one_node(*prior, x.contiguous())
        return density
    integral = window_integral(*prior.wide(), RULES[x.dtype])
    shift = wide(x) - integral.anchor
    return (shift * (integral.slope - 0.5 * wide(prior.V) * shift) - integral.log_mass).to(x.dtype)


class _TiltedInterval(torch.autograd.Function):
    """Autograd function whose derivatives are cumulants, computed by the same quadrature rules to full accuracy."""

    @staticmethod
    def forward(ctx, U, V, lower, upper, B, A, normalized):  # type: ignore[no-untyped-def]
        log, mean, variance = evaluate(Prior(U, V, lower, upper), B, A, normalized)
        ctx.save_for_backward(U, V, lower, upper, B, A, mean, variance)
        ctx.normalized = normalized
        ctx.set_materialize_grads(False)
        return log, mean, variance

    @staticmethod
    def backward(ctx, d_log, d_mean, d_variance):  # type: ignore[no-untyped-def]
        U, V, lower, upper, B, A, mean, variance = ctx.saved_tensors
        # Elements that cannot be normalized have no derivative; 0 keeps sums over a column finite.
        finite = torch.isfinite(variance)
        mean, variance = (torch.where(finite, z, 0.0) for z in (mean, variance))
        d_u = d_v = torch.zeros_like(mean)
        if d_log is not None:
            d_u = d_u + d_log * mean
            d_v = d_v - 0.5 * d_log * (variance + mean**2)
        if d_mean is not None or d_variance is not None:
            if torch.is_grad_enabled():
                raise NotImplementedError(
                    "second derivatives of the moments of truncated Gaussians are not implemented"
                )
            low, high = wide(lower), wide(upper)
            _, u, v = make_normalizable(wide(U) + wide(B), wide(V) + wide(A), low, high)
            integral = window_integral(u, v, low, high, RULES[mean.dtype], order=4)
            third, fourth = (z.to(mean.dtype) for z in integral.cumulants[2:])
            if d_mean is not None:
                d_u = d_u + d_mean * variance
                d_v = d_v - 0.5 * d_mean * (third + 2 * mean * variance)
            if d_variance is not None:
                d_u = d_u + d_variance * third
                d_v = d_v - 0.5 * d_variance * (fourth + 2 * variance**2 + 2 * mean * third)
        d_U, d_V = d_u.sum_to_size(U.shape), d_v.sum_to_size(V.shape)
        if d_log is not None and ctx.normalized:
            prior_mean, prior_second = _untilted_moments(Prior(U, V, lower, upper))
            d_U = d_U - d_log.sum_to_size(U.shape) * prior_mean
            d_V = d_V + 0.5 * d_log.sum_to_size(V.shape) * prior_second
        return d_U, d_V, None, None, d_u, d_v, None


class _ThirdCumulant(torch.autograd.Function):
    @staticmethod
    def forward(ctx, U, V, lower, upper, B, A):  # type: ignore[no-untyped-def]
        mean, c, third, fourth, fifth = cumulants(Prior(U, V, lower, upper), B, A)
        by_v = -0.5 * (fifth + 6 * c * third + 2 * mean * fourth)  # the mixed cumulant of x, x, x and −½x²
        ctx.save_for_backward(fourth.to(B.dtype), by_v.to(B.dtype))
        ctx.shapes = U.shape, V.shape
        return third.to(B.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_third):  # type: ignore[no-untyped-def]
        d_u, d_v = (d_third * z for z in ctx.saved_tensors)
        d_U, d_V = (d.sum_to_size(shape) for d, shape in zip((d_u, d_v), ctx.shapes, strict=True))
        return d_U, d_V, None, None, d_u, d_v


class _LogDensity(torch.autograd.Function):
    @staticmethod
    def forward(ctx, U, V, lower, upper, x):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(U, V, lower, upper, x)
        return _log_density(Prior(U, V, lower, upper), x)

    @staticmethod
    def backward(ctx, d_log):  # type: ignore[no-untyped-def]
        U, V, lower, upper, x = ctx.saved_tensors
        mean, second = _untilted_moments(Prior(U, V, lower, upper))
        d_U = (d_log * (x - mean)).sum_to_size(U.shape)
        d_V = -0.5 * (d_log * (x**2 - second)).sum_to_size(V.shape)
        return d_U, d_V, None, None, d_log * (U - V * x)


def _untilted_moments(prior: Prior) -> tuple[Tensor, Tensor]:
    """Compute the mean and the second moment of the prior, both differentiable."""
    no_tilt = torch.zeros_like(prior.U)
    _, mean, variance = tilted_interval(prior, no_tilt, no_tilt, normalized=False)
    return mean, variance + mean**2


# ----- values


def cumulants(prior: Prior, B: Tensor, A: Tensor) -> Tensor:  # (..., n) -> (5, ..., n)
    """Compute the first five cumulants under a tilt in float64; 0 if the tilted prior cannot be normalized."""
    prior = Prior(*(z.detach() for z in prior))
    if torch.compiler.is_compiling():
        result: Tensor = _cumulants_as_one_node(*prior, B.detach().contiguous(), A.detach().contiguous())
        return result
    U, V, lower, upper = prior.wide()
    finite, u, v = make_normalizable(U + wide(B.detach()), V + wide(A.detach()), lower, upper)
    integral = window_integral(u, v, lower, upper, RULES[B.dtype], order=5)
    return torch.where(finite, torch.stack(integral.cumulants), 0.0)


def evaluate(prior: Prior, B: Tensor, A: Tensor, normalized: bool = True) -> TiltedInterval:
    """Compute the result of `tilted_interval` without derivatives."""
    if torch.compiler.is_compiling():
        return TiltedInterval(*_as_one_node(*prior, B.contiguous(), A.contiguous(), normalized))
    shape, n = B.shape, B.shape[-1]
    prior = Prior(*(z.detach() for z in prior))
    B, A = B.detach().reshape(-1, n), A.detach().reshape(-1, n)
    if B.numel() == 0:
        return TiltedInterval(*(torch.empty(shape, dtype=B.dtype, device=B.device) for _ in range(3)))
    on_device = by_both_rules if B.device.type == "cpu" else by_windows_only
    return TiltedInterval(*(z.view(shape) for z in on_device(prior, B, A, normalized)))


@torch.library.custom_op("tapmachine::tilted_interval", mutates_args=())
def _as_one_node(
    U: Tensor, V: Tensor, lower: Tensor, upper: Tensor, B: Tensor, A: Tensor, normalized: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Custom operator that makes `evaluate` a single node of a compiled graph instead of hundreds of nodes.

    In float32 on a GPU, the operator is compiled as a separate kernel. In float64 it is not compiled, because compilers
    fuse products and sums, which would invalidate the compensation of rounding errors.
    """
    prior = Prior(U, V, lower, upper)
    on_device = by_one_kernel if B.is_cuda and B.dtype == torch.float32 and B.numel() else evaluate
    log, mean, variance = on_device(prior, B, A, normalized)
    return log.to(torch.float64, copy=True), mean.clone(), variance.clone()  # outputs must not share memory


@_as_one_node.register_fake
def _(U: Tensor, V: Tensor, lower: Tensor, upper: Tensor, B: Tensor, A: Tensor, normalized: bool) -> tuple[Tensor, ...]:
    return torch.empty_like(B, dtype=torch.float64), torch.empty_like(B), torch.empty_like(B)


@torch.library.custom_op("tapmachine::log_density", mutates_args=())
def _density_as_one_node(U: Tensor, V: Tensor, lower: Tensor, upper: Tensor, x: Tensor) -> Tensor:
    """Custom operator for `_log_density` in compiled code.

    If `_log_density` is traced instead, torch 2.11 returns derivatives of 0.
    """
    return _log_density(Prior(U, V, lower, upper), x)


@_density_as_one_node.register_fake
def _(U: Tensor, V: Tensor, lower: Tensor, upper: Tensor, x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("tapmachine::interval_cumulants", mutates_args=())
def _cumulants_as_one_node(U: Tensor, V: Tensor, lower: Tensor, upper: Tensor, B: Tensor, A: Tensor) -> Tensor:
    """Custom operator for `cumulants`, which is one node of a compiled graph."""
    return cumulants(Prior(U, V, lower, upper), B, A)


@_cumulants_as_one_node.register_fake
def _(U: Tensor, V: Tensor, lower: Tensor, upper: Tensor, B: Tensor, A: Tensor) -> Tensor:
    return torch.empty((5, *B.shape), dtype=torch.float64, device=B.device)
