"""Training on rows with gaps and weights: against enumeration, duplicated rows, and training on imputed rows."""

import json
import re

import numpy as np
import pytest
import torch
from run_cases import command

from tapmachine import (
    CD,
    PCD,
    RBM,
    Binary,
    Categorical,
    Gaussian,
    Mixed,
    SpikeSlab,
    Spin,
    TAPObjective,
    TruncatedGaussian,
    clamp,
    dbm,
    exact_log_likelihood,
    exact_log_partition,
    fit,
    gibbs,
    load,
    pairwise,
    rbm,
)
from tapmachine.data.errors import TrainingWarning
from tapmachine.exact import mixture_of
from tapmachine.likelihood.unbiased import Effort, observed_log_weight
from tapmachine.machine.checks import in_double, take_gaps
from tapmachine.training import Monitor, Objective, Trainer
from tapmachine.training.free_energies import clamped_free_energy
from tapmachine.training.gaps import draw_missing, fill_from_columns

pytestmark = pytest.mark.filterwarnings("ignore:the means of hidden layer")  # which little training leaves alike

NAN = float("nan")
QUIET = Monitor(n_starts=0)


def randomized(machine, scale=1.0, seed=0):
    """The machine with random parameters, in float64."""
    generator = torch.Generator().manual_seed(seed)
    machine = machine.double()
    with torch.no_grad():
        for p in machine.parameters():
            p.copy_(scale * torch.randn(p.shape, generator=generator, dtype=p.dtype))
        if machine.is_pairwise:
            machine.weights[0].copy_(machine.coupling(0))
    return machine


def with_gaps(x, share=0.3, seed=0):
    gaps = torch.rand(x.shape[:2], generator=torch.Generator().manual_seed(seed)) < share
    return x.double().masked_fill(gaps.view(*gaps.shape, *[1] * (x.dim() - 2)), NAN)


# ----- the gradient

TINY = {
    "binary": (lambda: rbm(Binary(4), Binary(3)), [[1.0, NAN, 0.0, NAN], [NAN, NAN, 1.0, 1.0], [0.0, 1.0, 1.0, 0.0]]),
    "spin": (lambda: rbm(Spin(4), Spin(2)), [[1.0, NAN, -1.0, NAN], [NAN, NAN, 1.0, 1.0], [-1.0, 1.0, 1.0, -1.0]]),
    "categorical": (lambda: rbm(Categorical(3, 3), Binary(2)), [[2.0, NAN, 0.0], [NAN, NAN, 1.0], [0.0, 1.0, 1.0]]),
    "pairwise": (lambda: pairwise(Binary(4)), [[1.0, NAN, 0.0, NAN], [NAN, NAN, 1.0, 1.0], [0.0, 1.0, 1.0, 0.0]]),
}


def completions(units, states, missing):
    """All complete states that agree with what was observed of one row."""
    counts = [count if gap else 1 for count, gap in zip(units.n_states(), missing.tolist(), strict=True)]
    digits = torch.cartesian_prod(*[torch.arange(count) for count in counts])
    gaps = missing.view(-1, *[1] * (states.dim() - 1))
    return torch.where(gaps, units.decode(digits), states)


def check_gradient_of_draws(machine, states, missing, exact, copies):
    """The mean gradient of rows whose gaps are drawn, within five standard errors of 30 groups of copies."""
    generator, groups = torch.Generator().manual_seed(1), []
    for _ in range(30):
        x, gaps = (z.repeat_interleave(copies, 0) for z in (states, missing))
        drawn = draw_missing(machine, x, gaps, 25, generator)
        groups.append(torch.autograd.grad(clamped_free_energy(machine, drawn).mean(), list(machine.parameters())))
    for expected, *found in zip(exact, *groups, strict=True):
        found = torch.stack(found)
        error = found.std(0) / 30**0.5
        assert bool(((found.mean(0) - expected).abs() <= 5 * error + 1e-6).all())
        assert float(error.max()) < 0.05, "the test could not fail"


