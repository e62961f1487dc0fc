"""Tables on the command line, by column name: text, Parquet and AnnData files in; the same form out."""

import csv
import sys

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from run_cases import command

from tapmachine import RBM, load
from tapmachine.data.errors import DataError
from tapmachine.exact import mixture_of
from tapmachine.tables.codec import read_rows as read

pd = pytest.importorskip("pandas")


def birds(n=90):
    """Three species, whose columns depend on each other; some cells are missing."""
    generator = np.random.default_rng(0)
    kind = generator.integers(0, 3, n)
    frame = pd.DataFrame(
        {
            "species": np.array(["Adelie", "Chinstrap", "Gentoo"])[kind],
            "mass": (3500.0 + 700 * kind + 200 * generator.normal(size=n)).round(1),
            "flipper": 190 + 12 * kind + generator.integers(-3, 4, n),
            "sex": generator.choice(["f", "m"], n),
        }
    )
    frame.loc[3, "mass"] = None
    frame.loc[4, "species"] = None
    return frame


def words(*arguments):
    """What a command prints and says, if all is well."""
    code, printed, said = command(*arguments)
    assert code == 0, said
    return printed, said


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("birds")
    birds().to_csv(folder / "birds.csv", index=False)
    words("train", folder / "birds.csv", "--hidden", 3, "--out", folder / "run", "--quiet")
    return folder / "run"


@pytest.fixture
def data(run):
    return run.parent / "birds.csv"


def table(text):
    return list(csv.DictReader(text.splitlines()))


def posterior_of(run, frame):
    """By way of the DataFrame: what the command line must come to."""
    from tapmachine.runs.session import Session
    from tapmachine.tables.frames import Frame

    schema = Session(run).codec.schema
    rows = torch.from_numpy(schema.encode(Frame.of(frame).columns))
    return schema, mixture_of(load(run)).condition(rows)


# ----- files


@pytest.mark.parametrize("name", ["birds.csv", "birds.csv.gz", "birds.tsv", "birds.tsv.gz", "birds.parquet"])
def test_every_form_of_a_table_is_read_alike(name, tmp_path, run, data):
    frame, path = birds(), tmp_path / name
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if ".tsv" in name else ",")
    expected, found = read(data, gaps=True), read(path, gaps=True)
    np.testing.assert_allclose(found.rows, expected.rows)
    assert [column.kind for column in found.schema.columns] == ["categorical", "real", "real", "binary"]
    printed, _ = words("score", run, path)
    assert printed == words("score", run, data)[0]


def test_parquet_types_decide_and_come_back(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    frame = birds().astype({"flipper": "Int16", "species": "category"})
    frame["alive"], frame["mass"] = frame["sex"] == "f", frame["mass"].astype("float32")
    frame["size"] = pd.Categorical(np.where(frame["flipper"] > 205, "l", "s"), ["s", "m", "l"], ordered=True)
    frame.index = pd.Index([f"bird {row}" for row in range(len(frame))], name="who")
    monkeypatch.chdir(tmp_path)
    frame.to_parquet("birds.parquet")
    words("train", "birds.parquet", "--hidden", 3, "--out", "run", "--quiet")
    assert "size: categorical, 3 ordered categories (s, m, l)" in words("info", "run")[0]
    words("impute", "run", "birds.parquet", "--out", "filled.parquet")
    filled = pd.read_parquet("filled.parquet")
    pd.testing.assert_series_equal(filled.dtypes, frame.dtypes)
    pd.testing.assert_index_equal(filled.index, frame.index)
    assert not filled.isna().any(axis=None)
    for name in frame:
        observed = frame[name].notna()
        pd.testing.assert_series_equal(filled.loc[observed, name], frame.loc[observed, name])
    words("sample", "run", "--count", 4, "--out", "drawn.parquet")
    pd.testing.assert_series_equal(pd.read_parquet("drawn.parquet").dtypes, frame.dtypes)
    frame.to_csv("again.csv", index=False)  # other forms of the same columns are read by their schema
    np.testing.assert_allclose(
        read("again.csv", gaps=True, schema=read("birds.parquet", gaps=True).schema).rows,
        read("birds.parquet", gaps=True).rows,
        atol=1e-5,
    )
    frame[["mass"]].assign(more=1.5).to_parquet("numbers.parquet")  # floats are numbers as ever
    numbers = read("numbers.parquet", gaps=True)
    assert numbers.schema is None
    assert numbers.layout.column_names() == ("mass", "more")


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix, sp.csc_matrix])
def test_anndata_files(form, tmp_path):
    anndata = pytest.importorskip("anndata")
    x = (np.random.default_rng(0).random((40, 6)) < 0.3).astype(np.float32)
    labels = [pd.DataFrame(index=[f"{word}{i}" for i in range(n)]) for word, n in (("cell", 40), ("gene", 6))]
    anndata.AnnData(form(x), obs=labels[0], var=labels[1]).write_h5ad(tmp_path / "cells.h5ad")
    found = read(tmp_path / "cells.h5ad")
    np.testing.assert_array_equal(found.rows, x)
    assert any("var_names as columns and obs_names as row names" in note for note in found.notes)
    words("train", tmp_path / "cells.h5ad", "--hidden", 2, "--epochs", 1, "--out", tmp_path / "run", "--quiet")
    words("impute", tmp_path / "run", tmp_path / "cells.h5ad", "--out", tmp_path / "out.csv")
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0] == ",gene0,gene1,gene2,gene3,gene4,gene5"
    assert lines[1].startswith("cell0,")


