"""Log-likelihoods by every estimator, against enumeration, dense quadrature, and each other."""

import math
import warnings

import numpy as np
import pytest
import torch
from machine_cases import UNITS, Tensors, machine_of
from survey import covered, exact_samples, survey, table
from test_machine import DISCRETE, brute_force, small

from tapmachine import (
    Binary,
    Custom,
    Gaussian,
    Moments,
    NaiveMeanField,
    SpikeSlab,
    Spin,
    Tilt,
    TruncatedGaussBernoulli,
    TruncatedGaussian,
    ais_log_likelihood,
    ais_log_partition,
    clamp,
    compare_likelihoods,
    condition,
    dbm,
    exact_log_likelihood,
    exact_log_partition,
    pairwise,
    pseudo_log_likelihood,
    rbm,
    solve,
    tap_log_likelihood,
)
from tapmachine.beliefs import Status
from tapmachine.data.errors import LikelihoodWarning
from tapmachine.likelihood.annealing.bases import independent_base
from tapmachine.likelihood.annealing.estimate import Annealing
from tapmachine.likelihood.annealing.paths import Base, draw_evenly, path_from, seeded
from tapmachine.likelihood.compare import LikelihoodRow, _disagreements
from tapmachine.machine import BoltzmannMachine
from tapmachine.solver import merge_solutions, random_start
from tapmachine.units.numerics.draws import draw_bits

# Of a normal distribution that is one false alarm in 10¹⁰ comparisons. The errors of annealed estimates are themselves
# estimated, from weights that are nearly normal here; so there is room for tails, and for the 200 comparisons below.
SIGMAS = 6.5


def data_of(machine: BoltzmannMachine, rows: int, seed: int = 0) -> torch.Tensor:
    """Draws of the visible units' priors."""
    units = machine.layers[0]
    no_tilt = Tilt(torch.zeros((rows, *units.state_shape), dtype=machine.dtype), 0.0)
    return units.sample(no_tilt, torch.Generator().manual_seed(seed))


# ----- exactly


@pytest.mark.parametrize("kinds", DISCRETE, ids="-".join)
def test_exact_likelihood_against_brute_force(kinds):
    machine = small(kinds)
    states, probabilities, log_partition = brute_force(machine)
    x = data_of(machine, 5)
    found = exact_log_likelihood(machine, x)
    for row, value in zip(x, found.values, strict=True):
        same = (states[0] == row).flatten(1).all(-1)
        assert float(value) == pytest.approx(math.log(float(probabilities[same].sum())), abs=1e-11)
    assert float(found.log_partition) == pytest.approx(float(log_partition), abs=1e-11)
    assert float(found) == pytest.approx(float(found.values.mean()))
    assert float(found.per_unit) == pytest.approx(float(found.mean) / sum(u.n for u in machine.layers))
    assert float(found.standard_error) == pytest.approx(float(found.values.std()) / 5**0.5)


def test_scores_are_in_float64_whatever_the_machine_is():
    machine = machine_of(["Binary", "Binary"], [5, 3], seed=1).float()
    x = data_of(machine, 4)
    found = exact_log_likelihood(machine, x)
    assert found.values.dtype == torch.float64
    assert machine.dtype == torch.float32
    expected = exact_log_likelihood(machine.double(), x.double())
    torch.testing.assert_close(found.values, expected.values, rtol=0, atol=1e-12)


# ----- pseudo-likelihood


@pytest.mark.parametrize("kinds", [kinds for kinds in DISCRETE if len(kinds) <= 2], ids="-".join)
def test_pseudo_likelihood_against_brute_force(kinds):
    machine = small(kinds, seed=2)
    states, probabilities, _ = brute_force(machine)
    x = data_of(machine, 4)
    found = pseudo_log_likelihood(machine, x)
    for row, value in zip(x, found.values, strict=True):
        total = 0.0
        agrees = (states[0] == row).flatten(2).all(-1) if states[0].dim() > 2 else states[0] == row
        for unit in range(machine.layers[0].n):
            others = [i for i in range(machine.layers[0].n) if i != unit]
            rest = agrees[:, others].all(-1)
            total += math.log(float(probabilities[rest & agrees[:, unit]].sum() / probabilities[rest].sum()))
        assert float(value) == pytest.approx(total, abs=1e-10)


@pytest.mark.parametrize("kind", ["TruncatedGaussian", "GaussBernoulli", "Gaussian", "Interval", "HalfLine"])
@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_pseudo_likelihood_of_real_values_against_dense_quadrature(kind, scale):
    random = Tensors(3)
    more = {
        "Interval": lambda: Custom(3, lambda x: x - 3 * x**2, lower=-1.0, upper=2.0),
        "HalfLine": lambda: TruncatedGaussian(3, lower=0.0, upper=math.inf, field=random.normal(3), precision=2.0),
    }
    visible = more[kind]() if kind in more else UNITS[kind](random, 3)
    machine = rbm(visible.double(), Binary(4, field=random.normal(4)), scale * random.normal(3, 4))
    W, U = machine.weights[0].detach(), machine.layers[1].field.detach()
    x = data_of(machine, 3)
    found = pseudo_log_likelihood(machine, x).values
    atoms = visible.atoms()
    lower, upper = (bound.expand(3) for bound in visible.bounds())
    nodes, weights = (torch.from_numpy(z) for z in np.polynomial.legendre.leggauss(20))
    for row, value in zip(x, found, strict=True):
        total = 0.0
        for unit in range(3):

            def log_density(values, row=row, unit=unit):
                changed = row.expand(len(values), 3).clone()
                changed[:, unit] = values
                prior = visible.log_prior(changed, validate=False)[:, unit].detach()
                return prior + torch.nn.functional.softplus(changed @ W + U, threshold=50).sum(-1)

            edges = torch.linspace(max(float(lower[unit]), -30.0), min(float(upper[unit]), 30.0), 2001).double()
            half = edges.diff().unsqueeze(-1) / 2
            values = (edges[:-1].unsqueeze(-1) + half * (nodes + 1)).flatten()
            logs = log_density(values) + (half * weights).flatten().log()
            if atoms is not None:
                logs = torch.cat((logs, log_density(atoms)))
            total += float(log_density(row[unit].unsqueeze(0)) - logs.logsumexp(0))
        assert float(value) == pytest.approx(total, abs=1e-10)


