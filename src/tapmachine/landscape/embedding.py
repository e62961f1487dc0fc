"""Solutions and data on a plane, by Isomap."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tapmachine.landscape.find import Landscape
from tapmachine.landscape.tracking import Snapshot, Track, snapshot_of
from tapmachine.units.checks import check_count

N_NEIGHBOURS = 10
MOST_POINTS = 2000  # that a map is fitted to: the time grows with their square, and more
FEWEST_POINTS = 4


@dataclass(frozen=True, eq=False)
class Embedding:
    """Points on a plane.

    Attributes:
        solutions: of each snapshot, (n, 2).
        data: of the rows of data, (N, 2); None if the map was fitted to solutions.
    """

    solutions: list[Tensor]
    data: Tensor | None


def embed(
    found: Track | Snapshot | Landscape | Sequence[Snapshot],
    data: Tensor | np.ndarray | None = None,
    *,
    epoch: int | None = None,
    n_neighbours: int = N_NEIGHBOURS,
) -> Embedding:
    """A plane on which solutions lie as they do in the space of means, as far as that goes, by Isomap.

    The map is fitted once and serves all epochs. With data it is fitted to them, and solutions are placed by their
    visible means [fig:compareInitSolns]; without, it is fitted to the solutions of one epoch, by the means of all
    layers [fig:solnvis].

    Args:
        found: by `track`, or some of its snapshots; or by `find_solutions`.
        data: rows that the map is fitted to, as in `Track.starts`; if there are more than 2,000, to some of them.
        epoch: whose solutions it is fitted to without data; the last, unless given.
        n_neighbours: of each point, in Isomap's graph.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, embed, rbm, track
        >>> x = (torch.rand(40, 6, generator=torch.Generator().manual_seed(0)) < 0.5).float()
        >>> found = track({1: rbm(Binary(6), Binary(3))}, x)
        >>> embed(found, x).solutions[0].shape
        torch.Size([1, 2])
    """
    n_neighbours = check_count("n_neighbours", n_neighbours)
    if isinstance(found, Landscape):
        found = snapshot_of(found)
    snapshots = found.snapshots if isinstance(found, Track) else [found] if isinstance(found, Snapshot) else list(found)
    if not snapshots:
        raise ValueError("there are no solutions to embed")
    if data is not None:
        basis = torch.as_tensor(data).flatten(1).cpu().double().numpy()
        points = [snapshot.means[0].flatten(1).double().numpy() for snapshot in snapshots]
        if basis.shape[1] != points[0].shape[1]:
            states = "; categories must be in the form of Track.starts" if snapshots[0].means[0].dim() > 2 else ""
            raise ValueError(f"data have {basis.shape[1]} columns, solutions {points[0].shape[1]}{states}")
    else:
        points = [np.hstack([own.flatten(1).double().numpy() for own in snapshot.means]) for snapshot in snapshots]
        chosen = [own for own, snapshot in zip(points, snapshots, strict=True) if epoch in (None, snapshot.epoch)]
        if not chosen:
            raise ValueError(f"there is no snapshot of epoch {epoch}")
        basis = chosen[-1]
    if len(basis) < FEWEST_POINTS:
        raise ValueError(f"a map needs {FEWEST_POINTS} points or more, and there are {len(basis)}; fit it to data")
    some = np.linspace(0, len(basis) - 1, min(len(basis), MOST_POINTS)).round().astype(int)
    *placed, fitted = _isomap(basis[some], [*points, basis], n_neighbours)
    return Embedding([torch.from_numpy(z) for z in placed], None if data is None else torch.from_numpy(fitted))


def embed_over_starts(found: Track) -> Embedding | None:
    """The map of a track over what it started from; None where there are too few starts for one."""
    return embed(found, found.starts) if len(found.starts) >= FEWEST_POINTS else None


def _isomap(basis: np.ndarray, points: list[np.ndarray], n_neighbours: int) -> list[np.ndarray]:
    from sklearn.manifold import Isomap

    with warnings.catch_warnings():
        # A graph of several parts is completed by the shortest links between them, which is what one wants to see.
        warnings.filterwarnings("ignore", message="The number of connected components", category=UserWarning)
        warnings.filterwarnings("ignore", category=Warning, module="scipy")
        model = Isomap(n_neighbors=min(n_neighbours, len(basis) - 1), n_components=2, eigen_solver="dense")
        model.fit(basis)
        return [model.transform(z) if len(z) else np.empty((0, 2)) for z in points]
