"""Machines as priors: channels, denoising, imputation, anomaly scores, baselines. Exact answers are enumerated."""

import math
import sys
import warnings
from itertools import pairwise as consecutive
from itertools import permutations

import numpy as np
import pytest
import torch
from machine_cases import all_states
from run_cases import command
from sklearn.metrics import matthews_corrcoef
from sklearn.neighbors import NearestNeighbors
from typer.testing import CliRunner

from tapmachine import (
    RBM,
    Binary,
    BinarySymmetric,
    Categorical,
    Custom,
    CustomNoise,
    Erasure,
    Gaussian,
    GaussianNoise,
    Missing,
    Moments,
    NaiveMeanField,
    PoissonNoise,
    Spin,
    Tilt,
    TruncatedGaussBernoulli,
    TruncatedGaussian,
    clamp,
    dbm,
    denoise,
    exact_log_partition,
    gibbs,
    impute,
    pairwise,
    pseudo_log_likelihood,
    rbm,
    solve,
)
from tapmachine.apps.cli import app
from tapmachine.beliefs import Status
from tapmachine.data.errors import PosteriorWarning
from tapmachine.likelihood.weight import log_weight
from tapmachine.posterior import (
    PosteriorOptions,
    anomaly_score,
    conditional_surprise,
    estimate_channel,
    gibbs_posterior,
)
from tapmachine.posterior.baselines import nearest_neighbors, pointwise_estimate
from tapmachine.units.reweighted import Reweighted

NAN = float("nan")


def mcc(truth, estimate):
    return matthews_corrcoef(truth.flatten() > 0.5, estimate.flatten() > 0.5)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random_machine(seed, n_visible=8, n_hidden=4, scale=0.5, units=Binary):
    weights = scale * torch.randn(n_visible, n_hidden, dtype=torch.float64, generator=generator(seed))
    fields = torch.randn(n_visible, dtype=torch.float64, generator=generator(seed + 1))
    return rbm(units(n_visible, field=fields), Binary(n_hidden).double(), weights=weights)


def exact_posterior(machine, log_likelihood):
    """Means and ln of the evidence times Z, from ln P(y|x) of every row and state: (K, states)."""
    states = all_states(machine.layers[0])
    joint = log_weight(machine, states) + log_likelihood(states)
    share = joint.softmax(1)
    return torch.einsum("ks,s...->k...", share, states), joint.logsumexp(1)


def flip_likelihood(y, p):
    y = y.double()

    def of(states):
        terms = math.log(1 - p) + (states != y.unsqueeze(1)).double() * math.log(p / (1 - p))
        return terms.masked_fill(torch.isnan(y).unsqueeze(1), 0.0).sum(-1)

    return of


# ----- channels: every one against its own likelihood, written down again here


def normal(y, x, sigma=0.4):
    return torch.distributions.Normal(x, sigma).log_prob(y)


def poisson(y, x):
    return torch.distributions.Poisson(5 * x + 0.5).log_prob(y)


def laplace(y, x):
    return -2 * (y - x).abs()


def flip(y, x):
    return math.log(0.2) + (y == x).double() * math.log(4)


# A new channel is one line: the channel, units it is for, and ln P(y|x).
CHANNELS = {
    "flips of bits": (BinarySymmetric(0.2), Binary(3, field=0.7), flip),
    "flips of spins": (BinarySymmetric(0.2), Spin(3, field=0.3), flip),
    "noise on bits": (GaussianNoise(0.4), Binary(3, field=-0.5), normal),
    "noise on spins": (GaussianNoise(0.4), Spin(3, field=-0.5), normal),
    "noise": (GaussianNoise(0.4), TruncatedGaussian(3, field=1.0, precision=2.0), normal),
    "noise on sparse values": (GaussianNoise(0.4), TruncatedGaussBernoulli(3, field=1.0), normal),
    "counts": (PoissonNoise(5.0, 0.5), TruncatedGaussian(3, field=1.0, precision=2.0), poisson),
    "counts of bits": (PoissonNoise(5.0, 0.5), Binary(3), poisson),
    "counts of sparse values": (PoissonNoise(5.0, 0.5), TruncatedGaussBernoulli(3), poisson),
    "any": (CustomNoise(laplace), TruncatedGaussian(3, field=1.0, precision=2.0), laplace),
    "any on spins": (CustomNoise(laplace), Spin(3), laplace),
    "any on levels": (CustomNoise(laplace), Custom(3, lambda x: -x, values=[0.0, 0.5, 2.0]), laplace),
}


def integrated(units, y, log_likelihood, tilt):
    """ln ∫ P(x) L(y|x) exp(Bx − ½Ax²), mean and variance, by brute force."""
    if units.n_states() is not None:
        x = units.decode(torch.arange(units.n_states()[0]).unsqueeze(-1).expand(-1, units.n))
        mass = units.log_prior(x)
    else:
        grid = torch.linspace(0, 1, 200_002, dtype=torch.float64)[1:-1]
        x = grid.unsqueeze(-1).expand(-1, units.n)
        mass = units.log_prior(x) + math.log(1 / len(grid))
        if units.atoms() is not None:
            x = torch.cat((torch.zeros(1, units.n, dtype=torch.float64), x))
            mass = torch.cat((units.log_prior(x[:1]), mass))
    value = mass + tilt.field * x - 0.5 * tilt.precision * x**2
    value = value + torch.where(torch.isnan(y), 0.0, log_likelihood(y.nan_to_num(1.0), x))
    share = value.softmax(0)
    mean = (share * x).sum(0)
    return value.logsumexp(0), mean, (share * (x - mean) ** 2).sum(0)


@pytest.mark.parametrize("y", [torch.tensor([0, 3, 1]), torch.tensor([0.0, 3.0, 1.0], dtype=torch.float64)])
def test_evidence_does_not_decide_what_numbers_units_are_in(y):
    assert Reweighted(Binary(3), poisson, y).dtype == torch.float32


