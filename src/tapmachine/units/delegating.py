"""Base class for units that wrap other units."""

from functools import cached_property

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.units.base import Units
from tapmachine.units.support import Support


class Delegating(Units):
    """Base class for wrappers that forward the properties of states and reactions to the wrapped units.

    Args:
        base: Units to wrap.
    """

    def __init__(self, base: Units) -> None:
        super().__init__(base.n)
        self.base = base

    @property
    def support(self) -> Support:
        return self.base.support

    @cached_property
    def is_categorical(self) -> bool:
        return self.base.is_categorical

    @cached_property
    def has_two_states(self) -> bool:
        return self.base.has_two_states

    @cached_property
    def has_counts(self) -> bool:
        return self.base.has_counts

    @property
    def state_shape(self) -> tuple[int, ...]:
        return self.base.state_shape

    @property
    def dtype(self) -> torch.dtype:
        return self.base.dtype

    @property
    def device(self) -> torch.device:
        return self.base.device

    @property
    def categorical_blocks(self) -> list[tuple[int, int, int]]:
        return self.base.categorical_blocks

    @property
    def unit_starts(self) -> list[int]:
        return self.base.unit_starts

    def bounds(self) -> tuple[Tensor, Tensor]:
        return self.base.bounds()

    def is_bounded(self) -> bool:
        return self.base.is_bounded()

    def atoms(self) -> Tensor | None:
        return self.base.atoms()

    def n_states(self) -> list[int] | None:
        return self.base.n_states()

    def decode(self, digits: Tensor) -> Tensor:
        return self.base.decode(digits)

    def check_states(self, x: Tensor, validate: bool = True) -> Tensor:
        return self.base.check_states(x, validate)

    def check_means(self, mean: Tensor) -> Tensor:
        return self.base.check_means(mean)

    def weight_products(self, weights: Tensor) -> Tensor:
        return self.base.weight_products(weights)

    @property
    def reaction_shape(self) -> tuple[int, ...]:
        return self.base.reaction_shape

    def reaction_precision(self, reaction: Tensor) -> Tensor:
        return self.base.reaction_precision(reaction)

    def reaction_energy(self, reaction: Tensor, moments: Moments) -> Tensor:
        return self.base.reaction_energy(reaction, moments)

    def tilt_with_reaction(self, field: Tensor, reaction: Tensor, mean: Tensor, evidence: Tilt | None = None) -> Tilt:
        return self.base.tilt_with_reaction(field, reaction, mean, evidence)
