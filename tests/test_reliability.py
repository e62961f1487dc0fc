"""What may go wrong around a training, and what must hold then; the long forms are slow tests."""

import errno
import gzip
import io
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch
from run_cases import PATIENCE, bars, command, struck, wait_until
from safetensors.torch import load_file
from typer.testing import CliRunner

from tapmachine import (
    CD,
    PCD,
    Binary,
    TAPObjective,
    ais_log_partition,
    dbm,
    denoise,
    find_solutions,
    load,
    rbm,
    solve,
    tap_log_likelihood,
)
from tapmachine.apps.cli import app
from tapmachine.channels import BinarySymmetric
from tapmachine.data import arrays as data_files
from tapmachine.data.errors import DataError, FileError
from tapmachine.data.sources import read
from tapmachine.likelihood.annealing.paths import LayeredPath
from tapmachine.likelihood.annealing.runs import BLOCK
from tapmachine.machine.files import write_tensors
from tapmachine.runs.data import codec_of
from tapmachine.runs.folder import RunFolder
from tapmachine.runs.registry import make_objective
from tapmachine.runs.settings import Settings
from tapmachine.runs.training import run_training
from tapmachine.solver.schemes.layered import LayeredDescent
from tapmachine.tables.machine import make_machine, make_training
from tapmachine.training import Monitor, Stopped, Trainer, TrainingOptions
from tapmachine.training.state import TrainingState

EPOCHS = 6
SELDOM = ("--measure-every", "12", "--save-every", "4")


def settings(data, **options):
    return Settings(**{"data": data, "hidden": (5,), "epochs": EPOCHS, "batch_size": 20} | options)


def started(data, folder, *options, epochs=EPOCHS):
    fixed = ["--hidden", "30", "--batch-size", "10", "--out", str(folder), "--quiet", "--device", "cpu"]
    return [sys.executable, "-m", "tapmachine", "train", data, "--epochs", str(epochs), *fixed, *options]


def contents(folder):
    """Of all that a run leaves which must be the same."""
    last = json.loads((folder / "checkpoints/manifest.json").read_text())[-1]["file"]
    return [(folder / name).read_bytes() for name in ("machine.safetensors", f"checkpoints/{last}")]


# ----- stopped by a signal


@pytest.mark.parametrize(
    ("layers", "objective"),
    [((5,), None), ((5,), TAPObjective(n_sweeps=4)), ((6, 4), None)],
    ids=["rbm", "tap", "deep"],
)
@pytest.mark.filterwarnings("ignore:the means of hidden layer")
def test_a_training_stopped_between_batches_goes_on_to_the_bit(layers, objective):
    x = torch.tensor(bars())

    def make():
        machine = dbm([Binary(16), *map(Binary, layers)])
        return Trainer(machine, x, epochs=3, batch_size=20, seed=1, objective=objective)

    whole = make()
    records = [whole.epoch() for _ in range(3)]
    stopped = make()
    stopped.epoch()
    taken, real = [], stopped.batches.take

    def take(place):
        taken.append(place)
        stopped.stopping = len(taken) == 7
        return real(place)

    stopped.batches.take = take
    with pytest.raises(Stopped):
        stopped.epoch()
    tensors, values = stopped.state()
    resumed = make()
    resumed.restore(TrainingState(tensors, json.loads(json.dumps(values))))
    again = [resumed.epoch(), resumed.epoch()]
    for name, value in whole.machine.state_dict().items():
        assert torch.equal(value, resumed.machine.state_dict()[name]), name
    for value, other in zip(whole.step.averages, resumed.step.averages, strict=True):
        assert torch.equal(value, other)
    for before, after in zip(records[1:], again, strict=True):
        assert {n: v for n, v in before.items() if n != "seconds"} == {n: v for n, v in after.items() if n != "seconds"}