@pytest.mark.parametrize("weight", [1.0, 6.0, 15.0, 60.0])
def test_pseudo_likelihood_with_separate_modes(weight):
    """One Gaussian and one spin: the conditional is the marginal, two Gaussians at ±W."""
    machine = rbm(Gaussian(1).double(), Spin(1).double(), torch.tensor([[weight]]).double())
    for x in (0.0, weight, -weight, weight + 3):
        log_terms = [-0.5 * (x - sign * weight) ** 2 for sign in (-1, 1)]
        expected = np.logaddexp(*log_terms) - math.log(2 * math.sqrt(2 * math.pi))
        found = pseudo_log_likelihood(machine, torch.tensor([[x]]).double())
        assert float(found) == pytest.approx(expected, abs=1e-9)


def test_pseudo_likelihood_of_narrow_priors_and_kinks():
    narrow = rbm(TruncatedGaussian(1, precision=1e8, field=5e7).double(), Binary(1).double(), torch.ones(1, 1).double())
    exact = exact_log_likelihood(narrow, torch.tensor([[0.5]]).double())
    assert float(pseudo_log_likelihood(narrow, torch.tensor([[0.5]]).double())) == pytest.approx(float(exact), abs=1e-6)
    kinked = rbm(TruncatedGaussian(1, -1.0, 1.0).double(), Spin(1).double(), torch.tensor([[300.0]]).double())
    exact = exact_log_likelihood(kinked, torch.tensor([[0.9]]).double())
    assert float(pseudo_log_likelihood(kinked, torch.tensor([[0.9]]).double())) == pytest.approx(float(exact), abs=1e-9)


def test_stochastic_pseudo_likelihood_is_unbiased():
    machine = machine_of(["Categorical", "Binary"], [12, 6], seed=4)
    x = data_of(machine, 20)
    everything = pseudo_log_likelihood(machine, x)
    assert float(pseudo_log_likelihood(machine, x, n_visible=12)) == pytest.approx(float(everything), abs=1e-12)
    some = torch.stack([pseudo_log_likelihood(machine, x, n_visible=3, seed=seed).mean for seed in range(200)])
    error = some.std() / 200**0.5
    assert 0 < error < 0.2
    assert abs(some.mean() - everything.mean) < SIGMAS * error
    assert torch.equal(
        pseudo_log_likelihood(machine, x, 3, seed=1).values, pseudo_log_likelihood(machine, x, 3, seed=1).values
    )


def test_pseudo_likelihood_of_unnormalizable_units():
    machine = rbm(Gaussian(2, precision=1.0).double(), Gaussian(3, precision=1.0).double(), torch.ones(2, 3).double())
    with pytest.raises(ValueError, match="ln Z is infinite"):
        pseudo_log_likelihood(machine, torch.zeros(1, 2).double())


# ----- annealed importance sampling

PATHS = [
    *[([kind, "Binary"], [5, 6]) for kind in UNITS],
    (["Binary", "Categorical"], [4, 3]),
    (["Spin", "Binary", "Spin"], [4, 3, 3]),
    (["Categorical", "Binary", "Custom", "Spin"], [3, 3, 2, 2]),
    (["Spin"], [6]),
    (["Categorical"], [4]),
]
SLOW_DRAWS = ("TruncatedGaussian", "GaussBernoulli")


@pytest.mark.parametrize(("kinds", "sizes"), PATHS, ids=lambda value: "-".join(map(str, value)))
def test_annealing_against_enumeration(kinds, sizes):
    scale = 0.5 if "Gaussian" in kinds else 1.0
    machine = machine_of(kinds, sizes, seed=5, scale=scale)
    exact = float(exact_log_partition(machine))
    n_temperatures = 20 if kinds[0] in SLOW_DRAWS else 50
    for options in ({}, {"data": data_of(machine, 50)}):
        found = ais_log_partition(machine, n_temperatures, n_runs=200, **options)
        error = float(found.standard_error)
        assert 0 < error < 0.15
        assert abs(float(found.log_partition) - exact) < SIGMAS * error, options


@pytest.mark.parametrize("kinds", [["Spin", "Binary"], ["Spin", "Categorical"], ["TruncatedGaussian", "Binary"]])
def test_single_runs_are_too_low_on_average(kinds):
    machine, n_runs = machine_of(kinds, [8, 6], seed=6, scale=5.0), 2000
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LikelihoodWarning)
        found = ais_log_partition(machine, 2, n_runs=n_runs)
    gap = float(exact_log_partition(machine)) - found.log_weights
    assert float(gap.mean()) > 3 * float(gap.std()) / n_runs**0.5  # it is 13 of them or more


