"""The paper's figures by command."""

import csv
import gzip
import os
import signal
import threading
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import partial
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from figure_cases import style_faults, titles_above

from reproduction import (
    FIGURES,
    adaptive,
    checks,
    claims,
    denoising,
    experiment,
    free_energy_curves,
    models,
    parallel,
    solutions,
)
from reproduction.__main__ import RUN_ONE, run
from reproduction.lab import Lab, images_of, images_table, nearest
from reproduction.models import BINARY_500, DEEP_2, DEEP_3, FACES, FACES_256, REAL_500, TABLE, quick
from reproduction.procedure import AS_PRINTED
from tapmachine import Spin, exact_log_partition, find_solutions, tap_log_likelihood
from tapmachine.data.errors import DataError, MissingDataError, RunError
from tapmachine.data.sources import mnist_labels
from tapmachine.solver import random_start


def reproduce(*arguments):
    """What the command prints, and how it ends."""
    output, raised = StringIO(), None
    with redirect_stdout(output), redirect_stderr(output):
        try:
            run([*map(str, arguments), "--device", "cpu"])
        except (Exception, SystemExit) as error:
            raised = error
    return SimpleNamespace(exit_code=int(raised is not None), output=output.getvalue(), exception=raised)


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_figure_in_its_quick_form(tmp_path, monkeypatch):
    """With machines that are small enough for exact log-likelihoods where those of larger ones are annealed."""
    monkeypatch.setattr(models, "QUICK_HIDDEN", {25: 8, 50: 10, 100: 16, 500: 12, 256: 8})
    monkeypatch.setattr(models, "QUICK_EPOCHS", 10)
    monkeypatch.setitem(denoising.N_IMAGES, True, 40)
    monkeypatch.setattr(adaptive, "_seconds_a_sweep", partial(adaptive._seconds_a_sweep, at_least=0.01))
    monkeypatch.setattr(adaptive, "QUICK", adaptive.QUICK._replace(warm_up=20, epochs=1, seconds=0.1))
    out = tmp_path / "quick"
    drawn, save_figure = {}, Lab.save_figure

    def saved(lab, name, figure, *formats):
        drawn[name] = figure
        return save_figure(lab, name, figure, *formats)

    monkeypatch.setattr(Lab, "save_figure", saved)
    result = reproduce("all", "--quick", "--out", out)
    assert result.exit_code == 0, result.output
    for name in FIGURES:
        assert (out / f"{name}.png").stat().st_size > 5000, name
        assert not style_faults(drawn[name]), name
    assert {title.get_text() for title in titles_above(drawn["bmnist-denoise-images"])} == {
        f"$p$ = {p:g}" for p in denoising.NOISE
    }
    tables = {path.stem: rows_of(path) for path in out.glob("*.csv")}
    assert {name for name in FIGURES if name not in ("compareInitSolns", "landscape")} <= tables.keys()

    # What was learned, by another way than that of the tables.
    lab = Lab(out, quick=True)
    last = tables["likelihood-binary-mnist-100"][-1]
    machine = lab.machine(TABLE[2])
    x = solutions.starts(lab, TABLE[2])
    again = tap_log_likelihood(machine, x, find_solutions(machine, x).solutions)
    assert float(last["log_likelihood"]) == pytest.approx(float(again.mean), abs=1e-3)
    assert int(last["solutions"]) == again.n_unique
    first = tables["likelihood-binary-mnist-100"][0]
    assert float(last["log_likelihood"]) > float(first["log_likelihood"]) + 2
    epochs = [int(row["epoch"]) for row in tables["fedist"] if row["data"] == "binary-MNIST"]
    assert epochs == lab.epochs(TABLE[2])
    means = [row for row in tables["bmnist-denoise"] if row["method"] == "16"]
    assert [float(row["p"]) for row in means] == list(denoising.NOISE)
    assert float(means[0]["mcc"]) == pytest.approx(1.0)
    assert float(means[2]["mcc"]) > 0.7
    assert {row["verdict"] for row in tables["claims"]} <= {"holds", "holds in part", "does not hold", "not measured"}
    assert len(tables["claims"]) == len(claims.CLAIMS)

    # Nothing is made twice; a figure is drawn from its table.
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.suffix in (".csv", ".safetensors")}
    (out / "fedist.png").unlink()
    result = reproduce("fedist", "--quick", "--out", out)
    assert result.exit_code == 0
    assert (out / "fedist.png").exists()
    assert "training" not in result.output
    assert "measuring" not in result.output
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert reproduce("fedist", "--out", out).exit_code != 0, "a full run must not go on in a quick one's folder"
    assert reproduce("fedist", "--quick", "--seed", 1, "--out", out).exit_code != 0


