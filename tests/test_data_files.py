"""What files mean: bytes, row names, sparse matrices, text; and results in the form of the data they come from."""

import csv
import json
import re

import numpy as np
import pytest
import scipy.sparse
import torch
from marks import DENORMALS
from run_cases import bars, command

from tapmachine.data.errors import DataError, DataWarning
from tapmachine.data.sources import read
from tapmachine.data.text import as_cells
from tapmachine.display import figures
from tapmachine.machine.files import read_tensors, write_tensors
from tapmachine.runs.data import read_data
from tapmachine.runs.session import Session
from tapmachine.runs.settings import Settings
from tapmachine.runs.training import run_training

SCALED = "bytes 0–255 scaled to [0, 1]"


def intensities(rows=60, seed=0):
    """Rows of 16 bytes, from 0 to 255."""
    noise = np.random.default_rng(seed).random((rows, 16))
    return (255 * bars(rows, seed) * np.maximum(noise, 0.6)).astype(np.uint8)


def words(*arguments):
    """What a command prints and says, if all is well."""
    code, printed, said = command(*arguments)
    assert code == 0, said
    return printed, said


def write_in_every_shape(folder, array):
    """The paths of files that hold the same rows of 16 bytes."""
    np.save(folder / "flat.npy", array)
    np.save(folder / "images.npy", array.reshape(-1, 4, 4))
    np.save(folder / "colors.npy", array.reshape(-1, 2, 2, 4))
    np.savez(folder / "archive.npz", array)
    for name, shape in (("a-idx2-ubyte", (len(array), 16)), ("a-idx3-ubyte", (len(array), 4, 4))):
        header = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()
        (folder / name).write_bytes(header + array.tobytes())
    (folder / "many").mkdir()
    for number, part in enumerate(np.array_split(np.sort(array, 0), 3)):  # the first one is dark
        np.save(folder / "many" / f"{number}.npy", part)
    return ["flat.npy", "images.npy", "colors.npy", "archive.npz", "a-idx2-ubyte", "a-idx3-ubyte"]


# ----- bytes


def test_bytes_mean_the_same_in_any_shape(tmp_path):
    x = intensities()
    for array, factor in ((x, np.float32(255)), (x > 0, 1), (x % 50, 1)):  # intensities; states; counts
        folder = tmp_path / str(int(array.max()))
        folder.mkdir()
        array = array.astype(np.uint8)
        sets = [read(folder / name) for name in write_in_every_shape(folder, array)]
        for found in sets:
            np.testing.assert_array_equal(found.rows, array.astype(np.float32) / factor)
            assert found.digest() == sets[0].digest()
            assert found.notes == ((f"{found.name}: {SCALED}",) if factor > 1 else ())
        np.testing.assert_array_equal(read(folder / "many").rows, np.sort(array, 0).astype(np.float32) / factor)


def test_settings_may_speak_of_bytes_as_they_are(tmp_path):
    np.save(tmp_path / "x.npy", intensities())
    for options, largest in (
        ({}, 1),
        ({"binarize": 0.5}, 1),
        ({"interval": (0.0, 1.0)}, 1),
        ({"interval": (0.0, 255.0)}, 255),
        ({"visible": "categorical"}, 255),
        ({"visible": "gaussian"}, 1),
    ):
        found = read_data(Settings(f"{tmp_path}/x.npy", **options))
        assert float(found.train.max()) == pytest.approx(largest, rel=0.05), options
    above = read_data(Settings(f"{tmp_path}/x.npy", binarize=200)).train
    assert torch.equal(above, torch.from_numpy(intensities() > 200).float())


@pytest.fixture(scope="module", params=["flat", "images"])
def byte_run(request, tmp_path_factory):
    """A run on bytes, real-valued."""
    folder = tmp_path_factory.mktemp("bytes")
    x = intensities()
    np.save(folder / "x.npy", x.reshape(-1, 4, 4) if request.param == "images" else x)
    options = (
        "--hidden",
        3,
        "--hidden-units",
        "binary",
        "--epochs",
        1,
        "--visible",
        "gaussian",
        "--out",
        folder / "run",
    )
    _, said = words("train", folder / "x.npy", *options)
    assert said.count(f"x.npy: {SCALED}") == 1
    return folder / "run"


