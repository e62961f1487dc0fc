"""Gaussian (Hopfield) and Gauss-Bernoulli (spike and slab) hidden units, which the paper's discussion proposes."""

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from reproduction.drawing import numbers
from reproduction.lab import Lab, Row, images_of, images_table
from reproduction.models import BINARY, DISCUSSED, Model
from reproduction.solutions import likelihood_table, needs_solutions
from reproduction.style import BLUE, GRAY, GREEN, ORANGE, PAGE, PURPLE, panel_title, styled
from tapmachine.analysis.receptive import receptive_fields
from tapmachine.data.errors import LikelihoodWarning
from tapmachine.data.rows import spaced
from tapmachine.display.figures import new_figure
from tapmachine.display.images import image_grid
from tapmachine.likelihood import ais_log_likelihood, ais_log_partition, linear_schedule
from tapmachine.likelihood.pseudo import pseudo_log_likelihood

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "binary-MNIST with Gaussian (Hopfield) and Gauss-Bernoulli (spike and slab) hidden units"
NAMES = {
    "binary": "binary,\ntrained by TAP",
    "gaussian": "Gaussian (Hopfield),\ntrained by CD",
    "truncated-gaussian": "Gaussian on [−1, 1],\ntrained by TAP",
    "gauss-bernoulli": "spike and slab\non [−1, 1], by TAP",
}
COLORS = dict(zip(NAMES, (BLUE, ORANGE, GREEN, PURPLE), strict=True))
N_FIELDS, N_RUNS, N_TEMPERATURES, SCORED = 24, 100, {False: 5000, True: 200}, 1000


def measured(lab: Lab) -> list[Model]:
    """Return the models whose solutions must still be measured."""
    return needed(lab)


def needed(lab: Lab) -> list[Model]:
    """Return the models whose measurements are missing."""
    known = lab.knows("discussion", "discussion-fields")
    return [model for model in _models(lab) if not known or needs_solutions(lab, model)]


def _models(lab: Lab) -> list[Model]:
    return [model for model in DISCUSSED if lab.includes(model)]


def table(lab: Lab) -> list[Row]:
    """Return AIS and pseudo-likelihood estimates for held-out rows and TAP estimates for training rows, by machine."""
    models = {model.name: model for model in _models(lab)}

    def make(name: str) -> Iterable[Row]:
        model = models[name]
        machine, x = lab.machine(model), spaced(lab.rows(BINARY)[1], SCORED)
        last = likelihood_table(lab, model)[-1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LikelihoodWarning)  # the standard error is in the table
            schedule = linear_schedule(N_TEMPERATURES[lab.quick])
            estimate = ais_log_partition(machine, schedule, N_RUNS, data=lab.rows(BINARY)[0], seed=lab.seed)
        yield {
            "hidden_units": model.hidden_units,
            "n_hidden": lab.model(model).hidden[0],
            "epochs": lab.model(model).epochs,
            "test_ais": float(ais_log_likelihood(machine, x, estimate).mean),
            "ais_sigma": float(estimate.standard_error),
            "test_pseudo": float(pseudo_log_likelihood(machine, x, min(100, x.shape[1]), seed=lab.seed).mean),
            "tap": last.get("log_likelihood", ""),
            "solutions": last["solutions"],
            "starts": last["starts"],
        }

    return lab.parts("discussion", models, make)


def images(lab: Lab) -> list[Row]:
    """Return some receptive fields of each machine, scaled so that the largest absolute weight is 1."""

    def make() -> Iterable[Row]:
        for model in _models(lab):
            fields = receptive_fields(lab.machine(model), spaced(lab.rows(BINARY)[0], SCORED)).fields.flatten(1)
            chosen = fields[torch.linspace(0, len(fields) - 1, min(N_FIELDS, len(fields))).round().long()]
            scaled = chosen / chosen.abs().amax(1, keepdim=True).clamp(min=torch.finfo(chosen.dtype).tiny)
            yield from images_table((100 * scaled).round() / 100, hidden_units=[model.hidden_units] * len(chosen))

    return lab.table("discussion-fields", make)


@styled
def draw(lab: Lab) -> "Figure":
    """Draw the figure from the tables."""
    lab.require(DISCUSSED)
    scores, fields = {str(row["hidden_units"]): row for row in table(lab)}, images(lab)
    figure = new_figure(PAGE, 4.6)
    top, bottom = figure.subfigures(2, 1, squeeze=False, height_ratios=(2, 2.6))[:, 0]
    ax = top.subplots()
    for model in _models(lab):
        rows = [row for row in likelihood_table(lab, model) if row.get("test_log_likelihood", "") != ""]
        color, label = COLORS[model.hidden_units], NAMES[model.hidden_units].replace("\n", " ")
        ax.plot(*numbers(rows, "epoch", "test_log_likelihood"), "o-", color=color, label=label)
        ax.plot(*numbers([scores[model.hidden_units]], "epochs", "test_ais"), "*", ms=8, color=color)
    ax.plot([], [], "*", ms=8, color=GRAY, label="AIS, last epoch")
    ax.set(xlabel="epoch", ylabel="log-likelihood of\ntest images (nats)")
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    panel_title(ax, "a", "TAP log-likelihood")
    axes = bottom.subplots(1, len(scores), squeeze=False)[0]
    for panel, letter, kind in zip(axes, "bcde", scores, strict=False):
        own = images_of([row for row in fields if row["hidden_units"] == kind])
        drawn = image_grid(panel, own, lab.image_shape(BINARY), 4 if len(own) <= 16 else 6, scale=1.0)
        panel_title(panel, letter, NAMES[kind])
    label = "weight / largest absolute weight of the receptive field"
    bottom.colorbar(drawn, ax=axes, location="bottom", label=label, aspect=50, shrink=0.6, pad=0.02)
    return figure
