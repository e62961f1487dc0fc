"""Faster formats for matrix products on a GPU, which have to be asked for."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tapmachine.settings import PRODUCTS

rounds_factors = False  # whether sweeps round what they multiply to bfloat16


@contextmanager
def products_in(format: str) -> Iterator[None]:
    """Within, matrix products of float32 tensors on a GPU are worked out in another format.

    Sums within products and all else stay in float32. What it does to solutions and likelihoods is in docs/results.md.
    It is not meant for a CPU, most of which it does not concern.

    Args:
        format: "float32"; "tf32", factors with 10 bits after the point; or "bfloat16", with 7 in the sweeps of TAP and
            naive mean field, of units without states of their own, and as "tf32" elsewhere.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, products_in, rbm, solve
        >>> machine = rbm(Binary(4, field=1.0), Binary(2)).to("cuda" if torch.cuda.is_available() else "cpu")
        >>> with products_in("tf32"):
        ...     solve(machine)
        Solution(1 converged)
    """
    global rounds_factors
    if format not in PRODUCTS:
        raise ValueError(f"products in {format!r}: it must be one of {', '.join(PRODUCTS)}")
    before = torch.get_float32_matmul_precision(), rounds_factors
    torch.set_float32_matmul_precision("highest" if format == "float32" else "high")
    rounds_factors = format == "bfloat16"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        rounds_factors = before[1]
