"""Initial states of solutions in the negative phase: the batch, other data, noise, or the previous solutions."""

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.training.context import Carry, Context


class Start(ABC):
    """Base class for the initial states of K solutions.

    Shapes are fixed and tensor values are not read, so that a training step can be captured.

    Attributes:
        is_carried: Whether particles persist between steps. If True, the particles are divided among processes.
            If False, each process creates all particles and uses its share of them.
        samples_machine: Whether initial states are samples of the machine, so that solutions are reached in proportion
            to their probability. If True, F is averaged over particles by default.
        is_random: Whether initial states are random and persist between steps. If True, every process has all
            particles.
    """

    is_carried: bool = False
    samples_machine: bool = False
    is_random: bool = False

    def prepare(self, context: Context, n_particles: int) -> Carry:
        """Return the initial state for the first step."""
        return ()

    @abstractmethod
    def begin(self, context: Context, n_particles: int, carry: Carry) -> tuple[Tensor, Carry]:
        """Return initial means of the visible layer, shape (K, *state_shape), and the state for the next step."""

    def weights(self, context: Context, n_particles: int) -> Tensor | None:  # (K,)
        """Weight of each particle, or None for equal weights.

        A particle that starts from a row of the batch has the weight of that row.
        """
        return None

    def finish(self, mean: Tensor, carry: Carry) -> Carry:
        """Return the state for the next step, given the means of the visible layer at the solutions."""
        return carry

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


@final
class FromBatch(Start):
    """Start from the rows of the batch, as in the paper.

    The rows are truncated or repeated to match the number of particles.
    """

    def begin(self, context: Context, n_particles: int, carry: Carry) -> tuple[Tensor, Carry]:
        return _rows(context.batch, n_particles), carry

    def weights(self, context: Context, n_particles: int) -> Tensor | None:
        return None if context.weights is None else _rows(context.weights, n_particles)


@final
class FromData(Start):
    """Start from randomly drawn rows of the data."""

    def begin(self, context: Context, n_particles: int, carry: Carry) -> tuple[Tensor, Carry]:
        device = context.data.device
        rows = torch.randint(len(context.data), (n_particles,), generator=context.generator, device=device)
        return context.data[rows], carry


@final
class NoisyBatch(Start):
    """Start from the rows of the batch, with a fraction of the units replaced by draws from their priors.

    Args:
        share: Fraction of the units to replace (default: 0.1).
    """

    def __init__(self, share: float = 0.1) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"share is {share!r}; expected a number between 0 and 1")
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
    """Start from random draws from the priors of the visible units."""

    def begin(self, context: Context, n_particles: int, carry: Carry) -> tuple[Tensor, Carry]:
        x = _rows(context.batch, n_particles)
        return context.machine.layers[0].sample(Tilt(torch.zeros_like(x), 0.0), context.generator), carry


@final
class Persistent(Start):
    """Start from the solutions of the previous step.

    Persistent solutions tend to accumulate at a few attractors.
    """

    is_carried = True

    def prepare(self, context: Context, n_particles: int) -> Carry:
        return (_rows(context.batch, n_particles).clone(),)

    def begin(self, context: Context, n_particles: int, carry: Carry) -> tuple[Tensor, Carry]:
        return carry[0], carry

    def finish(self, mean: Tensor, carry: Carry) -> Carry:
        return (mean,)


def _rows(x: Tensor, count: int) -> Tensor:
    """Return `count` rows, repeating rows if there are fewer."""
    return x[:count] if count <= len(x) else x[torch.arange(count, device=x.device) % len(x)]
