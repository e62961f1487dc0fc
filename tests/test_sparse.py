"""Sparse matrices: the same results as dense ones, in memory that does not grow with the dense matrix; AnnData."""

import os
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from run_cases import command
from safetensors.torch import load_file

from tapmachine import RBM, Binary, rbm
from tapmachine.data import rows as data_rows
from tapmachine.data.rows import LazyRows
from tapmachine.data.sources import read
from tapmachine.training import default_learning_rate


def values(kind, rows=120, columns=20):
    rng = np.random.default_rng(0)
    of_kind = {"bits": 1.0, "counts": rng.integers(1, 5, (rows, columns)), "reals": rng.random((rows, columns))}
    return (rng.random((rows, columns)) < 0.2) * of_kind[kind]


@pytest.fixture
def in_parts(monkeypatch):
    """Matrices of more than 20 rows of 20 columns are read in parts, and stay sparse."""
    monkeypatch.setattr(data_rows, "SPARSE_VALUES", 400)
    monkeypatch.setattr("tapmachine.apps.estimator.input.SPARSE_VALUES", 400)


@pytest.mark.parametrize("weights", ["none", "whole numbers", "fractions"])
@pytest.mark.parametrize(("kind", "visible"), [("bits", "auto"), ("counts", "poisson"), ("reals", "auto")])
def test_the_same_bits_as_dense(kind, visible, weights):
    x, rng = values(kind), np.random.default_rng(1)
    weight = {"none": None, "whole numbers": rng.integers(0, 3, len(x)), "fractions": rng.random(len(x))}[weights]
    dense = RBM(3, visible=visible, epochs=2).fit(x, sample_weight=weight)
    sparse = RBM(3, visible=visible, epochs=2).fit(sp.csr_array(x), sample_weight=weight)
    np.testing.assert_array_equal(sparse.components_, dense.components_)
    assert sparse.visible_ == dense.visible_
    for matrix in (sp.csr_matrix(x), sp.csc_array(x), sp.coo_array(x)):
        np.testing.assert_array_equal(sparse.transform(matrix), dense.transform(x))
    np.testing.assert_array_equal(sparse.score_samples(sp.csr_array(x)), dense.score_samples(x))
    again = [model.partial_fit(rows).components_ for model, rows in ((sparse, sp.csr_array(x)), (dense, x))]
    np.testing.assert_array_equal(*again)


def test_parts_give_the_same_results_as_all_rows(in_parts):
    """Units are fitted to all rows; monitoring and the learning rate go by a sample, so that weights may differ."""
    x = values("bits")
    dense, sparse = (RBM(3, epochs=1, learning_rate=0.01).fit(rows) for rows in (x, sp.csr_array(x)))
    np.testing.assert_allclose(sparse.components_, dense.components_, atol=2e-3)
    np.testing.assert_allclose(sparse.transform(sp.csr_array(x)), sparse.transform(x), atol=1e-12)
    np.testing.assert_allclose(sparse.score_samples(sp.csr_array(x)), sparse.score_samples(x), atol=1e-9)
    mean, std = sparse.impute(sp.csr_array(x), return_std=True)
    np.testing.assert_allclose(mean, x)
    assert std.shape == x.shape


