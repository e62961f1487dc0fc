"""Machines recognized as mixtures, against sums over all states and against the joint Gaussian of all units."""

import math

import pytest
import torch
from machine_cases import all_states

from tapmachine import Binary, Categorical, Gaussian, Mixed, Spin, TruncatedGaussian, exact_log_partition, rbm
from tapmachine.exact import mixture_of
from tapmachine.likelihood.exact import exact_moments
from tapmachine.likelihood.weight import log_weight
from tapmachine.posterior import anomaly_score

NAN = torch.nan


def draws(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def machine_of(visible, hidden, strength=0.8):
    weights = strength * draws(*(math.prod(units.state_shape) for units in (visible, hidden)))
    return rbm(visible.double(), hidden.double(), weights)


MACHINES = {
    "Binary": machine_of(Binary(6, field=draws(6)), Binary(3, field=draws(3))),
    "Spin": machine_of(Spin(5), Spin(2, field=draws(2))),
    "Mixed": machine_of(Mixed([Binary(2), Categorical(1, 3)]), Mixed([Binary(1), Categorical(1, 3)])),
}


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_few_hidden_states_are_components(machine):
    """ln Z, moments of all units, and densities and posteriors of rows with missing values."""
    mixture = mixture_of(machine, bits=8)
    assert mixture_of(machine) is None or isinstance(machine.layers[0], Mixed)
    torch.testing.assert_close(mixture.log_partition, exact_log_partition(machine))
    moments = exact_moments(machine).moments
    given = mixture.condition(torch.full((1, machine.sizes[0]), NAN).double())
    torch.testing.assert_close(given.moments.mean[0], moments[0].mean.flatten())
    torch.testing.assert_close(given.hidden_moments.mean[0].flatten(), moments[1].mean.flatten())
    torch.testing.assert_close(given.hidden_moments.variance[0].flatten(), moments[1].variance.flatten())
    states = all_states(machine.layers[0]).double()
    weights = log_weight(machine, states)
    torch.testing.assert_close(mixture.log_weight(states), weights)
    x = states[[3, -2]].clone()
    x[:, 1] = NAN
    allowed = (x.isnan().unsqueeze(1) | (states == x.unsqueeze(1))).all(-1)
    of_rows = weights.masked_fill(~allowed, -torch.inf)
    torch.testing.assert_close(mixture.log_weight(x), of_rows.logsumexp(1))
    torch.testing.assert_close(mixture.condition(x).moments.mean, of_rows.softmax(1) @ states)


def test_real_columns_above_few_states():
    """Quadrature over a bounded column beside a Gaussian one."""
    machine = rbm(
        Mixed([Gaussian(1, field=0.3, precision=2.0), TruncatedGaussian(1)]).double(), Binary(2).double(), draws(2, 2)
    )
    mixture = mixture_of(machine, bits=2)
    line, unit = torch.linspace(-12, 12, 2401).double(), (torch.arange(400).double() + 0.5) / 400
    grid = torch.cartesian_prod(line, unit)
    weights = log_weight(machine, grid) + torch.tensor(0.01 / 400).double().log()
    torch.testing.assert_close(weights.logsumexp(0), mixture.log_partition, rtol=0, atol=1e-5)
    torch.testing.assert_close(mixture.log_weight(grid[::999]), log_weight(machine, grid[::999]))
    mean = mixture.moments().mean
    torch.testing.assert_close(mean, weights.softmax(0) @ grid, rtol=0, atol=1e-5)


def test_two_gaussian_layers_are_one_component():
    machine = rbm(Gaussian(3, field=draws(3)).double(), Gaussian(2, field=1.0).double(), 0.3 * draws(3, 2))
    assert mixture_of(machine) is None
    mixture = mixture_of(machine, bits=0)
    torch.testing.assert_close(mixture.log_partition, exact_log_partition(machine))
    weights = machine.weights[0].detach()
    precision = torch.eye(5).double()
    precision[:3, 3:], precision[3:, :3] = -weights, -weights.T
    field = torch.cat([units.field.detach() for units in machine.layers])
    joint = torch.linalg.inv(precision)
    torch.testing.assert_close(mixture.covariances[0], joint[:3, :3])
    given = mixture.condition(torch.full((1, 3), NAN).double())
    torch.testing.assert_close(given.moments.mean[0], (joint @ field)[:3])
    torch.testing.assert_close(given.hidden_moments.mean[0], (joint @ field)[3:])
    torch.testing.assert_close(given.hidden_moments.variance[0], joint.diagonal()[3:])
    x = draws(4, 3)
    x[0, 1] = NAN
    torch.testing.assert_close(anomaly_score(machine, x), -mixture.log_density(x))


def test_a_mixture_is_kept_until_the_parameters_change():
    machine = machine_of(Mixed([Binary(2), Gaussian(1)]), Categorical(1, 2))
    mixture = mixture_of(machine)
    assert mixture_of(machine) is mixture
    with torch.no_grad():
        machine.weights[0].mul_(2)
    changed = mixture_of(machine)
    assert changed is not mixture
    torch.testing.assert_close(changed.means, 2 * mixture.means)


def test_draws_are_those_of_the_mixture():
    machine = machine_of(Mixed([Gaussian(2), Binary(2)]), Categorical(1, 3), 2.0)
    mixture = mixture_of(machine)
    x = mixture.sample(20_000, torch.Generator().manual_seed(0))
    mean, variance = mixture.moments()
    assert float(((x.mean(0) - mean) / (variance / len(x)).sqrt()).abs().max()) < 5
    nothing = torch.full((1, 4), NAN).double()
    again = mixture.condition(nothing).draws(len(x), torch.Generator().manual_seed(0))[:, 0]
    assert torch.equal(x, again)
