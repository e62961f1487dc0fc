"""From a file to a saved machine: data, settings, run directories and the command line."""

import gzip
import json
import random
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from marks import drifting_tap, idle_layers
from run_cases import bars, command, struck
from typer.testing import CliRunner

from tapmachine import (
    Binary,
    Gaussian,
    Spin,
    Tilt,
    TruncatedGaussBernoulli,
    TruncatedGaussian,
    __version__,
    exact_log_likelihood,
    load,
    rbm,
    save,
)
from tapmachine.apps.cli import app
from tapmachine.data.declarations import option_of
from tapmachine.data.errors import (
    DataError,
    FileError,
    RunError,
    RunWarning,
    SettingsError,
    StoppedRun,
    TrainingWarning,
)
from tapmachine.data.sources import read
from tapmachine.machine.files import data_description
from tapmachine.runs.folder import RunFolder
from tapmachine.runs.session import read_machine
from tapmachine.runs.settings import Settings, read_settings
from tapmachine.runs.training import run_training
from tapmachine.tables.units import make_visible
from tapmachine.training import Trainer


def settings(data, **options):
    return Settings(**{"data": data, "hidden": (5,), "epochs": 4, "batch_size": 50, "save_every": 1} | options)


# ----- data


def test_formats(tmp_path):
    x = bars(20)
    np.save(tmp_path / "a.npy", x)
    np.savez(tmp_path / "b.npz", x)
    np.savez(tmp_path / "c.npz", train=x, test=x[:5])
    np.savetxt(tmp_path / "d.csv", x, delimiter=",", header=",".join(f"p{i}" for i in range(16)), comments="")
    np.savetxt(tmp_path / "e.csv", x, delimiter=";", fmt="%g")
    np.savetxt(tmp_path / "f.tsv", x, delimiter="\t")
    np.savetxt(tmp_path / "g.txt", x)
    images = (x * 255).astype(np.uint8).reshape(20, 4, 4)
    idx = bytes([0, 0, 8, 3]) + np.array([20, 4, 4], ">u4").tobytes() + images.tobytes()
    (tmp_path / "h-idx3-ubyte").write_bytes(idx)
    (tmp_path / "h-idx3-ubyte.gz").write_bytes(gzip.compress(idx))
    for name in (
        "a.npy",
        "b.npz",
        "c.npz:train",
        "d.csv",
        "e.csv",
        "f.tsv",
        "g.txt",
        "h-idx3-ubyte",
        "h-idx3-ubyte.gz",
    ):
        found = read(f"{tmp_path}/{name}")
        np.testing.assert_array_equal(found.rows, x, err_msg=name)
        assert found.image_shape == (4, 4)
    assert read(f"{tmp_path}/c.npz:test").rows.shape == (5, 16)
    assert read("digits").rows.max() == 1


def test_visible_units_are_picked_from_the_data():
    x = torch.rand(500, 4, generator=torch.Generator().manual_seed(0))
    auto = Settings(data="given")
    assert isinstance(make_visible(auto, (x > 0.5).float())[0], Binary)
    assert isinstance(make_visible(auto, 2 * (x > 0.5).float() - 1)[0], Spin)
    for values, kind, low, high in (
        (x, TruncatedGaussian, 0, 1),
        (3 * x - 1, TruncatedGaussian, float((3 * x - 1).min()), float((3 * x - 1).max())),
        (x * (x > 0.5), TruncatedGaussBernoulli, 0, 1),
    ):
        units, why = make_visible(auto, values)
        assert type(units) is kind
        assert (float(units.lower), float(units.upper)) == pytest.approx((low, high))
        assert "between" in why
    assert type(make_visible(auto, torch.randn(500, 4, generator=torch.Generator().manual_seed(0)))[0]) is Gaussian
    assert type(make_visible(auto, x * torch.tensor([1.0, 2.0, 3.0, 40.0]))[0]) is Gaussian


def test_columns_of_very_different_scales_are_pointed_out():
    x = torch.rand(50, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for scales, unequal in (((1, 1, 1, 1, 1), False), ((1, 2, 3, 4, 1000), True), ((0, 1e-5, 1, 1, 1), False)):
        _, why = make_visible(Settings("given", visible="truncated-gaussian"), x * torch.tensor(scales))
        assert ("scale them to the same range" in why) is unequal
    assert (
        "scale them to the same range" not in make_visible(Settings("given"), x * 10 ** torch.arange(5))[1]
    )  # each by itself
    assert "scale" not in make_visible(Settings("given"), (x > 0.5).float())[1]


# ----- settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": ()}, "hidden is"),
        ({"visible": "real"}, "expected one of auto"),
        ({"objective": "nce"}, "expected one of default"),
        ({"decay": 0.0}, "decay is 0.0"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0"),
        ({"validation": 1.5}, "a fraction between 0 and 1"),
        ({"n_sweeps": 3}, "n_sweeps cannot be used with objective 'default'; use one of tap, cd, pcd"),
    ],
)
def test_settings_that_make_no_sense(options, message):
    with pytest.raises(SettingsError, match=message):
        Settings("digits", **options)