@pytest.mark.parametrize("name", CHANNELS)
def test_units_conditioned_by_a_channel(name):
    channel, units, log_likelihood = CHANNELS[name]
    units = units.double()
    with torch.no_grad():
        x = units.sample(Tilt(torch.zeros(40, 3, dtype=torch.float64), 0.0), generator())
        y = x.round() if isinstance(channel, CustomNoise) else channel.corrupt(x, generator(), units)
        assert y.shape == x.shape
        y[::3, 1] = NAN
        observed, log_scale = channel.observe_units(units, y)
        tilt = Tilt(torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64), torch.tensor([-0.5, 0.3, 1.0]).double())
        rows = torch.tensor([0, 1, 2, 5])
        own = observed.rows(rows)
        log_partition = own.log_partition(Tilt(*(z.expand(4, 3) for z in tilt))).sum(-1) + log_scale[rows]
        moments = own.moments(Tilt(*(z.expand(4, 3) for z in tilt)))
    for number, row in enumerate(rows):
        log, mean, variance = (z.detach() for z in integrated(units, y[row], log_likelihood, tilt))
        torch.testing.assert_close(log_partition[number], log.sum(), atol=2e-4, rtol=0)
        torch.testing.assert_close(moments.mean[number], mean, atol=1e-5, rtol=0)
        torch.testing.assert_close(moments.variance[number], variance, atol=1e-5, rtol=0)


def test_flips_of_categories():
    units = Categorical(2, 3).double()
    told = BinarySymmetric(0.3).evidence(torch.tensor([[2.0, NAN]]), units)
    torch.testing.assert_close(told.field[0, 0].exp() * told.log_scale.exp(), torch.tensor([0.15, 0.15, 0.7]).double())
    assert not told.field[0, 1].any()
    x = torch.randint(3, (20_000, 2), generator=generator()).double()
    y = BinarySymmetric(0.3).corrupt(x, generator(1), units)
    changed = y != x
    # more than ten standard errors
    assert abs(float(changed.double().mean()) - 0.3) < 0.03
    assert abs(float(((y - x) % 3 == 1)[changed].double().mean()) - 0.5) < 0.05


def test_what_channels_do_to_data():
    """Shares and means of 20,000 values within seven standard errors or more."""
    x = (torch.rand(400, 50, generator=generator()) < 0.3).float()
    flipped = BinarySymmetric(0.2).corrupt(x)
    assert abs(float((flipped != x).float().mean()) - 0.2) < 0.02
    assert torch.equal(flipped, BinarySymmetric(0.2).corrupt(x))  # the same every time
    assert torch.equal(BinarySymmetric(0.0).corrupt(x), x)
    spins = 2 * x - 1
    assert set(BinarySymmetric(0.5).corrupt(spins, units=Spin(50)).unique().tolist()) == {-1.0, 1.0}
    erased = Erasure(0.3).corrupt(x)
    assert abs(float(torch.isnan(erased).float().mean()) - 0.3) < 0.025
    assert torch.equal(erased.nan_to_num(0.0), torch.where(torch.isnan(erased), 0.0, x))
    noisy = GaussianNoise(0.5).corrupt(x)
    assert abs(float((noisy - x).std()) - 0.5) < 0.02
    mask = torch.arange(50) % 2 == 0
    assert torch.equal(torch.isnan(Missing(mask).corrupt(x)), mask.expand(400, 50))
    counts = PoissonNoise(4.0, 1.0).corrupt(x)
    assert abs(float(counts[x == 1].mean()) - 5) < 0.25


# ----- the posterior, against enumeration


@pytest.mark.long
@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_posterior_means_are_close_to_exact_ones(count):
    """Machines with 12 visible units, weak to moderate weights; TAP is off by 0.001, naive mean field by 0.01."""
    errors, naive_errors = [], []
    for seed in range(count):
        machine = random_machine(seed, 12, 6, scale=0.1 + 0.6 * seed / count)
        p = (0.05, 0.1, 0.2, 0.3)[seed % 4]
        x = gibbs(machine, torch.zeros(5, 12, dtype=torch.float64), 50, generator(seed))[0]
        y = BinarySymmetric(p).corrupt(x, generator(seed))
        mean, _ = exact_posterior(machine, flip_likelihood(y, p))
        for found, scheme in ((errors, None), (naive_errors, NaiveMeanField())):
            posterior = denoise(machine, y, BinarySymmetric(p), scheme=scheme)
            assert posterior.converged.all()
            found.append((posterior.mean - mean).square().mean())
    tap, naive = (float(torch.stack(z).mean().sqrt()) for z in (errors, naive_errors))
    assert tap < 0.02
    assert tap < naive / 3


def test_the_evidence_is_close_to_the_exact_one():
    machine = random_machine(3, scale=0.4)
    y = BinarySymmetric(0.1).corrupt(gibbs(machine, torch.zeros(6, 8).double(), 50, generator())[0])
    for p in (0.02, 0.1, 0.4):
        _, evidence = exact_posterior(machine, flip_likelihood(y, p))
        found = -denoise(machine, y, BinarySymmetric(p)).free_energy
        torch.testing.assert_close(found, evidence, atol=0.01, rtol=0)


@pytest.mark.long
def test_the_evidence_ranks_noise_as_the_exact_one_does():
    """Where the exact one of 60 rows differs by more than a nat, less than a sixtieth of one for each."""
    grid = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4)
    for seed in range(4):
        machine = random_machine(seed, 12, 6, scale=0.6)
        p = grid[1 + seed % 4]
        x = gibbs(machine, torch.zeros(60, 12, dtype=torch.float64), 50, generator(seed))[0]
        y = BinarySymmetric(p).corrupt(x, generator(seed + 1))
        exact = [float(exact_posterior(machine, flip_likelihood(y, q))[1].sum()) for q in grid]
        found = [-float(denoise(machine, y, BinarySymmetric(q)).free_energy.sum()) for q in grid]
        for first, second in permutations(range(len(grid)), 2):
            assert exact[first] < exact[second] + 1 or found[first] > found[second]


