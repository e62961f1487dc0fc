"""Channels for states as they are: flipped, erased, missing."""

from dataclasses import dataclass
from math import log, log1p
from typing import ClassVar, final

import torch
from torch import Tensor

from tapmachine.channels.base import Channel, Evidence, Unknown
from tapmachine.channels.observations import (
    as_states,
    check_alphabet,
    check_parameter,
    is_nan,
    state_count,
    tilting,
    told_states,
    two_states,
)
from tapmachine.units import Binary, Units


@final
@dataclass(frozen=True)
class BinarySymmetric(Channel):
    """Each unit is observed as it is, or with probability p as another of its states [eq:bsc].

    For two states it is a field D = ±ln((1−p)/p): towards 1 for y = 1, as errata E12 has it. Of q states, all others
    are equally likely.

    Args:
        p: the probability, from 0 to ½ (of q states, to 1 − 1/q); None to have `denoise` find it.

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
                "BinarySymmetric: p is not given; give it, or have estimate_channel(machine, y, channel) find it"
            )
        if self.p > 1 - 1 / n_states:
            raise ValueError(
                f"BinarySymmetric: p is {self.p!r}; beyond {1 - 1 / n_states:g}, y would tell what x is not"
            )
        return self.p

    def unknown(self, y: Tensor, units: Units) -> Unknown | None:
        most = 1 - 1 / state_count(units, "BinarySymmetric")
        return Unknown("p", 1e-3, most - 1e-3) if self.p is None else None

    def draw(self, x: Tensor, generator: torch.Generator, units: Units) -> Tensor:
        n_states = state_count(units, "BinarySymmetric")
        p, known = self._probability(n_states), check_alphabet(x, units).to(x.device)
        hit = known & (torch.rand(x.shape, generator=generator, device=x.device) < p)
        if len(units.state_shape) > 1:
            other = torch.randint(1, n_states, x.shape, generator=generator, device=x.device).to(x.dtype)
            return torch.where(hit, (x + other) % n_states, x)
        return torch.where(hit, sum(two_states(units)) - x, x)

    def evidence(self, y: Tensor, units: Units | None = None) -> Evidence:
        units = units or Binary(y.shape[-1])
        y = y.to(units.device)
        n_states = state_count(units, "BinarySymmetric")
        p = self._probability(n_states)
        seen = check_alphabet(y, units)
        states = as_states(y, seen, units)
        if p == 0:
            return told_states(states, seen, torch.zeros_like(seen, dtype=torch.float64))
        odds = log1p(-p) - log(p) + log(n_states - 1)
        if len(units.state_shape) > 1:
            field = odds * states * seen.unsqueeze(-1)
            scale = log(p / (n_states - 1)) * seen.double()
        else:
            low, high = two_states(units)
            up = (states == high).double()
            field = ((2 * up - 1) * (odds / (high - low))).masked_fill(~seen, 0.0)
            scale = seen * (log(1 - p) - up * odds) - field * low  # ln P(y|x) at the lower state, less Dx
            field = field.to(units.dtype)
        return tilting(field, torch.zeros_like(field), states, scale)


@final
@dataclass(frozen=True)
class BinaryErasure(Channel):
    """Each unit is observed as it is, or with probability p not at all. For units of any type.

    Args:
        p: the probability, from 0 to 1. It says nothing about x, and enters the evidence of y alone; without it,
            the evidence is that of the values that were observed.

    Example:
        >>> import torch
        >>> from tapmachine import BinaryErasure
        >>> BinaryErasure(0.5).corrupt(torch.ones(1, 4))
        tensor([[nan, 1., nan, nan]])
    """

    sees_states: ClassVar[bool] = True

    p: float | None = None

    def __post_init__(self) -> None:
        check_parameter("BinaryErasure", "p", self.p, 0, 1)

    def draw(self, x: Tensor, generator: torch.Generator, units: Units) -> Tensor:
        if self.p is None:
            raise ValueError("BinaryErasure: p is not given")
        hit = torch.rand(x.shape, generator=generator, device=x.device) < self.p
        return x.masked_fill(hit, torch.nan)

    def evidence(self, y: Tensor, units: Units | None = None) -> Evidence:
        units = units or Binary(y.shape[-1])
        y = y.to(units.device)
        seen = check_alphabet(y, units)
        known = seen.double()
        chance = torch.ones_like(known) if self.p is None else (1 - self.p) * known + self.p * (1 - known)
        return told_states(as_states(y, seen, units), seen, chance.log())


@final
@dataclass(frozen=True, eq=False)
class Missing(Channel):
    """Values that are not there, and others that are exact. For units of any type.

    Args:
        mask: which are missing, of shape (n,) or (K, n); beside NaN, which always is.

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
            raise ValueError("Missing: mask must be a tensor of bool, True for what is missing")

    def _hidden(self, y: Tensor) -> Tensor:
        """Which values are not there."""
        hidden = is_nan(y)
        if self.mask is None:
            return hidden
        if self.mask.shape not in (y.shape[-1:], y.shape):
            raise ValueError(f"Missing: mask has shape {tuple(self.mask.shape)}; the data have {tuple(y.shape)}")
        return hidden | self.mask.to(y.device)

    def rows(self, index: Tensor) -> Channel:
        return self if self.mask is None or self.mask.dim() == 1 else Missing(self.mask[index.to(self.mask.device)])

    def at_face_value(self, y: Tensor) -> Tensor:
        y = y if y.is_floating_point() else y.to(torch.get_default_dtype())
        return y.masked_fill(self._hidden(y), torch.nan)

    def draw(self, x: Tensor, generator: torch.Generator, units: Units) -> Tensor:
        return self.at_face_value(x)

    def evidence(self, y: Tensor, units: Units | None = None) -> Evidence:
        units = units or Binary(y.shape[-1])
        y = y.to(units.device)
        y = self.at_face_value(y)
        seen = check_alphabet(y, units)
        return told_states(as_states(y, seen, units), seen, torch.zeros_like(seen, dtype=torch.float64))
