"""The free energies of all solutions over training, and how many there are [fig:fedist]."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tapmachine.experiments.lab import Lab, Row, nearest
from tapmachine.experiments.models import BINARY_100, FACES_256, LETTERS, REAL_100, Model
from tapmachine.experiments.solutions import solutions_table
from tapmachine.landscape.diagnosis import bands, density_curve
from tapmachine.plots import free_energies, free_energy_histogram, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Free energies of TAP solutions over training: (a) binary-MNIST, (b) real-MNIST, (c) CBCL"
MODELS = (BINARY_100, REAL_100, FACES_256)
SLICES = (5, 20, 50, 100, 500)  # epochs
FEW = 20  # solutions, too few for a density


def needed(lab: Lab) -> list[Model]:
    """Models whose solutions are not known yet."""
    return [model for model in _models(lab) if not lab.knows(f"solutions-{model.name}")]


def _models(lab: Lab) -> list[Model]:
    return [model for model in MODELS if lab.has(model.data)]


def by_epoch(lab: Lab, model: Model) -> dict[int, Tensor]:
    """F of all solutions at each epoch."""
    found: dict[int, list[float]] = {}
    for row in solutions_table(lab, model):
        found.setdefault(int(row["epoch"]), []).append(float(row["free_energy"]))
    return {epoch: torch.tensor(values, dtype=torch.float64) for epoch, values in found.items()}


def table(lab: Lab) -> list[Row]:
    """A row for each epoch: number of solutions, their mean F, its range, and the bands."""
    return lab.table(
        "fedist",
        lambda: [
            {
                "data": model.data,
                "epoch": epoch,
                "solutions": len(values),
                "mean": float(values.mean()),
                "lowest": float(values.min()),
                "highest": float(values.max()),
                "bands": len(bands(values)),
            }
            for model in _models(lab)
            for epoch, values in by_epoch(lab, model).items()
        ],
    )


def draw(lab: Lab) -> "Figure":
    """The figure, from the tables of solutions."""
    table(lab)
    models = _models(lab)
    figure = new_figure(4.6 * len(models), 6)
    axes = figure.subplots(2, len(models), squeeze=False)
    for column, model in enumerate(models):
        found = by_epoch(lab, model)
        top, bottom = axes[0][column], axes[1][column]
        free_energies(top, list(found), list(found.values()))
        top.set_title(f"({LETTERS[model.data]}) {model.data}, {lab.model(model).hidden[0]} hidden units")
        for epoch in nearest(list(found), SLICES):
            values = found[epoch]
            spread = float(values.max() - values.min()) > 1e-6
            curve = density_curve(values) if len(values) > FEW and spread else None
            if curve is not None:
                free_energy_histogram(bottom, values, curve)
                bottom.lines[-1].set_label(f"epoch {epoch}")
        if bottom.lines:
            bottom.legend()
        else:
            bottom.set_axis_off()
    return figure
