"""Operations on nested tuples of tensors, which represent the state of an iteration."""

from collections.abc import Callable
from typing import Any

from torch import Tensor


def over_tensors(function: Callable[..., Tensor], *states: Any) -> Any:
    """Apply a function to the corresponding tensors of nested tuples; return the results as a nested tuple."""
    if isinstance(states[0], Tensor):
        return function(*states)
    parts = [over_tensors(function, *each) for each in zip(*states, strict=True)]
    return type(states[0])(*parts) if hasattr(states[0], "_fields") else type(states[0])(parts)
