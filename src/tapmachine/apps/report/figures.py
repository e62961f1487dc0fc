"""Figures of the report page, as SVG with captions."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tapmachine.analysis.landscape import LandscapeTrack
from tapmachine.analysis.receptive import ReceptiveFields
from tapmachine.apps.report.labels import Labels
from tapmachine.display import charts
from tapmachine.display.html import escape
from tapmachine.display.images import image_grid

MOST_FIELDS = 100
CURVES = {
    "log_likelihood": "training data",
    "validation_log_likelihood": "held-out data",
    "tap_log_likelihood": "training data, by TAP",
}


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


def image_svg(
    images: Tensor,
    shape: tuple[int, int],
    label: str,
    columns: int | None = None,
    colors: Sequence[str] | None = None,
    signed: bool | None = None,
    names: Sequence[str] = (),
) -> str:
    """Draw a grid of images as SVG.

    Args:
        images: One flattened image per row, (K, pixels).
        shape: Height and width of each image.
        label: Text alternative for screen readers.
        columns: Number of images per row of the grid (default: chosen for a roughly square grid).
        colors: Frame color of each image (default: no frames).
        signed: Whether to color values by sign (default: True if any value is negative).
        names: Names of the rows of the grid, shown on the right (default: no names).
    """
    columns = min(columns or max(1, round(len(images) ** 0.5)), max(1, len(images)))
    gap = max(2, round(max(shape) / 5)) if colors is not None else max(1, round(max(shape) / 6))
    uri, width, height = image_grid(images, shape, columns, signed, gap)
    scale = min(12.0, 480 / width, 40.0 / shape[0] if len(images) > 12 else 12.0)
    scale = max(scale, min(480 / width, 1.0))
    top = 4.0
    parts = [
        f'<image x="4" y="{top:.1f}" width="{scale * width:.1f}" height="{scale * height:.1f}" href="{uri}" '
        'preserveAspectRatio="none" style="image-rendering:pixelated"/>'
    ]
    for index, own in enumerate(colors or ()):
        x = 4 + scale * (index % columns) * (shape[1] + gap)
        y = top + scale * (index // columns) * (shape[0] + gap)
        edge = scale * gap / 2
        parts.append(
            f'<rect x="{x - edge / 2:.1f}" y="{y - edge / 2:.1f}" width="{scale * shape[1] + edge:.1f}" '
            f'height="{scale * shape[0] + edge:.1f}" style="fill:none;stroke:{own};stroke-width:{edge:.1f}"/>'
        )
    left = scale * width + 14
    for row, name in enumerate(names):
        parts.append(charts.text(left, top + scale * (row * (shape[0] + gap) + shape[0] / 2) + 4, name))
    room = 10 + 6.6 * max((len(name) for name in names), default=0)
    return charts.svg(8 + scale * width + (room if names else 0), 8 + scale * height, "".join(parts), label)


def training_curves(records: Sequence[dict[str, Any]]) -> Figure | None:
    """Draw the log-likelihoods measured during training, or return None if there are fewer than two measurements."""
    series = {
        title: [(float(r["epoch"]), float(r[name])) for r in records if r.get(name) is not None]
        for name, title in CURVES.items()
    }
    series = {title: points for title, points in series.items() if points}
    if max(map(len, series.values()), default=0) < 2:
        return None
    methods = sorted({r["log_likelihood_method"] for r in records if r.get("log_likelihood_method")})
    by = f" ({' and '.join(methods)}, except for TAP)" if methods else ""
    svg = charts.line_chart(series, "epoch", "nats per row")
    return Figure(svg, f"Mean log-likelihood per row by epoch{by}. Higher values are better.", "training")


def free_energies(track: LandscapeTrack) -> Figure:
    """Draw the free energies of the solutions by epoch."""
    points = [(float(s.epoch), float(f)) for s in track.snapshots for f in s.free_energy.tolist()]
    means = [(float(s.epoch), s.mean_free_energy) for s in track.snapshots if s.n_solutions]
    svg = charts.scatter(points, "epoch", "F, nats", means, len(track.epochs) > 2, "free energies by epoch")
    return Figure(svg, "Free energies of all solutions by epoch (dots) and their mean (line).", "free_energies")


def n_solutions(track: LandscapeTrack) -> Figure:
    """Draw the number of solutions by epoch."""
    series = {
        "solutions": [(float(s.epoch), float(s.n_solutions)) for s in track.snapshots],
        "stable": [(float(s.epoch), float(s.stable.sum())) for s in track.snapshots],
    }
    svg = charts.line_chart(series, "epoch", "solutions")
    return Figure(svg, f"Number of distinct solutions from {len(track.starts)} starts by epoch.", "solutions")


def shown_fields(ranking: ReceptiveFields) -> Tensor:
    """Return the hidden units to show, ordered by activation if known, otherwise by the spread of their weights."""
    if bool(torch.isnan(ranking.activation).any()):
        return ranking.by_spread(MOST_FIELDS)
    return ranking.by_activation(MOST_FIELDS)


def field_columns(ranking: ReceptiveFields) -> int:
    """Return the number of receptive fields per row of the figure."""
    return max(1, round(1.6 * math.sqrt(len(shown_fields(ranking)))))


def receptive_fields(ranking: ReceptiveFields, shape: tuple[int, int]) -> Figure:
    """Draw the weights of hidden units as images, with the most active units first."""
    order = shown_fields(ranking)
    fields = ranking.fields[order].flatten(1)
    svg = image_svg(fields, shape, f"{len(order)} receptive fields", field_columns(ranking), signed=True)
    which = "" if ranking.layer == 1 else f" of layer {ranking.layer}, projected through the layers below"
    some = "" if len(order) == len(ranking.fields) else f" ({len(order)} of {len(ranking.fields)} units)"
    caption = f"Receptive fields{which}{some}, with the most active units first. Positive weights are red, negative"
    return Figure(svg, f"{caption} weights blue.", f"receptive_fields_{ranking.layer}", True)


def samples(rows: Tensor, shape: tuple[int, int], caption: str, name: str, labels: Labels | None = None) -> Figure:
    """Draw rows as images, framed in the colors of their labels."""
    colors = None if labels is None else [labels.colors[own] for own in labels.index.tolist()]
    return Figure(image_svg(rows, shape, caption, colors=colors), caption, name)
