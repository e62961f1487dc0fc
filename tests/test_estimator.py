"""The scikit-learn estimator: the contract, and what is our own."""

import pickle

import numpy as np
import pytest
import torch
from run_cases import bars
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.utils.estimator_checks import parametrize_with_checks

from tapmachine import RBM, exact_log_likelihood, load, save
from tapmachine.data.errors import DataWarning
from tapmachine.training import TAPObjective


def quick(visible, **options):
    return RBM(3, visible=visible, epochs=1, objective=TAPObjective(n_particles=10, n_sweeps=1), **options)


def not_for_batches(estimator):
    """Checks that hold for no estimator that takes rows in random batches: they compare rows in two orders."""
    kinds = ("dense", "sparse")
    return {f"check_sample_weight_equivalence_on_{kind}_data": "batches follow the order of the rows" for kind in kinds}


def each_check(estimators):
    """`parametrize_with_checks` with a list of cases: scikit-learn 1.6 has a generator, which pytest 9 deprecates."""
    mark = parametrize_with_checks(estimators, expected_failed_checks=not_for_batches)
    names, cases = mark.args
    return pytest.mark.parametrize(names, list(cases), **mark.kwargs)


@each_check([quick("binary", binarize=0.5), quick("gauss-bernoulli")])
def test_it_keeps_scikit_learns_contract(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([quick("truncated-gaussian")], expected_failed_checks=not_for_batches)
def test_it_keeps_scikit_learns_contract_with_other_units(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def digits():
    return load_digits().data / 16


def test_auto_picks_units_and_says_so(digits, quick_tables):
    for x, name in (
        (digits > 0.5, "binary: all values are 0 or 1"),
        (digits, "gauss-bernoulli: values lie between 0 and 1, and 49% are exactly 0"),
        (digits + 0.1, "truncated-gaussian: values lie between 0.1 and 1.1"),
    ):
        assert RBM(2, epochs=0).fit(x[:100]).visible_.startswith(name[:20]), name
    assert "as specified" in RBM(2, visible="gaussian", epochs=0).fit(digits[:100]).visible_


def test_scores_are_those_of_the_machine(digits):
    """TAP's ln Z against enumeration, on a machine that it can be trusted on; and the same every time."""
    x = (digits[:300] > 0.5).astype(float)
    model = RBM(8, epochs=10, batch_size=10).fit(x)
    exact = exact_log_likelihood(model.machine_, torch.tensor(x, dtype=torch.float32))
    np.testing.assert_allclose(model.score_samples(x), exact.values.numpy(), atol=1.0)
    assert model.score(x) == pytest.approx(float(exact.mean), abs=1.0)
    assert model.score(x) > RBM(8, epochs=0).fit(x).score(x) + 1
    again = clone(model).fit(x)
    np.testing.assert_array_equal(again.score_samples(x), model.score_samples(x))


@pytest.mark.long
def test_features_and_back(digits):
    x = (digits[:300] > 0.5).astype(float)
    model = RBM(24, epochs=30, batch_size=10, random_state=1).fit(x)
    hidden = model.transform(x)
    assert hidden.shape == (300, 24)
    assert 0 <= hidden.min() < hidden.max() <= 1
    back = model.inverse_transform(hidden)
    assert np.mean((back - x) ** 2) < 0.5 * np.mean((x - x.mean(0)) ** 2)
    weights, units = model.components_, model.machine_.layers[1]
    by_hand = 1 / (1 + np.exp(-(x @ weights.T + units.field.detach().numpy())))
    np.testing.assert_allclose(hidden, by_hand, atol=1e-5)
    assert list(model.get_feature_names_out()[:2]) == ["rbm0", "rbm1"]
    with pytest.raises(ValueError, match="3 columns; expected 24, one per hidden unit"):
        model.inverse_transform(np.zeros((2, 3)))


@pytest.mark.long
def test_samples(digits):
    x = (digits[:300] > 0.5).astype(float)
    model = RBM(16, epochs=20).fit(x)
    drawn = model.sample(500, random_state=3)
    assert drawn.shape == (500, 64)
    assert set(np.unique(drawn)) == {0.0, 1.0}
    np.testing.assert_array_equal(drawn, model.sample(500, random_state=3))
    assert np.abs(drawn.mean(0) - x.mean(0)).mean() < 0.08  # 0.02 by chance alone; 0.25 if they were uniform


def test_partial_fit_goes_on_with_the_same_chains_and_step_size(digits):
    x = (digits[:400] > 0.5).astype(float)
    model = RBM(8, batch_size=50)
    scores = []
    for _ in range(15):
        model.partial_fit(x)
        scores.append(model.score(x))
    assert scores[-1] > scores[0] + 1
    assert [record["epoch"] for record in model.history_] == list(range(1, 16))
    assert len({record["learning_rate"] for record in model.history_}) == 1
    model.partial_fit(x[:20])  # fewer than a batch
    trained = RBM(8, epochs=10).fit(x)
    before = trained.components_.copy()
    trained.partial_fit(x)
    assert trained.history_[-1]["learning_rate"] < trained.history_[0]["learning_rate"]
    assert 0 < np.abs(trained.components_ - before).max() < 0.2


def test_pickled_and_saved(digits, tmp_path):
    x = (digits[:100] > 0.5).astype(np.float32)
    model = RBM(4, epochs=2).fit(x)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.transform(x), model.transform(x))
    again.partial_fit(x)
    save(model.machine_, tmp_path / "machine.safetensors")
    assert load(tmp_path / "machine.safetensors").sizes == (64, 4)


def test_values_beyond_the_training_data(digits):
    x = 3 * digits[:100] + 1
    model = RBM(4, epochs=1).fit(x)
    with pytest.warns(DataWarning, match=r"1 value outside .* first is 9 in row 2, column 5"):
        moved = model.transform(np.where(np.arange(64) == 5, np.array([[1], [1], [9]]), x[:3]))
    assert np.isfinite(moved).all()
    with pytest.raises(ValueError, match="expected a number between"):
        RBM(4, epochs=1, interval=(0, 5)).fit(x).transform(x + 2)
    with pytest.raises(ValueError, match="row 0, column 2 is 1"):
        RBM(4, visible="binary", epochs=1).fit(x)


@pytest.mark.long
def test_the_scale_of_the_data_does_not_matter(digits):
    """Data times a power of two: the same machine in other units, and the same features."""
    x = digits[:200].astype(np.float32)
    small, large = (RBM(6, epochs=3).fit(scale * x) for scale in (1, 256))
    np.testing.assert_array_equal(small.transform(x), large.transform(256 * x))
    np.testing.assert_array_equal(small.components_, 256 * large.components_)
    active = (x != 0).sum(1)  # values that have a density
    shift = small.score_samples(x) - large.score_samples(256 * x)
    np.testing.assert_allclose(shift, active * np.log(256), rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_hidden": 0}, "hidden"),
        ({"n_hidden": 2.5}, "n_hidden is 2.5"),
        ({"visible": "ternary"}, "visible is 'ternary'"),
        ({"objective": "magic"}, "objective is 'magic'"),
        ({"learning_rate": -1}, "learning_rate"),
        ({"interval": (1, 0)}, "interval"),
        ({"batch_size": 1000}, "only 100 rows"),
    ],
)
def test_bad_parameters(options, message, digits):
    with pytest.raises(ValueError, match=message):
        RBM(**{"n_hidden": 4, "epochs": 1} | options).fit(digits[:100])


