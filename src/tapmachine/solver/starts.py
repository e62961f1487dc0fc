"""Initial states for `solve`: data, random points, moments of the prior, or user-defined moments."""

from collections.abc import Sequence
from itertools import chain, repeat

import numpy as np
import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Solution, Tilt
from tapmachine.data.checks import check_count, check_tensor
from tapmachine.machine import BoltzmannMachine
from tapmachine.units import Units

# Data; moments of the visible layer, or of some or all layers from it upward; a solution; or the prior's moments.
StartingPoint = Tensor | Moments | Sequence[Moments] | Solution | None


def random_start(
    machine: BoltzmannMachine, n_particles: int, generator: torch.Generator | None = None
) -> Moments:  # (n_particles, n_visible)
    """Draw random points inside the support of the visible units, to be used as initial states for `solve`.

    Points are uniform on a bounded support (on the simplex for units with q states) and drawn from the prior on an
    unbounded support. The variances are 0, as for data [eq:init_c].

    Args:
        machine: The machine to be solved.
        n_particles: Number of points.
        generator: Random number generator on the machine's device (default: a new generator with seed 0).

    Returns:
        Moments of the visible layer, with means of shape (n_particles, n_visible).

    Example:
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.solver import random_start
        >>> random_start(rbm(Binary(4), Binary(2)), n_particles=3).mean.shape
        torch.Size([3, 4])
    """
    n_particles = check_count("n_particles", n_particles)
    generator = generator or torch.Generator(machine.device).manual_seed(0)
    mean = machine.layers[0].random_means(n_particles, generator)
    return Moments(mean, torch.zeros_like(mean))


@torch.no_grad()
def noisy_start(
    machine: BoltzmannMachine, x: Tensor, noise: float, generator: torch.Generator | None = None
) -> Moments:  # (K, n_visible)
    """Replace some data values with random points of the support, to obtain initial states for `solve`.

    Args:
        machine: The machine to be solved.
        x: Data of shape (K, n_visible).
        noise: Probability, from 0 to 1, that a value is replaced.
        generator: Random number generator on the machine's device (default: a new generator with seed 0).

    Returns:
        Moments of the visible layer, with means of shape (K, n_visible) and variances 0.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.solver import noisy_start
        >>> noisy_start(rbm(Binary(4), Binary(2)), torch.eye(4), noise=0.2).mean.shape
        torch.Size([4, 4])
    """
    if not 0 <= noise <= 1:
        raise ValueError(f"noise is {noise!r}; expected a number from 0 to 1")
    units = machine.layers[0]
    x = check_tensor(x)
    x = x.to(machine.device, units.dtype if x.is_floating_point() else None)
    mean = _checked(units, _data(units, x), 0).mean
    generator = generator or torch.Generator(machine.device).manual_seed(0)
    replaced = torch.rand(len(mean), units.n, device=mean.device, generator=generator) < noise
    replaced = replaced.view(len(mean), units.n, *[1] * (mean.dim() - 2))
    mean = torch.where(replaced, units.random_means(len(mean), generator), mean)
    return Moments(mean, torch.zeros_like(mean))


def fitting(machine: BoltzmannMachine, starts: StartingPoint | np.ndarray) -> StartingPoint:
    """Convert initial states to the machine's dtype and device."""
    if isinstance(starts, Solution):
        starts = list(starts.moments)
    if isinstance(starts, Tensor | np.ndarray):
        starts = check_tensor(starts, "start")
        return starts.to(machine.device, machine.dtype if starts.is_floating_point() else None)
    if isinstance(starts, Moments):
        return _fitting_moments(machine.layers[0], starts)
    if isinstance(starts, Sequence) and all(isinstance(moments, Moments) for moments in starts):
        layers = chain(list(machine.layers), repeat(machine.layers[-1]))  # `starting_moments` reports excess layers
        given = [moments for moments in starts if isinstance(moments, Moments)]
        return [_fitting_moments(units, moments) for units, moments in zip(layers, given, strict=False)]
    return starts


