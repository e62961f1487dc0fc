"""The solver: every start solved, and a status that is true."""

from contextlib import nullcontext
from importlib import import_module
from typing import ClassVar

import numpy as np
import pytest
import torch
from machine_cases import Tensors, machine_of, rounding
from marks import needs_compiler

from tapmachine import (
    TAP,
    Binary,
    Categorical,
    Gaussian,
    Moments,
    NaiveMeanField,
    Spin,
    ThirdOrderTAP,
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
    tap_log_likelihood,
)
from tapmachine.accelerator.replay import Replay
from tapmachine.beliefs import Solution, Status
from tapmachine.solver import random_start
from tapmachine.solver.driver import Progress
from tapmachine.solver.schemes import couplings
from tapmachine.solver.schemes.process import over_tensors
from tapmachine.solver.starts import starting_moments

PAIRS = [
    ["Binary", "Binary"],
    ["Spin", "Binary"],
    ["TruncatedGaussian", "Binary"],
    ["GaussBernoulli", "Binary"],
    ["Binary", "TruncatedGaussian"],
    ["TruncatedGaussian", "GaussBernoulli"],
    ["Categorical", "Binary"],
    ["Categorical", "Categorical"],
    ["Custom", "Spin"],
    ["Binary", "Spin", "Categorical"],
    ["GaussBernoulli", "Binary", "TruncatedGaussian", "Spin"],
]


def starts_of(machine, n_particles, seed=0):
    return random_start(machine, n_particles, torch.Generator().manual_seed(seed))


# ----- F falls


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_free_energy_falls_with_every_half_sweep(kinds, scale):
    """50 random solves each, over 1,000 in all, from weak to strong couplings."""
    sizes = [7, 5, 4, 3][: len(kinds)]
    for seed in range(2):
        machine = machine_of(kinds, sizes, seed, scale)
        layers, scheme = list(machine.layers), TAP()
        process = scheme.bind(machine)
        with torch.no_grad():
            state = process.begin(layers, starting_moments(machine, starts_of(machine, 25, seed)))
            last = torch.full((25,), torch.inf, dtype=torch.float64)
            for _ in range(12):
                moments, tilts = list(state.moments), list(state.tilts)
                process.settle(layers, process.odd, moments, tilts, state.received, None)
                halfway = scheme.value(layers, process.couplings, moments, tilts)
                state = process.sweep(layers, state, None)
                whole = scheme.value(layers, process.couplings, list(state.moments), list(state.tilts))
                for value in (halfway, whole):  # rounded at some 1e-15 of its size
                    assert bool((value <= last + 1e-11 * (1 + value.abs())).all())
                    last = value


@pytest.mark.parametrize("kinds", [*PAIRS, ["Spin"], ["TruncatedGaussian"], ["Categorical"]], ids="-".join)
def test_free_energy_falls_with_every_step(kinds):
    """The accelerated steps, and the damped ones of pairwise machines."""
    sizes = [7] if len(kinds) == 1 else [7, 5, 4, 3][: len(kinds)]
    machine = machine_of(kinds, sizes, seed=1, scale=1.5)
    layers, process = list(machine.layers), TAP().bind(machine)
    with torch.no_grad():
        state = process.begin(layers, starting_moments(machine, starts_of(machine, 30)))
        last = torch.full((30,), torch.inf, dtype=torch.float64)
        for _ in range(20):
            state, _ = process.step(layers, state)
            assert bool((state.free_energy <= last + 1e-10 * (1 + last.abs().nan_to_num())).all())
            last = state.free_energy


def test_extrapolations_that_raise_the_free_energy_are_refused():
    """Near its transition a ferromagnet moves slowly, and a long extrapolation overshoots."""
    W = torch.full((30, 30), 0.04, dtype=torch.float64)
    machine = rbm(Spin(30, field=torch.linspace(-0.3, 0.3, 30).double()), Spin(30, field=0 * W[0]), W)
    layers, process = list(machine.layers), TAP().bind(machine)
    refused = 0
    with torch.no_grad():
        state = process.begin(layers, starting_moments(machine, starts_of(machine, 100)))
        last = torch.full((100,), torch.inf, dtype=torch.float64)
        for _ in range(25):
            state = state._replace(reach=torch.full_like(state.reach, 1e4))
            state, _ = process.step(layers, state)
            refused += int((state.reach < 1e4).sum())
            # F is summed from 900 couplings of 0.04 and 60 units of about ln 2
            assert bool((state.free_energy <= last + rounding(80.0, 960)).all())
            last = state.free_energy
    assert refused > 0