@pytest.mark.long
@pytest.mark.parametrize("kind", [signal.SIGTERM, pytest.param(signal.SIGUSR1, marks=pytest.mark.slow)])
def test_a_signal_is_answered_by_a_checkpoint(data, tmp_path, kind):
    """In the midst of the fifth epoch, and before another batch is taken; checkpoints are due after four and eight."""
    arguments = started(data, tmp_path / "stopped", *SELDOM, epochs=12)[3:]
    done = struck(kind, 4 * 30 + 20, *arguments)
    assert done.returncode == 75, done.stderr
    assert f"stopped by {kind.name}" in done.stderr
    assert "Traceback" not in done.stderr
    events = [json.loads(line)["event"] for line in (tmp_path / "stopped/events.jsonl").read_text().splitlines()]
    assert events[-1] == "stopped"
    assert command(*arguments)[0] == 0
    assert command(*started(data, tmp_path / "whole", *SELDOM, epochs=12)[3:])[0] == 0
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")


def wait_for_an_event(folder, process):
    """Until the run has begun or gone on, by its log; or has ended."""
    log, sign = folder / "events.jsonl", f'"process": {process.pid},'
    wait_until(lambda: process.poll() is not None or (log.exists() and sign in log.read_text()), process)


def stopped_and_resumed(data, tmp_path, number, kind, wait):
    """A run that gets a signal after so many seconds; with which code it ended."""
    folder = tmp_path / f"stopped-{number}"
    process = subprocess.Popen(started(data, folder, *SELDOM, epochs=12), stderr=subprocess.PIPE, text=True)
    wait_for_an_event(folder, process)
    time.sleep(wait)
    process.send_signal(kind)
    _, errors = process.communicate(timeout=PATIENCE)
    ended = process.returncode
    if ended == 75:
        assert f"stopped by {kind.name}" in errors
        assert "Traceback" not in errors
        events = [json.loads(line)["event"] for line in (folder / "events.jsonl").read_text().splitlines()]
        assert events[-1] == "stopped"
        assert subprocess.run(started(data, folder, *SELDOM, epochs=12), check=True).returncode == 0
    return folder, ended


# ----- writes that fail


@pytest.mark.long
@pytest.mark.parametrize(
    "code",
    [errno.ENOSPC, *(pytest.param(code, marks=pytest.mark.slow) for code in (errno.EFBIG, errno.EACCES, errno.EROFS))],
)
def test_a_write_that_fails_leaves_the_old_checkpoint(data, tmp_path, monkeypatch, code):
    """Every write of a run fails in turn: the first, the second, … until one run needs no more writes."""
    whole = tmp_path / "whole"
    run_training(settings(data, epochs=2), whole)
    real, tried, failures = os.fsync, 0, 0
    while True:
        tried += 1
        folder, count = tmp_path / f"{code}-{tried}", 0

        def fail(handle, at=tried):
            nonlocal count
            count += 1
            if count == at:
                raise OSError(code, os.strerror(code))
            real(handle)

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", fail)
            try:
                run_training(settings(data, epochs=2), folder)
            except OSError as error:
                failures += error.errno == code
        assert not list(folder.rglob("*.part")), "nothing stays behind"
        if RunFolder(folder).last_epoch() is not None:
            assert RunFolder(folder).last_checkpoint() is not None
        run_training(settings(data, epochs=2), folder)
        assert contents(folder) == contents(whole)
        if count < tried:
            break
    assert failures >= 8


