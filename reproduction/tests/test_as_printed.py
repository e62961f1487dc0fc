"""The reproduction trains what it says: a few steps by the formulas written out here, and by `reproduce`."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from reproduction.adaptive import PrintedAdaptiveTAP
from reproduction.lab import Lab
from reproduction.models import BINARY, FACES, Model
from reproduction.training import AS_PRINTED, SWITCHES, Procedure, UniqueSolutions, noisy_batch, objective_of
from tapmachine import (
    RBM,
    TAP,
    AdaptiveTAP,
    BeliefPropagation,
    Binary,
    RelaxedBP,
    Spin,
    TAPObjective,
    Tilt,
    TruncatedGaussian,
    exact_log_partition,
    rbm,
    solve,
)
from tapmachine.machine import boltzmann
from tapmachine.training.context import Context
from tapmachine.training.free_energies import free_energy_from
from tapmachine.training.objectives import from_batch
from tapmachine.units.registry import hidden_words, word_for

N_ROWS, N_VISIBLE, N_HIDDEN, STEPS = 30, 6, 3, 4
EPSILON, ETA = 0.01, 0.5
NODES, NODE_WEIGHTS = np.polynomial.legendre.leggauss(60)
SAME = 0.05  # root mean square over units: closer solutions are one


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def binary(field, precision, own):
    """f_a and f_c of 0/1 units."""
    a = sigmoid(own["U"] + field - precision / 2)
    return a, a * (1 - a)


def truncated_gaussian(field, precision, own):
    """f_a and f_c of exp(Ux − ½Vx²) on an interval that begins at 0, by quadrature."""
    x = own["upper"] * (NODES + 1) / 2
    exponent = (own["U"] + field)[..., None] * x - (own["V"] + precision)[..., None] * x**2 / 2
    p = NODE_WEIGHTS * np.exp(exponent - exponent.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    a = (p * x).sum(-1)
    return a, (p * x**2).sum(-1) - a**2


def solved(x, W, visible, hidden, moments, n_sweeps=300):
    """Alg. 1, from the data."""
    a_v, c_v, a_h = x, np.zeros_like(x), np.zeros((len(x), W.shape[1]))
    for _ in range(n_sweeps):
        A = -c_v @ W**2
        a_h, c_h = binary(A * a_h + a_v @ W, A, hidden)
        A = -c_h @ (W**2).T
        a_v, c_v = moments(A * a_v + a_h @ W.T, A, visible)
    return a_v, c_v, a_h, c_h


def by_hand(x, W, visible, hidden, procedure, gamma):
    """Alg. 2 for some steps with the whole data as a batch; parameters are changed in place."""
    is_real = "V" in visible
    moments = truncated_gaussian if is_real else binary
    names = [(visible, "U"), (hidden, "U")] + ([(visible, "V")] if is_real else [])
    velocity, velocities = 0.0, [0.0] * len(names)
    for _ in range(STEPS):
        a_v, c_v, a_h, c_h = solved(x, W, visible, hidden, moments)
        share = np.full(len(x), 1 / len(x))
        if procedure.unique_solutions:
            size = np.r_[np.full(N_VISIBLE, visible["upper"]), np.ones(N_HIDDEN)]
            points = np.hstack((a_v, a_h)) / size
            near = np.sqrt(((points[:, None] - points) ** 2).mean(-1)) <= SAME
            share = 1 / near.sum(1)
            share /= share.sum()
        on_data = sigmoid(hidden["U"] + x @ W)
        dW = x.T @ on_data / len(x) - ((a_v.T * share) @ a_h + W * ((c_v.T * share) @ c_h))
        steps = [x.mean(0) - share @ a_v, on_data.mean(0) - share @ a_h]
        if is_real:
            steps.append(-0.5 * ((x**2).mean(0) - share @ (c_v + a_v**2)))
        velocity = gamma * (dW - EPSILON * W) + ETA * velocity
        W = W + velocity
        for index, ((units, name), step) in enumerate(zip(names, steps, strict=True)):
            momentum = ETA if procedure.field_momentum else 0.0
            velocities[index] = gamma * step + momentum * velocities[index]
            units[name] = units[name] + velocities[index]
    return W


def parameters(machine):
    visible, hidden = machine.layers
    own = {"U": visible.field.detach().double().numpy().copy(), "upper": 1.0}
    if hasattr(visible, "precision"):
        own["V"] = visible.precision.detach().double().numpy().copy()
    return machine.weights[0].detach().double().numpy().copy(), own, {"U": hidden.field.detach().double().numpy()}


@pytest.mark.parametrize("procedure", [Procedure(), AS_PRINTED, replace(AS_PRINTED, field_momentum=True)], ids=repr)
@pytest.mark.parametrize("data", [BINARY, FACES])
def test_a_few_steps_by_hand(data, procedure, tmp_path, monkeypatch):
    rng = np.random.default_rng(1)
    parts = rng.random((3, N_VISIBLE)) < 0.5
    x = (rng.random((N_ROWS, N_VISIBLE)) < np.where(parts[rng.integers(3, size=N_ROWS)], 0.85, 0.15)).astype(float)
    if data == FACES:  # of a deviation at which data are scaled by 1/2 for training, unless the procedure forbids it
        x = np.clip(0.25 + 0.3 * x + 0.05 * rng.normal(size=x.shape), 0, 1)
    x = x.astype(np.float32).astype(float)
    path = tmp_path / "rows.npy"
    np.save(path, x.astype(np.float32))
    monkeypatch.setattr(Lab, "sources", lambda self, data: (str(path), str(path)))
    monkeypatch.setattr(boltzmann, "INITIAL_SPREAD", 1.0)  # far enough from 0 for all terms to matter
    gamma = 0.3 if data == BINARY else 0.5
    model = Model(
        "tiny", data, (N_HIDDEN,), epochs=STEPS, batch_size=N_ROWS, particles=N_ROWS, learning_rate=gamma,
        weight_decay=EPSILON, momentum=ETA, sweeps=60, keep_every=1,
    )  # fmt: skip
    lab = Lab(tmp_path / "lab", procedure=procedure)
    lab.open()
    assert lab.epochs(model) == [0, *range(1, STEPS + 1)]
    first_machine = lab.machine(model, 0)
    W, visible, hidden = parameters(first_machine)
    first = np.abs(W).max()
    scale = 0.5 if data == FACES and procedure.rescale else 1.0
    # x = scale·x': what training sees
    visible["upper"] = 1 / scale
    visible["U"] *= scale
    if data == FACES:
        visible["V"] *= scale**2
    W = by_hand(x / scale, scale * W, visible, hidden, procedure, gamma) / scale
    expected = [W, visible["U"] / scale, hidden["U"]] + ([visible["V"] / scale**2] if data == FACES else [])
    trained_W, trained, trained_hidden = parameters(lab.machine(model))
    found = [trained_W, trained["U"], trained_hidden["U"]] + ([trained["V"]] if data == FACES else [])
    assert first > 0.5
    assert np.abs(visible["U"] / scale - parameters(first_machine)[1]["U"]).max() > 0.02
    for by_reproduce, by_formula in zip(found, expected, strict=True):
        np.testing.assert_allclose(by_reproduce, by_formula, rtol=1e-4, atol=1e-4)


def test_every_switch_changes_what_is_trained(tmp_path):
    """And only the parts that it is about."""
    model = Model("tiny", FACES, (25,))
    usual = Lab(tmp_path, quick=True).settings(model)
    changed = {"printed_iteration": {"n_sweeps": (4, 5)}, "centered": {"centered": (False, None)}}
    for name in SWITCHES:
        procedure = Procedure().switched([name])
        settings = Lab(tmp_path, quick=True, procedure=procedure).settings(model)
        differences = {
            key: (value, getattr(settings, key))
            for key, value in vars(usual).items()
            if value != getattr(settings, key)
        }
        assert differences == changed.get(name, {})
        assert procedure.differences() == {name: getattr(procedure, name)}
    assert (Procedure().name, AS_PRINTED.name) == ("", "as-printed")
    assert repr(AS_PRINTED.scheme()) == "TAP(update='explicit', damping=0.0)"
    ours, printed = (objective_of(model, procedure, 41) for procedure in (Procedure(), AS_PRINTED))
    assert repr(ours) == "TAPObjective(n_particles=100, n_sweeps=41, TAP(), merged=False)"
    assert (type(printed), printed.n_sweeps) == (UniqueSolutions, 41)
    assert repr(printed.scheme) == "TAP(update='explicit', damping=0.0)"
    assert repr(objective_of(replace(model, sampled=True), AS_PRINTED, 4)) == "CD(4)"


def test_unique_solutions_count_once():
    """Of two solutions that three starts and one lead to, the average has each once; its gradient, too."""
    machine = rbm(Spin(10, field=0.05).double(), Spin(8).double(), weights=torch.full((10, 8), 0.2).double())
    up = torch.ones(1, 10, dtype=torch.float64)
    gradients = []
    for starts, unique in ((torch.cat((up, -up)), False), (torch.cat((up, up, up, -up)), True)):
        objective = (
            UniqueSolutions(from_batch, len(starts), 100, TAP()) if unique else TAPObjective(n_sweeps=100, merged=False)
        )
        context = Context(machine, starts, torch.Generator())
        value, _ = objective.model_free_energy(context, objective.prepare(context))
        gradients.append([value.detach(), *torch.autograd.grad(value, list(machine.parameters()))])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    plain = TAPObjective(n_sweeps=100, merged=False).model_free_energy(context, ())[0]
    assert abs(float(plain.detach() - gradients[0][0])) > 0.1, "three of four starts count more"


def test_noisy_starts_are_the_batch_with_some_units_drawn():
    machine = rbm(Binary(50), Binary(2))
    batch = torch.ones(200, 50)
    context = Context(machine, batch, torch.Generator().manual_seed(0))
    x = noisy_batch(context, 100, 0.4)
    assert x.shape == (100, 50)
    assert float((x == 0).float().mean()) == pytest.approx(0.2, abs=0.02)  # half of the units that are drawn


# ----- adaptive TAP as printed


@pytest.mark.parametrize("units", [(Binary, Binary), (Spin, Binary), (TruncatedGaussian, Binary)])
def test_the_printed_adaptive_tap_has_the_same_fixed_points(units):
    """Alg. 3 written out for the whole matrix comes to the solutions of `AdaptiveTAP`; its gradient is TAP's."""
    generator = torch.Generator().manual_seed(3)
    machine = rbm(*(kind(n).double() for kind, n in zip(units, (7, 4), strict=True)))
    with torch.no_grad():
        machine.weights[0].copy_(0.4 * torch.randn(7, 4, generator=generator))
        machine.layers[0].field.copy_(torch.randn(7, generator=generator))
    x = machine.layers[0].sample(Tilt(torch.zeros(5, 7, dtype=torch.float64), 0.0), generator)
    ours, printed = (
        solve(machine, x, scheme, tol=1e-22, max_sweeps=4000) for scheme in (AdaptiveTAP(), PrintedAdaptiveTAP())
    )
    assert bool(ours.converged.all() & printed.converged.all())
    for layer, other in zip(ours.moments, printed.moments, strict=True):
        torch.testing.assert_close(layer.mean, other.mean, rtol=0, atol=1e-10)
        torch.testing.assert_close(layer.variance, other.variance, rtol=0, atol=1e-10)
    # Both sides of the algorithm have the same moments at a solution: C = (diag(A₂) − J)⁻¹, a = C B₂.
    a, c = (torch.cat([getattr(layer, name)[0] for layer in printed.moments]) for name in ("mean", "variance"))
    B1, A1 = (
        torch.cat([torch.as_tensor(getattr(t, name))[0] for t in printed.tilts]) for name in ("field", "precision")
    )
    W = machine.weights[0].detach()
    J = torch.zeros(11, 11, dtype=torch.float64)
    J[:7, 7:], J[7:, :7] = W, W.T
    C = torch.linalg.inv(torch.diag(1 / c - A1) - J)
    torch.testing.assert_close(C @ (a / c - B1), a, rtol=0, atol=1e-9)
    torch.testing.assert_close(C.diagonal(), c, rtol=0, atol=1e-9)
    value = PrintedAdaptiveTAP().free_energy(machine, printed.moments, printed.tilts)
    (gradient,) = torch.autograd.grad(value[0], machine.weights[0])
    expected = -(torch.outer(a[:7], a[7:]) + W * torch.outer(c[:7], c[7:]))
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)