@pytest.mark.parametrize(("kinds", "sizes"), [p for p in PATHS if "Gaussian" not in p[0]], ids=str)
def test_weights_are_unbiased_with_few_temperatures(kinds, sizes):
    """The average of exp(ln w) is Z however few the temperatures are, if every sweep is at its own temperature."""
    machine = machine_of(kinds, sizes, seed=23, scale=0.5)
    exact = float(exact_log_partition(machine))
    found = ais_log_partition(machine, 3, n_runs=1000 if kinds[0] in SLOW_DRAWS else 10_000)
    assert abs(float(found.log_partition) - exact) < SIGMAS * float(found.standard_error)
    assert float(found.standard_error) < 0.03


def some_base(machine, n_components=3, rows=()):
    """A mixture with random fields and weights."""
    random = Tensors(31)
    fields = [
        0.5 * random.normal(1 if index % 2 else n_components, *rows, *layer.state_shape)
        for index, layer in enumerate(machine.layers)
    ]
    return Base("random", tuple(fields), random.normal(n_components, *rows))


@pytest.mark.parametrize(("kinds", "sizes"), [p for p in PATHS if "Gaussian" not in p[0]], ids=str)
def test_weights_are_unbiased_from_any_mixture(kinds, sizes):
    """Few temperatures, so that a wrong weight or a wrong draw of the component shows."""
    machine = machine_of(kinds, sizes, seed=23, scale=0.5)
    exact = float(exact_log_partition(machine))
    n_runs = 1000 if kinds[0] in SLOW_DRAWS else 10_000
    found = ais_log_partition(machine, 3, n_runs, base=some_base(machine))
    assert abs(float(found.log_partition) - exact) < SIGMAS * float(found.standard_error)
    assert float(found.standard_error) < 0.05


@pytest.mark.parametrize("rows", [(), (3,)])
def test_a_machine_conditioned_on_rows_from_any_mixture(rows):
    machine = machine_of(["Binary", "Spin", "Binary"], [4, 3, 3], seed=7)
    version = clamp(machine, data_of(machine, 3), mask=torch.tensor([True, False, True, False]))
    found = ais_log_partition(version, 3, 3000, base=some_base(machine, rows=rows))
    assert bool(((found.log_partition - exact_log_partition(version)).abs() <= SIGMAS * found.standard_error).all())
    assert float(found.standard_error.max()) < 0.1


@pytest.mark.long
@pytest.mark.parametrize("kinds", [["Spin", "Gaussian"], ["Spin", "Spin"]])
def test_both_of_two_modes_are_found(kinds):
    """No field breaks the symmetry of the hidden layer, so that chains do not all go to one of two modes.

    If they did, ln Z would come out too low by ln 2, which is 9 of the error bars here.
    """
    for seed in range(3):
        W = (1.0 if kinds[1] == "Gaussian" else 3.0) * Tensors(seed).normal(10, 6)
        units = {"Spin": Spin, "Gaussian": Gaussian}
        machine = rbm(units[kinds[0]](10).double(), units[kinds[1]](6).double(), W)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LikelihoodWarning)
            found = ais_log_partition(machine, 100, n_runs=500, seed=seed)
        error = float(found.standard_error)
        assert SIGMAS * error < math.log(2)
        assert abs(float(found.log_partition) - float(exact_log_partition(machine))) < SIGMAS * error


def test_runs_do_not_repeat_each_other():
    machine = machine_of(["TruncatedGaussian", "Binary"], [3, 2], seed=0)
    found = ais_log_partition(machine, 3, n_runs=250)
    assert len(set(found.log_weights.tolist())) == 250
    rows = ais_log_partition(condition(machine, Tilt(torch.zeros(4, 3).double(), 0.0)), 3, n_runs=20)
    assert len(set(rows.log_weights.flatten().tolist())) == 80


@pytest.mark.parametrize("kinds", [["Binary", "Spin"], ["GaussBernoulli", "Binary", "Binary"]])
def test_annealing_a_machine_conditioned_on_rows(kinds):
    machine = machine_of(kinds, [4, 3, 3][: len(kinds)], seed=7)
    x = data_of(machine, 3)
    clamped = clamp(machine, x)
    partly = clamp(machine, x, mask=torch.tensor([True, False, True, True]))
    tilted = condition(machine, Tilt(Tensors(8).normal(3, 4), 0.5))
    for version in (clamped, partly, tilted):
        found = ais_log_partition(version, 15, n_runs=200)
        exact = exact_log_partition(version)
        assert found.log_partition.shape == (3,)
        assert bool(((found.log_partition - exact).abs() <= SIGMAS * found.standard_error + 1e-9).all())
    likelihood = ais_log_likelihood(machine, x, schedule=30, n_runs=300)
    expected = exact_log_likelihood(machine, x)
    assert float((likelihood.values - expected.values).abs().max()) < 0.1


def test_weights_give_samples():
    machine = machine_of(["Binary", "Binary"], [4, 3], seed=9, scale=1.5)
    found = ais_log_partition(machine, 50, n_runs=4000)
    share = found.log_weights.softmax(0)
    states, probabilities, _ = brute_force(machine)
    assert float(found.effective_sample_size) > 2000
    deviation = 0.5 / 2000**0.5  # of the mean of as many bits, at most
    for layer, x in enumerate(found.samples):
        expected = probabilities @ states[layer]
        torch.testing.assert_close(share @ x, expected, rtol=0, atol=SIGMAS * deviation)
    drawn = found.weighted_samples()  # which adds about as much variance again
    torch.testing.assert_close(drawn[0].mean(0), probabilities @ states[0], rtol=0, atol=SIGMAS * 2**0.5 * deviation)


