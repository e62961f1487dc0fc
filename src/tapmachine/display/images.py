"""Conversion of arrays to PNG files and data URIs."""

import base64
import struct
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

LEVELS = 31  # number of gray levels above black; more levels would double the file size
DIVERGING = 127  # number of color steps from 0 to the largest absolute value
NEGATIVE, ZERO, POSITIVE = (33, 102, 172), (247, 247, 247), (178, 24, 43)


def png(pixels: Tensor, palette: Sequence[tuple[int, int, int]] | None = None) -> bytes:  # (height, width), uint8
    """Encode an array as an 8-bit PNG file. Pixels are gray values, or indices into a palette."""
    height, width = pixels.shape
    rows = torch.cat((torch.zeros(height, 1, dtype=torch.uint8), pixels.to(torch.uint8).cpu()), 1)  # no filter

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0 if palette is None else 3, 0, 0, 0)
    colors = b"" if palette is None else chunk(b"PLTE", bytes(value for color in palette for value in color))
    data = zlib.compress(rows.contiguous().numpy().tobytes(), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + colors + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def data_uri(content: bytes) -> str:
    """Return the data URI of a PNG file."""
    return "data:image/png;base64," + base64.b64encode(content).decode()


def gray(shares: Tensor) -> Tensor:  # values from 0 to 1 -> uint8
    """Convert values between 0 (black) and 1 (white) to gray levels, rounded to 32 levels to keep files small."""
    return ((shares.clamp(0, 1) * LEVELS).round() * (255 / LEVELS)).round().to(torch.uint8)


def diverging(values: Tensor) -> Tensor:  # values from −1 to 1 -> uint8
    """Convert values between −1 and 1 to indices into `diverging_palette`.

    Negative values are blue, 0 is white, and positive values are red.
    """
    return (values.clamp(-1, 1).nan_to_num(0.0) * DIVERGING + DIVERGING).round().to(torch.uint8)


def diverging_palette() -> list[tuple[int, int, int]]:
    """Return a color palette that runs from blue through white to red."""
    colors = []
    for index in range(2 * DIVERGING + 1):
        share = abs(index - DIVERGING) / DIVERGING
        end = NEGATIVE if index < DIVERGING else POSITIVE
        red, green, blue = (round(zero + share * (full - zero)) for zero, full in zip(ZERO, end, strict=True))
        colors.append((red, green, blue))
    return colors


def sheet(values: Tensor) -> str:  # (K, n), from 0 to 1
    """Encode each row of values as one pixel row of a gray image, which the page's script decodes.

    Returns an empty string if there are no rows.
    """
    return data_uri(png(gray(values))) if len(values) else ""


def image_grid(
    images: Tensor, shape: tuple[int, int], columns: int | None = None, signed: bool | None = None, gap: int = 1
) -> tuple[str, int, int]:  # (K, pixels)
    """Arrange images in a grid. The brightness of each image is scaled separately.

    Args:
        images: One flattened image per row, (K, pixels).
        shape: Height and width of each image.
        columns: Number of images per row of the grid (default: chosen for a roughly square grid).
        signed: Whether to color values by sign (default: True if any value is negative).
        gap: Space between images in pixels (default: 1).

    Returns:
        The data URI of the grid, and the grid's width and height in pixels.
    """
    images = images.detach().cpu().double()
    count, (height, width) = len(images), shape
    columns = min(columns or max(1, round(count**0.5)), max(1, count))
    rows = max(1, -(-count // columns))
    signed = bool((images < 0).any()) if signed is None else signed
    size = images.nan_to_num(0.0).abs().amax(1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    background = 255 if signed else 128
    canvas = torch.full((rows * (height + gap) - gap, columns * (width + gap) - gap), background, dtype=torch.uint8)
    values = diverging(images / size) if signed else gray(images / size)
    for number, image in enumerate(values.view(count, height, width)):
        top, left = number // columns * (height + gap), number % columns * (width + gap)
        canvas[top : top + height, left : left + width] = image
    palette = [*diverging_palette(), (160, 160, 160)] if signed else None  # index 255 is the color of the gaps
    return data_uri(png(canvas, palette)), canvas.shape[1], canvas.shape[0]