@pytest.mark.parametrize("shape", [(-1, 16), (-1, 4, 4)])
def test_bytes_of_later_files_mean_what_they_meant_in_the_training(byte_run, shape, tmp_path):
    """Also if none of them is bright."""
    dark = intensities(10, seed=1) // 4
    assert 1 < dark.max() < 127
    np.save(tmp_path / "dark.npy", dark.reshape(shape))
    np.save(tmp_path / "real.npy", dark.astype(np.float32) / 255)
    results = {}
    for name in ("dark", "real"):
        source, out = tmp_path / f"{name}.npy", tmp_path / "out.npy"
        commands = {
            "evaluate": ("evaluate", byte_run, "--data", source),
            "score": ("score", byte_run, source),
            "impute": ("impute", byte_run, source, "-o", out),
            "denoise": ("denoise", byte_run, source, "--sigma", 0.1, "-o", out),
        }
        for task, arguments in commands.items():
            printed, said = words(*arguments)
            assert (SCALED in said) == (name == "dark"), task
            found = np.load(out) if out.exists() else printed.replace(f"{name}.npy", "data")
            assert np.array_equal(found, results.setdefault(task, found)), task
            out.unlink(missing_ok=True)


def test_held_out_bytes_are_scaled_as_those_that_are_trained_on(tmp_path):
    np.save(tmp_path / "x.npy", intensities())
    np.save(tmp_path / "dark.npy", intensities(10, seed=1).reshape(-1, 4, 4) // 4)
    lines = []
    options = {"hidden": (2,), "epochs": 1, "validation": f"{tmp_path}/dark.npy"}
    run_training(Settings(f"{tmp_path}/x.npy", **options), tmp_path / "run", say=lines.append)
    assert [line for line in lines if SCALED in line] == [
        f"{tmp_path}/x.npy: {SCALED}", f"{tmp_path}/dark.npy: {SCALED}"
    ]  # fmt: skip
    held_out = Session(tmp_path / "run").data().held_out
    np.testing.assert_array_equal(held_out, (intensities(10, seed=1) // 4).astype(np.float32) / 255)


def test_states_in_bytes_stay_states(tmp_path):
    """A run that scaled bytes and binarized them takes zeros and ones, too."""
    x = intensities()
    np.save(tmp_path / "x.npy", x)
    words("train", tmp_path / "x.npy", "--binarize", 0.5, "--hidden", 3, "--epochs", 1, "--out", tmp_path / "run")
    states = (x > 127).astype(np.uint8)
    assert states.any()
    np.save(tmp_path / "states.npy", states)
    _, said = words("impute", tmp_path / "run", tmp_path / "states.npy", "-o", tmp_path / "out.npy")
    assert "all bytes are 0 or 1; not scaled" in said
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), states)


@pytest.mark.parametrize(("largest", "scaled"), [(1.0, True), (255.0, False)])
def test_bytes_for_a_run_on_other_numbers(largest, scaled, tmp_path):
    """They are scaled if the training's values lie in [0, 1]."""
    np.save(tmp_path / "x.npy", largest / 255 * intensities().astype(np.float64))
    options = ("--hidden", 3, "--hidden-units", "binary", "--epochs", 1, "--visible", "gaussian")
    words("train", tmp_path / "x.npy", *options, "--out", tmp_path / "run")
    np.save(tmp_path / "bytes.npy", intensities(5))
    _, said = words("impute", tmp_path / "run", tmp_path / "bytes.npy", "-o", tmp_path / "out.npy")
    assert (SCALED in said) is scaled
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), np.float32(intensities(5)) / (255 if scaled else 1))


def forget(path, *names):
    """Takes entries out of what a machine's file says of the data."""
    tensors, description = read_tensors(path, "machine")
    for name in names:
        del description["data"][name]
    write_tensors(path, tensors, description)


# ----- row names


TABLE = [[0.1, -2.0, 3.25], [1e-7, 5.0, 12345.678901234], [0.0, 0.5, 1 / 3], [2.0, -0.25, 7.0]]


