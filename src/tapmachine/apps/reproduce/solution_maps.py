"""Solutions on one plane at several epochs, by Isomap of the last ones [fig:solnvis]."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from tapmachine.analysis.landscape.embedding import FEWEST_POINTS, embed_landscape
from tapmachine.analysis.landscape.tracking import snapshot_of
from tapmachine.analysis.plots import new_figure, solution_map
from tapmachine.apps.reproduce.lab import Lab, Row, nearest
from tapmachine.apps.reproduce.models import BINARY_100, Model
from tapmachine.apps.reproduce.solutions import solutions_at, starts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "TAP solutions of binary-MNIST on a plane, over training"
EPOCHS = (1, 3, 5, 10, 25, 50, 75, 100)


def needed(lab: Lab) -> list[Model]:
    """The model, unless the places of its solutions are known."""
    return [] if lab.knows("solnvis") else [BINARY_100]


def table(lab: Lab) -> list[Row]:
    """A row for each solution: its epoch, its place, its F."""

    def make() -> Iterable[Row]:
        epochs = nearest(lab.epochs(BINARY_100), EPOCHS)
        snapshots = [snapshot_of(solutions_at(lab, BINARY_100, epoch), epoch) for epoch in epochs]
        # A map of a handful of solutions shows nothing; they are then placed among the data.
        data = starts(lab, BINARY_100) if snapshots[-1].n_solutions < FEWEST_POINTS else None
        for snapshot, points in zip(snapshots, embed_landscape(snapshots, data).solutions, strict=True):
            for value, (x, y) in zip(snapshot.free_energy.tolist(), points.tolist(), strict=True):
                yield {"epoch": snapshot.epoch, "x": f"{x:.4g}", "y": f"{y:.4g}", "free_energy": f"{value:.6g}"}

    return lab.table("solnvis", make)


def draw(lab: Lab) -> "Figure":
    """The figure, from the table."""
    rows = table(lab)
    epochs = sorted({float(row["epoch"]) for row in rows})
    columns = min(4, len(epochs))
    figure = new_figure(3.4 * columns, 2.9 * -(-len(epochs) // columns))
    axes = list(figure.subplots(-(-len(epochs) // columns), columns, squeeze=False, sharex=True, sharey=True).flat)
    for ax, epoch in zip(axes, epochs, strict=False):
        own = [row for row in rows if row["epoch"] == epoch]
        points = torch.tensor([[float(row["x"]), float(row["y"])] for row in own])
        solution_map(ax, points, torch.tensor([float(row["free_energy"]) for row in own]))
        ax.set_title(f"epoch {epoch:.0f}: {len(own)}", fontsize=9)
    for ax in axes[len(epochs) :]:
        ax.set_axis_off()
    return figure
