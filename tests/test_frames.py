"""DataFrames in and out: kinds of columns, round trips, bad input, predictions of a column."""

import itertools
import json
import pickle

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline

from tapmachine import RBM
from tapmachine.channels import Missing
from tapmachine.likelihood import exact_log_likelihood
from tapmachine.machine.checks import in_double
from tapmachine.tables.frames import Frame, from_columns
from tapmachine.tables.schema import Schema

pd = pytest.importorskip("pandas")


def penguins(n: int = 60) -> "pd.DataFrame":
    generator = np.random.default_rng(0)
    kind = generator.integers(0, 3, n)
    return pd.DataFrame(
        {
            "mass": (4 + kind + 0.3 * generator.normal(size=n)).astype(np.float32),
            "species": np.array(["Adelie", "Chinstrap", "Gentoo"])[kind],
            "year": 2007 + kind + 3 * generator.integers(0, 50, n),
            "alive": generator.random(n) < 0.2 + 0.3 * kind,
            "size": pd.Categorical(np.array(["s", "m"])[kind // 2], categories=["s", "m", "l"], ordered=True),
            "eggs": pd.array(generator.poisson(3, n), dtype="Int16"),
            "sex": generator.choice(["f", "m"], n).astype(object),
        },
        index=[f"bird {i}" for i in range(n)],
    )


@pytest.fixture(scope="module")
def fitted() -> RBM:
    return RBM(4, columns={"eggs": "real"}).fit(penguins())


def schema_of(frame, **kinds) -> Schema:
    return Schema.infer(Frame.of(frame).columns, kinds)


# ----- schemas


def test_kinds_follow_from_types_and_values():
    kinds = {column.name: column.kind for column in schema_of(penguins()).columns}
    assert kinds == {
        "mass": "real",
        "species": "categorical",
        "year": "real",
        "alive": "binary",
        "size": "categorical",
        "eggs": "count",
        "sex": "binary",
    }
    override = schema_of(penguins(), alive="categorical", eggs="categorical", year="count")
    assert [override.columns[i].kind for i in (3, 5, 2)] == ["categorical", "categorical", "count"]
    assert len(schema_of(penguins()).describe().splitlines()) == 7


def test_a_table_with_gaps_comes_back_with_index_types_and_categories():
    frame = penguins()
    for row, name in enumerate(("species", "size", "eggs", "sex", "mass")):
        frame.loc[frame.index[row], name] = np.nan if name == "mass" else pd.NA if name == "eggs" else None
    schema = Schema.from_dict(json.loads(json.dumps(schema_of(frame).to_dict())))
    assert schema == schema_of(frame)
    code = schema.encode(Frame.of(frame).columns)
    assert code.shape == (60, schema.n_components) == (60, 11)
    assert np.isnan(code[0]).sum() == 3  # all components of a category
    assert np.isnan(code).sum() == 3 + 3 + 1 + 1 + 1
    real = code[:, schema.components["year"]]
    assert [real.mean(), real.std()] == pytest.approx([0, 1])
    pd.testing.assert_frame_equal(from_columns(schema.decode(code), "pandas", frame.index), frame)


def test_components_are_grouped_by_kind():
    schema = schema_of(penguins())
    assert schema.blocks() == [("real", 1, 2), ("count", 1, 1), ("binary", 1, 2), ("categorical", 3, 2)]
    covered = sorted(itertools.chain(*(range(11)[where] for where in schema.components.values())))
    assert covered == list(range(11))


def test_polars():
    pl = pytest.importorskip("polars")
    from polars.testing import assert_frame_equal

    plain = penguins().drop(columns=["size", "sex"])
    frame = pl.DataFrame({name: plain[name].to_list() for name in plain}).with_columns(
        pl.Series("rank", ["u", "v", "w"] * 20, dtype=pl.Enum(["w", "v", "u"])), pl.col("eggs").cast(pl.Int16)
    )
    schema = schema_of(frame)
    assert_frame_equal(from_columns(schema.decode(schema.encode(Frame.of(frame).columns)), "polars"), frame)
    model = RBM(3).fit(frame)
    assert model.sample(4).schema == frame.schema
    assert isinstance(model.score_samples(frame), pl.Series)
    assert model.predict_proba(frame, "rank").columns == ["w", "v", "u"]


def change(frame, name, values, row=None):
    frame = frame.copy()
    frame[name] = values if row is None else [values if i == row else v for i, v in enumerate(frame[name])]
    return frame


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: change(f, "species", None), "column 'species' has only missing values"),
        (lambda f: change(f, "mass", np.inf, 3), "column 'mass' is inf in row 3"),
        (lambda f: change(f, "sex", 7, 2), "column 'sex' contains numbers and text"),
        (lambda f: change(f, "sex", pd.Timestamp(0)), "column 'sex' contains datetime"),
        (lambda f: f.rename(columns={"sex": "mass"}), "column 'mass' occurs twice"),
    ],
)
def test_bad_tables(spoil, message):
    with pytest.raises(ValueError, match=message) as error:
        RBM(3).fit(spoil(penguins()))
    assert "\n" not in str(error.value)


