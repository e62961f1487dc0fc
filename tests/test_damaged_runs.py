"""Damaged run directories: the previous checkpoint is used, or an error says what is wrong; never other weights."""

import json
import random
import shutil
import warnings

import numpy as np
import pytest
import torch
from run_cases import bars, command

from tapmachine import load
from tapmachine.data.errors import RunError, RunWarning
from tapmachine.machine import files
from tapmachine.runs.folder import RunFolder
from tapmachine.runs.session import read_machine
from tapmachine.runs.settings import Settings
from tapmachine.runs.training import run_training

EPOCHS = 3


class Runs:
    """A run, another one that differs by its seed, and the settings of the first."""

    def __init__(self, folder):
        np.save(folder / "bars.npy", bars(40))
        options = {"hidden": (2,), "epochs": EPOCHS, "batch_size": 20, "keep_every": 1, "measure_every": EPOCHS}
        self.settings = Settings(str(folder / "bars.npy"), **options)
        self.one, self.other = folder / "one", folder / "other"
        run_training(self.settings, self.one)
        run_training(Settings(str(folder / "bars.npy"), **options, seed=1), self.other)
        self.names = [str(path.relative_to(self.one)) for path in sorted(self.one.rglob("*")) if path.suffix]
        run = RunFolder(self.one)
        self.machines = {epoch: read_machine(run, epoch)[0].state_dict() for epoch in (None, 1, 2, 3)}

    def copy(self, folder):
        shutil.copytree(self.one, folder)
        return folder

    def check_machines(self, folder):
        """Every machine is refused, or is what it was; how many were refused."""
        refused = 0
        for epoch, before in self.machines.items():
            try:
                found = read_machine(RunFolder(folder), epoch)[0].state_dict()
            except (ValueError, OSError) as error:
                refused += str(folder) in str(error)
                continue
            assert all(torch.equal(value, before[name]) for name, value in found.items()), epoch
        return refused

    def check_training(self, folder):
        """Training is refused, or comes to the same bits; whether it was refused."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RunWarning)
            try:
                run_training(self.settings, folder)
            except (ValueError, OSError) as error:
                return str(folder) in str(error) or pytest.fail(f"{error} names no file")
        for name in ("machine.safetensors", f"checkpoints/epoch-{EPOCHS:06d}.safetensors"):
            assert (folder / name).read_bytes() == (self.one / name).read_bytes()
        return False


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("runs"))


def swap(one, other):
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


@pytest.mark.long
def test_swapped_checkpoints(runs, tmp_path):
    folder = runs.copy(tmp_path / "run")
    swap(*sorted((folder / "checkpoints").glob("*.safetensors")))
    with (
        pytest.warns(RunWarning, match="does not match the manifest"),
        pytest.raises(RunError, match="all checkpoints are damaged; nothing was changed"),
    ):
        run_training(runs.settings, folder)


def test_checkpoints_of_another_run(runs, tmp_path):
    folder = runs.copy(tmp_path / "run")
    shutil.copytree(runs.other / "checkpoints", folder / "checkpoints", dirs_exist_ok=True)
    with pytest.raises(RunError, match="the checkpoint belongs to a run with different settings; nothing was changed"):
        run_training(runs.settings, folder)


def test_machines_of_another_run_or_epoch(runs, tmp_path):
    folder = runs.copy(tmp_path / "run")
    shutil.copy(runs.other / "machine.safetensors", folder / "machine.safetensors")
    with pytest.raises(RunError, match="belongs to a run with settings different from"):
        read_machine(RunFolder(folder))
    shutil.copy(runs.one / "machines/epoch-000001.safetensors", folder / "machine.safetensors")
    with pytest.raises(RunError, match="machine of epoch 1; expected epoch 3"):
        read_machine(RunFolder(folder))
    swap(folder / "machines/epoch-000001.safetensors", folder / "machines/epoch-000002.safetensors")
    for epoch, found in ((1, 2), (2, 1)):
        with pytest.raises(RunError, match=f"machine of epoch {found}; expected epoch {epoch}"):
            read_machine(RunFolder(folder), epoch)


def test_settings_that_were_changed(runs, tmp_path):
    """Also if the run is asked for by its folder alone, with the settings that are in there."""
    folder = runs.copy(tmp_path / "run")
    changed = json.loads((folder / "settings.json").read_text())
    changed["settings"]["momentum"] = 0.75
    (folder / "settings.json").write_text(json.dumps(changed))
    with pytest.raises(RunError, match=r"momentum was 0\.75 and is 0\.5"):
        run_training(runs.settings, folder)
    given = changed["settings"] | {"hidden": (2,)}
    with pytest.raises(RunError, match="the checkpoint belongs to a run with different settings"):
        run_training(Settings(**given), folder)
    with pytest.raises(RunError, match="belongs to a run with settings different from"):
        read_machine(RunFolder(folder))


@pytest.mark.parametrize(
    "name", ["machine.safetensors", "machines/epoch-000003.safetensors", "checkpoints/manifest.json", "metrics.jsonl"]
)
def test_files_that_are_missing_are_made_again(runs, tmp_path, name):
    folder = runs.copy(tmp_path / "run")
    (folder / name).unlink()
    assert run_training(runs.settings, folder).resumed_at == EPOCHS
    assert runs.check_machines(folder) == 0
    if name != "metrics.jsonl":  # what was measured is lost
        assert (folder / name).read_bytes() == (runs.one / name).read_bytes()


@pytest.mark.parametrize("change", [lambda weights: {"machine.weights.0": weights.T.contiguous()}, lambda weights: {}])
def test_a_checkpoint_of_other_shapes(runs, tmp_path, change):
    folder = runs.copy(tmp_path / "run")
    epoch, tensors, values = RunFolder(folder).last_checkpoint()
    tensors |= change(tensors.pop("machine.weights.0"))
    with RunFolder(folder) as run:
        run.checkpoint(epoch, tensors, values)
    with pytest.raises(RunError, match="the checkpoint does not match"):
        run_training(runs.settings, folder)


def test_a_checkpoint_of_a_newer_version(runs, tmp_path, monkeypatch):
    folder = runs.copy(tmp_path / "run")
    epoch, tensors, values = RunFolder(folder).last_checkpoint()
    with RunFolder(folder) as run, monkeypatch.context() as patch:
        patch.setattr(files, "FORMAT", 2)
        run.checkpoint(epoch, tensors, values)
    with pytest.warns(RunWarning, match="the file has format 2; expected format 1"):
        assert run_training(runs.settings, folder).resumed_at == EPOCHS - 1
    assert load(folder / "machine.safetensors").summary() == "16 Binary – 2 Binary"


# ----- records


def damaged_line(folder, number, change):
    """Changes a line of the records."""
    path = folder / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")
    lines[number - 1] = change(lines[number - 1])
    path.write_bytes(b"\n".join(lines))


def flipped(line):
    return bytes([line[0] ^ 1]) + line[1:]


def test_a_damaged_record_is_reported(runs, tmp_path):
    """By every way to look at a run; going on keeps its neighbors."""
    folder = runs.copy(tmp_path / "run")
    records = RunFolder(folder).records()
    damaged_line(folder, 2, flipped)
    expected = "metrics.jsonl: line 2 is damaged"
    with pytest.warns(RunWarning, match=expected):
        assert RunFolder(folder).records() == [records[0], records[2]]
    code, out, errors = command("info", folder)
    assert code == 0
    assert f"epochs: {EPOCHS} of {EPOCHS}" in out
    assert expected in errors
    assert errors.count("\n") == 1
    code, out, _ = command("doctor", folder)
    assert code == 2
    assert any(said.startswith("problem") and expected in said for said in out.splitlines())
    with pytest.warns(RunWarning, match=expected):
        assert run_training(runs.settings, folder).resumed_at == EPOCHS
    assert RunFolder(folder).records() == [records[0], records[2]]
    code, out, _ = command("doctor", folder)
    assert code == 0
    assert "records: 2; records are missing for epoch 2" in out
    assert json.loads(command("info", folder, "--json")[1])["epochs"] == EPOCHS


@pytest.mark.parametrize(
    ("number", "change"),
    [
        (2, lambda line: line.replace(b"loss", b"\xccoss")),  # no longer text
        (2, lambda line: line.replace(b'"epoch": 2', b'"epoch": 6')),
        (2, lambda line: line.replace(b'"epoch": 2', b'"epoch": 0')),
        (1, lambda line: line.replace(b'"epoch": 1', b'"epoch": 9')),
        (3, lambda line: line.replace(b'"epoch": 3', b'"epoch": 1')),
        (3, lambda line: line.replace(b'"epoch"', b'"eqoch"')),
        (3, lambda line: line[: len(line) // 2]),  # of an epoch that has a checkpoint: no kill has done that
        (1, lambda line: b"3"),
    ],
)
def test_other_damage_of_records(runs, tmp_path, number, change):
    folder = runs.copy(tmp_path / "run")
    records = RunFolder(folder).records()
    damaged_line(folder, number, change)
    with pytest.warns(RunWarning, match=f"metrics.jsonl: line {number} is damaged"):
        found = RunFolder(folder).records()
    assert found == [record for record in records if record["epoch"] != number]
    with pytest.warns(RunWarning, match="damaged; skipped"):
        run_training(runs.settings, folder)
    assert RunFolder(folder).records() == found


def test_a_record_that_a_kill_cut_off_is_no_damage(runs, tmp_path):
    """It is of the epoch after the last checkpoint, which is run again."""
    folder = runs.copy(tmp_path / "run")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 4, "learn')
    assert len(RunFolder(folder).records()) == EPOCHS
    assert command("info", folder)[2] == ""
    run_training(runs.settings, folder)
    assert (folder / "metrics.jsonl").read_bytes() == (runs.one / "metrics.jsonl").read_bytes()


# ----- at random


def damage(runs, folder, chance):
    """Does something to a file, or to two."""
    name = chance.choice(runs.names)
    path = folder / name
    content = bytearray(path.read_bytes())
    at = chance.randrange(len(content))
    kind = chance.randrange(8)
    if kind == 0:
        content[at] ^= 1 << chance.randrange(8)
    elif kind == 1:
        del content[at:]
    elif kind == 2:
        content[at:at] = chance.randbytes(chance.randrange(1, 40))
    elif kind == 3:
        end = min(len(content), at + chance.randrange(1, 200))
        content[at:end] = chance.randbytes(end - at)
    if kind < 4:
        path.write_bytes(content)
    elif kind == 4:
        path.unlink()
    elif kind == 5:
        path.unlink()
        path.mkdir()
    elif kind == 6:
        swap(path, folder / chance.choice(runs.names))
    else:
        shutil.copy(runs.other / chance.choice([name, *runs.names]), path)


@pytest.mark.parametrize("count", [30, pytest.param(1000, marks=pytest.mark.slow)])
def test_damaged_folders(runs, tmp_path, count):
    """Some trainings and machines are refused; all others are as they were."""
    chance, trainings, machines = random.Random(count), 0, 0
    for number in range(count):
        folder = runs.copy(tmp_path / str(number))
        damage(runs, folder, chance)
        machines += runs.check_machines(folder)
        trainings += runs.check_training(folder)
        shutil.rmtree(folder)
    print(f"of {count} damaged folders {trainings} were not trained in, {machines} machines refused; the rest the same")
    assert 0 < trainings < count  # both happen
    assert machines > 0
