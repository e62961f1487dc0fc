"""Real-valued tables: machines in other coordinates, their exact ln Z, and the fit that `RBM` starts from."""

import numpy as np
import pytest
import torch
from run_cases import command
from sklearn.covariance import EmpiricalCovariance

from tapmachine import (
    RBM,
    Binary,
    Categorical,
    Gaussian,
    Mixed,
    SpikeSlab,
    ais_log_partition,
    exact_log_partition,
    gibbs,
    load,
    rbm,
    save,
)
from tapmachine.data.errors import EstimateError, PosteriorWarning
from tapmachine.likelihood.unbiased import unbiased_log_partition
from tapmachine.likelihood.weight import log_weight
from tapmachine.machine.whitening import can_be_whitened, in_coordinates, whiten
from tapmachine.posterior import anomaly_score
from tapmachine.training import tables


def draws(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def machine_of(hidden, n=3, strength=0.3):
    return rbm(Gaussian(n, field=draws(n, seed=1), precision=1.5), hidden, strength * draws(n, hidden.n, seed=2))


def slabs(n=4):
    return SpikeSlab(n, field=0.3 * draws(n), precision=1.2, active_probability=0.3)


TRANSFORM = draws(3, 3, seed=3) + 2 * torch.eye(3, dtype=torch.float64)
SHIFT = 5 * draws(3, seed=4)


@pytest.mark.parametrize("hidden", [slabs(), Binary(4, field=draws(4)), Mixed([slabs(2), Binary(2, field=draws(2))])])
def test_other_coordinates_and_back(hidden):
    """The same density of rows, up to the volume that the transform stretches."""
    machine = machine_of(hidden)
    z = draws(6, 3, seed=5)
    x = SHIFT + z @ TRANSFORM.T
    there = in_coordinates(machine, TRANSFORM, SHIFT)
    gap = log_weight(machine, z) - log_weight(there, x)
    torch.testing.assert_close(gap, gap[:1].expand(6), rtol=0, atol=1e-10)
    whitened = whiten(there)
    back = log_weight(whitened.machine, whitened.rows(x)) + whitened.log_partition_gain
    volume = whitened.transform.diagonal().log().sum()
    torch.testing.assert_close(log_weight(there, x) + volume, back, rtol=0, atol=1e-10)
    assert not can_be_whitened(machine)
    assert can_be_whitened(there)


def by_determinants(machine):
    """ln Z of Gaussian visible and Mixed([Gaussian, Binary]) hidden units, by Gaussian integrals over both."""
    visible, (gaussian, binary) = machine.layers[0], machine.layers[1].blocks
    n, weights = visible.n, machine.weights[0].detach()
    diagonal = torch.cat((visible.precision, gaussian.precision)).detach()
    couplings = weights[:, : gaussian.n]
    joint = diagonal.diag()
    joint[:n, n:], joint[n:, :n] = -couplings, -couplings.T
    total = []
    for bits in torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * binary.n):
        field = torch.cat((visible.field + weights[:, gaussian.n :] @ bits, gaussian.field)).detach()
        value = 0.5 * field @ torch.linalg.solve(joint, field) - 0.5 * torch.logdet(joint)
        total.append(value + binary.log_prior(bits).sum().detach())
    prior = torch.cat((visible.field, gaussian.field)).detach()
    return torch.stack(total).logsumexp(0) - 0.5 * (prior**2 / diagonal).sum() + 0.5 * diagonal.log().sum()


def test_ln_z_of_gaussian_and_binary_hidden_units():
    machine = in_coordinates(machine_of(Binary(4, field=draws(4))), TRANSFORM, SHIFT)
    expected = by_determinants(machine)
    torch.testing.assert_close(exact_log_partition(machine), expected, rtol=0, atol=1e-9)
    whitened = whiten(machine)
    annealed = ais_log_partition(whitened.machine, 300, 100)
    gap = float(annealed.log_partition) + whitened.log_partition_gain - float(expected)
    assert abs(gap) < 5 * float(annealed.standard_error)


def test_ln_z_of_spike_and_slab_hidden_units_by_quadrature():
    machine = machine_of(slabs(3), n=1, strength=0.5)
    x = torch.linspace(-40, 40, 20_001, dtype=torch.float64).unsqueeze(1)
    expected = (log_weight(machine, x).logsumexp(0) + np.log(80 / 20_000)).item()
    assert exact_log_partition(machine).item() == pytest.approx(expected, abs=1e-9)
    _, error, method = unbiased_log_partition(in_coordinates(machine, torch.full((1, 1), 3.0), torch.ones(1)))
    assert (error, method) == (0.0, "exact")


def test_an_infinite_z_is_reported():
    machine = machine_of(slabs(3), strength=3.0)
    with pytest.raises(EstimateError, match="ln Z is infinite"):
        exact_log_partition(machine)
    there = rbm(Gaussian(2), Mixed([Gaussian(2), Binary(1)]), torch.full((2, 3), 2.0))
    with pytest.raises(EstimateError, match="ln Z is infinite"):
        whiten(there)


def test_chains_of_correlated_columns_mix():
    transform = torch.tensor([[100.0, 0.0], [100.0, 0.1]], dtype=torch.float64)
    machine = in_coordinates(rbm(Gaussian(2).double(), Binary(2).double()), transform, torch.zeros(2))
    x = gibbs(machine, torch.zeros(4000, 2, dtype=torch.float64), 5, torch.Generator().manual_seed(0))[0]
    torch.testing.assert_close(x.std(0), torch.full((2,), 100.0, dtype=torch.float64), rtol=0.05, atol=0)
    assert (x[:, 0] - x[:, 1]).std().item() == pytest.approx(0.1, rel=0.05)