def test_an_identifier_is_no_category():
    with pytest.raises(ValueError, match="column 'sex' has 300 categories, more than 256"):
        schema_of(penguins(300).assign(sex=[str(i) for i in range(300)]))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda f: change(f, "species", "Emperor", 4),
            "column 'species' is 'Emperor' in row 4, which is not a category",
        ),
        (lambda f: change(f, "sex", "x", 1), "column 'sex' is 'x' in row 1, which is not a category"),
        (lambda f: change(f, "mass", "heavy"), "column 'mass' contains text; expected numbers"),
        (lambda f: f.drop(columns="year"), "column 'year' of the training data is missing"),
        (lambda f: f.assign(extra=1), "column 'extra' was not in the training data"),
        (lambda f: f.drop(columns=["year", "sex"]), "columns 'year', 'sex' of the training data are missing; add them"),
        (lambda f: change(f, "species", None, 2), "column 'species' is missing in row 2"),
        (lambda f: f.to_numpy(), "expected a DataFrame with the columns"),
        (lambda f: f[:0], "no rows"),
    ],
)
def test_bad_rows_later(spoil, message, fitted):
    with pytest.raises(ValueError, match=message) as error:
        fitted.denoise(penguins(), Missing(), data=spoil(penguins()))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": {"egg": "real"}}, "columns contains 'egg'; the table has no column of this name"),
        ({"columns": {"eggs": "integer"}}, r"columns\['eggs'\] is 'integer'; expected one of real"),
        ({"columns": {"species": "real"}}, "column 'species' contains text and cannot be real"),
        ({"columns": {"species": "binary"}}, "column 'species' has 3 distinct values and cannot be binary"),
        ({"columns": {"mass": "count"}}, "column 'mass' cannot be a count"),
        ({"columns": {"eggs": "real"}, "visible": "gaussian"}, "columns cannot be combined with visible"),
    ],
)
def test_bad_kinds(options, message):
    with pytest.raises(ValueError, match=message):
        RBM(3, **options).fit(penguins())


def test_a_constant_column_is_noted():
    frame = penguins().assign(species="Adelie", year=2007)
    model = RBM(3).fit(frame)
    assert {"species: constant (Adelie)", "year: constant (2007)"} <= set(model.schema_.describe().splitlines())
    assert model.sample(5)[["species", "year"]].drop_duplicates().to_numpy().tolist() == [["Adelie", 2007]]
    assert list(model.predict_proba(frame, "species").columns) == ["Adelie"]
    np.testing.assert_allclose(model.predict_proba(frame, "species"), 1)


# ----- the estimator


def test_results_have_the_index_columns_and_types_of_the_data(fitted):
    frame = penguins()
    samples = fitted.sample(7)
    pd.testing.assert_series_equal(samples.dtypes, frame.dtypes)
    for result in (fitted.score_samples(frame), fitted.predict(frame, "sex")):
        assert list(result.index) == list(frame.index)
    assert fitted.predict(frame, "size").dtype == frame["size"].dtype
    features = fitted.transform(frame)
    back = fitted.inverse_transform(pd.DataFrame(features, index=frame.index))
    pd.testing.assert_series_equal(back.dtypes, frame.dtypes)
    assert list(back.index) == list(frame.index)
    assert list(fitted.feature_names_in_) == list(frame)
    again = pickle.loads(pickle.dumps(fitted))
    pd.testing.assert_series_equal(again.score_samples(frame), fitted.score_samples(frame))
    assert list(RBM(2).set_output(transform="pandas").fit_transform(frame).index) == list(frame.index)