# ----- training by Bethe free energies, as the paper's Section IV proposes


def bethe_errors(scheme, visible, scale):
    """The largest difference of the gradient that training takes and differences of F solved again; F's error."""
    generator = torch.Generator().manual_seed(1)
    machine = rbm(visible(4).double(), Binary(3).double())
    with torch.no_grad():
        for parameter in machine.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
        machine.weights[0].mul_(scale)
    _, value = free_energy_from(machine, torch.full((1, 4), 0.5, dtype=torch.float64), scheme, 300)
    gradients = torch.autograd.grad(value.sum(), list(machine.parameters()))
    errors = []
    for parameter, gradient in zip(machine.parameters(), gradients, strict=True):
        place, found = (0,) * parameter.dim(), []
        for step in (1e-4, -2e-4, 1e-4):
            with torch.no_grad():
                parameter[place] += step
            found.append(float(solve(machine, None, scheme, tol=1e-28, max_sweeps=2000).free_energy))
        errors.append(abs(float(gradient[place]) - (found[0] - found[1]) / 2e-4))
    assert float(value.detach()) == pytest.approx(found[-1], abs=1e-9)
    return max(errors), abs(found[-1] + float(exact_log_partition(machine)))


def test_the_gradient_of_belief_propagation():
    """Bethe's free energy is stationary in the messages, so that its gradient is the one with the messages fixed."""
    gradient, value = bethe_errors(BeliefPropagation(), Binary, 1.0)
    assert gradient < 1e-7
    assert value < 0.01


