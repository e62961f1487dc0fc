"""Validation of arguments, with error messages that name the argument and its value."""

import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tapmachine.data.rows import from_array

SUPPORTED_DTYPES = (torch.float32, torch.float64)


def check_tensor(x: object, name: str = "x") -> Tensor:
    """Return x, a dense tensor or array of real numbers, as a tensor; raise a ValueError otherwise."""
    if isinstance(x, np.ndarray):
        x = from_array(x, name)
    if not isinstance(x, Tensor):
        raise ValueError(f"{name} is a {type(x).__name__}; expected a torch.Tensor, such as torch.as_tensor({name})")
    if x.is_complex() or x.layout != torch.strided or x.is_meta:
        kind = f"{x.dtype}, {x.layout}, on {x.device}".replace("torch.", "")
        raise ValueError(f"{name} is a tensor of {kind}; expected a dense tensor of real numbers")
    return x


def check_count(name: str, value: Any, at_least: int = 1, at_most: int | None = None) -> int:
    """Return a Python or NumPy integer as an int.

    Raises:
        ValueError: If the value is not an integer or is out of range.
    """
    try:
        count = at_least - 1 if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        count = at_least - 1
    if count < at_least or (at_most is not None and count > at_most):
        kinds = {0: "a non-negative integer", 1: "a positive integer"}
        open_range = kinds.get(at_least, f"an integer, {at_least} or more")
        expected = open_range if at_most is None else f"an integer from {at_least} to {at_most}"
        raise ValueError(f"{name} is {value!r}; expected {expected}")
    return count


def check_level(level: Any) -> None:
    """Raise a ValueError unless the level of an interval is between 0 and 1."""
    if not 0 < level < 1:
        raise ValueError(f"level is {level!r}; expected a number between 0 and 1, such as 0.9")
