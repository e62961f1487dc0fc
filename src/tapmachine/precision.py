"""Faster formats for matrix products on a GPU, which have to be asked for."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tapmachine.settings import PRODUCTS

_rounds_factors = False


def rounds_factors() -> bool:
    """Whether sweeps round what they multiply to bfloat16."""
    return _rounds_factors


@contextmanager
def products_in(format: str) -> Iterator[None]:
    """Within, matrix products of float32 tensors on a GPU are worked out in another format, to train faster.

    Sums within products and all else stay in float32, and so do `solve` and annealing, whatever is set: factors of tf32
    change F of a trained machine by hundredths of a nat, those of bfloat16 by tenths (docs/results.md). On a CPU it is
    of no use.

    Args:
        format: "float32"; "tf32", factors with 10 bits after the point; or "bfloat16", with 7 in the sweeps of TAP, and
            as "tf32" elsewhere.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, fit, products_in, rbm
        >>> machine = rbm(Binary(4), Binary(2)).to("cuda" if torch.cuda.is_available() else "cpu")
        >>> with products_in("tf32"):
        ...     history = fit(machine, torch.eye(4).repeat(30, 1), epochs=2, batch_size=20)
    """
    global _rounds_factors
    if format not in PRODUCTS:
        raise ValueError(f"products in {format!r}: it must be one of {', '.join(PRODUCTS)}")
    before = torch.get_float32_matmul_precision(), _rounds_factors
    torch.set_float32_matmul_precision("highest" if format == "float32" else "high")
    _rounds_factors = format == "bfloat16"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        _rounds_factors = before[1]
