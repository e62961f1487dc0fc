"""The posterior of states, given a noisy or incomplete observation: the machine, tilted by it, solved."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Solution, Status, Tilt
from tapmachine.channels import Channel, Missing
from tapmachine.inference import Progress, Scheme, solve
from tapmachine.inference.starts import Start, starting_moments
from tapmachine.machine import BoltzmannMachine
from tapmachine.merging import ROUGHLY_SAME, spread
from tapmachine.posterior.baselines import nearest_neighbours, pointwise_estimate
from tapmachine.posterior.observations import as_examples, as_observations
from tapmachine.sampling import gibbs, sweep_chain
from tapmachine.units import Units

N_NEIGHBOURS = 3  # examples that solutions start from, unless told
BURN_IN = 0.1  # of a chain
CHUNK_VALUES = 2**25  # moments of all starts of some rows, held at a time


class PosteriorWarning(UserWarning):
    """Rows whose posterior is not to be trusted as it stands."""


@dataclass(frozen=True, eq=False)
class Posterior:
    """What is known of the states that some observations come from.

    It is a mixture of solutions: those that different starts lead to, each with a share of exp(−F).

    Attributes:
        moments: mean and variance for each layer, (K, *state_shape).
        free_energy: −ln Σ_x exp(−E(x))·P(y|x), (K,), in nats: the log-evidence is ln P(y) = −free_energy − ln Z, with
            ln Z of the free machine, which is the same for all rows and channels.
        n_solutions: different solutions that were found, (K,).
        status: a `Status` for each row, (K,): CONVERGED, if a solution was found.
        channel: with its parameter, also if it was estimated.
    """

    moments: tuple[Moments, ...]
    free_energy: Tensor
    n_solutions: Tensor
    status: Tensor
    channel: Channel
    units: Units

    @property
    def mean(self) -> Tensor:  # (K, *state_shape)
        """Of the visible units: the estimate with the least squared error; of q states, their probabilities."""
        return self.moments[0].mean

    @property
    def variance(self) -> Tensor:  # (K, *state_shape)
        """Of the visible units: the squared error to be expected of `mean`."""
        return self.moments[0].variance

    @property
    def states(self) -> Tensor:  # (K, n)
        """Each visible unit's most probable state, as in data.

        Of more than two numbers it is the one next to the mean; of real-valued units, the mean itself.
        """
        if len(self.units.state_shape) > 1:
            return self.mean.argmax(-1)
        counts = self.units.n_states()
        if counts is None:
            return self.mean
        digits = torch.arange(max(counts), device=self.mean.device)
        values = self.units.decode(digits.unsqueeze(-1).expand(-1, self.units.n))
        return values.gather(0, (self.mean - values.unsqueeze(1)).abs().argmin(0))

    @property
    def converged(self) -> Tensor:  # (K,), bool
        """For which rows a solution was found."""
        return self.status == Status.CONVERGED

    def __len__(self) -> int:
        return len(self.status)

    def __repr__(self) -> str:
        failed = int((~self.converged).sum())
        return f"Posterior({len(self)} rows through {self.channel}{f', {failed} not converged' if failed else ''})"


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
        tensor([[0.9673, 0.6490, 0.8810]])
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
    if examples is not None and not (isinstance(n_neighbours, int) and n_neighbours >= 1):
        raise ValueError(f"n_neighbours is {n_neighbours!r}; it must be a whole number, 1 or more")
    given = None if starts is None else [_each_layer(machine, start, len(y)) for start in starts]
    n_starts = len(given) if given is not None else 1 if examples is None else 1 + n_neighbours
    size = max(1, CHUNK_VALUES // (n_starts * sum(machine.sizes)))
    parts = []
    for rows in torch.arange(len(y), device=y.device).split(size):
        seen = y[rows]
        own = (
            [[None if z is None else Moments(*(k[rows] for k in z)) for z in start] for start in given]
            if given is not None
            else _usual_starts(units, seen, channel, examples, n_neighbours)
        )
        observed = channel.observe(machine, seen)
        weaker = [other.observe(machine, seen).machine for other in anneal]
        found = []
        for start in own:
            known = [z for z in start if z is not None]
            begin: Start = known if len(known) > 1 else known[0]
            for conditioned in weaker:
                begin = solve(conditioned, begin, scheme, tol=tol, max_sweeps=max_sweeps)
            found.append(solve(observed.machine, begin, scheme, tol=tol, max_sweeps=max_sweeps, callback=callback))
        parts.append(_mixture(machine.units(), found, temperature, observed.log_scale))
    posterior = _joined(parts, channel, units)
    _warn_of_failures(posterior.status)
    return posterior


def impute(machine: BoltzmannMachine, x: Tensor | np.ndarray[Any, Any], **options: Any) -> Posterior:
    """The posterior of the values that are missing, NaN, given those that are there; options as for `denoise`.

    `mean` holds the rows with the gaps filled, `variance` how uncertain that is: 0 for what was there. A row without
    any value has the machine's own moments, a row with all of them is its own answer.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, impute, rbm
        >>> impute(rbm(Binary(2, field=1.0), Binary(2)), torch.tensor([[0.0, torch.nan]])).mean
        tensor([[0.0000, 0.7308]])
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
    if isinstance(n_sweeps, bool) or not (isinstance(n_sweeps, int) and n_sweeps >= 1):
        raise ValueError(f"n_sweeps is {n_sweeps!r}; it must be a whole number, 1 or more")
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


