"""The TAP log-likelihood over training [fig:bmnist-tapLL]."""

from typing import TYPE_CHECKING

from tapmachine.analysis.plots import new_figure
from tapmachine.apps.reproduce.lab import Lab, Row
from tapmachine.apps.reproduce.models import BINARY_MODELS, FACES_256, LETTERS, REAL_MODELS, Model
from tapmachine.apps.reproduce.solutions import likelihood_table, needs_solutions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "TAP log-likelihood per unit over training: (a) binary-MNIST, (b) real-MNIST, (c) CBCL"
LAST_EPOCH = 100  # that is shown


def measured(lab: Lab) -> list[Model]:
    """Models whose solutions are measured."""
    return needed(lab)


def needed(lab: Lab) -> list[Model]:
    """Models whose log-likelihood is not known yet."""
    return [model for models in panels(lab) for model in models if needs_solutions(lab, model)]


def panels(lab: Lab) -> list[list[Model]]:
    """The models of each panel whose data are at hand."""
    found = [
        [model for model in models if lab.includes(model)] for models in (BINARY_MODELS, REAL_MODELS, (FACES_256,))
    ]
    return [models for models in found if models]


def table(lab: Lab) -> list[Row]:
    """A row for each model and epoch."""
    found = [(model, row) for models in panels(lab) for model in models for row in likelihood_table(lab, model)]
    return lab.table(
        "bmnist-tapLL",
        lambda: [{"data": model.data, "n_hidden": lab.model(model).hidden[0], **row} for model, row in found],
    )


def draw(lab: Lab) -> "Figure":
    """The figure, from the table."""
    rows = table(lab)
    sets = list(dict.fromkeys(str(row["data"]) for row in rows))
    figure = new_figure(4.2 * len(sets), 3.4)
    for ax, data in zip(figure.subplots(1, len(sets), squeeze=False).flat, sets, strict=True):
        for n_hidden in sorted({float(row["n_hidden"]) for row in rows if row["data"] == data}):
            own = [row for row in rows if row["data"] == data and row["n_hidden"] == n_hidden]
            own = [row for row in own if row["per_unit"] != "" and float(row["epoch"]) <= LAST_EPOCH]
            epochs, values = ([float(row[name]) for row in own] for name in ("epoch", "per_unit"))
            # The error of the mean, in the same unit as the mean itself.
            errors = [
                abs(float(row["standard_error"]) * float(row["per_unit"]) / float(row["log_likelihood"])) for row in own
            ]
            ax.plot(epochs, values, "o-", ms=3, label=f"{n_hidden:.0f} hidden units")
            ax.fill_between(
                epochs,
                [v - e for v, e in zip(values, errors, strict=True)],
                [v + e for v, e in zip(values, errors, strict=True)],
                alpha=0.3,
            )
        ax.set_title(f"({LETTERS[data]}) {data}")
        ax.set_xlabel("epoch")
        ax.set_ylabel("TAP log-likelihood per unit, nats")
        ax.legend()
    return figure
