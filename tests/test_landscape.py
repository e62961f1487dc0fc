"""Solutions: found, merged, followed, mapped; and what is said about them."""

import csv
import json
import math
import re
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from machine_cases import machine_of
from typer.testing import CliRunner

from tapmachine import (
    RBM,
    TAP,
    Binary,
    Categorical,
    Gaussian,
    Spin,
    TruncatedGaussian,
    clamp,
    dbm,
    exact_log_likelihood,
    find_solutions,
    load,
    pairwise,
    rbm,
    solve,
)
from tapmachine.analysis import receptive_fields
from tapmachine.analysis.landscape.diagnosis import n_unseen_solutions
from tapmachine.analysis.landscape.output import epochs_table
from tapmachine.analysis.landscape.tracking import Snapshot
from tapmachine.apps.cli import app
from tapmachine.data.errors import EstimateError, RunError
from tapmachine.landscape import LandscapeTrack, SolutionTree, diagnose, embed_landscape, track_landscape
from tapmachine.runs.folder import RunFolder
from tapmachine.runs.session import Session
from tapmachine.runs.settings import Settings
from tapmachine.runs.training import run_training
from tapmachine.solver import merge_solutions, noisy_start, random_start
from tapmachine.solver.merging import groups


def magnet(coupling, n=30):
    """A ferromagnet on a complete graph, whose TAP equations have two stable solutions beyond a coupling of about 1."""
    machine = pairwise(Spin(n)).double()
    with torch.no_grad():
        machine.weights[0].fill_(coupling / n).fill_diagonal_(0)
    return machine


def hopfield(n_patterns, n=200, beta=3.0):
    generator = torch.Generator().manual_seed(n_patterns)
    patterns = (torch.rand(n_patterns, n, generator=generator) < 0.5).double() * 2 - 1
    machine = pairwise(Spin(n)).double()
    with torch.no_grad():
        machine.weights[0].copy_(beta / n * patterns.T @ patterns).fill_diagonal_(0)
    return machine, patterns


# ----- merging


def brute_force_groups(points, radius):
    """Connected components of all pairs within the radius, by repeated search."""
    near = torch.linalg.vector_norm(points.unsqueeze(1) - points, dim=-1) <= radius
    label = torch.full((len(points),), -1)
    for first in range(len(points)):
        if label[first] >= 0:
            continue
        label[first], open_ = first, [first]
        while open_:
            for other in (near[open_.pop()] & (label < 0)).nonzero().squeeze(-1).tolist():
                label[other] = first
                open_.append(other)
    return label


