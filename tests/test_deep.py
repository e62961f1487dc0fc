"""Deep machines: hidden layers given data, gradients, pretraining, and everything that a run of one can do."""

import copy
import json
import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from machine_cases import machine_of
from typer.testing import CliRunner

from tapmachine import (
    CD,
    PCD,
    RBM,
    TAP,
    Binary,
    BinarySymmetric,
    Categorical,
    Custom,
    Gaussian,
    NaiveMeanField,
    TAPObjective,
    Tilt,
    ais_log_likelihood,
    ais_log_partition,
    clamp,
    condition,
    dbm,
    exact_log_likelihood,
    exact_log_partition,
    fit,
    gibbs,
    load,
    pairwise,
    pretrain,
    rbm,
    solve,
    tap_log_likelihood,
)
from tapmachine.analysis import hidden_means, receptive_fields
from tapmachine.apps.cli import app
from tapmachine.data.errors import HiddenWarning, SettingsError, TrainingWarning
from tapmachine.likelihood import exact_moments
from tapmachine.machine import sample_solutions
from tapmachine.machine.conditioning import hidden_machine
from tapmachine.runs.folder import RunFolder
from tapmachine.runs.settings import Settings, read_settings
from tapmachine.runs.training import run_training
from tapmachine.training import Monitor, TrainingOptions, free_energies, momentum_sgd
from tapmachine.training.context import Context
from tapmachine.training.free_energies import clamped_free_energy, summed_over_odd_layers
from tapmachine.training.pretraining import PretrainingTrainer

QUIET = Monitor(n_starts=0)
ODD = Custom(2, lambda x: -x, values=torch.tensor([0.0, 1.0]))
KINDS = [
    ["Binary", "Spin", "Binary"],
    ["Categorical", "Binary", "Categorical", "Spin"],
    ["GaussBernoulli", "Binary", "Spin"],
]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def data_of(machine, rows, seed=0):
    units = machine.layers[0]
    return units.sample(Tilt(torch.zeros((rows, *units.state_shape), dtype=machine.dtype), 0.0), generator(seed))


def deep(kinds, scale=0.4, seed=3):
    return machine_of(kinds, [4, 3, 2, 2][: len(kinds)], seed=seed, scale=scale)


def bars(rows=200, seed=0):
    """Some of the rows and columns of a 4×4 image: two levels of causes."""
    draw = generator(seed)
    rows_or_columns = torch.rand(rows, 1, 1, generator=draw) < 0.5
    on = (torch.rand(rows, 4, 1, generator=draw) < 0.4).expand(-1, 4, 4)
    return torch.where(rows_or_columns, on, on.mT).flatten(1).float()


# ----- hidden layers given data


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
@pytest.mark.parametrize("scheme", [TAP(), NaiveMeanField()], ids=repr)
def test_hidden_layers_given_data_have_the_solutions_of_the_clamped_machine(kinds, scheme):
    machine = deep(kinds)
    x = data_of(machine, 6)
    clamped = solve(clamp(machine, x), None, scheme, tol=1e-24)
    hidden = solve(hidden_machine(machine, x), None, scheme, tol=1e-24)
    assert clamped.converged.all()
    assert hidden.converged.all()
    own = machine.layers[0].log_prior(x).sum(-1).detach()
    torch.testing.assert_close(hidden.free_energy - own, clamped.free_energy, rtol=0, atol=1e-10)
    for one, other in zip(hidden.moments, clamped.moments[1:], strict=True):
        torch.testing.assert_close(one.mean, other.mean, rtol=0, atol=1e-9)


