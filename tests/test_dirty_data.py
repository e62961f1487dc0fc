"""Data as they should not be, through every command and function that takes some: an error that says where, or a
finite result.
"""

import gzip
import io
import json
import random
import re
import warnings

import numpy as np
import pytest
import torch
from marks import DENORMALS
from run_cases import bars, command

import tapmachine as tm
from tapmachine.data.sources import read
from tapmachine.machine.conditioning import hidden_machine

ROWS = bars(20).astype(np.float64)


# ----- files, of which each is dirty in its own way


def npy(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def csv(rows):
    return "\n".join(",".join(f"{value:g}" for value in row) for row in rows).encode()


def having(value, row=3, column=5):
    x = ROWS.copy()
    x[row, column] = value
    return x


FINE = None  # a finite result
FILES = {  # content, and what training on it says
    "nan.npy": (npy(having(np.nan)), FINE),
    "no values in a column.npy": (npy(having(np.nan, slice(None))), "column 5 has no observed value"),
    "inf.npy": (npy(having(np.inf)), "row 3, column 5 is inf"),
    "minus inf.npy": (npy(having(-np.inf)), "row 3, column 5 is -inf"),
    "beyond doubles.npy": (npy(np.full((4, 16), np.longdouble("1e400"))), "row 0, column 0 is inf"),
    "no rows.npy": (npy(ROWS[:0]), r"the shape is \(0, 16\)"),
    "no columns.npy": (npy(ROWS[:, :0]), r"the shape is \(20, 0\)"),
    "nothing.npy": (b"", "unknown format; expected a .npy"),
    "one row.npy": (npy(ROWS[:1]), FINE),
    "two rows.npy": (npy(ROWS[:2]), FINE),
    "rank 0.npy": (npy(np.float64(1)), "at least two dimensions"),
    "rank 1.npy": (npy(ROWS[0]), "at least two dimensions"),
    "rank 3.npy": (npy(ROWS.reshape(20, 4, 4)), FINE),
    "rank 5.npy": (npy(ROWS.reshape(20, 2, 2, 2, 2)), FINE),
    "complex.npy": (npy(ROWS.astype(complex)), "the values are complex128; expected numbers"),
    "strings.npy": (npy(ROWS.astype(str)), "expected numbers"),
    "bytes.npy": (npy(ROWS.astype("S3")), "expected numbers"),
    "objects.npy": (npy(ROWS.astype(object)), "not a plain array"),
    "dates.npy": (npy(ROWS.astype("M8[s]")), "expected numbers"),
    "records.npy": (npy(np.zeros(5, [("a", "f4"), ("b", "i4")])), "expected numbers"),
    "bool.npy": (npy(ROWS > 0), FINE),
    "int8.npy": (npy(ROWS.astype("i1")), FINE),
    "half.npy": (npy(ROWS.astype("f2")), FINE),
    "long double.npy": (npy(ROWS.astype("longdouble")), FINE),
    "other byte order.npy": (npy(ROWS.astype(">f8")), FINE),
    "fortran.npy": (npy(np.asfortranarray(ROWS)), FINE),
    "fractions.npy": (npy(0.5 * ROWS), FINE),
    "negative.npy": (npy(-ROWS), FINE),
    "large.npy": (npy(1e30 * ROWS), "the largest value is 1e[+]30"),
    "largest.npy": (npy(1e308 * ROWS), "the largest value is 1e[+]308"),
    "smallest.npy": (npy(5e-324 * ROWS), "the largest value is 4.9" if DENORMALS else None),
    "large whole.npy": (npy(np.full((9, 16), 2**63, "u8")), "the largest value is 9.2"),
    "constant.npy": (npy(0 * ROWS), FINE),
    "constant column.npy": (npy(np.hstack([ROWS[:, 1:], np.ones((20, 1))])), FINE),
    "duplicate columns.npy": (npy(np.repeat(ROWS[:, :1], 16, 1)), FINE),
    "duplicate rows.npy": (npy(np.repeat(ROWS[:1], 20, 0)), FINE),
    "one column.npy": (npy(ROWS[:, :1]), FINE),
    "cut off.npy": (npy(ROWS)[:-7], "not a plain array"),
    "half a header.npy": (b"\x93NUMPY\x01\x00", "not a plain array"),
    "more behind.npy": (npy(ROWS) + b"more", FINE),
    "new version.npy": (npy(ROWS).replace(b"NUMPY\x01", b"NUMPY\x09"), "not a plain array"),
    "bad header.npy": (npy(ROWS).replace(b"'descr'", b"'descr("), "not a plain array"),
    "text.npy": (b"1,0\n0,1\n", "unknown format; expected a .npy"),
    "array.csv": (npy(ROWS), FINE),
    "array.npz": (npy(ROWS), "not an .npz file"),
    "no arrays.npz": (npz(), "the file contains no arrays"),
    "two arrays.npz": (npz(a=ROWS, b=ROWS), "contains several arrays; use one of .*:a, .*:b"),
    "ragged.csv": (b"1,0\n0,1\n1\n", "line 3 has 1 columns, but the first has 2"),
    "longer.csv": (b"1,0\n1,0,1\n", "line 2 has 3 columns"),
    "words.csv": (b"a,b\n1,0\n0,abc\n", r"line 3, column 2 \(b\) is 'abc' in a column of numbers"),
    "names only.csv": (b"a,b\n", "a header, but no rows"),
    "gap.csv": (b"1,\n0,1\n", FINE),
    "blank.csv": (b"\n \n\n", "column 0 has no observed value"),
    "nan.csv": (b"1,0\n0,nan\n", FINE),
    "underscore.csv": (b"1_0,1\n1,0\n", r"the first line \(1_0, 1\) contains words and numbers"),
    "over lines.csv": (b'1,"0\n1",0\n0,1,1\n', "contains words and numbers"),
    "decimal commas.csv": (b"1,5;2,5\n1,0;2,0\n", FINE),
    "5000 digits.csv": (b"1" * 5000 + b",1\n0,1\n", "row 0, column 0 is inf"),
    "byte order mark.csv": (b"\xef\xbb\xbf" + csv(ROWS), FINE),
    "utf16.csv": ("1,0\n0,1\n".encode("utf-16"), "not a text file in UTF-8"),
    "latin.csv": ("é,1\n1,2\n".encode("latin1"), "not a text file in UTF-8"),
    "cut off.csv.gz": (gzip.compress(csv(ROWS))[:-4], "cannot be read"),
    "no rows-idx2-ubyte": (bytes([0, 0, 8, 2, *[0] * 8]), r"the shape is \(0, 0\)"),
    "half a header.idx": (bytes([0, 0, 8, 3, 0, 0]), "ends inside its header"),
    "too short.idx": (bytes([0, 0, 8, 1, 0, 0, 0, 9, 1]), "there are 1 bytes of data"),
    "picture.png": (b"\x89PNG\r\n\x1a\n" + bytes(50), "unknown format; expected a .npy"),
    "größe 大小 😀.csv": (csv(ROWS), FINE),
    "größe 大小 😀.npy": (npy(having(np.inf)), "row 3, column 5 is inf"),
    'a: b\'s "c".npy': (npy(having(np.inf)), "row 3, column 5 is inf"),
    "a folder.npy": ("folder", "the directory is empty"),
    "a link to nowhere.npy": ("link", "file not found"),
}

TAKES = {  # what follows the path of a run and that of the data
    "train": lambda run, data, out: ("train", data, "--out", out / "new", "--hidden", 2, "--epochs", 1),
    "train --validation": lambda run, data, out: (
        "train", run.parent / "bars.npy", "--validation", data, "--out", out / "new", "--hidden", 2, "--epochs", 1
    ),
    "evaluate": lambda run, data, out: ("evaluate", run, "--data", data, "--exact", "--json"),
    "evaluate --ais": lambda run, data, out: ("evaluate", run, "--data", data, "--temperatures", 20, "--json"),
    "denoise": lambda run, data, out: ("denoise", run, data, "--p", 0.1, "--out", out / "result.npy"),
    "denoise --channel gaussian": lambda run, data, out: (
        "denoise", run, data, "--channel", "gaussian", "--sigma", 0.3, "--out", out / "result.npy"
    ),
    "impute": lambda run, data, out: ("impute", run, data, "--out", out / "result.npy"),
    "score": lambda run, data, out: ("score", run, data),
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    np.save(folder / "bars.npy", bars(40))
    code, _, errors = command("train", folder / "bars.npy", "--out", folder / "run", "--hidden", 3, "--epochs", 1, "-q")
    assert code == 0, errors
    return folder / "run"


def put(folder, name, content):
    path = folder / name
    if content == "folder":
        path.mkdir()
    elif content == "link":
        path.symlink_to("nowhere")
    else:
        path.write_bytes(content)
    return path


def refused_or_finite(name, run, path, out):
    """What a command says of a file: one line that names it, or nothing and finite results."""
    out.mkdir(exist_ok=True)
    code, printed, errors = command(*TAKES[name](run, path, out), "--quiet")
    assert code in (0, 2), errors
    if code == 2:
        assert errors.count("\n") == 1
        assert path.name in errors
        assert not (out / "result.npy").exists()
        return errors
    assert "nan" not in printed.lower()
    assert "inf" not in printed.lower()
    if (out / "result.npy").exists():
        assert np.isfinite(np.load(out / "result.npy")).all()
    if (out / "new").exists():
        machine = tm.load(out / "new/machine.safetensors")
        assert all(torch.isfinite(p).all() for p in machine.parameters())
    return None


def pairs():
    """Every file through `train`, and through another command in turn; the others are slow."""
    for number, file in enumerate(FILES):
        for place, name in enumerate(TAKES):
            quick = name == "train" or number % (len(TAKES) - 1) == place - 1
            yield pytest.param(file, name, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize(("file", "name"), list(pairs()))
def test_dirty_files(file, name, run, tmp_path):
    content, message = FILES[file]
    said = refused_or_finite(name, run, put(tmp_path, file, content), tmp_path / "out")
    if name == "train":
        assert (said is None) == (message is FINE), said
        assert message is FINE or re.search(message, said), said


def test_a_million_columns(run, tmp_path):
    """They are read, and refused where a machine has others."""
    np.save(tmp_path / "wide.npy", np.zeros((2, 10**6), np.uint8))
    assert read(tmp_path / "wide.npy").rows.shape == (2, 10**6)
    for name in set(TAKES) - {"train"}:
        assert "1000000" in refused_or_finite(name, run, tmp_path / "wide.npy", tmp_path / "out")


@pytest.mark.slow
def test_training_on_a_million_columns(run, tmp_path):
    np.save(tmp_path / "wide.npy", np.zeros((2, 10**6), np.uint8))
    assert refused_or_finite("train", run, tmp_path / "wide.npy", tmp_path / "out") is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "invalid JSON"),
        (b"\xff\xfe", "invalid JSON"),
        (b"[" * 100_000, "invalid JSON"),
        (b'{"epochs": ' + b"1" * 5000 + b"}", "invalid JSON"),
        (b'{"epochs": NaN}', "epochs is nan; expected an integer"),
        (b'{"learning_rate": Infinity, "data": "digits"}', "learning_rate is inf; expected a finite positive number"),
        (b'{"data": "a\\u0000b.npy"}', "invalid file name"),
        (b'{"data": 3}', "data is 3; expected a string"),
    ],
)
def test_dirty_settings(content, message, tmp_path):
    path = tmp_path / "settings.json"
    path.write_bytes(content)
    code, _, errors = command("train", "--settings", path, "--out", tmp_path / "run")
    assert code == 2
    assert message in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize("name", ["info", "evaluate", "sample", "landscape", "report"])
