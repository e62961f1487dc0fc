"""Tables and the tree of a tracked landscape, as files of the command `tapmachine landscape`."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from tapmachine.analysis.landscape.embedding import Embedding
from tapmachine.analysis.landscape.tracking import LandscapeTrack


def landscape_files(track: LandscapeTrack, embedding: Embedding | None) -> dict[str, str]:
    """Return the contents of the CSV tables and the tree of a tracked landscape, by file name.

    Args:
        track: Result of `track_landscape`.
        embedding: Embedding of the track, fitted to its starts; None if there are too few starts.
    """
    return {
        "epochs.csv": epochs_table(track),
        "solutions.csv": solutions_table(track, embedding),
        "starts.csv": starts_table(track),
        "tree.nwk": track.tree.newick() + "\n",
    }


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