def test_runs_are_drawn_by_their_weights():
    log_weights = torch.tensor([1.0, 2.0, 5.0]).double().log()
    drawn = draw_evenly(log_weights, 800, torch.Generator().manual_seed(0))
    assert torch.bincount(drawn).tolist() == [100, 200, 500]
    of_rows = draw_evenly(torch.stack((log_weights, -log_weights), 1), 17, torch.Generator().manual_seed(0))
    assert torch.bincount(of_rows[:, 0]).argmax() == 2
    assert torch.bincount(of_rows[:, 1]).argmax() == 0


def test_same_seed_same_estimate():
    machine = machine_of(["Binary", "Binary"], [6, 4], seed=10)
    whole = ais_log_partition(machine, 20, n_runs=250, seed=3)
    again = ais_log_partition(machine, 20, n_runs=250, seed=3)
    assert torch.equal(whole.log_weights, again.log_weights)
    other = ais_log_partition(machine, 20, n_runs=250, seed=4)
    assert not torch.equal(whole.log_weights, other.log_weights)
    part = ais_log_partition(machine, 20, n_runs=100, seed=3)  # blocks of runs have their own generators
    assert torch.equal(part.log_weights, whole.log_weights[:100])
    with torch.no_grad():
        machine.weights[0][0, 0] += 0.1
    with pytest.raises(ValueError, match="estimate belongs to another machine"):
        ais_log_likelihood(machine, data_of(machine, 2), part)


def test_as_many_temperatures_as_needed(monkeypatch):
    monkeypatch.setattr("tapmachine.likelihood.annealing.estimate.ENOUGH_TEMPERATURES", (2, 20, 200))
    weak, strong = (machine_of(["Spin", "Spin"], [8, 6], seed=10, scale=scale) for scale in (0.05, 0.7))
    assert len(ais_log_partition(weak).betas) == 3
    found = ais_log_partition(strong)
    assert len(found.betas) > 3
    assert float(found.effective_sample_size) > 50


@pytest.mark.long
def test_error_bars_are_those_of_repeated_estimates():
    machine = machine_of(["Binary", "Binary"], [10, 8], seed=11, scale=1.5)
    estimates = [ais_log_partition(machine, 10, n_runs=100, seed=seed) for seed in range(120)]
    scatter = float(torch.stack([e.log_partition for e in estimates]).std())
    claimed = float(torch.stack([e.standard_error for e in estimates]).mean())
    # (scatter/claimed)² is χ²/119 of 119 degrees of freedom: below 1/1.5² or above 1/0.5² once in 10⁷
    assert claimed == pytest.approx(scatter, rel=0.5)
    for e in estimates[:3]:
        weights = (e.log_weights - e.log_weights.max()).exp()
        assert float(e.effective_sample_size) == pytest.approx(float(weights.sum() ** 2 / (weights**2).sum()))
        assert float(e.standard_error) == pytest.approx(float(weights.std() / weights.mean()) / 10)


def test_float32_weights_are_summed_in_float64():
    machine = machine_of(["Binary", "Binary"], [30, 10], seed=12, scale=0.5)
    exact = float(exact_log_partition(machine))
    found = ais_log_partition(machine.float(), 2000, n_runs=100)
    assert found.log_weights.dtype == torch.float64
    assert abs(float(found.log_partition) - exact) < SIGMAS * float(found.standard_error) + 1e-4
    assert float(found.standard_error) < 0.02


def test_the_base_has_the_means_of_the_data():
    machine = machine_of(["Binary", "Spin"], [5, 4], seed=13)
    x = data_of(machine, 300)
    path = path_from(independent_base(machine, x), machine)
    drawn = path.draw(20_000, seeded(machine.device, 0, "test"))[0]
    torch.testing.assert_close(drawn.mean(0), x.mean(0), rtol=0, atol=SIGMAS * 0.5 / 20_000**0.5)


