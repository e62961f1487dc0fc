"""Third cumulant κ₃ of a unit as a function κ₃(a, c) of its mean and variance."""

from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.units.numerics.intervals import wide


class Slopes(NamedTuple):
    """Derivatives ∂κ₃/∂a and ∂κ₃/∂c of the third cumulant with respect to the mean and variance, of shape (..., n)."""

    by_mean: Tensor
    by_variance: Tensor


def slopes(variance: Tensor, third: Tensor, fourth: Tensor, mixed: Tensor, dtype: torch.dtype) -> Slopes:
    """Compute the derivatives of κ₃ with respect to the moments from the cumulants c, κ₃, κ₄ and λ = κ₅ + 6cκ₃.

    λ is the mixed cumulant of y, y, y and y², where y = x − a. A factor exp(ε₁y + ε₂y²) changes the moments and the
    third cumulant by

        da = c ε₁ + κ₃ ε₂,    dc = κ₃ ε₁ + Var(y²) ε₂,    dκ₃ = κ₄ ε₁ + λ ε₂,

    where Var(y²) = κ₄ + 2c². The derivatives solve dκ₃ = (∂κ₃/∂a) da + (∂κ₃/∂c) dc. They are the coefficients of
    the linear regression of y³ − 3cy on y and y².

    For units with two states, y² is a linear function of y, and κ₃ depends only on the mean. In this case, and if y² is
    linear in y up to rounding errors, ∂κ₃/∂c is set to 0 and ∂κ₃/∂a to κ₄/c, which gives the correct dκ₃ for all
    possible changes.
    """
    c, k3, k4, mixed = (wide(z) for z in (variance, third, fourth, mixed))
    varies = (c > torch.finfo(c.dtype).tiny ** 0.3) & torch.isfinite(c)  # below, powers of c underflow
    c = torch.where(varies, c, 1.0)
    deviation = c.sqrt()
    # in units of the standard deviation: c = 1, κ₃ is the skewness, κ₄ the excess kurtosis
    skewness, kurtosis, mixed = k3 / deviation**3, k4 / c**2, mixed / deviation**5
    residual = kurtosis + 2 - skewness**2  # variance of y² that is not explained by y
    is_free = residual > torch.finfo(dtype).eps ** 0.5 * (kurtosis + 2)
    by_variance = torch.where(is_free, mixed - skewness * kurtosis, 0.0) / torch.where(is_free, residual, 1.0)
    by_mean = kurtosis - skewness * by_variance
    return Slopes(*(torch.where(varies, z, 0.0).to(dtype) for z in (c * by_mean, deviation * by_variance)))


def third_cumulant_of_mixture(logit: Tensor, mean: Tensor, variance: Tensor, third: Tensor) -> Tensor:
    """Compute κ₃ of a unit that is 0 or, with log-odds `logit`, has the cumulants a_s, c_s and k_s.

    With P = σ(logit) and Q = 1 − P, κ₃ = P k_s + 3PQ a_s c_s + PQ(Q − P) a_s³.
    """
    active, inactive = torch.sigmoid(logit), torch.sigmoid(-logit)
    mixing = active * inactive
    return active * third + mixing * mean * (3 * variance + (inactive - active) * mean**2)
