"""Names of the number formats for matrix products. This module does not import torch, which keeps `--help` fast."""

MATMUL_PRECISIONS = ("float32", "tf32", "bfloat16")
