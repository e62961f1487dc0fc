"""A unit type from outside the package, on the counts 0, 1, 2, …: everything works, or says why it does not."""

import math
import warnings

import numpy as np
import pytest
import torch
from count_units import Counts, LightTailed, Undeclared
from sklearn.base import clone

import tapmachine.tables.machine
from tapmachine import (
    PCD,
    RBM,
    Binary,
    Gaussian,
    NaiveMeanField,
    TAPObjective,
    Tilt,
    ais_log_likelihood,
    ais_log_partition,
    denoise,
    exact_log_likelihood,
    exact_log_partition,
    fit,
    gibbs,
    load,
    pairwise,
    pseudo_log_likelihood,
    rbm,
    save,
    solve,
    tap_log_likelihood,
)
from tapmachine.channels import GaussianNoise
from tapmachine.data.errors import EstimateError, FileError
from tapmachine.likelihood import exact_moments
from tapmachine.runs.settings import Settings
from tapmachine.tables.machine import make_machine
from tapmachine.training import Monitor, momentum_sgd
from tapmachine.training.objectives import default_objective
from tapmachine.training.step import can_be_centered
from tapmachine.units import Interval

LOG_RATES = torch.tensor([0.3, 1.0, 1.5], dtype=torch.float64)
ROWS = torch.tensor([[1.0, 2.0, 4.0], [0.0, 3.0, 7.0], [5.0, 0.0, 1.0]], dtype=torch.float64)
both = pytest.mark.parametrize("precision", [0.0, 0.5], ids=["Counts", "light tails"])


def counts(n, field=0.0, precision=0.0):
    """Units with a prior ∝ exp(Uk − ½Vk²)/k!, in float64."""
    field = torch.as_tensor(field, dtype=torch.float64)
    return LightTailed(n, field, precision) if precision else Counts(n, field)


def machine_of_counts(precision=0.0, scale=0.3, kind=None):
    weights = scale * torch.randn(3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    visible = counts(3, LOG_RATES, precision) if kind is None else kind(3, LOG_RATES)
    return rbm(visible, Binary(2, field=torch.tensor([0.5, -1.0]).double()), weights=weights)


def log_joint(machine, x):  # (..., 3) -> (...): ln of the weight of visible counts, with the hidden bits summed out
    visible, hidden = machine.layers
    bias, field = hidden.field.detach(), x @ machine.coupling(0).detach()
    gain = torch.log1p((bias + field).exp()) - torch.log1p(bias.exp())
    return visible.log_prior(x).detach().sum(-1) + gain.sum(-1)


def conditional_by_summation(machine, row, unit, n_terms=200):
    others = row.expand(n_terms, -1).clone()
    others[:, unit] = torch.arange(n_terms, dtype=row.dtype)
    return log_joint(machine, row) - log_joint(machine, others).logsumexp(0)


@both
@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0])
def test_pseudo_likelihood_of_counts_is_a_sum(precision, scale):
    machine = machine_of_counts(precision, scale)
    truth = [sum(conditional_by_summation(machine, row, unit) for unit in range(3)) for row in ROWS]
    torch.testing.assert_close(pseudo_log_likelihood(machine, ROWS).values, torch.stack(truth), rtol=1e-11, atol=1e-11)


def test_pseudo_likelihood_of_independent_counts_is_the_prior():
    machine = machine_of_counts(scale=0.0)
    prior = machine.layers[0].log_prior(ROWS).sum(-1).detach()
    torch.testing.assert_close(pseudo_log_likelihood(machine, ROWS).values, prior, rtol=1e-11, atol=1e-11)


def test_pseudo_likelihood_of_counts_far_from_zero():
    """The strongest field moves the mass beyond the first blocks of states; what is near the data must not suffice."""
    weights = torch.tensor([[4.0]], dtype=torch.float64)
    machine = rbm(counts(1, 0.5), Binary(1, field=torch.tensor([-60.0]).double()), weights=weights)
    rate = math.exp(0.5)
    log_z = torch.logaddexp(torch.tensor(rate), torch.tensor(-60.0 + math.exp(4.5))).double()  # e^x for both states
    expected = torch.tensor(0.5 * 90).double() + torch.tensor(-60.0 + 4 * 90).double() - math.lgamma(91) - log_z
    found = pseudo_log_likelihood(machine, torch.tensor([[90.0]]).double())
    assert float(found) == pytest.approx(float(expected), abs=1e-6)


