"""Parallel execution of a reproduction: machines are trained and measured, and tables computed, in separate processes.

Each process performs one task: it trains a model and measures the model's solutions, or computes the tables of one
figure from trained machines. All results are files in the lab directory, from which the parent process draws the
figures.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from reproduction import experiment
from reproduction.lab import Lab
from reproduction.models import ALL_MODELS, BINARY, Model
from reproduction.procedure import Procedure
from reproduction.solutions import measure_solutions
from tapmachine.data.errors import RunError

ROOT = Path(__file__).parents[1]
ON_GPU = 12  # default number of processes, because each machine of the paper uses only a small part of a GPU
POLLING = 0.2  # interval in seconds
SUMMARY = "claims"  # figure that reads the tables of all other figures


@dataclass(frozen=True)
class Task:
    """A unit of work for one process.

    Attributes:
        kind: Kind of the task, `model` or `figure`.
        name: Name of the model or label of the figure.
        requires: Names of the models that must be trained first.
        measured: Whether the solutions of the model are measured after training.
    """

    kind: str
    name: str
    requires: frozenset[str] = frozenset()
    measured: bool = False


def default_jobs(device: str) -> int:
    """Return the default number of processes: 1 on a CPU and up to one per CPU core on a GPU."""
    return 1 if device == "cpu" else min(ON_GPU, os.cpu_count() or 1)


def tasks_of(lab: Lab, figures: Sequence[str]) -> list[Task]:
    """Return the tasks for some figures, with the longest training first."""
    modules = {name: experiment(name) for name in figures}
    needed = {name: module.needed(lab) for name, module in modules.items()}
    models = {model.name: model for found in needed.values() for model in found}
    measured = {model.name for module in modules.values() for model in _measured(module, lab)}
    training = [
        Task("model", model.name, measured=model.name in measured)
        for model in sorted(models.values(), key=_duration, reverse=True)
    ]
    drawing = [
        Task("figure", name, frozenset(model.name for model in found))
        for name, found in needed.items()
        if name != SUMMARY
    ]
    # Tables that require no models can be computed while machines are being trained.
    return [*(task for task in drawing if not task.requires), *training, *(task for task in drawing if task.requires)]


def _measured(module: object, lab: Lab) -> list[Model]:
    models: list[Model] = getattr(module, "measured", lambda lab: [])(lab)
    return models


def _duration(model: Model) -> tuple[bool, bool, int, int]:
    """Return a sort key. Deep machines take longest, followed by machines for real-valued data."""
    return model.pretrain > 0, model.data != BINARY, len(model.hidden), model.hidden[0]


def run_tasks(lab: Lab, tasks: Sequence[Task], jobs: int, program: str) -> None:
    """Run tasks in several processes.

    If a task fails, all tasks that do not depend on it are completed, and rerunning the command resumes the rest. If
    this process is interrupted or terminated, all task processes are terminated as well.

    Args:
        lab: Lab to whose directory the results are written.
        tasks: Tasks, in order of preference.
        jobs: Maximum number of processes.
        program: Python program that decodes its argument with `from_words` and calls `run_task`.

    Raises:
        RunError: If a process failed.
    """
    # Processes share the cores, so each process may use only some of the cores.
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs))}
    environment = threads | os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    waiting, running, failed = list(tasks), dict[Task, subprocess.Popen[bytes]](), list[str]()
    untrained = {task.name for task in tasks if task.kind == "model"}
    with _interrupted_by_sigterm():
        try:
            while running or any(not task.requires & untrained for task in waiting):
                ready = [task for task in waiting if not task.requires & untrained]
                for task in ready[: jobs - len(running)]:
                    waiting.remove(task)
                    command = [sys.executable, "-c", program, to_words(lab, task)]
                    running[task] = subprocess.Popen(command, env=environment)
                time.sleep(POLLING)
                for task in [task for task, process in running.items() if process.poll() is not None]:
                    if status := running.pop(task).returncode:
                        what = "training" if task.kind == "model" else "measuring"
                        failed.append(f"{what} {task.name} ended with status {status}")
                    else:
                        untrained.discard(task.name)
        finally:
            for process in running.values():
                process.terminate()
            for process in running.values():
                process.wait()  # until the process has saved its progress
    if failed:
        raise RunError(f"{'; '.join(failed)}; rerun the command to resume")


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM within a `with` block, so that the processes of all tasks are also stopped."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set signal handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def to_words(lab: Lab, task: Task) -> str:
    """Encode a task and its lab as a single command-line argument."""
    values = {name: getattr(lab, name) for name in ("quick", "device", "seed", "most_epochs")}
    paths = {"out": str(lab.out), "data": str(lab.data) if lab.data else None}
    chosen = {"only": sorted(lab.only), "procedure": asdict(lab.procedure)}
    return json.dumps({"lab": values | paths | chosen, "task": asdict(task) | {"requires": sorted(task.requires)}})


def from_words(words: str, say: Callable[[str], None]) -> tuple[Lab, Task]:
    """Decode the result of `to_words`."""
    found = json.loads(words)
    own = found["lab"]
    paths = {"out": Path(own["out"]), "data": Path(own["data"]) if own["data"] else None}
    chosen = {"only": frozenset(own["only"]), "procedure": Procedure(**own["procedure"])}
    return Lab(**own | paths | chosen, say=say), Task(
        **found["task"] | {"requires": frozenset(found["task"]["requires"])}
    )


def run_task(lab: Lab, task: Task) -> None:
    """Run one task in this process."""
    if task.kind == "figure":
        module = experiment(task.name)
        getattr(module, "prepare", module.draw)(lab)
        return
    model = next(model for model in ALL_MODELS if model.name == task.name)
    lab.run(model)
    if task.measured:
        measure_solutions(lab, model)
