"""TAP training on merged solutions, and on other schemes' free energies."""

import math
import warnings

import pytest
import torch
from count_units import Counts, LightTailed
from torch._subclasses.fake_tensor import FakeTensorMode

from tapmachine import (
    TAP,
    AdaptiveTAP,
    BeliefPropagation,
    Binary,
    Categorical,
    RelaxedBP,
    Spin,
    TAPObjective,
    dbm,
    exact_log_likelihood,
    fit,
    pairwise,
    rbm,
    solve,
)
from tapmachine.beliefs import Moments
from tapmachine.data.errors import DivergenceError, TrainingWarning
from tapmachine.solver.merging import merge_solutions
from tapmachine.training import Monitor, free_energies, momentum_sgd
from tapmachine.training.context import Context
from tapmachine.training.free_energies import free_energy_from, mixture
from tapmachine.units import Lattice

QUIET = Monitor(0)


def two_states() -> torch.nn.Module:
    """A machine with two solutions of different F, near all 0 and near all 1."""
    machine = rbm(Binary(6), Binary(4), torch.full((6, 4), 2.0)).double()
    with torch.no_grad():
        machine.layers[0].field.fill_(-4.1)
        machine.layers[1].field.fill_(-6.0)
    return machine


def of_both(n_low: int, n_high: int) -> torch.Tensor:
    return torch.cat((torch.zeros(n_low, 6), torch.ones(n_high, 6))).double()


def free_energy(machine, x, weights=None, **options):
    objective = TAPObjective(**{"n_sweeps": 100, "merged": True} | options)
    context = Context(machine, x, torch.Generator().manual_seed(0), weights)
    return objective.model_free_energy(context, objective.prepare(context))[0]


def value_of(*args, **options):
    return free_energy(*args, **options).item()


def test_one_solution_counts_once():
    machine = rbm(Binary(6), Binary(4), 0.3 * torch.randn(6, 4, generator=torch.Generator().manual_seed(0))).double()
    x = (torch.rand(10, 6, generator=torch.Generator().manual_seed(1)) < 0.5).double()
    solution = solve(machine, x, tol=1e-20)
    assert len(merge_solutions(machine, solution)) == 1
    assert value_of(machine, x) == pytest.approx(float(solution.free_energy[0]), abs=1e-9)


@pytest.mark.parametrize(("n_low", "n_high"), [(1, 1), (9, 1), (2, 8)])
def test_two_solutions_count_by_their_probability(n_low, n_high):
    machine, x = two_states(), of_both(n_low, n_high)
    unique = merge_solutions(machine, solve(machine, x, tol=1e-20)).solutions.free_energy
    assert len(unique) == 2
    assert abs(float(unique[1] - unique[0])) > 0.1
    expected = -float((-unique).logsumexp(0))
    assert value_of(machine, x, n_sweeps=100) == pytest.approx(expected, abs=1e-4)
    average = value_of(machine, x, n_sweeps=100, merged=False)
    assert average == pytest.approx(float(solve(machine, x, tol=1e-20).free_energy.mean()), abs=1e-4)
    assert average > expected + 0.3


def test_rows_without_weight_have_no_solution():
    machine, x = two_states(), of_both(3, 2)
    only_low = float(solve(machine, x[:1], tol=1e-20).free_energy)
    weights = torch.tensor([1.0, 3.0, 0.0, 0.0, 0.0])
    assert value_of(machine, x, weights) == pytest.approx(only_low, abs=1e-6)
    both = value_of(machine, x)
    assert value_of(machine, x, torch.tensor([0.1, 3.0, 0.0, 0.5, 0.0])) == pytest.approx(both, abs=1e-6)
    assert value_of(machine, x, torch.zeros(5)) == pytest.approx(both, abs=1e-6)


def slopes(machine, value, step=1e-5):
    """The derivative of a value in a random direction of each parameter: by autodiff, and by finite differences."""
    machine.zero_grad()
    value().backward()
    generator = torch.Generator().manual_seed(2)
    for parameter in machine.parameters():
        direction = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        if machine.is_pairwise and parameter.dim() == 2:
            direction = (direction + direction.T).fill_diagonal_(0)
        before, sides = parameter.detach().clone(), []
        for change in (step, -step):
            parameter.data.copy_(before + change * direction)
            sides.append(value().item())
        parameter.data.copy_(before)
        yield float((parameter.grad * direction).sum()), (sides[0] - sides[1]) / (2 * step)


def test_the_gradient_goes_through_the_weights_of_solutions():
    machine, x = two_states(), of_both(5, 2)
    for by_autodiff, expected in slopes(machine, lambda: free_energy(machine, x)):
        assert by_autodiff == pytest.approx(expected, abs=1e-6)


MACHINES = {
    "binary": (lambda w: rbm(Binary(4), Binary(3), w(4, 3)), lambda: torch.eye(4)[:2]),
    "categorical": (lambda w: rbm(Categorical(3, 3), Binary(2), w(9, 2)), lambda: torch.eye(3).unsqueeze(0)),
    "pairwise": (lambda w: pairwise(Spin(4), weights=(z := w(4, 4).triu(1)) + z.T), lambda: torch.ones(1, 4)),
    "deep": (lambda w: dbm([Binary(2), Binary(2), Binary(2)], [w(2, 2), w(2, 2)]), lambda: torch.eye(2)[:1]),
}


