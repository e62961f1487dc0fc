"""Data that stay on disk: memory maps and folders of them, which train as the same rows in memory do."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from run_cases import bars
from safetensors.torch import load_file
from typer.testing import CliRunner

from tapmachine import Binary, datasets, fit, rbm
from tapmachine.cli import app
from tapmachine.datasets import DataError, RowsOnDisk, read
from tapmachine.runs import RunError
from tapmachine.settings import Settings, SettingsError
from tapmachine.training_runs import read_data, run_training

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
    for first, last in zip(SHARDS, SHARDS[1:], strict=False):
        np.save(folder / f"part-{first:03d}.npy", array[first:last])
    return folder


@pytest.fixture
def on_disk(monkeypatch):
    """Nothing is small enough to be read into memory."""
    monkeypatch.setattr(datasets, "LARGE_BYTES", 0)
    monkeypatch.setattr(datasets, "VALUES_AT_A_TIME", 200)  # 12 rows: parts that begin in one file and end in the next


def weights_of(folder):
    return load_file(folder / "machine.safetensors")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("binary", {}),
        ("bytes", {"validation": 0.2}),
        ("bytes", {"binarise": 0.4, "dtype": "float64", "validation": 0.1}),
        ("spin", {"objective": "tap", "start": "data"}),
        ("gaussian", {"visible": "gaussian", "dtype": "float64"}),
        ("gaussian", {"visible": "auto", "interval": (0.0, 100.0)}),
        ("categorical", {"visible": "categorical"}),
    ],
)
def test_the_same_weights_as_in_memory(kind, options, tmp_path, on_disk, monkeypatch):
    np.save(tmp_path / "one.npy", images(kind))
    write_shards(tmp_path / "many", images(kind))
    options = {"hidden": (5,), "epochs": 2, "batch_size": 30} | options
    for source in ("one.npy", "many"):
        run_training(Settings(str(tmp_path / source), **options), tmp_path / f"on disk {source}")
        assert isinstance(read_data(Settings(str(tmp_path / source), **options)).train, RowsOnDisk)
    monkeypatch.undo()
    run = run_training(Settings(str(tmp_path / "one.npy"), **options), tmp_path / "in memory")
    assert isinstance(run.rows, torch.Tensor)
    expected = weights_of(tmp_path / "in memory")
    for source in ("one.npy", "many"):
        found = weights_of(tmp_path / f"on disk {source}")
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    records = [(tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1] for name in ("in memory", "on disk many")]
    without_times = [{k: v for k, v in eval(r).items() if k != "seconds"} for r in records]
    assert without_times[0] == without_times[1]
