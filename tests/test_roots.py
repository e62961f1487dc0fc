"""The roots of the implicit half-step: accurate from any start, for any reaction."""

import numpy as np
import pytest
import torch
from machine_cases import UNITS, Tensors
from unit_cases import CASES

from tapmachine import Moments, Poisson, Tilt
from tapmachine.beliefs import Received
from tapmachine.units.numerics.roots import logistic_root


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_logit_of_a_two_state_unit(dtype):
    """z + κσ(z) = t, over 10⁶ cases: reactions from 0 to 10⁴, starts anywhere."""
    rng = np.random.default_rng(0)
    n = 200_000
    reaction = np.where(rng.random(n) < 0.1, 0.0, np.exp(rng.uniform(-7, 9, n)))
    z = rng.normal(size=n) * np.exp(rng.uniform(-3, 3, n))
    total = z + reaction / (1 + np.exp(-z))
    start = rng.normal(size=n) * np.exp(rng.uniform(-3, 6, n))
    found = logistic_root(*(torch.tensor(value, dtype=dtype) for value in (total, reaction, start))).double().numpy()
    residual = np.abs(found + reaction / (1 + np.exp(-found)) - total) / (1 + reaction)
    # z and the sum reach 100, which float32 rounds at 6e-6
    assert residual.max() <= (1e-11 if dtype == torch.float64 else 6e-5)
    if dtype == torch.float64:
        np.testing.assert_allclose(found, z, rtol=1e-8, atol=1e-8)


def test_few_steps_are_enough_from_a_warm_start():
    random = Tensors(1)
    reaction, z = random.uniform(0, 50, 10_000), random.normal(10_000) * 3
    total = z + reaction * torch.sigmoid(z)
    found = logistic_root(total, reaction, z + 0.01 * random.normal(10_000), steps=2)
    assert (found - z).abs().max() < 1e-6


@pytest.mark.parametrize("kind", UNITS)
@pytest.mark.parametrize("strength", [0.0, 0.1, 3.0, 100.0])
def test_settled_moments_solve_their_equation(kind, strength):
    """a = f_a(θ − κa, A − κ), from starts near and far, alone and with evidence."""
    random = Tensors(2)
    units = UNITS[kind](random, 5)
    shape = (400, *units.state_shape)
    field = 3 * (1 + strength) ** 0.5 * random.normal(*shape)
    reaction = strength * random.uniform(0.1, 1.0, 400, 5)
    if kind == "Gaussian":
        reaction = reaction.clamp(max=1.0)
    if len(units.state_shape) > 1:
        factor = random.normal(400, 5, 3, 3)
        reaction = strength * (factor @ factor.mT) / 3
    for precision in (0.0, random.uniform(0.0, 1.0, *shape)):
        with torch.no_grad():
            moments, own = units.settle(Received(field, reaction, precision), 10 * random.normal(*shape))
            again = units.respond(field, reaction, moments.mean, precision)
            wanted = units.moments(Tilt(own, precision - diagonal(reaction, units)))
        slope = 1 + strength  # the explicit update magnifies what is left of the root's error
        for found, expected in zip((*moments, *moments), (*again, *wanted), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-9 * slope)


def diagonal(reaction, units):
    return reaction.diagonal(dim1=-2, dim2=-1) if len(units.state_shape) > 1 else reaction


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_explicit_response_and_divergence_follow_from_the_tilt(case):
    """`respond` and `divergence`, which unit types may override for speed, against their definitions."""
    units = case.simple()
    random = Tensors(3)
    shape = (50, *units.state_shape)
    field, mean = random.normal(*shape), random.uniform(0.1, 0.4, *shape)
    reaction = 0.2 * random.uniform(0.0, 1.0, 50, units.n)
    own, precision = field - reaction * mean if len(units.state_shape) == 1 else field, -reaction
    if len(units.state_shape) > 1:
        factor = random.normal(50, units.n, units.q, units.q)
        reaction = 0.1 * (factor @ factor.mT)
        own = field - (reaction @ mean.unsqueeze(-1)).squeeze(-1)
        precision = -reaction.diagonal(dim1=-2, dim2=-1)
    if isinstance(units, Poisson):  # which have no such tilt, and react through their mean alone
        own, precision = field + 0.5 * reaction, torch.zeros_like(reaction)
    tilt = Tilt(own, precision)
    with torch.no_grad():
        for found, expected in zip(units.tilt_with_reaction(field, reaction, mean), tilt, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        moments = units.moments(tilt)
        for found, expected in zip(units.respond(field, reaction, mean), moments, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
        exponent = own * moments.mean - 0.5 * precision * (moments.variance + moments.mean**2)
        exponent = exponent.sum(-1) if len(units.state_shape) > 1 else exponent
        expected = exponent - units.log_partition(tilt)
        finite = torch.isfinite(expected)
        torch.testing.assert_close(units.divergence(tilt, moments)[finite], expected[finite], rtol=1e-9, atol=1e-11)
        assert bool((units.divergence(tilt, moments)[finite] >= -1e-12).all())


def test_means_at_the_edge_of_float32():
    """A variance never comes out negative."""
    units = UNITS["Binary"](Tensors(4), 5).float()
    field = torch.linspace(-200, 200, 1000).unsqueeze(-1).expand(1000, 5)
    with torch.no_grad():
        moments, _ = units.settle(Received(field, torch.ones(1000, 5)), field)
    assert isinstance(moments, Moments)
    assert (moments.variance >= 0).all()
    assert (moments.variance <= 0.25).all()
