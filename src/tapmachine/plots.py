"""Pictures, with matplotlib: functions that draw on given axes."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> "Figure":
    """A figure that needs no screen, of a size in inches; an ImportError that says what to do without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(
            "pictures need matplotlib, which is not installed; use: pip install 'tapmachine[plots]'"
        ) from None
    return Figure(figsize=(width, height), layout="constrained")


def image_grid(ax: "Axes", images: Tensor, shape: tuple[int, int], columns: int | None = None) -> None:
    """Many small images side by side, each on its own scale, so that 0 is grey where they have both signs.

    Args:
        ax: axes to draw on.
        images: (N, pixels).
        shape: of each, in pixels: height and width.
        columns: how many in a row; a square of them, unless given.
    """
    from matplotlib import colormaps

    images = images.detach().cpu().double()
    count = len(images)
    columns = columns or max(1, round(count**0.5))
    rows = -(-count // columns)
    height, width = shape
    signed = bool((images < 0).any())
    size = images.abs().amax(1, keepdim=True).clamp(min=torch.finfo(images.dtype).tiny)
    canvas = torch.full((rows * (height + 1) - 1, columns * (width + 1) - 1), torch.nan, dtype=images.dtype)
    for number, image in enumerate((images / size).view(count, height, width)):
        top, left = number // columns * (height + 1), number % columns * (width + 1)
        canvas[top : top + height, left : left + width] = image
    colours = colormaps["RdBu_r" if signed else "gray"].with_extremes(bad="0.6")  # of the gaps
    ax.imshow(canvas.numpy(), cmap=colours, vmin=-1.0 if signed else 0.0, vmax=1.0, interpolation="nearest")
    ax.set_axis_off()


def training_curves(
    ax: "Axes", records: Sequence[Mapping[str, float]], names: Sequence[str] = ("log_likelihood",)
) -> None:
    """Quantities of a training over its epochs, from the records of its `History`."""
    for name in names:
        points = [(r["epoch"], r[name]) for r in records if r.get(name) is not None]
        if points:
            ax.plot(*zip(*points, strict=True), label=name.replace("_", " "))
    ax.set_xlabel("epoch")
    if ax.lines:
        ax.legend()


def heat_map(ax: "Axes", rows: Tensor) -> None:
    """Rows of numbers in colours, for data that are not images."""
    values = rows.detach().flatten(1).cpu().numpy()
    largest = abs(values).max()
    signed = {"cmap": "RdBu_r", "vmin": -largest, "vmax": largest} if (values < 0).any() else {"cmap": "viridis"}
    image = ax.imshow(values, aspect="auto", interpolation="nearest", **signed)
    ax.set_xlabel("visible unit")
    ax.figure.colorbar(image, ax=ax)
