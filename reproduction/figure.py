"""Record of a figure, and what figures have in common: sizes, colors, legends and access to tables.

The style is in `paper.mplstyle`, with a palette for readers with color vision deficiency.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from string import ascii_lowercase
from textwrap import wrap

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from reproduction.lab import Lab
from reproduction.models import BINARY_MODELS, FACES_256, Model
from tapmachine.data.errors import RunError
from tapmachine.display.figures import new_figure

COLUMN, PAGE, PAGE_HEIGHT = 3.4, 7.0, 9.4  # printed sizes in inches: column width, page width, page height
FONT_SIZE = 8  # in points at the printed size
PAPER = str(Path(__file__).with_name("paper.mplstyle"))  # to be used as `matplotlib.style.context(PAPER)`
# Machines of quick runs have the colors of the machines they represent.
MACHINE_COLORS = dict(zip((*BINARY_MODELS, FACES_256), ("C3", "C2", "C0", "C1", "C4"), strict=True))
LINE, LETTER = 0.13, 0.602 * FONT_SIZE / 72  # inches: height of a line and width of a letter


FIGURES: dict[str, "Figure"] = {}  # by label, of all modules that are imported
Draw = Callable[[Lab], Drawing]


@dataclass(frozen=True)
class Figure:
    """A figure or table of the paper."""

    label: str  # in the paper
    draw: Draw  # from tables, which are computed first if they are missing; its documentation begins with the title
    models: Sequence[Model]  # machines from which the tables are computed

    def drawn(self, lab: Lab) -> Drawing:
        """Draw the figure in the common style, or raise a RunError if all its machines are excluded."""
        names = [model.name for model in self.models]
        if names and lab.only and not lab.only & {*names}:
            raise RunError(f"--models excludes all machines of {self.label}; expected one of {', '.join(names)}")
        with style.context(PAPER):
            return self.draw(lab)


def figure(label: str, models: Sequence[Model] = ()) -> Callable[[Draw], Draw]:
    """Decorate a function that draws a figure from tables of some models, and add the figure to `FIGURES`."""

    def added(draw: Draw) -> Draw:
        FIGURES[label] = Figure(label, draw, models)
        return draw

    return added


def included(lab: Lab, models: Sequence[Model]) -> list[Model]:
    """Return the models that are selected and whose data are available."""
    return [model for model in models if lab.includes(model)]


def hidden_color(lab: Lab, n_hidden: float) -> str:
    """Return the color used in all figures for machines with a given number of hidden units."""
    sizes = {lab.model(model).hidden[0]: color for model, color in reversed(MACHINE_COLORS.items())}
    return sizes.get(int(n_hidden), "0.5")


def nearest(epochs: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Return the existing epochs that are nearest to the requested epochs, without duplicates."""
    return sorted({min(epochs, key=lambda own: abs(own - epoch)) for epoch in wanted})


def text_table(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> Drawing:
    """Draw a table with a header and with cells that are wrapped to the widths of the columns, in letters."""
    lines = []
    for row in rows:
        cells = [wrap(cell, width - 2) for cell, width in zip(row, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            lines.append("".join(part.ljust(width) for part, width in zip(parts, widths, strict=True)))
        lines += ["─" * sum(widths)] if row is rows[0] else []
    drawing = new_figure(LETTER * (sum(widths) - 1), LINE * (len(lines) + 1))
    drawing.text(0.5, 0.5, "\n".join(lines), family="monospace", ha="center", va="center", ma="left", linespacing=1.1)
    return drawing


def panel_title(ax: Axes, letter: str, text: str = "") -> None:
    """Write the letter of a panel and an optional title above its upper left corner."""
    ax.set_title(f"({letter}) {text}".rstrip(), loc="left")


def panels(titles: Sequence[str], share_y: bool = False) -> tuple[Drawing, list[Axes]]:
    """Create a figure with a row of panels, which have letters and titles."""
    drawing = new_figure(PAGE, 2.4)
    axes = list(drawing.subplots(1, len(titles), squeeze=False, sharey=share_y).flat)
    for ax, letter, title in zip(axes, ascii_lowercase, titles, strict=False):
        panel_title(ax, letter, title)
    return drawing, axes


def panel(height: float) -> tuple[Drawing, Axes]:
    """Create a figure of one panel that is as wide as a column."""
    drawing = new_figure(COLUMN, height)
    return drawing, drawing.subplots()


def shared_legend(drawing: Drawing, axes: Iterable[Axes], columns: int = 4, marker_scale: float = 1.0) -> None:
    """Draw one legend above all panels, showing each label once."""
    pairs = [pair for ax in axes for pair in zip(*ax.get_legend_handles_labels(), strict=True)]
    found = {label: handle for handle, label in reversed(pairs)}
    labels = list(dict.fromkeys(label for _, label in pairs))
    handles = [found[label] for label in labels]
    drawing.legend(handles, labels, loc="outside upper center", ncols=columns, markerscale=marker_scale)