@pytest.mark.parametrize("kind", ["bits", "counts", "reals"])
def test_units_are_fitted_to_all_rows_of_a_sparse_matrix(kind, in_parts):
    from tapmachine.units import Poisson, SpikeSlab

    x = values(kind)
    make = {"bits": Binary, "counts": Poisson, "reals": SpikeSlab}[kind]
    in_memory, lazy = make(20).double(), make(20).double()
    in_memory.fit_to(torch.from_numpy(x))
    lazy.fit_to(LazyRows({"x": sp.csr_array(x)}))
    for one, other in zip(lazy.parameters(), in_memory.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_the_learning_rate_of_rows_in_parts(in_parts):
    """The largest variance by power iteration, against the singular value of the whole matrix."""
    x = values("bits") + np.outer(np.arange(120) % 2, np.ones(20)) > 0  # one direction stands out
    machine = rbm(Binary(20), Binary(3))
    whole = default_learning_rate(machine, torch.from_numpy(x).float())
    assert default_learning_rate(machine, LazyRows({"x": sp.csr_array(x * 1.0)})) == pytest.approx(whole, rel=1e-3)


def test_missing_values_of_sparse_matrices_are_refused():
    x = sp.csr_array(values("reals"))
    x.data[3] = np.nan
    row, column = x.nonzero()[0][3], x.nonzero()[1][3]
    with pytest.raises(ValueError, match=rf"X\[{row}, {column}\] of a sparse matrix is missing"):
        RBM(2, epochs=1).fit(x)


def test_runs_on_sparse_files(tmp_path, in_parts):
    """A run on a sparse matrix has the weights of one on the dense matrix, up to what goes by a sample."""
    x = values("bits")
    sp.save_npz(tmp_path / "sparse.npz", sp.csc_array(x))
    np.save(tmp_path / "dense.npy", x)
    assert isinstance(read(tmp_path / "sparse.npz").rows, LazyRows)
    for name in ("sparse.npz", "dense.npy"):
        out = tmp_path / name.partition(".")[0]
        options = ("--hidden", 3, "--epochs", 1, "--learning-rate", 0.01, "--device", "cpu")
        code, _, said = command("train", tmp_path / name, "--out", out, *options)
        assert code == 0, said
        if name == "sparse.npz":
            assert "sparse matrix, 120 × 20" in said
            assert "rows are made dense in parts" in said
    one, two = (load_file(tmp_path / name / "machine.safetensors") for name in ("sparse", "dense"))
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 2e-3
    for words in (("score", "sparse.npz"), ("evaluate",)):
        code, printed, said = command(words[0], tmp_path / "sparse", *(tmp_path / name for name in words[1:]))
        assert code == 0, said
        assert printed


FIT_IN_LITTLE_MEMORY = """
import resource, sys
from pathlib import Path
import scipy.sparse as sp
from tapmachine import RBM

def fit(x):
    RBM(4, epochs=1, batch_size=300, objective="cd", binarize=0.5, device="cpu").fit(x).transform(x)

x = sp.random_array((12_000, 3000), density=0.002, format="csr", rng=0, dtype="f4")
fit(x[:300, :100])  # libraries set themselves up
lines = Path("/proc/self/status").read_text().splitlines()
taken = next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmData:"))
limit = taken + int(sys.argv[1]) * 10**6
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
fit(x)
try:
    fit(x.toarray())
except MemoryError:
    sys.exit(0)
sys.exit("the dense matrix fits, too: the limit says nothing")
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
def test_a_sparse_matrix_takes_less_memory_than_a_dense_one():
    """1 MB sparse, 144 MB dense; the limit leaves room for the machine and for 2 million dense values at a time."""
    words = [sys.executable, "-c", FIT_IN_LITTLE_MEMORY, "130"]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]


# ----- AnnData


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_anndata(form):
    anndata, pd = pytest.importorskip("anndata"), pytest.importorskip("pandas")
    x = values("bits")
    genes = [f"gene {number}" for number in range(20)]
    cells = anndata.AnnData(
        form(x), var=pd.DataFrame(index=genes), obs=pd.DataFrame(index=[f"c{i}" for i in range(120)])
    )
    model, plain = RBM(3, epochs=1).fit(cells), RBM(3, epochs=1).fit(x)
    np.testing.assert_array_equal(model.transform(cells), plain.transform(x))
    np.testing.assert_array_equal(model.score_samples(cells[:10]), plain.score_samples(x[:10]))
    assert list(model.feature_names_in_) == genes
    with pytest.raises(ValueError, match="the variables of X are not those of the training data"):
        model.transform(cells[:, ::-1])
