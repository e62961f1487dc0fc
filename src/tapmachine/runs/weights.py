"""Row weights: reading them from files, and repeating rows with whole-number weights."""

import hashlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tapmachine.data.errors import DataError
from tapmachine.data.formats import read_file

MOST_REPEATED = 4  # rows are repeated up to this multiple of their number


def read_weights(path: str, n_rows: int) -> Tensor:  # (n_rows,), float64
    """Read row weights from a .npy or one-column .csv file. Raises DataError."""
    try:
        values, _ = read_file(Path(path), "", gaps=False)
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{path}: weights cannot be read: {error}") from None
    values = np.asarray(values)
    if values.dtype.kind not in "biuf":
        raise DataError(f"{path}: holds {values.dtype.name}; weights must be numbers")
    if values.ndim == 2 and 1 in values.shape:
        values = values.reshape(-1)
    if values.shape != (n_rows,):
        raise DataError(f"{path}: has shape {values.shape}; expected {n_rows} weights in one column, one per row")
    weights = torch.from_numpy(values.astype(np.float64))
    bad = ~(torch.isfinite(weights) & (weights >= 0))
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise DataError(f"{path}: the weight of row {row} is {weights[row]:g}; expected a finite number, 0 or more")
    if not bool(weights.sum() > 0):
        raise DataError(f"{path}: all weights are 0; at least one must be positive")
    return weights


def digest_of_weights(weights: Tensor) -> str:
    """Digest of weights."""
    return hashlib.sha256(weights.double().numpy().tobytes()).hexdigest()


def repeat_rows(x: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Repeat rows by their weights and drop the weights, if they are small whole numbers; else change nothing.

    Training is then bit-identical to training on repeated rows.
    """
    times = None if weights is None else repeated(weights)
    return (x, weights) if times is None else (x[times.to(x.device)], None)


def repeated(weights: Tensor) -> Tensor | None:  # (N,) -> (M,)
    """Indices of repeated rows; None if the weights are large or not whole numbers."""
    total = float(weights.sum())
    if bool((weights == weights.round()).all()) and 0 < total <= MOST_REPEATED * len(weights):
        return torch.arange(len(weights)).repeat_interleave(weights.long().cpu())
    return None
