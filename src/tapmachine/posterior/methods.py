"""Methods that compute posteriors, and the trial that chooses one of them for a machine and a channel."""

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Status, Tilt
from tapmachine.data.errors import PosteriorWarning, TapmachineError
from tapmachine.data.rows import spaced
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import fingerprint
from tapmachine.machine.sampler import gibbs, sweep_chain
from tapmachine.posterior.channels import Channel, Missing
from tapmachine.posterior.channels.evidence import is_nan
from tapmachine.posterior.mixture import Posterior
from tapmachine.solver import TAP, AdaptiveTAP, Scheme
from tapmachine.units import Units

SCHEMES: dict[str, Callable[[], Scheme]] = {"tap": TAP, "adaptive": AdaptiveTAP}
METHODS = (*SCHEMES, "gibbs")

BURN_IN = 0.1  # fraction of each chain that is discarded
N_CHAINS, CHAIN_SWEEPS = 10, 200  # per row, for the method "gibbs"
TRIAL_ROWS, TRIAL_CHAINS, TRIAL_SWEEPS = 48, 5, 100
SAMPLE_SWEEPS = 200  # before samples of the machine are used as rows of a trial
TOLERANCE = 0.03  # difference in the loss of a trial that is ignored in favor of the cheaper method
SURE = 1.0  # standard errors above which a difference between the errors of two methods counts
MOST_INVERTED = 256  # maximum size of the matrices that adaptive TAP inverts in a trial
MOST_CHOSEN = 256

CHOSEN: dict[object, str] = {}  # methods by the parameters of the machine and the channel, the oldest first


class Trial(NamedTuple):
    """Mean squared error of a method on each known row, and its mean variance."""

    errors: Tensor  # (K,)
    variance: float

    @property
    def loss(self) -> float:
        """Logarithm of the error, plus half the distance of the variance from the error on a logarithmic scale."""
        error = float(self.errors.nan_to_num(torch.inf).mean())
        if error == self.variance == 0:
            return -math.inf
        if not (0 < error < math.inf and 0 < self.variance < math.inf):
            return math.inf
        return math.log(error) + 0.5 * abs(math.log(self.variance / error))

    def is_as_good_as(self, other: "Trial") -> bool:
        """Return whether the loss is not larger, or the difference of the errors of the same rows is within noise."""
        if self.loss <= other.loss + TOLERANCE:
            return True
        more = self.errors - other.errors
        return bool(more.mean() < SURE * more.std() / len(more) ** 0.5)


def posterior_by_chains(
    machine: BoltzmannMachine, y: Tensor, channel: Channel, n_chains: int, n_sweeps: int, generator: torch.Generator
) -> Posterior:
    """Estimate the posterior of all layers by conditioned Gibbs chains, of which several start for each row.

    Conditional moments are averaged over the sweeps and chains. The free energy is unknown (NaN).
    """
    each = torch.arange(len(y), device=y.device).repeat_interleave(n_chains)
    conditioned, _ = channel.rows(each).observe(machine, y[each])
    units = conditioned.layers[0]
    zero = torch.zeros((len(each), *units.state_shape), dtype=units.dtype, device=units.device)
    chain = gibbs(conditioned, units.sample(Tilt(zero, 0.0), generator), 0, generator)
    # Without centering, large means would cause rounding errors in the variance.
    centers = [conditioned.conditional(index, chain).mean for index in range(len(chain))]
    sums = [[torch.zeros_like(center) for _ in range(3)] for center in centers]
    first = int(BURN_IN * n_sweeps)
    for sweep in range(n_sweeps):
        chain = sweep_chain(conditioned, chain, generator)
        for index, (center, (total, squares, variances)) in enumerate(zip(centers, sums, strict=True)):
            if sweep >= first:
                moments = conditioned.conditional(index, chain)
                off = moments.mean - center
                total += off
                squares += off**2
                variances += moments.variance
    layers = []
    for center, totals in zip(centers, sums, strict=True):
        of_chains = (z.unflatten(0, (-1, n_chains)) / (n_sweeps - first) for z in totals)
        off, squares, variances = of_chains
        shift = center.unflatten(0, (-1, n_chains))
        mean = (shift + off).mean(1)
        between = (squares + 2 * shift * off + shift**2).mean(1) - mean**2 if n_chains > 1 else (squares - off**2)[:, 0]
        layers.append(Moments(mean, variances.mean(1) + between.clamp(min=0)))
    status = torch.full((len(y),), int(Status.CONVERGED), dtype=torch.int8, device=y.device)
    unknown = torch.full((len(y),), torch.nan, dtype=torch.float64, device=y.device)
    return Posterior(
        tuple(layers), unknown, torch.zeros_like(status).long(), status, channel, machine.layers[0], "gibbs"
    )