def test_pseudo_likelihood_of_counts_in_a_pairwise_machine():
    couplings = torch.tensor([[0.0, -0.2, 0.0], [-0.2, 0.0, -0.1], [0.0, -0.1, 0.0]], dtype=torch.float64)
    machine = pairwise(counts(3, LOG_RATES), weights=couplings)
    field = ROWS @ couplings
    terms = torch.arange(200).double()
    weights = (LOG_RATES + field).unsqueeze(-1) * terms - torch.lgamma(terms + 1)
    truth = (LOG_RATES + field) * ROWS - torch.lgamma(ROWS + 1) - weights.logsumexp(-1)
    torch.testing.assert_close(pseudo_log_likelihood(machine, ROWS).values, truth.sum(-1), rtol=1e-11, atol=1e-11)


def test_an_undeclared_countable_support_is_not_integrated_over():
    with pytest.raises(EstimateError, match=r"non-negative integer.*declare the support in Undeclared"):
        pseudo_log_likelihood(machine_of_counts(kind=Undeclared), ROWS)

    class OnlyBounds(Undeclared):
        support = Interval(0.0, math.inf)

    with pytest.raises(EstimateError, match=r"integer.*declare the support in OnlyBounds, such as support = Lat"):
        pseudo_log_likelihood(machine_of_counts(kind=OnlyBounds), ROWS)


def test_counts_that_cannot_be_summed_are_an_error():
    weights = torch.full((1, 1), 8.0).double()  # a rate of exp(8): beyond what the units sum over themselves
    machine = rbm(counts(1), Binary(1).double(), weights=weights)
    with pytest.raises(EstimateError, match="do not converge within the first 65536 states"):
        pseudo_log_likelihood(machine, torch.ones(1, 1).double())
    machine = rbm(counts(1), Gaussian(1).double(), weights=torch.ones(1, 1).double())  # exp(½k²)/k! has no sum
    with pytest.raises(EstimateError, match="do not converge"):
        pseudo_log_likelihood(machine, torch.ones(1, 1).double())


@both
def test_exact_and_annealed_partition_functions_of_counts(precision):
    machine = machine_of_counts(precision)
    grid = torch.cartesian_prod(*[torch.arange(60.0).double()] * 3)
    truth = log_joint(machine, grid).logsumexp(0)
    torch.testing.assert_close(exact_log_partition(machine), truth, rtol=1e-11, atol=1e-11)
    moments = exact_moments(machine).moments[0].mean
    shares = (log_joint(machine, grid) - truth).exp()
    torch.testing.assert_close(moments, shares @ grid, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        exact_log_likelihood(machine, ROWS).values, log_joint(machine, ROWS) - truth, rtol=1e-11, atol=1e-11
    )
    annealed = ais_log_partition(machine, schedule=100, n_runs=100, seed=0)
    assert abs(float(annealed.log_partition - truth)) <= 8 * float(annealed.standard_error) + 1e-6


def test_mean_fields_of_counts():
    machine = machine_of_counts(0.5, scale=0.1)
    solution = solve(machine, ROWS)
    assert bool(solution.converged.all())
    truth = float(exact_log_partition(machine))
    naive = float(-solve(machine, ROWS, NaiveMeanField()).free_energy[0])
    assert abs(float(-solution.free_energy[0]) - truth) < 0.1 * abs(naive - truth)  # one order further
    assert naive < truth  # a lower bound


def test_tap_says_that_it_cannot_do_poisson_units():
    """Its reaction term exp(½κk²) outgrows k!: there is no normalized tilt, and no number is made up."""
    machine = machine_of_counts()
    assert not bool(solve(machine, ROWS).converged.any())
    with pytest.raises(EstimateError, match="so F is not available"):
        tap_log_likelihood(machine, ROWS)
    assert bool(solve(machine, ROWS, NaiveMeanField()).converged.all())


@both
def test_counts_are_sampled(precision):
    machine = machine_of_counts(precision)
    x = gibbs(machine, ROWS.repeat(200, 1), 30, torch.Generator().manual_seed(0))[0]
    exact = exact_moments(machine).moments[0]
    deviation = (exact.variance / len(x)).sqrt()  # the chains are independent
    assert bool(((x.mean(0) - exact.mean).abs() < 6 * deviation).all())


@pytest.mark.long
@pytest.mark.parametrize(
    ("precision", "objective"),
    [(0.0, PCD(1)), (0.5, PCD(1)), (0.5, TAPObjective(n_particles=5, n_sweeps=1, merged=False))],
)
def test_counts_are_trained(precision, objective):
    """Data of two kinds: a hidden unit tells them apart, which is worth some tenths of a nat."""
    units, generator = counts(3, 0.5, precision), torch.Generator().manual_seed(0)
    kind = (torch.rand(500, 1, generator=generator) < 0.5).double()
    x = units.sample(Tilt(kind * torch.tensor([2.0, 2.0, -1.0]).double(), 0.0), generator)
    student = rbm(counts(3, 0.0, precision), Binary(2).double())
    adam = torch.optim.Adam(student.parameters(), 0.05)
    measure = Monitor(n_starts=0)
    fit(student, x, epochs=5, objective=objective, optimizer=adam, batch_size=25, monitor=measure, centered=False)
    alone = float(units.fit_to(x).log_prior(x).detach().sum(-1).mean())
    assert float(exact_log_likelihood(student, x)) > alone + 0.1


