"""The arrays in .npy, .npz, .csv and idx files, and in folders of .npy files, as they are. Nothing is executed."""

import csv
import gzip
import io
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np

Array = np.ndarray[Any, Any]

MANY_BYTES = 2**28  # that any compressed file may hold, and
MOST_TIMES = 100  # so many times its own size
DENSE_BYTES = 2**30  # that any sparse matrix may take when it is made dense
NPY = b"\x93NUMPY"  # how such a file begins
IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", " ": "spaces"}
UNNAMED = re.compile(r"(Unnamed: \d+(\.\d+)?)?")  # how pandas calls the columns of an index that has no name

ENCODE = "encode text as numbers (categories as 0, 1, 2, …), or leave the column out"
COMPLETE_ROWS = (
    "expected complete rows: remove those with gaps for training; `tapmachine impute` fills gaps with a trained machine"
)
ALIGNMENT = "is a sequence alignment; save it as whole numbers (0, 1, 2, …) in a .npy file, for --visible categorical"
CONVERSIONS = {  # files that others write, and how to bring them into a format that is read
    (".fasta", ".fa", ".faa", ".fna", ".a2m", ".a3m", ".sto"): ALIGNMENT,
    (
        ".h5ad",
    ): "is an AnnData file; save its matrix, as by numpy.save('x.npy', adata.X), or .X.toarray() if it is sparse",
    (".parquet",): "is a Parquet file; convert it, as by pandas.read_parquet(path).to_csv('x.csv', index=False)",
    (".xlsx", ".xls"): "is a spreadsheet; export it as .csv",
}


class DataError(ValueError):
    """Data that cannot be read, or are not rows of numbers."""


@dataclass(frozen=True)
class TextLayout:
    """What a text file holds beside its numbers, so that results can be written in the same form.

    Attributes:
        separator: between cells.
        names: of all columns, those of the index first; None without a header.
        index: the cells of the index columns, which are not data, for each row.
    """

    separator: str = ","
    names: tuple[str, ...] | None = None
    index: tuple[tuple[str, ...], ...] = ()

    @property
    def n_index(self) -> int:
        """The number of index columns."""
        return len(self.index[0]) if self.index else 0

    def column_names(self) -> tuple[str, ...] | None:
        """Names of the columns of data."""
        return None if self.names is None else self.names[self.n_index :]


def read_folder(folder: Path) -> dict[str, Array]:
    """The arrays of a folder of .npy files by their paths, in the order of their names; memory maps."""
    paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    if not paths:
        raise DataError(f"{folder}: is an empty folder; one of data holds .npy files")
    for path in paths:
        if path.suffix != ".npy" or path.is_dir():
            raise DataError(f"{path}: is in a folder of data, which must hold .npy files and nothing else")
    return {str(path): read_file(path, "", False)[0] for path in paths}


def read_file(path: Path, key: str, gaps: bool) -> tuple[Array, TextLayout | None]:
    """The array in a file, of a plain .npy file a memory map; and the layout of a text file.

    Args:
        path: of the file.
        key: of the array, in an .npz file.
        gaps: whether a cell of a .csv file may be empty, which is NaN then.
    """
    name = path.name.removesuffix(".gz")
    if name.endswith(".npz"):
        return _from_npz(path, key), None
    with path.open("rb") as file:
        is_npy = file.read(len(NPY)) == NPY
    if is_npy:
        return _map_npy(path), None
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = decompressed(content, path)
    if content.startswith(NPY):
        return _from_npy(content, path), None
    if len(content) >= 4 and content[:2] == b"\0\0" and content[2] in IDX_TYPES:
        return from_idx(content, str(path)), None
    if is_text(name):
        return _from_csv(content, path, gaps)
    hint = next((hint for suffixes, hint in CONVERSIONS.items() if name.lower().endswith(suffixes)), None)
    raise DataError(f"{path}: {hint or 'is not a .npy, .npz, .csv or idx file'}")


def is_text(name: str) -> bool:
    """Whether a file of this name is read as text."""
    return name.removesuffix(".gz").endswith((".csv", ".tsv", ".txt"))


def decompressed(content: bytes, path: Path) -> bytes:
    """The content of a .gz file, unless it would be out of all proportion."""
    most = _most_bytes(len(content))
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise DataError(f"{path}: holds more than {most:,} bytes, which is out of proportion to its size")
    return found