def test_scores_are_densities_of_the_data(fitted):
    """By enumeration of the encoded rows, and the change of units of each real column."""
    frame, schema = penguins(), fitted.schema_
    code = torch.from_numpy(schema.encode(Frame.of(frame).columns))
    jacobian = sum(np.log(frame[name].astype(float).std(ddof=0)) for name in ("mass", "year", "eggs"))
    expected = exact_log_likelihood(in_double(fitted.machine_), code).values.numpy() - jacobian
    np.testing.assert_allclose(fitted.score_samples(frame), expected, rtol=1e-6)


@pytest.mark.parametrize("column", ["species", "size", "alive", "sex"])
def test_probabilities_of_a_column_are_ratios_of_likelihoods(column, fitted):
    frame = penguins()
    found = fitted.predict_proba(frame.drop(columns=column), column)
    values = [True, False] if column == "alive" else list(found.columns)
    scores = [fitted.score_samples(frame.assign(**{column: value})) for value in values]
    expected = np.exp(np.stack(scores, 1) - np.logaddexp.reduce(np.stack(scores, 1), 1)[:, None])
    np.testing.assert_allclose(np.stack([found[value] for value in values], 1), expected, rtol=1e-5)
    best = np.array(values, object)[expected.argmax(1)]
    assert list(fitted.predict(frame, column)) == list(best)


def test_predictions_that_make_no_sense(fitted):
    with pytest.raises(ValueError, match="column 'mass' is real; expected a categorical or binary column"):
        fitted.predict_proba(penguins(), "mass")
    with pytest.raises(ValueError, match="column is 'wings'; expected one of 'mass'"):
        fitted.predict(penguins(), "wings")
    assert not hasattr(RBM(2, epochs=1).fit(np.eye(4).repeat(5, 0)), "predict")


def test_imputation_keeps_what_was_observed():
    frame = penguins()[["mass", "year", "alive", "sex"]]
    model = RBM(3).fit(frame)
    gappy = frame.astype({"year": "Int64", "alive": "boolean"})
    for row, name in enumerate(frame):
        gappy.loc[gappy.index[row], name] = np.nan if name == "mass" else None if name == "sex" else pd.NA
    filled, deviation = model.impute(gappy, return_std=True)
    assert not filled.isna().any(axis=None)
    observed = ~gappy.isna().to_numpy()
    assert (filled.astype(object).to_numpy()[observed] == gappy.astype(object).to_numpy()[observed]).all()
    assert ((deviation.to_numpy() > 0) == ~observed).all()
    assert list(filled.index) == list(frame.index)
    assert deviation.iloc[1, 1] == pytest.approx(frame["year"].std(), rel=0.3)  # in the units of the data


def test_floats_are_numbers_as_ever(quick_tables):
    frame = penguins()[["mass"]].assign(other=np.linspace(0, 1, 60))
    model, plain = RBM(2).fit(frame), RBM(2).fit(frame.to_numpy())
    assert [column.kind for column in model.schema_.columns] == ["real", "real"]
    np.testing.assert_array_equal(model.components_, plain.components_)
    assert list(model.sample(3).columns) == ["mass", "other"]
    assert list(model.impute(frame).index) == list(frame.index)
    assert isinstance(plain.sample(3), np.ndarray)
    np.testing.assert_array_equal(model.transform(frame[["other", "mass"]]), model.transform(frame))
    assert list(model.sample(2, given={"mass": 4.0})["mass"]) == [4.0, 4.0]


@pytest.mark.parametrize("names", [["species", "size"], ["species", "alive", "sex"]])
def test_a_survey_without_real_columns_has_samples_and_features(names):
    """The only hidden unit is categorical: its states are features."""
    frame = penguins(120)[names]
    model = RBM().fit(frame)
    pd.testing.assert_series_equal(model.sample(5).dtypes, frame.dtypes)
    features = model.transform(frame)
    assert features.shape == (120, len(model.get_feature_names_out()))
    np.testing.assert_allclose(features.sum(1), 1)
    back = model.inverse_transform(features)
    assert list(back.columns) == names
    pipeline = make_pipeline(RBM(random_state=0), LogisticRegression())
    label = penguins(120)["year"] % 2
    assert cross_val_score(pipeline, frame, label, cv=3).shape == (3,)
    assert np.isfinite(model.score(frame))
