"""What only newer versions of torch can do. All checks of its version are here; the oldest that works is 2.5."""

import torch


def multiplies_rounded_factors() -> bool:
    """Whether products of bfloat16 factors can be returned in float32 (2.8)."""
    return "dtype" in torch.ops.aten.bmm.overloads()


def has_tested_compiler() -> bool:
    """Whether `torch.compile` is 2.11's or newer: compiled code was compared with eager code there.

    That of 2.5 fails on properties of named tuples and on `zip(strict=True)`, those between are untested, and compilers
    have returned wrong values without an error (docs/design_notes.md).
    """
    major, minor = torch.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (2, 11)
