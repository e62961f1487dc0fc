"""Third order of the expansion for all unit types: third cumulants, the order of the error, F and its gradients."""

import numpy as np
import pytest
import torch
from machine_cases import UNITS, Tensors, draw_weights, rescale
from mpmath import mp, mpf
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from unit_cases import CASES, parameters_of

from tapmachine import (
    TAP,
    Binary,
    Categorical,
    Gaussian,
    Mixed,
    Poisson,
    SpikeSlab,
    ThirdOrderTAP,
    Tilt,
    TruncatedGaussian,
    clamp,
    condition,
    exact_log_partition,
    rbm,
    solve,
)
from tapmachine.machine import BoltzmannMachine
from tapmachine.units import Units

TIGHT = 1e-27
SCALAR_CASES = [case for case in CASES if case.name != "Categorical"]
scalar_case = pytest.mark.parametrize("case", SCALAR_CASES, ids=lambda case: case.name)

BUILD = UNITS | {
    "Poisson": lambda r, n: Poisson(n, field=0.5 * r.normal(n)),
    "SpikeSlab": lambda r, n: SpikeSlab(
        n, field=0.5 * r.normal(n), precision=r.uniform(2, 3, n), active_probability=r.uniform(0.2, 0.8, n)
    ),
    "HalfLine": lambda r, n: TruncatedGaussian(n, 0.0, np.inf, field=r.normal(n), precision=r.uniform(1, 2, n)),
    "Mixed": lambda r, n: Mixed([BUILD[kind](r, 1) for kind in ("Poisson", "TruncatedGaussian", "Spin")]),
}


def machine_of(kinds, sizes, seed, scale=1.0):
    random = Tensors(seed)
    machine = BoltzmannMachine([BUILD[kind](random, n) for kind, n in zip(kinds, sizes, strict=True)])
    rescale(machine, draw_weights(machine, random), scale)
    return machine


# ----- third cumulants


def cumulants_in_mpmath(case, parameters, B, A):
    """Mean, variance and third cumulant from the oracle; the third by a central difference of the variance."""
    step = mpf("1e-20")
    answer = case.oracle(parameters, B, A)
    above, below = (case.oracle(parameters, B + sign * step, A).variance for sign in (1, -1))
    return [answer.mean, answer.variance, (above - below) / (2 * step)]


def slopes_in_mpmath(case, parameters, B, A):
    """∂κ₃/∂a and ∂κ₃/∂c from the derivatives of mean, variance and third cumulant by B and A."""
    step = mpf("1e-20")
    by_B, by_A = (
        [(x - y) / (2 * step) for x, y in zip(*(cumulants_in_mpmath(case, parameters, *z) for z in ends), strict=True)]
        for ends in (((B + step, A), (B - step, A)), ((B, A + step), (B, A - step)))
    )
    determinant = by_B[0] * by_A[1] - by_B[1] * by_A[0]
    by_mean = (by_B[2] * by_A[1] - by_B[1] * by_A[2]) / determinant
    return by_mean, (by_B[0] * by_A[2] - by_B[2] * by_A[0]) / determinant


@scalar_case
def test_third_cumulants_and_their_slopes_against_mpmath(case):
    units, field, precision = case.stressed(np.random.default_rng(1), 8, torch.float64, 30.0)
    tilt = Tilt(field, precision)
    with torch.no_grad():
        third, slopes, finite = units.third_cumulant(tilt), units.third_cumulant_slopes(tilt), units.normalizable(tilt)
    assert torch.isfinite(torch.stack((third, *slopes))).all()
    assert (third[~finite] == 0).all()
    n_slopes = 0
    with mp.workdps(110):
        for i in finite.nonzero().flatten().tolist():
            parameters, B, A = parameters_of(units, case, i), mpf(field[i].item()), mpf(precision[i].item())
            _, c, exact = cumulants_in_mpmath(case, parameters, B, A)
            assert abs(third[i].item() - exact) <= 1e-9 * max(abs(exact), c ** mpf(1.5))
            if case.name in ("Binary", "Spin", "Poisson", "Mixed") or abs(exact) > 1e3 * c ** mpf(1.5):
                continue  # the mean alone determines κ₃, or nearly so
            if A + parameters.get("precision", 1) <= 0 and not np.isfinite(case.support).all():
                continue  # at the edge of what can be normalized
            n_slopes += 1
            exact_slopes = slopes_in_mpmath(case, parameters, B, A)
            for slope, wanted, scale in zip(slopes, exact_slopes, (c, mp.sqrt(c)), strict=True):
                assert abs(slope[i].item() - wanted) <= 1e-7 * max(abs(wanted), scale)
    assert n_slopes >= 3 or case.name in ("Binary", "Spin", "Poisson", "Mixed")


