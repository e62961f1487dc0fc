"""One digit with more and more noise, and what each method makes of it [fig:bmnist-denoise-images]."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tapmachine.analysis.plots import image_strips, new_figure
from tapmachine.apps.reproduce.denoising import estimates, models_of
from tapmachine.apps.reproduce.lab import Lab, Row, images_of, images_table
from tapmachine.apps.reproduce.models import BINARY, Model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "One digit with more and more noise, and what each method makes of it"
DIGIT = 0  # of the test images


def needed(lab: Lab) -> list[Model]:
    """All models, unless the images are known."""
    return [] if lab.knows("bmnist-denoise-images") else models_of(lab)


def table(lab: Lab) -> list[Row]:
    """The estimates as images."""

    def make() -> Iterable[Row]:
        x = lab.rows(BINARY)[1][DIGIT : DIGIT + 1]
        for p, name, estimate in estimates(lab, x, models_of(lab)):
            yield from images_table((100 * estimate).round() / 100, p=[p], method=[name])

    return lab.table("bmnist-denoise-images", make)


def draw(lab: Lab) -> "Figure":
    """The figure, from the table."""
    rows = table(lab)
    names = list(dict.fromkeys(row["method"] for row in rows))
    strips = {
        name if isinstance(name, str) else f"{name:.0f}": images_of([row for row in rows if row["method"] == name])
        for name in names
    }
    noise = [f"p = {p:g}" for p in sorted({float(row["p"]) for row in rows})]
    figure = new_figure(10, 0.84 * len(strips) + 0.4)
    image_strips(figure.subplots(), strips, lab.image_shape(BINARY), noise)
    return figure