@pytest.mark.parametrize("name", TINY)
def test_the_gradient_is_that_of_the_observed_likelihood(name):
    make, rows = TINY[name]
    machine = randomized(make())
    states, missing = take_gaps(machine, torch.tensor(rows, dtype=torch.float64))
    assert missing.sum() == sum(value != value for row in rows for value in row)
    parameters = list(machine.parameters())
    exact_terms = [
        -torch.logsumexp(-clamped_free_energy(machine, completions(machine.layers[0], x, gaps)), 0)
        for x, gaps in zip(states, missing, strict=True)
    ]
    exact = torch.autograd.grad(torch.stack(exact_terms).mean(), parameters)
    check_gradient_of_draws(machine, states, missing, exact, 80)


def test_the_gradient_of_several_types_is_that_of_the_observed_likelihood():
    """The missing cells of a mixed row are summed over, the Gaussian one on a grid."""
    machine = randomized(rbm(Mixed([Gaussian(1), Binary(1), Categorical(1, 3)]), Binary(2)))
    row = torch.tensor([[NAN, 1.0, NAN, NAN, NAN]], dtype=torch.float64)
    states, missing = take_gaps(machine, row)
    grid = torch.linspace(-8, 8, 161, dtype=torch.float64)
    possible = torch.cartesian_prod(grid, torch.arange(3.0, dtype=torch.float64))
    possible = torch.cat((possible[:, :1], torch.ones(len(possible), 1), torch.eye(3)[possible[:, 1].long()]), 1)
    parameters = list(machine.parameters())
    exact = torch.autograd.grad(-torch.logsumexp(-clamped_free_energy(machine, possible.double()), 0), parameters)
    check_gradient_of_draws(machine, states, missing, exact, 400)


@pytest.mark.parametrize("name", TINY)
def test_observed_values_are_held(name):
    make, rows = TINY[name]
    machine = randomized(make())
    states, missing = take_gaps(machine, torch.tensor(rows, dtype=torch.float64))
    drawn = draw_missing(machine, states, missing, 3, torch.Generator().manual_seed(0))
    assert torch.equal(drawn[~missing], states[~missing])
    machine.layers[0].check_states(drawn)


def test_columns_fill_gaps_in_their_proportions():
    x = torch.tensor([0.0] * 30 + [1.0] * 10 + [NAN] * 40).double().unsqueeze(1)
    filled = fill_from_columns(x, x.isnan(), None, seed=0)
    assert filled[40:].sum() == 10
    weights = torch.cat((torch.ones(30), 3 * torch.ones(10), torch.ones(40)))
    assert fill_from_columns(x, x.isnan(), weights, seed=0)[40:].sum() == 20


# ----- the likelihood of observed values


@pytest.mark.parametrize("name", ["binary", "spin", "categorical"])
def test_the_weight_of_observed_values(name):
    make, rows = TINY[name]
    machine = randomized(make())
    states, missing = take_gaps(machine, torch.tensor(rows, dtype=torch.float64))
    expected = exact_log_partition(clamp(machine, states, mask=~missing))
    torch.testing.assert_close(observed_log_weight(machine, states, missing), expected)
    annealed = observed_log_weight(machine, states, missing, Effort(-1, (300, 1000, 3000)))
    torch.testing.assert_close(annealed, expected, atol=0.15, rtol=0)


def test_the_density_of_observed_values_of_a_table():
    weights = torch.tensor([[0.5, -0.3], [0.6, 0.2], [0.0, 0.4]]).double()
    machine = rbm(Gaussian(3, field=0.3).double(), SpikeSlab(2).double(), weights=weights)
    row, missing = torch.tensor([[1.2, NAN, -0.5]]).double().nan_to_num(), torch.tensor([[False, True, False]])
    grid = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    filled = row.repeat(len(grid), 1)
    filled[:, 1] = grid
    log_density = exact_log_likelihood(machine, filled).values
    expected = torch.logsumexp(log_density, 0) + (grid[1] - grid[0]).log() + exact_log_partition(machine)
    torch.testing.assert_close(observed_log_weight(machine, row, missing), expected.view(1), rtol=1e-5, atol=1e-5)
    given = mixture_of(machine).condition(row.masked_fill(missing, torch.nan))
    draws = given.draws(4000, torch.Generator().manual_seed(0))[:, 0]
    weights = log_density.softmax(0)
    mean = (weights * grid).sum()
    deviation = (weights * (grid - mean) ** 2).sum().sqrt()
    assert torch.equal(draws[:, [0, 2]], row[:, [0, 2]].expand(4000, -1))
    assert abs(draws[:, 1].mean() - mean) < 5 * deviation / 4000**0.5
    assert abs(draws[:, 1].std() / deviation - 1) < 0.06


