"""Recovery from measurements on the command line, and with the machine of an estimator."""

import re

import numpy as np
import pytest
import scipy.sparse
import torch
from run_cases import bars, command
from sklearn.datasets import load_digits

from tapmachine import RBM, Binary, LinearMeasurements, rbm, recover

X = bars(20, seed=1)
F = np.random.default_rng(0).normal(size=(10, 16)) / 4


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recovery")
    np.save(folder / "train.npy", bars())
    options = ("--hidden", 4, "--epochs", 60, "--batch-size", 10, "-q")
    code, _, errors = command("train", folder / "train.npy", "--out", folder / "run", *options)
    assert code == 0, errors
    return folder / "run"


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A matrix and measurements with noise 0.05, in the current folder."""
    monkeypatch.chdir(tmp_path)
    np.save("F.npy", F)
    np.save("y.npy", X @ F.T + 0.05 * np.random.default_rng(1).normal(size=(20, 10)))
    return tmp_path


def recovered(*arguments):
    """The last line of a command that succeeds, and what it wrote."""
    code, printed, errors = command("recover", *arguments)
    assert code == 0, errors
    (line,) = printed.splitlines()
    path = line.split(":")[0]
    return line, np.load(path) if path.endswith(".npy") else np.loadtxt(path, delimiter=",")


@pytest.mark.long
def test_linear_measurements_with_estimated_noise(run, files):
    line, mean = recovered(run, "y.npy", "--matrix", "F.npy", "--std", "std.npy", "--picture", "x.png")
    assert line.startswith("recovered.npy: 20 signals from 10 linear measurements each (noise 0.0")
    assert line.endswith(", estimated; engine ep), all converged")
    noise = re.findall(r"noise ([0-9.]+)", line)
    assert abs(float(noise[0]) - 0.05) < 0.02  # five standard errors of 200 measurements
    assert np.array_equal(mean.round(), X)
    assert np.load("std.npy").max() < 0.5
    assert (files / "x.png").stat().st_size > 1000
    line, states = recovered(
        run, "y.npy", "--matrix", "F.npy", "--noise", 0.05, "--rounded", "--engine", "gamp", "-o", "s.npy"
    )
    assert "(noise 0.05; engine gamp)" in line
    assert np.array_equal(states, X)


def test_signs(run, files):
    matrix = np.random.default_rng(2).normal(size=(60, 16))
    np.save("F.npy", matrix)
    np.save("y.npy", np.sign(X @ matrix.T))
    line, mean = recovered(run, "y.npy", "--matrix", "F.npy", "--kind", "sign")
    assert "60 sign measurements each (noise 0; engine ep)" in line
    assert (mean.round() == X).mean() > 0.95


@pytest.mark.long
def test_other_kinds_and_a_bias(run, files):
    z = X @ F.T + 1
    np.save("bias.npy", np.ones(10))
    for kind, y, options in (
        ("magnitude", np.abs(z), ("--noise", 0.01)),
        ("quantized", np.digitize(z, [0.5, 0.9, 1.1, 1.5]), ("--edges", "0.5,0.9,1.1,1.5")),
    ):
        np.save("y.npy", y)
        for bias in (1, "bias.npy") if kind == "magnitude" else (1,):
            _, states = recovered(
                run, "y.npy", "--matrix", "F.npy", "--kind", kind, "--bias", bias, "--rounded", *options
            )
            assert (states == X).mean() > 0.9
    matrix = 100 * np.abs(F)
    np.save("F.npy", matrix)
    np.save("y.npy", np.random.default_rng(3).poisson(X @ matrix.T + 1))
    options = ("--kind", "counts", "--bias", 1, "--engine", "ep", "--rounded")
    line, states = recovered(run, "y.npy", "--matrix", "F.npy", *options)
    assert "10 count measurements each (engine ep)" in line
    assert (states == X).mean() > 0.9


def test_a_sparse_matrix_of_scipy(run, files):
    matrix = np.where(np.abs(F) > 0.1, F, 0.0)
    np.save("dense.npy", matrix)
    scipy.sparse.save_npz("sparse.npz", scipy.sparse.csr_matrix(matrix))
    np.save("y.npy", X @ matrix.T)
    results = [recovered(run, "y.npy", "--matrix", name, "--noise", 0.01)[1] for name in ("sparse.npz", "dense.npy")]
    assert np.array_equal(*results)
    assert np.array_equal(results[0].round(), X)


def test_text_and_missing_measurements(run, files):
    y = np.load("y.npy")
    y[0, 3] = y[4, :2] = np.nan
    cells = [",".join("" if np.isnan(value) else repr(float(value)) for value in row) for row in y]
    (files / "y.csv").write_text("\n".join([",".join(f"m{i}" for i in range(10)), *cells]))
    np.savetxt("F.csv", F, delimiter=",")
    line, mean = recovered(run, "y.csv", "--matrix", "F.csv", "--noise", 0.05)
    assert line.startswith("recovered.csv: 20 signals")
    assert np.array_equal(mean.round(), X)
    np.save("y.npy", y)
    assert np.array_equal(recovered(run, "y.npy", "--matrix", "F.npy", "--noise", 0.05)[1], mean.astype(np.float32))


def test_results_only(run, files):
    assert command("recover", run, "y.npy", "--matrix", "F.npy", "-q") == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["y.npy"], "missing --matrix: measurement matrix F, one row per measurement"),
        (["y.npy", "--matrix", "narrow.npy"], "matrix has shape (10, 5), but the visible units have 16 components"),
        (["narrow.npy", "--matrix", "F.npy"], "narrow.npy: shape (10, 5) does not match F.npy of shape (10, 16)"),
        (["y.npy", "--matrix", "hole.npy"], "hole.npy: matrix[2, 3] is nan; expected a finite number"),
        (["y.npy", "--matrix", "F.npy", "--kind", "sign"], "expected −1, +1 or NaN"),
        (["y.npy", "--matrix", "F.npy", "--kind", "counts"], "expected a non-negative integer"),
        (["y.npy", "--matrix", "F.npy", "--kind", "quantized", "--edges", "0,1"], "expected an integer from 0 to 2"),
        (["y.npy", "--matrix", "F.npy", "--kind", "fog"], "--kind is 'fog'; expected one of linear, sign, magnitude"),
        (["y.npy", "--matrix", "F.npy", "--engine", "fog"], "--engine is 'fog'; expected one of gamp, vamp, ep"),
        (["nowhere.npy", "--matrix", "F.npy"], "nowhere.npy: file not found"),
        (["y.npy", "--matrix", "text.npy"], "text.npy: unknown format; expected a .npy, .npz, .csv"),
        (["y.npy", "--matrix", "F.npy", "--noise", "-1"], "--noise is -1; expected a non-negative, finite standard"),
        (["y.npy", "--matrix", "F.npy", "--kind", "counts", "--noise", "1"], "--noise is not available for"),
        (["y.npy", "--matrix", "F.npy", "--kind", "quantized"], "missing --edges"),
        (["y.npy", "--matrix", "F.npy", "--edges", "0,1"], "--edges is not available for --kind linear"),
        (["y.npy", "--matrix", "F.npy", "--kind", "quantized", "--edges", "1,a"], "--edges is '1,a'"),
        (["y.npy", "--matrix", "F.npy", "--bias", "fog"], "--bias is 'fog'; expected a number, or a file"),
        (["y.npy", "--matrix", "F.npy", "--bias", "nan"], "expected finite numbers"),
        (["y.npy", "--matrix", "F.npy", "--bias", "narrow.npy"], "bias has shape (50,); expected a number or (10,)"),
        (["y.npy", "--matrix", "F.npy", "--out", "x.txt"], "expected a .npy or .csv or .tsv or .parquet output file"),
    ],
)  # fmt: skip
def test_errors_print_a_single_line(run, files, arguments, message):
    np.save("narrow.npy", np.ones((10, 5)))
    np.save("hole.npy", np.where(np.arange(160).reshape(10, 16) == 35, np.nan, F))
    (files / "text.npy").write_text("not an array")
    code, printed, errors = command("recover", run, *arguments)
    assert (code, printed) == (2, "")
    assert message in errors
    assert errors.count("\n") == 1
    assert not (files / "recovered.npy").exists()


@pytest.mark.parametrize("engine", ["vamp", "ep"])
def test_data_are_starting_points(engine):
    """Their variance is 0, of which the precision of messages would be infinite."""
    x = torch.tensor([[1.0, 0, 0, 1, 1, 0, 1, 0]])
    matrix = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    channel = LinearMeasurements(matrix, noise=0.1)
    posterior = recover(rbm(Binary(8), Binary(2)), x @ matrix.T, channel, starts=[x], engine=engine)
    assert torch.equal(posterior.states, x)


# ----- the estimator


@pytest.fixture(scope="module")
def model():
    return RBM(n_hidden=64, epochs=20, random_state=0).fit(digits()[:1500])


def digits():
    return (load_digits().data > 8).astype(np.float64)


def test_digits_from_half_as_many_measurements(model):
    x = digits()[1500:1520]
    random = np.random.default_rng(0)
    matrix = random.normal(size=(32, 64)) / 8
    y = x @ matrix.T + 0.01 * random.normal(size=(20, 32))
    posterior = recover(model.machine_, y, LinearMeasurements(matrix, noise=0.01), data=digits()[:1500])
    mean, std = posterior.values.numpy(), posterior.deviation
    assert mean.shape == std.shape == x.shape
    assert (mean.round() == x).all(1).sum() >= 17  # 20, as a rule
    assert 0 <= std.min() <= std.max() <= 0.5


def test_recovery_of_categories():
    x = np.random.default_rng(0).integers(0, 3, (100, 1)).repeat(4, axis=1)
    model = RBM(n_hidden=6, epochs=20, visible="categorical", random_state=0).fit(x)
    matrix = np.random.default_rng(1).normal(size=(8, 12))  # a column for each category of each feature
    one_hot = np.eye(3)[x[:10]].reshape(10, 12)
    posterior = recover(model.machine_, one_hot @ matrix.T, LinearMeasurements(matrix, noise=0.01))
    assert np.array_equal(posterior.values, x[:10])
    assert posterior.deviation.shape == (10, 4)
