"""Gaussian units truncated to an interval."""

from typing import Self, final

import torch
from torch import Tensor, nn

from tapmachine.beliefs import Moments, Tilt
from tapmachine.data.rows import Rows
from tapmachine.units.base import Units
from tapmachine.units.numerics.columns import SMALLEST_SPREAD, column_moments
from tapmachine.units.numerics.interval_draws import sample_interval
from tapmachine.units.numerics.intervals import (
    RULES,
    make_normalizable,
    normalizable,
    wide,
    window_integral,
)
from tapmachine.units.numerics.third_cumulants import Slopes, slopes
from tapmachine.units.numerics.truncation import cumulants, log_density, third_cumulant, tilted_interval
from tapmachine.units.numerics.truncation_rules import DEVICE_CHUNK, WINDOW_CHUNK, Prior, TiltedInterval
from tapmachine.units.states import Values
from tapmachine.units.support import Interval

LARGEST_VARIANCE = 0.9  # maximum variance of a fitted prior, relative to the largest possible variance for its mean


@final
class TruncatedGaussian(Units):
    """Real-valued units on [lower, upper] with the prior P(x) ∝ exp(Ux − ½Vx²) [sec:apdx_tunc_gaussian].

    On a finite interval, V and V + A may have either sign; if V + A is negative, the probability is concentrated at the
    edges. If one of the bounds is infinite, V is positive, and a tilted prior with V + A < 0 cannot be normalized. In
    this case, `normalizable` returns False, and ln Z, the absolute mean and the variance are inf.

    With u = U + B and v = V + A, all quantities are derived from ln ∫ exp(ux − ½vx²) dx over the interval and from the
    moments of the corresponding density. See `tapmachine.units.numerics.intervals` for the numerical method (errata E5,
    E6 and E7).

    Args:
        n: Number of units.
        lower, upper: Bounds of the interval, numbers or tensors of shape (n,) (default: 0 and 1).
        field: Field U, a number or a tensor of shape (n,) (default: 0).
        precision: Precision V, a number or a tensor of shape (n,). Default: 0 (a uniform prior), or 1 if a bound is
            infinite.

    Example:
        >>> import torch
        >>> from tapmachine import Tilt, TruncatedGaussian
        >>> units = TruncatedGaussian(3, lower=0.0, upper=1.0, precision=1.0)
        >>> with torch.no_grad():
        ...     units.moments(Tilt(field=torch.tensor([-20.0, 0.5, 20.0]), precision=0.0)).mean
        tensor([0.0498, 0.5000, 0.9477])
    """

    is_categorical = has_two_states = False  # does not query the support, whose bounds would be read from the device

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
                raise ValueError(f"TruncatedGaussian: {name} has shape {tuple(bound.shape)}; expected () or ({n},)")
            self.reject(torch.isnan(bound), bound, name, "expected a number")
            self.register_buffer(name, bound.clone())
        self.reject(self.lower >= self.upper, self.lower, "lower", f"expected a number less than upper = {upper}")
        both_infinite = torch.isinf(self.lower) & torch.isinf(self.upper)
        self.reject(both_infinite, self.lower, "lower", "expected a finite bound; use Gaussian for the real line")
        self.field = nn.Parameter(self.as_parameter(field, "field", (n,), dtype))
        self.free_precision = nn.Parameter(torch.zeros(n, dtype=dtype))
        self.register_buffer("base_precision", torch.ones(n, dtype=dtype))
        if precision is not None:
            self.precision = precision

    @property
    def bounded(self) -> Tensor:
        """Mask of the units with two finite bounds, for which V may have either sign."""
        return torch.isfinite(self.lower) & torch.isfinite(self.upper)

    @property
    def precision(self) -> Tensor:
        """Precision V: `free_precision`, or base_precision·exp(free_precision) > 0 if a bound is infinite.

        To change the precision, assign a new value, as in `units.precision = 2.0`; in-place changes have no effect. For
        units with an infinite bound, the buffer `base_precision` stores the assigned value exactly.
        """
        log_growth = torch.where(self.bounded, 0.0, self.free_precision)  # a large V must not overflow in exp
        return torch.where(self.bounded, self.free_precision, self.base_precision * log_growth.exp())

    @precision.setter
    def precision(self, value: Values) -> None:
        precision = self.as_parameter(value, "precision", (self.n,), self.dtype)
        invalid = ~self.bounded & (precision <= 0)
        self.reject(invalid, precision, "precision", "expected a number greater than 0 for an infinite bound")
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
        """Compute ln Z_TG = ln ∫ exp(Ux − ½Vx²) dx over the interval (erratum E6)."""
        prior = self._prior().wide()
        bound = torch.where(torch.isfinite(prior.lower), prior.lower, prior.upper)
        return bound * (prior.U - 0.5 * prior.V * bound) - log_density(prior, bound)

    def tilted(self, tilt: Tilt, normalized: bool = True) -> TiltedInterval:
        """Compute ln Z(B,A), the mean and the variance under a tilt.

        Args:
            tilt: Tilt with field B and precision A.
            normalized: Whether the prior is normalized. If False, ln ∫ exp(ux − ½vx²) dx is returned instead of ln Z.

        Returns:
            Logarithm, mean and variance. The logarithm may be float64 even if the units are float32.
        """
        return tilted_interval(self._prior(), *self.unpack(tilt), normalized)

    def log_partition(self, tilt: Tilt) -> Tensor:
        return self.tilted(tilt).log.to(self.dtype)

    def moments(self, tilt: Tilt) -> Moments:
        _, mean, variance = self.tilted(tilt, normalized=False)
        return Moments(mean, variance)

    def third_cumulant(self, tilt: Tilt) -> Tensor:
        return third_cumulant(self._prior(), *self.unpack(tilt))

    def third_cumulant_slopes(self, tilt: Tilt) -> Slopes:
        _, variance, third, fourth, fifth = cumulants(self._prior(), *self.unpack(tilt))
        return slopes(variance, third, fourth, fifth + 6 * variance * third, self.dtype)

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
        """Draw states by inverting the CDF at uniform numbers.

        Args:
            tilt: Tilt on the units.
            uniform: Uniform numbers, of shape (..., n).
            wanted: Mask of the states to draw (default: all states). With a mask, the result has shape (n_wanted,).
        """
        field, precision = self.unpack(tilt)
        terms = (wide(field) + self.field, wide(precision) + self.precision, self.lower, self.upper)
        u, v, lower, upper = (wide(z).expand_as(field) for z in terms)
        if wanted is not None:
            u, v, lower, upper, uniform = (z[wanted] for z in (u, v, lower, upper, uniform))
        finite, safe_u, safe_v = make_normalizable(u, v, lower, upper)
        chunk = WINDOW_CHUNK if u.device.type == "cpu" else DEVICE_CHUNK
        flat = (z.reshape(-1).split(chunk) for z in (safe_u, safe_v, lower, upper, wide(uniform)))
        draws = [
            sample_interval(some_u, some_v, low, high, fraction, RULES[self.dtype])
            for some_u, some_v, low, high, fraction in zip(*flat, strict=True)
        ]
        draw = torch.cat(draws).view(u.shape) if draws else u
        return torch.where(finite, draw, torch.copysign(torch.full_like(u, torch.inf), u)).to(self.dtype)

    def fit_to(self, x: Rows, weights: Tensor | None = None, smoothing: float = 1.0) -> Self:
        x, weights = self.checked_rows(x, weights, smoothing)
        return self.fit_to_moments(*column_moments(x, weights), smoothing)

    @torch.no_grad()
    def fit_to_moments(self, count: Tensor, mean: Tensor, variance: Tensor, smoothing: float) -> Self:
        """Set U and V such that the priors have the mean and variance of the observations.

        Variances are smoothed toward their median over the columns. For this purpose, variances are measured relative
        to the squared width of the interval or, if the interval is half-infinite, relative to the squared distance of
        the mean from the finite bound. If a column has no observations, its mean is set to the middle of the interval.

        Args:
            count: Number of observations in each column, of shape (n,).
            mean: Mean of the observations in each column, of shape (n,).
            variance: Variance of the observations in each column, of shape (n,).
            smoothing: Number of pseudo-observations for the variances.
        """
        lower, upper = (wide(z).expand(self.n) for z in (self.lower, self.upper))
        bounded = self.bounded.expand(self.n)
        length = torch.where(bounded, upper - lower, 1.0)
        origin = torch.where(torch.isfinite(lower), lower, upper)
        direction = torch.where(torch.isfinite(lower), 1.0, -1.0).to(origin.dtype)
        seen = count > 0
        distance = torch.where(seen, direction * (mean - origin), 0.0)
        # The variable t = distance/scale lies in [0, 1], or in [0, ∞) with mean 1, which makes columns comparable.
        scale = torch.where(bounded, length, torch.where(distance > 0, distance, variance.sqrt()))
        scale = torch.where(scale > 0, scale, 1.0)
        spread_out = seen & (variance > 0)
        relative = torch.where(spread_out, variance / scale**2, 0.0)
        typical = relative[spread_out].median() if spread_out.any() else relative.new_tensor(1 / 12)
        if smoothing > 0:
            relative = (count * relative + smoothing * typical) / (count + smoothing)
            relative = torch.maximum(relative, SMALLEST_SPREAD**2 * typical)

        # Keep means away from the bounds. A column that is constant at a bound gets an exponential prior, with its mean
        # one standard deviation away from the bound.
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
        self.reject(error > 1e-3, mean, "mean of the columns", "no truncated Gaussian has this mean and variance")
        precision = k / scale**2
        field = direction * s / scale + precision * origin
        self.check_fit("precision", precision)
        self.check_fit("field", field)
        self.field.copy_(field)
        self.precision = precision
        return self


def _match_moments(mean: Tensor, variance: Tensor, bounded: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Find s and k such that the density ∝ exp(st − ½kt²) has the specified mean and variance.

    The density is defined on [0, 1], or on [0, ∞) where `bounded` is False. Newton's method maximizes the
    log-likelihood, which is concave in (s, −½k); steps are halved until the log-likelihood increases.

    Returns:
        The coefficients s and k, and the remaining error relative to the variance.
    """
    lower = torch.zeros_like(mean)
    upper = torch.where(bounded, 1.0, torch.inf).to(mean.dtype)
    # Well inside the interval, start from a plain Gaussian; near an edge, start from the uniform prior.
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
