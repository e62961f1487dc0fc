"""Faults of files, folders, processes and arguments, each through every command or function that meets it.

A case is a fault and a command or function. It must be refused in one line with status 2, or have the result that it
has without the fault; it must not hang, print a traceback, or change other files. Some cases are part of every run of
the tests, and `make torture` runs all of them.
"""

import contextlib
import gzip
import hashlib
import io
import itertools
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
import torch
from run_cases import PATIENCE, bars, command
from safetensors.torch import save as to_bytes

import tapmachine as tm
from tapmachine.data.errors import DataError, DataWarning, FileError, TapmachineWarning
from tapmachine.data.sources import read
from tapmachine.machine import files

SECONDS = 300  # for a case that takes less than one second on a quiet machine
QUICK = 24  # one case of so many is not only part of make torture
EITHER = "either"  # refused, or finite


class HangError(BaseException):
    """A case that takes too long; no error handler of the package catches it."""


@pytest.fixture(autouse=True)
def patience():
    def stop(*_):
        raise HangError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def cases(*tables, quick=QUICK):
    """All combinations of the entries of tables; most of them are only part of `make torture`."""
    return [
        pytest.param(*names, marks=() if number % quick == 0 and "bomb" not in str(names[0]) else pytest.mark.torture)
        for number, names in enumerate(itertools.product(*tables))
    ]


def checked(words, *mentions, may_work=False):
    """Run a command, which is refused in one line that has the given words or, if it may work, succeeds."""
    code, printed, errors = command(*words)
    lines = errors.splitlines()
    assert "Traceback" not in errors
    assert code in ((0, 2) if may_work else (2,)), errors or printed
    if code == 2:
        assert [line for line in lines if not line.startswith("tapmachine: warning: ")][-1:] == lines[-1:]
        assert lines[-1].startswith("tapmachine: ")
        for mention in mentions:
            assert re.search(mention, lines[-1]), lines[-1]
    return code, printed, errors


def is_finite(path):
    if path.suffix == ".npy":
        return bool(np.isfinite(np.load(path)).all())
    return not re.search(r"\b(nan|inf)\b", path.read_text().lower())


