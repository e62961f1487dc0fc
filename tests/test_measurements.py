"""Recovery from measurements that mix units, held against integrals, enumeration and exact normal posteriors."""

import math
import warnings

import numpy as np
import pytest
import scipy.sparse
import torch
from machine_cases import Tensors
from scipy.integrate import quad_vec
from scipy.stats import norm, poisson

from tapmachine import (
    Binary,
    Categorical,
    CountMeasurements,
    FunctionOperator,
    Gaussian,
    GaussianNoise,
    LinearMeasurements,
    MagnitudeMeasurements,
    Moments,
    QuantizedMeasurements,
    SignMeasurements,
    SpikeSlab,
    Spin,
    Tilt,
    TruncatedGaussBernoulli,
    TruncatedGaussian,
    clamp,
    dbm,
    denoise,
    pairwise,
    rbm,
    recover,
)
from tapmachine.channels import Channel
from tapmachine.data.errors import PosteriorWarning
from tapmachine.likelihood.weight import log_weight
from tapmachine.measurements import state_evolution
from tapmachine.posterior import PosteriorOptions
from tapmachine.posterior.measurements.operators import as_operator

ENGINES = ("gamp", "vamp", "ep")
EDGES = [-0.5, 0.3, 1.0]
one = torch.ones(1, 1, dtype=torch.float64)


def normal_matrix(m, n, seed=0):
    return Tensors(seed).normal(m, n) / n**0.5


def seeded(seed):
    return torch.Generator().manual_seed(seed)


# ----- what one measurement says about z


def likelihoods(noise):
    """P(y|z) by formulas of SciPy, with values of y."""
    ends = [-np.inf, *EDGES, np.inf]
    return {
        "linear": (LinearMeasurements(one, noise), 0.7, lambda y, z: norm.pdf(y, z, noise)),
        "sign": (SignMeasurements(one, noise), -1.0, lambda y, z: norm.cdf(y * z / noise)),
        "quantized": (
            QuantizedMeasurements(one, EDGES, noise),
            2.0,
            lambda y, z: norm.cdf(ends[int(y) + 1], z, noise) - norm.cdf(ends[int(y)], z, noise),
        ),
        "magnitude": (MagnitudeMeasurements(one, noise), 0.9, lambda y, z: norm.pdf(y, np.abs(z), noise)),
        "counts": (CountMeasurements(one), 3.0, lambda y, z: np.where(z > 0, poisson.pmf(y, np.maximum(z, 0)), 0.0)),
    }


@pytest.mark.parametrize("kind", ["linear", "sign", "quantized", "magnitude", "counts"])
@pytest.mark.parametrize(("mean", "variance"), [(0.2, 1.0), (-1.5, 0.3), (1.2, 4.0), (0.6, 0.01)])
def test_a_measurement_against_quadrature(kind, mean, variance):
    noise = 0.0 if kind == "counts" else 0.3
    channel, y, likelihood = likelihoods(0.3)[kind]
    found = channel.respond(y * one, Moments(mean * one, variance * one), noise**2 * one)
    reach = 12 * math.sqrt(variance)
    center = max(mean, 0.0) if kind == "counts" else mean

    def moments(z):
        return likelihood(y, z) * norm.pdf(z, mean, math.sqrt(variance)) * np.array([1.0, z, z * z])

    total, first, second = quad_vec(
        moments, mean - reach, center + reach, epsabs=1e-14, epsrel=1e-11, points=[0.0, center, y]
    )[0]
    tolerance = 1e-3 if kind == "counts" else 1e-7
    assert float(found.log_evidence) == pytest.approx(math.log(total), abs=tolerance)
    assert float(found.moments.mean) == pytest.approx(first / total, abs=tolerance)
    assert float(found.moments.variance) == pytest.approx(second / total - (first / total) ** 2, abs=tolerance)


