"""Layers of several unit types in a machine: the laws that hold for one type, on machines small enough to be exact."""

import numpy as np
import pytest
import torch
from machine_cases import Tensors, rescale
from test_schemes import gradient_error

import tapmachine as tm
from tapmachine import (
    TAP,
    AdaptiveTAP,
    Binary,
    Categorical,
    Gaussian,
    Mixed,
    NaiveMeanField,
    Poisson,
    RelaxedBP,
    Tilt,
    clamp,
    condition,
    exact_log_partition,
    impute,
    pairwise,
    rbm,
    solve,
)
from tapmachine.landscape import find_solutions
from tapmachine.machine import BoltzmannMachine
from tapmachine.posterior import anomaly_score, conditional_surprise, gibbs_posterior

TIGHT = 1e-27
COUNTS = np.arange(150.0)
CATEGORY = slice(4, 7)  # the components of the categorical unit


def visible(random) -> Mixed:
    return Mixed(
        [
            Gaussian(2, field=0.3 * random.normal(2), precision=random.uniform(2.0, 3.0, 2)),
            Binary(2, field=random.normal(2)),
            Categorical(1, 3, field=random.normal(1, 3)),
            Poisson(1, field=random.normal(1)),
        ]
    )


def mixed_machine(seed, scale=0.3, hidden=None) -> BoltzmannMachine:
    random = Tensors(seed)
    above = Binary(3, field=random.normal(3)) if hidden is None else hidden(random)
    machine = rbm(visible(random), above)
    rescale(machine, [random.normal(*machine.weights[0].shape)], scale)
    return machine


def rows_of(machine, n, seed=0):
    units = machine.layers[0]
    no_tilt = Tilt(torch.zeros(n, units.n, dtype=units.dtype), 0.0)
    return units.sample(no_tilt, torch.Generator().manual_seed(seed)).detach()


# ----- an oracle in NumPy: the visible units are independent, given the hidden ones


def parameters(machine):
    gaussian, binary, categorical, counts = machine.layers[0].blocks
    values = gaussian.field, gaussian.precision, binary.field, categorical.field[0], counts.field
    return [z.detach().numpy() for z in (*values, machine.layers[1].field, machine.weights[0])]


def hidden_states():
    return np.stack(np.meshgrid(*[[0.0, 1.0]] * 3, indexing="ij"), -1).reshape(-1, 3)


def log_factorial(k):
    return np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, len(k))))))


def log_prior_of_hidden(machine, h):
    c = parameters(machine)[5]
    return (h * c - np.log1p(np.exp(c))).sum(-1)


def factors(machine, x, h):
    """ln P(x_i) exp(x_i Σ W h) of each unit of one row, for all h: Gaussian ×2, bits ×2, category, count. (H, 6)"""
    U, V, b, u, r, _, W = parameters(machine)
    field = h @ W.T
    density = -0.5 * V * (x[:2] - U / V) ** 2 + 0.5 * np.log(V / (2 * np.pi))
    real = density + x[:2] * field[:, :2]
    bits = x[2:4] * (b + field[:, 2:4]) - np.log1p(np.exp(b))
    category = (x[4:7] * (u - np.log(np.exp(u).sum()) + field[:, 4:7])).sum(-1, keepdims=True)
    count = x[7:] * (r + field[:, 7:]) - np.exp(r) - log_factorial(COUNTS)[int(x[7])]
    return np.concatenate((real, bits, category, count), -1)


def totals(machine, h):
    """The same, summed or integrated over all values of each unit. (H, 6)"""
    U, V, b, u, r, _, W = parameters(machine)
    field = h @ W.T
    real = ((U + field[:, :2]) ** 2 - U**2) / (2 * V)
    bits = np.log1p(np.exp(b + field[:, 2:4])) - np.log1p(np.exp(b))
    category = np.log((np.exp(u) * np.exp(field[:, 4:7])).sum(-1, keepdims=True) / np.exp(u).sum())
    terms = COUNTS * (r + field[:, 7:]) - log_factorial(COUNTS) - np.exp(r)
    return np.concatenate((real, bits, category, np.log(np.exp(terms).sum(-1, keepdims=True))), -1)


