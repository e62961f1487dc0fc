"""Style of the paper's figures: printed sizes, font sizes and a palette for readers with color vision deficiency."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from tapmachine.display.figures import STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
R = TypeVar("R")

COLUMN, PAGE, PAGE_HEIGHT = 3.4, 7.0, 9.4  # printed sizes in inches: column width, page width, page height
FONT_SIZE = 8  # in points at the printed size

# The palette of Okabe and Ito.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, GRAY = "#0072B2", "#D55E00", "#CC79A7", "#7F7F7F"
PALETTE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, BLACK)

SETTINGS: dict[str, Any] = STYLE | {
    "font.size": FONT_SIZE,
    **{f"{name}size": FONT_SIZE for name in ("axes.title", "axes.label", "xtick.label", "ytick.label", "legend.font")},
    **{f"{name}color": BLACK for name in ("text.", "axes.edge", "axes.label", "xtick.", "ytick.")},
    "text.parse_math": True,
    "legend.title_fontsize": FONT_SIZE,
    "figure.titlesize": FONT_SIZE,
    "axes.titlepad": 4,
    "axes.labelpad": 2,
    "lines.linewidth": 1.2,
    "lines.markersize": 3,
    **{f"{axis}tick.major.size": 2.5 for axis in "xy"},
    **{f"{axis}tick.minor.size": 1.5 for axis in "xy"},
    **{f"{axis}tick.major.pad": 2 for axis in "xy"},
    "legend.handletextpad": 0.5,
    "legend.labelspacing": 0.25,
    "legend.columnspacing": 1.2,
    "legend.borderaxespad": 0.3,
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
    "pdf.fonttype": 42,  # keeps text as text instead of outlines
    "svg.fonttype": "none",
}


@contextmanager
def figure_style() -> Iterator[None]:
    """Apply the common style within a `with` block, for drawing and for saving."""
    from matplotlib import rc_context
    from matplotlib.rcsetup import cycler

    settings: Any = SETTINGS | {"axes.prop_cycle": cycler(color=PALETTE)}
    with rc_context(settings):
        yield


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that draws a figure, so that it uses the common style."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> R:
        with figure_style():
            return draw(*args, **kwargs)

    return drawn


def sequence(count: int) -> list[str]:
    """Return colors for an ordered quantity, such as epochs, from dark to light."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["viridis"](0.88 * number / max(1, count - 1))) for number in range(count)]


def panel_title(ax: "Axes", letter: str, text: str = "") -> None:
    """Write the letter of a panel and an optional title above its upper left corner."""
    ax.set_title(f"({letter}) {text}".rstrip(), loc="left")


def shared_legend(figure: "Figure", axes: "Iterable[Axes]", columns: int = 6, marker_scale: float = 1.0) -> None:
    """Draw one legend above all panels, showing each label once and using at most as many columns as fit."""
    pairs = [pair for ax in axes for pair in zip(*ax.get_legend_handles_labels(), strict=True)]
    found = {label: handle for handle, label in reversed(pairs)}
    labels = list(dict.fromkeys(label for _, label in pairs))
    if labels:
        handles = [found[label] for label in labels]
        columns = _fitting_columns(labels, columns, figure.get_figwidth())
        legend = figure.legend(handles, labels, loc="outside upper center", ncols=columns, markerscale=marker_scale)
        for handle in legend.legend_handles:
            if handle is not None:
                handle.set_alpha(1)  # a single transparent dot would be invisible


def _fitting_columns(labels: list[str], columns: int, width: float) -> int:
    """Return the largest number of legend columns, up to `columns`, that fit into `width` inches."""
    from matplotlib.textpath import TextPath

    beside = sum(SETTINGS[f"legend.{name}"] for name in ("handlelength", "handletextpad", "columnspacing")) * FONT_SIZE
    widths = [TextPath((0, 0), label, size=FONT_SIZE).get_extents().width + beside for label in labels]
    for n in range(min(columns, len(labels)), 1, -1):
        parts = np.array_split(widths, n)  # Matplotlib divides the labels among the columns in the same way
        if sum(part.max() for part in parts) <= 72 * width:
            return n
    return 1
