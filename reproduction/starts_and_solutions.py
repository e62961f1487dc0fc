"""Isomap embedding of starts and the solutions to which they converge, fitted to the starts [fig:compareInitSolns]."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reproduction.lab import Lab, Row, images_of, images_table, nearest
from reproduction.models import BINARY_100, FACES, FACES_256, LETTERS, REAL_500, Model
from reproduction.solutions import solutions_at
from reproduction.style import BLACK, COLUMN, GREEN, ORANGE, PURPLE, SKY, VERMILION, shared_legend, styled
from tapmachine.analysis.landscape.embedding import embed_landscape
from tapmachine.analysis.landscape.figures import MANY, map_thumbnails, solution_map
from tapmachine.analysis.landscape.output import plural
from tapmachine.analysis.landscape.tracking import snapshot_of
from tapmachine.display.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Data and the TAP solutions they lead to: (a) binary-MNIST, (b) real-MNIST, (c) CBCL"
MODELS = (BINARY_100, REAL_500, FACES_256)
DIGITS = (3, 6, 7)
N_ROWS = 5000  # number of initial training rows from which digits are taken
EPOCHS = {FACES: (5, 100, 200, 500)}
OTHER_EPOCHS = (1, 3, 25, 100)
CLASS_COLORS = SKY, ORANGE, GREEN, PURPLE, VERMILION  # light enough for black points on top to be visible
PANEL = 1.7  # width of a panel in inches
N_THUMBNAILS = 10
SHOWN_STARTS = 1500  # maximum number of starts in the table


def needed(lab: Lab) -> list[Model]:
    """Return the models whose solutions have not been embedded."""
    return [model for model in _models(lab) if not lab.knows(_name(model), f"{_name(model)}-images")]


def _models(lab: Lab) -> list[Model]:
    return [model for model in MODELS if lab.includes(model)]


def _name(model: Model) -> str:
    return f"compareInitSolns-{LETTERS[model.data]}"


def begin(lab: Lab, model: Model) -> tuple[Tensor, list[str]]:
    """Return the starts, which are images of three digits or all faces, and the label of each start."""
    train, _ = lab.rows(model.data)
    if model.data == FACES and not lab.quick:
        return train, [""] * len(train)
    labels = lab.labels()[:N_ROWS]
    chosen = torch.isin(labels, torch.tensor(DIGITS)).nonzero().squeeze(-1)
    return train[chosen.to(train.device)], [str(int(labels[number])) for number in chosen]


def _make(lab: Lab, model: Model) -> tuple[list[Row], list[Row]]:
    """Embed starts and solutions, and return the positions of both and the images of some solutions."""
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
    """Return the positions of starts and solutions, and the images of some solutions."""
    name = _name(model)
    made: dict[str, list[Row]] = {}

    def make(part: str) -> list[Row]:
        if not made:
            made["places"], made["images"] = _make(lab, model)
        return made[part]

    return lab.table(name, lambda: make("places")), lab.table(f"{name}-images", lambda: make("images"))


@styled
def draw(lab: Lab) -> "Figure":
    """Draw the figure from the tables."""
    models = _models(lab)
    tables = [table(lab, model) for model in models]
    windows = [_window(_points(places)) for places, _ in tables]
    n_epochs = max((len(_epochs(places)) for places, _ in tables), default=1)
    ratios = [(y[1] - y[0]) / (x[1] - x[0]) + 4 / N_THUMBNAILS for x, y in windows]  # including two rows of images
    figure = new_figure(max(COLUMN, PANEL * n_epochs + 0.2), sum(PANEL * ratio + 0.22 for ratio in ratios) + 0.25)
    axes = figure.subplots(len(models), n_epochs, squeeze=False, height_ratios=ratios)
    for line, model, (places, images), window in zip(axes, models, tables, windows, strict=True):
        data = [row for row in places if row["label"] != "solution"]
        labels = [str(row["label"]) if row["label"] == "" else f"digit {float(row['label']):.0f}" for row in data]
        epochs = _epochs(places)
        for ax, epoch in zip(line, epochs, strict=False):
            solved = [row for row in places if row["label"] == "solution" and row["epoch"] == epoch]
            solution_map(ax, _points(solved), None, None if any(labels) else _points(data))
            for label, color in zip(sorted(filter(None, {*labels})), CLASS_COLORS, strict=False):
                x, y = _points([row for row, own in zip(data, labels, strict=True) if own == label]).T
                ax.scatter(x, y, s=2 if len(data) > MANY else 5, color=color, lw=0, label=label, rasterized=True)
            ax.set(xlim=window[0], ylim=window[1])
            shown = [row for row in images if row["epoch"] == epoch]
            ink = "white" if model.data == FACES and not lab.quick else "black"
            map_thumbnails(ax, _points(shown), images_of(shown), lab.image_shape(model.data), N_THUMBNAILS, ink)
            ax.set_title(f"epoch {epoch:.0f}, {len(solved)} {plural(len(solved))}", loc="center")
        line[0].set_ylabel(f"({LETTERS[model.data]}) {model.data}, $N_h$ = {lab.model(model).hidden[0]}")
        for ax in line[len(epochs) :]:
            ax.set_axis_off()
    axes[0, 0].scatter([], [], s=3, color=BLACK, lw=0, label="solutions")
    shared_legend(figure, [axes[0, 0]], marker_scale=2.5)
    return figure


def _epochs(places: list[Row]) -> list[float]:
    return sorted({float(row["epoch"]) for row in places if row["label"] == "solution"})


def _window(points: Tensor) -> list[tuple[float, float]]:
    """Return the range of the points in both directions with a margin, with a height of at least half the width."""
    low, high = points.amin(0), points.amax(0)
    center, half = (low + high) / 2, 0.53 * (high - low)
    half[1] = torch.maximum(half[1], half[0] / 2)
    return [(float(a), float(b)) for a, b in zip(center - half, center + half, strict=True)]


def _points(rows: list[Row]) -> Tensor:
    return torch.tensor([[float(row["x"]), float(row["y"])] for row in rows]).view(-1, 2)
