"""Modes of torch that would change results: precision of matrix products, gradients, autocast, and defaults."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def full_precision() -> Iterator[None]:
    """Context manager and decorator for matrix products in float32, which fixed points and likelihoods require.

    TensorFloat32, which `torch.set_float32_matmul_precision("high")` allows on a GPU, changes F of a trained machine by
    hundredths of a nat (docs/benchmarks/speed.md). The setting is global to the process.
    """
    if not torch.cuda.is_available():
        yield
        return
    try:
        change, before, full = torch.set_float32_matmul_precision, torch.get_float32_matmul_precision(), "highest"
    except RuntimeError:  # the precision was set per device type, and torch has no common value
        change, before, full = _set_for_cuda, torch.backends.cuda.matmul.fp32_precision, "ieee"
    if before == full:
        yield
        return
    change(full)
    try:
        yield
    finally:
        change(before)


def _set_for_cuda(precision: str) -> None:
    torch.backends.cuda.matmul.fp32_precision = precision


@contextmanager
def usual_modes() -> Iterator[None]:
    """Context manager and decorator for training, with the same bits in every mode that the caller has set.

    Gradients are computed, also inside `torch.no_grad` and `torch.inference_mode`. `torch.autocast` is off, and new
    tensors are in float32 on the CPU unless stated otherwise.
    """
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if dtype != torch.float32:
            stack.callback(torch.set_default_dtype, dtype)
            torch.set_default_dtype(torch.float32)
        if device.type != "cpu":
            stack.callback(torch.set_default_device, device)
            torch.set_default_device(None)
        yield


def environment() -> dict[str, str | int]:
    """Return what the bits of results on a CPU depend on, apart from the versions of packages."""
    return {"threads": torch.get_num_threads(), "CPU capability": torch.backends.cpu.get_cpu_capability()}