# ----- training


@pytest.mark.long
def test_gaps_cost_less_than_half_of_imputation():
    """Held-out log-likelihood lost to 30 % of the values missing, against that lost by column modes in their place."""
    teacher = randomized(rbm(Binary(12), Binary(4)), 2.0, seed=3)
    with torch.no_grad():  # as many ones as zeros
        teacher.layers[0].field.copy_(-0.5 * teacher.weights[0].sum(1))
        teacher.layers[1].field.copy_(-0.5 * teacher.weights[0].sum(0))
    generator = torch.Generator().manual_seed(0)
    x = gibbs(teacher, torch.zeros(3000, 12).double(), 200, generator)[0]
    train, test = x[:1500], x[1500:]
    gappy = with_gaps(train)
    modes = (gappy.nanmean(0) > 0.5).double()
    scores = []
    for rows in (train, gappy, torch.where(gappy.isnan(), modes, gappy)):
        machine = rbm(Binary(12), Binary(4), generator=torch.Generator().manual_seed(1)).double()
        fit(machine, rows, epochs=60, monitor=Monitor(n_starts=0, every=60))
        scores.append(float(exact_log_likelihood(machine, test)))
    complete, with_missing, imputed = scores
    assert complete > imputed + 0.2, "imputation must cost something, or nothing is tested"
    assert complete - with_missing < 0.5 * (complete - imputed), scores


def test_factors_are_found_despite_gaps():
    """Gaussian machines start from a factor analysis, which a completion column by column would spoil."""
    generator = torch.Generator().manual_seed(0)
    loadings = torch.randn(3, 8, generator=generator)
    x = 0.3 * (torch.randn(3000, 3, generator=generator) @ loadings + 0.4 * torch.randn(3000, 8, generator=generator))
    train, test = x[:1000], x[1000:]
    gappy = with_gaps(train).float()
    scores = []
    for rows in (train, gappy, torch.where(gappy.isnan(), gappy.nanmean(0), gappy)):
        machine = rbm(Gaussian(8), Gaussian(3))
        fit(machine, rows, epochs=2, monitor=QUIET)
        scores.append(float(exact_log_likelihood(machine, test)))
    complete, with_missing, imputed = scores
    assert complete - with_missing < 0.1 * (complete - imputed), scores


OBJECTIVES = {"PCD": PCD(2, n_chains=20), "CD": CD(1), "TAP": TAPObjective(n_particles=10, n_sweeps=2)}
MACHINES = {
    "binary": lambda: rbm(Binary(6), Binary(3)),
    "deep": lambda: dbm([Binary(6), Binary(3), Binary(2)]),
    "pairwise": lambda: pairwise(Binary(6)),
    "truncated": lambda: rbm(TruncatedGaussian(6), Binary(3)),
    "categorical": lambda: rbm(Categorical(6, 2), Binary(3)),
    "gaussian": lambda: rbm(Gaussian(6), Gaussian(2)),
}


@pytest.fixture(scope="module")
def bits():
    return (torch.rand(60, 6, generator=torch.Generator().manual_seed(0)) < 0.4).float()