def _most_bytes(size: int) -> int:
    """What a compressed file of a size may hold: files that are made to fill the memory hold a thousand times more."""
    return max(MANY_BYTES, MOST_TIMES * size)


def _from_npy(content: bytes, path: Path) -> Array:
    with _plain_array(path):
        _check_header(io.BytesIO(content), len(content))
        array: Array = np.load(io.BytesIO(content), allow_pickle=False)
    return array


def _map_npy(path: Path) -> Array:
    with _plain_array(path):
        with path.open("rb") as file:
            _check_header(file, path.stat().st_size)
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def _check_header(file: BinaryIO, size: int) -> None:
    """Before memory is taken for what the header says."""
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    if dtype.hasobject or min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > size:
        raise ValueError(f"its header says {dtype} of shape {shape}, which it does not hold")


@contextmanager
def _plain_array(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, EOFError, TypeError, SyntaxError, TokenError, RecursionError, MemoryError) as error:
        raise DataError(f"{path}: is not a plain array of numbers: {error}") from None


def _from_npz(path: Path, key: str) -> Array:
    with path.open("rb") as handle:
        try:
            with zipfile.ZipFile(handle) as file:
                return _npz_array(file, path, key)
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, KeyError) as error:
            raise DataError(f"{path}: is not an .npz file of plain arrays: {error}") from None


def _npz_array(file: zipfile.ZipFile, path: Path, key: str) -> Array:
    entries = {info.filename.removesuffix(".npy"): info for info in file.infolist()}
    keys, most = list(entries), _most_bytes(path.stat().st_size)

    def member(name: str) -> Array:
        if entries[name].file_size > most:
            raise DataError(f"{path}: holds more than {most:,} bytes, which is out of proportion to its size")
        with file.open(entries[name]) as part:
            return _from_npy(part.read(most + 1), path)

    if not keys:
        raise DataError(f"{path}: holds no arrays")
    if not key and entries.keys() >= {"format", "shape", "data"}:
        return _from_sparse(member, path)
    if not key and len(keys) != 1:
        raise DataError(f"{path}: holds {', '.join(keys)}; say which one, as in {path}:{keys[0]}")
    if key and key not in entries:
        raise DataError(f"{path}: holds {', '.join(keys)}, but no {key!r}")
    return member(key or keys[0])


def _from_sparse(member: Callable[[str], Array], path: Path) -> Array:
    """The matrix in a file of scipy.sparse.save_npz, made dense; entries of one place are added, as SciPy does."""
    kind, shape, data = str(member("format").astype(str)), tuple(member("shape").tolist()), member("data")
    if kind not in ("csr", "csc", "coo") or len(shape) != 2:
        raise DataError(f"{path}: holds a sparse {kind} array of shape {shape}; save a matrix as csr, by .tocsr()")
    most = max(DENSE_BYTES, _most_bytes(path.stat().st_size))
    if math.prod(shape) * data.dtype.itemsize > most:
        raise DataError(
            f"{path}: holds a sparse matrix of shape {shape}, which is made dense and would take more than {most:,} "
            "bytes; use fewer columns, or a folder of dense .npy files"
        )
    try:
        if kind == "coo":
            places = member("row"), member("col")
        else:
            outer = np.repeat(np.arange(len(member("indptr")) - 1), np.diff(member("indptr")))
            places = (outer, member("indices")) if kind == "csr" else (member("indices"), outer)
        if any(place.shape != data.shape or (place.size and place.min() < 0) for place in places):
            raise IndexError("its values and their places do not match")  # NumPy would broadcast, or count backwards
        dense = np.zeros(shape, data.dtype)
        np.add.at(dense, places, data)
    except (IndexError, ValueError, TypeError) as error:
        raise DataError(f"{path}: is not a sparse matrix as SciPy saves it: {error}") from None
    return dense


def from_idx(content: bytes, name: str) -> Array:
    """The array in the content of an idx file."""
    kind, n_dimensions = content[2], content[3]
    start = 4 + 4 * n_dimensions
    if len(content) < start:
        raise DataError(f"{name}: ends inside its header")
    shape = struct.unpack(f">{n_dimensions}I", content[4:start])
    dtype = np.dtype(IDX_TYPES[kind])
    if len(content) - start != math.prod(shape) * dtype.itemsize:
        raise DataError(f"{name}: has {len(content) - start} bytes of data, where its header says shape {shape}")
    return np.frombuffer(content, dtype, offset=start).reshape(shape)