def same_partition(first, second):
    pairs = torch.stack((first, second)).unique(dim=1).shape[1]
    return pairs == len(first.unique()) == len(second.unique())


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 60), n=st.integers(1, 40), spread=st.sampled_from([0.3, 1, 3]))
def test_groups_are_connected_components(seed, count, n, spread):
    """Also of chains, where members join groups whose leaders are far apart."""
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(max(1, count // 8), n, generator=generator, dtype=torch.float64)
    steps = torch.randn(count, n, generator=generator, dtype=torch.float64) / n**0.5
    points = centers[torch.randint(len(centers), (count,), generator=generator)] + 0.1 * spread * steps
    points = torch.cat((points, points[: count // 3]))  # and some twice
    found = groups(points, 0.1)
    assert same_partition(found, brute_force_groups(points, 0.1))
    order = torch.randperm(len(points), generator=generator)
    assert same_partition(groups(points[order], 0.1), found[order])


@pytest.mark.long
def test_groups_of_crowded_points():
    """Points of a plane, and corners of a cube that are all within three radii: neither takes long, nor much memory."""
    generator = torch.Generator().manual_seed(0)
    plane = torch.linalg.qr(torch.randn(200, 2, generator=generator, dtype=torch.float64)).Q
    flat = 0.05 * torch.rand(1000, 2, generator=generator, dtype=torch.float64) @ plane.T
    corners = (torch.rand(500, 200, generator=generator) < 0.5).double() / 200**0.5
    for points, radius in ((flat, 1e-3), (flat, 3e-3), (corners, 0.3), (corners, 0.66)):
        assert same_partition(groups(points, radius), brute_force_groups(points, radius))


def test_groups_far_from_zero():
    line = torch.linspace(0, 1, 2000, dtype=torch.float64).unsqueeze(-1) * torch.ones(1, 5) / 5**0.5
    assert int(groups(line + 1e5, 6e-4).max()) == 0


def test_groups_of_long_chains():
    line = torch.linspace(0, 1, 501, dtype=torch.float64).unsqueeze(-1) * torch.ones(1, 5) / 5**0.5
    assert int(groups(line, 0.0021).max()) == 0
    assert int(groups(line, 0.0019).max()) == 500
    assert int(groups(line, 0.0).max()) == 500
    assert len(groups(line[:0], 0.1)) == 0


def test_distances_do_not_depend_on_the_units_scale():
    """The same machine for values in [0, 1] and in [0, 128]: the same solutions are different."""
    counts = []
    for scale in (1.0, 128.0):  # a power of two: the same rounding
        generator = torch.Generator().manual_seed(1)
        machine = rbm(TruncatedGaussian(20, lower=0.0, upper=scale), Spin(10), generator=generator).double()
        with torch.no_grad():
            weights = torch.randn(20, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
            machine.weights[0].copy_(8 * weights / scale)
        x = scale * torch.rand(100, 20, generator=generator, dtype=torch.float64)
        counts.append(find_solutions(machine, x).counts.tolist())
    assert counts[0] == counts[1]
    assert len(counts[0]) > 1


def test_a_threshold_must_make_sense():
    machine = magnet(2.0)
    with pytest.raises(ValueError, match="same is -1"):
        find_solutions(machine, random_start(machine, 5), same=-1)
    found = find_solutions(machine, random_start(machine, 40))
    merged = [merge_solutions(machine, found.solutions, same=same).counts for same in (1e-3, 0.1, 1.0)]
    assert [len(counts) for counts in merged] == [2, 2, 1]


# ----- finding


@pytest.mark.parametrize(("coupling", "n_solutions"), [(0.8, 1), (1.6, 2)])
def test_a_ferromagnet_below_and_above_its_critical_coupling(coupling, n_solutions):
    machine = magnet(coupling, n=200)
    found = find_solutions(machine, random_start(machine, 200))
    assert len(found) == n_solutions
    assert bool(found.stable.all())
    assert int(found.counts.sum()) == found.n_starts == 200
    means = found.solutions.moments[0].mean.mean(1)
    if n_solutions == 1:
        assert abs(float(means[0])) < 1e-5
    else:  # TAP's own equation for the magnetization, m = tanh(Jm(1 − 1/N) − J²/N·(1 − m²)m), solved by bisection
        assert sorted(means.sign().tolist()) == [-1, 1]
        low, high = 0.1, 1.0
        for _ in range(100):
            m = (low + high) / 2
            field = coupling * m * 199 / 200 - coupling**2 * 199 / 200**2 * (1 - m * m) * m
            low, high = (m, high) if math.tanh(field) > m else (low, m)
        assert float(means.abs().max()) == pytest.approx(low, abs=1e-6)


@pytest.mark.parametrize("n", [30, 500])
@pytest.mark.parametrize("coupling", [1.1, 1.6])
@pytest.mark.parametrize("same", [1e-9, 1e-3, 1.0])
def test_a_saddle_is_not_stable(n, coupling, same):
    machine = magnet(coupling, n)
    nothing = torch.zeros(1, n, dtype=torch.float64)
    found = find_solutions(machine, nothing, same=same)
    assert len(found) == 1
    assert float(found.solutions.moments[0].mean.abs().max()) < 1e-6
    assert not bool(found.stable[0])
    assert any("saddles" in sentence for sentence in diagnose(found))
    assert find_solutions(machine, nothing, stability=False).stable is None


@pytest.mark.parametrize("n_patterns", range(1, 11))
def test_a_hopfield_machine_has_its_patterns_and_their_mirror_images(n_patterns):
    machine, patterns = hopfield(n_patterns)
    starts = noisy_start(machine, torch.cat((patterns, -patterns)).repeat(5, 1), noise=0.15)
    found = find_solutions(machine, starts)
    overlaps = found.solutions.moments[0].mean @ patterns.T / 200  # (solutions, patterns)
    assert len(found) == 2 * n_patterns
    assert bool((overlaps.abs().amax(1) > 0.95).all())
    which = overlaps.abs().argmax(1)
    signs = overlaps.gather(1, which.unsqueeze(1)).squeeze(1).sign()
    assert {(int(w), int(s)) for w, s in zip(which, signs, strict=True)} == {
        (number, sign) for number in range(n_patterns) for sign in (-1, 1)
    }
    assert found.counts.tolist() == [5] * (2 * n_patterns)
    assert found.n_not_converged == 0


def with_two_solutions(kinds):
    """Couplings of one sign but for signs of the units, and fields that favor neither of two states."""
    machine = machine_of(kinds, [12, 6], seed=3, scale=0.0)
    weights = machine.weights[0]
    generator = torch.Generator().manual_seed(3)
    signs = [torch.randn(n, generator=generator, dtype=torch.float64).sign() for n in weights.shape]
    with torch.no_grad():
        weights.copy_(1.5 * torch.outer(*signs))
        for own, other, couplings in zip(machine.layers, list(machine.layers)[::-1], (weights, weights.T), strict=True):
            lower, upper = other.bounds()
            middle = 1 / other.q if isinstance(other, Categorical) else (lower + upper) / 2
            field = getattr(own, "slab", own).field
            field.copy_(-(couplings.sum(1) * middle).view(field.shape))
    return machine


@pytest.mark.parametrize("kinds", [["Binary", "Binary"], ["Categorical", "Binary"], ["GaussBernoulli", "Spin"]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_solutions_solve_the_equations_and_basins_lead_to_them(kinds, dtype):
    machine = with_two_solutions(kinds).to(dtype)
    starts = random_start(machine, 60)
    found = find_solutions(machine, starts)
    assert len(found) == 2
    assert found.solutions.free_energy.dtype == torch.float64
    assert bool((found.free_energy.diff() >= 0).all())
    assert found.counts.tolist() == [len(found.members(number)) for number in range(2)]
    assert float(found.solutions.residual.max()) < 1e-14
    double = with_two_solutions(kinds).to(dtype).double()
    again = solve(double, found.solutions, tol=1e-14)
    for own, other in zip(found.solutions.moments, again.moments, strict=True):
        torch.testing.assert_close(own.mean, other.mean, rtol=0, atol=1e-6)
    value = TAP().free_energy(double, list(found.solutions.moments), list(found.solutions.tilts))
    torch.testing.assert_close(value, found.free_energy, rtol=1e-9, atol=1e-9)
    if dtype == torch.float64:  # what a start leads to by itself
        alone = solve(double, starts, tol=1e-14, max_sweeps=5000)
        ended = found.solutions.moments[0].mean[found.basin]
        torch.testing.assert_close(alone.moments[0].mean, ended, rtol=0, atol=1e-4)


def test_what_has_not_converged_is_said():
    machine = magnet(1.6)
    assert find_solutions(magnet(0.9), torch.zeros(1, 30)).stable.tolist() == [True]
    found = find_solutions(machine, random_start(machine, 30), max_sweeps=1)
    assert len(found) == 0
    assert found.n_not_converged == 30
    assert "30 not converged" in repr(found)
    assert "None of 30 starts has converged" in diagnose(found)[0]
    assert found.basin.tolist() == [-1] * 30
    with pytest.raises(ValueError, match="conditioned on 3 rows"):
        find_solutions(clamp(rbm(Binary(4), Binary(2)), torch.zeros(3, 4)))
    with pytest.raises(ValueError, match="expected a machine such as"):
        find_solutions("machine")
    with pytest.raises(ValueError, match="expected the attribute machine_"):
        find_solutions(RBM())


def test_starts_of_every_kind():
    machine = rbm(Binary(4), Binary(2))
    first = find_solutions(machine)
    assert first.counts.tolist() == [1]
    x = torch.eye(4)
    for starts in (
        x,
        x.double(),
        x.long(),
        x.numpy(),
        noisy_start(machine, x.double(), 0.1),
        first.solutions,
        first.solutions.moments,
    ):
        assert len(find_solutions(machine, starts)) == 1
    with pytest.raises(ValueError, match="expected data of shape"):
        find_solutions(machine, "data")


def test_how_far_starts_are_from_where_they_lead():
    machine = rbm(Binary(4), Binary(2))
    with torch.no_grad():
        machine.weights[0].zero_()
    found = find_solutions(machine, torch.tensor([[0.0, 0, 0, 0], [0.5, 0.5, 0.5, 0.5]]))
    assert found.distance.tolist() == pytest.approx([0.5, 0.0], abs=1e-7)


def test_noisy_starts():
    machine = rbm(Categorical(50, 4), Binary(2))
    x = torch.zeros(200, 50, dtype=torch.long)
    clean = noisy_start(machine, x, 0.0).mean
    noisy = noisy_start(machine, x, 0.3).mean
    assert bool((clean[..., 0] == 1).all())
    changed = (noisy != clean).any(-1).double().mean()
    assert float(changed) == pytest.approx(0.3, abs=0.035)  # of 10,000: seven standard errors
    torch.testing.assert_close(noisy.sum(-1), torch.ones(200, 50))
    assert noisy_start(rbm(Gaussian(3), Binary(2)), torch.zeros(4, 3), 1.0).mean.abs().min() > 0
    with pytest.raises(ValueError, match="noise is 2"):
        noisy_start(machine, x, 2)
    with pytest.raises(ValueError, match="shape"):
        noisy_start(rbm(Binary(6), Binary(2)), torch.zeros(6), 0.1)
    assert torch.equal(noisy_start(machine, x.numpy(), 0.0).mean, clean)
    with pytest.raises(ValueError, match=r"torch\.Tensor"):
        noisy_start(machine, x.tolist(), 0.1)


# ----- through a training


def rising_magnet():
    return {epoch: magnet(coupling) for epoch, coupling in ((1, 0.5), (4, 0.9), (10, 1.4), (20, 2.0))}


def test_tracking_a_magnet():
    told = []
    starts = torch.cat((torch.ones(12, 30), -torch.ones(8, 30)))
    found = track_landscape(rising_magnet(), starts, callback=told.append)
    assert [snapshot.n_solutions for snapshot in found.snapshots] == [1, 1, 2, 2]
    assert [snapshot.epoch for snapshot in told] == found.epochs == [1, 4, 10, 20]
    assert found.tree.n_lineages == [1, 1, 2, 2]
    assert found.changes() == [(1, 0), (0, 0), (1, 0), (0, 0)]
    assert found.tree.newick() == "(s0_8:16,s1_12:16):4;"  # of mirror images, the negative one comes first
    assert found.tree.clusters(20)[:12].unique().numel() == 1
    assert found.tree.cut(2).unique().numel() == 2
    assert found.tree.cut(1).unique().numel() == 1
    assert found.rows.tolist() == list(range(20))
    some = track_landscape(rising_magnet(), starts, epochs=[10, 1], n_starts=10)
    assert some.epochs == [1, 10]
    assert some.rows.tolist() == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]
    with pytest.raises(ValueError, match="epoch 3 was not kept"):
        track_landscape(rising_magnet(), starts, epochs=[3])
    with pytest.raises(ValueError, match="epochs is empty"):
        track_landscape(rising_magnet(), starts, epochs=[])
    with pytest.raises(ValueError, match="n_starts is 0"):
        track_landscape(rising_magnet(), starts, n_starts=0)
    with pytest.raises(ValueError, match="starts is missing"):
        track_landscape(rising_magnet())
    with pytest.raises(ValueError, match="machines is empty"):
        track_landscape({}, starts)
    with pytest.raises(ValueError, match="machines is a list; expected a mapping"):
        track_landscape([magnet(1.0)], starts)


def test_what_is_born_and_what_merges():
    def snapshot(epoch, basin, n):
        basin = torch.tensor(basin)
        return Snapshot(epoch, (), torch.zeros(n), torch.zeros(n), torch.ones(n), basin, torch.zeros(len(basin)))

    snapshots = [snapshot(1, [0, 0, 0, 1, 1, 2], 3), snapshot(2, [0, 0, 1, 0, 0, -1], 2), snapshot(3, [-1] * 6, 0)]
    # Of the three, the first two go on as one, and the third is lost; a start of the first founds another.
    assert LandscapeTrack(snapshots, torch.zeros(6, 1), torch.arange(6), None).changes() == [(3, 0), (1, 2), (0, 2)]
    lost = [snapshot(1, [0, 0, 1, -1], 2), snapshot(2, [1, 1, -1, 0], 2)]
    assert LandscapeTrack(lost, torch.zeros(4, 1), torch.arange(4), None).changes() == [(2, 0), (1, 1)]


def test_a_landscape_without_solutions():
    found = track_landscape(rising_magnet(), torch.ones(5, 30), max_sweeps=1)
    assert found.tree.n_lineages == [0, 0, 0, 0]
    assert found.tree.newick() == ";"
    assert [line.split(",")[1] for line in epochs_table(found).splitlines()[1:]] == ["0"] * 4
    assert "nan" not in epochs_table(found)


def test_a_track_from_random_points_and_of_a_deep_machine():
    machine = dbm([Binary(8), Binary(5), Binary(3)])
    found = track_landscape({1: machine, 2: machine}, random_start(machine, 30))
    assert [snapshot.n_solutions for snapshot in found.snapshots] == [1, 1]
    x = (torch.rand(20, 8, generator=torch.Generator().manual_seed(0)) < 0.5).float()
    with torch.no_grad():
        machine.weights[1].fill_(2.0)
    expected = solve(clamp(machine, x), None).moments[1].mean.mean(0)
    torch.testing.assert_close(receptive_fields(machine, x).activation.float(), expected, rtol=0, atol=1e-4)


def test_a_tree_of_solutions_that_split_twice():
    parents = [torch.tensor([0, 0]), torch.tensor([0, 1, 1]), torch.tensor([0, 1, 1, 2])]
    counts, basin = torch.tensor([50, 1, 30, 19]), torch.tensor([0] * 50 + [1] + [2] * 30 + [3] * 19)
    tree = SolutionTree([1, 5, 20, 30], parents, counts, basin, [0] * 4)
    assert tree.n_lineages == [1, 2, 3, 4]
    assert tree.newick() == "(s0_50:29,((s1_1:10,s2_30:10):15,s3_19:25):4):1;"
    assert tree.newick(["a", "b c", "it's", "d"]) == "(a:29,(('b c':10,'it''s':10):15,d:25):4):1;"
    assert tree.ancestors(20).tolist() == [0, 1, 1, 2]
    assert tree.ancestors(30).tolist() == [0, 1, 2, 3]
    assert tree.cut(3).bincount().tolist() == [50, 31, 19]
    with pytest.raises(ValueError, match="n_clusters is 0"):
        tree.cut(0)
    small = tree.pruned(2)
    assert small.counts.tolist() == [50, 30]
    assert small.newick() == "(s0_50:29,s1_30:29):1;"
    assert small.basin.tolist() == [0] * 50 + [-1] + [1] * 30 + [-1] * 19
    with pytest.raises(ValueError, match="3 names for 4 leaves"):
        tree.newick(["a", "b", "c"])
    roots = SolutionTree([3, 4], [torch.tensor([0, 1])], torch.tensor([1, 1]), torch.tensor([0, 1]), [0, 0])
    assert roots.newick() == "(s0_1:4,s1_1:4):0;"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on six patterns with a little noise, most of which its machine has a solution for in the end."""
    folder = tmp_path_factory.mktemp("landscape")
    generator = np.random.default_rng(0)
    rows = generator.integers(0, 2, (6, 36))[generator.integers(0, 6, 300)]
    rows = np.abs(rows - (generator.random(rows.shape) < 0.02)).astype(np.float32)
    np.save(folder / "patterns.npy", rows.reshape(300, 6, 6))
    options = {"hidden": (12,), "epochs": 20, "batch_size": 10, "validation": 0.1, "measure_every": 20}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"epoch \d+: TAP's log-likelihood is")  # of six patterns it knows one
        run_training(Settings(str(folder / "patterns.npy"), **options), folder / "run")
    return folder / "run"


def track_run(folder, **options):
    session = Session(folder)
    return track_landscape(session.machines, session.training_data().train, **options)


def test_tracking_a_run(run):
    found = track_run(run, n_starts=100)
    assert found.epochs == sorted(RunFolder(run).kept_machines())
    assert found.epochs[0] == 1
    assert found.epochs[-1] == 20
    last = found.snapshots[-1]
    assert last.n_solutions > 1  # five of six patterns, as a rule
    assert last.means[0].dtype == torch.float32
    assert found.starts.shape == (90, 36)
    # What is told of the last epoch is what its machine says by itself.
    alone = find_solutions(load(run / "machine.safetensors"), found.starts)
    torch.testing.assert_close(alone.free_energy, last.free_energy)
    assert alone.basin.tolist() == last.basin.tolist()


def test_a_run_without_kept_machines_has_its_last_one(run, tmp_path):
    data = json.loads((run / "settings.json").read_text())["settings"]["data"]
    run_training(Settings(data, hidden=(3,), epochs=2, keep_every=0), tmp_path / "r")
    assert track_run(tmp_path / "r", n_starts=20).epochs == [2]
    run_training(Settings(data, hidden=(3,), epochs=5, keep_every=2), tmp_path / "s")
    assert track_run(tmp_path / "s", n_starts=20).epochs == [2, 4, 5]  # the last one, too
    (tmp_path / "s" / "machines" / "epoch-best.safetensors").touch()
    assert track_run(tmp_path / "s", n_starts=20).epochs == [2, 4, 5]
    with pytest.raises(RunError, match="not a run directory"):
        Session(tmp_path / "nothing")


def test_which_machines_are_kept():
    kept = [epoch for epoch in range(1, 101) if Settings("digits", epochs=100).keeps(epoch)]
    assert kept[:5] == [1, 2, 3, 4, 5]
    assert kept[-1] == 100
    assert 15 <= len(kept) <= 24
    assert [e for e in range(1, 8) if Settings("digits", epochs=7).keeps(e)] == list(range(1, 8))
    assert [e for e in range(1, 8) if Settings("digits", epochs=7, keep_every=3).keeps(e)] == [3, 6]
    assert not any(Settings("digits", epochs=7, keep_every=0).keeps(e) for e in range(1, 8))


# ----- maps


def test_a_map_keeps_the_order_of_points_on_a_curve():
    angle = torch.linspace(0, 3, 120)
    rows = torch.stack([torch.cos(angle), torch.sin(angle), *[0.1 * angle] * 4], 1)
    found = track_landscape({1: rbm(TruncatedGaussian(6, lower=-1.0, upper=1.0), Binary(2))}, rows)
    placed = embed_landscape(found, rows)
    along = placed.data[:, 0]
    assert bool((along.diff() > 0).all()) or bool((along.diff() < 0).all())
    again = embed_landscape(found, rows)
    assert torch.equal(again.data, placed.data)
    assert torch.equal(again.solutions[0], placed.solutions[0])


@pytest.mark.long
def test_maps_of_solutions_by_all_layers(run):
    found = track_run(run, n_starts=100, epochs=[1, 20])
    placed = embed_landscape(found)
    assert placed.data is None
    assert [len(points) for points in placed.solutions] == [s.n_solutions for s in found.snapshots]
    with pytest.raises(ValueError, match="an embedding requires at least 4 points"):
        embed_landscape(found.snapshots[:1])
    with pytest.raises(ValueError, match="data have 3 columns"):
        embed_landscape(found, torch.zeros(10, 3))
    with pytest.raises(ValueError, match="landscape is empty"):
        embed_landscape([])
    one = embed_landscape(found.snapshots[-1], found.starts)
    assert len(one.solutions) == 1
    assert torch.equal(embed_landscape(found, found.starts.numpy()).data, embed_landscape(found, found.starts).data)
    alone = find_solutions(load(run / "machine.safetensors"), found.starts, stability=False)
    assert embed_landscape(alone, found.starts).solutions[0].shape == (len(alone), 2)
    many = torch.rand(2500, 36, generator=torch.Generator().manual_seed(0))
    assert embed_landscape(found, many).data.shape == (2500, 2)


# ----- receptive fields, bands, words


def test_ranking_of_receptive_fields():
    machine = machine_of(["Binary", "Binary"], [10, 5], seed=2)
    x = (torch.rand(30, 10, generator=torch.Generator().manual_seed(0)) < 0.5).double()
    found = receptive_fields(machine, x)
    weights = machine.weights[0].detach().T
    norms = [sum(float(abs(w) / row.abs().max()) ** 0.1 for w in row) ** 10 for row in weights]
    assert found.spread.exp().tolist() == pytest.approx(norms, rel=1e-9)
    field = x @ machine.weights[0] + machine.layers[1].field
    torch.testing.assert_close(found.activation, torch.sigmoid(field).mean(0).detach())
    assert found.by_activation(1).item() == int(found.activation.argmax())
    assert found.by_activation(1, least=True).item() == int(found.activation.argmin())
    assert found.by_spread(2, localized=True).tolist() == found.spread.argsort()[:2].tolist()
    with pytest.raises(ValueError, match="no hidden units"):
        receptive_fields(magnet(1.0))
    assert receptive_fields(rbm(Categorical(5, 3), Binary(2))).fields.shape == (2, 5, 3)


def test_words_on_the_extremes():
    nothing = rbm(Binary(6), Binary(3))
    x = torch.eye(6).repeat(5, 1)
    words = diagnose(find_solutions(nothing, x))
    assert words[0] == "1 solution from 30 starts."
    assert words[1] == "All starts converge to the same solution, so the mean field has a single state."
    assert "alone do not show" in words[2]
    assert "Too few starts" in diagnose(find_solutions(nothing, x[:3]))[1]
    # Every pattern a solution: what a machine looks like that learns by heart.
    machine, patterns = hopfield(30, n=400, beta=8.0)
    words = diagnose(find_solutions(machine, patterns))
    assert "30 starts converge to separate solutions, most of them close to the start" in words[1]
    uneven = torch.cat((torch.ones(95, 30), -torch.ones(5, 30)))
    assert "95 starts converge to the same solution" in diagnose(find_solutions(magnet(2.0), uneven))[1]


def pairs_of_units(n_rows, seed=0):
    """Twelve bits, of which the second six repeat the first: worth 6·ln 2 nats to a machine that sees it."""
    half = (torch.rand(n_rows, 6, generator=torch.Generator().manual_seed(seed)) < 0.5).double()
    return torch.cat((half, half), -1)


def machine_of_pairs(strength):
    """A hidden unit for each pair that favors 00 and 11; the fields keep all means at ½."""
    weights = strength * torch.eye(6).double().repeat(2, 1)
    fields = [torch.full((n,), -strength * share).double() for n, share in ((12, 0.5), (6, 1.0))]
    return rbm(Binary(12, field=fields[0]), Binary(6, field=fields[1]), weights=weights)


def test_one_solution_is_no_verdict():
    """Machines with a single TAP solution, from untrained to trained: their log-likelihood tells them apart."""
    x = pairs_of_units(400)
    for machine, verdict in (
        (machine_of_pairs(0.0), "no better than that of independent units"),
        (machine_of_pairs(1.5), "above that of independent units"),
        (rbm(Binary(12, field=torch.full((12,), 3.0).double()), Binary(6).double()), "untrained, or its training has"),
    ):
        landscape = find_solutions(machine, x[:40])
        words = diagnose(landscape, machine, x)
        assert words[:2] == [
            "1 solution from 40 starts.",
            "All starts converge to the same solution, so the mean field has a single state.",
        ]
        assert verdict in words[2]
        assert "(exact)" in words[2]
        assert ("underfits" in words[2]) == (verdict == "no better than that of independent units")
        assert not any("underfits" in sentence for sentence in diagnose(landscape))
    gain = float(exact_log_likelihood(machine_of_pairs(1.5), x)) + 12 * math.log(2)
    words = diagnose(find_solutions(machine_of_pairs(1.5), x[:40]), machine_of_pairs(1.5), x)
    assert float(words[2].split("(exact), ")[1].split(" above")[0]) == pytest.approx(gain, abs=0.1)
    assert "though not as separate solutions" in words[2]


def test_a_machine_whose_mean_field_has_broken_down_and_one_that_overfits():
    strong, x = machine_of_pairs(8.0), pairs_of_units(400)
    words = diagnose(find_solutions(strong, x[:100]), strong, x)
    assert any("the couplings are too strong for the mean field" in sentence for sentence in words)
    weak = machine_of_pairs(1.0)
    landscape = find_solutions(weak, x[:40])
    assert not any("too strong" in sentence for sentence in diagnose(landscape, weak, x))
    other = (torch.rand(400, 12, generator=torch.Generator().manual_seed(1)) < 0.5).double()  # halves do not agree
    assert any("The machine overfits" in sentence for sentence in diagnose(landscape, weak, x, other))
    assert not any("overfits" in sentence for sentence in diagnose(landscape, weak, x, pairs_of_units(400, seed=2)))


def test_solutions_that_no_start_has_reached_are_estimated():
    """Chao1, for three solutions with one start and one with two, and for draws from 100 equally likely solutions."""
    assert n_unseen_solutions(torch.tensor([1, 1, 1, 2, 5])) == 1.5
    assert n_unseen_solutions(torch.tensor([4, 7])) == 0
    drawn = torch.randint(100, (150,), generator=torch.Generator().manual_seed(0)).bincount(minlength=100)
    assert n_unseen_solutions(drawn[drawn > 0]) == pytest.approx(int((drawn == 0).sum()), abs=12)


def test_a_log_likelihood_that_cannot_be_had_is_no_evidence(monkeypatch):
    machine, x = machine_of_pairs(1.0), pairs_of_units(100)
    landscape = find_solutions(machine, x[:40])

    def refuse(*arguments):
        raise EstimateError("no")

    monkeypatch.setattr("tapmachine.analysis.landscape.diagnosis.unbiased_log_partition", refuse)
    assert "No reliable log-likelihood is available" in diagnose(landscape, machine, x)[2]


# ----- the command line


def test_the_command(run, tmp_path):
    result = CliRunner().invoke(app, ["landscape", str(run), "--starts", "60", "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert re.search(r"20 +\d+ +\d+ +0 ", result.output)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"epochs.csv", "solutions.csv", "starts.csv", "tree.nwk"}
    found = track_run(run, n_starts=60)
    with (tmp_path / "out" / "solutions.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["epoch"] == "20"]
    assert [float(row["free_energy"]) for row in rows] == pytest.approx(found.snapshots[-1].free_energy.tolist())
    assert [int(row["starts"]) for row in rows] == found.snapshots[-1].counts.tolist()
    assert [row["stable"] == "True" for row in rows] == found.snapshots[-1].stable.tolist()
    with (tmp_path / "out" / "epochs.csv").open() as file:
        last = list(csv.DictReader(file))[-1]
    assert int(last["solutions"]) == len(rows) == sum(1 for row in rows if int(row["starts"]) > 0)
    assert (tmp_path / "out" / "tree.nwk").read_text().strip() == found.tree.newick()
    with (tmp_path / "out" / "starts.csv").open() as file:
        assert [int(row["solution"]) for row in csv.DictReader(file)] == found.snapshots[-1].basin.tolist()


def test_the_command_leaves_nothing_where_there_is_no_run(tmp_path):
    with pytest.raises(RunError, match="not a run directory"):
        CliRunner().invoke(app, ["landscape", str(tmp_path / "none")], catch_exceptions=False)
    assert not (tmp_path / "none").exists()


def test_the_command_says_what_is_wrong(run, tmp_path):
    for arguments, message in (
        (["--epochs", "7000"], "epoch 7000 was not kept; available epochs: 1, 2"),
        (["--epochs", "many"], "epochs is 'many'"),
    ):
        with pytest.raises(ValueError, match=message):
            CliRunner().invoke(app, ["landscape", str(run), "--out", str(tmp_path), *arguments], catch_exceptions=False)


def test_merging_what_solve_found_only_roughly():
    """A tolerance of 1e-8 leaves solutions further apart than what counts as one, which is why others use 1e-14."""
    machine = magnet(1.05, n=60)  # near the critical point, where it is flat
    starts = random_start(machine, 60)
    rough = merge_solutions(machine, solve(machine, starts, tol=1e-8, max_sweeps=10_000))
    assert len(rough) > len(find_solutions(machine, starts)) == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_landscapes_on_a_gpu_agree():
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randint(2, (100, 5), generator=generator) * 2.0 - 1
    machine = rbm(Spin(100), Spin(50), weights=0.08 * patterns.repeat(1, 10))
    starts = random_start(machine, 700, generator)
    expected = find_solutions(machine, starts)
    found = find_solutions(machine.to("cuda"), starts)
    assert len(found) == len(expected) > 5
    torch.testing.assert_close(found.free_energy.cpu(), expected.free_energy, atol=1e-6, rtol=0)
    assert torch.equal(found.basin.cpu(), expected.basin)
    assert torch.equal(found.stable.cpu(), expected.stable)
