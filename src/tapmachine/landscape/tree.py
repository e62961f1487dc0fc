"""How the solutions of a trained machine merge into fewer as one goes back through its training: a tree of the data."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tapmachine.units.checks import check_count


@dataclass(frozen=True, eq=False)
class SolutionTree:
    """The solutions at the last epoch, and what each becomes at earlier ones.

    A solution of one epoch, put into the equations of the machine at an earlier one, leads to a solution there: its
    parent. Those that share a parent were one, and split between the two epochs. At the last epoch, solutions have the
    numbers that they have elsewhere; at earlier ones the tree has numbers of its own, since data may not lead there.

    Attributes:
        epochs: rising.
        parents: for each epoch but the first, the number of each solution's parent at the epoch before.
        counts: starts that lead to each solution of the last epoch, (n,).
        basin: which of them each start leads to, (K,); −1 if it has not converged.
        n_not_converged: solutions at each epoch that had not converged; they stay where they were.
    """

    epochs: list[int]
    parents: list[Tensor]
    counts: Tensor
    basin: Tensor
    n_not_converged: list[int]

    def __repr__(self) -> str:
        return f"SolutionTree({len(self.counts)} leaves, {self.n_lineages[0]} at epoch {self.epochs[0]})"

    @property
    def n_lineages(self) -> list[int]:
        """How many solutions of each epoch have a descendant at the last one."""
        sizes = [int(parent.max()) + 1 if len(parent) else 0 for parent in self.parents]
        return [*sizes, len(self.counts)]

    def ancestors(self, epoch: int) -> Tensor:  # (n,)
        """The number of each leaf's ancestor at an epoch."""
        found = torch.arange(len(self.counts))
        for parent in reversed(self.parents[self.epochs.index(epoch) :]):
            found = parent[found]
        return found

    def clusters(self, epoch: int) -> Tensor:  # (K,)
        """The ancestor at an epoch of the solution that each start leads to; −1 if it has not converged."""
        found = self.ancestors(epoch)
        return torch.where(self.basin < 0, -1, found[self.basin.clamp(min=0)]) if len(found) else self.basin

    def cut(self, n_clusters: int, least: float = 0.01) -> Tensor:  # (K,)
        """The clusters of the starts at the first epoch that has so many large ones.

        Args:
            n_clusters: how many; at the last epoch there may be fewer.
            least: the share of the starts that makes a cluster a large one.
        """
        n_clusters = check_count("n_clusters", n_clusters)
        for epoch in self.epochs:
            found = self.clusters(epoch)
            sizes = torch.bincount(found[found >= 0])
            if int((sizes >= least * len(found)).sum()) >= n_clusters:
                break
        return found

    def largest_leaves(self, count: int) -> Tensor:
        """Numbers of the leaves with the most starts, so many of them, rising."""
        return self.counts.argsort(descending=True, stable=True)[:count].sort().values

    def pruned(self, n_leaves: int) -> "SolutionTree":
        """The tree of the leaves with the most starts, so many of them; they keep their order, not their numbers."""
        kept = self.largest_leaves(n_leaves)
        number = torch.full_like(self.counts, -1)
        number[kept] = torch.arange(len(kept))
        basin = torch.where(self.basin < 0, -1, number[self.basin.clamp(min=0)]) if len(number) else self.basin
        parents = []
        for parent in reversed(self.parents):
            above, below = torch.unique(parent[kept], return_inverse=True)
            parents.append(below)
            kept = above
        return SolutionTree(self.epochs, parents[::-1], self.counts[number >= 0], basin, self.n_not_converged)

    def newick(self, names: Sequence[str] | None = None) -> str:
        """The tree in Newick's format, epochs as lengths; a leaf is called by its number and how many starts it has.

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
            names = [f"s{number}_{int(count)}" for number, count in enumerate(self.counts)]
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
    for own in children:
        if len(own) == 1:
            new_texts.append(texts[own[0]])
            new_ends.append(ends[own[0]])
        else:
            new_texts.append("(" + ",".join(f"{texts[child]}:{ends[child] - epoch}" for child in own) + ")")
            new_ends.append(epoch)
    return new_texts, new_ends


def _quoted(name: str) -> str:
    plain = name.replace("_", "").replace("-", "").replace(".", "").isalnum()
    return name if plain else "'" + name.replace("'", "''") + "'"
