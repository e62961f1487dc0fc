"""Figures of the report page, as SVG with captions."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tapmachine.analysis.landscape import LandscapeTrack
from tapmachine.analysis.landscape.figures import free_energies
from tapmachine.analysis.receptive import ReceptiveFields
from tapmachine.display.charts import CURVES, training_curves
from tapmachine.display.figures import svg
from tapmachine.display.html import escape
from tapmachine.display.images import grid_shape, image_grid

MOST_FIELDS = 100
MOST_PIXELS = 480  # maximum width of a grid of images
LARGE_PIXELS, MOST_LARGE = 12, 12  # maximum size of a pixel, in grids of up to 12 images
MOST_SIDE = 40  # maximum height of an image in larger grids


class Figure(NamedTuple):
    """A figure of the report page.

    Attributes:
        svg: SVG of the figure.
        caption: Caption below the figure; empty for no caption.
        name: File name for saving the figure, without suffix.
        is_signed: Whether colors show the sign of values.
    """

    svg: str
    caption: str
    name: str
    is_signed: bool = False

    def html(self) -> str:
        """Return the HTML of the figure."""
        kind = "figure signed" if self.is_signed else "figure"
        return (
            f'<figure class="{kind}" data-name="{escape(self.name)}">{self.svg}'
            f"{f'<figcaption>{escape(self.caption)}</figcaption>' if self.caption else ''}</figure>"
        )


def images(
    rows: Tensor, shape: tuple[int, int], caption: str, name: str, columns: int | None = None, **options: Any
) -> Figure:
    """Draw rows as a grid of images, with the options of `image_grid`."""
    (columns, n_rows), (height, width) = grid_shape(len(rows), columns), shape
    gap = 1 if options.get("frames") is None else max(2, round(max(shape) / 5))
    wide, tall = columns * (width + gap) - gap, n_rows * (height + gap) - gap
    scale = min(MOST_PIXELS / wide, MOST_SIDE / height if len(rows) > MOST_LARGE else LARGE_PIXELS)
    size = (max(1.0, scale) * wide + 8, max(1.0, scale) * tall + 8)
    drawn = svg(caption, image_grid, rows, shape, columns, size=size, **options)
    return Figure(drawn, caption, name, bool((rows < 0).any()))


def receptive_fields(ranking: ReceptiveFields, shape: tuple[int, int]) -> Figure:
    """Draw the weights of hidden units as images, with the most active units first."""
    order = shown_fields(ranking)
    which = "" if ranking.layer == 1 else f" of layer {ranking.layer}, projected through the layers below"
    if len(order) < len(ranking.fields):
        which += f" ({len(order)} of {len(ranking.fields)} units)"
    caption = (
        f"Receptive fields{which}, with the most active units first. Positive weights are red, negative weights blue."
    )
    fields, name = ranking.fields[order].flatten(1), f"receptive_fields_{ranking.layer}"
    return images(fields, shape, caption, name, field_columns(ranking), signed=True)


def shown_fields(ranking: ReceptiveFields) -> Tensor:
    """Return the hidden units to show, ordered by activation if known, otherwise by the spread of their weights."""
    if bool(torch.isnan(ranking.activation).any()):
        return ranking.by_spread(MOST_FIELDS)
    return ranking.by_activation(MOST_FIELDS)


def field_columns(ranking: ReceptiveFields) -> int:
    """Return the number of receptive fields per row of the figure."""
    return max(1, round(1.6 * math.sqrt(len(shown_fields(ranking)))))


def free_energies_by_epoch(track: LandscapeTrack) -> Figure:
    """Draw the free energies and the number of the solutions by epoch."""
    energies = [snapshot.free_energy for snapshot in track.snapshots]
    drawn = svg("solutions by epoch", free_energies, track.epochs, energies)
    caption = f"Free energies F and number of distinct solutions from {len(track.starts)} starts by epoch."
    return Figure(drawn, caption, "free_energies")


def training(records: Sequence[dict[str, Any]]) -> Figure | None:
    """Draw the log-likelihoods measured during training, or return None if there are fewer than two measurements."""
    if max(sum(record.get(name) is not None for record in records) for name in CURVES) < 2:
        return None
    methods = sorted({r["log_likelihood_method"] for r in records if r.get("log_likelihood_method")})
    by = f" ({' and '.join(methods)}, except for TAP)" if methods else ""
    caption = f"Mean log-likelihood per row by epoch{by}. Higher values are better."
    return Figure(svg("log-likelihood by epoch", training_curves, records), caption, "training")
