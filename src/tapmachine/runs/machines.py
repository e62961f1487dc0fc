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
    """Kept machines of a run and the one at its last checkpoint, by epoch; each is loaded on access.

    Args:
        run: The directory of a run.
        device: Device to put the machines on.
    """

    def __init__(self, run: str | Path | RunFolder, device: torch.device | str = "cpu") -> None:
        self.folder, self.device = run if isinstance(run, RunFolder) else RunFolder(run), device
        last = self.folder.last_epoch()
        if last is None or not self.folder.machine_path.exists():
            raise RunError(f"{self.folder.path}: is not a run folder, or has no checkpoint yet")
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
        """Training rows."""
        return read_data_of(self.folder).train


def machine_of(run: RunFolder, epoch: int | None = None, device: torch.device | str = "cpu") -> BoltzmannMachine:
    """The machine of a run at its last checkpoint, or at an epoch at which it was kept.

    Raises:
        RunError: If the file holds the machine of another run or of another epoch.
        FileError: If it cannot be read.
    """
    path = run.machine_path if epoch is None else run.machine_at(epoch)
    last = run.last_epoch() or 0  # read before the machine, which is written first: the run may save in between
    tensors, description = read_tensors(path, "machine")
    origin = description.get("data", {})
    if not isinstance(run, MachineFile):  # the file may not be from a run
        if origin.get("run") not in digests_of(run):
            raise RunError(f"{path}: belongs to a run with different settings from {run.path}")
        # The machine is written before the checkpoint, and may be ahead of it after a crash.
        if origin["epoch"] != epoch if epoch is not None else origin["epoch"] < last:
            raise RunError(
                f"{path}: is the machine of epoch {origin['epoch']}, not of {last if epoch is None else epoch}"
            )
    return rebuild(path, tensors, description).to(device=device)


def digests_of(run: RunFolder) -> list[str]:
    """Digests of current and earlier settings of a run; empty for a new folder."""
    return [] if run.settings() is None else [*run.earlier_digests(), settings_of(run).digest()]
