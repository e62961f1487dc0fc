"""Maps of solutions and data in a plane, with images of selected solutions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tapmachine.analysis.style import BLACK, GRAY, GREEN, ORANGE, PURPLE, SKY, VERMILION

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLASS_COLORS = SKY, ORANGE, GREEN, PURPLE, VERMILION  # light enough for black points on top to be visible
MANY = 500  # number of points above which markers are smaller


def solution_map(
    ax: "Axes",
    points: Tensor,
    colors: Tensor | None = None,
    data: Tensor | None = None,
    labels: Sequence[Any] | None = None,
    label: str = "free energy (nats)",
    *,
    legend: bool = True,
    bar: str = "right",
) -> None:
    """Draw solutions on a plane, colored [fig:solnvis] or black on top of data [fig:compareInitSolns].

    Args:
        ax: Axes to draw on.
        points: Positions of the solutions, shape (n, 2).
        colors: Value of each solution, which determines its color (default: all solutions are black).
        data: Positions of the data, shape (N, 2), drawn below the solutions.
        labels: Class of each row of the data, which determines its color.
        label: Label of the color bar, which is omitted if the label is empty.
        legend: Whether to draw a legend of the classes.
        bar: Side of the axes on which the color bar is placed, "right" or "bottom".
    """
    from matplotlib.ticker import MaxNLocator

    points = torch.as_tensor(points)
    colors = None if colors is None else torch.as_tensor(colors)
    if labels is not None and (data is None or len(labels) != len(data)):
        raise ValueError(
            f"got {len(labels)} labels for {0 if data is None else len(data)} rows of data; expected one per row"
        )
    if data is not None:
        data = torch.as_tensor(data)
        size = 2 if len(data) > MANY else 5
        if labels is None:
            x, y = data.T.cpu().numpy()
            ax.scatter(x, y, s=size, color="0.75", lw=0, rasterized=True)
        else:
            for number, name in enumerate(sorted(set(labels))):
                x, y = data[torch.tensor([other == name for other in labels])].T.cpu().numpy()
                color = CLASS_COLORS[number % len(CLASS_COLORS)]
                ax.scatter(x, y, s=size, color=color, lw=0, label=name, rasterized=True)
            if legend:
                ax.legend(markerscale=3)
    x, y = points.T.cpu().numpy()
    if colors is None:
        ax.scatter(x, y, s=3, color=BLACK, lw=0, zorder=3, rasterized=True)
    else:
        limits: dict[str, Any] = {}
        ticks: Any = None
        if len(colors):  # quantiles, so that an outlier does not make all other colors equal
            low, high = torch.quantile(colors.double().cpu(), torch.tensor([0.02, 0.98], dtype=torch.float64)).tolist()
            limits = {"vmin": low, "vmax": high}
            ticks = MaxNLocator(3) if high > low else [low]
        size = 4 if len(colors) > MANY else 10
        dots = ax.scatter(
            x, y, s=size, c=colors.cpu().numpy(), cmap="viridis", lw=0, zorder=3, rasterized=True, **limits
        )
        ax.figure.colorbar(dots, ax=ax, label=label, extend="both", location=bar, aspect=20, pad=0.03, ticks=ticks)
    ax.set_xticks([])
    ax.set_yticks([])
    for side in ax.spines.values():
        side.set_visible(True)


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
    chosen = sorted(_far_apart(points, count), key=lambda number: float(points[number, 1]))
    half = len(chosen) // 2
    for members, center, edge in (
        (chosen[:half], bottom - slot / 2, 0.45),
        (chosen[half:], top + slot / 2, -0.45),
    ):
        members.sort(key=lambda number: float(points[number, 0]))
        for place, number in enumerate(members):
            x = (left + right) / 2 + (place - (len(members) - 1) / 2) * slot
            box = _extent(x, center, 0.9 * slot, shape)
            image = images[number].view(shape).numpy()
            colors = "gray_r" if ink == "black" else "gray"
            ax.imshow(
                image, extent=box, cmap=colors, vmin=0.0, vmax=float(images.max()), interpolation="nearest", zorder=4
            )
            to_x, to_y = points[number].tolist()
            ax.plot([x, to_x], [center + edge * slot, to_y], color=GRAY, lw=0.5, zorder=3.5)
            for width, color in ((1.8, "white"), (0.8, BLACK)):  # a ring that stands out among other points
                ax.plot([to_x], [to_y], "o", ms=5.2, mfc="none", mec=color, mew=width, zorder=5)
    ax.set_xlim(left, right)
    ax.set_ylim(bottom - slot, top + slot)
    ax.set_aspect("equal")


def _extent(x: float, y: float, size: float, shape: tuple[int, int]) -> tuple[float, float, float, float]:
    """Return left, right, bottom and top of an image centered at (x, y) whose longer side has length `size`."""
    half_height, half_width = (size * length / max(shape) / 2 for length in shape)
    return x - half_width, x + half_width, y - half_height, y + half_height


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