def test_as_printed_beside_the_default(tmp_path, monkeypatch):
    """In folders of their own, resumed epoch by epoch, with verdicts of both side by side, and as vectors, too."""
    monkeypatch.setattr(models, "QUICK_EPOCHS", 8)
    figures = ("fedist,claims", "--quick", "--models", "binary-mnist-100")
    monkeypatch.setattr(adaptive, "QUICK", adaptive.QUICK._replace(warm_up=2, epochs=1, seconds=0.0))
    printed, ours = tmp_path / "printed", tmp_path / "ours"
    result = reproduce(*figures, "--as-printed", "--out", printed)
    assert result.exit_code == 0, result.output
    numbers = rows_of(printed / "likelihood-binary-mnist-100.csv")
    assert [row["epoch"] for row in numbers][:2] == ["0", "1"]
    assert numbers[0]["solutions"] == "1"
    for row, other in zip(rows_of(printed / "fedist.csv"), numbers, strict=True):
        constant = float(other["prior_log_normalizer"])
        assert float(row["unnormalized_mean"]) == pytest.approx(float(row["mean"]) - constant, abs=1e-3)
    found = rows_of(printed / "claims.csv")
    assert {row["verdict"] for row in found} >= {"not measured"}, "of models that were left out"

    # After a crash: tables that are missing are put together from their parts.
    before = (printed / "fedist.csv").read_text()
    for path in printed.glob("*.csv"):
        path.unlink()
    result = reproduce("fedist", *figures[1:], "--as-printed", "--out", printed)
    assert "training" not in result.output
    assert (printed / "fedist.csv").read_text() == before
    reproduce("claims", *figures[1:], "--as-printed", "--out", printed)

    result = reproduce(*figures, "--out", ours, "--beside", printed, "--format", "pdf,svg")
    assert result.exit_code == 0, result.output
    both = rows_of(ours / "claims-beside.csv")
    assert [row["verdict_beside"] for row in both] == [row["verdict"] for row in rows_of(printed / "claims.csv")]
    assert (ours / "fedist.pdf").read_bytes().startswith(b"%PDF")
    assert not (ours / "fedist.png").exists()
    assert "printed_iteration" in str(reproduce("fedist", "--quick", "--out", printed).exception)
    for options, said in (
        (("--format", "gif"), "--format contains 'gif'"),
        (("--models", "x"), "--models contains 'x'; expected names from:"),
        (("--switches", "x"), "--switches contains 'x'"),
        (
            ("--models", "deep-2"),
            "--models excludes all machines of this figure; expected at least one of binary-mnist-100",
        ),
        (("--beside", tmp_path / "none"), "directory not found"),
    ):
        assert said in str(reproduce("fedist", "--quick", *options).exception)
    with pytest.raises(RunError, match=r"claims\.csv: file not found"):
        claims.table(replace(Lab(ours, quick=True, only=frozenset({"binary-mnist-100"})), beside=tmp_path))


