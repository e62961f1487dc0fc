"""Machines at other temperatures, against sums over all states; and numbers for landscapes, against other code."""

import itertools

import numpy as np
import pytest
import torch
from machine_cases import Tensors
from scipy.special import logsumexp

from reproduction.likelihoods import paper_schedule
from reproduction.statistics import (
    at_temperature,
    complexity,
    count_bands,
    density_curve,
    effective_number,
    morans_i,
    overlaps,
    prior_log_normalizer,
    purity,
)
from tapmachine import (
    Binary,
    Gaussian,
    TruncatedGaussBernoulli,
    TruncatedGaussian,
    dbm,
    exact_log_partition,
    pairwise,
    rbm,
)
from tapmachine.likelihood.exact import exact_moments


def states_of(units):
    """All states of a layer of `Binary` units."""
    return [np.array(state) for state in itertools.product((0.0, 1.0), repeat=units.n)]


def energies(machine):
    """ln of the unnormalized P of every joint state of the layers, and the states of the lowest layer."""
    found, lowest = [], []
    U = [layer.field.detach().numpy() for layer in machine.layers]
    W = [weights.detach().numpy() for weights in machine.weights]
    for states in itertools.product(*(states_of(layer) for layer in machine.layers)):
        exponent = sum(u @ x for u, x in zip(U, states, strict=True))
        if machine.is_pairwise:
            J = (W[0] + W[0].T) / 2
            exponent += states[0] @ (J - np.diag(np.diag(J))) @ states[0] / 2
        else:
            exponent += sum(x @ w @ y for x, w, y in zip(states, W, states[1:], strict=False))
        found.append(exponent)
        lowest.append(states[0])
    return np.array(found), np.array(lowest)


def symmetric(J):
    return J + J.T - 2 * torch.diag(J.diagonal())


def machines():
    r = Tensors(2)
    return {
        "rbm": rbm(Binary(4, field=r.normal(4)), Binary(3, field=r.normal(3)), weights=r.normal(4, 3)),
        "deep": dbm(
            [Binary(3, field=r.normal(3)), Binary(3, field=r.normal(3)), Binary(2).double()],
            [r.normal(3, 3), r.normal(3, 2)],
        ),
        "pairwise": pairwise(Binary(4, field=r.normal(4)), weights=symmetric(r.normal(4, 4))),
    }


@pytest.mark.parametrize("name", machines())
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0, 2.5])
def test_at_temperature_is_a_power_of_the_distribution(name, beta):
    machine = machines()[name].double()
    weights, lowest = energies(machine)
    p = np.exp(beta * weights - logsumexp(beta * weights))
    tempered = at_temperature(machine, beta, couplings_only=False)
    np.testing.assert_allclose(exact_moments(tempered).moments[0].mean.detach().numpy().ravel(), p @ lowest, atol=1e-12)
    # ln Z of the weights themselves, Σ P₁^β up to normalization, in the paper's convention
    ln_z = float(exact_log_partition(tempered)) + prior_log_normalizer(tempered)
    assert ln_z == pytest.approx(logsumexp(beta * weights), abs=1e-10)
    only = at_temperature(machine, beta, couplings_only=True)
    assert all(torch.equal(a.field, b.field) for a, b in zip(only.layers, machine.layers, strict=True))
    torch.testing.assert_close(only.weights[0], beta * machine.weights[0])