def log_sum_exp(z):
    return z.max() + np.log(np.exp(z - z.max()).sum())


def exact_answer(machine):
    h = hidden_states()
    return log_sum_exp(log_prior_of_hidden(machine, h) + totals(machine, h).sum(-1))


def conditionals(machine, x):
    """ln P(x_i | all others) of one row. (6,)"""
    h = hidden_states()
    at, total = factors(machine, x, h), totals(machine, h)
    joint = log_prior_of_hidden(machine, h) + at.sum(-1)
    return np.array([log_sum_exp(joint) - log_sum_exp(joint - at[:, i] + total[:, i]) for i in range(6)])


def means_given(machine, x, missing):
    """Exact means of the components, given all units of a row but the missing ones (of 6)."""
    U, V, b, u, r, _, W = parameters(machine)
    h = hidden_states()
    field = h @ W.T
    at = np.where(missing, totals(machine, h), factors(machine, x, h))
    weight = log_prior_of_hidden(machine, h) + at.sum(-1)
    share = np.exp(weight - log_sum_exp(weight))
    q = np.exp(u + field[:, 4:7])
    means = np.concatenate(
        (
            (U + field[:, :2]) / V,
            1 / (1 + np.exp(-b - field[:, 2:4])),
            q / q.sum(-1, keepdims=True),
            np.exp(r + field[:, 7:]),
        ),
        -1,
    )
    return share @ means


def test_the_exact_log_partition():
    for seed in range(3):
        machine = mixed_machine(seed, 0.5)
        assert float(exact_log_partition(machine)) == pytest.approx(exact_answer(machine), abs=1e-10)


# ----- mean field


def two_layers(seed):
    return mixed_machine(seed)


def mixed_above(seed):
    return mixed_machine(seed, hidden=lambda r: Mixed([Categorical(1, 3, r.normal(1, 3)), Binary(2, r.normal(2))]))


def categorical_above(seed):
    return mixed_machine(seed, hidden=lambda r: Categorical(2, 3, r.normal(2, 3)))


def three_layers(seed):
    random = Tensors(seed)
    middle = Mixed([Binary(1, random.normal(1)), Categorical(1, 2, random.normal(1, 2))])
    return BoltzmannMachine([visible(random), middle, Binary(2, random.normal(2))])


def with_evidence(seed):
    """Gaussian noise on all visible units, which gives counts a precision."""
    random = Tensors(seed + 50)
    return condition(mixed_machine(seed), Tilt(random.normal(8), random.uniform(0.1, 0.5, 8)))


def partly_clamped(seed):
    machine = mixed_machine(seed)
    mask = torch.tensor([True, False, True, False, False, False, False, True])
    return clamp(machine, rows_of(machine, 1)[0], mask=mask)


def in_pairs(seed):
    random = Tensors(seed)
    units = Mixed([Binary(1, random.normal(1)), Categorical(2, 3, random.normal(2, 3)), Binary(1, random.normal(1))])
    return pairwise(units.double())


KINDS = [two_layers, mixed_above, categorical_above, three_layers, with_evidence, partly_clamped, in_pairs]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_order_of_the_error(kind):
    """|F − F_exact| falls as s² for naive mean field and as s³ for TAP when the couplings are scaled by s → 0."""
    errors = {scheme: np.zeros((6, 2)) for scheme in (NaiveMeanField(), TAP())}
    for seed in range(6):
        machine = kind(seed)
        weights = [Tensors(seed + 99).normal(*w.shape) for w in machine.weights]
        weights = [w + w.T for w in weights] if machine.is_pairwise else weights
        for column, scale in enumerate((0.01, 0.005)):
            rescale(machine, weights, scale)
            exact = -exact_log_partition(machine)
            for scheme, found in errors.items():
                solution = solve(machine, None, scheme, tol=TIGHT)
                assert bool(solution.converged)
                found[seed, column] = abs(float(solution.free_energy) - float(exact))
    for (scheme, found), least in zip(errors.items(), (1.9, 2.8), strict=True):
        slope = np.log2(found[:, 0].mean() / found[:, 1].mean())
        assert slope >= least, f"{scheme}: slope {slope:.2f}"


