"""Pictures, with matplotlib: functions that draw on given axes, one for each kind of figure in the paper."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage


class Picture(NamedTuple):
    """A figure and what it shows."""

    figure: "Figure"
    caption: str


def new_figure(width: float, height: float) -> "Figure":
    """A figure that needs no screen, of a size in inches; an ImportError that says what to do without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("matplotlib, which pictures need, is not installed; use: pip install matplotlib") from None
    return Figure(figsize=(width, height), layout="constrained")


def image_grid(
    ax: "Axes", images: Tensor, shape: tuple[int, int], columns: int | None = None, ink: str = "white"
) -> "AxesImage":
    """Many small images side by side, each on its own scale, so that 0 is gray where they have both signs.

    Args:
        ax: axes to draw on.
        images: (N, pixels).
        shape: of each, in pixels: height and width.
        columns: how many in a row; by default a square.
        ink: the color of the largest values of images without a sign, white or black.

    Returns:
        What was drawn, as for a color bar.
    """
    from matplotlib import colormaps

    images = torch.as_tensor(images).detach().cpu().double()
    count = len(images)
    if count and images[0].numel() != shape[0] * shape[1]:
        raise ValueError(f"images have {images[0].numel()} pixels, which is not {shape[0]}×{shape[1]}")
    columns = columns or max(1, round(count**0.5))
    rows = -(-count // columns)
    height, width = shape
    signed = bool((images < 0).any())
    size = images.nan_to_num(0.0).abs().amax(1, keepdim=True).clamp(min=torch.finfo(images.dtype).tiny)
    canvas = torch.full((rows * (height + 1) - 1, columns * (width + 1) - 1), torch.nan, dtype=images.dtype)
    for number, image in enumerate((images / size).view(count, height, width)):
        top, left = number // columns * (height + 1), number % columns * (width + 1)
        canvas[top : top + height, left : left + width] = image
    unsigned = "gray_r" if ink == "black" else "gray"
    colors = colormaps["RdBu_r" if signed else unsigned].with_extremes(bad="0.6")  # of the gaps
    drawn = ax.imshow(canvas.numpy(), cmap=colors, vmin=-1.0 if signed else 0.0, vmax=1.0, interpolation="nearest")
    ax.set_axis_off()
    return drawn


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
    """Rows of numbers in colors, for data that are not images."""
    values = torch.as_tensor(rows).detach().flatten(1).cpu().numpy()
    largest = abs(values).max()
    signed = {"cmap": "RdBu_r", "vmin": -largest, "vmax": largest} if (values < 0).any() else {"cmap": "viridis"}
    image = ax.imshow(values, aspect="auto", interpolation="nearest", **signed)
    ax.set_xlabel("visible unit")
    ax.figure.colorbar(image, ax=ax)


def free_energies(ax: "Axes", epochs: Sequence[int], values: Sequence[Tensor]) -> None:
    """The free energies of all solutions over the epochs, their mean, and how many there are [fig:fedist].

    Args:
        ax: axes to draw on; the number of solutions gets a second scale on the right.
        epochs: rising.
        values: F of each solution, for each epoch.
    """
    solutions = [(epoch, float(value)) for epoch, own in zip(epochs, values, strict=True) for value in own]
    if solutions:
        ax.plot(*zip(*solutions, strict=True), ".", color="tab:blue", alpha=0.15, ms=4, label="solutions")
    means = [float(own.mean()) if len(own) else float("nan") for own in values]
    ax.plot(epochs, means, color="tab:red", label="mean")
    ax.set_xlabel("epoch")
    ax.set_ylabel("free energy, nats")
    counts = ax.twinx()
    counts.plot(epochs, [len(own) for own in values], color="tab:green")
    counts.set_ylabel("number of solutions", color="tab:green")
    counts.set_ylim(bottom=0)
    for handle in ax.legend().legend_handles:
        if handle is not None:
            handle.set_alpha(1)  # a single dot as faint as those of the plot cannot be seen


def free_energy_histogram(ax: "Axes", values: Tensor, curve: tuple[Tensor, Tensor] | None = None) -> None:
    """The distribution of free energies as bars, and a density as a curve [fig:fedist].

    Args:
        ax: axes to draw on.
        values: F of each solution.
        curve: where a density was evaluated, and its values there.
    """
    values = torch.as_tensor(values)
    # The bars have the color of their curve, also where several of them share the axes.
    color = None if curve is None else ax.plot(*(z.cpu().numpy() for z in curve))[0].get_color()
    bins = min(50, max(1, len(values)))
    ax.hist(values.cpu().numpy(), bins=bins, density=curve is not None, alpha=0.5, color=color)
    ax.set_xlabel("free energy, nats")
    ax.set_ylabel("density" if curve is not None else "solutions")


def solution_map(
    ax: "Axes",
    points: Tensor,
    colors: Tensor | None = None,
    data: Tensor | None = None,
    labels: Sequence[Any] | None = None,
    label: str = "free energy, nats",
) -> None:
    """Solutions on a plane, colored by their free energy [fig:solnvis], or black over data [fig:compareInitSolns].

    Args:
        ax: axes to draw on.
        points: of the solutions, (n, 2).
        colors: a number for each; by default black.
        data: points of the data, (N, 2), drawn below.
        labels: a class for each row of the data, by which they are colored.
        label: what the colors are.
    """
    points = torch.as_tensor(points)
    colors = None if colors is None else torch.as_tensor(colors)
    if labels is not None and (data is None or len(labels) != len(data)):
        raise ValueError(f"there are {len(labels)} labels for {0 if data is None else len(data)} rows of data")
    if data is not None:
        data = torch.as_tensor(data)
        for number, name in enumerate(sorted(set(labels)) if labels is not None else [None]):
            own = [labels is None or other == name for other in (labels if labels is not None else range(len(data)))]
            color = "0.75" if labels is None else f"C{number % 10}"
            x, y = data[torch.tensor(own)].T.cpu().numpy()
            ax.scatter(x, y, s=4, color=color, label=name, rasterized=True)
        if labels is not None:
            ax.legend(markerscale=3)
    x, y = points.T.cpu().numpy()
    if colors is None:
        ax.scatter(x, y, s=9, color="black", zorder=3)
    else:
        limits = {}
        if len(colors):  # one that lies far off must not make all the others look the same
            low, high = torch.quantile(colors.double().cpu(), torch.tensor([0.02, 0.98], dtype=torch.float64)).tolist()
            limits = {"vmin": low, "vmax": high}
        dots = ax.scatter(x, y, s=14, c=colors.cpu().numpy(), cmap="viridis", zorder=3, **limits)
        ax.figure.colorbar(dots, ax=ax, label=label, extend="both")
    ax.set_xticks([])
    ax.set_yticks([])


def map_thumbnails(ax: "Axes", points: Tensor, images: Tensor, shape: tuple[int, int], count: int = 12) -> None:
    """Small images at some of the points of a map, chosen to be far from each other."""
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage

    points, images = torch.as_tensor(points), torch.as_tensor(images)
    if len(points) == 0:
        return
    chosen = [0]
    nearest = (points - points[0]).norm(dim=1)
    while len(chosen) < min(count, len(points)) and float(nearest.max()) > 0:
        chosen.append(int(nearest.argmax()))
        nearest = torch.minimum(nearest, (points - points[chosen[-1]]).norm(dim=1))
    for number in chosen:
        image = images[number].detach().cpu().double().view(shape).numpy()
        box = OffsetImage(image, zoom=28 / max(shape), cmap="gray_r")
        ax.add_artist(
            AnnotationBbox(box, (float(points[number][0]), float(points[number][1])), pad=0.1, bboxprops={"lw": 0.4})
        )


def tree(ax: "Axes", epochs: Sequence[int], parents: Sequence[Tensor], names: Sequence[str] | None = None) -> None:
    """How solutions merge as one goes back through a training, from the right to the left.

    Args:
        ax: axes to draw on.
        epochs: rising.
        parents: for each epoch but the first, the number of each solution's parent at the epoch before.
        names: of the leaves, if there are few enough to write them.
    """
    from matplotlib.collections import LineCollection

    heights = tree_heights(parents, None if names is None else len(names))
    lines = [
        ((first, below[own]), (second, above[child]))
        for (first, second), parent, (below, above) in zip(pairwise(epochs), parents, pairwise(heights), strict=True)
        for child, own in enumerate(parent.tolist())
    ]
    ax.add_collection(LineCollection(lines, colors="0.3", linewidths=0.7))
    ax.autoscale()
    ax.yaxis.tick_right()  # where the leaves are
    if epochs[0] > 0:
        ax.set_xscale("log")  # most splits come early
        some = sorted({epochs[0], epochs[len(epochs) // 2], epochs[-1]})
        ax.set_xticks(some, [str(epoch) for epoch in some])
        ax.set_xticks([], minor=True)
    if names is not None:
        ax.set_yticks(heights[-1], names, fontsize=6)
    else:
        ax.set_yticks([])
    ax.set_xlabel("epoch")


def tree_heights(parents: Sequence[Tensor], n_leaves: int | None = None) -> list[list[float]]:
    """A height for each solution of each epoch, such that no lines cross: leaves in a row, others amid theirs."""
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
        for child, own in enumerate(parent.tolist()):
            children.setdefault(own, []).append(heights[-1][child])
        heights.append([sum(children[own]) / len(children[own]) for own in sorted(children)])
    return heights[::-1]


def denoising_curves(
    ax: "Axes", noise: Sequence[float], scores: Mapping[str, Sequence[float]], quantity: str = "MCC"
) -> None:
    """How well methods recover data over the strength of the noise [fig:bmnist-denoise]."""
    for name, values in scores.items():
        ax.plot(noise, values, "o-", ms=3, label=name)
    ax.set_xlabel("noise")
    ax.set_ylabel(quantity)
    ax.legend()


def image_strips(
    ax: "Axes", rows: Mapping[str, Tensor], shape: tuple[int, int], columns: Sequence[str] | None = None
) -> None:
    """Rows of images below each other: originals, noisy ones, restored ones [fig:bmnist-denoise-images].

    Args:
        ax: axes to draw on.
        rows: images of each row, (N, pixels), by its name.
        shape: of each image, in pixels.
        columns: what is written above each column.
    """
    count = max(len(images) for images in rows.values())
    padded = torch.cat([torch.cat((z, z.new_zeros(count - len(z), z.shape[1]))) for z in rows.values()])
    image_grid(ax, padded, shape, count, ink="black")
    ax.set_axis_on()
    height, width = shape[0] + 1, shape[1] + 1
    ax.set_yticks([height * number + height / 2 - 1 for number in range(len(rows))], list(rows))
    places = [width * number + width / 2 - 1 for number in range(count)] if columns is not None else []
    ax.set_xticks(places, columns)
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    for side in ax.spines.values():
        side.set_visible(False)
