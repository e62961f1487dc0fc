"""SVG drawing of the tree of solutions. Each node shows the image, the number of starts and the labels of a branch."""

from math import log

from torch import Tensor

from tapmachine.analysis.landscape.tree import Branch, SolutionTree
from tapmachine.apps.report.labels import Labels
from tapmachine.apps.report.views import View
from tapmachine.data.errors import plural
from tapmachine.display.html import escape
from tapmachine.display.images import gray_png

MOST_LEAVES = 40
POPULATED = 0.005  # fraction of the starts below which a leaf is omitted
ROW, IMAGE = 34.0, 28.0  # pixels: height of a leaf, side of an image
LEFT, RIGHT, BAR, WIDTH = 34.0, 190.0, 70.0, 820.0
TEXT = "fill:currentColor;font:11px system-ui,sans-serif"


def shown_branches(tree: SolutionTree) -> list[Branch]:
    """Return the branches of a tree without the leaves that have few starts. Leaves keep their indices."""
    enough = max(1.0, POPULATED * len(tree.basin))
    n_leaves = min(MOST_LEAVES, max(1, int((tree.counts >= enough).sum())))
    kept = tree.largest_leaves(n_leaves).tolist()
    branches = tree.pruned(n_leaves).branches()
    return [branch._replace(leaf=kept[branch.leaf]) if branch.leaf >= 0 else branch for branch in branches]


def draw_tree(tree: SolutionTree, view: View, labels: Labels | None, positions: dict[int, int]) -> str:
    """Draw the tree as SVG, with the first epoch on the left and the last epoch on the right.

    Args:
        tree: Tree of solutions.
        view: View that converts rows to images.
        labels: Labels of the starts, or None.
        positions: Index of each solution of the last epoch in the script's list of solutions.
    """
    branches = shown_branches(tree)
    first, last = tree.epochs[0], tree.epochs[-1]
    n_leaves = sum(branch.leaf >= 0 for branch in branches)
    height = ROW * n_leaves + 30

    def x(epoch: int) -> float:  # logarithmic scale, because most splits occur early
        fraction = log((1 + epoch) / (1 + first)) / (log((1 + last) / (1 + first)) or 1.0)
        return LEFT + (WIDTH - LEFT - RIGHT) * fraction

    edges, nodes = [], []
    for index, branch in enumerate(branches):
        end_x, end_y = x(branch.epoch), ROW * (branch.height + 0.5)
        begin_x, begin_y = LEFT - 30, end_y
        if branch.parent >= 0:
            begin_x, begin_y = x(branches[branch.parent].epoch), ROW * (branches[branch.parent].height + 0.5)
        width = 1.5 + 9 * (int(branch.starts.sum()) / max(1, len(tree.basin))) ** 0.5
        color = "currentColor" if labels is None else labels.colors[int(labels.counts(branch.starts).argmax())]
        edges.append(
            f'<path class="edge" data-node="{index}" data-x="{begin_x:.1f}" '
            f'd="M{begin_x:.1f} {begin_y:.1f}V{end_y:.1f}H{end_x:.1f}" '
            f'style="fill:none;stroke:{color};stroke-width:{width:.1f};stroke-opacity:.75"/>'
        )
        attributes = f'data-node="{index}" data-x="{end_x:.1f}" transform="translate({end_x:.1f} {end_y:.1f})"'
        nodes.append(_node(branch, attributes, view, labels, positions.get(branch.leaf)))
    shown = dict.fromkeys(tree.epochs[round(k * (len(tree.epochs) - 1) / 4)] for k in range(5))
    ticks = "".join(
        f'<text x="{x(epoch):.1f}" y="{height - 6:.1f}" text-anchor="middle" style="{TEXT}">'
        f"{f'epoch {epoch}' if epoch == first else epoch}</text>"
        for epoch in shown
    )
    return (
        f'<svg class="tree" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="group" '
        f'aria-label="Tree of {n_leaves} solutions" data-row="{ROW:.0f}">{"".join(edges)}{"".join(nodes)}'
        f'<g class="ticks">{ticks}</g></svg>'
    )


def _node(branch: Branch, attributes: str, view: View, labels: Labels | None, position: int | None) -> str:
    """Draw the end of a branch: an image, and beside it the label frequencies and the number of starts."""
    n_starts = int(branch.starts.sum())
    beside = f"{n_starts} {plural(n_starts, 'start')}"
    if branch.leaf >= 0:
        kind, label = "leaf", f"Solution {branch.leaf}, {beside}"
    else:
        kind, beside = "branch", f"{branch.n_leaves} solutions, {beside}"
        label = f"Branch of {beside}, splitting after epoch {branch.epoch}"
        attributes += ' aria-expanded="true"'
    if labels is not None:
        label += f", mostly {labels.names[int(labels.counts(branch.starts).argmax())]}"
    if position is not None:
        attributes += f' data-place="{position}"'
    if position is not None or kind == "branch":
        attributes += ' tabindex="0" role="button"'
    picture = '<circle class="rim" r="6" style="fill:currentColor;stroke:none"/>'
    if view.kind == "image" and branch.means is not None:
        width, height = (IMAGE * side / max(view.height, view.width) for side in (view.width, view.height))
        box = f'x="{-width / 2:.1f}" y="{-height / 2:.1f}" width="{width:.1f}" height="{height:.1f}"'
        uri = gray_png(view.values(branch.means.unsqueeze(0)).view(view.height, view.width))
        picture = (
            f'<image {box} href="{uri}" style="image-rendering:pixelated"/>'
            f'<rect class="rim" {box} style="fill:none;stroke:currentColor;stroke-opacity:.4"/>'
        )
    bar = "" if labels is None else _label_bar(labels, branch.starts, IMAGE / 2 + 6)
    offset = IMAGE / 2 + 8 + (0 if labels is None else BAR + 4)
    return (
        f'<g class="node {kind}" data-parent="{branch.parent}" {attributes} aria-label="{escape(label)}">'
        f"<title>{escape(label)}</title>{picture}"
        f'<g class="beside">{bar}<text x="{offset:.1f}" y="4" style="{TEXT}">{beside}</text></g></g>'
    )


def _label_bar(labels: Labels, starts: Tensor, left: float) -> str:
    """Draw the label frequencies as a stacked bar, with the most frequent label first."""
    counts, parts = labels.counts(starts), []
    for label in counts.argsort(descending=True, stable=True)[: int((counts > 0).sum())].tolist():
        width = BAR * int(counts[label]) / int(counts.sum())
        parts.append(
            f'<rect x="{left:.1f}" y="-5" width="{width:.1f}" height="10" fill="{labels.colors[label]}">'
            f"<title>{escape(labels.names[label])}: {int(counts[label])}</title></rect>"
        )
        left += width
    return "".join(parts)
