"""Where the solutions of the negative phase start: from the batch, other data, noise, or where the last ones ended."""

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from tapmachine.beliefs import Tilt
from tapmachine.data.checks import check_count
from tapmachine.training.context import Carry, Context
from tapmachine.units import Units
from tapmachine.units.support import BITS

LIFETIME = 250  # steps of a herded chain


class Start(ABC):
    """Where K solutions start. Shapes are fixed and no tensor's value is read, so that a step can be captured.

    Attributes:
        is_carried: whether particles persist from step to step. If so, each of several processes holds its own;
            otherwise each makes all of them and uses its share.
        samples_machine: whether starts are samples of the machine, so that a solution is reached as often as it is
            probable. F is then averaged over particles by default.
        is_random: whether starts are drawn at random and persist. Each of several processes then has all of them.
    """

    is_carried: bool = False
    samples_machine: bool = False
    is_random: bool = False

    def prepare(self, context: Context, n_particles: int) -> Carry:
        """What the first step starts from."""
        return ()

    @abstractmethod
    def begin(self, context: Context, n_particles: int, carry: Carry) -> tuple[Tensor, Carry]:
        """Means of the visible layer, (K, *state_shape), and what is passed on to the next step."""

    def weights(self, context: Context, n_particles: int) -> Tensor | None:  # (K,)
        """Weight of each particle: that of its row, if it starts from a row of the batch; None for equal weights."""
        return None

    def finish(self, mean: Tensor, carry: Carry) -> Carry:
        """What is passed on, given the means of the visible layer at the solutions."""
        return carry

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


@final
class FromBatch(Start):
    """The batch itself, as in the paper; its first rows, or again and again, if there are fewer or more particles."""

    def begin(self, context: Context, n_particles: int, carry: Carry) -> tuple[Tensor, Carry]:
        return _rows(context.batch, n_particles), carry

    def weights(self, context: Context, n_particles: int) -> Tensor | None:
        return None if context.weights is None else _rows(context.weights, n_particles)


@final
class FromData(Start):
    """Other rows of the data, drawn at random."""

    def begin(self, context: Context, n_particles: int, carry: Carry) -> tuple[Tensor, Carry]:
        device = context.data.device
        rows = torch.randint(len(context.data), (n_particles,), generator=context.generator, device=device)
        return context.data[rows], carry


@final
class NoisyBatch(Start):
    """The batch with some of its units replaced by draws of their priors.

    Args:
        share: of the units that are replaced.
    """

    def __init__(self, share: float = 0.1) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"share is {share!r}; it must lie between 0 and 1")
        self.share = share

    def begin(self, context: Context, n_particles: int, carry: Carry) -> tuple[Tensor, Carry]:
        x, units = _rows(context.batch, n_particles), context.machine.layers[0]
        drawn = units.sample(Tilt(torch.zeros_like(x), 0.0), context.generator)
        chance = torch.rand(x.shape[:2], generator=context.generator, device=x.device)
        replaced = (chance < self.share).view(*x.shape[:2], *[1] * (x.dim() - 2))
        return torch.where(replaced, drawn, x), carry

    def weights(self, context: Context, n_particles: int) -> Tensor | None:
        return None if context.weights is None else _rows(context.weights, n_particles)

    def __repr__(self) -> str:
        return f"NoisyBatch({self.share})"


@final
class RandomPoints(Start):
    """Draws of the visible units' priors."""

    def begin(self, context: Context, n_particles: int, carry: Carry) -> tuple[Tensor, Carry]:
        x = _rows(context.batch, n_particles)
        return context.machine.layers[0].sample(Tilt(torch.zeros_like(x), 0.0), context.generator), carry


@final
class Persistent(Start):
    """Where the solutions of the step before ended. They tend to gather on few attractors."""

    is_carried = True

    def prepare(self, context: Context, n_particles: int) -> Carry:
        return (_rows(context.batch, n_particles).clone(),)

    def begin(self, context: Context, n_particles: int, carry: Carry) -> tuple[Tensor, Carry]:
        return carry[0], carry

    def finish(self, mean: Tensor, carry: Carry) -> Carry:
        return (mean,)