@scalar_case
def test_third_cumulants_by_automatic_differentiation_and_their_gradients(case):
    """The base class differentiates the variance; what it returns, and the formulas, can be differentiated again."""
    units = case.simple(n=2)
    generator = torch.Generator().manual_seed(0)
    field, precision = torch.randn(2, 2, 2, generator=generator, dtype=torch.float64)
    tilt = Tilt(field.requires_grad_(), (0.1 * precision.abs()).requires_grad_())
    with torch.no_grad():
        torch.testing.assert_close(Units.third_cumulant(units, tilt), units.third_cumulant(tilt), rtol=1e-9, atol=1e-9)
    if case.name not in ("Poisson", "Mixed"):  # their neighbors change the mean alone; blocks are cases of their own
        slopes = Units.third_cumulant_slopes(units, tilt), units.third_cumulant_slopes(tilt)
        for default, own in zip(*slopes, strict=True):
            torch.testing.assert_close(default, own, rtol=1e-9, atol=1e-9)
    names = [name for name, _ in units.named_parameters()]

    def third(field, precision, *parameters):
        named = {f"units.{name}": value for name, value in zip(names, parameters, strict=True)}
        return torch.func.functional_call(_ThirdCumulant(units), named, (field, precision))

    if case.name != "Gaussian":  # a constant
        assert torch.autograd.gradcheck(third, (*tilt, *units.parameters()), eps=1e-6, atol=1e-6)


class _ThirdCumulant(torch.nn.Module):
    def __init__(self, units):
        super().__init__()
        self.units = units

    def forward(self, field, precision):
        return self.units.third_cumulant(Tilt(field, precision))


# ----- free energies


@pytest.mark.parametrize(
    ("kinds", "sizes"),
    [
        (["TruncatedGaussian", "Binary"], [3, 2]),
        (["GaussBernoulli", "Binary"], [3, 2]),
        (["Spin", "TruncatedGaussian"], [3, 2]),
        (["Poisson", "Binary"], [3, 2]),
        (["SpikeSlab", "Binary"], [3, 2]),
        (["HalfLine", "Spin"], [2, 2]),
        (["Mixed", "Binary"], [3, 2]),
        (["Custom"], [4]),
    ],
    ids=str,
)
def test_order_of_the_error(kinds, sizes):
    """|F − F_exact| falls as s³ with TAP and as s⁴ with the third order when the couplings are scaled by s → 0."""
    errors = {scheme: np.zeros((3, 2)) for scheme in (TAP(None if len(kinds) > 1 else "explicit"), ThirdOrderTAP())}
    for seed in range(3):
        machine = machine_of(kinds, sizes, seed)
        weights = draw_weights(machine, Tensors(seed))
        for column, scale in enumerate((0.04, 0.02)):
            rescale(machine, weights, scale)
            exact = -float(exact_log_partition(machine))
            for scheme, found in errors.items():
                solution = solve(machine, None, scheme, tol=TIGHT)
                assert bool(solution.converged)
                found[seed, column] = abs(float(solution.free_energy) - exact)
    second, third = (np.log2(found[:, 0].mean() / found[:, 1].mean()) for found in errors.values())
    assert 2.6 < second < 3.7
    assert third > 3.8