def test_without_couplings_and_without_noise_it_is_exact():
    machine = random_machine(0, scale=0.0)
    y = torch.tensor([[1.0, 0, 1, 0, NAN, 1, 0, 1]]).double()
    mean, evidence = exact_posterior(machine, flip_likelihood(y, 0.2))
    posterior = denoise(machine, y, BinarySymmetric(0.2))
    torch.testing.assert_close(posterior.mean, mean, atol=1e-12, rtol=0)
    torch.testing.assert_close(-posterior.free_energy, evidence, atol=1e-10, rtol=0)
    strong = random_machine(0, scale=2.0)
    y = y.nan_to_num(1.0)
    for p in (0.0, 1e-9):
        posterior = denoise(strong, y, BinarySymmetric(p))
        torch.testing.assert_close(posterior.mean, y, atol=1e-4, rtol=0)
    posterior = denoise(strong, y, BinarySymmetric(0.0))
    assert not posterior.variance.any()
    torch.testing.assert_close(-posterior.free_energy, log_weight(strong, y), atol=1e-10, rtol=0)


@pytest.mark.parametrize("units", [Binary, Spin])
@pytest.mark.parametrize("shape", [(8, 4), (6, 4, 3)])
def test_posterior_of_other_machines(units, shape):
    weights = [0.1 * torch.randn(a, b, dtype=torch.float64, generator=generator(a)) for a, b in consecutive(shape)]
    machine = dbm([units(n).double() for n in shape], weights)
    y = (torch.rand(4, shape[0], generator=generator(5)) < 0.5).double()
    y = y if units is Binary else 2 * y - 1
    y[0, 2] = NAN
    posterior = denoise(machine, y, BinarySymmetric(0.2))
    states = [all_states(layer) for layer in machine.layers]
    index = torch.cartesian_prod(*(torch.arange(len(z)) for z in states))
    weight = -machine.energy([z[index[:, number]] for number, z in enumerate(states)])
    joint = weight + flip_likelihood(y, 0.2)(states[0][index[:, 0]])
    # TAP is off by what is of third order in the couplings, here 0.001; naive mean field by 0.01 and more
    torch.testing.assert_close(posterior.mean, joint.softmax(1) @ states[0][index[:, 0]], atol=5e-3, rtol=0)
    torch.testing.assert_close(-posterior.free_energy, joint.logsumexp(1).detach(), atol=5e-3, rtol=0)
    assert posterior.moments[-1].mean.shape == (4, shape[-1])


def test_posterior_of_a_pairwise_machine_and_of_categories():
    couplings = 0.05 * torch.randn(5, 5, dtype=torch.float64, generator=generator())
    magnet = pairwise(Spin(5).double(), (couplings + couplings.T).fill_diagonal_(0))
    y = torch.tensor([[1.0, 1, -1, 1, NAN]]).double()
    states = all_states(magnet.layers[0])
    joint = -magnet.energy(states) + flip_likelihood(y, 0.2)(states)
    torch.testing.assert_close(
        denoise(magnet, y, BinarySymmetric(0.2)).mean, joint.softmax(1).detach() @ states, atol=5e-3, rtol=0
    )
    weights = 0.3 * torch.randn(9, 3, dtype=torch.float64, generator=generator(2))
    potts = rbm(Categorical(3, 3).double(), Binary(3).double(), weights)
    y = torch.tensor([[0.0, 2.0, NAN], [1.0, NAN, NAN]])
    posterior = impute(potts, y)
    digits = torch.cartesian_prod(*[torch.arange(3)] * 3)
    allowed = (torch.isnan(y).unsqueeze(1) | (digits == y.unsqueeze(1))).all(-1)
    joint = log_weight(potts, potts.layers[0].decode(digits)).masked_fill(~allowed, -torch.inf)
    exact = torch.einsum("ks,snq->knq", joint.softmax(1), potts.layers[0].decode(digits))
    torch.testing.assert_close(posterior.mean, exact, atol=5e-3, rtol=0)
    torch.testing.assert_close(-posterior.free_energy, joint.logsumexp(1), atol=5e-3, rtol=0)
    assert torch.equal(posterior.states, exact.argmax(-1))
    noisy = denoise(potts, torch.tensor([[0, 2, 1]]), BinarySymmetric(0.3), data=torch.tensor([[0, 2, 1], [1, 1, 1]]))
    assert noisy.mean.shape == (1, 3, 3)
    torch.testing.assert_close(noisy.mean.sum(-1), torch.ones(1, 3).double())


@pytest.mark.long
def test_real_values():
    """Gaussian units and noise have a Gaussian posterior, which TAP has exactly for the means of this machine."""
    weights = 0.2 * torch.randn(4, 3, dtype=torch.float64, generator=generator())
    machine = rbm(Gaussian(4).double(), Gaussian(3).double(), weights)
    y = torch.randn(2, 4, dtype=torch.float64, generator=generator(1))
    posterior = denoise(machine, y, GaussianNoise(0.5))
    precision = torch.eye(4).double() * (1 + 4) - weights @ weights.T
    torch.testing.assert_close(posterior.mean, (4 * y) @ torch.linalg.inv(precision), atol=1e-6, rtol=0)
    copies = 100  # chains for each row; values of neighboring sweeps are nearly independent, with a variance of 0.2
    sampled = gibbs_posterior(machine, y.repeat(copies, 1), GaussianNoise(0.5), 100)
    mean, variance = (z.unflatten(0, (copies, 2)).mean(0) for z in (sampled.mean, sampled.variance))
    torch.testing.assert_close(mean, posterior.mean, atol=0.05, rtol=0)  # ten standard errors
    torch.testing.assert_close(variance, posterior.variance, atol=0.05, rtol=0)


@pytest.mark.parametrize("visible", [TruncatedGaussian, TruncatedGaussBernoulli])
def test_a_written_likelihood_does_what_the_channel_does(visible):
    weights = 0.5 * torch.randn(4, 3, dtype=torch.float64, generator=generator())
    machine = rbm(visible(4).double(), Binary(3).double(), weights)
    y = torch.tensor([[0.2, 0.9, NAN, 0.0], [0.5, -0.1, 0.4, 1.2]]).double()
    known = denoise(machine, y, GaussianNoise(0.4))
    written = denoise(machine, y, CustomNoise(normal))
    torch.testing.assert_close(written.mean, known.mean, atol=1e-7, rtol=0)
    torch.testing.assert_close(written.variance, known.variance, atol=1e-7, rtol=0)
    torch.testing.assert_close(written.free_energy, known.free_energy, atol=1e-6, rtol=0)


