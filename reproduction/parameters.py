"""Settings of all training runs [tab:params]."""

from collections.abc import Iterable

from matplotlib.figure import Figure as Drawing

from reproduction.figure import figure, text_table
from reproduction.lab import Lab, Row, table
from reproduction.models import DEEP_MODELS, TABLE, VISIBLE

HEADER = ("machine", "hidden", "M", "K", "visible", "γ", "γ end", "ε", "η", "pretrain", "epochs")


@table("params")
def settings(lab: Lab) -> Iterable[Row]:
    """Return the settings of each model."""
    for model in map(lab.model, (*TABLE, *DEEP_MODELS)):
        yield {
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


@figure("params")
def draw(lab: Lab) -> Drawing:
    """Table I: the settings of all trainings."""
    cells = [[f"{v:g}" if isinstance(v, float) else str(v) for v in row.values()] for row in settings(lab)]
    widths = [max(map(len, column)) + 2 for column in zip(HEADER, *cells, strict=True)]
    return text_table([HEADER, *cells], widths)