@pytest.mark.parametrize(
    ("name", "library", "message"),
    [
        ("x.parquet", "pyarrow", "Parquet files require pandas and pyarrow: pip install"),
        ("x.h5ad", "anndata", "AnnData files require anndata: pip install"),
    ],
)
def test_missing_libraries_and_damaged_files(name, library, message, tmp_path, monkeypatch):
    pytest.importorskip(library)
    with pytest.raises(DataError, match="file not found"):
        read(tmp_path / name)
    (tmp_path / name).write_bytes(b"PAR1 nonsense")
    with pytest.raises(DataError, match=r"not an? .* file|cannot be read") as error:
        read(tmp_path / name)
    assert "\n" not in str(error.value)
    monkeypatch.setitem(sys.modules, library, None)
    code, _, said = command("train", tmp_path / name, "--out", tmp_path / "run")
    assert code == 2
    assert message in said


# ----- uses


def test_predictions_are_those_of_the_posterior(run, data, tmp_path):
    frame = birds()
    for column in ("species", "sex", "mass"):
        without = frame.drop(columns=column)
        without.to_csv(tmp_path / "rows.csv", index=False)
        rows = table(words("predict", run, tmp_path / "rows.csv", "--column", column)[0])
        assert rows == table(words("predict", run, data, "--column", column)[0])  # the column itself is ignored
        schema, posterior = posterior_of(run, frame.assign(**{column: None}))
        where = schema.components[column]
        mean = posterior.moments.mean[:, where].numpy()
        if column == "mass":
            known = schema.columns[1]
            lower, upper = (end[:, where].numpy() for end in posterior.intervals(0.9))
            expected = [known.shift + known.scale * z[:, 0] for z in (mean, lower, upper)]
            found = [[float(row[name]) for row in rows] for name in ("mass", "lower", "upper")]
        else:
            names = ("Adelie", "Chinstrap", "Gentoo") if column == "species" else ("f", "m")
            shares = mean if column == "species" else np.concatenate((1 - mean, mean), 1)
            found, expected = [[float(row[name]) for row in rows] for name in names], list(shares.T)
            assert [row[column] for row in rows] == [names[best] for best in shares.argmax(1)]
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_imputation_with_intervals_probabilities_and_draws(run, data, tmp_path):
    _, said = words("impute", run, data, "--out", tmp_path / "filled.csv", "--interval", 0.8, "--draws", 2)
    assert "filled-1.csv to filled-2.csv" in said
    frame, filled = birds(), pd.read_csv(tmp_path / "filled.csv")
    drawn = [pd.read_csv(tmp_path / f"filled-{number}.csv") for number in (1, 2)]
    for result in (filled, *drawn):
        assert not result.isna().any(axis=None)
        assert (result == frame).to_numpy()[frame.notna().to_numpy()].all()  # to the last digit
    assert drawn[0]["mass"][3] != drawn[1]["mass"][3]
    lines = table((tmp_path / "filled-gaps.csv").read_text())
    assert [(line["row"], line["column"]) for line in lines] == [("3", "mass"), ("4", "species")]
    assert float(lines[0]["lower"]) < float(lines[0]["value"]) < float(lines[0]["upper"])
    assert lines[1]["value"] == filled["species"][4]
    shares = dict(pair.rsplit(" ", 1) for pair in lines[1]["probabilities"].split("; "))
    assert max(shares, key=lambda name: float(shares[name])) == filled["species"][4]
    assert sum(map(float, shares.values())) == pytest.approx(1, abs=1e-3)


