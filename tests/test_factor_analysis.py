"""Gaussian hidden units: with Gaussian visible units a factor analysis, held against scikit-learn's."""

import math
import warnings

import numpy as np
import pytest
import torch
from machine_cases import machine_of as random_machine
from scipy.stats import multivariate_normal
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.decomposition import FactorAnalysis
from typer.testing import CliRunner

from tapmachine import CD, Binary, Gaussian, TAPObjective, dbm, exact_log_likelihood, exact_log_partition, fit, rbm
from tapmachine.apps.cli import app
from tapmachine.data.errors import DivergenceError, EstimateError, TrainingWarning
from tapmachine.exact.gaussian import gaussian_log_partition
from tapmachine.likelihood.annealing.estimate import Annealing
from tapmachine.likelihood.compare import compare_likelihoods
from tapmachine.runs.folder import RunFolder
from tapmachine.runs.session import read_machine
from tapmachine.training import Monitor
from tapmachine.training.factors import _leading, find_factors
from tapmachine.training.objectives import Exact, default_objective

QUIET = Monitor(n_starts=0)


def standardized(x):
    return (x - x.mean(0)) / x.std(0)


def five_columns():
    random = np.random.default_rng(0)
    factors, loadings = random.normal(size=(400, 2)), random.normal(size=(2, 5))
    return 3 + factors @ loadings + random.normal(size=(400, 5)) * [0.3, 0.5, 0.7, 0.9, 1.1]


DATA = {
    "five columns": (five_columns, 0.05),
    "wine": (lambda: standardized(load_wine().data), 0.1),
    "diabetes": (lambda: standardized(load_diabetes(scaled=False).data), 0.1),
    "breast cancer": (lambda: standardized(load_breast_cancer().data), 0.1),
}


def halves(x, seed=0):
    x = x[np.random.default_rng(seed).permutation(len(x))]
    cut = int(0.8 * len(x))
    return x[:cut], x[cut:]


def marginal(machine):
    """The visible units of two Gaussian layers: precision matrix D(V) − W D(1/V') Wᵀ, by SciPy."""
    (field, precision), (field_above, precision_above) = (
        (units.field.detach().double().numpy(), units.precision.detach().double().numpy()) for units in machine.layers
    )
    weights = machine.weights[0].detach().double().numpy()
    covariance = np.linalg.inv(np.diag(precision) - weights / precision_above @ weights.T)
    mean = covariance @ (field + weights @ (field_above / precision_above))
    return multivariate_normal(mean, 0.5 * (covariance + covariance.T))


def held_out_score(machine, x):
    return float(np.mean(marginal(machine).logpdf(x)))