@pytest.mark.long
def test_a_full_disk_is_one_line_on_the_command_line(data, tmp_path):
    """EFBIG, from the system itself: no file may be larger than a few bytes."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)); import signal; "
    ignore = "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); from tapmachine.apps.cli import main; import sys; "
    line = limit + ignore + f"sys.argv = ['tapmachine'] + {started(data, tmp_path / 'run')[3:]!r}; main()"
    ended = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "File too large" in ended.stderr
    assert not list((tmp_path / "run").rglob("*.part"))


# ----- memory


@pytest.mark.parametrize("share", [2, 4, 8])
def test_solving_goes_on_in_parts_where_memory_runs_out(monkeypatch, share):
    generator = torch.Generator().manual_seed(0)
    machine = rbm(Binary(12), Binary(8), weights=torch.randn(12, 8, generator=generator)).double()
    x = torch.randint(2, (64, 12), generator=generator).double()
    y = BinarySymmetric(0.1).corrupt(x)
    work = (
        lambda: solve(machine, x, tol=1e-14).moments[0].mean,
        lambda: find_solutions(machine, x).free_energy,
        lambda: denoise(machine, y, BinarySymmetric(0.1)).mean,
    )
    expected = [call() for call in work]
    real, refused = LayeredDescent.step, []

    def step(self, layers, state):
        if len(state.free_energy) > 64 // share:
            refused.append(len(state.free_energy))
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, layers, state)

    monkeypatch.setattr(LayeredDescent, "step", step)
    for call, before in zip(work, expected, strict=True):
        refused.clear()
        torch.testing.assert_close(call(), before, rtol=0, atol=1e-5)
        assert refused
    monkeypatch.setattr(LayeredDescent, "step", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("none at all")))
    with pytest.raises(torch.OutOfMemoryError, match="none at all"):
        solve(machine, x)


@pytest.mark.parametrize("share", [2, 4, 8])
def test_annealing_needs_no_more_memory_for_more_runs(monkeypatch, share):
    """Runs are made in blocks that have random numbers of their own: as many at a time, whatever was asked for."""
    generator = torch.Generator().manual_seed(0)
    machine = rbm(Binary(12), Binary(8), weights=torch.randn(12, 8, generator=generator)).double()
    fewer = ais_log_partition(machine, 20, BLOCK)
    real = LayeredPath.step

    def step(self, states, *rest):
        if len(states[0]) > BLOCK:  # a share of what all runs together would take
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, states, *rest)

    monkeypatch.setattr(LayeredPath, "step", step)
    more = ais_log_partition(machine, 20, share * BLOCK)
    assert more.n_runs == share * BLOCK
    torch.testing.assert_close(more.log_weights[:BLOCK], fewer.log_weights, rtol=0, atol=1e-5)


# ----- two processes, one folder


def race(data, folder):
    processes = [
        subprocess.Popen(started(data, folder, epochs=40), stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    results = [(process.communicate(timeout=PATIENCE)[1], process.returncode) for process in processes]
    codes = sorted(code for _, code in results)
    assert codes in ([0, 2], [0, 0])  # one is refused, or comes when the other has ended
    for errors, code in results:
        assert code == 0 or "another process is training in this directory" in errors
    return codes


@pytest.mark.long
def test_of_two_processes_one_is_refused(data, tmp_path):
    arguments = started(data, tmp_path / "run", epochs=10**6)
    with subprocess.Popen(arguments) as process:
        try:
            wait_until((tmp_path / "run/events.jsonl").exists, process)
            code, _, errors = command(*arguments[3:])
        finally:
            process.kill()
    assert code == 2
    assert "another process is training in this directory" in errors
    with RunFolder(tmp_path / "run"):
        pass  # the lock of a process that was killed is free


# ----- divergence


VALUES = {
    "binary": lambda rows: rows,
    "spin": lambda rows: 2 * rows - 1,
    "gaussian": lambda rows: rows + 0.3 * np.random.default_rng(1).normal(size=rows.shape),
    "truncated-gaussian": lambda rows: 0.2 + 0.5 * rows + 0.1 * np.random.default_rng(1).random(rows.shape),
    "gauss-bernoulli": lambda rows: rows * np.random.default_rng(1).random(rows.shape),
    "categorical": lambda rows: 2 * rows.astype(int),
}
CLASSES = {"tap": TAPObjective, "cd": CD, "pcd": PCD}
FACTORS = (float("nan"), float("inf"), -float("inf"), 1e38)


def injections():
    """Thirty of them, at different steps: the first six, one for each unit type, are quick enough for every day."""
    chance = random.Random(0)
    for number in range(30):
        visible = list(VALUES)[number % len(VALUES)]
        case = (visible, chance.choice(list(CLASSES)), chance.choice(FACTORS), chance.randrange(1, 12))
        yield pytest.param(*case, marks=() if number < len(VALUES) else pytest.mark.slow)


def diverging(monkeypatch, objective, factor, steps):
    """Multiplies F of the machine by a factor in some steps, and sees to it that the one after them is sound."""
    real, calls = CLASSES[objective].difference, []

    def difference(self, context, on_data, on_model):
        assert all(torch.isfinite(p).all() for p in context.machine.parameters())
        calls.append(1)
        return real(self, context, on_data, on_model * factor if len(calls) in steps else on_model)

    monkeypatch.setattr(CLASSES[objective], "difference", difference)


def assert_nothing_saved_is_off(folder):
    """All numbers in all files of a run are finite."""
    paths = list(folder.rglob("*.safetensors"))
    assert paths
    for path in paths:
        for name, value in load_file(path).items():
            assert not value.is_floating_point() or torch.isfinite(value).all(), (path, name)


@pytest.mark.filterwarnings(
    "ignore:the log-likelihood is not available"
)  # between two epochs, if it was the last step of one
@pytest.mark.parametrize(("visible", "objective", "factor", "step"), list(injections()))
def test_injected_divergences(visible, objective, factor, step, tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", VALUES[visible](bars(60)))
    options = {"visible": visible, "hidden_units": "binary", "objective": objective, "epochs": 4}  # of three steps each
    chosen = settings(f"{tmp_path}/x.npy", **options)
    diverging(monkeypatch, objective, factor, {step})
    with pytest.warns(UserWarning, match="undone"):
        run = run_training(chosen, tmp_path / "run")
    assert sum(record["divergences"] for record in run.records) >= 1
    assert_nothing_saved_is_off(tmp_path / "run")


@pytest.mark.parametrize("objective", CLASSES)
def test_a_training_that_diverges_for_ever_ends_with_4(data, objective, tmp_path, monkeypatch):
    diverging(monkeypatch, objective, float("nan"), range(20, 10_000))
    arguments = ("train", data, "--hidden", 5, "--epochs", 6, "--batch-size", 20, "--objective", objective, "--quiet")
    code, _, errors = command(*arguments, "--out", tmp_path / "run")
    assert code == 4
    assert errors.count("\n") == 1
    assert "training diverged repeatedly" in errors
    assert RunFolder(tmp_path / "run").last_epoch() == 1
    assert_nothing_saved_is_off(tmp_path / "run")


# ----- the same again


def trained(visible, seed, threads):
    """A small machine of one of the unit types, in float64."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        chosen = Settings("given", hidden=(5,), visible=visible, epochs=2, batch_size=20, seed=seed, dtype="float64")
        x = codec_of(chosen).rows(VALUES[visible](bars(200)))
        new = make_machine(chosen, x)
        options = TrainingOptions.of(chosen, objective=make_objective(chosen), monitor=Monitor(n_starts=0))
        trainer = make_training(new, x, options)
        for _ in range(chosen.epochs):
            trainer.epoch()
        return new.machine
    finally:
        torch.set_num_threads(before)


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))])
def test_threads_and_batches_do_not_matter(seed):
    visible = list(VALUES)[seed % len(VALUES)]
    one, again, two = (trained(visible, seed, threads) for threads in (1, 1, 2))
    for name, value in one.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
        torch.testing.assert_close(value, two.state_dict()[name], rtol=0, atol=1e-8)
    if visible == "binary":
        x = torch.tensor(bars(60)).double()
        whole, parts = solve(one, x, tol=1e-24), solve(one, x, tol=1e-24, batch_size=7 + seed)
        torch.testing.assert_close(whole.free_energy, parts.free_energy, rtol=0, atol=1e-12)
        for own, other in zip(whole.moments, parts.moments, strict=True):
            torch.testing.assert_close(own.mean, other.mean, rtol=0, atol=1e-10)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("seed", range(20))