def _mixture(layers: list[Units], found: list[Solution], temperature: float, log_scale: Tensor) -> "_Part":
    """The different solutions of each row, weighted by exp(−F/T)."""
    status = torch.stack([solution.status for solution in found])  # (S, K)
    free_energies = torch.stack([solution.free_energy.double() for solution in found])
    converged = status == Status.CONVERGED
    usable = converged | (~converged.any(0) & (status == Status.MAX_SWEEPS))  # what there is, where nothing converged
    usable &= torch.isfinite(free_energies)
    usable &= ~_repeated(layers, found, usable, free_energies)
    exponents = torch.where(usable, -free_energies, -torch.inf)
    none = ~usable.any(0)
    shares = ((exponents - exponents.amax(0)) / temperature).where(usable, -torch.inf).softmax(0)
    shares = torch.where(none, 0.0, shares)
    shares[0] = torch.where(none, 1.0, shares[0])  # the last finite moments, with a status that says so
    return _Part(
        [_mixed(shares, [solution.moments[number] for solution in found]) for number in range(len(layers))],
        torch.where(none, torch.inf, -exponents.logsumexp(0)) - log_scale,
        (usable & converged).sum(0),
        torch.where(converged.any(0), int(Status.CONVERGED), status[0]).to(status.dtype),
    )


class _Part(NamedTuple):
    """A posterior of some rows."""

    moments: list[Moments]
    free_energy: Tensor
    n_solutions: Tensor
    status: Tensor


def _joined(parts: list[_Part], channel: Channel, units: Units) -> Posterior:
    layers = zip(*(part.moments for part in parts), strict=True)
    return Posterior(
        tuple(Moments(*(torch.cat(z) for z in zip(*own, strict=True))) for own in layers),
        torch.cat([part.free_energy for part in parts]),
        torch.cat([part.n_solutions for part in parts]),
        torch.cat([part.status for part in parts]),
        channel,
        units,
    )


def _warn_of_failures(status: Tensor) -> None:
    failed = (status != Status.CONVERGED).nonzero().squeeze(-1)
    if len(failed) == 0:
        return
    counts = {s.name.lower(): int((status == s).sum()) for s in Status if s != Status.CONVERGED}
    said = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    warnings.warn(
        f"{len(failed)} of {len(status)} rows have no converged solution ({said}), the first is row {int(failed[0])}",
        PosteriorWarning,
        stacklevel=4,  # past the decorator
    )


def _repeated(
    layers: list[Units], found: list[Solution], usable: Tensor, free_energies: Tensor
) -> Tensor:  # (S, K), bool
    """Which solutions of a row another start led to, too, one of a lower F or an earlier one of the same.

    The distance is the root mean square over all units that are not certain, as known ones are, in shares of their
    support.
    """
    scales = [spread(units) for units in layers]
    repeated = torch.zeros_like(usable)
    for number in range(1, len(found)):
        for other in range(number):
            total, count = torch.zeros_like(free_energies[0]), torch.zeros_like(free_energies[0])
            for first, second, scale in zip(found[number].moments, found[other].moments, scales, strict=True):
                free = ((first.variance > 0) | (second.variance > 0)).flatten(1)
                off = ((first.mean - second.mean) / scale).flatten(1).square()
                total, count = total + off.where(free, 0.0).sum(1), count + free.sum(1)
            same = (total / count.clamp(min=1)).sqrt() < ROUGHLY_SAME
            both = same & usable[number] & usable[other]
            lower = free_energies[number] < free_energies[other]
            repeated[number] |= both & ~lower
            repeated[other] |= both & lower
    return repeated


def _mixed(shares: Tensor, parts: list[Moments]) -> Moments:
    """Mean and variance of a mixture."""
    weights = [
        share.to(part.mean.dtype).view(-1, *[1] * (part.mean.dim() - 1))
        for share, part in zip(shares, parts, strict=True)
    ]
    mean = sum((w * part.mean for w, part in zip(weights, parts, strict=True)), torch.zeros_like(parts[0].mean))
    within = [w * (part.variance + (part.mean - mean) ** 2) for w, part in zip(weights, parts, strict=True)]
    return Moments(mean, sum(within, torch.zeros_like(mean)))
