"""Single cells of tables: intervals and draws of missing ones, the surprise of observed ones."""

import numpy as np
import pytest
import torch

from tapmachine import RBM, Binary, Categorical, Mixed, rbm
from tapmachine.likelihood.weight import log_weight
from tapmachine.tables.chains import Chained

pd = pytest.importorskip("pandas")


def table(rows=300, seed=0):
    """Two clusters with a color and a size each, and a real column that depends on the size."""
    draw = np.random.default_rng(seed)
    kind = draw.random(rows) < 0.4
    size = np.where(kind, 5.0, 1.0) + draw.normal(0, 0.5, rows)
    return pd.DataFrame(
        {
            "color": pd.Categorical(np.where(draw.random(rows) < 0.9, np.where(kind, "red", "blue"), "green")),
            "size": size,
            "weight": 1000 * size + draw.normal(0, 200, rows),
            "large": kind,
        },
        index=[f"row {number}" for number in range(rows)],
    )


@pytest.fixture(scope="module")
def model():
    return RBM(random_state=0).fit(table())


def test_intervals_hold_their_share_of_the_values(model):
    fresh = table(600, seed=1)
    gappy = fresh.copy()
    gappy["weight"] = np.nan
    for level in (0.5, 0.9):
        lower, upper = model.intervals(gappy, level)
        assert list(lower.columns) == ["size", "weight"]
        assert list(lower.index) == list(fresh.index)
        inside = (fresh["weight"] >= lower["weight"]) & (fresh["weight"] <= upper["weight"])
        assert abs(inside.mean() - level) < 0.06  # 0.02 is the standard error
        np.testing.assert_allclose(lower["size"], fresh["size"])
    width = (upper - lower)["weight"].mean()
    assert width < 1200  # that of the column alone is more than 4000


def test_draws_have_the_moments_of_the_posterior(model):
    row = table(3, seed=2)
    row.loc["row 1", ["weight", "color"]] = np.nan
    few = row.assign(color=row["color"].cat.remove_unused_categories())
    assert {*model.impute_draws(few, 100)[0]["color"].dtype.categories} >= {"blue", "red"}
    assert not any(one["color"].isna().any() for one in model.impute_draws(few, 100))
    row["color"] = row["color"].cat.set_categories(["blue", "green", "red"])
    draws = model.impute_draws(row, 400)
    assert all(one.dtypes.equals(row.dtypes) and one.index.equals(row.index) for one in draws)
    weights = np.array([one.loc["row 1", "weight"] for one in draws])
    mean, std = model.impute(row, return_std=True)
    assert abs(weights.mean() - mean.loc["row 1", "weight"]) < 5 * std.loc["row 1", "weight"] / 20
    shares = pd.Series([one.loc["row 1", "color"] for one in draws]).value_counts(normalize=True)
    expected = model.predict_proba(row, "color").loc["row 1"]
    for color, share in shares.items():
        assert abs(share - expected[color]) < 5 * 0.5 / 20
    again = model.impute_draws(row, 400)
    assert all(one.equals(other) for one, other in zip(draws, again, strict=True))
    assert draws[0].drop("row 1").equals(row.drop("row 1"))


def test_surprise_is_the_loss_in_likelihood_without_the_cell(model):
    """−ln P(x_ij | rest) = ln P(rest) − ln P(x), by two calls of score_samples, in the units of the data."""
    rows = table(5, seed=3)
    rows.loc["row 2", "weight"] = np.nan
    surprise = model.surprise(rows)
    assert surprise.isna().sum().sum() == 1
    for name in rows.columns:
        without = rows.astype({"large": object, "color": object})
        without[name] = None
        expected = model.score_samples(without) - model.score_samples(rows)
        known = rows[name].notna()
        np.testing.assert_allclose(surprise[name][known], expected[known], atol=1e-8)


def test_a_wrong_cell_is_the_surprising_one(model):
    rows = table(50, seed=4)
    rows.loc["row 7", "weight"] += 5000
    assert (model.surprise(rows)["weight"]).idxmax() == "row 7"
    assert model.score_samples(rows).idxmin() == "row 7"


def test_one_row_whose_column_is_all_gaps_is_imputed(model):
    row = table(1, seed=5)
    row["color"] = None
    filled = model.impute(row)
    assert filled.loc["row 0", "color"] in {"red", "blue", "green"}


@pytest.mark.long
def test_arrays(tmp_path):
    x = table()[["size", "weight"]].to_numpy()
    model = RBM(4, random_state=0).fit(x[:150])
    gappy = x[:4].copy()
    gappy[0, 1] = np.nan
    lower, upper = model.intervals(gappy)
    assert lower[0, 1] < model.impute(gappy)[0, 1] < upper[0, 1]
    assert np.isnan(model.surprise(gappy)[0, 1])


def test_cells_of_any_machine_by_enumeration():
    """A machine that is no mixture: surprise, draws and intervals of cells against sums over all states."""
    machine = rbm(Mixed([Binary(3), Categorical(1, 3)]), Binary(2), generator=torch.Generator().manual_seed(0)).double()
    with torch.no_grad():
        machine.weights[0].normal_(0, 1.5, generator=torch.Generator().manual_seed(1))
    bits, kinds = torch.cartesian_prod(*[torch.arange(2.0)] * 3), torch.eye(3)
    states = torch.cat((bits.repeat_interleave(3, 0), kinds.repeat(8, 1)), 1).double()
    probabilities = log_weight(machine, states).softmax(0)
    row = torch.tensor([1.0, torch.nan, 0.0, torch.nan, torch.nan, torch.nan]).double()
    matches = ((states == row) | row.isnan()).all(1)
    given = Chained(machine, row.unsqueeze(0))
    drawn = given.draws(4000, torch.Generator().manual_seed(0))[:, 0]
    expected = (probabilities * matches) @ states / probabilities[matches].sum()
    torch.testing.assert_close(drawn.mean(0), expected, atol=0.06, rtol=0)  # chains of 1000 draws are correlated
    surprise = given.cell_surprise()[0]
    assert surprise.isnan().equal(row.isnan())
    for cell in (0, 2):
        others = ((states == row) | row.isnan() | (torch.arange(6) == cell)).all(1)
        assert float(surprise[cell]) == pytest.approx(
            float(probabilities[others].sum().log() - probabilities[matches].sum().log()), abs=0.1
        )
    lower, upper = given.intervals(0.5)
    assert bool((lower <= upper).all())
    assert lower[0, 0] == upper[0, 0] == 1