def test_collapsed_weights_are_reported():
    machine = machine_of(["Spin", "Spin"], [20, 10], seed=14, scale=3.0)
    with pytest.warns(LikelihoodWarning, match=r"have collapsed: .* use more than 1 temperatures"):
        ais_log_partition(machine, 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: ais_log_partition(m, torch.tensor([0.0, 0.7, 0.6, 1.0])), "does not increase from 0 to 1"),
        (lambda m: ais_log_partition(m, torch.tensor([0.1, 1.0])), "does not increase from 0 to 1"),
        (lambda m: ais_log_partition(m, [0, 0.5]), "does not increase from 0 to 1"),
        (lambda m: ais_log_partition(m, "paper"), "schedule is 'paper'; expected a number of temperatures"),
        (lambda m: ais_log_partition(m, 5, n_runs=1), "n_runs is 1"),
        (lambda m: ais_log_partition(m, 5, seed=-1), "seed is -1"),
        (lambda m: ais_log_likelihood(m, torch.zeros(1, 3), 1000), "estimate is a int"),
        (lambda m: exact_log_likelihood(torch.zeros(1, 3), m), "machine is a Tensor; expected a machine such as"),
        (lambda m: exact_log_likelihood(m.half(), torch.zeros(1, 3)), "the machine is torch.float16"),
        (lambda m: tap_log_likelihood(m, np.array([["a"]])), "x contains str32; expected real numbers"),
        (lambda m: ais_log_partition(m, 5, data=torch.full((2, 3), 0.5)), r"x\[0, 0\] is 0.5"),
        (lambda m: ais_log_partition(m, 5, data=torch.zeros(0, 3)), "at least one row"),
        (lambda m: ais_log_partition(clamp(m, torch.zeros(2, 3)), 5, data=torch.zeros(2, 3)), "data cannot be used"),
        (lambda m: exact_log_likelihood(m, [[0.0, 1.0, 0.0]]), "x is a list"),
        (lambda m: exact_log_likelihood(m, torch.zeros(3)), "with at least one row"),
        (lambda m: exact_log_likelihood(clamp(m, torch.zeros(2, 3)), torch.zeros(2, 3)), "conditioned on 2 rows"),
        (lambda m: exact_log_likelihood(clamp(m, torch.zeros(3)), torch.zeros(2, 3)), "has clamped units"),
        (lambda m: compare_likelihoods(m, torch.zeros(2, 3), annealing=Annealing(0)), "schedule is 0"),
        (lambda m: pseudo_log_likelihood(m, torch.zeros(1, 3), n_visible=4), "from 1 to 3"),
        (lambda m: pseudo_log_likelihood(dbm([Binary(3), Binary(2), Binary(2)]), torch.zeros(1, 3)), "2 hidden layers"),
        (lambda m: tap_log_likelihood(m, torch.zeros(1, 3), solve(rbm(Binary(4), Binary(2)))), "do not belong to"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(rbm(Binary(3), Binary(2)))


def test_a_machine_without_a_partition_function():
    machine = rbm(Gaussian(2), Gaussian(3), torch.ones(2, 3))
    with pytest.raises(ValueError, match="ln Z is infinite: the couplings are too strong"):
        ais_log_partition(machine, 100)
    for scale, infinite in ((1.001, True), (0.999, False)):
        W = scale * torch.tensor([[0.6, 0.0], [0.8, 0.0]])  # of norm 1
        edge = rbm(Gaussian(2), Gaussian(2), W)
        if infinite:
            with pytest.raises(ValueError, match="ln Z is infinite"):
                ais_log_partition(edge, 5)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LikelihoodWarning)
                ais_log_partition(edge, 5)
    barely = pairwise(Gaussian(2), torch.tensor([[0.0, 1.001], [1.001, 0.0]]))
    with pytest.raises(ValueError, match="ln Z is infinite"):
        ais_log_partition(barely, 10)
    fine = pairwise(Gaussian(2), torch.tensor([[0.0, 0.9], [0.9, 0.0]]))
    expected = -0.5 * math.log(1 - 0.9**2)
    found = ais_log_partition(fine, 200, n_runs=300)
    assert abs(float(found.log_partition) - expected) < SIGMAS * float(found.standard_error)


@pytest.mark.long
def test_a_machine_on_half_lines_without_a_partition_function():
    ray = rbm(TruncatedGaussian(3, 0.0, math.inf), TruncatedGaussian(2, 0.0, math.inf), torch.full((3, 2), 0.9))
    with pytest.raises(ValueError, match="ln Z is infinite or NaN: the couplings are too strong"):
        ais_log_partition(ray, 40, n_runs=10)


def test_nothing_is_scored_with_weights_that_are_not_finite():
    machine = machine_of(["Binary", "Binary"], [3, 2], seed=0)
    x = data_of(machine, 4)
    solutions = solve(machine, x)
    with torch.no_grad():
        machine.weights[0][1, 0] = torch.nan
    for call in (
        lambda: exact_log_likelihood(machine, x),
        lambda: pseudo_log_likelihood(machine, x),
        lambda: tap_log_likelihood(machine, x, solutions),
        lambda: ais_log_partition(machine, 5),
        lambda: ais_log_likelihood(machine, x, schedule=5),
        lambda: compare_likelihoods(machine, x, annealing=Annealing(5)),
    ):
        with pytest.raises(ValueError, match=r"the machine's weights.0\[1, 0\] is nan; expected a finite value"):
            call()


def test_data_on_a_bound_that_float32_cannot_hold():
    machine = rbm(TruncatedGaussian(2, 0.0, 0.7), Binary(2), weights=torch.zeros(2, 2))  # both units are uniform
    x = torch.tensor([[0.0, 0.7]], dtype=torch.float64)
    assert float(exact_log_likelihood(machine, x)) == pytest.approx(-2 * math.log(0.7))


@pytest.mark.slow
def test_two_hundred_random_machines():
    results = survey(200)
    print(table(results))
    # 99.7 % if the errors were normal; of 200, where 1 % are outside, more than 12 are once in 10⁶
    assert covered(results) >= 0.94
    errors = np.array([r.annealed for r in results])
    assert errors.mean() < SIGMAS * errors.std() / len(errors) ** 0.5
    weak = [abs(r.tap) for r in results if r.strength == 0.1]
    assert max(weak) < 1e-4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("kinds", "sizes"), PATHS, ids=lambda value: "-".join(map(str, value)))
