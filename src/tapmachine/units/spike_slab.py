"""Spike-and-slab units, which are exactly 0 with nonzero probability, with a Gaussian or a truncated Gaussian slab."""

import math
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Self, final

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from tapmachine.beliefs import Moments, Tilt
from tapmachine.data.rows import Rows
from tapmachine.units.base import Units
from tapmachine.units.gaussian import Gaussian
from tapmachine.units.numerics.columns import column_moments
from tapmachine.units.numerics.draws import bernoulli
from tapmachine.units.numerics.intervals import wide
from tapmachine.units.numerics.third_cumulants import third_cumulant_of_mixture
from tapmachine.units.states import Values
from tapmachine.units.support import Interval
from tapmachine.units.truncated_gaussian import TruncatedGaussian


class SpikeAndSlab(Units):
    """Base class for units with the prior P(x) ∝ δ(x) + e^r exp(Ux − ½Vx²), whose second term is the slab.

    Let Z_s be the normalizer of the tilted slab, and f_a and f_c its mean and variance. A unit is active (x ≠ 0) with
    probability P = σ(r + ln Z_s). Its mean is P f_a, and its variance is P f_c + P(1 − P) f_a² (erratum E9).
    """

    fits_in_parts = True
    is_categorical = has_two_states = False  # does not query the support, whose bounds would be read from the device

    slab: Gaussian | TruncatedGaussian

    @property
    @abstractmethod
    def log_weight(self) -> nn.Parameter:
        """Logarithm r of the weight of the slab exp(Ux − ½Vx²) relative to the spike."""

    @abstractmethod
    def _log_slab(self) -> Tensor:  # (n,), float64
        """Compute ln ∫ exp(Ux − ½Vx²) dx of the slab."""

    @abstractmethod
    def _tilted(self, tilt: Tilt) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the log-odds of x ≠ 0 under a tilt, and the mean and variance of the tilted slab."""

    @abstractmethod
    def _fit_slab(self, count: Tensor, mean: Tensor, variance: Tensor, smoothing: float) -> None:
        """Fit the slab to the number, the mean and the variance of the nonzero observations in each column."""

    @property
    def field(self) -> nn.Parameter:
        """Field U of the slab."""
        return self.slab.field

    @property
    def precision(self) -> Tensor:
        """Precision V of the slab. To change it, assign a new value; in-place changes have no effect."""
        return self.slab.precision

    @precision.setter
    def precision(self, value: Values) -> None:
        with self._errors_of_the_slab():
            self.slab.precision = value

    def _checked_probability(self, value: Values) -> Tensor:
        probability = self.as_parameter(value, "active_probability", (self.n,), torch.float64)
        outside = (probability <= 0) | (probability >= 1)
        self.reject(outside, probability, "active_probability", "expected a number strictly between 0 and 1")
        return probability.to(self.device)

    @torch.no_grad()
    def rescaled(self, scale: float, shift: Tensor | float = 0.0) -> Self:
        if torch.as_tensor(shift).any():
            name = type(self).__name__
            raise ValueError(f"{name}: states cannot be shifted, because the value 0 has nonzero probability")
        units = deepcopy(self)
        units.slab = self.slab.rescaled(scale)
        units.log_weight.sub_(math.log(scale))  # of the unnormalized slab, which grows with its width
        return units

    def log_prior(self, x: Tensor, validate: bool = True) -> Tensor:
        """Compute ln P(x), where P(x) is a probability at x = 0 and a density elsewhere (errata E10 and E11)."""
        x = self.check_states(x, validate)
        logit = self._prior_logit()
        active = logsigmoid(logit) + wide(self.slab.log_prior(x, validate=False))
        return torch.where(x == 0, logsigmoid(-logit), active).to(self.dtype)

    def log_partition(self, tilt: Tilt) -> Tensor:
        logit = self._prior_logit()
        slab = wide(self.slab.log_partition(Tilt(*self.unpack(tilt))))
        return torch.logaddexp(logsigmoid(-logit), logsigmoid(logit) + slab).to(self.dtype)

    def moments(self, tilt: Tilt) -> Moments:
        logit, mean, variance = self._tilted(Tilt(*self.unpack(tilt)))
        active, inactive = torch.sigmoid(logit), torch.sigmoid(-logit)
        finite = torch.isfinite(variance)
        a, c = torch.where(finite, mean, 0.0), torch.where(finite, variance, 0.0)
        spread = torch.where(finite, active * c + active * inactive * a**2, torch.inf)
        return Moments(torch.where(finite, active * a, mean), spread)

    def third_cumulant(self, tilt: Tilt) -> Tensor:
        tilt = Tilt(*self.unpack(tilt))
        logit, mean, variance = self._tilted(tilt)
        finite = torch.isfinite(variance)
        logit, a, c = (torch.where(finite, z, 0.0) for z in (logit, mean, variance))
        return third_cumulant_of_mixture(logit, a, c, self.slab.third_cumulant(tilt))

    def normalizable(self, tilt: Tilt) -> Tensor:
        return self.slab.normalizable(Tilt(*self.unpack(tilt)))

    def nonzero_probability(self, tilt: Tilt) -> Tensor:  # (..., n) -> (..., n)
        """Compute the probability of x ≠ 0 under a tilt."""
        return torch.sigmoid(self._tilted(Tilt(*self.unpack(tilt)))[0])

    @torch.no_grad()
    def sample(self, tilt: Tilt, generator: torch.Generator | None = None) -> Tensor:
        tilt = Tilt(*self.unpack(tilt))
        active = bernoulli(self.nonzero_probability(tilt), generator)
        return torch.where(active > 0, self.slab.sample(tilt, generator), 0.0)

    @torch.no_grad()
    def draw(self, tilt: Tilt, uniform: Tensor) -> Tensor:
        tilt = Tilt(*self.unpack(tilt))
        active = self.nonzero_probability(tilt)
        in_slab = (uniform / active.clamp(min=torch.finfo(active.dtype).tiny)).clamp(max=1.0)  # uniform as well
        return self._draw_active(uniform < active, tilt, in_slab)

    def _draw_active(self, active: Tensor, tilt: Tilt, uniform: Tensor) -> Tensor:
        """Draw the states of active units from uniform numbers; the states of inactive units are 0."""
        return torch.where(active, self.slab.draw(tilt, uniform), 0.0)

    def fit_to(self, x: Rows, weights: Tensor | None = None, smoothing: float = 1.0) -> Self:
        x, weights = self.checked_rows(x, weights, smoothing)
        active, mean, variance = column_moments(x, weights, of_nonzero=True)
        logit = torch.log((active + smoothing) / (wide(weights).sum() - active + smoothing))
        never_mixed = "a column that is always or never 0 has no finite estimate; use smoothing > 0"
        self.reject(~torch.isfinite(logit), logit, "log-odds of x != 0", never_mixed)
        with self._errors_of_the_slab():
            self._fit_slab(active, mean, variance, smoothing)
        self._set_prior_logit(logit)
        return self

    def _prior_logit(self) -> Tensor:  # (n,), float64
        """Compute the log-odds of x ≠ 0 under the prior."""
        return wide(self.log_weight) + self._log_slab()

    @torch.no_grad()
    def _set_prior_logit(self, logit: Tensor) -> None:
        self.log_weight.copy_(logit - self._log_slab())

    @contextmanager
    def _errors_of_the_slab(self) -> Iterator[None]:
        """Context manager that makes error messages name this unit type instead of the type of its slab."""
        try:
            yield
        except ValueError as error:
            slab, own = (f"{type(units).__name__}:" for units in (self.slab, self))
            raise ValueError(str(error).replace(slab, own)) from None


@final
class SpikeSlab(SpikeAndSlab):
    """Real-valued units that are either exactly 0 or normally distributed: P(x) ∝ δ(x) + e^r exp(Ux − ½Vx²) with V > 0.

    As hidden units in a machine with `Gaussian` visible units, they model heavy tails: an active unit (x ≠ 0) changes
    the mean and the variance of the visible units along its weights. Given the set of active units, the visible units
    are jointly Gaussian.

    Let Z_s be the normalizer of the tilted slab, and f_a and f_c its mean and variance. A unit is active with
    probability P = σ(r + ln Z_s); its mean is P f_a and its variance is P f_c + P(1 − P) f_a².

    Args:
        n: Number of units.
        field: Field U of the slab, a number or a tensor of shape (n,) (default: 0).
        precision: Precision V > 0 of the slab, a number or a tensor of shape (n,) (default: 1).
        active_probability: Prior probability of x ≠ 0, strictly between 0 and 1 (default: 0.5). It determines the
            parameter r, which is stored as `log_odds`.

    Example:
        >>> import torch
        >>> from tapmachine import SpikeSlab, Tilt
        >>> units = SpikeSlab(2, active_probability=0.2)
        >>> with torch.no_grad():
        ...     units.moments(Tilt(field=torch.tensor([0.0, 2.0]), precision=0.0)).mean
        tensor([0.0000, 1.2976])
    """

    support = Interval(atoms=(0.0,))

    log_odds: nn.Parameter

    def __init__(self, n: int, field: Values = 0.0, precision: Values = 1.0, active_probability: Values = 0.5) -> None:
        super().__init__(n)
        dtype = self.common_dtype(field, precision, active_probability)
        field, precision = (
            self.as_parameter(value, name, (self.n,), dtype)
            for name, value in (("field", field), ("precision", precision))
        )
        self.reject(precision <= 0, precision, "precision", "expected a number greater than 0")
        self.slab = Gaussian(self.n, field, precision)
        self.log_odds = nn.Parameter(torch.zeros(self.n, dtype=dtype))
        self.active_probability = active_probability

    @property
    def log_weight(self) -> nn.Parameter:
        return self.log_odds

    @property
    def active_probability(self) -> Tensor:
        """Prior probability of x ≠ 0. To change it, assign a new value; in-place changes have no effect."""
        return torch.sigmoid(self._prior_logit()).to(self.dtype)

    @active_probability.setter
    def active_probability(self, value: Values) -> None:
        self._set_prior_logit(torch.logit(self._checked_probability(value)))

    def tail_precision(self) -> Tensor:
        return self.precision.detach()

    def nonzero_probability(self, tilt: Tilt) -> Tensor:
        """Compute the probability of x ≠ 0 under a tilt."""
        return torch.sigmoid(wide(self.log_weight) + self._log_slab(Tilt(*self.unpack(tilt)))).to(self.dtype)

    def _tilted(self, tilt: Tilt) -> tuple[Tensor, Tensor, Tensor]:
        return (wide(self.log_weight) + self._log_slab(tilt)).to(self.dtype), *self.slab.moments(tilt)

    def _log_slab(self, tilt: Tilt | None = None) -> Tensor:  # (..., n), float64
        """Compute ln ∫ exp((U+B)x − ½(V+A)x²) dx; −inf if the integral diverges."""
        u, v = wide(self.field), wide(self.precision)
        if tilt is not None:
            u, v = u + tilt.field, v + tilt.precision
        fine = (v > 0) & torch.isfinite(u) & torch.isfinite(v)
        u, v = torch.where(fine, u, 0.0), torch.where(fine, v, 1.0)
        return torch.where(fine, 0.5 * (u**2 / v + math.log(2 * math.pi) - v.log()), -torch.inf)

    def _fit_slab(self, count: Tensor, mean: Tensor, variance: Tensor, smoothing: float) -> None:
        typical = variance[variance > 0].median() if (variance > 0).any() else variance.new_tensor(1.0)
        variance = torch.where(variance > 0, variance, typical if smoothing > 0 else 0.0)
        self.check_fit("precision", 1 / variance)
        with torch.no_grad():
            self.precision = 1 / variance
            self.field.copy_(mean / variance)


@final
class TruncatedGaussBernoulli(SpikeAndSlab):
    """Units that are either exactly 0 or follow a truncated Gaussian distribution on [lower, upper].

    The prior is P(x) ∝ (1−ρ)δ(x) + ρ exp(Ux − ½Vx²), the second of the two forms in the paper [sec:apdx_trunc_gb]
    (erratum E8). It is parametrized by the log-odds r = logit ρ, so P(x) ∝ δ(x) + e^r exp(Ux − ½Vx²). With this
    parametrization, the data term and the model term of each gradient are averages of (s, x, −½x²), where s is 1 if
    x ≠ 0 and 0 otherwise.

    Note that ρ is the weight of the unnormalized slab. The probability of x ≠ 0 is σ(r + ln ∫ exp(Ux − ½Vx²) dx), which
    `nonzero_probability` returns. Let P be this probability under a tilt, and f_a and f_c the mean and variance of the
    tilted slab. The mean of a unit is P f_a, and its variance is P f_c + P(1−P) f_a² (erratum E9).

    Args:
        n: Number of units.
        lower, upper: Bounds of the slab, numbers or tensors of shape (n,), with lower ≤ 0 ≤ upper (default: 0 and 1).
        field: Field U of the slab, a number or a tensor of shape (n,) (default: 0).
        precision: Precision V of the slab, a number or a tensor of shape (n,). Default: 0, or 1 if a bound is infinite.
        active_probability: Weight ρ of the slab, strictly between 0 and 1 (default: 0.5).

    Example:
        >>> import torch
        >>> from tapmachine import Tilt, TruncatedGaussBernoulli
        >>> units = TruncatedGaussBernoulli(2, active_probability=0.2)
        >>> with torch.no_grad():
        ...     units.moments(Tilt(field=torch.tensor([0.0, 10.0]), precision=0.0)).mean
        tensor([0.1000, 0.8984])
    """

    active_logit: nn.Parameter
    slab: TruncatedGaussian

    def __init__(
        self,
        n: int,
        lower: Values = 0.0,
        upper: Values = 1.0,
        field: Values = 0.0,
        precision: Values | None = None,
        active_probability: Values = 0.5,
    ) -> None:
        super().__init__(n)
        dtype = self.common_dtype(field, precision, active_probability, lower, upper)
        low, high = self.as_tensor(lower, "lower").to(dtype), self.as_tensor(upper, "upper").to(dtype)
        try:
            self.slab = TruncatedGaussian(self.n, low, high, field, precision)
        except ValueError as error:
            raise ValueError(str(error).replace("TruncatedGaussian:", "TruncatedGaussBernoulli:")) from None
        self.reject(self.lower > 0, self.lower, "lower", "expected lower ≤ 0 ≤ upper")
        self.reject(self.upper < 0, self.upper, "upper", "expected lower ≤ 0 ≤ upper")
        self.active_logit = nn.Parameter(torch.zeros(self.n, dtype=dtype))
        self.active_probability = active_probability

    @property
    def log_weight(self) -> nn.Parameter:
        return self.active_logit

    @property
    def active_probability(self) -> Tensor:
        """Weight ρ = σ(active_logit) of the slab. To change it, assign a new value; in-place changes have no effect."""
        return torch.sigmoid(self.active_logit)

    @active_probability.setter
    def active_probability(self, value: Values) -> None:
        with torch.no_grad():
            self.active_logit.copy_(torch.logit(self._checked_probability(value)))

    @property
    def lower(self) -> Tensor:
        """Lower bound of the slab."""
        return self.slab.lower

    @property
    def upper(self) -> Tensor:
        """Upper bound of the slab."""
        return self.slab.upper

    @property
    def support(self) -> Interval:
        return Interval(*self.slab.support.bounds, atoms=(0.0,))

    def bounds(self) -> tuple[Tensor, Tensor]:
        return self.lower, self.upper

    def atoms(self) -> Tensor:
        return self.active_logit.new_zeros(1)

    def _log_slab(self) -> Tensor:
        return self.slab.log_normalizer()

    def _tilted(self, tilt: Tilt) -> tuple[Tensor, Tensor, Tensor]:
        log_slab, mean, variance = self.slab.tilted(tilt, normalized=False)
        return (wide(log_slab) + self.active_logit).to(self.dtype), mean, variance

    @torch.no_grad()
    def sample(self, tilt: Tilt, generator: torch.Generator | None = None) -> Tensor:
        active = bernoulli(self.nonzero_probability(tilt), generator) > 0
        uniform = torch.rand(active.shape, dtype=torch.float64, device=self.device, generator=generator)
        return self._draw_active(active, tilt, uniform)

    def _draw_active(self, active: Tensor, tilt: Tilt, uniform: Tensor) -> Tensor:
        if self.device.type != "cpu" or torch.compiler.is_compiling():
            return super()._draw_active(active, tilt, uniform)
        states = torch.zeros(active.shape, dtype=self.dtype)  # on a CPU, only active units are computed
        states[active] = self.slab.draw(tilt, uniform, active)
        return states

    def _fit_slab(self, count: Tensor, mean: Tensor, variance: Tensor, smoothing: float) -> None:
        self.slab.fit_to_moments(count, mean, variance, smoothing)