def test_scores_name_the_columns_to_blame(run, data, tmp_path):
    frame = birds()
    frame.loc[7, "mass"] = 9000.0
    frame.to_csv(tmp_path / "odd.csv", index=False)
    words("score", run, tmp_path / "odd.csv", "--out", tmp_path / "scores.csv", "--units", tmp_path / "cells.csv")
    scores = pd.read_csv(tmp_path / "scores.csv")
    assert scores["nats"].idxmax() == 7
    assert scores["columns"][7].startswith("mass ")
    schema, posterior = posterior_of(run, frame)
    expected = -posterior.mixture.log_density(posterior.x).numpy() + schema.log_scale(posterior.x.numpy())
    np.testing.assert_allclose(scores["nats"], expected, rtol=1e-5)
    cells = pd.read_csv(tmp_path / "cells.csv")
    assert list(cells) == list(frame)
    np.testing.assert_array_equal(cells.isna(), frame.isna())
    model_scale = -scores["nats"].mean()
    evaluated = words("evaluate", run, "--data", tmp_path / "odd.csv", "--json")[0]
    assert f'"mean": {model_scale:.3f}'[:14] in evaluated


def test_conditional_samples(run, tmp_path):
    out = tmp_path / "drawn.csv"
    words("sample", run, "--count", 300, "--given", "species=Gentoo,flipper=215", "--out", out)
    drawn = pd.read_csv(out)
    assert set(drawn["species"]) == {"Gentoo"}
    assert set(drawn["flipper"]) == {215}
    row = birds()[:1].assign(species="Gentoo", flipper=215, mass=None, sex=None)
    schema, posterior = posterior_of(run, row)
    mean, variance = (z[0, schema.components["mass"]].item() for z in posterior.moments)
    known = schema.columns[1]
    expected, deviation = known.shift + known.scale * mean, known.scale * variance**0.5
    assert drawn["mass"].mean() == pytest.approx(expected, abs=4 * deviation / 300**0.5)
    for given, message in (
        ("species=Emperor", "column 'species' is 'Emperor' in row 0, which is not a category"),
        ("wings=2", "given has column 'wings'; expected one of 'species'"),
        ("mass=heavy", "given has the value 'heavy' for column 'mass'; expected a number"),
        ("mass", "--given has 'mass' without a value"),
    ):
        code, _, said = command("sample", run, "--given", given, "--out", out)
        assert (code, message in said) == (2, True), said


def test_conditional_samples_of_the_estimator():
    """By Gibbs chains with the given units held, against the conditional distribution by enumeration."""
    x = np.random.default_rng(0).random((200, 3)) < 0.4
    x[:, 1] = x[:, 0] ^ (x[:, 1] & x[:, 2])
    model = RBM(2, epochs=30, random_state=0).fit(x.astype(float))
    states = np.array([[1.0, a, b] for a in (0, 1) for b in (0, 1)])
    share = np.exp(model.score_samples(states))
    share /= share.sum()
    drawn = model.sample(4000, n_sweeps=20, given={0: 1.0}, random_state=1)
    assert (drawn[:, 0] == 1).all()
    found = [(drawn == state).all(1).mean() for state in states]
    np.testing.assert_allclose(found, share, atol=0.03)
    frame = birds().dropna()
    table_model = RBM(3, random_state=0).fit(frame)
    some = table_model.sample(5, given={"species": "Gentoo"})
    assert set(some["species"]) == {"Gentoo"}
    pd.testing.assert_series_equal(some.dtypes, frame.dtypes)
    with pytest.raises(ValueError, match="given has column 'wings'"):
        table_model.sample(1, given={"wings": 2})


