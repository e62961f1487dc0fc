"""The posterior of states, given a noisy or incomplete observation: the machine, tilted by it, solved."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.channels import Channel, Missing
from tapmachine.inference import Progress, Scheme, solve
from tapmachine.inference.starts import Start, starting_moments
from tapmachine.machine import BoltzmannMachine
from tapmachine.posterior.baselines import nearest_neighbours, pointwise_estimate
from tapmachine.posterior.mixture import Posterior, joined, mixture, warn_of_failures
from tapmachine.posterior.observations import as_examples, as_observations
from tapmachine.sampling import gibbs, sweep_chain
from tapmachine.units import Units
from tapmachine.units.checks import check_count

N_NEIGHBOURS = 3  # examples that solutions start from, unless told
BURN_IN = 0.1  # of a chain
CHUNK_VALUES = 2**25  # moments of all starts of some rows, held at a time


@torch.no_grad()
def denoise(
    machine: BoltzmannMachine,
    y: Tensor | np.ndarray[Any, Any],
    channel: Channel,
    *,
    data: Tensor | np.ndarray[Any, Any] | None = None,
    n_neighbours: int = N_NEIGHBOURS,
    starts: Sequence[Start] | None = None,
    temperature: float = 1.0,
    anneal: Sequence[Channel] = (),
    scheme: Scheme | None = None,
    tol: float = 1e-8,
    max_sweeps: int = 1000,
    callback: Callable[[Progress], None] | None = None,
) -> Posterior:
    """The posterior of the visible states, given what was observed of them, with the machine as the prior.

    The machine, tilted by the observations, is solved from each unit's own estimate and, if given, from examples
    that look alike. The different solutions are weighted by exp(−F): with strong noise one is not enough. F has the
    machine's dtype; for noise less than a hundredth of the values, use `machine.double()`.

    Args:
        machine: any machine that is not conditioned.
        y: observations, (K, n_visible); NaN for what was not observed.
        channel: that they come through. If its p or σ is not given, it is found by `estimate_channel`.
        data: examples, (N, n_visible), as those the machine was trained on: some neighbours of each observation are
            starts, too, which helps where noise is strong.
        n_neighbours: how many of them.
        starts: where to start from, in place of that: a list of data, (K, n_visible), or of any other starts of
            `solve`.
        temperature: the shares of solutions are exp(−F/T). More than 1 trusts differences of F less, which helps where
            much is missing; with infinity all different solutions count alike.
        anneal: channels to pass through on the way, such as ones with more noise; each takes up the solution of the
            last.
        scheme: `TAP()` unless given.
        tol, max_sweeps: of `solve`.
        callback: called with the `Progress` of the solver.

    Warns:
        PosteriorWarning: if rows have no converged solution; `status` says which.

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
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature!r}; it must be greater than 0")
    if starts is not None and data is not None:
        raise ValueError("data serve to find starts; give either data or starts")
    if starts is not None and len(starts) == 0:
        raise ValueError("starts is empty; give one or more")
    units = machine.units()[0]
    if channel.unknown(y, units) is not None:
        from tapmachine.posterior.estimation import estimate_channel  # it denoises, too

        channel = estimate_channel(machine, y, channel, scheme)
    examples = None if data is None else as_examples(machine, data)
    n_neighbours = check_count("n_neighbours", n_neighbours)
    given = None if starts is None else [_each_layer(machine, start, len(y)) for start in starts]
    n_starts = len(given) if given is not None else 1 if examples is None else 1 + n_neighbours
    size = max(1, CHUNK_VALUES // (n_starts * sum(machine.sizes)))
    parts = []
    for rows in torch.arange(len(y), device=y.device).split(size):
        seen, through = y[rows], channel.rows(rows)
        own = (
            [[None if z is None else Moments(*(k[rows] for k in z)) for z in start] for start in given]
            if given is not None
            else _usual_starts(units, seen, through, examples, n_neighbours)
        )
        observed = through.observe(machine, seen)
        weaker = [other.rows(rows).observe(machine, seen).machine for other in anneal]
        found = []
        for start in own:
            known = [z for z in start if z is not None]
            begin: Start = known if len(known) > 1 else known[0]
            for conditioned in weaker:
                begin = solve(conditioned, begin, scheme, tol=tol, max_sweeps=max_sweeps)
            found.append(solve(observed.machine, begin, scheme, tol=tol, max_sweeps=max_sweeps, callback=callback))
        parts.append(mixture(machine.units(), found, temperature, observed.log_scale))
    posterior = joined(parts, channel, units)
    warn_of_failures(posterior.status)
    return posterior


def impute(machine: BoltzmannMachine, x: Tensor | np.ndarray[Any, Any], **options: Any) -> Posterior:
    """The posterior of the values that are missing, NaN, given those that are there; options as for `denoise`.

    `mean` holds the rows with the gaps filled, `variance` how uncertain that is: 0 for what was there. A row without
    any value has the machine's own moments, a row with all of them is its own answer.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, impute, rbm
        >>> impute(rbm(Binary(2, field=1.0), Binary(2)), torch.tensor([[0.0, torch.nan]])).mean
        tensor([[0.0000, 0.7309]])
    """
    return denoise(machine, x, Missing(), **options)


@torch.no_grad()
def gibbs_posterior(
    machine: BoltzmannMachine,
    y: Tensor | np.ndarray[Any, Any],
    channel: Channel,
    n_sweeps: int = 2000,
    generator: torch.Generator | None = None,
) -> Moments:  # (K, *state_shape)
    """Mean and variance of the visible units' posterior by Gibbs sampling: a reference that is slow, and has errors.

    Averages of conditional moments over a chain for each row, after a tenth of it; chains start from the pointwise
    estimate.

    Args:
        machine, y, channel: as for `denoise`.
        n_sweeps: of each chain.
        generator: for the draws, on the machine's device; the default always draws the same.
    """
    y = as_observations(machine, y)
    check_channel(channel)
    n_sweeps = check_count("n_sweeps", n_sweeps)
    generator = generator or torch.Generator(machine.device).manual_seed(0)
    conditioned = channel.observe(machine, y).machine
    units = conditioned.units()[0]
    zero = torch.zeros((len(y), *units.state_shape), dtype=units.dtype, device=units.device)
    chain = gibbs(conditioned, units.sample(Tilt(zero, 0.0), generator), 0, generator)
    first = int(BURN_IN * n_sweeps)
    centre = conditioned.conditional(0, chain).mean  # without it, large means would drown the variance
    total, squares, variances = (torch.zeros_like(zero) for _ in range(3))
    for number in range(n_sweeps):
        chain = sweep_chain(conditioned, chain, generator)
        if number >= first:
            own = conditioned.conditional(0, chain)
            off = own.mean - centre
            total += off
            squares += off**2
            variances += own.variance
    mean, count = total / (n_sweeps - first), n_sweeps - first
    return Moments(centre + mean, variances / count + (squares / count - mean**2).clamp(min=0))


def check_channel(channel: object) -> None:
    """Raises a ValueError unless it is a channel."""
    if not isinstance(channel, Channel):
        raise ValueError(f"channel is {channel!r}; it must be one such as BinarySymmetric(0.1)")


def _each_layer(machine: BoltzmannMachine, start: Start, count: int) -> list[Moments | None]:
    """A start as moments of the layers it says something about, for all rows."""
    found = starting_moments(machine, start)
    assert found[0] is not None
    if len(found[0].mean) not in (1, count):
        raise ValueError(f"a start has {len(found[0].mean)} rows, but y has {count}")
    return [None if own is None else Moments(*(z.expand(count, *z.shape[1:]) for z in own)) for own in found]


def _usual_starts(
    units: Units, y: Tensor, channel: Channel, examples: Tensor | None, n_neighbours: int
) -> list[list[Moments]]:
    """Each unit's own estimate, and examples that look like the observation."""
    own = Moments(*pointwise_estimate(units, y, channel))
    if examples is None:
        return [[own]]
    taken = channel.at_face_value(y)
    if taken is None:  # y is no state: what it says of each unit, instead
        taken = own.mean.masked_fill(torch.isnan(y), torch.nan)
    taken = _as_numbers(units, taken)
    numbers = nearest_neighbours(examples.flatten(1), taken, min(n_neighbours, len(examples)))
    return [[own], *([Moments(examples[k], torch.zeros_like(examples[k]))] for k in numbers.unbind(1))]


def _as_numbers(units: Units, taken: Tensor) -> Tensor:
    """States as rows of numbers: of q states, one for each, NaN for all of them where nothing was observed."""
    if len(units.state_shape) == 1 or taken.dim() > 2:
        return taken.flatten(1).to(units.dtype)
    seen = ~torch.isnan(taken) if taken.is_floating_point() else torch.ones_like(taken, dtype=torch.bool)
    one_hot = torch.nn.functional.one_hot(torch.where(seen, taken, 0).long(), units.state_shape[1]).to(units.dtype)
    return one_hot.masked_fill(~seen.unsqueeze(-1), torch.nan).flatten(1)
