"""Deep machines: the TAP log-likelihood over joint training [fig:dbmtraining]."""

from typing import TYPE_CHECKING

from tapmachine.analysis.plots import new_figure
from tapmachine.apps.reproduce.lab import Lab, Row
from tapmachine.apps.reproduce.models import DEEP_MODELS, Model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "TAP log-likelihood per unit of deep machines of two and three hidden layers"
NAMES = {"log_likelihood_per_unit": "training", "validation_log_likelihood_per_unit": "test"}
# From the columns of the table to the names in the records of a run: all of them are TAP's.
RECORDED = {
    "log_likelihood_per_unit": "tap_log_likelihood_per_unit",
    "validation_log_likelihood_per_unit": "validation_tap_log_likelihood_per_unit",
    "log_likelihood": "tap_log_likelihood",
    "log_sum_exp": "tap_log_sum_exp",
}


def needed(lab: Lab) -> list[Model]:
    """Both models, unless their log-likelihoods are known."""
    return [] if lab.knows("dbmtraining") else _models(lab)


def _models(lab: Lab) -> list[Model]:
    return [model for model in DEEP_MODELS if lab.includes(model)]


def table(lab: Lab) -> list[Row]:
    """Of each machine and epoch of its joint training that was measured."""

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


def draw(lab: Lab) -> "Figure":
    """The figure, from the table."""
    rows = table(lab)
    figure = new_figure(9, 3.6)
    for ax, layers in zip(figure.subplots(1, 2), (2, 3), strict=True):
        own = [row for row in rows if row["hidden_layers"] == layers]
        for (name, label), color in zip(NAMES.items(), ("tab:orange", "tab:blue"), strict=True):
            ax.plot(
                [float(r["epoch"]) for r in own], [float(r[name]) for r in own], "o-", ms=3, color=color, label=label
            )
        ax.set_title(f"{layers} hidden layers")
        ax.set_xlabel("epoch of joint training")
        ax.set_ylabel("TAP log-likelihood per unit, nats")
        ax.legend()
    return figure
