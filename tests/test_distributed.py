"""Several processes that train and measure as one."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from forks import Ranks, command_line, script
from run_cases import PATIENCE, wait_until
from run_cases import command as in_process
from safetensors.torch import load_file
from sklearn.datasets import load_digits

from tapmachine.accelerator.distributed import World, add_up, gathered, leads, together, world

BASE = ["--binarize", "0.5", "--hidden", "20", "--batch-size", "31", "--device", "cpu", "--quiet"]


def environment():
    own = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return own | {"OMP_NUM_THREADS": "1"}


def torchrun(*arguments):
    """Two processes, as users start them."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *arguments]


@pytest.fixture
def digits(tmp_path):
    """As many rows as show what a wrong share changes: the last of their batches is smaller."""
    path = tmp_path / "digits.npy"
    np.save(path, load_digits().data[:400].astype(np.float32) / 16)
    return str(path)


def run(folder, processes, *arguments):
    """The command line; one process is this one."""
    if processes == 1:
        code, _, errors = in_process(*arguments)
        assert code == 0, errors[-2000:]
    else:
        Ranks(folder, processes, command_line, *arguments).wait()


DOUBLE = {"dtype": "float64"}


def in_files(options, folder):
    """Options in which settings are in a file."""
    path = folder / "chosen.json"
    for settings in options:
        if isinstance(settings, dict):
            path.write_text(json.dumps(settings))
    return [word for each in options for word in (["--settings", path] if isinstance(each, dict) else [each])]


def largest_difference(first, second):
    one, two = load_file(first / "machine.safetensors"), load_file(second / "machine.safetensors")
    return max(float((one[name].double() - two[name].double()).abs().max()) for name in one)


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        pytest.param(["--objective", "tap", "--learning-rate", "0.005"], 1e-5, id="tap"),
        pytest.param([DOUBLE], 1e-9, id="default"),
        pytest.param([DOUBLE, "--objective", "cd"], 1e-9, id="sampled", marks=pytest.mark.slow),
        pytest.param(
            [DOUBLE | {"n_particles": 17, "l1": 0.001, "centered": False}, "--objective", "tap"],
            1e-9,
            id="fewer-particles",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            [DOUBLE, "--hidden", "12,8", "--pretrain", "1", "--objective", "tap"],
            1e-6,
            id="deep",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_two_processes_train_as_one(options, tolerance, tmp_path, digits):
    for processes in (1, 2):
        words = [digits, *BASE, "--epochs", "1", *in_files(options, tmp_path), "--out", tmp_path / str(processes)]
        run(tmp_path, processes, "train", *words)
    assert largest_difference(tmp_path / "1", tmp_path / "2") <= tolerance
    one, two = (map(json.loads, (tmp_path / n / "metrics.jsonl").read_text().splitlines()) for n in "12")
    one, two = list(one), list(two)
    assert len(one) == len(two)
    for name in ("loss", "log_likelihood", "gradient_norm", "learning_rate"):
        assert two[-1][name] == pytest.approx(one[-1][name], rel=1e-5)


ON_ONE_DEVICE = """
import os, sys, torch, torch.distributed as dist
from safetensors.torch import save_file
from tapmachine import PCD, Binary, TAPObjective, fit, rbm
from tapmachine.training import Monitor, momentum_sgd
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if size > 1:  # not NCCL, which wants a GPU for each
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}.meet", rank=rank, world_size=size)
draws = torch.Generator().manual_seed(0)
x = (torch.rand(400, 30, generator=draws) < 0.3).float().to(sys.argv[2])
machine = rbm(Binary(30), Binary(8), 0.5 * torch.randn(30, 8, generator=draws)).to(sys.argv[2])
before = machine.weights[0].detach().clone()
weights = torch.linspace(0.5, 1.5, 400) if "weights" in sys.argv else None
objective = PCD(2, n_chains=7) if "pcd" in sys.argv else TAPObjective()  # 7 chains cannot be shared evenly
if "pcd" in sys.argv:
    machine, x = machine.double(), x.double()  # in float32 a draw may depend on rounding
fit(machine, x, epochs=3, batch_size=25, objective=objective, optimizer=momentum_sgd(machine, 0.05),
    weights=weights, monitor=Monitor(0), compile=False)
if rank == 0:
    save_file({"before": before.cpu(), "weights": machine.weights[0].detach().cpu()}, sys.argv[1])
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("device", "options"),
    [
        pytest.param("cpu", ["weights"], id="cpu-weights"),  # without them: test_two_processes_train_as_one
        pytest.param("cpu", ["weights", "pcd"], id="cpu-weights-pcd", marks=pytest.mark.slow),
        pytest.param("cuda", [], id="cuda", marks=pytest.mark.gpu),
        pytest.param("cuda", ["weights"], id="cuda-weights", marks=pytest.mark.gpu),
    ],
)
def test_two_processes_on_one_device_train_as_one(device, options, tmp_path):
    """On a GPU their steps are two captured graphs each, between which they meet."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    for size in (1, 2):
        Ranks(tmp_path, size, script, ON_ONE_DEVICE, tmp_path / str(size), device, *options).wait()
    one, two = (load_file(tmp_path / size) for size in "12")
    assert float((one["weights"] - one["before"]).abs().max()) > 0.05  # it has learned
    torch.testing.assert_close(two["weights"], one["weights"], rtol=0, atol=1e-9 if "pcd" in options else 1e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine with too few GPUs")
def test_more_processes_than_gpus_are_refused(monkeypatch):
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "1"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="process 1 has no GPU; found 0"), together("cuda"):
        pass


@pytest.mark.long
def test_another_number_of_processes_goes_on(tmp_path, digits):
    """From two to three: chains are handed on, and the result is that of one process."""
    options = [digits, *BASE, *in_files([DOUBLE], tmp_path), "--epochs", "3"]
    run(tmp_path, 1, "train", *options, "--out", tmp_path / "whole")
    two = Ranks(tmp_path, 2, command_line, "train", *options, "--out", tmp_path / "run")
    try:
        wait_until((tmp_path / "run/checkpoints/manifest.json").exists, two)
    finally:
        two.kill()
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) < 3
    run(tmp_path, 3, "train", *options, "--out", tmp_path / "run")
    assert largest_difference(tmp_path / "whole", tmp_path / "run") <= 1e-9
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3]


