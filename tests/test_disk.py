"""Data that stay on disk: memory maps and folders of them, which train as the same rows in memory do."""

import json
import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from run_cases import bars
from safetensors.torch import load_file
from typer.testing import CliRunner

from tapmachine import Binary, fit, rbm
from tapmachine.apps.cli import app
from tapmachine.data import rows as data_rows
from tapmachine.data.errors import DataError, RunError
from tapmachine.data.rows import LazyRows
from tapmachine.data.sources import read
from tapmachine.runs.data import read_data
from tapmachine.runs.settings import Settings
from tapmachine.runs.training import run_training
from tapmachine.tables import slabs

SHARDS = (0, 70, 75, 200, 300)  # where they begin and end: some within a batch


def images(kind):
    """300 rows of 4×4 values for units of a kind."""
    x, noise = bars(300).reshape(300, 4, 4), np.random.default_rng(1).random((300, 4, 4))
    return {
        "binary": lambda: x,
        "bytes": lambda: (255 * x * noise).astype(np.uint8),
        "spin": lambda: (2 * x - 1).astype(np.int8),
        "gaussian": lambda: 30 + 5 * (x + noise),
        "categorical": lambda: (x * 2 + (noise > 0.7)).astype(np.int64),
    }[kind]()


def write_shards(folder, array):
    folder.mkdir()
    for first, last in pairwise(SHARDS):
        np.save(folder / f"part-{first:03d}.npy", array[first:last])
    return folder


@pytest.fixture
def on_disk(monkeypatch):
    """300 rows are too many for memory."""
    monkeypatch.setattr(data_rows, "LARGE_BYTES", 6400)  # 100 rows of 16
    monkeypatch.setattr(data_rows, "VALUES_READ", 200)  # 12 rows: parts that begin in one file and end in the next


def weights_of(folder):
    return load_file(folder / "machine.safetensors")


def last_record(folder):
    record = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    return {name: value for name, value in record.items() if name != "seconds"}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param("binary", {}, marks=pytest.mark.slow),
        ("bytes", {"validation": 0.2}),
        ("bytes", {"binarize": 0.4, "dtype": "float64", "validation": 0.1}),
        ("spin", {"objective": "tap"}),
        ("gaussian", {"visible": "gaussian", "dtype": "float64"}),
        pytest.param("gaussian", {"interval": (0.0, 100.0)}, marks=pytest.mark.slow),
        ("categorical", {"visible": "categorical"}),
    ],
)
def test_the_same_weights_as_in_memory(kind, options, tmp_path, on_disk, monkeypatch, request):
    np.save(tmp_path / "one.npy", images(kind))
    write_shards(tmp_path / "many", images(kind))
    of_steps = {} if options.get("visible") == "gaussian" else {"epochs": 1, "batch_size": 30}
    options = {"hidden": (5,)} | of_steps | options
    steps = pytest.MonkeyPatch()  # not undone with the other one
    request.addfinalizer(steps.undo)
    steps.setattr(slabs, "MOST_STEPS", 20)
    for source in ("one.npy", "many"):
        run_training(Settings(str(tmp_path / source), **options), tmp_path / f"on disk {source}")
        assert isinstance(read_data(Settings(str(tmp_path / source), **options)).train, LazyRows)
    monkeypatch.undo()
    run = run_training(Settings(str(tmp_path / "one.npy"), **options), tmp_path / "in memory")
    assert isinstance(run.rows, torch.Tensor)
    expected = weights_of(tmp_path / "in memory")
    for source in ("one.npy", "many"):
        found = weights_of(tmp_path / f"on disk {source}")
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    one, many = (last_record(tmp_path / name) for name in ("in memory", "on disk many"))
    assert one == many


def test_rows_are_read_as_from_one_array():
    x = images("gaussian").reshape(300, 16)
    rows = LazyRows({str(first): x[first:last] for first, last in pairwise(SHARDS)})
    assert (rows.shape, rows.dtype, len(rows)) == (x.shape, x.dtype, 300)
    np.testing.assert_array_equal(np.asarray(rows), x)
    index = np.random.default_rng(0).permutation(300)[:40]
    part, doubled = rows.between(60, 210), rows.mapped(lambda z: 2 * z).between(60, 210).mapped(lambda z: z + 1)
    for found, expected in ((rows, x), (part, x[60:210]), (doubled, 2 * x[60:210] + 1)):
        np.testing.assert_array_equal(found[3:90], expected[3:90])
        np.testing.assert_array_equal(found[::7], expected[::7])
        np.testing.assert_array_equal(found[index % len(expected)], expected[index % len(expected)])
        np.testing.assert_array_equal(np.concatenate([own for _, own in found.parts()]), expected)
    assert rows[:0].shape == (0, 16)
    assert [rows.place(row) for row in (0, 69, 70, 299)] == [("0", 0), ("0", 69), ("70", 0), ("200", 99)]
    assert part.place(20) == ("75", 5)