def table(*, index=None, header=("a", "b c", "d"), separator=",", rows=TABLE):
    """A .csv file as pandas writes it; None is a gap."""
    lines = [list(header)] if header else []
    lines += [["" if value is None else repr(value) for value in row] for row in rows]
    if index is not None:
        names = ["" if header else None, *index]
        lines = [[name, *line] for name, line in zip(names if header else names[1:], lines, strict=True)]
    return "".join(separator.join(line) + "\n" for line in lines)


@pytest.mark.parametrize("first", ["", "Unnamed: 0"])
@pytest.mark.parametrize("index", [("0", "1", "2", "3"), ("r1", "r2", "r3", "r4"), ("2020-01-01", "x", "", "z")])
def test_row_names_are_no_data(first, index, tmp_path):
    (tmp_path / "x.csv").write_text(first + table(index=index))
    found = read(tmp_path / "x.csv")
    np.testing.assert_array_equal(found.rows, TABLE)
    assert found.notes == (
        f"{tmp_path}/x.csv: first column used as row names; to use it as data, name it in the header",
    )
    np.testing.assert_array_equal(read(tmp_path / "x.csv", gaps=True).rows, TABLE)
    (tmp_path / "y.csv").write_text(table())
    assert read(tmp_path / "y.csv").notes == ()
    assert read(tmp_path / "y.csv").digest() == found.digest()


def test_numbers_for_names_as_pandas_writes_them(tmp_path):
    """DataFrame(x).to_csv() numbers rows and columns; without the index, its header looks like data."""
    numbered = ("0", "1", "2")
    (tmp_path / "x.csv").write_text(table(index=("0", "1", "2", "3"), header=numbered))
    for gaps in (False, True):
        np.testing.assert_array_equal(read(tmp_path / "x.csv", gaps).rows, TABLE)
    (tmp_path / "gap.csv").write_text(table(header=None, rows=[[None, 0, 1], [None, 2.0, 3.0]]))
    assert read(tmp_path / "gap.csv", gaps=True).rows.shape == (2, 3)
    (tmp_path / "y.csv").write_text("0,1,2,3\n" + "5,6,7,8\n" * 3)
    with pytest.warns(DataWarning, match=r"the first line \(0, 1, 2, …\) is read as data; if it is a header"):
        assert read(tmp_path / "y.csv").rows.shape == (4, 4)


# ----- results as text


def cells(path, separator=","):
    with path.open(newline="") as file:
        return list(csv.reader(file, delimiter=separator))


@pytest.fixture(scope="module")
def table_run(tmp_path_factory):
    """A run on a table of real numbers, under names."""
    folder = tmp_path_factory.mktemp("table")
    x = np.random.default_rng(0).normal(size=(60, 3))
    (folder / "x.csv").write_text(table(rows=x.tolist(), index=[f"person {n}" for n in range(60)], separator=";"))
    options = [
        "--visible",
        "gaussian",
        "--hidden-units",
        "binary",
        "--hidden",
        2,
        "--epochs",
        1,
        "--out",
        folder / "run",
    ]
    words("train", folder / "x.csv", *options)
    return folder / "run"


@pytest.mark.parametrize("separator", [",", ";"])
def test_gaps_of_a_table_are_filled_in_the_same_table(table_run, separator, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        [None if (row, column) in {(0, 1), (2, 0)} else TABLE[row][column] for column in range(3)] for row in range(4)
    ]
    index = ["r1", "r2", "r3", "r4"]
    (tmp_path / "gaps.csv").write_text(table(rows=rows, index=index, separator=separator))
    printed, said = words("impute", table_run, "gaps.csv", "--std", "std.csv")
    assert printed.startswith("imputed.csv: 4 rows with 2 missing values filled in; typical standard deviation")
    assert "gaps.csv: first column used as row names" in said
    words("impute", table_run, "gaps.csv", "-o", "imputed.npy", "--std", "std.npy")
    filled, deviations = (cells(tmp_path / f"{name}.csv", separator) for name in ("imputed", "std"))
    for found in (filled, deviations):
        assert found[0] == ["", "a", "b c", "d"]
        assert [row[0] for row in found[1:]] == index
    expected = {"imputed": filled, "std": deviations}
    for name, found in expected.items():
        numbers = np.array([[np.float32(cell) for cell in row[1:]] for row in found[1:]])
        np.testing.assert_array_equal(numbers, np.load(f"{name}.npy"))  # the same numbers, to the last bit
    for row in range(4):
        for column in range(3):
            if rows[row][column] is not None:  # what was there stays, in its own precision
                assert float(filled[row + 1][column + 1]) == rows[row][column]
                assert float(deviations[row + 1][column + 1]) == 0
    again = read(tmp_path / "imputed.csv")
    assert again.rows.shape == (4, 3)
    assert again.layout == read(tmp_path / "gaps.csv", gaps=True).layout


