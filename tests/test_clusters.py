"""Persistent chains have the shares of clusters that their machine gives them, and samples are compared with data."""

import math
import warnings

import pytest
import torch

from tapmachine import PCD, Binary, Categorical, Spin, exact_log_likelihood, fit, pairwise, rbm
from tapmachine.data.errors import TrainingWarning
from tapmachine.likelihood import check_samples, entropy, equilibrium
from tapmachine.machine.sampler import sweep_chain
from tapmachine.training import Monitor, Trainer, TrainingOptions, clusters, watch
from tapmachine.training.clusters import ClusteredChains

QUIET = Monitor(n_starts=0)
SHARES = torch.tensor([0.6, 0.3, 0.1])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def three_clusters(n_rows=900, n=24, flip=0.005):
    """Rows of three patterns with few errors, and ln P of each row under their source."""
    patterns = (torch.rand(3, n, generator=generator(1)) < 0.5).float()
    x = patterns[torch.multinomial(SHARES, n_rows, replacement=True, generator=generator(2))]
    x = (x - (torch.rand(x.shape, generator=generator(3)) < flip).float()).abs()
    errors = torch.cdist(x, patterns, p=1)
    return x, (SHARES.log() + errors * math.log(flip) + (n - errors) * math.log(1 - flip)).logsumexp(1)


def in_three_groups(shares):
    """A machine whose mass lies at three patterns with given shares, and rows of the patterns."""
    rows = torch.eye(3).repeat_interleave(4, 1)
    machine = rbm(Binary(12, field=-4.0), Categorical(1, 3), 8 * rows.T)
    with torch.no_grad():
        machine.layers[1].field.copy_(shares.log())
    return machine, rows.repeat(200, 1)


def chains_of(machine, x, n_chains=200):
    trainer = Trainer(machine, x, TrainingOptions(objective=PCD(1, n_chains=n_chains), epochs=1, monitor=QUIET))
    return trainer.step, trainer.clustered


def shares_of(step):
    x, weights = step.carry[0], step.carry[-2]
    return torch.stack([weights[x[:, 4 * group : 4 * group + 4].sum(1) > 2].sum() for group in range(3)])


def test_chains_are_replaced_where_their_shares_differ():
    step, chains = chains_of(*in_three_groups(SHARES))
    with torch.no_grad():  # in one group, which Gibbs sweeps do not leave
        step.machine.layers[0].field.fill_(-4.0)
        step.machine.layers[1].field.copy_(SHARES.log())
        step.carry[0].copy_(step.carry[0][:1].expand_as(step.carry[0]))
    for _ in range(clusters.FIRST):
        chains.after_step()
    torch.testing.assert_close(shares_of(step), SHARES, rtol=0, atol=0.08)
    assert chains.is_clustered
    assert chains.interval == clusters.SHORTEST


def test_weights_follow_the_machine():
    """From equal shares of three groups to others, in small steps and without any comparison."""
    step, chains = chains_of(*in_three_groups(torch.ones(3) / 3))
    with torch.no_grad():
        step.machine.layers[0].field.fill_(-4.0)
        step.machine.layers[1].field.zero_()
        step.carry[0].copy_(torch.eye(3).repeat_interleave(4, 1)[torch.arange(200) % 3])
    chains.is_clustered, chains.due = True, 10**6
    start, steps = shares_of(step), 20
    for index in range(1, steps + 1):
        states = [step.carry[0], None]
        before = step.machine.layers[1].log_partition_of_rows(step.machine.field_on(1, states)).detach()
        before = before + step.machine.layers[0].log_prior_of_rows(step.carry[0]).detach()
        step.carry[-1].copy_(-before)
        with torch.no_grad():
            step.machine.layers[1].field.copy_(index / steps * SHARES.log())
        chains.after_step()
    assert float((start - SHARES).abs().max()) > 0.2
    torch.testing.assert_close(shares_of(step), SHARES, rtol=0, atol=0.02)


@pytest.mark.long
def test_training_learns_the_shares_of_clusters():
    x, of_source = three_clusters()
    machine = rbm(Binary(24), Binary(8))
    fit(machine, x, epochs=150, monitor=QUIET)
    assert float(exact_log_likelihood(machine, x)) == pytest.approx(float(of_source.mean()), abs=0.3)
    machine = rbm(Binary(24), Binary(8))
    fit(machine, x, epochs=150, monitor=QUIET, objective=PCD(2, n_chains=100, restarts=False))
    assert float(exact_log_likelihood(machine, x)) < float(of_source.mean()) - 0.7  # some clusters are lost


