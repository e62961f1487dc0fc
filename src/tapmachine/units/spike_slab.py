"""Spike-and-slab units with a Gaussian slab."""

import math
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

SUPPORT = Interval(atoms=(0.0,))


@final
class SpikeSlab(Units):
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

    support = SUPPORT
    fits_in_parts = True
    is_categorical = has_two_states = False

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
    def active_probability(self) -> Tensor:
        """Prior probability of x ≠ 0. To change it, assign a new value; in-place changes have no effect."""
        return torch.sigmoid(self._logit()).to(self.dtype)

    @active_probability.setter
    def active_probability(self, value: Values) -> None:
        probability = self.as_parameter(value, "active_probability", (self.n,), torch.float64)
        outside = (probability <= 0) | (probability >= 1)
        self.reject(outside, probability, "active_probability", "expected a number strictly between 0 and 1")
        self._set_logit(torch.logit(probability.to(self.device)))

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
        self.slab.precision = value

    def extra_repr(self) -> str:
        return f"n={self.n}"

    @torch.no_grad()
    def rescaled(self, scale: float, shift: Tensor | float = 0.0) -> "SpikeSlab":
        if torch.as_tensor(shift).any():
            raise ValueError("SpikeSlab: states cannot be shifted, because the value 0 has nonzero probability")
        slab = self.slab.rescaled(scale)
        units = SpikeSlab(self.n, slab.field.cpu(), slab.precision.cpu()).to(self.device)
        units.log_odds.copy_(self.log_odds - math.log(scale))  # odds of the unnormalized slab
        return units

    def tail_precision(self) -> Tensor:
        return self.precision.detach()

    def check_states(self, x: Tensor, validate: bool = True) -> Tensor:
        x = self.as_states(x)
        if validate:
            self.reject_states(lambda z: ~torch.isfinite(z), x, "expected a finite number")
        return x

    def log_prior(self, x: Tensor, validate: bool = True) -> Tensor:
        """Compute ln P(x), where P(x) is a probability at x = 0 and a density elsewhere."""
        x = self.check_states(x, validate)
        logit = self._logit()
        active = logsigmoid(logit) + wide(self.slab.log_prior(x, validate=False))
        return torch.where(x == 0, logsigmoid(-logit), active).to(self.dtype)

    def log_partition(self, tilt: Tilt) -> Tensor:
        logit = self._logit()
        slab = wide(self.slab.log_partition(Tilt(*self.unpack(tilt))))
        return torch.logaddexp(logsigmoid(-logit), logsigmoid(logit) + slab).to(self.dtype)

    def moments(self, tilt: Tilt) -> Moments:
        tilt = Tilt(*self.unpack(tilt))
        logit = self._logit(tilt).to(self.dtype)
        active, inactive = torch.sigmoid(logit), torch.sigmoid(-logit)
        mean, variance = self.slab.moments(tilt)
        finite = torch.isfinite(variance)
        a, c = torch.where(finite, mean, 0.0), torch.where(finite, variance, 0.0)
        spread = torch.where(finite, active * c + active * inactive * a**2, torch.inf)
        return Moments(torch.where(finite, active * a, mean), spread)

    def third_cumulant(self, tilt: Tilt) -> Tensor:
        tilt = Tilt(*self.unpack(tilt))
        mean, variance = self.slab.moments(tilt)
        finite = torch.isfinite(variance)
        a, c = torch.where(finite, mean, 0.0), torch.where(finite, variance, 0.0)
        return third_cumulant_of_mixture(self._logit(tilt).to(self.dtype), a, c, torch.zeros_like(a))

    def normalizable(self, tilt: Tilt) -> Tensor:
        return self.slab.normalizable(Tilt(*self.unpack(tilt)))

    def nonzero_probability(self, tilt: Tilt) -> Tensor:  # (..., n) -> (..., n)
        """Compute the probability of x ≠ 0 under a tilt."""
        return torch.sigmoid(self._logit(Tilt(*self.unpack(tilt)))).to(self.dtype)

    @torch.no_grad()
    def sample(self, tilt: Tilt, generator: torch.Generator | None = None) -> Tensor:
        tilt = Tilt(*self.unpack(tilt))
        active = bernoulli(self.nonzero_probability(tilt), generator)
        return torch.where(active > 0, self.slab.sample(tilt, generator), 0.0)

    @torch.no_grad()
    def draw(self, tilt: Tilt, uniform: Tensor) -> Tensor:
        tilt = Tilt(*self.unpack(tilt))
        active = self.nonzero_probability(tilt)
        left = (uniform / active.clamp(min=torch.finfo(active.dtype).tiny)).clamp(max=1.0)  # uniform in the slab
        return torch.where(uniform < active, self.slab.draw(tilt, left), 0.0)

    def fit_to(self, x: Rows, weights: Tensor | None = None, smoothing: float = 1.0) -> Self:
        x, weights = self.checked_rows(x, weights, smoothing)
        active, mean, variance = column_moments(x, weights, of_nonzero=True)
        logit = torch.log((active + smoothing) / (wide(weights).sum() - active + smoothing))
        never_mixed = "a column that is always or never 0 has no finite estimate; use smoothing > 0"
        self.reject(~torch.isfinite(logit), logit, "log-odds of x != 0", never_mixed)
        typical = variance[variance > 0].median() if (variance > 0).any() else variance.new_tensor(1.0)
        variance = torch.where(variance > 0, variance, typical if smoothing > 0 else 0.0)
        self.check_fit("precision", 1 / variance)
        with torch.no_grad():
            self.precision = 1 / variance
            self.field.copy_(mean / variance)
        self._set_logit(logit)
        return self

    def _logit(self, tilt: Tilt | None = None) -> Tensor:  # (..., n), float64
        """Compute the log-odds of x ≠ 0, r + ln ∫ exp((U+B)x − ½(V+A)x²) dx; −inf if the integral diverges."""
        u, v = wide(self.field), wide(self.precision)
        if tilt is not None:
            u, v = u + tilt.field, v + tilt.precision
        fine = (v > 0) & torch.isfinite(u) & torch.isfinite(v)
        u, v = torch.where(fine, u, 0.0), torch.where(fine, v, 1.0)
        slab = 0.5 * (u**2 / v + math.log(2 * math.pi) - v.log())
        return torch.where(fine, wide(self.log_odds) + slab, -torch.inf)

    @torch.no_grad()
    def _set_logit(self, logit: Tensor) -> None:
        self.log_odds.zero_()
        self.log_odds.copy_(logit - self._logit())
