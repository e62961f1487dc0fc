"""Functions that draw on Matplotlib axes, one for each kind of figure in the paper."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from tapmachine.analysis.style import BLUE, GREEN, VERMILION

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from matplotlib.lines import Line2D

MOST_BINS = 50  # maximum number of bins of a histogram
GAP = "0.8"  # gray level between images


class Picture(NamedTuple):
    """A figure and its caption."""

    figure: "Figure"
    caption: str


def new_figure(width: float, height: float) -> "Figure":
    """Create an empty figure that can be drawn without a display.

    Args:
        width: Width in inches.
        height: Height in inches.

    Raises:
        ImportError: If Matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(
            "matplotlib is required for figures, but is not installed; run: pip install matplotlib"
        ) from None
    return Figure(figsize=(width, height), layout="constrained")


def image_grid(
    ax: "Axes",
    images: Tensor,
    shape: tuple[int, int],
    columns: int | None = None,
    ink: str = "white",
    scale: float | None = None,
) -> "AxesImage":
    """Draw a grid of small images, with a diverging color map centered at 0 if images have negative values.

    Args:
        ax: Axes to draw on.
        images: Images as rows, shape (N, pixels).
        shape: Height and width of each image in pixels.
        columns: Number of images per row (default: chosen to make the grid square).
        ink: Color of the largest value of non-negative images, "white" or "black".
        scale: Absolute value with the strongest color (default: the largest absolute value of each image).

    Returns:
        The drawn image, as needed by `Figure.colorbar`.
    """
    from matplotlib import colormaps

    images = torch.as_tensor(images).detach().cpu().double()
    count = len(images)
    if count and images[0].numel() != shape[0] * shape[1]:
        raise ValueError(f"images have {images[0].numel()} pixels; expected {shape[0]}×{shape[1]}")
    columns = columns or max(1, round(count**0.5))
    rows = -(-count // columns)
    height, width = shape
    signed = bool((images < 0).any())
    if scale is None:
        images = images / images.nan_to_num(0.0).abs().amax(1, keepdim=True).clamp(min=torch.finfo(images.dtype).tiny)
    largest = 1.0 if scale is None else scale
    canvas = torch.full((rows * (height + 1) - 1, columns * (width + 1) - 1), torch.nan, dtype=images.dtype)
    for number, image in enumerate(images.view(count, height, width)):
        top, left = number // columns * (height + 1), number % columns * (width + 1)
        canvas[top : top + height, left : left + width] = image
    unsigned = "gray_r" if ink == "black" else "gray"
    colors = colormaps["RdBu_r" if signed else unsigned].with_extremes(bad=GAP)
    lowest = -largest if signed else 0.0
    drawn = ax.imshow(canvas.numpy(), cmap=colors, vmin=lowest, vmax=largest, interpolation="nearest")
    ax.set_axis_off()
    return drawn


def training_curves(
    ax: "Axes", records: Sequence[Mapping[str, float]], names: Sequence[str] = ("log_likelihood",)
) -> None:
    """Draw quantities recorded during training as functions of the epoch.

    Args:
        ax: Axes to draw on.
        records: Records of a `History`, one per epoch.
        names: Names of the quantities to draw.
    """
    for name in names:
        points = [(r["epoch"], r[name]) for r in records if r.get(name) is not None]
        if points:
            ax.plot(*zip(*points, strict=True), label=name.replace("_", " "))
    ax.set_xlabel("epoch")
    if ax.lines:
        ax.legend()


def heat_map(ax: "Axes", rows: Tensor) -> None:
    """Draw a matrix as a heat map with a color bar, for rows that are not images."""
    values = torch.as_tensor(rows).detach().flatten(1).cpu().numpy()
    largest = abs(values).max()
    signed = {"cmap": "RdBu_r", "vmin": -largest, "vmax": largest} if (values < 0).any() else {"cmap": "viridis"}
    image = ax.imshow(values, aspect="auto", interpolation="nearest", **signed)
    ax.set_xlabel("visible unit")
    ax.figure.colorbar(image, ax=ax)


def free_energies(ax: "Axes", epochs: Sequence[int], values: Sequence[Tensor], legend: bool = True) -> None:
    """Draw the free energies of all solutions, their mean and the number of solutions against the epoch [fig:fedist].

    Args:
        ax: Axes to draw on. The number of solutions is drawn on a second axis on the right.
        epochs: Epochs in increasing order.
        values: Free energies of the solutions at each epoch.
        legend: Whether to draw a legend.
    """
    from matplotlib.ticker import MaxNLocator

    solutions = [(epoch, float(value)) for epoch, row in zip(epochs, values, strict=True) for value in row]
    if solutions:
        ax.plot(*zip(*solutions, strict=True), ".", color=BLUE, alpha=0.15, ms=4, label="solutions", rasterized=True)
    means = [float(row.mean()) if len(row) else float("nan") for row in values]
    ax.plot(epochs, means, color=VERMILION, label="mean")
    ax.set_xlabel("epoch")
    ax.set_ylabel("free energy (nats)")
    counts = ax.twinx()
    counts.plot(epochs, [len(row) for row in values], "--", color=GREEN)
    counts.set_ylabel("number of solutions", color=GREEN)
    counts.tick_params(axis="y", colors=GREEN)
    counts.spines["right"].set_visible(True)
    counts.set_ylim(bottom=0)
    counts.yaxis.set_major_locator(MaxNLocator("auto", integer=True))
    if legend:
        above = ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)  # above the data
        for handle in above.legend_handles:
            if handle is not None:
                handle.set_alpha(1)  # a single transparent dot would be invisible


