"""Chains of training: stratified numbers, draws by inversion, gradients that are exact on average, restarts, shares."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from machine_cases import UNITS, Tensors, machine_of
from mpmath import mp, mpf
from oracles import truncated_gaussian_integral

from tapmachine import (
    CD,
    PCD,
    Binary,
    Custom,
    Gaussian,
    Spin,
    TAPObjective,
    Tilt,
    TruncatedGaussBernoulli,
    TruncatedGaussian,
    dbm,
    exact_log_partition,
    pairwise,
    rbm,
)
from tapmachine.accelerator.distributed import World
from tapmachine.training.context import Context
from tapmachine.training.objectives import Exact, default_objective
from tapmachine.units.numerics.interval_draws import FAR, NARROW, _invert_normal, _invert_pieces, sample_interval
from tapmachine.units.numerics.intervals import RULES
from tapmachine.units.numerics.strata import lattice, strata

RULE = RULES[torch.float64]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def rows_of(machine, rows, seed=0):
    units = machine.layers[0]
    no_tilt = Tilt(torch.zeros((rows, *units.state_shape), dtype=machine.dtype), 0.0)
    return units.sample(no_tilt, generator(seed))


def distance_from_uniform(numbers):
    """Kolmogorov and Smirnov's, times the root of how many there are: above 1.95 once in a thousand times."""
    ordered, count = numbers.double().sort().values, len(numbers)
    steps = torch.arange(count + 1) / count
    return math.sqrt(count) * float(torch.maximum(steps[1:] - ordered, ordered - steps[:-1]).max())


def distance_between(first, second):
    """Kolmogorov and Smirnov's of two samples, on the same scale."""
    points = torch.cat((first, second)).double().sort().values
    shares = [torch.searchsorted(z.double().sort().values, points, right=True) / len(z) for z in (first, second)]
    return math.sqrt(len(first) * len(second) / (len(first) + len(second))) * float((shares[0] - shares[1]).abs().max())


# ----- stratified numbers


