"""Compilation of functions with `torch.compile`."""

from collections.abc import Callable
from typing import TypeVar

import torch

from tapmachine.accelerator.torch_versions import has_tested_compiler

Function = TypeVar("Function", bound=Callable[..., object])

# With buffer reuse, torch 2.11 to 2.13 overwrites parts of stacked tensors that are still needed: after ten sweeps of
# a trained machine, means were wrong by up to 0.6.
OPTIONS = {"allow_buffer_reuse": False}

# A training step launches about a hundred small kernels on a GPU; independent ones are combined, and square roots that
# are used twice are stored instead of recomputed. Together this takes 0.93 times the time.
IN_FEWER_LAUNCHES = {"combo_kernels": True, "realize_opcount_threshold": 10}


def compiled(function: Function, dynamic: bool = False) -> Function:
    """Compile a function on its first call; with `dynamic`, for tensors of any shape."""
    if not has_tested_compiler():
        raise ValueError(f"compile=True needs torch 2.11 or newer, found {torch.__version__}; use compile=False")
    options = OPTIONS if dynamic else OPTIONS | IN_FEWER_LAUNCHES
    return torch.compile(function, dynamic=dynamic, options=dict(options))  # type: ignore[return-value]
