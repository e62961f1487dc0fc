"""What the page's script needs: places, numbers and pictures of solutions, small enough to be inside the page."""

import base64
import io
from collections.abc import Sequence
from math import log
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool1d, adaptive_avg_pool2d

from tapmachine.analysis.landscape import Snapshot, SolutionTree
from tapmachine.analysis.landscape.figures import N_LEAVES, plural
from tapmachine.analysis.plots import tree_heights
from tapmachine.apps.report.findings import Findings

MOST_VALUES = 2_000_000  # of means, over all epochs: about two megabytes of the page
MOST_SOLUTIONS, FEWEST_SOLUTIONS = 150, 20  # of an epoch, that are on the map
MOST_PIXELS = 48  # of an image's side; larger ones are made smaller
MOST_BARS = 400
N_EXAMPLES = 4  # rows of the data that lead to a solution
LEVELS = 31  # of gray: more would double the size
GRID = 1000  # places on the map are whole numbers up to this


class View:
    """How rows of values are shown: as images, as a heat map of states, or as bars.

    Attributes:
        kind: `image`, `heat` or `bars`.
        height, width: of what is stored for a row, in values.
    """

    def __init__(self, found: Findings) -> None:
        units = found.machine.layers[0]
        shape = found.image_shape
        if units.is_categorical:
            self.kind, height, width = "heat", units.state_shape[1], min(units.n, MOST_BARS)
        elif shape is not None and shape[0] * shape[1] == units.n:
            largest = max(1.0, max(shape) / MOST_PIXELS)
            self.kind, height, width = "image", round(shape[0] / largest), round(shape[1] / largest)
        else:
            self.kind, height, width = "bars", 1, min(units.n, MOST_BARS)
        self.height, self.width, self._shape = max(1, height), max(1, width), shape
        lower, upper = (bound.detach().double().cpu() for bound in units.bounds())
        if not bool(torch.isfinite(upper - lower).all()):
            lower, upper = found.track.starts.double().amin(), found.track.starts.double().amax()
        self.lower, self.length = lower, torch.where(upper > lower, upper - lower, 1.0)

    def values(self, rows: Tensor) -> Tensor:  # (K, *state_shape) -> (K, height·width)
        """Values from 0 to 1, smaller than the rows if those are large."""
        share = ((rows.double() - self.lower) / self.length).clamp(0, 1)
        if self.kind == "heat":
            return adaptive_avg_pool1d(share.transpose(1, 2), self.width).flatten(1)
        if self.kind == "bars":
            return adaptive_avg_pool1d(share.flatten(1).unsqueeze(1), self.width).squeeze(1)
        assert self._shape is not None
        images = share.view(-1, 1, self._shape[0], self._shape[1])
        return adaptive_avg_pool2d(images, (self.height, self.width)).flatten(1)


def for_script(found: Findings) -> dict[str, Any] | None:
    """All that the script needs, as JSON can hold it; None without a map."""
    if found.embedding is None or found.embedding.data is None:
        return None
    view = View(found)
    snapshots = found.track.snapshots
    most = MOST_VALUES // (view.height * view.width * len(snapshots))
    most = max(FEWEST_SOLUTIONS, min(MOST_SOLUTIONS, most))
    shown = [_most_visited(snapshot, most) for snapshot in snapshots]
    every = torch.cat([found.embedding.data, *found.embedding.solutions])
    lowest = every.amin(0)
    length = (every.amax(0) - lowest).clamp(min=1e-12)

    def places(points: Tensor) -> list[list[int]]:
        return ((points - lowest) / length * GRID).round().long().tolist()

    epochs = []
    for position, (snapshot, numbers) in enumerate(zip(snapshots, shown, strict=True)):
        before = None if position == 0 else snapshots[position - 1].means[0].flatten(1)[shown[position - 1]]
        epochs.append(
            {
                "epoch": snapshot.epoch,
                "total": snapshot.n_solutions,
                "number": numbers.tolist(),
                "place": places(found.embedding.solutions[position][numbers]),
                "free_energy": [round(value, 4) for value in snapshot.free_energy[numbers].tolist()],
                "starts": snapshot.counts[numbers].tolist(),
                "stable": snapshot.stable[numbers].tolist(),
                "from": _nearest(snapshot.means[0].flatten(1)[numbers], before),
                "examples": [
                    (snapshot.basin == number).nonzero().squeeze(-1)[:N_EXAMPLES].tolist() for number in numbers
                ],
                "sheet": sheet(view.values(snapshot.means[0][numbers])),
            }
        )
    return {
        "view": view.kind,
        "height": view.height,
        "width": view.width,
        "starts": len(found.track.starts),
        "epochs": epochs,
        "data": {"place": places(found.embedding.data), "sheet": sheet(view.values(found.track.starts))},
    }


