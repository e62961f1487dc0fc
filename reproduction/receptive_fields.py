"""Receptive fields, ranked by spread and by the activation of their hidden units [fig:bmnist-rf]."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from reproduction.lab import Lab, Row, images_of, images_table
from reproduction.models import LETTERS, TABLE, Model
from reproduction.style import panel_title, styled
from tapmachine.analysis.receptive import ReceptiveFields, receptive_fields
from tapmachine.data.rows import spaced
from tapmachine.display.figures import new_figure
from tapmachine.display.images import image_grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Receptive fields, ranked by spread and by activation"
RANKINGS = "spread", "activation"
N_FIELDS = 12  # number of receptive fields per ranking
SOME_ROWS = 10_000  # maximum number of rows used to compute activations


def needed(lab: Lab) -> list[Model]:
    """Return the models to train: all models if a table is missing, otherwise none."""
    return [] if lab.knows("bmnist-rf", "bmnist-rf-localization") else _models(lab)


def _models(lab: Lab) -> list[Model]:
    return [model for model in TABLE if lab.includes(model)]


def _ranked(lab: Lab, model: Model) -> ReceptiveFields:
    return receptive_fields(lab.machine(model), spaced(lab.rows(model.data)[0], SOME_ROWS))


def images(lab: Lab) -> list[Row]:
    """Return receptive fields of every model in decreasing order of each criterion, scaled to a largest weight of 1."""

    def make() -> Iterable[Row]:
        for model in _models(lab):
            ranking = _ranked(lab, model)
            for kind, order in zip(RANKINGS, (ranking.by_spread(), ranking.by_activation()), strict=True):
                chosen = order[torch.linspace(0, len(order) - 1, min(N_FIELDS, len(order))).round().long()]
                fields = ranking.fields[chosen].flatten(1)
                scaled = fields / fields.abs().amax(1, keepdim=True).clamp(min=torch.finfo(fields.dtype).tiny)
                about: dict[str, list[float | int | str]] = {
                    "data": [model.data] * len(chosen),
                    "n_hidden": [len(order)] * len(chosen),
                    "ranked_by": [kind] * len(chosen),
                    "value": [round(float(value), 3) for value in getattr(ranking, kind)[chosen]],
                }
                yield from images_table((100 * scaled).round() / 100, **about)

    return lab.table("bmnist-rf", make)


def table(lab: Lab) -> list[Row]:
    """Return measures of how localized the receptive fields of each model are.

    The reach of a receptive field is (Σw²)²/(n Σw⁴), which is 1 if all n weights are equal and 1/n if only one
    weight is nonzero.
    """

    def make() -> Iterable[Row]:
        for model in _models(lab):
            ranking = _ranked(lab, model)
            fields = ranking.fields.flatten(1)
            reach = fields.square().sum(1) ** 2 / (fields.shape[1] * fields.pow(4).sum(1))
            yield {
                "data": model.data,
                "n_hidden": len(fields),
                "median_reach": float(reach.median()),
                "median_spread": float(ranking.spread.median()),
                "median_activation": float(ranking.activation.median()),
            }

    return lab.table("bmnist-rf-localization", make)


@styled
def draw(lab: Lab) -> "Figure":
    """Draw the figure from the tables."""
    lab.require(TABLE)
    rows = images(lab)
    reach = {(str(row["data"]), float(row["n_hidden"])): float(row["median_reach"]) for row in table(lab)}
    figure = new_figure(5.8, 1.06 * len(reach) + 0.55)
    axes = figure.subplots(len(reach), 1, squeeze=False)[:, 0]
    for ax, (data, n_hidden) in zip(axes, reach, strict=True):
        own = [row for row in rows if (row["data"], row["n_hidden"]) == (data, n_hidden)]
        ranked = [row for kind in RANKINGS for row in own if row["ranked_by"] == kind]
        columns, shape = len(ranked) // len(RANKINGS), lab.image_shape(data)
        drawn = image_grid(ax, images_of(ranked), shape, columns, scale=1.0)
        ax.set_axis_on()
        ax.set_yticks(
            [(shape[0] + 1) * (line + 0.5) - 1 for line in range(len(RANKINGS))], [f"by {kind}" for kind in RANKINGS]
        )
        ax.set_xticks([])
        ax.set_xlim(-0.5, N_FIELDS * (shape[1] + 1) - 1.5)  # the same scale if there are fewer receptive fields
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        panel_title(ax, LETTERS[data], f"{data}, $N_h$ = {n_hidden:.0f}, median reach {reach[data, n_hidden]:.2f}")
    axes[-1].set_xlabel("from the largest to the smallest")
    label = "weight / largest absolute weight of the receptive field"
    bar = figure.colorbar(drawn, ax=axes, location="bottom", label=label, aspect=50, shrink=0.6, pad=0.01)
    bar.set_ticks([-1, -0.5, 0, 0.5, 1])
    return figure