def test_settings_from_a_file(tmp_path):
    path = tmp_path / "settings.json"
    for content, message in (
        ("{", "invalid JSON"),
        ("[1]", "expected a JSON object of settings"),
        ('{"speed": 3}', "unknown setting 'speed'"),
        ('{"epochs": "many"}', "epochs is 'many'; expected an integer"),
        ('{"epochs": true}', "epochs is True"),
        ('{"hidden": 5}', "hidden is 5; expected a list of integers"),
    ):
        path.write_text(content)
        with pytest.raises(SettingsError, match=message):
            read_settings(path)
    path.write_text(json.dumps({"data": "digits", "hidden": [3], "learning_rate": 1, "validation": 0.2}))
    assert Settings(**read_settings(path)).hidden == (3,)


# ----- run directories


def test_a_run_and_what_it_leaves(data, tmp_path):
    folder = tmp_path / "run"
    run = run_training(settings(data, keep_every=2, validation=0.2), folder)
    assert [record["epoch"] for record in run.records] == [1, 2, 3, 4]
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [
        "epoch-000003.safetensors", "epoch-000004.safetensors", "manifest.json"
    ]  # fmt: skip
    assert sorted(path.name for path in (folder / "machines").iterdir()) == [
        "epoch-000002.safetensors", "epoch-000004.safetensors"
    ]  # fmt: skip
    for path in (folder / "machine.safetensors", folder / "machines" / "epoch-000004.safetensors"):
        assert torch.equal(load(path).weights[0], run.machine.weights[0])
    again = run_training(settings(data, keep_every=2, validation=0.2), folder)
    assert again.resumed_at == 4
    assert torch.equal(again.machine.weights[0], run.machine.weights[0])


def test_other_settings_or_data_are_refused(data, tmp_path):
    run_training(settings(data), tmp_path / "run")
    with pytest.raises(RunError, match=r"contains a run with other settings: momentum was 0\.5 and is 0\.9; choose"):
        run_training(settings(data, momentum=0.9, epochs=9), tmp_path / "run")
    np.save(data, bars(seed=1))
    with pytest.raises(RunError, match="the data have changed"):
        run_training(settings(data), tmp_path / "run")
    (tmp_path / "run" / "settings.json").write_text('{"format": 7, "settings": {}}')
    with pytest.raises(RunError, match="unsupported format 7; expected 1"):
        run_training(settings(data), tmp_path / "run")