def test_hidden_means():
    machine = deep(["Binary", "Spin", "Binary"], scale=0.1)
    x = data_of(machine, 3)
    found = hidden_means(machine, x)
    for row in range(3):
        exact = exact_moments(clamp(machine, x[row : row + 1])).moments
        for own, true in zip(found, exact[1:], strict=True):
            torch.testing.assert_close(own[row], true.mean, rtol=0, atol=5e-4)  # what TAP is off by at such couplings
    single = rbm(Binary(4).double(), Binary(3).double(), torch.randn(4, 3, dtype=torch.float64, generator=generator()))
    (means,) = hidden_means(single, x)
    torch.testing.assert_close(means, torch.sigmoid(x @ single.weights[0]).detach())
    with pytest.raises(ValueError, match="no hidden units"):
        hidden_means(pairwise(Binary(3)), x[:, :3].float())
    with pytest.raises(ValueError, match="expected 3 or more"):
        hidden_machine(single, x)
    with pytest.raises(ValueError, match=r"layer 0: .*expected 0 or 1"):
        hidden_machine(machine, x + 0.5)


def test_rows_without_hidden_means_are_told_of(monkeypatch):
    machine = deep(["Binary", "Binary", "Binary"], scale=3.0)
    module = __import__("tapmachine.analysis.features", fromlist=["solve"])
    monkeypatch.setattr(module, "solve", lambda m, start, scheme: solve(m, start, scheme, max_sweeps=1))
    with pytest.warns(HiddenWarning, match="5 of 5 rows have no converged solution; the first is row 0"):
        hidden_means(machine, data_of(machine, 5))


def test_fields_of_higher_layers():
    machine = deep(["Categorical", "Binary", "Binary", "Spin"])
    W = [w.detach() for w in machine.weights]
    for layer, expected in ((1, W[0]), (2, W[0] @ W[1]), (3, W[0] @ W[1] @ W[2])):
        ranking = receptive_fields(machine, data_of(machine, 5), layer=layer)
        assert ranking.layer == layer
        torch.testing.assert_close(ranking.fields.flatten(1), expected.T)
        torch.testing.assert_close(ranking.activation, hidden_means(machine, data_of(machine, 5))[layer - 1].mean(0))
    for layer in (0, 4, True):
        with pytest.raises(ValueError, match="expected a hidden layer from 1 to 3"):
            receptive_fields(machine, layer=layer)


# ----- free energies and gradients


@pytest.mark.long
@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_gradients_against_differences(kinds, monkeypatch):
    """Of F(clamped) − F(free), each solved anew; no parameter's differs by more than 1e-6."""
    monkeypatch.setattr(free_energies, "CLAMPED_SWEEPS", 3000)
    machine = deep(kinds, scale=0.3)
    x = data_of(machine, 4)

    def loss():
        tight = {"tol": 1e-22, "max_sweeps": 5000}  # F is stationary: it is off by the square of what moments are
        return float(
            solve(clamp(machine, x), None, **tight).free_energy.mean() - solve(machine, x, **tight).free_energy.mean()
        )

    free = solve(machine, x, tol=1e-22, max_sweeps=5000)
    (clamped_free_energy(machine, x) - TAP().free_energy(machine, free.moments, free.tilts)).mean().backward()
    for parameter in machine.parameters():
        flat = parameter.data.view(-1)
        for index in (0, len(flat) - 1):
            before, values = float(flat[index]), []
            for step in (1e-4, -1e-4):
                flat[index] = before + step
                values.append(loss())
            flat[index] = before
            slope = (values[0] - values[1]) / 2e-4
            assert float(parameter.grad.view(-1)[index]) == pytest.approx(slope, abs=1e-6)


def fields_on_odd_layers(machine, chain):
    return {index: machine.field_on(index, chain) for index in range(1, len(chain), 2)}


@pytest.mark.parametrize("kinds", [["Binary", "Spin", "Binary"], ["Spin", "Binary", "Binary", "Spin"]], ids="-".join)
def test_free_energy_of_samples_is_exact(kinds):
    """Even layers clamped, the others summed over: against enumeration."""
    machine = deep(kinds)
    chain = gibbs(machine, data_of(machine, 5), 2, generator())
    clamped = machine
    for layer in range(0, len(kinds), 2):
        clamped = clamp(clamped, chain[layer], layer=layer)
    found = summed_over_odd_layers(machine, chain, fields_on_odd_layers(machine, chain))
    torch.testing.assert_close(-found.detach(), exact_log_partition(clamped), rtol=0, atol=1e-11)


