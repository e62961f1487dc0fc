"""Command `tapmachine doctor`, which checks the installation and run directories."""

import json
import platform
import shutil
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from tapmachine import __version__
from tapmachine.apps.cli.common import BAD_INPUT, AsJson, command

if TYPE_CHECKING:
    from tapmachine.runs.folder import RunFolder

NEEDED = ("torch", "numpy", "scipy", "scikit-learn", "safetensors", "typer", "rich", "pooch", "matplotlib")
OPTIONAL = {
    "h5py": "HDF5 files of rbms and clusterbm",
    "pandas": "pandas DataFrames",
    "pyarrow": "Parquet files",
    "polars": "polars DataFrames",
    "anndata": "AnnData files",
}
LITTLE_DISK = 2**30  # bytes of free disk space below which a problem is reported
SOME = 10  # maximum number of missing epochs that are listed individually


@command("tapmachine doctor runs/d")
def doctor(
    run: Annotated[Path | None, typer.Argument(help="Run directory to check.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Check the installation (packages, devices, compilers, disk space) and, optionally, a run directory."""
    findings = check_installation(Path("."))
    findings += [] if run is None else check_run(run)
    if as_json:
        print(json.dumps([finding._asdict() for finding in findings]))
    else:
        for verdict, words in findings:
            print(f"{verdict:8}{' '.join(words.split())}")
    if any(finding.verdict == "problem" for finding in findings):
        raise typer.Exit(BAD_INPUT)


class Finding(NamedTuple):
    """Result of one check.

    Attributes:
        verdict: Outcome of the check: `ok`, `note` or `problem`.
        words: Explanation of the outcome.
    """

    verdict: str
    words: str


def check_installation(folder: Path) -> list[Finding]:
    """Check package versions, compilers and free disk space, and solve a small machine on each device."""
    import torch

    findings = [Finding("ok", f"tapmachine {__version__}, Python {platform.python_version()}, {platform.system()}")]
    for name in NEEDED:
        try:
            findings.append(Finding("ok", f"{name} {version(name)}"))
        except PackageNotFoundError:
            findings.append(Finding("problem", f"{name} is not installed; install it with: pip install {name}"))
    notes = {
        f"{name} is not installed; it is required for {use}": find_spec(name) is None for name, use in OPTIONAL.items()
    }
    has_gpu, has_compiler = torch.cuda.is_available(), any(map(shutil.which, ("c++", "g++", "clang++", "cl")))
    notes |= {
        "no GPU found; computations run on the CPU": not has_gpu,
        "triton is not installed; training on the GPU is not compiled": has_gpu and find_spec("triton") is None,
        "no C++ compiler found; solve(compile=True) is not available on the CPU": not has_compiler,
    }
    findings += [Finding("ok", name) for name in OPTIONAL if find_spec(name) is not None]
    findings += [Finding("note", words) for words, applies in notes.items() if applies]
    findings.append(Finding("ok", f"{torch.get_num_threads()} threads"))
    findings += map(_solved_on, ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))])
    free = shutil.disk_usage(folder).free
    words = f"{free / 2**30:.1f} GiB free in {folder.resolve()}"
    return [*findings, Finding("ok" if free > LITTLE_DISK else "problem", words)]


def _solved_on(device: str) -> Finding:
    import torch

    from tapmachine import Binary, rbm, solve

    try:
        solution = solve(rbm(Binary(4, field=1.0), Binary(2)).to(device), torch.eye(4, device=device))
    except Exception as error:  # any error is reported as a problem
        return Finding("problem", f"{device}: solving a small machine failed: {error}")
    name = f" ({torch.cuda.get_device_name(device)})" if device != "cpu" else ""
    return Finding("ok" if bool(solution.converged.all()) else "problem", f"{device}{name}: solved a small machine")


def check_run(path: Path) -> list[Finding]:
    """Check the settings, records, checkpoints and machines of a run directory."""
    from tapmachine.data.errors import FileError, RunError
    from tapmachine.runs.folder import RunFolder
    from tapmachine.runs.session import read_machine

    findings: list[Finding] = []

    def look(what: str, check: Callable[[], object]) -> None:
        try:
            findings.append(Finding("ok", f"{what}: {check()}"))
        except (RunError, FileError, OSError, ValueError) as error:
            findings.append(Finding("problem", f"{what}: {error}"))

    if not path.is_dir():
        return [Finding("problem", f"{path}: directory not found")]
    run = RunFolder(path)
    if not (path / "settings.json").exists():
        return [Finding("problem", f"{path}: not a run directory")]
    look("settings", lambda: f"{getattr(run.settings(), 'all_epochs', 0)} epochs")
    look("records", lambda: _records(run))
    for name, problem in run.damaged_checkpoints().items():
        findings.append(Finding("problem" if problem else "ok", f"checkpoint {name}{problem and ': ' + problem}"))
    if run.last_epoch() is None:
        findings.append(Finding("note", "no checkpoint yet"))
    else:
        look("machine", lambda: f"{read_machine(run)[0].summary()}, after epoch {run.last_epoch()}")
    for epoch in run.kept_machines():
        look(f"machine of epoch {epoch}", lambda epoch=epoch: read_machine(run, epoch)[0].summary())  # type: ignore[misc]
    try:
        with run:
            findings.append(Finding("ok", "not in use by a training process"))
    except RunError:
        findings.append(Finding("note", "in use by a training process"))
    return findings


def _records(run: "RunFolder") -> str:
    """Describe the number of training records and list epochs without a record. Raises RunError for damaged records."""
    from tapmachine.data.errors import RunError

    if damage := run.damaged_records():
        raise RunError(damage)
    epochs = {record["epoch"] for record in run.records()}
    missing = sorted({*range(1, (run.last_epoch() or 0) + 1)} - epochs)
    which = f"epoch {', '.join(map(str, missing))}" if len(missing) <= SOME else f"{len(missing)} epochs"
    return f"{len(epochs)}" + (f"; records are missing for {which}" if missing else "")