def test_the_suffix_decides(table_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [TABLE[0], *TABLE[2:]]  # without a value that the machine has never seen the like of
    np.save("x.npy", np.array(rows))
    (tmp_path / "x.tsv").write_text(table(separator="\t", rows=rows))
    words("denoise", table_run, "x.npy", "--sigma", 0.1)
    whole = np.load("denoised.npy")
    words("denoise", table_run, "x.npy", "--sigma", 0.1, "-o", "a.csv")
    words("denoise", table_run, "x.tsv", "--sigma", 0.1)
    words("denoise", table_run, "x.tsv", "--sigma", 0.1, "-o", "b.csv")
    words("score", table_run, "x.tsv", "--units", "units.csv", "-q")
    for name, header, separator in (
        ("a.csv", False, ","), ("denoised.tsv", True, "\t"), ("b.csv", True, ","), ("units.csv", True, ",")
    ):  # fmt: skip
        found = cells(tmp_path / name, separator)
        assert (found[0] == ["a", "b c", "d"]) is header
        if name != "units.csv":
            np.testing.assert_array_equal(np.float32(found[header:]), whole)
    (tmp_path / "imputed.csv").write_text(table())
    code, _, said = command("impute", table_run, "imputed.csv")
    assert code == 2
    assert "the input is also the default output file; choose another output file with --out" in said
    assert (tmp_path / "imputed.csv").read_text() == table()


def test_samples_under_the_names_of_the_training_data(table_run, tmp_path):
    words("sample", table_run, "--count", 3, "--n-sweeps", 2, "-o", tmp_path / "s.csv")
    words("sample", table_run, "--count", 3, "--n-sweeps", 2, "-o", tmp_path / "s.npy")
    found = cells(tmp_path / "s.csv")
    assert found[0] == ["a", "b c", "d"]
    np.testing.assert_array_equal(np.float32(found[1:]), np.load(tmp_path / "s.npy"))


def test_binarized_tables_hold_what_the_machine_saw(tmp_path):
    x = np.random.default_rng(0).random((40, 3))
    (tmp_path / "x.csv").write_text(table(rows=x.tolist()))
    words("train", tmp_path / "x.csv", "--binarize", 0.5, "--hidden", 2, "--epochs", 1, "--out", tmp_path / "run")
    words("impute", tmp_path / "run", tmp_path / "x.csv", "-o", tmp_path / "y.csv")
    assert {cell for row in cells(tmp_path / "y.csv")[1:] for cell in row} == {"0", "1"}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_as_text_are_the_same_numbers(dtype):
    values = np.random.default_rng(0).integers(0, 2**63, 3000).view(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.concatenate([values, values[:1000] / 1e300, np.arange(-5, 5) / 3]).astype(dtype)
    values = values[np.isfinite(values) & (DENORMALS | (abs(values) >= np.finfo(dtype).tiny))].reshape(-1, 1)
    assert len(values) > 300
    found = np.array([[dtype(cell) for cell in row] for row in as_cells(values)])
    assert found.tobytes() == values.tobytes()
    assert as_cells(np.array([[1.0, -2.0, 0.1]], dtype)) == [["1", "-2", "0.1"]]


# ----- what others write


@pytest.mark.parametrize("kind", ["csr", "csc", "coo"])
@pytest.mark.parametrize("make", [scipy.sparse.csr_matrix, scipy.sparse.csr_array])
def test_small_sparse_matrices_are_made_dense(kind, make, tmp_path):
    x = bars(20) * np.random.default_rng(0).random((20, 16))
    scipy.sparse.save_npz(tmp_path / "x.npz", make(x).asformat(kind))
    np.testing.assert_array_equal(read(tmp_path / "x.npz").rows, x)


def sparse(**changes):
    """The arrays of a sparse identity matrix, some of them changed."""
    eye = scipy.sparse.identity(3, format="csr")
    arrays = {"indices": eye.indices, "indptr": eye.indptr, "data": eye.data, "format": b"csr", "shape": (3, 3)}
    return arrays | changes


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (sparse(indices=[0, 1, 9]), "not a valid SciPy sparse matrix"),
        (sparse(indices=[0, 1, -1]), "do not match"),
        (sparse(indices=[0.0, 1.0, 2.0]), "not a valid SciPy sparse matrix"),
        (sparse(indptr=[0, 1]), "not a valid SciPy sparse matrix"),
        (sparse(indptr=[0, 5, 1, 2]), "not a valid SciPy sparse matrix"),
        (sparse(data=["a", "b", "c"]), "expected numbers"),
        (sparse(shape=(3, -3)), "not a valid SciPy sparse matrix"),
        (sparse(shape=(2**40, 3)), "would take more than 1,073,741,824 bytes"),
        (sparse(format=b"dia"), r"unsupported sparse dia array of shape \(3, 3\); use .tocsr"),
        (sparse(shape=(9,)), "use .tocsr"),
    ],
)
def test_sparse_matrices_that_are_none(arrays, message, tmp_path):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(DataError, match=message):
        read(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", "size,color\n1,blue\n2,7\n", "line 2, column 2 (color) is 'blue' in a column of numbers; convert it"),
        ("x.csv", "1,blue\n2,red\n", "the first line (1, blue) contains words and numbers; use only words as column"),
        ("x.csv", "1,2\n2,red\n", "line 2, column 2 is 'red' in a column of numbers; text requires a header"),
        ("x.csv", "a,b,c\n" + "1,2,red\n" * 60 + "1,2\n", "line 62 has 2 columns, but the first has 3"),
        ("x.csv", "a,b,c\n" + '1,"2\n2",red\n' * 3 + "1,2,3,4\n", "line 8 has 4 columns, but the first has 3"),
        ("x.csv", "a,b\n", "the file has a header, but no rows"),
        ("x.csv", 'a,b\n1,"x\n', "not a table separated by commas: unexpected end of data"),
        ("x.csv", "a,b\n1e308,x\n2,y\n", "column 'a' is 1e+308 in row 0; expected finite numbers up to 1e+150"),
        ("x.csv", "a,b\n1,2\n3,inf\n", "row 1, column 1 is inf; expected finite values, or NaN for missing values"),
        ("x.fasta", ">one\nACDE\n", "is a sequence alignment; save it as integers"),
        ("x.txt", ">one\nACDE\n", "is a sequence alignment; save it as integers"),
    ],
)
def test_what_cannot_be_read_says_what_to_do(name, content, message, tmp_path):
    (tmp_path / name).write_text(content)
    code, _, said = command("train", tmp_path / name, "--out", tmp_path / "run")
    assert code == 2
    assert message in said
    assert said.count("\n") == 1


