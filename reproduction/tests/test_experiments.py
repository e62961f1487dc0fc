"""The paper's figures by command."""

import csv
import gzip
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import partial
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from reproduction import adaptive, claims, denoising, models, small_machine
from reproduction.__main__ import FIGURES, run
from reproduction.figure import Figure, nearest
from reproduction.lab import Lab, images_of, images_table
from reproduction.models import BINARY_500, DEEP_2, DEEP_3, FACES, FACES_256, REAL_500, TABLE, quick
from reproduction.tests.figure_cases import style_faults, titles_above
from tapmachine import Spin, exact_log_partition, find_solutions, tap_log_likelihood
from tapmachine.data.errors import DataError, RunError
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


@pytest.mark.slow
def test_every_figure_in_its_quick_form(tmp_path, monkeypatch):
    """With machines that are small enough for exact log-likelihoods where those of larger ones are annealed."""
    monkeypatch.setattr(models, "QUICK_HIDDEN", {25: 8, 50: 10, 100: 16, 500: 12, 256: 8})
    monkeypatch.setattr(models, "QUICK_EPOCHS", 10)
    monkeypatch.setitem(denoising.N_IMAGES, True, 40)
    monkeypatch.setattr(adaptive, "seconds_a_sweep", partial(adaptive.seconds_a_sweep, at_least=0.01))
    monkeypatch.setitem(adaptive.PLANS, True, replace(adaptive.PLANS[True], warm_up=20, epochs=1, seconds=0.1))
    out = tmp_path / "quick"
    drawn, draw = {}, Figure.drawn

    def noted(figure, lab):
        drawn[figure.label] = draw(figure, lab)
        return drawn[figure.label]

    monkeypatch.setattr(Figure, "drawn", noted)
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
    x = lab.starts(TABLE[2])
    again = tap_log_likelihood(machine, x, find_solutions(machine, x).solutions)
    assert float(last["log_likelihood"]) == pytest.approx(float(again.mean), abs=1e-3)
    assert int(last["solutions"]) == again.n_unique
    first = tables["likelihood-binary-mnist-100"][0]
    assert float(last["log_likelihood"]) > float(first["log_likelihood"]) + 2
    epochs = [int(row["epoch"]) for row in tables["fedist"] if row["data"] == "binary-MNIST"]
    assert epochs == lab.epochs(TABLE[2])
    means = [row for row in tables["bmnist-denoise"] if row["method"] == "16 hidden units"]
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


def test_as_printed(tmp_path, monkeypatch):
    """In a folder of its own, resumed epoch by epoch, and as vectors, too."""
    monkeypatch.setattr(models, "QUICK_EPOCHS", 8)
    figures = ("fedist,claims", "--quick", "--models", "binary-mnist-100")
    monkeypatch.setitem(adaptive.PLANS, True, replace(adaptive.PLANS[True], warm_up=2, epochs=1, seconds=0.0))
    out = tmp_path / "printed"
    result = reproduce(*figures, "--as-printed", "--out", out, "--format", "pdf,svg")
    assert result.exit_code == 0, result.output
    assert (out / "fedist.pdf").read_bytes().startswith(b"%PDF")
    assert not (out / "fedist.png").exists()
    numbers = rows_of(out / "likelihood-binary-mnist-100.csv")
    assert [row["epoch"] for row in numbers][:2] == ["0", "1"]
    assert numbers[0]["solutions"] == "1"
    for row, other in zip(rows_of(out / "fedist.csv"), numbers, strict=True):
        constant = float(other["prior_log_normalizer"])
        assert float(row["unnormalized_mean"]) == pytest.approx(float(row["mean"]) - constant, abs=1e-3)
    found = rows_of(out / "claims.csv")
    assert {row["verdict"] for row in found} >= {"not measured"}, "of models that were left out"

    # After a crash: tables that are missing are put together from their parts.
    before = (out / "fedist.csv").read_text()
    for path in out.glob("*.csv"):
        path.unlink()
    result = reproduce("fedist", *figures[1:], "--as-printed", "--out", out)
    assert "training" not in result.output
    assert (out / "fedist.csv").read_text() == before

    assert "printed_iteration" in str(reproduce("fedist", "--quick", "--out", out).exception)
    for options, said in (
        (("--format", "gif"), "--format contains 'gif'"),
        (("--models", "x"), "--models contains 'x'; expected names from:"),
        (("--switches", "x"), "--switches contains 'x'"),
        (("--models", "deep-2"), "--models excludes all machines of fedist; expected one of binary-mnist-100"),
    ):
        assert said in str(reproduce("fedist", "--quick", "--out", tmp_path / "other", *options).exception)


def test_machines_can_be_trained_one_by_one(tmp_path, monkeypatch):
    """By several processes beside each other, before the figures are drawn."""
    monkeypatch.setattr(models, "QUICK_EPOCHS", 4)
    for name in ("deep-2", "binary-mnist-25"):
        assert reproduce("machines", "--quick", "--models", name, "--out", tmp_path / "out").exit_code == 0
    assert {path.name for path in (tmp_path / "out" / "models").iterdir()} == {"deep-2", "binary-mnist-25"}
    assert len(rows_of(tmp_path / "out" / "likelihood-binary-mnist-25.csv")) > 2
    assert not (tmp_path / "out" / "likelihood-deep-2.csv").exists()


@pytest.mark.slow
def test_every_figure_as_printed(tmp_path):
    result = reproduce("all", "--quick", "--as-printed", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert {path.stem for path in (tmp_path / "out").glob("*.png")} == {*FIGURES}


def test_settings_are_those_of_table_one(tmp_path):
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
    own = Lab(tmp_path, seed=3).settings(BINARY_500)
    assert (own.objective, own.centered, own.binarize, own.seed) == ("tap", False, 0.5, 3)
    assert quick(BINARY_500).data == BINARY_500.data


def test_free_energies_of_the_small_machine(tmp_path):
    rows = [{name: float(value) for name, value in row.items()} for row in small_machine.free_energies(Lab(tmp_path))]
    machine = small_machine.magnet()
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
        (("nothing",), "figures contains 'nothing'"),
        (("all", "--data", "none"), "directory not found"),
    ):
        failed = reproduce(*arguments, "--out", tmp_path / "out")
        assert failed.exit_code != 0
        assert said in str(failed.exception)
    with pytest.raises(DataError, match=r"cbcl_faces.npz"):
        Lab(tmp_path).sources(FACES)
    (tmp_path / "other").write_text("")
    with pytest.raises(RunError, match="not empty, and not a reproduction directory"):
        Lab(tmp_path).open()


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
    lab = Lab(tmp_path, quick=True)
    lab.open()
    texts = (
        "the free energy first rises, then falls",
        "the number of solutions starts at 1 and grows",
        "two bands of free energy on binary-MNIST at all epochs",
    )
    head = "data,epoch,solutions,unnormalized_mean,mean,lowest,highest,bands,bands_by_starts\n"
    for rows, verdict in (
        ("binary-MNIST,1,1,0,9,0,0,1,1\nbinary-MNIST,5,9,3,8,1,4,2,2\nbinary-MNIST,9,20,-2,7,-3,0,2,2\n", "holds"),
        ("binary-MNIST,1,2,5,5,0,0,1,1\nbinary-MNIST,5,9,3,3,1,4,1,1\nbinary-MNIST,9,5,7,7,6,8,3,3\n", "does not hold"),
    ):
        (tmp_path / "fedist.csv").write_text(head + rows)
        assert [claims.judged(lab, text)["verdict"] for text in texts] == [verdict] * 3
