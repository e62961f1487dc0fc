"""Binary tables of the literature with fixed splits, published test log-likelihoods, and output of results."""

import csv
import gzip
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

TABLES = ("jester", "bnetflix", "baudio", "accidents", "pumsb_star", "voting", "mnist-sm", "mnist")
# For the same binarization of MNIST; as reported in the literature, not measured here.
LITERATURE = {"mnist-sm": "RBM 500, CD-25: −86.34; DBM: −84.62 (bound); NADE: −88.33 [1]"}


class Table(NamedTuple):
    """Training, validation and test rows with values 0 and 1, float32. MNIST has no validation rows."""

    train: Tensor
    valid: Tensor | None
    test: Tensor


def load(folder: Path, name: str, device: str) -> Table:
    if name == "synthetic":  # rows near one of 8 patterns
        draws = np.random.default_rng(0)
        rows = (draws.random((8, 40)) < 0.3)[draws.integers(8, size=600)] ^ (draws.random((600, 40)) < 0.1)
        arrays = np.split(rows, (400, 500))
    elif name == "mnist":
        files = [gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes()) for part in ("train", "t10k")]
        arrays = [np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 784) > 127 for raw in files]
    elif name == "mnist-sm":
        with np.load(folder / "mnist_salakhutdinov_murray.npz") as file:
            arrays = [np.unpackbits(file[part], axis=1, count=784) for part in ("train", "test")]
    else:
        with np.load(folder / "density_tables.npz") as file:
            parts, columns = [file[f"{name}_{part}"] for part in ("train", "valid", "test")], file[f"{name}_columns"]
            arrays = [np.unpackbits(part, axis=1, count=int(columns)) for part in parts]
    train, *valid, test = (torch.from_numpy(array.astype(np.float32)).to(device) for array in arrays)
    return Table(train, valid[0] if valid else None, test)


def write(rows: list[dict], notes: list[str], path: Path) -> None:
    """Write a CSV file, or a Markdown table with notes."""
    cells = [list(rows[0]), *(list(map(str, row.values())) for row in rows)] if rows else [["no results"]]
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(cells)
        return
    lines = [f"| {' | '.join(line)} |" for line in cells]
    lines.insert(1, "|" + " --- |" * len(cells[0]))
    path.write_text("\n\n".join(["\n".join(lines), *notes]) + "\n")
