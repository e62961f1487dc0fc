"""Isomap embeddings of solutions: over training [fig:solnvis], and with their starts [fig:compareInitSolns]."""

from collections.abc import Iterable
from string import ascii_lowercase

import torch
from matplotlib.figure import Figure as Drawing
from torch import Tensor

from reproduction.figure import COLUMN, FONT_SIZE, PAGE, figure, included, nearest, panel_title, shared_legend
from reproduction.lab import Lab, Row, images_of, images_table, table, where
from reproduction.models import BINARY_100, FACES, FACES_256, LETTERS, REAL_500, Model
from reproduction.solutions import solutions_at
from tapmachine.analysis.landscape.embedding import FEWEST_POINTS, embed_landscape
from tapmachine.analysis.landscape.figures import MANY, map_thumbnails, solution_map
from tapmachine.analysis.landscape.tracking import snapshot_of
from tapmachine.data.errors import plural
from tapmachine.display.figures import new_figure

EPOCHS = (1, 3, 5, 10, 25, 50, 75, 100)
COMPARED = (BINARY_100, REAL_500, FACES_256)
COMPARED_EPOCHS = {FACES: (5, 100, 200, 500)}  # for other data, the next line
OTHER_EPOCHS = (1, 3, 25, 100)
DIGITS, N_ROWS = (3, 6, 7), 5000  # starts are these digits among the first training rows
CLASS_COLORS = "C5", "C3", "C2", "C4", "C1"  # light enough for black points on top to be visible
PANEL = 1.7  # width of a panel in inches
N_THUMBNAILS, SHOWN_STARTS = 10, 1500  # maximum numbers of images per panel and of starts in the table


@table("solnvis")
def solution_positions(lab: Lab) -> Iterable[Row]:
    """Return the epoch, the position and the free energy of each solution. Isomap is fitted to the last epoch."""
    epochs = nearest(lab.epochs(BINARY_100), EPOCHS)
    snapshots = [snapshot_of(solutions_at(lab, BINARY_100, epoch), epoch) for epoch in epochs]
    # Isomap is fitted to the data if there are not enough solutions.
    data = lab.starts(BINARY_100) if snapshots[-1].n_solutions < FEWEST_POINTS else None
    for snapshot, points in zip(snapshots, embed_landscape(snapshots, data).solutions, strict=True):
        for value, (x, y) in zip(snapshot.free_energy.tolist(), points.tolist(), strict=True):
            yield {"epoch": snapshot.epoch, "x": f"{x:.4g}", "y": f"{y:.4g}", "free_energy": f"{value:.6g}"}


@figure("solnvis", [BINARY_100])
def _draw_solutions(lab: Lab) -> Drawing:
    """TAP solutions of binary-MNIST on a plane, over training."""
    rows = solution_positions(lab)
    epochs = sorted({float(row["epoch"]) for row in rows})
    columns = min(4, len(epochs))
    lines = -(-len(epochs) // columns)
    drawing = new_figure(max(COLUMN, PAGE / 4 * columns), 2.15 * lines)
    axes = list(drawing.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).flat)
    for ax, epoch, letter in zip(axes, epochs, ascii_lowercase, strict=False):
        own = where(rows, epoch=epoch)
        # As in the paper, each epoch has a separate color range.
        values = torch.tensor([float(row["free_energy"]) for row in own])
        solution_map(ax, _points(own), values, label="", location="bottom")
        panel_title(ax, letter, f"epoch {epoch:.0f}, {len(own)} {plural(len(own))}")
    for ax in axes[len(epochs) :]:
        ax.set_axis_off()
    drawing.supxlabel("free energy (nats), within the range of each epoch", fontsize=FONT_SIZE)
    return drawing


def compared(lab: Lab, model: Model) -> tuple[list[Row], list[Row]]:
    """Return the positions of starts, to which Isomap is fitted, and solutions, and the images of some solutions."""
    name = f"compareInitSolns-{LETTERS[model.data]}"
    made = ([], []) if lab.knows(name, f"{name}-images") else _embedded(lab, model)
    return lab.table(name, lambda: made[0]), lab.table(f"{name}-images", lambda: made[1])


