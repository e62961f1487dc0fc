"""How functions are compiled."""

from collections.abc import Callable
from typing import TypeVar

import torch

from tapmachine.accelerator.torch_versions import has_tested_compiler

Function = TypeVar("Function", bound=Callable[..., object])

# Where buffers are reused, torch 2.11 to 2.13 write over parts of stacked tensors that are still needed: after ten
# sweeps of a trained machine, means were wrong by up to 0.6.
OPTIONS = {"allow_buffer_reuse": False}

# Of a training step's hundred small kernels on a GPU, those that do not wait for each other become one; and roots that
# two others need are written down, not worked out twice. Together 0.93 times the time.
IN_FEWER_LAUNCHES = {"combo_kernels": True, "realize_opcount_threshold": 10}


def compiled(function: Function, dynamic: bool = False) -> Function:
    """The same function, compiled when it is first called; for tensors of any shape, if it is dynamic."""
    if not has_tested_compiler():
        raise ValueError(f"compile=True needs torch 2.11 or newer, this is {torch.__version__}; use compile=False")
    options = OPTIONS if dynamic else OPTIONS | IN_FEWER_LAUNCHES
    return torch.compile(function, dynamic=dynamic, options=dict(options))  # type: ignore[return-value]