@pytest.mark.parametrize(
    ("name", "objective"), [*((name, "PCD") for name in MACHINES), ("binary", "CD"), ("deep", "TAP")]
)
def test_resuming_is_bit_identical(name, objective, bits):
    x, weights = with_gaps(bits).float(), torch.rand(60, generator=torch.Generator().manual_seed(1))

    def trainer():
        torch.manual_seed(0)
        machine = MACHINES[name]()
        options = {"epochs": 4, "batch_size": 20, "weights": weights, "objective": OBJECTIVES[objective]}
        return Trainer(machine, x, monitor=QUIET, seed=3, **options)

    whole, first, second = trainer(), trainer(), trainer()
    for _ in range(4):
        whole.epoch()
    for _ in range(2):
        first.epoch()
    second.restore(first.state())
    for _ in range(2):
        record = second.epoch()
    assert torch.isfinite(torch.tensor(record["loss"]))
    for ours, theirs in zip(whole.machine.parameters(), second.machine.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(whole.batches.rows, second.batches.rows)
    observed = ~x.isnan()
    if name != "categorical":
        assert torch.equal(whole.batches.rows[observed], x[observed])


def test_complete_rows_are_trained_on_as_before(bits):
    trainer = Trainer(rbm(Binary(6), Binary(3)), bits, epochs=1)
    assert trainer.batches.gaps is None
    assert "completions" not in trainer.state().tensors


def test_what_is_recorded_is_the_likelihood_of_observed_values(bits):
    x = with_gaps(bits)
    machine = rbm(Binary(6), Binary(3)).double()
    history = fit(machine, x, epochs=2, validation=x[:30])
    states, missing = take_gaps(machine, x)
    expected = observed_log_weight(machine, states, missing) - exact_log_partition(machine)
    assert history["log_likelihood"][-1] == pytest.approx(float(expected.mean()), abs=1e-6)
    assert history["validation_log_likelihood"][-1] == pytest.approx(float(expected[:30].mean()), abs=1e-6)


def test_rows_without_values_are_left_out(bits):
    x = with_gaps(bits)
    x[[3, 5]] = NAN
    with pytest.warns(TrainingWarning, match="dropped because they have no observed values: 2"):
        trainer = Trainer(rbm(Binary(6), Binary(3)).double(), x, epochs=1)
    assert trainer.batches.n_rows == 58


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (lambda x: x.index_fill(1, torch.tensor([4]), NAN), "column 4 has no observed value"),
        (lambda x: torch.where(x.isnan(), NAN, 0.5), r"expected 0 or 1"),
        (lambda x: [x], "batch 0 of the loader has missing values .* in memory"),
        (lambda x: x.unsqueeze(-1), "expected a shape ending in"),
    ],
)
def test_what_gaps_cannot_do(x, message, bits):
    with pytest.raises(ValueError, match=message):
        fit(rbm(Binary(6), Binary(3)).double(), x(with_gaps(bits)), epochs=1)


def test_gaps_on_disk_are_refused(bits, tmp_path):
    np.save(tmp_path / "x.npy", with_gaps(bits).numpy())
    with pytest.raises(ValueError, match=r"row \d+, column \d+ is missing .* in memory"):
        fit(rbm(Binary(6), Binary(3)).double(), np.load(tmp_path / "x.npy", mmap_mode="r"), epochs=1)


def test_one_hot_gaps():
    x = torch.nn.functional.one_hot(torch.tensor([[0, 2], [1, 1]]), 3).double()
    x[0, 1] = NAN
    missing = take_gaps(rbm(Categorical(2, 3), Binary(2)).double(), x)[1]
    assert missing.tolist() == [[False, True], [False, False]]
    x[1, 0, 0] = NAN
    with pytest.raises(ValueError, match=r"x\[1, 0\] is partly missing"):
        take_gaps(rbm(Categorical(2, 3), Binary(2)).double(), x)
    with pytest.raises(ValueError, match=r"x\[0, 0\] is 1.5; expected a state index"):
        take_gaps(rbm(Categorical(2, 3), Binary(2)).double(), torch.tensor([[1.5, NAN]]).double())


# ----- weights


class Exact(Objective):
    """−ln Z over all states of six binary units."""

    def prepare(self, context):
        return ()

    def model_free_energy(self, context, carry):
        states = torch.cartesian_prod(*[torch.tensor([0.0, 1.0]).double()] * 6)
        return -torch.logsumexp(-clamped_free_energy(context.machine, states), 0), carry