def test_measurements_far_from_what_is_expected_stay_finite():
    for kind, (channel, y, _) in likelihoods(1e-6).items():
        prior = Moments(torch.tensor([[-300.0, 300.0, 0.0]]), torch.tensor([[1e-4, 1.0, 1e8]]))
        found = channel.respond(torch.full((1, 3), y), prior, torch.full((1, 1), 1e-12))
        for value in (found.log_evidence, *found.moments):
            assert torch.isfinite(value).all(), kind
        assert (found.moments.variance >= 0).all(), kind


@pytest.mark.parametrize("kind", ["linear", "sign", "quantized", "magnitude", "counts"])
def test_draws_have_the_distribution_of_the_measurement(kind):
    """The mean of the evidence over y is 1: draws at a known z are as likely as `respond` tells for a narrow prior."""
    channel, _, likelihood = likelihoods(0.3)[kind]
    z, count = 0.8, 20_000
    channel.operator = as_operator(z * one)
    y = channel.corrupt(torch.ones(count, 1).double(), seeded(0)).squeeze(1).numpy()
    if kind in ("sign", "quantized", "counts"):
        for value in np.unique(y):
            expected = float(likelihood(value, np.array(z)))
            assert abs((y == value).mean() - expected) < 6 * math.sqrt(expected * (1 - expected) / count) + 1e-9
    else:
        assert y.mean() == pytest.approx(0.8, abs=6 * 0.3 / math.sqrt(count))
        assert y.std() == pytest.approx(0.3, rel=0.05)


# ----- operators


def test_matrices_in_all_forms_are_the_same_operator():
    dense = torch.where(Tensors(1).uniform(0, 1, 5, 8) < 0.4, Tensors(0).normal(5, 8), 0.0)
    by_functions = FunctionOperator(lambda x: x @ dense.T, lambda z: z @ dense, (5, 8))
    forms = [dense, dense.numpy(), dense.to_sparse(), scipy.sparse.csr_matrix(dense.numpy()), by_functions]
    x, z, kept = Tensors(2).normal(3, 8), Tensors(3).normal(3, 5), torch.tensor([0, 3])
    for form in forms:
        operator = as_operator(form)
        torch.testing.assert_close(operator.forward(x), x @ dense.T)
        torch.testing.assert_close(operator.adjoint(z), z @ dense)
        torch.testing.assert_close(operator.rows(kept).forward(x), x @ dense[kept].T)
        torch.testing.assert_close(operator.rows(kept).adjoint(z[:, :2]), z[:, :2] @ dense[kept])
        if operator is not by_functions:
            torch.testing.assert_close(operator.forward_squares(x), x @ (dense**2).T)
            torch.testing.assert_close(operator.adjoint_squares(z), z @ dense**2)
            values, right = operator.singular_values()
            torch.testing.assert_close(right * values**2 @ right.T, dense.T @ dense)
    assert by_functions.mean_square(x) == pytest.approx(float((dense**2).mean()), rel=0.5)


def test_functions_that_do_not_belong_together_are_refused():
    F = normal_matrix(4, 6)
    with pytest.raises(ValueError, match="not the transpose"):
        FunctionOperator(lambda x: x @ F.T, lambda z: 2 * z @ F, (4, 6)).mean_square(F)
    with pytest.raises(ValueError, match=r"forward maps shape \(32, 6\) to \(32, 6\); expected \(32, 4\)"):
        FunctionOperator(lambda x: x, lambda z: z @ F, (4, 6)).mean_square(F)


