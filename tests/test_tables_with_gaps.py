"""Tables with gaps, weights and columns of several types: the fit, ln Z and posteriors, against direct sums."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import poisson
from torch.nn.functional import one_hot

from tapmachine import Binary, Categorical, Gaussian, Mixed, Poisson, exact_log_partition, impute, rbm
from tapmachine.data.errors import EstimateError
from tapmachine.exact import Mixture, conditioned, mixture_of
from tapmachine.likelihood.weight import log_weight
from tapmachine.tables.fit import Table, expectations, fit_classes, fit_table, machine_of, select, split

UNITS = Mixed([Binary(2), Gaussian(2), Categorical(1, 3)])


def rows(n=200, gaps=0.2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    k = torch.randint(3, (n,), generator=generator)
    real = torch.randn(n, 2, generator=generator).double() + 2 * k.unsqueeze(1)
    real[:, 1] = 100 * (real[:, 1] + 0.7 * real[:, 0])
    bits = (torch.rand(n, 2, generator=generator) < 0.2 + 0.3 * k.unsqueeze(1)).double()
    states = one_hot((k + (torch.rand(n, generator=generator) < 0.2)) % 3, 3).double()
    x = torch.cat((bits, real, states), 1)
    missing = torch.rand(n, 7, generator=generator) < gaps
    missing[:, 4:] = missing[:, 4:5]
    return x.masked_fill(missing, torch.nan), x


def three_classes(table, shrinkage=0.01):
    return split(fit_classes(table, table.one_class(), shrinkage), table, 3, shrinkage)


@pytest.fixture(scope="module")
def fitted():
    table = Table.of(rows()[0], UNITS)
    mixture = fit_classes(table, three_classes(table), 0.01)
    return table, mixture, machine_of(mixture, table)


def on_a_grid(machine):
    """All states with Gaussian columns on a grid, their log-weights with the area of a cell."""
    first = torch.linspace(-8, 14, 61, dtype=torch.float64)
    second = torch.linspace(-1000, 1800, 141, dtype=torch.float64)
    bits = torch.tensor([0.0, 1.0], dtype=torch.float64)
    flat = torch.cartesian_prod(bits, bits, first, second, torch.arange(3, dtype=torch.float64))
    x = torch.cat((flat[:, :4], one_hot(flat[:, 4].long(), 3).double()), 1)
    return x, log_weight(machine, x) + math.log((first[1] - first[0]) * (second[1] - second[0]))


def test_ln_z_and_density_by_summation(fitted):
    table, mixture, machine = fitted
    assert len(mixture_of(machine).blocks) == 2
    _, log_weights = on_a_grid(machine)
    assert float(exact_log_partition(machine)) == pytest.approx(float(log_weights.logsumexp(0)), abs=1e-4)
    x, complete = rows()
    u = x.clone()
    u[:, table.real] = (x[:, table.real] - table.mean) / table.deviation
    jacobian = (~x[:, table.real].isnan()).double() @ table.deviation.log()
    torch.testing.assert_close(mixture_of(machine).log_density(x), mixture.log_density(u) - jacobian)
    density = mixture_of(machine).log_density(complete)
    torch.testing.assert_close(density, log_weight(machine, complete) - exact_log_partition(machine))


@pytest.mark.parametrize("missing", [[2], [0, 3], [4, 5, 6], [1, 2, 4, 5, 6]])
def test_posterior_by_summation(fitted, missing):
    machine = fitted[2]
    states, log_weights = on_a_grid(machine)
    row = states[states[:, 2:4].sub(torch.tensor([2.0, 300.0])).abs().sum(1).argmin()].clone()
    observed = [j for j in range(7) if j not in missing]
    shares = log_weights[(states[:, observed] == row[observed]).all(1)].softmax(0)
    possible = states[(states[:, observed] == row[observed]).all(1)]
    row[missing] = torch.nan
    posterior = mixture_of(machine).condition(row.unsqueeze(0))
    torch.testing.assert_close(posterior.moments.mean[0], shares @ possible, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(impute(machine, row.unsqueeze(0)).mean[0], shares @ possible, rtol=1e-3, atol=1e-4)
    variance = shares @ (possible - shares @ possible) ** 2
    torch.testing.assert_close(posterior.moments.variance[0], variance, rtol=1e-2, atol=1e-4)


def test_likelihood_increases_and_is_stationary():
    table, before = Table.of(rows()[0], UNITS), -math.inf
    off = mixture = three_classes(table, 0.0)
    for _ in range(30):
        mixture = fit_classes(table, mixture, 0.0, n_steps=1, smoothing=1e-9, width=0.0)
        now = float(expectations(mixture, table).log_likelihood.detach().sum())
        assert now > before - 1e-8
        before = now
    for _ in range(150):
        mixture = fit_classes(table, mixture, 0.0, n_steps=1, smoothing=1e-9, width=0.0)

    def gradient(of):  # along a parameter, by central differences
        ends = [expectations(of(step), table).log_likelihood.detach().sum() for step in (1e-4, -1e-4)]
        return abs(float(ends[0] - ends[1])) / 2e-4

    def gradients(of):  # of all means
        places = torch.eye(6, dtype=torch.float64).view(6, 3, 2)
        return max(gradient(lambda step, at=place: of.replace(means=of.means + step * at)) for place in places)

    assert gradients(mixture) < 0.1
    assert gradient(lambda step: mixture.replace(covariances=mixture.covariances * (1 + step))) < 0.1
    assert gradients(off) > 0.5  # before the fit it is not


def test_expected_moments_by_conditioning(fitted):
    """The step of expectation against the precision matrices of the observed columns, row by row."""
    table, mixture, _ = fitted
    found, covariance = expectations(mixture, table), mixture.covariances[0]
    torch.testing.assert_close(found.log_likelihood, mixture.log_weight(table.x))
    shifts, squares = torch.zeros_like(found.shifts), torch.zeros_like(covariance)
    for row, belongs in zip(table.x[:, table.real], found.belongs, strict=True):
        seen = ~row.isnan()
        precision = torch.zeros_like(covariance)
        precision[seen.outer(seen)] = torch.linalg.inv(covariance[seen][:, seen]).flatten()
        off = (torch.where(seen, row - mixture.means, 0.0) @ precision) @ covariance
        shifts += belongs.unsqueeze(1) * off
        squares += (belongs * off.T) @ off + belongs.sum() * (covariance - covariance @ precision @ covariance)
    torch.testing.assert_close(found.shifts, shifts)
    torch.testing.assert_close(found.squares, squares)


def test_selection_finds_classes_and_widths():
    """Three clusters are found; a normal table is one class, and a covariance from few rows is widened."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.tensor([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]]).double()
    k = torch.randint(3, (150,), generator=generator)
    clusters = centers[k] + torch.randn(150, 2, generator=generator).double()
    assert select(Table.of(clusters, Gaussian(2)), [1, 2, 3, 4], 0).n_classes == 3
    normal = torch.randn(300, 6, generator=generator).double()
    many = select(Table.of(normal, Gaussian(6)), [1, 2], 0)
    assert (many.n_classes, many.width) == (1, 1.0)
    few = select(Table.of(normal[:24], Gaussian(6)), [1], 0)
    assert few.width > 1.0
    assert few.shrinkage >= many.shrinkage