def test_nothing_observed_and_everything_observed():
    machine = random_machine(1, scale=0.5)
    y = torch.stack((torch.full((8,), NAN), torch.ones(8), torch.tensor([1.0] + [NAN] * 7))).double()
    for posterior in (impute(machine, y), denoise(machine, y, Erasure())):
        free = solve(machine)
        torch.testing.assert_close(posterior.mean[0], free.moments[0].mean[0], atol=1e-4, rtol=0)
        torch.testing.assert_close(posterior.free_energy[0], free.free_energy[0], atol=1e-6, rtol=0)
        assert torch.equal(posterior.mean[1], y[1])
        assert not posterior.variance[1].any()
        torch.testing.assert_close(-posterior.free_energy[1], log_weight(machine, y[1:2])[0])
        assert posterior.mean[2, 0] == 1
        assert posterior.converged.all()
    known = 3 * 8 - 15
    shift = denoise(machine, y, Erasure(0.25)).free_energy.sum() - denoise(machine, y, Erasure()).free_energy.sum()
    assert float(shift) == pytest.approx(-(known * math.log(0.75) + 15 * math.log(0.25)))


def two_modes():
    """A machine that is nearly all 1 or all 0, the former exp(2) times as likely."""
    machine = rbm(Binary(10).double(), Binary(1).double(), weights=torch.full((10, 1), 6.0).double())
    with torch.no_grad():
        machine.layers[0].field.fill_(-3.0)
        machine.layers[1].field.fill_(-28.0)
    return machine


def test_solutions_are_weighted_by_their_free_energies():
    machine = two_modes()
    y = torch.full((1, 10), NAN).double()
    mean, evidence = exact_posterior(machine, lambda states: torch.zeros(1, len(states)))
    up, down = torch.ones(1, 10).double(), torch.zeros(1, 10).double()
    both = impute(machine, y, starts=[up, down])
    torch.testing.assert_close(both.mean, mean, atol=0.01, rtol=0)
    torch.testing.assert_close(-both.free_energy, evidence, atol=0.02, rtol=0)
    assert int(both.n_solutions) == 2
    assert float(both.variance.mean()) == pytest.approx(float((mean * (1 - mean)).mean()), abs=0.01)
    # One that was found three times counts once.
    again = impute(machine, y, starts=[up, up, up, down])
    torch.testing.assert_close(again.mean, both.mean, atol=1e-6, rtol=0)
    one = impute(machine, y, starts=[down])
    assert float(one.mean.mean()) < 0.1
    alike = impute(machine, y, starts=[up, down], options=PosteriorOptions(temperature=math.inf))
    torch.testing.assert_close(alike.mean, torch.full((1, 10), 0.5).double(), atol=1e-6, rtol=0)
    warm = impute(machine, y, starts=[up, down], options=PosteriorOptions(temperature=2.0))
    assert 0.5 < float(warm.mean.mean()) < float(both.mean.mean())


def test_examples_lead_to_other_solutions():
    machine = two_modes()
    y = torch.full((1, 10), NAN).double()
    y[0, 0] = 0.0
    data = torch.cat((torch.zeros(5, 10), torch.ones(5, 10))).double()
    with_examples = denoise(machine, y, BinarySymmetric(0.2), data=data)
    assert float(with_examples.mean[0, 1:].mean()) < 0.2
    assert float(denoise(machine, y, BinarySymmetric(0.2), starts=[data[5:6]]).mean[0, 1:].mean()) > 0.8
    y = torch.zeros(1, 10).double()
    weak = denoise(machine, y, BinarySymmetric(0.49), starts=[data[5:6]])
    assert float(weak.mean.mean()) > 0.8


def test_the_default_starts():
    from tapmachine.posterior.denoising import _default_starts
    from tapmachine.posterior.driver import Starts

    units = Binary(3, field=1.0)
    y = torch.tensor([[1.0, 0.0, NAN]])
    ((own,),) = _default_starts(units, y, BinarySymmetric(0.2), Starts(None, None, 3))
    torch.testing.assert_close(own.mean, torch.sigmoid(1 + math.log(4) * torch.tensor([[1.0, -1.0, 0.0]])).detach())
    # Examples are compared with what was seen, and only that: neither with what is masked, nor with counts.
    examples = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    hidden = Missing(torch.tensor([False, True, True]))
    _, (near,) = _default_starts(units, torch.tensor([[1.0, 1.0, 1.0]]), hidden, Starts(examples, None, 1))
    assert torch.equal(near.mean, examples[:1])
    real = TruncatedGaussian(4)
    photos = torch.tensor([[0.1, 0.5, 0.1, 0.5], [1.0, 1.0, 1.0, 1.0]])
    y = torch.tensor([[10.0, 50.0, 10.0, 50.0]])
    _, (near,) = _default_starts(real, y, PoissonNoise(100.0), Starts(photos, None, 1))
    assert torch.equal(near.mean, photos[:1])


def test_the_better_of_two_solutions_is_kept():
    """Above visible units that are all known, hidden layers may still have several solutions."""
    weights = [torch.zeros(2, 20).double(), torch.full((20, 1), 3.0).double()]
    machine = dbm([Binary(2).double(), Binary(20, field=-1.5).double(), Binary(1, field=-29.0).double()], weights)
    x = torch.zeros(1, 2).double()
    up, down = (
        [Moments(z, torch.zeros_like(z)) for z in (x, torch.full((1, 20), v).double(), torch.full((1, 1), v).double())]
        for v in (1.0, 0.0)
    )
    both, reverse = (impute(machine, x, starts=starts) for starts in ([up, down], [down, up]))
    assert int(both.n_solutions) == 2
    torch.testing.assert_close(both.free_energy, reverse.free_energy)
    torch.testing.assert_close(both.moments[2].mean, reverse.moments[2].mean)


def test_counts_of_any_rate():
    """The integral finds its place, be it at an edge or narrow."""
    machine = rbm(TruncatedGaussian(1, precision=1e-9).double(), Binary(1).double(), torch.zeros(1, 1).double())
    for rate, count in ((1e2, 30), (1e4, 0), (1e4, 5000), (1e7, 2e6), (1e7, 0)):
        posterior = denoise(machine, torch.tensor([[float(count)]]).double(), PoissonNoise(rate))
        assert float(posterior.mean) == pytest.approx((count + 1) / rate, rel=1e-3)
        assert float(posterior.variance) == pytest.approx((count + 1) / rate**2, rel=1e-3)


