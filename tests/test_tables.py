"""Real-valued tables: machines in other coordinates, their exact ln Z, and the fit that `RBM` starts from."""

import numpy as np
import pytest
import torch
from run_cases import command
from scipy.stats import kstest, norm
from sklearn.covariance import EmpiricalCovariance

from tapmachine import (
    RBM,
    Binary,
    Categorical,
    Gaussian,
    GaussianNoise,
    Mixed,
    SpikeSlab,
    denoise,
    exact_log_partition,
    gibbs,
    impute,
    load,
    rbm,
    save,
)
from tapmachine.beliefs import Tilt
from tapmachine.data.errors import DivergenceError, EstimateError
from tapmachine.exact import closed_log_partition, mixture_of
from tapmachine.exact.gaussian import in_coordinates
from tapmachine.likelihood.unbiased import unbiased_log_partition
from tapmachine.likelihood.weight import log_weight
from tapmachine.posterior import anomaly_score
from tapmachine.tables import fit
from tapmachine.tables.fit import Table, fit_classes, fit_table, split
from tapmachine.tables.fit import machine_of as machine_of_table
from tapmachine.tables.slabs import SlabFit


def draws(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def machine_of(hidden, n=3, strength=0.3):
    return rbm(Gaussian(n, field=draws(n, seed=1), precision=1.5), hidden, strength * draws(n, hidden.n, seed=2))


def slabs(n=4):
    return SpikeSlab(n, field=0.3 * draws(n), precision=1.2, active_probability=0.3)


def slabs_and_clusters():
    return Mixed([slabs(2), Categorical(1, 3, field=draws(1, 3))])


TRANSFORM = draws(3, 3, seed=3) + 2 * torch.eye(3, dtype=torch.float64)
SHIFT = 5 * draws(3, seed=4)


@pytest.mark.parametrize(
    "hidden",
    [slabs(), Binary(4, field=draws(4)), Mixed([slabs(2), Binary(2, field=draws(2))]), slabs_and_clusters()],
    ids=["slabs", "binary", "both", "clusters"],
)
def test_other_coordinates(hidden):
    """The same density of rows, up to the volume that the transform stretches."""
    machine = machine_of(hidden)
    z = draws(6, 3, seed=5)
    x = SHIFT + z @ TRANSFORM.T
    there = in_coordinates(machine, TRANSFORM, SHIFT)
    gap = log_weight(machine, z) - log_weight(there, x)
    torch.testing.assert_close(gap, gap[:1].expand(6), rtol=0, atol=1e-10)


def test_ln_z_of_spike_and_slab_hidden_units_by_quadrature():
    machine = machine_of(slabs(3), n=1, strength=0.5)
    x = torch.linspace(-40, 40, 20_001, dtype=torch.float64).unsqueeze(1)
    expected = (log_weight(machine, x).logsumexp(0) + np.log(80 / 20_000)).item()
    assert exact_log_partition(machine).item() == pytest.approx(expected, abs=1e-9)
    partition = unbiased_log_partition(in_coordinates(machine, torch.full((1, 1), 3.0), torch.ones(1)))
    assert (partition.error, partition.method) == (0.0, "exact")


def on_a_grid(machine, reach=60.0, n_points=401):
    """States of two visible units on a grid, their log-weights, and ln of the area of a cell."""
    line = torch.linspace(-reach, reach, n_points, dtype=torch.float64)
    x = torch.cartesian_prod(line, line)
    return x, log_weight(machine, x).detach(), 2 * np.log(2 * reach / (n_points - 1))


def mixtures():
    """A machine with clusters and spike-and-slab units, one of them without weights; and in other coordinates."""
    hidden = Mixed([slabs(3), Categorical(1, 3, field=draws(1, 3))])
    weights = 0.5 * draws(2, 6, seed=2)
    weights[:, 1] = 0.0
    machine = rbm(Gaussian(2, field=draws(2, seed=1), precision=1.5), hidden, weights)
    return machine, in_coordinates(machine, TRANSFORM[:2, :2], SHIFT[:2])


@pytest.mark.parametrize("machine", mixtures(), ids=["plain", "correlated"])
def test_machines_of_tables_are_gaussian_mixtures(machine):
    """ln Z, the density and the moments, against sums over a grid."""
    x, log_weights, log_area = on_a_grid(machine)
    mixture, expected = mixture_of(machine), float(log_weights.logsumexp(0) + log_area)
    assert float(exact_log_partition(machine)) == pytest.approx(expected, abs=1e-8)
    assert float(mixture.log_partition) == pytest.approx(expected, abs=1e-8)
    covariances = mixture.covariances.repeat_interleave(mixture.per_covariance, 0)
    gaussians = torch.distributions.MultivariateNormal(mixture.means, covariances)
    density = (mixture.log_weights + gaussians.log_prob(x[::500].unsqueeze(1))).logsumexp(1)
    torch.testing.assert_close(density, log_weights[::500], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(mixture.log_weights.softmax(0) @ mixture.means, log_weights.softmax(0) @ x)


def test_gradients_of_ln_z_by_finite_differences():
    machine = mixtures()[0]
    weights = machine.weights[0]
    (gradient,) = torch.autograd.grad(closed_log_partition(machine), weights)
    for place in ((0, 0), (1, 2), (0, 4)):
        with torch.no_grad():
            weights[place] += 1e-5
            above = closed_log_partition(machine)
            weights[place] -= 2e-5
            below = closed_log_partition(machine)
            weights[place] += 1e-5
        assert float(gradient[place]) == pytest.approx(float((above - below) / 2e-5), abs=1e-8)


@pytest.mark.parametrize("machine", mixtures(), ids=["plain", "correlated"])
@pytest.mark.parametrize("y", [[1.0, 2.0], [1.0, np.nan], [np.nan, np.nan]], ids=["complete", "gap", "empty"])
def test_posteriors_under_gaussian_noise_by_quadrature(machine, y):
    """Moments of visible and hidden units, and the evidence; the other row shares no matrix with this one."""
    x, log_weights, log_area = on_a_grid(machine)
    y = torch.tensor([y, [np.nan, 0.3]], dtype=torch.float64)
    posterior = denoise(machine, y, GaussianNoise(0.7))
    assert bool(posterior.converged.all())
    log_noise = (-0.5 * ((y[0] - x) / 0.7) ** 2 - np.log(0.7 * np.sqrt(2 * np.pi))).nan_to_num(0.0).sum(1)
    joint = log_weights + log_noise
    assert float(-posterior.free_energy[0]) == pytest.approx(float(joint.logsumexp(0) + log_area), abs=1e-8)
    shares, hidden = joint.softmax(0), machine.conditional(1, [x, None])
    for (mean, variance), expected, within in (
        (posterior.moments[0], x, 0.0),
        (posterior.moments[1], hidden.mean.detach(), hidden.variance.detach()),
    ):
        torch.testing.assert_close(mean[0], shares @ expected, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(variance[0], shares @ ((expected - mean[0]) ** 2 + within), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("machine", mixtures(), ids=["plain", "correlated"])
def test_imputed_values_by_quadrature(machine):
    line = torch.linspace(-60, 60, 20_001, dtype=torch.float64)
    log_weights = log_weight(machine, torch.stack((torch.full_like(line, 0.1), line), 1)).detach()
    posterior = impute(machine, torch.tensor([[0.1, np.nan]], dtype=torch.float64))
    shares = log_weights.softmax(0)
    mean = float(shares @ line)
    assert posterior.mean[0].tolist() == [0.1, pytest.approx(mean, abs=1e-9)]
    assert posterior.variance[0].tolist() == [0.0, pytest.approx(float(shares @ (line - mean) ** 2), abs=1e-9)]
    expected = float(log_weights.logsumexp(0) + np.log(120 / 20_000))
    assert float(-posterior.free_energy) == pytest.approx(expected, abs=1e-9)


def test_an_infinite_z_is_reported():
    machine = machine_of(slabs(3), strength=3.0)
    with pytest.raises(EstimateError, match="ln Z is infinite"):
        exact_log_partition(machine)
    there = rbm(Gaussian(2), Mixed([Gaussian(2), Binary(1)]), torch.full((2, 3), 2.0))
    with pytest.raises(EstimateError, match="ln Z is infinite"):
        gibbs(there, torch.zeros(1, 2), 1)


def test_categorical_blocks_behave_as_by_themselves():
    """Three rows of three units with three states: no two shapes can be told apart by their sizes."""
    alone, numbers = Categorical(3, 3, field=draws(3, 3)), Binary(2, field=draws(2))
    layer = Mixed([numbers, alone])
    field = draws(3, 11, seed=6)
    tilts = Tilt(field[:, :2], 0.0), Tilt(field[:, 2:].unflatten(1, (3, 3)), 0.0)
    both = [
        (block.log_partition(tilt).sum(1), block.moments(tilt))
        for block, tilt in zip((numbers, alone), tilts, strict=True)
    ]
    torch.testing.assert_close(layer.log_partition(Tilt(field, 0.0)).sum(1), both[0][0] + both[1][0])
    mean, variance = layer.moments(Tilt(field, 0.0))
    torch.testing.assert_close(mean, torch.cat((both[0][1].mean, both[1][1].mean.flatten(1)), 1))
    torch.testing.assert_close(variance, torch.cat((both[0][1].variance, both[1][1].variance.flatten(1)), 1))
    for x in (
        layer.sample(Tilt(field, 0.0), torch.Generator().manual_seed(0)),
        layer.draw(Tilt(field, 0.0), torch.rand(3, 11, dtype=torch.float64)),
        layer.decode(torch.tensor([[1, 0, 2, 1, 0]])),
    ):
        expected = numbers.log_prior(x[:, :2]).sum(1) + alone.log_prior(x[:, 2:].unflatten(1, (3, 3))).sum(1)
        torch.testing.assert_close(layer.log_prior(x).sum(1), expected)
    assert layer.n_states() == [2, 2, 3, 3, 3]


def test_blocks_are_a_list_of_units_of_one_dtype():
    with pytest.raises(ValueError, match="expected a non-empty list of blocks"):
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


def test_chains_of_correlated_columns_mix():
    transform = torch.tensor([[100.0, 0.0], [100.0, 0.1]], dtype=torch.float64)
    machine = in_coordinates(rbm(Gaussian(2).double(), Binary(2).double()), transform, torch.zeros(2))
    x = gibbs(machine, torch.zeros(4000, 2, dtype=torch.float64), 5, torch.Generator().manual_seed(0))[0]
    torch.testing.assert_close(x.std(0), torch.full((2,), 100.0, dtype=torch.float64), rtol=0.05, atol=0)
    assert (x[:, 0] - x[:, 1]).std().item() == pytest.approx(0.1, rel=0.05)


def test_a_table_is_modeled_better_than_by_a_gaussian(quick_tables, tmp_path):
    train, test = clusters(400), clusters(1000, seed=1)
    model = RBM(3).fit(train)
    assert model.visible_.startswith("gaussian: real-valued columns")
    assert model.score_method_ == "exact"
    assert model.score(test) > EmpiricalCovariance().fit(train).score(test) + 0.3
    assert model.transform(test).shape == (1000, 6)
    assert model.history_[-1]["log_likelihood"] == pytest.approx(model.score(train), abs=0.01)
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


def test_samples_have_the_distribution_of_the_machine(quick_tables):
    """Each column against its exact distribution function, which no tail is too heavy for as it is for variances."""
    train = clusters(400, seed=3)
    model = RBM(6).fit(train)
    samples, mixture = model.sample(3000), mixture_of(model.machine_)
    shares, means = mixture.probabilities, mixture.means
    deviations = mixture.covariances.repeat_interleave(mixture.per_covariance, 0).diagonal(dim1=1, dim2=2).sqrt()
    chains = torch.from_numpy(train).repeat(8, 1)
    chains = gibbs(model.machine_, chains, 20, torch.Generator().manual_seed(0))[0].numpy()
    for column in range(3):

        def distribution(values, column=column):
            return norm.cdf(values[:, None], means[:, column], deviations[:, column]) @ shares.numpy()

        assert kstest(samples[:, column], distribution).pvalue > 1e-3
        assert kstest(chains[:, column], distribution).statistic < 0.06  # as far as the fit is from its 400 rows
    mean = shares @ means
    variance = shares @ (deviations**2 + (means - mean) ** 2)
    np.testing.assert_allclose(variance.sqrt().numpy(), train.std(0), rtol=0.1)


def test_clusters_are_found(quick_tables):
    """Two of them, with one covariance, and no heavy tails: as good as the mixture that the rows were drawn from."""
    rng = np.random.default_rng(0)
    offset = np.array([6.0, 0.0, -3.0])

    def rows(count):
        return (rng.normal(size=(count, 3)) + np.outer(rng.random(count) < 0.3, offset)) @ np.diag([1.0, 50.0, 0.01])

    train, test = rows(300), rows(2000)
    model = RBM(8).fit(train)
    assert "2 classes" in model.visible_
    z = torch.from_numpy(test @ np.diag([1.0, 0.02, 100.0]))
    two = torch.distributions.MultivariateNormal(
        torch.from_numpy(np.stack((0 * offset, offset))), torch.eye(3).double()
    )
    truth = (two.log_prob(z.unsqueeze(1)) + torch.tensor([0.7, 0.3]).log()).logsumexp(1) + np.log(1 / 50 / 0.01)
    assert model.score(test) == pytest.approx(float(truth.mean()), abs=0.05)
    shares = model.transform(test)[:, -2:]
    np.testing.assert_allclose(shares.sum(1), 1.0, atol=1e-9)
    assert sorted(shares.mean(0)) == pytest.approx([0.3, 0.7], abs=0.05)


def test_the_fit_normalizes_its_density(quick_tables):
    """The log-density that is fitted is that of the machine made from it, whose ln Z has an oracle above."""
    x = torch.from_numpy(clusters(60))
    table = Table.of(x, Gaussian(3))
    single = fit_classes(table, table.one_class(), 0.01)
    fitted = SlabFit(fit_classes(table, split(single, table, 3, 0.01), 0.01), 6, 0)
    fitted.fit(table.x, table.weights, 20)
    machine = machine_of_table(single, table, fitted)
    volume = fitted.log_volume + table.deviation.log().sum()
    log_density = log_weight(machine, x) - exact_log_partition(machine)
    expected = fitted.log_density(fitted.whitened(table.x)) - volume
    torch.testing.assert_close(expected.detach(), log_density.detach(), rtol=1e-9, atol=1e-9)


def test_diverged_parameters_are_reported(quick_tables, tmp_path):
    np.save(tmp_path / "x.npy", clusters(100))
    options = ("--hidden", 3, "--epochs", 2, "--learning-rate", 1e38, "--out", tmp_path / "run", "--quiet")
    code, _, errors = command("train", tmp_path / "x.npy", *options)
    assert code in (0, 4)  # steps may be undone in time
    assert "Traceback" not in errors
    machine = machine_of(slabs())
    with torch.no_grad():
        machine.weights[0].fill_(torch.inf)
    with pytest.raises(DivergenceError, match="use a smaller learning rate"):
        in_coordinates(machine, TRANSFORM, SHIFT)


def test_commands_on_a_table_name_what_does_not_apply(quick_tables, tmp_path):
    np.save(tmp_path / "x.npy", clusters(100))
    options = ("--hidden", 3, "--epochs", 2, "--quiet", "--out", tmp_path / "run")
    assert command("train", tmp_path / "x.npy", *options)[0] == 0
    code, _, errors = command("landscape", tmp_path / "run")
    assert code == 2
    assert errors.splitlines() == [errors.strip()]
    assert "TAP has no solution for a machine fitted to a real-valued table" in errors


def test_a_gaussian_table_stays_gaussian(quick_tables):
    """Where slabs do not help rows that were left out, there are none."""
    x = np.random.default_rng(0).normal(size=(120, 4)) @ np.diag([1.0, 10.0, 0.1, 5.0])
    machine = fit_table(torch.from_numpy(x), 2).machine
    assert not machine.weights[0][:, 4:].any()


def test_equal_weights_do_not_change_heavy_tails(quick_tables):
    x = torch.from_numpy(np.random.default_rng(0).standard_t(2, size=(200, 2)))
    plain = fit_table(x, 2).machine.weights[0]
    weighted = fit_table(x, 2, weights=torch.full((200,), 0.5)).machine.weights[0]
    assert plain[:, 2:].any()
    torch.testing.assert_close(weighted, plain)


def test_limits_of_the_fit_are_noted(monkeypatch):
    monkeypatch.setattr(fit, "MOST_ROWS", 60)
    monkeypatch.setattr(fit, "SELECTION_ROWS", 20)
    x = draws(120, 2)
    x[0, 0] = torch.nan
    assert fit_table(x, 2).notes == [
        "fitted to 60 evenly spaced rows of 120",
        "classes and shrinkage chosen for 20 of these rows",
        "no spike-and-slab units for heavy tails, because values are missing",
    ]


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
    rows = torch.cat((x[:4], torch.tensor([[0.1, 0.2, torch.nan, 0.3, 0.4]])))
    scores = anomaly_score(model.machine_, rows)
    exact = log_weight(model.machine_, x[:4]) - exact_log_partition(model.machine_)
    assert torch.allclose(scores[:4], -exact, atol=1e-9)
    np.testing.assert_allclose(model.score_samples(rows.numpy()), -scores.numpy())
