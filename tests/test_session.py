"""A command opens its run once: one read of settings.json, and one read and hash of the machine file."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import safetensors
from run_cases import bars, command

from tapmachine.data.errors import RunError
from tapmachine.runs.folder import RunFolder
from tapmachine.runs.session import Session
from tapmachine.runs.settings import Settings
from tapmachine.runs.training import run_training

opened: Counter[str] = Counter()
sys.addaudithook(lambda event, values: opened.update([str(values[0])]) if event == "open" else None)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs on a table with gaps and on binary rows, with data and measurements for the commands."""
    folder, draw = tmp_path_factory.mktemp("session"), np.random.default_rng(0)
    kinds = draw.integers(0, 2, 200)
    lines = [f"{'ab'[kind]},{kind + draw.normal():.3f},{2 * kind + draw.normal():.3f}" for kind in kinds]
    lines[3], lines[5] = "a,,0.5", ",0.1,0.2"
    (folder / "table.csv").write_text("\n".join(["kind,height,mass", *lines]) + "\n")
    np.save(folder / "rows.npy", bars())
    np.save(folder / "few.npy", bars(5))
    np.save(folder / "matrix.npy", draw.normal(size=(12, 16)))
    np.save(folder / "measured.npy", bars(5) @ np.load(folder / "matrix.npy").T)
    run_training(Settings(f"{folder}/table.csv", hidden=(3,)), folder / "table")
    run_training(Settings(f"{folder}/rows.npy", hidden=(4,), epochs=4, keep_every=2), folder / "run")
    return folder


COMMANDS = [
    "info run",
    "evaluate run",
    "evaluate run --ais --temperatures 20",
    "sample run --count 3 --n-sweeps 2 --out drawn.npy",
    "sample table --count 3 --out drawn.csv",
    "denoise run few.npy --p 0.1 --out clean.npy",
    "impute run few.npy --out filled.npy",
    "impute table table.csv --out filled.csv --interval 0.9 --draws 2",
    "predict table table.csv --column kind --out predicted.csv",
    "recover run measured.npy --matrix matrix.npy --noise 0.1 --out signals.npy",
    "score run few.npy --out scores.csv",
    "score table table.csv --out scores.csv",
    "landscape run --starts 10",
    "report run --starts 10",
    "train --out run",
    "train --out run --epochs 5",
]


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_reads_the_settings_and_the_machine_once(words, runs, monkeypatch):
    monkeypatch.chdir(runs)
    name, read, safe_open = words.split()[0], Counter(), safetensors.safe_open

    def counted(path, **how):
        read.update([Path(path).name])
        return safe_open(path, **how)

    monkeypatch.setattr(safetensors, "safe_open", counted)
    opened.clear()
    code, _, errors = command(*words.split(), *([] if name == "info" else ["--quiet"]))
    assert code == 0, errors
    assert sum(n for path, n in opened.items() if path.endswith("settings.json")) == 1
    assert read["machine.safetensors"] == (0 if name == "train" else 1)


def test_settings_are_read_again_after_another_process_replaced_them(runs):
    folder = RunFolder(runs / "table")
    before = folder.settings()
    RunFolder(runs / "table").write_settings(Settings(before.data, hidden=(3,), epochs=77), ["an earlier digest"])
    assert folder.settings().epochs == 77
    assert folder.digests()[0] == "an earlier digest"
    RunFolder(runs / "table").write_settings(before)


def test_a_machine_file_has_settings_but_no_data(runs):
    session = Session(runs / "run" / "machine.safetensors")
    assert (session.run, session.records(), session.settings.visible) == (None, [], "auto")
    assert list(session.machines) == [session.epoch]
    assert session.machines[session.epoch] is session.machine
    assert session.data(str(runs / "few.npy")).train.shape == (5, 16)
    with pytest.raises(RunError, match="a machine file has no data; use --data FILE"):
        session.data()
    with pytest.raises(RunError, match="not a run directory, or no checkpoint has been saved yet"):
        Session(runs)


@pytest.mark.long
def test_training_loads_what_it_needs(tmp_path):
    code = (
        "import sys; from tapmachine.apps.cli import main\n"
        "try: main()\n"
        "finally: print(sum(name.startswith('tapmachine') for name in sys.modules))"
    )
    words = ["train", "digits", "--hidden", "4", "--epochs", "1", "--quiet", "--out", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 120
