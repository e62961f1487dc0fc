"""Isomap embedding of the solutions at several epochs, fitted to the solutions of the last epoch [fig:solnvis]."""

from collections.abc import Iterable
from string import ascii_lowercase
from typing import TYPE_CHECKING

import torch

from reproduction.lab import Lab, Row, nearest
from reproduction.models import BINARY_100, Model
from reproduction.solutions import solutions_at, starts
from reproduction.style import COLUMN, FONT_SIZE, PAGE, panel_title, styled
from tapmachine.analysis.landscape.embedding import FEWEST_POINTS, embed_landscape
from tapmachine.analysis.landscape.figures import solution_map
from tapmachine.analysis.landscape.output import plural
from tapmachine.analysis.landscape.tracking import snapshot_of
from tapmachine.display.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "TAP solutions of binary-MNIST on a plane, over training"
EPOCHS = (1, 3, 5, 10, 25, 50, 75, 100)


def needed(lab: Lab) -> list[Model]:
    """Return the model to train, or an empty list if the table exists."""
    return [] if lab.knows("solnvis") else [BINARY_100]


def table(lab: Lab) -> list[Row]:
    """Return the epoch, the position and the free energy of each solution."""

    def make() -> Iterable[Row]:
        epochs = nearest(lab.epochs(BINARY_100), EPOCHS)
        snapshots = [snapshot_of(solutions_at(lab, BINARY_100, epoch), epoch) for epoch in epochs]
        # Isomap is fitted to the data if there are not enough solutions.
        data = starts(lab, BINARY_100) if snapshots[-1].n_solutions < FEWEST_POINTS else None
        for snapshot, points in zip(snapshots, embed_landscape(snapshots, data).solutions, strict=True):
            for value, (x, y) in zip(snapshot.free_energy.tolist(), points.tolist(), strict=True):
                yield {"epoch": snapshot.epoch, "x": f"{x:.4g}", "y": f"{y:.4g}", "free_energy": f"{value:.6g}"}

    return lab.table("solnvis", make)


@styled
def draw(lab: Lab) -> "Figure":
    """Draw the figure from the table."""
    rows = table(lab)
    epochs = sorted({float(row["epoch"]) for row in rows})
    columns = min(4, len(epochs))
    lines = -(-len(epochs) // columns)
    figure = new_figure(max(COLUMN, PAGE / 4 * columns), 2.15 * lines)
    axes = list(figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).flat)
    for ax, epoch, letter in zip(axes, epochs, ascii_lowercase, strict=False):
        own = [row for row in rows if row["epoch"] == epoch]
        points = torch.tensor([[float(row["x"]), float(row["y"])] for row in own])
        # As in the paper, each epoch has a separate color range.
        solution_map(ax, points, torch.tensor([float(row["free_energy"]) for row in own]), label="", location="bottom")
        panel_title(ax, letter, f"epoch {epoch:.0f}, {len(own)} {plural(len(own))}")
    for ax in axes[len(epochs) :]:
        ax.set_axis_off()
    figure.supxlabel("free energy (nats), within the range of each epoch", fontsize=FONT_SIZE)
    return figure