@pytest.mark.long
def test_a_killed_process_ends_the_run_which_can_go_on(tmp_path, digits):
    options = [digits, *BASE, "--epochs", "4000", "--measure-every", "4000"]
    running = torchrun("-m", "tapmachine", "train", *options, "--out", str(tmp_path / "run"))
    with subprocess.Popen(running, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        wait_until((tmp_path / "run/checkpoints/manifest.json").exists, process)
        children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
        os.kill(int(children[-1]), signal.SIGKILL)
        process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert json.loads((tmp_path / "run/checkpoints/manifest.json").read_text())
    code, output, _ = in_process("info", tmp_path / "run", "--json")
    assert code == 0
    assert json.loads(output)


MEASURE = """
import os, sys, torch
from tapmachine import Spin, ais_log_partition, find_solutions, rbm
from tapmachine.accelerator.distributed import together, world
generator = torch.Generator().manual_seed(0)
weights = torch.full((12, 8), 0.3, dtype=torch.float64)  # which has two solutions, with opposite signs
machine = rbm(Spin(12).double(), Spin(8).double(), weights=weights)
starts = 2 * torch.randint(2, (21, 12), generator=generator).double() - 1
before = len(os.listdir("/proc/self/task")) if os.path.exists("/proc/self/task") else None
with together("cpu"):
    import torch.distributed.nn  # as torch.compile and the optimizers do, once there is a group
    found = find_solutions(machine, starts)
    estimates = [ais_log_partition(machine, 50, n_runs).log_weights for n_runs in (100, 250)]
    if world().leads:
        torch.save([found.free_energy, found.basin, found.counts, found.status, *estimates], sys.argv[1])
assert before is None or len(os.listdir("/proc/self/task")) == before, "a thread outlives the group"
"""


@pytest.mark.long
def test_landscape_and_annealing_are_divided(tmp_path):
    """More starts than can be shared evenly, and fewer blocks of runs than processes.

    A thread of gloo that is still there when Python ends aborts the process now and then, so that none may be left.
    """
    path = tmp_path / "measure.py"
    path.write_text(MEASURE)
    for name, words in (("one", [sys.executable]), ("two", torchrun())):
        done = subprocess.run([*words, path, tmp_path / name], capture_output=True, text=True, env=environment())
        assert done.returncode == 0, done.stderr[-2000:]
    one, two = (torch.load(tmp_path / name, weights_only=True) for name in ("one", "two"))
    assert len(one[0]) > 1
    for first, second in zip(one, two, strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=1e-10)


def test_shares_cover_everything_once():
    for size in (1, 2, 3, 7):
        for count in (0, 1, 5, 100):
            shares = [list(range(count))[World(rank, size).part(count)] for rank in range(size)]
            assert [number for own in shares for number in own] == list(range(count))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_single_process_is_a_world_of_its_own(monkeypatch):
    assert world() == World(0, 1)
    assert world().leads
    x = torch.arange(3.0)
    assert gathered(x) is x
    with together("cpu") as device:
        assert device == "cpu"
    monkeypatch.setenv("RANK", "1")
    assert not leads()


def test_sums_over_a_group_of_one(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        tensors = [torch.ones(2, 3), torch.tensor(4.0)]
        add_up(tensors)
        np.testing.assert_array_equal(tensors[0], np.ones((2, 3)))
        assert float(tensors[1]) == 4
    finally:
        torch.distributed.destroy_process_group()
