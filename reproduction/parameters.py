"""Settings of all training runs [tab:params]."""

from typing import TYPE_CHECKING

from reproduction.drawing import GUTTER, text_table, text_width
from reproduction.lab import Lab, Row
from reproduction.models import DEEP_MODELS, TABLE, VISIBLE, Model
from reproduction.style import styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Table I: the settings of all trainings"
HEADER = {
    "model": "machine",
    "hidden": "hidden units",
    "M": "$M$",
    "K": "$K$",
    "visible": "visible units",
    "gamma": "first $\\gamma$",
    "last_gamma": "last $\\gamma$",
    "epsilon": "$\\epsilon$",
    "eta": "$\\eta$",
    "pretrain": "pretraining",
    "epochs": "epochs",
}


def needed(lab: Lab) -> list[Model]:
    """Return an empty list: no models are trained before drawing."""
    return []


def table(lab: Lab) -> list[Row]:
    """Return the settings of each model."""
    models = [lab.model(model) for model in (*TABLE, *DEEP_MODELS)]
    return lab.table(
        "params",
        lambda: [
            {
                "model": model.name,
                "hidden": "-".join(map(str, model.hidden)),
                "M": model.batch_size,
                "K": model.particles,
                "visible": VISIBLE[model.data],
                "gamma": model.learning_rate,
                "last_gamma": model.learning_rate * model.decay,
                "epsilon": model.weight_decay,
                "eta": model.momentum,
                "pretrain": model.pretrain,
                "epochs": model.epochs,
            }
            for model in models
        ],
    )


@styled
def draw(lab: Lab) -> "Figure":
    """Draw the table."""
    rows = table(lab)
    cells = [[_cell(value) for value in row.values()] for row in rows]
    header = [HEADER[name] for name in rows[0]]
    widths = [max(map(text_width, column)) + GUTTER for column in zip(header, *cells, strict=True)]
    return text_table(header, cells, widths)


def _cell(value: float | int | str) -> str:
    if not isinstance(value, float):
        return str(value)
    digits, exponent = f"{value:.0e}".split("e")
    return f"{value:g}" if value == 0 or value >= 1e-4 else f"{digits}·$10^{{{int(exponent)}}}$".removeprefix("1·")
