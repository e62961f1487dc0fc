"""Machines of runs: the machine at the last checkpoint, and kept machines of earlier epochs."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from tapmachine.data.errors import RunError
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.files import read_tensors, rebuild
from tapmachine.runs.data import read_data_of, settings_of
from tapmachine.runs.folder import MachineFile, RunFolder


class KeptMachines(Mapping[int, BoltzmannMachine]):
    """Mapping from epochs to the machines of a run, which are loaded on access.

    The mapping contains the kept machines and the machine at the last checkpoint.

    Args:
        run: Path of a run directory.
        device: Device on which the machines are loaded (default: "cpu").
    """

    def __init__(self, run: str | Path | RunFolder, device: torch.device | str = "cpu") -> None:
        self.folder, self.device = run if isinstance(run, RunFolder) else RunFolder(run), device
        last = self.folder.last_epoch()
        if last is None or not self.folder.machine_path.exists():
            raise RunError(f"{self.folder.path}: not a run directory, or no checkpoint has been saved yet")
        self.kept = self.folder.kept_machines()
        self.epochs = sorted({last, *self.kept})

    def __getitem__(self, epoch: int) -> BoltzmannMachine:
        if epoch not in self.epochs:
            raise KeyError(epoch)
        return machine_of(self.folder, epoch if epoch in self.kept else None, self.device)

    def __iter__(self) -> Iterator[int]:
        return iter(self.epochs)

    def __len__(self) -> int:
        return len(self.epochs)

    def training_rows(self) -> Tensor:
        """Return the training rows of the run."""
        return read_data_of(self.folder).train


def machine_of(run: RunFolder, epoch: int | None = None, device: torch.device | str = "cpu") -> BoltzmannMachine:
    """Load the machine of a run at the last checkpoint, or at a given epoch at which the machine was kept.

    Raises:
        RunError: If the file contains the machine of another run or of another epoch.
        FileError: If the file cannot be read.
    """
    path = run.machine_path if epoch is None else run.machine_at(epoch)
    last = run.last_epoch() or 0  # read before the machine, which is written first: the run may save in between
    tensors, description = read_tensors(path, "machine")
    origin = description.get("data", {})
    if not isinstance(run, MachineFile):  # the file may not be from a run
        if origin.get("run") not in digests_of(run):
            raise RunError(f"{path}: the machine belongs to a run with settings different from those of {run.path}")
        # The machine is written before the checkpoint, and may be ahead of it after a crash.
        if origin["epoch"] != epoch if epoch is not None else origin["epoch"] < last:
            raise RunError(
                f"{path}: machine of epoch {origin['epoch']}; expected epoch {last if epoch is None else epoch}"
            )
    return rebuild(path, tensors, description).to(device=device)


def digests_of(run: RunFolder) -> list[str]:
    """Return the digests of the current and earlier settings of a run, or an empty list for a new directory."""
    return [] if run.settings() is None else [*run.earlier_digests(), settings_of(run).digest()]
