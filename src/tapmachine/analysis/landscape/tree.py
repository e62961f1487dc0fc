"""How the solutions of a trained machine merge going back through its training: a tree of the data."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tapmachine.data.checks import check_count


@dataclass(frozen=True, eq=False)
class SolutionTree:
    """The tree of solutions: those of the last epoch, and their ancestors at earlier epochs.

    A solution of one epoch, put into the equations of the machine at an earlier one, leads to a solution there: its
    parent. Solutions with the same parent were one, and split between the two epochs. At the last epoch, indices are
    those of the landscape; at earlier epochs the tree has its own, since no start may lead to a parent.

    Attributes:
        epochs: rising.
        parents: for each epoch but the first, the index of each solution's parent at the epoch before.
        counts: number of starts that lead to each solution of the last epoch, (n,).
        basin: index of the solution that each start leads to, (K,); −1 if it has not converged.
        n_not_converged: number of solutions at each epoch that did not converge; they are kept as they are.
        means: visible means of the solutions of each epoch, (n, *state_shape), in float32; empty if not kept.
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
        """Number of solutions of each epoch with a descendant at the last."""
        sizes = [int(parent.max()) + 1 if len(parent) else 0 for parent in self.parents]
        return [*sizes, len(self.counts)]

    def ancestors(self, epoch: int) -> Tensor:  # (n,)
        """Index of each leaf's ancestor at an epoch."""
        ancestors = torch.arange(len(self.counts))
        for parent in reversed(self.parents[self.epochs.index(epoch) :]):
            ancestors = parent[ancestors]
        return ancestors

    def clusters(self, epoch: int) -> Tensor:  # (K,)
        """The ancestor at an epoch of the solution that each start leads to; −1 if it has not converged."""
        ancestors = self.ancestors(epoch)
        return torch.where(self.basin < 0, -1, ancestors[self.basin.clamp(min=0)]) if len(ancestors) else self.basin

    def cut(self, n_clusters: int, least: float = 0.01) -> Tensor:  # (K,)
        """The clusters of the starts at the first epoch with at least so many large clusters.

        Args:
            n_clusters: number of large clusters; at the last epoch there may be fewer.
            least: share of the starts in a large cluster.
        """
        n_clusters = check_count("n_clusters", n_clusters)
        for epoch in self.epochs:
            clusters = self.clusters(epoch)
            sizes = torch.bincount(clusters[clusters >= 0])
            if int((sizes >= least * len(clusters)).sum()) >= n_clusters:
                break
        return clusters

    def largest_leaves(self, count: int) -> Tensor:
        """Indices of the `count` leaves with the most starts, rising."""
        return self.counts.argsort(descending=True, stable=True)[:count].sort().values

    def pruned(self, n_leaves: int) -> "SolutionTree":
        """The tree of the `n_leaves` leaves with the most starts, in the same order but with new indices."""
        kept = self.largest_leaves(n_leaves)
        new_index = torch.full_like(self.counts, -1)
        new_index[kept] = torch.arange(len(kept))
        basin = torch.where(self.basin < 0, -1, new_index[self.basin.clamp(min=0)]) if len(new_index) else self.basin
        parents, means = [], list(reversed(self.means))
        means[:1] = [own[kept] for own in means[:1]]
        for place, parent in enumerate(reversed(self.parents), 1):
            above, below = torch.unique(parent[kept], return_inverse=True)
            parents.append(below)
            kept = above
            means[place : place + 1] = [own[kept] for own in means[place : place + 1]]
        counts = self.counts[new_index >= 0]
        return SolutionTree(self.epochs, parents[::-1], counts, basin, self.n_not_converged, means[::-1])

    def newick(self, names: Sequence[str] | None = None) -> str:
        """The tree in Newick format, with epochs as lengths; a leaf is named by its index and its number of starts.

        Args:
            names: other names for the leaves.

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
            raise ValueError(f"there are {len(names)} names for {len(self.counts)} leaves")
        # From the leaves down: the text of every lineage, and the epoch at which it ends (a leaf, or a split).
        texts, ends = [_quoted(name) for name in names], [self.epochs[-1]] * len(names)
        for parent, epoch in zip(reversed(self.parents), reversed(self.epochs[:-1]), strict=True):
            texts, ends = _joined(parent.tolist(), texts, ends, epoch)
        if len(texts) > 1:
            texts, ends = _joined([0] * len(texts), texts, ends, 0)
        return f"{texts[0]}:{ends[0]};" if texts else ";"


def _joined(parents: list[int], texts: list[str], ends: list[int], epoch: int) -> tuple[list[str], list[int]]:
    children: list[list[int]] = [[] for _ in range(max(parents, default=-1) + 1)]
    for child, parent in enumerate(parents):
        children[parent].append(child)
    new_texts, new_ends = [], []
    for siblings in children:
        if len(siblings) == 1:
            new_texts.append(texts[siblings[0]])
            new_ends.append(ends[siblings[0]])
        else:
            new_texts.append("(" + ",".join(f"{texts[child]}:{ends[child] - epoch}" for child in siblings) + ")")
            new_ends.append(epoch)
    return new_texts, new_ends


def _quoted(name: str) -> str:
    plain = name.replace("_", "").replace("-", "").replace(".", "").isalnum()
    return name if plain else "'" + name.replace("'", "''") + "'"