@pytest.mark.parametrize("kind", ["Binary", "TruncatedGaussian", "GaussBernoulli", "SpikeSlab"])
def test_beside_gaussian_units_the_third_order_is_tap(kind):
    machine = machine_of(["Gaussian", kind], [3, 2], seed=5, scale=0.4)
    second, third = (solve(machine, None, scheme, tol=TIGHT) for scheme in (TAP(), ThirdOrderTAP()))
    assert bool(third.converged)
    torch.testing.assert_close(third.free_energy, second.free_energy, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(third.moments[1].mean, second.moments[1].mean, rtol=1e-10, atol=1e-10)


def test_formulas_of_two_states_written_out():
    """⅔ΣW³c(½−a)c'(½−a') in −F, and a field (⅓ − 2c)ΣW³c'(½−a') on a {0, 1} unit."""
    machine = machine_of(["Binary", "Binary"], [5, 4], seed=6, scale=0.8)
    solution = solve(machine, None, ThirdOrderTAP(), tol=TIGHT)
    W = machine.weights[0].detach()
    (a, c), (ah, ch) = solution.moments
    skew, skew_h = c * (0.5 - a), ch * (0.5 - ah)
    second = TAP().free_energy(machine, solution.moments, solution.tilts)
    expected = second - 2 / 3 * ((skew @ W**3) * skew_h).sum()
    torch.testing.assert_close(solution.free_energy, expected.detach(), rtol=1e-13, atol=1e-13)
    logit = machine.layers[0].field + ah @ W.T + (0.5 - a) * (ch @ W.T**2) + (1 / 3 - 2 * c) * (skew_h @ W.T**3)
    torch.testing.assert_close(a, torch.sigmoid(logit.detach()), rtol=1e-12, atol=1e-12)
    ThirdOrderTAP().free_energy(machine, solution.moments, solution.tilts).sum().backward()
    gradient = a.T @ ah + W * (c.T @ ch) + 2 * W**2 * (skew.T @ skew_h)
    torch.testing.assert_close(-machine.weights[0].grad, gradient, rtol=1e-12, atol=1e-12)


MACHINES = {
    "TruncatedGaussian-Binary": lambda: machine_of(["TruncatedGaussian", "Binary"], [4, 3], 3, 0.4),
    "GaussBernoulli-Spin": lambda: machine_of(["GaussBernoulli", "Spin"], [4, 3], 3, 0.4),
    "Poisson-Binary": lambda: machine_of(["Poisson", "Binary"], [4, 3], 3, 0.2),
    "SpikeSlab-HalfLine": lambda: machine_of(["SpikeSlab", "HalfLine"], [3, 2], 3, 0.2),
    "Mixed-GaussBernoulli": lambda: machine_of(["Mixed", "GaussBernoulli"], [3, 3], 3, 0.3),
    "Binary-TruncatedGaussian-Spin": lambda: machine_of(["Binary", "TruncatedGaussian", "Spin"], [3, 3, 2], 3, 0.4),
    "GaussBernoulli": lambda: machine_of(["GaussBernoulli"], [4], 3, 0.4),
    "Custom": lambda: machine_of(["Custom"], [4], 3, 0.3),
    "Mixed with evidence": lambda: condition(machine_of(["Mixed", "Binary"], [3, 3], 3, 0.3), Tilt(0.3, 0.7)),
}
every_machine = pytest.mark.parametrize("name", MACHINES)


@every_machine
def test_free_energy_is_stationary_in_the_moments(name):
    """F as a function of every layer's tilt, with the moments that follow from it, has gradient 0 at a solution."""
    machine = MACHINES[name]()
    solution = solve(machine, None, ThirdOrderTAP(), tol=TIGHT, max_sweeps=3000)
    assert bool(solution.converged)
    tilts = [Tilt(*(z.clone().requires_grad_() for z in tilt)) for tilt in solution.tilts]
    moments = [layer.moments(tilt) for layer, tilt in zip(machine.layers, tilts, strict=True)]
    ThirdOrderTAP().free_energy(machine, moments, tilts).sum().backward()
    for layer, tilt in zip(machine.layers, tilts, strict=True):
        assert tilt.field.grad.abs().max() < 1e-10
        if tilt.precision.grad is not None:  # it has no effect on spins
            free = torch.ones(layer.n, dtype=torch.bool)
            free[: 1 if "Mixed" in name else None] = not layer.has_counts and "Mixed" not in name
            assert (tilt.precision.grad[:, free].abs() < 1e-10).all()  # counts react through their mean alone


@pytest.mark.parametrize("name", [name for name in MACHINES if name not in ("Mixed-GaussBernoulli", "Custom")])
def test_gradients_of_the_solved_free_energy(name):
    """F's gradient in all parameters with the solution held fixed, against differences of F solved again."""
    machine = MACHINES[name]()
    solution = solve(machine, None, ThirdOrderTAP(), tol=TIGHT, max_sweeps=3000)
    ThirdOrderTAP().free_energy(machine, solution.moments, solution.tilts).sum().backward()
    here = parameters_to_vector(machine.parameters()).detach()
    gradient = torch.cat([p.grad.flatten() for p in machine.parameters()])
    direction, step, values = Tensors(0).normal(len(here)), 1e-4, []
    for sign in (1, -1):
        vector_to_parameters(here + sign * step * direction, machine.parameters())
        values.append(float(solve(machine, solution, ThirdOrderTAP(), tol=TIGHT, max_sweeps=3000).free_energy))
    difference = (values[0] - values[1]) / (2 * step)
    assert float(gradient @ direction) == pytest.approx(difference, rel=1e-6, abs=1e-8)


def test_clamped_units_are_fields_on_the_others():
    machine = machine_of(["TruncatedGaussian", "Binary"], [4, 3], seed=7, scale=0.5)
    x, held = torch.rand(1, 4, dtype=torch.float64), torch.tensor([True, True, False, False])
    clamped = solve(clamp(machine, x, mask=held), None, ThirdOrderTAP(), tol=TIGHT)
    visible, hidden = machine.layers
    rest = TruncatedGaussian(2, field=visible.field[2:].detach(), precision=visible.precision[2:].detach())
    W = machine.weights[0].detach()
    smaller = condition(rbm(rest, hidden, W[2:]), Tilt((x[0, :2] @ W[:2]), 0.0), layer=1)
    free = solve(smaller, None, ThirdOrderTAP(), tol=TIGHT)
    torch.testing.assert_close(clamped.moments[0].mean[:, 2:], free.moments[0].mean, rtol=1e-11, atol=1e-11)
    expected = free.free_energy - visible.log_prior(x)[:, :2].sum().detach()
    torch.testing.assert_close(clamped.free_energy, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("units", [Categorical(3, 4), Mixed([Binary(1), Categorical(2, 3)])], ids=repr)
def test_categorical_units_are_refused(units):
    with pytest.raises(ValueError, match=r"layer 1: ThirdOrderTAP does not support Categorical units; use TAP\(\)"):
        solve(rbm(Gaussian(2), units), scheme=ThirdOrderTAP())
    with pytest.raises(NotImplementedError, match="have no third cumulant"):
        units.third_cumulant(Tilt(0.0, 0.0))