@pytest.mark.parametrize("scheme", [TAP(), TAP(update="explicit"), NaiveMeanField()], ids=str)
@pytest.mark.parametrize("kind", [two_layers, mixed_above], ids=lambda kind: kind.__name__)
def test_gradients_of_the_solved_free_energy(kind, scheme):
    assert gradient_error(kind(0), scheme, 0) <= 1e-6


def test_updates_agree():
    machine = mixed_machine(1)
    ways = [solve(machine, None, TAP(update), tol=TIGHT, max_sweeps=3000) for update in ("implicit", "explicit")]
    torch.testing.assert_close(ways[0].free_energy, ways[1].free_energy, rtol=0, atol=1e-12)
    torch.testing.assert_close(ways[0].moments[0].mean, ways[1].moments[0].mean, rtol=0, atol=1e-10)


@pytest.mark.parametrize("scheme", [AdaptiveTAP(), RelaxedBP()], ids=str)
def test_schemes_without_covariances_refuse_categories(scheme):
    with pytest.raises(ValueError, match="Categorical units in a Mixed layer"):
        solve(mixed_machine(0), None, scheme)


# ----- likelihoods


def test_annealing_against_the_exact_log_partition():
    machine = mixed_machine(2, 0.5)
    estimate = tm.ais_log_partition(machine, 200, n_runs=200)
    assert abs(float(estimate.log_partition) - exact_answer(machine)) <= 5 * float(estimate.standard_error) + 1e-4


def test_pseudo_likelihood_against_direct_conditionals():
    machine = mixed_machine(3, 0.5)
    x = rows_of(machine, 5)
    exact = np.array([conditionals(machine, row) for row in x.numpy()])
    found = tm.pseudo_log_likelihood(machine, x)
    np.testing.assert_allclose(found.values.numpy(), exact.sum(-1), atol=1e-9)
    surprise = -conditional_surprise(machine, x).numpy()
    np.testing.assert_allclose(surprise[:, [0, 1, 2, 3, 4, 7]], exact, atol=1e-9)
    assert not surprise[:, 5:7].any()  # the components of one unit, whose surprise stands at the first


def test_surprise_of_a_deep_machine():
    """Without couplings to the top, that of the machine with one hidden layer."""
    shallow = mixed_machine(3, 0.05)
    deep = BoltzmannMachine(
        [*shallow.layers, Binary(2).double()], [shallow.weights[0].detach(), torch.zeros(3, 2).double()]
    )
    x = rows_of(shallow, 2)
    torch.testing.assert_close(conditional_surprise(deep, x), conditional_surprise(shallow, x), rtol=0, atol=5e-3)


# ----- gaps


def gaps_in(x):
    """Rows without category and count, without a number and a bit."""
    y, missing = x.clone(), np.zeros((len(x), 6), dtype=bool)
    y[::2, 4:8], missing[::2, 4:6] = torch.nan, True
    y[1::2, [0, 3]] = torch.nan
    missing[1::2, 0] = missing[1::2, 3] = True
    return y, missing


def test_imputed_means_and_probabilities_against_enumeration():
    """Class probabilities in the components of the category; the error falls as the cube of the couplings."""
    errors = []
    for scale in (0.1, 0.05):
        machine = mixed_machine(4)
        rescale(machine, [Tensors(7).normal(8, 3)], scale)
        x = rows_of(machine, 6)
        y, missing = gaps_in(x)
        exact = [means_given(machine, row, gone) for row, gone in zip(x.numpy(), missing, strict=True)]
        posterior = impute(machine, y)
        assert bool(posterior.converged.all())
        found = posterior.mean.numpy()
        seen = ~np.isnan(y.numpy())
        np.testing.assert_array_equal(found[seen], x.numpy()[seen])
        np.testing.assert_allclose(found[:, CATEGORY].sum(-1), 1, atol=1e-12)
        machine.layers[0].blocks[2].check_states(posterior.states[:, CATEGORY].unflatten(-1, (1, 3)))
        errors.append(np.abs(found - np.array(exact))[~seen].max())
    assert errors[0] < 2e-3
    assert np.log2(errors[0] / errors[1]) > 2.5


