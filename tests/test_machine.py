"""Machines, conditioned machines, exact enumeration and Gibbs sampling, against brute force."""

import copy
import itertools
import math

import pytest
import torch
from machine_cases import Tensors, all_states, by_quadrature, exact_version, machine_of

from tapmachine import (
    Binary,
    Categorical,
    Custom,
    Gaussian,
    Spin,
    Tilt,
    TruncatedGaussian,
    clamp,
    condition,
    dbm,
    exact_log_likelihood,
    exact_log_partition,
    gibbs,
    pairwise,
    rbm,
    solve,
)
from tapmachine.likelihood import exact_moments
from tapmachine.machine import BoltzmannMachine, rescale


def brute_force(machine):
    """All joint states of all layers and their probabilities, with ln Z."""
    per_layer = [all_states(layer) for layer in machine.layers]
    combinations = list(itertools.product(*(range(len(states)) for states in per_layer)))
    states = [
        states[torch.tensor(index)] for states, index in zip(per_layer, zip(*combinations, strict=True), strict=True)
    ]
    log_weights = -machine.energy(states).detach()
    return states, log_weights.softmax(0), log_weights.logsumexp(0)


DISCRETE = [
    ["Binary", "Binary"],
    ["Spin", "Categorical"],
    ["Categorical", "Binary"],
    ["Custom", "Spin"],
    ["Binary", "Spin", "Binary"],
    ["Categorical", "Custom", "Spin", "Binary"],
    ["Spin"],
    ["Binary"],
    ["Categorical"],
]


def small(kinds, seed=0, scale=1.0):
    sizes = [4] if len(kinds) == 1 else [4, 3, 2, 2][: len(kinds)]
    return machine_of(kinds, sizes, seed, scale)


# ----- exact enumeration


@pytest.mark.parametrize("kinds", DISCRETE, ids="-".join)
def test_enumeration_against_brute_force(kinds):
    machine = small(kinds)
    states, probabilities, log_partition = brute_force(machine)
    assert float(exact_log_partition(machine)) == pytest.approx(float(log_partition), abs=1e-12)
    found = exact_moments(machine)
    flat = [x.flatten(1) for x in states]
    for x, own, layer in zip(flat, found.moments, machine.layers, strict=True):
        mean = probabilities @ x
        torch.testing.assert_close(own.mean, mean.view(layer.state_shape), rtol=0, atol=1e-12)
        variance = probabilities @ (x - mean) ** 2
        torch.testing.assert_close(own.variance, variance.view(layer.state_shape), rtol=0, atol=1e-12)
    for (below, above, _), covariance in zip(machine.edges(), found.covariances, strict=True):
        joint = (probabilities.unsqueeze(-1) * flat[below]).T @ flat[above]
        expected = joint - (probabilities @ flat[below]).outer(probabilities @ flat[above])
        torch.testing.assert_close(covariance, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["TruncatedGaussian", "GaussBernoulli"])
def test_continuous_units_are_integrated(kind):
    machine = machine_of([kind, "Binary"], [3, 4], seed=1, scale=0.5)
    quadrature = exact_log_partition(exact_version(machine))
    assert float(exact_log_partition(machine)) == pytest.approx(float(quadrature), abs=1e-11)


def test_a_gaussian_machine_has_a_closed_form():
    """Gaussian visible units: ln Z is that of a pairwise machine of the hidden ones."""
    machine = machine_of(["Gaussian", "Spin"], [3, 4], seed=2, scale=0.5)
    visible, hidden = machine.layers
    W, V, U = machine.weights[0].detach(), visible.precision.detach(), visible.field.detach()
    log_weights = []
    for h in all_states(hidden):
        field = W @ h
        gain = ((U + field) ** 2 / (2 * V) - U**2 / (2 * V)).sum()
        log_weights.append(gain + hidden.log_prior(h).sum().detach())
    expected = torch.stack(log_weights).logsumexp(0)
    assert float(exact_log_partition(machine)) == pytest.approx(float(expected), abs=1e-12)