def test_a_training_is_continued_with_the_same_chains():
    x, _ = three_clusters(400)
    options = TrainingOptions(epochs=6, objective=PCD(1, n_chains=50), batch_size=50, monitor=QUIET)
    whole = Trainer(rbm(Binary(24), Binary(4)), x, options)
    for _ in range(6):
        whole.epoch()
    first = Trainer(rbm(Binary(24), Binary(4)), x, options)
    for _ in range(4):
        first.epoch()
    second = Trainer(rbm(Binary(24), Binary(4)), x, options)
    second.restore(first.state())
    assert second.clustered.as_json() == first.clustered.as_json() != ClusteredChains(second.step, x, 0).as_json()
    for _ in range(2):
        second.epoch()
    assert torch.equal(second.machine.weights[0], whole.machine.weights[0])


@pytest.mark.parametrize("kind", ["Binary", "Spin", "Categorical"])
def test_sweeps_of_pairwise_machines_have_its_law(kind):
    units = {"Binary": Binary(4), "Spin": Spin(4), "Categorical": Categorical(3, 3)}[kind]
    machine = pairwise(units, generator=generator()).double()
    with torch.no_grad():
        machine.weights[0].mul_(400)
        units.field.normal_(generator=generator(1))
    counts = units.n_states()
    digits = torch.cartesian_prod(*(torch.arange(count) for count in counts))
    states = units.decode(digits)
    probability = (-machine.energy(states)).softmax(0).detach()
    chain, draws = [states[torch.arange(20_000) % len(states)]], generator(2)
    for _ in range(10):
        chain = sweep_chain(machine, chain, draws)
    found = (chain[0].flatten(1).unsqueeze(1) == states.flatten(1)).all(2).double().mean(0)
    error = (probability * (1 - probability) / 20_000).sqrt()
    assert float(((found - probability).abs() / error).max()) < 4.5


# ----- samples and data


def test_samples_of_the_machine_of_the_data_show_no_problem():
    machine = rbm(Binary(12), Binary(3), torch.randn(12, 3, generator=generator()))
    x = equilibrium(machine, 1000, seed=5).states[0]
    found = check_samples(machine, x)
    assert found.problems == ()
    assert found.slope_of_covariances == pytest.approx(1, abs=0.25)
    assert found.active_in_samples == pytest.approx(found.active_in_rows, abs=0.3)
    assert found.adversarial_accuracy == pytest.approx(0.5, abs=0.06)
    assert found.log_weight_of_samples == pytest.approx(found.log_weight_of_rows, abs=0.2)
    assert found.as_record()["problems"] == []


def test_a_state_without_data_is_a_problem():
    """A runaway state: a second mode with all units active, which no row has."""
    x = (torch.rand(1000, 20, generator=generator()) < 0.1).float()
    machine = pairwise(Binary(20), 0.5 * (torch.ones(20, 20) - torch.eye(20)))
    with torch.no_grad():
        machine.layers[0].field.fill_(-4.75)  # both modes have the same weight
    found = check_samples(machine, x)
    assert found.active_in_samples > 5 > found.active_in_rows
    assert any("active units" in problem for problem in found.problems)
    assert any("farther from the rows" in problem for problem in found.problems)


@pytest.mark.filterwarnings("ignore:the (final )?log-likelihood")
def test_a_warning_after_training(monkeypatch):
    monkeypatch.setattr(watch, "WORTH_CHECKING", 1)
    x = (torch.rand(200, 20, generator=generator()) < 0.1).float()
    machine = pairwise(Binary(20), 0.5 * (torch.ones(20, 20) - torch.eye(20)))
    with torch.no_grad():
        machine.layers[0].field.fill_(-4.75)
    options = {"epochs": 2, "learning_rate": 1e-9, "warm_start": True, "monitor": Monitor(0, likelihood=True)}
    with pytest.warns(TrainingWarning, match="mass where the data have none: samples have a mean of"):
        history = fit(machine, x, **options)
    assert history.records[-1]["samples_active_in_rows"] == pytest.approx(float(x.sum(1).mean()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(pairwise(Binary(20)), x, epochs=20, monitor=Monitor(0, likelihood=True))


def test_entropy():
    field = torch.tensor([-1.0, 0.0, 2.0])
    probability = field.sigmoid()
    expected = -(probability * probability.log() + (1 - probability) * (1 - probability).log()).sum()
    found = entropy(rbm(Binary(3, field=field), Binary(2), torch.zeros(3, 2)))
    assert found.nats == pytest.approx(float(expected), abs=4 * found.error)
    assert 0 < found.error < 0.05
    assert found.bits == pytest.approx(found.nats / math.log(2))
    assert "bits" in repr(found)