def test_what_is_no_run(name, tmp_path):
    file = put(tmp_path, "a file", b"text")
    empty = put(tmp_path, "an empty folder", "folder")
    other = put(tmp_path, "a folder of others", "folder")
    put(other, "settings.json", b"{}")
    for path in (file, empty, other, tmp_path / "nothing", tmp_path / "größe 大小"):
        code, _, errors = command(name, path)
        assert code == 2, errors
        assert errors.count("\n") == 1
        assert path.name in errors


# ----- arrays and tensors, in Python

X = torch.tensor(bars(12)[:, ::4])


def small(visible=tm.Binary):
    weights = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    return tm.rbm(visible(4), tm.Binary(3), weights=weights)


def trained(machine, x, **options):
    tm.fit(machine, x, epochs=1, batch_size=6, monitor=tm.training.Monitor(n_starts=0), **options)
    return list(machine.parameters())


def deep():
    return tm.dbm([tm.Binary(4), tm.Binary(3), tm.Binary(2)])


FLIPS = tm.BinarySymmetric(0.1)
FUNCTIONS = {
    "fit": lambda x: trained(small(), x),
    "fit, Gaussian": lambda x: trained(small(tm.Gaussian), x),
    "fit, validation": lambda x: trained(small(), X, validation=x),
    "fit, weights": lambda x: trained(small(), X, weights=x),
    "fit, loader": lambda x: trained(small(), [x, x]),
    "pretrain": lambda x: [tm.pretrain(machine := deep(), x, epochs=1, batch_size=6) and (), *machine.parameters()],
    "default_learning_rate": lambda x: tm.training.default_learning_rate(small(), x),
    "tap_log_likelihood": lambda x: tm.tap_log_likelihood(small(), x).values,
    "exact_log_likelihood": lambda x: tm.exact_log_likelihood(small(), x).values,
    "ais_log_likelihood": lambda x: tm.ais_log_likelihood(small(), x, annealing=tm.likelihood.Annealing(5)).values,
    "ais_log_partition, data": lambda x: tm.ais_log_partition(small(), 5, 10, data=x).log_partition,
    "pseudo_log_likelihood": lambda x: tm.pseudo_log_likelihood(small(), x).values,
    "compare_likelihoods": lambda x: [
        row.train for row in tm.compare_likelihoods(small(), x, annealing=tm.likelihood.Annealing(5)).rows
    ],
    "denoise": lambda x: tm.denoise(small(), x, FLIPS).mean,
    "denoise, Gaussian": lambda x: tm.denoise(small(), x, tm.GaussianNoise(0.3)).mean,
    "denoise, Poisson": lambda x: tm.denoise(small(), x, tm.PoissonNoise(2.0)).mean,
    "denoise, data": lambda x: tm.denoise(small(), X, FLIPS, data=x).mean,
    "impute": lambda x: tm.impute(small(), x).mean,
    "gibbs_posterior": lambda x: tm.posterior.gibbs_posterior(small(), x, FLIPS, n_sweeps=3).mean,
    "anomaly_score": lambda x: tm.posterior.anomaly_score(small(), x),
    "surprise": lambda x: tm.posterior.conditional_surprise(small(), x),
    "solve": lambda x: tm.solve(small(), x).free_energy,
    "solve, noisy": lambda x: tm.solve(small(), tm.solver.noisy_start(small(), x, 0.1)).free_energy,
    "find_solutions": lambda x: tm.find_solutions(small(), x).free_energy,
    "hidden_means": lambda x: tm.analysis.hidden_means(small(), x)[-1],
    "hidden_given": lambda x: tm.solve(hidden_machine(deep(), x)).free_energy,
    "clamp": lambda x: tm.solve(tm.clamp(small(), x)).free_energy,
    "gibbs": lambda x: tm.gibbs(small(), x, 2, torch.Generator().manual_seed(0))[0],
    "rank_fields": lambda x: tm.analysis.receptive_fields(small(), x).spread,
    "fit_to": lambda x: list(tm.Gaussian(4).fit_to(x).parameters()),
    "corrupt": lambda x: FLIPS.corrupt(x).nan_to_num(),  # what is missing stays so
}
ESTIMATOR = {
    "fit": lambda model, x: tm.RBM(3, epochs=1).fit(x).components_,
    "fit, categorical": lambda model, x: tm.RBM(3, epochs=1, visible="categorical").fit(x).components_,
    "partial_fit": lambda model, x: tm.RBM(3).partial_fit(x).components_,
    "transform": lambda model, x: model.transform(x),
    "inverse_transform": lambda model, x: model.inverse_transform(x),
    "score": lambda model, x: model.score(x),
    "denoise": lambda model, x: model.denoise(x, FLIPS),
    "impute": lambda model, x: model.impute(x),
}