def test_rows_are_worked_on_in_parts(monkeypatch):
    machine = random_machine(5, scale=1.0)
    y = BinarySymmetric(0.2).corrupt(gibbs(machine, torch.zeros(30, 8).double(), 20, generator())[0])
    data = gibbs(machine, torch.zeros(20, 8).double(), 20, generator(1))[0]
    whole = denoise(machine, y, BinarySymmetric(0.2), data=data)
    monkeypatch.setattr(sys.modules["tapmachine.posterior.denoising"], "CHUNK_VALUES", 100)
    parts = denoise(machine, y, BinarySymmetric(0.2), data=data)
    torch.testing.assert_close(whole.mean, parts.mean, atol=1e-5, rtol=0)
    mask = torch.rand(30, 8, generator=generator()) < 0.5  # another one for each row
    torch.testing.assert_close(denoise(machine, y, Missing(mask)).mean, impute(machine, Missing(mask).corrupt(y)).mean)
    assert torch.equal(whole.status, parts.status)


def test_a_row_does_not_depend_on_the_others():
    machine = random_machine(5, scale=1.0)
    y = BinarySymmetric(0.2).corrupt(gibbs(machine, torch.zeros(30, 8).double(), 20, generator())[0])
    whole = denoise(machine, y, BinarySymmetric(0.2))
    parts = [denoise(machine, rows, BinarySymmetric(0.2)) for rows in y.split(7)]
    torch.testing.assert_close(whole.mean, torch.cat([part.mean for part in parts]), atol=1e-12, rtol=0)
    torch.testing.assert_close(whole.free_energy, torch.cat([part.free_energy for part in parts]), atol=1e-12, rtol=0)


def test_gibbs_agrees_with_the_exact_posterior():
    machine = random_machine(2, scale=1.0)
    y = torch.tensor([[1.0, 0, 1, 0, NAN, 1, 0, 1]]).double()
    mean, _ = exact_posterior(machine, flip_likelihood(y, 0.2))
    copies = 200
    sampled = gibbs_posterior(machine, y.repeat(copies, 1), BinarySymmetric(0.2), 200)
    # seven standard errors of 40,000 bits, of which four in a row are taken to count as one
    torch.testing.assert_close(sampled.mean.mean(0, keepdim=True), mean, atol=0.035, rtol=0)
    second = (sampled.variance + sampled.mean**2).mean(0, keepdim=True)
    torch.testing.assert_close(second, mean, atol=0.035, rtol=0)  # x² = x


def test_what_does_not_converge_is_said():
    machine = random_machine(5, scale=3.0)
    y = torch.ones(3, 8).double()
    y[1] = NAN
    with pytest.warns(PosteriorWarning, match="of 3 rows have no converged solution"):
        posterior = denoise(machine, y, BinarySymmetric(0.3), options=PosteriorOptions(max_sweeps=1))
    assert (posterior.status == Status.MAX_SWEEPS).any()
    assert torch.isfinite(posterior.mean).all()
    assert "not converged" in repr(posterior)
    wide = rbm(Gaussian(2).double(), Gaussian(2).double(), weights=torch.full((2, 2), 3.0).double())
    with pytest.warns(PosteriorWarning, match="unnormalizable"):
        posterior = denoise(wide, torch.zeros(1, 2).double(), GaussianNoise(10.0))
    assert posterior.free_energy.isinf().all()
    assert not posterior.converged.any()


# ----- parameters from data


@pytest.mark.long
def test_the_noise_is_found():
    machine = random_machine(4, 12, 4, scale=1.0)
    x = gibbs(machine, torch.zeros(200, 12, dtype=torch.float64), 100, generator())[0]
    y = BinarySymmetric(0.12).corrupt(x, generator(1))
    found = denoise(machine, y, BinarySymmetric()).channel
    # The exact evidence has its maximum where TAP's has it; and so sharply as it has one, it is at the truth.
    grid = np.linspace(0.02, 0.3, 29)
    exact = [float(exact_posterior(machine, flip_likelihood(y, float(p)))[1].sum()) for p in grid]
    best = int(np.argmax(exact))
    assert 0 < best < len(grid) - 1
    assert found.p == pytest.approx(grid[best], abs=0.02)
    curvature = (2 * exact[best] - exact[best - 1] - exact[best + 1]) / (grid[1] - grid[0]) ** 2
    assert found.p == pytest.approx(0.12, abs=0.02 + 6 / curvature**0.5)
    real = rbm(TruncatedGaussian(30, field=10.0, precision=20.0), Binary(2))
    x = gibbs(real, torch.full((100, 30), 0.5), 20, generator())[0]
    noisy = GaussianNoise(0.3).corrupt(x, generator(), real.layers[0])
    assert estimate_channel(real, noisy, GaussianNoise()).sigma == pytest.approx(0.3, abs=0.03)
    given = GaussianNoise(0.2)
    assert estimate_channel(real, noisy, given) is given
    potts = rbm(Categorical(30, 4, field=torch.tensor([4.0, 0, 0, 0]).expand(30, 4)), Binary(2))
    y = BinarySymmetric(0.6).corrupt(torch.zeros(200, 30), generator(), potts.layers[0])
    assert estimate_channel(potts, y, BinarySymmetric()).p == pytest.approx(0.6, abs=0.05)
    with pytest.warns(PosteriorWarning, match="at a bound of the search"):
        estimate_channel(rbm(Binary(4, field=5.0), Binary(2)), torch.ones(5, 4), BinarySymmetric())


# ----- how surprising rows are