def test_a_gpu_gives_the_same_log_likelihood(seed):
    generator = torch.Generator().manual_seed(seed)
    machine = rbm(Binary(16), Binary(5), weights=0.5 * torch.randn(16, 5, generator=generator))
    x = torch.tensor(bars(200))
    found = [float(tap_log_likelihood(machine.to(device), x.to(device)).mean) for device in ("cpu", "cuda")]
    assert found[1] == pytest.approx(found[0], abs=1e-4)


def test_nothing_on_a_load_path_executes(tmp_path):
    """No pickle, eval, exec or torch.load anywhere in the package; numpy is told not to unpickle."""
    import ast
    from pathlib import Path

    import tapmachine

    banned = {"eval", "exec", "__import__", "compile"}
    for path in Path(tapmachine.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not {alias.name.split(".")[0] for alias in node.names} & {"pickle", "marshal", "shelve", "dill"}
            if isinstance(node, ast.Call):
                name = node.func
                if isinstance(name, ast.Name):
                    assert name.id not in banned, path
                if isinstance(name, ast.Attribute) and name.attr == "load" and isinstance(name.value, ast.Name):
                    assert name.value.id != "torch", path
                    if name.value.id == "np":
                        flags = {keyword.arg: keyword.value for keyword in node.keywords}
                        assert isinstance(flags.get("allow_pickle"), ast.Constant), path
                        assert flags["allow_pickle"].value is False


# ----- files that mean harm


def npy(shape, dtype="<f4", body=b""):
    header = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + body


def zipped(name, content):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return file.getvalue()


HOSTILE = {
    "pickle.npy": npy((1,), "|O", b"cos\nsystem\n(S'touch harm'\ntR."),
    "huge.npy": npy((10**9, 10**9)),
    "negative.npy": npy((-1, 4)),
    "code.npy": npy("__import__('os').system('touch harm')"),
    "deep.npy": npy("(" * 2000 + ")" * 2000),
    "short.npy": b"\x93NUMPY",
    "huge.npz": zipped("x.npy", npy((10**9, 10**9))),
    "pickle.npz": zipped("x.npy", npy((1,), "|O", b"cos\nsystem\n(S'touch harm'\ntR.")),
    "traversal.npz": zipped("../../harm.npy", npy((2, 4), body=bytes(32))),
    "bomb.npz": zipped("x.npy", npy((100, 1_000_000), "|u1", bytes(100_000_000))),
    "bomb.csv.gz": gzip.compress(bytes(100_000_000), 9),
    "header-idx3-ubyte": bytes([0, 0, 8, 3]) + b"\xff" * 12,
    "quotes.csv": b'"' * 100_000,
    "nul.csv": b"1,2\n\x00,3\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_data_are_refused_in_little_memory(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(data_files, "MANY_BYTES", 2**24)  # the bombs hold six times that
    (tmp_path / name).write_bytes(HOSTILE[name])
    tracemalloc.start()
    if name == "traversal.npz":  # a name is a name
        assert read(tmp_path / name).rows.shape == (2, 4)
    else:
        with pytest.raises(DataError, match=name):
            read(tmp_path / name)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # what may be read, a buffer that is larger than what it holds, and the file itself
    assert peak < 3 * data_files.MANY_BYTES + 3 * len(HOSTILE[name])
    assert not list(tmp_path.parent.glob("harm*"))
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


PICKLE = b"cos\nsystem\n(S'touch harm'\ntR."
LAYER = {"type": "Binary", "n": 4}


def raw(header, body=b"", size=None):
    """A safetensors file by its header, which says of itself what is wished."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if size is None else size).to_bytes(8, "little") + text + body


def one_tensor(**changes):
    return raw({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} | changes}, bytes(4))


def signed(description, **tensors):
    """A file with the right digest of what means harm."""
    return {"weights.0": torch.zeros(4, 2), **tensors}, description


HOSTILE_MACHINES = {
    "zip of a pickle": zipped("archive/data.pkl", PICKLE),
    "gzip": gzip.compress(bytes(10**6)),
    "endless header": raw(b"", size=2**63 - 1),
    "header beyond the file": raw(b"{}", size=10**6),
    "code for a header": raw(b"__import__('os').system('touch harm')"),
    "deep header": raw(b"[" * 10**5 + b"]" * 10**5),
    "offsets beyond the file": one_tensor(data_offsets=[0, 10**15]),
    "negative offsets": one_tensor(data_offsets=[-4, 0]),
    "a huge shape": one_tensor(shape=[10**6, 10**6]),
    "objects": one_tensor(dtype="O"),
    "a name that is a path": raw({"../../harm": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
    "a huge layer": signed({"kind": "machine", "layers": [{"type": "Binary", "n": 10**12}, LAYER]}),
    "a layer of names": signed({"kind": "machine", "layers": "Binary"}),
    "many states": signed(
        {"kind": "machine", "layers": [{"type": "Categorical", "n": 4, "q": 10**9}]},
        **{"layers.0.field": torch.zeros(4)},
    ),
}


@pytest.mark.parametrize("name", HOSTILE_MACHINES)
def test_hostile_machines_are_refused_in_little_memory(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, content = tmp_path / "machine.safetensors", HOSTILE_MACHINES[name]
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        write_tensors(path, *content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FileError, match=re.escape(str(path))):
        load(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2 * path.stat().st_size / 1024 + 20_000  # KiB
    assert [file.name for file in tmp_path.iterdir()] == ["machine.safetensors"]


# ----- the doctor


def test_the_doctor_looks_at_the_installation_and_at_runs(data, tmp_path):
    def ask(*arguments):
        result = CliRunner().invoke(app, ["doctor", *map(str, arguments)])
        return result.exit_code, result.stdout

    folder = tmp_path / "run"
    run_training(settings(data), folder)
    code, said = ask(folder)
    assert code == 0, said
    assert "cpu: solved a small machine" in said
    assert "16 Binary – 5 Binary, after epoch 6" in said
    last = sorted((folder / "checkpoints").glob("*.safetensors"))[-1]
    last.write_bytes(last.read_bytes()[:-1])
    code, said = ask(folder)
    assert code == 2
    assert f"problem checkpoint {last.name}: its content does not match the manifest" in said
    assert ask(tmp_path / "none")[0] == ask(tmp_path)[0] == 2
    assert json.loads(ask("--json")[1])[0]["verdict"] == "ok"


# ----- many of them


@pytest.mark.slow
def test_200_kills(data, tmp_path):
    """Also inside saves: every epoch is saved, and an epoch takes some milliseconds."""
    chance, kills, runs = random.Random(1), 0, 0
    whole = tmp_path / "whole"
    often = ("--measure-every", "400")
    subprocess.run(started(data, whole, *often, epochs=400), check=True)
    while kills < 200 or runs < 50:
        folder, runs = tmp_path / f"run-{runs}", runs + 1
        for _ in range(4):
            process = subprocess.Popen(started(data, folder, *often, epochs=400))
            wait_for_an_event(folder, process)  # to start takes seconds, in which a kill is no test
            time.sleep(0.5 * chance.random())
            kills += process.poll() is None
            process.kill()
            process.wait()
        subprocess.run(started(data, folder, *often, epochs=400), check=True)
        assert contents(folder) == contents(whole), folder
    print(f"{kills} kills over {runs} runs")


@pytest.mark.slow
def test_20_signals(data, tmp_path):
    subprocess.run(started(data, tmp_path / "whole", *SELDOM, epochs=12), check=True)
    stops = 0
    for number in range(20):
        kind = (signal.SIGTERM, signal.SIGUSR1)[number % 2]
        folder, code = stopped_and_resumed(data, tmp_path, number, kind, 0.02 * number)
        assert code in (0, 75)  # it may have ended before
        stops += code == 75
        assert contents(folder) == contents(tmp_path / "whole")
    assert stops >= 5


@pytest.mark.slow
def test_50_pairs_of_processes(data, tmp_path):
    codes = [race(data, tmp_path / f"pair-{number}") for number in range(50)]
    print(f"{sum(pair == [0, 2] for pair in codes)} of 50 pairs met, and one of each was refused")
