"""Figures: their creation, common style, and output as SVG for pages and notebooks."""

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from tapmachine.display.html import escape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

P = ParamSpec("P")
R = TypeVar("R")

# Readable on white and on black backgrounds, and chosen to be distinguishable by color-blind readers.
COLORS = (
    "#4c82c3", "#e8872b", "#d9534f", "#3fa7a0", "#5aa54b", "#c9a227", "#a773ab", "#ef8aa5", "#9c755f", "#8a8f98",
)  # fmt: skip
OTHERS = "#b4b8bf"  # color of classes without a color of their own
INK = "#1c1e21"  # color of text and axes; in SVG, it is replaced by the color of the surrounding text
FONT_SIZE = 11

STYLE: dict[str, Any] = {
    "font.size": FONT_SIZE,
    **{f"{name}size": FONT_SIZE for name in ("axes.title", "axes.label", "xtick.label", "ytick.label", "legend.font")},
    **{f"{name}color": INK for name in ("text.", "axes.edge", "axes.label", "xtick.", "ytick.")},
    "text.parse_math": False,  # names of columns may contain dollar signs
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 4,
    **{f"{axis}tick.{kind}.width": 0.6 for axis in "xy" for kind in ("major", "minor")},
    "legend.frameon": False,
    "legend.handlelength": 1.5,
}

# What Matplotlib writes into an SVG file, and what a page needs instead.
SVG_RULES = (
    (r' id="[\w.]+_\d+"', ""),  # unused, and not unique on a page
    (r"xlink:href", "href"),
    (r"'DejaVu Sans'[^;\"]*sans-serif", "system-ui, sans-serif"),
    (f": {INK}", ": currentColor"),
    (r' transform="rotate\(-0 [^"]*"', ""),
    (r"\s*\n\s*", " "),
)


def color(index: int) -> str:
    """Return the color of the series or class at an index.

    The first ten colors are fixed. Further hues are spaced by the golden angle around the color wheel.
    """
    return COLORS[index] if index < len(COLORS) else f"hsl({(index * 137.5) % 360:.0f} 50% 52%)"


def new_figure(width: float, height: float) -> "Figure":
    """Create an empty figure that can be drawn without a display.

    Args:
        width: Width in inches.
        height: Height in inches.
    """
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


@contextmanager
def figure_style() -> Iterator[None]:
    """Apply the common style within a `with` block, for drawing and for saving."""
    from matplotlib import rc_context
    from matplotlib.rcsetup import cycler

    settings: Any = STYLE | {"axes.prop_cycle": cycler(color=COLORS)}
    with rc_context(settings):
        yield


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that draws a figure, so that it uses the common style."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> R:
        with figure_style():
            return draw(*args, **kwargs)

    return drawn


@styled
def svg(
    label: str, draw: Callable[..., object], *args: Any, size: tuple[float, float] = (340, 230), **options: Any
) -> str:
    """Draw a figure with one pair of axes as an SVG element, whose text has the color of the surrounding text.

    Args:
        label: Text alternative for screen readers.
        draw: Function that draws on axes, which are its first argument.
        args: Further arguments of the function.
        size: Width and height in pixels (default: 400×260). The element shrinks to the available width.
        options: Keyword arguments of the function.
    """
    from matplotlib import rc_context

    figure = new_figure(size[0] / 72, size[1] / 72)
    draw(figure.subplots(), *args, **options)
    file, unknown = io.StringIO(), dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({"svg.hashsalt": label, "svg.fonttype": "none"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the page has more fonts than Matplotlib
        figure.savefig(file, format="svg", transparent=True, metadata=unknown, dpi=144)
    inside = file.getvalue().partition("</defs>")[2].removesuffix("</svg>\n")  # without styles for the whole page
    for pattern, replacement in SVG_RULES:
        inside = re.sub(pattern, replacement, inside)
    width, height = size
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label='
        f'"{escape(label)}" style="width:{width:.0f}px;max-width:100%;height:auto;stroke-linejoin:round">{inside}</svg>'
    )
