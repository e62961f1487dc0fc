"""The free energies of all solutions over training, and how many there are [fig:fedist]."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tapmachine.analysis.landscape.diagnosis import density_curve, energy_bands
from tapmachine.analysis.plots import free_energies, free_energy_histogram, new_figure
from tapmachine.apps.reproduce.lab import Lab, Row, nearest
from tapmachine.apps.reproduce.models import BINARY_100, FACES_256, LETTERS, REAL_100, Model
from tapmachine.apps.reproduce.solutions import solutions_table

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
                "bands": len(energy_bands(values)),
            }
            for model in _models(lab)
            for epoch, values in by_epoch(lab, model).items()
        ],
    )


def draw(lab: Lab) -> "Figure":
    """The figure, from the tables of solutions: F over training, and its distribution at some epochs, a panel each."""
    table(lab)
    models = {model: by_epoch(lab, model) for model in _models(lab)}
    dense = {model: [e for e in nearest(list(own), SLICES) if _is_spread(own[e])] for model, own in models.items()}
    n_slices = max(map(len, dense.values()), default=0)
    figure = new_figure(4.6 * len(models), 3 + 1.3 * n_slices)
    grid = figure.add_gridspec(1 + n_slices, len(models), height_ratios=[3, *[1.3] * n_slices])
    for column, (model, found) in enumerate(models.items()):
        top = figure.add_subplot(grid[0, column])
        free_energies(top, list(found), list(found.values()))
        top.set_title(f"({LETTERS[model.data]}) {model.data}, {lab.model(model).hidden[0]} hidden units")
        for row, epoch in enumerate(dense[model], 1):
            ax = figure.add_subplot(grid[row, column])
            # Bands are narrow beside the way that F goes over training, so each epoch has a scale of its own.
            free_energy_histogram(ax, found[epoch], density_curve(found[epoch]))
            ax.set_ylabel("density", fontsize=8)
            ax.set_title(f"epoch {epoch}: {len(found[epoch])} solutions", fontsize=8, loc="left")
            if row < len(dense[model]):
                ax.set_xlabel("")
    return figure


def _is_spread(values: Tensor) -> bool:
    """Whether there are enough solutions, of different F, for a density."""
    return len(values) > FEW and float(values.max() - values.min()) > 1e-6
