"""Channels whose observations are not states: Gaussian noise, Poisson counts and user-defined noise."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import log, pi
from typing import final

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.posterior.channels.base import Channel, Evidence, UnknownParameter
from tapmachine.posterior.channels.evidence import (
    check_numbers,
    check_parameter,
    have_numbers,
    is_nan,
    numbers_only,
    tilt_evidence,
)
from tapmachine.units import Binary, Units
from tapmachine.units.reweighted import Reweighted

SMALLEST, LARGEST = 1e-15, 1e15  # precisions are inverse squares of these numbers, which do not overflow in float32

LogLikelihood = Callable[[Tensor, Tensor], Tensor]  # ln P(y|x), elementwise


@final
@dataclass(frozen=True)
class GaussianNoise(Channel):
    """Channel with additive Gaussian noise of standard deviation σ, for units with numeric states.

    The evidence is a tilt with field y/σ² and precision 1/σ².

    Args:
        sigma: Standard deviation σ > 0 of the noise (default: None, estimated by `denoise`).

    Example:
        >>> import torch
        >>> from tapmachine import Gaussian, GaussianNoise
        >>> GaussianNoise(0.5).evidence(torch.tensor([[1.0, 0.0]]), Gaussian(2)).field
        tensor([[4., 0.]])
    """

    sigma: float | None = None

    def __post_init__(self) -> None:
        check_parameter("GaussianNoise", "sigma", self.sigma, SMALLEST, LARGEST)

    def _deviation(self) -> float:
        if self.sigma is None:
            raise ValueError(
                "GaussianNoise: sigma is None; set it, or estimate it with estimate_channel(machine, y, channel) from "
                "values that are not all equal"
            )
        return self.sigma

    @classmethod
    def supports(cls, units: Units) -> bool:
        return have_numbers(units)

    def unknown(self, y: Tensor, units: Units) -> UnknownParameter | None:
        values = y[~is_nan(y)].double()
        spread = float(values.std(correction=0)) if len(values) else 0.0
        return UnknownParameter("sigma", 1e-3 * spread, spread) if self.sigma is None and spread > 0 else None

    def draw(self, x: Tensor, generator: torch.Generator, units: Units) -> Tensor:
        return x + self._deviation() * torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)

    def evidence(self, y: Tensor, units: Units | None = None) -> Evidence:
        units = units or Binary(y.shape[-1])
        y = y.to(units.device)
        precision = self._deviation() ** -2
        numbers_only(units, "GaussianNoise")
        seen = check_numbers(y, units)
        value = torch.where(seen, y, 0.0).to(units.device, torch.float64)
        scale = -0.5 * precision * value**2 + 0.5 * log(precision / (2 * pi))
        return tilt_evidence(
            (precision * value).to(units.dtype),
            (precision * seen.double()).to(units.dtype),
            torch.zeros_like(value, dtype=units.dtype),
            torch.where(seen, scale, 0.0),
        )


class _ByLikelihood(Channel):
    """Base class for channels whose likelihood is not a tilt.

    The product of the likelihood and the prior is summed over the states, or integrated numerically.
    """

    @abstractmethod
    def log_likelihood(self, y: Tensor, x: Tensor) -> Tensor:
        """Compute ln P(y|x) elementwise."""

    def _check(self, y: Tensor, units: Units) -> Tensor:
        return check_numbers(y, units)

    @classmethod
    def supports(cls, units: Units) -> bool:
        return have_numbers(units) and units.is_bounded()

    def evidence(self, y: Tensor, units: Units | None = None) -> Evidence:
        raise ValueError(f"{type(self).__name__}: the likelihood is not a tilt exp(Dx − ½Ex²); use observe instead")

    def observe_units(self, units: Units, y: Tensor) -> tuple[Units, Tensor]:
        numbers_only(units, type(self).__name__)
        y = y.to(units.device, units.dtype)
        self._check(y, units)
        observed = Reweighted(units, self.log_likelihood, y)
        zero = torch.zeros_like(y)
        impossible = ~torch.isfinite(observed.log_partition(Tilt(zero, 0.0)))
        units.reject(impossible, y, "y", "the likelihood is 0 or NaN for every x")
        return observed, zero.double().sum(1)

    def as_states(self, y: Tensor) -> None:
        return None


@final
@dataclass(frozen=True)
class PoissonNoise(_ByLikelihood):
    """Channel that outputs Poisson counts with mean rate·x + background, such as numbers of photons or spikes.

    The units must have a bounded, non-negative support.

    Args:
        rate: Increase of the mean count per unit of x (default: 1).
        background: Mean count at x = 0 (default: 0).

    Example:
        >>> import torch
        >>> from tapmachine import PoissonNoise, TruncatedGaussian
        >>> PoissonNoise(10.0).corrupt(torch.tensor([[0.0, 0.5, 1.0]]), units=TruncatedGaussian(3))
        tensor([[0., 8., 8.]])
    """

    rate: float = 1.0
    background: float = 0.0

    def __post_init__(self) -> None:
        check_parameter("PoissonNoise", "rate", self.rate, SMALLEST, LARGEST)
        check_parameter("PoissonNoise", "background", self.background, 0, LARGEST)

    def _mean(self, x: Tensor) -> Tensor:
        return self.rate * x + self.background

    def log_likelihood(self, y: Tensor, x: Tensor) -> Tensor:
        mean = self._mean(x)
        return torch.where(mean >= 0, torch.xlogy(y, mean.clamp(min=0)) - mean - torch.lgamma(y + 1), -torch.inf)

    def draw(self, x: Tensor, generator: torch.Generator, units: Units) -> Tensor:
        mean = self._mean(x)
        if bool((mean < 0).any()):
            raise ValueError(
                "PoissonNoise: rate·x + background is negative for some values; expected non-negative mean counts"
            )
        return torch.poisson(mean.nan_to_num(0.0), generator=generator).where(~torch.isnan(mean), torch.nan)

    def _check(self, y: Tensor, units: Units) -> Tensor:
        seen = check_numbers(y, units)
        units.reject(seen & ((y < 0) | (y != y.round())), y, "y", "expected a non-negative integer")
        return seen


@final
@dataclass(frozen=True)
class CustomNoise(_ByLikelihood):
    """Channel with a user-defined likelihood for each unit.

    The units must have a bounded support or finitely many states.

    Args:
        likelihood: Function that maps two broadcastable tensors y and x to ln P(y|x) by elementwise operations; −inf if
            y is impossible.
        sampler: Function that draws y, given x and a random number generator; required only by `corrupt`.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, CustomNoise, denoise, rbm
        >>> laplace = CustomNoise(lambda y, x: -3 * (y - x).abs())
        >>> denoise(rbm(Binary(2), Binary(2)), torch.tensor([[0.9, 0.2]]), laplace).mean
        tensor([[0.9169, 0.1418]])
    """

    likelihood: LogLikelihood
    sampler: Callable[[Tensor, torch.Generator], Tensor] | None = None

    def __post_init__(self) -> None:
        if not callable(self.likelihood):
            raise ValueError(f"CustomNoise: likelihood is {self.likelihood!r}; expected a function of y and x")

    def log_likelihood(self, y: Tensor, x: Tensor) -> Tensor:
        return self.likelihood(y, x)

    def draw(self, x: Tensor, generator: torch.Generator, units: Units) -> Tensor:
        if self.sampler is None:
            raise ValueError("CustomNoise: sampler is None; pass a function to draw observations")
        return self.sampler(x, generator)
