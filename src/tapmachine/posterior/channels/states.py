"""Channels whose observations are states: flips, erasures and missing values."""

from dataclasses import dataclass
from math import log, log1p
from typing import ClassVar, final

import torch
from torch import Tensor

from tapmachine.posterior.channels.base import Channel, Evidence, UnknownParameter
from tapmachine.posterior.channels.evidence import (
    check_alphabet,
    check_parameter,
    completed_states,
    has_two_states_or_categories,
    have_numbers,
    is_nan,
    state_count,
    state_evidence,
    tilt_evidence,
    two_states,
)
from tapmachine.units import Binary, Units


@final
@dataclass(frozen=True)
class BinarySymmetric(Channel):
    """Channel that changes the state of each unit with probability p [eq:bsc].

    For units with two states, the evidence is a field of magnitude ln((1−p)/p) toward the observed state (erratum E12).
    A unit with q states changes to each of the other states with equal probability.

    Args:
        p: Flip probability, from 0 to ½, or from 0 to 1 − 1/q for units with q states (default: None, estimated by
            `denoise`).

    Example:
        >>> import torch
        >>> from tapmachine import BinarySymmetric
        >>> BinarySymmetric(0.2).evidence(torch.tensor([[1.0, 0.0, torch.nan]])).field
        tensor([[ 1.3863, -1.3863,  0.0000]])
    """

    sees_states: ClassVar[bool] = True

    p: float | None = None

    def __post_init__(self) -> None:
        check_parameter("BinarySymmetric", "p", self.p, 0, 1)

    def _probability(self, n_states: int) -> float:
        if self.p is None:
            raise ValueError(
                "BinarySymmetric: p is None; set it, or estimate it with estimate_channel(machine, y, channel)"
            )
        if self.p > 1 - 1 / n_states:
            raise ValueError(
                f"BinarySymmetric: p is {self.p!r}; expected at most {1 - 1 / n_states:g} for {n_states} states"
            )
        return self.p

    @classmethod
    def supports(cls, units: Units) -> bool:
        return has_two_states_or_categories(units)

    def check(self, units: Units) -> None:
        if self.p is not None:
            self._probability(state_count(units, "BinarySymmetric"))

    def unknown(self, y: Tensor, units: Units) -> UnknownParameter | None:
        most = 1 - 1 / state_count(units, "BinarySymmetric")
        return UnknownParameter("p", 1e-3, most - 1e-3) if self.p is None else None

    def draw(self, x: Tensor, generator: torch.Generator, units: Units) -> Tensor:
        n_states = state_count(units, "BinarySymmetric")
        p, known = self._probability(n_states), check_alphabet(x, units).to(x.device)
        hit = known & (torch.rand(x.shape, generator=generator, device=x.device) < p)
        if not have_numbers(units):
            other = torch.randint(1, n_states, x.shape, generator=generator, device=x.device).to(x.dtype)
            return torch.where(hit, (x + other) % n_states, x)
        return torch.where(hit, sum(two_states(units)) - x, x)

    def evidence(self, y: Tensor, units: Units | None = None) -> Evidence:
        units = units or Binary(y.shape[-1])
        y = y.to(units.device)
        n_states = state_count(units, "BinarySymmetric")
        p = self._probability(n_states)
        seen = check_alphabet(y, units)
        states = completed_states(y, seen, units)
        if p == 0:
            return state_evidence(states, seen, torch.zeros_like(seen, dtype=torch.float64))
        odds = log1p(-p) - log(p) + log(n_states - 1)
        if not have_numbers(units):
            field = odds * states * seen.unsqueeze(-1)
            scale = log(p / (n_states - 1)) * seen.double()
        else:
            low, high = two_states(units)
            up = (states == high).double()
            field = ((2 * up - 1) * (odds / (high - low))).masked_fill(~seen, 0.0)
            scale = seen * (log(1 - p) - up * odds) - field * low  # ln P(y|x) − Dx at the lower state
            field = field.to(units.dtype)
        return tilt_evidence(field, torch.zeros_like(field), states, scale)


@final
@dataclass(frozen=True)
class Erasure(Channel):
    """Channel that erases the value of each unit with probability p, for units of any type.

    Args:
        p: Erasure probability, from 0 to 1. It changes the evidence of y, but not the posterior of x. If it is None
            (default), the evidence does not include the probability of the erasures.

    Example:
        >>> import torch
        >>> from tapmachine import Erasure
        >>> Erasure(0.5).corrupt(torch.ones(1, 4))
        tensor([[nan, 1., nan, nan]])
    """

    sees_states: ClassVar[bool] = True

    p: float | None = None

    def __post_init__(self) -> None:
        check_parameter("Erasure", "p", self.p, 0, 1)

    def draw(self, x: Tensor, generator: torch.Generator, units: Units) -> Tensor:
        if self.p is None:
            raise ValueError("Erasure: p is None; set it to draw observations")
        hit = torch.rand(x.shape, generator=generator, device=x.device) < self.p
        return x.masked_fill(hit, torch.nan)

    def evidence(self, y: Tensor, units: Units | None = None) -> Evidence:
        units = units or Binary(y.shape[-1])
        y = y.to(units.device)
        seen = check_alphabet(y, units)
        known = seen.double()
        chance = torch.ones_like(known) if self.p is None else (1 - self.p) * known + self.p * (1 - known)
        return state_evidence(completed_states(y, seen, units), seen, chance.log())


@final
@dataclass(frozen=True, eq=False)
class Missing(Channel):
    """Channel in which some values are missing and all others are observed exactly, for units of any type.

    Args:
        mask: Mask of the missing values, of shape (n,) or (K, n). NaN marks a missing value with or without a mask.

    Example:
        >>> import torch
        >>> from tapmachine import Missing
        >>> Missing(torch.tensor([False, True])).corrupt(torch.ones(1, 2))
        tensor([[1., nan]])
    """

    sees_states: ClassVar[bool] = True

    mask: Tensor | None = None

    def __post_init__(self) -> None:
        if self.mask is not None and not (isinstance(self.mask, Tensor) and self.mask.dtype == torch.bool):
            raise ValueError(
                "Missing: mask is not a bool tensor; expected a bool tensor that is True for missing values"
            )

    def _hidden(self, y: Tensor) -> Tensor:
        """Return a mask of the missing values, (K, n)."""
        hidden = is_nan(y)
        if self.mask is None:
            return hidden
        if self.mask.shape not in (y.shape[-1:], y.shape):
            raise ValueError(
                f"Missing: mask has shape {tuple(self.mask.shape)}, but the data have shape {tuple(y.shape)}"
            )
        return hidden | self.mask.to(y.device)

    def rows(self, index: Tensor) -> Channel:
        return self if self.mask is None or self.mask.dim() == 1 else Missing(self.mask[index.to(self.mask.device)])

    def as_states(self, y: Tensor) -> Tensor:
        y = y if y.is_floating_point() else y.to(torch.get_default_dtype())
        return y.masked_fill(self._hidden(y), torch.nan)

    def draw(self, x: Tensor, generator: torch.Generator, units: Units) -> Tensor:
        return self.as_states(x)

    def evidence(self, y: Tensor, units: Units | None = None) -> Evidence:
        units = units or Binary(y.shape[-1])
        y = y.to(units.device)
        y = self.as_states(y)
        seen = check_alphabet(y, units)
        return state_evidence(completed_states(y, seen, units), seen, torch.zeros_like(seen, dtype=torch.float64))