def _fitting_moments(units: Units, moments: Moments) -> Moments:
    moved = Moments(*(check_tensor(z, "start").to(units.device, units.dtype) for z in moments))
    return moved if moments.mean.dtype == units.dtype else Moments(units.normalized(moved.mean), moved.variance)


@torch.no_grad()
def starting_moments(machine: BoltzmannMachine, start: StartingPoint) -> list[Moments | None]:
    """Validate initial states and return the moments of each layer, or None for layers without initial moments.

    Data x set the visible means to a = x and the visible variances to c = 0 [eq:init_a], [eq:init_c].
    """
    layers = list(machine.layers)
    rows = machine.n_rows
    if isinstance(start, Solution):
        start = start.moments
    if start is None:
        specified: list[Moments] = [prior_moments(layers[0], rows or 1)]
    elif isinstance(start, Tensor):
        specified = [_data(layers[0], start)]
    elif isinstance(start, Moments):
        specified = [start]
    elif isinstance(start, Sequence) and start and all(isinstance(moments, Moments) for moments in start):
        specified = [*start]
        if len(specified) > len(layers):
            raise ValueError(f"start has moments for {len(specified)} layers, but the machine has {len(layers)} layers")
    else:
        kind = "an empty list" if isinstance(start, list | tuple) and not start else f"a {type(start).__name__}"
        raise ValueError(f"start is {kind}; expected data of shape (K, n_visible), Moments, or a Solution")
    n_particles = None
    checked: list[Moments | None] = []
    for layer_index, (layer, moments) in enumerate(zip(layers, specified, strict=False)):
        moments = _checked(layer, moments, layer_index)
        count = len(moments.mean)
        if n_particles is not None and count != n_particles:
            raise ValueError(
                f"start has {count} particles in layer {layer_index}, but {n_particles} in layer 0; "
                "expected equal numbers"
            )
        n_particles = count
        checked.append(moments)
    if rows is not None and n_particles not in (rows, None):
        raise ValueError(f"start has {n_particles} particles, but the machine is conditioned on {rows} rows")
    return checked + [None] * (len(layers) - len(checked))


def prior_moments(units: Units, n_particles: int) -> Moments:
    """Return the mean and variance of the prior or, where infinite, a point of the support and variance 0."""
    no_tilt = Tilt(torch.zeros((n_particles, *units.state_shape), dtype=units.dtype, device=units.device), 0.0)
    mean, variance = units.moments(no_tilt)
    finite = torch.isfinite(mean) & torch.isfinite(variance)
    lower, upper = units.bounds()
    somewhere = torch.zeros_like(mean).clamp(lower, upper)
    return Moments(torch.where(finite, mean, somewhere), torch.where(finite, variance, 0.0))


def _data(units: Units, x: Tensor) -> Moments:
    try:
        # Integers are states and must be valid; other values may be means.
        mean = units.check_means(x) if x.is_floating_point() else units.check_states(x)
    except ValueError as error:
        raise ValueError(f"start, layer 0: {error}") from None
    return Moments(mean, torch.zeros_like(mean))


def _checked(units: Units, moments: Moments, layer_index: int) -> Moments:
    dims = 1 + len(units.state_shape)
    try:
        mean = units.check_means(moments.mean)
        if mean.dim() != dims or len(mean) == 0:
            raise ValueError(
                f"the shape is {tuple(mean.shape)}; expected (K, {', '.join(map(str, units.state_shape))}), K ≥ 1"
            )
        variance = units.as_states(moments.variance)
        if variance.shape != mean.shape:
            raise ValueError(
                f"the variance has shape {tuple(variance.shape)}; expected {tuple(mean.shape)}, the shape of the mean"
            )
        bad = ~(torch.isfinite(variance) & (variance >= 0))
        units.reject(bad, variance, "variance", "expected a finite, non-negative number")
    except ValueError as error:
        raise ValueError(f"start, layer {layer_index}: {error}") from None
    return Moments(mean.to(units.device), variance.to(units.device))
