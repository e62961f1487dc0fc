"""Scores that can be trusted: exact or annealed, with an error bar; and what the estimator does around them."""

import json
import pickle
import re
import warnings

import numpy as np
import pytest
import torch
from run_cases import command
from sklearn.datasets import load_digits

from tapmachine import (
    PCD,
    RBM,
    Binary,
    Spin,
    TAPObjective,
    dbm,
    exact_log_likelihood,
    exact_log_partition,
    fit,
    load,
    rbm,
    save,
)
from tapmachine.data.errors import FileError, LikelihoodWarning, TrainingWarning
from tapmachine.likelihood import unbiased
from tapmachine.likelihood.annealing import estimate
from tapmachine.likelihood.unbiased import CHEAP, Effort, unbiased_log_likelihood, unbiased_log_partition
from tapmachine.posterior import anomaly_score
from tapmachine.training import Monitor, momentum_sgd


@pytest.fixture(scope="module")
def digits():
    return (load_digits().data > 8).astype(float)


@pytest.fixture(scope="module")
def fitted(digits):
    """A machine on which TAP's log-likelihood is several nats off."""
    return RBM(8, epochs=20, batch_size=50).fit(digits[:1200])


def rows(x):
    return torch.tensor(x, dtype=torch.float32)


def test_a_score_is_the_exact_log_likelihood_where_enumeration_is_quick(fitted, digits):
    """By a sum over all hidden states that is written out here."""
    held_out = digits[1200:]
    machine = fitted.machine_.double()
    b, c = (units.field.detach().numpy() for units in machine.layers)
    w = machine.weights[0].detach().numpy()
    hidden = np.array(list(np.ndindex(*[2] * 8)), dtype=float)
    log_z = np.logaddexp.reduce(hidden @ c + np.logaddexp(0, b + hidden @ w.T).sum(1))
    by_hand = held_out @ b + np.logaddexp(0, c + held_out @ w).sum(1) - log_z
    fitted.machine_.float()
    np.testing.assert_allclose(fitted.score_samples(held_out), by_hand, rtol=1e-5)
    assert (fitted.score_method_, fitted.score_error_) == ("exact", 0.0)
    independent = held_out @ np.log(digits[:1200].mean(0).clip(1e-3)) + (1 - held_out) @ np.log(
        1 - digits[:1200].mean(0).clip(0, 1 - 1e-3)
    )
    assert fitted.score(held_out) > independent.mean() + 2  # where TAP's number was below it


def test_scores_and_anomaly_scores_agree(fitted, digits):
    x = digits[1200:1206].copy()
    x[:3, 20:30] = np.nan
    np.testing.assert_allclose(anomaly_score(fitted.machine_, x), -fitted.score_samples(x))


def test_scores_follow_changes_of_the_machine(fitted, digits, quick_tables):
    """ln Z and the mixture of a table are computed again after the parameters have changed in place."""
    table = RBM(2).fit(np.random.default_rng(0).normal(size=(30, 2)))
    x = table.sample(5)
    for model, held_out in ((pickle.loads(pickle.dumps(fitted)), digits[1200:1210]), (table, x)):
        before, draws = model.score_samples(held_out), model.sample(3, random_state=0)
        with torch.no_grad():
            model.machine_.weights[0].mul_(0.5)
        exact = exact_log_likelihood(model.machine_, torch.tensor(held_out, dtype=model.machine_.dtype))
        np.testing.assert_allclose(model.score_samples(held_out), exact.values.numpy(), rtol=1e-5)
        assert np.abs(model.score_samples(held_out) - before).max() > 0.1
        assert not np.array_equal(model.sample(3, random_state=0), draws)


@pytest.mark.long
def test_a_score_is_annealed_elsewhere_and_within_its_error(digits, monkeypatch):
    model = RBM(12, epochs=10).fit(digits[:1200])
    exact = exact_log_likelihood(model.machine_, rows(digits[1200:]))
    monkeypatch.setattr(unbiased, "can_enumerate", lambda machine, bits: False)
    model._log_partition = None
    assert model.score_method_ == "annealed"
    assert 0 < model.score_error_ < 0.1
    assert model.score(digits[1200:]) == pytest.approx(float(exact), abs=6 * model.score_error_)
    again = pickle.loads(pickle.dumps(model))
    monkeypatch.setattr(estimate, "ais_log_partition", None)  # it is kept
    np.testing.assert_array_equal(again.score_samples(digits[:5]), model.score_samples(digits[:5]))


