"""Where a solution starts from: data, random points, the prior, or other moments."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Solution, Tilt
from tapmachine.machine import BoltzmannMachine
from tapmachine.units import Units
from tapmachine.units.checks import check_count, check_tensor, from_array

Start = Tensor | Moments | Sequence[Moments] | Solution | None


def random_start(
    machine: BoltzmannMachine, n_particles: int, generator: torch.Generator | None = None
) -> Moments:  # (n_particles, n_visible)
    """Random points inside the support of the visible units, as a start for `solve`.

    They are uniform over a bounded support (over the simplex for units with q states), and draws from the prior where
    the support is unbounded. Their variance is 0, as for data [eq:init_c].

    Args:
        machine: any machine.
        n_particles: how many.
        generator: for the draws, on the machine's device; the default always draws the same.

    Example:
        >>> from tapmachine import Binary, random_start, rbm
        >>> random_start(rbm(Binary(4), Binary(2)), n_particles=3).mean.shape
        torch.Size([3, 4])
    """
    n_particles = check_count("n_particles", n_particles)
    generator = generator or torch.Generator(machine.device).manual_seed(0)
    mean = random_means(machine.units()[0], n_particles, generator)
    return Moments(mean, torch.zeros_like(mean))


@torch.no_grad()
def noisy_start(
    machine: BoltzmannMachine, x: Tensor, noise: float, generator: torch.Generator | None = None
) -> Moments:  # (K, n_visible)
    """Data, some of whose values are replaced by random points of the support, as a start for `solve`.

    Args:
        machine: any machine.
        x: data, (K, n_visible).
        noise: the share of the values that are replaced, from 0 to 1.
        generator: for the draws, on the machine's device; the default always draws the same.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, noisy_start, rbm
        >>> noisy_start(rbm(Binary(4), Binary(2)), torch.eye(4), noise=0.2).mean.shape
        torch.Size([4, 4])
    """
    if not 0 <= noise <= 1:
        raise ValueError(f"noise is {noise!r}; it must lie in [0, 1]")
    units = machine.units()[0]
    x = check_tensor(x)
    x = x.to(machine.device, units.dtype if x.is_floating_point() else None)
    mean = _checked(units, _data(units, x), 0).mean
    generator = generator or torch.Generator(machine.device).manual_seed(0)
    replaced = torch.rand(len(mean), units.n, device=mean.device, generator=generator) < noise
    replaced = replaced.view(len(mean), units.n, *[1] * (mean.dim() - 2))
    mean = torch.where(replaced, random_means(units, len(mean), generator), mean)
    return Moments(mean, torch.zeros_like(mean))


@torch.no_grad()
def random_means(units: Units, count: int, generator: torch.Generator) -> Tensor:  # (count, *state_shape)
    """Random points inside the support of a layer's units."""
    shape = (count, *units.state_shape)
    if len(units.state_shape) > 1:
        arrivals = torch.empty(shape, dtype=units.dtype, device=units.device).exponential_(generator=generator)
        return arrivals / arrivals.sum(-1, keepdim=True)
    lower, upper = units.bounds()
    share = torch.rand(shape, dtype=units.dtype, device=units.device, generator=generator)
    mean = lower + (upper - lower) * share
    if bool(torch.isfinite(upper - lower).all()):
        return mean
    draws = units.sample(Tilt(torch.zeros_like(share), 0.0), generator)
    return torch.where(torch.isfinite(mean), mean, draws)


def fitting(machine: BoltzmannMachine, starts: Start | np.ndarray) -> Start:
    """Starts in the machine's dtype and on its device, whatever theirs are."""
    if isinstance(starts, np.ndarray):
        starts = from_array(starts, "start")
    if isinstance(starts, Solution):
        starts = list(starts.moments)
    if isinstance(starts, Tensor):
        starts = check_tensor(starts, "start")
        return starts.to(machine.device, machine.dtype if starts.is_floating_point() else None)
    if isinstance(starts, Moments):
        return _fitting_moments(machine, starts)
    if isinstance(starts, Sequence) and all(isinstance(own, Moments) for own in starts):
        return [_fitting_moments(machine, Moments(*own)) for own in starts]
    return starts