# ----- convergence


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_every_start_is_solved_and_is_a_solution(kinds, scale):
    sizes = [20, 10, 6, 4][: len(kinds)]
    machine = machine_of(kinds, sizes, seed=2, scale=scale)
    solution = solve(machine, starts_of(machine, 50), tol=1e-12)
    assert bool(solution.converged.all()), solution
    confirm(machine, solution, 1e-12)


def confirm(machine, solution, tol):
    """The TAP equations, put together from the public parts, move the solution by less than the tolerance."""
    flat = [own.mean.flatten(1) for own in solution.moments]
    total, count = 0.0, sum(machine.sizes)
    for number, (units, own, tilt) in enumerate(zip(machine.layers, solution.moments, solution.tilts, strict=True)):
        means = [own.mean.detach() for own in solution.moments]
        field = machine.field_on(number, means).detach()
        if len(units.state_shape) == 1 and all(len(u.state_shape) == 1 for u in machine.layers):
            precision = torch.zeros_like(own.mean)
            for below, above, w in machine.edges():
                if above == number:
                    precision = precision - solution.moments[below].variance @ w.detach() ** 2
                if below == number and below != above:
                    precision = precision - solution.moments[above].variance @ w.detach().T ** 2
            torch.testing.assert_close(tilt.precision, precision, rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(tilt.field, field + precision * own.mean, rtol=1e-9, atol=1e-9)
        with torch.no_grad():
            moved = units.moments(tilt)
        for before, after in zip(own, moved, strict=True):
            total = total + (after - before).flatten(1).square().sum(-1)
    # Squares of steps of 1e-6, computed twice from means that are rounded at 1e-16: the same to a part in 10⁹.
    assert bool((total / count < 1.001 * tol).all())
    torch.testing.assert_close(total / count, solution.residual, rtol=1e-3, atol=1e-3 * tol)
    assert all(bool(torch.isfinite(z).all()) for z in flat)


@pytest.mark.parametrize("scheme", [TAP(), TAP("explicit"), NaiveMeanField(), ThirdOrderTAP()], ids=repr)
@pytest.mark.parametrize("kinds", [["Spin"], ["Binary"]], ids="-".join)
def test_pairwise_machines_converge(kinds, scheme):
    """SK-like machines, up to a coupling where the landscape is rugged."""
    scale = 0.25 if isinstance(scheme, ThirdOrderTAP) else 1.0
    machine = machine_of(kinds, [40], seed=3, scale=scale * 1.5 / 40**0.5)
    solution = solve(machine, starts_of(machine, 40), scheme, tol=1e-16, max_sweeps=5000)
    assert bool(solution.converged.all()), solution


def test_a_hard_machine_converges_where_the_explicit_update_oscillates():
    W = Tensors(1).normal(100, 10)
    machine = rbm(Binary(100, field=-W.sum(1) / 2), Binary(10, field=-W.sum(0) / 2), W)
    start = starts_of(machine, 40)
    explicit = solve(machine, start, TAP("explicit", damping=0.0), max_sweeps=300)
    implicit = solve(machine, start)
    assert bool(implicit.converged.all())
    assert explicit.converged.float().mean() < 0.5
    assert set(explicit.counts()) <= {"converged", "max_sweeps"}
    assert bool((explicit.residual[~explicit.converged] >= 1e-8).all())


def test_hopfield_patterns_are_solutions():
    generator = torch.Generator().manual_seed(5)
    patterns = torch.sign(torch.randn(3, 200, generator=generator, dtype=torch.float64))
    J = 2.0 * (patterns.T @ patterns) / 200
    J.fill_diagonal_(0)
    machine = pairwise(Spin(200, field=torch.zeros(200, dtype=torch.float64)), J)
    flips = torch.rand(3, 200, generator=generator, dtype=torch.float64) < 0.15
    solution = solve(machine, torch.where(flips, -patterns, patterns))
    assert bool(solution.converged.all())
    assert ((solution.moments[0].mean * patterns).mean(-1) > 0.9).all()


def test_tolerance_for_counting():
    machine = machine_of(["Binary", "Binary"], [30, 12], seed=6, scale=1.0)
    loose, tight = (solve(machine, starts_of(machine, 60), tol=tol) for tol in (1e-8, 1e-14))
    assert bool(tight.converged.all())
    assert tight.residual.max() < 1e-14
    assert (tight.n_sweeps >= loose.n_sweeps).all()


# ----- independence of the batch


@pytest.mark.parametrize("kinds", [["Binary", "Binary"], ["TruncatedGaussian", "Spin"], ["Spin"]], ids="-".join)
def test_a_row_does_not_depend_on_its_batch(kinds):
    machine = machine_of(kinds, [30, 12][: len(kinds)], seed=7, scale=0.8 if len(kinds) > 1 else 0.15)
    start = starts_of(machine, 40)
    together = solve(machine, start)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    shuffled = solve(machine, Moments(*(z[order] for z in start)))
    # Rows of another batch are rounded otherwise, at 1e-16, and sweeps near a saddle magnify that. What another row
    # could do to this one would be of the size of the solver's tolerance, 1e-4.
    small = solve(machine, start, batch_size=7)
    alone = [solve(machine, Moments(*(z[k : k + 1] for z in start))) for k in range(0, 40, 5)]
    for name in ("mean", "variance"):
        for layer in range(len(kinds)):
            whole = getattr(together.moments[layer], name)
            torch.testing.assert_close(getattr(shuffled.moments[layer], name), whole[order], rtol=0, atol=1e-9)
            torch.testing.assert_close(getattr(small.moments[layer], name), whole, rtol=0, atol=1e-9)
            for number, single in enumerate(alone):
                torch.testing.assert_close(
                    getattr(single.moments[layer], name)[0], whole[5 * number], rtol=0, atol=1e-9
                )
    assert torch.equal(together.n_sweeps, small.n_sweeps)


def test_many_more_starts_than_fit_at_once():
    machine = machine_of(["Binary", "Binary"], [10, 4], seed=8, scale=1.0)
    seen: list[Progress] = []
    solution = solve(machine, starts_of(machine, 5000), batch_size=512, callback=seen.append)
    assert bool(solution.converged.all())
    assert seen[-1] == Progress(finished=5000, converged=5000, total=5000)
    assert [p.finished for p in seen] == sorted(p.finished for p in seen)


def test_the_same_twice_bit_for_bit():
    machine = machine_of(["GaussBernoulli", "Binary"], [12, 6], seed=9, scale=1.0)
    first, second = (solve(machine, starts_of(machine, 20)) for _ in range(2))
    assert torch.equal(first.free_energy, second.free_energy)
    assert torch.equal(first.moments[0].mean, second.moments[0].mean)


# ----- what cannot be solved is said


def test_sweeps_are_limited():
    machine = machine_of(["Binary", "Binary"], [20, 10], seed=10, scale=1.0)
    for most in (1, 2, 3, 4, 7, 11):
        solution = solve(machine, starts_of(machine, 5), tol=1e-30, max_sweeps=most)
        assert solution.counts() == {"max_sweeps": 5}
        assert bool((solution.n_sweeps <= most).all())
        assert bool(torch.isfinite(solution.free_energy).all())
        assert bool((solution.residual > 1e-30).all())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("scheme", [TAP(), TAP("explicit"), TAP("explicit", damping=0.0), NaiveMeanField()], ids=repr)
def test_a_weight_that_is_not_finite(value, scheme):
    machine = machine_of(["Binary", "Binary"], [5, 3], seed=11)
    with torch.no_grad():
        machine.weights[0][1, 2] = value
    solution = solve(machine, torch.ones(4, 5, dtype=torch.float64), scheme)
    assert solution.counts() == {"nonfinite": 4}
    no_nan(solution)
    assert torch.equal(solution.moments[0].mean, torch.ones(4, 5, dtype=torch.float64))


def no_nan(solution: Solution) -> None:
    for z in [z for own in (*solution.moments, *solution.tilts) for z in own]:
        assert bool(torch.isfinite(z).all())
    assert not bool(torch.isnan(solution.free_energy).any())
    assert not bool(torch.isnan(solution.residual).any())


def test_an_unnormalizable_gaussian():
    """κ > V on some rows only: the others are solved as if they were alone."""
    W = torch.full((1, 1), 1.5, dtype=torch.float64)
    machine = rbm(Gaussian(1, precision=torch.ones(1, dtype=torch.float64)), Binary(1, field=W[0] * 0), W)
    evidence = Tilt(torch.tensor([[0.0], [9.0], [0.0], [-9.0]], dtype=torch.float64), 0.0)
    weak = condition(machine, evidence, layer=1)  # a strong field on the hidden unit leaves it no variance
    solution = solve(weak)
    assert solution.status.tolist() == [Status.CONVERGED] * 4
    with torch.no_grad():
        machine.weights[0].fill_(2.5)
    solution = solve(condition(machine, evidence, layer=1))
    assert solution.status.tolist() == [
        Status.UNNORMALIZABLE,
        Status.CONVERGED,
        Status.UNNORMALIZABLE,
        Status.CONVERGED,
    ]
    no_nan(solution)
    assert torch.isinf(solution.free_energy).tolist() == [True, False, True, False]
    assert repr(solution) == "Solution(2 converged, 2 unnormalizable)"
    assert len(solution.select(solution.converged)) == 2


def test_an_unnormalizable_gaussian_from_data():
    machine = machine_of(["Gaussian", "Gaussian"], [6, 5], seed=12, scale=3.0)
    solution = solve(machine, torch.zeros(3, 6, dtype=torch.float64))
    assert solution.counts() == {"unnormalizable": 3}
    no_nan(solution)


def test_a_failure_does_not_touch_the_others():
    """One row of evidence that cannot be normalized, among others that can."""
    machine = dbm(
        [Binary(40).double(), Binary(20).double(), Gaussian(5, precision=50.0).double()],
        [3 * Tensors(20).normal(40, 20), Tensors(21).normal(20, 5)],
    )
    precision = torch.zeros(6, 5, dtype=torch.float64)
    start = starts_of(machine, 6)
    good = solve(condition(machine, Tilt(torch.zeros_like(precision), precision), layer=2), start)
    precision[0] = -49.9
    mixed = solve(condition(machine, Tilt(torch.zeros_like(precision), precision), layer=2), start)
    assert mixed.counts() == {"converged": 5, "unnormalizable": 1}
    no_nan(mixed)
    torch.testing.assert_close(mixed.moments[0].mean[1:], good.moments[0].mean[1:], rtol=0, atol=1e-9)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("kinds", [["Categorical", "Binary"], ["Categorical", "Categorical"], ["Categorical"]])
def test_a_weight_that_is_not_finite_with_several_states(kinds, value):
    machine = machine_of(kinds, [3, 2][: len(kinds)], seed=22)
    with torch.no_grad():
        machine.weights[0].fill_(value)
    solution = solve(machine)
    assert solution.counts() == {"nonfinite": 1}
    no_nan(solution)


def test_a_parameter_that_is_not_finite():
    machine = rbm(Binary(3), Binary(2))
    with torch.no_grad():
        machine.layers[1].field[0] = float("nan")
    for start in (None, torch.zeros(2, 3)):
        solution = solve(machine, start)
        assert set(solution.counts()) == {"nonfinite"}
        no_nan(solution)


@pytest.mark.parametrize("layer", [0, 1])
def test_evidence_that_cannot_be_normalized(layer):
    """A prior that is unnormalizable by itself has no moments to start from."""
    machine = rbm(*[Gaussian(4), Binary(3)][:: 1 if layer == 0 else -1])
    seen = condition(machine, Tilt(0.0, -5.0), layer=layer)
    solution = solve(seen)
    assert solution.counts() == {"unnormalizable": 1}
    no_nan(solution)


@pytest.mark.parametrize("weight", [2.5, 5.0])
def test_the_cause_of_a_failure_is_true(weight):
    """All weights and tilts are finite, so that nothing but the normalizer can fail."""
    machine = rbm(Gaussian(1), Binary(1), torch.full((1, 1), weight))
    solution = solve(machine, random_start(machine, 20))
    assert set(solution.counts()) <= {"converged", "unnormalizable"}
    no_nan(solution)


def test_a_pairwise_gaussian_just_beyond_what_can_be_normalized():
    """It takes many sweeps to find out."""
    J = torch.full((6, 6), 1.0, dtype=torch.float64).fill_diagonal_(0) * 0.226
    machine = pairwise(Gaussian(6, precision=torch.ones(6, dtype=torch.float64)), J)
    solution = solve(machine, max_sweeps=3000)
    assert solution.counts() == {"unnormalizable": 1}
    no_nan(solution)


@pytest.mark.parametrize("kinds", [["Categorical", "Binary"], ["Categorical", "Categorical"]])
def test_strong_couplings_with_several_states_in_float32(kinds):
    machine = machine_of(kinds, [12, 7], seed=24, scale=5.0).float()
    solution = solve(machine, starts_of(machine, 20))
    assert solution.converged.float().mean() >= 0.9, solution


# ----- bad input


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (
            torch.tensor([[0.0, 1.0, 1.5]]),
            r"start, layer 0: Binary: x\[0, 2\] is 1.5; expected a mean inside the support, 0 to 1",
        ),
        (torch.tensor([[0.0, float("nan"), 1.0]]), r"start, layer 0: Binary: x\[0, 1\] is nan"),
        (torch.zeros(2, 4), r"start, layer 0: Binary: x has shape \(2, 4\); expected a shape ending in \(3,\)"),
        (torch.zeros(3), r"start, layer 0: the shape is \(3,\); expected \(K, 3\)"),
        (torch.zeros(0, 3), r"start, layer 0: the shape is \(0, 3\)"),
        (Moments(torch.zeros(2, 3), torch.full((2, 3), -1.0)), r"start, layer 0: Binary: variance\[0, 0\] is -1"),
        ([Moments(torch.zeros(2, 3), torch.zeros(2, 3))] * 3, "start has moments for 3 layers, but the machine has 2"),
        ([], "start is an empty list; expected data of shape"),
        ("data", "start is a str; expected data of shape"),
    ],
)
def test_a_bad_start(start, message):
    with pytest.raises(ValueError, match=message):
        solve(rbm(Binary(3), Binary(2)), start)


