"""The figures of a landscape, and its numbers as tables."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from tapmachine.landscape.diagnosis import bands, density_curve
from tapmachine.landscape.embedding import Embedding
from tapmachine.landscape.fields import FieldRanking
from tapmachine.landscape.tracking import Track
from tapmachine.plots import (
    Picture,
    free_energies,
    free_energy_histogram,
    heat_map,
    image_grid,
    map_thumbnails,
    new_figure,
    solution_map,
    tree,
)

N_SLICES = 4  # epochs that are looked at more closely
N_LEAVES = 60  # of a tree, that can be told apart
N_FIELDS = 16  # of each kind
SHORT_TREE = 40  # leaves, whose names can be read

Shape = Sequence[int] | None


def landscape_pictures(found: Track, embedding: Embedding | None, shape: Shape) -> dict[str, Picture]:
    """The figures of a track by name: free energies, slices of them, maps and the tree.

    Args:
        found: by `track`.
        embedding: of it, fitted to its starts; None if there were too few.
        shape: of rows that are images, in pixels.
    """
    pictures = {
        "free_energies": _free_energies(found),
        "free_energy_slices": _slices(found),
    }
    if embedding is not None:
        pictures["map"] = _map(found, embedding, shape)
        pictures["maps"] = _maps(found, embedding)
    if len(found.epochs) > 1 and len(found.tree.counts):
        pictures["tree"] = _tree(found)
    return pictures


def fields_picture(ranking: FieldRanking, shape: Shape) -> Picture:
    """Receptive fields: the most spread, the most localised, those of the most and the least active units."""
    kinds = {
        "most spread": ranking.by_spread(N_FIELDS),
        "most localised": ranking.by_spread(N_FIELDS, localised=True),
    }
    if not bool(torch.isnan(ranking.activation).any()):
        kinds |= {
            "most active": ranking.by_activation(N_FIELDS),
            "least active": ranking.by_activation(N_FIELDS, least=True),
        }
    figure = new_figure(4.5, 4.8 if len(kinds) > 2 else 2.5)
    axes = figure.subplots(-(-len(kinds) // 2), 2, squeeze=False).flat
    for ax, (name, numbers) in zip(axes, kinds.items(), strict=False):
        rows = ranking.fields[numbers].flatten(1)
        if shape is not None and rows.shape[1] == shape[0] * shape[1]:
            image_grid(ax, rows, (shape[0], shape[1]))
        else:
            heat_map(ax, rows)
        ax.set_title(name, fontsize=9)
    which = "" if ranking.layer == 1 else f" of layer {ranking.layer}, through the layers below it"
    return Picture(figure, f"Receptive fields{which}, ranked by how far they reach and by how active their units are.")


def plural(count: int, word: str = "solution") -> str:
    """The word, for so many."""
    return word if count == 1 else f"{word}s"


def slices(epochs: Sequence[int], count: int = N_SLICES) -> list[int]:
    """Positions of some epochs, from the first to the last, at even distances."""
    if len(epochs) <= count:
        return list(range(len(epochs)))
    return [round(step * (len(epochs) - 1) / (count - 1)) for step in range(count)]


def _free_energies(found: Track) -> Picture:
    figure = new_figure(4.5, 4.5)
    free_energies(figure.subplots(), found.epochs, [snapshot.free_energy for snapshot in found.snapshots])
    return Picture(figure, "Free energies of all solutions over the epochs, their mean, and how many there are.")


def _slices(found: Track) -> Picture:
    chosen = [found.snapshots[position] for position in slices(found.epochs)]
    figure = new_figure(4.5, 4.5)
    axes = list(figure.subplots(2, 2, squeeze=False).flat)
    for ax, snapshot in zip(axes, chosen, strict=False):
        values = snapshot.free_energy
        curve = density_curve(values) if len(values) > 2 and float(values.max() - values.min()) > 1e-6 else None
        if len(values):
            free_energy_histogram(ax, values, curve)
        ax.set_title(f"epoch {snapshot.epoch}: {snapshot.n_solutions}", fontsize=9)
        ax.tick_params(labelsize=7)
    for ax in axes[len(chosen) :]:
        ax.set_axis_off()
    return Picture(figure, "The distribution of free energies at some epochs, and the number of solutions.")


def _map(found: Track, embedding: Embedding, shape: Shape) -> Picture:
    figure = new_figure(6, 5)
    ax, last = figure.subplots(), found.snapshots[-1]
    solution_map(ax, embedding.solutions[-1], last.free_energy, embedding.data)
    visible = last.means[0].flatten(1)
    if shape is not None and visible.shape[1] == shape[0] * shape[1]:
        map_thumbnails(ax, embedding.solutions[-1], visible, (shape[0], shape[1]))
    return Picture(
        figure, f"{last.n_solutions} {plural(last.n_solutions)} of the last epoch over the starts (grey), by Isomap."
    )


def _maps(found: Track, embedding: Embedding) -> Picture:
    figure = new_figure(6, 6)
    axes = list(figure.subplots(2, 2, squeeze=False).flat)
    chosen = slices(found.epochs)
    for ax, position in zip(axes, chosen, strict=False):
        solution_map(ax, embedding.solutions[position], None, embedding.data)
        snapshot = found.snapshots[position]
        ax.set_title(f"epoch {snapshot.epoch}: {snapshot.n_solutions} {plural(snapshot.n_solutions)}", fontsize=9)
    for ax in axes[len(chosen) :]:
        ax.set_axis_off()
    return Picture(figure, "Solutions (black) over the starts (grey) at some epochs, by Isomap.")


def _tree(found: Track) -> Picture:
    shown = found.tree.pruned(N_LEAVES)
    names = None
    if len(shown.counts) <= SHORT_TREE:
        names = [f"{int(count)} {plural(int(count), 'start')}" for count in shown.counts]
    figure = new_figure(6, 6)
    tree(figure.subplots(), shown.epochs, shown.parents, names)
    of = "" if len(shown.counts) == len(found.tree.counts) else f" (the {len(shown.counts)} with the most starts)"
    return Picture(figure, f"How the solutions of the last epoch{of} merge as one goes back through the training.")


# ----- tables


def epochs_table(found: Track) -> str:
    """A line of CSV for each epoch."""
    tree_numbers = zip(found.changes(), found.tree.n_lineages, strict=True)
    return _csv(
        ("epoch", "solutions", "stable", "not_converged", "mean_free_energy", "lowest", "highest", "bands", "born",
         "merged", "lineages"),
        (
            (s.epoch, s.n_solutions, int(s.stable.sum()), s.n_not_converged,
             *((s.mean_free_energy, float(s.free_energy[0]), float(s.free_energy[-1])) if s.n_solutions else [""] * 3),
             len(bands(s.free_energy)), *change, lineages)
            for s, (change, lineages) in zip(found.snapshots, tree_numbers, strict=True)
        ),
    )  # fmt: skip


def solutions_table(found: Track, embedding: Embedding | None) -> str:
    """A line of CSV for each solution of each epoch."""
    lines = []
    for position, s in enumerate(found.snapshots):
        places = [("", "")] * s.n_solutions if embedding is None else embedding.solutions[position].tolist()
        columns = (s.free_energy.tolist(), s.counts.tolist(), s.stable.tolist(), places)
        for number, (value, count, stable, (x, y)) in enumerate(zip(*columns, strict=True)):
            lines.append((s.epoch, number, value, count, stable, x, y))
    return _csv(("epoch", "solution", "free_energy", "starts", "stable", "x", "y"), lines)


def starts_table(found: Track) -> str:
    """A line of CSV for each start: which solution of the last epoch it leads to; −1 for none."""
    last = found.snapshots[-1]
    rows = zip(found.rows.tolist(), last.basin.tolist(), last.distance.tolist(), strict=True)
    return _csv(("row", "solution", "distance"), rows)


def _csv(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    return text.getvalue()