def test_kinds_of_columns_by_name(data, tmp_path):
    _, said = words("train", data, "--columns", "flipper=categorical,mass=real", "--hidden", 2, "--out", tmp_path / "a")
    assert "flipper: categorical" in said
    plain = tmp_path / "plain.csv"
    birds()[["mass", "flipper"]].to_csv(plain, index=False)
    _, said = words("train", plain, "--columns", "flipper=count", "--hidden", 2, "--out", tmp_path / "b")
    assert "flipper: count: as specified" in said
    for option, message in (
        ("flipper=integer", "expected NAME=KIND, separated by commas, with kinds real, count"),
        ("flipper", "expected NAME=KIND"),
        ("wing=real", "columns contains 'wing'; the table has no column of this name"),
        ("species=real", "column 'species' contains text and cannot be real"),
    ):
        code, _, said = command("train", data, "--columns", option, "--out", tmp_path / "c")
        assert (code, message in said) == (2, True), said
    np.save(tmp_path / "x.npy", np.eye(8))
    code, _, said = command("train", tmp_path / "x.npy", "--columns", "a=real", "--out", tmp_path / "c")
    assert (code, "columns have no names" in said) == (2, True), said


# ----- bad input


def changed(**values):
    return lambda frame: frame.assign(**values)


def test_bad_tables(tmp_path):
    """Other errors are those of tables in memory (test_frames.py)."""
    frame, message = birds(), "line 2, column 2 (mass) is 'heavy' in a column of numbers"
    frame.assign(mass=["heavy", *frame["mass"][1:]]).to_csv(tmp_path / "bad.csv", index=False)
    code, _, said = command("train", tmp_path / "bad.csv", "--hidden", 2, "--out", tmp_path / "run")
    assert (code, message in said, said.count("\n")) == (2, True, 1), said


@pytest.mark.parametrize("use", ["score", "impute", "predict"])
def test_a_category_that_the_training_data_lack_is_missing(use, run, tmp_path):
    birds().replace("Adelie", "Emperor").to_csv(tmp_path / "new.csv", index=False)
    options = ("--column", "sex") if use == "predict" else ("--out", tmp_path / "out.csv")
    code, _, said = command(use, run, tmp_path / "new.csv", *options)
    assert code == 0
    assert "column 'species': 23 values that the training data lack, treated as missing; the first is 'Emperor'" in said


@pytest.mark.parametrize("use", ["score", "impute", "predict"])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (changed(flipper=-np.inf), "column 'flipper' is -inf in row 0"),
    ],
)
def test_bad_rows(use, spoil, message, run, tmp_path):
    spoil(birds()).to_csv(tmp_path / "bad.csv", index=False)
    options = ("--column", "sex") if use == "predict" else ("--out", tmp_path / "out.csv")
    code, _, said = command(use, run, tmp_path / "bad.csv", *options)
    assert (code, message in said, said.count("\n")) == (2, True, 1), said


def test_numbers_with_columns_in_another_order(tmp_path, quick_tables):
    """Tables without text have no schema, but names."""
    numbers = birds()[["mass", "flipper"]].dropna().assign(other=lambda f: f["mass"] * 0.3 + f["flipper"])
    numbers.to_csv(tmp_path / "x.csv", index=False)
    words("train", tmp_path / "x.csv", "--hidden", 1, "--out", tmp_path / "run", "--quiet")
    numbers[["flipper", "mass", "other"]].to_csv(tmp_path / "y.csv", index=False)
    for use in (("score",), ("evaluate", "--data"), ("impute",)):
        code, _, said = command(use[0], tmp_path / "run", *use[1:], tmp_path / "y.csv")
        assert (code, "column 1 is 'flipper', but was 'mass' in training" in said) == (2, True), said
    predicted = table(words("predict", tmp_path / "run", tmp_path / "x.csv", "--column", "other")[0])
    np.testing.assert_allclose([float(row["other"]) for row in predicted], numbers["other"], rtol=0.05)
