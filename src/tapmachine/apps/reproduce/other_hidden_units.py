"""Gaussian and Gauss-Bernoulli hidden units, which the paper's discussion leaves open: Hopfield, spike and slab."""

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from tapmachine.analysis.plots import image_grid, new_figure
from tapmachine.analysis.receptive import receptive_fields
from tapmachine.apps.reproduce.lab import Lab, Row, images_of, images_table
from tapmachine.apps.reproduce.models import BINARY, DISCUSSED, Model
from tapmachine.apps.reproduce.solutions import likelihood_table, needs_solutions
from tapmachine.data.errors import LikelihoodWarning
from tapmachine.data.rows import spaced
from tapmachine.likelihood import ais_log_likelihood, ais_log_partition, linear_schedule
from tapmachine.likelihood.pseudo import pseudo_log_likelihood

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "binary-MNIST with Gaussian (Hopfield) and Gauss-Bernoulli (spike and slab) hidden units"
NAMES = {
    "binary": "binary, by TAP",
    "gaussian": "Gaussian (Hopfield), by CD",
    "truncated-gaussian": "Gaussian on [−1, 1], by TAP",
    "gauss-bernoulli": "Gauss-Bernoulli on [−1, 1]\n(spike and slab), by TAP",
}
N_FIELDS, N_RUNS, N_TEMPERATURES, SCORED = 24, 100, {False: 5000, True: 200}, 1000


def measured(lab: Lab) -> list[Model]:
    """Models whose solutions are measured."""
    return needed(lab)


def needed(lab: Lab) -> list[Model]:
    """Models whose numbers are not known yet."""
    known = lab.knows("discussion", "discussion-fields")
    return [model for model in _models(lab) if not known or needs_solutions(lab, model)]


def _models(lab: Lab) -> list[Model]:
    return [model for model in DISCUSSED if lab.includes(model)]


def table(lab: Lab) -> list[Row]:
    """Scores of the trained machines: annealed and pseudo-likelihood of held-out rows, and TAP's of training rows."""
    models = {model.name: model for model in _models(lab)}

    def make(name: str) -> Iterable[Row]:
        model = models[name]
        machine, x = lab.machine(model), spaced(lab.rows(BINARY)[1], SCORED)
        last = likelihood_table(lab, model)[-1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LikelihoodWarning)  # σ is in the table
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
    """Some receptive fields of each machine, scaled to a largest weight of 1."""

    def make() -> Iterable[Row]:
        for model in _models(lab):
            fields = receptive_fields(lab.machine(model), spaced(lab.rows(BINARY)[0], SCORED)).fields.flatten(1)
            chosen = fields[torch.linspace(0, len(fields) - 1, min(N_FIELDS, len(fields))).round().long()]
            scaled = chosen / chosen.abs().amax(1, keepdim=True).clamp(min=torch.finfo(chosen.dtype).tiny)
            yield from images_table((100 * scaled).round() / 100, hidden_units=[model.hidden_units] * len(chosen))

    return lab.table("discussion-fields", make)


def draw(lab: Lab) -> "Figure":
    """The figure, from the tables."""
    scores, fields = {str(row["hidden_units"]): row for row in table(lab)}, images(lab)
    figure = new_figure(15, 4.2)
    axes = figure.subplots(1, 1 + len(scores), width_ratios=[1.3, *[1] * len(scores)])
    for model in _models(lab):
        rows = [row for row in likelihood_table(lab, model) if row.get("test_log_likelihood", "") != ""]
        epochs, values = ([float(row[name]) for row in rows] for name in ("epoch", "test_log_likelihood"))
        line = axes[0].plot(epochs, values, "o-", ms=3, label=NAMES[model.hidden_units])[0]
        last = scores[model.hidden_units]
        axes[0].plot([float(last["epochs"])], [float(last["test_ais"])], "*", ms=10, color=line.get_color())
    axes[0].set(xlabel="epoch", ylabel="log-likelihood of test images, nats", title="TAP; stars: AIS")
    axes[0].legend(fontsize=8)
    for ax, kind in zip(axes[1:], scores, strict=True):
        image_grid(ax, images_of([row for row in fields if row["hidden_units"] == kind]), lab.image_shape(BINARY), 4)
        ax.set_title(NAMES[kind], fontsize=10)
    return figure
