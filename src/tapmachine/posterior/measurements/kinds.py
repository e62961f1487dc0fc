"""Types of measurements, which define the posterior of z = Fx + b given a measurement and a normal prior of z."""

from math import log, pi
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from tapmachine.beliefs import Moments
from tapmachine.posterior.channels.evidence import check_parameter
from tapmachine.posterior.measurements.base import Measurements, Response
from tapmachine.units.numerics.intervals import RULES, window_integral

LOG_2PI = log(2 * pi)
N_NODES, REACH, N_PASSES = 65, 8.0, 3  # grid for counts: nodes, range in standard deviations, refinements
SMALLEST_RATE = 1e-150


@final
class LinearMeasurements(Measurements):
    """Linear measurements y = Fx + b + normal noise, as in compressed sensing, deblurring and tomography.

    Args:
        matrix: Measurement matrix F, of shape (M, n_visible); see `Measurements`.
        noise: Non-negative standard deviation of the noise (default: None, estimated by `recover`).
        bias: Bias b, a number or a tensor of shape (M,) (default: 0).

    Example:
        >>> import torch
        >>> from tapmachine import LinearMeasurements
        >>> LinearMeasurements(torch.ones(1, 3), noise=0.0).corrupt(torch.tensor([[1.0, 0.0, 1.0]]))
        tensor([[2.]])
    """

    estimates_noise = True

    def __init__(
        self, matrix: Any, noise: float | None = None, bias: float | Tensor | np.ndarray[Any, Any] = 0.0
    ) -> None:
        super().__init__(matrix, noise, bias)

    def respond(self, y: Tensor, prior: Moments, noise_variance: Tensor) -> Response:
        mean, variance = (z.double() for z in prior)
        total = variance + noise_variance.double()
        gain = variance / total
        log_evidence = -0.5 * ((y - mean) ** 2 / total + total.log() + LOG_2PI)
        return Response(log_evidence, Moments(mean + gain * (y - mean), variance * (1 - gain)))

    def expected(self, z: Tensor) -> Tensor:
        return z


@final
class SignMeasurements(Measurements):
    """Sign measurements y = sign(Fx + b + normal noise) with values −1 and +1, as in one-bit compressed sensing.

    Without a bias, the measurements do not depend on the length of Fx.

    Args:
        matrix: Measurement matrix F, of shape (M, n_visible); see `Measurements`.
        noise: Non-negative standard deviation of the noise (default: 0).
        bias: Bias b, a number or a tensor of shape (M,) (default: 0).

    Example:
        >>> import torch
        >>> from tapmachine import SignMeasurements
        >>> SignMeasurements(torch.tensor([[1.0, -2.0]])).corrupt(torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
        tensor([[ 1.],
                [-1.]])
    """

    def respond(self, y: Tensor, prior: Moments, noise_variance: Tensor) -> Response:
        zero = torch.zeros_like(y, dtype=torch.float64)
        return _in_interval(zero.where(y > 0, -torch.inf), zero.where(y < 0, torch.inf), prior, noise_variance)

    def expected(self, z: Tensor) -> Tensor:
        return torch.where(z >= 0, 1.0, -1.0).to(z.dtype)

    def check(self, y: Tensor) -> str | None:
        wrong = y[(y != 1) & (y != -1)]
        return f"y contains {float(wrong[0]):g}; expected −1, +1 or NaN" if len(wrong) else None


