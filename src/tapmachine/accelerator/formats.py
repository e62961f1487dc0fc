"""Number formats, by the words that settings use for them. Without torch, so that `--help` is quick."""

MATMUL_PRECISIONS = ("float32", "tf32", "bfloat16")
