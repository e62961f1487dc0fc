"""Full precision of matrix products where it is needed, even if a faster format was chosen for training."""

from collections.abc import Iterator
from contextlib import contextmanager

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