@pytest.mark.parametrize("n_chains", [1, 2, 7, 100])
def test_every_number_is_uniform_and_those_of_a_chain_are_independent(n_chains):
    u = strata(lattice(n_chains, torch.float64), 20_000, generator())
    assert u.shape == (n_chains, 20_000)
    for chain in u[[0, n_chains // 2, -1]]:
        assert distance_from_uniform(chain) < 1.95
        for lag in (1, 2):  # pairs of units: counts of a grid of 8 × 8 cells
            cells = 8 * (8 * chain[lag:]).long() + (8 * chain[:-lag]).long()
            counts = torch.bincount(cells, minlength=64).double()
            expected = len(cells) / 64
            assert float((counts - expected).square().sum() / expected) < 63 + 4.5 * math.sqrt(2 * 63)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n_chains", [1, 2, 3, 10, 97, 100])
def test_every_stratum_has_one_number(n_chains, dtype):
    points = lattice(n_chains, dtype)
    q = points.shape[1]
    assert q >= max(3, n_chains)
    assert all(q % divisor for divisor in range(2, q))
    u = strata(points, 500, generator(1))
    assert bool((u >= 0).all())
    assert bool((u < 1).all())
    # From the first number on, all lie on a grid of 1/Q, in different places; those of two units vary differently.
    places = ((u - u[:1]).remainder(1) * q).round().long() % q
    torch.testing.assert_close((u - u[:1]).remainder(1) * q % q, places.to(dtype), rtol=0, atol=1e-3 * q)
    for unit in places.T:
        assert len(set(unit.tolist())) == n_chains
    if n_chains >= 10:
        assert len({tuple(unit.tolist()) for unit in places.T}) > q // 2


@pytest.mark.parametrize("size", [2, 3])
def test_shares_of_processes_are_parts_of_the_whole(size):
    points = lattice(10, torch.float64)
    whole = strata(points, 6, generator(3))
    parts = [strata(points[World(rank, size).part(10)], 6, generator(3)) for rank in range(size)]
    assert torch.equal(torch.cat(parts), whole)


def test_averages_over_stratified_chains_vary_less():
    points, p = lattice(100, torch.float64), torch.tensor([0.2, 0.7]).double()
    ones, both = [], []
    for seed in range(400):
        bits = (strata(points, 2, generator(seed)) < p).double()
        ones.append(bits[:, 0].mean())
        both.append(bits.prod(1).mean())
    ones, both = torch.stack(ones), torch.stack(both)
    assert float(ones.mean()) == pytest.approx(0.2, abs=0.001)
    assert float(both.mean()) == pytest.approx(0.14, abs=0.008)  # of independent numbers: 0.002 at one deviation
    assert float(ones.var()) < 0.05 * 0.2 * 0.8 / 100
    assert float(both.var()) < 0.6 * 0.14 * 0.86 / 100


# ----- draws by inversion

KINDS = [kind for kind in UNITS if kind != "Custom"]


def tilted(kind, seed, n=6):
    units = UNITS[kind](Tensors(seed), n)
    shape = units.state_shape
    return units, Tilt(1.5 * Tensors(seed + 1).normal(*shape), 0.0)


def many(tilt, rows):
    return Tilt(tilt.field.expand(rows, *tilt.field.shape).contiguous(), tilt.precision)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_by_inversion_have_the_moments(kind):
    """Over evenly spaced numbers, which leave hardly anything to chance."""
    units, tilt = tilted(kind, 5)
    uniform = ((torch.arange(4000) + 0.5) / 4000).double().unsqueeze(-1).expand(4000, units.n).clone()
    draws = units.draw(many(tilt, 4000), uniform)
    units.check_states(draws)
    moments = units.moments(tilt)
    torch.testing.assert_close(draws.mean(0), moments.mean, rtol=0, atol=1e-3)
    torch.testing.assert_close(draws.var(0, correction=0), moments.variance, rtol=0, atol=2e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_by_inversion_are_distributed_as_samples(kind, dtype):
    units, tilt = tilted(kind, 7)
    units, tilt = units.to(dtype), Tilt(tilt.field.to(dtype), 0.0)
    uniform = torch.rand(4000, units.n, generator=generator(1), dtype=dtype)
    drawn, sampled = units.draw(many(tilt, 4000), uniform), units.sample(many(tilt, 4000), generator(2))
    assert drawn.dtype == sampled.dtype == dtype
    for mine, other in zip(drawn.flatten(1).T, sampled.flatten(1).T, strict=True):
        assert distance_between(mine, other) < 2.2


@pytest.mark.parametrize("kind", KINDS)
def test_draws_by_inversion_at_the_ends_are_states(kind):
    units, tilt = tilted(kind, 8)
    units, tilt = units.float(), Tilt(tilt.field.float(), 0.0)
    for end in (0.0, 1 - 2**-24, 2**-30):
        draws = units.draw(many(tilt, 3), torch.full((3, units.n), end))
        units.check_states(draws)
        assert bool(torch.isfinite(draws).all())


def test_draws_of_gaussians_invert_their_cdf():
    units, tilt = tilted("Gaussian", 3)
    uniform = torch.rand(50, units.n, generator=generator(), dtype=torch.float64)
    draws, (mean, variance) = units.draw(many(tilt, 50), uniform.clone()).detach(), units.moments(tilt)
    z = ((draws - mean) / variance.sqrt()).detach()
    torch.testing.assert_close(0.5 * (1 + torch.erf(z / 2**0.5)), uniform, rtol=0, atol=1e-12)


@pytest.mark.parametrize("spike", [False, True])
def test_draws_of_truncated_units_invert_their_cdf(spike):
    """By error functions in high precision. Of units with a spike, the largest numbers are the spike's."""
    random = Tensors(3)
    options = {"field": random.normal(4), "precision": random.uniform(0.5, 4.0, 4)}
    units = TruncatedGaussBernoulli(4, active_probability=0.5, **options) if spike else TruncatedGaussian(4, **options)
    slab, tilt = units.slab if spike else units, Tilt(random.normal(4), 0.0)
    active = units.nonzero_probability(tilt).detach() if spike else torch.ones(4).double()
    uniform = torch.rand(8, 4, generator=generator(), dtype=torch.float64)
    draws = units.draw(many(tilt, 8), uniform.clone())
    u, v = (slab.field + tilt.field).detach(), slab.precision.detach()
    seen = set()
    for row in range(8):
        for unit in range(4):
            x, number = float(draws[row, unit]), float(uniform[row, unit] / active[unit])
            seen.add(number < 1)
            if number >= 1:
                assert x == 0
            else:
                assert cdf(u[unit], v[unit], slab.lower, slab.upper, x) == pytest.approx(number, abs=1e-12)
    assert seen == ({True, False} if spike else {True})


def test_which_units_can_be_inverted():
    assert all(UNITS[kind](Tensors(0), 3).has_inversion for kind in KINDS)
    custom = UNITS["Custom"](Tensors(0), 3)
    assert not custom.has_inversion
    assert custom.draw(Tilt(torch.zeros(2, 3).double(), 0.0), torch.rand(2, 3).double()) is None


# ----- inversion of truncated Gaussians


def cdf(u, v, lower, upper, x):
    u, v, lower, upper = (mpf(float(z)) for z in (u, v, lower, upper))
    if x <= lower:
        return 0.0
    with mp.workdps(60):
        part = truncated_gaussian_integral(u, v, lower, mpf(x)).log
        return float(mp.exp(part - truncated_gaussian_integral(u, v, lower, upper).log))


def curved_cases(rng):
    """u, v and intervals, up to where the normal CDF is not used any more; of each a few uniform numbers."""
    inf = math.inf
    for lower, upper in [(0.0, 1.0), (-1.0, 1.0), (0.0, inf), (-inf, 2.0), (-3.0, 1e4), (5.0, 5.5), (-1e-3, 1e-3)]:
        for v in (1e-6, 1e-2, 1.0, 50.0, 1e6):
            root = math.sqrt(v)
            if (upper - lower) * root <= NARROW:
                continue
            for deviations in (-0.99 * FAR, -8.0, -1.0, 0.0, 1.0, 8.0, 0.99 * FAR):
                # The mean lies so many deviations below the lower end, or above the upper one.
                base = lower if deviations < 0 and math.isfinite(lower) else upper
                base = base if math.isfinite(base) else lower
                mean = base + deviations / root
                if max(lower - mean, mean - upper) * root < FAR:
                    for number in (0.0, 1e-12, *rng.uniform(0.0, 1.0, 2).tolist(), 1 - 1e-9):
                        yield mean * v, v, lower, upper, number


CURVED = list(curved_cases(Tensors(4)))


def columns(cases):
    return torch.tensor(cases, dtype=torch.float64).T.contiguous()


def test_two_inversions_of_truncated_gaussians_agree():
    assert len(CURVED) > 600
    u, v, lower, upper, uniform = columns(CURVED)
    quick = _invert_normal(u, v, lower, upper, uniform)
    slow = _invert_pieces(u, v, lower, upper, uniform, RULE)
    assert bool(((quick >= lower) & (quick <= upper) & torch.isfinite(quick)).all())
    scale = torch.minimum(upper - lower, 1 / v.sqrt())
    # Next to 0 and 1 the tails of half-lines are steep, and pieces are cut off: there, probabilities are compared.
    inner = (uniform > 1e-6) & (uniform < 1 - 1e-6)
    limit = 1e-9 + 4 * torch.finfo(torch.float64).eps * quick.abs() / scale
    assert bool(((quick - slow).abs() / scale < limit)[inner].all())


def test_inversion_by_the_normal_cdf_against_high_precision():
    cases = CURVED[::3]
    draws = _invert_normal(*columns(cases))
    worst = 0.0
    for (u, v, lower, upper, number), x in zip(cases, draws.tolist(), strict=True):
        # Rounding of x itself is worth a probability, where the density is high or bounds are large.
        rounding = 32 * math.ulp(max(abs(x), abs(u / v))) * math.sqrt(v) * FAR
        worst = max(worst, abs(cdf(u, v, lower, upper, x) - number) / (1e-12 + rounding))
    assert worst < 1


@pytest.mark.parametrize(
    ("u", "v", "lower", "upper"),
    [
        (3.0, -20.0, 0.0, 1.0),  # a density that rises, faster and faster
        (10.0, -20.0, -1.0, 0.2),  # one with a valley
        (-40.0, 0.0, 0.0, 1.0),
        (1e-8, 1e-8, 0.0, 1.0),  # hardly a density at all
        (-1e4, 1.0, 0.0, math.inf),  # far beyond the normal CDF
        (1e4, 1.0, -math.inf, 0.0),
        (1e5, 1.0, -1.0, 1.0),
        (2.0, 4.0, 0.0, 1.0),
    ],
)
def test_draws_of_any_truncated_gaussian(u, v, lower, upper):
    """Each is the quantile at its uniform number, in one call with others that go through the normal CDF."""
    count = 200
    numbers = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    cases = [[u, v, lower, upper]] * count + [[1.0, 2.0, 0.0, 1.0]]
    draws = sample_interval(*columns(cases), torch.cat((numbers, numbers[:1])), RULE)[:count]
    assert bool(((draws >= lower) & (draws <= upper)).all())
    shares = torch.tensor([cdf(u, v, lower, upper, x) for x in draws.tolist()], dtype=torch.float64)
    torch.testing.assert_close(shares, numbers, rtol=0, atol=1e-9)


@settings(max_examples=50, deadline=None)
@given(
    u=st.integers(-2000, 2000).map(lambda z: z / 10),
    v=st.integers(-2000, 2000).map(lambda z: z / 10),
    interval=st.sampled_from([(0.0, 1.0), (-1.0, 0.2), (-3.0, 4.0), (0.0, math.inf), (-math.inf, 0.5)]),
    shift=st.floats(0.0, 1.0),
)
def test_draws_of_truncated_gaussians_rise_with_the_uniform_number(u, v, interval, shift):
    """Chains with evenly spread numbers rely on it."""
    lower, upper = interval
    v = v if math.isfinite(upper - lower) else abs(v) + 0.1  # for which the integral is finite
    count = 101
    numbers = (torch.arange(count, dtype=torch.float64) + shift) / count
    cases = columns([[u, v, lower, upper]] * count)
    for draws in (sample_interval(*cases, numbers, RULE), _invert_pieces(*cases, numbers, RULE)):
        assert bool((draws.diff() >= -1e-12 * (1 + draws.abs().max())).all())
        shares = [cdf(u, v, lower, upper, x) for x in draws[::25].tolist()]
        assert shares == pytest.approx(numbers[::25].tolist(), abs=1e-4)


def test_the_smallest_numbers_give_draws_in_the_tails_of_half_lines():
    """A uniform number in float32 is 0 once in 2²⁴ times; and the rest of one, for a slab, may round to 1."""
    for lower, upper in ((0.0, math.inf), (-math.inf, 0.0)):
        for number in (0.0, 1.0):
            draw = sample_interval(*columns([[1.0, 2.0, lower, upper]]), torch.tensor([number]).double(), RULE)
            assert cdf(1.0, 2.0, lower, upper, draw.item()) == pytest.approx(number, abs=1e-7)
            assert abs(draw.item()) < 20  # standard deviations are 0.7


# ----- gradients


def exact_slopes(machine):
    """Of F of the free machine, by differences of ln Z."""
    slopes = []
    for parameter in machine.parameters():
        flat = parameter.detach().view(-1)
        for index in range(len(flat)):
            before, values = float(flat[index]), []
            for size in (1e-4, -1e-4):
                flat[index] = before + size
                values.append(float(exact_log_partition(machine)))
            flat[index] = before
            slopes.append((values[1] - values[0]) / 2e-4)
    return torch.tensor(slopes, dtype=machine.dtype)


def sampled_slopes(machine, objective, runs, steps):
    """Of every run the gradient after some steps, (runs, parameters)."""
    x, found = rows_of(machine, 20), []
    for seed in range(runs):
        context = Context(machine, x, generator(seed))
        carry = objective.prepare(context)
        with torch.no_grad():
            for _ in range(steps):
                _, carry = objective.model_free_energy(context, carry)
        machine.zero_grad()
        objective.model_free_energy(context, carry)[0].backward()
        found.append(torch.cat([p.grad.view(-1).clone() for p in machine.parameters()]))
    return torch.stack(found)


@pytest.mark.parametrize(
    ("kinds", "ratio"),
    [(["Binary", "Spin"], 0.6), (["Categorical", "Binary"], 0.8), (["Spin", "Binary", "Binary"], 0.8)],
    ids=lambda case: "-".join(case) if isinstance(case, list) else str(case),
)
def test_chains_have_the_exact_gradient_on_average_and_vary_less(kinds, ratio):
    machine = machine_of(kinds, [4, 3, 2][: len(kinds)], seed=11, scale=0.4)
    exact, varies = exact_slopes(machine), []
    for stratified in (True, False):
        objective = PCD(2, n_chains=50, stratified=stratified, restarts=False)
        found = sampled_slopes(machine, objective, runs=80, steps=6)
        error = found.std(0) / math.sqrt(len(found))
        # Twenty numbers or so, of which the largest is within four standard errors; differences have an error of 1e-6.
        assert float(((found.mean(0) - exact).abs() / (error + 1e-6)).max()) < 4.0
        varies.append(float(found.var(0).sum()))
    assert varies[0] < ratio * varies[1]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["TruncatedGaussian", "GaussBernoulli", "Gaussian", "Custom"])
def test_chains_of_other_units_have_the_models_moments(kind):
    """Of units for which draws are stratified, and of ones for which they are not."""
    machine = machine_of([kind, "Binary"], [2, 1], seed=12, scale=0.4)
    exact = exact_slopes(machine)
    found = sampled_slopes(machine, PCD(1, n_chains=50, restarts=False), runs=60, steps=8)
    error = found.std(0) / math.sqrt(len(found))
    assert float(((found.mean(0) - exact).abs() / (error + 1e-5)).max()) < 4.0


# ----- chains


def in_two_groups():
    """A machine whose chains cannot leave the group that they are in, and rows of each group."""
    return rbm(Spin(6), Spin(3), torch.full((6, 3), 5.0)), -torch.ones(3, 6), torch.ones(3, 6)


@pytest.mark.parametrize("restarts", [True, False])
def test_chains_restart_less_and_less_often(restarts):
    machine, here, there = in_two_groups()
    objective = PCD(1, n_chains=1000, restarts=restarts)
    carry = objective.prepare(Context(machine, here, generator()))
    assert bool((carry[0] == -1).all())
    elsewhere = Context(machine, there, generator(1))
    with torch.no_grad():
        for _ in range(200):
            carry = objective.draw(elsewhere, carry)
    left_alone = math.prod(1 - 200 / (200 + step) ** 2 for step in range(200)) if restarts else 1.0
    moved = float((carry[0] == 1).all(-1).double().mean())
    assert moved == pytest.approx(1 - left_alone, abs=0.06 if restarts else 0.0)  # 0.39: four standard errors
    assert int(carry[-3][0]) == 200
    late = (*carry[:-3], torch.full_like(carry[-3], 10**7), *carry[-2:])
    with torch.no_grad():
        for _ in range(20):
            late = objective.draw(elsewhere, late)
    assert float((late[0] == 1).all(-1).double().mean()) == moved


def test_chains_begin_as_often_as_rows_weigh():
    machine, here, there = in_two_groups()
    batch = torch.cat((here[:1], there[:1], there[:1]))
    context = Context(machine, batch, generator(), torch.tensor([2.25, 0.75, 0.0]))
    carry = PCD(1, n_chains=8).prepare(context)
    assert int((carry[0] == -1).all(-1).sum()) == 6
    assert len(PCD(1).prepare(context)[0]) == 3  # the batch size


@pytest.mark.parametrize("kinds", [["Binary", "Spin"], ["TruncatedGaussian", "Binary"], ["Binary", "Binary", "Spin"]])
@pytest.mark.parametrize("size", [2, 3])
def test_processes_together_have_the_chains_of_one(kinds, size):
    machine = machine_of(kinds, [5, 4, 3][: len(kinds)], seed=3, scale=0.5)
    x, n_chains = rows_of(machine, 6), 10

    def chains(world, steps=3):
        context = Context(machine, x, generator(4), world=world)
        objective = PCD(2, n_chains=n_chains)
        carry, values = objective.prepare(context), []
        assert objective.is_split
        carry = (*carry[:-3], carry[-3] - 199, *carry[-2:])  # so that every chain restarts in the next step
        for _ in range(steps):
            value, carry = objective.model_free_energy(context, carry)
            values.append(value.detach())
        return torch.stack(values), carry

    values, carry = chains(World(0, 1))
    parts = [chains(World(rank, size)) for rank in range(size)]
    torch.testing.assert_close(sum(part[0] for part in parts), values, rtol=0, atol=1e-12)
    for index, whole in enumerate(carry):
        torch.testing.assert_close(torch.cat([part[1][index] for part in parts]), whole, rtol=0, atol=1e-12)


def test_more_processes_than_chains_are_refused():
    machine = rbm(Binary(3), Binary(2))
    x = rows_of(machine, 6)
    with pytest.raises(ValueError, match="2 chains cannot be divided among 3 processes"):
        PCD(1, n_chains=2).prepare(Context(machine, x, generator(), world=World(0, 3)))
    PCD(1, n_chains=2, stratified=False).prepare(Context(machine, x, generator(), world=World(0, 3)))


@pytest.mark.parametrize(
    ("machine", "objective"),
    [
        (rbm(UNITS["Custom"](Tensors(0), 3), Binary(2).double()), PCD(1, 5)),
        (pairwise(Binary(3)), PCD(1, 5)),
        (rbm(Binary(3), Binary(2)), PCD(1, 5, stratified=False)),
    ],
    ids=["custom", "pairwise", "independent"],
)
def test_chains_that_every_process_has(machine, objective):
    """Those that are not drawn by inversion are drawn all at once, in every process."""
    x = rows_of(machine, 6)
    found = []
    for world in (World(0, 1), World(1, 2)):
        context = Context(machine, x, generator(), world=world)
        carry = objective.prepare(context)
        assert not objective.is_split
        value, carry = objective.model_free_energy(context, carry)
        assert len(carry[0]) == 5
        found.append((value.detach(), *carry))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("machine", "kind"),
    [
        (rbm(Binary(4), Binary(2)), PCD),
        (rbm(TruncatedGaussian(4), Binary(2)), PCD),
        (rbm(TruncatedGaussBernoulli(4), Spin(2)), PCD),
        (rbm(Gaussian(4), Binary(2)), PCD),
        (rbm(Custom(4, torch.zeros_like, values=[0.0, 1.0]), Binary(2)), PCD),
        (dbm([Binary(4), Binary(2), Binary(2)]), PCD),
        (pairwise(Binary(4)), PCD),
        (pairwise(Gaussian(4)), TAPObjective),
        (rbm(Gaussian(4), Gaussian(2)), Exact),
        (rbm(Binary(4), Gaussian(2)), CD),
    ],
    ids=lambda case: case.summary() if hasattr(case, "summary") else case.__name__,
)
def test_the_default_objective(machine, kind):
    objective = default_objective(machine)
    assert type(objective) is kind
    n_sweeps = {1: 1, 2: 2, 3: 5}[len(machine.layers)]
    assert repr(objective) == {PCD: f"PCD({n_sweeps}, n_chains=100)", CD: "CD(10)"}.get(kind, repr(objective))


def test_how_chains_are_shown():
    assert repr(PCD()) == "PCD(1)"
    assert repr(PCD(3, 7, stratified=False, restarts=False)) == "PCD(3, n_chains=7, stratified=False, restarts=False)"