def test_binary_and_automatic_hidden_units_are_different_settings(tmp_path):
    """Above real-valued columns, automatic hidden units are not binary."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(60, 3)) * [1, 10, 100])
    chosen = Settings(str(tmp_path / "x.npy"), hidden=(2,), hidden_units="binary", epochs=1)
    run_training(chosen, tmp_path / "run")
    with pytest.raises(RunError, match="other settings: hidden_units was 'binary' and is 'auto'; choose another"):
        run_training(replace(chosen, hidden_units="auto"), tmp_path / "run")
    assert chosen.digest() != replace(chosen, hidden_units="auto").digest()


# ----- more epochs than a run was begun with

SHAPES = {"rbm": {}, "pretrained": {"hidden": (4, 3), "pretrain": 1}}


def what_is_left(folder):
    last = json.loads((folder / "checkpoints/manifest.json").read_text())[-1]["file"]
    names = ("machine.safetensors", f"checkpoints/{last}", "settings.json")
    records = [{**record, "seconds": 0} for record in RunFolder(folder).records()]
    return [(folder / name).read_bytes() for name in names], records


@idle_layers
@pytest.mark.parametrize("shape", SHAPES)
def test_a_finished_run_is_trained_further(data, tmp_path, shape):
    folder, said = tmp_path / "run", []
    before = run_training(settings(data, **SHAPES[shape], keep_every=1), folder)
    done = before.records[-1]["epoch"]
    more = settings(data, **SHAPES[shape], keep_every=1, epochs=8)
    run = run_training(more, folder, say=said.append)
    assert f"{folder}: continuing from epoch {done} to {done + 4}; the learning rate now decays over 8 epochs" in said
    assert run.resumed_at == done
    assert [record["epoch"] for record in run.records] == list(range(1, done + 5))
    assert run.records[:done] == before.records
    joint = [record["learning_rate"] for record in run.records[done - 4 :]]
    decay = more.decay
    for epoch, rate in enumerate(joint):
        assert rate == pytest.approx(joint[0] * decay ** (epoch / (4 if epoch < 4 else 8)), rel=1e-9)
    for epoch in (None, *range(1, done + 5)):  # those from before, too
        read_machine(RunFolder(folder), epoch)
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [event["changes"] for event in events if event["event"] == "settings changed"] == [["epochs was 4 and is 8"]]
    again = run_training(RunFolder(folder).settings(), folder)
    assert again.resumed_at == done + 4
    assert torch.equal(again.machine.weights[0], run.machine.weights[0])


@pytest.mark.long
@idle_layers
@pytest.mark.parametrize("shape", SHAPES)
def test_an_extended_run_that_is_killed_ends_in_the_same_bits(data, tmp_path, monkeypatch, shape):
    """The process ends right after the settings were written, before a checkpoint, or between two batches."""
    options = SHAPES[shape] | {"measure_every": 100}
    finished, whole = tmp_path / "finished", tmp_path / "whole"
    done = run_training(settings(data, **options), finished).records[-1]["epoch"]
    shutil.copytree(finished, whole)
    run_training(settings(data, **options, epochs=8), whole)
    checkpoint, epoch = RunFolder.checkpoint, Trainer.epoch

    def kill(*_):
        raise KeyboardInterrupt

    def killed_before_the_second(run, number, *others):
        return kill() if number == done + 2 else checkpoint(run, number, *others)

    def stopped_in_the_second(trainer):
        trainer.stopping = trainer.finished == 5
        return epoch(trainer)

    for where, name, action in (
        (RunFolder, "forget_records_after", kill),
        (Trainer, "epoch", kill),
        (RunFolder, "checkpoint", killed_before_the_second),
        (Trainer, "epoch", stopped_in_the_second),
    ):
        folder = tmp_path / f"{name}-{action.__name__}"
        shutil.copytree(finished, folder)
        with monkeypatch.context() as patch:
            patch.setattr(where, name, action)
            with pytest.raises((KeyboardInterrupt, StoppedRun)):
                run_training(settings(data, **options, epochs=8), folder)
        found = RunFolder(folder).settings()
        assert found.epochs == 8
        run_training(found, folder)
        assert what_is_left(folder) == what_is_left(whole)


def test_a_run_that_was_interrupted_may_become_longer(data, tmp_path, monkeypatch):
    """Interrupted at 2 of 4 epochs; its machine is known before and after."""
    checkpoint = RunFolder.checkpoint

    def killed_after_2(run, number, *arguments):
        if number > 2:
            raise KeyboardInterrupt
        checkpoint(run, number, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "checkpoint", killed_after_2)
        with pytest.raises(KeyboardInterrupt):
            run_training(settings(data), tmp_path / "run")
    said = []
    run = run_training(settings(data, epochs=6), tmp_path / "run", say=said.append)
    assert "continuing from epoch 2 to 6; the learning rate now decays over 6 epochs" in said[-1]
    rates = [record["learning_rate"] for record in run.records]
    powers = [0, 1 / 4, 2 / 6, 3 / 6, 4 / 6, 5 / 6]
    assert rates == pytest.approx([rates[0] * 0.01**power for power in powers], rel=1e-9)


def test_what_divergences_have_cut_stays_cut_in_a_longer_run(data, tmp_path, monkeypatch):
    look = Trainer._count_divergences

    def diverged_once(trainer, good):
        return look(trainer, good if trainer.cuts or trainer.finished < 1 else [torch.zeros(())])

    monkeypatch.setattr(Trainer, "_count_divergences", diverged_once)
    with pytest.warns(TrainingWarning, match="learning rate reduced"):
        run_training(settings(data, learning_rate=0.1, measure_every=100), tmp_path / "run")
    run = run_training(settings(data, learning_rate=0.1, measure_every=100, epochs=6), tmp_path / "run")
    rates = [record["learning_rate"] for record in run.records[4:]]
    assert rates == pytest.approx([0.05 * 0.01 ** (4 / 6), 0.05 * 0.01 ** (5 / 6)], rel=1e-9)


@pytest.mark.long
@idle_layers
def test_a_pretraining_stays_as_long_as_it_was(data, tmp_path):
    """By default it is as long as the training: 10 epochs; and stays 10 with 20, however the run is asked for."""
    options = {"hidden": (3, 2), "measure_every": 100}
    run_training(settings(data, epochs=10, **options), tmp_path / "run")
    for _ in range(2):
        said = []
        run = run_training(settings(data, epochs=20, **options), tmp_path / "run", say=said.append)
        assert f"{tmp_path / 'run'}: the number of pretraining epochs remains 10" in said
        assert [record["layer"] for record in run.records] == [1] * 10 + [0] * 20


def test_fewer_epochs_and_what_is_recorded(data, tmp_path):
    said, folder = [], tmp_path / "run"
    run_training(settings(data), folder)
    with pytest.raises(RunError, match=r"epochs was 4 and is 3; .* cannot be reduced \(epoch 4 is done\)"):
        run_training(settings(data, epochs=3), folder)
    options = {"measure_every": 3, "save_every": 2, "keep_every": 5}
    run_training(settings(data, **options), folder, say=said.append)
    assert f"{folder}: measure_every was None and is 3" in said
    assert f"{folder}: the run is finished after 4 epochs" in said
    assert RunFolder(folder).settings().save_every == 2
    assert read_machine(RunFolder(folder))[0].sizes == (16, 5)


def test_more_epochs_on_the_command_line(data, tmp_path):
    folder = str(tmp_path / "run")
    assert command("train", data, "--hidden", 3, "--epochs", 2, "--out", folder)[0] == 0
    code, _, errors = command("train", "--epochs", 4, "--out", folder)
    assert code == 0, errors
    assert "continuing from epoch 2 to 4; the learning rate now decays over 4 epochs" in errors
    assert command("train", "--out", folder)[2].count("the run is finished after 4 epochs") == 1
    assert "epochs: 4 of 4" in command("info", folder)[1]
    code, _, errors = command("train", "--epochs", 3, "--out", folder)
    assert code == 2
    assert errors.count("\n") == 1


def test_a_damaged_checkpoint_falls_back_to_the_one_before(data, tmp_path):
    whole = run_training(settings(data), tmp_path / "whole")
    folder = tmp_path / "run"
    run_training(settings(data), folder)
    last = folder / "checkpoints" / "epoch-000004.safetensors"
    content = bytearray(last.read_bytes())
    content[-5] ^= 1
    last.write_bytes(content)
    with pytest.warns(RunWarning, match="damaged checkpoint"):
        again = run_training(settings(data), folder)
    assert again.resumed_at == 3
    assert torch.equal(again.machine.weights[0], whole.machine.weights[0])
    for path in (folder / "checkpoints").glob("*.safetensors"):
        path.write_bytes(b"")
    with pytest.warns(RunWarning), pytest.raises(RunError, match="all checkpoints are damaged; nothing was changed"):
        run_training(settings(data), folder)


def test_one_process_at_a_time(data, tmp_path):
    folder = tmp_path / "run"
    with RunFolder(folder), pytest.raises(RunError, match="another process is training in this directory"):
        run_training(settings(data), folder)
    run_training(settings(data), folder)
    with pytest.raises(RunError, match="not a directory"):
        RunFolder(data)


def command_for(data, folder, epochs):
    """Of 30 batches an epoch."""
    return [
        "train", data, "--hidden", "40", "--epochs", str(epochs), "--batch-size", "10", "--out", str(folder),
        "--quiet", "--device", "cpu",
    ]  # fmt: skip


def assert_the_same_bits_after_kills(data, tmp_path, epochs, batches):
    """A process for each of these batches, at which it is killed; the last one ends by itself."""
    for batch in batches:
        struck(signal.SIGKILL, batch, *command_for(data, tmp_path / "run", epochs))
    for name in ("run", "whole"):
        code, _, errors = command(*command_for(data, tmp_path / name, epochs))
        assert code == 0, errors
    for name in ("machine.safetensors", f"checkpoints/epoch-{epochs:06d}.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.long
def test_a_killed_run_ends_in_the_same_bits(data, tmp_path):
    assert_the_same_bits_after_kills(data, tmp_path, 8, [3 * 30 + 7])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_runs_killed_at_random_batches_end_in_the_same_bits(data, tmp_path, seed):
    chance = random.Random(seed)
    assert_the_same_bits_after_kills(data, tmp_path, 60, [chance.randrange(1, 400) for _ in range(4)])


# ----- the command line


def test_train_info_evaluate_and_sample(data, tmp_path):
    folder = tmp_path / "a run"
    runner = CliRunner()

    def invoke(*arguments):
        result = runner.invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    trained = invoke("train", data, "--hidden", "5", "--epochs", "3", "--batch-size", "50", "--out", folder, "--json")
    assert json.loads(trained)["last"]["epoch"] == 3
    assert "16 Binary – 5 Binary, float32" in invoke("info", folder)
    assert json.loads(invoke("info", folder, "--json"))["epochs"] == 3
    rows = json.loads(invoke("evaluate", folder, "--exact", "--json"))
    assert [row["estimator"] for row in rows] == ["exact", "TAP", "TAP, log-sum-exp", "independent units"]
    assert rows[1]["train"] == pytest.approx(rows[2]["train"], abs=1.0)
    assert rows[0]["train"] == pytest.approx(rows[3]["train"], abs=0.1)  # after three epochs
    assert "seconds" not in invoke("evaluate", folder).splitlines()[0]
    table = json.loads(invoke("evaluate", folder, "--ais", "--temperatures", "100", "--json"))
    assert {"TAP", "annealed", "exact"} <= {row["estimator"] for row in table}
    assert all(row["test"] is None for row in table)
    annealed = ("evaluate", folder, "--temperatures", "20")
    assert invoke(*annealed).splitlines()[0].split()[1:4] == ["train", "±", "rows"]
    of_file = json.loads(invoke(*annealed, "--data", data, "--json"))
    assert {row["data"] for row in of_file} == {data}
    assert [row["mean"] for row in of_file][:2] == pytest.approx([row["train"] for row in table][:2])
    shown = invoke(*annealed, "--data", data)
    assert shown.splitlines()[0].split()[1:4] == ["bars.npy", "±", "rows"]
    assert "train" not in shown
    picture = tmp_path / "samples.png"
    invoke("sample", folder, "--count", "9", "--n-sweeps", "10", "--out", tmp_path / "s.npy", "--picture", picture)
    drawn = np.load(tmp_path / "s.npy")
    assert drawn.shape == (9, 16)
    assert set(np.unique(drawn)) <= {0, 1}
    assert picture.stat().st_size > 1000


@pytest.fixture
def machine_file(tmp_path):
    """A machine as Python saves it."""
    machine = rbm(Binary(16), Binary(4), generator=torch.Generator().manual_seed(0))
    path = tmp_path / "mine.safetensors"
    save(machine, path)
    return path


def test_load_takes_a_run_folder(data, tmp_path):
    run = run_training(settings(data, epochs=1), tmp_path / "run")
    for path in (tmp_path / "run", str(tmp_path / "run")):
        assert torch.equal(load(path).weights[0], run.machine.weights[0])
        assert data_description(path)["n_rows"] == 300
    with pytest.raises(FileError, match=r"machine\.safetensors not found in this directory; expected a machine file"):
        load(tmp_path)
    with pytest.raises(FileError, match="file not found"):
        load(tmp_path / "nothing")


def test_commands_take_the_file_of_a_machine(data, tmp_path, machine_file):
    def done(*arguments):
        code, out, errors = command(*arguments)
        assert code == 0, errors
        return out

    assert "16 Binary – 4 Binary, float32" in done("info", machine_file)
    rows = json.loads(done("evaluate", machine_file, "--data", data, "--exact", "--json"))
    machine, x = load(machine_file), torch.tensor(np.load(data))
    exact = [row["mean"] for row in rows if row["estimator"] == "exact"]
    assert exact == pytest.approx([float(exact_log_likelihood(machine, x).mean)], rel=1e-6)
    done("sample", machine_file, "--data", data, "--count", 5, "--n-sweeps", 3, "--out", tmp_path / "s.npy")
    assert np.load(tmp_path / "s.npy").shape == (5, 16)
    for name in ("denoise", "impute"):
        code, _, errors = command(name, machine_file, data, "--out", tmp_path / f"{name}.npy")
        assert code == 0
        assert "a machine file has no data; continuing without training rows" in errors
        assert np.load(tmp_path / f"{name}.npy").shape == (300, 16)
    assert done("score", machine_file, data).count("\n") == 301
    done("landscape", machine_file, "--data", data, "--starts", 20)
    assert (tmp_path / "mine-landscape" / "solutions.csv").exists()


@pytest.mark.long
def test_a_page_about_the_file_of_a_machine(data, tmp_path, machine_file, monkeypatch):
    for options, path in (((), tmp_path / "mine.html"), (("--out", tmp_path / "o.html"), tmp_path / "o.html")):
        code, out, errors = command("report", machine_file, "--data", data, "--starts", 20, *options)
        assert code == 0, errors
        assert out == f"{path}\n"
        page = path.read_text()
        assert "<h1>mine</h1>" in page
        assert "16 Binary – 4 Binary" in page
        assert "<h2>Training</h2>" not in page
        assert "log-likelihood per row by epoch" not in page


def test_what_needs_data_asks_for_them(data, tmp_path, machine_file):
    (tmp_path / "text.safetensors").write_text("hello")
    for arguments, message in (
        *(
            ([name, machine_file], "mine.safetensors: a machine file has no data; use --data FILE")
            for name in ("evaluate", "landscape", "report")
        ),
        (["evaluate", tmp_path / "text.safetensors", "--ais"], "text.safetensors: cannot be read"),
        (["evaluate", data], "bars.npy: cannot be read"),
        (["evaluate", tmp_path], "not a run directory"),
        (["evaluate", tmp_path / "none.safetensors"], "not a run directory"),
        (["report", machine_file, "--data", data, "--out", tmp_path / "x.pdf"], "expected an .html output file"),
        (["evaluate", machine_file, "--data", tmp_path / "none.npy"], "file not found"),
    ):
        code, out, errors = command(*arguments)
        assert (code, out) == (2, ""), errors
        assert message in errors
        assert errors.count("\n") == 1, errors


@pytest.mark.long
def test_errors_are_one_line_and_exit_code_2(data, tmp_path):
    file = tmp_path / "file"
    file.write_text("hello")
    for arguments, message in (
        (["train", tmp_path / "nothing.npy", "--out", tmp_path / "x"], "file not found"),
        (["train", data, "--out", file], "not a directory; expected a run directory"),
        (["train", data, "--visible", "spin", "--out", tmp_path / "x"], "expected -1 or 1"),
        (["info", tmp_path / "x"], "not a run directory"),
        (["train", data, "--hiden", "3"], "No such option"),
        (["sample"], "missing RUN: run directory or machine file; see "),
        (["train", data], "missing --out: run directory to create or continue; see "),
        (["train", "--out", tmp_path / "x"], "missing data: give a data set, a file or a directory"),
        (["train", data, "--interval", "0;1", "--out", tmp_path / "x"], "two numbers, such as 0,1"),
    ):
        code, _, errors = command(*arguments)
        assert code == 2, errors
        assert message in errors
        assert errors.count("\n") == 1, errors


@pytest.mark.long
def test_an_interrupted_run_says_how_to_go_on(data, tmp_path):
    done = struck(signal.SIGINT, 2 * 30 + 7, *command_for(data, tmp_path / "run", 10))
    assert done.returncode == 130, done.stderr
    assert "rerun the command to continue" in done.stderr
    assert "Traceback" not in done.stderr
    assert RunFolder(tmp_path / "run").last_epoch() == 2


def test_the_version():
    assert CliRunner().invoke(app, ["--version"]).stdout == f"tapmachine {__version__}\n"


def test_help_is_quick_and_has_examples():
    """0.3 s on a quiet machine: without torch and NumPy, which alone take several times as long."""
    code = (
        "import sys; from tapmachine.apps.cli import main; sys.argv = ['tapmachine', '--help']\n"
        "try: main()\nfinally: assert not {'torch', 'numpy'} & {*sys.modules}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Usage: tapmachine" in done.stdout
    for name in ("train", "info", "evaluate", "sample", "landscape", "report", "convert"):
        assert "Example:" in CliRunner().invoke(app, [name, "--help"]).stdout


COMMANDS = typer.main.get_command(app).commands


def help_of(name):
    """As a terminal shows it that is wide enough for every line."""
    wide = {"COLUMNS": "1000", "TERMINAL_WIDTH": "1000"}
    shown = CliRunner(env=wide).invoke(app, [name, "--help"], catch_exceptions=False).stdout
    return [" ".join(line.strip("│ \n").split()) for line in shown.splitlines()]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_texts_are_shown_word_for_word(name):
    """What looks like markup, as [float32], would be left out."""
    shown, params = help_of(name), COMMANDS[name].params
    assert len(params) > 1
    for param in params:
        assert param.help, param.name
        assert any(" ".join(param.help.split()) in line for line in shown), param.help
        assert "[" not in param.help.replace("[x>=", ""), "defaults in brackets are shown by typer"
    for line in (COMMANDS[name].epilog, COMMANDS[name].help.splitlines()[0]):
        assert " ".join(line.split()) in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_into_80_columns(name):
    """No value of an option is cut off."""
    narrow = {"COLUMNS": "80", "TERMINAL_WIDTH": "80"}
    shown = CliRunner(env=narrow).invoke(app, [name, "--help"], catch_exceptions=False).stdout
    assert re.findall(r"\S+…", shown) == []
    assert "[default: (" not in shown


def test_every_option_of_train_names_its_default():
    shown = help_of("train")
    defaults = {field.name: field.default for field in fields(Settings) if option_of(field).on_shell}
    assert not [line for line in shown if line.startswith("* --out -o") and "[required]" not in line]
    assert sum("[required]" in line for line in shown) == 1
    options = {param.name: param.opts[0] for param in COMMANDS["train"].params if param.name in defaults}
    assert {*defaults} == {*options}
    for name in defaults.keys() - {"data"}:
        (line,) = [line for line in shown if line.startswith(f"{options[name]} ")]
        found = re.search(r" \(default: (.*?)\)\.", line)
        assert found, line
        value = defaults[name]
        if value is not None:  # others are chosen by what the rest is, in words
            value = ",".join(map(str, value)) if isinstance(value, tuple) else "off" if value is False else f"{value}"
            assert found[1] == value.removesuffix(".0"), line


@pytest.mark.long
def test_categories_held_out_ranges_and_paths(tmp_path, monkeypatch):
    """Numbers of states; a held-out row beyond the others; a run that is looked at from another folder."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    np.save("states.npy", generator.integers(0, 5, (200, 6)))
    real = generator.normal(5, 3, (200, 4))
    real[0, 0], real[-1, 0] = 88.0, 99.0
    np.save("real.npy", real)
    runner = CliRunner()

    def invoke(*arguments):
        return runner.invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)

    options = ("--visible", "categorical", "--hidden", "3", "--epochs", "2", "--out", "c")
    assert invoke("train", "states.npy", *options).exit_code == 0
    result = invoke("train", "real.npy", "--hidden", "3", "--epochs", "1", "--validation", "0.3", "--out", "r")
    assert result.exit_code == 0
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    assert invoke("evaluate", "../c").exit_code == 0
    np.save(tmp_path / "states.npy", generator.integers(0, 5, (200, 6)))
    with pytest.raises(ValueError, match="have changed since"):
        invoke("evaluate", "../c")
    with pytest.raises(RunError, match="not a run directory and not empty"):
        invoke("train", "digits", "--out", tmp_path)
    with pytest.raises(ValueError, match=r"expected a \.npy or \.csv"):
        invoke("sample", "../r", "--out", "x.txt")


