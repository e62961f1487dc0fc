"""Labels of data rows, which determine the colors of the map, the tree and the samples."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tapmachine.data.arrays import map_npy
from tapmachine.data.errors import DataError
from tapmachine.data.files import check_regular
from tapmachine.data.sources import digit_labels, mnist_labels
from tapmachine.display.figures import OTHERS, color
from tapmachine.runs.data import RunData

Array = np.ndarray[Any, Any]

MOST_CLASSES = 20  # maximum number of classes with distinct colors; all others are gray
REST = "other"


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels of the training rows of a run.

    Attributes:
        names: Names of the classes.
        index: Class index of each row, (N,).
    """

    names: tuple[str, ...]
    index: Tensor

    @property
    def colors(self) -> tuple[str, ...]:
        """Color of each class."""
        return tuple(OTHERS if index >= MOST_CLASSES else color(index) for index in range(len(self.names)))

    def counts(self, chosen: Tensor) -> Tensor:  # (N,), bool -> (n_classes,)
        """Count the labels of the chosen rows."""
        return torch.bincount(self.index[chosen], minlength=len(self.names))

    def rows(self, index: Tensor) -> "Labels":
        """Return the labels of the rows at `index`."""
        return Labels(self.names, self.index[index])

    def purity(self, basin: Tensor) -> float:
        """Return the fraction of rows with the most frequent label of their basin. Rows with basin −1 are ignored."""
        most = sum(int(self.counts(basin == solution).max()) for solution in basin[basin >= 0].unique())
        return most / int((basin >= 0).sum()) if bool((basin >= 0).any()) else float("nan")

    def chance(self, basin: Tensor, n: int = 20) -> float:
        """Return the mean purity over `n` random permutations of the labels."""
        generator = torch.Generator().manual_seed(0)
        shuffled = (self.rows(torch.randperm(len(self.index), generator=generator)) for _ in range(n))
        return sum(labels.purity(basin) for labels in shuffled) / n


def make_labels(values: Any) -> Labels:  # (N,)
    """Create labels from arbitrary values. Classes are sorted, and rare classes are merged."""
    names, index, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    index = index.reshape(-1)
    texts = [f"{name:g}" if isinstance(name, np.floating) else str(name) for name in names]
    if len(names) > MOST_CLASSES + 1:
        kept = np.sort(np.argsort(-counts, kind="stable")[:MOST_CLASSES])
        merged = np.full(len(names), MOST_CLASSES)
        merged[kept] = np.arange(MOST_CLASSES)
        index, texts = merged[index], [*(texts[name] for name in kept), REST]
    return Labels(tuple(texts), torch.from_numpy(index.astype(np.int64)))


def labels_of(data: RunData[Tensor], path: str | None) -> Labels | None:
    """Read the labels of the training rows from a file, or take those of a built-in data set.

    Args:
        data: Data of the run, loaded into memory.
        path: Path of a .npy or .csv file with one label per row, which must cover at least all rows up to the last
            training row. If None, the labels of digits or mnist are used.

    Returns:
        The labels, or None if no labels are available.

    Raises:
        DataError: If the file cannot be read, or has the wrong number of labels.
    """
    n_train = len(data.train) if data.index is None else int(data.index[-1]) + 1
    if path is not None:
        values = read_labels(Path(path), data.n_rows, n_train)
    elif data.name == "digits":
        values = digit_labels()
    elif data.name == "mnist":
        try:
            values = mnist_labels()
        except DataError:  # labels are optional
            return None
    else:
        return None
    labels = make_labels(values[:n_train])
    return labels if data.index is None else labels.rows(data.index)


def read_labels(path: Path, *lengths: int) -> Array:  # (N,)
    """Read one label per row from a .npy file, or a one-column .csv file with or without a header.

    Args:
        path: Path to the file.
        lengths: Valid numbers of labels. Error messages mention the first of these numbers.

    Raises:
        DataError: If the file cannot be read, or has the wrong number of labels.
    """
    try:
        if path.suffix not in (".npy", ".csv"):
            raise ValueError("expected a .npy or .csv file")
        check_regular(path)
        values = np.array(map_npy(path)) if path.suffix == ".npy" else _from_text(path, lengths)
    except FileNotFoundError:
        raise DataError(f"{path}: file not found") from None
    except (OSError, EOFError, ValueError, csv.Error) as error:
        raise DataError(f"{path}: labels cannot be read: {error}") from None
    if values.ndim == 2 and 1 in values.shape:
        values = values.reshape(-1)
    if values.ndim != 1 or len(values) not in lengths:
        shape = f"{len(values)} labels" if values.ndim == 1 else f"an array of shape {values.shape}"
        raise DataError(f"{path}: contains {shape}; expected {lengths[0]} labels, one per row of the data")
    return values


def _from_text(path: Path, lengths: tuple[int, ...]) -> Array:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = [row for row in csv.reader(file) if row]
    for line, row in enumerate(rows, 1):
        if len(row) != 1:
            raise ValueError(f"line {line} has {len(row)} columns; expected one label per line")
    cells = [row[0].strip() for row in rows]
    if len(cells) - 1 in lengths and len(cells) not in lengths:
        cells = cells[1:]  # skip the header
    are_integers = all(cell.lstrip("-").isdigit() for cell in cells)
    return np.array([int(cell) for cell in cells] if are_integers else cells)
