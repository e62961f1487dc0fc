"""Clusters: likelihoods and samples are those of the machine, wherever its modes are and wherever chains start."""

import copy
import math
import warnings

import pytest
import torch
from machine_cases import Tensors

from tapmachine import Binary, Spin, clamp, dbm, exact_log_partition, pairwise, rbm
from tapmachine.data.errors import LikelihoodWarning
from tapmachine.likelihood import equilibrium, exact_moments
from tapmachine.likelihood.annealing.bases import class_base, independent_base, solution_base
from tapmachine.likelihood.annealing.estimate import ais_log_partition
from tapmachine.likelihood.unbiased import (
    CHEAP,
    THOROUGH,
    LogPartition,
    unbiased_log_likelihood,
    unbiased_log_partition,
)

NO_ENUMERATION = THOROUGH._replace(bits=0)
CLUSTERS, HOLE = (0.0, 1.0, 2.0, 3.0), (4.0,)  # logarithms of the weights of patterns, relative to noise


def patterns(log_weights, scale=1.0, n=40):
    """Noise, and one hidden unit for each pattern with a given weight; `scale` multiplies the couplings afterwards."""
    couplings = 6.0 * Tensors(3).normal(n, len(log_weights)).sign()
    held = torch.log1p(couplings.exp()).sub(math.log(2)).sum(0)
    bias = torch.tensor(log_weights).double() - held
    return rbm(Binary(n).double(), Binary(len(bias), bias).double(), scale * couplings)


@pytest.mark.long
@pytest.mark.parametrize("scale", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("log_weights", [CLUSTERS, HOLE], ids=["clusters", "hole"])
def test_ln_z_of_separate_clusters(log_weights, scale):
    machine = patterns(log_weights, scale)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LikelihoodWarning)  # independent units disagree, as they must
        found = unbiased_log_partition(machine, effort=NO_ENUMERATION)
    assert found.method == "annealed"
    assert found.error < 0.1
    assert abs(found.value - float(exact_log_partition(machine))) < 4 * found.error


def test_an_estimate_that_no_other_confirms_is_reported():
    """Independent units miss the pattern, with a small error, and no rows are there from which it could be found."""
    machine = patterns(HOLE)
    exact, alone = float(exact_log_partition(machine)), ais_log_partition(machine, 300, base=independent_base(machine))
    assert float(alone.log_partition) + 10 * float(alone.standard_error) < exact - 1
    with pytest.warns(LikelihoodWarning, match="from solutions and .* from independent units; .* no other estimate"):
        found = unbiased_log_partition(machine, effort=NO_ENUMERATION)
    assert found.value == pytest.approx(exact, abs=0.3)
    assert unbiased_log_partition(machine, effort=CHEAP._replace(bits=0)).problem  # without a warning in training


def test_rows_are_a_base_of_their_own():
    machine = patterns(CLUSTERS)
    mean = exact_moments(machine).moments[0].mean
    rows = (torch.rand(400, 40, generator=torch.Generator().manual_seed(0)) < mean).double()
    exact = float(exact_log_partition(machine))
    for base in (class_base(machine, rows), solution_base(machine, rows)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LikelihoodWarning)
            found = ais_log_partition(machine, 300, 200, base=base)
        assert float(found.log_partition) < exact + 4 * float(found.standard_error)


def test_probabilities_of_distinct_rows_never_exceed_one():
    machine = patterns(HOLE)
    held = machine.layers[1].field.detach().new_tensor(0) + (machine.weights[0][:, 0].detach() > 0).double()
    rows = held.expand(3, -1)
    wrong = LogPartition(-2.0, 0.01, "annealed")
    with pytest.warns(LikelihoodWarning, match="their probabilities would exceed 1"):
        found = unbiased_log_likelihood(machine, rows, wrong)
    assert float(found.values.max()) <= 1e-9
    assert float(found.common_error) > 1
    right = LogPartition(float(exact_log_partition(machine)), 0.01, "annealed")
    assert float(unbiased_log_likelihood(machine, rows, right).mean) < -0.05


@pytest.mark.long
@pytest.mark.parametrize("kind", ["rbm", "deep", "pairwise"])
def test_samples_visit_clusters_with_the_weights_of_the_machine(kind):
    """The data are in one cluster, where chains that start from them would stay."""
    machine = patterns(CLUSTERS)
    if kind == "deep":
        top = Tensors(6).normal(4, 3)
        machine = dbm([*copy.deepcopy(machine.layers), Binary(3).double()], [machine.weights[0].detach(), top])
    elif kind == "pairwise":
        pattern = Tensors(4).normal(14).sign()
        machine = pairwise(Spin(14, 0.15 * pattern).double(), 0.3 * (pattern.outer(pattern) - torch.eye(14).double()))
    exact = exact_moments(machine).moments
    data = torch.ones(20, machine.sizes[0]).double()
    samples = equilibrium(machine, 400, data)
    assert samples.effective_sample_size > 100
    for x, (mean, variance) in zip(samples.states, exact, strict=True):
        off = (x.mean(0) - mean) / (variance / samples.effective_sample_size).sqrt().clamp(min=0.01)
        assert float(off.abs().max()) < 5
    assert float(samples.shares.sum()) == pytest.approx(1)
    assert "annealing from" in repr(samples)


def test_samples_given_some_units():
    machine = patterns(CLUSTERS)
    row = (machine.weights[0][:, 1].detach() > 0).double()
    clamped = clamp(machine, row, mask=torch.arange(40) < 10)
    samples = equilibrium(clamped, 200).states
    assert bool((samples[0][:, :10] == row[:10]).all())
    expected = exact_moments(clamped).moments[0].mean
    torch.testing.assert_close(samples[0].mean(0), expected, rtol=0, atol=0.2)


def test_samples_that_are_not_in_equilibrium_are_reported(monkeypatch):
    monkeypatch.setattr("tapmachine.likelihood.sampling.TEMPERATURES", (1,))
    machine = rbm(Spin(60).double(), Spin(40).double(), Tensors(2).normal(60, 40))
    with pytest.warns(LikelihoodWarning, match="not in equilibrium"):
        equilibrium(machine, 10)