def test_gradients_from_samples_are_the_models():
    """On average over chains at equilibrium they are ∂(−F) of the free machine, exactly known here."""
    machine, n_chains = deep(["Binary", "Spin", "Binary"]), 40_000
    chain = gibbs(machine, data_of(machine, 1).expand(n_chains, -1).contiguous(), 30, generator())
    summed_over_odd_layers(machine, chain, fields_on_odd_layers(machine, chain)).mean().backward()
    exact = exact_moments(machine)
    means = [own.mean for own in exact.moments]
    for number, weight in enumerate(machine.weights):
        expected = exact.covariances[number] + means[number].outer(means[number + 1])
        bound = 7 / n_chains**0.5  # standard errors, or more: products lie in [-1, 1]
        torch.testing.assert_close(-weight.grad, expected, rtol=0, atol=bound)


@pytest.mark.long
def test_likelihoods_of_a_deep_machine_by_three_estimators():
    machine = deep(["Binary", "Spin", "Binary", "Binary"], scale=0.3)
    x = data_of(machine, 6)
    exact = exact_log_likelihood(machine, x)
    tap = tap_log_likelihood(machine, x)
    estimate = ais_log_partition(machine, 500, 200)
    annealed = ais_log_likelihood(machine, x, estimate, schedule=500, n_runs=200)
    torch.testing.assert_close(tap.values, exact.values, rtol=0, atol=0.05)
    torch.testing.assert_close(annealed.values, exact.values, rtol=0, atol=0.05)
    naive = tap_log_likelihood(machine, x, scheme=NaiveMeanField())
    weights = naive.values + naive.log_partition  # −F of naive mean field is a bound
    assert bool((weights <= exact.values + exact.log_partition + 1e-9).all())


@pytest.mark.long
@pytest.mark.parametrize(
    "objective",
    [TAPObjective(), PCD(5), PCD(5, stratified=False), pytest.param(CD(5), marks=pytest.mark.slow)],
    ids=repr,
)
def test_training_lifts_the_likelihood(objective):
    x = bars()
    weights = [0.1 * torch.randn(shape, generator=generator(1)) for shape in ((16, 8), (8, 4))]
    machine = dbm([Binary(16), Binary(8), Binary(4)], weights)
    machine.layers[0].fit_to(x)
    before = float(exact_log_likelihood(machine, x).mean)
    options = {"objective": objective, "optimizer": momentum_sgd(machine, 0.1, weight_decay=0.0), "monitor": QUIET}
    fit(machine, x, epochs=20, batch_size=20, warm_start=True, **options)
    assert float(exact_log_likelihood(machine, x).mean) > before + 0.5  # by 1.6 nats or more, as a rule


@pytest.mark.long
def test_layers_of_no_use_are_told_of():
    machine = dbm([Binary(16), Binary(8), Binary(4)])
    with pytest.warns(TrainingWarning, match="hidden layer 2 vary by only .* between rows"):
        history = fit(machine, bars(), epochs=2, batch_size=20, optimizer=momentum_sgd(machine, 1e-6), monitor=QUIET)
    assert 0 <= history["variation_2"][0] < 0.01
    single = rbm(Binary(16), Binary(8))
    assert "variation_1" not in fit(single, bars(), epochs=1, batch_size=20, monitor=QUIET).records[0]


