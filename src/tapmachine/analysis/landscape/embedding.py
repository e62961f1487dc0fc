"""Solutions and data on a plane, by Isomap."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tapmachine.analysis.landscape.find import Landscape
from tapmachine.analysis.landscape.tracking import LandscapeTrack, Snapshot, snapshot_of
from tapmachine.data.checks import check_count

N_NEIGHBORS = 10
MOST_POINTS = 2000  # that a map is fitted to: the time grows with their square, and more
FEWEST_POINTS = 4


@dataclass(frozen=True, eq=False)
class Embedding:
    """Solutions and data as points of a plane, by `embed_landscape`.

    Attributes:
        solutions: of each snapshot, (n, 2).
        data: of the rows of data, (N, 2); None if the map was fitted to solutions.
    """

    solutions: list[Tensor]
    data: Tensor | None


def embed_landscape(
    landscape: LandscapeTrack | Snapshot | Landscape | Sequence[Snapshot],
    data: Tensor | np.ndarray | None = None,
    *,
    epoch: int | None = None,
    n_neighbors: int = N_NEIGHBORS,
) -> Embedding:
    """Embed solutions in a plane by Isomap, so that distances resemble those between their means.

    The map is fitted once and serves all epochs. With data it is fitted to them, and solutions are placed by their
    visible means [fig:compareInitSolns]; without, it is fitted to the solutions of one epoch, by the means of all
    layers [fig:solnvis].

    Args:
        landscape: result of `track_landscape`, some of its snapshots, or the result of `find_solutions`.
        data: rows to fit the map to, in the form of `LandscapeTrack.starts`; at most 2,000 are used.
        epoch: without data, the epoch whose solutions the map is fitted to (default: the last).
        n_neighbors: number of neighbors in Isomap's graph.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.analysis.landscape import embed_landscape, track_landscape
        >>> x = (torch.rand(40, 6, generator=torch.Generator().manual_seed(0)) < 0.5).float()
        >>> track = track_landscape({1: rbm(Binary(6), Binary(3))}, x)
        >>> embed_landscape(track, x).solutions[0].shape
        torch.Size([1, 2])
    """
    n_neighbors = check_count("n_neighbors", n_neighbors)
    if isinstance(landscape, Landscape):
        landscape = snapshot_of(landscape)
    snapshots = (
        landscape.snapshots
        if isinstance(landscape, LandscapeTrack)
        else [landscape]
        if isinstance(landscape, Snapshot)
        else list(landscape)
    )
    if not snapshots:
        raise ValueError("there are no solutions to embed")
    if data is not None:
        basis = torch.as_tensor(data).flatten(1).cpu().double().numpy()
        points = [snapshot.means[0].flatten(1).double().numpy() for snapshot in snapshots]
        if basis.shape[1] != points[0].shape[1]:
            states = (
                "; categories must be in the form of LandscapeTrack.starts" if snapshots[0].means[0].dim() > 2 else ""
            )
            raise ValueError(f"data have {basis.shape[1]} columns, solutions {points[0].shape[1]}{states}")
    else:
        points = [np.hstack([mean.flatten(1).double().numpy() for mean in snapshot.means]) for snapshot in snapshots]
        chosen = [z for z, snapshot in zip(points, snapshots, strict=True) if epoch in (None, snapshot.epoch)]
        if not chosen:
            raise ValueError(f"there is no snapshot of epoch {epoch}")
        basis = chosen[-1]
    if len(basis) < FEWEST_POINTS:
        raise ValueError(f"a map needs {FEWEST_POINTS} points or more, and there are {len(basis)}; fit it to data")
    some = np.linspace(0, len(basis) - 1, min(len(basis), MOST_POINTS)).round().astype(int)
    *placed, fitted = _isomap(basis[some], [*points, basis], n_neighbors)
    return Embedding([torch.from_numpy(z) for z in placed], None if data is None else torch.from_numpy(fitted))


def embed_over_starts(track: LandscapeTrack) -> Embedding | None:
    """The embedding of a track, fitted to its starts; None if there are too few starts."""
    return embed_landscape(track, track.starts) if len(track.starts) >= FEWEST_POINTS else None


def _isomap(basis: np.ndarray, points: list[np.ndarray], n_neighbors: int) -> list[np.ndarray]:
    from sklearn.manifold import Isomap

    with warnings.catch_warnings():
        # A graph of several parts is completed by the shortest links between them, which is what one wants to see.
        warnings.filterwarnings("ignore", message="The number of connected components", category=UserWarning)
        warnings.filterwarnings("ignore", category=Warning, module="scipy")
        model = Isomap(n_neighbors=min(n_neighbors, len(basis) - 1), n_components=2, eigen_solver="dense")
        model.fit(basis)
        return [model.transform(z) if len(z) else np.empty((0, 2)) for z in points]