def test_a_run_goes_on_by_its_folder_alone(data, tmp_path):
    folder = str(tmp_path / "run")
    options = ["train", data, "--hidden", "3", "--epochs", "2", "--batch-size", "20", "--seed", "5", "--out", folder]
    assert CliRunner().invoke(app, options).exit_code == 0
    again = CliRunner().invoke(app, ["train", "--out", folder], catch_exceptions=False)
    assert again.exit_code == 0
    assert "the run is finished after 2 epochs" in again.output
    with pytest.raises(RunError, match="seed was 5 and is 6"):
        CliRunner().invoke(app, ["train", "--out", folder, "--seed", "6"], catch_exceptions=False)


@pytest.mark.long
def test_data_of_any_scale_are_trained_as_well(tmp_path):
    """In other units everything is the same but the log-likelihood, a density's, and that by what it should be."""
    x = np.random.default_rng(0).beta(2, 5, (200, 5)).astype(np.float32)
    runs = []
    for scale in (1, 256):
        np.save(tmp_path / f"{scale}.npy", scale * x)
        options = {"hidden": (3,), "epochs": 3, "interval": (0.0, float(scale))}
        runs.append(run_training(Settings(str(tmp_path / f"{scale}.npy"), **options), tmp_path / f"run {scale}"))
    small, large = runs
    assert torch.equal(small.machine.weights[0], 256 * large.machine.weights[0])
    shift = small.records[-1]["log_likelihood"] - large.records[-1]["log_likelihood"]
    assert shift == pytest.approx(5 * np.log(256), rel=1e-5)
    assert torch.equal(load(tmp_path / "run 256" / "machine.safetensors").weights[0], large.machine.weights[0])