@pytest.mark.parametrize("kinds", [["Binary", "Spin", "Binary"], ["Categorical", "Binary", "Categorical", "Spin"]])
@pytest.mark.parametrize("objective", [PCD(2), PCD(2, stratified=False), CD(1)], ids=repr)
def test_layers_drawn_given_rows_have_the_moments_of_the_posterior(kinds, objective):
    """Means and correlations of the even layers, and of the odd ones given them, against enumeration."""
    machine, n_draws = deep(kinds, scale=0.7), 4000
    row = data_of(machine, 1)
    exact = exact_moments(clamp(machine, row)).moments
    batch = row.expand(n_draws, *row.shape[1:])
    context = Context(machine, batch, generator())
    objective.prepare(context)
    drawn = objective.draw_given_rows(context)
    for index in range(2, len(kinds), 2):
        error = (drawn[index].mean(0) - exact[index].mean).abs()
        assert float(error.max()) < 5 * 0.5 * n_draws**-0.5
    for index in range(1, len(kinds), 2):
        mean = machine.layers[index].moments(Tilt(machine.field_on(index, drawn), 0.0)).mean.detach().mean(0)
        assert float((mean - exact[index].mean).abs().max()) < 5 * n_draws**-0.5


# ----- pretraining


def test_a_machine_with_its_first_layer_pretrained_is_that_restricted_machine():
    x, machine = bars(), dbm([Binary(16), Binary(6), Binary(4)], generator=generator(1))
    history = pretrain(machine, x, epochs=20, batch_size=20, monitor=QUIET)
    assert history["layer"] == [1.0] * 20
    alone = rbm(machine.layers[0], machine.layers[1], machine.weights[0].detach())
    of_deep, of_rbm = (float(exact_log_likelihood(each, x).mean) for each in (machine, alone))
    assert abs(of_deep - of_rbm) < 0.02


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:the means of hidden layer")
def test_pretraining():
    x = bars()
    weights = [0.1 * torch.randn(shape, generator=generator(1)) for shape in ((16, 8), (8, 6), (6, 4))]
    machine = dbm([Binary(16), Binary(8), Binary(6), Binary(4)], weights)
    machine.layers[0].fit_to(x)
    before = float(exact_log_likelihood(machine, x).mean)
    options = {"optimizer": lambda own: momentum_sgd(own, 0.1, weight_decay=0.0), "batch_size": 10, "monitor": QUIET}
    history = pretrain(machine, x, epochs=8, all_layers=True, **options)
    assert history["layer"] == [1.0] * 8 + [2.0] * 8 + [3.0] * 8
    assert history["epoch"] == list(range(1, 25))
    moved = [float((new.detach() - old).norm()) for new, old in zip(machine.weights, weights, strict=True)]
    assert min(moved) > 0.02, moved  # 0.2, as a rule; 0 if a layer is left out
    sgd = momentum_sgd(machine, 0.05, weight_decay=0.0)
    fit(machine, x, epochs=5, batch_size=10, optimizer=sgd, warm_start=True, monitor=QUIET)
    assert float(exact_log_likelihood(machine, x).mean) > before + 0.5  # by 1.6 nats or more, as a rule


def test_the_first_layer_is_the_machine_that_fit_makes():
    x, machine = bars(), dbm([Binary(16), Binary(8), Binary(4)], generator=generator(1))
    alone = rbm(Binary(16), Binary(8), machine.weights[0].detach().clone())
    fit(alone, x, epochs=3, batch_size=20, monitor=QUIET)
    pretrain(machine, x, epochs=3, batch_size=20, monitor=QUIET)
    assert torch.equal(machine.weights[0], alone.weights[0])
    for number in (0, 1):
        assert torch.equal(machine.layers[number].field, alone.layers[number].field)