@torch.no_grad()
def chosen_method(
    machine: BoltzmannMachine,
    y: Tensor,
    channel: Channel,
    examples: Tensor | None,
    solved: Callable[[Tensor, Channel, Tensor | None, str], Posterior],
) -> str:
    """Return the best method for a machine and a channel, from a trial on known rows that is run once.

    Known rows, which are examples or samples of the machine, are spoiled by the channel and restored. Gibbs chains are
    the reference. "tap" is chosen if its loss is not larger; otherwise, "adaptive" is tried as well.

    Args:
        machine: An unconditioned machine.
        y: Observations, whose missing values are repeated in the trial.
        channel: Channel without unknown parameters.
        examples: States of the visible layer, of shape (N, *state_shape), or None.
        solved: Function that computes the posterior of observations by a scheme, given a channel and examples.
    """
    units = machine.layers[0]
    states = channel.as_states(y)
    gaps = is_nan(y if states is None else states)
    drawing = Missing() if isinstance(channel, Missing) else channel
    key = (fingerprint(machine), repr(drawing), examples is None, round(float(gaps.double().mean()), 1))
    if key not in CHOSEN:
        generator = torch.Generator(machine.device).manual_seed(0)
        x, rest = _known_rows(machine, examples, generator)
        try:
            seen = drawing.corrupt(units.to_data(x), generator, units)
        except (ValueError, TapmachineError):  # a channel that cannot draw, or units that cannot be drawn
            return "tap"
        pattern = spaced(gaps, len(seen))
        pattern = pattern[torch.arange(len(seen), device=pattern.device) % len(pattern)]
        if bool(pattern.any()):
            seen = (seen if seen.is_floating_point() else seen.to(machine.dtype)).masked_fill(pattern, torch.nan)

        def restored(method: str) -> Posterior:
            if method == "gibbs":
                return posterior_by_chains(machine, seen, drawing, TRIAL_CHAINS, TRIAL_SWEEPS, generator)
            return solved(seen, drawing, rest, method)

        trials = {method: _trial(restored, method, x) for method in ("tap", "gibbs")}
        if not trials["tap"].is_as_good_as(trials["gibbs"]) and _is_small(machine):
            trials["adaptive"] = _trial(restored, "adaptive", x)
        while len(CHOSEN) >= MOST_CHOSEN:
            del CHOSEN[next(iter(CHOSEN))]
        CHOSEN[key] = next(
            method
            for method in METHODS
            if method in trials and all(trials[method].is_as_good_as(other) for other in trials.values())
        )
    return CHOSEN[key]


def _trial(restored: Callable[[str], Posterior], method: str, x: Tensor) -> Trial:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PosteriorWarning)
        try:
            found = restored(method)
        except (ValueError, TapmachineError):  # a scheme that does not support the units
            return Trial(torch.full((len(x),), torch.inf, dtype=torch.float64), math.inf)
    errors = (found.mean - x).square().flatten(1).mean(1, dtype=torch.float64)
    return Trial(errors, float(found.variance.mean()))


def _known_rows(
    machine: BoltzmannMachine, examples: Tensor | None, generator: torch.Generator
) -> tuple[Tensor, Tensor | None]:
    """Return rows for a trial, and the other examples: some of the examples, or samples of the machine."""
    if examples is not None and len(examples) > TRIAL_ROWS:
        taken = spaced(torch.arange(len(examples), device=examples.device), TRIAL_ROWS)
        others = torch.ones(len(examples), dtype=torch.bool, device=examples.device)
        others[taken] = False
        return examples[taken], examples[others]
    units: Units = machine.layers[0]
    zero = torch.zeros((TRIAL_ROWS, *units.state_shape), dtype=units.dtype, device=units.device)
    return gibbs(machine, units.sample(Tilt(zero, 0.0), generator), SAMPLE_SWEEPS, generator)[0], None


def _is_small(machine: BoltzmannMachine) -> bool:
    even, odd = sum(machine.sizes[::2]), sum(machine.sizes[1::2])
    return (even if machine.is_pairwise else min(even, odd)) <= MOST_INVERTED