def test_annealing_captured_on_a_gpu(kinds, sizes):
    scale = 0.5 if "Gaussian" in kinds else 1.0
    machine = machine_of(kinds, sizes, seed=5, scale=scale)
    exact = float(exact_log_partition(machine))
    machine.to("cuda", torch.float32)
    found = [ais_log_partition(machine, 150, n_runs=200) for _ in range(2)]
    for own in found:
        assert abs(float(own.log_partition) - exact) < SIGMAS * float(own.standard_error)
    assert torch.equal(found[0].log_weights, found[1].log_weights)
    assert len(set(found[0].log_weights.tolist())) > 190  # replays draw on, not the same again


# ----- TAP


@pytest.mark.parametrize("kind", UNITS)
def test_tap_likelihood_written_out(kind):
    machine = machine_of([kind, "Binary"], [6, 4], seed=15, scale=0.3)
    x = data_of(machine, 7)
    visible, hidden = machine.layers
    solution = solve(machine, tol=1e-20)
    expected = visible.log_prior(x).sum(-1) + hidden.log_partition(Tilt(machine.field_on(1, [x, None]), 0.0)).sum(-1)
    expected = (expected + solution.free_energy).detach()
    for found in (tap_log_likelihood(machine, x), tap_log_likelihood(machine, x, solution)):
        torch.testing.assert_close(found.values, expected, rtol=0, atol=1e-9)
        assert found.n_unique == 1
        torch.testing.assert_close(found.log_sum_exp.values, found.values)
    exact = exact_log_likelihood(machine, x)
    assert abs(float(found) - float(exact)) < 0.05


@pytest.mark.parametrize("kinds", [["Spin", "Binary", "Binary"], ["Categorical", "Spin", "Binary", "Spin"], ["Spin"]])
def test_tap_likelihood_of_deep_and_pairwise_machines(kinds):
    machine = small(kinds, seed=16, scale=0.05)
    x = data_of(machine, 5)
    found = tap_log_likelihood(machine, x)
    torch.testing.assert_close(found.values, exact_log_likelihood(machine, x).values, rtol=0, atol=2e-4)


def two_modes() -> BoltzmannMachine:
    """Two layers of spins that all like to agree."""
    return rbm(Spin(30).double(), Spin(12).double(), torch.full((30, 12), 0.14).double())


def test_average_and_sum_over_different_solutions():
    machine = two_modes()
    x = torch.ones(4, 30).double()
    x[1] = -1
    found = tap_log_likelihood(machine, x)
    assert found.n_unique == 2
    up, down = found.free_energies.tolist()
    assert up == pytest.approx(down, abs=1e-9)
    assert float(found.log_partition) == pytest.approx(-up, abs=1e-9)
    assert float(found.log_sum_exp.log_partition) == pytest.approx(math.log(2) - up, abs=1e-9)
    exact = float(exact_log_partition(machine))
    gaps = [abs(float(own.log_partition) - exact) for own in (found, found.log_sum_exp)]
    assert gaps[1] < gaps[0] / 3
    # ten copies of one solution do not count ten times
    many = solve(machine, torch.cat((x[:1].expand(10, -1), x[1:2])), tol=1e-14)
    repeated = tap_log_likelihood(machine, x, many)
    torch.testing.assert_close(repeated.log_sum_exp.values, found.log_sum_exp.values, rtol=0, atol=1e-9)


def test_tap_likelihood_does_not_depend_on_order_batches_or_threads():
    machine = machine_of(["Binary", "Binary"], [40, 15], seed=18, scale=3.0)
    x = data_of(machine, 64)
    reference = tap_log_likelihood(machine, x)
    assert reference.n_unique > 1
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    shuffled = tap_log_likelihood(machine, x[order])
    torch.testing.assert_close(shuffled.values, reference.values[order], rtol=0, atol=1e-8)
    solutions = solve(machine, x[order], tol=1e-14, batch_size=7)
    for part in (x[:10], x[10:]):
        rows = slice(0, 10) if len(part) == 10 else slice(10, 64)
        found = tap_log_likelihood(machine, part, solutions)
        torch.testing.assert_close(found.values, reference.values[rows], rtol=0, atol=1e-8)
        found = found.log_sum_exp.values
        torch.testing.assert_close(found, reference.log_sum_exp.values[rows], rtol=0, atol=1e-8)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        torch.testing.assert_close(tap_log_likelihood(machine, x).values, reference.values, rtol=0, atol=1e-8)
    finally:
        torch.set_num_threads(threads)


def test_solutions_that_did_not_converge_are_left_out_and_counted():
    machine = two_modes()
    x = torch.ones(3, 30).double()
    x[1] = -1
    good = solve(machine, x, tol=1e-14)
    status = good.status.clone()
    status[1] = Status.MAX_SWEEPS
    mixed = type(good)(good.moments, good.tilts, good.free_energy, good.residual, good.n_sweeps, status)
    found = tap_log_likelihood(machine, x, mixed)
    assert (found.n_excluded, found.n_unique) == (1, 1)
    assert "1 solution, 1 not converged" in repr(found)
    none = type(good)(
        good.moments, good.tilts, good.free_energy, good.residual, good.n_sweeps, torch.full_like(status, 1)
    )
    with pytest.raises(
        ValueError, match=r"none of the 3 solutions converged \(Solution\(3 max_sweeps\)\).*increase max_sw"
    ):
        tap_log_likelihood(machine, x, none)


