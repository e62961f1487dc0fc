"""Histograms, images and tables that summarize tensors in notebook representations."""

import math

import torch
from torch import Tensor

from tapmachine.display.charts import histogram
from tapmachine.display.figures import svg
from tapmachine.display.html import table
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
    counts, edges = torch.histogram(flat, N_BINS)
    return svg(f"distribution of {name}", histogram, {name: counts / len(flat)}, edges, name, size=(300, 120))


def thumbnails(rows: Tensor, title: str) -> str:  # (K, n)
    """Show the first rows as square images, or return an empty string if rows are not square images."""
    side = math.isqrt(rows.shape[1]) if rows.dim() == 2 else 0
    if side * side != rows.shape[-1] or not LEAST_SIDE <= side <= MOST_SIDE or len(rows) == 0:
        return ""
    shown = rows[:MOST_IMAGES]
    drawn = svg(title, image_grid, shown, (side, side), MOST_IMAGES, size=(40 * len(shown), 40))
    return f"<div>{drawn}<br/><small>{title}</small></div>"


def first_rows(mean: Tensor, deviation: Tensor) -> str:  # (K, n) each
    """Return an HTML table with the first values of the first rows and their standard deviations."""
    means, deviations = (values.flatten(1)[:MOST_ROWS, :MOST_COLUMNS].tolist() for values in (mean, deviation))
    rows = [
        (f"row {index}", *(f"{m:.3g} ± {s:.2g}" for m, s in zip(*row, strict=True)))
        for index, row in enumerate(zip(means, deviations, strict=True))
    ]
    return table(("", *(f"unit {index}" for index in range(len(means[0]) if means else 0))), rows)