# ----- machine files


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Rows, a machine file, a run of two epochs, and another run beside it."""
    folder = tmp_path_factory.mktemp("torture")
    np.save(folder / "rows.npy", bars(20))
    np.save(folder / "matrix.npy", np.random.default_rng(0).normal(size=(6, 16)))
    np.save(folder / "measured.npy", bars(5) @ np.load(folder / "matrix.npy").T)
    options = ("--hidden", 3, "--epochs", 2, "--keep-every", 1, "--measure-every", 2, "--device", "cpu", "-q")
    for name, seed in (("run", 0), ("other", 1)):
        assert command("train", folder / "rows.npy", *options, "--seed", seed, "--out", folder / name)[0] == 0
    shutil.copytree(folder / "run", folder / "longer")
    assert command("train", "--out", folder / "longer", "--epochs", 3, "-q")[0] == 0
    shutil.copy(folder / "run/machine.safetensors", folder / "machine.safetensors")
    return folder


def forged(path, tensors, text):
    """Write a machine file with a description of any text, and a valid digest."""
    header = {files.KEY: json.dumps({"description": text, "sha256": files._digest(tensors, text)})}
    path.write_bytes(to_bytes(tensors, header))


def described(**changes):
    """A fault of the description: entries are replaced, or removed if they are `...`."""

    def make(path, tensors, description):
        description = {name: value for name, value in (description | changes).items() if value is not ...}
        forged(path, tensors, json.dumps(description))

    return make


def of_layer(**changes):
    def make(path, tensors, description):
        layer = {name: value for name, value in (description["layers"][0] | changes).items() if value is not ...}
        forged(path, tensors, json.dumps(description | {"layers": [layer, *description["layers"][1:]]}))

    return make


def of_data(**changes):
    return lambda path, tensors, description: forged(
        path, tensors, json.dumps(description | {"data": description["data"] | changes})
    )


def of_text(text):
    return lambda path, tensors, description: forged(path, tensors, text)


def of_tensor(name, change):
    def make(path, tensors, description):
        tensors = {key: value.clone() for key, value in tensors.items()}
        value = change(tensors.pop(name))
        forged(path, tensors if value is None else tensors | {name: value.contiguous()}, json.dumps(description))

    return make


def of_value(value, index=0):
    return lambda tensor: tensor.index_put([torch.tensor([index])], torch.tensor(value).to(tensor))


def of_bytes(change):
    def make(path, tensors, description):
        forged(path, tensors, json.dumps(description))
        path.write_bytes(change(path.read_bytes()))

    return make


def flipped(content, place):
    place = int(place * len(content))
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def linked(target):
    return lambda path, *_: path.symlink_to(target)


WEIGHTS, FIELD = "weights.0", "layers.0.field"
MACHINES = {
    **{f"text {text[:20]}": of_text(text) for text in ("[]", "3", '"x"', "null", "true", "", "{", "{}", "[" * 10**5)},
    **{f"{n}: {value!r}"[:40]: described(**{n: value}) for n, value in [
        ("format", ...), ("format", 2), ("format", "1"), ("format", None), ("kind", ...), ("kind", "training"),
        ("kind", 3), ("kind", []), ("layers", ...), ("layers", {}), ("layers", []), ("layers", 3), ("layers", "ab"),
        ("layers", [3, 4]), ("layers", [[], []]), ("layers", [{}, {}]), ("layers", [None, None]), ("data", 3),
        ("data", []), ("data", "x"), ("data", None), ("last_learning_rate", "x"), ("last_learning_rate", [1]),
    ]},
    **{f"layer {n}: {value!r}"[:40]: of_layer(**{n: value}) for n, value in [
        ("type", ...), ("type", "Wrong"), ("type", 3), ("type", None), ("type", "Custom"), ("type", "../Binary"),
        ("n", ...), ("n", -1), ("n", 0), ("n", 1.5), ("n", "16"), ("n", None), ("n", 15), ("n", 10**12), ("n", [16]),
        ("q", -1), ("q", "x"), ("blocks", 3), ("blocks", []), ("blocks", [{}]), ("blocks", [3]), ("arguments", 3),
        ("arguments", {"n": 3}),
    ]},
    **{f"data {n}: {value!r}"[:40]: of_data(**{n: value}) for n, value in [
        ("columns", 3), ("schema", 3), ("schema", {}), ("schema", {"columns": [1]}), ("schema", {"columns": [{}]}),
        ("schema", {"columns": 3}), ("schema", {"columns": [{"name": "a", "categories": 3}]}), ("epoch", "x"),
        ("epoch", []), ("image_shape", "x"), ("image_shape", [16]), ("image_shape", [3, 7]), ("image_shape", [-4, -4]),
        ("image_shape", [4, None]), ("scale_beyond", "x"), ("scale_beyond", []),
    ]},
    **{f"{name.split('.')[0]} {value}": of_tensor(name, of_value(value)) for name in (WEIGHTS, FIELD)
       for value in (float("nan"), float("inf"), -float("inf"))},
    **{f"weights {what}": of_tensor(WEIGHTS, change) for what, change in {
        "complex": lambda w: w.to(torch.complex64),
        "integers": lambda w: w.long(), "booleans": lambda w: w.bool(), "half": lambda w: w.half(),
        "transposed": lambda w: w.T, "flat": lambda w: w.flatten(), "cut": lambda w: w[:-1], "empty": lambda w: w[:0],
        "a number": lambda w: w.sum(), "missing": lambda w: None,
    }.items()},
    "field complex": of_tensor(FIELD, lambda w: w.to(torch.complex64)),
    "field missing": of_tensor(FIELD, lambda w: None),
    "field longer": of_tensor(FIELD, lambda w: w.repeat(2)),
    "field of two dimensions": of_tensor(FIELD, lambda w: w[None]),
    "an empty file": of_bytes(lambda b: b""),
    "one byte": of_bytes(lambda b: b[:1]),
    "half": of_bytes(lambda b: b[: len(b) // 2]),
    "one byte less": of_bytes(lambda b: b[:-1]),
    "one byte more": of_bytes(lambda b: b + b"\0"),
    "a huge header": of_bytes(lambda b: b"\xff" * 8 + b[8:]),
    "a header as long as the file": of_bytes(lambda b: len(b).to_bytes(8, "little") + b[8:]),
    "zeros": of_bytes(lambda b: bytes(len(b))),
    "text": of_bytes(lambda b: b"a,b\n1,2\n"),
    "a pickle": of_bytes(lambda b: b"\x80\x04cos\nsystem\n(S'true'\ntR."),
    "a zip file": of_bytes(lambda b: b"PK\x03\x04" + b),
    **{f"bit at {part:.0%}": of_bytes(lambda b, part=part: flipped(b, part)) for part in np.linspace(0, 0.99, 12)},
    "a folder": lambda path, *_: path.mkdir(),
    "a pipe": lambda path, *_: os.mkfifo(path),
    "a link to zeros": linked("/dev/zero"),
    "a link to nothing": linked("/dev/null"),
    "a link to nowhere": linked("nowhere"),
    "a link to itself": lambda path, *_: path.symlink_to(path.name),
    "no file": lambda path, *_: None,
}  # fmt: skip
# Faults that a machine may have, because no result depends on them.
HARMLESS = {"data", "weights integers", "weights booleans", "weights half", "last_learning_rate", "layer q",
            "layer blo", "layer arg", "field of", "field com"}  # fmt: skip
USES = {
    "load": None,
    "info": lambda m, home, out: ("info", m),
    "score": lambda m, home, out: ("score", m, home / "rows.npy", "-q", "--out", out / "x.csv"),
    "evaluate": lambda m, home, out: ("evaluate", m, "--data", home / "rows.npy", "--exact", "-q", "--json"),
    "sample": lambda m, home, out: ("sample", m, "--count", 3, "--n-sweeps", 2, "-q", "--out", out / "x.npy"),
    "denoise": lambda m, home, out: ("denoise", m, home / "rows.npy", "--p", 0.1, "-q", "--out", out / "x.npy"),
    "impute": lambda m, home, out: ("impute", m, home / "rows.npy", "-q", "--out", out / "x.npy"),
    "recover": lambda m, home, out: (
        "recover", m, home / "measured.npy", "--matrix", home / "matrix.npy", "-q", "--out", out / "x.npy"
    ),
    "convert": lambda m, home, out: ("convert", m, out / "x.h5", "-q"),
}  # fmt: skip


@pytest.mark.parametrize(("fault", "use"), cases(MACHINES, USES))
def test_machine_files(fault, use, home, tmp_path):
    """A machine is refused in one line, or it is a finite machine; its results are those of its parameters."""
    path = tmp_path / "machine.safetensors"
    MACHINES[fault](path, *files.read_tensors(home / "machine.safetensors", "machine"))
    may_work = fault.startswith(tuple(HARMLESS))
    if use == "load":
        with (
            warnings.catch_warnings(),
            contextlib.nullcontext() if may_work else pytest.raises(FileError, match="mach"),
        ):
            warnings.simplefilter("error")
            try:
                machine = tm.load(path)
            except FileError:
                if may_work:
                    return
                raise
            assert all(torch.isfinite(value).all() for value in machine.state_dict().values())
        return
    code, printed, _ = checked(USES[use](path, home, tmp_path), "machine", may_work=may_work)
    if code == 0:
        assert all(is_finite(out) for out in tmp_path.glob("x.[nc]*"))
        assert "nan" not in printed.lower()
    else:
        assert not list(tmp_path.glob("x.*"))


# ----- run directories


def rewritten(name, change):
    """A fault of a file: its bytes are changed."""
    return lambda run, other: (run / name).write_bytes(change((run / name).read_bytes()))


def replaced(name, make):
    def fault(run, other):
        shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink(missing_ok=True)
        make(run / name, other / name)

    return fault


def of_settings(**changes):
    def fault(run, other):
        content = json.loads((run / "settings.json").read_text())
        content["settings"] |= changes
        (run / "settings.json").write_text(json.dumps(content))

    return fault


def of_manifest(change):
    def fault(run, other):
        path = run / "checkpoints/manifest.json"
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    return fault


SETTINGS, MANIFEST = "settings.json", "checkpoints/manifest.json"
LAST = "checkpoints/epoch-000002.safetensors"
PARTS = (SETTINGS, MANIFEST, LAST, "metrics.jsonl", "events.jsonl", "machine.safetensors", ".lock", "machines",
         "checkpoints", "machines/epoch-000001.safetensors")  # fmt: skip
LEADING_OUT = {f"link {name}": replaced(name, lambda path, other: path.symlink_to(other)) for name in PARTS}
PIPES = {f"pipe {name}": replaced(name, lambda path, _: os.mkfifo(path)) for name in PARTS}
DEVICES = {f"zeros {name}": replaced(name, lambda path, _: path.symlink_to("/dev/zero")) for name in PARTS}
JSON = {
    **{f"settings {text[:20]}": rewritten(SETTINGS, lambda _, text=text: text.encode()) for text in (
        "", "[]", "3", "null", "{", "{}", '{"format": 1}', '{"format": 2, "settings": {}}', "[" * 10**5,
        '{"format": 1, "settings": {"data": 3}}', '{"format": 1, "settings": {}}',
        '{"format": 1, "settings": [], "earlier": {}}', '{"format": 1, "settings": {"wrong": 3}}', "\x00" * 99,
    )},
    **{f"setting {n} {value!r}": of_settings(**{n: value}) for n, value in [
        ("data", "/dev/zero"), ("data", "a\0b"), ("data", ""), ("data", "nowhere.npy"), ("hidden", [10**12]),
        ("hidden", []), ("hidden", "x"), ("epochs", -1), ("epochs", 1e99), ("dtype", "float16"), ("seed", "x"),
        ("objective", "wrong"), ("visible", 3), ("learning_rate", -1), ("interval", [1, 0]), ("keep_every", 1.5),
        ("batch_size", 0), ("weights", "/dev/zero"), ("validation", "/dev/zero"),
    ]},
}  # fmt: skip
MANIFESTS = {
    **{f"manifest {text[:20]}": rewritten(MANIFEST, lambda _, text=text: text.encode()) for text in (
        "", "3", "null", "{", "{}", "[3]", "[{}]", "[[]]", '[{"file": 3, "epoch": 1, "sha256": ""}]', "[" * 10**5
    )},
    **{f"manifest of {name[:30]}": of_manifest(lambda own, name=name: [{**own[-1], "file": name}]) for name in (
        "../machine.safetensors", "/etc/passwd", "..", ".", "", "a\0b", "x" * 5000, "manifest.json",
        "epoch-x.safetensors",
        "epoch-000002.safetensors/..", "machine.safetensors",
    )},
    "manifest epoch x": of_manifest(lambda own: [{**own[-1], "epoch": "x"}]),
    "manifest epoch 1e99": of_manifest(lambda own: [{**own[-1], "epoch": 1e99}]),
}  # fmt: skip
RUN_USES = {
    "train": lambda run, home: ("train", "--out", run, "-q"),
    "train further": lambda run, home: ("train", "--out", run, "--epochs", 3, "-q"),
    "info": lambda run, home: ("info", run),
    "score": lambda run, home: ("score", run, home / "rows.npy", "-q"),
    "evaluate": lambda run, home: ("evaluate", run, "--exact", "-q"),
    "doctor": lambda run, home: ("doctor", run),
    "load": None,
}


def digest(folder):
    """Of the names and contents of all files in a folder."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(repr([(str(path), path.read_bytes()) for path in found]).encode()).hexdigest()