NOISE = np.random.default_rng(1).normal(size=(60, 3))


@pytest.mark.parametrize(
    ("name", "content", "names", "rows"),
    [
        ("x.csv", "a;b\n-0,1;0,25\n1,5;2\n", "ab", [[-0.1, 0.25], [1.5, 2]]),
        ("x.csv", "1,5;2,5\n1,0;2,0\n", None, [[1.5, 2.5], [1, 2]]),
        ("x.csv", "a;b\n1.234,5;1.234\n2,5;2.500\n", "ab", [[1234.5, 1234], [2.5, 2500]]),
        ("x.csv", "a;b\n1,234;3.5\n2,000;4.5\n", "ab", [[1.234, 3.5], [2, 4.5]]),
        ("x.csv", 'a,b\n"1,234",3\n"2,000.5",4\n', "ab", [[1234, 3], [2000.5, 4]]),
        ("x.csv", "a,b\n12%,1\n3.5%,2\n", "ab", [[12, 1], [3.5, 2]]),
        ("x.csv", '"a,x";b\n0.1;0.2\n0.3;0.4\n', ("a,x", "b"), [[0.1, 0.2], [0.3, 0.4]]),
        ("x.csv", "a|b\n1|2\n3|4\n", "ab", [[1, 2], [3, 4]]),
        ("x.CSV", "a  b\n1 2 \n 3   4\n", "ab", [[1, 2], [3, 4]]),
        ("x.tsv", "a,b\n1,2\n3,4\n", "ab", [[1, 2], [3, 4]]),
        ("x.TXT", "a\tb\r1\t2\r3\t4\r", "ab", [[1, 2], [3, 4]]),
        ("x.csv", 'a,b\n1, "2"\n3,#N/A\nnull,4\n', "ab", [[1, 2], [3, np.nan], [np.nan, 4]]),
        ("x.csv", 'a\n1\n\n""\n4\n', "a", [[1], [np.nan], [4]]),
    ],
)
def test_text_as_the_world_writes_it(name, content, names, rows, tmp_path):
    (tmp_path / name).write_bytes(content.encode())
    found = read(tmp_path / name, gaps=True)
    np.testing.assert_array_equal(found.rows, np.array(rows, float))
    assert found.layout.names == (None if names is None else tuple(names))
    changed = any(mark in content for mark in (",5", "%", "1,234"))
    assert [note for note in found.notes if "is read as" in note] == list(found.notes)
    assert bool(found.notes) is changed