def test_layers_are_trained_one_after_the_other():
    machine = dbm([Binary(16), Binary(6), Binary(5), Binary(4)], generator=generator(1))
    options = TrainingOptions(epochs=0, batch_size=20, objective=TAPObjective(), monitor=QUIET)
    trainer = PretrainingTrainer(machine, bars(), options, 3, all_layers=True)
    while not trainer.is_over:
        trainer.epoch()
        # Warnings speak of epochs of the whole training.
        assert trainer.current.watch.earlier_epochs + trainer.current.finished == trainer.finished
    lowest, *above = trainer.trained
    assert [each.sizes for each in trainer.trained] == [(16, 6), (6, 5), (5, 4)]
    assert all(torch.equal(mine, each.weights[0]) for mine, each in zip(machine.weights, trainer.trained, strict=True))
    assert torch.equal(machine.layers[0].field, lowest.layers[0].field)
    for layer, each in zip(list(machine.layers)[2:], above, strict=True):
        assert torch.equal(layer.field, each.layers[1].field)


@pytest.mark.parametrize("joint", [0, 2])
@pytest.mark.parametrize("stop", range(1, 7))
@pytest.mark.filterwarnings("ignore:the means of hidden layer")
def test_pretraining_goes_on_from_any_epoch(joint, stop):
    if stop > 4 + joint - 1:
        pytest.skip("is over by then")

    def trainer():
        machine = dbm([Binary(16), Binary(5), Binary(4)], generator=generator(1))
        options = TrainingOptions(epochs=joint, batch_size=20, monitor=QUIET)
        return PretrainingTrainer(machine, bars(), options, 2, all_layers=True)

    whole, first, second = trainer(), trainer(), trainer()
    while whole.finished < whole.epochs:
        whole.epoch()
    for _ in range(stop):
        first.epoch()
    state = first.state()
    json.dumps(state.values)
    second.restore(state)
    assert second.finished == stop
    assert all(torch.equal(a, b) for a, b in zip(first.machine.parameters(), second.machine.parameters(), strict=True))
    while second.finished < second.epochs:
        second.epoch()
    assert all(torch.equal(a, b) for a, b in zip(whole.machine.parameters(), second.machine.parameters(), strict=True))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pretrain(rbm(Binary(16), Binary(4)), bars()), "at least two hidden layers"),
        (lambda: pretrain(dbm([Binary(16), Binary(4), Binary(2)]), bars()[:, :3]), "expected a shape ending in"),
        (
            lambda: pretrain(deep := dbm([Binary(16), Binary(4), Binary(2)]), bars(), optimizer=momentum_sgd(deep)),
            "an optimizer for each layer",
        ),
        (
            lambda: pretrain(condition(dbm([Binary(16), Binary(4), Binary(2)]), Tilt(torch.ones(4), 0.0), 1), bars()),
            "layer 1 is conditioned on evidence",
        ),
        (lambda: Settings("x", hidden=(5,), pretrain=3), "which requires several hidden layers"),
        (lambda: Settings("x", hidden=(5, 3), pretrain=-1), "pretrain is -1"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises((ValueError, SettingsError), match=message):
        call()


# ----- runs, the estimator, the command line


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:the means of hidden layer")
def test_a_run_goes_on_in_every_stage(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", bars().numpy())
    settings = Settings(str(tmp_path / "x.npy"), hidden=(5, 4), pretrain=3, epochs=2, batch_size=20)
    whole = run_training(settings, tmp_path / "whole")
    assert [record["layer"] for record in whole.records] == [1.0, 1.0, 1.0, 0.0, 0.0]
    original = PretrainingTrainer.epoch

    def interrupted(self):
        if count[0] == 0:
            raise KeyboardInterrupt
        count[0] -= 1
        return original(self)

    for done in range(4):  # one epoch, and interrupted in the next
        monkeypatch.setattr(PretrainingTrainer, "epoch", interrupted)
        count = [1]
        with pytest.raises(KeyboardInterrupt):
            run_training(settings, tmp_path / "run")
        assert (
            len(json.loads("[" + ",".join((tmp_path / "run/metrics.jsonl").read_text().splitlines()) + "]")) == done + 1
        )
    monkeypatch.setattr(PretrainingTrainer, "epoch", original)
    again = run_training(settings, tmp_path / "run")
    assert again.resumed_at == 4
    name = "checkpoints/epoch-000005.safetensors"
    assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    for own, other in zip(
        again.machine.parameters(), load(tmp_path / "whole/machine.safetensors").parameters(), strict=True
    ):
        assert torch.equal(own, other)


@pytest.mark.filterwarnings("ignore:the means of hidden layer")
def test_the_first_layer_is_pretrained_for_as_many_epochs_by_default(tmp_path):
    for settings, expected in (
        (Settings("x", hidden=(5, 3), epochs=50), 100),
        (Settings("x", hidden=(5, 3), epochs=50, pretrain=0), 50),
        (Settings("x", hidden=(5,), epochs=50), 50),
    ):
        assert settings.all_epochs == expected
    np.save(tmp_path / "x.npy", bars().numpy())
    settings = Settings(str(tmp_path / "x.npy"), hidden=(5, 4), epochs=5, batch_size=20)
    records = run_training(settings, tmp_path / "run").records
    assert [record["layer"] for record in records] == [1.0] * 5 + [0.0] * 5
    assert RunFolder(tmp_path / "run").settings().all_epochs == 10


def test_settings_that_a_run_was_written_without_have_their_defaults(tmp_path):
    np.save(tmp_path / "x.npy", bars().numpy())
    settings = Settings(str(tmp_path / "x.npy"), hidden=(5,), epochs=2, batch_size=20)
    run_training(settings, tmp_path / "run")
    path = tmp_path / "run/settings.json"
    written = json.loads(path.read_text())
    del written["settings"]["pretrain"]
    path.write_text(json.dumps(written))
    assert run_training(settings, tmp_path / "run").resumed_at == 2
    path.write_text(json.dumps(written))
    assert run_training(Settings(**read_settings(path)), tmp_path / "run").resumed_at == 2


@pytest.mark.filterwarnings("ignore:the means of hidden layer")
def test_the_estimator():
    x = bars(120).numpy().astype(np.float64)
    model = RBM((8, 4), epochs=3, pretrain=2, batch_size=20).fit(x)
    assert [len(model.history_), model.machine_.sizes] == [5, (16, 8, 4)]
    features = model.transform(x)
    assert features.shape == (120, 4)
    assert list(model.get_feature_names_out()) == [f"rbm{number}" for number in range(4)]
    assert model.inverse_transform(features).shape == (120, 16)
    scores = model.score_samples(x)
    exact = exact_log_likelihood(model.machine_, torch.from_numpy(x).float()).values
    assert np.abs(scores - exact.numpy()).mean() < 0.5
    assert model.sample(5, n_sweeps=5).shape == (5, 16)
    assert model.denoise(x[:4], BinarySymmetric(0.1)).shape == (4, 16)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.transform(x), features)
    again.partial_fit(x)
    assert not np.array_equal(again.transform(x), features)
    assert RBM([6, 3], epochs=1).fit(x).machine_.sizes == (16, 6, 3)
    with pytest.raises(ValueError, match="n_hidden is 'a'"):
        RBM((6, "a")).fit(x)


@pytest.mark.long
def test_the_command_line(tmp_path):
    np.save(tmp_path / "x.npy", bars().reshape(-1, 4, 4).numpy())
    runner, run = CliRunner(), str(tmp_path / "run")

    def invoke(*arguments):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return runner.invoke(app, [str(argument) for argument in arguments])

    options = ("--hidden", "8,4", "--pretrain", "2", "--epochs", "3", "--validation", "0.2", "--out", run)
    done = invoke("train", tmp_path / "x.npy", *options)
    assert done.exit_code == 0, done.output
    assert "epoch 2/5  layer 1 alone" in done.output
    assert "epochs: 5 of 5" in invoke("info", run).output
    samples = tmp_path / "s.npy"
    assert invoke("sample", run, "--count", 5, "--n-sweeps", 3, "--out", samples).exit_code == 0
    assert np.load(samples).shape == (5, 16)
    assert invoke("denoise", run, samples, "--channel", "bsc", "--p", "0.1", "--out", tmp_path / "c.npy").exit_code == 0
    assert invoke("evaluate", run).exit_code == 0
    assert invoke("landscape", run, "--starts", "10").exit_code == 0
    assert invoke("report", run, "--starts", "10").exit_code == 0
    assert "of layer 2, projected through the layers below" in (tmp_path / "run/report.html").read_text()
    wrong = invoke("train", tmp_path / "x.npy", "--hidden", "8", "--pretrain", "2", "--out", tmp_path / "other")
    assert "which requires several hidden layers" in str(wrong.exception)


def test_samples_of_solutions():
    machine = deep(["Categorical", "Binary", "Spin"])
    copies = 5000
    solution = solve(machine, data_of(machine, 4).repeat(copies, *[1] * len(machine.layers[0].state_shape)))
    drawn = sample_solutions(machine, solution, generator())
    for layer, own in enumerate(solution.moments):
        machine.layers[layer].check_states(drawn[layer])
        found, expected = (z.unflatten(0, (copies, 4)).mean(0).double() for z in (drawn[layer], own.mean))
        torch.testing.assert_close(found, expected, rtol=0, atol=7 / copies**0.5)  # standard errors: all in [-1, 1]


@pytest.mark.filterwarnings("ignore:the means of hidden layer")
@pytest.mark.parametrize("units", [Gaussian(6), Categorical(6, 3)], ids=["real", "categories"])
def test_real_values_and_categories_through_three_layers(units):
    """Rows that are all on one side or all on the other, two nats more than independent units can know of them."""
    draw = generator()
    side = torch.rand(120, 1, generator=draw) < 0.5
    if isinstance(units, Gaussian):
        x = torch.where(side, 1.0, -1.0) + 0.5 * torch.randn(120, 6, generator=draw)
    else:
        x = torch.where(torch.rand(120, 6, generator=draw) < 0.1, 2, side.long())
    weights = [0.3 * torch.randn(shape, generator=draw) for shape in ((math.prod(units.state_shape), 4), (4, 3))]
    independent = rbm(copy.deepcopy(units).fit_to(x), Binary(1), torch.zeros(len(weights[0]), 1))
    machine = dbm([copy.deepcopy(units), Binary(4), Binary(3)], weights)
    pretrain(machine, x, epochs=5, batch_size=20, monitor=QUIET)
    fit(machine, x, epochs=10, batch_size=20, warm_start=True, monitor=QUIET)
    assert float(exact_log_likelihood(machine, x).mean) > float(exact_log_likelihood(independent, x).mean) + 0.5


def test_variation_counts_rows_by_their_weights():
    machine, x = dbm([Binary(16), Binary(4), Binary(3)], [torch.ones(16, 4), torch.ones(4, 3)]), bars(20)
    weights = torch.arange(20.0)
    repeated = Monitor(n_starts=0)(machine, x.repeat_interleave(weights.long(), 0))
    weighted = Monitor(n_starts=0)(machine, x, weights=weights)
    assert weighted["variation_2"] == pytest.approx(repeated["variation_2"], rel=1e-9)


def test_frozen_weights_stay_in_pretraining():
    machine = dbm([Binary(16), Binary(4), Binary(3)])
    machine.weights[0].requires_grad_(False)
    before = [weights.detach().clone() for weights in machine.weights]
    pretrain(machine, bars(), epochs=1, all_layers=True, batch_size=20, monitor=QUIET)
    assert torch.equal(machine.weights[0], before[0])
    assert not torch.equal(machine.weights[1], before[1])


def test_samples_of_what_are_no_solutions_are_refused():
    machine = rbm(Gaussian(6), Gaussian(4), torch.full((6, 4), 3.0))
    with pytest.raises(ValueError, match="1 of 1 solutions diverged, the first at index 0"):
        sample_solutions(machine, solve(machine))