def free_energy_histogram(
    ax: "Axes", values: Tensor, curve: tuple[Tensor, Tensor] | None = None, color: Any = None
) -> None:
    """Draw the distribution of free energies as bars, and optionally a density as a curve [fig:fedist].

    Args:
        ax: Axes to draw on.
        values: Free energy of each solution.
        curve: Points at which a density was evaluated, and the values of the density at these points.
        color: Color of the bars and the curve (default: the next color of the axes).
    """
    values = torch.as_tensor(values)
    if curve is not None:  # the bars take the color of the curve
        color = ax.plot(*(z.cpu().numpy() for z in curve), color=color)[0].get_color()
    bins = min(MOST_BINS, max(1, len(values)))
    ax.hist(values.cpu().numpy(), bins=bins, density=curve is not None, alpha=0.4, color=color)
    ax.set_xlabel("free energy (nats)")
    ax.set_ylabel("density (1/nat)" if curve is not None else "solutions")


def denoising_curves(
    ax: "Axes",
    noise: Sequence[float],
    scores: Mapping[str, Sequence[float]],
    quantity: str = "MCC",
    styles: Mapping[str, Mapping[str, Any]] | None = None,
) -> "list[Line2D]":
    """Draw the score of each method against the noise level [fig:bmnist-denoise].

    Args:
        ax: Axes to draw on.
        noise: Noise levels.
        scores: Scores of each method at each noise level, by name.
        quantity: Label of the vertical axis.
        styles: Keyword arguments of `Axes.plot` by method. If they are specified, no legend is drawn.

    Returns:
        The lines, in the order of the methods.
    """
    plain = {"marker": "o", "ms": 3}
    lines = []
    for name, values in scores.items():
        lines += ax.plot(noise, values, label=name, **(styles[name] if styles else plain))
    ax.set_xlabel("noise")
    ax.set_ylabel(quantity)
    if styles is None:
        ax.legend()
    return lines


def image_strips(
    ax: "Axes", rows: Mapping[str, Tensor], shape: tuple[int, int], columns: Sequence[str] | None = None
) -> None:
    """Draw rows of images below each other on one gray scale [fig:bmnist-denoise-images].

    Args:
        ax: Axes to draw on.
        rows: Images of each row, shape (N, pixels), by the label of the row.
        shape: Height and width of each image in pixels.
        columns: Labels of the columns, which are drawn above the images.
    """
    count = max(len(images) for images in rows.values())
    padded = torch.cat([torch.cat((z, z.new_zeros(count - len(z), z.shape[1]))) for z in rows.values()])
    image_grid(ax, padded, shape, count, ink="black", scale=float(padded.nan_to_num(0.0).abs().max()) or 1.0)
    ax.set_axis_on()
    height, width = shape[0] + 1, shape[1] + 1
    ax.set_yticks([height * number + height / 2 - 1 for number in range(len(rows))], list(rows))
    places = [width * number + width / 2 - 1 for number in range(count)] if columns is not None else []
    ax.set_xticks(places, columns)
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    for side in ax.spines.values():
        side.set_visible(False)


def tree(ax: "Axes", epochs: Sequence[int], parents: Sequence[Tensor], names: Sequence[str] | None = None) -> None:
    """Draw the tree of solutions, which merge from the last epoch (right) to the first epoch (left).

    Args:
        ax: Axes to draw on.
        epochs: Epochs in increasing order.
        parents: For each epoch except the first, the index of each solution's parent at the previous epoch.
        names: Names of the leaves (default: no names are drawn).
    """
    from matplotlib.collections import LineCollection

    heights = tree_heights(parents, None if names is None else len(names))
    lines = [
        ((first, below[origin]), (second, above[child]))
        for (first, second), parent, (below, above) in zip(pairwise(epochs), parents, pairwise(heights), strict=True)
        for child, origin in enumerate(parent.tolist())
    ]
    ax.add_collection(LineCollection(lines, colors="0.3", linewidths=0.7))
    ax.autoscale()
    ax.yaxis.tick_right()  # the leaves are on the right
    if epochs[0] > 0:
        ax.set_xscale("log")  # most splits occur early
        some = sorted({epochs[0], epochs[len(epochs) // 2], epochs[-1]})
        ax.set_xticks(some, [str(epoch) for epoch in some])
        ax.set_xticks([], minor=True)
    if names is not None:
        ax.set_yticks(heights[-1], names, fontsize=6)
    else:
        ax.set_yticks([])
    ax.set_xlabel("epoch")


def tree_heights(parents: Sequence[Tensor], n_leaves: int | None = None) -> list[list[float]]:
    """Return a height for each solution at each epoch so that no lines of the tree cross.

    Leaves have consecutive integer heights. The height of any other solution is the mean of its children's heights.

    Args:
        parents: For each epoch except the first, the index of each solution's parent at the previous epoch.
        n_leaves: Number of leaves if `parents` is empty (default: 1).
    """
    n_leaves = len(parents[-1]) if parents else n_leaves or 1
    paths = [[number] for number in range(n_leaves)]
    for parent in reversed(parents):
        for path in paths:
            path.append(int(parent[path[-1]]))
    order = sorted(range(n_leaves), key=lambda leaf: paths[leaf][::-1])
    heights = [[0.0] * n_leaves]
    for height, leaf in enumerate(order):
        heights[0][leaf] = float(height)
    for parent in reversed(parents):
        children: dict[int, list[float]] = {}
        for child, origin in enumerate(parent.tolist()):
            children.setdefault(origin, []).append(heights[-1][child])
        heights.append([sum(children[origin]) / len(children[origin]) for origin in sorted(children)])
    return heights[::-1]
