"""Gaussian units on the real line."""

from typing import Self, final

import torch
from torch import Tensor, nn

from tapmachine.beliefs import Moments, Received, Tilt
from tapmachine.units.base import Units
from tapmachine.units.numerics.columns import SMALLEST_SPREAD, column_moments, sum_over_rows
from tapmachine.units.numerics.intervals import smaller_terms, wide
from tapmachine.units.states import Values


@final
class Gaussian(Units):
    """Real-valued units with the prior P(x) ∝ exp(Ux − ½Vx²), a normal distribution with mean U/V and variance 1/V.

    ln Z(B,A) = (U+B)²/2(V+A) − U²/2V − ½ ln((V+A)/V), f_a = (U+B)/(V+A), f_c = 1/(V+A).

    The support is unbounded, so the tilted prior cannot be normalized if V + A ≤ 0 [sec:boundMsg]. In this case,
    `normalizable` returns False, and ln Z, the absolute mean and the variance are inf.

    Args:
        n: Number of units.
        field: Field U, a number or a tensor of shape (n,) (default: 0).
        precision: Precision V > 0, a number or a tensor of shape (n,) (default: 1). Training updates its logarithm, so
            V stays positive.

    Example:
        >>> import torch
        >>> from tapmachine import Gaussian, Tilt
        >>> units = Gaussian(2, field=1.0, precision=2.0)
        >>> with torch.no_grad():
        ...     units.moments(Tilt(field=torch.zeros(2), precision=torch.tensor([0.0, -3.0]))).variance
        tensor([0.5000,    inf])
    """

    is_categorical = has_two_states = False

    field: nn.Parameter
    log_growth: nn.Parameter
    base_precision: Tensor
    growth_rate: Tensor

    def __init__(self, n: int, field: Values = 0.0, precision: Values = 1.0) -> None:
        super().__init__(n)
        n = self.n
        dtype = self.common_dtype(field, precision)
        self.field = nn.Parameter(self.as_parameter(field, "field", (n,), dtype))
        self.log_growth = nn.Parameter(torch.zeros(n, dtype=dtype))
        self.register_buffer("base_precision", torch.ones(n, dtype=dtype))
        self.register_buffer("growth_rate", torch.ones(n, dtype=dtype))
        self.precision = precision

    @property
    def precision(self) -> Tensor:
        """Precision V = base_precision·exp(growth_rate·log_growth), which is positive for any `log_growth`.

        To change the precision, assign a new value, as in `units.precision = 2.0`; in-place changes have no effect. The
        buffer `base_precision` stores the assigned value exactly, so both parameters and buffers define the prior.
        """
        return self.base_precision * (self.growth_rate * self.log_growth).exp()

    @precision.setter
    def precision(self, value: Values) -> None:
        precision = self.as_parameter(value, "precision", (self.n,), self.dtype)
        self.reject(precision <= 0, precision, "precision", "expected a number greater than 0")
        with torch.no_grad():
            self.base_precision.copy_(precision)
            self.log_growth.zero_()

    def tail_precision(self) -> Tensor:
        return self.precision.detach()

    @torch.no_grad()
    def rescaled(self, scale: float, shift: Tensor | float = 0.0) -> "Gaussian":
        field, precision = (wide(z).cpu() for z in (self.field, self.precision))
        precision = precision / scale**2
        units = Gaussian(self.n, field / scale + precision * torch.as_tensor(shift).cpu(), precision).to(
            self.device, self.dtype
        )
        units.growth_rate.copy_(self.growth_rate)
        return units

    def log_prior(self, x: Tensor, validate: bool = True) -> Tensor:
        x = wide(self.check_states(x, validate))
        U, V = wide(self.field), wide(self.precision)
        return (0.5 * torch.log(V / (2 * torch.pi)) - 0.5 * V * (x - U / V) ** 2).to(self.dtype)

    def log_partition(self, tilt: Tilt) -> Tensor:
        B, A = (wide(z) for z in self.unpack(tilt))
        U, V = wide(self.field), wide(self.precision)
        finite = _normalizable(B, V + A)
        v = torch.where(finite, V + A, 1.0)
        B = torch.where(finite, B, 0.0)
        ratio = torch.where(finite, A / V, 0.0)
        # ½ ln((V+A)/V): log1p is accurate for small A, the plain logarithm for V + A near 0.
        log_ratio = torch.where(ratio.abs() < 0.5, torch.log1p(ratio.clamp(min=-0.5)), torch.log(v / V))
        # (U+B)²/2(V+A) − U²/2V: a common denominator is accurate for a weak tilt, separate fractions where B nearly
        # cancels U.
        together = (B**2 / (2 * v), B * U / v, -ratio * U**2 / (2 * v))
        apart = ((U + B) ** 2 / (2 * v), -(U**2) / (2 * V))
        log_partition = smaller_terms(together, apart) - 0.5 * log_ratio
        return torch.where(finite, log_partition, torch.inf).to(self.dtype)

    def moments(self, tilt: Tilt) -> Moments:
        u, v = self._tilted(tilt)
        finite = _normalizable(u, v)
        safe = torch.where(finite, v, 1.0)
        mean = torch.where(finite, u / safe, torch.copysign(torch.full_like(u, torch.inf), u))
        return Moments(mean.to(self.dtype), torch.where(finite, 1 / safe, torch.inf).to(self.dtype))

    def third_cumulant(self, tilt: Tilt) -> Tensor:
        return torch.zeros_like(self.unpack(tilt)[0])

    def normalizable(self, tilt: Tilt) -> Tensor:
        return _normalizable(*self._tilted(tilt))

    def settle(self, received: Received, start: Tensor, steps: int | None = None) -> tuple[Moments, Tensor]:
        field, reaction, precision = received
        # a(V + A) = U + θ − κa with A = precision − κ, so the reaction cancels in the mean.
        u, total = self.field + field, self.precision + precision
        finite = _normalizable(u, total - reaction)
        mean = torch.where(finite, u / total, torch.copysign(torch.full_like(u, torch.inf), u))
        variance = torch.where(finite, 1 / torch.where(finite, total - reaction, 1.0), torch.inf)
        return Moments(mean, variance), field - reaction * mean

    def _tilted(self, tilt: Tilt) -> tuple[Tensor, Tensor]:
        field, precision = self.unpack(tilt)
        return wide(field) + self.field, wide(precision) + self.precision

    def sample(self, tilt: Tilt, generator: torch.Generator | None = None) -> Tensor:
        with torch.no_grad():
            mean, variance = self.moments(tilt)
            noise = torch.randn(mean.shape, dtype=mean.dtype, device=mean.device, generator=generator)
            return torch.where(torch.isinf(variance), mean, mean + variance.sqrt() * noise)

    @torch.no_grad()
    def draw(self, tilt: Tilt, uniform: Tensor) -> Tensor:
        mean, variance = self.moments(tilt)
        eps = torch.finfo(uniform.dtype).eps
        noise = torch.special.ndtri(uniform.clamp(eps / 4, 1 - eps / 2))  # finite
        return torch.where(torch.isinf(variance), mean, mean + variance.sqrt() * noise)

    def fit_to(self, x: Tensor, weights: Tensor | None = None, smoothing: float = 1.0) -> Self:
        x, weights = self.checked_rows(x, weights, smoothing)
        count, mean, variance = column_moments(x, weights)
        # Only constant columns use the variance of the other columns, whose scales may be unrelated.
        typical = variance[variance > 0].median() if (variance > 0).any() else variance.new_tensor(1.0)
        pseudo = (smoothing * typical / (count + smoothing)).clamp(min=float(SMALLEST_SPREAD**2 * typical))
        rate = _growth_rate(x, weights, mean, variance)
        variance = torch.where(variance > 0, variance, pseudo if smoothing > 0 else 0.0)
        field, precision = mean / variance, 1 / variance
        self.check_fit("precision", precision)
        self.check_fit("field", field)
        with torch.no_grad():
            self.field.copy_(field)
            self.growth_rate.copy_(rate)
        self.precision = precision
        return self


def _growth_rate(x: Tensor, weights: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Compute the scale of the parameter ln V, which limits the effect of rare, large values on training.

    The gradient with respect to ln V is ½(1 − V(x − m)²). Its variance is (kurtosis − 1)/4, which is ½ for Gaussian
    data, but as large as the number of rows for an almost constant column. The parameter is therefore rescaled by the
    standard deviation of the gradient. The scale is 0 for a constant column, whose likelihood has no maximum in V.
    """
    spread = torch.where(variance > 0, variance, 1.0)
    kurtosis = sum_over_rows(lambda z, w: w * ((z - mean) ** 2 / spread) ** 2, x, weights) / wide(weights).sum()
    return torch.where(variance > 0, (2 / (kurtosis - 1).clamp(min=2)).sqrt(), 0.0)


def _normalizable(u: Tensor, v: Tensor) -> Tensor:
    return (v > 0) & torch.isfinite(u) & torch.isfinite(v)