def test_anomaly_scores_are_minus_log_likelihoods():
    machine = random_machine(6, scale=0.5)
    x = all_states(machine.layers[0])[:40]
    log_partition = exact_log_partition(machine)
    torch.testing.assert_close(anomaly_score(machine, x), log_partition - log_weight(machine, x))
    gaps = x.clone()
    gaps[::2, 3:5] = NAN
    states = all_states(machine.layers[0])
    allowed = (torch.isnan(gaps).unsqueeze(1) | (states == gaps.unsqueeze(1))).all(-1)
    exact = log_partition - log_weight(machine, states).masked_fill(~allowed, -torch.inf).logsumexp(1)
    torch.testing.assert_close(anomaly_score(machine, gaps), exact)
    torch.testing.assert_close(anomaly_score(machine, gaps[::2]), exact[::2])


def test_anomaly_scores_of_rows_without_values():
    machine = two_modes()
    rows = torch.full((2, 10), NAN).double()
    rows[0, 0] = 1.0
    states = all_states(machine.layers[0])
    log_weights = log_weight(machine, states)
    exact = log_weights.logsumexp(0) - log_weights[states[:, 0] == 1].logsumexp(0)
    assert anomaly_score(machine, rows).tolist() == [pytest.approx(float(exact), abs=1e-9), 0.0]
    with pytest.raises(ValueError, match="ln Z is infinite"):
        anomaly_score(rbm(Gaussian(2), Gaussian(2), torch.full((2, 2), 3.0)), torch.tensor([[0.0, NAN]]))
    with pytest.raises(ValueError, match="a state index"):
        anomaly_score(POTTS, torch.tensor([[0.0, 1.7]]))


def test_surprise_is_what_each_value_adds():
    machine = random_machine(6, scale=1.0)
    x = all_states(machine.layers[0])[::16]
    found = conditional_surprise(machine, x)
    torch.testing.assert_close(-found.sum(1), pseudo_log_likelihood(machine, x).values)
    other = x.clone()
    other[:, 2] = 1 - other[:, 2]
    odds = log_weight(machine, x) - log_weight(machine, other)
    torch.testing.assert_close(-found[:, 2], torch.nn.functional.logsigmoid(odds))


def test_surprise_of_deep_machines():
    shape = (5, 4, 3)
    weights = [0.3 * torch.randn(a, b, dtype=torch.float64, generator=generator(a)) for a, b in consecutive(shape)]
    machine = dbm([Binary(n).double() for n in shape], weights)
    states = [all_states(layer) for layer in machine.layers]
    index = torch.cartesian_prod(*(torch.arange(len(z)) for z in states))
    energy = machine.energy([z[index[:, number]] for number, z in enumerate(states)]).detach()
    log_weights = (-energy).view(32, -1).logsumexp(1)
    x = states[0][[3, 17]]
    found = conditional_surprise(machine, x)
    for row, number in enumerate((3, 17)):
        for unit in range(5):
            other = number ^ (1 << (4 - unit))
            exact = torch.nn.functional.logsigmoid(log_weights[number] - log_weights[other])
            assert float(-found[row, unit]) == pytest.approx(float(exact), abs=5e-3)


# ----- baselines


def test_the_pointwise_estimate_is_the_formula():
    x = (torch.rand(500, 6, generator=generator()) < torch.linspace(0.1, 0.9, 6)).double()
    units = Binary(6).double().fit_to(x, smoothing=0.0)
    m, p = x.mean(0), 0.2
    y = x[:10]
    expected = 1 / (1 + (1 - m) / m * (p / (1 - p)) ** (2 * y - 1))
    torch.testing.assert_close(pointwise_estimate(units, y, BinarySymmetric(p)).mean, expected)
    torch.testing.assert_close(pointwise_estimate(units, y, BinarySymmetric(0.0)).mean, y)
    torch.testing.assert_close(pointwise_estimate(units, y, BinarySymmetric(0.5)).mean, m.expand(10, 6))
    values = torch.randn(500, 3, dtype=torch.float64, generator=generator()) * 2 + 5
    gauss = Gaussian(3).double().fit_to(values, smoothing=0.0)
    shrunk = pointwise_estimate(gauss, values[:4], GaussianNoise(1.0)).mean
    variance = values.var(0, correction=0)
    torch.testing.assert_close(shrunk, (variance * values[:4] + values.mean(0)) / (variance + 1))


def test_neighbors_are_scikit_learns():
    data = 100 + torch.rand(200, 7, generator=generator())
    y = 100 + torch.rand(20, 7, generator=generator(1))
    expected = NearestNeighbors(n_neighbors=3).fit(data.numpy()).kneighbors(y.numpy(), return_distance=False)
    assert np.array_equal(nearest_neighbors(data, y, 3).numpy(), expected)
    gaps = y.clone()
    gaps[:, 2:4] = NAN
    columns = [0, 1, 4, 5, 6]
    expected = (
        NearestNeighbors(n_neighbors=3)
        .fit(data[:, columns].numpy())
        .kneighbors(y[:, columns].numpy(), return_distance=False)
    )
    assert np.array_equal(nearest_neighbors(data, gaps, 3).numpy(), expected)


# ----- what is refused