def _most_visited(snapshot: Snapshot, most: int) -> Tensor:
    return snapshot.counts.argsort(descending=True, stable=True)[:most]


def _nearest(points: Tensor, before: Tensor | None) -> list[int]:
    """For each solution the nearest one of the epoch before, whence it moves on the map."""
    if before is None or len(before) == 0 or len(points) == 0:
        return [-1] * len(points)
    return torch.cdist(points.double(), before.double()).argmin(1).tolist()


def sheet(values: Tensor) -> str:
    """Rows of values from 0 to 1 as the rows of one gray image, to be put into a page."""
    from PIL import Image  # which comes with matplotlib

    if len(values) == 0:
        return ""
    gray = ((values * LEVELS).round() * (255 / LEVELS)).round().to(torch.uint8).cpu().contiguous().numpy()
    content = io.BytesIO()
    Image.fromarray(gray, mode="L").save(content, format="png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


def tree_svg(tree: SolutionTree, shown: Sequence[int]) -> str:
    """A drawing of the tree's largest leaves, which the script makes answer to a pointer.

    Args:
        tree: of the track.
        shown: solutions of the last epoch that are on the map, by their place in the script's list.
    """
    leaves = tree.largest_leaves(N_LEAVES).tolist()
    small = tree.pruned(N_LEAVES)
    heights = tree_heights(small.parents, len(leaves))
    row, left, right, width = 14, 12, 90, 640
    first, last = small.epochs[0], small.epochs[-1]
    height = row * len(leaves) + 40

    def x(epoch: int) -> float:  # on a logarithmic scale, as most splits come early
        return left + (width - left - right) * log((1 + epoch) / (1 + first)) / log((1 + last) / (1 + first))

    def y(level: float) -> float:
        return row * (level + 1)

    lines = []
    for position, parent in enumerate(small.parents):
        start, end = x(small.epochs[position]), x(small.epochs[position + 1])
        for child, own in enumerate(parent.tolist()):
            below, above = y(heights[position][own]), y(heights[position + 1][child])
            lines.append(f"M{start:.1f} {below:.1f}L{end:.1f} {above:.1f}")
    places = {number: place for place, number in enumerate(shown)}
    dots = []
    for leaf, level in zip(leaves, heights[-1], strict=True):
        count = int(tree.counts[leaf])
        name = f"{count} {plural(count, 'start')}"
        on_map = (
            f' data-place="{places[leaf]}" tabindex="0" role="button" aria-label="Solution {leaf}, {name}"'
            if leaf in places
            else ""
        )
        dots.append(
            f'<g class="leaf"{on_map}><circle cx="{x(last):.1f}" cy="{y(level):.1f}" r="5"/>'
            f'<text x="{x(last) + 9:.1f}" y="{y(level) + 4:.1f}">{name}</text></g>'
        )
    ticks = "".join(
        f'<text x="{x(epoch):.1f}" y="{height - 6}" text-anchor="middle">{epoch}</text>'
        for epoch in dict.fromkeys((first, small.epochs[len(small.epochs) // 2], last))
    )
    return (
        f'<svg class="tree" viewBox="0 0 {width} {height}" role="group" aria-label="Tree of {len(leaves)} solutions">'
        f'<path d="{"".join(lines)}"/>{"".join(dots)}{ticks}</svg>'
    )
