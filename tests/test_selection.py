"""What a training ends with: the average of the parameters, the best epoch, and budgets that suit the data."""

import copy
import json
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from run_cases import command

from tapmachine import Binary, exact_log_likelihood, fit, load, rbm
from tapmachine.data.errors import TrainingWarning
from tapmachine.likelihood.report import fit_visible_units, independent_log_likelihood
from tapmachine.likelihood.unbiased import CAREFUL, unbiased_log_likelihood, unbiased_log_partition
from tapmachine.runs.settings import Settings
from tapmachine.training import Monitor, Trainer, default_learning_rate, momentum_sgd
from tapmachine.training.captured import _snapshot
from tapmachine.training.optimizers import pace
from tapmachine.training.options import default_batch_size, default_epochs
from tapmachine.training.selection import PATIENCE, BestMachine
from tapmachine.training.state import TrainingState

QUIET = Monitor(n_starts=0)
LIKELY = Monitor(n_starts=0, likelihood=True)


def clusters(rows, n, seed=0, k=3, noise=0.25):
    """Rows near one of k random patterns, which do not depend on the seed."""
    draws = torch.Generator().manual_seed(99)
    patterns = torch.rand(k, n, generator=draws) < 0.3
    draws = torch.Generator().manual_seed(seed)
    which = torch.randint(k, (rows,), generator=draws)
    return (patterns[which] ^ (torch.rand(rows, n, generator=draws) < noise)).float()


def parameters(machine):
    return [p.detach().clone() for p in machine.parameters()]


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


# ----- averages


def trainer(epochs=4, n=12, monitor=QUIET, **options):
    return Trainer(rbm(Binary(n), Binary(4)), clusters(60, n), epochs=epochs, batch_size=20, monitor=monitor, **options)


def test_an_exchange_is_its_own_inverse():
    training = trainer()
    training.epoch()
    average, last = parameters(training.machine), [z.clone() for z in training.step.averages]
    assert not same(average, last)
    training.step.exchange_with_average()
    by_name = dict(zip(map(id, training.step.parameters), last, strict=True))
    assert all(torch.equal(p, by_name[id(p)]) for p in training.machine.parameters())
    training.step.exchange_with_average()
    assert same(parameters(training.machine), average)


