"""Names of number formats in the settings. Does not import torch, so that `--help` is fast."""

MATMUL_PRECISIONS = ("float32", "tf32", "bfloat16")