def test_another_scheme():
    machine = machine_of(["Spin", "Binary"], [5, 4], seed=18, scale=0.4)
    x = data_of(machine, 3)
    naive = tap_log_likelihood(machine, x, scheme=NaiveMeanField())
    free_energy = solve(machine, x, NaiveMeanField(), tol=1e-14).free_energy[0]
    assert float(naive.log_partition) == pytest.approx(-float(free_energy), abs=1e-8)
    assert abs(float(naive.log_partition) - float(tap_log_likelihood(machine, x).log_partition)) > 1e-3


def test_solutions_of_another_machine_or_scheme():
    machine = machine_of(["Binary", "Binary"], [6, 4], seed=15)
    x = data_of(machine, 3)
    solutions, naive = solve(machine, x), solve(machine, x, NaiveMeanField())
    tap_log_likelihood(machine, x, naive, scheme=NaiveMeanField())
    with pytest.raises(
        ValueError, match=r"solution 0 has F = .* by TAP\(\) of this machine: it was solved with another"
    ):
        tap_log_likelihood(machine, x, naive)
    with pytest.raises(ValueError, match="by TAP"):
        tap_log_likelihood(machine, x, solve(clamp(machine, x)))
    with torch.no_grad():
        machine.weights[0] += 0.3
    with pytest.raises(ValueError, match="parameters have changed since"):
        tap_log_likelihood(machine, x, solutions)


# ----- which solutions are the same


def test_what_makes_solutions_the_same():
    machine = rbm(Gaussian(2, precision=1e-4).double(), Spin(1).double())
    mean = torch.tensor([[0.0, 0.0], [0.17, 0.0], [0.52, 0.0], [0.0, 0.0], [0.34, 0.0]]).double()  # deviation 100
    free_energy = torch.tensor([0.0, 0.0, 0.001, 0.5, 0.002]).double()
    residual = torch.tensor([3.0, 1.0, 2.0, 1.0, 2.0]).double()
    some = solve(machine, mean)
    hidden = Moments(torch.zeros(5, 1).double(), torch.ones(5, 1).double())
    hand_made = type(some)(
        (Moments(mean, mean), hidden), some.tilts, free_energy, residual, some.n_sweeps, some.status * 0
    )
    found = merge_solutions(machine, hand_made)
    # 0 and 3 are the same, 1 and 4 follow at distances of 0.17/100/√3 = 0.98e-3; 2 is 0.18/100/√3 away from the last
    assert found.index.tolist() == [0, 0, 1, 0, 0]
    assert found.counts.tolist() == [4, 1]
    assert found.solutions.residual.tolist() == [1.0, 2.0]
    assert len(merge_solutions(machine, hand_made, same=1e-2)) == 1
    assert sorted(merge_solutions(machine, hand_made, same=0).counts.tolist()) == [1, 1, 1, 2]
    with pytest.raises(ValueError, match="different rows of evidence"):
        merge_solutions(clamp(machine, torch.zeros(5, 2).double()), hand_made)


def test_unique_solutions():
    machine = two_modes()
    starts = random_start(machine, 40)
    found = merge_solutions(machine, solve(machine, starts, tol=1e-14))
    assert len(found) == 2
    assert int(found.counts.sum()) == 40
    assert found.n_excluded == 0
    signs = solve(machine, starts, tol=1e-14).moments[0].mean.mean(-1) > 0
    assert len({(int(group), bool(sign)) for group, sign in zip(found.index, signs, strict=True)}) == 2
    nothing = merge_solutions(machine, solve(machine, starts, tol=1e-30, max_sweeps=4))
    assert (len(nothing), nothing.n_excluded) == (0, 40)


# ----- side by side


def test_comparison():
    machine = machine_of(["Binary", "Binary"], [8, 5], seed=19, scale=0.3)
    x = exact_samples(machine, 200)[0]
    names = []
    table = compare_likelihoods(machine, x[:100], x[100:], annealing=Annealing(200), callback=names.append)
    exact = table["exact"]
    assert exact.train == pytest.approx(float(exact_log_likelihood(machine, x[:100])), abs=1e-9)
    assert exact.test == pytest.approx(float(exact_log_likelihood(machine, x[100:])), abs=1e-9)
    for name in ("TAP", "TAP, log-sum-exp", "annealed"):
        assert abs(table[name].train - exact.train) < 0.05
        assert abs(table[name].test - exact.test) < 0.05
    assert table["pseudo"].train == pytest.approx(float(pseudo_log_likelihood(machine, x[:100])), abs=1e-9)
    assert table.warnings == ()
    assert names == ["TAP", "annealed", "pseudo", "exact"]
    lines = repr(table).splitlines()
    assert [line.split("  ")[0] for line in lines[1:6]] == [row.estimator for row in table.rows]
    assert "does not estimate ln P(x)" in lines[-1]
    assert table.as_dicts()[0]["estimator"] == "TAP"
    with pytest.raises(KeyError, match="no estimator 'magic'"):
        table["magic"]


def test_a_comparison_warns_when_tap_drifts_away():
    """Strong couplings, where TAP's free energy is far too low."""
    machine = machine_of(["Binary", "Binary"], [40, 6], seed=20, scale=3.0)
    x = exact_samples(machine, 50)[0]
    with pytest.warns(LikelihoodWarning, match="TAP's log-likelihood is") as caught:
        table = compare_likelihoods(machine, x, annealing=Annealing(500))
    gap = table["TAP"].train - table["exact"].train
    assert gap < -1
    assert f"{-gap:.1f} too low compared with the exact value" in table.warnings[-1]
    assert "1 warning: see .warnings" in repr(table)
    assert math.isnan(table["TAP"].test)
    assert all(warning.filename == __file__ for warning in caught)