def with_value(value, row=3, column=2):
    x = X.clone()
    x[row, column] = value
    return x


ARRAYS = {
    "NaN": with_value(np.nan).numpy(),
    "infinite": with_value(np.inf).numpy(),
    "large": np.full((5, 4), 1e300),
    "fractions": 0.5 * X.numpy(),
    "negative": -X.numpy(),
    "constant": 0 * X.numpy(),
    "duplicate columns": np.repeat(X[:, :1].numpy(), 4, 1),
    "no rows": X[:0].numpy(),
    "no columns": X[:, :0].numpy(),
    "one row": X[:1].numpy(),
    "too few columns": X[:, :2].numpy(),
    "a number": np.array(1.0),
    "rank 1": X[0].numpy(),
    "rank 3": X[None].numpy(),
    "strings": np.array([["a"] * 4] * 3),
    "objects": np.array([[{}] * 4] * 3, dtype=object),
    "complex": X.numpy().astype(complex),
    "half": X.numpy().astype("f2"),
    "long double": X.numpy().astype("longdouble"),
    "other byte order": X.numpy().astype(">f4"),
    "read-only": np.broadcast_to(X[:1].numpy(), (12, 4)),
    "backwards": X.numpy()[::-1],
    "a list": X.tolist(),
    "a ragged list": [[0, 1], [1]],
    "nothing": None,
    "a name": "bars.npy",
}
TENSORS = {
    "tensor, NaN": with_value(np.nan),
    "tensor, -inf": with_value(-np.inf),
    "tensor, 1e30": 1e30 * X,
    "tensor, no rows": X[:0],
    "tensor, a number": torch.tensor(1.0),
    "tensor, rank 3": X[None],
    "tensor, complex": X.to(torch.complex64),
    "tensor, bfloat16": X.bfloat16(),
    "tensor, double": X.double(),
    "tensor, bool": X.bool(),
    "tensor, 3": 3 * X.int(),
    "tensor, sparse": X.to_sparse(),
    "tensor, without memory": X.to("meta"),
    "tensor, with gradient": X.clone().requires_grad_(),
    "an integer": 3,
    "a dictionary": {"x": X},
    "an iterator": iter([X]),
}
MUST_FAIL = {  # in every function
    "no rows", "no columns", "a number", "strings", "objects", "complex", "a ragged list", "a name", "tensor, complex",
    "tensor, a number", "tensor, without memory", "tensor, sparse", "a dictionary", "an integer",
}  # fmt: skip