@pytest.mark.parametrize("name", MACHINES)
def test_the_gradient_of_bethes_free_energy(name):
    make, start = MACHINES[name]
    generator = torch.Generator().manual_seed(0)
    machine = make(lambda *shape: 0.7 * torch.randn(shape, generator=generator)).double()
    x, scheme = start().double(), BeliefPropagation()

    def value():
        return free_energy_from(machine, x, scheme, 100)[1].sum()

    assert value().item() == pytest.approx(float(solve(machine, x, scheme, tol=1e-20).free_energy.sum()), abs=1e-8)
    for by_autodiff, expected in slopes(machine, value):
        assert by_autodiff == pytest.approx(expected, abs=1e-6)


def clusters(n_rows: int) -> torch.Tensor:
    """Four clusters, the largest with 55 % of the rows and the smallest with 5 %."""
    generator = torch.Generator().manual_seed(0)
    centers = (torch.rand(4, 12, generator=generator) < 0.5).float()
    which = torch.multinomial(torch.tensor([0.55, 0.25, 0.15, 0.05]), n_rows, True, generator=generator)
    return (centers[which] - (torch.rand(n_rows, 12, generator=generator) < 0.08).float()).abs()


def trained(x, objective, epochs=20):
    generator = torch.Generator().manual_seed(0)
    machine = rbm(Binary(12), Binary(4), 0.2 * torch.randn(12, 4, generator=generator))
    optimizer = momentum_sgd(machine, 0.2, weight_decay=0.0)
    fit(machine, x, epochs=epochs, batch_size=60, objective=objective, optimizer=optimizer, monitor=QUIET)
    return float(exact_log_likelihood(machine, x))


@pytest.mark.long
def test_merged_solutions_learn_how_large_clusters_are():
    x = clusters(600)
    merged, average = (trained(x, TAPObjective(n_sweeps=4, merged=merged)) for merged in (True, False))
    assert merged > average + 0.04  # −5.15 and −5.22 nats


@pytest.mark.parametrize("scheme", [AdaptiveTAP(), BeliefPropagation(), RelaxedBP()], ids=lambda s: type(s).__name__)
def test_other_schemes_train_small_machines(scheme):
    x = clusters(240)
    before = trained(x, TAPObjective(scheme=scheme), epochs=0)
    assert trained(x, TAPObjective(scheme=scheme, n_sweeps=2), epochs=10) > before + 0.5


def test_nothing_is_read_while_solutions_are_merged():
    """As in a step that is captured or compiled, whose tensors have no values yet."""
    with FakeTensorMode():
        machine = rbm(Binary(6), Binary(4))
        moments = [Moments(torch.empty(5, n), torch.empty(5, n)) for n in (6, 4)]
        value = mixture(machine, moments, torch.empty(5, dtype=torch.float64), torch.empty(5))
    assert value.shape == ()


@pytest.mark.filterwarnings("ignore:the log-likelihood has fallen")
@pytest.mark.parametrize("every", [1, 3])
def test_a_log_likelihood_above_the_exact_one_is_warned_of_at_the_next_measurement(every):
    """Of four groups of units that are on or off, TAP's average over solutions knows one of 16 states."""
    x = torch.tensor([[i >> bit & 1 for bit in range(4)] for i in range(16)]).float().repeat_interleave(3, 1)
    machine = rbm(Binary(12), Binary(6), 0.1 * torch.randn(12, 6, generator=torch.Generator().manual_seed(0)))
    optimizer, objective = momentum_sgd(machine, 0.5, weight_decay=0.0), TAPObjective(merged=False)
    seen: list[int] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = fit(
            machine,
            x.repeat(5, 1),
            epochs=12,
            batch_size=4,
            objective=objective,
            optimizer=optimizer,
            monitor=Monitor(n_starts=20, every=every),
            callbacks=[lambda _, record: seen.append(sum("compared with the exact" in str(w.message) for w in caught))],
        )
    gaps = [r.get("tap_log_likelihood", math.nan) - r.get("log_likelihood", math.nan) for r in history.records]
    first = next(index for index, gap in enumerate(gaps) if gap > 1)
    assert 0 < first < 11
    assert seen == [0] * first + [1] * (12 - first)  # at once, and only once
    (message,) = [w for w in caught if "compared with the exact" in str(w.message)]
    assert issubclass(message.category, TrainingWarning)
    record = history.records[first]
    assert str(message.message).startswith(
        f"epoch {first + 1}: TAP's log-likelihood is {record['tap_log_likelihood']:.4g} nats, "
    )
    assert f"compared with the exact value of {record['log_likelihood']:.4g}" in str(message.message)
    assert "--objective pcd" in str(message.message)


def test_a_training_that_does_not_maximize_tap_is_not_warned_of_it():
    assert TAPObjective().maximized == "tap_log_sum_exp"
    assert TAPObjective(merged=False).maximized == "tap_log_likelihood"
    assert TAPObjective(scheme=BeliefPropagation()).maximized is None