def test_cells_of_text_keep_their_characters(tmp_path):
    """Only ends of lines end rows, and a quoted cell may have several lines."""
    cells = ["red\u2028x", "\x0b\x1c\x85", "two\nlines", "a,b;c", 'the "best"', "1e", "12 345 x"]
    with (tmp_path / "x.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["c"], *([cell] for cell in cells)])
    (column,) = read(tmp_path / "x.csv").table
    assert (column.type, column.values.tolist()) == ("text", cells)


def test_the_reader_agrees_with_pandas(tmp_path):
    """On gaps, names and numbers, of a table as pandas writes it."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"k": [1, 2, None, 4], "x": [0.5, 1e-7, -3, None], "t": ["a", "NA.", None, "b,c"]})
    frame["gap"] = ["n/a", "x", "NULL", "None"]
    frame.to_csv(tmp_path / "x.csv")
    found, again = read(tmp_path / "x.csv"), pandas.read_csv(tmp_path / "x.csv", index_col=0)
    assert "first column used as row names" in found.notes[0]
    assert [column.gaps.tolist() for column in found.table] == [again[name].isna().tolist() for name in again]
    np.testing.assert_array_equal(found.table[0].values, again["k"])
    np.testing.assert_array_equal(found.table[1].values, again["x"])


def test_headers_of_numbers(tmp_path):
    """Years above small numbers are names; the first row of a table of numbers is data, with a warning if in doubt."""
    path = tmp_path / "x.csv"
    for first, words in (("2019,2020,2021", ""), ("400.5,401,401.5", ""), ("country,2019,2020", "F")):
        body = "".join(f"{row[0]:.3f},{row[1]:.3f},{row[2]:.3f}\n" for row in NOISE)
        if words:
            body = "".join(f"{words}{n % 3},{row[1]:.3f},{row[2]:.3f}\n" for n, row in enumerate(NOISE))
        path.write_text(f"{first}\n{body}")
        found = read(path)
        assert found.layout.names == tuple(first.split(","))
        assert "is used as column names, since its numbers are far outside the columns" in found.notes[0]
    path.write_text("1,2,3\n" + "".join(f"{5 * row[0]:.3f},{5 * row[1]:.3f},{5 * row[2]:.3f}\n" for row in NOISE))
    with pytest.warns(DataWarning, match=r"the first line \(1, 2, 3\) is read as data"):
        assert len(read(path).rows) == 61
    path.write_text("1,2,3\n4,5,6\n" * 10)
    assert len(read(path).rows) == 20


def test_letters_are_no_numbers(tmp_path):
    np.save(tmp_path / "x.npy", np.array([["A", "C"], ["D", "E"]]))
    with pytest.raises(DataError, match=r"expected numbers \(encode text as 0, 1, 2"):
        read(tmp_path / "x.npy")


# ----- channels by their names in the shell


CLASSES = re.compile("BinarySymmetric|Erasure|GaussianNoise|PoissonNoise|CustomNoise|estimate_channel|Missing")


@pytest.mark.parametrize(
    ("visible", "expected"),
    [("binary", "bsc (p="), ("categorical", "bsc (p="), ("gaussian", "gaussian (sigma="), ("auto", "bsc (p=")],
)
def test_the_default_channel_suits_the_units(visible, expected, tmp_path):
    np.save(tmp_path / "x.npy", bars(60))
    options = ("--visible", visible, "--hidden", 3, "--hidden-units", "binary", "--epochs", 1)
    words("train", tmp_path / "x.npy", *options, "--out", tmp_path / "run")
    noisy = bars(20)
    flipped = np.random.default_rng(0).random(noisy.shape) < 0.2
    np.save(tmp_path / "noisy.npy", np.where(flipped, 1 - noisy, noisy))
    printed, said = words("denoise", tmp_path / "run", tmp_path / "noisy.npy", "-o", tmp_path / "clean.npy")
    kind = "binary" if visible == "auto" else visible
    assert f"20 rows denoised with channel {expected}" in printed
    assert f", estimated), the default for {kind} visible units" in printed
    value = printed.split("=")[1].split(",")[0]
    assert len(value.replace(".", "").lstrip("0")) <= 4
    assert not CLASSES.search(printed + said)


@pytest.mark.parametrize(
    ("visible", "options", "message"),
    [
        (
            "gaussian",
            ("--channel", "bsc"),
            "--channel bsc does not support gaussian visible units; use --channel gaussian",
        ),
        ("gaussian", ("--channel", "poisson", "--rate", 2), "--channel poisson does not support gaussian visible"),
        ("gaussian", ("--p", 0.1), "--p is not available for --channel gaussian; use --sigma"),
        ("gaussian", ("--sigma", 0), "--sigma is 0.0; expected a number in [1e-15, 1e+15]"),
        ("gaussian", (), "all values are equal, so the noise level cannot be estimated; set --sigma"),
        (
            "categorical",
            ("--channel", "gaussian"),
            "--channel gaussian does not support categorical visible units; use",
        ),
        ("binary", ("--p", 0.7), "--p is 0.7; expected at most 0.5 for 2 states"),
        ("binary", ("--channel", "erasure", "--p", 1.5), "--p is 1.5; expected a number in [0, 1]"),
        ("binary", ("--channel", "poisson", "--rate", -1), "--rate is -1.0; expected a number in"),
    ],
)
def test_errors_name_words_of_the_command_line(visible, options, message, tmp_path):
    np.save(tmp_path / "x.npy", bars(20))
    np.save(tmp_path / "zeros.npy", np.zeros((3, 16)))
    options_of_run = ("--visible", visible, "--hidden", 2, "--hidden-units", "binary", "--epochs", 0)
    words("train", tmp_path / "x.npy", *options_of_run, "--out", tmp_path / "run")
    out = tmp_path / "clean.npy"
    code, _, said = command("denoise", tmp_path / "run", tmp_path / "zeros.npy", "-o", out, *options)
    assert code == 2
    assert message in said
    assert said.count("\n") == 1
    assert not CLASSES.search(said)
    assert not out.exists()


def test_results_do_not_depend_on_a_library_for_pictures(byte_run, tmp_path, monkeypatch):
    def missing(*size):
        raise ImportError("pictures need matplotlib, which is not installed")

    monkeypatch.setattr(figures, "new_figure", missing)
    np.save(tmp_path / "x.npy", intensities(4))
    for name, arguments in (
        ("sample", ("--count", 4, "--n-sweeps", 1)),
        ("denoise", (tmp_path / "x.npy", "--sigma", 0.1)),
        ("impute", (tmp_path / "x.npy",)),
    ):
        out = tmp_path / f"{name}.npy"
        code, _, said = command(name, byte_run, *arguments, "-o", out, "--picture", tmp_path / "x.png")
        assert code == 2
        assert "pictures need matplotlib" in said
        assert np.load(out).shape == (4, 16)


def test_notes_do_not_disturb_what_is_piped(byte_run, tmp_path):
    np.save(tmp_path / "x.npy", intensities(4))
    printed, said = words("evaluate", byte_run, "--data", tmp_path / "x.npy", "--json")
    assert json.loads(printed)
    assert said == ""
