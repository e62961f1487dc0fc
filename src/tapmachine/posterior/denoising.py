"""Denoising and imputation: posteriors of the visible states given noisy or incomplete observations."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, isfinite, log
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tapmachine.beliefs import Moments
from tapmachine.data.checks import check_count
from tapmachine.data.errors import EstimateError, PosteriorWarning, warn
from tapmachine.data.rows import spaced
from tapmachine.exact import mixture_of
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import in_double, models_correlations
from tapmachine.posterior.baselines import pointwise_estimate
from tapmachine.posterior.channels import Channel, Missing, UnknownParameter
from tapmachine.posterior.driver import PosteriorOptions, Starts, infer
from tapmachine.posterior.exact import exact_posterior
from tapmachine.posterior.methods import (
    CHAIN_SWEEPS,
    METHODS,
    N_CHAINS,
    SCHEMES,
    TRIAL_SWEEPS,
    chosen_method,
    posterior_by_chains,
)
from tapmachine.posterior.mixture import Posterior, mixture
from tapmachine.posterior.observations import as_observations
from tapmachine.solver import AdaptiveTAP, Scheme, solve
from tapmachine.solver.starts import StartingPoint
from tapmachine.solver.validity import default_scheme
from tapmachine.units import Units

ADAPTIVE_ROWS = 40  # maximum number of observations used to estimate a channel by adaptive TAP
ESTIMATION_ROWS = 200  # maximum number of observations used to estimate a channel
GRID_SIZE = 12  # number of values in the initial grid search for a channel's parameter
LOG_TOLERANCE = 1e-3  # tolerance of the logarithm of the parameter
CHUNK_VALUES = 2**25  # maximum number of moments in memory, over all initial states


@torch.no_grad()
def denoise(
    machine: BoltzmannMachine,
    y: Tensor | np.ndarray[Any, Any],
    channel: Channel,
    *,
    data: Tensor | np.ndarray[Any, Any] | None = None,
    starts: Sequence[StartingPoint] | None = None,
    scheme: Scheme | None = None,
    method: Literal["tap", "adaptive", "gibbs"] | None = None,
    options: PosteriorOptions | None = None,
) -> Posterior:
    """Compute the posterior of the visible states given noisy or incomplete observations, with the machine as prior.

    By default, the method is chosen by a trial, in which known rows are spoiled by the same channel and restored: TAP,
    adaptive TAP, which remains accurate for stronger couplings, or Gibbs chains. The trial is run once per machine and
    channel. The chosen method is returned in `Posterior.method`.

    With TAP, the machine conditioned on the observations is solved from several initial states: the pointwise estimate
    and, if `data` is specified, similar examples. The posterior is a mixture of the distinct solutions, weighted by
    exp(−F). F is computed in the machine's dtype; if the noise is smaller than a hundredth of the values, use
    `machine.double()`.

    The posterior is exact for machines fitted to real-valued tables if the channel is `GaussianNoise` or `Missing`.
    More generally, it is exact for `Gaussian` visible units with a few `SpikeSlab` hidden units and at most one
    `Categorical` hidden unit. In this case, `data` and most options have no effect. If `starts`, `scheme`, `method` or
    a `temperature` other than 1 is specified, the exact posterior is not used.

    Args:
        machine: An unconditioned machine.
        y: Observations, of shape (K, n_visible), with NaN for missing values.
        channel: Channel of the observations. If its parameter p or σ is None, it is estimated with `estimate_channel`,
            by adaptive TAP if that is the chosen method.
            For measurements that mix units, such as `LinearMeasurements`, use `recover`.
        data: Examples, of shape (N, n_visible), such as the training data. The nearest neighbors of each observation
            are used as additional initial states, which improves the result if the noise is strong.
        starts: List of initial states that replaces the default list. Each is a tensor of shape (K, n_visible), or
            another value that the argument `start` of `solve` accepts.
        scheme: Mean-field scheme (default: that of the method).
        method: Method: "tap", "adaptive" (adaptive TAP) or "gibbs" (10 conditioned Gibbs chains of 200 sweeps per row)
            (default: chosen by a trial; "tap" if `starts` is specified).
        options: Number of neighbors, temperature, tolerance and other options (default: `PosteriorOptions()`).

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
    y = as_observations(machine, y)
    check_channel(channel)
    options = options or PosteriorOptions()
    if method is not None and method not in METHODS:
        raise ValueError(f"method is {method!r}; expected one of {', '.join(METHODS)}")
    if method is not None and scheme is not None:
        raise ValueError("method and scheme cannot be combined; pass one of them")
    initial = Starts.of(machine, data, starts, len(y), options)
    given, channel = channel, estimate_channel(machine, y, channel, scheme)
    is_plain = scheme is None and method is None and starts is None and options.temperature == 1
    exact = exact_posterior(machine, y, channel) if is_plain else None
    if exact is not None:
        return exact

    def solved(rows: Tensor, through: Channel, examples: Tensor | None, word: str) -> Posterior:
        few = replace(options, max_sweeps=TRIAL_SWEEPS)
        return _solved(machine, rows, through, replace(initial, examples=examples), SCHEMES[word](), word, few)

    if scheme is not None or models_correlations(machine):
        scheme = scheme or default_scheme(machine)
        return _solved(machine, y, channel, initial, scheme, type(scheme).__name__, options)
    used: str = method or "tap"
    if method is None and starts is None and options.temperature == 1:
        used = chosen_method(machine, y, channel, initial.examples, solved)
        unknown = given.unknown(y, machine.layers[0])
        if unknown is not None:  # the evidence of TAP may mislead as well, usually to too much noise
            if used == "tap":
                less: Any = {unknown.name: getattr(channel, unknown.name) / 3}
                used = chosen_method(machine, y, replace(channel, **less), initial.examples, solved)  # type: ignore[type-var]
            if used == "adaptive":
                channel = estimate_channel(machine, spaced(y, ADAPTIVE_ROWS), given, AdaptiveTAP())
    if used == "gibbs":
        draws = torch.Generator(machine.device).manual_seed(0)

        def part(rows: Tensor) -> Posterior:
            return posterior_by_chains(machine, y[rows], channel.rows(rows), N_CHAINS, CHAIN_SWEEPS, draws)

        return infer(machine, len(y), CHUNK_VALUES // (4 * N_CHAINS * sum(machine.sizes)), part)
    return _solved(machine, y, channel, initial, SCHEMES[used](), used, options)


def _solved(
    machine: BoltzmannMachine,
    y: Tensor,
    channel: Channel,
    initial: Starts,
    scheme: Scheme,
    method: str,
    options: PosteriorOptions,
) -> Posterior:
    """Compute the posterior from mean-field solutions."""
    limits: dict[str, Any] = {"tol": options.tol, "max_sweeps": options.max_sweeps}
    if method == "adaptive":
        initial = replace(initial, examples=None)  # one start is sufficient, and each is expensive

    def part(rows: Tensor) -> Posterior:
        of_rows = channel.rows(rows)
        observed, log_scale = of_rows.observe(machine, y[rows])
        solutions = [
            solve(observed, start, scheme, callback=options.callback, **limits)
            for start in initial.of_rows(rows) or _default_starts(machine.layers[0], y[rows], of_rows, initial)
        ]
        return mixture(list(machine.layers), solutions, options.temperature, log_scale, channel, method)

    return infer(machine, len(y), CHUNK_VALUES // (len(initial) * sum(machine.sizes)), part)


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
    method: Any = "tap" if scheme is None and mixture_of(machine) is None else None
    sample = spaced(y, ESTIMATION_ROWS).to(double.dtype if y.is_floating_point() else None)

    def free_energy(candidate: Channel) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PosteriorWarning)
            return float(denoise(double, sample, candidate, scheme=scheme, method=method).free_energy.mean())

    return _most_likely(channel, unknown, free_energy)


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
    return posterior_by_chains(machine, y, channel, 1, n_sweeps, generator).moments[0]


def check_channel(channel: object) -> None:
    """Raise a ValueError unless the argument is a channel."""
    if not isinstance(channel, Channel):
        hint = "; use recover for measurements" if hasattr(channel, "respond") else ""
        raise ValueError(f"channel is {channel!r}; expected a channel such as BinarySymmetric(0.1){hint}")


def _default_starts(units: Units, y: Tensor, channel: Channel, initial: Starts) -> list[list[Moments]]:
    """Return the default initial states: the pointwise estimate and the examples nearest to each observation."""
    pointwise = Moments(*pointwise_estimate(units, y, channel))
    values = channel.as_states(y)
    if values is None:  # the observations are not states, so compare pointwise estimates instead
        values = pointwise.mean.masked_fill(torch.isnan(y), torch.nan)
    neighbors = initial.neighbors(_as_numbers(units, values))
    return [[pointwise], *([Moments(mean, torch.zeros_like(mean))] for mean in neighbors)]


def _as_numbers(units: Units, values: Tensor) -> Tensor:
    """Convert states to rows of numbers, with one-hot vectors for categorical units and NaN for missing values."""
    if len(units.state_shape) == 1 or values.dim() > 2:  # numbers, or one-hot already
        return values.flatten(1).to(units.dtype)
    seen = ~torch.isnan(values) if values.is_floating_point() else torch.ones_like(values, dtype=torch.bool)
    one_hot = torch.nn.functional.one_hot(torch.where(seen, values, 0).long(), units.state_shape[1]).to(units.dtype)
    return one_hot.masked_fill(~seen.unsqueeze(-1), torch.nan).flatten(1)


def _most_likely(channel: Channel, unknown: UnknownParameter, free_energy: Callable[[Channel], float]) -> Channel:
    """Return the channel whose parameter minimizes F, found by a grid search followed by Brent's method.

    Args:
        channel: Channel whose parameter is None.
        unknown: Name of the parameter, and the interval to search.
        free_energy: Function that returns the mean F of the observations under a channel; inf if a row has no solution.
    """
    from scipy.optimize import minimize_scalar

    name = unknown.name
    ends = log(unknown.smallest), log(unknown.largest)

    def with_value(log_value: float) -> Channel:
        return replace(channel, **{name: exp(log_value)})  # type: ignore[type-var]

    def cost(log_value: float) -> float:
        return free_energy(with_value(log_value))

    grid = [ends[0] + (ends[1] - ends[0]) * step / (GRID_SIZE - 1) for step in range(GRID_SIZE)]
    costs = [cost(log_value) for log_value in grid]
    best = min(range(GRID_SIZE), key=costs.__getitem__)
    if not isfinite(costs[best]):
        raise EstimateError(
            f"{name} cannot be estimated, because some rows of y have no solution for any value; set {name}"
        )
    around = grid[max(0, best - 1)], grid[min(GRID_SIZE - 1, best + 1)]
    refined = minimize_scalar(cost, bounds=around, method="bounded", options={"xatol": LOG_TOLERANCE})
    log_value = refined.x if refined.fun <= costs[best] else grid[best]
    value = exp(log_value)
    if not unknown.smallest * 1.01 < value < unknown.largest * 0.99:
        warn(
            f"{name} = {value:.3g} is at a bound of the search interval, {unknown.smallest:.3g} to "
            f"{unknown.largest:.3g}; the machine may be a poor prior for these observations",
            PosteriorWarning,
        )
    return with_value(log_value)
