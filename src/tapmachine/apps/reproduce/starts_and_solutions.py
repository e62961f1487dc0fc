"""Where data lead: starts and their solutions on one plane, by Isomap of the data [fig:compareInitSolns]."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tapmachine.analysis.landscape.embedding import embed_landscape
from tapmachine.analysis.landscape.tracking import snapshot_of
from tapmachine.analysis.plots import map_thumbnails, new_figure, solution_map
from tapmachine.apps.reproduce.lab import Lab, Row, images_of, images_table, nearest
from tapmachine.apps.reproduce.models import BINARY_100, FACES, FACES_256, LETTERS, REAL_500, Model
from tapmachine.apps.reproduce.solutions import solutions_at

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Data and the TAP solutions they lead to: (a) binary-MNIST, (b) real-MNIST, (c) CBCL"
MODELS = (BINARY_100, REAL_500, FACES_256)
DIGITS = (3, 6, 7)
N_ROWS = 5000  # that those are taken from
EPOCHS = {FACES: (5, 100, 200, 500)}
OTHER_EPOCHS = (1, 3, 25, 100)
N_THUMBNAILS = 10
SHOWN_STARTS = 1500  # in the table


def needed(lab: Lab) -> list[Model]:
    """Models whose solutions have no places yet."""
    return [model for model in _models(lab) if not lab.knows(_name(model), f"{_name(model)}-images")]


def _models(lab: Lab) -> list[Model]:
    return [model for model in MODELS if lab.includes(model)]


def _name(model: Model) -> str:
    return f"compareInitSolns-{LETTERS[model.data]}"


def begin(lab: Lab, model: Model) -> tuple[Tensor, list[str]]:
    """Rows to start from, and what they show: three of the digits, or all faces."""
    train, _ = lab.rows(model.data)
    if model.data == FACES and not lab.quick:
        return train, [""] * len(train)
    labels = lab.labels()[:N_ROWS]
    chosen = torch.isin(labels, torch.tensor(DIGITS)).nonzero().squeeze(-1)
    return train[chosen.to(train.device)], [str(int(labels[number])) for number in chosen]


def _make(lab: Lab, model: Model) -> tuple[list[Row], list[Row]]:
    """Places of starts and solutions, and some solutions as images."""
    x, names = begin(lab, model)
    epochs = nearest(lab.epochs(model), EPOCHS.get(model.data, OTHER_EPOCHS))
    snapshots = [snapshot_of(solutions_at(lab, model, epoch, x), epoch) for epoch in epochs]
    embedding = embed_landscape(snapshots, x)
    assert embedding.data is not None
    every = max(1, len(x) // SHOWN_STARTS)
    rows: list[Row] = [
        {"epoch": "", "label": name, "x": f"{a:.4g}", "y": f"{b:.4g}"}
        for (a, b), name in list(zip(embedding.data.tolist(), names, strict=True))[::every]
    ]
    images: list[Row] = []
    for snapshot, points in zip(snapshots, embedding.solutions, strict=True):
        rows += [
            {"epoch": snapshot.epoch, "label": "solution", "x": f"{a:.4g}", "y": f"{b:.4g}"} for a, b in points.tolist()
        ]
        some = torch.linspace(0, len(points) - 1, min(N_THUMBNAILS, len(points))).round().long()
        about = {
            "epoch": [snapshot.epoch] * len(some),
            "x": [round(a, 4) for a in points[some, 0].tolist()],
            "y": [round(b, 4) for b in points[some, 1].tolist()],
        }
        images += images_table((100 * snapshot.means[0].flatten(1)[some]).round() / 100, **about)
    return rows, images


def table(lab: Lab, model: Model) -> tuple[list[Row], list[Row]]:
    """Places, and images."""
    name = _name(model)
    made: dict[str, list[Row]] = {}

    def make(part: str) -> list[Row]:
        if not made:
            made["places"], made["images"] = _make(lab, model)
        return made[part]

    return lab.table(name, lambda: make("places")), lab.table(f"{name}-images", lambda: make("images"))


def draw(lab: Lab) -> "Figure":
    """The figure, from the tables."""
    models = _models(lab)
    figure = new_figure(13, 3.3 * len(models))
    axes = figure.subplots(len(models), 4, squeeze=False)
    for line, model in zip(axes, models, strict=True):
        places, images = table(lab, model)
        data = [row for row in places if row["label"] != "solution"]
        labels = [str(row["label"]) if row["label"] == "" else f"{float(row['label']):.0f}" for row in data]
        epochs = sorted({float(row["epoch"]) for row in places if row["label"] == "solution"})
        for ax, epoch in zip(line, epochs, strict=False):
            solved = [row for row in places if row["label"] == "solution" and row["epoch"] == epoch]
            solution_map(ax, _points(solved), None, _points(data), labels if any(labels) else None)
            shown = [row for row in images if row["epoch"] == epoch]
            map_thumbnails(ax, _points(shown), images_of(shown), lab.image_shape(model.data), N_THUMBNAILS)
            ax.set_title(f"({LETTERS[model.data]}) epoch {epoch:.0f}: {len(solved)} solutions", fontsize=9)
        for ax in line[len(epochs) :]:
            ax.set_axis_off()
    return figure


def _points(rows: list[Row]) -> Tensor:
    return torch.tensor([[float(row["x"]), float(row["y"])] for row in rows]).view(-1, 2)
