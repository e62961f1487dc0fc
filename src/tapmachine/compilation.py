"""How functions are compiled."""

from collections.abc import Callable
from typing import TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., object])

# Where buffers are reused, torch 2.11 to 2.13 write over parts of stacked tensors that are still needed: after ten
# sweeps of a trained machine, means were wrong by up to 0.6.
OPTIONS = {"allow_buffer_reuse": False}


def compiled(function: Function, dynamic: bool = False) -> Function:
    """The same function, compiled when it is first called."""
    return torch.compile(function, dynamic=dynamic, options=dict(OPTIONS))  # type: ignore[return-value]