def test_small_data_need_no_batch_size(tmp_path):
    np.save(tmp_path / "few.npy", bars(7))
    options = {"hidden": (2,), "epochs": 300, "measure_every": 300, "save_every": 300, "keep_every": 0}
    run = run_training(Settings(str(tmp_path / "few.npy"), **options), tmp_path / "run")
    x = torch.tensor(bars(7))
    independent = rbm(Binary(16).fit_to(x), Binary(1), torch.zeros(16, 1))
    assert float(exact_log_likelihood(run.machine, x).mean) > float(exact_log_likelihood(independent, x).mean) + 0.2


@pytest.mark.long
@drifting_tap
def test_the_demo(tmp_path, monkeypatch, capsys):
    """As `make demo` runs it, but for fewer temperatures: what its page promises, and how much it prints."""
    begin = time.process_time()
    demo = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "demo.py"))
    demo["main"](["--out", str(tmp_path / "demo")])
    seconds = time.process_time() - begin
    out, errors = capsys.readouterr()
    lines = (out + errors).splitlines()
    assert 10 <= len(lines) <= 16
    assert max(map(len, lines)) <= 120
    path = tmp_path / "demo" / "report.html"
    assert out.splitlines()[-1] == str(path)
    n_stable = int(re.search(r"(\d+) stable TAP solutions", out).group(1))
    assert n_stable >= 8
    before, after = (float(value) for value in re.search(r"([\d.]+)% of .* before, ([\d.]+)%", out).groups())
    assert after < 0.7 * before < 10
    page = path.read_text()
    assert len(page) < 3_000_000
    assert "https://" not in page  # it opens offline
    assert page.index('data-name="denoised"') < page.index("<h2>")  # it opens with the denoised digits
    assert page.count('class="node branch"') >= 7  # a tree with branches
    assert page.count('class="node leaf"') >= 8
    legend = re.search(r'<ul class="legend".*?</ul>', page, re.DOTALL).group()
    assert re.findall(r"</i>(\d)</li>", legend) == list("0123456789")
    assert seconds < 100  # 25 on an idle core; the clock goes faster where cores are shared


