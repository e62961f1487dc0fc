"""A unit type from outside the package, on the counts 0, 1, 2, …: everything works, or says why it does not."""

import math
import warnings

import pytest
import torch
from count_units import Counts, Undeclared

import tapmachine.recipes
from tapmachine import (
    PCD,
    Binary,
    EstimateError,
    FileError,
    Gaussian,
    Monitor,
    NaiveMeanField,
    TAPObjective,
    Tilt,
    ais_log_partition,
    denoise,
    exact_log_likelihood,
    exact_log_partition,
    exact_moments,
    fit,
    gibbs,
    pairwise,
    pseudo_log_likelihood,
    rbm,
    save,
    solve,
    tap_log_likelihood,
)
from tapmachine.channels import GaussianNoise
from tapmachine.recipes import make_machine
from tapmachine.settings import Settings

LOG_RATES = torch.tensor([0.3, 1.0, 1.5], dtype=torch.float64)
ROWS = torch.tensor([[1.0, 2.0, 4.0], [0.0, 3.0, 7.0], [5.0, 0.0, 1.0]], dtype=torch.float64)
both = pytest.mark.parametrize("precision", [0.0, 0.5], ids=["Poisson", "light tails"])


def machine_of_counts(precision=0.0, scale=0.3, kind=Counts):
    weights = scale * torch.randn(3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return rbm(kind(3, LOG_RATES, precision), Binary(2, field=torch.tensor([0.5, -1.0]).double()), weights=weights)


def log_joint(machine, x):  # (..., 3) -> (...): ln of the weight of visible counts, with the hidden bits summed out
    visible, hidden = machine.units()
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
    prior = machine.units()[0].log_prior(ROWS).sum(-1).detach()
    torch.testing.assert_close(pseudo_log_likelihood(machine, ROWS).values, prior, rtol=1e-11, atol=1e-11)


def test_pseudo_likelihood_of_counts_far_from_zero():
    """The strongest field moves the mass beyond the first blocks of states; what is near the data must not suffice."""
    weights = torch.tensor([[4.0]], dtype=torch.float64)
    machine = rbm(Counts(1, 0.5), Binary(1, field=torch.tensor([-60.0]).double()), weights=weights)
    rate = math.exp(0.5)
    log_z = torch.logaddexp(torch.tensor(rate), torch.tensor(-60.0 + math.exp(4.5))).double()  # e^x for both states
    expected = torch.tensor(0.5 * 90).double() + torch.tensor(-60.0 + 4 * 90).double() - math.lgamma(91) - log_z
    found = pseudo_log_likelihood(machine, torch.tensor([[90.0]]).double())
    assert float(found) == pytest.approx(float(expected), abs=1e-6)


def test_pseudo_likelihood_of_counts_in_a_pairwise_machine():
    couplings = torch.tensor([[0.0, -0.2, 0.0], [-0.2, 0.0, -0.1], [0.0, -0.1, 0.0]], dtype=torch.float64)
    machine = pairwise(Counts(3, LOG_RATES), weights=couplings)
    field = ROWS @ couplings
    terms = torch.arange(200).double()
    weights = (LOG_RATES + field).unsqueeze(-1) * terms - torch.lgamma(terms + 1)
    truth = (LOG_RATES + field) * ROWS - torch.lgamma(ROWS + 1) - weights.logsumexp(-1)
    torch.testing.assert_close(pseudo_log_likelihood(machine, ROWS).values, truth.sum(-1), rtol=1e-11, atol=1e-11)


def test_an_undeclared_countable_support_is_not_integrated_over():
    with pytest.raises(EstimateError, match="override is_countable"):
        pseudo_log_likelihood(machine_of_counts(kind=Undeclared), ROWS)

    class OnlyBounds(Undeclared):
        bounds = Counts.bounds

    with pytest.raises(EstimateError, match=r"whole number.*override is_countable"):
        pseudo_log_likelihood(machine_of_counts(kind=OnlyBounds), ROWS)


def test_counts_that_cannot_be_summed_are_an_error():
    weights = torch.full((1, 1), 8.0).double()  # a rate of exp(8): beyond what the units sum over themselves
    machine = rbm(Counts(1), Binary(1).double(), weights=weights)
    with pytest.raises(EstimateError, match="are not summed by their first 65536 states"):
        pseudo_log_likelihood(machine, torch.ones(1, 1).double())
    machine = rbm(Counts(1), Gaussian(1).double(), weights=torch.ones(1, 1).double())  # exp(½k²)/k! has no sum
    with pytest.raises(EstimateError, match="are not summed"):
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
    """Its reaction term exp(½κk²) outgrows k!: there is no normalised tilt, and no number is made up."""
    machine = machine_of_counts()
    assert not bool(solve(machine, ROWS).converged.any())
    with pytest.raises(EstimateError, match="no F"):
        tap_log_likelihood(machine, ROWS)
    assert bool(solve(machine, ROWS, NaiveMeanField()).converged.all())


@both
def test_counts_are_sampled(precision):
    machine = machine_of_counts(precision)
    x = gibbs(machine, ROWS.repeat(200, 1), 30, torch.Generator().manual_seed(0))[0]
    exact = exact_moments(machine).moments[0]
    deviation = (exact.variance / len(x)).sqrt()  # the chains are independent
    assert bool(((x.mean(0) - exact.mean).abs() < 6 * deviation).all())


@pytest.mark.parametrize(
    ("precision", "objective"), [(0.0, PCD(1)), (0.5, PCD(1)), (0.5, TAPObjective(n_particles=5, n_sweeps=1))]
)
def test_counts_are_trained(precision, objective):
    """Data of two kinds: a hidden unit tells them apart, which is worth some tenths of a nat."""
    units, generator = Counts(3, 0.5, precision), torch.Generator().manual_seed(0)
    kind = (torch.rand(500, 1, generator=generator) < 0.5).double()
    x = units.sample(Tilt(kind * torch.tensor([2.0, 2.0, -1.0]).double(), 0.0), generator)
    student = rbm(Counts(3, 0.0, precision), Binary(2).double())
    adam = torch.optim.Adam(student.parameters(), 0.05)
    fit(student, x, epochs=5, objective=objective, optimizer=adam, batch_size=25, monitor=Monitor(n_starts=0))
    alone = float(units.fit_to(x).log_prior(x).detach().sum(-1).mean())
    assert float(exact_log_likelihood(student, x)) > alone + 0.1


def test_large_counts_are_no_reason_to_scale_the_data():
    x = torch.full((40, 2), 30.0).double()
    x[::2] += 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(
            rbm(Counts(2), Binary(2).double()),
            x,
            epochs=1,
            objective=PCD(1),
            batch_size=20,
            monitor=Monitor(n_starts=0),
        )


def test_counts_are_not_rescaled_by_the_recipes(monkeypatch):
    monkeypatch.setattr(tapmachine.recipes, "make_visible", lambda settings, *x: (Counts(3), "counts"))
    made = make_machine(Settings(data="digits", hidden=(2,), dtype="float64"), ROWS)
    assert made.is_in_units_of_data


def test_counts_through_gaussian_noise():
    machine = machine_of_counts(0.5, scale=0.1)
    posterior = denoise(machine, ROWS + 0.1, GaussianNoise(0.2))
    assert bool(((posterior.mean - ROWS).abs() < 0.2).all())


def test_saving_counts_says_why_not(tmp_path):
    with pytest.raises(FileError, match="Counts units cannot be saved; a file can hold the unit types of tapmachine"):
        save(machine_of_counts(), tmp_path / "machine.safetensors")
