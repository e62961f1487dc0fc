"""TAP log-likelihood during training [fig:bmnist-tapLL]."""

from typing import TYPE_CHECKING

import numpy as np

from reproduction.drawing import hidden_color, numbers
from reproduction.lab import Lab, Row
from reproduction.models import BINARY_MODELS, FACES_256, LETTERS, REAL_MODELS, TABLE, Model
from reproduction.solutions import likelihood_table, needs_solutions
from reproduction.style import PAGE, panel_title, shared_legend, styled
from tapmachine.display.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "TAP log-likelihood per unit over training: (a) binary-MNIST, (b) real-MNIST, (c) CBCL"
LAST_EPOCH = 100  # last epoch shown in the figure


def measured(lab: Lab) -> list[Model]:
    """Return the models whose solutions must still be measured."""
    return needed(lab)


def needed(lab: Lab) -> list[Model]:
    """Return the models whose log-likelihood has not been measured."""
    return [model for models in panels(lab) for model in models if needs_solutions(lab, model)]


def panels(lab: Lab) -> list[list[Model]]:
    """Return the models of each panel, omitting models whose data are missing."""
    found = [
        [model for model in models if lab.includes(model)] for models in (BINARY_MODELS, REAL_MODELS, (FACES_256,))
    ]
    return [models for models in found if models]


def table(lab: Lab) -> list[Row]:
    """Return the log-likelihood of each model at each epoch."""
    found = [(model, row) for models in panels(lab) for model in models for row in likelihood_table(lab, model)]
    return lab.table(
        "bmnist-tapLL",
        lambda: [{"data": model.data, "n_hidden": lab.model(model).hidden[0], **row} for model, row in found],
    )


@styled
def draw(lab: Lab) -> "Figure":
    """Draw the figure from the table."""
    lab.require(TABLE)
    rows = table(lab)
    sets = list(dict.fromkeys(str(row["data"]) for row in rows))
    figure = new_figure(PAGE, 2.4)
    axes = list(figure.subplots(1, len(sets), squeeze=False).flat)
    for ax, data in zip(axes, sets, strict=True):
        for n_hidden in sorted({float(row["n_hidden"]) for row in rows if row["data"] == data}):
            own = [row for row in rows if row["data"] == data and row["n_hidden"] == n_hidden]
            own = [row for row in own if row["per_unit"] != "" and float(row["epoch"]) <= LAST_EPOCH]
            _curve(ax, own, f"$N_h$ = {n_hidden:.0f}", hidden_color(lab, n_hidden))
        panel_title(ax, LETTERS[data], data)
        ax.set_xlabel("epoch")
    shared_legend(figure, axes)
    axes[0].set_ylabel("TAP log-likelihood\nper unit (nats)")
    return figure


def _curve(ax: "Axes", rows: list[Row], label: str, color: str) -> None:
    """Draw the log-likelihood per unit with its standard error. The table has the standard error for all units."""
    epochs, values, errors, totals = map(
        np.array, numbers(rows, "epoch", "per_unit", "standard_error", "log_likelihood")
    )
    errors = np.abs(errors * values / totals)
    ax.plot(epochs, values, "o-", label=label, color=color)
    ax.fill_between(epochs, values - errors, values + errors, alpha=0.3, color=color, lw=0)