def _embedded(lab: Lab, model: Model) -> tuple[list[Row], list[Row]]:
    x, names = _labeled_starts(lab, model)
    epochs = nearest(lab.epochs(model), COMPARED_EPOCHS.get(model.data, OTHER_EPOCHS))
    snapshots = [snapshot_of(solutions_at(lab, model, epoch, x), epoch) for epoch in epochs]
    embedding = embed_landscape(snapshots, x)
    assert embedding.data is not None
    labeled = list(zip(names, embedding.data.tolist(), strict=True))[:: max(1, len(x) // SHOWN_STARTS)]
    rows = [_position("", name, point) for name, point in labeled]
    images: list[Row] = []
    for snapshot, points in zip(snapshots, embedding.solutions, strict=True):
        rows += [_position(snapshot.epoch, "solution", point) for point in points.tolist()]
        some = torch.linspace(0, len(points) - 1, min(N_THUMBNAILS, len(points))).round().long()
        x_shown, y_shown = ([round(value, 4) for value in points[some, axis].tolist()] for axis in (0, 1))
        means = (100 * snapshot.means[0].flatten(1)[some]).round() / 100
        images += images_table(means, epoch=[snapshot.epoch] * len(some), x=x_shown, y=y_shown)
    return rows, images


def _labeled_starts(lab: Lab, model: Model) -> tuple[Tensor, list[str]]:
    """Return the starts, which are images of three digits or all faces, and the label of each start."""
    train, _ = lab.rows(model.data)
    if model.data == FACES and not lab.quick:
        return train, [""] * len(train)
    labels = lab.labels()[:N_ROWS]
    chosen = torch.isin(labels, torch.tensor(DIGITS)).nonzero().squeeze(-1)
    return train[chosen.to(train.device)], [str(int(labels[number])) for number in chosen]


def _position(epoch: int | str, label: str, point: list[float]) -> Row:
    return {"epoch": epoch, "label": label, "x": f"{point[0]:.4g}", "y": f"{point[1]:.4g}"}


@figure("compareInitSolns", COMPARED)
def _draw_compared(lab: Lab) -> Drawing:
    """Data and the TAP solutions they lead to: (a) binary-MNIST, (b) real-MNIST, (c) CBCL."""
    models = included(lab, COMPARED)
    tables = [compared(lab, model) for model in models]
    found = [where(places, label="solution") for places, _ in tables]
    epochs = [sorted({float(row["epoch"]) for row in solved}) for solved in found]
    windows = [_window(_points(places)) for places, _ in tables]
    n_epochs = max(map(len, epochs), default=1)
    ratios = [(y[1] - y[0]) / (x[1] - x[0]) + 4 / N_THUMBNAILS for x, y in windows]  # including two rows of images
    drawing = new_figure(max(COLUMN, PANEL * n_epochs + 0.2), sum(PANEL * ratio + 0.22 for ratio in ratios) + 0.25)
    axes = drawing.subplots(len(models), n_epochs, squeeze=False, height_ratios=ratios)
    for number, (model, (places, images)) in enumerate(zip(models, tables, strict=True)):
        data = [row for row in places if row["label"] != "solution"]
        labels = ["" if row["label"] == "" else f"digit {float(row['label']):.0f}" for row in data]
        for ax, epoch in zip(axes[number], epochs[number], strict=False):
            solved, shown = where(found[number], epoch=epoch), where(images, epoch=epoch)
            solution_map(ax, _points(solved), None, None if any(labels) else _points(data))
            for label, color in zip(sorted({*labels} - {""}), CLASS_COLORS, strict=False):
                x, y = _points([row for row, own in zip(data, labels, strict=True) if own == label]).T
                ax.scatter(x, y, s=2 if len(data) > MANY else 5, color=color, lw=0, label=label, rasterized=True)
            ax.set(xlim=windows[number][0], ylim=windows[number][1])
            ink = "white" if model.data == FACES and not lab.quick else "black"
            map_thumbnails(ax, _points(shown), images_of(shown), lab.image_shape(model.data), N_THUMBNAILS, ink)
            ax.set_title(f"epoch {epoch:.0f}, {len(solved)} {plural(len(solved))}", loc="center")
        axes[number, 0].set_ylabel(f"({LETTERS[model.data]}) {model.data}, $N_h$ = {lab.model(model).hidden[0]}")
        for ax in axes[number, len(epochs[number]) :]:
            ax.set_axis_off()
    axes[0, 0].scatter([], [], s=3, color="k", lw=0, label="solutions")
    shared_legend(drawing, [axes[0, 0]], marker_scale=2.5)
    return drawing


def _window(points: Tensor) -> list[tuple[float, float]]:
    """Return the range of the points in both directions with a margin, with a height of at least half the width."""
    low, high = points.amin(0), points.amax(0)
    center, half = (low + high) / 2, 0.53 * (high - low)
    half[1] = torch.maximum(half[1], half[0] / 2)
    return [(float(a), float(b)) for a, b in zip(center - half, center + half, strict=True)]


def _points(rows: list[Row]) -> Tensor:
    return torch.tensor([[float(row["x"]), float(row["y"])] for row in rows]).view(-1, 2)
