"""Gaussian units confined to an interval."""

from typing import Self, final

import torch
from torch import Tensor, nn

from tapmachine.beliefs import Moments, Tilt
from tapmachine.data.rows import Rows
from tapmachine.units.base import Units
from tapmachine.units.checks import Values
from tapmachine.units.numerics.columns import SMALLEST_SPREAD, column_moments
from tapmachine.units.numerics.interval_draws import sample_interval
from tapmachine.units.numerics.intervals import (
    RULES,
    make_normalizable,
    normalizable,
    wide,
    window_integral,
)
from tapmachine.units.numerics.truncation import log_density, tilted_interval
from tapmachine.units.numerics.truncation_rules import DEVICE_CHUNK, WINDOW_CHUNK, Prior, TiltedInterval
from tapmachine.units.support import Interval

LARGEST_VARIANCE = 0.9  # of a prior fitted to data, relative to the largest variance that its mean allows


@final
class TruncatedGaussian(Units):
    """Real-valued units on [lower, upper]: P(x) ∝ exp(Ux − ½Vx²) there (App. [sec:apdx_tunc_gaussian]).

    On a finite interval V and V + A may have either sign: a negative one puts the mass at both edges. One of the bounds
    may be infinite; then V > 0, and a tilt with V + A < 0 cannot be normalized: `normalizable` is False there, and ln
    Z, the absolute mean and the variance are inf. With u = U + B and v = V + A, all quantities follow from ln ∫ exp(ux
    − ½vx²) dx over the interval and its moments; see `tapmachine.units.numerics.intervals` for the numerics (errata E5,
    E6, E7).

    Args:
        n: Number of units.
        lower, upper: Bounds of the interval, numbers or tensors of shape (n,).
        field: U, a number or a tensor of shape (n,).
        precision: V, with the same shapes. Default: the uniform prior, V = 0, or V = 1 if a bound is infinite.

    Example:
        >>> import torch
        >>> from tapmachine import Tilt, TruncatedGaussian
        >>> units = TruncatedGaussian(3, lower=0.0, upper=1.0, precision=1.0)
        >>> with torch.no_grad():
        ...     units.moments(Tilt(field=torch.tensor([-20.0, 0.5, 20.0]), precision=0.0)).mean
        tensor([0.0498, 0.5000, 0.9477])
    """

    is_categorical = has_two_states = False  # avoids the support, whose bounds are read from the device

    field: nn.Parameter
    free_precision: nn.Parameter
    base_precision: Tensor
    lower: Tensor
    upper: Tensor

    fits_in_parts = True

    def __init__(
        self,
        n: int,
        lower: Values = 0.0,
        upper: Values = 1.0,
        field: Values = 0.0,
        precision: Values | None = None,
    ) -> None:
        super().__init__(n)
        n = self.n
        dtype = self.common_dtype(field, precision, lower, upper)
        for name, value in (("lower", lower), ("upper", upper)):
            bound = self.as_tensor(value, name).to(dtype)
            if bound.shape not in ((), (n,)):
                raise ValueError(f"TruncatedGaussian: {name} has shape {tuple(bound.shape)}; it must be () or ({n},)")
            self.reject(torch.isnan(bound), bound, name, "it must be a number")
            self.register_buffer(name, bound.clone())
        self.reject(self.lower >= self.upper, self.lower, "lower", f"it must be less than upper, {upper}")
        both_infinite = torch.isinf(self.lower) & torch.isinf(self.upper)
        self.reject(both_infinite, self.lower, "lower", "at least one bound must be finite; otherwise use Gaussian")
        self.field = nn.Parameter(self.as_parameter(field, "field", (n,), dtype))
        self.free_precision = nn.Parameter(torch.zeros(n, dtype=dtype))
        self.register_buffer("base_precision", torch.ones(n, dtype=dtype))
        if precision is not None:
            self.precision = precision

    @property
    def bounded(self) -> Tensor:
        """Mask of the units with two finite bounds, whose precision may have either sign."""
        return torch.isfinite(self.lower) & torch.isfinite(self.upper)

    @property
    def precision(self) -> Tensor:
        """V: `free_precision`, or base·exp(free_precision) if a bound is infinite and V must be positive.

        Assign to it, `units.precision = 2.0`; changing it in place has no effect. The base is a buffer that stores the
        assigned value exactly.
        """
        log_growth = torch.where(self.bounded, 0.0, self.free_precision)  # a large V must not overflow in exp
        return torch.where(self.bounded, self.free_precision, self.base_precision * log_growth.exp())

    @precision.setter
    def precision(self, value: Values) -> None:
        precision = self.as_parameter(value, "precision", (self.n,), self.dtype)
        invalid = ~self.bounded & (precision <= 0)
        self.reject(invalid, precision, "precision", "with an infinite bound it must be greater than 0")
        with torch.no_grad():
            self.base_precision.copy_(torch.where(self.bounded, 1.0, precision))
            self.free_precision.copy_(torch.where(self.bounded, precision, 0.0))

    def extra_repr(self) -> str:
        low, high = (f"{b.min():g}" if b.min() == b.max() else "[...]" for b in (self.lower, self.upper))
        return f"n={self.n}, lower={low}, upper={high}"

    @torch.no_grad()
    def rescaled(self, scale: float, shift: Tensor | float = 0.0) -> "TruncatedGaussian":
        field, precision, lower, upper = (wide(z).cpu() for z in (self.field, self.precision, self.lower, self.upper))
        precision, shift = precision / scale**2, torch.as_tensor(shift).cpu()
        bounds = shift + scale * lower, shift + scale * upper
        units = TruncatedGaussian(self.n, *bounds, field / scale + precision * shift, precision)
        return units.to(self.device, self.dtype)

    def check_states(self, x: Tensor, validate: bool = True) -> Tensor:
        x = self.as_states(x)
        if validate:
            self.reject_states(self._are_outside, x, "it must lie between lower and upper")
        return x

    def _are_outside(self, x: Tensor) -> Tensor:
        return ~((x >= self.lower) & (x <= self.upper) & torch.isfinite(x))

    @property
    def support(self) -> Interval:
        return Interval(float(self.lower.min()), float(self.upper.max()))

    def bounds(self) -> tuple[Tensor, Tensor]:
        return self.lower, self.upper

    def _prior(self) -> Prior:
        return Prior(self.field, self.precision, self.lower, self.upper)

    def log_prior(self, x: Tensor, validate: bool = True) -> Tensor:
        x = self.check_states(x, validate)
        return log_density(self._prior().wide(), wide(x)).to(self.dtype)

    def log_normalizer(self) -> Tensor:  # (n,), float64
        """ln ∫ exp(Ux − ½Vx²) dx over the interval, ln Z_TG (erratum E6)."""
        prior = self._prior().wide()
        bound = torch.where(torch.isfinite(prior.lower), prior.lower, prior.upper)
        return bound * (prior.U - 0.5 * prior.V * bound) - log_density(prior, bound)

    def tilted(self, tilt: Tilt, normalized: bool = True) -> TiltedInterval:
        """ln Z(B,A), mean and variance together; with `normalized=False`, ln ∫ exp(ux − ½vx²) dx instead of ln Z.

        The logarithm is float64 if it was computed in float64.
        """
        return tilted_interval(self._prior(), *self.unpack(tilt), normalized)

    def log_partition(self, tilt: Tilt) -> Tensor:
        return self.tilted(tilt).log.to(self.dtype)

    def moments(self, tilt: Tilt) -> Moments:
        _, mean, variance = self.tilted(tilt, normalized=False)
        return Moments(mean, variance)

    def log_partition_and_moments(self, tilt: Tilt) -> tuple[Tensor, Moments]:
        log_partition, mean, variance = self.tilted(tilt)
        return log_partition.to(self.dtype), Moments(mean, variance)

    def normalizable(self, tilt: Tilt) -> Tensor:
        field, precision = self.unpack(tilt)
        return normalizable(field + self.field, precision + self.precision, self.lower, self.upper).expand(field.shape)

    @torch.no_grad()
    def sample(self, tilt: Tilt, generator: torch.Generator | None = None) -> Tensor:
        shape = self.unpack(tilt)[0].shape
        return self.draw(tilt, torch.rand(shape, dtype=torch.float64, device=self.device, generator=generator))

    @torch.no_grad()
    def draw(self, tilt: Tilt, uniform: Tensor, wanted: Tensor | None = None) -> Tensor:
        """States at uniform numbers; with the mask `wanted`, only the selected ones, (n_wanted,)."""
        field, precision = self.unpack(tilt)
        terms = (wide(field) + self.field, wide(precision) + self.precision, self.lower, self.upper)
        u, v, lower, upper = (wide(z).expand_as(field) for z in terms)
        if wanted is not None:
            u, v, lower, upper, uniform = (z[wanted] for z in (u, v, lower, upper, uniform))
        finite, safe_u, safe_v = make_normalizable(u, v, lower, upper)
        chunk = WINDOW_CHUNK if u.device.type == "cpu" else DEVICE_CHUNK
        flat = (z.reshape(-1).split(chunk) for z in (safe_u, safe_v, lower, upper, wide(uniform)))
        draws = [
            sample_interval(some_u, some_v, low, high, share, RULES[self.dtype])
            for some_u, some_v, low, high, share in zip(*flat, strict=True)
        ]
        draw = torch.cat(draws).view(u.shape) if draws else u
        return torch.where(finite, draw, torch.copysign(torch.full_like(u, torch.inf), u)).to(self.dtype)

    def fit_to(self, x: Rows, weights: Tensor | None = None, smoothing: float = 1.0) -> Self:
        x, weights = self.checked_rows(x, weights, smoothing)
        return self.fit_to_moments(*column_moments(x, weights), smoothing)

    @torch.no_grad()
    def fit_to_moments(self, count: Tensor, mean: Tensor, variance: Tensor, smoothing: float) -> Self:
        """Set U and V to fit `count` observations with this mean and variance, each of shape (n,).

        Variances are smoothed toward the median over the columns, relative to the width of the interval (or to the
        mean, if the interval is half-infinite). Without observations, the mean is the middle of the interval.
        """
        lower, upper = (wide(z).expand(self.n) for z in (self.lower, self.upper))
        bounded = self.bounded.expand(self.n)
        length = torch.where(bounded, upper - lower, 1.0)
        origin = torch.where(torch.isfinite(lower), lower, upper)
        direction = torch.where(torch.isfinite(lower), 1.0, -1.0).to(origin.dtype)
        seen = count > 0
        distance = torch.where(seen, direction * (mean - origin), 0.0)
        # In t = distance/scale the interval is [0, 1], or [0, ∞) with a mean of 1, which makes columns comparable.
        scale = torch.where(bounded, length, torch.where(distance > 0, distance, variance.sqrt()))
        scale = torch.where(scale > 0, scale, 1.0)
        spread_out = seen & (variance > 0)
        relative = torch.where(spread_out, variance / scale**2, 0.0)
        typical = relative[spread_out].median() if spread_out.any() else relative.new_tensor(1 / 12)
        if smoothing > 0:
            relative = (count * relative + smoothing * typical) / (count + smoothing)
            relative = torch.maximum(relative, SMALLEST_SPREAD**2 * typical)

        # Avoid the bounds: a column that never leaves one becomes an exponential with its mean one deviation away.
        margin = torch.where(spread_out, SMALLEST_SPREAD * typical.sqrt(), relative.sqrt())
        nowhere = torch.where(bounded, 0.5, 1.0)
        t = torch.where(seen, distance / scale, nowhere).maximum(margin)
        t = torch.where(bounded, t.minimum(1 - margin), t)
        scale = torch.where(bounded, scale, scale * t)
        t, relative = torch.where(bounded, t, 1.0), torch.where(bounded, relative, relative / t**2)
        largest = LARGEST_VARIANCE * torch.where(bounded, t * (1 - t), 1.0)
        relative = relative.minimum(largest)
        self.check_fit("precision", 1 / relative)
        s, k, error = _match_moments(t, relative, bounded)
        self.reject(error > 1e-3, mean, "mean of the columns", "no prior of this type has this mean and variance")
        precision = k / scale**2
        field = direction * s / scale + precision * origin
        self.check_fit("precision", precision)
        self.check_fit("field", field)
        self.field.copy_(field)
        self.precision = precision
        return self


