"""The imputer, the classifier and the regressor for tables: the contract of scikit-learn, and what they predict."""

import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    LeaveOneGroupOut,
    cross_val_predict,
    cross_val_score,
    cross_validate,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils.estimator_checks import parametrize_with_checks

from tapmachine import RBMClassifier, RBMImputer, RBMRegressor
from tapmachine.data.errors import DataWarning
from tapmachine.tables import fit, slabs

pd = pytest.importorskip("pandas")


def each_check(estimators):
    """`parametrize_with_checks` with a list of cases: scikit-learn 1.6 has a generator, which pytest 9 deprecates."""
    names, cases = parametrize_with_checks(estimators).args
    return pytest.mark.parametrize(names, list(cases))


@pytest.fixture
def careless_fits(monkeypatch):
    """Tables are fitted without a search for the best parameters, where a test is about something else."""
    monkeypatch.setattr(fit, "N_FOLDS", 2)
    monkeypatch.setattr(fit, "CLASSES", (1, 2, 4))
    monkeypatch.setattr(fit, "SHRINKAGES", (0.1,))
    monkeypatch.setattr(slabs, "MOST_STEPS", 0)


@each_check([RBMImputer(2), RBMClassifier(4), RBMRegressor(2)])
def test_it_keeps_scikit_learns_contract(estimator, check, careless_fits):
    check(estimator)


@pytest.fixture(scope="module")
def birds():
    """Two species that differ in mass and island, and gaps in every column but the species."""
    generator = np.random.default_rng(0)
    kind = generator.integers(0, 2, 60)
    table = pd.DataFrame(
        {
            "mass": (4 + kind + 0.5 * generator.normal(size=60)).astype(np.float32),
            "island": np.where(generator.random(60) < 0.1 + 0.7 * kind, "north", "south").astype(object),
            "eggs": pd.array(generator.poisson(1 + 2 * kind), dtype="Int16"),
            "ringed": pd.array(generator.random(60) < 0.3, dtype="boolean"),
            "size": pd.Categorical(np.array(["s", "m"])[kind], categories=["s", "m", "l"], ordered=True),
        },
        index=[f"bird {i}" for i in range(60)],
    )
    return table.mask(generator.random(table.shape) < 0.1), np.array(["gentoo", "adelie"])[kind]


@pytest.fixture(scope="module")
def classifier(birds):
    return RBMClassifier(2).fit(*birds)


@pytest.fixture(scope="module")
def regressor(birds):
    x, _ = birds
    seen = x["mass"].notna()
    return RBMRegressor(2).fit(x[seen].drop(columns="mass"), x.loc[seen, "mass"])


# ----- imputer


def test_imputed_tables_keep_their_types_and_what_was_observed(birds):
    x, _ = birds
    complete = RBMImputer(2).fit_transform(x)
    assert not complete.isna().any(axis=None)
    assert (complete.dtypes == x.dtypes).all()
    pd.testing.assert_frame_equal(complete.where(x.notna()).astype(x.dtypes), x)
    assert complete.loc[x["mass"].isna(), "mass"].nunique() > 2  # not the mean of the column


def test_imputed_arrays_are_arrays(birds):
    x, _ = birds
    numbers = x[["mass"]].assign(twice=2 * x["mass"] + 1).to_numpy()
    numbers[::3, 1] = np.nan
    complete = RBMImputer(2).fit_transform(numbers)
    assert (type(complete), complete.dtype) == (np.ndarray, np.float32)
    np.testing.assert_array_equal(complete[~np.isnan(numbers)], numbers[~np.isnan(numbers)])
    objects = RBMImputer(2).fit_transform(x.to_numpy())
    assert set(objects[:, 1]) == {"north", "south"}
    assert not pd.isna(objects).any()


def test_columns_of_an_array_have_numbers_as_names():
    x = np.array([[0.0, 1.5], [1.0, 2.5], [2.0, 3.5], [np.nan, 4.5]] * 5)
    model = RBMImputer(2, columns={"0": "categorical"}).fit(x)
    assert [column.kind for column in model.model_.schema_.columns] == ["categorical", "real"]
    named = RBMImputer(2).fit(pd.DataFrame(x))
    assert named.transform(pd.DataFrame(x)).columns.tolist() == [0, 1]


def test_imputed_tables_of_polars(birds):
    polars = pytest.importorskip("polars")
    x = polars.from_pandas(birds[0].drop(columns="size"))
    complete = RBMImputer(2).fit_transform(x)
    assert complete.schema == x.schema
    assert sum(complete.null_count().row(0)) == 0


def test_pipelines_of_an_imputer_and_a_forest(birds):
    x, y = birds
    encoder = make_column_transformer(
        (OneHotEncoder(sparse_output=False), ["island", "size"]),
        remainder="passthrough",
        verbose_feature_names_out=False,
    )
    pipeline = make_pipeline(RBMImputer(2), encoder, RandomForestClassifier(10, random_state=0))
    pipeline.set_output(transform="pandas").fit(x, y)
    assert pipeline.score(x, y) > 0.9
    assert pipeline[:2].get_feature_names_out()[-1] == "ringed"


# ----- classifier and regressor


