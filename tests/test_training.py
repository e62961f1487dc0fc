"""Training: gradients against explicit formulas and finite differences, starts, data, divergence."""

import copy
import json
import math
import re
import traceback
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from machine_cases import UNITS, Tensors, machine_of
from marks import needs_compiler
from sklearn.datasets import load_digits

import tapmachine
from tapmachine import (
    CD,
    PCD,
    TAP,
    Binary,
    Categorical,
    Custom,
    Gaussian,
    NaiveMeanField,
    Poisson,
    Spin,
    TAPObjective,
    Tilt,
    TruncatedGaussBernoulli,
    TruncatedGaussian,
    clamp,
    dbm,
    exact_log_likelihood,
    exact_log_partition,
    fit,
    load,
    pairwise,
    rbm,
    save,
    solve,
)
from tapmachine.accelerator.compilation import compiled
from tapmachine.data.errors import DivergenceError, TrainingWarning
from tapmachine.solver.schemes import couplings
from tapmachine.training import (
    Monitor,
    Objective,
    Trainer,
    TrainingOptions,
    free_energies,
    geometric_decay,
    momentum_sgd,
)
from tapmachine.training import free_energies as free_energies_module
from tapmachine.training import step as step_module
from tapmachine.training.batches import Batches
from tapmachine.training.context import Context
from tapmachine.training.free_energies import clamped_free_energy, free_energy_from
from tapmachine.training.objectives import from_batch
from tapmachine.training.state import TrainingState
from tapmachine.training.step import Step

QUIET = Monitor(n_starts=0)


def data_of(machine, rows, seed=0):
    units = machine.layers[0]
    no_tilt = Tilt(torch.zeros((rows, *units.state_shape), dtype=machine.dtype), 0.0)
    return units.sample(no_tilt, torch.Generator().manual_seed(seed))


def stripes(rows=400, n=12, seed=0):
    """Binary rows in two groups: the first or the last half of the units is on, with a little noise."""
    generator = torch.Generator().manual_seed(seed)
    which = torch.rand(rows, 1, generator=generator) < 0.5
    left = torch.arange(n) < n // 2
    return ((which == left) ^ (torch.rand(rows, n, generator=generator) < 0.05)).float()


def gain_by_training(kinds, **options):
    """In the exact log-likelihood, over independent units, of rows that are all on one side or all on the other.

    0.5 to 6 nats by unit type and seed; without hidden units, or with gradients of the wrong sign, none.
    """
    machine = machine_of(kinds, [6, 3, 2][: len(kinds)], seed=7)
    units, generator = machine.layers[0], torch.Generator().manual_seed(0)
    field = torch.zeros((200, *units.state_shape), dtype=machine.dtype)
    sides = field[..., 0] if isinstance(units, Categorical) else field
    sides += torch.where(torch.rand(200, 1, generator=generator) < 0.5, 4.0, -4.0)
    x = units.sample(Tilt(field, 0.0), generator)
    with torch.no_grad():
        for weights in machine.weights:
            weights *= 0.3 / x.double().std()
    fit(machine, x, epochs=0, batch_size=20)
    independent = copy.deepcopy(machine)
    with torch.no_grad():
        for weights in independent.weights:
            weights.zero_()
    fit(machine, x, epochs=10, batch_size=20, warm_start=True, monitor=QUIET, **options)
    return float(exact_log_likelihood(machine, x).mean - exact_log_likelihood(independent, x).mean)


class Loader(list):
    """A list that is gone through anew in every epoch, as a loader is."""


def rows_with_a_bad_one(row):
    x = np.zeros((30_000, 3), np.float32)
    x[row, 1] = 2
    return x


def context_of(machine, batch, seed=0):
    return Context(machine, batch, torch.Generator().manual_seed(seed))


def step_of(machine, objective, x, batch_size=None, seed=0, **options):
    """A step that leaves the machine as it is, unless options have another optimizer."""
    options = {"optimizer": torch.optim.SGD(machine.parameters(), lr=0.0)} | options
    draws = torch.Generator().manual_seed(seed)
    return Step(machine, x, batch_size or len(x), draws, TrainingOptions(objective=objective, **options))


# ----- gradients