def test_blocks_must_have_numbers_for_states():
    with pytest.raises(ValueError, match="block 1 is Categorical"):
        Mixed([Binary(2), Categorical(2, 3)])
    with pytest.raises(ValueError, match="blocks must be a list"):
        Mixed(Binary(2))
    with pytest.raises(ValueError, match="the dtype of block 1"):
        Mixed([Binary(2), Binary(2).double()])


# ----- the fit


def clusters(n_rows, seed=0):
    """Correlated columns with heavy tails, on very different scales."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n_rows, 3)) * rng.choice([0.5, 3.0], size=(n_rows, 1), p=[0.8, 0.2])
    z[:, 0] += 3 * rng.choice([-1, 1], n_rows)
    return 7 + z @ np.array([[1.0, 50.0, 0.0], [0.0, 10.0, 0.01], [0.0, 0.0, 0.005]])


def test_a_table_is_modeled_better_than_by_a_gaussian(quick_tables, tmp_path):
    train, test = clusters(400), clusters(1000, seed=1)
    model = RBM(3).fit(train)
    assert model.visible_.startswith("gaussian: real-valued columns")
    assert model.score_method_ == "exact"
    assert model.score(test) > EmpiricalCovariance().fit(train).score(test) + 0.3
    assert model.transform(test).shape == (1000, 6)
    assert model.history_[-1]["log_likelihood"] == pytest.approx(model.score(train), abs=0.01)
    np.testing.assert_allclose(model.sample(2000).std(0), train.std(0), rtol=0.5)
    save(model, tmp_path / "machine.safetensors")
    machine = load(tmp_path / "machine.safetensors")
    values = log_weight(machine, torch.from_numpy(test)) - exact_log_partition(machine)
    np.testing.assert_allclose(values.numpy(), model.score_samples(test), atol=1e-3)
    gaps = test[:20].copy()
    gaps[:, 1] = np.nan
    filled = model.impute(gaps)
    assert np.abs(filled - test[:20])[:, 1].mean() < 0.5 * np.abs(train[:, 1].mean() - test[:20, 1]).mean()
    with pytest.raises(ValueError, match="partial_fit cannot continue"):
        model.partial_fit(train)


def test_a_gaussian_table_stays_gaussian(quick_tables):
    """Where slabs do not help rows that were left out, there are none."""
    x = np.random.default_rng(0).normal(size=(120, 4)) @ np.diag([1.0, 10.0, 0.1, 5.0])
    start = tables.start_for_table(torch.from_numpy(x), 2)
    assert not start.machine.weights[0].any()


COLUMNS = np.random.default_rng(2).normal(size=(40, 3)) * [1.0, 100.0, 0.01]


@pytest.mark.parametrize(
    ("x", "note"),
    [
        (np.column_stack((COLUMNS, np.full(40, 3.0), np.zeros(40))), "constant columns: 3, 4"),
        (np.column_stack((COLUMNS, COLUMNS[:, 0])), "linear combinations"),
        (np.column_stack((COLUMNS, 2 * COLUMNS[:, 0] - COLUMNS[:, 1])), "linear combinations"),
        (COLUMNS[:2], "2 rows for 3 columns"),
        (np.vstack((COLUMNS, [[1e6, 0.0, 0.0]])), "gaussian"),
        (COLUMNS + 1e5, "gaussian"),
    ],
    ids=["constant", "duplicated", "collinear", "two rows", "outlier", "offset"],
)
def test_bad_columns_are_noticed(quick_tables, x, note):
    model = RBM(2).fit(x)
    assert note in model.visible_
    assert np.isfinite(model.score_samples(x)).all()
    assert np.isfinite(model.sample(5)).all()


def test_a_run_on_a_table_is_sampled_and_denoises(quick_tables, tmp_path):
    np.save(tmp_path / "x.npy", (draws(100, 5) @ draws(5, 5, seed=1)).numpy())
    run = tmp_path / "run"
    assert command("train", tmp_path / "x.npy", "--hidden", 2, "--epochs", 1, "--out", run, "--quiet")[0] == 0
    code, _, errors = command("sample", run, "--count", 3, "--n-sweeps", 2, "-o", tmp_path / "samples.npy")
    assert code == 0, errors
    found = np.load(tmp_path / "samples.npy")
    assert found.shape == (3, 5)
    assert np.isfinite(found).all()
    np.save(tmp_path / "noisy.npy", found)
    code, shown, errors = command("denoise", run, tmp_path / "noisy.npy", "--sigma", 0.3, "-o", tmp_path / "clean.npy")
    assert code == 0, errors
    assert "gaussian (sigma=0.3)" in shown
    assert np.isfinite(np.load(tmp_path / "clean.npy")).all()


def test_rows_of_a_table_are_scored_exactly(quick_tables):
    """TAP has no solution for machines of correlated columns; the exact ln Z needs none."""
    x = draws(120, 3) @ draws(3, 5, seed=3) + 0.01 * draws(120, 5, seed=4)
    model = RBM(n_hidden=3).fit(x.numpy())
    with pytest.warns(PosteriorWarning, match="1 rows with missing values have no score"):
        scores = anomaly_score(model.machine_, torch.cat((x[:4], torch.tensor([[0.1, 0.2, torch.nan, 0.3, 0.4]]))))
    exact = log_weight(model.machine_, x[:4]) - exact_log_partition(model.machine_)
    assert torch.allclose(scores[:4], -exact, atol=1e-9)
    assert torch.isnan(scores[4])
