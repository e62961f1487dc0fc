"""Charts: training curves, scatter plots, histograms, bars and matrices, each drawn on Matplotlib axes."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tapmachine.display.figures import COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVES = {
    "log_likelihood": "training data",
    "validation_log_likelihood": "held-out data",
    "tap_log_likelihood": "training data, by TAP",
}
FEW_POINTS = 20  # number of points below which a line has markers
POSITIVE, NEGATIVE = (0.75, 0.22, 0.17), (0.18, 0.44, 0.72)  # red and blue, more opaque for larger values
FEW_CELLS = 14  # maximum number of rows and columns of a matrix for which values are written
LONG_NAME = 20  # maximum number of characters of a name in a chart

Array = np.ndarray[Any, Any]
Points = Sequence[tuple[float, float]]


def training_curves(ax: "Axes", records: Sequence[Mapping[str, Any]]) -> None:
    """Draw the log-likelihoods measured during training by epoch, or the loss if none was measured.

    Args:
        ax: Axes to draw on.
        records: Records of a `History`, one per epoch.
    """
    curves = {title: _measured(records, name) for name, title in CURVES.items()}
    has_likelihood = any(curves.values())
    if not has_likelihood:
        curves = {"loss": _measured(records, "loss")}
    for (title, points), line in zip(curves.items(), ("-", "--", ":"), strict=False):
        if points:
            marker = "o" if len(points) < FEW_POINTS else None
            ax.plot(*zip(*points, strict=True), line, marker=marker, label=title)
    ax.set(xlabel="epoch", ylabel="nats per row" if has_likelihood else "loss")
    if has_likelihood:
        ax.legend()


def _measured(records: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float]]:
    values = ((float(record["epoch"]), record.get(name)) for record in records)
    return [(epoch, float(value)) for epoch, value in values if value is not None and math.isfinite(value)]


def scatter(ax: "Axes", points: Points, x_label: str, y_label: str, diagonal: bool = False) -> None:
    """Draw a scatter plot, optionally with the diagonal, on which both coordinates are equal."""
    if diagonal:
        ax.axline((0, 0), slope=1, color=COLORS[1])
    ax.plot(*zip(*points, strict=True), "o", color=COLORS[0], alpha=0.6, markeredgewidth=0)
    ax.set(xlabel=x_label, ylabel=y_label)


def histogram(ax: "Axes", series: Mapping[str, Sequence[float]], edges: Sequence[float], x_label: str) -> None:
    """Draw several histograms of one quantity, the first as a filled area and the others as outlines."""
    for index, values in enumerate(series.values()):
        ax.stairs(values, edges, fill=index == 0, color=COLORS[index], alpha=0.45 if index == 0 else 1, lw=1.8)
    ax.set(xlabel=x_label, yticks=[])
    ax.spines["left"].set_visible(False)


def bars(ax: "Axes", names: Sequence[str], series: Mapping[str, Sequence[float]], title: str) -> None:
    """Draw horizontal bars, one for each name and series, with their lengths in percent."""
    height, largest = 0.8 / len(series), max((value for values in series.values() for value in values), default=0) or 1
    middles = [row + 0.4 - height / 2 for row in range(len(names))]
    for index, values in enumerate(series.values()):
        rows = [row + height * index for row in range(len(names))]
        ax.barh(rows, values, 0.9 * height, color=COLORS[index])
    for middle, shares in zip(middles, zip(*series.values(), strict=True), strict=True):
        label = " / ".join(f"{100 * share:.0f}" for share in shares)
        ax.text(max(shares) + 0.03 * largest, middle, f"{label} %", va="center")
    ax.set(title=title, xticks=[], xlim=(0, 1.4 * largest))
    ax.set_yticks(middles, [_cut(name) for name in names])
    ax.invert_yaxis()
    ax.tick_params(length=0)
    ax.spines[["left", "bottom"]].set_visible(False)


def matrix(ax: "Axes", values: Array, rows: Sequence[str], columns: Sequence[str]) -> None:  # (rows, columns)
    """Draw values between −1 and 1 as a matrix of colors, and as percentages if there is room; NaN cells are blank."""
    opacity = np.nan_to_num(abs(values)).clip(0, 1)[..., None]
    hues = np.where(values[..., None] > 0, POSITIVE, NEGATIVE)
    ax.imshow(np.concatenate((hues, opacity), -1), interpolation="none")
    ax.set_yticks(range(len(rows)), [_cut(name) for name in rows])
    ax.set_xticks(range(len(columns)), [_cut(name) for name in columns], rotation=45, ha="left", rotation_mode="anchor")
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    if max(values.shape) <= FEW_CELLS:
        for (row, column), value in np.ndenumerate(values):
            if not np.isnan(value):
                ax.text(column, row, f"{100 * value:.0f}".replace("-", "−"), ha="center", va="center", fontsize=8)


def _cut(name: str) -> str:
    return name if len(name) <= LONG_NAME else name[: LONG_NAME - 1] + "…"
