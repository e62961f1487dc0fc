"""The posterior of states, given a noisy or incomplete observation: the machine, tilted by it, solved."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Solution, Status, Tilt
from tapmachine.channels import Channel, Missing
from tapmachine.inference import Progress, Scheme, solve
from tapmachine.inference.starts import Start
from tapmachine.machine import BoltzmannMachine
from tapmachine.merging import ROUGHLY_SAME, spread
from tapmachine.posterior.baselines import nearest_neighbours, pointwise_estimate
from tapmachine.posterior.observations import as_examples, as_observations
from tapmachine.sampling import gibbs, sweep_chain
from tapmachine.units import Units

N_NEIGHBOURS = 3  # examples that solutions start from, unless told
BURN_IN = 0.1  # of a chain


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
        """Each visible unit's most probable state, as in data; of real-valued units, the mean."""
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

    The machine, tilted by the observations, is solved from several starts, and the different solutions are weighted by
    exp(−F): with strong noise one solution is not enough.

    Args:
        machine: any machine that is not conditioned.
        y: observations, (K, n_visible); NaN for what was not observed.
        channel: that they come through. If its p or σ is not given, it is found by `estimate_channel`.
        data: examples, (N, n_visible), as those the machine was trained on: some neighbours of each observation are
            starts, too, which helps where noise is strong.
        n_neighbours: how many of them.
        starts: where to start from, in place of that: a list of data, (K, n_visible), or of any other starts of
            `solve`. The paper's one is [pointwise_estimate(units, y, channel).mean].
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
    if not isinstance(channel, Channel):
        raise ValueError(f"channel is {channel!r}; it must be one such as BinarySymmetric(0.1)")
    if channel.unknown(y) is not None:
        from tapmachine.posterior.estimation import estimate_channel  # it denoises, too

        channel = estimate_channel(machine, y, channel)
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature!r}; it must be greater than 0")
    observed = channel.observe(machine, y)
    starts = list(starts) if starts is not None else _usual_starts(machine, y, channel, data, n_neighbours)
    if not starts:
        raise ValueError("starts is empty; give one or more")
    found = []
    for start in starts:
        for weaker in anneal:
            start = solve(weaker.observe(machine, y).machine, start, scheme, tol=tol, max_sweeps=max_sweeps)
        found.append(solve(observed.machine, start, scheme, tol=tol, max_sweeps=max_sweeps, callback=callback))
    return _mixture(found, temperature, observed.log_scale, channel, machine.units()[0])


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
    if isinstance(n_sweeps, bool) or not (isinstance(n_sweeps, int) and n_sweeps >= 1):
        raise ValueError(f"n_sweeps is {n_sweeps!r}; it must be a whole number, 1 or more")
    generator = generator or torch.Generator(machine.device).manual_seed(0)
    conditioned = channel.observe(machine, y).machine
    units = conditioned.units()[0]
    zero = torch.zeros((len(y), *units.state_shape), dtype=units.dtype, device=units.device)
    chain = gibbs(conditioned, units.sample(Tilt(zero, 0.0), generator), 0, generator)
    total, squares, variances = (torch.zeros_like(zero) for _ in range(3))
    first = int(BURN_IN * n_sweeps)
    for number in range(n_sweeps):
        chain = sweep_chain(conditioned, chain, generator)
        if number >= first:
            own = conditioned.conditional(0, chain)
            total += own.mean
            squares += own.mean**2
            variances += own.variance
    mean = total / (n_sweeps - first)
    return Moments(mean, (variances + squares) / (n_sweeps - first) - mean**2)


def _usual_starts(
    machine: BoltzmannMachine,
    y: Tensor,
    channel: Channel,
    data: Tensor | np.ndarray[Any, Any] | None,
    n_neighbours: int,
) -> list[Start]:
    """The prior, each unit's own estimate, and examples that look like the observation."""
    own = Moments(*pointwise_estimate(machine.units()[0], y, channel))
    if data is None:
        return [None, own]
    examples = as_examples(machine, data)
    numbers = nearest_neighbours(_values(examples), _comparable(y, examples), min(n_neighbours, len(examples)))
    return [own, *(Moments(examples[column], torch.zeros_like(examples[column])) for column in numbers.unbind(1))]


def _values(examples: Tensor) -> Tensor:
    """States as numbers in one dimension a row."""
    return examples.flatten(1)


def _comparable(y: Tensor, examples: Tensor) -> Tensor:
    """Observations beside such numbers: of q states, one number for each."""
    if examples.dim() == 2:
        return y.to(examples.dtype)
    seen = ~torch.isnan(y) if y.is_floating_point() else torch.ones_like(y, dtype=torch.bool)
    one_hot = torch.nn.functional.one_hot(torch.where(seen, y, 0).long(), examples.shape[-1]).to(examples.dtype)
    return one_hot.masked_fill(~seen.unsqueeze(-1), torch.nan).flatten(1)


def _mixture(found: list[Solution], temperature: float, log_scale: Tensor, channel: Channel, units: Units) -> Posterior:
    """The different solutions of each row, weighted by exp(−F/T)."""
    status = torch.stack([solution.status for solution in found])  # (S, K)
    usable = status == Status.CONVERGED
    usable |= ~usable.any(0) & (status == Status.MAX_SWEEPS)  # where nothing has converged, what there is
    means = torch.stack([solution.moments[0].mean for solution in found])
    usable &= ~_repeated(means, usable, units)
    free_energies = torch.stack([solution.free_energy.double() for solution in found])
    exponents = torch.where(usable, -free_energies, -torch.inf)
    none = ~usable.any(0)
    shares = torch.where(none, torch.zeros_like(exponents), _cooled(exponents, temperature)).softmax(0)
    shares[1:, none] = 0.0
    shares[0, none] = 1.0  # the last finite moments, with a status that says so
    total = torch.where(none, torch.inf, -exponents.logsumexp(0)) - log_scale
    best = torch.where(none, status[0], status.where(usable, torch.iinfo(status.dtype).max).amin(0))
    posterior = Posterior(
        tuple(
            _mixed(shares, [solution.moments[layer] for solution in found]) for layer in range(len(found[0].moments))
        ),
        total,
        usable.sum(0),
        best,
        channel,
        units,
    )
    failed = (~posterior.converged).nonzero().squeeze(-1)
    if len(failed):
        counts = {s.name.lower(): int((best == s).sum()) for s in Status if s != Status.CONVERGED}
        said = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        warnings.warn(
            f"{len(failed)} of {len(best)} rows have no converged solution ({said}), the first is row {int(failed[0])}",
            PosteriorWarning,
            stacklevel=4,  # past the decorator
        )
    return posterior


def _cooled(exponents: Tensor, temperature: float) -> Tensor:
    """−F/T; 0 at an infinite temperature, and −inf for what does not count at any."""
    return torch.where(torch.isinf(exponents), exponents, exponents / temperature)


def _repeated(means: Tensor, usable: Tensor, units: Units) -> Tensor:  # (S, K), bool
    """Which solutions an earlier start of the same row led to, too."""
    scale = spread(units).to(means.dtype)
    repeated = torch.zeros_like(usable)
    for number in range(1, len(means)):
        for earlier in range(number):
            distance = ((means[number] - means[earlier]) / scale).flatten(1).square().mean(-1).sqrt()
            repeated[number] |= (distance < ROUGHLY_SAME) & usable[earlier] & usable[number]
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