def test_enumeration_is_streamed():
    """2^16 states in several parts give what the formula for independent units gives."""
    machine = rbm(Binary(16, field=torch.zeros(16, dtype=torch.float64)), Binary(30, field=torch.zeros(30).double()))
    with torch.no_grad():
        machine.weights[0].zero_()
        machine.weights[0][0, 0] = 2.0
    expected = math.log((3 + math.exp(2.0)) / 4)
    assert float(exact_log_partition(machine)) == pytest.approx(expected, abs=1e-11)


def test_what_cannot_be_enumerated():
    with pytest.raises(ValueError, match="has 2\\^26 states"):
        exact_log_partition(rbm(Binary(26), Binary(26)))
    with pytest.raises(ValueError, match="a weight or a parameter of the machine is non-finite"):
        exact_log_partition(rbm(Binary(2), Binary(2), torch.full((2, 2), float("nan"))))
    with pytest.raises(ValueError, match="finitely many states"):
        exact_log_partition(rbm(Gaussian(2), TruncatedGaussian(2)))


# ----- energy and conditionals


def test_energy_written_out():
    machine = machine_of(["Spin", "Binary", "Categorical"], [3, 2, 2], seed=3)
    s, b = torch.tensor([1.0, -1.0, 1.0]).double(), torch.tensor([0.0, 1.0]).double()
    p = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]).double()
    layers = list(machine.layers)
    expected = -sum(layer.log_prior(x).sum() for layer, x in zip(layers, (s, b, p), strict=True))
    expected = expected - s @ machine.weights[0] @ b - b @ machine.weights[1] @ p.flatten()
    torch.testing.assert_close(machine.energy([s, b, p]), expected)
    indices = machine.energy([s, b, torch.tensor([1, 0])])
    torch.testing.assert_close(indices, expected)


