"""Training from noisy starts, which the paper suggests as a remedy for overtraining with 500 hidden units."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from reproduction.denoising import N_IMAGES, estimates, label_of, mcc, name_of, score_curves, style_of
from reproduction.drawing import numbers
from reproduction.lab import Lab, Row
from reproduction.models import BINARY, BINARY_500, NOISY_500, Model
from reproduction.solutions import likelihood_table, needs_solutions
from reproduction.style import PAGE, panel_title, shared_legend, styled
from tapmachine.display.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "500 hidden units, trained from the batch and from a noisy batch: denoising and numbers of solutions"


def measured(lab: Lab) -> list[Model]:
    """Return the models whose solutions must still be measured."""
    return needed(lab)


def needed(lab: Lab) -> list[Model]:
    """Return the models whose measurements are missing."""
    known = lab.knows("noisy-starts")
    return [model for model in _models(lab) if not known or needs_solutions(lab, model)]


def _models(lab: Lab) -> list[Model]:
    return [model for model in (BINARY_500, NOISY_500) if lab.includes(model)]


def table(lab: Lab) -> list[Row]:
    """Return the MCC of each method at each p. Machines start from the pointwise estimate."""

    def make() -> Iterable[Row]:
        x = lab.rows(BINARY)[1][: N_IMAGES[lab.quick]]
        for p, name, estimate in estimates(lab, x, _models(lab), examples=False):
            yield {"p": p, "method": f"{name} hidden units" if name.isdigit() else name, "mcc": mcc(x, estimate)}

    return lab.table("noisy-starts", make)


@styled
def draw(lab: Lab) -> "Figure":
    """Draw the figure from the tables."""
    rows = table(lab)
    figure = new_figure(PAGE, 2.4)
    axes = list(figure.subplots(1, 3))
    names = [name for name in dict.fromkeys(str(row["method"]) for row in rows) if name != "noisy"]
    score_curves(lab, axes[0], rows, names)
    for model in _models(lab):
        own = [row for row in likelihood_table(lab, model) if row.get("per_unit", "") != ""]
        name = name_of(lab, model)
        style = style_of(lab, name) | {"label": label_of(name)}
        epochs, found, n_starts, test = numbers(own, "epoch", "solutions", "starts", "test_log_likelihood")
        axes[1].plot(epochs, [count / total for count, total in zip(found, n_starts, strict=True)], **style)
        axes[2].plot(epochs, test, **style)
    axes[1].set(xlabel="epoch", ylabel="solutions / starts")
    axes[2].set(xlabel="epoch", ylabel="TAP log-likelihood of\ntest images (nats)")
    for ax, letter, title in zip(axes, "abc", ("denoising", "number of solutions", "likelihood"), strict=True):
        panel_title(ax, letter, title)
    shared_legend(figure, axes)
    return figure