def test_a_fingerprint_is_of_the_rows_and_not_of_the_files(tmp_path, monkeypatch):
    folder = write_shards(tmp_path / "many", images("bytes"))
    np.save(tmp_path / "one.npy", images("bytes"))
    digests = {read(source).digest() for source in (folder, tmp_path / "one.npy")}
    monkeypatch.setattr(data_rows, "LARGE_BYTES", 0)
    digests |= {read(source).digest() for source in (folder, tmp_path / "one.npy")}
    assert len(digests) == 1
    changed = np.load(folder / "part-075.npy")
    changed[100, 2, 2] ^= 1
    np.save(folder / "part-075.npy", changed)
    assert read(folder).digest() not in digests


@pytest.mark.long
def test_a_run_goes_on_with_the_same_shards_only(tmp_path, on_disk):
    folder = write_shards(tmp_path / "many", images("bytes"))
    settings = Settings(str(folder), hidden=(5,), epochs=1, batch_size=30)
    run_training(settings, tmp_path / "run")
    assert run_training(settings, tmp_path / "run").resumed_at == 1
    np.save(folder / "part-200.npy", images("bytes")[200:299])
    with pytest.raises(RunError, match="the data have changed"):
        run_training(settings, tmp_path / "run")


def test_folders_that_are_no_data(tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    with pytest.raises(DataError, match="many: the directory is empty"):
        read(folder)
    x = images("gaussian").reshape(300, 16)
    for number in range(4):
        np.save(folder / f"{number}.npy", x[:50])
    (folder / ".hidden").write_text("which some systems leave behind")
    assert read(folder).rows.shape == (200, 16)
    for array, message in (
        (x[:50, :9], r"2.npy: rows are float64 of shape \(9,\), but rows of .*0.npy are float64 of shape \(16,\)"),
        (x[:50].astype(np.float32), r"2.npy: rows are float32 of shape \(16,\), but rows of .*0.npy are float64"),
        (np.where(np.arange(800).reshape(50, 16) == 37 * 16 + 5, np.nan, x[:50]), "2.npy: row 37, column 5 is nan"),
        (x[:0], "2.npy: the shape is .* at least one row"),
        (np.array([{"a": 1}]), "2.npy: not a plain array"),
    ):
        np.save(folder / "2.npy", array)
        with pytest.raises(DataError, match=message):
            read(folder)
    (folder / "2.npy").write_bytes(b"1,2\n3,4\n")
    with pytest.raises(DataError, match=r"2.npy: not a plain array"):
        read(folder)
    np.save(folder / "2.npy", x[:50])
    (folder / "notes.txt").write_text("on these data")
    with pytest.raises(DataError, match=r"notes.txt: not a .npy file; expected only"):
        read(folder)


def test_a_file_that_ends_too_early(tmp_path, on_disk):
    path = write_shards(tmp_path / "many", images("bytes")) / "part-200.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"part-200.npy: not a plain array"):
        read(path.parent)


@pytest.mark.parametrize(
    ("value", "options", "message"),
    [
        (0.5, {"visible": "binary"}, r"x\[110, 5\] is 0.5; expected 0 or 1 \(row 35 of .*part-075.npy\)"),
        (7.0, {"interval": (0.0, 1.0)}, r"row 35 of .*part-075.npy, column 5 is 7; expected a value from 0 to 1"),
        (7.5, {"visible": "categorical"}, "not all values are non-negative integers"),
        (1e13, {}, "the largest value is 1e[+]13"),
    ],
)
def test_bad_rows_are_named_by_their_file(value, options, message, tmp_path, on_disk):
    x = images("binary").copy()
    x[110, 1, 1] = value
    folder = write_shards(tmp_path / "many", x)
    with pytest.raises(ValueError, match=f"many: .*{message}"):
        run_training(Settings(str(folder), hidden=(5,), epochs=1, **options), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_commands_on_a_run_from_shards(tmp_path, on_disk, monkeypatch):
    """They take rows at even distances, as many as are let into memory."""
    monkeypatch.chdir(tmp_path)
    write_shards(tmp_path / "many", images("binary"))
    write_shards(tmp_path / "digits", images("binary"))  # which the named data set comes before
    for words in (
        "train many --hidden 5 --epochs 2 --batch-size 30 --validation 0.2 --out run --quiet",
        "evaluate run",
        "evaluate run --data many",
        "sample run --count 3 --n-sweeps 2 --out samples.npy",
        "denoise run many --p 0.1 --out clean.npy",
        "score run many --out scores.csv",
        "train digits --epochs 0 --out named --quiet",
    ):
        result = CliRunner().invoke(app, words.split(), catch_exceptions=False)
        assert result.exit_code == 0, words
        said = "evenly spaced rows of" in result.output
        assert said == (not words.startswith("train")), words
    assert np.load("clean.npy").shape == (300, 16)
    assert json.loads((tmp_path / "run/settings.json").read_text())["settings"]["data"] == str(tmp_path / "many")
    assert json.loads((tmp_path / "named/settings.json").read_text())["settings"]["data"] == "digits"


def test_layers_are_pretrained_on_rows_that_fit(tmp_path, on_disk):
    folder = write_shards(tmp_path / "many", images("binary"))
    settings = Settings(str(folder), hidden=(5, 3), pretrain=1, epochs=1, batch_size=30)
    assert len(run_training(settings, tmp_path / "run").records) == 2


def test_rows_on_disk_in_python(tmp_path, on_disk):
    folder = write_shards(tmp_path / "many", images("binary"))
    found = []
    for x in (read(folder).rows, torch.from_numpy(images("binary").reshape(300, 16))):
        machine = rbm(Binary(16), Binary(5))
        fit(machine, x, epochs=2, batch_size=30, weights=torch.arange(300.0))
        found.append(machine.weights[0].detach())
    assert torch.equal(*found)


@pytest.mark.slow
def test_two_processes_train_on_shards_as_one(tmp_path):
    folder = write_shards(tmp_path / "many", images("binary"))
    (tmp_path / "chosen.json").write_text('{"dtype": "float64", "hidden": [5], "epochs": 2, "batch_size": 30}')
    options = ["--settings", str(tmp_path / "chosen.json"), "--device", "cpu", "--quiet"]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = tmp_path / "train.py"
    script.write_text(
        "from tapmachine.data import rows; from tapmachine.apps.cli import main; rows.LARGE_BYTES = 0; main()"
    )
    for name, own in (("one", []), ("two", launch)):
        words = [sys.executable, *own, str(script), "train", str(folder), *options, "--out", str(tmp_path / name)]
        subprocess.run(words, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    one, two = (weights_of(tmp_path / name) for name in ("one", "two"))
    assert max(float((one[name] - two[name]).abs().max()) for name in one) <= 1e-9


TRAIN_IN_LITTLE_MEMORY = """
import resource, sys
from pathlib import Path
from tapmachine.data import rows as data_rows
from tapmachine.runs.settings import Settings
from tapmachine.runs.training import run_training
from tapmachine.tables import slabs
small, large, out, megabytes, large_bytes = sys.argv[1:]
options = {"hidden": (5,), "epochs": 1, "batch_size": 1000, "objective": "cd"}
run_training(Settings(small, **options), out + "/small")  # libraries set themselves up
lines = Path("/proc/self/status").read_text().splitlines()
taken = next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmData:"))
limit = taken + int(megabytes) * 10**6
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
data_rows.LARGE_BYTES = int(large_bytes)
run_training(Settings(large, **options, validation=0.1), out + "/large")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
def test_training_takes_less_memory_than_the_data(tmp_path):
    """306 MB of bytes, 1.2 GB as floats, in 250 MB beside the interpreter's own; read into memory they do not fit."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "large"
    folder.mkdir()
    for number in range(3):
        np.save(folder / f"{number}.npy", rng.integers(0, 2, (130_000, 784), np.uint8))
    np.save(tmp_path / "small.npy", rng.integers(0, 2, (2000, 40), np.uint8))
    arguments = [sys.executable, "-c", TRAIN_IN_LITTLE_MEMORY, str(tmp_path / "small.npy"), str(folder)]
    for name, large_bytes, fits in (("disk", 2**29, True), ("memory", 2**40, False)):
        (tmp_path / name).mkdir()
        words = [*arguments, str(tmp_path / name), "250", str(large_bytes)]
        done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        assert (done.returncode == 0) is fits, done.stderr[-2000:]
        assert fits or "MemoryError" in done.stderr or "allocate memory" in done.stderr


@pytest.mark.parametrize("index", [[7], [-1], [True, False]])
def test_rows_off_the_end_are_none(index):
    with pytest.raises(IndexError, match="from 0 to 4"):
        LazyRows({"x": np.eye(6)}).between(0, 5)[np.array(index)]