@final
class Herded(Start):
    """Chains of herded Gibbs sampling, which go on from step to step and are deterministic.

    In place of a random number every unit carries a remainder w: s = w + p, x = [s ≥ 1], w = s − x, so that it is 1 as
    often as its probabilities p add up to. Categorical units carry one for each state and take the largest. All others
    take their mean. It needs layers to alternate between: a pairwise machine has none.

    On clustered data, chains that never restart can leave a cluster and not return; its weight then grows without
    bound. So each chain restarts from a row of the batch after `lifetime` steps, one chain after the other.

    Args:
        n_sweeps: sweeps of the chains in each step.
        lifetime: steps after which a chain restarts from the batch; None for never.
    """

    is_carried = True
    samples_machine = True

    def __init__(self, n_sweeps: int = 1, lifetime: int | None = LIFETIME) -> None:
        self.n_sweeps = check_count("n_sweeps", n_sweeps)
        self.lifetime = None if lifetime is None else check_count("lifetime", lifetime)

    def prepare(self, context: Context, n_particles: int) -> Carry:
        if context.machine.is_pairwise:
            raise ValueError("herded chains need layers, and a pairwise machine has none; use another start, or PCD")
        x = _rows_by_weight(context, n_particles)
        layers = list(context.machine.layers)
        states = [x, *(x.new_zeros((n_particles, *layer.state_shape)) for layer in layers[1:])]
        remainders = [torch.rand(z.shape, generator=context.generator, device=x.device, dtype=x.dtype) for z in states]
        ages = torch.arange(n_particles, device=x.device) * (self.lifetime or 0) // n_particles
        return (*(z.clone() for z in states), *remainders, ages)

    def begin(self, context: Context, n_particles: int, carry: Carry) -> tuple[Tensor, Carry]:
        machine = context.machine
        layers, n_layers = list(machine.layers), len(machine.layers)
        states, remainders, ages = list(carry[:n_layers]), list(carry[n_layers:-1]), carry[-1] + 1
        if self.lifetime is not None:
            over = ages > self.lifetime
            ages = torch.where(over, 1, ages)
            rows = _rows_by_weight(context, n_particles)[context.world.share(n_particles)]
            states[0] = torch.where(_for_each(over, rows), rows, states[0])
            for index in range(2, n_layers, 2):  # those between are drawn first
                states[index] = torch.where(_for_each(over, states[index]), 0.0, states[index])
        order = [*range(1, n_layers, 2), *range(0, n_layers, 2)]
        for _ in range(self.n_sweeps):
            for index in order:
                mean = layers[index].mean_in(machine.field_on(index, states)).detach()
                states[index], remainders[index] = _herd(layers[index], mean, remainders[index])
        return states[0], (*states, *remainders, ages)

    def __repr__(self) -> str:
        return f"Herded({self.n_sweeps}{'' if self.lifetime == LIFETIME else f', lifetime={self.lifetime}'})"


def has_herded_states(units: Units) -> bool:
    """Whether a herded chain of these units is one of states, not of means."""
    return units.is_categorical or units.has_two_states


def _herd(units: Units, mean: Tensor, remainder: Tensor) -> tuple[Tensor, Tensor]:
    """The next states, and what remains of their means."""
    if not has_herded_states(units):
        return mean, remainder
    if units.is_categorical:
        total = remainder + mean
        x = one_hot(total.argmax(-1), mean.shape[-1]).to(mean.dtype)
        return x, total - x
    if units.support is BITS:
        total = remainder + mean
        up = (total >= 1).to(mean.dtype)
        return up, total.sub_(up)
    lower, upper = units.bounds()
    total = remainder + (mean - lower) / (upper - lower)
    up = (total >= 1).to(mean.dtype)
    return lower + (upper - lower) * up, total - up


def _for_each(particles: Tensor, states: Tensor) -> Tensor:
    """A value for each particle, as of as many dimensions as its states."""
    return particles.view(-1, *[1] * (states.dim() - 1))


def _rows_by_weight(context: Context, count: int) -> Tensor:
    """So many rows of the batch, each as often as its weight says; without weights as by `_rows`."""
    if context.weights is None:
        return _rows(context.batch, count)
    total = context.weights.cumsum(0)
    places = (torch.arange(count, device=total.device) + 0.5) / count * total[-1]
    return context.batch[torch.searchsorted(total, places).clamp(max=len(total) - 1)]


def _rows(x: Tensor, count: int) -> Tensor:
    """So many rows: the first ones, or all of them again and again."""
    return x[:count] if count <= len(x) else x[torch.arange(count, device=x.device) % len(x)]
