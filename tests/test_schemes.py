"""The schemes are right: the order of their error, F's stationarity, and its gradients."""

import numpy as np
import pytest
import torch
from machine_cases import Tensors, draw_weights, exact_version, machine_of, rescale

from tapmachine import TAP, Binary, Moments, NaiveMeanField, ThirdOrderTAP, Tilt, exact_log_partition, rbm, solve
from tapmachine.beliefs import Status

N_MACHINES = 100
MIXES = [
    ["TruncatedGaussian", "Binary", "GaussBernoulli"],
    ["Spin", "TruncatedGaussian", "Binary"],
    ["Categorical", "Spin", "Categorical"],
    ["Custom", "Binary", "Gaussian"],
    ["Binary", "Categorical", "Spin"],
]
SINGLE = ["Binary", "Spin", "TruncatedGaussian", "GaussBernoulli"]
TIGHT = 1e-27  # the square of 3e-14, a hundred times what sums of a few terms of order 1 are rounded by


def kinds_of(kind: str, n_layers: int, seed: int) -> list[str]:
    if kind != "mixed":
        return [kind] * n_layers
    mix = MIXES[seed % len(MIXES)]
    return [mix[(seed // len(MIXES) + layer) % 3] for layer in range(n_layers)]


ARCHITECTURES = {"rbm": [3, 2], "three layers": [2, 2, 2], "pairwise": [3]}
FOUR_LAYERS = {"four layers": [2, 2, 1, 2]}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", [*SINGLE, "mixed"])
def test_order_of_the_error(architecture, kind):
    check_order(architecture, kind, N_MACHINES // 5 if kind in ("Binary", "Spin") else N_MACHINES // 10)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["Binary", "Spin", "mixed"])
def test_order_of_the_error_of_four_layers(kind):
    check_order("four layers", kind, N_MACHINES // 10)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kind", [*SINGLE, "mixed"])
def test_order_of_the_error_on_more_machines(architecture, kind):
    check_order(architecture, kind, N_MACHINES)


def check_order(architecture, kind, n_machines):
    """|F − F_exact| falls as s², s³, s⁴ when the couplings are scaled by s → 0."""
    sizes = (ARCHITECTURES | FOUR_LAYERS)[architecture]
    # The slope wanted, and the larger of two scales: small, but so that the error stays clear of rounding.
    schemes = {NaiveMeanField(): (1.9, 0.005), TAP(): (2.8, 0.005)}
    if kind in ("Binary", "Spin"):
        schemes[ThirdOrderTAP()] = (3.7, 0.02)
    errors = {scheme: np.zeros((n_machines, 2)) for scheme in schemes}
    for seed in range(n_machines):
        kinds = kinds_of(kind, len(sizes), seed)
        if architecture == "pairwise" and kinds[0] == "Gaussian":
            kinds = ["Custom"]  # it has no finite set of states, nor a bounded interval
        machine = machine_of(kinds, sizes, seed)
        weights = draw_weights(machine, Tensors(seed))
        for larger in sorted({scale for _, scale in schemes.values()}):
            for column, scale in enumerate((larger, larger / 2)):
                rescale(machine, weights, scale)
                exact = -exact_log_partition(exact_version(machine))
                for scheme in (scheme for scheme, (_, scale) in schemes.items() if scale == larger):
                    solution = solve(machine, None, scheme, tol=TIGHT)
                    assert bool(solution.converged)
                    errors[scheme][seed, column] = abs(float(solution.free_energy) - float(exact))
    for scheme, (least, _) in schemes.items():
        slope = np.log2(errors[scheme][:, 0].mean() / errors[scheme][:, 1].mean())
        single = np.log2(errors[scheme][:, 0] / errors[scheme][:, 1])
        assert slope >= least, f"{scheme}: slope {slope:.2f}"
        # A machine whose leading coefficient happens to vanish shows the slope at smaller scales only.
        assert np.mean(single >= least) >= 0.9, f"{scheme}: {np.mean(single >= least):.2f} of the machines"


@pytest.mark.parametrize("kind", ["Binary", "Spin", "TruncatedGaussian", "GaussBernoulli", "Gaussian", "Categorical"])
def test_exact_without_couplings(kind):
    machine = machine_of([kind, "Binary"], [3, 2], seed=1, scale=0.0)
    solution = solve(machine)
    assert solution.free_energy.item() == pytest.approx(0.0, abs=1e-13)
    no_tilt = Tilt(torch.zeros_like(solution.moments[0].mean), 0.0)
    expected = machine.layers[0].moments(no_tilt)
    for found, wanted in zip(solution.moments[0], expected, strict=True):
        torch.testing.assert_close(found, wanted.detach(), rtol=1e-12, atol=1e-14)


def directional(machine, solution, scheme, direction):
    """F's derivative along a direction in the parameters, with the solution held fixed."""
    machine.zero_grad()
    scheme.free_energy(machine, list(solution.moments), list(solution.tilts)).sum().backward()
    return sum(float((p.grad * d).sum()) for p, d in zip(machine.parameters(), direction, strict=True))


def shifted_energy(machine, scheme, start, direction, step):
    """F, solved again after a step in the parameters."""
    with torch.no_grad():
        for p, d in zip(machine.parameters(), direction, strict=True):
            p.add_(step * d)
        solution = solve(machine, start, scheme, tol=TIGHT, max_sweeps=3000)
        for p, d in zip(machine.parameters(), direction, strict=True):
            p.sub_(step * d)
    assert bool(solution.converged.all())
    return float(solution.free_energy.sum())


def gradient_error(machine, scheme, seed) -> float:
    """The largest relative error of F's gradients: along the weights, and along each other parameter."""
    solution = solve(machine, None, scheme, tol=TIGHT, max_sweeps=3000)
    assert bool(solution.converged)
    random = Tensors(seed + 10_000)
    names = [name for name, _ in machine.named_parameters()]
    groups = {name.split(".")[0] if "weights" in name else name for name in names}
    worst = 0.0
    for group in sorted(groups):
        direction = [
            random.normal(*p.shape) if name.startswith(group) else torch.zeros_like(p)
            for name, p in machine.named_parameters()
        ]
        exact = directional(machine, solution, scheme, direction)
        step = 2e-4
        values = [shifted_energy(machine, scheme, solution, direction, k * step) for k in (-2, -1, 1, 2)]
        difference = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step)
        worst = max(worst, abs(exact - difference) / max(abs(exact), 1e-2))
    return worst


GRADIENT_CASES = [
    ["Binary", "Binary"],
    ["Spin", "Spin"],
    ["TruncatedGaussian", "Binary"],
    ["GaussBernoulli", "Spin"],
    ["Gaussian", "Binary"],
    ["Categorical", "Binary"],
    ["Custom", "Categorical"],
    ["Binary", "TruncatedGaussian", "Spin"],
    ["Spin"],
    ["Categorical"],
]


def check_gradients(kinds, seeds, scheme=None):
    """dF/dW and dF/dθ with the solution held fixed, against differences of F solved again.

    F of order 1 is rounded at 1e-15, its slopes over steps of 2e-4 at 1e-11, relative to 0.01 or more: at 1e-9.
    """
    sizes = [4] if len(kinds) == 1 else [4, 3, 2][: len(kinds)]
    errors = [gradient_error(machine_of(kinds, sizes, seed, scale=0.3), scheme or TAP(), seed) for seed in seeds]
    assert max(errors) <= 1e-6


@pytest.mark.parametrize("kinds", GRADIENT_CASES, ids="-".join)
def test_gradients_of_the_solved_free_energy(kinds):
    check_gradients(kinds, range(1))


@pytest.mark.slow
@pytest.mark.parametrize("kinds", GRADIENT_CASES, ids="-".join)
def test_gradients_of_the_solved_free_energy_on_more_machines(kinds):
    """100 machines, with those above."""
    check_gradients(kinds, range(1, 10))


@pytest.mark.parametrize("scheme", [NaiveMeanField(), ThirdOrderTAP()], ids=repr)
@pytest.mark.parametrize(
    "kinds", [["Binary", "Binary"], ["Spin", "Binary", "Spin"], ["Spin"], ["Binary"]], ids="-".join
)
def test_gradients_of_the_other_schemes(kinds, scheme):
    check_gradients(kinds, range(1), scheme)


@pytest.mark.parametrize("kinds", GRADIENT_CASES, ids="-".join)
@pytest.mark.parametrize("scheme", [NaiveMeanField(), TAP()], ids=repr)
def test_free_energy_is_stationary_in_the_moments(kinds, scheme):
    """F as a function of every layer's tilt, with the moments that follow from it, has gradient 0 at a solution."""
    sizes = [4] if len(kinds) == 1 else [4, 3, 2][: len(kinds)]
    machine = machine_of(kinds, sizes, seed=3, scale=0.4)
    solution = solve(machine, None, scheme, tol=TIGHT, max_sweeps=3000)
    tilts = [Tilt(*(z.clone().requires_grad_() for z in tilt)) for tilt in solution.tilts]
    moments = [layer.moments(tilt) for layer, tilt in zip(machine.layers, tilts, strict=True)]
    scheme.free_energy(machine, moments, tilts).sum().backward()
    for tilt in tilts:
        for z in tilt:
            # A precision does nothing to a spin, and has no gradient then.
            assert z.grad is None or z.grad.abs().max() < 1e-10


def test_explicit_gradient_formulas():
    """∂(−F)/∂W = aa' + Wcc' [eq:gradupdate1], written out."""
    machine = machine_of(["TruncatedGaussian", "Binary"], [5, 4], seed=4, scale=0.5)
    solution = solve(machine, None, tol=TIGHT)
    TAP().free_energy(machine, list(solution.moments), list(solution.tilts)).sum().backward()
    (a, c), (ah, ch) = solution.moments
    expected = a.T @ ah + machine.weights[0].detach() * (c.T @ ch)
    torch.testing.assert_close(-machine.weights[0].grad, expected, rtol=1e-12, atol=1e-13)


def test_tap_equations_written_out():
    """A = −ΣW²c', B = Aa + ΣWa', a = f_a(B,A), c = f_c(B,A) at a solution, by plain formulas for binary units."""
    machine = machine_of(["Binary", "Binary"], [12, 6], seed=5, scale=0.8)
    solution = solve(machine, torch.bernoulli(torch.full((20, 12), 0.5, dtype=torch.float64)), tol=1e-20)
    assert bool(solution.converged.all())
    W = machine.weights[0].detach()
    (av, cv), (ah, ch) = solution.moments
    for mean, variance, other_mean, other_variance, weights, units, tilt in (
        (av, cv, ah, ch, W.T, machine.layers[0], solution.tilts[0]),
        (ah, ch, av, cv, W, machine.layers[1], solution.tilts[1]),
    ):
        A = -other_variance @ weights**2
        B = A * mean + other_mean @ weights
        torch.testing.assert_close(tilt.precision, A, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(tilt.field, B, rtol=1e-12, atol=1e-12)
        expected = torch.sigmoid(units.field.detach() + B - A / 2)
        torch.testing.assert_close(mean, expected, rtol=0, atol=1e-9)
        torch.testing.assert_close(variance, expected * (1 - expected), rtol=0, atol=1e-9)


def test_categorical_with_two_states_is_binary():
    """A Potts layer with two states and couplings to one of them is a binary layer."""
    random = Tensors(6)
    fields, hidden = random.normal(5), random.normal(3)
    W = 0.7 * random.normal(5, 3)
    from tapmachine import Categorical

    two = Categorical(5, 2, field=torch.stack((torch.zeros_like(fields), fields), -1))
    spread = torch.zeros(5, 2, 3, dtype=torch.float64)
    spread[:, 1] = W
    potts = solve(rbm(two, Binary(3, field=hidden), spread.flatten(0, 1)), tol=1e-22)
    plain = solve(rbm(Binary(5, field=fields), Binary(3, field=hidden), W), tol=1e-22)
    torch.testing.assert_close(potts.free_energy, plain.free_energy, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(potts.moments[0].mean[..., 1], plain.moments[0].mean, rtol=0, atol=1e-9)
    torch.testing.assert_close(potts.moments[1].mean, plain.moments[1].mean, rtol=0, atol=1e-9)


def test_spin_and_binary_machines_are_the_same():
    """x = (1 + s)/2 turns a binary machine into a spin machine with the same ln Z, up to a constant that is known."""
    random = Tensors(7)
    W, u, h = 0.8 * random.normal(6, 4), random.normal(6), random.normal(4)
    from tapmachine import Spin

    spins = rbm(Spin(6, field=u / 2 + W.sum(1) / 4), Spin(4, field=h / 2 + W.sum(0) / 4), W / 4)
    binary = rbm(Binary(6, field=u), Binary(4, field=h), W)
    s, b = solve(spins, tol=1e-24), solve(binary, tol=1e-24)
    torch.testing.assert_close(b.moments[0].mean, (1 + s.moments[0].mean) / 2, rtol=0, atol=1e-9)
    difference = exact_log_partition(binary) - exact_log_partition(spins)
    assert float(s.free_energy - b.free_energy) == pytest.approx(float(difference), abs=1e-9)


@pytest.mark.parametrize("arguments", [{"update": "both"}, {"update": "explicit", "damping": 1.0}, {"damping": 0.5}])
def test_bad_arguments_of_a_scheme(arguments):
    with pytest.raises(ValueError, match=r"expected|requires"):
        TAP(**arguments)


def test_updates_that_do_not_fit_the_machine():
    with pytest.raises(ValueError, match="'implicit' requires layers"):
        solve(machine_of(["Binary"], [3], 0), scheme=TAP("implicit"))


@pytest.mark.parametrize("kinds", [["Spin"], ["Binary"], ["TruncatedGaussian"], ["Categorical"]], ids="-".join)
def test_dampings_of_a_pairwise_machine_agree(kinds):
    machine = machine_of(kinds, [5], seed=8, scale=0.4)
    found = [solve(machine, scheme=TAP("explicit", damping), tol=1e-22) for damping in (None, 0.3)]
    assert all(bool(solution.converged) for solution in found)
    torch.testing.assert_close(found[0].free_energy, found[1].free_energy, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(found[0].moments[0].mean, found[1].moments[0].mean, rtol=0, atol=1e-9)


def test_explicit_and_implicit_agree_where_both_converge():
    machine = machine_of(["Binary", "Spin", "TruncatedGaussian"], [5, 4, 3], seed=9, scale=0.4)
    schemes = [
        TAP(),
        TAP(accelerate=False),
        TAP("explicit"),
        TAP("explicit", damping=0.0),
        TAP("explicit", damping=0.5),
    ]
    found = [solve(machine, scheme=scheme, tol=1e-22, max_sweeps=5000) for scheme in schemes]
    for solution in found:
        assert solution.status.item() == Status.CONVERGED
        torch.testing.assert_close(solution.free_energy, found[0].free_energy, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(solution.moments[2].mean, found[0].moments[2].mean, rtol=0, atol=1e-9)


def test_one_sweep_is_algorithm_one():
    """The undamped explicit sweep, against [alg:rbmInf] written out."""
    machine = machine_of(["TruncatedGaussian", "Binary"], [6, 4], seed=10, scale=0.5)
    visible, hidden = machine.layers
    W = machine.weights[0].detach()
    x = torch.rand(3, 6, dtype=torch.float64)
    process = TAP("explicit", damping=0.0).bind(machine)
    with torch.no_grad():
        ah = hidden.moments(Tilt(x @ W, 0.0)).mean
        a, c = x, torch.zeros_like(x)
        A = -(c @ W**2)
        ah, ch = hidden.moments(Tilt(A * ah + a @ W, A))
        A = -(ch @ W.T**2)
        a, c = visible.moments(Tilt(A * a + ah @ W.T, A))
        state = process.begin(list(machine.layers), [Moments(x, torch.zeros_like(x)), None])
    for found, wanted in zip((*state.moments[0], *state.moments[1]), (a, c, ah, ch), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)