@pytest.fixture
def run(home, tmp_path):
    shutil.copytree(home / "run", tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize(("fault", "use"), cases(LEADING_OUT | PIPES | DEVICES | JSON | MANIFESTS, RUN_USES))
def test_run_directories(fault, use, home, run):
    """Directories of others are refused, or have the results that they had; nothing outside of them changes."""
    before = digest(home)
    (LEADING_OUT | PIPES | DEVICES | JSON | MANIFESTS)[fault](run, home / "other")
    if use == "load":
        with contextlib.suppress(FileError):
            assert torch.equal(tm.load(run).weights[0], tm.load(home / "run").weights[0])
    elif use == "doctor":
        code, printed, errors = command("doctor", run)
        assert (code == 2) == ("problem" in printed or errors.count("\n") == 1)
        assert code == 2 or fault.startswith(("manifest", "setting "))
    else:
        may_work = not fault.startswith(tuple(LEADING_OUT | PIPES | DEVICES))
        code, printed, errors = checked(RUN_USES[use](run, home), may_work=may_work)
        if code == 0 and use == "train further":
            same = (run / "machine.safetensors").read_bytes() == (home / "longer/machine.safetensors").read_bytes()
            assert same or "warning" in errors
        elif code == 0 and use in ("score", "evaluate"):
            expected = command(*RUN_USES[use](home / "run", home))[1]
            assert printed == expected or fault.startswith("setting ")
    assert digest(home) == before


FILES = ("machine.safetensors", SETTINGS, MANIFEST, LAST, "checkpoints/epoch-000001.safetensors", "metrics.jsonl",
         "events.jsonl", "machines/epoch-000001.safetensors")  # fmt: skip
PLACES = [round(float(place), 3) for place in np.linspace(0, 0.999, 12)]


@pytest.mark.parametrize(("name", "place"), cases(FILES, PLACES))
def test_bits_of_a_run(name, place, home, run):
    """A run with a flipped bit is refused, continued with the same bits, or with a message that -q does not hide."""
    rewritten(name, lambda content: flipped(content, place))(run, None)
    code, _, errors = checked(("train", "--out", run, "--epochs", 3, "-q"), may_work=True)
    if code == 0:
        same = (run / "machine.safetensors").read_bytes() == (home / "longer/machine.safetensors").read_bytes()
        assert same or "damaged" in errors or (name == SETTINGS and "settings" in errors)


# ----- data files


def npy(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def npz(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def npy_header(text, content=b""):
    header = text.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


def parquet(**columns):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    file = io.BytesIO()
    pandas.DataFrame(columns).to_parquet(file)
    return file.getvalue()


def wide_parquet():
    """Few bytes that declare many equal rows."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = io.BytesIO()
    table = pa.table({"x": pa.array(np.zeros(2**20))})
    with pq.ParquetWriter(file, table.schema) as writer:
        for _ in range(40):
            writer.write_table(table)
    return file.getvalue()


def twice_parquet():
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([pa.array([1.0, 2]), pa.array([3.0, 4])], names=["a", "a"]), file)
    return file.getvalue()


def h5ad(shape, **others):
    """A few bytes that declare a matrix of any shape."""
    h5py = pytest.importorskip("h5py")
    pytest.importorskip("anndata")
    file = io.BytesIO()
    with h5py.File(file, "w") as group:
        group.create_dataset("X", shape, "f4", chunks=(10, 10) if len(shape) == 2 else None, compression="gzip"
                             if len(shape) == 2 else None)  # fmt: skip
        for name, value in others.items():
            group[name] = value
    return file.getvalue()


ROWS = bars(20).astype(float)
BOMB = 300 * 2**20
DATA = {  # content, and what training on it says; None for a finite result
    "zeros.npy": (lambda: npy_header("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000, 10000)}"), "header"),
    "negative.npy": (lambda: npy_header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 4)}"), "header|plain"),
    "object.npy": (lambda: npy_header("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", b"cos\nx\n"), "plain"),
    "code.npy": (lambda: npy_header("__import__('os').system('true')"), "plain"),
    "deep.npy": (lambda: npy_header("(" * 100), "plain"),
    "version.npy": (lambda: b"\x93NUMPY\x09\x00" + bytes(100), "plain"),
    "short.npy": (lambda: npy(ROWS)[:-9], "plain"),
    "dates.npy": (lambda: npy(ROWS.astype("M8[s]")), "expected numbers"),
    "complex.npy": (lambda: npy(ROWS.astype(complex)), "expected numbers"),
    "strings.npy": (lambda: npy(ROWS.astype(str)), "expected numbers"),
    "records.npy": (lambda: npy(np.zeros(5, [("a", "f4")])), "expected numbers"),
    "infinite.npy": (lambda: npy(np.where(ROWS > 0, np.inf, 0)), "is inf"),
    "huge.npy": (lambda: npy(1e300 * ROWS), "largest value"),
    "none.npy": (lambda: npy(ROWS[:0]), "shape"),
    "flat.npy": (lambda: npy(ROWS[0]), "dimensions"),
    "good.npy": (lambda: npy(ROWS), None),
    "bomb.npy.gz": (lambda: gzip.compress(npy_header("{}") + bytes(BOMB), 9), "implausibly"),
    "bomb.csv.gz": (lambda: gzip.compress(b"1,2\n" * (BOMB // 4 + 9), 9), "implausibly"),
    "cut.csv.gz": (lambda: gzip.compress(b"1,2\n3,4\n")[:-5], "cannot be read"),
    "text.csv.gz": (lambda: b"1,2\n3,4\n", "cannot be read"),
    "two.npz": (lambda: npz(a=ROWS, b=ROWS), "several arrays"),
    "escape.npz": (lambda: npz(**{"a\x1b[31m": ROWS, "b": ROWS}), r"a\\x1b"),
    "empty.npz": (lambda: npz(), "no arrays"),
    "bomb.npz": (lambda: npz(a=np.zeros(BOMB // 8)), "implausibly"),
    "zip.npz": (lambda: b"PK\x03\x04" + bytes(50), "npz"),
    "sparse.npz": (lambda: npz(format=b"csr", shape=np.array([3, 2**40]), data=np.ones(1), indices=np.zeros(1, int),
                               indptr=np.array([0, 1, 1, 1])), "would take more"),
    "negative.npz": (lambda: npz(format=b"csr", shape=np.array([3, -3]), data=np.ones(1), indices=np.zeros(1, int),
                                 indptr=np.array([0, 1, 1, 1])), "not a valid"),
    "x-idx2-ubyte": (lambda: bytes([0, 0, 8, 2, 255, 255, 255, 255, 255, 255, 255, 255, 1]), "header declares"),
    "y-idx3-ubyte": (lambda: bytes([0, 0, 8, 3, 0]), "header"),
    "short.parquet": (lambda: parquet(a=[1.0, 2.0])[:-9], "not a Parquet file"),
    "text.parquet": (lambda: b"PAR1" + bytes(30) + b"PAR1", "not a Parquet file"),
    "twice.parquet": (twice_parquet, "column 'a' occurs twice"),
    "bomb.parquet": (wide_parquet, "implausibly"),
    "none.parquet": (lambda: parquet(), "Parquet|at least one"),
    "dates.parquet": (lambda: parquet(a=np.zeros(3, "M8[ns]"), b=[1.0, 2, 3]), "datetime64"),
    "large.parquet": (lambda: parquet(a=[1e308, 1, 2], b=["x", "y", "z"]), "column 'a' is 1e"),
    "wide.h5ad": (lambda: h5ad((10**6, 10**6)), "implausibly"),
    "long.h5ad": (lambda: h5ad((10**12, 10)), "implausibly"),
    "flat.h5ad": (lambda: h5ad((7,)), "AnnData|dimensions"),
    "text.h5ad": (lambda: b"\x89HDF\r\n\x1a\n" + bytes(90), "not an AnnData file"),
    "image.png": (lambda: b"\x89PNG\r\n\x1a\n" + bytes(50), "unknown format"),
    "sheet.xlsx": (lambda: b"PK\x03\x04" + bytes(50), "spreadsheet"),
    "letters.fasta": (lambda: b">a\nACDE\n", "alignment"),
    "nothing.csv": (lambda: b"", "empty"),
    "utf16.csv": (lambda: "a,b\n1,2\n".encode("utf-16"), "UTF-8"),
    "bytes.csv": (lambda: bytes(range(256)), "UTF-8"),
    "pipe.csv": ("pipe", "not a regular file"),
    "pipe.npy": ("pipe", "not a regular file"),
    "pipe.npz": ("pipe", "not a regular file"),
    "pipe.parquet": ("pipe", "not a regular file"),
    "pipe.h5ad": ("pipe", "not a regular file"),
    "zeros.csv": ("/dev/zero", "not a regular file"),
    "zeros.parquet": ("/dev/zero", "not a regular file"),
    "random.npz": ("/dev/urandom", "not a regular file"),
    "loop.csv": ("loop.csv", "cannot be read|symbolic|not a regular"),
    "nowhere.csv": ("nowhere", "file not found"),
}  # fmt: skip
DATA_USES = {
    "train": lambda path, home, out: ("train", path, "--out", out / "new", "--hidden", 2, "--epochs", 1, "-q"),
    "validation": lambda path, home, out: (
        "train", home / "rows.npy", "--validation", path, "--out", out / "new", "--hidden", 2, "--epochs", 1, "-q"
    ),
    "weights": lambda path, home, out: (
        "train", home / "rows.npy", "--weights", path, "--out", out / "new", "--hidden", 2, "--epochs", 1, "-q"
    ),
    "score": lambda path, home, out: ("score", home / "machine.safetensors", path, "-q", "--out", out / "x.csv"),
    "impute": lambda path, home, out: ("impute", home / "machine.safetensors", path, "-q", "--out", out / "x.npy"),
    "matrix": lambda path, home, out: (
        "recover", home / "machine.safetensors", home / "measured.npy", "--matrix", path, "-q", "--out", out / "x.npy"
    ),
    "labels": lambda path, home, out: (
        "report", home / "run", "--labels", path, "--starts", 3, "-q", "--out", out / "x.html"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "use"), cases(DATA, DATA_USES))
def test_data_files(name, use, home, tmp_path):
    """Hostile and damaged files are refused by their name; only training knows what it expects."""
    content, message = DATA[name]
    path = tmp_path / name
    if content == "pipe":
        os.mkfifo(path)
    elif isinstance(content, str):
        path.symlink_to(content)
    else:
        path.write_bytes(content())
    mention = re.escape(name) if use in ("train", "score", "impute") else "."
    if message is None:
        checked(DATA_USES[use](path, home, tmp_path), may_work=True)
    else:
        checked(DATA_USES[use](path, home, tmp_path), *([mention, message] if use == "train" else [mention]))
        assert not list(tmp_path.glob("x.*"))


# ----- text files


VALUES = np.round(np.random.default_rng(3).normal(size=(12, 3)), 2)
HEADERS = {"words": ["height", "the mass", "c"], "years": ["2019", "2020", "2021"], "none": None}
ENDS = {"unix": "\n", "windows": "\r\n", "old": "\r"}
SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|", "space": " "}
QUOTES = {"plain": lambda cell: cell, "quoted": lambda cell: f'"{cell}"'}
POINTS = {"point": lambda cell: cell, "decimal comma": lambda cell: cell.replace(".", ",")}
FORMS = {"csv": ("x.csv", b""), "marked": ("x.CSV", b"\xef\xbb\xbf"), "text": ("x.txt", b""), "gzip": ("x.csv.gz", b"")}


@pytest.mark.parametrize(
    ("separator", "point", "quote", "header", "end", "form"),
    cases(SEPARATORS, POINTS, QUOTES, HEADERS, ENDS, FORMS, quick=61),
)
def test_dialects(separator, point, quote, header, end, form, tmp_path):
    """The same numbers in every way that programs write them."""
    mark, quoted = SEPARATORS[separator], QUOTES[quote]
    if point == "decimal comma" and (separator in ("comma", "space")) and quote == "plain":
        pytest.skip("such a file has no separator")
    names = HEADERS[header]
    if names is not None and quote == "plain" and separator == "space":
        names = [name.replace(" ", "_") for name in names]
    lines = [] if names is None else [mark.join(map(quoted, names))]
    lines += [mark.join(quoted(POINTS[point](f"{value}")) for value in row) for row in VALUES]
    name, start = FORMS[form]
    content = start + (ENDS[end].join(lines) + ENDS[end]).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    found = read(tmp_path / name)
    np.testing.assert_array_equal(found.rows, VALUES)
    assert found.layout.names == (None if names is None else tuple(names))


CELLS = ["", "NA", "n/a", "-", "?", "x", "1", "0.5", "1,5", "1.234,5", "1,234.5", "12%", "1e308", "1e999", "inf",
         "-inf", "nan", "True", "1_0", "0x10", "٣", "--1", '"', "'", "=1+1", "\x00", "\x1b[31m", "\u2028", "\u202e",
         "2020-01-01",
         "9" * 400, "x" * 140_000, " ", "\ufeff", "1 2", "a;b", "a\tb"]  # fmt: skip
COLUMNS = {
    "numbers": [f"{value}" for value in VALUES[:, 0]],
    "integers": [str(value) for value in range(12)],
    "text": list("abcabcabcabc"),
    "gaps": [""] * 12,
}


def read_or_refused(path, words):
    """Read a file, unless it is refused with some words."""
    refusal = ""
    try:
        return read(path, gaps=True)
    except DataError as error:
        refusal = str(error)
    assert re.search(words, refusal), refusal
    return None


@pytest.mark.parametrize(("cell", "column"), cases(range(len(CELLS)), COLUMNS))
@pytest.mark.filterwarnings("ignore:column 'k' contains integers above")
def test_cells(cell, column, tmp_path):
    """One strange cell: the column is refused by its name or line, or all other cells have their values."""
    cells = [*COLUMNS[column][:5], CELLS[cell], *COLUMNS[column][5:]]
    lines = ["k,other", *(f'"{own}",{value}' if '"' not in own else f"{own},{value}" for own, value in
                          zip(cells, range(13), strict=True))]  # fmt: skip
    (tmp_path / "x.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = read_or_refused(tmp_path / "x.csv", r"line 7|row 5|'k'|\(k\)|not a table")
    if found is None:
        return
    if found.table is None:
        expected = [float(own) if own else np.nan for own in COLUMNS[column]]
        np.testing.assert_array_equal(np.delete(np.asarray(found.rows)[:, 0], 5), expected)
    else:
        (values,) = (own.values.tolist() for own in found.table if own.name == "k")
        others = [own for place, own in enumerate(values) if place != 5]
        assert [None if own != own else own for own in others] == [
            (own or None) if column in ("text", "gaps") else float(own) for own in COLUMNS[column]
        ]


# ----- names that deceive


NAMES = ["\x1b]0;title\x07", "\x1b[31mred", "a\x9b2J", "\u202egnp.exe", "\u2066x\u2069", "\u200fx", "a\rb", "\x00",
         "\x7f", "=cmd|' /C calc'!A0", "<script>alert(1)</script>", "{name}", "%s%n", "../../x",
         "a" * 3000]  # fmt: skip
NAMED = {
    "train": lambda path, out: ("train", path, "--out", out / "run", "--hidden", 2),
    "info": lambda path, out: ("info", out / "run"),
    "score": lambda path, out: ("score", out / "run", path),
    "predict": lambda path, out: ("predict", out / "run", path, "--column", "n"),
    "impute": lambda path, out: ("impute", out / "run", path, "--out", out / "x.csv"),
    "evaluate": lambda path, out: ("evaluate", out / "run"),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.torture) for name in NAMES])
@pytest.mark.parametrize("as_category", [False, True], ids=["column", "category"])
def test_names(name, as_category, tmp_path):
    """No command prints control characters or characters that change the direction of text; six commands each."""
    column, category = ("t", name) if as_category else (name, "b")
    lines = [f'"{column}",n', *(f'"{(category, "b", "c")[row % 3]}",{VALUES[row, 0]}' for row in range(12))]
    (tmp_path / "x.csv").write_text("\n".join(lines) + "\n", newline="")
    for use, words in NAMED.items():
        code, printed, errors = command(*words(tmp_path / "x.csv", tmp_path))
        assert code in (0, 2), (use, errors)
        assert "Traceback" not in errors
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]", printed + errors), (
            use
        )
        if use == "train" and code == 2:
            return


# ----- arguments in Python


X = torch.tensor(bars(12)[:, ::4])
ARGUMENTS = {
    "n_hidden": [0, -1, 1.5, "x", None, 10**9, (), (3, 0), [2.5], True, float("nan"), 10**30],
    "epochs": [-1, 1.5, "x", float("inf"), True],
    "batch_size": [0, -3, 1.5, "x", float("nan")],
    "learning_rate": [0, -1, "x", float("nan"), float("inf")],
    "decay": [0, 2, -1, float("nan"), "x", None],
    "weight_decay": [-1, float("nan"), float("inf"), "x", None],
    "l1": [-1, float("nan"), float("inf"), "x", None],
    "visible": ["wrong", 3, lambda n: 3, lambda n: tm.Binary(n + 1)],
    "hidden_units": ["wrong", 3, None],
    "objective": ["wrong", 3, tm.PCD],
    "interval": [(1, 0), (0, 0), 3, "x", (0, float("nan")), (0, 1, 2)],
    "binarize": ["x", float("nan"), float("inf")],
    "device": ["wrong", "tpu", 3],
    "columns": [{"a": "real"}, 3, "x"],
    "pretrain": [-1, 1.5, "x"],
    "random_state": ["x", -1, 1.5, [1]],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [pytest.param(name, value, marks=pytest.mark.torture if place else (), id=f"{name} {place}")
     for name, values in ARGUMENTS.items() for place, value in enumerate(values)],
)  # fmt: skip
def test_arguments(name, value):
    """Wrong arguments of RBM are refused with their name or value, before memory is allocated."""
    with pytest.raises((ValueError, TypeError, MemoryError)) as refusal:
        tm.RBM(**{"n_hidden": 2, "epochs": 1, "device": "cpu"} | {name: value}).fit(X.numpy())
    assert len(str(refusal.value)) > 10


# ----- modes of torch and numpy


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(before)


@contextlib.contextmanager
def default_device(device):
    torch.set_default_device(device)
    yield
    torch.set_default_device(None)


MODES = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "float64": lambda: default_dtype(torch.float64),
    "float16": lambda: default_dtype(torch.float16),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "meta": lambda: default_device("meta"),
    "grad": torch.enable_grad,
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
    "numpy errors": lambda: np.errstate(all="raise"),
    "warnings": warnings.catch_warnings,
}


def table():
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"a": VALUES[:, 0], "b": list("abc") * 4})


def fitted(machine, **options):
    tm.fit(machine, X, epochs=2, batch_size=6, monitor=tm.training.Monitor(n_starts=0), **options)
    return machine


FITS = {
    "fit": lambda machine: fitted(machine),
    "fit by TAP": lambda machine: fitted(machine, objective=tm.TAPObjective()),
    "RBM": lambda machine: tm.RBM(2, epochs=2, device="cpu").fit(X.numpy()).machine_,
    "RBM, gaps": lambda machine: tm.RBM(2, epochs=2, device="cpu").fit(np.where(X > 2, np.nan, X.numpy())).machine_,
    "RBM, twice": lambda machine: tm.RBM(2, epochs=1).fit(X.numpy()).partial_fit(X.numpy()).machine_,
    "RBM, table": lambda machine: tm.RBM(2, device="cpu").fit(table()).machine_,
    "RBM, deep": lambda machine: tm.RBM((3, 2), epochs=1, device="cpu").fit(X.numpy()).machine_,
}


def new_machine():
    return tm.rbm(tm.Binary(4), tm.Binary(2), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("mode", "fit"), cases(MODES, FITS))
def test_modes(mode, fit):
    """Training has the same bits in every mode that the caller has set."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, machine = FITS[fit](new_machine()), new_machine()
        with MODES[mode]():
            found = FITS[fit](machine)
    for one, other in zip(expected.parameters(), found.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_machine_from_inference_mode_is_refused():
    with torch.inference_mode():
        machine = new_machine()
    with pytest.raises(ValueError, match=r"was created in torch.inference_mode and cannot be trained"):
        tm.fit(machine, X, epochs=1)


MASKED = np.ma.masked_array(ROWS[:, ::4], np.zeros((20, 4), bool))
MASKED[3, 1] = np.ma.masked
MASKED.data[3, 1] = 1e6
GAPPY = MASKED.filled(np.nan)
ARRAYS = {
    "RBM": lambda x: tm.RBM(2, epochs=1, device="cpu").fit(x).components_,
    "score": lambda x: tm.RBM(2, epochs=1, device="cpu").fit(ROWS[:, ::4]).score_samples(x),
    "impute": lambda x: tm.RBM(2, epochs=1, device="cpu").fit(ROWS[:, ::4]).impute(x),
    "transform": lambda x: tm.RBM(2, epochs=1, device="cpu").fit(ROWS[:, ::4]).transform(x),
}


@pytest.mark.parametrize("use", [pytest.param(use, marks=pytest.mark.torture if place else ())
                                 for place, use in enumerate(ARRAYS)])  # fmt: skip
def test_masked_cells_are_missing_and_dates_are_refused(use):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TapmachineWarning)
        np.testing.assert_array_equal(ARRAYS[use](MASKED), ARRAYS[use](GAPPY))
    with pytest.raises(ValueError, match=r"X contains dates \(datetime64\[s\]\); convert them to numbers"):
        ARRAYS[use](ROWS[:, ::4].astype("M8[s]"))


def test_long_identifiers_are_warned_about(tmp_path):
    (tmp_path / "x.csv").write_text("id,t\n9007199254740993,a\n9007199254740995,b\n")
    with pytest.warns(DataWarning, match=r"column 'id' contains integers above 2\^53"):
        read(tmp_path / "x.csv")


# ----- the process around


def process(words, before="", **options):
    """The command line in a process of its own, after some Python has been executed."""
    code = f"{before}\nimport sys; from tapmachine.apps.cli import main; sys.argv[0] = 'tapmachine'; main()"
    command_line = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(command_line, capture_output=True, text=True, timeout=PATIENCE, **options)


LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_{}, ({}, {}));"
TRAINING = ("train", "digits", "--hidden", 4, "--epochs", 1, "-q")


@pytest.mark.torture
@pytest.mark.parametrize("megabytes", [400, 800, 1100, 1500, 1540, 1600, 1800, 2200, 3000, 4000])
@pytest.mark.parametrize("use", ["train", "report", "wide"])
def test_memory_limits(use, megabytes, home, tmp_path):
    words = {
        "train": (*TRAINING, "--out", tmp_path / "run"),
        "report": ("report", home / "run", "--out", tmp_path / "x.html", "--starts", 3, "-q"),
        "wide": ("train", "digits", "--hidden", 3_000_000, "--epochs", 1, "-q", "--out", tmp_path / "run"),
    }[use]
    done = process(words, LIMIT.format("AS", *[megabytes * 2**20] * 2))
    assert done.returncode in (0, 2), done.stderr
    assert "Traceback" not in done.stderr
    if done.returncode == 2:
        assert re.search("not enough memory for tapmachine|failed to map segment|cannot allocate", done.stderr), (
            done.stderr
        )


@pytest.mark.torture
@pytest.mark.parametrize("size", [0, 100, 1000, 3000, 10_000])
@pytest.mark.parametrize("use", ["train", "score", "impute", "convert"])
def test_full_disks_name_the_file(use, size, home, tmp_path):
    machine, rows = home / "machine.safetensors", home / "rows.npy"
    words = {
        "train": ("train", rows, "--hidden", 3, "--epochs", 1, "-q", "--out", tmp_path / "run"),
        "score": ("score", machine, rows, "-q", "--out", tmp_path / "x.csv"),
        "impute": ("impute", machine, rows, "-q", "--out", tmp_path / "x.npy"),
        "convert": ("convert", machine, tmp_path / "x.h5", "-q"),
    }[use]
    ignore = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
    done = process(words, ignore + LIMIT.format("FSIZE", size, size))
    assert done.returncode in (0, 2), done.stderr
    assert "Traceback" not in done.stderr
    if done.returncode == 2:
        assert str(tmp_path) in done.stderr
        assert done.stderr.count("\n") == 1
    assert not list(tmp_path.rglob("*.part"))


def broken_pipe():
    reading, writing = os.pipe()
    os.dup2(writing, 1)
    os.close(reading)


STREAMS = {  # what happens to the streams before the process starts
    "closed output": lambda: os.close(1),
    "closed errors": lambda: os.close(2),
    "all closed": lambda: os.closerange(0, 3),
    "full output": lambda: os.dup2(os.open("/dev/full", os.O_WRONLY), 1),
    "full errors": lambda: os.dup2(os.open("/dev/full", os.O_WRONLY), 2),
    "broken pipe": broken_pipe,
    "ASCII": lambda: None,
    "Latin": lambda: None,
}
STREAM_USES = {
    "info": lambda home, out: ("info", home / "run"),
    "score": lambda home, out: ("score", home / "run", home / "rows.npy", "-q"),
    "score to a file": lambda home, out: ("score", home / "run", home / "rows.npy", "--out", out / "x.csv"),
    "evaluate": lambda home, out: ("evaluate", home / "run", "--exact"),
    "train": lambda home, out: ("train", home / "rows.npy", "--out", out / "run", "--hidden", 2, "--epochs", 1),
}


@pytest.mark.parametrize(
    ("stream", "use"),
    [pytest.param(*names, marks=pytest.mark.torture) for names in itertools.product(STREAMS, STREAM_USES)],
)
def test_streams(stream, use, home, tmp_path):
    """No stream makes a command fail that writes to a file, and results that cannot be written are said to be lost."""
    encoding = {"ASCII": "ascii", "Latin": "latin-1"}.get(stream, "utf-8")
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    words = STREAM_USES[use](home, tmp_path)
    done = process(words, env=environment, preexec_fn=STREAMS[stream], encoding=encoding, errors="replace")
    writes = use in ("score to a file", "train")
    assert "Traceback" not in done.stderr
    expected = (0, 2) if stream in ("closed output", "all closed", "full output", "broken pipe") else (0,)
    assert done.returncode in expected, done.stderr
    if writes:
        assert (tmp_path / "x.csv").exists() or (tmp_path / "run/machine.safetensors").exists()
    if stream == "full output" and use != "train":
        assert done.returncode == 2
        assert "standard output: No space left on device" in done.stderr
    if stream == "closed output" and use == "score":
        assert "standard output is closed; use --out FILE" in done.stderr
    if stream == "ASCII" and use == "evaluate":
        assert done.stdout.isascii()
        assert "exact" in done.stdout


@pytest.mark.torture
@pytest.mark.parametrize("wait", [0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0])
def test_two_interrupts_end_with_130(wait, tmp_path):
    """The second one, while the process ends, does not kill it."""
    words = [sys.executable, "-m", "tapmachine", "train", "digits", "--hidden", "30", "--epochs", "5000", "-q"]
    start = subprocess.Popen([*words, "--out", str(tmp_path / "run")], stderr=subprocess.PIPE, text=True,
                             preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))  # fmt: skip
    deadline = time.monotonic() + PATIENCE
    while not (tmp_path / "run/events.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    start.send_signal(signal.SIGINT)
    time.sleep(wait)
    start.send_signal(signal.SIGINT)
    _, errors = start.communicate(timeout=PATIENCE)
    assert start.returncode == 130, errors
    assert errors.count("\n") == 1
    assert "interrupted" in errors


def test_temporary_files_of_killed_writes_are_removed(tmp_path):
    """Those of processes that still run, and files with other names, stay."""
    killed = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    path = tmp_path / "m.safetensors"
    left = [tmp_path / f".m.safetensors.{number}.part" for number in (int(killed.stdout), 1)]
    others = [tmp_path / name for name in (".m.safetensors.x.part", ".other.safetensors.99999999.part", "m.part")]
    for each in (*left, *others):
        each.write_bytes(b"")
    tm.save(new_machine(), path)
    assert [each.exists() for each in (*left, *others)] == [False, True, True, True, True]


@pytest.mark.torture
@pytest.mark.parametrize("attempt", range(10))
def test_kills_of_save_leave_whole_files(attempt, tmp_path):
    code = (
        "import tapmachine as tm, sys\n"
        "machine = tm.rbm(tm.Binary(400), tm.Binary(300))\n"
        "print('ready', flush=True)\n"
        f"while True: tm.save(machine, {str(tmp_path / 'm.safetensors')!r})"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as saving:
        saving.stdout.readline()
        time.sleep(0.05 + 0.037 * attempt)
        saving.kill()
    if (tmp_path / "m.safetensors").exists():
        assert tm.load(tmp_path / "m.safetensors").sizes == (400, 300)
    tm.save(new_machine(), tmp_path / "m.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]


@pytest.mark.parametrize("change", [{"threads": 99}, {"CPU capability": "NONE"}])
def test_another_environment_is_reported_at_a_resume(change, run, home, monkeypatch):
    monkeypatch.setattr(
        "tapmachine.runs.training.environment", lambda: {"threads": 1, "CPU capability": "AVX2"} | change
    )
    code, _, errors = command("train", "--out", run, "--epochs", 3)
    assert code == 0
    name, value = next(iter(change.items()))
    assert re.search(rf"{name} was \S+ and is {value}; the results are not bit-identical", errors)


def test_memory_is_checked_before_it_is_allocated():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(MemoryError, match="1000000000 hidden units needs"):
        tm.RBM(10**9).fit(np.eye(8))
    with pytest.raises(MemoryError, match="a machine with these weights needs"):
        tm.rbm(tm.Binary(10**6), tm.Binary(10**6))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 2**19