def test_annealing_grows_until_the_error_bar_is_small_or_says_that_it_is_not(fitted, digits, monkeypatch):
    machine, tried = fitted.machine_, []
    annealed = estimate.ais_log_partition

    def watched(machine, schedule, *args, **options):
        tried.append(schedule)
        return annealed(machine, schedule, *args, **options)

    monkeypatch.setattr(estimate, "ais_log_partition", watched)
    with pytest.warns(LikelihoodWarning, match=r"standard error of ln Z is .* nats, above 0\.1"):
        little = unbiased_log_partition(machine, effort=Effort(1, (2,)))
    assert little.error > 0.1
    tried.clear()
    much = unbiased_log_partition(machine, effort=Effort(1, (2, 20, 5000)))
    assert tried in ([2, 2, 20], [2, 2, 20, 5000])  # two bases, of which one is continued
    assert much.error < 0.1
    assert much.value == pytest.approx(float(exact_log_partition(machine)), abs=6 * much.error)


def test_deep_machines_are_scored_without_tap(monkeypatch):
    """Both parts: ln Z and the weight of each row."""
    generator = torch.Generator().manual_seed(1)
    machine = dbm([Binary(8), Binary(6), Binary(5)], generator=generator)
    with torch.no_grad():
        for weights in machine.weights:
            weights.copy_(torch.randn(weights.shape, generator=generator))
    x = (torch.rand(30, 8, generator=generator) < 0.5).float()
    exact = exact_log_likelihood(machine, x)
    monkeypatch.setattr(unbiased, "can_enumerate", lambda machine, bits: False)
    partition = unbiased_log_partition(machine)
    annealed = unbiased_log_likelihood(machine, x, partition)
    # Rows by 20 runs: their means are low by half of a variance of 0.1 nats at most, and scatter by as much.
    noise = 6 * partition.error + 6 * (0.2 / len(x)) ** 0.5
    assert float(annealed) == pytest.approx(float(exact), abs=0.1 + noise)
    few = Effort(1, unbiased.THOROUGH.temperatures, 10)  # TAP's weights of the rows, corrected by those of ten
    spread = float((annealed.values - exact.values).std())
    corrected = unbiased_log_likelihood(machine, x, partition, few)
    assert float(corrected) == pytest.approx(float(exact), abs=0.1 + 2 * noise + 6 * spread)


def test_records_name_the_method_and_warn_when_tap_drifts(capsys):
    """Stripes with strong couplings, on which TAP counts the same states several times."""
    x = torch.eye(6).repeat_interleave(2, 1).repeat(40, 1)
    machine = rbm(Binary(12), Binary(6))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = fit(machine, x, epochs=30, objective=PCD(5), monitor=Monitor(n_starts=20, every=1), progress=True)
    measured = history.records[-1]
    assert measured["log_likelihood_method"] == "exact"
    assert measured["log_likelihood"] == pytest.approx(float(exact_log_likelihood(machine, x)), abs=1e-6)
    assert all("tap_log_likelihood" in record for record in history.records)
    assert not any("TAP" in str(w.message) for w in caught)  # training does not use TAP
    shown = capsys.readouterr().out.splitlines()[-1]
    assert "(exact)" in shown
    assert "TAP" not in shown
    assert len(history["log_likelihood_method"]) == 30
    json.dumps(history.records)


def test_a_log_likelihood_that_tap_over_counts_is_warned_of_at_once():
    """Four magnets that point up or down: of 16 states TAP's average over solutions knows one, ln 16 nats too few."""
    signs = torch.tensor([[i & 1, i >> 1 & 1, i >> 2 & 1, i >> 3 & 1] for i in range(16)]) * 2.0 - 1
    x = signs.repeat_interleave(4, 1).repeat(5, 1)
    machine = rbm(Spin(16), Spin(4), 3 * torch.eye(4).repeat_interleave(4, 0))
    with pytest.warns(TrainingWarning, match=r"epoch 1: TAP's log-likelihood is -0\.\d+ .* exact value of -2\."):
        fit(
            machine,
            x,
            epochs=1,
            batch_size=20,
            optimizer=momentum_sgd(machine, 1e-6),
            monitor=Monitor(n_starts=80),
            objective=TAPObjective(),
            warm_start=True,
        )


@pytest.mark.long
def test_the_cheap_number_of_an_epoch_is_unbiased(digits):
    """Annealing over 100 temperatures against enumeration, on a trained machine."""
    machine = RBM(14, epochs=10).fit(digits[:600]).machine_
    exact = float(exact_log_partition(machine))
    found = unbiased_log_partition(machine, rows(digits[:600]), Effort(1, CHEAP.temperatures))
    assert found.value == pytest.approx(exact, abs=0.1 + 6 * found.error)


def test_pandas_output_of_transform(digits):
    pandas = pytest.importorskip("pandas")
    model = RBM(3, epochs=1).set_output(transform="pandas")
    first = model.fit_transform(digits[:50])
    assert isinstance(first, pandas.DataFrame)
    pandas.testing.assert_frame_equal(model.transform(digits[:50]), first)


