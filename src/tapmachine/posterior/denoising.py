"""Denoising and imputation: posteriors of the visible states given noisy or incomplete observations."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.data.checks import check_count
from tapmachine.data.errors import PosteriorWarning
from tapmachine.data.rows import spaced
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import in_double
from tapmachine.machine.sampler import gibbs, sweep_chain
from tapmachine.posterior.baselines import nearest_neighbors, pointwise_estimate
from tapmachine.posterior.channels import Channel, Missing
from tapmachine.posterior.estimation import most_likely
from tapmachine.posterior.exact import exact_posterior
from tapmachine.posterior.measurements import Measurements, recover
from tapmachine.posterior.mixture import Posterior, joined, mixture, warn_of_failures
from tapmachine.posterior.observations import as_examples, as_observations
from tapmachine.solver import Scheme, solve
from tapmachine.solver.driver import Progress
from tapmachine.solver.starts import StartingPoint, starting_moments
from tapmachine.solver.validity import default_scheme
from tapmachine.units import Units

N_NEIGHBORS = 3  # default number of similar examples used as initial states
ESTIMATION_ROWS = 200  # maximum number of observations used to estimate a channel
BURN_IN = 0.1  # fraction of each chain that is discarded
CHUNK_VALUES = 2**25  # maximum number of moments in memory, over all initial states


@torch.no_grad()
def denoise(
    machine: BoltzmannMachine,
    y: Tensor | np.ndarray[Any, Any],
    channel: Channel,
    *,
    data: Tensor | np.ndarray[Any, Any] | None = None,
    n_neighbors: int = N_NEIGHBORS,
    starts: Sequence[StartingPoint] | None = None,
    temperature: float = 1.0,
    anneal: Sequence[Channel] = (),
    scheme: Scheme | None = None,
    tol: float = 1e-8,
    max_sweeps: int = 1000,
    callback: Callable[[Progress], None] | None = None,
) -> Posterior:
    """Compute the posterior of the visible states given noisy or incomplete observations, with the machine as prior.

    The machine conditioned on the observations is solved from several initial states: the pointwise estimate and, if
    `data` is specified, similar examples. The posterior is a mixture of the distinct solutions, weighted by exp(−F). F
    is computed in the machine's dtype; if the noise is smaller than a hundredth of the values, use `machine.double()`.

    The posterior is exact for machines fitted to real-valued tables if the channel is `GaussianNoise` or `Missing`.
    More generally, it is exact for `Gaussian` visible units with a few `SpikeSlab` hidden units and at most one
    `Categorical` hidden unit. In this case, `data`, `tol` and `max_sweeps` have no effect. If `starts`, `anneal`,
    `scheme` or a `temperature` other than 1 is specified, the mean field is used instead.

    Args:
        machine: An unconditioned machine.
        y: Observations, of shape (K, n_visible), with NaN for missing values.
        channel: Channel of the observations. If its parameter p or σ is None, it is estimated with `estimate_channel`.
            Measurements that mix units, such as `LinearMeasurements`, are passed to `recover`.
        data: Examples, of shape (N, n_visible), such as the training data. The nearest neighbors of each observation
            are used as additional initial states, which improves the result if the noise is strong.
        n_neighbors: Number of neighbors used as initial states (default: 3).
        starts: List of initial states that replaces the default list. Each is a tensor of shape (K, n_visible), or
            another value that the argument `start` of `solve` accepts.
        temperature: Temperature T of the weights exp(−F/T) of the solutions (default: 1). T > 1 reduces the effect of
            differences in F, which improves the result if many values are missing. With T = inf, all distinct solutions
            have equal weight.
        anneal: Sequence of channels, usually with decreasing noise, for which the posterior is computed before
            `channel`. Each solution is the initial state for the next channel.
        scheme: Mean-field scheme (default: `TAP()`; `AdaptiveTAP()` for machines fitted to real-valued tables).
        tol, max_sweeps: Convergence tolerance and maximum number of sweeps of `solve`.
        callback: Function that is called with the `Progress` of the solver.

    Warns:
        PosteriorWarning: If rows have no converged solution; see `Posterior.status`.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, BinarySymmetric, denoise, rbm
        >>> machine = rbm(Binary(3, field=2.0), Binary(2))
        >>> posterior = denoise(machine, torch.tensor([[1.0, 0.0, torch.nan]]), BinarySymmetric(0.2))
        >>> posterior.mean
        tensor([[0.9673, 0.6486, 0.8807]])
        >>> posterior.states
        tensor([[1., 1., 1.]])
    """
    if isinstance(channel, Measurements):
        options: dict[str, Any] = {"data": data, "n_neighbors": n_neighbors, "starts": starts, "scheme": scheme}
        if anneal or callback is not None:
            raise ValueError(
                f"{type(channel).__name__}: anneal and callback are not supported for measurements; omit them"
            )
        return recover(machine, y, channel, temperature=temperature, tol=tol, max_sweeps=max_sweeps, **options)
    y = as_observations(machine, y)
    check_channel(channel)
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature!r}; expected a number greater than 0")
    if starts is not None and data is not None:
        raise ValueError("data and starts cannot be combined; pass one of them")
    if starts is not None and len(starts) == 0:
        raise ValueError("starts is empty; expected at least one initial state")
    units = machine.layers[0]
    channel = estimate_channel(machine, y, channel, scheme)
    is_plain = scheme is None and starts is None and temperature == 1 and not anneal
    exact = exact_posterior(machine, y, channel) if is_plain else None
    if exact is not None:
        return exact
    scheme = scheme or default_scheme(machine)
    examples = None if data is None else as_examples(machine, data)
    n_neighbors = check_count("n_neighbors", n_neighbors)
    user_starts = None if starts is None else [_each_layer(machine, start, len(y)) for start in starts]
    n_starts = len(user_starts) if user_starts is not None else 1 if examples is None else 1 + n_neighbors
    size = max(1, CHUNK_VALUES // (n_starts * sum(machine.sizes)))
    parts = []
    for rows in torch.arange(len(y), device=y.device).split(size):
        observed = channel.rows(rows).observe(machine, y[rows])
        annealed = [other.rows(rows).observe(machine, y[rows]).machine for other in anneal]
        if user_starts is None:
            starts_of_rows = _default_starts(units, y[rows], channel.rows(rows), examples, n_neighbors)
        else:
            starts_of_rows = [_start_of_rows(start, rows) for start in user_starts]
        solutions = []
        for start in starts_of_rows:
            for conditioned in annealed:
                start = solve(conditioned, start, scheme, tol=tol, max_sweeps=max_sweeps)
            solutions.append(solve(observed.machine, start, scheme, tol=tol, max_sweeps=max_sweeps, callback=callback))
        parts.append(mixture(list(machine.layers), solutions, temperature, observed.log_scale))
    posterior = joined(parts, channel, units)
    warn_of_failures(posterior.status)
    return posterior


def impute(machine: BoltzmannMachine, x: Tensor | np.ndarray[Any, Any], **options: Any) -> Posterior:
    """Compute the posterior of missing values (NaN) given the observed values.

    The attribute `mean` of the result contains the rows with missing values replaced by their posterior means. The
    attribute `variance` contains the posterior variances, which are 0 for observed values. For a row without observed
    values, the moments of the machine are returned.

    Args:
        machine: An unconditioned machine.
        x: Rows, of shape (K, n_visible), with NaN for missing values.
        options: Keyword arguments passed to `denoise`.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, impute, rbm
        >>> impute(rbm(Binary(2, field=1.0), Binary(2)), torch.tensor([[0.0, torch.nan]])).mean
        tensor([[0.0000, 0.7309]])
    """
    return denoise(machine, x, Missing(), **options)


@torch.no_grad()
def estimate_channel(
    machine: BoltzmannMachine, y: Tensor | np.ndarray[Any, Any], channel: Channel, scheme: Scheme | None = None
) -> Channel:
    """Estimate the parameter of a channel by maximizing the TAP evidence of the observations.

    Args:
        machine: Machine to use as the prior.
        y: Observations, of shape (K, n_visible). At most 200 rows are used.
        channel: `BinarySymmetric()` or `GaussianNoise()`. A channel whose parameter is set is returned unchanged.
        scheme: Mean-field scheme (default: `TAP()`).

    Example:
        >>> import torch
        >>> from tapmachine import Binary, BinarySymmetric, rbm
        >>> from tapmachine.posterior import estimate_channel
        >>> machine = rbm(Binary(50, field=-5.0), Binary(2))
        >>> y = (torch.arange(1000).view(20, 50) % 4 == 0).float()
        >>> round(estimate_channel(machine, y, BinarySymmetric()).p, 2)
        0.25
    """
    y = as_observations(machine, y)
    check_channel(channel)
    unknown = channel.unknown(y, machine.layers[0])
    if unknown is None:
        return channel
    double = in_double(machine)  # differences of F are small relative to F
    some = spaced(y, ESTIMATION_ROWS).to(double.dtype if y.is_floating_point() else None)

    def free_energy(candidate: Channel) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PosteriorWarning)
            return float(denoise(double, some, candidate, scheme=scheme).free_energy.mean())

    return most_likely(channel, unknown, free_energy)


@torch.no_grad()
def gibbs_posterior(
    machine: BoltzmannMachine,
    y: Tensor | np.ndarray[Any, Any],
    channel: Channel,
    n_sweeps: int = 2000,
    generator: torch.Generator | None = None,
) -> Moments:  # (K, *state_shape)
    """Estimate the posterior mean and variance of the visible units by Gibbs sampling.

    Gibbs sampling is slower than `denoise` and has statistical errors, but does not use a mean-field approximation.
    Conditional moments are averaged over one chain per row, of which the first tenth is discarded as burn-in. Chains
    start from the pointwise estimate.

    Args:
        machine, y, channel: Machine, observations and channel; see `denoise`.
        n_sweeps: Number of sweeps of each chain (default: 2000).
        generator: Random number generator on the machine's device (default: one with a fixed seed).

    Example:
        >>> import torch
        >>> from tapmachine import Binary, BinarySymmetric, rbm
        >>> from tapmachine.posterior import gibbs_posterior
        >>> machine = rbm(Binary(2), Binary(2))
        >>> gibbs_posterior(machine, torch.tensor([[1.0, 0.0]]), BinarySymmetric(0.1), n_sweeps=10).mean.shape
        torch.Size([1, 2])
    """
    y = as_observations(machine, y)
    check_channel(channel)
    n_sweeps = check_count("n_sweeps", n_sweeps)
    generator = generator or torch.Generator(machine.device).manual_seed(0)
    conditioned = channel.observe(machine, y).machine
    units = conditioned.layers[0]
    zero = torch.zeros((len(y), *units.state_shape), dtype=units.dtype, device=units.device)
    chain = gibbs(conditioned, units.sample(Tilt(zero, 0.0), generator), 0, generator)
    first = int(BURN_IN * n_sweeps)
    center = conditioned.conditional(
        0, chain
    ).mean  # without centering, large means would cause rounding errors in the variance
    total, squares, variances = (torch.zeros_like(zero) for _ in range(3))
    for sweep in range(n_sweeps):
        chain = sweep_chain(conditioned, chain, generator)
        if sweep >= first:
            moments = conditioned.conditional(0, chain)
            off = moments.mean - center
            total += off
            squares += off**2
            variances += moments.variance
    mean, count = total / (n_sweeps - first), n_sweeps - first
    return Moments(center + mean, variances / count + (squares / count - mean**2).clamp(min=0))


def check_channel(channel: object) -> None:
    """Raise a ValueError unless the argument is a channel."""
    if not isinstance(channel, Channel):
        raise ValueError(f"channel is {channel!r}; expected a channel such as BinarySymmetric(0.1)")


def _each_layer(machine: BoltzmannMachine, start: StartingPoint, count: int) -> list[Moments | None]:
    """Return, for all rows, the moments of each layer at an initial state; None for layers without initial moments."""
    layers = starting_moments(machine, start)
    assert layers[0] is not None
    if len(layers[0].mean) not in (1, count):
        raise ValueError(f"an element of starts has {len(layers[0].mean)} rows, but y has {count} rows")
    return [
        None if moments is None else Moments(*(z.expand(count, *z.shape[1:]) for z in moments)) for moments in layers
    ]


def _start_of_rows(layers: list[Moments | None], rows: Tensor) -> StartingPoint:
    """Return the initial state of selected rows, from the moments returned by `_each_layer`."""
    return [Moments(*(z[rows] for z in layer)) for layer in layers if layer is not None]


def _default_starts(
    units: Units, y: Tensor, channel: Channel, examples: Tensor | None, n_neighbors: int
) -> list[StartingPoint]:
    """Return the default initial states: the pointwise estimate and the examples nearest to each observation."""
    pointwise = Moments(*pointwise_estimate(units, y, channel))
    if examples is None:
        return [pointwise]
    values = channel.as_states(y)
    if values is None:  # the observations are not states, so compare pointwise estimates instead
        values = pointwise.mean.masked_fill(torch.isnan(y), torch.nan)
    values = _as_numbers(units, values)
    index = nearest_neighbors(examples.flatten(1), values, min(n_neighbors, len(examples)))
    return [pointwise, *(Moments(examples[k], torch.zeros_like(examples[k])) for k in index.unbind(1))]


def _as_numbers(units: Units, values: Tensor) -> Tensor:
    """Convert states to rows of numbers, with one-hot vectors for categorical units and NaN for missing values."""
    if len(units.state_shape) == 1 or values.dim() > 2:  # numbers, or one-hot already
        return values.flatten(1).to(units.dtype)
    seen = ~torch.isnan(values) if values.is_floating_point() else torch.ones_like(values, dtype=torch.bool)
    one_hot = torch.nn.functional.one_hot(torch.where(seen, values, 0).long(), units.state_shape[1]).to(units.dtype)
    return one_hot.masked_fill(~seen.unsqueeze(-1), torch.nan).flatten(1)