# ----- exact posteriors


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("m", [15, 60])
def test_normal_signals_have_their_exact_posterior(engine, m):
    """With Gaussian units without couplings the posterior is normal: means, variances and evidence are known."""
    n, noise = 40, 0.2
    mean, precision = Tensors(5).normal(n), Tensors(6).uniform(0.5, 3, n)
    units = Gaussian(n, field=mean * precision, precision=precision).double()
    F, bias = normal_matrix(m, n), Tensors(7).normal(m)
    channel = LinearMeasurements(F, noise, bias)
    x = units.sample(Tilt(torch.zeros(3, n).double(), 0.0), seeded(0))
    y = channel.corrupt(x, seeded(1), units)
    covariance = torch.linalg.inv(torch.diag(precision) + F.T @ F / noise**2)
    exact = ((y - bias) @ F / noise**2 + mean * precision) @ covariance
    of_y = F @ torch.diag(1 / precision) @ F.T + noise**2 * torch.eye(m).double()
    evidence = torch.distributions.MultivariateNormal(F @ mean + bias, of_y).log_prob(y)
    machine = rbm(units, Binary(1).double(), torch.zeros(n, 1).double())
    found = recover(machine, y, channel, engine=engine, options=PosteriorOptions(tol=1e-18, max_iterations=2000))
    assert found.converged.all()
    if engine == "ep":
        torch.testing.assert_close(found.mean, exact, rtol=0, atol=1e-6)
        torch.testing.assert_close(found.variance, covariance.diagonal().expand(3, n), rtol=1e-5, atol=1e-8)
        torch.testing.assert_close(-found.free_energy, evidence, rtol=1e-5, atol=1e-5)
    else:  # variances and evidence of these are right for large matrices only
        torch.testing.assert_close(found.mean, exact, rtol=0, atol=1e-4)
        torch.testing.assert_close(found.variance.mean(), covariance.diagonal().mean(), rtol=0.2, atol=0)
        assert ((-found.free_energy - evidence).abs() / m < 0.1).all()


@torch.no_grad()
def enumerated(machine, y, log_likelihood):
    """Posterior means and log-evidence by summing over all visible states; the hidden units are summed over exactly."""
    units = machine.layers[0]
    n_states = units.n_states()
    digits = torch.cartesian_prod(*[torch.arange(count) for count in n_states])
    states = units.decode(digits)
    log_joint = units.log_prior(states, validate=False).sum(-1)
    hidden = machine.layers[1]
    field = states.flatten(1) @ machine.weights[0]
    log_joint = log_joint + hidden.log_partition(Tilt(field, 0.0)).sum(-1)
    log_joint = log_joint + log_likelihood(y, states.flatten(1))  # (K, S)
    weights = log_joint.softmax(1)
    return torch.einsum("ks,s...->k...", weights, states), log_joint.logsumexp(1)


def small_machine(kind="binary", strength=0.7):
    random = Tensors(11)
    units = {
        "binary": lambda: Binary(10, field=0.5 * random.normal(10)),
        "spin": lambda: Spin(10, field=0.3 * random.normal(10)),
        "categorical": lambda: Categorical(5, 3, field=0.5 * random.normal(5, 3)),
    }[kind]().double()
    size = int(np.prod(units.state_shape))
    return rbm(units, Binary(4).double(), strength * random.normal(size, 4))


@pytest.mark.parametrize("kind", ["binary", "spin", "categorical"])
@pytest.mark.parametrize("engine", ENGINES)
def test_small_machines_against_enumeration(kind, engine):
    machine = small_machine(kind, {"binary": 0.7, "spin": 0.25, "categorical": 0.5}[kind])
    size = int(np.prod(machine.layers[0].state_shape))
    span = 2.0 if kind == "spin" else 1.0  # of the states
    F, noise = normal_matrix(6, size, seed=2), 0.4 * span
    channel = LinearMeasurements(F, noise)
    x = machine.layers[0].sample(Tilt(torch.zeros(40, *machine.layers[0].state_shape).double(), 0.0), seeded(3))
    y = channel.corrupt(x.argmax(-1) if kind == "categorical" else x, seeded(4), machine.layers[0])

    def log_likelihood(y, states):
        return torch.distributions.Normal(states @ F.T, noise).log_prob(y.unsqueeze(1)).sum(-1)

    means, log_evidence = enumerated(machine, y, log_likelihood)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PosteriorWarning)  # of gamp, which is for large matrices
        found = recover(machine, y, channel, engine=engine)
    assert found.converged.float().mean() > (0.4 if engine == "gamp" else 0.9)
    off = (found.mean - means)[found.converged]
    assert float(off.square().mean().sqrt()) < (0.07 if kind == "categorical" else 0.05) * span
    assert float((-found.free_energy - log_evidence)[found.converged].abs().mean()) < 0.25