@pytest.mark.slow
def test_every_figure_as_printed(tmp_path):
    result = reproduce("all", "--quick", "--as-printed", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert {path.stem for path in (tmp_path / "out").glob("*.png")} == {*FIGURES}


@pytest.mark.slow
def test_two_processes_train_the_same_machines(tmp_path):
    for jobs in (1, 2):
        assert (
            reproduce("bmnist-denoise-images", "--quick", "--jobs", jobs, "--out", tmp_path / str(jobs)).exit_code == 0
        )
    one, two = (tmp_path / str(jobs) / "bmnist-denoise-images.csv" for jobs in (1, 2))
    assert one.read_text() == two.read_text()


def test_settings_are_those_of_table_one():
    found = {model.name: model for model in TABLE}
    assert [model.hidden for model in TABLE] == [(25,), (50,), (100,), (500,), (100,), (500,), (256,)]
    assert {(m.batch_size, m.particles, m.learning_rate, m.decay, m.weight_decay) for m in TABLE[:4]} == {
        (100, 100, 0.005, 1.0, 0.001)
    }
    assert found["real-mnist-100"].learning_rate == 1e-2
    assert REAL_500.learning_rate * REAL_500.decay == pytest.approx(1e-5)
    assert (FACES_256.batch_size, FACES_256.particles, FACES_256.weight_decay) == (20, 20, 0.01)
    assert {model.momentum for model in TABLE} == {0.5}
    assert (DEEP_2.hidden, DEEP_3.hidden) == ((500, 500), (500, 500, 500))
    assert {(m.pretrain, m.learning_rate) for m in (DEEP_2, DEEP_3)} == {(50, 0.001)}
    own = BINARY_500.settings("mnist", "mnist-test", 3)
    assert (own.objective, own.centered, own.binarize, own.seed) == ("tap", False, 0.5, 3)
    assert quick(BINARY_500).data == BINARY_500.data


def test_free_energies_of_the_small_machine(tmp_path):
    rows = [{name: float(value) for name, value in row.items()} for row in free_energy_curves.table(Lab(tmp_path))]
    machine = free_energy_curves.magnet()
    assert isinstance(machine.layers[0], Spin)
    m, gibbs, tap = (np.array([row[name] for row in rows]) for name in ("m", "gibbs", "tap"))
    # Gibbs: convex, with its minimum at −ln Z; TAP's local minima are its solutions.
    slopes = np.diff(gibbs) / np.diff(m)
    assert (np.diff(slopes) > 0).all()
    assert gibbs.min() == pytest.approx(-float(exact_log_partition(machine)), abs=1e-3)
    found = find_solutions(machine, random_start(machine, 100)).free_energy
    inner = (tap[1:-1] < tap[:-2]) & (tap[1:-1] < tap[2:])
    assert inner.sum() == len(found) == 2
    np.testing.assert_allclose(sorted(tap[1:-1][inner]), found, atol=0.01)
    assert rows[0]["tap_mean"] == pytest.approx(float(found.mean()), abs=1e-4)
    # Points are spaced evenly in m, so that the curve between the minima is no polygon.
    assert len(np.unique(m)) == len(m) > 80
    assert np.diff(m).max() < 1.5 * 2 / (len(m) - 1)


def test_images_survive_a_table():
    images = torch.rand(3, 5)
    table = images_table(images, p=[1, 2, 3])
    torch.testing.assert_close(images_of(table), images, rtol=2e-3, atol=1e-3)
    smaller = [row | {"p3": "", "p4": ""} for row in table]  # beside larger ones, as a CSV has them
    torch.testing.assert_close(images_of(smaller), images_of(table)[:, :3])
    assert nearest([1, 5, 20], [1, 2, 30]) == [1, 20]


def test_what_is_missing_is_said(tmp_path):
    listed = reproduce("--list")
    assert listed.exit_code == 0
    assert all(name in listed.output for name in FIGURES)
    for arguments, said in (
        ((), "missing figure"),
        (("nothing",), "unknown figure"),
        (("all", "--data", "none"), "directory not found"),
    ):
        failed = reproduce(*arguments, "--out", tmp_path / "out")
        assert failed.exit_code != 0
        assert said in str(failed.exception)
    with pytest.raises(MissingDataError, match=r"cbcl_faces.npz"):
        Lab(tmp_path).sources(FACES)
    (tmp_path / "other").write_text("")
    with pytest.raises(RunError, match="not empty, and not a reproduction directory"):
        Lab(tmp_path).open()
    with pytest.raises(ValueError, match="unknown figure"):
        experiment("fig12")


def test_centered_gradients_are_an_option(tmp_path, monkeypatch):
    """In a folder of their own; all else is the same."""
    labs = []

    def noted(lab, model):
        labs.append(lab)
        raise RunError("not trained")

    monkeypatch.setattr(Lab, "run", noted)
    for options in ((), ("--switches", "centered")):
        reproduce("dbmtraining", "--quick", "--out", tmp_path / f"out{len(options)}", *options)
    found = [lab.settings(DEEP_2) for lab in labs]
    assert [own.centered for own in found] == [False, None]  # None: where the units allow it
    assert replace(found[0], centered=None) == found[1]
    with pytest.raises(RunError, match="created with the options"):
        Lab(tmp_path / "out2", quick=True).open()


def test_labels(tmp_path):
    labels = np.array([3, 6, 7], np.uint8)
    path = tmp_path / "labels.gz"
    path.write_bytes(gzip.compress(bytes([0, 0, 8, 1]) + np.array([3], ">u4").tobytes() + labels.tobytes()))
    np.testing.assert_array_equal(mnist_labels(path), labels)
    path.write_bytes(b"no gzip")
    with pytest.raises(DataError, match=r"labels.gz: cannot be read"):
        mnist_labels(path)


def test_a_claim_needs_all_its_numbers(tmp_path):
    """Verdicts follow from the tables: the same code, on tables that say the opposite."""
    lab = Lab(tmp_path, quick=True).open()
    bands = "data,epoch,solutions,unnormalized_mean,mean,lowest,highest,bands,bands_by_starts\n"
    path = tmp_path / "fedist.csv"
    path.write_text(
        bands + "binary-MNIST,1,1,0,9,0,0,1,1\nbinary-MNIST,5,9,3,8,1,4,2,2\nbinary-MNIST,9,20,-2,7,-3,0,2,2\n"
    )
    assert checks.rises_then_falls(lab).verdict == checks.number_grows(lab).verdict == "holds"
    assert checks.two_bands(lab).verdict == "holds"
    path.write_text(
        bands + "binary-MNIST,1,2,5,5,0,0,1,1\nbinary-MNIST,5,9,3,3,1,4,1,1\nbinary-MNIST,9,5,7,7,6,8,3,3\n"
    )
    assert checks.rises_then_falls(lab).verdict == checks.number_grows(lab).verdict == "does not hold"
    assert checks.two_bands(lab).verdict == "does not hold"


def test_tasks_of_parallel_processes(tmp_path):
    """Long trainings come first, figures wait for their machines, and the table of claims for everything."""
    lab = Lab(tmp_path, quick=True, procedure=AS_PRINTED, only=frozenset({"deep-2", "binary-mnist-100"})).open()
    tasks = {task.name: task for task in parallel.tasks_of(lab, ["landscape", "dbmtraining", "adatap", "claims"])}
    assert list(tasks) == ["adatap", "deep-2", "binary-mnist-100", "landscape", "dbmtraining"]
    assert tasks["landscape"].requires == {"binary-mnist-100"}
    assert [tasks[name].measured for name in ("deep-2", "binary-mnist-100")] == [False, True]
    for task in tasks.values():
        assert parallel.from_words(parallel.to_words(lab, task), print) == (lab, task)
    ready = parallel.Task("figure", "freeEnergies")
    parallel.run_tasks(lab, [ready], 2, RUN_ONE)
    assert (tmp_path / "freeEnergies.csv").exists()


def test_failure_of_one_parallel_process(tmp_path):
    """Others are completed, except those that need its result."""
    lab = Lab(tmp_path, quick=True).open()
    broken = parallel.Task("model", "unknown")
    tasks = [broken, parallel.Task("figure", "landscape", frozenset({"unknown"})), parallel.Task("figure", "params")]
    with pytest.raises(RunError, match=r"^training unknown ended with status 1; rerun the command to resume$"):
        parallel.run_tasks(lab, tasks, 2, RUN_ONE)
    assert (tmp_path / "params.csv").exists()


def test_parallel_processes_end_with_their_parent(tmp_path):
    path = tmp_path / "process"
    program = f"import os, time; open({str(path)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    timer = threading.Timer(0.1, _terminate_when, (path,))
    timer.start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        parallel.run_tasks(Lab(tmp_path), [parallel.Task("figure", "params")], 2, program)
    timer.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int(path.read_text()), 0)
    assert time.monotonic() - begun < 50, "the process was terminated before its 60 seconds were over"


def _terminate_when(path):
    while not path.exists() or not path.read_text():
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGTERM)


def test_number_of_parallel_processes(monkeypatch):
    for cores, expected in ((4, [1, 4]), (16, [1, 12])):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        assert [parallel.default_jobs(device) for device in ("cpu", "cuda")] == expected
