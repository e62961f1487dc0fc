"""Features of newer torch versions. All version checks are here; the oldest supported version is 2.5."""

import torch


def multiplies_rounded_factors() -> bool:
    """Whether products of bfloat16 factors can be returned in float32 (torch 2.8 or newer)."""
    return "dtype" in torch.ops.aten.bmm.overloads()


def has_tested_compiler() -> bool:
    """Whether torch is 2.11 or newer, for which compiled code was compared with eager code.

    The compiler of 2.5 fails on properties of named tuples and on `zip(strict=True)`, later ones are untested, and
    compilers have silently returned wrong values (docs/design_notes.md).
    """
    major, minor = torch.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (2, 11)