MACHINE = random_machine(0)
REAL = rbm(Gaussian(2), Binary(2))
POTTS = rbm(Categorical(2, 3), Binary(2))
ZEROS = torch.zeros(1, 8)
FLIPS = BinarySymmetric(0.1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BinarySymmetric(-0.1), r"p is -0.1; expected a number in \[0, 1\]"),
        (lambda: BinarySymmetric("0.1"), "p is '0.1'"),
        (lambda: CustomNoise(3), "expected a function"),
        (lambda: denoise(MACHINE, ZEROS, CustomNoise(lambda y, x: y * x * 0 - math.inf)), "the likelihood is 0"),
        (lambda: denoise(MACHINE, ZEROS, CustomNoise(lambda y, x: y.sum())), "the log-likelihood returned"),
        (lambda: denoise(MACHINE, ZEROS, GaussianNoise()), "sigma is None"),
        (lambda: GaussianNoise(1e-200), "sigma is 1e-200"),
        (lambda: gibbs_posterior(MACHINE, ZEROS, 0.1), "channel is 0.1"),
        (lambda: estimate_channel(MACHINE, ZEROS, 0.1), "channel is 0.1"),
        (lambda: denoise(MACHINE, ZEROS, FLIPS, data=ZEROS, starts=[None]), "data and starts"),
        (lambda: PosteriorOptions(n_neighbors=0), "n_neighbors is 0"),
        (
            lambda: denoise(MACHINE, ZEROS, FLIPS, starts=[torch.zeros(3, 8).double()]),
            "an element of starts has 3 rows",
        ),
        (lambda: impute(clamp(MACHINE, ZEROS[0].double()), ZEROS), "clamped"),
        (lambda: BinarySymmetric(0.2).corrupt(torch.full((1, 2), 7.0), units=Categorical(2, 3)), "a state index"),
        (lambda: BinarySymmetric(0.6).evidence(torch.zeros(1, 2)), "p is 0.6; expected at most 0.5"),
        (lambda: Erasure(1.5), r"expected a number in \[0, 1\]"),
        (lambda: GaussianNoise(0.0), "sigma is 0.0; expected a number in"),
        (lambda: GaussianNoise(NAN), "sigma is nan"),
        (lambda: PoissonNoise(-1.0), "rate is -1.0"),
        (lambda: Missing(torch.ones(3)), "mask is not a bool tensor"),
        (lambda: denoise(MACHINE, torch.full((2, 8), 2.0), FLIPS), r"y\[0, 0\] is 2; expected 0 or 1"),
        (
            lambda: denoise(MACHINE, torch.full((2, 8), math.inf), GaussianNoise(0.1)),
            "expected a finite number, or NaN",
        ),
        (lambda: denoise(MACHINE, torch.zeros(2, 7), FLIPS), r"y has shape \(2, 7\); expected \(K, 8\)"),
        (lambda: denoise(MACHINE, torch.zeros(0, 8), BinarySymmetric(0.1)), "K ≥ 1"),
        (lambda: denoise(MACHINE, "noise", BinarySymmetric(0.1)), "expected a tensor or an array"),
        (lambda: denoise(MACHINE, torch.zeros(1, 8), 0.1), "channel is 0.1; expected a channel such as"),
        (lambda: PosteriorOptions(temperature=0), "temperature is 0"),
        (lambda: denoise(MACHINE, ZEROS, FLIPS, starts=[]), "starts is empty"),
        (lambda: denoise(MACHINE, ZEROS, FLIPS, data=torch.full((3, 8), 0.5)), "data: Binary"),
        (
            lambda: denoise(rbm(Gaussian(2), Binary(2)), torch.zeros(1, 2), BinarySymmetric(0.1)),
            "expected units with two states",
        ),
        (lambda: denoise(REAL, torch.zeros(1, 2), PoissonNoise()), "bounded support"),
        (lambda: denoise(POTTS, torch.zeros(1, 2), GaussianNoise(1.0)), "expected units with numeric states"),
        (lambda: impute(POTTS, torch.tensor([[0.0, 3.0]])), "a state index from 0 to 2"),
        (
            lambda: denoise(rbm(TruncatedGaussian(2), Binary(2)), torch.tensor([[0.5, 1.0]]), PoissonNoise()),
            "expected a non-negative integer",
        ),
        (lambda: PoissonNoise().evidence(torch.zeros(1, 2)), "is not a tilt"),
        (lambda: denoise(RBM(), ZEROS, FLIPS), "the attribute machine_ of a fitted RBM"),
        (lambda: conditional_surprise(MACHINE, torch.full((1, 8), NAN)), "has missing values"),
    ],
)
def test_errors_say_what_is_wrong(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_arrays_whole_numbers_and_other_dtypes_are_taken():
    bits = np.array([[1, 0, 1, 0, 1, 0, 1, 0]])
    results = [
        denoise(MACHINE, y, BinarySymmetric(0.1)).mean
        for y in (bits, bits.astype(np.float32), torch.from_numpy(bits).bool(), torch.from_numpy(bits).float())
    ]
    for result in results[1:]:
        assert torch.equal(result, results[0])


# ----- the estimator and the command line


@pytest.fixture(scope="module")
def digits():
    from sklearn.datasets import load_digits

    return (load_digits().data / 16 > 0.5).astype(np.float64)


@pytest.mark.long
def test_the_estimator_denoises_and_imputes(digits):
    model = RBM(n_hidden=32, epochs=10).fit(digits[:1500])
    x = digits[1500:1600]
    noisy = BinarySymmetric(0.15).corrupt(torch.from_numpy(x)).numpy()
    clean, deviation = model.denoise(noisy, BinarySymmetric(0.15), return_std=True)
    assert clean.shape == deviation.shape == x.shape
    assert ((clean > 0.5) == x).mean() > (noisy == x).mean() + 0.03
    gaps = np.where(np.arange(64) % 2 == 0, np.nan, x)
    filled = model.impute(gaps, data=digits[:1500])
    assert np.array_equal(filled[:, 1::2], x[:, 1::2])
    truth, usual = torch.from_numpy(x[:, ::2]), torch.from_numpy(digits[:1500].mean(0)[::2]).expand(100, -1)
    assert mcc(truth, torch.from_numpy(filled[:, ::2])) > mcc(truth, usual) + 0.01  # by 0.1, as a rule
    with pytest.raises(ValueError, match=r"channel is 0\.1; expected a channel such as"):
        model.denoise(digits[:2], 0.1)
    real = RBM(n_hidden=8, epochs=1, visible="truncated-gaussian", interval=(2.0, 5.0))
    rows = 2 + 3 * np.random.default_rng(0).random((50, 4))
    real.fit(rows)
    rows[0, 1] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        filled, deviation = real.impute(rows, return_std=True)
    assert 2 < filled[0, 1] < 5
    assert deviation[0, 1] > 0.1
    assert np.array_equal(np.delete(filled.ravel(), 1), np.delete(rows.astype(np.float32).ravel(), 1))
    binarized = RBM(n_hidden=4, epochs=1, binarize=0.5).fit(rows / 5 - 0.3 if np.isfinite(rows).all() else np.eye(8))
    assert set(np.unique(binarized.denoise(0.9 * np.eye(8), BinarySymmetric(0.0)))) == {0.0, 1.0}


@pytest.fixture(scope="module")
def run(tmp_path_factory, digits):
    folder = tmp_path_factory.mktemp("posterior")
    np.save(folder / "train.npy", digits[:1500])
    arguments = ["train", folder / "train.npy", "--out", folder / "run", "--hidden", 32, "--epochs", 15, "-q"]
    assert CliRunner().invoke(app, list(map(str, arguments))).exit_code == 0
    return folder / "run"


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)


