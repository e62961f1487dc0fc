"""State evolution, which predicts the error of message passing for signals with independent components."""

from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.units import Units

N_DRAWS = 2**16  # number of drawn signal components
MOST_ITERATIONS, TOLERANCE = 1000, 1e-6


class Evolution(NamedTuple):
    """Predicted error of message passing.

    Attributes:
        mean_squared_error: Mean squared error per component after convergence.
        iterations: Mean squared error after each undamped iteration.
    """

    mean_squared_error: float
    iterations: list[float]


@torch.no_grad()
def state_evolution(
    units: Units,
    ratio: float,
    noise: float,
    entry_variance: float | None = None,
    generator: torch.Generator | None = None,
) -> Evolution:
    """Predict the error of `recover` for independent components and a matrix with independent entries.

    State evolution describes each component as if it were observed directly with normal noise of precision

        A = M v/(σ² + N v E),

    where E is the mean squared error of the previous iteration. The next E is the mean posterior variance of a
    component given this observation.

    Args:
        units: Visible units; signals are drawn from their priors.
        ratio: Number of measurements per component, M/N.
        noise: Standard deviation σ of the noise.
        entry_variance: Variance v of the entries of the matrix (default: 1/N).
        generator: Random number generator on the units' device (default: one with a fixed seed).

    Example:
        >>> from tapmachine import Gaussian
        >>> from tapmachine.measurements import state_evolution
        >>> round(state_evolution(Gaussian(100), ratio=0.5, noise=0.1).mean_squared_error, 2)
        0.51
    """
    if not ratio > 0 or not noise >= 0:
        raise ValueError(f"ratio is {ratio!r} and noise {noise!r}; expected ratio > 0 and noise ≥ 0")
    n = units.n
    variance = 1 / n if entry_variance is None else entry_variance
    generator = generator or torch.Generator(units.device).manual_seed(0)
    shape = (max(1, N_DRAWS // n), *units.state_shape)
    nothing = torch.zeros(shape, dtype=units.dtype, device=units.device)
    x = units.sample(Tilt(nothing, 0.0), generator)
    normal = torch.randn(shape, dtype=units.dtype, device=units.device, generator=generator)
    error = float(units.moments(Tilt(nothing, 0.0)).variance.mean())
    errors: list[float] = []
    for _ in range(MOST_ITERATIONS):
        precision = ratio * n * variance / max(noise**2 + n * variance * error, torch.finfo(torch.float32).tiny)
        errors.append(_error(units, x, normal, precision))
        if abs(errors[-1] - error) <= TOLERANCE * error:
            break
        error = errors[-1]
    return Evolution(errors[-1], errors)


def _error(units: Units, x: Tensor, normal: Tensor, precision: float) -> float:
    """Compute the mean posterior variance of components that are observed with normal noise."""
    field = precision * x + precision**0.5 * normal
    return float(units.moments(Tilt(field, torch.full_like(field, precision))).variance.double().mean())