@pytest.mark.parametrize("kinds", [k for k in DISCRETE if len(k) > 1], ids="-".join)
def test_conditionals_against_brute_force(kinds):
    machine = small(kinds)
    states, _, _ = brute_force(machine)
    x = [own[len(own) // 3] for own in states]
    for layer, units in enumerate(machine.layers):
        trials = all_states(units)
        others = [own.expand(len(trials), *own.shape) for own in x]
        others[layer] = trials
        weights = (-machine.energy(others)).softmax(0).detach()
        mean = (weights @ trials.flatten(1)).view(units.state_shape)
        torch.testing.assert_close(machine.conditional(layer, x).mean.detach(), mean, rtol=0, atol=1e-12)


def test_pairwise_couplings_are_symmetric():
    machine = machine_of(["Spin"], [5], seed=4)
    J = machine.coupling(0)
    assert torch.equal(J, J.T)
    assert not J.diagonal().any()
    machine.energy(torch.ones(5).double()).backward()
    grad = machine.weights[0].grad
    assert torch.equal(grad, grad.T)
    assert not grad.diagonal().any()
    potts = machine_of(["Categorical"], [3], seed=4).coupling(0).view(3, 3, 3, 3)
    assert not torch.stack([potts[i, :, i] for i in range(3)]).any()


# ----- conditioned machines


@pytest.mark.parametrize("kinds", DISCRETE, ids="-".join)
@pytest.mark.parametrize("partial", [False, True])
def test_clamping_against_brute_force(kinds, partial):
    machine = small(kinds, seed=5)
    states, probabilities, log_partition = brute_force(machine)
    rows = torch.tensor([0, len(probabilities) // 2, len(probabilities) - 1])
    x = states[0][rows]
    n = machine.layers[0].n
    mask = torch.rand(3, n, generator=torch.Generator().manual_seed(1)) < 0.5 if partial else None
    clamped = clamp(machine, x, mask=mask)
    found = exact_log_partition(clamped)
    for row in range(3):
        agrees = states[0] == x[row]
        agrees = agrees.all(-1) if agrees.dim() > 2 else agrees
        held = torch.ones(n, dtype=torch.bool) if mask is None else mask[row]
        weight = probabilities[(agrees | ~held).all(-1)].sum().log() + log_partition
        assert float(found[row]) == pytest.approx(float(weight), abs=1e-11)


@pytest.mark.parametrize("kinds", DISCRETE, ids="-".join)
def test_evidence_against_brute_force(kinds):
    machine = small(kinds, seed=6)
    states, _, _ = brute_force(machine)
    layer = len(kinds) - 1
    random = Tensors(7)
    shape = (2, *machine.layers[layer].state_shape)
    evidence = Tilt(random.normal(*shape), random.normal(*shape))
    found = exact_log_partition(condition(machine, evidence, layer=layer))
    log_weights = -machine.energy(states).detach()
    for row in range(2):
        x = states[layer]
        factor = (evidence.field[row] * x - 0.5 * evidence.precision[row] * x**2).flatten(1).sum(-1)
        assert float(found[row]) == pytest.approx(float((log_weights + factor).logsumexp(0)), abs=1e-11)


@pytest.mark.parametrize("kinds", [["Binary", "Spin"], ["TruncatedGaussian", "Binary"], ["Categorical", "Binary"]])
def test_clamped_rbms_are_solved_exactly(kinds):
    """With the visible layer clamped the hidden units are independent, so F is exact."""
    machine = machine_of(kinds, [4, 3], seed=8)
    x = machine.layers[0].sample(Tilt(torch.zeros(6, *machine.layers[0].state_shape).double(), 0.0)).detach()
    solution = solve(clamp(machine, x))
    hidden = machine.layers[1].log_partition(Tilt(machine.field_on(1, [x, None]), 0.0)).sum(-1)
    expected = -(machine.layers[0].log_prior(x).sum(-1) + hidden).detach()
    torch.testing.assert_close(solution.free_energy, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(solution.moments[0].mean, x)
    assert not bool(solution.moments[0].variance.any())


@pytest.mark.parametrize("kind", ["Binary", "Spin", "TruncatedGaussian", "GaussBernoulli", "Gaussian", "Categorical"])
def test_weak_machines_with_evidence_are_nearly_exact(kind):
    """Evidence and partial clamping in the solver, against enumeration at weak coupling."""
    machine = machine_of([kind, "Binary"], [4, 3], seed=9, scale=0.02)
    visible = machine.layers[0]
    random = Tensors(10)
    shape = (5, *visible.state_shape)
    seen = condition(machine, Tilt(random.normal(*shape), random.uniform(0.0, 1.0, *shape)))
    x = visible.sample(Tilt(torch.zeros(shape).double(), 0.0)).detach()
    for version in (seen, clamp(seen, x, mask=random.uniform(0, 1, 5, 4) < 0.5), clamp(machine, x[0])):
        solution = solve(version, tol=1e-24)
        exact = exact_log_partition(version)
        torch.testing.assert_close(-solution.free_energy, exact.expand_as(solution.free_energy), rtol=0, atol=2e-5)


def test_conditioned_machines_share_parameters():
    machine = machine_of(["Binary", "Binary"], [4, 3], seed=11)
    clamped = clamp(machine, torch.ones(2, 4).double())
    assert clamped.weights[0] is machine.weights[0]
    assert clamped.layers[1] is machine.layers[1]
    before = solve(clamped).free_energy
    with torch.no_grad():
        machine.layers[0].field += 1.0
    assert not torch.equal(solve(clamped).free_energy, before)
    assert {id(p) for p in clamped.parameters()} == {id(p) for p in machine.parameters()}


def test_nan_where_nothing_is_clamped_is_not_looked_at():
    machine = rbm(Binary(3), Binary(2))
    x = torch.tensor([[1.0, float("nan"), 0.0]])
    solution = solve(clamp(machine, x, mask=~torch.isnan(x)))
    assert bool(solution.converged)
    assert bool(torch.isfinite(solution.moments[0].mean).all())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: clamp(m, torch.full((2, 3), 0.5)), r"layer 0: Binary: x\[0, 0\] is 0.5; expected 0 or 1"),
        (lambda m: clamp(m, torch.zeros(2, 4)), "shape"),
        (lambda m: clamp(m, torch.zeros(2, 3), layer=2), "layer is 2; expected an integer from 0 to 1"),
        (lambda m: clamp(m, torch.zeros(2, 3), mask=torch.ones(3)), "mask is not a bool tensor"),
        (
            lambda m: clamp(m, torch.zeros(2, 3), mask=torch.ones(4, 3, dtype=torch.bool)),
            "inconsistent numbers of rows",
        ),
        (lambda m: condition(m, Tilt(torch.tensor([1.0, float("nan"), 0.0]), 0.0)), r"evidence.field\[1\] is nan"),
        (lambda m: condition(m, Tilt(torch.zeros(4), 0.0)), "evidence.field has shape"),
        (lambda m: condition(m, torch.zeros(3)), "expected a Tilt"),
        (
            lambda m: condition(clamp(m, torch.zeros(2, 3)), Tilt(torch.zeros(4, 2), 0.0), layer=1),
            "different numbers of rows",
        ),
        (
            lambda m: condition(condition(m, Tilt(torch.zeros(2, 3), 0.0)), Tilt(torch.zeros(4, 3), 0.0)),
            "layer 0: evidence has inconsistent numbers of rows",
        ),
        (lambda m: condition(m, Tilt(torch.zeros(3).double(), 0.0)), "evidence.field is torch.float64, but the units"),
    ],
)
def test_bad_conditions(call, message):
    with pytest.raises(ValueError, match=message):
        call(rbm(Binary(3), Binary(2)))


# ----- construction


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rbm(Binary(3), Binary(2), torch.zeros(2, 3)), r"weights\[0\] has shape \(2, 3\); expected a tensor"),
        (lambda: dbm([Binary(3)]), "expected at least 2"),
        (lambda: dbm([Binary(3), Binary(2), Binary(2)], [torch.zeros(3, 2)]), "got 1 weight matrices"),
        (lambda: rbm(Binary(3), "hidden"), "layer 1 is a str; expected units"),
        (lambda: rbm(Binary(3), Binary(2).double()), "layer 1: the dtype of the parameters is torch.float64"),
        (lambda: rbm(Binary(3), Binary(2), torch.zeros(3, 2).double()), r"weights\[0\] is torch.float64"),
        (lambda: pairwise(Spin(3), torch.arange(9.0).view(3, 3)), "not symmetric"),
        (lambda: pairwise(Spin(3), torch.eye(3)), "couples a unit to itself"),
        (lambda: pairwise(Categorical(2, 3), torch.ones(6, 6) - torch.eye(6)), "the 3 by 3 block of each unit"),
        (lambda: rbm(Binary(3), Binary(2), [[0.0]]), r"weights\[0\] is a list"),
        (lambda: dbm([Binary(3), Binary(2)], torch.zeros(3, 2)), "expected a list of 1"),
        (lambda: rbm(Binary(3), Binary(2)).conditional(1, torch.zeros(4, 3)), "states is a Tensor; expected a list"),
        (lambda: rbm(Binary(3), Binary(2)).conditional(2, [None, None]), "layer is 2; expected an index from 0 to 1"),
        (lambda: dbm(Binary(3), Binary(2)), "layers is a Binary; expected a list"),
        (lambda: BoltzmannMachine([]), "at least one layer"),
        (lambda: rbm(Binary(3), Binary(2)).energy([torch.zeros(3)]), "got states of 1 layers"),
        (lambda: rbm(Binary(3), Binary(2)).energy([torch.zeros(3), torch.full((2,), 2.0)]), r"layer 1: Binary: x\[0\]"),
        (lambda: rbm(Binary(3), Binary(2)).conditional(1, [None, None]), "layer 0: states are missing"),
    ],
)
def test_bad_machines(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_matrix_that_is_symmetric_to_rounding():
    J = torch.tensor([[0.0, 1.0], [1.0 + 1e-6, 0.0]])
    assert torch.equal(pairwise(Spin(2), J).coupling(0), pairwise(Spin(2), J).coupling(0).T)


def test_one_of_many_solutions():
    solution = solve(rbm(Binary(3), Binary(2)), torch.eye(3))
    assert solution.select(solution.free_energy.argmin()).moments[0].mean.shape == (1, 3)
    assert len(solution.select(2)) == 1


def test_new_weights_are_small_and_always_the_same():
    first, second = rbm(Binary(200), Binary(100)), rbm(Binary(200), Binary(100))
    assert torch.equal(first.weights[0], second.weights[0])
    assert first.weights[0].std().item() == pytest.approx(1e-3, rel=0.05)
    other = rbm(Binary(200), Binary(100), generator=torch.Generator().manual_seed(1))
    assert not torch.equal(first.weights[0], other.weights[0])
    assert pairwise(Spin(300)).weights[0].std().item() == pytest.approx(1e-3, rel=0.05)


def test_copies_and_saved_states():
    machine = machine_of(["GaussBernoulli", "Binary"], [4, 3], seed=12)
    twin = copy.deepcopy(machine)
    with torch.no_grad():
        twin.weights[0].zero_()
    twin.load_state_dict(machine.state_dict())
    assert torch.equal(solve(twin).free_energy, solve(machine).free_energy)
    assert machine.float().dtype == torch.float32
    assert solve(machine).free_energy.dtype == torch.float32


# ----- sampling

# Of a normal distribution that is one false alarm in 10¹⁰ comparisons; of those below there are about 200.
SIGMAS = 6.5


@pytest.mark.parametrize(
    "kinds", [*DISCRETE, ["TruncatedGaussian", "Binary"], ["GaussBernoulli", "Spin"]], ids="-".join
)
def test_gibbs_samples_have_the_exact_moments(kinds):
    machine = small(kinds, seed=13, scale=0.5)
    n_chains = 5_000
    generator = torch.Generator().manual_seed(1)
    no_tilt = Tilt(torch.zeros(n_chains, *machine.layers[0].state_shape).double(), 0.0)
    chain = gibbs(machine, machine.layers[0].sample(no_tilt, generator), n_sweeps=20, generator=generator)
    exact = exact_moments(machine)
    for x, own in zip(chain, exact.moments, strict=True):
        error = (x.mean(0) - own.mean).abs() / (own.variance / n_chains).sqrt().clamp(min=1e-9)
        assert error.max() < SIGMAS
    for (below, above, _), covariance in zip(machine.edges(), exact.covariances, strict=True):
        a, b = (chain[layer].flatten(1) - exact.moments[layer].mean.flatten() for layer in (below, above))
        deviation = ((a.T @ b) / n_chains - covariance).abs()
        spread = ((a**2).T @ b**2 / n_chains).sqrt()  # of the products
        assert (deviation / spread.clamp(min=1e-9)).max() < SIGMAS / n_chains**0.5


def test_gibbs_keeps_what_is_clamped():
    machine = small(["Binary", "Binary"], seed=14)
    x = torch.tensor([[1.0, 0.0, 1.0, 0.0]]).double().expand(50, 4)
    mask = torch.tensor([True, True, False, False])
    chain = gibbs(clamp(machine, x[0], mask=mask), x, n_sweeps=5, generator=torch.Generator().manual_seed(2))
    assert torch.equal(chain[0][:, :2], x[:, :2])
    assert chain[0][:, 2:].std(0).min() > 0


def test_quadrature_stands_for_the_units():
    units = TruncatedGaussian(3, field=Tensors(15).normal(3), precision=Tensors(16).normal(3))
    discrete = by_quadrature(units)
    assert isinstance(discrete, Custom)
    tilt = Tilt(Tensors(17).normal(3), Tensors(18).normal(3))
    torch.testing.assert_close(discrete.log_partition(tilt), units.log_partition(tilt), rtol=0, atol=1e-12)


def test_categorical_means_are_checked():
    machine = rbm(Categorical(2, 3), Binary(2))
    with pytest.raises(ValueError, match="sum of the means"):
        solve(machine, torch.full((1, 2, 3), 0.5))
    assert bool(solve(machine, torch.tensor([[0, 2]])).converged)


def test_clamping_by_numbers_of_states():
    machine = rbm(Categorical(3, 4), Binary(2))
    mask = torch.tensor([True, True, False])
    solution = solve(clamp(machine, torch.tensor([0, 1, -1]), mask=mask))  # -1 is not looked at
    assert torch.equal(solution.moments[0].mean[0, :2], torch.eye(4)[:2])
    with pytest.raises(ValueError, match=r"layer 0: Categorical: x\[2\] is 7"):
        clamp(machine, torch.tensor([0, 1, 7]))


def test_a_mask_of_everything_is_no_mask():
    machine = machine_of(["Gaussian", "Gaussian"], [3, 2], seed=20, scale=0.3)
    x = Tensors(21).normal(3)
    plain, masked = (exact_log_partition(clamp(machine, x, mask=mask)) for mask in (None, torch.ones(3) > 0))
    assert torch.equal(plain, masked)


def test_gibbs_starts_from_what_is_clamped():
    machine = machine_of(["Binary", "Binary"], [3, 2], seed=22, scale=3.0)
    x = torch.ones(3).double()
    generator = torch.Generator().manual_seed(3)
    for n_sweeps in (0, 1):
        visible, hidden = gibbs(clamp(machine, x), torch.zeros(20_000, 3).double(), n_sweeps, generator)
        assert bool((visible == 1).all())
        exact = machine.conditional(1, [x, None]).mean.detach()
        torch.testing.assert_close(hidden.mean(0), exact, rtol=0, atol=SIGMAS * 0.5 / 20_000**0.5)


@pytest.mark.parametrize(
    ("states", "message"),
    [
        (torch.full((2, 3), 0.5), r"states, layer 0: Binary: x\[0, 0\] is 0.5"),
        ([torch.zeros(2, 3), torch.zeros(5, 2)], "states with different leading shapes"),
        ([torch.zeros(2, 3)] * 3, "got states of 3 layers"),
    ],
)
def test_bad_states_for_gibbs(states, message):
    with pytest.raises(ValueError, match=message):
        gibbs(rbm(Binary(3), Binary(2)), states)
    with pytest.raises(ValueError, match="conditioned on 4 rows"):
        gibbs(clamp(rbm(Binary(3), Binary(2)), torch.zeros(4, 3)), torch.zeros(2, 3))


# ----- other units of measurement


@pytest.mark.parametrize("kind", ["Gaussian", "TruncatedGaussian", "GaussBernoulli"])
@pytest.mark.parametrize("scale", [256.0, 0.37])
def test_rescaled(kind, scale):
    """ln P(x) of the scaled states, a density's, is less by ln(scale) for each value that has a density."""
    machine = machine_of([kind, "Binary"], [5, 3], seed=4)
    x, _ = gibbs(machine, machine.layers[0].sample(Tilt(torch.zeros(20, 5).double(), 0.0)), 3)
    large = rescale(machine, scale)
    shift = math.log(scale) * ((x != 0).double() if kind == "GaussBernoulli" else torch.ones_like(x)).sum(-1)
    before, after = exact_log_likelihood(machine, x), exact_log_likelihood(large, scale * x)
    torch.testing.assert_close(after.values, before.values - shift, rtol=0, atol=1e-9)
    torch.testing.assert_close(
        large.conditional(1, [scale * x, None]).mean, machine.conditional(1, [x, None]).mean, rtol=0, atol=1e-12
    )
    back = rescale(large, 1 / scale)
    torch.testing.assert_close(back.weights[0], machine.weights[0])
    if kind == "GaussBernoulli":
        return
    for shift in (-3.0, torch.linspace(-1.0, 2.0, 5, dtype=torch.float64)):
        elsewhere = exact_log_likelihood(rescale(machine, scale, shift), shift + scale * x)
        torch.testing.assert_close(elsewhere.values, after.values, rtol=0, atol=1e-9)


def test_what_cannot_be_rescaled():
    with pytest.raises(ValueError, match="Binary: states of this unit type cannot be rescaled"):
        rescale(rbm(Binary(3), Binary(2)), 2.0)
    with pytest.raises(ValueError, match="expected a machine with hidden units"):
        rescale(pairwise(Gaussian(3)), 2.0)
    with pytest.raises(ValueError, match="cannot be shifted"):
        rescale(machine_of(["GaussBernoulli", "Binary"], [3, 2], seed=0), 1.0, 2.0)
    with pytest.raises(ValueError, match="scale is 0"):
        rescale(rbm(Gaussian(3), Binary(2)), 0.0)
