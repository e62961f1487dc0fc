"""Data for the page's script: positions, statistics and images of the solutions."""

from typing import Any

import torch
from torch import Tensor

from tapmachine.analysis.landscape import Embedding
from tapmachine.analysis.landscape.tracking import Snapshot
from tapmachine.apps.report.results import LandscapeResults, RunResults
from tapmachine.apps.report.views import View
from tapmachine.display.images import gray_png

MOST_VALUES = 1_500_000  # maximum number of visible means over all epochs, which take about 1.5 MB of the page
MOST_SOLUTIONS, FEWEST_SOLUTIONS = 150, 20  # limits on the number of solutions per epoch on the map
GRID = 1000  # coordinates on the map are integers from 0 to this number


def for_script(run: RunResults) -> dict[str, Any] | None:
    """Collect the data for the script as JSON values. Returns None if there is no map of solutions."""
    landscape = run.landscape
    if landscape is None or landscape.embedding is None or landscape.embedding.data is None:
        return None
    view, track = View(run), landscape.track
    data, *solutions = _on_grid(landscape.embedding)
    most = MOST_VALUES // (view.height * view.width * len(track.snapshots))
    most = max(FEWEST_SOLUTIONS, min(MOST_SOLUTIONS, most))
    starts = view.values(track.starts)
    return {
        "view": view.kind,
        "height": view.height,
        "width": view.width,
        "starts": len(track.starts),
        "names": view.names,
        "usual": [round(value, 3) for value in starts.mean(0).tolist()] if view.names else [],
        "epochs": _epochs(landscape, solutions, view, most),
        "data": {"place": data.tolist(), "sheet": gray_png(starts)},
        "labels": None
        if landscape.labels is None
        else {
            "names": list(landscape.labels.names),
            "colors": list(landscape.labels.colors),
            "of": landscape.labels.index.tolist(),
        },
    }


def shown_solutions(snapshot: Snapshot, most: int = MOST_SOLUTIONS) -> Tensor:
    """Return the indices of the solutions with the largest basins, in decreasing order."""
    return snapshot.counts.argsort(descending=True, stable=True)[:most]


def _on_grid(embedding: Embedding) -> list[Tensor]:
    """Convert the coordinates of the data, and of the solutions at each epoch, to integers."""
    points = [embedding.solutions[0][:0] if embedding.data is None else embedding.data, *embedding.solutions]
    lowest, highest = torch.cat(points).amin(0), torch.cat(points).amax(0)
    return [((z - lowest) / (highest - lowest).clamp(min=1e-12) * GRID).round().long() for z in points]


def _epochs(landscape: LandscapeResults, points: list[Tensor], view: View, most: int) -> list[dict[str, Any]]:
    before: Tensor | None = None
    epochs = []
    for index, snapshot in enumerate(landscape.track.snapshots):
        numbers = shown_solutions(snapshot, most)
        means = snapshot.means[0][numbers]
        place_of = torch.full((snapshot.n_solutions + 1,), -1)  # the last entry is for starts that did not converge
        place_of[numbers] = torch.arange(len(numbers))
        epochs.append(
            {
                "epoch": snapshot.epoch,
                "total": snapshot.n_solutions,
                "number": numbers.tolist(),
                "place": points[index][numbers].tolist(),
                "free_energy": [round(value, 4) for value in snapshot.free_energy[numbers].tolist()],
                "probability": [float(f"{value:.3g}") for value in snapshot.probabilities[numbers].tolist()],
                "stable": snapshot.stable[numbers].tolist(),
                "basin": place_of[snapshot.basin].tolist(),
                "from": _nearest(means.flatten(1), before),
                "sheet": gray_png(view.values(means)) if len(means) else "",
                "sentences": landscape.sentences[index],
            }
        )
        before = means.flatten(1)
    return epochs


def _nearest(points: Tensor, before: Tensor | None) -> list[int]:
    """For each solution, return the index of the nearest solution at the previous epoch, or −1 if there is none.

    The animation of a solution starts at this position.
    """
    if before is None or len(before) == 0 or len(points) == 0:
        return [-1] * len(points)
    return torch.cdist(points.double(), before.double()).argmin(1).tolist()
