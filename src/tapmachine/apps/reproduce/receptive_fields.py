"""Receptive fields by how far they reach and by how active their units are [fig:bmnist-rf]."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from tapmachine.analysis.plots import image_grid, new_figure
from tapmachine.analysis.receptive import ReceptiveFields, receptive_fields
from tapmachine.apps.reproduce.lab import Lab, Row, images_of, images_table
from tapmachine.apps.reproduce.models import LETTERS, TABLE, Model
from tapmachine.data.rows import spaced

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Receptive fields, ranked by spread and by activation"
N_FIELDS = 12  # of each kind
SOME_ROWS = 10_000


def needed(lab: Lab) -> list[Model]:
    """All models, unless their fields are known."""
    return [] if lab.knows("bmnist-rf", "bmnist-rf-localization") else _models(lab)


def _models(lab: Lab) -> list[Model]:
    return [model for model in TABLE if lab.includes(model)]


def _ranked(lab: Lab, model: Model) -> ReceptiveFields:
    return receptive_fields(lab.machine(model), spaced(lab.rows(model.data)[0], SOME_ROWS))


def images(lab: Lab) -> list[Row]:
    """Some fields of every model, from the most to the least, by either criterion; scaled to a largest weight of 1."""

    def make() -> Iterable[Row]:
        for model in _models(lab):
            ranking = _ranked(lab, model)
            for kind, order in (("spread", ranking.by_spread()), ("activation", ranking.by_activation())):
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
    """How localized the fields of each model are.

    The share of visible units that a field reaches is (Σw²)²/(n Σw⁴): 1 if all weights are alike, 1/n for a single one.
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


def draw(lab: Lab) -> "Figure":
    """The figure, from the tables."""
    rows = images(lab)
    localized = {(row["data"], row["n_hidden"]): float(row["median_reach"]) for row in table(lab)}
    figure = new_figure(14, 0.8 * len(localized) + 0.8)
    axes = figure.subplots(len(localized), 2, squeeze=False)
    for (data, n_hidden), pair in zip(localized, axes, strict=True):
        for ax, kind in zip(pair, ("spread", "activation"), strict=True):
            own = [row for row in rows if (row["data"], row["n_hidden"], row["ranked_by"]) == (data, n_hidden, kind)]
            drawn = image_grid(ax, images_of(own), lab.image_shape(str(data)), columns=N_FIELDS)
            said = f", reach {localized[data, n_hidden]:.2f}" if kind == "spread" else ""
            ax.set_title(f"({LETTERS[str(data)]}) {data}, {float(n_hidden):.0f}, by {kind}{said}", fontsize=10)
    label = "weight, as a share of the largest of its field"
    figure.colorbar(drawn, ax=axes, location="bottom", label=label, aspect=60, shrink=0.5)
    return figure
