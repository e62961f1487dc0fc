"""Tree of a trained machine's solutions, which merge toward earlier epochs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.data.checks import check_count


class Branch(NamedTuple):
    """A branch of a tree, which ends at a split or at the last epoch.

    Attributes:
        parent: Index of the parent branch, or −1 for a root.
        epoch: Last epoch of the branch.
        leaf: Index of the solution at the last epoch, or −1 for a branch that splits.
        starts: Boolean mask of the starts in the branch, (K,).
        means: Visible means of the branch at its last epoch, or None if they are not stored.
        n_leaves: Number of leaves that descend from the branch.
        height: Vertical position in a drawing. Leaves are at 0, 1, 2, …, and a branch is centered on its children.
    """

    parent: int
    epoch: int
    leaf: int
    starts: Tensor
    means: Tensor | None
    n_leaves: int
    height: float = 0.0


@dataclass(frozen=True, eq=False)
class SolutionTree:
    """Tree whose leaves are the solutions of the last epoch, with their ancestors at earlier epochs.

    The parent of a solution is found by solving the machine of the previous epoch, starting from the solution.
    Solutions with the same parent have split between the two epochs. At the last epoch, indices refer to the solutions
    of the landscape. At earlier epochs, the tree has a separate numbering, because a parent need not be a solution of
    the landscape.

    Attributes:
        epochs: Epochs in increasing order.
        parents: For each epoch except the first, the index of each solution's parent at the previous epoch.
        counts: Number of starts that converge to each solution of the last epoch, shape (n,).
        basin: Index of the solution to which each start converges, shape (K,); −1 if it does not converge.
        n_not_converged: Number of solutions at each epoch that did not converge. For these, the moments after the last
            sweep are used.
        means: Visible means of the solutions at each epoch, shape (n, *state_shape), in float32; empty if not stored.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.landscape import track_landscape
        >>> track = track_landscape({epoch: rbm(Binary(6), Binary(3)) for epoch in (1, 2)}, torch.eye(6))
        >>> track.tree.epochs, [parents.tolist() for parents in track.tree.parents]
        ([1, 2], [[0]])
    """

    epochs: list[int]
    parents: list[Tensor]
    counts: Tensor
    basin: Tensor
    n_not_converged: list[int]
    means: list[Tensor] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"SolutionTree({len(self.counts)} leaves, {self.n_lineages[0]} at epoch {self.epochs[0]})"

    @property
    def n_lineages(self) -> list[int]:
        """Number of solutions at each epoch that have a descendant at the last epoch."""
        sizes = [int(parent.max()) + 1 if len(parent) else 0 for parent in self.parents]
        return [*sizes, len(self.counts)]

    def ancestors(self, epoch: int) -> Tensor:  # (n,)
        """Return the index of each leaf's ancestor at a given epoch."""
        ancestors = torch.arange(len(self.counts))
        for parent in reversed(self.parents[self.epochs.index(epoch) :]):
            ancestors = parent[ancestors]
        return ancestors

    def clusters(self, epoch: int) -> Tensor:  # (K,)
        """Return the cluster of each start: the ancestor of its solution at a given epoch, or −1 if not converged."""
        return torch.cat((self.ancestors(epoch), torch.tensor([-1])))[self.basin]

    def cut(self, n_clusters: int, least: float = 0.01) -> Tensor:  # (K,)
        """Cluster the starts at the first epoch with at least `n_clusters` large clusters.

        If no epoch has enough large clusters, the last epoch is used.

        Args:
            n_clusters: Minimum number of large clusters.
            least: Minimum fraction of the starts in a large cluster (default: 0.01).

        Returns:
            Cluster of each start, shape (K,); −1 for starts that did not converge.
        """
        n_clusters = check_count("n_clusters", n_clusters)
        for epoch in self.epochs:
            clusters = self.clusters(epoch)
            sizes = torch.bincount(clusters[clusters >= 0])
            if int((sizes >= least * len(clusters)).sum()) >= n_clusters:
                break
        return clusters

    def largest_leaves(self, count: int) -> Tensor:
        """Return the indices of the `count` leaves with the most starts, in increasing order."""
        return self.counts.argsort(descending=True, stable=True)[:count].sort().values

    def pruned(self, n_leaves: int) -> "SolutionTree":
        """Return a tree with the `n_leaves` leaves that have the most starts, renumbered in their original order."""
        kept = [self.largest_leaves(n_leaves)]
        parents: list[Tensor] = []
        for parent in reversed(self.parents):
            above, index = torch.unique(parent[kept[-1]], return_inverse=True)
            parents.append(index)
            kept.append(above)
        leaf = torch.full((len(self.counts) + 1,), -1)  # new index of each leaf; the last entry is for index −1
        leaf[kept[0]] = torch.arange(len(kept[0]))
        means = [mean[index] for mean, index in zip(self.means, reversed(kept), strict=False)]
        counts = self.counts[kept[0]]
        return SolutionTree(self.epochs, parents[::-1], counts, leaf[self.basin], self.n_not_converged, means)

    def branches(self) -> list[Branch]:
        """Return the branches of the tree, each of which is followed by its descendants."""
        last, ancestors = len(self.epochs) - 1, [self.ancestors(epoch) for epoch in self.epochs]
        branches: list[Branch] = []
        waiting = [(0, root, -1) for root in reversed(range(self.n_lineages[0]))]
        while waiting:
            position, index, parent = waiting.pop()
            children = [index]
            while position < last and len(children) == 1:
                children = (self.parents[position] == index).nonzero().squeeze(-1).tolist()
                if len(children) == 1:
                    position, index = position + 1, children[0]
            leaves = (ancestors[position] == index).nonzero().squeeze(-1)
            means = self.means[position][index] if self.means else None
            leaf = index if position == last else -1
            starts = torch.isin(self.basin, leaves)
            branches.append(Branch(parent, self.epochs[position], leaf, starts, means, len(leaves)))
            if position < last:
                waiting += [(position + 1, child, len(branches) - 1) for child in reversed(children)]
        return _with_heights(branches)

    def newick(self, names: Sequence[str] | None = None) -> str:
        """Convert the tree to Newick format, with branch lengths in epochs.

        Args:
            names: Names of the leaves (default: the index and the number of starts of each leaf).

        Returns:
            The tree as a string.

        Example:
            >>> import torch
            >>> parents = [torch.tensor([0, 0]), torch.tensor([0, 1, 1])]
            >>> tree = SolutionTree([1, 5, 20], parents, torch.tensor([4, 3, 3]), torch.zeros(10).long(), [0, 0, 0])
            >>> tree.newick()
            '(s0_4:19,(s1_3:15,s2_3:15):4):1;'
        """
        if names is None:
            names = [f"s{leaf}_{int(count)}" for leaf, count in enumerate(self.counts)]
        if len(names) != len(self.counts):
            raise ValueError(f"names has {len(names)} names for {len(self.counts)} leaves; expected one per leaf")
        branches = self.branches()
        children: list[list[str]] = [[] for _ in range(len(branches) + 1)]  # the last ones are the roots
        for index in reversed(range(len(branches))):
            branch = branches[index]
            inside = _quoted(names[branch.leaf]) if branch.leaf >= 0 else f"({','.join(reversed(children[index]))})"
            begin = branches[branch.parent].epoch if branch.parent >= 0 else 0
            children[branch.parent].append(f"{inside}:{branch.epoch - begin}")
        roots = children[-1][::-1]
        return f"({','.join(roots)}):0;" if len(roots) > 1 else f"{''.join(roots)};"


def _with_heights(branches: list[Branch]) -> list[Branch]:
    heights = [0.0] * len(branches)
    for height, index in enumerate(index for index, branch in enumerate(branches) if branch.leaf >= 0):
        heights[index] = float(height)
    for index in reversed(range(len(branches))):
        children = [heights[child] for child, branch in enumerate(branches) if branch.parent == index]
        if children:
            heights[index] = (children[0] + children[-1]) / 2
    return [branch._replace(height=height) for branch, height in zip(branches, heights, strict=True)]


def _quoted(name: str) -> str:
    plain = name.replace("_", "").replace("-", "").replace(".", "").isalnum()
    return name if plain else "'" + name.replace("'", "''") + "'"
