"""Figures and CSV tables of a tracked landscape."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from tapmachine.analysis.landscape.diagnosis import density_curve, energy_bands
from tapmachine.analysis.landscape.embedding import Embedding
from tapmachine.analysis.landscape.tracking import LandscapeTrack
from tapmachine.analysis.maps import map_thumbnails, solution_map
from tapmachine.analysis.plots import (
    Picture,
    free_energies,
    free_energy_histogram,
    heat_map,
    image_grid,
    new_figure,
    tree,
)
from tapmachine.analysis.receptive import ReceptiveFields
from tapmachine.analysis.style import styled

N_SLICES = 4  # number of epochs with a separate panel
N_LEAVES = 60  # maximum number of leaves drawn in a tree
N_FIELDS = 16  # number of receptive fields per ranking
SHORT_TREE = 40  # maximum number of leaves for which names are drawn

Shape = Sequence[int] | None


@styled
def landscape_pictures(track: LandscapeTrack, embedding: Embedding | None, shape: Shape) -> dict[str, Picture]:
    """Draw the figures of a track: free energies, their distributions, maps and the tree.

    Args:
        track: Result of `track_landscape`.
        embedding: Embedding of the track, fitted to its starts; None if there are too few starts.
        shape: Height and width of each image, if rows are images.

    Returns:
        The figures by name.
    """
    pictures = {
        "free_energies": _free_energies(track),
        "free_energy_slices": _slices(track),
    }
    if embedding is not None:
        pictures["map"] = _map(track, embedding, shape)
        pictures["maps"] = _maps(track, embedding)
    if len(track.epochs) > 1 and len(track.tree.counts):
        pictures["tree"] = _tree(track)
    return pictures


@styled
def fields_picture(ranking: ReceptiveFields, shape: Shape) -> Picture:
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
    for ax, (name, index) in zip(axes, kinds.items(), strict=False):
        rows = ranking.fields[index].flatten(1)
        if shape is not None and rows.shape[1] == shape[0] * shape[1]:
            image_grid(ax, rows, (shape[0], shape[1]))
        else:
            heat_map(ax, rows)
        ax.set_title(name, fontsize=9)
    which = "" if ranking.layer == 1 else f" of layer {ranking.layer}, projected through the layers below"
    return Picture(figure, f"Receptive fields{which}, ranked by spread and by the activation of the units.")


def plural(count: int, word: str = "solution") -> str:
    """Return the word in the singular or plural, depending on the count."""
    return word if count == 1 else f"{word}s"


def slices(epochs: Sequence[int], count: int = N_SLICES) -> list[int]:
    """Return the indices of evenly spaced epochs, including the first and the last."""
    if len(epochs) <= count:
        return list(range(len(epochs)))
    return [round(step * (len(epochs) - 1) / (count - 1)) for step in range(count)]


def _free_energies(track: LandscapeTrack) -> Picture:
    figure = new_figure(4.5, 4.5)
    free_energies(figure.subplots(), track.epochs, [snapshot.free_energy for snapshot in track.snapshots])
    return Picture(figure, "Free energies of all solutions at each epoch, their mean, and the number of solutions.")


def _slices(track: LandscapeTrack) -> Picture:
    chosen = [track.snapshots[position] for position in slices(track.epochs)]
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
    return Picture(figure, "Distribution of free energies and number of solutions at selected epochs.")


def _map(track: LandscapeTrack, embedding: Embedding, shape: Shape) -> Picture:
    figure = new_figure(6, 5)
    ax, last = figure.subplots(), track.snapshots[-1]
    solution_map(ax, embedding.solutions[-1], last.free_energy, embedding.data)
    visible = last.means[0].flatten(1)
    if shape is not None and visible.shape[1] == shape[0] * shape[1]:
        map_thumbnails(ax, embedding.solutions[-1], visible, (shape[0], shape[1]))
    return Picture(
        figure,
        f"{last.n_solutions} {plural(last.n_solutions)} of the last epoch and the starts (gray), embedded with Isomap.",
    )


def _maps(track: LandscapeTrack, embedding: Embedding) -> Picture:
    figure = new_figure(6, 6)
    axes = list(figure.subplots(2, 2, squeeze=False).flat)
    chosen = slices(track.epochs)
    for ax, position in zip(axes, chosen, strict=False):
        solution_map(ax, embedding.solutions[position], None, embedding.data)
        snapshot = track.snapshots[position]
        ax.set_title(f"epoch {snapshot.epoch}: {snapshot.n_solutions} {plural(snapshot.n_solutions)}", fontsize=9)
    for ax in axes[len(chosen) :]:
        ax.set_axis_off()
    return Picture(figure, "Solutions (black) and starts (gray) at selected epochs, embedded with Isomap.")


def _tree(track: LandscapeTrack) -> Picture:
    shown = track.tree.pruned(N_LEAVES)
    names = None
    if len(shown.counts) <= SHORT_TREE:
        names = [f"{int(count)} {plural(int(count), 'start')}" for count in shown.counts]
    figure = new_figure(6, 6)
    tree(figure.subplots(), shown.epochs, shown.parents, names)
    of = "" if len(shown.counts) == len(track.tree.counts) else f" (the {len(shown.counts)} with the most starts)"
    return Picture(figure, f"Tree of the solutions of the last epoch{of}, which merge toward earlier epochs.")


# ----- tables


def epochs_table(track: LandscapeTrack) -> str:
    """Return a CSV table with one line per epoch."""
    tree_numbers = zip(track.changes(), track.tree.n_lineages, strict=True)
    return _csv(
        ("epoch", "solutions", "stable", "not_converged", "mean_free_energy", "lowest", "highest", "bands", "born",
         "merged", "lineages"),
        (
            (s.epoch, s.n_solutions, int(s.stable.sum()), s.n_not_converged,
             *((s.mean_free_energy, float(s.free_energy[0]), float(s.free_energy[-1])) if s.n_solutions else [""] * 3),
             len(energy_bands(s.free_energy)), *change, lineages)
            for s, (change, lineages) in zip(track.snapshots, tree_numbers, strict=True)
        ),
    )  # fmt: skip


def solutions_table(track: LandscapeTrack, embedding: Embedding | None) -> str:
    """Return a CSV table with one line per solution and epoch."""
    lines = []
    for position, s in enumerate(track.snapshots):
        places = [("", "")] * s.n_solutions if embedding is None else embedding.solutions[position].tolist()
        columns = (s.free_energy.tolist(), s.counts.tolist(), s.stable.tolist(), places)
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
