"""Figures, tables and the tree of a tracked landscape, as files of the command `tapmachine landscape`."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tapmachine.analysis.landscape.embedding import Embedding
from tapmachine.analysis.landscape.figures import free_energies, map_thumbnails, solution_map, tree
from tapmachine.analysis.landscape.tracking import LandscapeTrack
from tapmachine.analysis.receptive import ReceptiveFields
from tapmachine.display.charts import heat_map
from tapmachine.display.figures import new_figure, styled
from tapmachine.display.images import image_grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N_MAPS = 4  # number of epochs with a map in one figure
N_LEAVES = 60  # maximum number of leaves drawn in a tree
N_FIELDS = 16  # number of receptive fields per ranking
DPI = 120


def landscape_files(
    track: LandscapeTrack, embedding: Embedding | None, rankings: Sequence[ReceptiveFields], shape: Sequence[int] | None
) -> dict[str, bytes]:
    """Return the contents of CSV tables, figures and the tree of a tracked landscape, by file name.

    Args:
        track: Result of `track_landscape`.
        embedding: Embedding of the track, fitted to its starts; None if there are too few starts.
        rankings: Receptive fields of each hidden layer.
        shape: Height and width of each image, if rows are images.
    """
    files = {
        "epochs.csv": epochs_table(track).encode(),
        "solutions.csv": solutions_table(track, embedding).encode(),
        "starts.csv": starts_table(track).encode(),
        "tree.nwk": (track.tree.newick() + "\n").encode(),
    }
    for name, figure in landscape_figures(track, embedding, rankings, shape).items():
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=DPI)
        files[f"{name}.png"] = content.getvalue()
    return files


# ----- figures


@styled
def landscape_figures(
    track: LandscapeTrack,
    embedding: Embedding | None,
    rankings: Sequence[ReceptiveFields] = (),
    shape: Sequence[int] | None = None,
) -> "dict[str, Figure]":
    """Draw the free energies, maps, tree and receptive fields of a track, in the arguments of `landscape_files`."""
    figures = {"free_energies": new_figure(6, 4.5)}
    free_energies(
        figures["free_energies"].subplots(), track.epochs, [snapshot.free_energy for snapshot in track.snapshots]
    )
    if embedding is not None:
        figures |= {"map": _map(track, embedding, shape), "maps": _maps(track, embedding)}
    if len(track.epochs) > 1 and len(track.tree.counts):
        shown = track.tree.pruned(N_LEAVES)
        figures["tree"] = new_figure(6, 1 + 0.14 * max(30, len(shown.counts)))
        tree(figures["tree"].subplots(), shown)
    for ranking in rankings:
        suffix = "" if ranking.layer == 1 else f"_{ranking.layer}"
        figures[f"receptive_fields{suffix}"] = _fields(ranking, shape)
    return figures


def plural(count: int, word: str = "solution") -> str:
    """Return the word in the singular or plural, depending on the count."""
    return word if count == 1 else f"{word}s"


def slices(epochs: Sequence[int], count: int) -> list[int]:
    """Return the indices of at most `count` evenly spaced epochs, including the first and the last."""
    if len(epochs) <= count:
        return list(range(len(epochs)))
    return [round(step * (len(epochs) - 1) / (count - 1)) for step in range(count)]


def _map(track: LandscapeTrack, embedding: Embedding, shape: Sequence[int] | None) -> "Figure":
    """Draw the solutions of the last epoch and the starts, with images of some solutions."""
    figure, last = new_figure(6, 5), track.snapshots[-1]
    ax = figure.subplots()
    solution_map(ax, embedding.solutions[-1], last.free_energy, embedding.data)
    visible = last.means[0].flatten(1)
    if shape is not None and visible.shape[1] == shape[0] * shape[1]:
        map_thumbnails(ax, embedding.solutions[-1], visible, (shape[0], shape[1]))
    return figure


def _maps(track: LandscapeTrack, embedding: Embedding) -> "Figure":
    """Draw the solutions at selected epochs and the starts."""
    figure = new_figure(6, 6)
    for ax, position in zip(figure.subplots(2, 2).flat, slices(track.epochs, N_MAPS), strict=False):
        solution_map(ax, embedding.solutions[position], None, embedding.data)
        snapshot = track.snapshots[position]
        ax.set_title(f"epoch {snapshot.epoch}: {snapshot.n_solutions} {plural(snapshot.n_solutions)}")
    for ax in figure.axes[len(track.epochs) :]:
        ax.set_axis_off()
    return figure


def _fields(ranking: ReceptiveFields, shape: Sequence[int] | None) -> "Figure":
    """Draw the receptive fields with the largest and smallest spread, and those of the most and least active units."""
    kinds = {
        "most spread": ranking.by_spread(N_FIELDS),
        "most localized": ranking.by_spread(N_FIELDS, localized=True),
    }
    if not bool(torch.isnan(ranking.activation).any()):
        kinds |= {
            "most active": ranking.by_activation(N_FIELDS),
            "least active": ranking.by_activation(N_FIELDS, least=True),
        }
    figure = new_figure(4.5, 4.8 if len(kinds) > 2 else 2.5)
    axes = figure.subplots(-(-len(kinds) // 2), 2, squeeze=False).flat
    for ax, (name, index) in zip(axes, kinds.items(), strict=True):
        rows = ranking.fields[index].flatten(1)
        if shape is not None and rows.shape[1] == shape[0] * shape[1]:
            image_grid(ax, rows, (shape[0], shape[1]))
        else:
            heat_map(ax, rows)
        ax.set_title(name)
    return figure


# ----- tables


def epochs_table(track: LandscapeTrack) -> str:
    """Return a CSV table with one line per epoch."""
    names = (
        "epoch", "solutions", "stable", "not_converged", "mean_free_energy", "lowest", "highest", "born", "merged",
        "lineages",
    )  # fmt: skip
    lines = []
    for s, change, lineages in zip(track.snapshots, track.changes(), track.tree.n_lineages, strict=True):
        energies: tuple[Any, ...] = ("", "", "")
        if s.n_solutions:
            energies = s.mean_free_energy, float(s.free_energy[0]), float(s.free_energy[-1])
        lines.append((s.epoch, s.n_solutions, int(s.stable.sum()), s.n_not_converged, *energies, *change, lineages))
    return _csv(names, lines)


def solutions_table(track: LandscapeTrack, embedding: Embedding | None) -> str:
    """Return a CSV table with one line per solution and epoch."""
    lines = []
    for position, s in enumerate(track.snapshots):
        points = [("", "")] * s.n_solutions if embedding is None else embedding.solutions[position].tolist()
        columns = (s.free_energy.tolist(), s.counts.tolist(), s.stable.tolist(), points)
        for solution, (value, count, stable, (x, y)) in enumerate(zip(*columns, strict=True)):
            lines.append((s.epoch, solution, value, count, stable, x, y))
    return _csv(("epoch", "solution", "free_energy", "starts", "stable", "x", "y"), lines)


def starts_table(track: LandscapeTrack) -> str:
    """Return a CSV table with the index of the solution to which each start converges at the last epoch, or −1."""
    last = track.snapshots[-1]
    rows = zip(track.rows.tolist(), last.basin.tolist(), last.distance.tolist(), strict=True)
    return _csv(("row", "solution", "distance"), rows)


def _csv(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    return text.getvalue()