@pytest.mark.long
def test_counts_are_trained_by_default_by_chains():
    """Centered, as their prior has a field: worth three nats on data of two kinds."""
    units, generator = counts(3, 0.5), torch.Generator().manual_seed(0)
    kind = (torch.rand(300, 1, generator=generator) < 0.5).double()
    x = units.sample(Tilt(kind * torch.tensor([2.0, 2.0, -1.0]).double(), 0.0), generator)
    student = rbm(counts(3), Binary(2).double())
    assert repr(default_objective(student)) == "PCD(2, n_chains=100)"
    assert can_be_centered(student, momentum_sgd(student, 0.01))
    fit(student, x, epochs=20, batch_size=15, monitor=Monitor(n_starts=0))
    alone = float(units.fit_to(x).log_prior(x).detach().sum(-1).mean())
    assert float(exact_log_likelihood(student, x)) > alone + 2


def test_large_counts_are_no_reason_to_scale_the_data():
    x = torch.full((40, 2), 30.0).double()
    x[::2] += 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(
            rbm(counts(2), Binary(2).double()),
            x,
            epochs=1,
            objective=PCD(1),
            batch_size=20,
            monitor=Monitor(n_starts=0),
        )


def test_counts_are_not_rescaled_by_the_recipes(monkeypatch):
    monkeypatch.setattr(tapmachine.tables.machine, "make_visible", lambda settings, *x: (counts(3), "counts"))
    made = make_machine(Settings(data="digits", hidden=(2,), dtype="float64"), ROWS)
    assert made.is_in_units_of_data


def test_counts_through_gaussian_noise():
    machine = machine_of_counts(0.5, scale=0.1)
    posterior = denoise(machine, ROWS + 0.1, GaussianNoise(0.2))
    assert bool(((posterior.mean - ROWS).abs() < 0.2).all())


# ----- both layers of counts: nothing can be enumerated


def machine_of_two_layers():
    """Couplings are negative: with positive ones, exp(Wkl) would outgrow k!·l! and Z be infinite."""
    weights = torch.tensor([[-0.3, -0.1], [-0.2, -0.4], [0.0, -0.1]], dtype=torch.float64)
    return rbm(counts(3, LOG_RATES), counts(2, [0.2, 0.7]), weights=weights)


def log_weight_of_counts(machine, x):  # (..., 3) -> (...): Σ_l P(l) exp(lB) = exp(e^U (e^B − 1)) in closed form
    visible, hidden = machine.layers
    field = x @ machine.coupling(0).detach()
    return visible.log_prior(x).detach().sum(-1) + (hidden.field.detach().exp() * field.expm1()).sum(-1)


@pytest.mark.long
def test_estimators_where_nothing_can_be_enumerated():
    """Exact enumeration is refused; the others agree with a sum over a grid that holds all but 1e-12 of the mass."""
    machine = machine_of_two_layers()
    with pytest.raises(ValueError, match="neither the even nor the odd layers have finitely"):
        exact_log_partition(machine)
    with pytest.raises(ValueError, match="neither the even nor the odd layers"):
        exact_log_likelihood(machine, ROWS)
    with pytest.raises(EstimateError, match="so F is not available"):
        tap_log_likelihood(machine, ROWS)
    grid = torch.cartesian_prod(*[torch.arange(40.0).double()] * 3)
    truth = log_weight_of_counts(machine, grid).logsumexp(0)
    annealed = ais_log_partition(machine, schedule=200, n_runs=200, seed=0)
    assert float(annealed.standard_error) < 0.05
    assert abs(float(annealed.log_partition - truth)) <= 5 * float(annealed.standard_error)
    scored = ais_log_likelihood(machine, ROWS, annealed)
    torch.testing.assert_close(
        scored.values + annealed.log_partition, log_weight_of_counts(machine, ROWS), rtol=1e-11, atol=1e-11
    )
    conditionals = []
    for unit in range(3):
        others = ROWS.expand(40, -1, -1).clone()
        others[..., unit] = torch.arange(40.0).double().unsqueeze(-1)
        conditionals.append(log_weight_of_counts(machine, ROWS) - log_weight_of_counts(machine, others).logsumexp(0))
    pseudo = pseudo_log_likelihood(machine, ROWS).values
    torch.testing.assert_close(pseudo, torch.stack(conditionals).sum(0), rtol=1e-9, atol=1e-9)