def fitted(x, **options):
    """A machine that `fit` has trained by defaults, on which no warning was due."""
    machine = rbm(Gaussian(x.shape[1]), Gaussian(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        history = fit(machine, torch.tensor(x, dtype=torch.float32), **options)
    return machine, history


# ----- ln Z


@pytest.mark.parametrize("sizes", [(5, 3), (3, 5)])
def test_the_likelihood_is_that_of_a_normal_distribution(sizes):
    machine = random_machine(["Gaussian", "Gaussian"], list(sizes), seed=1, scale=0.2)
    x = torch.randn((20, sizes[0]), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    expected = marginal(machine).logpdf(x.numpy())
    np.testing.assert_allclose(exact_log_likelihood(machine, x).values, expected, rtol=1e-11)
    assert [row.estimator for row in compare_likelihoods(machine, x, annealing=Annealing(50)).rows][-1] == "exact"


def test_the_gradient_of_ln_z_is_the_model_s_correlation():
    machine = random_machine(["Gaussian", "Gaussian"], [4, 3], seed=3, scale=0.2)
    (of_weights,) = torch.autograd.grad(gaussian_log_partition(machine), [machine.weights[0]])
    (field, V), (field_above, V_above) = ((u.field.detach(), u.precision.detach()) for u in machine.layers)
    W = machine.weights[0].detach()
    joint = torch.linalg.inv(torch.cat((torch.cat((V.diag(), -W), 1), torch.cat((-W.T, V_above.diag()), 1))))
    mean = joint @ torch.cat((field, field_above))
    torch.testing.assert_close(of_weights, joint[:4, 4:] + torch.outer(mean[:4], mean[4:]), rtol=1e-11, atol=1e-11)


def test_couplings_that_are_too_strong_are_named():
    machine = rbm(Gaussian(2, precision=1.0), Gaussian(3, precision=1.0), torch.ones(2, 3))
    assert gaussian_log_partition(machine) == math.inf
    with pytest.raises(EstimateError, match="ln Z is infinite"):
        exact_log_partition(machine)
    with pytest.warns(TrainingWarning, match="the log-likelihood is not available: ln Z is infinite"):
        assert math.isnan(Monitor()(machine, torch.zeros(4, 2))["log_likelihood"])


# ----- training two layers of Gaussian units


@pytest.mark.long
@pytest.mark.parametrize("name", DATA)
def test_it_is_as_likely_as_scikit_learn_s_factor_analysis(name):
    make, allowed = DATA[name]
    train, test = halves(make())
    machine, history = fitted(train, epochs=50)
    reference = FactorAnalysis(2, svd_method="lapack").fit(train)
    assert held_out_score(machine, test) > reference.score(test) - allowed
    assert held_out_score(machine, train) > reference.score(train) - allowed
    assert history["log_likelihood"][-1] == pytest.approx(held_out_score(machine, train), abs=1e-3)
    assert sum(history["divergences"]) == 0


@pytest.mark.long
def test_from_the_command_line_by_defaults(tmp_path):
    """Raw columns, whose deviations differ by a factor of 2,500, are as likely as standardized ones."""
    train, test = halves(load_wine().data)
    np.save(tmp_path / "wine.npy", train)
    options = ("--visible", "gaussian", "--hidden-units", "gaussian", "--hidden", "2", "--out", tmp_path / "run")
    done = CliRunner().invoke(app, [str(word) for word in ("train", tmp_path / "wine.npy", *options)])
    assert done.exit_code == 0, done.output
    assert "warning" not in done.output
    mean, deviation = train.mean(0), train.std(0)
    reference = FactorAnalysis(2, svd_method="lapack").fit((train - mean) / deviation)
    expected = reference.score((test - mean) / deviation) - np.log(deviation).sum()
    assert held_out_score(read_machine(RunFolder(tmp_path / "run"))[0], test) > expected - 0.1


def test_data_far_from_zero_and_on_another_scale():
    x = five_columns()
    expected = held_out_score(fitted(x, epochs=3)[0], x)
    far = rbm(Gaussian(5), Gaussian(2))
    with pytest.warns(TrainingWarning, match="scale the data"):
        fit(far, torch.tensor(x + 100, dtype=torch.float32), epochs=3)
    assert held_out_score(far, x + 100) > expected - 0.05
    small = fitted(0.001 * x, epochs=3)[0]
    assert held_out_score(small, 0.001 * x) + 5 * math.log(0.001) > expected - 0.05


def test_data_without_a_maximum_of_the_likelihood():
    """Columns that are copies of each other or constant, fewer rows than columns, more hidden units than columns."""
    random = np.random.default_rng(1)
    two = random.normal(size=(60, 2))
    for x in (np.tile(two, 3), np.c_[two, np.ones(60)], random.normal(size=(8, 20)), two[:, :1]):
        machine, history = fitted(x, epochs=5, batch_size=4)
        assert math.isfinite(history["log_likelihood"][-1])
        assert math.isfinite(held_out_score(machine, x))
        assert sum(history["divergences"]) == 0


def test_weights_of_rows_count_as_copies():
    x = five_columns()[:100]
    machines = [rbm(Gaussian(5).double(), Gaussian(2).double()) for _ in range(2)]
    twice = torch.tensor(np.r_[x, x[:50]])
    fit(machines[0], twice, epochs=0)
    fit(machines[1], torch.tensor(x), epochs=0, weights=torch.tensor([2.0] * 50 + [1.0] * 50).double() / 1.5)
    scores = [held_out_score(machine, x) for machine in machines]
    assert scores[0] == pytest.approx(scores[1], abs=1e-9)


@pytest.mark.long
def test_small_weights_that_are_kept_grow():
    x = torch.tensor(standardized(five_columns()), dtype=torch.float32)
    machine = rbm(Gaussian(5), Gaussian(2))
    history = fit(machine, x, warm_start=True, batch_size=50)
    assert history["log_likelihood"][-1] > history["log_likelihood"][0] + 0.1
    assert history["weight_norm"][-1] > 0.5
    assert sum(history["divergences"]) == 0


def test_leading_eigenvectors_are_the_same_by_either_method():
    random = np.random.default_rng(2)
    x = random.normal(size=(300, 3)) @ random.normal(size=(3, 40)) + random.normal(size=(300, 40))
    correlations = torch.tensor(np.corrcoef(x.T))
    values, vectors = torch.linalg.eigh(correlations)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tapmachine.training.factors.FEW_COLUMNS", 10)
        found, directions = _leading(correlations, 3)
        factors = find_factors(correlations, 3)
    torch.testing.assert_close(found, values[-3:])
    torch.testing.assert_close((directions * vectors[:, -3:]).sum(0).abs(), torch.ones(3).double())
    torch.testing.assert_close(factors.unique, find_factors(correlations, 3).unique, rtol=1e-6, atol=1e-6)


def test_tap_is_advised_against():
    x = torch.tensor(standardized(load_diabetes(scaled=False).data), dtype=torch.float32)
    with pytest.warns(TrainingWarning), pytest.raises(DivergenceError, match="use the default objective"):
        fit(rbm(Gaussian(10), Gaussian(2)), x, objective=TAPObjective(), epochs=5, monitor=QUIET)


def test_the_exact_objective_is_for_two_gaussian_layers():
    with pytest.raises(ValueError, match="expected Gaussian visible units"):
        fit(rbm(Binary(3), Gaussian(2)), torch.zeros(100, 3), objective=Exact(), epochs=1)


# ----- other visible units


def test_default_objectives():
    assert isinstance(default_objective(rbm(Gaussian(4), Gaussian(2))), Exact)
    for layers in ([Binary(4), Gaussian(2)], [Gaussian(4), Gaussian(2), Binary(2)]):
        assert isinstance(default_objective(dbm(layers)), CD)


@pytest.mark.long
def test_binary_visible_units_learn_with_gaussian_hidden_ones():
    """Ten bits that mostly agree: exact ln P against independent units, and what the monitor says of it."""
    random = np.random.default_rng(3)
    pattern = random.random((400, 1)) < 0.4
    x = torch.tensor(pattern ^ (random.random((400, 10)) < 0.1), dtype=torch.float32)
    machine = rbm(Binary(10), Gaussian(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        history = fit(machine, x, epochs=25, batch_size=20, monitor=Monitor(n_starts=40, every=25))
    p = x.double().mean(0)
    independent = float((p * p.log() + (1 - p) * (1 - p).log()).sum())
    exact = float(exact_log_likelihood(machine, x).mean)
    truth = 0.4 * math.log(0.4) + 0.6 * math.log(0.6) + 10 * (0.1 * math.log(0.1) + 0.9 * math.log(0.9))
    assert exact > independent + 1.5
    assert exact == pytest.approx(truth, abs=0.5)
    assert history["tap_log_sum_exp"][-1] == pytest.approx(exact, abs=0.5)


@pytest.mark.long
def test_bits_that_always_agree_do_not_make_weights_grow_without_bounds():
    """Chains that lose one of the two clusters did so."""
    x = (torch.rand((300, 1), generator=torch.Generator().manual_seed(0)) < 0.4).float().expand(300, 20).clone()
    history = fit(rbm(Binary(20), Gaussian(3)), x, batch_size=20, epochs=20, monitor=QUIET)
    assert sum(history["divergences"]) == 0
    assert history["weight_norm"][-1] < 10
