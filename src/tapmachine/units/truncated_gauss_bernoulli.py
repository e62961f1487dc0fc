"""Spike-and-slab units with a truncated Gaussian slab."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self, final

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from tapmachine.beliefs import Moments, Tilt
from tapmachine.data.rows import Rows
from tapmachine.units.base import Units
from tapmachine.units.numerics.columns import column_moments
from tapmachine.units.numerics.draws import bernoulli
from tapmachine.units.numerics.intervals import wide
from tapmachine.units.numerics.third_cumulants import third_cumulant_of_mixture
from tapmachine.units.states import Values
from tapmachine.units.support import Interval
from tapmachine.units.truncated_gaussian import TruncatedGaussian


@final
class TruncatedGaussBernoulli(Units):
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

    is_categorical = has_two_states = False  # does not query the support, whose bounds would be read from the device

    active_logit: nn.Parameter

    fits_in_parts = True

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
        n = self.n
        dtype = self.common_dtype(field, precision, active_probability, lower, upper)
        with _errors_of_the_slab():
            low, high = self.as_tensor(lower, "lower").to(dtype), self.as_tensor(upper, "upper").to(dtype)
            self.slab = TruncatedGaussian(n, low, high, field, precision)
        self.reject(self.lower > 0, self.lower, "lower", "expected lower ≤ 0 ≤ upper")
        self.reject(self.upper < 0, self.upper, "upper", "expected lower ≤ 0 ≤ upper")
        self.active_logit = nn.Parameter(torch.zeros(n, dtype=dtype))
        self.active_probability = active_probability

    @property
    def active_probability(self) -> Tensor:
        """Weight ρ = σ(active_logit) of the slab. To change it, assign a new value; in-place changes have no effect."""
        return torch.sigmoid(self.active_logit)

    @active_probability.setter
    def active_probability(self, value: Values) -> None:
        probability = self.as_parameter(value, "active_probability", (self.n,), torch.float64)
        outside = (probability <= 0) | (probability >= 1)
        self.reject(outside, probability, "active_probability", "expected a number strictly between 0 and 1")
        with torch.no_grad():
            self.active_logit.copy_(torch.logit(probability))

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
        with _errors_of_the_slab():
            self.slab.precision = value

    @property
    def lower(self) -> Tensor:
        """Lower bound of the slab."""
        return self.slab.lower

    @property
    def upper(self) -> Tensor:
        """Upper bound of the slab."""
        return self.slab.upper

    def extra_repr(self) -> str:
        return f"n={self.n}"

    @torch.no_grad()
    def rescaled(self, scale: float, shift: Tensor | float = 0.0) -> "TruncatedGaussBernoulli":
        if torch.as_tensor(shift).any():
            raise ValueError(
                "TruncatedGaussBernoulli: states cannot be shifted, because the value 0 has nonzero probability"
            )
        slab = self.slab.rescaled(scale).cpu()
        units = TruncatedGaussBernoulli(self.n, slab.lower, slab.upper, slab.field, slab.precision).to(self.device)
        # ρ is the weight of the unnormalized slab, which grows with its width.
        units.active_logit.copy_(self.active_logit - math.log(scale))
        return units

    def check_states(self, x: Tensor, validate: bool = True) -> Tensor:
        with _errors_of_the_slab():
            return self.slab.check_states(x, validate)

    @property
    def support(self) -> Interval:
        return Interval(*self.slab.support.bounds, atoms=(0.0,))

    def bounds(self) -> tuple[Tensor, Tensor]:
        return self.lower, self.upper

    def atoms(self) -> Tensor:
        return self.active_logit.new_zeros(1)

    def _prior_logit(self) -> Tensor:  # (n,), float64
        """Compute the log-odds of x ≠ 0 under the prior."""
        return wide(self.active_logit) + self.slab.log_normalizer()

    def log_prior(self, x: Tensor, validate: bool = True) -> Tensor:
        """Compute ln P(x), where P(x) is a probability at x = 0 and a density elsewhere (errata E10 and E11)."""
        x = self.check_states(x, validate)
        logit = self._prior_logit()
        active = logsigmoid(logit) + self.slab.log_prior(x, validate=False)
        return torch.where(x == 0, logsigmoid(-logit), active).to(self.dtype)

    def log_partition(self, tilt: Tilt) -> Tensor:
        logit = self._prior_logit()
        slab = wide(self.slab.log_partition(Tilt(*self.unpack(tilt))))
        return torch.logaddexp(logsigmoid(-logit), logsigmoid(logit) + slab).to(self.dtype)

    def moments(self, tilt: Tilt) -> Moments:
        log_slab, slab_mean, slab_variance = self.slab.tilted(Tilt(*self.unpack(tilt)), normalized=False)
        logit = (wide(log_slab) + self.active_logit).to(self.dtype)
        active, inactive = torch.sigmoid(logit), torch.sigmoid(-logit)
        finite = torch.isfinite(slab_variance)
        a, c = torch.where(finite, slab_mean, 0.0), torch.where(finite, slab_variance, 0.0)
        mean = torch.where(finite, active * a, slab_mean)
        return Moments(mean, torch.where(finite, active * c + active * inactive * a**2, torch.inf))

    def third_cumulant(self, tilt: Tilt) -> Tensor:
        tilt = Tilt(*self.unpack(tilt))
        log_slab, mean, variance = self.slab.tilted(tilt, normalized=False)
        finite = torch.isfinite(variance)
        logit, a, c = (torch.where(finite, z, 0.0) for z in (wide(log_slab) + self.active_logit, mean, variance))
        return third_cumulant_of_mixture(logit.to(self.dtype), a, c, self.slab.third_cumulant(tilt))

    def normalizable(self, tilt: Tilt) -> Tensor:
        return self.slab.normalizable(Tilt(*self.unpack(tilt)))

    def nonzero_probability(self, tilt: Tilt) -> Tensor:  # (..., n) -> (..., n)
        """Compute the probability of x ≠ 0 under a tilt."""
        log_slab = self.slab.tilted(Tilt(*self.unpack(tilt)), normalized=False).log
        return torch.sigmoid((wide(log_slab) + self.active_logit).to(self.dtype))

    @torch.no_grad()
    def sample(self, tilt: Tilt, generator: torch.Generator | None = None) -> Tensor:
        active = bernoulli(self.nonzero_probability(tilt), generator) > 0
        uniform = torch.rand(active.shape, dtype=torch.float64, device=self.device, generator=generator)
        return self._where(active, tilt, uniform)

    @torch.no_grad()
    def draw(self, tilt: Tilt, uniform: Tensor) -> Tensor:
        active = self.nonzero_probability(tilt)
        left = (uniform / active.clamp(min=torch.finfo(active.dtype).tiny)).clamp(max=1.0)  # uniform in the slab
        return self._where(uniform < active, tilt, left)

    def _where(self, active: Tensor, tilt: Tilt, uniform: Tensor) -> Tensor:
        """Draw the states of active units from uniform numbers; the states of inactive units are 0.

        On a CPU, states are computed only for active units.
        """
        if self.device.type != "cpu" or torch.compiler.is_compiling():
            return torch.where(active, self.slab.draw(tilt, uniform), 0.0)
        states = torch.zeros(active.shape, dtype=self.dtype)
        states[active] = self.slab.draw(tilt, uniform, active)
        return states

    def fit_to(self, x: Rows, weights: Tensor | None = None, smoothing: float = 1.0) -> Self:
        x, weights = self.checked_rows(x, weights, smoothing)
        active, mean, variance = column_moments(x, weights, of_nonzero=True)
        log_odds = torch.log((active + smoothing) / (wide(weights).sum() - active + smoothing))
        never_mixed = "a column that is always or never 0 has no finite estimate; use smoothing > 0"
        self.reject(~torch.isfinite(log_odds), log_odds, "log-odds of x != 0", never_mixed)
        with _errors_of_the_slab():
            self.slab.fit_to_moments(active, mean, variance, smoothing)
        with torch.no_grad():
            self.active_logit.copy_(log_odds - self.slab.log_normalizer())
        return self


@contextmanager
def _errors_of_the_slab() -> Iterator[None]:
    """Context manager that makes error messages name `TruncatedGaussBernoulli` instead of the type of its slab."""
    try:
        yield
    except ValueError as error:
        raise ValueError(str(error).replace("TruncatedGaussian:", "TruncatedGaussBernoulli:")) from None
