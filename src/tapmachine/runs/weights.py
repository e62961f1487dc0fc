"""Row weights: reading from files, and repetition of rows with small integer weights."""

import hashlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tapmachine.data.errors import DataError
from tapmachine.data.formats import read_file

MOST_REPEATED = 4  # rows are repeated if the number of rows grows by at most this factor


def read_weights(path: str, n_rows: int) -> Tensor:  # (n_rows,), float64
    """Read row weights from a .npy file or a .csv file with one column.

    Raises:
        DataError: If the file cannot be read, or if it does not contain one valid weight per row.
    """
    try:
        values, _ = read_file(Path(path), "", gaps=False)
    except FileNotFoundError:
        raise DataError(f"{path}: file not found") from None
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{path}: cannot read the weights: {error}") from None
    values = np.asarray(values)
    if values.dtype.kind not in "biuf":
        raise DataError(f"{path}: the weights are {values.dtype.name}; expected numbers")
    if values.ndim == 2 and 1 in values.shape:
        values = values.reshape(-1)
    if values.shape != (n_rows,):
        raise DataError(f"{path}: the shape is {values.shape}; expected {n_rows} weights in one column, one per row")
    weights = torch.from_numpy(values.astype(np.float64))
    bad = ~(torch.isfinite(weights) & (weights >= 0))
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise DataError(f"{path}: the weight of row {row} is {weights[row]:g}; expected a non-negative, finite number")
    if not bool(weights.sum() > 0):
        raise DataError(f"{path}: all weights are 0; expected at least one positive weight")
    return weights


def digest_of_weights(weights: Tensor) -> str:
    """Return the SHA-256 digest of row weights."""
    return hashlib.sha256(weights.double().numpy().tobytes()).hexdigest()


def repeat_rows(x: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Repeat rows according to their weights if the weights are small integers.

    If rows are repeated, the returned weights are None, so that training is bit-identical to training on data that
    contain the repeated rows. Otherwise, the rows and weights are returned unchanged.
    """
    times = None if weights is None else repeated(weights)
    return (x, weights) if times is None else (x[times.to(x.device)], None)


def repeated(weights: Tensor) -> Tensor | None:  # (N,) -> (M,)
    """Return the indices of the repeated rows, or None if the weights are large or not integers."""
    total = float(weights.sum())
    if bool((weights == weights.round()).all()) and 0 < total <= MOST_REPEATED * len(weights):
        return torch.arange(len(weights)).repeat_interleave(weights.long().cpu())
    return None
