"""Machines at other temperatures, against sums over all states; and numbers for landscapes, against other code."""

import itertools

import numpy as np
import pytest
import torch
from machine_cases import Tensors
from scipy.special import logsumexp

from reproduction.statistics import (
    density_curve,
    effective_number,
    energy_bands,
    overlaps,
    purity,
    spatial_correlation,
)
from reproduction.temperature import at_temperature, prior_log_normalizer
from tapmachine import (
    Binary,
    Categorical,
    Gaussian,
    Poisson,
    SpikeSlab,
    Spin,
    TruncatedGaussBernoulli,
    TruncatedGaussian,
    dbm,
    exact_log_partition,
    pairwise,
    rbm,
)
from tapmachine.likelihood.exact import exact_moments


def states_of(units):
    """All states of a layer of `Binary` or `Spin` units."""
    values = (0.0, 1.0) if isinstance(units, Binary) else (-1.0, 1.0)
    return [np.array(state) for state in itertools.product(values, repeat=units.n)]


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
        "rbm": rbm(Binary(4, field=r.normal(4)), Spin(3, field=r.normal(3)), weights=r.normal(4, 3)),
        "deep": dbm(
            [Spin(3, field=r.normal(3)), Binary(3, field=r.normal(3)), Binary(2).double()],
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
    tempered = at_temperature(machine, beta)
    np.testing.assert_allclose(exact_moments(tempered).moments[0].mean.detach().numpy().ravel(), p @ lowest, atol=1e-12)
    # ln Z of the weights themselves, Σ P₁^β up to normalization, in the paper's convention
    ln_z = float(exact_log_partition(tempered)) + prior_log_normalizer(tempered)
    assert ln_z == pytest.approx(logsumexp(beta * weights), abs=1e-10)
    only = at_temperature(machine, beta, couplings_only=True)
    assert all(torch.equal(a.field, b.field) for a, b in zip(only.layers, machine.layers, strict=True))
    torch.testing.assert_close(only.weights[0], beta * machine.weights[0])


@pytest.mark.parametrize("kind", ["Gaussian", "TruncatedGaussian", "TruncatedGaussBernoulli", "SpikeSlab"])
def test_densities_are_tempered_too(kind):
    """ln P_β(x) − β ln P₁(x) is the same at all x, the atom at 0 included; and the normalizer, by quadrature."""
    r = Tensors(5)
    units = {
        "Gaussian": Gaussian(2, r.normal(2), r.uniform(1, 3, 2)),
        "TruncatedGaussian": TruncatedGaussian(2, -0.5, 1.5, r.normal(2), r.normal(2)),
        "TruncatedGaussBernoulli": TruncatedGaussBernoulli(2, -0.5, 1.5, r.normal(2), r.normal(2), 0.3),
        "SpikeSlab": SpikeSlab(2, r.normal(2), r.uniform(1, 3, 2), 0.3),
    }[kind].double()
    beta = 1.7
    machine = rbm(units, Binary(1).double())
    tempered = at_temperature(machine, beta).layers[0]
    with torch.no_grad():
        x = torch.tensor([0.0, 0.1, -0.4, 0.9], dtype=torch.float64).unsqueeze(1).expand(4, 2)
        constant = tempered.log_prior(x) - beta * units.log_prior(x)
        torch.testing.assert_close(constant, constant[:1].expand(4, 2), rtol=0, atol=1e-10)
        low, high = (-0.5, 1.5) if "Truncated" in kind else (-30.0, 30.0)
        grid = torch.linspace(low, high, 200_001, dtype=torch.float64)
        slab = getattr(units, "slab", units)
        U, V = slab.field, slab.precision
        weight = torch.trapezoid((U.unsqueeze(1) * grid - V.unsqueeze(1) * grid**2 / 2).exp(), grid)
        if kind == "TruncatedGaussBernoulli":
            rho = units.active_probability
            weight = 1 - rho + rho * weight
        elif kind == "SpikeSlab":
            weight = 1 + units.log_odds.exp() * weight
        expected = float(weight.log().sum()) + float(np.log(2))
    assert prior_log_normalizer(machine) == pytest.approx(expected, abs=1e-7)


def test_categories_and_what_cannot_be_tempered():
    r = Tensors(1)
    machine = rbm(Categorical(2, 3, field=r.normal(2, 3)), Binary(2).double(), weights=r.normal(6, 2))
    assert torch.equal(at_temperature(machine, 2.0).layers[0].field, 2 * machine.layers[0].field)
    assert prior_log_normalizer(machine) == pytest.approx(
        float(machine.layers[0].field.detach().logsumexp(-1).sum()) + 2 * np.log(2)
    )
    for function in (lambda m: at_temperature(m, 2.0), prior_log_normalizer):
        with pytest.raises(ValueError, match="layer 0 has Poisson units"):
            function(rbm(Poisson(2), Binary(2)))
    for beta in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="beta is"):
            at_temperature(machine, beta)


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
    assert energy_bands(torch.cat((first, second))) == [300, 100]
    assert len(energy_bands(first)) == 1
    far = energy_bands(torch.cat((first, second, torch.tensor([6000.0]))))
    assert far[:2] == [300, 100 if len(far) == 3 else 101]
    assert energy_bands(torch.cat((1e-3 * first[:90], 100 + 1e-3 * first[90:100]))) == [90, 10]
    assert energy_bands(torch.empty(0)) == []
    assert energy_bands(torch.tensor([2.0])) == [1]
    at, density = density_curve(first)
    assert float(torch.trapezoid(density, at)) == pytest.approx(1.0, abs=1e-2)
    assert float(density[at.abs().argmin()]) == pytest.approx(0.399, abs=0.05)


def test_spatial_correlation_and_effective_number():
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(300, 2, generator=generator)
    smooth = spatial_correlation(points[:, 0], points)
    assert smooth.morans_i > 0.8
    assert smooth.p_value == pytest.approx(1 / 200)
    noise = spatial_correlation(torch.randn(300, generator=generator), points)
    assert abs(noise.morans_i) < 0.1
    assert noise.p_value > 0.01
    assert np.isnan(spatial_correlation(torch.ones(300), points).morans_i), "no variation"
    assert effective_number(torch.tensor([1, 1, 2])) == pytest.approx(2 * 2**0.5)
    assert effective_number(torch.tensor([])) == 0


def test_overlaps_are_correlations_weighted_by_basins():
    means = torch.rand(3, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = overlaps(means, torch.tensor([1, 0, 0]), n_pairs=10)
    torch.testing.assert_close(found, torch.ones(10, dtype=torch.float64))
    between = overlaps(means, torch.tensor([1, 1, 0]), n_pairs=20_000)
    q = np.corrcoef(means[:2].numpy())[0, 1]
    assert float(between.mean()) == pytest.approx((1 + q) / 2, abs=0.02)
    assert float((between - q).abs().min()) < 1e-12