def test_the_average_is_over_the_last_steps():
    """Step t counts as t + 1, t + 2, … t + 7 multiplied; of the first values, before all steps, hardly anything."""
    training = trainer(epochs=5)
    training.machine.double()
    training = Trainer(training.machine, clusters(60, 12), epochs=5, batch_size=20, monitor=QUIET)
    seen = [[p.detach().clone() for p in training.step.parameters]]
    update = training.step.update

    def watched(gradients):
        result = update(gradients)
        seen.append([p.detach().clone() for p in training.step.parameters])
        return result

    training.step.update = watched
    for _ in range(5):
        training.epoch()
    assert len(seen) == 16
    weights = torch.tensor([1.0, *(8 * math.comb(t + 7, 7) for t in range(1, 16))]).double()
    # Σ over the steps so far of comb(t + 7, 7) is comb(T + 8, 8), of which step T is 8/(T + 8).
    weights[1:] /= 8
    for index, p in enumerate(training.step.parameters):
        expected = sum(w * z[index] for w, z in zip(weights / weights.sum(), seen, strict=True))
        torch.testing.assert_close(p.detach(), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("averaged", [None, True, False])
@pytest.mark.parametrize("own_optimizer", [False, True])
def test_which_trainings_end_with_an_average(averaged, own_optimizer):
    machine = rbm(Binary(12), Binary(4))
    last = []

    class Watched(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            last[:] = parameters(machine)

    optimizer = Watched(machine.parameters(), lr=0.1) if own_optimizer else None
    training = Trainer(machine, clusters(60, 12), epochs=2, optimizer=optimizer, averaged=averaged, monitor=QUIET)
    is_averaged = averaged if averaged is not None else not own_optimizer
    assert bool(training.step.averages) == is_averaged
    for _ in range(2):
        training.epoch()
    if own_optimizer:
        assert same(parameters(machine), last) != is_averaged


@pytest.mark.long
def test_averages_vary_less_than_the_last_values():
    """Of eight trainings with a learning rate that does not fall."""
    spread = []
    for averaged in (False, True):
        found = []
        for seed in range(8):
            machine = rbm(Binary(12), Binary(4))
            options = {
                "optimizer": momentum_sgd(machine, 0.1, weight_decay=0.0),
                "averaged": averaged,
                "monitor": QUIET,
            }
            fit(machine, clusters(60, 12), epochs=12, batch_size=20, seed=seed, **options)
            found.append(machine.layers[0].field.detach())
        spread.append(float(torch.stack(found).var(0).sum()))
    assert spread[1] < 0.7 * spread[0]


def test_what_a_warm_up_changes_is_put_back():
    """Before a step is captured on a GPU it is run a few times, which must leave no trace."""
    training = trainer()
    training.epoch()
    step, batch = training.step, training.batches.rows[:20]
    held = [*step.parameters, *step.last_good, *step.carry, *step.offsets, *step.averages, step.n_averaged]
    before, restore = [z.detach().clone() for z in held], _snapshot(step)
    result = [float(z) for z in step(batch)]
    step(batch)
    assert sum(not torch.equal(a, b) for a, b in zip(held, before, strict=True)) > 8
    restore()
    assert same(held, before)
    assert [float(z) for z in step(batch)] == result


def test_what_is_undone_is_not_averaged():
    """An update may lead to parameters whose loss is not finite, which is seen in the next step."""
    machine, steps = rbm(Binary(12), Binary(4)), []

    class Jumping(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            steps.append(1)
            if len(steps) == 5:
                with torch.no_grad():
                    machine.weights[0].fill_(1e3)

    options = {"optimizer": Jumping(machine.parameters(), lr=0.01), "averaged": True, "monitor": QUIET}
    training = Trainer(machine, clusters(60, 12), epochs=3, batch_size=20, **options)
    known = training.step.loss

    def loss(context, carry):
        value, carry = known(context, carry)
        return value * (math.nan if len(steps) == 5 else 1.0), carry

    training.step.loss = loss
    with pytest.warns(TrainingWarning, match="1 step produced non-finite values"):
        run(training)
    assert float(machine.weights[0].detach().abs().max()) < 1


# ----- the best epoch


def over_fitting(**options):
    """40 rows of 40 columns and 12 hidden units: held-out rows are best scored after 14 epochs."""
    machine = rbm(Binary(40), Binary(12))
    options |= {"optimizer": momentum_sgd(machine, 0.5, weight_decay=0.0), "averaged": True, "monitor": LIKELY}
    return Trainer(machine, clusters(40, 40), epochs=100, validation=clusters(200, 40, seed=1), **options)


def run(training, epochs=1000):
    records = []
    while not training.is_over and len(records) < epochs:
        records.append(training.epoch())
    return records


def measured(records):
    return {r["epoch"]: r["validation_log_likelihood"] for r in records if "validation_log_likelihood" in r}


def test_the_best_epoch_is_kept_and_training_stops():
    training = over_fitting()
    records = run(training)
    values = measured(records)
    best = max(values, key=values.get)
    assert 5 < best < len(records) < 80
    assert records[-1]["kept_epoch"] == best
    assert [epoch for epoch, record in enumerate(records, 1) if "kept_epoch" in record] == [len(records)]
    kept = float(exact_log_likelihood(training.machine, clusters(200, 40, seed=1)))
    assert kept == pytest.approx(values[best], abs=1e-4)
    assert kept > values[len(records)] + 1
    # three measurements that were far below: of those after the best one, and no more
    error = records[-1]["validation_log_likelihood_error"]
    assert 0 < error < 1
    below = [epoch for epoch, value in values.items() if epoch > best and values[best] - value > 2 * error]
    assert len(below) in (PATIENCE, PATIENCE + 1)  # by errors of each measurement, which differ a little


@pytest.mark.long
def test_stopping_early_can_be_resumed():
    whole = over_fitting()
    records = run(whole)
    for n_epochs in (records[-1]["kept_epoch"] + 5, len(records) - 1, len(records)):
        first = over_fitting()
        run(first, n_epochs)
        tensors, values = first.state()
        second = over_fitting()
        second.restore(TrainingState(tensors, json.loads(json.dumps(values))))
        assert second.is_over == (n_epochs == len(records))
        again = run(second)
        assert len(again) == len(records) - n_epochs
        assert same(parameters(second.machine), parameters(whole.machine))
        assert measured(again) == {epoch: v for epoch, v in measured(records).items() if epoch > n_epochs}
        if again:
            assert again[-1]["kept_epoch"] == records[-1]["kept_epoch"]


def test_early_stopping_can_be_turned_off():
    training = over_fitting(early_stopping=False)
    records = run(training)
    assert len(records) == 100
    assert "kept_epoch" not in records[-1]
    score = float(exact_log_likelihood(training.machine, clusters(200, 40, seed=1)))
    assert score == pytest.approx(records[-1]["validation_log_likelihood"], abs=1e-3)
    assert score < max(measured(records).values()) - 2


def test_without_held_out_rows_all_epochs_are_run():
    machine = rbm(Binary(40), Binary(12))
    history = fit(machine, clusters(40, 40), epochs=60, optimizer=momentum_sgd(machine, 0.5), monitor=QUIET)
    assert len(history) == 60
    assert "kept_epoch" not in history.records[-1]


def test_a_machine_that_gets_better_until_the_end_is_the_last_one():
    x, held_out = (clusters(200, 12, seed, noise=0.05) for seed in (0, 1))
    monitor = Monitor(n_starts=0, likelihood=True, every=60)
    training = Trainer(rbm(Binary(12), Binary(4)), x, epochs=60, validation=held_out, monitor=monitor)
    records = run(training)
    assert len(records) == 60
    assert records[-1]["validation_log_likelihood"] > records[0]["validation_log_likelihood"] + 0.4
    assert "kept_epoch" not in records[-1]
    score = float(exact_log_likelihood(training.machine, held_out))
    assert score == pytest.approx(records[-1]["validation_log_likelihood"], abs=1e-4)


def test_what_counts_as_the_best_machine():
    machine, best = rbm(Binary(3), Binary(2)), BestMachine()
    machines = [copy.deepcopy(machine) for _ in range(8)]
    for number, other in enumerate(machines):
        torch.nn.init.constant_(other.weights[0], float(number))
    told = [(-10.0, 0.1), (-9.0, 0.1), (-9.5, 0.1), (-9.9, 0.1), (-8.9, 0.1), (-9.6, 0.1), (-9.7, 0.5), (-9.8, 0.1)]
    found = []
    for epoch, (other, (value, error)) in enumerate(zip(machines, told, strict=True), 1):
        best.compare(other, epoch, value, error, row_error=0.2)
        found.append((best.epoch, best.n_worse, best.is_final))
        other.weights[0].data.zero_()  # a copy was taken
    # Below by twice √(0.1² + 0.1² + 0.2²) = 0.49: 0.9 was, 0.5 was; a better one starts the count anew.
    assert found == [
        (1, 0, False), (2, 0, False), (2, 1, False), (2, 2, False), (5, 0, False), (5, 1, False), (5, 1, False),
        (5, 2, False),
    ]  # fmt: skip
    best.compare(machine, 9, -20.0, 0.1, row_error=math.nan)  # of a single row, there is no error
    assert best.n_worse == 2
    best.compare(machine, 10, -20.0, 0.1, row_error=0.2)
    assert best.is_final
    again = BestMachine()
    again.restore(json.loads(json.dumps(best.as_json())), best.tensors)
    assert again.as_json() == best.as_json() == {"value": -8.9, "error": 0.1, "epoch": 5, "n_worse": 3}
    again.put_into(machine)
    assert bool((machine.weights[0] == 4.0).all())


@pytest.mark.long
def test_a_run_with_held_out_rows_stops_and_is_finished(tmp_path):
    np.save(tmp_path / "x.npy", clusters(40, 40).numpy())
    np.save(tmp_path / "y.npy", clusters(200, 40, seed=1).numpy())
    words = ["train", tmp_path / "x.npy", "--validation", tmp_path / "y.npy", "--hidden", 12, "--epochs", 100]
    (tmp_path / "chosen.json").write_text('{"decay": 1}')
    words += ["--learning-rate", 0.5, "--settings", tmp_path / "chosen.json", "--out", tmp_path / "run"]
    code, out, errors = command(*words)
    assert code == 0, errors
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    kept = records[-1]["kept_epoch"]
    assert len(records) < 100
    assert f"epoch {kept} kept" in out
    lines = [line for line in out.splitlines() if line.startswith("epoch ")]
    assert len(lines) == len(measured(records))  # epochs that were not measured have none
    machine = load(tmp_path / "run/machine.safetensors")
    score = float(exact_log_likelihood(machine, clusters(200, 40, seed=1)))
    assert score == pytest.approx(measured(records)[kept], abs=1e-4)
    before = (tmp_path / "run/machine.safetensors").read_bytes()
    code, out, errors = command(*words)
    assert code == 0, errors
    assert f"the run is finished after {len(records)} epochs" in out + errors
    assert (tmp_path / "run/machine.safetensors").read_bytes() == before


# ----- budgets


def test_batches_and_epochs_suit_the_data():
    assert [default_batch_size(n) for n in (1, 9, 10, 39, 80, 399, 400, 10**6)] == [1, 9, 10, 10, 20, 99, 100, 100]
    assert [default_epochs(n) for n in (None, 0, 1, 66, 67, 100, 399, 400, 10**4)] == [
        50, 50, 300, 300, 298, 200, 50, 50, 50,
    ]  # fmt: skip
    assert [pace(n) for n in (1, 400, 960)] == [4.0, 4.0, 4.0]
    assert pace(1500) == pytest.approx(5.0)
    assert [pace(n) for n in (3840, 60_000)] == [8.0, 8.0]
    assert 5.0 < pace(2000) < pace(3000) < 8.0


@pytest.mark.parametrize(("rows", "batch_size", "epochs"), [(1, 1, 300), (60, 15, 300), (900, 100, 300)])
def test_trainings_by_default(rows, batch_size, epochs):
    training = Trainer(rbm(Binary(6), Binary(3)), clusters(rows, 6), monitor=QUIET)
    assert (training.batches.batch_size, training.epochs) == (batch_size, epochs)
    assert repr(training.step.objective) == "PCD(2, n_chains=100)"
    rate = default_learning_rate(training.machine, clusters(rows, 6), rows)
    assert training.optimizer.param_groups[0]["lr"] == pytest.approx(rate)
    found = Settings("x.npy").for_rows(rows)
    assert found.epochs == epochs
    assert Settings("x.npy", epochs=7).for_rows(rows).epochs == 7
    assert Settings("x.npy", batch_size=1).for_rows(10**6).epochs == 50


def test_larger_data_sets_are_learned_at_a_higher_rate():
    machine, x = rbm(Binary(40), Binary(3)), clusters(900, 40)
    rates = [default_learning_rate(machine, x, n) for n in (900, 1500, 60_000)]
    assert [rate / rates[0] for rate in rates] == pytest.approx([1.0, 1.25, 2.0])
    assert default_learning_rate(machine, x) == rates[0]


def test_epochs_that_are_measured():
    due = [epoch for epoch in range(1, 301) if Monitor().is_due(epoch, 300)]
    assert due[0] == 1
    assert due[-1] == 300
    steps = np.diff(due)
    assert 15 < len(due) <= 20
    assert all(later >= earlier - 1 for earlier, later in pairwise(steps))
    assert all(Monitor().is_due(epoch, 20) for epoch in range(1, 21))
    assert not all(Monitor().is_due(epoch, 21) for epoch in range(1, 22))
    assert [epoch for epoch in range(1, 11) if Monitor(every=4).is_due(epoch, 10)] == [1, 4, 8, 10]


@pytest.mark.long
def test_many_hidden_units_for_few_rows_do_not_harm_much():
    """100 of them, 200 rows of 250 columns, nothing held out: with ten times as many epochs they lose 20 nats."""
    x, held_out, scores = clusters(200, 250, k=8, noise=0.1), clusters(300, 250, seed=1, k=8, noise=0.1), []
    for n_hidden in (100, 12):
        machine = rbm(Binary(250), Binary(n_hidden))
        fit(machine, x, monitor=QUIET)
        partition = unbiased_log_partition(machine, held_out, CAREFUL)
        scores.append(float(unbiased_log_likelihood(machine, held_out, partition, CAREFUL).mean))
    independent = float(independent_log_likelihood(fit_visible_units(machine, x, None), held_out).detach().mean())
    assert min(scores) > independent + 30  # by 48
    assert scores[0] > scores[1] - 8  # by 2 ± 2
