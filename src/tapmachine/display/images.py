"""Images: grids of images drawn on Matplotlib axes, and PNG files of gray values."""

import base64
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

LEVELS = 31  # number of gray levels above black; more levels would double the file size
GAP = "0.8"  # gray level between images


def image_grid(
    ax: "Axes",
    images: Tensor,
    shape: tuple[int, int],
    columns: int | None = None,
    ink: str = "white",
    scale: float | None = None,
    signed: bool | None = None,
    frames: Sequence[str] | None = None,
) -> "AxesImage":
    """Draw a grid of small images.

    Args:
        ax: Axes to draw on.
        images: Images as rows, shape (N, pixels).
        shape: Height and width of each image in pixels.
        columns: Number of images per row (default: chosen to make the grid square).
        ink: Color of the largest value of non-negative images, "white" or "black".
        scale: Absolute value with the strongest color (default: the largest absolute value of each image).
        signed: Whether to use a diverging color map centered at 0 (default: True if any value is negative).
        frames: Color of a frame around each image (default: no frames).

    Returns:
        The drawn image, as needed by `Figure.colorbar`.
    """
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    images = torch.as_tensor(images).detach().cpu().double()
    count, (height, width) = len(images), shape
    if count and images[0].numel() != height * width:
        raise ValueError(f"images have {images[0].numel()} pixels; expected {height}×{width}")
    columns, rows = grid_shape(count, columns)
    signed = bool((images < 0).any()) if signed is None else signed
    if scale is None:
        images = images / images.nan_to_num(0.0).abs().amax(1, keepdim=True).clamp(min=torch.finfo(images.dtype).tiny)
    largest = 1.0 if scale is None else scale
    gap = 1 if frames is None else max(2, round(max(shape) / 5))
    canvas = images.new_full((rows * (height + gap) - gap, columns * (width + gap) - gap), torch.nan)
    for index, image in enumerate(images.view(count, height, width)):
        top, left = index // columns * (height + gap), index % columns * (width + gap)
        canvas[top : top + height, left : left + width] = image
        if frames is not None:
            corner = (left - 0.5 - gap / 2, top - 0.5 - gap / 2)
            ax.add_patch(Rectangle(corner, width + gap, height + gap, color=frames[index], lw=0, clip_on=False))
    unsigned = "gray_r" if ink == "black" else "gray"
    colors = colormaps["RdBu_r" if signed else unsigned].with_extremes(bad=GAP if frames is None else "none")
    lowest = -largest if signed else 0.0
    drawn = ax.imshow(canvas.numpy(), cmap=colors, vmin=lowest, vmax=largest, interpolation="none", zorder=2)
    ax.set_axis_off()
    return drawn


def grid_shape(count: int, columns: int | None = None) -> tuple[int, int]:
    """Return the number of columns and rows of a grid of images, which is square by default."""
    columns = min(columns or max(1, round(count**0.5)), max(1, count))
    return columns, max(1, -(-count // columns))


def image_strips(
    ax: "Axes",
    rows: Mapping[str, Tensor],
    shape: tuple[int, int],
    columns: Sequence[str] | None = None,
    ink: str = "black",
) -> None:
    """Draw rows of images below each other on one gray scale [fig:bmnist-denoise-images].

    Args:
        ax: Axes to draw on.
        rows: Images of each row, shape (N, pixels), by the label of the row.
        shape: Height and width of each image in pixels.
        columns: Labels of the columns, which are drawn above the images.
        ink: Color of the largest value, "white" or "black".
    """
    count = max(len(images) for images in rows.values())
    padded = torch.cat([torch.cat((z, z.new_zeros(count - len(z), z.shape[1]))) for z in rows.values()])
    image_grid(ax, padded, shape, count, ink, scale=float(padded.nan_to_num(0.0).abs().max()) or 1.0)
    ax.set_axis_on()
    height, width = shape[0] + 1, shape[1] + 1
    ax.set_yticks([height * index + height / 2 - 1 for index in range(len(rows))], list(rows))
    ticks = [width * index + width / 2 - 1 for index in range(count)] if columns is not None else []
    ax.set_xticks(ticks, columns)
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def gray_png(values: Tensor) -> str:  # (height, width), from 0 (black) to 1 (white)
    """Return the data URI of a gray PNG file, with 32 gray levels to keep files small."""
    from PIL import Image

    levels = ((values.clamp(0, 1) * LEVELS).round() * (255 / LEVELS)).round().to(torch.uint8)
    file = io.BytesIO()
    Image.fromarray(levels.cpu().numpy()).save(file, "png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
