"""Counts as arguments: whole numbers of any kind, and nothing else."""

import inspect
from types import ModuleType

import numpy as np
import pytest
import torch

import tapmachine
from tapmachine import (
    CD,
    PCD,
    RBM,
    Binary,
    BinarySymmetric,
    LinearMeasurements,
    TAPObjective,
    ais_log_likelihood,
    ais_log_partition,
    clamp,
    compare_likelihoods,
    condition,
    dbm,
    find_solutions,
    fit,
    gibbs,
    impute,
    pretrain,
    pseudo_log_likelihood,
    rbm,
    solve,
)
from tapmachine.analysis import compare_schemes, receptive_fields
from tapmachine.beliefs import Tilt
from tapmachine.data.checks import check_count
from tapmachine.landscape import embed_landscape, track_landscape
from tapmachine.likelihood import Annealing, check_samples, entropy, equilibrium
from tapmachine.likelihood.tap import solve_from_rows
from tapmachine.posterior import PosteriorOptions, gibbs_posterior
from tapmachine.solver import random_start
from tapmachine.training import Monitor, Trainer, TrainingOptions, geometric_decay, momentum_sgd
from tapmachine.training.options import Hyperparameters
from tapmachine.training.pretraining import PretrainingTrainer
from tapmachine.units import Simplex

X = torch.eye(4).repeat(3, 1)
LABELS = X[:, 0].long().numpy()
PIPELINES = (tapmachine.RBMImputer, tapmachine.RBMClassifier, tapmachine.RBMRegressor)
MIXED = LinearMeasurements(torch.ones(4, 4) + torch.eye(4), noise=0.5)
NOISE = BinarySymmetric(0.1)


def small():
    return rbm(Binary(4), Binary(2))


def deep():
    return dbm([Binary(4), Binary(2), Binary(2)])


# Every public function with a count, as it is called with one; a name may have several.
CALLS = [
    ("CD", "k", CD),
    ("PCD", "k", PCD),
    ("PCD", "n_chains", lambda n: PCD(1, n)),
    ("PretrainingTrainer", "pretrain_epochs", lambda n: PretrainingTrainer(deep(), X, TrainingOptions(epochs=1), n)),
    ("Hyperparameters", "epochs", lambda n: Hyperparameters(epochs=n)),
    ("Hyperparameters", "batch_size", lambda n: Hyperparameters(batch_size=n)),
    ("TrainingOptions", "epochs", lambda n: TrainingOptions(epochs=n)),
    ("TrainingOptions", "batch_size", lambda n: TrainingOptions(batch_size=n)),
    ("RBM", "n_hidden", lambda n: RBM(n, epochs=1).fit(X)),
    *((own.__name__, "n_hidden", lambda n, own=own: own(n).fit(X.numpy(), LABELS)) for own in PIPELINES),
    ("RBM", "epochs", lambda n: RBM(2, epochs=n).fit(X)),
    ("RBM", "batch_size", lambda n: RBM(2, epochs=1, batch_size=n).fit(X)),
    ("RBM", "pretrain", lambda n: RBM((2, 2), epochs=1, pretrain=n).fit(X)),
    ("Simplex", "n_states", Simplex),
    ("TAPObjective", "n_particles", lambda n: TAPObjective(n_particles=n)),
    ("TAPObjective", "n_sweeps", lambda n: TAPObjective(n_sweeps=n)),
    ("Trainer", "epochs", lambda n: Trainer(small(), X, epochs=n)),
    ("Trainer", "batch_size", lambda n: Trainer(small(), X, epochs=1, batch_size=n)),
    ("ais_log_likelihood", "schedule", lambda n: ais_log_likelihood(small(), X, schedule=n)),
    ("ais_log_likelihood", "n_runs", lambda n: ais_log_likelihood(small(), X, schedule=2, n_runs=n)),
    ("ais_log_partition", "schedule", lambda n: ais_log_partition(small(), schedule=n)),
    ("ais_log_partition", "n_runs", lambda n: ais_log_partition(small(), schedule=2, n_runs=n)),
    ("clamp", "layer", lambda n: clamp(small(), torch.zeros(2), layer=n)),
    ("compare_likelihoods", "schedule", lambda n: compare_likelihoods(small(), X, annealing=Annealing(n))),
    ("Annealing", "n_runs", lambda n: Annealing(2, n)),
    (
        "compare_likelihoods",
        "n_visible",
        lambda n: compare_likelihoods(small(), X, n_visible=n),
    ),
    ("compare_schemes", "max_sweeps", lambda n: compare_schemes(small(), X, max_sweeps=n)),
    ("condition", "layer", lambda n: condition(small(), Tilt(0.0, 0.0), layer=n)),
    ("PosteriorOptions", "n_neighbors", lambda n: PosteriorOptions(n_neighbors=n)),
    ("PosteriorOptions", "max_sweeps", lambda n: PosteriorOptions(max_sweeps=n)),
    ("check_samples", "n_samples", lambda n: check_samples(small(), torch.zeros(4, small().sizes[0]), n)),
    ("entropy", "n_samples", lambda n: entropy(small(), n_samples=n)),
    ("equilibrium", "count", lambda n: equilibrium(small(), n)),
    ("equilibrium", "n_sweeps", lambda n: equilibrium(small(), 2, n_sweeps=n)),
    ("embed_landscape", "n_neighbors", lambda n: embed_landscape(find_solutions(small(), X), X, n_neighbors=n)),
    ("find_solutions", "max_sweeps", lambda n: find_solutions(small(), X, max_sweeps=n)),
    ("fit", "epochs", lambda n: fit(small(), X, epochs=n)),
    ("fit", "batch_size", lambda n: fit(small(), X, epochs=1, batch_size=n)),
    ("geometric_decay", "epochs", lambda n: geometric_decay(momentum_sgd(small(), 0.1), 0.1, n)),
    ("gibbs", "n_sweeps", lambda n: gibbs(small(), X, n)),
    ("gibbs_posterior", "n_sweeps", lambda n: gibbs_posterior(small(), X, NOISE, n)),
    ("pretrain", "epochs", lambda n: pretrain(dbm([Binary(4), Binary(2), Binary(2)]), X, epochs=n)),
    ("pretrain", "batch_size", lambda n: pretrain(dbm([Binary(4), Binary(2), Binary(2)]), X, epochs=1, batch_size=n)),
    ("pseudo_log_likelihood", "n_visible", lambda n: pseudo_log_likelihood(small(), X, n)),
    ("random_start", "n_particles", lambda n: random_start(small(), n)),
    ("receptive_fields", "layer", lambda n: receptive_fields(small(), layer=n)),
    ("solve_from_rows", "n_starts", lambda n: solve_from_rows(small(), X, n_starts=n)),
    ("PosteriorOptions", "max_iterations", lambda n: PosteriorOptions(max_iterations=n)),
    ("solve", "max_sweeps", lambda n: solve(small(), X, max_sweeps=n)),
    ("solve", "batch_size", lambda n: solve(small(), X, batch_size=n)),
    ("track_landscape", "n_starts", lambda n: track_landscape({1: small()}, X, n_starts=n)),
    ("track_landscape", "max_sweeps", lambda n: track_landscape({1: small()}, X, n_starts=4, max_sweeps=n)),
]
CALLS += [("Monitor", name, lambda n, name=name: Monitor(**{name: n})) for name in ("n_starts", "n_rows", "max_sweeps")]
CALLS += [("Monitor", "every", lambda n: Monitor(every=n))]
every_call = pytest.mark.parametrize("call", [call for *_, call in CALLS], ids=[f"{a}-{b}" for a, b, _ in CALLS])


