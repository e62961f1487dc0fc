"""One digit with increasing noise, and its estimate by each method [fig:bmnist-denoise-images]."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from reproduction.denoising import estimates, models_of
from reproduction.lab import Lab, Row, images_of, images_table
from reproduction.models import BINARY, Model
from reproduction.style import PAGE, styled
from tapmachine.display.figures import new_figure
from tapmachine.display.images import image_strips

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "One digit with increasing noise, and its estimate by each method"
DIGIT = 0  # index of the test image
LABELS = 0.8  # width of the row labels in inches


def needed(lab: Lab) -> list[Model]:
    """Return the models to train: all models if the table is missing, otherwise none."""
    return [] if lab.knows("bmnist-denoise-images") else models_of(lab)


def table(lab: Lab) -> list[Row]:
    """Return the estimates of each method at each p as images."""

    def make() -> Iterable[Row]:
        x = lab.rows(BINARY)[1][DIGIT : DIGIT + 1]
        for p, name, estimate in estimates(lab, x, models_of(lab)):
            yield from images_table((100 * estimate).round() / 100, p=[p], method=[name])

    return lab.table("bmnist-denoise-images", make)


@styled
def draw(lab: Lab) -> "Figure":
    """Draw the figure from the table, with 0 in white and 1 in black as in the paper."""
    rows = table(lab)
    names = list(dict.fromkeys(row["method"] for row in rows))
    strips = {_label(name): images_of([row for row in rows if row["method"] == name]) for name in names}
    noise = sorted({float(row["p"]) for row in rows})
    width = (PAGE - LABELS) / len(noise)
    figure = new_figure(PAGE, width * len(strips) + 0.25)
    ax = figure.subplots()
    image_strips(ax, strips, lab.image_shape(BINARY), [f"$p$ = {p:g}" for p in noise])
    ax.set_anchor("E")
    return figure


def _label(method: float | int | str) -> str:
    size, _, rest = (method if isinstance(method, str) else f"{method:.0f}").partition(",")
    return (f"$N_h$ = {size}" if size.isdigit() else size) + (",\nexamples" if rest else "")
