"""Base class for measurements of z = Fx + b, which mix the components of a signal x."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tapmachine.beliefs import Moments
from tapmachine.posterior.channels.base import drawing_arguments
from tapmachine.posterior.channels.evidence import check_parameter, is_nan
from tapmachine.posterior.measurements.operators import as_operator
from tapmachine.posterior.observations import as_tensor
from tapmachine.units import Units

LARGEST_NOISE = 1e15


class Response(NamedTuple):
    """Posterior of z given measurements y and a normal prior of z.

    Attributes:
        log_evidence: Logarithm of ∫ P(y|z) N(z; mean, variance) dz in float64, of shape (K, M).
        moments: Posterior mean and variance of z, each of shape (K, M).

    Example:
        >>> import torch
        >>> from tapmachine import LinearMeasurements, Moments
        >>> prior = Moments(mean=torch.zeros(1, 2), variance=torch.ones(1, 2))
        >>> LinearMeasurements(torch.eye(2)).respond(torch.ones(1, 2), prior, torch.ones(1)).moments.mean
        tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """

    log_evidence: Tensor
    moments: Moments


class Measurements(ABC):
    """Base class for measurements y of z = Fx + b, where x contains the states of all visible units.

    NaN marks a missing measurement. A new type of measurements implements `respond` and `expected`. It also overrides
    `draw_from` if the noise is not added to z, and `check` if not all numbers are valid measurements.

    Args:
        matrix: Measurement matrix F, of shape (M, n_visible): a tensor, an array, a sparse matrix, or a
            `FunctionOperator`. For units with q states, x contains one-hot vectors, and F has a column for each state
            of each unit.
        noise: Standard deviation of the noise on z (default: 0).
        bias: Bias b, a number or a tensor of shape (M,) (default: 0).

    Attributes:
        estimates_noise: Whether `recover` can estimate the noise.

    Example:
        >>> import torch
        >>> from tapmachine import SignMeasurements
        >>> SignMeasurements(torch.tensor([[1.0, -2.0], [1.0, 1.0]])).corrupt(torch.ones(1, 2))
        tensor([[-1.,  1.]])
    """

    estimates_noise: ClassVar[bool] = False

    def __init__(
        self, matrix: Any, noise: float | None = 0.0, bias: float | Tensor | np.ndarray[Any, Any] = 0.0
    ) -> None:
        self.operator = as_operator(matrix)
        check_parameter(type(self).__name__, "noise", noise, 0.0, LARGEST_NOISE)
        if noise is None and not self.estimates_noise:
            raise ValueError(f"{type(self).__name__}: noise is None, but cannot be estimated; expected a number")
        self.noise = noise
        self.bias = torch.as_tensor(bias, dtype=torch.float64)
        if not bool(torch.isfinite(self.bias).all()):
            raise ValueError(f"{type(self).__name__}: bias contains non-finite values; expected finite numbers")
        if self.bias.dim() > 1 or (self.bias.dim() == 1 and len(self.bias) != self.operator.shape[0]):
            raise ValueError(
                f"{type(self).__name__}: bias has shape {tuple(self.bias.shape)}; expected a number or "
                f"({self.operator.shape[0]},)"
            )

    @abstractmethod
    def respond(self, y: Tensor, prior: Moments, noise_variance: Tensor) -> Response:
        """Compute the posterior of z given measurements.

        Args:
            y: Measurements without missing values, of shape (K, M).
            prior: Prior mean and variance of z, each of shape (K, M).
            noise_variance: Variance of the noise on z, of shape (K, 1).
        """

    @abstractmethod
    def expected(self, z: Tensor) -> Tensor:
        """Compute the noiseless measurements of z."""

    def draw_from(self, z: Tensor, generator: torch.Generator) -> Tensor:  # (K, M) -> (K, M)
        """Draw noisy measurements of z; by default, the noise is added to z."""
        return self.expected(self.with_noise(z, generator))

    def with_noise(self, values: Tensor, generator: torch.Generator) -> Tensor:
        """Add normal noise to values; return the values unchanged if the noise is unknown."""
        noise = torch.randn(values.shape, generator=generator, device=values.device, dtype=values.dtype)
        return values + (self.noise or 0.0) * noise

    def check(self, y: Tensor) -> str | None:
        """Return an error message if measurements are invalid, otherwise None."""
        return None

    def __repr__(self) -> str:
        m, n = self.operator.shape
        noise = "None" if self.noise is None else f"{self.noise:.4g}"
        return f"{type(self).__name__}({m} measurements of {n} components, noise={noise})"

    def corrupt(
        self, x: Tensor, generator: torch.Generator | None = None, units: Units | None = None
    ) -> Tensor:  # (K, n) -> (K, M)
        """Draw measurements of states x.

        Args:
            x: States, of shape (K, n).
            generator: Random number generator on the device of x (default: one with a fixed seed).
            units: Units to which the states belong (default: `Binary`).
        """
        x, generator, units = drawing_arguments(x, generator, units)
        flat = units.check_states(units.from_data(x.to(units.dtype)), validate=False).flatten(1)
        self.check_size(flat.shape[1])
        z = self.operator.to(flat.device, flat.dtype).forward(flat) + self.bias.to(flat)
        return self.draw_from(z, generator)

    def check_size(self, n_components: int) -> None:
        """Raise a ValueError if the matrix does not have one column per visible component."""
        if self.operator.shape[1] != n_components:
            raise ValueError(
                f"matrix has shape {self.operator.shape}, but the visible units have {n_components} components; "
                f"expected ({self.operator.shape[0]}, {n_components})"
            )

    def check_measurements(self, y: Tensor | np.ndarray[Any, Any]) -> Tensor:
        """Validate measurements and convert them to a floating-point tensor of shape (K, M)."""
        tensor = as_tensor(y, "y")
        m = self.operator.shape[0]
        tensor = tensor if tensor.is_floating_point() else tensor.to(torch.get_default_dtype())
        if tensor.dim() != 2 or tensor.shape[1] != m or len(tensor) == 0:
            raise ValueError(f"y has shape {tuple(tensor.shape)}; expected (n_signals, {m}), one row per signal")
        if bool(torch.isinf(tensor).any()):
            row, column = torch.isinf(tensor).nonzero()[0].tolist()
            raise ValueError(f"y[{row}, {column}] is infinite; expected a finite number, or NaN if not observed")
        empty = is_nan(tensor).all(1)
        if bool(empty.any()):
            raise ValueError(f"y[{int(empty.nonzero()[0])}] is all NaN; expected at least one measurement per signal")
        problem = self.check(tensor[~is_nan(tensor)])
        if problem is not None:
            raise ValueError(f"{type(self).__name__}: {problem}")
        return tensor
