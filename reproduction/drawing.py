"""Shared parts of the figures: colors of machines and methods, and tables drawn as text."""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from reproduction.lab import Lab, Row
from reproduction.models import BINARY_MODELS, FACES_256
from reproduction.style import BLACK, BLUE, FONT_SIZE, GRAY, GREEN, ORANGE, PURPLE, VERMILION
from tapmachine.display.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Machines of quick runs have the colors of the machines they represent.
MACHINE_COLORS = dict(zip((*BINARY_MODELS, FACES_256), (ORANGE, GREEN, BLUE, VERMILION, PURPLE), strict=True))
TAP_COLOR, EXACT_COLOR, SAMPLES_COLOR = VERMILION, BLACK, ORANGE
BASELINES: dict[str, dict[str, Any]] = {
    "OPE": {"color": BLACK, "ls": "--"},
    "1-NN": {"color": BLACK, "ls": "-"},
    "noisy": {"color": GRAY, "ls": ":"},
}
LINE, MARGIN, GUTTER = 0.155, 0.06, 0.12  # inches: line height, row margin, column spacing


def hidden_color(lab: Lab, n_hidden: float) -> str:
    """Return the color used in all figures for machines with a given number of hidden units."""
    sizes = {lab.model(model).hidden[0]: color for model, color in reversed(MACHINE_COLORS.items())}
    return sizes.get(int(n_hidden), GRAY)


def numbers(rows: Sequence[Row], *names: str) -> tuple[list[float], ...]:
    """Return columns of a table as numbers."""
    return tuple([float(row[name]) for row in rows] for name in names)


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[float]) -> "Figure":
    """Draw a table in the style of a journal, with horizontal rules only.

    Args:
        header: Names of the columns.
        rows: Cells of each row; line breaks are kept.
        widths: Widths of the columns in inches.
    """
    heights = [LINE * max(cell.count("\n") + 1 for cell in row) + MARGIN for row in (header, *rows)]
    width, height = sum(widths), sum(heights) + 2 * MARGIN
    figure = new_figure(width, height)
    figure.set_layout_engine("none")
    ax = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    ax.set_axis_off()
    top = MARGIN
    for number, (row, size) in enumerate(zip((header, *rows), heights, strict=True)):
        if number < 2:
            ax.axhline(top, color=BLACK, lw=0.8 if number == 0 else 0.5)
        left = GUTTER / 2
        for cell, room in zip(row, widths, strict=True):
            for line, text in enumerate(cell.split("\n")):  # line by line, so that all columns have the same baselines
                ax.text(left, top + MARGIN + LINE * (line + 0.7), text, va="baseline")
            left += room
        top += size
    ax.axhline(top + MARGIN / 2, color=BLACK, lw=0.8)
    return figure


@cache
def text_width(text: str) -> float:
    """Return the width, in inches, of text drawn by `text_table`."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=FONT_SIZE)
    widths = (text_to_path.get_text_width_height_descent(line, font, "$" in line)[0] for line in text.split("\n"))
    return max(float(width) for width in widths) / 72