@every_call
@pytest.mark.parametrize("value", [True, 2.0, "2", -1], ids=repr)
def test_what_is_no_count_is_refused(call, value):
    with pytest.raises(ValueError, match=r"(is|layer) \(?'?(True|2\.0|2'?|-1)\D|schedule does not increase"):
        call(value)


@pytest.mark.parametrize(("owner", "name", "call"), CALLS, ids=[f"{a}-{b}" for a, b, _ in CALLS])
def test_zero_is_refused_where_it_makes_no_sense(owner, name, call):
    if name in ("epochs", "pretrain", "pretrain_epochs", "n_starts", "layer") or (
        owner in ("gibbs", "equilibrium") and name == "n_sweeps"
    ):
        return
    with pytest.raises(ValueError, match=r"is 0\b|is \d, |expected"):
        call(0)


@pytest.mark.parametrize(
    "call",
    [
        lambda n: solve(small(), X, max_sweeps=n, batch_size=n),
        lambda n: fit(small(), X, epochs=n, batch_size=n, objective=PCD(n, n), monitor=Monitor(0)),
        lambda n: fit(small(), X, epochs=1, batch_size=n, objective=TAPObjective(n_particles=n, n_sweeps=n)),
        lambda n: ais_log_partition(small(), schedule=50 * n, n_runs=50 * n),
        lambda n: gibbs(small(), X, n),
        lambda n: pseudo_log_likelihood(small(), X, n),
        lambda n: random_start(small(), n),
        lambda n: PosteriorOptions(n_neighbors=n),
        lambda n: impute(small(), X, data=X, options=PosteriorOptions(n_neighbors=n)),
    ],
)
def test_whole_numbers_of_numpy_are_counts(call):
    call(np.int64(2))


def test_messages_of_counts():
    assert type(check_count("k", np.int32(3))) is int
    assert check_count("k", 0, 0) == 0
    for value, limits, message in [
        (True, (), "k is True; expected a positive integer"),
        (np.True_, (), r"k is .*True.*; expected a positive integer"),
        (0, (), "k is 0; expected a positive integer"),
        (1.0, (0,), "k is 1.0; expected a non-negative integer"),
        (5, (1, 4), "k is 5; expected an integer from 1 to 4"),
    ]:
        with pytest.raises(ValueError, match=message):
            check_count("k", value, *limits)


def public_names():
    """Names at the top and in the namespaces, with what they stand for."""
    top = {name: getattr(tapmachine, name) for name in tapmachine.__all__}
    spaces = [value for value in top.values() if isinstance(value, ModuleType)]
    inside = {name: getattr(space, name) for space in spaces for name in space.__all__}
    return {name: value for name, value in (top | inside).items() if not isinstance(value, ModuleType)}


def test_every_public_count_is_in_the_list():
    """A new argument that is annotated as int, and is no seed, belongs into CALLS or here."""
    others = {"n", "q", "seed", "epoch", "update", "n_steps", "n_rows", "n_units", "n_solutions"}
    listed = {(owner, name) for owner, name, _ in CALLS}
    results = {
        "LikelihoodRow",
        "ReceptiveFields",
        "TAPLogLikelihood",
        "SolutionTree",
        "Snapshot",
        "Progress",
        "EnergyBand",
        "Edge",
        "AnnealedEstimate",
        "Equilibrium",
    }
    missing = []
    for owner, value in public_names().items():
        if not callable(value) or owner in results or (isinstance(value, type) and issubclass(value, Exception)):
            continue
        for argument in inspect.signature(value).parameters.values():
            is_count = argument.annotation in (int, int | None)
            if is_count and argument.name not in others and (owner, argument.name) not in listed:
                missing.append((owner, argument.name))
    assert missing == []
