"""Training from noisy starts against the over-training of 500 hidden units, as the paper suggests."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tapmachine.analysis.plots import denoising_curves, new_figure
from tapmachine.analysis.scores import mcc
from tapmachine.apps.reproduce.denoising import N_IMAGES, NOISE, estimates, name_of
from tapmachine.apps.reproduce.lab import Lab, Row
from tapmachine.apps.reproduce.models import BINARY, BINARY_500, NOISY_500, Model
from tapmachine.apps.reproduce.solutions import likelihood_table, needs_solutions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "500 hidden units, trained from the batch and from a noisy batch: denoising and numbers of solutions"


def measured(lab: Lab) -> list[Model]:
    """Models whose solutions are measured."""
    return needed(lab)


def needed(lab: Lab) -> list[Model]:
    """Models whose numbers are not known yet."""
    known = lab.knows("noisy-starts")
    return [model for model in _models(lab) if not known or needs_solutions(lab, model)]


def _models(lab: Lab) -> list[Model]:
    return [model for model in (BINARY_500, NOISY_500) if lab.includes(model)]


def table(lab: Lab) -> list[Row]:
    """MCC of each method at each p, from the pointwise estimate."""

    def make() -> Iterable[Row]:
        x = lab.rows(BINARY)[1][: N_IMAGES[lab.quick]]
        for p, name, estimate in estimates(lab, x, _models(lab), examples=False):
            yield {"p": p, "method": f"{name} hidden units" if name.isdigit() else name, "mcc": mcc(x, estimate)}

    return lab.table("noisy-starts", make)


def draw(lab: Lab) -> "Figure":
    """The figure, from the tables."""
    rows = table(lab)
    figure = new_figure(12, 3.8)
    left, middle, right = figure.subplots(1, 3)
    names = [name for name in dict.fromkeys(str(row["method"]) for row in rows) if name != "noisy"]
    denoising_curves(left, NOISE, {n: [float(r["mcc"]) for r in rows if str(r["method"]) == n] for n in names})
    left.set_xlabel("probability of a flip")
    for model in _models(lab):
        own = [row for row in likelihood_table(lab, model) if row.get("per_unit", "") != ""]
        epochs, label = [float(row["epoch"]) for row in own], name_of(lab, model)
        middle.plot(epochs, [float(r["solutions"]) / float(r["starts"]) for r in own], "o-", ms=3, label=label)
        right.plot(epochs, [float(r["test_log_likelihood"]) for r in own], "o-", ms=3, label=label)
    middle.set(xlabel="epoch", ylabel="solutions, as a share of the starts")
    right.set(xlabel="epoch", ylabel="TAP log-likelihood of test images, nats")
    middle.legend()
    return figure