@final
class QuantizedMeasurements(Measurements):
    """Quantized measurements, which return the index of the interval that contains Fx + b + normal noise.

    With n edges, the measurements are integers from 0 (below all edges) to n (above all edges).

    Args:
        matrix: Measurement matrix F, of shape (M, n_visible); see `Measurements`.
        edges: Edges between neighboring intervals, in increasing order.
        noise: Non-negative standard deviation of the noise (default: 0).
        bias: Bias b, a number or a tensor of shape (M,) (default: 0).

    Example:
        >>> import torch
        >>> from tapmachine import QuantizedMeasurements
        >>> channel = QuantizedMeasurements(torch.eye(3), edges=[0.0, 0.5])
        >>> channel.corrupt(torch.tensor([[-1.0, 0.2, 1.0]]))
        tensor([[0., 1., 2.]])
    """

    def __init__(
        self, matrix: Any, edges: Any, noise: float = 0.0, bias: float | Tensor | np.ndarray[Any, Any] = 0.0
    ) -> None:
        super().__init__(matrix, noise, bias)
        self.edges = torch.as_tensor(edges, dtype=torch.float64)
        increasing = self.edges.dim() == 1 and len(self.edges) > 0 and bool((self.edges.diff() > 0).all())
        if not increasing or not bool(torch.isfinite(self.edges).all()):
            raise ValueError(f"QuantizedMeasurements: edges is {edges!r}; expected finite numbers in increasing order")

    def respond(self, y: Tensor, prior: Moments, noise_variance: Tensor) -> Response:
        ends = torch.cat((self.edges.new_tensor([-torch.inf]), self.edges, self.edges.new_tensor([torch.inf])))
        index, ends = y.long(), ends.to(y.device)
        return _in_interval(ends[index], ends[index + 1], prior, noise_variance)

    def expected(self, z: Tensor) -> Tensor:
        return torch.bucketize(z.double().contiguous(), self.edges.to(z.device), right=True).to(z.dtype)

    def check(self, y: Tensor) -> str | None:
        wrong = y[(y < 0) | (y > len(self.edges)) | (y != y.round())]
        return (
            f"y contains {float(wrong[0]):g}; expected an integer from 0 to {len(self.edges)}, or NaN"
            if len(wrong)
            else None
        )


@final
class MagnitudeMeasurements(Measurements):
    """Magnitude measurements y = |Fx + b| + normal noise, as in phase retrieval with real measurements.

    Without a bias, x and −x have the same measurements. These signals can be distinguished only if all states have the
    same sign or if the units have a nonzero mean.

    Args:
        matrix: Measurement matrix F, of shape (M, n_visible); see `Measurements`.
        noise: Non-negative standard deviation of the noise (default: 0).
        bias: Bias b, a number or a tensor of shape (M,) (default: 0).

    Example:
        >>> import torch
        >>> from tapmachine import MagnitudeMeasurements
        >>> MagnitudeMeasurements(torch.tensor([[1.0, -2.0]])).corrupt(torch.tensor([[1.0, 1.0]]))
        tensor([[1.]])
    """

    def respond(self, y: Tensor, prior: Moments, noise_variance: Tensor) -> Response:
        # On either side of 0, the posterior of |z| is a normal distribution truncated at 0.
        mean, variance = (z.double() for z in prior)
        total = variance + noise_variance.double()
        gain, y = variance / total, y.double()
        zero, infinity = torch.zeros_like(mean), torch.full_like(mean, torch.inf)
        logs, means, variances = [], [], []
        for sign in (1.0, -1.0):
            off = y - sign * mean
            center = sign * mean + gain * off
            spread = (variance * (1 - gain)).clamp(min=torch.finfo(torch.float64).tiny)
            log_mass, inside, within = interval_moments(center, spread, zero, infinity)
            logs.append(log_mass - 0.5 * (off**2 / total + total.log() + LOG_2PI))
            means.append(sign * inside)
            variances.append(within)
        log_evidence = torch.logaddexp(*logs)
        weights = [(part - log_evidence).exp() for part in logs]
        mixed = weights[0] * means[0] + weights[1] * means[1]
        between = weights[0] * weights[1] * (means[0] - means[1]) ** 2
        return Response(log_evidence, Moments(mixed, weights[0] * variances[0] + weights[1] * variances[1] + between))

    def expected(self, z: Tensor) -> Tensor:
        return z.abs()

    def draw_from(self, z: Tensor, generator: torch.Generator) -> Tensor:
        return self.with_noise(self.expected(z), generator)