def test_the_naive_mean_field_scores_counts():
    """A lower bound on ln Z, and so an upper bound on ln P, near it for weak couplings."""
    machine = machine_of_counts(scale=0.1)
    bound = tap_log_likelihood(machine, ROWS, scheme=NaiveMeanField())
    excess = float(bound) - float(exact_log_likelihood(machine, ROWS))
    assert 0 < excess < 0.1


# ----- through the estimator


def data_of_two_kinds(n=400):
    generator = torch.Generator().manual_seed(3)
    kind = (torch.rand(n, 1, generator=generator) < 0.5).float()
    return Counts(4, 0.5).sample(Tilt(kind * torch.tensor([1.5, 1.5, -1.0, 0.0]), 0.0), generator).numpy()


@pytest.mark.long
def test_counts_through_the_estimator(tmp_path):
    x = data_of_two_kinds()
    model = RBM(n_hidden=3, visible=Counts, epochs=10, batch_size=10).fit(x)
    assert model.visible_ == "Counts, as specified"
    rows = torch.from_numpy(x)
    alone = float(Counts(4).fit_to(rows).log_prior(rows).detach().sum(-1).mean())
    assert model.score(x) > alone + 0.3
    assert model.score_method_ == "exact"
    assert model.transform(x).shape == (400, 3)
    draws = model.sample(500, n_sweeps=50, random_state=0)
    assert set(np.unique(draws)) <= set(range(220))
    assert np.abs(draws.mean(0) - x.mean(0)).max() < 1
    save(model, tmp_path / "machine.safetensors")
    same = load(tmp_path / "machine.safetensors", unit_types=[Counts])
    assert torch.equal(same.weights[0], model.machine_.weights[0])
    assert torch.equal(same.layers[0].field, model.machine_.layers[0].field)


@pytest.mark.parametrize("visible", [lambda n: Counts(n), Counts(4)], ids=["function", "units"])
def test_other_ways_to_pass_units(visible):
    x = data_of_two_kinds(100)
    models = [clone(RBM(n_hidden=2, visible=units, epochs=1)).fit(x) for units in (Counts, visible)]
    assert models[0].score(x) == models[1].score(x)
    assert models[1].partial_fit(x).visible_ == "Counts, as specified"


def test_the_estimator_says_what_visible_may_be():
    x = data_of_two_kinds()
    with pytest.raises(ValueError, match="visible has 5 units, but the data have 4 columns"):
        RBM(visible=Counts(5)).fit(x)
    with pytest.raises(ValueError, match="visible returned a int; expected units, a unit type, or its name"):
        RBM(visible=lambda n: n).fit(x)
    with pytest.raises(ValueError, match="expected a non-negative integer"):
        RBM(visible=Counts).fit(x + 0.5)


# ----- on disk


@both
def test_counts_are_saved(precision, tmp_path):
    """`precision` is an argument of the constructor and no tensor: it is kept in the description."""
    machine, path = machine_of_counts(precision), tmp_path / "machine.safetensors"
    save(machine, path)
    same = load(path, unit_types=[Counts, LightTailed])
    assert type(same.layers[0]) is type(machine.layers[0])
    assert float(exact_log_partition(same)) == float(exact_log_partition(machine))
    name = "LightTailed" if precision else "Counts"
    with pytest.raises(FileError, match=rf"{name} is a user-defined unit type; .* load\(path, unit_types=\[{name}\]"):
        load(path)


class Shifted(Counts):
    """A constructor with an argument that must be given, in a buffer."""

    def __init__(self, n, start, field=0.0):
        super().__init__(n, field)
        self.register_buffer("start", torch.as_tensor(start, dtype=self.dtype))


class Forgetful(Counts):
    """An attribute that the constructor does not know."""

    def __init__(self, n, field=0.0):
        super().__init__(n, field)
        self.cutoff = 10


class Secretive(Counts):
    """An argument that is not kept."""

    def __init__(self, n, cutoff, field=0.0):
        super().__init__(n, field)
        self.terms = torch.arange(cutoff)


class Functional(Counts):
    """A function for an argument."""

    def __init__(self, n, penalty):
        super().__init__(n)
        self.penalty = penalty


def test_saving_says_what_a_file_cannot_hold(tmp_path):
    def saved(units):
        save(rbm(units, Binary(2)), tmp_path / "machine.safetensors")
        return load(tmp_path / "machine.safetensors", unit_types=[type(units)]).layers[0]

    assert float(saved(Shifted(3, 2.0)).start) == 2
    units = Forgetful(3)
    saved(units)
    units.cutoff = 20
    with pytest.raises(FileError, match=r"layer 0: Forgetful units cannot be saved; the attribute 'cutoff' is 20"):
        saved(units)
    with pytest.raises(FileError, match=r"the constructor argument 'cutoff' is not an attribute"):
        saved(Secretive(3, 5))
    with pytest.raises(FileError, match=r"the constructor argument 'penalty' is a function"):
        saved(Functional(3, lambda x: x))