def _log_between(low, high, z, noise):
    normal = torch.distributions.Normal(z, noise)
    return (normal.cdf(high) - normal.cdf(low)).clamp(min=1e-300).log()


ENDS = torch.tensor([-1e6, *EDGES, 1e6]).double()
LOG_LIKELIHOODS = {  # ln P(y|z), by torch
    "sign": lambda y, z, noise: torch.special.log_ndtr(y * z / noise),
    "magnitude": lambda y, z, noise: torch.distributions.Normal(z.abs(), noise).log_prob(y),
    "quantized": lambda y, z, noise: _log_between(ENDS[y.long()], ENDS[y.long() + 1], z, noise),
    "counts": lambda y, z, noise: torch.distributions.Poisson(z).log_prob(y),
}


@pytest.mark.parametrize("kind", ["sign", "magnitude", "quantized", "counts"])
def test_other_kinds_of_measurements_against_enumeration(kind):
    machine = small_machine()
    F, noise = normal_matrix(12, 10, seed=2), 0.3
    channel = {
        "sign": lambda: SignMeasurements(F, noise, bias=0.2),
        "magnitude": lambda: MagnitudeMeasurements(F, noise, bias=0.8),
        "quantized": lambda: QuantizedMeasurements(F, EDGES, noise),
        "counts": lambda: CountMeasurements(5 * F.abs(), bias=0.5),
    }[kind]()
    x = machine.layers[0].sample(Tilt(torch.zeros(30, 10).double(), 0.0), seeded(3))
    y = channel.corrupt(x, seeded(4), machine.layers[0])
    log_likelihood = LOG_LIKELIHOODS[kind]
    means, _ = enumerated(
        machine,
        y,
        lambda y, states: log_likelihood(y.unsqueeze(1), channel.operator.forward(states) + channel.bias, noise).sum(
            -1
        ),
    )
    found = recover(machine, y, channel)
    off = (found.mean - means)[found.converged]
    assert found.converged.float().mean() > 0.9
    assert float(off.square().mean().sqrt()) < (
        0.1 if kind == "magnitude" else 0.05
    )  # two signs, of which one is right