# ----- particles without a finite F


def strongly_coupled_counts():
    """A machine for which sweeps from few counts lead to where TAP's reaction outgrows the prior; and rows."""
    machine = rbm(LightTailed(3).double(), Binary(2).double(), torch.full((3, 2), 1.5).double())
    x = torch.tensor([[0, 0, 0], [1, 0, 0], [1, 1, 0], [2, 1, 1], [3, 3, 3], [6, 6, 6]]).double()
    return machine, x


@pytest.mark.parametrize("may_read", [True, False])
@pytest.mark.parametrize("n_sweeps", [4, 10])
def test_particles_without_a_finite_free_energy_are_excluded(monkeypatch, may_read, n_sweeps):
    """Also without reading any value, as a step that is captured has to."""
    monkeypatch.setattr(free_energies, "_may_read", lambda machine: may_read)
    machine, x = strongly_coupled_counts()
    values = free_energy_from(machine, x, TAP(), n_sweeps)[1]
    assert torch.isfinite(values).tolist() == [False, False, True, True, True, True]
    objective = TAPObjective(n_sweeps=n_sweeps, merged=True)

    def loss_and_gradients(rows, weights=None):
        machine.zero_grad()
        context = Context(machine, rows, torch.Generator(), weights)
        value, carry = objective.model_free_energy(context, objective.prepare(context))
        value.backward()
        return [value.detach(), *(p.grad.clone() for p in machine.parameters())], int(objective.excluded(carry))

    found, n_excluded = loss_and_gradients(x)
    expected, of_the_others = loss_and_gradients(x[2:])
    assert (n_excluded, of_the_others) == (2, 0)
    assert all(bool(torch.isfinite(z).all()) for z in found)
    for z, other in zip(found, expected, strict=True):
        torch.testing.assert_close(z, other, rtol=1e-9, atol=1e-12)
    # An excluded row lends its weight to no other.
    weighted, _ = loss_and_gradients(x, torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0, 1.0]).double())
    for z, other in zip(weighted, loss_and_gradients(x[4:])[0], strict=True):
        torch.testing.assert_close(z, other, rtol=1e-9, atol=1e-12)


def test_nothing_is_read_while_particles_are_excluded(monkeypatch):
    """As in a step that is captured or compiled."""
    monkeypatch.setattr(free_energies, "_may_read", lambda machine: False)
    with FakeTensorMode():
        machine, x = rbm(LightTailed(3), Binary(2), torch.empty(3, 2)), torch.empty(6, 3)
        for units, is_bounded in zip(machine.layers, (False, True), strict=True):
            units._bounded = is_bounded  # which is known before a step
        context = Context(machine, x, torch.Generator())
        objective = TAPObjective(n_sweeps=4, merged=True)
        value, carry = objective.model_free_energy(context, objective.prepare(context))
        value.backward()
        assert value.shape == carry[-1].shape == ()


def test_training_goes_on_without_excluded_particles_and_reports_them():
    machine, x = strongly_coupled_counts()
    options = {"epochs": 2, "batch_size": 6, "optimizer": momentum_sgd(machine, 1e-3), "warm_start": True}
    with pytest.warns(TrainingWarning, match=r"^epoch 1: 2 particles had a non-finite free energy") as caught:
        history = fit(machine, x, objective=TAPObjective(merged=True), monitor=QUIET, **options)
    assert len(caught) == 1
    assert history["divergences"] == [0.0, 0.0]
    assert history["excluded_particles"] == [2.0, 2.0]


def test_without_any_finite_particle_training_fails_and_says_why():
    machine, x = rbm(Counts(3).double(), Binary(2).double()), strongly_coupled_counts()[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        with pytest.raises(DivergenceError, match="use the default objective, because TAP has no solution for counts"):
            fit(machine, x, objective=TAPObjective(merged=True), epochs=20, batch_size=6, monitor=QUIET)


@pytest.mark.parametrize("scheme", [TAP(), TAP(update="explicit"), RelaxedBP()], ids=repr)
def test_excluded_particles_of_any_scheme_become_copies(monkeypatch, scheme):
    """Every tensor of an iteration's state has an entry for each particle."""
    machine, x = two_states(), of_both(2, 2)
    machine.layers[0].support = Lattice()  # where particles may be excluded
    plain = free_energy_from(machine, x, scheme, 4)[1]
    evaluate, undefined = scheme.free_energy_of_state, [True, True, False]  # of the first particle, in three calls

    def free_energy_of_state(*args):
        return evaluate(*args) + torch.tensor([math.nan if undefined.pop(0) else 0.0, 0.0, 0.0, 0.0])

    monkeypatch.setattr(scheme, "free_energy_of_state", free_energy_of_state)
    moments, values, kept = free_energies.finite_free_energy_from(machine, x, scheme, 4)
    assert kept.tolist() == [1, 1, 2, 3]
    torch.testing.assert_close(values, plain[kept])
    assert torch.equal(moments[0].mean[0], moments[0].mean[1])
