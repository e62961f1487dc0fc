"""Reduced-precision formats for matrix products on a GPU."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from tapmachine.accelerator.formats import MATMUL_PRECISIONS
from tapmachine.accelerator.torch_versions import multiplies_rounded_factors
from tapmachine.data.errors import TapmachineWarning, warn

_rounds_factors = False


def rounds_factors() -> bool:
    """Return whether sweeps currently round the factors of matrix products to bfloat16."""
    return _rounds_factors


@contextmanager
def matmul_precision(format: str) -> Iterator[None]:
    """Context manager for training with faster, less precise matrix products on a GPU.

    Products are accumulated in float32. All other operations, `solve` and annealing always use float32. On a trained
    machine, tf32 factors change F by hundredths of a nat and bfloat16 factors by tenths of a nat
    (docs/benchmarks/speed.md). On a CPU, the format has no effect. A training run uses the format that is active at its
    first step. The format is global to the process, so concurrent threads must use the same format.

    Args:
        format: Format of the factors: "float32", "tf32" (10-bit mantissa) or "bfloat16" (7-bit mantissa in TAP sweeps,
            "tf32" elsewhere). "bfloat16" requires torch 2.8; earlier versions issue a warning and use "tf32".

    Example:
        >>> import torch
        >>> from tapmachine import Binary, fit, rbm
        >>> from tapmachine.training import matmul_precision
        >>> machine = rbm(Binary(4), Binary(2)).to("cuda" if torch.cuda.is_available() else "cpu")
        >>> with matmul_precision("tf32"):
        ...     history = fit(machine, torch.eye(4).repeat(30, 1), epochs=2, batch_size=20)
    """
    global _rounds_factors
    if format not in MATMUL_PRECISIONS:
        raise ValueError(f"matmul_precision is {format!r}; expected one of {', '.join(MATMUL_PRECISIONS)}")
    rounds = format == "bfloat16"
    if rounds and torch.cuda.is_available() and not multiplies_rounded_factors():
        warn(f"bfloat16 products require torch 2.8 or newer, found {torch.__version__}; using tf32", TapmachineWarning)
        rounds = False
    rounded_before, _rounds_factors = _rounds_factors, rounds
    restore = _set_tf32(format != "float32") if torch.cuda.is_available() else None
    try:
        yield
    finally:
        if restore is not None:
            restore()
        _rounds_factors = rounded_before


def _set_tf32(allowed: bool) -> Callable[[], None] | None:
    """Allow or forbid tf32 products on a GPU; return a function that restores the setting, or None if unchanged."""
    change: Callable[[str], None] = torch.set_float32_matmul_precision
    try:
        before, wanted = torch.get_float32_matmul_precision(), "high" if allowed else "highest"
    except RuntimeError:  # the precision was set per device type, and torch has no common value
        change = _set_for_cuda
        before, wanted = torch.backends.cuda.matmul.fp32_precision, "tf32" if allowed else "ieee"
    if before == wanted:
        return None
    change(wanted)
    return lambda: change(before)


def _set_for_cuda(precision: str) -> None:
    torch.backends.cuda.matmul.fp32_precision = precision
