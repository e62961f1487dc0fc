"""Faster formats for matrix products on a GPU, which have to be asked for."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from tapmachine.accelerator.formats import MATMUL_PRECISIONS
from tapmachine.accelerator.torch_versions import multiplies_rounded_factors
from tapmachine.data.errors import TapmachineWarning

_rounds_factors = False


def rounds_factors() -> bool:
    """Whether sweeps round what they multiply to bfloat16."""
    return _rounds_factors


@contextmanager
def matmul_precision(format: str) -> Iterator[None]:
    """Compute float32 matrix products on a GPU in another format within this context, to train faster.

    Sums within products and all other operations stay in float32, as do `solve` and annealing: factors in tf32 change F
    of a trained machine by hundredths of a nat, those in bfloat16 by tenths (docs/benchmarks/speed.md). It does nothing
    on a CPU. Training uses the format of its first step throughout. Like torch's own setting it applies to the whole
    process, so other threads must not use another format at the same time.

    Args:
        format: "float32"; "tf32", factors with 10 bits after the point; or "bfloat16", with 7 in the sweeps of TAP, and
            as "tf32" elsewhere. Versions of torch before 2.8 cannot multiply these: a warning is issued, and "tf32" is
            used.

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
        raise ValueError(f"products in {format!r}: it must be one of {', '.join(MATMUL_PRECISIONS)}")
    rounds = format == "bfloat16"
    if rounds and torch.cuda.is_available() and not multiplies_rounded_factors():
        warnings.warn(
            f"products in bfloat16 need torch 2.8, this is {torch.__version__}: using tf32",
            TapmachineWarning,
            stacklevel=3,
        )
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
    """Lets torch use tf32 for products on a GPU, or not. Returns how to undo it; None if it was so before."""
    change: Callable[[str], None] = torch.set_float32_matmul_precision
    try:
        before, wanted = torch.get_float32_matmul_precision(), "high" if allowed else "highest"
    except RuntimeError:  # set for each kind of device apart, which torch does not tell as one
        change = _set_for_cuda
        before, wanted = torch.backends.cuda.matmul.fp32_precision, "tf32" if allowed else "ieee"
    if before == wanted:
        return None
    change(wanted)
    return lambda: change(before)


def _set_for_cuda(precision: str) -> None:
    torch.backends.cuda.matmul.fp32_precision = precision