def _fitting_moments(machine: BoltzmannMachine, moments: Moments) -> Moments:
    moved = Moments(*(check_tensor(z, "start").to(machine.device, machine.dtype) for z in moments))
    return moved if moments.mean.dtype == machine.dtype else normalised(moved)


def normalised(moments: Moments) -> Moments:
    """The probabilities of q states must still add up to 1, after a change of dtype."""
    mean, variance = moments
    return Moments(mean / mean.sum(-1, keepdim=True) if mean.dim() > 2 else mean, variance)


@torch.no_grad()
def starting_moments(machine: BoltzmannMachine, start: Start) -> list[Moments | None]:
    """The moments that a start gives to the layers, checked; None for a layer it says nothing about.

    Data x become a = x, c = 0 in the visible layer [eq:init_a], [eq:init_c].
    """
    layers = machine.units()
    rows = machine.n_rows
    if isinstance(start, Solution):
        start = list(start.moments)
    if start is None:
        given: list[Moments] = [prior_moments(layers[0], rows or 1)]
    elif isinstance(start, Tensor):
        given = [_data(layers[0], start)]
    elif isinstance(start, Moments):
        given = [start]
    elif isinstance(start, Sequence) and all(isinstance(moments, Moments) for moments in start):
        given = [*start]
        if len(given) != len(layers):
            raise ValueError(f"start has moments for {len(given)} layers; the machine has {len(layers)}")
    else:
        raise ValueError(
            f"start is a {type(start).__name__}; it must be data of shape (K, n_visible), Moments, or a Solution"
        )
    n_particles = None
    checked: list[Moments | None] = []
    for number, (units, moments) in enumerate(zip(layers, given, strict=False)):
        moments = _checked(units, moments, number)
        if n_particles is not None and len(moments.mean) != n_particles:
            found = len(moments.mean)
            raise ValueError(f"layer {number}: start has {found} particles, but {n_particles} in layer 0")
        n_particles = len(moments.mean)
        checked.append(moments)
    if rows is not None and n_particles not in (rows, None):
        raise ValueError(f"start has {n_particles} particles, but the machine is conditioned on {rows} rows")
    return checked + [None] * (len(layers) - len(checked))


def prior_moments(units: Units, n_particles: int) -> Moments:
    """Mean and variance without a tilt; some point of the support with variance 0, where there is no mean."""
    no_tilt = Tilt(torch.zeros((n_particles, *units.state_shape), dtype=units.dtype, device=units.device), 0.0)
    mean, variance = units.moments(no_tilt)
    finite = torch.isfinite(mean) & torch.isfinite(variance)
    lower, upper = units.bounds()
    somewhere = torch.full_like(mean, 1 / mean.shape[-1] if len(units.state_shape) > 1 else 0.0).clamp(lower, upper)
    return Moments(torch.where(finite, mean, somewhere), torch.where(finite, variance, 0.0))


def _data(units: Units, x: Tensor) -> Moments:
    try:
        # Whole numbers are states, and must be some; other values may be means.
        mean = units.check_means(x) if x.is_floating_point() else units.check_states(x)
    except ValueError as error:
        raise ValueError(f"start, layer 0: {error}") from None
    return Moments(mean, torch.zeros_like(mean))


def _checked(units: Units, moments: Moments, number: int) -> Moments:
    dims = 1 + len(units.state_shape)
    try:
        mean = units.check_means(moments.mean)
        if mean.dim() != dims or len(mean) == 0:
            raise ValueError(
                f"it has shape {tuple(mean.shape)}; it must be (K, {', '.join(map(str, units.state_shape))}), K ≥ 1"
            )
        variance = units.as_states(moments.variance)
        if variance.shape != mean.shape:
            raise ValueError(f"its variance has shape {tuple(variance.shape)}, its mean {tuple(mean.shape)}")
        bad = ~(torch.isfinite(variance) & (variance >= 0))
        units.reject(bad, variance, "the variance", "it must be finite, 0 or more")
    except ValueError as error:
        raise ValueError(f"start, layer {number}: {error}") from None
    return Moments(mean.to(units.device), variance.to(units.device))