@final
class CountMeasurements(Measurements):
    """Poisson counts with mean Fx + b ≥ 0, such as numbers of photons behind a mask.

    Args:
        matrix: Measurement matrix F, of shape (M, n_visible); see `Measurements`.
        bias: Mean background count b ≥ 0, a number or a tensor of shape (M,) (default: 0).

    Example:
        >>> import torch
        >>> from tapmachine import CountMeasurements
        >>> CountMeasurements(10 * torch.eye(2)).corrupt(torch.tensor([[1.0, 0.0]]))
        tensor([[11.,  0.]])
    """

    def __init__(self, matrix: Any, bias: float | Tensor | np.ndarray[Any, Any] = 0.0) -> None:
        super().__init__(matrix, 0.0, bias)
        check_parameter("CountMeasurements", "bias", float(self.bias.min()), 0.0, 1e15)

    def respond(self, y: Tensor, prior: Moments, noise_variance: Tensor) -> Response:
        mean, variance = (z.double() for z in prior)
        total = variance + noise_variance.double()  # variance of z plus noise, which early estimates add
        log_evidence, mean_of_rate, variance_of_rate = poisson_moments(y.double(), mean, total)
        return Response(log_evidence, _without_noise(prior, total, mean_of_rate, variance_of_rate))

    def expected(self, z: Tensor) -> Tensor:
        return z

    def draw_from(self, z: Tensor, generator: torch.Generator) -> Tensor:
        if bool((z < 0).any()):
            raise ValueError("CountMeasurements: Fx + b is negative for some signals; expected mean counts ≥ 0")
        return torch.poisson(z, generator=generator)

    def check(self, y: Tensor) -> str | None:
        wrong = y[(y < 0) | (y != y.round())]
        return f"y contains {float(wrong[0]):g}; expected a non-negative integer or NaN" if len(wrong) else None


def interval_moments(
    mean: Tensor, variance: Tensor, lower: Tensor, upper: Tensor
) -> tuple[Tensor, Tensor, Tensor]:  # float64
    """Compute the log-probability of an interval under a normal distribution, and the mean and variance inside it."""
    deviation = variance.sqrt()
    low, high = (lower - mean) / deviation, (upper - mean) / deviation
    zero, one = torch.zeros_like(mean), torch.ones_like(mean)
    integral = window_integral(zero, one, low, high, RULES[torch.float64])
    log_mass = integral.log_mass - 0.5 * integral.anchor**2 - 0.5 * LOG_2PI
    inside, within = integral.cumulants
    return log_mass, mean + deviation * inside, variance * within


def poisson_moments(y: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # float64
    """Compute the log-probability of Poisson counts with a normal rate, and the mean and variance of the rate given y.

    Negative rates are excluded. Integrals are sums on a grid around the mode, which is moved to the mean.
    """
    # The density z^y exp(−z) N(z; mean, variance) is log-concave, with its mode at a root of a quadratic equation.
    shifted = 0.5 * (mean - variance)
    root = torch.hypot(shifted, (y * variance).sqrt())
    mode = torch.where(shifted > 0, shifted + root, y * variance / (root - shifted).clamp(min=SMALLEST_RATE))
    center, reach = mode, REACH / (1 / variance + y / mode.clamp(min=SMALLEST_RATE) ** 2).sqrt()
    nodes = torch.linspace(-1.0, 1.0, N_NODES, dtype=torch.float64, device=y.device)
    for _ in range(N_PASSES):
        low = (center - reach).clamp(min=0.0)
        half = 0.5 * (center + reach - low)
        z = (low + half).unsqueeze(-1) + half.unsqueeze(-1) * nodes
        exponent = torch.xlogy(y.unsqueeze(-1), z) - z - 0.5 * (z - mean.unsqueeze(-1)) ** 2 / variance.unsqueeze(-1)
        weights = exponent.softmax(-1)
        average = (weights * z).sum(-1)
        spread = (weights * (z - average.unsqueeze(-1)) ** 2).sum(-1)
        spacing = 2 * half / (N_NODES - 1)
        log_mass = exponent.logsumexp(-1) + spacing.log()
        center, reach = average, REACH * spread.sqrt() + spacing
    return log_mass - torch.lgamma(y + 1) - 0.5 * (variance.log() + LOG_2PI), average, spread


def _in_interval(lower: Tensor, upper: Tensor, prior: Moments, noise_variance: Tensor) -> Response:
    """Compute the posterior of z if z plus normal noise lies in an interval, whose limits are float64."""
    mean, variance = (z.double() for z in prior)
    total = variance + noise_variance.double()
    log_evidence, mean_inside, variance_inside = interval_moments(mean, total, lower, upper)
    return Response(log_evidence, _without_noise(prior, total, mean_inside, variance_inside))


def _without_noise(prior: Moments, total: Tensor, mean_of_sum: Tensor, variance_of_sum: Tensor) -> Moments:
    """Compute the mean and variance of z from those of z plus normal noise, whose prior variance is `total`."""
    mean, variance = (z.double() for z in prior)
    gain = variance / total
    return Moments(mean + gain * (mean_of_sum - mean), variance * (1 - gain * (1 - variance_of_sum / total)))