# ----- text


def _from_csv(content: bytes, path: Path, gaps: bool) -> tuple[Array, TextLayout]:
    """Numbers separated by commas (or what the first line shows), perhaps under a line of names."""
    separator, numbered = _cells(content, path, gaps)
    table = [cells for _, cells in numbered]
    names = tuple(table[0]) if _is_header(table, gaps) else None
    n_index = 0 if names is None else _index_width(names)
    rows, index = [], []
    for number, cells in numbered[0 if names is None else 1 :]:
        if len(cells) != len(table[0]):
            raise DataError(f"{path}: line {number} has {len(cells)} columns, where the first has {len(table[0])}")
        values = [float("nan") if gaps and not cell else _number(cell) for cell in cells[n_index:]]
        if None in values:
            column = n_index + values.index(None)
            place = f"{path}: line {number}, column {column + 1}{f' ({names[column]})' if names else ''}"
            raise DataError(f"{place} {_complaint(cells[column], separator)}")
        rows.append(values)
        index.append(tuple(cells[:n_index]))
    return np.array(rows, np.float64), TextLayout(separator, names, tuple(index) if n_index else ())


def _cells(content: bytes, path: Path, gaps: bool) -> tuple[str, list[tuple[int, list[str]]]]:
    """The separator, and the cells of each line with its number."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not text in UTF-8: {error}") from None
    if text.startswith(">"):
        raise DataError(f"{path}: {ALIGNMENT}")
    numbered = [(number, line) for number, line in enumerate(text.splitlines(), 1) if (line if gaps else line.strip())]
    lines = [line for _, line in numbered]
    if not lines:
        raise DataError(f"{path}: is empty")
    is_tabbed = path.name.removesuffix(".gz").endswith(".tsv")
    separator = "\t" if is_tabbed else next((mark for mark in SEPARATORS if mark in lines[0]), ",")
    table = [
        [cell.strip() for cell in row if cell.strip() or separator != " "]
        for row in csv.reader(lines, delimiter=separator)
    ]
    if len(table) < len(lines):
        raise DataError(f"{path}: a quoted cell goes over several lines; a row must be one line")
    return separator, [(number, cells) for (number, _), cells in zip(numbered, table, strict=True)]


def _is_header(table: Sequence[Sequence[str]], gaps: bool) -> bool:
    """Whether the first line names columns: none of its cells is a number; or it is as pandas numbers columns."""
    first = table[0]
    if len(table) < 2:
        return False
    if len(first) > 2 and not first[0] and list(first[1:]) == [str(number) for number in range(len(first) - 1)]:
        return all(row and row[0] for row in table[1:])  # otherwise the first column may have gaps
    named = [cell for cell in first if cell or not gaps]  # a row of gaps is no line of names
    return bool(named) and all(_number(cell) is None for cell in named)


def _index_width(names: Sequence[str]) -> int:
    """The number of first columns without a name, in which pandas and R write row names."""
    return next((width for width, name in enumerate(names) if not UNNAMED.fullmatch(name)), 0)


def _complaint(cell: str, separator: str) -> str:
    if not cell:
        return f"is empty; {COMPLETE_ROWS}"
    if any(mark in cell for mark in SEPARATORS if mark != " "):
        remedy = f"columns are separated by {SEPARATORS[separator]} here, and decimals take a point"
    else:
        remedy = ENCODE
    return f"is {cell!r}, not a number; {remedy}"


def _number(cell: str) -> float | None:
    try:
        return None if "_" in cell else float(cell)  # Python reads 1_0 as 10
    except ValueError:
        return None


def as_cells(values: Array) -> list[list[str]]:  # (N, n)
    """Numbers as text, with as many digits as it takes to read the same number of their dtype."""
    return [[cell.removesuffix(".0") for cell in row] for row in values.astype(str).tolist()]


def to_text(cells: Sequence[Sequence[str]], layout: TextLayout) -> str:
    """The text of a file with cells in place of a layout's numbers."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter=layout.separator, lineterminator="\n")
    if layout.names is not None:
        writer.writerow(layout.names)
    writer.writerows([*index, *row] for index, row in zip(layout.index or [()] * len(cells), cells, strict=True))
    return text.getvalue()