@pytest.mark.long
def test_sampled_posterior_against_enumeration():
    machine = mixed_machine(4, 0.5)
    x = rows_of(machine, 4)
    y, missing = gaps_in(x)
    exact = np.array([means_given(machine, row, gone) for row, gone in zip(x.numpy(), missing, strict=True)])
    found = gibbs_posterior(machine, y, tm.Missing(), 4000, torch.Generator().manual_seed(0)).mean.numpy()
    seen = ~np.isnan(y.numpy())
    assert np.abs(found - exact)[~seen].max() < 0.05


def test_a_category_is_missing_as_a_whole():
    machine = mixed_machine(0)
    y = rows_of(machine, 3)
    y[1, 5] = torch.nan
    with pytest.raises(ValueError, match=r"y\[1, 5\] is nan; expected NaN in all components"):
        impute(machine, y)


def test_noise_on_all_parts():
    """Gaussian noise of all components, against the exact means under that tilt."""
    machine = mixed_machine(5, 0.05)
    y = tm.GaussianNoise(0.7).corrupt(rows_of(machine, 3), units=machine.layers[0])
    posterior = tm.denoise(machine, y, tm.GaussianNoise(0.7))
    assert bool(posterior.converged.all())
    h = torch.from_numpy(hidden_states())
    for row, mean in zip(y, posterior.mean, strict=True):
        noisy = condition(machine, Tilt(row / 0.49, torch.full((8,), 1 / 0.49, dtype=torch.float64)))
        tilt = Tilt(h @ machine.weights[0].detach().T, 0.0)
        weight = noisy.layers[0].log_partition(tilt).sum(-1) + torch.from_numpy(log_prior_of_hidden(machine, h.numpy()))
        exact = weight.softmax(0) @ noisy.layers[0].moments(tilt).mean
        torch.testing.assert_close(mean, exact.detach(), rtol=0, atol=2e-4)


def test_scores_with_gaps_are_those_of_what_was_observed():
    machine = mixed_machine(6, 0.05)
    x = rows_of(machine, 4)
    y, missing = gaps_in(x)
    h = hidden_states()
    at = [
        np.where(gone, totals(machine, h), factors(machine, row, h))
        for row, gone in zip(x.numpy(), missing, strict=True)
    ]
    exact = [exact_answer(machine) - log_sum_exp(log_prior_of_hidden(machine, h) + z.sum(-1)) for z in at]
    np.testing.assert_allclose(anomaly_score(machine, y).numpy(), exact, atol=1e-4)


# ----- the rest of the package


def test_chains_have_the_moments_of_the_machine():
    machine = mixed_machine(2, 0.5)
    x = rows_of(machine, 4000)
    generator = torch.Generator().manual_seed(1)
    drawn = tm.gibbs(machine, x, 30, generator=generator)[0]
    machine.layers[0].check_states(drawn)
    exact = means_given(machine, x[0].numpy(), np.ones(6, dtype=bool))
    error = drawn.std(0) / len(drawn) ** 0.5
    assert bool(((drawn.mean(0) - torch.from_numpy(exact)).abs() <= 5 * error).all())


def test_files_and_landscape(tmp_path):
    machine = mixed_machine(0)
    tm.save(machine, tmp_path / "machine.safetensors")
    same = tm.load(tmp_path / "machine.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(same.parameters(), machine.parameters(), strict=True))
    assert float(exact_log_partition(same)) == float(exact_log_partition(machine))
    assert len(find_solutions(machine, rows_of(machine, 5)).solutions) == 1