def test_gradient_against_the_papers_formulas():
    machine = machine_of(["Binary", "Binary"], [6, 4], seed=0, scale=0.3)
    x = data_of(machine, 8)
    moments, _ = free_energy_from(machine, x, TAP(), 10)
    step = step_of(machine, TAPObjective(), x)
    step(x)
    (a, c), (h, v) = moments
    W = machine.weights[0].detach()
    on_data = torch.sigmoid(x @ W + machine.layers[1].field.detach())
    expected = (x.T @ on_data - a.T @ h - W * (c.T @ v)) / 8
    torch.testing.assert_close(-machine.weights[0].grad, expected, rtol=0, atol=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("kind", UNITS)
def test_gradient_against_differences_of_solved_free_energies(kind):
    """At a solution the gradient with the moments held fixed is that of F, solved anew."""
    machine = machine_of([kind, "Binary"], [4, 3], seed=1, scale=0.2)
    x = data_of(machine, 5)

    def objective():
        with torch.no_grad():
            return float(clamped_free_energy(machine, x).mean() - solve(machine, x, tol=1e-28).free_energy.mean())

    step = step_of(machine, TAPObjective(n_sweeps=200), x)
    step(x)
    for name, parameter in machine.named_parameters():
        flat = parameter.detach().view(-1)
        for index in (0, len(flat) - 1):
            before, size = float(flat[index]), 1e-4
            values = []
            for sign in (1, -1):
                flat[index] = before + sign * size
                values.append(objective())
            flat[index] = before
            slope = (values[0] - values[1]) / (2 * size)
            assert float(parameter.grad.view(-1)[index]) == pytest.approx(slope, abs=2e-7), name


@pytest.mark.parametrize(
    "kinds", [["Spin"], ["Categorical"], ["GaussBernoulli", "Binary"], ["Binary", "Spin", "Binary"]]
)
def test_free_energies_of_clamped_machines(kinds):
    deep = len(kinds) > 2
    machine = machine_of(kinds, [4, 3, 2][: len(kinds)], seed=3, scale=0.05 if deep else 1.0)
    x = data_of(machine, 5)
    exact = exact_log_partition(clamp(machine, x))
    torch.testing.assert_close(-clamped_free_energy(machine, x).detach(), exact, rtol=0, atol=1e-4 if deep else 1e-11)


def test_sampled_gradients_are_data_less_samples():
    machine = machine_of(["Spin", "Binary"], [5, 3], seed=2)
    x, samples = data_of(machine, 6), data_of(machine, 9, seed=1)
    loss = clamped_free_energy(machine, x).mean() - clamped_free_energy(machine, samples).mean()
    loss.backward()
    hidden = [machine.conditional(1, [z, None]).mean.detach() for z in (x, samples)]
    expected = x.T @ hidden[0] / 6 - samples.T @ hidden[1] / 9
    torch.testing.assert_close(-machine.weights[0].grad, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(-machine.layers[0].field.grad, x.mean(0) - samples.mean(0), rtol=0, atol=1e-12)


def test_centered_gradients():
    machine = machine_of(["Binary", "Spin"], [5, 3], seed=3)
    x = data_of(machine, 7)
    plain, centered = (step_of(machine, TAPObjective(), x, centered=centered) for centered in (False, True))
    plain(x)
    raw = [p.grad.clone() for p in (machine.weights[0], *(u.field for u in machine.layers))]
    centered(x)
    mu, lam = x.mean(0), machine.conditional(1, [x, None]).mean.detach().mean(0)
    weight = raw[0] - torch.outer(raw[1], lam) - torch.outer(mu, raw[2])
    torch.testing.assert_close(machine.weights[0].grad, weight, rtol=0, atol=1e-12)
    torch.testing.assert_close(machine.layers[0].field.grad, raw[1] - weight @ lam, rtol=0, atol=1e-12)
    torch.testing.assert_close(machine.layers[1].field.grad, raw[2] - weight.T @ mu, rtol=0, atol=1e-12)


@pytest.mark.long
def test_centered_gradients_of_small_batches_are_on_average_those_of_all_data():
    """Offsets that are the batch's own means would take a share of 2/M off the correlations: here all of them."""
    machine = machine_of(["Binary", "Spin"], [5, 3], seed=3, scale=0.3)
    x = data_of(machine, 40)
    x[:, 1] = x[:, 0]
    gradients = []
    for size in (40, 2):
        step = step_of(machine, TAPObjective(n_sweeps=50), x, size, centered=True)
        found = []
        for batch in x.split(size):
            step(batch)
            found.append(machine.weights[0].grad.clone())
        gradients.append(torch.stack(found).mean(0))
    # What is left is that means and moments of two rows vary together; a share of 2/M would be all of the largest.
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0.25 * float(gradients[0].abs().max()))


def test_offsets_follow_the_data_but_not_where_a_step_is_taken_back():
    machine = rbm(Binary(6), Binary(4))
    x = stripes(40, 6)
    trainer = Trainer(machine, x, epochs=3, batch_size=10, monitor=QUIET)
    before = [offset.clone() for offset in trainer.step.offsets]
    torch.testing.assert_close(before[0], x.mean(0))
    trainer.epoch()
    state = trainer.state()
    assert not torch.equal(trainer.step.offsets[1], before[1])
    with torch.no_grad():
        machine.weights[0].fill_(5.0)  # its hidden means are finite, and wrong
        machine.layers[0].field.fill_(torch.nan)
    kept = [offset.clone() for offset in trainer.step.offsets]
    assert not bool(trainer.step(x[:10]).good)
    assert all(torch.equal(a, b) for a, b in zip(trainer.step.offsets, kept, strict=True))
    again = Trainer(rbm(Binary(6), Binary(4)), x, epochs=3, batch_size=10, monitor=QUIET)
    again.restore(state)
    assert all(torch.equal(a, b) for a, b in zip(again.step.offsets, kept, strict=True))


def test_centered_gradients_of_a_deep_machine():
    """As gradients in the parameters of a machine that is written in centered states, and back again."""
    machine = machine_of(["Binary", "Binary", "Binary"], [6, 4, 3], seed=3, scale=0.5)
    x = data_of(machine, 20)
    found = []
    for centered in (False, True):
        step_of(machine, TAPObjective(), x, centered=centered)(x)
        found.append({name: p.grad.clone() for name, p in machine.named_parameters()})
    raw, got = found
    means = [x.mean(0)]
    flat = x
    for number in range(2):
        flat = torch.sigmoid(flat @ machine.weights[number].detach() + machine.layers[number + 1].field.detach())
        means.append(flat.mean(0))
    U = [raw[f"layers.{number}.field"] for number in range(3)]
    W = [raw[f"weights.{n}"] - torch.outer(U[n], means[n + 1]) - torch.outer(means[n], U[n + 1]) for n in range(2)]
    fields = [U[0] - W[0] @ means[1], U[1] - W[0].T @ means[0] - W[1] @ means[2], U[2] - W[1].T @ means[1]]
    for number in range(2):
        torch.testing.assert_close(got[f"weights.{number}"], W[number], rtol=0, atol=1e-12)
    for number in range(3):
        torch.testing.assert_close(got[f"layers.{number}.field"], fields[number], rtol=0, atol=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("kinds", [["GaussBernoulli", "Binary"], ["Categorical", "Spin", "Binary"]])
def test_centered_training_of_other_units(kinds):
    assert gain_by_training(kinds, centered=True, l1=1e-4) > 0.2


@pytest.mark.parametrize("objective", [CD(3), TAPObjective(n_sweeps=4)], ids=repr)
def test_weights_of_rows_count_as_copies(objective):
    """Also in the model's side, where its samples or solutions start from the rows. Clear-cut states make CD exact."""
    machine = rbm(Binary(5), Binary(3), torch.full((5, 3), 30.0)).double()
    with torch.no_grad():
        machine.layers[0].field.fill_(-45.0)
        machine.layers[1].field.fill_(-75.0)
    x = torch.tensor([[1.0] * 5, [0.0] * 5, [1.0, 1.0, 1.0, 1.0, 0.0]]).double()
    weights = torch.tensor([5.0, 2.0, 1.0]).double()
    copies = x.repeat_interleave(weights.long(), 0)
    gradients = []
    for batch, own in ((x, weights / weights.mean()), (copies, None)):
        step = step_of(machine, objective, batch)
        assert bool(step(batch, own).good)
        gradients.append([p.grad.clone() for p in machine.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


def test_batches_without_weight_change_nothing():
    x = stripes()
    weights = torch.zeros(400)
    weights[:20] = 1.0
    machine = rbm(Binary(12), Binary(4))
    with warnings.catch_warnings():
        warnings.simplefilter("error", TrainingWarning)
        history = fit(machine, x, epochs=3, batch_size=20, weights=weights, monitor=Monitor(n_starts=5))
    assert sum(history["divergences"]) == 0
    # priors and records see the weights, too: as if there were only those rows
    alone = rbm(Binary(12), Binary(4))
    alone.layers[0].fit_to(x[:20])
    given = rbm(Binary(12), Binary(4))
    fit(given, x, epochs=0, batch_size=20, weights=weights)
    torch.testing.assert_close(given.layers[0].field, alone.layers[0].field, rtol=0.1, atol=0.2)
    score = Monitor(n_starts=5, n_rows=400)(machine, x, weights=weights)
    assert score["reconstruction_error"] == pytest.approx(
        Monitor(n_starts=0, n_rows=400)(machine, x[:20])["reconstruction_error"], rel=1e-5
    )


def test_the_papers_update():
    """v ← γ(ΔW − εW) + ηv, W ← W + v, with a penalty on the weights only."""
    machine = machine_of(["Binary", "Binary"], [3, 2], seed=5)
    optimizer = momentum_sgd(machine, learning_rate=0.1, momentum=0.5, weight_decay=0.2)
    W, U = machine.weights[0].detach().clone(), machine.layers[0].field.detach().clone()
    v, u = torch.zeros_like(W), torch.zeros_like(U)
    for number in range(3):
        ascent, ascent_field = Tensors(number).normal(3, 2), Tensors(number + 9).normal(3)
        optimizer.zero_grad()
        machine.weights[0].grad, machine.layers[0].field.grad = -ascent, -ascent_field
        machine.layers[1].field.grad = torch.zeros(2).double()
        optimizer.step()
        v = 0.1 * (ascent - 0.2 * W) + 0.5 * v
        u = 0.1 * ascent_field + 0.5 * u
        W, U = W + v, U + u
    torch.testing.assert_close(machine.weights[0].detach(), W)
    torch.testing.assert_close(machine.layers[0].field.detach(), U)


def test_chains_of_an_undone_step_are_those_before_it():
    machine = rbm(Poisson(4), Binary(2))
    x = torch.poisson(torch.full((40, 4), 3.0), generator=torch.Generator().manual_seed(0))
    trainer = Trainer(machine, x, epochs=1, batch_size=20, objective=PCD(1), monitor=QUIET)
    assert trainer.step(x[:20]).good
    before = [z.clone() for z in trainer.step.carry]
    with torch.no_grad():
        machine.layers[0].field.fill_(60.0)  # rates of e^60, and a loss that is not finite
    assert not trainer.step(x[:20]).good
    assert all(torch.equal(z, other) for z, other in zip(trainer.step.carry, before, strict=True))
    assert trainer.step(x[:20]).good


@pytest.mark.parametrize("objective", [TAPObjective(n_sweeps=2), PCD(1)], ids=repr)
def test_a_step_does_not_read_bounds(objective, monkeypatch):
    """On a GPU, reading a bound in a captured step is an error; the first steps may read and keep what they need."""
    machine = rbm(TruncatedGaussian(4), TruncatedGaussian(2))
    trainer = Trainer(machine, torch.rand(40, 4), epochs=2, batch_size=20, objective=objective, monitor=QUIET)
    trainer.epoch()
    monkeypatch.setattr(TruncatedGaussian, "support", property(lambda units: pytest.fail("a step has read bounds")))
    trainer.epoch()


def test_step_sizes_fall_geometrically():
    machine = rbm(Binary(3), Binary(2))
    optimizer = momentum_sgd(machine, 0.02)
    history = fit(
        machine, stripes(20, 3), epochs=4, batch_size=10, optimizer=optimizer,
        scheduler=geometric_decay(optimizer, 0.0001, 4), monitor=QUIET,
    )  # fmt: skip
    assert history["learning_rate"] == pytest.approx([0.02 * 0.1**k for k in range(4)])


# ----- starts


@pytest.mark.parametrize("kind", ["Binary", "Categorical", "TruncatedGaussian"])
@pytest.mark.parametrize("n_particles", [3, 12])
def test_starts(kind, n_particles):
    def noise(context, count):
        units = context.machine.layers[0]
        return units.sample(Tilt(torch.zeros(count, *units.state_shape).double(), 0.0), context.generator)

    machine = machine_of([kind, "Binary"], [5, 4], seed=6)
    batch = data_of(machine, 6)
    solved = float(solve(machine, batch).free_energy.mean())
    for start in (from_batch, noise):
        objective, context = TAPObjective(n_particles, 4, start=start), context_of(machine, batch)
        value, _ = objective.model_free_energy(context, objective.prepare(context))
        # Weak couplings have one solution, and four sweeps come close to it from anywhere.
        assert float(value.detach()) == pytest.approx(solved, abs=3e-3)
        assert start(context, n_particles).shape == (n_particles, *machine.layers[0].state_shape)


# ----- the loop


@pytest.mark.long
@pytest.mark.parametrize(
    "objective",
    [None, TAPObjective(), CD(1), PCD(5, 400)],
    ids=repr,
)
def test_training_raises_the_exact_likelihood(objective):
    x = stripes()
    machine = rbm(Binary(12), Binary(4))
    machine.layers[0].fit_to(x)
    before = float(exact_log_likelihood(machine, x))
    optimizer = momentum_sgd(machine, 0.1, weight_decay=0.0)
    history = fit(
        machine, x, epochs=35, batch_size=40, objective=objective, optimizer=optimizer, averaged=True,
        scheduler=geometric_decay(optimizer, 0.1, 35), validation=stripes(seed=1),
        monitor=Monitor(n_starts=20, every=35),
    )  # fmt: skip
    after = float(exact_log_likelihood(machine, x))
    assert before < -7.5
    assert after > -5.0  # ln 2 and twelve noisy units: −3.1 at best
    assert history["log_likelihood"][-1] == pytest.approx(after, rel=1e-6)
    # Two solutions far apart: TAP is off by 0.002.
    assert history["tap_log_sum_exp"][-1] == pytest.approx(after, abs=0.1)
    assert history["reconstruction_error"][-1] < history["reconstruction_error"][0]
    record = history.records[-1]
    assert record.pop("by_tap", False) == isinstance(objective, TAPObjective)
    assert set(record) == {
        "epoch", "seconds", "learning_rate", "loss", "gradient_norm", "weight_norm", "divergences", "log_likelihood",
        "log_likelihood_error", "log_likelihood_method", "validation_log_likelihood", "validation_log_likelihood_error",
        "tap_log_likelihood",
        "tap_log_likelihood_per_unit", "tap_log_sum_exp", "validation_tap_log_likelihood", "free_energy_gap",
        "validation_tap_log_likelihood_per_unit", "n_unique", "converged", "reconstruction_error",
    }  # fmt: skip
    assert record.pop("log_likelihood_method") == "exact"
    assert all(math.isfinite(value) for value in record.values())


def test_same_seed_same_weights():
    x = stripes()
    found = []
    for seed in (0, 0, 1):
        machine = rbm(Binary(12), Binary(4))
        fit(machine, x, epochs=3, objective=PCD(1), seed=seed, monitor=QUIET)
        found.append(machine.weights[0].detach().clone())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.long
@pytest.mark.parametrize("kind", ["TruncatedGaussian", "GaussBernoulli", "Gaussian", "Categorical", "Spin", "Custom"])
def test_training_of_every_unit_type(kind):
    assert gain_by_training([kind, "Binary"]) > 0.2


@pytest.mark.parametrize("make", [lambda: dbm([Binary(12), Binary(4), Binary(3)]), lambda: pairwise(Binary(12))])
@pytest.mark.parametrize("objective", [None, PCD(1), CD(2)], ids=repr)
@pytest.mark.filterwarnings("ignore:the means of hidden layer")
def test_deep_and_pairwise_machines(make, objective):
    machine = make()
    history = fit(machine, stripes(), epochs=3, objective=objective, monitor=Monitor(n_starts=10))
    assert all(math.isfinite(value) for value in history.records[-1].values() if not isinstance(value, str))
    exact = float(exact_log_likelihood(machine, stripes()))
    # Of deep machines by TAP's weights of the rows, corrected on 30 of them, which is exact for those.
    assert history["log_likelihood"][-1] == pytest.approx(exact, rel=1e-3)
    if machine.is_pairwise:
        assert torch.equal(machine.weights[0], machine.weights[0].T)


def test_warm_starts_keep_the_priors():
    x = stripes()
    machine = rbm(Binary(12, field=1.0), Binary(4))
    fit(machine, x, epochs=0, warm_start=True)
    assert bool((machine.layers[0].field == 1.0).all())
    fit(machine, x, epochs=0)
    torch.testing.assert_close(torch.sigmoid(machine.layers[0].field.detach()), x.mean(0), rtol=0, atol=0.01)


@pytest.mark.parametrize("name", ["digits", "clusters"])
def test_continued_training_keeps_what_was_learned(name, tmp_path):
    """Also of a machine that was saved. At the default learning rate, two epochs would cost 0.13 nats on digits and 3.2
    on clusters.
    """
    random = np.random.default_rng(0)
    centers, kind = random.random((6, 16)) < 0.5, random.integers(0, 6, 400)
    rows = {
        "digits": lambda: load_digits().data[:500] > 8,
        "clusters": lambda: centers[kind] != (random.random((400, 16)) < 0.05),
    }[name]()
    x = torch.tensor(rows, dtype=torch.float32)
    machine = rbm(Binary(x.shape[1]), Binary(6))
    initial = fit(machine, x, epochs=150, monitor=QUIET)["learning_rate"][0]
    learned = float(exact_log_likelihood(machine, x).mean)
    for epochs in (2, 2, 20):
        history = fit(machine, x, epochs=epochs, warm_start=True, monitor=QUIET)
        assert history["learning_rate"] == pytest.approx([0.01 * initial] * epochs)
        assert float(exact_log_likelihood(machine, x).mean) > learned - 0.01
        save(machine, tmp_path / "machine.safetensors")
        machine = load(tmp_path / "machine.safetensors")


def test_data_from_memory_maps_and_loaders(tmp_path):
    x = stripes()
    path = tmp_path / "x.npy"
    np.save(path, x.numpy())
    found = []
    for source in (x, np.load(path, mmap_mode="r")):
        machine = rbm(Binary(12), Binary(4))
        fit(machine, source, epochs=2, monitor=QUIET)
        found.append(machine.weights[0].detach())
    assert torch.equal(*found)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=50)
    machine = rbm(Binary(12), Binary(4))
    history = fit(machine, loader, epochs=2, monitor=Monitor(n_starts=10))
    assert history["log_likelihood"][-1] == pytest.approx(float(exact_log_likelihood(machine, x)), rel=1e-6)
    assert not torch.equal(machine.weights[0].detach(), found[0])  # in the loader's batches of 50, not of 100


def test_records_and_callbacks(tmp_path):
    seen = []
    log = tmp_path / "run" / "log.jsonl"
    history = fit(
        rbm(Binary(12), Binary(4)),
        stripes(),
        epochs=2,
        log=log,
        callbacks=[lambda m, record: seen.append(record["epoch"])],
    )
    assert seen == [1, 2]
    assert [json.loads(line) for line in log.read_text().splitlines()] == history.records
    assert "2 epochs" in repr(history)


def test_a_full_disk_does_not_cost_the_training(tmp_path):
    log = tmp_path / "log.jsonl"

    def fill(machine, record):
        if log.is_file():
            log.unlink()
            log.mkdir()  # nothing can be written there any more

    machine = rbm(Binary(12), Binary(4))
    with pytest.warns(TrainingWarning, match="the training record could not be written"):
        history = fit(machine, stripes(), epochs=2, log=log, monitor=QUIET, callbacks=[fill])
    assert len(history) == 2


def test_progress_lines(capsys):
    fit(rbm(Binary(12), Binary(4)), stripes(), epochs=1, progress=True)
    assert capsys.readouterr().out.startswith("epoch 1/1")
    fit(rbm(Binary(12), Binary(4)), stripes(), epochs=1)
    assert capsys.readouterr().out == ""


# ----- how it reads


@pytest.mark.parametrize("objective", [TAPObjective(), PCD(1), PCD(1, stratified=False), CD(1)], ids=repr)
def test_the_loss_is_a_few_calls_below_fit(objective, monkeypatch):
    """At most four, and at most six to the formula of the units: who looks for the mathematics finds it."""
    package, chains = Path(tapmachine.__file__).parent, []
    formula = Binary.log_partition_of_rows

    def spied(units, field):
        calls = [frame.name for frame in traceback.extract_stack() if Path(frame.filename).is_relative_to(package)]
        chains.append([*calls, "log_partition_of_rows"])
        return formula(units, field)

    monkeypatch.setattr(Binary, "log_partition_of_rows", spied)
    fit(rbm(Binary(12), Binary(4)), stripes(), epochs=1, objective=objective, monitor=QUIET)
    assert chains
    for chain in chains:
        assert chain[0] == "fit"
        assert chain.index("loss") <= 4
        assert len(chain) - 1 <= 6


# ----- what goes wrong


@pytest.mark.long
def test_a_divergence_is_taken_back_and_the_step_size_cut():
    machine = rbm(TruncatedGaussian(6), Binary(3))
    x = torch.rand(60, 6, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.SGD(machine.parameters(), lr=1e37)
    untrained = copy.deepcopy(machine)
    fit(untrained, x, epochs=0, batch_size=10)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(DivergenceError, match="diverged repeatedly"):
            fit(machine, x, epochs=20, batch_size=10, objective=TAPObjective(), optimizer=optimizer, monitor=QUIET)
    messages = [str(warning.message) for warning in caught if warning.category is TrainingWarning]
    assert "learning rate reduced from 1e+37 to 5e+36" in messages[0]
    assert len(messages) == 10
    assert all(warning.filename == __file__ for warning in caught)
    # Every step was undone, so that the machine is as before the first.
    assert all(torch.equal(p, q) for p, q in zip(machine.parameters(), untrained.parameters(), strict=True))


def test_training_goes_on_after_a_divergence():
    machine = rbm(Binary(12), Binary(4))
    poison = iter([False] * 3 + [True] + [False] * 1000)

    class Poisoned(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            if next(poison):
                with torch.no_grad():
                    machine.weights[0][0, 0] = torch.nan

    with pytest.warns(TrainingWarning, match="1 step produced non-finite values and was undone"):
        history = fit(
            machine, stripes(), epochs=2, optimizer=Poisoned(machine.parameters(), lr=0.01, momentum=0.5), monitor=QUIET
        )
    assert history["divergences"] == [1.0, 0.0]
    assert history["learning_rate"] == [0.01, 0.005]
    undisturbed = rbm(Binary(12), Binary(4))
    start = undisturbed.weights[0].detach().clone()
    fit(undisturbed, stripes(), epochs=2, optimizer=torch.optim.SGD(undisturbed.parameters(), 0.01, 0.5), monitor=QUIET)
    moved, expected = (own.weights[0].detach() - start for own in (machine, undisturbed))
    assert float((moved - expected).norm()) < 0.5 * float(expected.norm())  # half the step size in half of the epochs


def test_a_glass_is_reported():
    machine = rbm(Spin(12), Spin(12), 3 * torch.eye(12))  # each pair of spins may go either way
    x = torch.randn(50, 12, generator=torch.Generator().manual_seed(1)).sign()
    with pytest.warns(TrainingWarning, match="spin-glass phase"):
        record = Monitor(n_starts=50)(machine, x)
    assert record["n_unique"] > 45


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: fit(m, torch.full((200, 3), torch.nan)), "column 0 has no observed values; remove it"),
        (lambda m: fit(m, torch.full((200, 3), 0.5)), r"x\[0, 0\] is 0.5"),
        (lambda m: fit(m, torch.zeros(200, 4)), "expected a shape ending in"),
        (lambda m: fit(m, torch.zeros(0, 3)), "at least one row"),
        (lambda m: fit(m, torch.zeros(50, 3), batch_size=100), "batch_size is 100, but the data have only 50 rows"),
        (lambda m: fit(m, torch.zeros(200, 3), weights=torch.ones(3)), "one weight per row"),
        (lambda m: fit(m, torch.zeros(200, 3), weights=-torch.ones(200)), "weights with a positive sum"),
        (lambda m: fit(m, []), "the loader yielded no batches"),
        (lambda m: fit(m, torch.zeros(200, 3), validation=torch.full((2, 3), 0.5)), r"x\[0, 0\] is 0.5"),
        (lambda m: fit(rbm(Binary(3), Binary(2), torch.full((3, 2), torch.nan)), torch.zeros(200, 3)), "is nan"),
        (lambda m: fit(clamp(m, torch.zeros(3)), torch.zeros(200, 3)), "has clamped units"),
        (lambda m: fit(m, iter([torch.zeros(5, 3)])), "iterated over only once"),
        (
            lambda m: fit(m, Loader([torch.zeros(5, 3), torch.full((5, 3), 0.5)])),
            "batch 1 of the loader: .*0, 0. is 0.5",
        ),
        (lambda m: fit(m, rows_with_a_bad_one(20_003)), r"x\[20003, 1\] is 2"),
        (
            lambda m: fit(m, torch.zeros(200, 3), scheduler=geometric_decay(momentum_sgd(m), 0.1, 5)),
            "belongs to another optimizer",
        ),
        (
            lambda m: fit(m, torch.zeros(200, 3), optimizer=torch.optim.SGD(list(m.weights), lr=0.1), centered=True),
            "fields the optimizer trains",
        ),
        (lambda m: fit(m, torch.zeros(200, 3), objective="pcd"), "objective is 'pcd'; expected an Objective"),
        (lambda m: fit(m, torch.zeros(200, 3), objective=PCD), "objective is .*; expected an Objective"),
        (lambda m: CD(0), "CD: k is 0"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(rbm(Binary(3), Binary(2)))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["Binary", "TruncatedGaussian", "GaussBernoulli"])
def test_constant_columns_and_equal_rows(kind):
    machine = machine_of([kind, "Binary"], [4, 3], seed=8, scale=0.01).float()
    x = torch.zeros(60, 4)
    x[:, 1] = 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        fit(machine, x, epochs=5, batch_size=20, monitor=Monitor(n_starts=5))
    learned = solve(machine)
    assert bool(learned.converged.all())
    assert float((learned.moments[0].mean - x[:1]).abs().max()) < 0.1  # 0.04 at most, by how priors are smoothed


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("objective", [None, TAPObjective(), CD(1), PCD(2)], ids=repr)
def test_captured_training_is_that_of_plain_steps(objective):
    x = stripes().cuda()
    found = []
    for captured in (True, True, False):
        machine = rbm(Binary(12), Binary(4)).cuda()
        optimizer = momentum_sgd(machine) if captured else torch.optim.SGD(
            [{"params": list(machine.weights), "weight_decay": 0.001}, {"params": [u.field for u in machine.layers]}],
            lr=0.005, momentum=0.5,
        )  # fmt: skip
        fit(machine, x, epochs=5, objective=objective, optimizer=optimizer, monitor=QUIET)
        found.append(machine.weights[0].detach().cpu())
    assert torch.equal(found[0], found[1])
    if not isinstance(objective, CD | PCD):  # draws are others where steps are captured
        torch.testing.assert_close(found[0], found[2], rtol=1e-3, atol=1e-5)


# ----- compiled steps


@pytest.mark.parametrize("version", ["2.5.0+cu124", "2.10.1"])
def test_older_versions_of_torch_do_not_compile(version, monkeypatch):
    monkeypatch.setattr(torch, "__version__", version)
    machine = machine_of(["Binary", "Binary"], [6, 4], seed=5, scale=0.2)
    with pytest.raises(ValueError, match=f"compile=True requires torch 2.11 or newer, found {re.escape(version)}"):
        fit(machine, data_of(machine, 8), epochs=1, batch_size=8, compile=True)
    with pytest.raises(ValueError, match=r"compile=True requires torch 2\.11"):
        solve(machine, compile=True)


def test_what_depends_on_values_is_known_before_a_step_is_compiled():
    """A compiled step would break its graph to read the bounds of the units."""
    machine = rbm(TruncatedGaussian(6), Binary(4))
    step_of(machine, TAPObjective(), torch.rand(8, 6))
    assert all("has_counts" in vars(units) for units in machine.layers)


@pytest.mark.long
@needs_compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
@pytest.mark.parametrize(
    "kinds",
    [
        ["Binary", "Binary"],
        pytest.param(["TruncatedGaussian", "Binary"], marks=pytest.mark.slow),
        pytest.param(["GaussBernoulli", "Binary"], marks=pytest.mark.slow),
        pytest.param(["Categorical", "Binary"], marks=pytest.mark.slow),
    ],
)
def test_a_loss_and_its_gradient_are_one_graph(kinds):
    machine = machine_of(kinds, [6, 4], seed=5, scale=0.2)
    x = data_of(machine, 8)
    step = step_of(machine, TAPObjective(5, 4), x, optimizer=momentum_sgd(machine))

    def gradients(loss_of):
        machine.zero_grad()
        value, carry = loss_of(step.context(x, None), step.carry)
        value.backward()
        return [value.detach(), *carry, *(p.grad.clone() for p in machine.parameters())]

    compiled = gradients(torch.compile(step.loss, backend="aot_eager", fullgraph=True))  # first: nothing is cached yet
    for got, value in zip(compiled, gradients(step.loss), strict=True):
        torch.testing.assert_close(got, value, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@needs_compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
@pytest.mark.parametrize("kind", ["Binary", "TruncatedGaussian"])
def test_compiled_training_agrees(kind):
    weights = []
    for compile in (False, True):
        machine = machine_of([kind, "Binary"], [12, 4], seed=6, scale=0.1)
        x = data_of(machine, 60)
        objective = TAPObjective(n_sweeps=4)
        fit(machine, x, epochs=3, batch_size=20, objective=objective, monitor=QUIET, compile=compile)
        weights.append(machine.weights[0].detach())
    torch.testing.assert_close(weights[1], weights[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize(("n_sweeps", "expected"), [(20, {"loss"}), (21, {"step"})])
def test_many_sweeps_are_compiled_separately(n_sweeps, expected, monkeypatch):
    """The compiler unrolls the loop over sweeps: with many of them, only their common body is compiled."""
    names = set()

    def record(function):
        names.add(function.__name__)
        return function

    for module in (step_module, free_energies_module):
        monkeypatch.setattr(module, "compiled", record)
    machine = machine_of(["Binary", "Binary"], [6, 3], seed=6)
    objective = TAPObjective(n_sweeps=n_sweeps, scheme=TAP("explicit", 0.0), merged=False)
    fit(machine, data_of(machine, 20), epochs=1, batch_size=10, objective=objective, monitor=QUIET, compile=True)
    assert names & {"loss", "step"} == expected


@pytest.mark.slow
@needs_compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
@pytest.mark.parametrize("kind", ["Binary", "GaussBernoulli"])
def test_separately_compiled_sweeps_agree(kind):
    machine = machine_of([kind, "Binary"], [12, 4], seed=6, scale=0.5).float()
    x, scheme = data_of(machine, 30), TAP("explicit", 0.0)
    plain, fast = (
        free_energies_module.free_energy_from(machine, x, scheme, 41, compile_sweeps=c)[1] for c in (False, True)
    )
    torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@needs_compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
@pytest.mark.parametrize("n_sweeps", [4, 10])
def test_compiled_sweeps_agree_on_strong_couplings(n_sweeps, monkeypatch):
    """As a GPU does them, with W and W² in one product: compilers have spoilt tensors that were stacked for it."""
    monkeypatch.setattr(couplings, "_in_one_launch", lambda weights: True)
    machine = machine_of(["Binary", "Binary"], [40, 10], seed=6, scale=1.0).float()
    x = data_of(machine, 30)

    def sweeps(x):
        return free_energy_from(machine, x, TAP(), n_sweeps)[0]

    for got, value in zip(compiled(sweeps)(x), sweeps(x), strict=True):
        torch.testing.assert_close(got.mean, value.mean, rtol=0, atol=1e-3)  # they are 0.6 off, if it is wrong


@pytest.mark.gpu
@needs_compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_compiled_sweeps_on_a_gpu_agree_on_strong_couplings():
    losses = []
    for device, compile in (("cpu", False), ("cuda", True)):
        machine = machine_of(["Binary", "Binary"], [40, 10], seed=6, scale=1.0).float().to(device)
        x = data_of(machine.cpu(), 300).to(device)
        machine.to(device)
        options = {"optimizer": momentum_sgd(machine, 1e-4), "centered": False, "warm_start": True}
        history = fit(machine, x, epochs=1, batch_size=20, objective=TAPObjective(), compile=compile, **options)
        losses.append((history["loss"][0], history["gradient_norm"][0]))
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


@pytest.mark.gpu
@needs_compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("compile", [False, True], ids=["captured", "compiled"])
@pytest.mark.parametrize("kind", ["Binary", "TruncatedGaussian", "GaussBernoulli"])
def test_training_on_a_gpu_agrees(kind, compile):
    weights = []
    for device in ("cpu", "cuda"):
        machine = machine_of([kind, "Binary"], [12, 4], seed=6, scale=0.1).float().to(device)
        x = data_of(machine.cpu(), 60).to(device)
        # Not chains: their draws on another device are others.
        options = {"objective": TAPObjective(n_sweeps=4), "monitor": QUIET, "compile": compile and device == "cuda"}
        fit(machine.to(device), x, epochs=3, batch_size=20, **options)
        weights.append(machine.weights[0].detach().cpu())
    torch.testing.assert_close(weights[1], weights[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("objective", [CD(2), PCD(2, 7), PCD(2, 7, stratified=False)], ids=repr)
@pytest.mark.parametrize("kinds", [["Binary", "Spin"], ["Categorical", "Binary"]], ids="-".join)
def test_data_and_samples_in_one_product_give_what_two_give(objective, kinds):
    machine, found = machine_of(kinds, [6, 4], seed=6, scale=0.5), []
    x = data_of(machine, 20)
    for loss_of in (type(objective).loss, Objective.loss):
        context = Context(machine, x, torch.Generator().manual_seed(1), torch.linspace(0.5, 1.5, 20).double())
        loss, carry = loss_of(objective, context, objective.prepare(context))
        machine.zero_grad()
        loss.backward()
        found.append([loss, *carry, *(p.grad.clone() for p in machine.parameters())])
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kinds", [["Binary", "Binary"], ["TruncatedGaussian", "Binary"], ["Spin"]], ids="-".join)
def test_sweeps_of_some_particles_at_a_time_are_those_of_all(kinds, monkeypatch):
    machine = machine_of(kinds, [12, 4][: len(kinds)], seed=6, scale=0.5)
    x = data_of(machine, 40)
    whole = free_energy_from(machine, x, TAP(), 4)
    monkeypatch.setattr(free_energies, "fitting_batch", lambda *_: 7)
    parts = free_energy_from(machine, x, TAP(), 4)
    torch.testing.assert_close(parts[1], whole[1], rtol=0, atol=1e-9)
    for mine, other in zip(whole[0], parts[0], strict=True):
        assert len(other.mean) == 40
        torch.testing.assert_close(other, mine, rtol=0, atol=1e-9)


@pytest.mark.parametrize("source", [torch.as_tensor, np.asarray], ids=["tensor", "array"])
def test_every_row_of_a_batch_comes_with_its_weight(source):
    x = torch.eye(12)  # which says its own number
    batches = Batches(rbm(Binary(12), Binary(3)), source(x), TrainingOptions(batch_size=4, weights=torch.arange(12.0)))
    seen = []
    for place in batches.epoch():
        rows, weights = batches.take(place)
        torch.testing.assert_close(weights * torch.arange(12.0).mean(), rows.argmax(1).float())
        seen += rows.argmax(1).tolist()
    assert sorted(seen) == list(range(12)) != seen


def test_measuring_every_few_epochs():
    machine = rbm(Binary(12), Binary(3))
    history = fit(machine, stripes(), epochs=7, monitor=Monitor(n_starts=10, every=3))
    measured = [not math.isnan(value) for value in history["log_likelihood"]]
    assert measured == [True, False, True, False, False, True, True]
    with pytest.raises(KeyError, match="was not recorded"):
        history["nonsense"]
    with pytest.raises(ValueError, match="every is 0"):
        Monitor(every=0)


def test_a_machine_that_becomes_much_worse_is_warned_of_once():
    class Told:
        def __init__(self, values):
            self.values = iter(values)

        def is_due(self, epoch, epochs):
            return True

        def __call__(self, *_):
            return {"log_likelihood": next(self.values), "log_likelihood_method": "exact"}

        def independent(self, *_):
            return -math.inf

    for values, n_warnings in (
        ([-50, -40, -45, -49], 0),
        ([-50, -40, -51, -60, -200], 1),
        ([-500, -400, -430, math.nan, -445], 1),
    ):
        trainer = Trainer(rbm(Binary(12), Binary(3)), stripes(), epochs=len(values), monitor=Told(values))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in values:
                trainer.epoch()
                again = Trainer(rbm(Binary(12), Binary(3)), stripes(), epochs=len(values), monitor=trainer.monitor)
                again.restore(trainer.state())  # it remembers
                trainer = again
        assert len([w for w in caught if "has fallen from" in str(w.message)]) == n_warnings


# ----- put down and taken up again


@pytest.mark.parametrize(
    "objective", [None, TAPObjective(n_sweeps=4), TAPObjective(7, 4, merged=False), PCD(2)], ids=repr
)
@pytest.mark.parametrize("adam", [False, True])
def test_a_training_that_is_taken_up_again_goes_on_to_the_bit(objective, adam):
    def trainer():
        machine = rbm(Binary(12), Binary(5))
        options = {}
        if adam:
            options["optimizer"] = torch.optim.Adam(machine.parameters(), lr=0.01)
            options["scheduler"] = torch.optim.lr_scheduler.CosineAnnealingLR(options["optimizer"], 6)
        return Trainer(machine, stripes(), epochs=6, objective=objective, monitor=QUIET, seed=3, **options)

    whole = trainer()
    records = [whole.epoch() for _ in range(6)]
    first = trainer()
    for _ in range(2):
        first.epoch()
    tensors, values = first.state()
    first.epoch()  # does not change what was taken
    second = trainer()
    second.restore(TrainingState(tensors, json.loads(json.dumps(values))))
    again = [second.epoch() for _ in range(4)]
    for name, value in whole.machine.state_dict().items():
        assert torch.equal(value, second.machine.state_dict()[name]), name
    for a, b in zip(records[2:], again, strict=True):
        assert {k: v for k, v in a.items() if k != "seconds"} == {k: v for k, v in b.items() if k != "seconds"}


# ----- what went wrong once


@pytest.mark.long
def test_a_divergence_goes_back_to_where_the_loss_was_finite():
    """A step may lead to finite parameters at which F is not; the next one has to go back further than to those."""
    generator = torch.Generator().manual_seed(0)
    x = 3 * torch.randn(400, 1, generator=generator) + torch.randn(400, 6, generator=generator)
    machine = rbm(Gaussian(6), Binary(3))
    optimizer = torch.optim.SGD(machine.parameters(), lr=0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        history = fit(
            machine, x, epochs=20, optimizer=optimizer, objective=TAPObjective(), centered=False, monitor=QUIET
        )
    assert sum(history["divergences"]) >= 1
    assert sum(history["divergences"][-10:]) == 0
    assert bool(solve(machine, x[:100]).converged.all())


def test_a_divergence_of_a_deep_machine_is_caught():
    machine = dbm([Gaussian(6), Binary(4), Binary(3)])
    x = 3 * torch.randn(400, 6, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.SGD(machine.parameters(), lr=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        try:
            history = fit(machine, x, epochs=3, objective=PCD(1), optimizer=optimizer, monitor=QUIET)
            divergences = sum(history["divergences"])
        except DivergenceError:
            divergences = math.inf
    assert divergences > 0
    assert all(bool(torch.isfinite(p).all()) for p in machine.parameters())


@pytest.mark.long
def test_units_that_cannot_be_inverted_are_trained():
    """A prior that is right already stays so."""

    class Quadratic(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Parameter(torch.zeros(4))

        def forward(self, x):
            return self.a * x**2

    x = torch.randint(-1, 2, (600, 4), generator=torch.Generator().manual_seed(0)).float()
    machine = rbm(Custom(4, Quadratic(), values=[-1.0, 0.0, 1.0]), Binary(2))
    fit(machine, x, epochs=20, monitor=QUIET)
    assert float(exact_log_likelihood(machine, x)) > -4.8  # −4 ln 3 = −4.39 is the best


def test_fields_that_are_not_trained_leave_gradients_alone():
    machine = rbm(Binary(12), Binary(4))
    fit(machine, stripes(), epochs=20, optimizer=torch.optim.SGD(list(machine.weights), lr=0.1), monitor=QUIET)
    assert float(exact_log_likelihood(machine, stripes())) > -9.0


def test_a_cut_lasts_whatever_the_scheduler():
    class Once(Objective):  # its third loss is not finite
        calls = 0

        def prepare(self, context):
            return ()

        def model_free_energy(self, context, carry):
            self.calls += 1
            value = clamped_free_energy(context.machine, context.batch).mean()
            return value * (math.nan if self.calls == 3 else 1.0), carry

    machine = rbm(Binary(12), Binary(4))
    optimizer = torch.optim.SGD(machine.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
    with pytest.warns(TrainingWarning, match="reduced from 0.01 to 0.005"):
        history = fit(
            machine, stripes(), epochs=3, objective=Once(), optimizer=optimizer, scheduler=scheduler, monitor=QUIET
        )
    assert history["learning_rate"] == [0.01, 0.005, 0.005]


def test_schedulers_that_wait_for_a_plateau():
    machine = rbm(Binary(12), Binary(4))
    optimizer = torch.optim.SGD(machine.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=1e9)
    history = fit(machine, stripes(), epochs=4, optimizer=optimizer, scheduler=scheduler, monitor=QUIET)
    assert history["learning_rate"][-1] < 0.01


def test_loaders_of_unknown_length_and_of_uneven_batches():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(stripes())

    fit(rbm(Binary(12), Binary(4)), torch.utils.data.DataLoader(Stream(), batch_size=50), epochs=1, monitor=QUIET)
    uneven = Loader(stripes().split([100, 30, 100, 100, 70]))
    with pytest.warns(TrainingWarning, match="batch 1 of the loader has 30 rows"):
        fit(rbm(Binary(12), Binary(4)), uneven, epochs=1, monitor=QUIET)


def test_a_machine_without_a_score_is_told_of():
    machine = rbm(Binary(6), Binary(4), torch.full((6, 4), 1e30))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        record = Monitor(n_starts=5)(machine, stripes(20, 6))
    assert [str(w.message).split(":")[0] for w in caught] == ["the TAP log-likelihood is not available"]
    assert math.isnan(record["tap_log_likelihood"])
    assert math.isfinite(record["log_likelihood"])  # by enumeration


def test_both_sides_of_a_deep_loss_use_one_scheme():
    machine = machine_of(["Binary", "Binary", "Binary"], [6, 4, 3], seed=3, scale=0.5)
    x = data_of(machine, 20)
    scheme = NaiveMeanField()
    step = step_of(machine, TAPObjective(n_sweeps=100, scheme=scheme), x)
    free = float(solve(machine, x, scheme, tol=1e-20).free_energy.mean())
    clamped = float(solve(clamp(machine, x), None, scheme, tol=1e-20).free_energy.mean())
    assert float(step(x).loss) == pytest.approx(clamped - free, abs=1e-3)


# ----- real-valued data with columns that hardly vary


@pytest.mark.long
@pytest.mark.parametrize(("kind", "epochs"), [(Gaussian, 10), (TruncatedGaussian, 3), (TruncatedGaussBernoulli, 3)])
def test_columns_that_are_constant_or_nearly_so(kind, epochs):
    """One row in 400 stands out by hundreds of standard deviations of its column; V must not follow it to 0."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(400, 6, generator=generator)
    x[:, 0], x[:, 1] = 0.0, 0.0
    x[7, 1] = 0.9
    machine = rbm(kind(6), Binary(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        history = fit(machine, x, epochs=epochs, batch_size=10, monitor=QUIET)
    assert history["divergences"] == [0.0] * epochs
    variance = machine.layers[0].moments(Tilt(torch.zeros(1, 6), 0.0)).variance[0].detach()
    assert float(variance[2:].max()) < 1
    assert float(variance[1]) < 0.05