def test_machines_of_tables_have_exact_posteriors():
    """A machine of a table is a mixture of Gaussians; its posterior is held against a grid over all states."""
    hidden = SpikeSlab(2, active_probability=torch.tensor(0.4)).double()
    machine = rbm(Gaussian(2).double(), hidden, torch.tensor([[0.7, 0.2], [-0.3, 0.5]]).double())
    F, noise, bias = torch.tensor([[0.8, -0.5]]).double(), 0.3, 0.1
    y = torch.tensor([[1.3], [-0.4]]).double()
    found = recover(machine, y, LinearMeasurements(F, noise, bias))
    axis = torch.linspace(-15, 15, 1201, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    with torch.no_grad():
        log_joint = (
            log_weight(machine, grid)
            + torch.distributions.Normal(grid @ F.T + bias, noise).log_prob(y.view(2, 1, 1))[..., 0]
        )
    weights = log_joint.softmax(1)
    means = weights @ grid
    torch.testing.assert_close(found.mean, means, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.variance, weights @ grid**2 - means**2, rtol=0, atol=1e-5)
    cell = float(axis[1] - axis[0]) ** 2
    torch.testing.assert_close(-found.free_energy, log_joint.logsumexp(1) + math.log(cell), rtol=0, atol=1e-6)
    assert found.converged.all()
    x = machine.layers[0].sample(Tilt(torch.zeros(400, 2).double(), 0.0), seeded(0))
    many = normal_matrix(6, 2)
    drawn = LinearMeasurements(many, noise).corrupt(x, seeded(1), machine.layers[0])
    drawn[0, 3] = torch.nan
    assert recover(machine, drawn, LinearMeasurements(many)).channel.noise == pytest.approx(noise, rel=0.1)


# ----- large systems


@pytest.mark.parametrize(
    ("engine", "kind", "count"),
    [("gamp", "bits", 20), ("vamp", "bits", 20), pytest.param("vamp", "real", 2, marks=pytest.mark.slow)],
)
def test_the_error_is_that_of_state_evolution(engine, kind, count):
    """Sparse signals of 1,000 independent components."""
    n, noise, ratio = 1000, 0.1, 0.3
    units = Binary(n, field=torch.full((n,), -1.5))
    if kind == "real":
        units = TruncatedGaussBernoulli(n, lower=-4.0, upper=4.0, active_probability=torch.tensor(0.2))
    units = units.double()
    machine = rbm(units, Binary(1).double(), torch.zeros(n, 1).double())
    x = units.sample(Tilt(torch.zeros(count, n).double(), 0.0), seeded(0))
    channel = LinearMeasurements(normal_matrix(int(ratio * n), n, seed=1), noise)
    found = recover(
        machine, channel.corrupt(x, seeded(2), units), channel, engine=engine, options=PosteriorOptions(tol=1e-6)
    )
    expected = state_evolution(units, ratio, noise).mean_squared_error
    tolerance = 0.03 if kind == "bits" else 0.08  # fewer signals vary more
    assert float((found.mean - x).square().mean()) == pytest.approx(expected, rel=tolerance)
    assert float(found.variance.mean()) == pytest.approx(expected, rel=tolerance)


def test_state_evolution_of_normal_signals():
    """The fixed point of E = 1/(1 + A) with A = α/(σ² + E) solves a quadratic equation."""
    ratio, noise = 0.6, 0.3
    b = noise**2 + ratio - 1
    expected = (-b + math.sqrt(b * b + 4 * noise**2)) / 2
    assert state_evolution(Gaussian(100).double(), ratio, noise).mean_squared_error == pytest.approx(expected, rel=1e-4)
    with pytest.raises(ValueError, match="ratio is 0"):
        state_evolution(Gaussian(3), 0.0, 0.1)


@pytest.mark.parametrize("engine", ENGINES)
def test_noise_is_estimated(engine):
    n, noise = 200, 0.3
    units = Binary(n, field=-1.5 * torch.ones(n)).double()
    machine = rbm(units, Binary(1).double(), torch.zeros(n, 1).double())
    x = units.sample(Tilt(torch.zeros(10, n).double(), 0.0), seeded(0))
    F = normal_matrix(150, n)
    y = LinearMeasurements(F, noise).corrupt(x, seeded(1), units)
    found = recover(machine, y, LinearMeasurements(F), engine=engine)
    assert found.channel.noise == pytest.approx(noise, rel=0.1)
    assert LinearMeasurements(F).noise is None  # the user's channel is not changed


# ----- properties


@pytest.mark.parametrize("engine", ENGINES)
def test_a_missing_measurement_is_as_if_it_had_not_been_made(engine):
    machine = small_machine()
    F, bias = normal_matrix(9, 10), Tensors(8).normal(9)
    y = LinearMeasurements(F, 0.2, bias).corrupt(torch.eye(10)[:4].double(), seeded(0))
    gappy = y.clone()
    gappy[0, 2] = gappy[1, 2] = gappy[3, 5] = torch.nan
    warnings.simplefilter("ignore", PosteriorWarning)  # of gamp, which is for large matrices
    found = recover(machine, gappy, LinearMeasurements(F, 0.2, bias), engine=engine)
    for row, column in ((0, 2), (1, 2), (2, None), (3, 5)):
        kept = [index for index in range(9) if index != column]
        alone = recover(machine, y[row : row + 1, kept], LinearMeasurements(F[kept], 0.2, bias[kept]), engine=engine)
        torch.testing.assert_close(found.mean[row], alone.mean[0], rtol=0, atol=2e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_signals_do_not_depend_on_each_other(engine):
    machine = small_machine()
    channel = LinearMeasurements(normal_matrix(6, 10), 0.3)
    y = channel.corrupt(torch.eye(10).double(), seeded(0))
    together = recover(machine, y, channel, engine=engine)
    again = recover(machine, y, channel, engine=engine)
    assert torch.equal(together.mean, again.mean)
    alone = torch.cat([recover(machine, row.unsqueeze(0), channel, engine=engine).mean for row in y])
    torch.testing.assert_close(together.mean, alone, rtol=0, atol=2e-4)


def memories():
    """A machine that remembers two patterns and their negatives well."""
    patterns = torch.where(Tensors(0).normal(2, 60) > 0, 1.0, -1.0).double()
    return rbm(Spin(60).double(), Spin(2).double(), 0.35 * patterns.T), patterns


def test_several_starts_are_weighted_by_their_evidence():
    """Few measurements leave several patterns possible; a start from the right one has the lowest free energy."""
    machine, patterns = memories()
    channel = LinearMeasurements(normal_matrix(4, 60), 0.05)
    y = channel.corrupt(patterns, seeded(1), machine.layers[0])
    wrong = -patterns
    both = recover(machine, y, channel, starts=[wrong, patterns])
    right = recover(machine, y, channel, starts=[patterns])
    other = recover(machine, y, channel, starts=[wrong])
    assert (both.free_energy <= torch.minimum(right.free_energy, other.free_energy) + 1e-6).all()
    assert torch.equal(both.states, patterns)
    examples = torch.cat((patterns, wrong, Tensors(3).normal(20, 60).sign()))
    assert torch.equal(
        recover(machine, y, channel, data=examples, options=PosteriorOptions(n_neighbors=1)).states, patterns
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_machines_of_all_shapes_and_units(dtype):
    channel = LinearMeasurements(normal_matrix(8, 12).to(dtype), 0.1)
    random = Tensors(4)

    def weights(*shape):
        return (0.3 * random.normal(*shape)).float()

    symmetric = weights(12, 12).triu(1) / 6
    symmetric = symmetric + symmetric.T
    machines = {
        "deep": dbm([Binary(12), Binary(4), Binary(3)], [weights(12, 4), weights(4, 3)]),
        "interval": rbm(TruncatedGaussian(12), Binary(4), weights(12, 4)),
        "sparse": rbm(TruncatedGaussBernoulli(12), Binary(4), weights(12, 4)),
        "pairwise": pairwise(Spin(12), symmetric),
        "real": rbm(Gaussian(12), Binary(4), weights(12, 4)),
    }
    for name, machine in machines.items():
        machine = machine.to(dtype)
        visible = machine.layers[0]
        x = visible.sample(Tilt(torch.zeros(6, 12, dtype=dtype), 0.0), seeded(1))
        y = channel.corrupt(x, seeded(2), visible)
        found = recover(machine, y, channel)
        assert found.mean.dtype == dtype, name
        assert found.converged.all(), name
        blind = x.double().var() if visible.support.n_states is None else (x - x.mean()).square().mean()
        assert float((found.mean - x).square().mean()) < float(blind), name
        assert (found.variance >= 0).all(), name
        assert torch.isfinite(found.free_energy).all(), name


def test_a_map_given_by_functions_recovers_as_its_matrix_does():
    """A blur of 8×8 images, seen at every other pixel; linear systems by conjugate gradients."""
    kernel = torch.tensor([0.25, 0.5, 0.25]).double()
    kernel = (kernel[:, None] * kernel).view(1, 1, 3, 3)

    def forward(x):
        return torch.nn.functional.conv2d(x.view(-1, 1, 8, 8), kernel, padding=1).flatten(1)[:, ::2]

    def adjoint(z):
        full = torch.stack((z, torch.zeros_like(z)), -1).view(-1, 1, 8, 8)
        return torch.nn.functional.conv_transpose2d(full, kernel, padding=1).flatten(1)

    matrix = forward(torch.eye(64).double()).T
    machine = rbm(Gaussian(64).double(), Binary(3).double(), 0.2 * Tensors(0).normal(64, 3))
    x = Tensors(1).normal(5, 64)
    by_matrix = LinearMeasurements(matrix, 0.1)
    y = by_matrix.corrupt(x, seeded(0), machine.layers[0])
    expected = recover(machine, y, by_matrix, engine="vamp")
    found = recover(machine, y, LinearMeasurements(FunctionOperator(forward, adjoint, (32, 64)), 0.1))
    torch.testing.assert_close(found.mean, expected.mean, rtol=0, atol=0.05)
    exact = y @ torch.linalg.inv(matrix @ matrix.T + 0.01 * torch.eye(32).double()) @ matrix  # without couplings
    assert float((found.mean - exact).square().mean()) < 0.1


def test_the_engine_follows_from_the_matrix():
    from tapmachine.posterior.measurements.recovery import fitting_engine

    assert fitting_engine(LinearMeasurements(normal_matrix(50, 100))) == "vamp"
    assert fitting_engine(LinearMeasurements(normal_matrix(10, 100))) == "ep"
    assert fitting_engine(LinearMeasurements(torch.eye(100)[:50])) == "ep"
    assert fitting_engine(LinearMeasurements(normal_matrix(50, 100) * (torch.arange(100) > 0))) == "ep"
    assert fitting_engine(SignMeasurements(normal_matrix(50, 100))) == "vamp"
    assert fitting_engine(LinearMeasurements(FunctionOperator(lambda x: x, lambda z: z, (100, 100)))) == "vamp"


def test_measurements_are_no_channel():
    machine = small_machine()
    channel = LinearMeasurements(normal_matrix(6, 10), 0.3)
    assert not isinstance(channel, Channel)
    with pytest.raises(ValueError, match="use recover for measurements"):
        denoise(machine, torch.eye(10).double(), channel)


def test_identity_measurements_are_gaussian_noise():
    machine = small_machine()
    y = GaussianNoise(0.6).corrupt(torch.eye(10).double(), seeded(0))
    direct = denoise(machine, y, GaussianNoise(0.6))
    found = recover(machine, y, LinearMeasurements(torch.eye(10).double(), 0.6))
    torch.testing.assert_close(found.mean, direct.mean, rtol=0, atol=1e-3)
    torch.testing.assert_close(found.free_energy, direct.free_energy, rtol=0, atol=1e-2)


# ----- bad input


def test_unmeasured_components_keep_their_prior():
    units = Binary(6, field=torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0, -2.0])).double()
    machine = rbm(units, Binary(1).double(), torch.zeros(6, 1).double())
    F = normal_matrix(4, 6)
    F[:, 2] = 0.0
    F[3] = F[0] + F[1]  # rank-deficient, too
    for engine in ("gamp", "ep", None):
        y = LinearMeasurements(F, 0.1).corrupt(torch.ones(2, 6).double(), seeded(0))
        found = recover(machine, y, LinearMeasurements(F, 0.1), engine=engine)
        assert float(found.mean[0, 2]) == pytest.approx(1 / (1 + math.exp(-2.0)), abs=1e-4)
        assert torch.isfinite(found.mean).all()


def test_bad_input_is_one_sentence():
    machine, F = small_machine(), normal_matrix(4, 10)
    y = torch.zeros(2, 4).double()
    channel = LinearMeasurements(F, 0.1)
    cases = [
        (lambda: recover(machine, y[:, :3], channel), r"y has shape \(2, 3\); expected \(n_signals, 4\)"),
        (lambda: recover(machine, y[0], channel), r"y has shape \(4,\)"),
        (lambda: recover(machine, y, LinearMeasurements(F[:, :7], 0.1)), r"visible units have 10 components"),
        (lambda: recover(machine, y + torch.inf, channel), r"y\[0, 0\] is infinite"),
        (lambda: recover(machine, y, SignMeasurements(F)), r"y contains 0; expected −1, \+1 or NaN"),
        (
            lambda: recover(machine, y + 0.5, CountMeasurements(F.abs())),
            r"y contains 0.5; expected a non-negative integer",
        ),
        (
            lambda: recover(machine, y + 9, QuantizedMeasurements(F, EDGES)),
            r"y contains 9; expected an integer from 0 to 3",
        ),
        (lambda: recover(machine, y, LinearMeasurements(0 * F, 0.1)), "all entries of matrix are 0"),
        (lambda: recover(machine, y * torch.nan, channel), "all NaN"),
        (lambda: recover(machine, y, GaussianNoise(0.1)), "expected measurements such as"),
        (lambda: recover(machine, y, channel, engine="amp"), "expected one of gamp, vamp, ep"),
        (lambda: recover(machine, y, channel, starts=[]), "starts is empty"),
        (lambda: recover(machine, y, channel, starts=[torch.eye(10)[:1]], data=torch.eye(10)), "data and starts"),
        (lambda: PosteriorOptions(temperature=0.0), "temperature is 0.0"),
        (lambda: recover(clamp(machine, torch.ones(10).double()), y, channel), "clamped"),
        (lambda: LinearMeasurements(torch.full((2, 3), torch.nan)), r"matrix\[0, 0\] is nan"),
        (lambda: LinearMeasurements(torch.zeros(3)), r"matrix has shape \(3,\)"),
        (lambda: LinearMeasurements(torch.zeros(2, 3, dtype=torch.complex64)), "real and imaginary parts"),
        (lambda: LinearMeasurements("F"), "matrix is a str"),
        (lambda: LinearMeasurements(F, noise=-1.0), "noise is -1.0"),
        (lambda: LinearMeasurements(F, bias=torch.zeros(3)), r"bias has shape \(3,\)"),
        (lambda: QuantizedMeasurements(F, [1.0, 0.0]), "increasing"),
        (lambda: CountMeasurements(F, bias=-1.0), "bias is -1.0"),
        (lambda: CountMeasurements(-F.abs()).corrupt(torch.ones(1, 10).double()), "is negative"),
        (lambda: SignMeasurements(F, noise=None), "cannot be estimated"),
        (lambda: recover(machine, np.array([["a"] * 4]), channel), "y"),
        (lambda: recover(machine, y.tolist(), channel), "y is a list"),
        (lambda: recover(machine, y[:0], channel), r"y has shape \(0, 4\)"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()


def test_signals_that_do_not_converge_are_reported():
    machine = small_machine()
    channel = LinearMeasurements(normal_matrix(6, 10), 0.1)
    y = channel.corrupt(torch.eye(10).double(), seeded(0))
    with pytest.warns(PosteriorWarning, match="10 of 10 rows have no converged solution"):
        found = recover(machine, y, channel, options=PosteriorOptions(max_iterations=1, tol=1e-30))
    assert not found.converged.any()
    assert torch.isfinite(found.mean).all()


def test_measurements_without_noise():
    """Enough of them determine the signal."""
    machine = rbm(Binary(20), Binary(3))
    x = (Tensors(5).normal(4, 20) > 0).float()
    F = normal_matrix(16, 20).float()
    found = recover(machine, x @ F.T, LinearMeasurements(F, noise=0.0))
    assert torch.equal(found.states, x)


@pytest.mark.parametrize(("engine", "least"), [("vamp", 0.8), ("ep", 0.5)])
def test_counts_are_recovered_exactly_if_they_are_high(engine, least):
    """High counts are narrow around a mean far from what is expected, which the first estimates must not follow."""
    rates, F = torch.full((40,), -1.5), Tensors(3).normal(30, 40).abs()
    machine = rbm(Binary(40, field=rates), Binary(2), weights=torch.zeros(40, 2))
    x = (torch.rand(20, 40, generator=seeded(0)) < rates.sigmoid()).float()
    for gain, share in ((300, 0.9), (1e4, least)):
        channel = CountMeasurements(gain * F)
        states = recover(machine, channel.corrupt(x), channel, engine=engine).states
        assert (states == x).all(1).float().mean() >= share - 0.1