@pytest.mark.long
@pytest.mark.parametrize(
    ("visible", "scale", "shift"),
    [
        pytest.param("gaussian", 0.51, 0.0, marks=pytest.mark.slow),
        ("gaussian", 1e-3, 0.0),
        ("gaussian", 1.0, 3.0),
        ("truncated-gaussian", 15.0, 280.0),
    ],
)
@pytest.mark.filterwarnings("ignore:the log-likelihood has fallen")  # with an undiminished learning rate, it overshoots
@pytest.mark.filterwarnings("ignore:the final log-likelihood is")
def test_units_of_measurement_do_not_matter(visible, scale, shift, quick_tables):
    """In Kelvin as in anything else: weights that are as strong, in units of the data."""
    generator = np.random.default_rng(0)
    kind = generator.integers(0, 2, (200, 1))
    x = np.clip(0.25 + 0.5 * kind + 0.1 * generator.normal(size=(200, 12)), 0, 1).astype(np.float32)
    options = {} if visible == "gaussian" else {"epochs": 10, "batch_size": 10, "decay": 1.0}
    plain, model = (RBM(3, visible=visible, **options).fit(z) for z in (x, shift + scale * x))
    strength = np.abs(plain.components_).max()
    assert strength > 1.5
    assert scale * np.abs(model.components_).max() == pytest.approx(strength, rel=0.4)
    features = model.transform(shift + scale * x)
    features = features[:, features.std(0) > 0]  # hidden units that are not needed have no weights
    assert np.abs(np.corrcoef(features.T, kind[:, 0])[-1, :-1]).max() > 0.9


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:the final log-likelihood is")  # after two epochs
def test_an_interval_wider_than_the_data(digits):
    x = digits[:200].astype(np.float32)
    # A column with few values or none off 0 may take any value of the interval, which for a wide one upsets training,
    # depending on the seed.
    x = x[:, (x > 0).mean(0) > 0.1]
    options = {"epochs": 2, "batch_size": 10, "decay": 1.0}
    weights = [np.abs(RBM(6, interval=(0, end), **options).fit(x).components_).max() for end in (1, 255)]
    assert 0.3 < weights[1] / weights[0] < 3