def test_a_weight_of_two_is_a_row_twice():
    x = rows()[0]
    weights = torch.ones(200, dtype=torch.float64)
    weights[:50] = 2
    start = three_classes(Table.of(x, UNITS))
    one = fit_classes(Table.of(x, UNITS, weights), start, 0.01, n_steps=5)
    two = fit_classes(Table.of(torch.cat((x, x[:50])), UNITS), start, 0.01, n_steps=5)
    torch.testing.assert_close(one.means, two.means)
    torch.testing.assert_close(one.covariances, two.covariances)


def test_columns_are_standardized_by_their_observed_values():
    x = rows()[0]
    table = Table.of(x, UNITS)
    torch.testing.assert_close(table.mean, x[:, 2:4].nanmean(0))
    torch.testing.assert_close(table.x[:, 2:4].nanmean(0), torch.zeros(2, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close((table.x[:, 2:4] ** 2).nanmean(0), torch.ones(2, dtype=torch.float64), atol=0.02, rtol=0)


def test_cell_surprise_by_leaving_cells_out(fitted):
    machine, x = fitted[2], rows(30)[0]
    posterior = mixture_of(machine).condition(x)
    for column in (0, 3):
        without = x.clone()
        without[:, column] = torch.nan
        expected = mixture_of(machine).condition(without).log_weight - posterior.log_weight
        seen = ~x[:, column].isnan()
        torch.testing.assert_close(posterior.cell_surprise()[seen, column], expected[seen])


def test_draws_and_intervals(fitted):
    machine, (x, complete) = fitted[2], rows()
    posterior, missing = mixture_of(machine).condition(x), x.isnan()
    drawn = posterior.draws(400, torch.Generator().manual_seed(0))
    error = (drawn.mean(0) - posterior.moments.mean) / (posterior.moments.variance / 400).sqrt().clamp(min=1e-9)
    assert float(error[missing].abs().max()) < 6
    assert torch.equal(drawn[0][~missing], x[~missing])
    low, high = posterior.intervals(0.9)
    inside = ((low <= complete) & (complete <= high))[:, 2:4][missing[:, 2:4]].double().mean()
    assert 0.8 < float(inside) < 0.99


def test_intervals_of_a_row_do_not_depend_on_other_rows():
    """Quantiles of a Poisson distribution whose rate is that of either class."""
    fields = torch.tensor([[[1.0], [40.0]], [[1e-9], [1e9]]], dtype=torch.float64).log()
    nothing = fields.new_zeros(2, 0)
    blocks = [Poisson(1).double(), Binary(1).double()]
    columns = torch.arange(0)
    mixture = Mixture(fields.new_zeros(2), nothing, fields.new_zeros(1, 0, 0), columns, blocks, [0, 1], [*fields])
    x = torch.tensor([[torch.nan, 0.0], [torch.nan, 1.0], [7.0, 1.0]], dtype=torch.float64)
    low, high = mixture.condition(x).intervals(0.9)
    assert torch.cat(mixture.condition(x[1:2]).intervals(0.9)).equal(torch.stack((low[1], high[1])))
    assert (float(low[2, 0]), float(high[2, 0])) == (7.0, 7.0)
    expected = poisson.ppf([[0.05], [0.95]], [1.0, 40.0])
    np.testing.assert_allclose(torch.stack((low[:2, 0], high[:2, 0])).detach(), expected, atol=1)


def test_many_rows_are_conditioned_in_chunks(fitted, monkeypatch):
    mixture, x = mixture_of(fitted[2]), rows()[0]
    expected = mixture.condition(x)
    monkeypatch.setattr(conditioned, "MOST_KEPT", 0)
    found = mixture.condition(x)
    for name in ("moments", "hidden_moments"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=0, atol=0)
    torch.testing.assert_close(found.log_weight, expected.log_weight, rtol=0, atol=0)


@pytest.mark.parametrize("second", [1.0, 1.0 - 1e-15], ids=["equal", "almost equal"])
def test_collinear_columns_have_posteriors(second):
    covariance = torch.tensor([[1.0, second, 0.5], [second, 1.0, 0.5], [0.5, 0.5, 1.0]], dtype=torch.float64)
    zero = covariance.new_zeros(1)
    mixture = Mixture(zero, zero.expand(1, 3), covariance.unsqueeze(0), torch.arange(3))
    x = torch.full((3, 3), torch.nan, dtype=torch.float64)
    x[0, 0] = x[1, :2] = 2.0
    given = mixture.condition(x)
    expected = torch.tensor([[2.0, 2.0, 1.0]] * 2, dtype=torch.float64)
    torch.testing.assert_close(given.moments.mean[:2], expected, atol=1e-3, rtol=0)
    drawn = given.draws(100, torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn[..., 0], drawn[..., 1], atol=1e-3, rtol=0)
    with pytest.raises(EstimateError, match="collinear"):
        mixture.replace(covariances=-mixture.covariances).log_density(x)


def test_bad_rows_of_a_mixture_are_named(fitted):
    x = rows()[0][:4].nan_to_num(0.0)
    x[2, 5] = torch.nan
    with pytest.raises(ValueError, match="a category in row 2 is partly missing"):
        mixture_of(fitted[2]).condition(x)
    with pytest.raises(ValueError, match=r"x has shape \(4, 6\); expected \(N, 7\)"):
        mixture_of(fitted[2]).log_density(x[:, 1:])


def test_known_mixtures_are_no_part_of_a_machine():
    machine = rbm(Gaussian(2), Categorical(1, 3))
    before = set(vars(machine))
    mixture = mixture_of(machine)
    assert set(vars(machine)) == before
    assert mixture_of(machine) is mixture
    with torch.no_grad():
        machine.weights[0].add_(1.0)
    assert mixture_of(machine) is not mixture


def test_a_column_without_values_is_named():
    x = rows()[0]
    x[:, 3] = torch.nan
    with pytest.raises(ValueError, match="column 3"):
        fit_table(x, 4, units=UNITS)


def test_real_tables_with_gaps_are_gaussian_mixtures():
    x = rows(60)[0][:, 2:4]
    machine = fit_table(x, 4).machine
    assert isinstance(machine.layers[0], Gaussian)
    assert not bool(impute(machine, x).mean.isnan().any())
    assert mixture_of(rbm(Gaussian(2), Binary(2))) is None
