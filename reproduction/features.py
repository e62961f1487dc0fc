"""Receptive fields [fig:bmnist-rf], and the other types of hidden units that the paper's discussion proposes."""

from collections.abc import Iterable

import torch
from matplotlib.figure import Figure as Drawing
from torch import Tensor

from reproduction.figure import PAGE, figure, included, panel_title
from reproduction.lab import Lab, Row, curve, images_of, images_table, table, where
from reproduction.likelihoods import sampled_estimates
from reproduction.models import BINARY, DISCUSSED, LETTERS, TABLE, Model
from reproduction.solutions import measure_solutions
from tapmachine.analysis.receptive import ReceptiveFields, receptive_fields
from tapmachine.data.rows import spaced
from tapmachine.display.figures import new_figure
from tapmachine.display.images import image_grid, image_strips

RANKINGS = "spread", "activation"
N_RANKED, N_DISCUSSED = 12, 24  # number of receptive fields per ranking, and per type of hidden units
SOME_ROWS, SCORED = 10_000, 1000  # maximum number of rows used to compute activations, and to score
N_TEMPERATURES = {False: 5000, True: 200}
KINDS = {
    "binary": ("binary,\ntrained by TAP", "C0"),
    "gaussian": ("Gaussian (Hopfield),\ntrained by CD", "C3"),
    "truncated-gaussian": ("Gaussian on [−1, 1],\ntrained by TAP", "C2"),
    "gauss-bernoulli": ("spike and slab\non [−1, 1], by TAP", "C4"),
}
SCALE = "weight / largest absolute weight of the receptive field"


def _fields(lab: Lab, model: Model) -> ReceptiveFields:
    return receptive_fields(lab.machine(model), spaced(lab.rows(model.data)[0], SOME_ROWS))


def _spread_out(count: int, most: int) -> Tensor:
    return torch.linspace(0, count - 1, min(most, count)).round().long()


def _scaled(fields: Tensor) -> Tensor:
    """Scale receptive fields to a largest weight of 1, rounded to two digits."""
    fields = fields.flatten(1)
    return (100 * fields / fields.abs().amax(1, keepdim=True).clamp(min=torch.finfo(fields.dtype).tiny)).round() / 100


@table("bmnist-rf")
def ranked(lab: Lab) -> Iterable[Row]:
    """Return receptive fields of every model in decreasing order of each criterion."""
    for model in included(lab, TABLE):
        ranking = _fields(lab, model)
        for kind, order in zip(RANKINGS, (ranking.by_spread(), ranking.by_activation()), strict=True):
            chosen = order[_spread_out(len(order), N_RANKED)]
            yield from images_table(
                _scaled(ranking.fields[chosen]),
                data=[model.data] * len(chosen),
                n_hidden=[len(order)] * len(chosen),
                ranked_by=[kind] * len(chosen),
                value=[round(float(value), 3) for value in getattr(ranking, kind)[chosen]],
            )


@table("bmnist-rf-localization")
def localization(lab: Lab) -> Iterable[Row]:
    """Return measures of localization. The reach (Σw²)²/(n Σw⁴) is 1 if all n weights are equal, and at least 1/n."""
    for model in included(lab, TABLE):
        fields = _fields(lab, model).fields.flatten(1)
        reach = fields.square().sum(1) ** 2 / (fields.shape[1] * fields.pow(4).sum(1))
        yield {"data": model.data, "n_hidden": len(fields), "median_reach": float(reach.median())}


@figure("bmnist-rf", TABLE)
def _draw_ranked(lab: Lab) -> Drawing:
    """Receptive fields, ranked by spread and by activation."""
    rows, found = ranked(lab), localization(lab)
    drawing = new_figure(5.8, 1.06 * len(found) + 0.55)
    axes = drawing.subplots(len(found), 1, squeeze=False)[:, 0]
    for ax, model in zip(axes, found, strict=True):
        data, n_hidden = str(model["data"]), float(model["n_hidden"])
        own = where(rows, data=data, n_hidden=n_hidden)
        shape = lab.image_shape(data)
        strips = {f"by {kind}": images_of(where(own, ranked_by=kind)) for kind in RANKINGS}
        image_strips(ax, strips, shape)
        ax.set_xlim(-0.5, N_RANKED * (shape[1] + 1) - 1.5)  # the same scale if there are fewer receptive fields
        reach = f"median reach {model['median_reach']:.2f}"
        panel_title(ax, LETTERS[data], f"{data}, $N_h$ = {n_hidden:.0f}, {reach}")
    axes[-1].set_xlabel("from the largest to the smallest")
    bar = drawing.colorbar(axes[-1].images[0], ax=axes, location="bottom", label=SCALE, aspect=50, shrink=0.6, pad=0.01)
    bar.set_ticks([-1, -0.5, 0, 0.5, 1])
    return drawing


@table("discussion")
def discussed(lab: Lab) -> Iterable[Row]:
    """Return AIS and pseudo-likelihood estimates for held-out rows and TAP estimates for training rows, by machine."""
    for model in included(lab, DISCUSSED):
        x, last = spaced(lab.rows(BINARY)[1], SCORED), measure_solutions(lab, model).likelihood[-1]
        yield {
            "hidden_units": model.hidden_units,
            "n_hidden": lab.model(model).hidden[0],
            "epochs": lab.model(model).epochs,
            **sampled_estimates(lab, lab.machine(model), x, N_TEMPERATURES[lab.quick]),
            "tap": last.get("log_likelihood", ""),
            "solutions": last["solutions"],
            "starts": last["starts"],
        }


@table("discussion-fields")
def discussed_fields(lab: Lab) -> Iterable[Row]:
    """Return some receptive fields of each machine."""
    for model in included(lab, DISCUSSED):
        fields = receptive_fields(lab.machine(model), spaced(lab.rows(BINARY)[0], SCORED)).fields
        chosen = fields[_spread_out(len(fields), N_DISCUSSED)]
        yield from images_table(_scaled(chosen), hidden_units=[model.hidden_units] * len(chosen))


@figure("discussion", DISCUSSED)
def _draw_discussed(lab: Lab) -> Drawing:
    """binary-MNIST with Gaussian (Hopfield) and Gauss-Bernoulli (spike and slab) hidden units."""
    scores, fields = discussed(lab), discussed_fields(lab)
    drawing = new_figure(PAGE, 4.6)
    top, bottom = drawing.subfigures(2, 1, squeeze=False, height_ratios=(2, 2.6))[:, 0]
    ax, axes = top.subplots(), bottom.subplots(1, len(scores), squeeze=False)[0]
    for panel, letter, model, score in zip(axes, "bcde", included(lab, DISCUSSED), scores, strict=False):
        title, color = KINDS[model.hidden_units]
        rows = measure_solutions(lab, model).likelihood
        ax.plot(*curve(rows, "epoch", "test_log_likelihood"), "o-", color=color, label=title.replace("\n", " "))
        ax.plot(*curve([score], "epochs", "ais"), "*", ms=8, color=color)
        own = images_of(where(fields, hidden_units=model.hidden_units))
        drawn = image_grid(panel, own, lab.image_shape(BINARY), 4 if len(own) <= 16 else 6, scale=1.0)
        panel_title(panel, letter, title)
    ax.plot([], [], "*", ms=8, color="0.5", label="AIS, last epoch")
    ax.set(xlabel="epoch", ylabel="log-likelihood of\ntest images (nats)")
    ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    panel_title(ax, "a", "TAP log-likelihood")
    bottom.colorbar(drawn, ax=axes, location="bottom", label=SCALE, aspect=50, shrink=0.6, pad=0.02)
    return drawing
