"""TAP log-likelihood of deep machines during joint training [fig:dbmtraining]."""

from typing import TYPE_CHECKING

from reproduction.drawing import numbers
from reproduction.lab import Lab, Row
from reproduction.models import DEEP_MODELS, Model
from reproduction.style import BLUE, ORANGE, PAGE, panel_title, shared_legend, styled
from tapmachine.display.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "TAP log-likelihood per unit of deep machines of two and three hidden layers"
NAMES = {"log_likelihood_per_unit": "training images", "validation_log_likelihood_per_unit": "test images"}
# Columns of the table, with the names of the same quantities in the records of a run.
RECORDED = {
    "log_likelihood_per_unit": "tap_log_likelihood_per_unit",
    "validation_log_likelihood_per_unit": "validation_tap_log_likelihood_per_unit",
    "log_likelihood": "tap_log_likelihood",
    "log_sum_exp": "tap_log_sum_exp",
}


def needed(lab: Lab) -> list[Model]:
    """Return the models to train: both models if the table is missing, otherwise none."""
    return [] if lab.knows("dbmtraining") else _models(lab)


def _models(lab: Lab) -> list[Model]:
    return [model for model in DEEP_MODELS if lab.includes(model)]


def table(lab: Lab) -> list[Row]:
    """Return the log-likelihoods of each machine at the measured epochs of its joint training."""

    def make() -> list[Row]:
        rows: list[Row] = []
        for model in _models(lab):
            before = lab.model(model).pretrain * len(model.hidden)
            for record in lab.run(model).records():
                if record["epoch"] > before and record.get("tap_log_likelihood_per_unit") is not None:
                    row: Row = {"hidden_layers": len(model.hidden), "epoch": record["epoch"] - before}
                    row |= {column: float(record[name]) for column, name in RECORDED.items()}
                    row |= {name: float(value) for name, value in record.items() if name.startswith("variation")}
                    rows.append(row | {"divergences": float(record["divergences"])})
        return rows

    return lab.table("dbmtraining", make)


@styled
def draw(lab: Lab) -> "Figure":
    """Draw the figure from the table."""
    lab.require(DEEP_MODELS)
    rows = table(lab)
    figure = new_figure(PAGE, 2.4)
    axes = list(figure.subplots(1, len(DEEP_MODELS), sharey=True))
    for ax, letter, model in zip(axes, "ab", DEEP_MODELS, strict=True):
        own = [row for row in rows if row["hidden_layers"] == len(model.hidden)]
        for (name, label), color in zip(NAMES.items(), (ORANGE, BLUE), strict=True):
            ax.plot(*numbers(own, "epoch", name), "o-", color=color, label=label)
        panel_title(ax, letter, f"{len(model.hidden)} hidden layers")
        ax.set_xlabel("epoch of joint training")
    axes[0].set_ylabel("TAP log-likelihood\nper unit (nats)")
    shared_legend(figure, axes)
    return figure