@pytest.mark.parametrize("kind", ["Gaussian", "TruncatedGaussian", "TruncatedGaussBernoulli"])
def test_the_normalizer_of_densities(kind):
    """By quadrature."""
    r = Tensors(5)
    units = {
        "Gaussian": Gaussian(2, r.normal(2), r.uniform(1, 3, 2)),
        "TruncatedGaussian": TruncatedGaussian(2, -0.5, 1.5, r.normal(2), r.normal(2)),
        "TruncatedGaussBernoulli": TruncatedGaussBernoulli(2, -0.5, 1.5, r.normal(2), r.normal(2), 0.3),
    }[kind].double()
    machine = rbm(units, Binary(1).double())
    with torch.no_grad():
        low, high = (-0.5, 1.5) if "Truncated" in kind else (-30.0, 30.0)
        grid = torch.linspace(low, high, 200_001, dtype=torch.float64)
        slab = getattr(units, "slab", units)
        U, V = slab.field, slab.precision
        weight = torch.trapezoid((U.unsqueeze(1) * grid - V.unsqueeze(1) * grid**2 / 2).exp(), grid)
        if kind == "TruncatedGaussBernoulli":
            rho = units.active_probability
            weight = 1 - rho + rho * weight
        expected = float(weight.log().sum()) + float(np.log(2))
    assert prior_log_normalizer(machine) == pytest.approx(expected, abs=1e-7)


def test_agreement_of_basins_and_classes():
    rng = np.random.default_rng(0)
    basin, labels = rng.integers(-1, 6, 200), rng.integers(0, 4, 200)
    labels[basin == 2] = 3
    most = sum(np.bincount(labels[basin == b]).max() for b in range(-1, 6))
    assert purity(torch.tensor(basin), torch.tensor(labels)) == pytest.approx(most / 200)


def test_bands_and_densities():
    # quantiles of a normal distribution in place of draws
    first, second = (torch.special.ndtri((torch.arange(n) + 0.5) / n) for n in (300, 100))
    second = 12 + 0.5 * second
    assert count_bands(torch.cat((first, second))) == 2
    assert count_bands(first) == 1
    assert count_bands(torch.cat((first, second, torch.tensor([6000.0])))) in (2, 3)
    assert count_bands(torch.cat((1e-3 * first[:90], 100 + 1e-3 * first[90:100]))) == 2
    assert count_bands(torch.empty(0)) == 0
    assert count_bands(torch.tensor([2.0])) == 1
    at, density = density_curve(first)
    assert float(torch.trapezoid(density, at)) == pytest.approx(1.0, abs=1e-2)
    assert float(density[at.abs().argmin()]) == pytest.approx(0.399, abs=0.05)


def test_spatial_correlation_and_effective_number():
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(300, 2, generator=generator)
    index, p_value = morans_i(points[:, 0], points)
    assert index > 0.8
    assert p_value == pytest.approx(1 / 200)
    index, p_value = morans_i(torch.randn(300, generator=generator), points)
    assert abs(index) < 0.1
    assert p_value > 0.01
    assert np.isnan(morans_i(torch.ones(300), points)[0]), "no variation"
    assert effective_number(torch.tensor([1, 1, 2])) == pytest.approx(2 * 2**0.5)


def test_overlaps_are_correlations_weighted_by_basins():
    means = torch.rand(3, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    q, edges = np.corrcoef(means.numpy()), torch.linspace(-1, 1, 201, dtype=torch.float64)
    only_one = overlaps(means, torch.tensor([1, 0, 0]), edges)
    assert only_one.nonzero().flatten().tolist() == [199]
    between = overlaps(means, torch.tensor([1, 1, 0]), edges) * 0.01  # width of a bin
    assert float(between[199]) == pytest.approx(0.5)
    assert float(between[int((q[0, 1] + 1) * 100)]) == pytest.approx(0.5)


def test_complexity_is_the_logarithm_of_the_density():
    f, sigma = complexity(torch.linspace(-100, -50, 1000), n_units=100, n_bins=5)
    assert len(f) == 5
    assert float(sigma[0]) == pytest.approx(np.log(200 / 0.1) / 100, abs=1e-6)


def test_the_schedule_of_the_paper():
    betas = paper_schedule()
    assert (len(betas), float(betas[0]), float(betas[-1])) == (14_501, 0.0, 1.0)
    for first, last, step in ((0, 500, 1e-3), (500, 4500, 1e-4), (4500, 14500, 1e-5)):
        steps = betas.diff()[first:last]
        torch.testing.assert_close(steps, torch.full_like(steps, step), rtol=1e-6, atol=0)
