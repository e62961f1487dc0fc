"""Embedding of solutions and data in a plane with Isomap."""

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
MOST_POINTS = 2000  # maximum number of points for the fit, whose cost grows at least quadratically
FEWEST_POINTS = 4


@dataclass(frozen=True, eq=False)
class Embedding:
    """Coordinates of solutions and data in a plane, as returned by `embed_landscape`.

    Attributes:
        solutions: Coordinates of the solutions of each snapshot, as a list of tensors of shape (n, 2).
        data: Coordinates of the data, shape (N, 2); None if the map was fitted to solutions.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, find_solutions, rbm
        >>> from tapmachine.landscape import embed_landscape
        >>> x = (torch.rand(40, 6, generator=torch.Generator().manual_seed(0)) < 0.5).float()
        >>> embed_landscape(find_solutions(rbm(Binary(6), Binary(3)), x), x).data.shape
        torch.Size([40, 2])
    """

    solutions: list[Tensor]
    data: Tensor | None


def embed_landscape(
    landscape: LandscapeTrack | Snapshot | Landscape | Sequence[Snapshot],
    data: Tensor | np.ndarray | None = None,
    *,
    n_neighbors: int = N_NEIGHBORS,
) -> Embedding:
    """Embed solutions in a plane with Isomap, which approximately preserves the distances between their means.

    One map is fitted and used for all epochs. If data are passed, the map is fitted to the data, and solutions are
    placed according to their visible means [fig:compareInitSolns]. Otherwise, the map is fitted to the means of all
    layers at the solutions of the last epoch [fig:solnvis].

    Args:
        landscape: Result of `track_landscape` or `find_solutions`, or a list of snapshots.
        data: Rows to which the map is fitted, in the form of `LandscapeTrack.starts`; at most 2,000 are used
            (default: fit to solutions).
        n_neighbors: Number of neighbors in Isomap's graph.

    Returns:
        Coordinates of the solutions of each snapshot, and of the data.

    Raises:
        ValueError: If there are fewer than 4 points, or if `data` does not match the landscape.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.landscape import embed_landscape, track_landscape
        >>> x = (torch.rand(40, 6, generator=torch.Generator().manual_seed(0)) < 0.5).float()
        >>> track = track_landscape({1: rbm(Binary(6), Binary(3))}, x)
        >>> embed_landscape(track, x).solutions[0].shape
        torch.Size([1, 2])
    """
    n_neighbors = check_count("n_neighbors", n_neighbors)
    if isinstance(landscape, Landscape | Snapshot):
        snapshots = [landscape if isinstance(landscape, Snapshot) else snapshot_of(landscape)]
    else:
        snapshots = landscape.snapshots if isinstance(landscape, LandscapeTrack) else list(landscape)
    if not snapshots:
        raise ValueError("landscape is empty; expected at least one snapshot")
    if data is not None:
        basis = torch.as_tensor(data).flatten(1).cpu().double().numpy()
        points = [snapshot.means[0].flatten(1).double().numpy() for snapshot in snapshots]
        if basis.shape[1] != points[0].shape[1]:
            advice = "; expected the form of LandscapeTrack.starts"
            raise ValueError(f"data have {basis.shape[1]} columns, but solutions have {points[0].shape[1]}{advice}")
    else:
        points = [np.hstack([mean.flatten(1).double().numpy() for mean in snapshot.means]) for snapshot in snapshots]
        basis = points[-1]
    if len(basis) < FEWEST_POINTS:
        raise ValueError(f"an embedding requires at least {FEWEST_POINTS} points, got {len(basis)}; use data=")
    spaced = np.linspace(0, len(basis) - 1, min(len(basis), MOST_POINTS)).round().astype(int)
    *solutions, embedded = map(torch.from_numpy, _isomap(basis[spaced], [*points, basis], n_neighbors))
    return Embedding(solutions, None if data is None else embedded)


def embed_over_starts(track: LandscapeTrack) -> Embedding | None:
    """Embed a track with a map fitted to its starts; return None if there are too few starts."""
    return embed_landscape(track, track.starts) if len(track.starts) >= FEWEST_POINTS else None


def _isomap(basis: np.ndarray, points: list[np.ndarray], n_neighbors: int) -> list[np.ndarray]:
    from sklearn.manifold import Isomap

    with warnings.catch_warnings():
        # Isomap connects separate components by their shortest links, as intended here, so its warning is suppressed.
        warnings.filterwarnings("ignore", message="The number of connected components", category=UserWarning)
        warnings.filterwarnings("ignore", category=Warning, module="scipy")
        model = Isomap(n_neighbors=min(n_neighbors, len(basis) - 1), n_components=2, eigen_solver="dense")
        model.fit(basis)
        return [model.transform(z) if len(z) else np.empty((0, 2)) for z in points]
