"""Data files by format: .npy, .npz, .csv, Parquet, AnnData and idx files, and folders of .npy files.

Nothing in a file is executed. `arrays.py` reads arrays, `text.py` text, and `table_files.py` Parquet and AnnData.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from tapmachine.data.arrays import IDX_TYPES, NPY, Array, decompressed, from_idx, from_npy, from_npz, map_npy
from tapmachine.data.errors import DataError
from tapmachine.data.table_files import from_h5ad, from_parquet
from tapmachine.data.text import ALIGNMENT, TextLayout, from_csv

CONVERSIONS = {  # file types of other software, and how to convert them
    (".fasta", ".fa", ".faa", ".fna", ".a2m", ".a3m", ".sto"): ALIGNMENT,
    (".xlsx", ".xls"): "is a spreadsheet; export it as .csv",
}


def read_folder(folder: Path) -> dict[str, Array]:
    """Read a folder of .npy files as memory maps, by path, sorted by name."""
    paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    if not paths:
        raise DataError(f"{folder}: is an empty folder; expected .npy files")
    for path in paths:
        if path.suffix != ".npy" or path.is_dir():
            raise DataError(f"{path}: is not a .npy file; a data folder must contain only .npy files")
    return {str(path): map_npy(path) for path in paths}


def read_file(
    path: Path, key: str, gaps: bool, as_table: bool = False, texts: Collection[str] = ()
) -> tuple[Any, TextLayout | None]:
    """Read an array, a sparse matrix or the columns of a table from a file, with names of columns and rows.

    Uncompressed .npy files are memory-mapped.

    Args:
        path: The file.
        key: Name of the array in an .npz file.
        gaps: Whether cells of a .csv file may be empty; they become NaN.
        as_table: Whether to return columns whenever they have names.
        texts: Names of columns to read as text.
    """
    name = path.name.removesuffix(".gz")
    if name.endswith(".npz"):
        return from_npz(path, key), None
    if path.name.endswith((".parquet", ".h5ad")) and not path.is_file():
        raise FileNotFoundError(path)
    if path.name.endswith(".parquet"):
        return from_parquet(path, as_table)
    if path.name.endswith(".h5ad"):
        return from_h5ad(path)
    with path.open("rb") as file:
        is_npy = file.read(len(NPY)) == NPY
    if is_npy:
        return map_npy(path), None
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = decompressed(content, path)
    if content.startswith(NPY):
        return from_npy(content, path), None
    if len(content) >= 4 and content[:2] == b"\0\0" and content[2] in IDX_TYPES:
        return from_idx(content, str(path)), None
    if is_text(name):
        return from_csv(content, path, gaps, as_table, texts)
    hint = next((hint for suffixes, hint in CONVERSIONS.items() if name.lower().endswith(suffixes)), None)
    raise DataError(f"{path}: {hint or 'is not a .npy, .npz, .csv, .parquet, .h5ad or idx file'}")


def is_text(name: str) -> bool:
    """Whether a file of this name is read as text."""
    return name.removesuffix(".gz").endswith((".csv", ".tsv", ".txt"))
