"""Figures of a landscape, each drawn on Matplotlib axes: free energies by epoch, and maps of solutions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tapmachine.display.figures import COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MANY = 500  # number of points above which markers are smaller


def free_energies(ax: "Axes", epochs: Sequence[int], values: Sequence[Tensor], legend: bool = True) -> None:
    """Draw the free energies of all solutions, their mean and the number of solutions against the epoch [fig:fedist].

    Args:
        ax: Axes to draw on. The number of solutions is drawn on a second axis on the right.
        epochs: Epochs in increasing order.
        values: Free energies of the solutions at each epoch.
        legend: Whether to draw a legend.
    """
    from matplotlib.ticker import MaxNLocator

    points = [(epoch, float(value)) for epoch, row in zip(epochs, values, strict=True) for value in row]
    if points:
        x, y = zip(*points, strict=True)
        ax.plot(x, y, ".", color=COLORS[0], alpha=0.2, ms=4, rasterized=True)
        ax.plot([], [], ".", color=COLORS[0], label="solutions")  # a single transparent dot would be invisible
    ax.plot(epochs, [float(row.mean()) if len(row) else torch.nan for row in values], color=COLORS[2], label="mean")
    ax.set(xlabel="epoch", ylabel="free energy (nats)")
    counts = ax.twinx()
    counts.plot(epochs, [len(row) for row in values], "--", color=COLORS[4])
    counts.set_ylabel("number of solutions", color=COLORS[4])
    counts.tick_params(axis="y", colors=COLORS[4])
    counts.spines["right"].set_visible(True)
    counts.set_ylim(bottom=0)
    counts.yaxis.set_major_locator(MaxNLocator("auto", integer=True))
    if legend:
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)  # above the data


def solution_map(
    ax: "Axes",
    points: Tensor,
    colors: Tensor | None = None,
    data: Tensor | None = None,
    **bar: Any,
) -> None:
    """Draw solutions on a plane, colored [fig:solnvis] or black on top of data [fig:compareInitSolns].

    Args:
        ax: Axes to draw on.
        points: Positions of the solutions, shape (n, 2).
        colors: Value of each solution, which determines its color (default: all solutions are black).
        data: Positions of the data, shape (N, 2), drawn below the solutions in gray.
        bar: Keyword arguments of the color bar (default: the label "free energy (nats)").
    """
    from matplotlib.ticker import MaxNLocator

    if data is not None:
        x, y = torch.as_tensor(data).T.cpu().numpy()
        ax.scatter(x, y, s=2 if len(x) > MANY else 5, color="0.75", lw=0, rasterized=True)
    x, y = torch.as_tensor(points).T.cpu().numpy()
    if colors is None:
        ax.scatter(x, y, s=3, color="black", lw=0, zorder=3, rasterized=True)
    else:
        values, limits, ticks = torch.as_tensor(colors).double().cpu(), {}, None
        if len(values):  # quantiles, so that an outlier does not make all other colors equal
            low, high = torch.quantile(values, torch.tensor([0.02, 0.98], dtype=torch.float64)).tolist()
            limits, ticks = {"vmin": low, "vmax": high}, MaxNLocator(3) if high > low else [low]
        size, options = 4 if len(values) > MANY else 10, {"cmap": "viridis", "rasterized": True, **limits}
        dots = ax.scatter(x, y, s=size, c=values.numpy(), lw=0, zorder=3, **options)
        settings: dict[str, Any] = {
            "label": "free energy (nats)",
            "extend": "both",
            "aspect": 20,
            "pad": 0.03,
            "ticks": ticks,
        } | bar
        ax.figure.colorbar(dots, ax=ax, **settings)
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(True)


def map_thumbnails(
    ax: "Axes", points: Tensor, images: Tensor, shape: tuple[int, int], count: int = 12, ink: str = "black"
) -> None:
    """Draw images of some solutions above and below a map, each connected to its point.

    The images are placed outside the range of the points so that no point is covered. Call this function after
    `solution_map`.

    Args:
        ax: Axes that contain a map.
        points: Positions of the solutions, shape (n, 2).
        images: Images of the solutions as rows, shape (n, pixels).
        shape: Height and width of each image in pixels.
        count: Maximum number of images. The points of the selected solutions are far apart.
        ink: Color of the largest value, "white" or "black".
    """
    points, images = torch.as_tensor(points).double(), torch.as_tensor(images).detach().cpu().double()
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    slot = (right - left) / -(-count // 2)  # width available for one image
    half_height, half_width = (0.45 * slot * length / max(shape) for length in shape)
    chosen = sorted(_far_apart(points, count), key=lambda index: float(points[index, 1]))
    half = len(chosen) // 2
    for row, center, edge in ((chosen[:half], bottom - slot / 2, 0.45), (chosen[half:], top + slot / 2, -0.45)):
        for column, index in enumerate(sorted(row, key=lambda index: float(points[index, 0]))):
            x = (left + right) / 2 + (column - (len(row) - 1) / 2) * slot
            box = (x - half_width, x + half_width, center - half_height, center + half_height)
            image = ax.imshow(images[index].view(shape).numpy(), extent=box, interpolation="nearest", zorder=4)
            image.set(cmap="gray_r" if ink == "black" else "gray", clim=(0.0, float(images[index].max())))
            to_x, to_y = points[index].tolist()
            ax.plot([x, to_x], [center + edge * slot, to_y], color="gray", lw=0.5, zorder=3.5)
            for width, edge_color in ((1.8, "white"), (0.8, "black")):  # a ring that stands out among other points
                ax.plot([to_x], [to_y], "o", ms=5.2, mfc="none", mec=edge_color, mew=width, zorder=5)
    ax.set(xlim=(left, right), ylim=(bottom - slot, top + slot), aspect="equal")


def _far_apart(points: Tensor, count: int) -> list[int]:
    """Return the indices of up to `count` distinct points, each as far as possible from the previous points."""
    if len(points) == 0:
        return []
    chosen = [0]
    nearest = (points - points[0]).norm(dim=1)
    while len(chosen) < min(count, len(points)) and float(nearest.max()) > 0:
        chosen.append(int(nearest.argmax()))
        nearest = torch.minimum(nearest, (points - points[chosen[-1]]).norm(dim=1))
    return chosen
