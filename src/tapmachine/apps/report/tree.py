"""SVG drawing of the tree of solutions. Each node shows the image, the number of starts and the labels of a branch."""

from math import log

import torch
from torch import Tensor

from tapmachine.analysis.landscape.output import plural
from tapmachine.analysis.landscape.tree import Branch, SolutionTree
from tapmachine.apps.report.labels import Labels
from tapmachine.apps.report.views import View
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


def draw_tree(tree: SolutionTree, view: View, labels: Labels | None, places: dict[int, int]) -> str:
    """Draw the tree as SVG, with the first epoch on the left and the last epoch on the right.

    Args:
        tree: Tree of solutions.
        view: View that converts rows to images.
        labels: Labels of the starts, or None.
        places: Position of each solution of the last epoch on the map, as an index into the script's list of solutions.
    """
    branches = shown_branches(tree)
    first, last = tree.epochs[0], tree.epochs[-1]
    n_rows = sum(branch.leaf >= 0 for branch in branches)
    height = ROW * n_rows + 30

    def x(epoch: int) -> float:  # logarithmic scale, because most splits occur early
        share = log((1 + epoch) / (1 + first)) / (log((1 + last) / (1 + first)) or 1.0)
        return LEFT + (WIDTH - LEFT - RIGHT) * share

    total = max(1, len(tree.basin))
    edges, drawn = [], []
    for index, node in enumerate(branches):
        end = (x(node.epoch), ROW * (node.height + 0.5))
        begin = (LEFT - 30, end[1])
        if node.parent >= 0:
            begin = x(branches[node.parent].epoch), ROW * (branches[node.parent].height + 0.5)
        share = int(node.starts.sum()) / total
        color = "currentColor" if labels is None else labels.colors[_most(labels, node.starts)]
        edges.append(
            f'<path class="edge" data-node="{index}" data-x="{begin[0]:.1f}" '
            f'd="M{begin[0]:.1f} {begin[1]:.1f}V{end[1]:.1f}H{end[0]:.1f}" '
            f'style="fill:none;stroke:{color};stroke-width:{1.5 + 9 * share**0.5:.1f};stroke-opacity:.75"/>'
        )
        drawn.append(_node(index, node, end, view, labels, places))
    shown = dict.fromkeys(tree.epochs[round(k * (len(tree.epochs) - 1) / 4)] for k in range(5))
    ticks = "".join(
        f'<text x="{x(epoch):.1f}" y="{height - 6:.1f}" text-anchor="middle" style="{TEXT}">'
        f"{f'epoch {epoch}' if epoch == first else epoch}</text>"
        for epoch in shown
    )
    return (
        f'<svg class="tree" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="group" '
        f'aria-label="Tree of {n_rows} solutions" data-row="{ROW:.0f}">{"".join(edges)}{"".join(drawn)}'
        f'<g class="ticks">{ticks}</g></svg>'
    )


def _most(labels: Labels, starts: Tensor) -> int:
    return int(torch.bincount(labels.index[starts], minlength=len(labels.names)).argmax())


def _node(
    index: int, node: Branch, at: tuple[float, float], view: View, labels: Labels | None, places: dict[int, int]
) -> str:
    count = int(node.starts.sum())
    words = f"{count} {plural(count, 'start')}"
    is_leaf = node.leaf >= 0
    what = (
        f"Solution {node.leaf}"
        if is_leaf
        else f"Branch of {node.n_leaves} solutions, splitting after epoch {node.epoch}"
    )
    place = f' data-place="{places[node.leaf]}"' if node.leaf in places else ""
    label = f"{what}, {words}" + ("" if labels is None else f", mostly {labels.names[_most(labels, node.starts)]}")
    button = ' tabindex="0" role="button"' if place or not is_leaf else ""
    expanded = "" if is_leaf else ' aria-expanded="true"'
    beside = words if is_leaf else f"{node.n_leaves} solutions, {words}"
    side = "leaf" if is_leaf else "branch"
    if view.kind == "image" and node.means is not None:
        pixels = view.values(node.means.unsqueeze(0)).view(view.height, view.width)
        width = IMAGE * view.width / max(view.height, view.width)
        tall = IMAGE * view.height / max(view.height, view.width)
        picture = (
            f'<image x="{-width / 2:.1f}" y="{-tall / 2:.1f}" width="{width:.1f}" height="{tall:.1f}" '
            f'href="{gray_png(pixels)}" style="image-rendering:pixelated"/>'
            f'<rect class="rim" x="{-width / 2:.1f}" y="{-tall / 2:.1f}" width="{width:.1f}" height="{tall:.1f}" '
            'style="fill:none;stroke:currentColor;stroke-opacity:.4"/>'
        )
    else:
        picture = '<circle class="rim" r="6" style="fill:currentColor;stroke:none"/>'
    bar = "" if labels is None else _label_bar(labels, node.starts, IMAGE / 2 + 6)
    offset = IMAGE / 2 + 8 + (0 if labels is None else BAR + 4)
    return (
        f'<g class="node {side}" data-node="{index}" data-parent="{node.parent}" data-x="{at[0]:.1f}"{place}{button}'
        f'{expanded} aria-label="{escape(label)}" transform="translate({at[0]:.1f} {at[1]:.1f})">'
        f"<title>{escape(label)}</title>{picture}"
        f'<g class="beside">{bar}<text x="{offset:.1f}" y="4" style="{TEXT}">{beside}</text></g></g>'
    )


def _label_bar(labels: Labels, starts: Tensor, left: float) -> str:
    """Draw the label frequencies as a stacked bar, with the most frequent label first."""
    counts = torch.bincount(labels.index[starts], minlength=len(labels.names))
    total, parts = max(1, int(counts.sum())), []
    for own in counts.argsort(descending=True, stable=True).tolist():
        width = BAR * int(counts[own]) / total
        if width > 0:
            parts.append(
                f'<rect x="{left:.1f}" y="-5" width="{width:.1f}" height="10" fill="{labels.colors[own]}">'
                f"<title>{escape(labels.names[own])}: {int(counts[own])}</title></rect>"
            )
            left += width
    return "".join(parts)