@pytest.mark.long
@pytest.mark.parametrize("kind", ["categories", "numbers"])
def test_a_report_on_what_are_no_images(kind, tmp_path, monkeypatch, quick_tables):
    generator = np.random.default_rng(0)
    x = generator.integers(0, 3, (60, 5)) if kind == "categories" else generator.normal(size=(60, 5))
    np.save(tmp_path / "x.npy", x)
    options = {"visible": "categorical", "epochs": 2} if kind == "categories" else {}
    run_training(Settings(f"{tmp_path}/x.npy", hidden=(3,), **options), tmp_path / "<run>")
    result = CliRunner().invoke(app, ["report", str(tmp_path / "<run>")], catch_exceptions=False)
    assert result.exit_code == 0
    page = (tmp_path / "<run>" / "report.html").read_text()
    assert page.count('<figure class="figure"') >= 6
    assert "Hidden units and columns" in page or "Classes" in page
    assert "<h1>&lt;run&gt;</h1>" in page


# ----- what users do


def test_a_folder_with_the_name_of_a_data_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        result = CliRunner().invoke(
            app, ["train", "digits", "--epochs", "0", "--out", "digits"], catch_exceptions=False
        )
        assert result.exit_code == 0


def test_files_that_are_damaged(tmp_path):
    np.savez(tmp_path / "a.npz", bars(20))
    whole = (tmp_path / "a.npz").read_bytes()
    contents = {
        "a.npz": whole[: len(whole) // 2],
        "b.csv.gz": gzip.compress(b"1,2\n3,4\n")[:-9],
        "c-idx3-ubyte": b"\0\0\x08",
        "d.csv": b"1,2,\n3,4,5\n",
        "e.csv": b"a,b\n1,2\n\n3,x\n",
        "f.csv": b'1,2\n"' + 200_000 * b"3,4\n",
        "g.csv": b"1,2\n3,nan\n",
        "h.csv": b"",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=name):
            read(tmp_path / name)
    with pytest.raises(DataError, match="row 0, column 2 is nan; expected complete rows"):
        read(tmp_path / "d.csv")
    with pytest.raises(DataError, match=r"line 4, column 2 \(b\) is 'x'"):
        read(tmp_path / "e.csv")
    np.save(tmp_path / "g.npy", np.zeros((4, 16, 16, 3)))
    assert read(tmp_path / "g.npy").image_shape is None


def test_held_out_rows_from_a_file(data, tmp_path):
    other = tmp_path / "other.npy"
    np.save(other, bars(30, seed=3))
    options = {"epochs": 2, "validation": str(other)}
    run_training(settings(data, **options), tmp_path / "run")
    np.save(other, bars(30, seed=4))
    with pytest.raises(RunError, match="the data have changed"):
        run_training(settings(data, **options), tmp_path / "run")
    np.save(other, bars(30)[:, :5])
    with pytest.raises(DataError, match=r"other.npy: has 5 columns, but .* has 16"):
        run_training(settings(data, **options), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_files_of_others_stay(data, tmp_path):
    (tmp_path / "mine").mkdir()
    film = tmp_path / "mine" / ".film.mkv.part"
    film.write_text("half of it")
    with pytest.raises(RunError, match="not a run directory and not empty"):
        run_training(settings(data), tmp_path / "mine")
    assert film.exists()


@pytest.mark.long
def test_values_that_do_not_fit_are_named_with_their_file(tmp_path):
    x = 300 * np.random.default_rng(0).random((50, 6))
    np.save(tmp_path / "x.npy", x)
    options = {"hidden": (2,), "epochs": 0}
    run_training(Settings(f"{tmp_path}/x.npy", dtype="float64", **options), tmp_path / "double")
    for more, message in (
        ({"visible": "binary"}, "x.npy: row 0, column 0 is .* from 0 to 1"),
        ({"interval": (0.0, 200.0)}, "x.npy: row .* from 0 to 200"),
    ):
        with pytest.raises(DataError, match=message):
            run_training(Settings(f"{tmp_path}/x.npy", **options, **more), tmp_path / "run")
    for value in (1e20, 1e-20):
        np.save(tmp_path / "y.npy", value * x)
        with pytest.raises(DataError, match=r"y.npy: the largest value is"):
            run_training(Settings(f"{tmp_path}/y.npy", **options), tmp_path / "run")
    for constant in (0.3, 0.0, -5.0):
        np.save(tmp_path / "z.npy", np.full((50, 3), constant))
        options = {"hidden": (2,), "epochs": 2, "visible": "truncated-gaussian"}
        run = run_training(Settings(f"{tmp_path}/z.npy", **options), tmp_path / f"constant {constant}")
        mean, variance = run.machine.layers[0].moments(Tilt(torch.zeros(3), 0.0))
        assert mean.tolist() == pytest.approx([constant] * 3, abs=1e-3)
        assert bool((variance > 0).all() & (variance < 0.1).all())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interval": (0.0,)}, "two increasing numbers"),
        ({"interval": (0.0, 1.0), "visible": "spin"}, "interval requires real-valued data"),
        ({"interval": (0.0, 1.0), "binarize": 0.5}, "interval requires real-valued data"),
        ({"binarize": 0.5, "visible": "categorical"}, "binarize makes values 0 or 1"),
        ({"binarize": float("nan")}, "expected a finite number"),
        ({"n_particles": 5, "objective": "cd"}, "n_particles cannot be used with objective 'cd'"),
    ],
)
def test_settings_that_contradict_each_other(options, message):
    with pytest.raises(SettingsError, match=message):
        Settings("digits", **options)