def _match_moments(mean: Tensor, variance: Tensor, bounded: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Find s and k for which exp(st − ½kt²) on [0, 1], or on [0, ∞) where not bounded, has this mean and variance.

    The third result is the error relative to the variance. Uses Newton's method on the log-likelihood, which is concave
    in (s, −½k), and halves steps until the log-likelihood increases.
    """
    lower = torch.zeros_like(mean)
    upper = torch.where(bounded, 1.0, torch.inf).to(mean.dtype)
    # Well inside the interval it is a plain Gaussian; near an edge, start from the uniform prior.
    inside = ~bounded | (torch.minimum(mean, 1 - mean) > 4 * variance.sqrt())
    s, k = torch.where(inside, mean / variance, 0.0), torch.where(inside, 1 / variance, 0.0)
    second = variance + mean**2

    def log_likelihood(s: Tensor, k: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        allowed = bounded | (k > 0)
        integral = window_integral(s, torch.where(allowed, k, 1.0), lower, upper, RULES[torch.float64], order=4)
        log_integral = integral.anchor * (s - 0.5 * k * integral.anchor) + integral.log_mass
        return torch.where(allowed, s * mean - 0.5 * k * second - log_integral, -torch.inf), integral.cumulants

    value, (a, c, third, fourth) = log_likelihood(s, k)
    for _ in range(100):
        residual_1 = mean - a
        residual_2 = (variance - c) + residual_1 * (mean + a)
        error = torch.maximum(residual_1.abs(), residual_2.abs()) / variance
        if bool((error <= 1e-9).all()):
            break
        # covariance matrix of (t, t²), the curvature of the log-likelihood
        cov_11, cov_12 = c, third + 2 * a * c
        cov_22 = fourth + 2 * c**2 + 4 * a * third + 4 * a**2 * c
        determinant = (cov_11 * cov_22 - cov_12**2).clamp(min=1e-300)
        step_s = (cov_22 * residual_1 - cov_12 * residual_2) / determinant
        step_k = -2 * (cov_11 * residual_2 - cov_12 * residual_1) / determinant
        size = torch.ones_like(s)
        for _ in range(40):
            trial, cumulants = log_likelihood(s + size * step_s, k + size * step_k)
            falls = trial < value - 1e-13 * (1 + (s * mean).abs() + (k * second).abs())  # by more than rounding
            if not falls.any():
                break
            size = torch.where(falls, 0.5 * size, size)
        s, k = s + size * step_s, k + size * step_k
        value, (a, c, third, fourth) = trial, cumulants
    return s, k, error
