"""Histograms, images and tables that summarize tensors in notebook representations."""

import math

import torch
from torch import Tensor

from tapmachine.display.charts import histogram
from tapmachine.display.html import escape, table
from tapmachine.display.images import image_grid

MOST_IMAGES, MOST_ROWS, MOST_COLUMNS = 12, 5, 8
MOST_VALUES = 100_000  # maximum number of values in a histogram
LEAST_SIDE, MOST_SIDE = 4, 64  # side length in pixels of rows that are shown as square images
N_BINS = 30


def distribution(values: Tensor, name: str) -> str:
    """Draw a histogram of the finite values of a tensor, using a subset if the tensor is large."""
    flat = values.detach().flatten()
    flat = flat[:: -(-len(flat) // MOST_VALUES)].double().cpu()
    flat = flat[flat.isfinite()]
    if len(flat) == 0:
        return ""
    low, high = float(flat.min()), float(flat.max())
    if not high > low:
        low, high = low - 0.5, high + 0.5
    counts = torch.histc(flat, N_BINS, low, high)
    edges = [low + (high - low) * place / N_BINS for place in range(N_BINS + 1)]
    return histogram({name: (counts / len(flat)).tolist()}, edges, name)


def thumbnails(rows: Tensor, words: str) -> str:  # (K, n)
    """Show the first rows as square images, or return an empty string if rows are not square images."""
    side = math.isqrt(rows.shape[1]) if rows.dim() == 2 else 0
    if side * side != rows.shape[-1] or not LEAST_SIDE <= side <= MOST_SIDE or len(rows) == 0:
        return ""
    uri, width, _ = image_grid(rows[:MOST_IMAGES], (side, side), MOST_IMAGES)
    scale = max(1, round(36 / side))
    style = f"image-rendering:pixelated;width:{scale * width}px;height:auto;max-width:100%"
    return f'<div><img src="{uri}" alt="{escape(words)}" style="{style}"><br><small>{escape(words)}</small></div>'


def first_rows(mean: Tensor, deviation: Tensor) -> str:  # (K, n) each
    """Return an HTML table with the first values of the first rows and their standard deviations."""
    n = min(mean.flatten(1).shape[1], MOST_COLUMNS)
    rows = [
        (f"row {index}", *(f"{m:.3g} ± {s:.2g}" for m, s in zip(means, deviations, strict=True)))
        for index, (means, deviations) in enumerate(
            zip(mean.flatten(1)[:MOST_ROWS, :n].tolist(), deviation.flatten(1)[:MOST_ROWS, :n].tolist(), strict=True)
        )
    ]
    return table(("", *(f"unit {index}" for index in range(n))), rows)