def test_a_run_goes_on_where_it_was_made_only(data, tmp_path):
    """Random numbers of a GPU mean nothing elsewhere."""
    run_training(settings(data, epochs=2), tmp_path / "run")
    found = RunFolder(tmp_path / "run").last_checkpoint()
    assert found is not None
    epoch, tensors, values = found
    values["trainer"]["device"] = "cuda"
    with RunFolder(tmp_path / "run") as run:
        run.checkpoint(epoch, tensors, values)
    with pytest.raises(RunError, match="the training state was saved on a cuda device"):
        run_training(settings(data, epochs=2), tmp_path / "run")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_run_on_a_gpu_is_trained_further(data, tmp_path):
    """There the learning rate is a tensor, which captured steps read."""
    run_training(settings(data, learning_rate=0.1), tmp_path / "run", "cuda")
    run = run_training(settings(data, learning_rate=0.1, epochs=6), tmp_path / "run", "cuda")
    rates = [record["learning_rate"] for record in run.records]
    powers = [0, 1 / 4, 2 / 4, 3 / 4, 4 / 6, 5 / 6]
    assert rates == pytest.approx([0.1 * 0.01**power for power in powers], rel=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_run_on_a_gpu_goes_on_to_the_bit(tmp_path):
    np.save(tmp_path / "x.npy", 255 * bars().astype(np.float64) * np.random.default_rng(0).random((300, 16)))
    chosen = Settings(f"{tmp_path}/x.npy", hidden=(5,), epochs=3, batch_size=50, objective="tap", n_sweeps=4)
    whole = run_training(chosen, tmp_path / "whole", "cuda")
    run_training(chosen, tmp_path / "run", "cuda")
    for last in (tmp_path / "run" / "checkpoints").glob("epoch-000003*"):
        last.write_bytes(b"")
    with pytest.warns(RunWarning, match="damaged checkpoint"):
        again = run_training(chosen, tmp_path / "run", "cuda")
    assert again.resumed_at == 2
    assert torch.equal(again.machine.weights[0], whole.machine.weights[0])


def test_a_run_killed_before_it_had_settings(data, tmp_path):
    """All that is there then is a lock, and a part of the settings."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".lock").touch()
    (folder / ".settings.json.123.part").write_text('{"for')
    run_training(settings(data, epochs=1), folder)
    assert not list(folder.glob(".*.part"))


def test_settings_that_mean_the_same_have_one_digest():
    whole = Settings("digits", momentum=0, binarize=0, interval=None, validation=None)
    assert whole.digest() == Settings("digits", momentum=0.0, binarize=0.0).digest()
    assert whole.digest() != Settings("digits", momentum=0.1, binarize=0.0).digest()