def is_finite(found):
    if isinstance(found, tuple | list):
        return all(map(is_finite, found))
    return bool(torch.isfinite(torch.as_tensor(found)).all())


def fails_or_is_finite(call, x, errors):
    """Whether it failed, with words; filters are those of a user, who sees warnings of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            assert is_finite(call(x))
        except errors as error:
            return len(str(error)) > 10 or pytest.fail(f"{error!r} says little")
    return False


SLOW = {  # and their checks are those of others
    "compare_likelihoods", "ais_log_likelihood", "ais_log_partition, samples", "denoise, Gaussian", "denoise, Poisson",
    "denoise, data", "solve, noisy",
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in FUNCTIONS]
)
def test_dirty_arrays_in_functions(name):
    for what, x in (ARRAYS | TENSORS).items():
        failed = fails_or_is_finite(FUNCTIONS[name], x, ValueError)
        assert failed or what not in MUST_FAIL, what


@pytest.fixture(scope="module")
def model():
    return tm.RBM(3, epochs=1, visible="binary").fit(X.numpy())


@pytest.mark.parametrize("name", ESTIMATOR)
def test_dirty_arrays_in_the_estimator(name, model):
    for what, x in ARRAYS.items():
        failed = fails_or_is_finite(lambda x: ESTIMATOR[name](model, x), x, (ValueError, TypeError))  # scikit-learn's
        assert failed or what not in MUST_FAIL, what


# ----- made at random


def random_array(chance):
    """Rows, most of them for the machine at hand, and something wrong with most of them."""
    numbers = np.random.default_rng(chance.randrange(2**32))
    shape = chance.choice([(5, 16)] * 6 + [(1, 16), (0, 16), (5, 0), (16,), (), (5, 4, 4), (2, 3), (5, 2, 2, 2, 2)])
    array = numbers.integers(0, 2, shape).astype(chance.choice(["f8", "f4", "f2", "i1", "u1", "i8", "?", "longdouble"]))
    if array.size and array.dtype.kind in "fi" and chance.random() < 0.6:
        values = [np.nan, np.inf, -np.inf, 1e300, -1e300, 5e-324, 0.5, -1.0, 1e20, 65504.0]
        value = chance.choice(values if array.dtype.kind == "f" else [-1, 2, 100, 127])
        with np.errstate(over="ignore", under="ignore"):
            array.flat[numbers.integers(array.size)] = value
    return array


def random_file(chance):
    """A name, and its content, perhaps damaged."""
    array = random_array(chance)
    kind = chance.choice(["npy", "npz", "csv", "tsv", "csv.gz", "idx"])
    if kind == "npy":
        content = npy(array)
    elif kind == "npz":
        content = npz(**dict.fromkeys(chance.choice([("x",), ("x", "y"), ()]), array))
    elif kind == "idx":
        whole = array.astype("u1") if array.dtype.kind in "biu" else np.zeros((4, 16), "u1")
        content = bytes([0, 0, 8, whole.ndim]) + np.array(whole.shape, ">u4").tobytes() + whole.tobytes()
    else:
        cells = [
            [f"{value}" for value in row] for row in np.atleast_2d(array).reshape(max(1, len(np.atleast_1d(array))), -1)
        ]
        for _ in range(chance.randrange(3) if cells and cells[0] else 0):
            row = chance.choice(cells)
            row[chance.randrange(len(row))] = chance.choice(["", "abc", "1e999", "--1", "0x10", '"', "1_0", "٣", "nan"])
        if cells and chance.random() < 0.2:
            cells[-1] = cells[-1][:-1]
        mark = "\t" if kind == "tsv" else chance.choice(",; ")
        content = chance.choice(["\n", "\r\n", "\r"]).join(mark.join(row) for row in cells).encode()
        content = gzip.compress(content) if kind == "csv.gz" else content
    if content and chance.random() < 0.2:
        place = chance.randrange(len(content))
        content = content[:place] + chance.choice([b"", chance.randbytes(4) + content[place + 4 :]])
    return f"{chance.choice(['x', 'a b', 'ü'])}.{kind}", content


def generated(count, seed, run, tmp_path):
    """So many files, each through a command, or a function that takes arrays; how many were refused."""
    chance, refused = random.Random(seed), 0
    model = tm.RBM(3, epochs=1, visible="binary").fit(bars(12))
    for number in range(count):
        folder = tmp_path / str(number)
        folder.mkdir()
        if chance.random() < 0.3:
            call = chance.choice(list(ESTIMATOR.values()))
            array = random_array(chance)
            refused += fails_or_is_finite(lambda x, call=call: call(model, x), array, (ValueError, TypeError))
        else:
            path = put(folder, *random_file(chance))
            refused += refused_or_finite(chance.choice(list(TAKES)), run, path, folder / "out") is not None
    return refused


def test_generated_data(run, tmp_path):
    refused = generated(30, 0, run, tmp_path)
    assert 5 < refused < 28  # both happen


@pytest.mark.slow
def test_5000_generated_data(run, tmp_path):
    print(json.dumps({"generated": 5000, "refused": generated(5000, 1, run, tmp_path)}))