@pytest.mark.long
def test_a_comparison_warns_when_annealing_misses_a_mode():
    """Two modes, and a base that has the means of one of them: chains that agree with each other, and are wrong."""
    machine = rbm(Spin(30), Spin(3), torch.full((30, 3), 0.8))
    x = torch.ones(20, 30)
    rows = [
        LikelihoodRow("TAP", -1.0, 0.1, math.nan, math.nan, 20, 23.0, math.nan, 0.0),
        LikelihoodRow("annealed", -1.0, 0.1, math.nan, math.nan, 20, 23.0, 0.01, 0.0),
        LikelihoodRow("exact", -3.0, 0.1, math.nan, math.nan, 20, 25.0, 0.0, 0.0),
    ]
    tap, annealed = _disagreements(rows)
    assert "TAP's log-likelihood is -1 nats, 2.0 too high compared with the exact value of -3" in tap
    assert "AIS's log-likelihood is -1 nats" in annealed
    assert "the chains miss part of the distribution" in annealed
    exact = float(exact_log_partition(machine))
    one_mode = ais_log_partition(machine, 300, data=x)  # as the docstring warns
    error = float(one_mode.standard_error)
    assert error < 0.01
    assert float(one_mode.log_partition) == pytest.approx(exact - math.log(2), abs=SIGMAS * error)
    both = ais_log_partition(machine, 300, n_runs=2000)
    error = float(both.standard_error)
    assert SIGMAS * error < math.log(2)
    assert float(both.log_partition) == pytest.approx(exact, abs=SIGMAS * error)


def test_a_comparison_goes_on_where_an_estimator_fails():
    machine = rbm(Gaussian(2, precision=1.0), Gaussian(3, precision=1.0), torch.ones(2, 3))
    with pytest.warns(LikelihoodWarning) as caught:
        table = compare_likelihoods(machine, torch.zeros(2, 2), annealing=Annealing(20))
    messages = " ".join(str(warning.message) for warning in caught)
    assert "TAP: none of the 2 solutions" in messages
    assert "annealed: ln Z is infinite" in messages
    assert all(math.isnan(row.train) for row in table.rows)


def test_a_comparison_of_a_deep_machine():
    machine = machine_of(["Binary", "Spin", "Binary"], [5, 4, 3], seed=21, scale=0.2)
    x = data_of(machine, 20)
    table = compare_likelihoods(machine, x, annealing=Annealing(100))
    exact = table["exact"].train
    assert [row.estimator for row in table.rows] == ["TAP", "TAP, log-sum-exp", "annealed", "exact"]
    assert all(abs(row.train - exact) < 0.05 for row in table.rows)


# ----- draws of bits


def test_bits_have_their_probabilities():
    generator = torch.Generator().manual_seed(0)
    for p in (0.0, 1e-3, 0.3, 0.5, 0.9, 1 - 1e-3, 1.0):
        drawn = draw_bits(torch.full((1001, 999), p), generator)
        assert bool(((drawn == 0) | (drawn == 1)).all())
        assert abs(float(drawn.mean(dtype=torch.float64)) - p) <= SIGMAS * (p * (1 - p) / drawn.numel()) ** 0.5
        if 0.1 < p < 0.9:  # of rarer bits a million draws hold too few pairs for a normal distribution
            neighbors = float(((drawn[:, 1:] - p) * (drawn[:, :-1] - p)).mean(dtype=torch.float64)) / (p * (1 - p))
            assert abs(neighbors) < SIGMAS / drawn.numel() ** 0.5
    assert draw_bits(torch.full((), 1.0), generator).shape == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_of_undefined_probability_are_zero(dtype):
    """After a training step that was too long, probabilities are NaN: the step is undone, and nothing may fail."""
    probability = torch.tensor([torch.nan, 1.0, 0.0], dtype=dtype)
    assert draw_bits(probability.clone()).tolist() == [0.0, 1.0, 0.0]
    field = torch.tensor([[torch.nan, 0.0]], dtype=dtype)
    for units in (SpikeSlab(2).to(dtype), TruncatedGaussBernoulli(2).to(dtype)):
        assert bool(torch.isfinite(units.sample(Tilt(field, 0.0))[0, 1]))


@pytest.mark.parametrize("largest", [True, False])
def test_certain_bits_are_certain_with_any_remainder(largest, monkeypatch):
    monkeypatch.setattr(torch, "randint", lambda high, *_, **__: torch.tensor(high - 1 if largest else 0))
    monkeypatch.setattr(torch, "rand", lambda *_, **__: torch.tensor(1 - 2.0**-24 if largest else 0.0))
    generator = torch.Generator().manual_seed(0)
    for p in (0.0, 1.0):
        assert bool((draw_bits(torch.full((2**20,), p), generator) == p).all())


def test_fields_with_given_means():
    random = Tensors(22)
    for kind, make in UNITS.items():
        units = make(random, 4)
        wanted = units.moments(Tilt(random.normal(3, *units.state_shape), 0.0)).mean.detach()
        field = units.field_with_mean(wanted)
        torch.testing.assert_close(units.moments(Tilt(field, 0.0)).mean.detach(), wanted, rtol=0, atol=1e-7, msg=kind)
    held = clamp(rbm(Binary(3), Binary(2)), torch.tensor([1.0, 0.0, 1.0])).layers[0]
    assert not bool(held.field_with_mean(torch.full((3,), 0.5)).any())
