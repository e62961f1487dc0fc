"""What only newer versions of torch can do. All checks of its version are here; the oldest that works is 2.5."""

import torch


def multiplies_rounded_factors() -> bool:
    """Whether products of bfloat16 factors can be returned in float32 (2.8)."""
    return "dtype" in torch.ops.aten.bmm.overloads()


def compiles_for_gpus() -> bool:
    """Whether compiled code for GPUs is known to be right: that of 2.11 and newer was compared with eager code.

    Compilers have returned wrong values without an error (docs/design_notes.md), so older ones must be asked for.
    """
    major, minor = torch.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (2, 11)