def test_a_failed_training_changes_nothing(digits):
    x = (digits[:100] > 0.5).astype(float)
    model = RBM(4, epochs=1).fit(x)
    before = model.transform(x)
    model.set_params(batch_size=1000)
    with pytest.raises(ValueError, match="only 100 rows"):
        model.fit(x[:, :30])
    assert model.n_features_in_ == 64
    np.testing.assert_array_equal(model.transform(x), before)
    with pytest.raises(ValueError, match="hidden has changed"):
        model.set_params(batch_size=None, n_hidden=7).partial_fit(x)


def test_a_pickle_is_small_and_numpy_numbers_are_numbers(digits):
    x = np.tile((digits > 0.5).astype(np.float32), (5, 1))
    model = RBM(np.int64(4), epochs=np.int64(1), batch_size=np.int64(100)).fit(x)
    assert len(pickle.dumps(model)) < 0.5 * x.nbytes
    state = np.random.get_state()[1].copy()
    model.set_params(random_state=None).transform(x)
    np.testing.assert_array_equal(np.random.get_state()[1], state)


def test_chunks_of_rows_are_all_remembered():
    """Chains that cannot leave where they start show from which rows they do: from those of all chunks."""
    x = np.repeat([[0.0] * 16, [1.0] * 16], 150, 0)
    model = RBM(4).partial_fit(x).partial_fit(x[:1])
    with torch.no_grad():
        model.machine_.weights[0].fill_(20.0)
        for units, n_neighbors in zip(model.machine_.layers, (4, 16), strict=True):
            units.field.fill_(-20.0 * n_neighbors / 2)
    assert set(model.sample(100, n_sweeps=1).mean(1)) == {0.0, 1.0}


@pytest.mark.long
def test_categories():
    generator = np.random.default_rng(0)
    kind = generator.integers(0, 2, 300)
    x = 2 * kind[:, None] + (generator.random((300, 5)) < 0.1)
    model = RBM(3, visible="categorical", epochs=20, batch_size=10).fit(x)
    back = model.inverse_transform(model.transform(x))
    assert back.shape == x.shape
    assert np.mean(back == 2 * kind[:, None]) > 0.95
    assert set(np.unique(model.sample(50))) <= {0, 1, 2, 3}
    with pytest.raises(ValueError, match="not all values are non-negative integers"):
        model.transform(x + 0.5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("visible", ["truncated-gaussian", "gauss-bernoulli", "gaussian"])
def test_on_a_gpu_and_back(visible, digits):
    """Data of any scale on a GPU; what was trained there is read and used without one."""
    x = (255 * digits[:200]).astype(np.float32)
    steps = {"epochs": 1, "batch_size": 50, "objective": TAPObjective(n_sweeps=2)} if visible != "gaussian" else {}
    model = RBM(4, visible=visible, device="cuda", **steps).fit(x)
    assert model.machine_.device.type == "cuda"
    again = pickle.loads(pickle.dumps(model))
    assert {p.device.type for p in again.machine_.parameters()} == {"cpu"}
    np.testing.assert_allclose(again.transform(x), model.transform(x), atol=1e-6)
    assert np.isfinite(again.score(x))
    assert model.sample(3).shape == (3, 64)
    if visible != "gaussian":  # whose machine is fitted to all rows at once
        model.partial_fit(x)
        again.set_params(device="cpu").partial_fit(x)


def test_rows_backwards():
    """Arrays that numpy only looks at from the other end."""
    x = bars(40)
    backwards = np.ascontiguousarray(x[::-1, ::-1])
    ours = [RBM(4, epochs=2).fit(rows).components_ for rows in (backwards[::-1, ::-1], x)]
    np.testing.assert_array_equal(*ours)