@pytest.mark.parametrize("visible", [Binary, TruncatedGaussian])
def test_the_gradient_of_relaxed_belief_propagation(visible):
    """Its messages are right to second order, and F is stationary in them to that order only; errors vanish faster."""
    large, small = (bethe_errors(RelaxedBP(), visible, scale) for scale in (1.0, 0.5))
    assert large[0] < 0.02
    assert small[0] < large[0] / 5
    assert max(small[1], large[1]) < 0.01


# ----- hidden units of the paper's discussion


TAKE_LONG = ("spike-slab", "truncated-gaussian", "gauss-bernoulli")


@pytest.mark.parametrize(
    "word",
    [pytest.param(word, marks=[pytest.mark.slow] * (word in TAKE_LONG)) for word in hidden_words() if word != "auto"],
)
def test_hidden_units_of_every_type_learn(word):
    """From the estimator, whose features are their means: better than independent units."""
    is_slow, is_bounded = word in ("truncated-gaussian", "gauss-bernoulli"), word not in ("gaussian", "spike-slab")
    n_rows, n_hidden, epochs = (200, 2, 40) if is_slow else (300, 4, 50)
    rate = 0.3 if is_bounded else 0.1  # fields of unbounded units grow with their weights
    x = (load_digits().data[:n_rows] > 7).astype(float)
    model = RBM(n_hidden, hidden_units=word, epochs=epochs, learning_rate=rate, decay=1.0, random_state=0).fit(x)
    assert word_for(model.machine_.layers[1]) == word
    assert model.transform(x).shape == (n_rows, n_hidden)
    p = np.clip(x.mean(0), 1e-3, 1 - 1e-3)
    assert model.score(x) > (x * np.log(p) + (1 - x) * np.log(1 - p)).sum(1).mean() + 1