def test_probabilities_of_classes_follow_from_the_joint_distribution(birds, classifier):
    """Bayes' rule with the log-likelihoods of rows that have each class."""
    x, y = birds
    assert classifier.classes_.tolist() == ["adelie", "gentoo"]
    target = classifier.model_.schema_.names[-1]
    joint = [classifier.model_.score_samples(x.assign(**{target: name})) for name in classifier.classes_]
    wanted = np.exp(joint - np.logaddexp.reduce(joint))
    np.testing.assert_allclose(classifier.predict_proba(x), wanted.T, atol=1e-9)
    assert classifier.score(x, y) > 0.9


def test_predicted_numbers_follow_from_the_joint_distribution(birds, regressor):
    """The posterior mean and standard deviation, by integration over the target."""
    x = birds[0].drop(columns="mass").iloc[:3]
    grid = np.linspace(-2, 12, 561)
    rows = x.loc[np.repeat(x.index, len(grid))].assign(target=np.tile(grid, len(x)))
    log_joint = regressor.model_.score_samples(rows).to_numpy().reshape(len(x), -1)
    weights = np.exp(log_joint - log_joint.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    mean = weights @ grid
    found = regressor.predict(x, return_std=True)
    np.testing.assert_allclose(found[0], mean, atol=1e-6)
    np.testing.assert_allclose(found[1], np.sqrt(weights @ grid**2 - mean**2), atol=1e-6)
    np.testing.assert_array_equal(regressor.predict(x), found[0])


def test_the_order_of_rows_has_no_effect(birds, classifier):
    x, y = birds
    order = np.random.default_rng(1).permutation(len(x))
    again = clone(classifier).fit(x.iloc[order], y[order])
    np.testing.assert_array_equal(again.predict_proba(x), classifier.predict_proba(x))


def test_a_column_may_be_named_like_the_target(birds, classifier):
    x, y = birds
    renamed = x.rename(columns={"mass": "target"})
    np.testing.assert_array_equal(clone(classifier).fit(renamed, y).predict_proba(renamed), classifier.predict_proba(x))


@pytest.mark.parametrize("labels", [[False, True], [3, 7]])
def test_classes_keep_their_type(birds, labels):
    x, y = birds
    model = RBMClassifier(2).fit(x, np.array(labels)[(y == "gentoo").astype(int)])
    assert model.predict(x).dtype == np.array(labels).dtype
    assert set(model.predict(x)) == set(labels)


def test_model_selection(birds, careless_fits):
    x, y = birds
    probabilities = cross_val_predict(RBMClassifier(2), x, y, method="predict_proba", cv=3)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    assert cross_val_score(RBMClassifier(2), x, y, cv=3, scoring="roc_auc").min() > 0.9
    search = GridSearchCV(RBMClassifier(), {"n_hidden": [1, 2]}, cv=3).fit(x, y)
    assert search.best_params_ == {"n_hidden": 2}  # one class of rows cannot distinguish species


def test_folds_with_classes_and_categories_that_others_lack(birds, careless_fits):
    x, y = birds
    by_class = np.argsort(y)
    with pytest.warns(RuntimeWarning, match="Number of classes"):
        found = cross_val_predict(RBMClassifier(4), x.iloc[by_class], y[by_class], method="predict_proba", cv=KFold(2))
    assert found.shape == (60, 2)
    x = x.assign(island=np.repeat(["north", "south", "east"], 20))
    islands = LeaveOneGroupOut()
    with pytest.warns(DataWarning, match="treated as missing"):
        scores = cross_val_score(RBMClassifier(4), x, y, groups=x["island"], cv=islands, error_score="raise")
    assert scores.min() > 0.8
    with pytest.warns(DataWarning, match="treated as missing"):
        complete = RBMImputer(4).fit(x[:40]).transform(x)
    assert complete["island"].tolist() == x["island"].tolist()


def test_numbers_may_be_whole_in_the_training_data_only(birds, careless_fits):
    x, y = birds
    x = x.assign(age=np.arange(60) % 7 / 1.0)
    halves = x.assign(age=x["age"] + 0.5)
    model = RBMClassifier(4).fit(x, y)
    assert (model.predict_proba(halves) != model.predict_proba(x)).any(1).all()


def test_weights_are_routed_through_pipelines(birds, careless_fits):
    x, y = birds
    weights = np.where(y == "gentoo", 3.0, 1.0)
    with config_context(enable_metadata_routing=True):
        model = RBMClassifier(2).set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        pipeline = make_pipeline(RBMImputer(2).set_fit_request(sample_weight=False), model)
        pipeline.fit(x, y, sample_weight=weights)
        found = cross_validate(pipeline, x, y, params={"sample_weight": weights}, cv=2, error_score="raise")
    assert found["test_score"].min() > 0.8
    complete = RBMImputer(2).fit_transform(x)
    alone = RBMClassifier(2).fit(complete, y, weights)
    np.testing.assert_array_equal(pipeline.predict_proba(x), alone.predict_proba(complete))
    assert (alone.predict_proba(x) != RBMClassifier(2).fit(complete, y).predict_proba(x)).all()


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "load", "score"),
    [
        (RBMClassifier(), load_wine, 0.95),
        (RBMClassifier(), load_breast_cancer, 0.9),
        (RBMRegressor(2), load_diabetes, 0.4),
    ],
)
def test_tables_of_scikit_learn(model, load, score):
    x, y = load(return_X_y=True, as_frame=True)
    assert cross_val_score(model, x, y, cv=KFold(3, shuffle=True, random_state=0), error_score="raise").mean() > score
