"""Checks for features of newer torch versions; the oldest supported version is 2.5."""

import torch


def multiplies_rounded_factors() -> bool:
    """Return whether torch can multiply bfloat16 matrices with a float32 result (torch 2.8 or newer)."""
    return "dtype" in torch.ops.aten.bmm.overloads()


def has_tested_compiler() -> bool:
    """Return whether torch is 2.11 or newer, the versions for which compiled code was compared with eager code.

    The compiler of torch 2.5 does not support properties of named tuples or `zip(strict=True)`. Versions from 2.6 to
    2.10 are not tested, and some compilers have silently returned wrong values (docs/design_notes.md).
    """
    major, minor = torch.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (2, 11)
