"""The settings of all trainings [tab:params]."""

from typing import TYPE_CHECKING

from tapmachine.analysis.plots import new_figure
from tapmachine.apps.reproduce.lab import Lab, Row
from tapmachine.apps.reproduce.models import DEEP_MODELS, TABLE, VISIBLE, Model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Table I: the settings of all trainings"


def needed(lab: Lab) -> list[Model]:
    """None."""
    return []


def table(lab: Lab) -> list[Row]:
    """A row for each model."""
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


def draw(lab: Lab) -> "Figure":
    """The table, as a picture."""
    rows = table(lab)
    figure = new_figure(9.6, 0.35 * (len(rows) + 1))
    ax = figure.subplots()
    ax.set_axis_off()
    cells = [[f"{v:g}" if isinstance(v, float) else v for v in row.values()] for row in rows]
    drawn = ax.table(cells, colLabels=list(rows[0]), loc="center", cellLoc="center")
    drawn.auto_set_font_size(False)  # which shrinks all letters until those of the widest cell fit
    drawn.set_fontsize(11)
    drawn.auto_set_column_width(list(range(len(rows[0]))))
    drawn.scale(1, 1.6)
    return figure