def test_set_output_is_honoured_by_transform_as_by_fit_transform():
    """Without pandas: scikit-learn wraps a transform in the class that defines it, if that is a transformer."""
    assert hasattr(RBM.transform, "__wrapped__")


def test_samples_differ_from_call_to_call_and_repeat_after_a_fit(fitted, digits):
    first, second = fitted.sample(20), fitted.sample(20)
    assert (first != second).any()
    ours, again = (RBM(3, epochs=1).fit(digits[:100]) for _ in range(2))
    for _ in range(2):
        np.testing.assert_array_equal(ours.sample(20), again.sample(20))
    np.testing.assert_array_equal(fitted.sample(20, random_state=1), fitted.sample(20, random_state=1))


@pytest.mark.long
def test_history_has_log_likelihoods_without_being_verbose(digits):
    model = RBM(4, epochs=20).fit(digits[:300])
    measured = [record["epoch"] for record in model.history_ if "log_likelihood" in record]
    assert measured == [1, 4, 8, 12, 16, 20]
    assert model.history_[-1]["log_likelihood"] == pytest.approx(model.score(digits[:300]), abs=1e-3)
    assert not any("tap_log_likelihood" in record for record in model.history_)


@pytest.mark.parametrize("hidden", [5, (5, 3)])
def test_an_interrupted_fit_keeps_what_it_has(hidden, digits, monkeypatch):
    from tapmachine.training.step import Step

    whole, calls = Step.__call__, []

    def interrupted(step, batch, weights):
        calls.append(batch)
        if len(calls) == 40:
            raise KeyboardInterrupt
        return whole(step, batch, weights)

    model = RBM(hidden, epochs=10, batch_size=30, pretrain=0 if hidden == 5 else 1)
    monkeypatch.setattr(Step, "__call__", interrupted)
    with pytest.warns(TrainingWarning, match=r"interrupted after 3 of \d+ epochs"), pytest.raises(KeyboardInterrupt):
        model.fit(digits[:300])
    monkeypatch.undo()
    assert len(model.history_) == 3
    assert np.isfinite(model.score(digits[:50]))
    before = model.components_.copy()
    model.partial_fit(digits[:300])
    assert (model.components_ != before).any()


def test_an_interrupted_fit_is_at_the_end_of_an_epoch(digits, monkeypatch):
    """The same bits as a training whose epochs were counted one by one, whatever the batch it was interrupted in."""
    from tapmachine.training import Trainer

    states, whole = {}, Trainer.epoch

    def remembering(trainer):
        record = whole(trainer)
        states[trainer.finished] = trainer.machine.weights[0].detach().clone()
        if trainer.finished == 4:
            raise KeyboardInterrupt
        return record

    monkeypatch.setattr(Trainer, "epoch", remembering)
    model = RBM(5, epochs=8)
    with pytest.warns(TrainingWarning, match="after 3 of 8"), pytest.raises(KeyboardInterrupt):
        model.fit(digits[:300])
    np.testing.assert_array_equal(model.components_, states[3].numpy().T)


def test_a_learning_rate_that_ruins_the_machine_is_warned_of(digits):
    with pytest.warns(TrainingWarning, match=r"the log-likelihood has fallen from|below the .* of independent units"):
        RBM(10, epochs=5, learning_rate=1e4).fit(digits[:300])


def test_a_fitted_estimator_can_be_saved(fitted, tmp_path):
    save(fitted, tmp_path / "m.safetensors")
    torch.testing.assert_close(load(tmp_path / "m.safetensors").weights[0], fitted.machine_.weights[0], rtol=0, atol=0)
    with pytest.raises(FileError, match=r"machine is a RBM; expected a BoltzmannMachine or a fitted RBM; fit it first"):
        save(RBM(3), tmp_path / "m.safetensors")


def test_evaluate_shows_taps_number_beside_an_unbiased_one(tmp_path):
    """By its table, and as JSON."""
    run = tmp_path / "run"
    code, shown, errors = command(
        "train", "digits", "--binarize", "0.5", "--hidden", "4", "--epochs", "2", "--out", run
    )
    assert code == 0, errors
    assert re.search(r"log-likelihood -\d+\.\d+ \(exact\)", shown)
    code, shown, errors = command("evaluate", run)
    assert code == 0, errors
    assert [line.split()[0] for line in shown.splitlines()[1:4]] == ["exact", "TAP", "TAP,"]
    exact, *_ = json.loads(command("evaluate", run, "--json")[1])
    assert (exact["estimator"], exact["log_partition_error"]) == ("exact", 0.0)
    assert "(exact)" in command("info", run)[1]