def test_a_start_may_leave_out_the_upper_layers():
    machine = machine_of(["Binary", "Spin", "Binary"], [6, 5, 4], seed=3, scale=1.0)
    start = starts_of(machine, 4)
    expected = solve(machine, start)
    assert torch.equal(solve(machine, [start]).free_energy, expected.free_energy)
    layers = starting_moments(machine, [*expected.moments[:2]])
    assert layers[1] is not None
    assert layers[2] is None
    assert bool(solve(machine, expected.moments[:2]).converged.all())


def test_a_start_of_another_dtype_is_converted():
    machine = rbm(Binary(3), Categorical(2, 3))
    x = torch.eye(3)
    expected = solve(machine, x)
    for start in (x.double(), x.numpy().astype("float64"), Moments(x.double(), torch.zeros(3, 3).double())):
        found = solve(machine, start)
        assert torch.equal(found.free_energy, expected.free_energy)
        assert found.moments[0].mean.dtype == torch.float32
    precise = solve(machine.double(), x)
    machine.float()
    assert bool(solve(machine, precise).converged.all())  # probabilities that were rounded still add up to 1


def test_starts_that_do_not_fit_each_other():
    machine = rbm(Binary(3), Binary(2))
    start = [Moments(torch.zeros(2, 3), torch.zeros(2, 3)), Moments(torch.zeros(4, 2), torch.zeros(4, 2))]
    with pytest.raises(ValueError, match="start has 4 particles in layer 1, but 2 in layer 0"):
        solve(machine, start)
    with pytest.raises(ValueError, match="start has 3 particles, but the machine is conditioned on 2 rows"):
        solve(clamp(machine, torch.zeros(2, 3)), torch.zeros(3, 3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tol": 0.0}, "tol is 0.0; expected"),
        ({"tol": float("nan")}, "tol is nan; expected"),
        ({"scheme": TAP}, "expected a scheme"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        solve(rbm(Binary(3), Binary(2)), **arguments)


# ----- starts


def test_a_solution_is_a_start():
    machine = machine_of(["Binary", "Spin", "TruncatedGaussian"], [8, 6, 4], seed=13, scale=1.0)
    first = solve(machine, starts_of(machine, 10), tol=1e-20)
    second = solve(machine, first, tol=1e-18)
    assert second.n_sweeps.max() <= 4
    torch.testing.assert_close(second.free_energy, first.free_energy, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["Binary", "Spin", "TruncatedGaussian", "GaussBernoulli", "Gaussian", "Categorical"])
def test_random_starts_lie_inside_the_support(kind):
    machine = machine_of([kind, "Binary"], [6, 3], seed=14)
    mean, variance = random_start(machine, 500, torch.Generator().manual_seed(2))
    machine.layers[0].check_means(mean)
    assert not bool(variance.any())
    assert mean.flatten(1).std(0).min() > 0.05
    assert torch.equal(random_start(machine, 5).mean, random_start(machine, 5).mean)


def test_starting_from_the_prior():
    machine = machine_of(["TruncatedGaussian", "Binary"], [6, 3], seed=15, scale=0.2)
    assert len(solve(machine)) == 1
    assert len(solve(clamp(machine, torch.rand(7, 6, dtype=torch.float64)))) == 7


def test_whole_numbers_are_states():
    with pytest.raises(ValueError, match=r"Spin: x\[0, 0\] is 0; expected -1 or 1"):
        solve(rbm(Spin(2), Binary(2)), torch.tensor([[0, 1]]))


def test_whole_numbers_are_data_too():
    machine = rbm(Binary(4), Binary(2))
    x = torch.tensor([[0, 1, 1, 0]], dtype=torch.uint8)
    assert torch.equal(solve(machine, x).free_energy, solve(machine, x.float()).free_energy)


# ----- precision and devices


def test_float32_and_float64_agree():
    machine = machine_of(["Binary", "Binary"], [40, 20], seed=16, scale=0.3)
    single = dbm([Binary(40), Binary(20)])
    single.load_state_dict({name: value.float() for name, value in machine.state_dict().items()})
    x = torch.bernoulli(torch.full((10, 40), 0.5), generator=torch.Generator().manual_seed(3))
    fine, coarse = solve(machine, x.double(), tol=1e-12), solve(single, x, tol=1e-10)
    assert bool(coarse.converged.all())
    np.testing.assert_allclose(coarse.free_energy.numpy(), fine.free_energy.numpy(), atol=1e-4)


@pytest.mark.long
@needs_compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
@pytest.mark.parametrize(
    "scheme",
    [
        TAP(),
        TAP("explicit"),
        *(pytest.param(s, marks=pytest.mark.slow) for s in (TAP("explicit", damping=0.5), NaiveMeanField())),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    "kinds",
    [
        ["Binary", "Spin"],
        pytest.param(["Categorical", "Gaussian"], marks=pytest.mark.slow),
        pytest.param(["TruncatedGaussian", "Binary", "GaussBernoulli"], marks=pytest.mark.slow),
    ],
)
def test_steps_are_one_graph(kinds, scheme):
    """No look at the values and no break: what compilation and capture need."""
    machine = machine_of(kinds, [6, 4, 3][: len(kinds)], seed=26, scale=0.3)
    layers, process = list(machine.layers), scheme.bind(machine)
    process.root_steps = 3
    with torch.no_grad():
        state = process.begin(layers, starting_moments(machine, starts_of(machine, 5)))
        plain, residual = process.step(layers, state)
        traced, traced_residual = torch.compile(process.step, fullgraph=True, backend="eager")(layers, state)
    torch.testing.assert_close(traced_residual, residual, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(process.moments(traced)[0].mean, process.moments(plain)[0].mean, rtol=0, atol=1e-10)


@pytest.mark.slow
@needs_compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
def test_compiled_sweeps_agree():
    machine = machine_of(["Binary", "Binary"], [12, 6], seed=17, scale=1.0)
    start = starts_of(machine, 12)
    plain, compiled = solve(machine, start, tol=1e-16), solve(machine, start, tol=1e-16, compile=True)
    assert bool(compiled.converged.all())
    torch.testing.assert_close(compiled.free_energy, plain.free_energy, rtol=1e-9, atol=1e-9)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kinds", [*PAIRS, ["Spin"]], ids="-".join)
def test_a_gpu_finds_the_same(kinds):
    sizes = [20] if len(kinds) == 1 else [20, 10, 6, 4][: len(kinds)]
    machine = machine_of(kinds, sizes, seed=18, scale=0.2)
    start = starts_of(machine, 70)
    here = solve(machine, start, tol=1e-18)
    there = solve(machine.cuda(), Moments(*(z.cuda() for z in start)), tol=1e-18, batch_size=32)
    assert bool(there.converged.all())
    torch.testing.assert_close(there.free_energy.cpu(), here.free_energy, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(there.moments[0].mean.cpu(), here.moments[0].mean, rtol=0, atol=1e-6)


class Stream:
    """In place of CUDA's, for what would be captured to be done at once, on a CPU."""

    waited: ClassVar[list[tuple["Stream", "Stream"]]] = []

    def wait_stream(self, other):
        self.waited.append((self, other))


@pytest.fixture
def done_at_once(monkeypatch):
    main = Stream()
    monkeypatch.setattr(Stream, "waited", [])
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: main)
    for name in ("stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda _: nullcontext())
    return main


@torch.no_grad()
@pytest.mark.parametrize("n_groups", [1, 3])
def test_what_is_captured_are_the_steps_of_all_particles(n_groups, done_at_once):
    machine = machine_of(["Binary", "Binary"], [20, 10], seed=18, scale=0.2)
    process = TAP().bind(machine)
    wanted = first = process.begin(list(machine.layers), starting_moments(machine, starts_of(machine, 17)))
    for _ in range(2):
        wanted, residual = process.step(list(machine.layers), wanted)
    replay = Replay(lambda state: process.step(list(machine.layers), state), first, 2, n_groups=n_groups)
    over_tensors(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=1e-12) or a, replay.state, wanted)
    torch.testing.assert_close(replay.residual, residual, rtol=0, atol=1e-12)


@torch.no_grad()
def test_streams_are_joined_where_memory_runs_out(done_at_once):
    """A capture whose streams are not joined cannot end, and says so in place of what went wrong."""
    calls = []

    def step(state):
        calls.append(1)
        if len(calls) == 5:  # the second of three groups, after a warm-up of three
            raise torch.OutOfMemoryError("no memory")
        return state, state[0].sum(1)

    with pytest.raises(torch.OutOfMemoryError):
        Replay(step, (torch.zeros(6, 2),), 1, n_groups=3)
    side = {own for own, other in Stream.waited[2:] if own is not done_at_once}
    assert len(side) == 2
    assert {other for own, other in Stream.waited if own is done_at_once} >= side


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("n_particles", [64, 70])
def test_groups_of_particles_on_a_gpu_find_the_same(n_particles, monkeypatch):
    machine = machine_of(["Binary", "Binary"], [20, 10], seed=18, scale=0.2).cuda()
    start = Moments(*(z.cuda() for z in starts_of(machine.cpu(), n_particles)))
    machine.cuda()
    alone = solve(machine, start, tol=1e-12)  # not so tight that rounding decides how many sweeps it takes
    monkeypatch.setattr(import_module("tapmachine.solver.driver"), "MANY_PARTICLES", 30)
    grouped = solve(machine, start, tol=1e-12)
    assert bool(grouped.converged.all())
    torch.testing.assert_close(grouped.free_energy, alone.free_energy, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(grouped.moments[0].mean, alone.moments[0].mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(grouped.n_sweeps, alone.n_sweeps)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_failures_are_reported_on_a_gpu():
    machine = machine_of(["Gaussian", "Binary"], [6, 5], seed=12, scale=3.0).cuda()
    solution = solve(machine, torch.zeros(3, 6, dtype=torch.float64, device="cuda"))
    assert solution.counts() == {"unnormalizable": 3}
    no_nan(solution)


def test_real_units_out_of_the_box():
    """Truncated-Gaussian visible units with a uniform prior: nothing to set."""
    machine = rbm(TruncatedGaussian(30), Binary(10), 0.8 * Tensors(19).normal(30, 10).float())
    solution = solve(machine, torch.rand(20, 30, generator=torch.Generator().manual_seed(4)))
    assert bool(solution.converged.all())


@pytest.mark.parametrize("n_senders", [61, 100, 128, 500, 784])
@pytest.mark.parametrize("n_particles", [3, couplings.VERY_FEW_PARTICLES + 1])
def test_products_in_one_launch_are_the_products(n_senders, n_particles):
    generator = torch.Generator().manual_seed(n_senders)
    mean, variance = torch.rand(2, n_particles, n_senders, generator=generator, dtype=torch.float64)
    weights = torch.randn(n_senders, 5, generator=generator, dtype=torch.float64)
    field, reaction = couplings.products_in_one_launch(mean, variance, torch.cat((weights.T, weights.T**2), -1))
    for found, wanted, size in (
        (field, mean @ weights, mean @ weights.abs()),
        (reaction, variance @ weights**2, variance @ weights**2),
    ):
        assert bool(((found - wanted).abs() <= rounding(size, n_senders)).all())


# ----- what users read


def test_means_in_float64_are_accurate_by_default():
    """A magnet near its critical point, where the largest changes are small: the magnetization is 0."""
    magnet = pairwise(Spin(100).double(), 0.95 / 100 * (1 - torch.eye(100)).double())
    start = torch.full((1, 100), 0.5).double()
    assert float(solve(magnet, start).moments[0].mean.abs().max()) < 3e-6
    assert float(solve(magnet, start, tol=1e-8).moments[0].mean.abs().max()) > 1e-4


def test_outcomes_are_words():
    machine = rbm(Binary(4), Binary(2), torch.ones(4, 2))
    assert solve(machine, torch.eye(4)).outcomes == ["converged"] * 4
    assert solve(machine, torch.eye(4), tol=1e-30, max_sweeps=2).outcomes == ["max_sweeps"] * 4


def test_arrays_are_data_states_and_starts():
    machine, x = rbm(Binary(4), Binary(2)), np.eye(4)
    rows = torch.eye(4)
    assert torch.equal(exact_log_likelihood(machine, x).values, exact_log_likelihood(machine, rows).values)
    assert torch.equal(tap_log_likelihood(machine, x).values, tap_log_likelihood(machine, rows).values)
    assert torch.equal(solve(machine, x).free_energy, solve(machine, rows).free_energy)
    draws = [gibbs(machine, z, 2, torch.Generator().manual_seed(0))[0] for z in (x, rows)]
    assert torch.equal(*draws)


def test_signs_and_counting_of_an_ising_model():
    """As the guide states them, against a sum over all states."""
    half = torch.triu(Tensors(0).normal(6, 6), 1)
    h, couplings = Tensors(1).normal(6), half + half.T
    states = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0]).double()] * 6)
    energy = -(states @ half * states).sum(1) - states @ h  # each pair once
    machine = pairwise(Spin(6, field=h).double(), couplings)
    log_partition = exact_log_partition(machine) + (2 * torch.cosh(h)).log().sum()
    torch.testing.assert_close(log_partition, (-energy).logsumexp(0), rtol=0, atol=1e-12)
