"""Nested tuples of tensors, as states of iterations are."""

from collections.abc import Callable
from typing import Any

from torch import Tensor


def over_tensors(function: Callable[..., Tensor], *states: Any) -> Any:
    """A state made by a function of the corresponding tensors of one or more states."""
    if isinstance(states[0], Tensor):
        return function(*states)
    parts = [over_tensors(function, *each) for each in zip(*states, strict=True)]
    return type(states[0])(*parts) if hasattr(states[0], "_fields") else type(states[0])(parts)
