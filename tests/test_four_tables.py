"""Tables of numbers, of booleans, of text and of all of them have the same methods with the same meaning."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.model_selection import cross_val_score

from tapmachine import RBM, Categorical, find_solutions
from tapmachine.channels import GaussianNoise
from tapmachine.data.errors import DataWarning, TrainingWarning
from tapmachine.tables import slabs

pd = pytest.importorskip("pandas")

GUIDE = (Path(__file__).parents[1] / "docs" / "guide" / "tables.md").read_text()
ROWS = 60


def numbers(generator, kind):
    size = kind + 0.3 * generator.normal(size=ROWS)
    return {"size": size, "mass": 100 * size + 30 * generator.normal(size=ROWS)}


def booleans(generator, kind):
    return {f"q{number}": generator.random(ROWS) < np.where(kind, 0.9, 0.1) for number in range(4)}


def text(generator, kind):
    color = np.where(generator.random(ROWS) < 0.8, np.array(["red", "blue"])[kind], "green")
    return {"color": color, "sex": generator.choice(["f", "m"], ROWS)}


KINDS = {"numbers": [numbers], "booleans": [booleans], "text": [text], "mixed": [numbers, booleans, text]}


def table(name, gaps=True):
    generator = np.random.default_rng(0)
    kind = generator.integers(0, 2, ROWS)
    frame = pd.DataFrame({k: v for make in KINDS[name] for k, v in make(generator, kind).items()})
    frame.index = [f"row {number}" for number in range(ROWS)]
    if not gaps:
        return frame
    nullable = frame.astype({column: "boolean" for column in frame if frame[column].dtype == bool})
    return nullable.mask(generator.random(frame.shape) < 0.1)


@pytest.fixture(scope="module", params=[(name, gaps) for name in KINDS for gaps in (False, True)], ids=str)
def fitted(request):
    name, gaps = request.param
    frame = table(name, gaps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slabs, "MOST_STEPS", 40)
        return frame, RBM(4, epochs=2 if name == "booleans" else None).fit(frame)


def same_rows(result, frame):
    return list(result.index) == list(frame.index)


def test_cells(fitted):
    """Imputed values and draws keep what is known; intervals and surprise have a value for each cell that has one."""
    model, frame = fitted[1], fitted[0].copy()
    frame = frame.astype({column: "boolean" for column in frame if frame[column].dtype == bool})
    frame.iloc[0, 0] = frame.iloc[1, 1] = None
    gaps = frame.isna()
    filled, deviation = model.impute(frame, return_std=True)
    for complete in (filled, *model.impute_draws(frame, 3)):
        assert not complete.isna().any(axis=None)
        assert complete.dtypes.equals(frame.dtypes)
        assert complete.where(~gaps).equals(frame)
    assert ((deviation == 0) | gaps).all(axis=None)
    assert deviation.iloc[0, 0] > 0
    lower, upper = model.intervals(frame)
    assert list(lower.columns) == [name for name in frame if frame[name].dtype == float]
    assert same_rows(lower, frame)
    assert (lower <= upper).all(axis=None)
    surprise = model.surprise(frame)
    assert surprise.isna().equals(gaps)
    assert same_rows(surprise, frame)


def test_columns(fitted):
    """Predictions ignore the column, and probabilities are named by the values themselves."""
    frame, model = fitted
    assert [column.name for column in model.schema_.columns] == list(frame)
    assert len(model.schema_.describe().splitlines()) == frame.shape[1]
    for name in frame:
        others = frame.drop(columns=name)
        found = model.predict(others, name)
        assert found.equals(model.predict(frame, name))
        assert same_rows(found, frame)
        if frame[name].dtype == float:
            with pytest.raises(ValueError, match="For numbers, use predict"):
                model.predict_proba(others, name)
            continue
        shares = model.predict_proba(others, name)
        assert set(shares.columns) == set(frame[name].dropna())
        np.testing.assert_allclose(shares.sum(axis=1), 1)
        assert (shares.idxmax(axis=1) == found).all()


def test_rows(fitted):
    """Scores and features of rows, and samples, also with known values."""
    frame, model = fitted
    scores = model.score_samples(frame)
    assert same_rows(scores, frame)
    assert model.score(frame) == pytest.approx(scores.mean())
    features = model.transform(frame)
    assert features.shape == (ROWS, len(model.get_feature_names_out()))
    back = model.inverse_transform(features)
    assert list(back.columns) == list(frame)
    name, value = frame.columns[0], frame.iloc[2, 0]
    samples = model.sample(5, given={name: value})
    assert samples[name].tolist() == [value] * 5
    assert model.sample(3).dtypes.astype(str).tolist() == samples.dtypes.astype(str).tolist()


def test_names_identify_columns(fitted):
    frame, model = fitted
    turned = frame[frame.columns[::-1]]
    assert model.score_samples(turned).equals(model.score_samples(frame))
    assert model.impute(turned).equals(model.impute(frame))


def test_noisy_numbers_are_denoised():
    frame = table("numbers")
    assert same_rows(RBM(4).fit(frame).denoise(frame, GaussianNoise(0.1)), frame)


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_snippets_of_the_guide_run_on_each_table(name, monkeypatch):
    frame = table(name)
    model = RBM(4, epochs=2 if name == "booleans" else None)
    column = frame.columns[-1]
    (code,) = re.findall(r"## In Python\n\n```python\n(.*?)```", GUIDE, re.DOTALL)
    code = code.replace("body_mass_g", column).replace("species", column).replace("RBM(random_state=0)", "model")
    code = code.replace("[0, 3, 300]", "[0, 3, 30]").replace("6000", repr(frame[column].dropna().tolist()[0]))
    if frame[column].dtype == float:
        code = "\n".join(line for line in code.splitlines() if "predict_proba" not in line)
    monkeypatch.setattr(pd, "read_csv", lambda path: frame.reset_index(drop=True))
    exec(code.replace("from tapmachine import RBM", ""), {"model": model})


# ----- categories and values that the training data lack


def test_a_new_category_is_a_gap_that_blocks_no_other_row():
    frame = table("text")
    model, later = RBM(4).fit(frame), frame.copy()
    later.iloc[[3, 5], 0] = ["violet", "black"]
    with pytest.warns(DataWarning, match=r"column 'color': 2 values .* missing; the first is 'violet' in row 3"):
        scores = model.score_samples(later)
    gaps = frame.copy()
    gaps.iloc[[3, 5], 0] = None
    assert scores.equals(model.score_samples(gaps))
    strict = RBM(4, handle_unknown="error").fit(frame)
    with pytest.raises(ValueError, match="column 'color' is 'violet' in row 3, which is not a category"):
        strict.transform(later)
    with pytest.raises(ValueError, match="handle_unknown is 'ignore'; expected 'missing' or 'error'"):
        RBM(handle_unknown="ignore").fit(frame)


@pytest.mark.filterwarnings("ignore:column 'color'")
def test_folds_of_a_sorted_table_have_scores():
    frame = table("mixed").sort_values("color")
    assert np.isfinite(cross_val_score(RBM(4), frame, cv=3)).all()


def test_an_absurd_value_blocks_no_other_row():
    frame = table("numbers")
    model, later = RBM(4).fit(frame), frame.copy()
    later.iloc[2, 1] = 1e14
    assert model.impute(later).drop("row 2").equals(model.impute(frame).drop("row 2"))
    assert np.isfinite(model.score_samples(later)).all()


# ----- kinds


def test_floats_without_decimals_are_integers():
    generator = np.random.default_rng(0)
    whole = pd.DataFrame(
        {"k": generator.integers(0, 2, ROWS), "n": generator.poisson(3, ROWS), "x": generator.random(ROWS)}
    )
    floats = whole.astype(float)
    gappy = floats.mask(generator.random(whole.shape) < 0.1)
    for frame in (floats, gappy):
        model = RBM(4).fit(frame)
        assert [column.kind for column in model.schema_.columns] == ["binary", "count", "real"]
        filled = model.impute(frame)
        assert filled.dtypes.equals(frame.dtypes)
        assert set(filled["k"]) == {0.0, 1.0}
        assert (filled["n"] % 1 == 0).all()
        assert list(model.predict_proba(frame, "k").columns) == [0, 1]
    assert "decimals" not in RBM(4).fit(floats).schema_.columns[0].why


def test_classes_that_are_integers_are_named_in_the_error(quick_tables):
    frame = table("numbers").assign(target=np.arange(ROWS) % 3 - 1)
    with pytest.raises(ValueError, match=r"fit with columns=\{'target': 'categorical'\}"):
        RBM(4).fit(frame).predict_proba(frame, "target")
    shares = RBM(4, columns={"target": "categorical"}).fit(frame).predict_proba(frame, "target")
    assert list(shares.columns) == [-1, 0, 1]


def test_parameters_without_effect_are_named():
    with pytest.warns(TrainingWarning, match="epochs, batch_size and weight_decay have no effect: the table is fitted"):
        RBM(4, epochs=3, batch_size=5, weight_decay=0.1).fit(table("mixed"))


def test_numbers_of_categories_are_states_everywhere():
    """Integers and floats alike: of an array, in fits, and in what is found."""
    numbers = torch.tensor([[0, 1, 2, 2], [1, 1, 0, 2], [2, 0, 1, 1]])
    units = [
        Categorical(4, 3).fit_to(x).field for x in (numbers, numbers.double(), Categorical(4, 3).check_states(numbers))
    ]
    assert all(field.equal(units[0]) for field in units)
    with pytest.raises(ValueError, match=r"x\[0, 1\] is 0.5; expected a state index from 0 to 2"):
        Categorical(4, 3).fit_to(numbers * 0.5)
    model = RBM(2, epochs=1, visible="categorical").fit(numbers.double().repeat(9, 1).numpy())
    found = find_solutions(model.machine_, numbers).states
    for states in (found, torch.tensor(model.sample(9)), torch.tensor(model.impute(numbers.double().numpy()))):
        assert states.shape[1:] == (4,)
        assert {*states.unique().tolist()} <= {0, 1, 2}