@pytest.mark.long
def test_the_command_line_denoises_imputes_and_scores(run, digits, tmp_path):
    x = digits[1500:1540]
    noisy = BinarySymmetric(0.2).corrupt(torch.from_numpy(x)).numpy()
    np.save(tmp_path / "noisy.npy", noisy)
    out, std, picture = (tmp_path / name for name in ("clean.npy", "std.npy", "strip.png"))
    result = invoke("denoise", run, tmp_path / "noisy.npy", "--p", 0.2, "-o", out, "--std", std, "--picture", picture)
    assert result.exit_code == 0, result.output
    assert "40 rows denoised with channel bsc (p=0.2), the default for binary visible units" in result.stdout
    truth = torch.from_numpy(x)
    assert mcc(truth, torch.from_numpy(np.load(out)).double()) > mcc(truth, torch.from_numpy(noisy))
    assert np.load(std).max() <= 0.5
    assert picture.stat().st_size > 1000
    result = invoke("denoise", run, tmp_path / "noisy.npy", "-o", out, "--rounded")
    assert set(np.unique(np.load(out))) == {0.0, 1.0}
    found = float(result.stdout.split("p=")[1].split(", estimated)")[0])
    assert abs(found - 0.2) < 0.08  # seven standard errors of 2,560 bits, and the machine is not the data's
    lines = [",".join("" if column % 3 == 0 else str(int(value)) for column, value in enumerate(row)) for row in x]
    (tmp_path / "gaps.csv").write_text("\n".join(lines))
    assert invoke("impute", run, tmp_path / "gaps.csv", "-o", out, "-q").stdout == ""
    filled = np.load(out)
    assert np.array_equal(filled[:, 1::3], x[:, 1::3])
    usual = torch.from_numpy(digits[:1500].mean(0)[::3]).expand(40, -1)
    assert mcc(truth[:, ::3], torch.from_numpy(filled[:, ::3]).double()) > mcc(truth[:, ::3], usual)
    (tmp_path / "empty.tsv").write_text("\n".join(["\t" * 63, "\t".join(["1"] * 64), "\t" * 63]))
    assert invoke("impute", run, tmp_path / "empty.tsv", "-o", out, "-q").exit_code == 0
    assert np.load(out).shape == (3, 64)  # rows without any value are rows
    np.save(tmp_path / "x.npy", np.concatenate((x, 1 - x[:1])))
    units = tmp_path / "units.npy"
    result = invoke("score", run, tmp_path / "x.npy", "-o", tmp_path / "scores.csv", "--units", units)
    assert "highest for row 40" in result.stdout
    table = (tmp_path / "scores.csv").read_text().splitlines()
    assert table[0] == "row,nats"
    assert len(table) == 42
    assert np.load(units).shape == (41, 64)
    assert invoke("score", run, tmp_path / "x.npy", "-q").stdout.splitlines() == table


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["denoise", "RUN", "NOISY", "--out", "clean.txt"], "expected a .npy or .csv or .tsv or .parquet output file"),
        (["denoise", "RUN", "NOISY", "--out", "c.npy", "--p", "0.1", "--std", "c.npy"], "have the same path"),
        (["denoise", "RUN", "NOISY", "--out", "c.npy", "--p", "0.1", "--picture", "none/c.png"], "none not found"),
        (["denoise", "RUN", "NOISY", "--out", "c.npy", "--channel", "fog"], "expected one of bsc, gaussian, erasure"),
        (["denoise", "RUN", "NOISY", "--out", "c.npy", "--p", "0.7"], "p is 0.7"),
        (["denoise", "RUN", "NOISY", "--out", "c.npy", "--sigma", "1"], "--sigma is not available for --channel bsc"),
        (["denoise", "RUN", "NOISY", "--out", "c.npy", "--channel", "poisson"], "missing --rate"),
        (["denoise", "RUN", "WRONG", "--out", "c.npy"], "0 or 1"),
        (["denoise", "RUN", "NARROW", "--out", "c.npy", "--p", "0.1"], "y has shape (3, 5)"),
        (["impute", "RUN", "nowhere.npy", "--out", "c.npy"], "file not found"),
        (["score", "nowhere", "NOISY"], "not a run directory"),
    ],
)
def test_the_command_line_refuses_in_one_line(run, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    arrays = {
        "NOISY": np.zeros((3, 64)),
        "WRONG": np.full((3, 64), 0.5),
        "NARROW": np.zeros((3, 5)),
        "GAPS": np.full((2, 64), np.nan),
    }
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    places = {"RUN": run} | {name: tmp_path / f"{name}.npy" for name in arrays}
    words = [str(places.get(word, word)) for word in arguments]
    code, _, errors = command(*words)
    assert code == 2
    assert message in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "c.npy").exists()


# ----- on a GPU


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_denoising_on_a_gpu_agrees():
    machine = random_machine(8, 20, 10, scale=0.8)
    x = gibbs(machine, torch.zeros(100, 20).double(), 50, generator())[0]
    for channel in (BinarySymmetric(0.2), Erasure(0.4), GaussianNoise(0.5), PoissonNoise(4.0, 0.5)):
        y = channel.corrupt(x)
        expected = denoise(machine, y, channel, data=x, options=PosteriorOptions(tol=1e-14))
        found = denoise(machine.to("cuda"), y.cuda(), channel, data=x, options=PosteriorOptions(tol=1e-14))
        machine.to("cpu")
        torch.testing.assert_close(found.mean.cpu(), expected.mean, atol=1e-4, rtol=0)
        torch.testing.assert_close(found.free_energy.cpu(), expected.free_energy, atol=1e-5, rtol=0)


def test_moments_of_solutions_are_starts():
    machine = random_machine(1)
    y = torch.ones(2, 8).double()
    first = denoise(machine, y, BinarySymmetric(0.1))
    again = denoise(machine, y, BinarySymmetric(0.1), starts=[list(first.moments), Moments(*first.moments[0])])
    torch.testing.assert_close(again.mean, first.mean, atol=1e-4, rtol=0)