def test_a_weight_of_two_is_a_row_twice(bits):
    weights = 1 + (torch.arange(60) % 3)
    results = []
    for x, w in ((bits, weights), (bits.repeat_interleave(weights, 0), None)):
        machine = randomized(rbm(Binary(6), Binary(3)))
        options = {
            "objective": Exact(),
            "centered": False,
            "optimizer": torch.optim.SGD(machine.parameters(), 0.1),
            "warm_start": True,
        }
        fit(machine, x.double(), epochs=5, batch_size=len(x), weights=w, monitor=QUIET, **options)
        results.append(machine)
    for ours, theirs in zip(*(machine.parameters() for machine in results), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_sample_weights_of_the_estimator(bits):
    x, weights = bits.numpy(), np.arange(60) % 3
    options = {"n_hidden": 3, "epochs": 2, "random_state": 0}
    weighted = RBM(**options).fit(x, sample_weight=weights)
    repeated = RBM(**options).fit(np.repeat(x, weights, 0))
    assert np.array_equal(weighted.components_, repeated.components_)
    assert RBM(**options | {"n_hidden": (3, 2)}).fit(with_gaps(bits).numpy(), sample_weight=1 + 0.1 * weights).history_
    fractions = RBM(**options).fit(x, sample_weight=np.where(x[:, 0] > 0, 1.5, 0.01))
    samples = fractions.sample(200, random_state=0)
    assert samples[:, 0].mean() > 0.8
    assert RBM(**options).partial_fit(x, sample_weight=weights).partial_fit(x, sample_weight=weights).history_
    for bad, message in (
        (np.full(60, -1.0), "negative"),
        (np.ones(3), "sample_weight"),
        (np.zeros(60), "(all weights are 0|non-zero)"),
    ):
        with pytest.raises(ValueError, match=message):
            RBM(**options).fit(x, sample_weight=bad)


# ----- the estimator and the command line


@pytest.mark.parametrize("options", [{}, {"n_hidden": (3, 2)}, {"visible": "categorical"}])
def test_the_estimator_takes_gaps(options, bits):
    x = with_gaps(bits).numpy()
    model = RBM(**{"n_hidden": 3, "epochs": 5, "random_state": 0} | options).fit(x)
    assert np.isfinite(model.components_).all()
    assert np.isfinite(model.transform(x)).all()
    machine = in_double(model.machine_)
    states, missing = take_gaps(machine, torch.from_numpy(x))
    expected = exact_log_partition(clamp(machine, states, mask=~missing)) - exact_log_partition(machine)
    np.testing.assert_allclose(model.score_samples(x), expected.numpy(), atol=1e-6)
    assert np.isfinite(model.partial_fit(x).sample(5)).all()
    x[:, 2] = NAN
    with pytest.raises(ValueError, match="column 2 has no observed value"):
        RBM(epochs=1).fit(x)


def test_training_with_gaps_and_weights_from_the_command_line(bits, tmp_path):
    x = with_gaps(bits).numpy()
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "w.npy", np.linspace(0.5, 1.5, 60))
    run = ("train", tmp_path / "x.npy", "--out", tmp_path / "run", "--hidden", 3, "--epochs", 3)
    code, _, errors = command(*run, "--weights", tmp_path / "w.npy")
    assert code == 0, errors
    count = int(np.isnan(x).sum())
    assert f"{count} of 360 values" in errors
    code, printed, errors = command("evaluate", tmp_path / "run", "--json")
    assert code == 0, errors
    machine = in_double(load(tmp_path / "run/machine.safetensors"))
    states, missing = take_gaps(machine, torch.from_numpy(x))
    expected = observed_log_weight(machine, states, missing) - exact_log_partition(machine)
    assert json.loads(printed)[0]["train"] == pytest.approx(float(expected.mean()), abs=1e-5)
    assert command("sample", tmp_path / "run", "--count", 5, "--out", tmp_path / "s.npy")[0] == 0
    code, printed, errors = command("score", tmp_path / "run", tmp_path / "x.npy")
    assert code == 0, errors
    assert printed.count("\n") == 61
    assert command("train", "--out", tmp_path / "run", "--epochs", 4)[0] == 0, "a run finds its weights again"


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(59), r"w.npy: the shape is \(59,\); expected 60 weights"),
        (np.where(np.arange(60) == 7, -1.0, 1.0), "w.npy: the weight of row 7 is -1"),
        (np.where(np.arange(60) == 8, np.nan, 1.0), "w.npy: the weight of row 8 is nan"),
        (np.zeros(60), "w.npy: all weights are 0"),
        (None, "w.npy: file not found"),
    ],
)
def test_bad_weights_are_one_line(weights, message, bits, tmp_path):
    np.save(tmp_path / "x.npy", bits.numpy())
    if weights is not None:
        np.save(tmp_path / "w.npy", weights)
    code, _, errors = command(
        "train", tmp_path / "x.npy", "--weights", tmp_path / "w.npy", "--out", tmp_path / "run", "--epochs", 1
    )
    assert code == 2
    assert errors.count("\n") == 1
    assert re.search(message, errors), errors
