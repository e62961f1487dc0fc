"""Initial states of solutions in the negative phase: the batch, other data, noise, or the previous solutions."""

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.training.context import Carry, Context


class Start(ABC):
    """Starting points of K solutions. Shapes are fixed and no values are read, so that a step can be captured.

    Attributes:
        is_carried: Whether particles persist between steps. If so, each of several processes holds its own; otherwise
            each creates all of them and uses its share.
        samples_machine: Whether initial states are samples of the machine, so that solutions are reached in proportion
            to their probability. F is then averaged over particles by default.
        is_random: Whether initial states are random and persist. Each of several processes then has all of them.
    """

    is_carried: bool = False
    samples_machine: bool = False
    is_random: bool = False

    def prepare(self, context: Context, n_particles: int) -> Carry:
        """Initial state for the first step."""
        return ()

    @abstractmethod
    def begin(self, context: Context, n_particles: int, carry: Carry) -> tuple[Tensor, Carry]:
        """Means of the visible layer, (K, *state_shape), and the state for the next step."""

    def weights(self, context: Context, n_particles: int) -> Tensor | None:  # (K,)
        """Weight of each particle: that of its row if it starts from a row of the batch; None for equal weights."""
        return None

    def finish(self, mean: Tensor, carry: Carry) -> Carry:
        """State for the next step, from the means of the visible layer at the solutions."""
        return carry

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


@final
class FromBatch(Start):
    """The batch itself, as in the paper, truncated or repeated to the number of particles."""

    def begin(self, context: Context, n_particles: int, carry: Carry) -> tuple[Tensor, Carry]:
        return _rows(context.batch, n_particles), carry

    def weights(self, context: Context, n_particles: int) -> Tensor | None:
        return None if context.weights is None else _rows(context.weights, n_particles)


@final
class FromData(Start):
    """Rows of the data, drawn at random."""

    def begin(self, context: Context, n_particles: int, carry: Carry) -> tuple[Tensor, Carry]:
        device = context.data.device
        rows = torch.randint(len(context.data), (n_particles,), generator=context.generator, device=device)
        return context.data[rows], carry


@final
class NoisyBatch(Start):
    """The batch, with some of its units replaced by draws from their priors.

    Args:
        share: Share of the units to replace.
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
    """Draws from the visible units' priors."""

    def begin(self, context: Context, n_particles: int, carry: Carry) -> tuple[Tensor, Carry]:
        x = _rows(context.batch, n_particles)
        return context.machine.layers[0].sample(Tilt(torch.zeros_like(x), 0.0), context.generator), carry


@final
class Persistent(Start):
    """The solutions of the previous step. They tend to gather at few attractors."""

    is_carried = True

    def prepare(self, context: Context, n_particles: int) -> Carry:
        return (_rows(context.batch, n_particles).clone(),)

    def begin(self, context: Context, n_particles: int, carry: Carry) -> tuple[Tensor, Carry]:
        return carry[0], carry

    def finish(self, mean: Tensor, carry: Carry) -> Carry:
        return (mean,)


def _rows(x: Tensor, count: int) -> Tensor:
    """`count` rows: the first ones, or all of them repeatedly."""
    return x[:count] if count <= len(x) else x[torch.arange(count, device=x.device) % len(x)]
