"""The numbers behind the report page of a run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tapmachine.analysis import ReceptiveFields
from tapmachine.analysis.landscape import (
    Embedding,
    LandscapeTrack,
    Snapshot,
    diagnose,
    track_landscape,
)
from tapmachine.analysis.landscape.embedding import embed_over_starts
from tapmachine.analysis.landscape.figures import slices
from tapmachine.analysis.receptive import rank_all_fields
from tapmachine.data.rows import spaced
from tapmachine.likelihood import LikelihoodComparison, compare_likelihoods
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_rows
from tapmachine.machine.gibbs_sampling import gibbs
from tapmachine.runs.data import data_for
from tapmachine.runs.folder import MachineFile, RunFolder
from tapmachine.runs.machines import KeptMachines

N_STARTS = 500
N_EPOCHS = 24  # no more of those that were kept
N_SHOWN = 36  # samples, and rows of the data
N_SCORED = 1000
SAMPLE_SWEEPS = 500
TEMPERATURES = 1000

Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Findings:
    """The contents of a report.

    Attributes:
        machine: the last machine of the run.
        settings, records: those of the run folder.
        track: the landscape at the kept epochs.
        embedding: embedding of the solutions, fitted to the starts; None if there are too few.
        diagnosis: sentences on the last landscape.
        likelihoods: log-likelihoods by all estimators.
        rankings: receptive fields of every hidden layer.
        rows, samples: rows of the data, and Gibbs chains started there.
        image_shape: height and width of rows that are images.
    """

    machine: BoltzmannMachine
    settings: dict[str, Any]
    records: list[dict[str, Any]]
    track: LandscapeTrack
    embedding: Embedding | None
    diagnosis: list[str]
    likelihoods: LikelihoodComparison
    rankings: tuple[ReceptiveFields, ...]
    rows: Tensor
    samples: Tensor
    image_shape: Sequence[int] | None


def look_at(
    folder: RunFolder,
    device: str = "cpu",
    n_starts: int = N_STARTS,
    say: Say = lambda line: None,
    source: str | None = None,
) -> Findings:
    """Track the landscape through a run, score its last machine and draw samples from it.

    Args:
        folder: the run folder.
        device: device to compute on.
        n_starts: maximum number of rows of the data to start solutions from.
        say: called with a line of progress.
        source: other data than the run's, such as a file.
    """
    machines = KeptMachines(folder, device)
    kept = sorted(machines)
    machine = machines[kept[-1]]
    data = data_for(folder, source)
    train = data.train.to(machine.device)
    epochs = [kept[position] for position in slices(kept, N_EPOCHS)]

    def tell(snapshot: Snapshot) -> None:
        say(f"epoch {snapshot.epoch}: {snapshot.n_solutions} solutions from {len(snapshot.basin)} starts")

    track = track_landscape(machines, data.train, epochs=epochs, n_starts=n_starts, callback=tell)
    held_out = None if data.held_out is None else spaced(data.held_out, N_SCORED)
    likelihoods = compare_likelihoods(
        machine,
        spaced(train, N_SCORED),
        held_out,
        schedule=TEMPERATURES,
        data=train,
        callback=lambda name: say(f"log-likelihood by {name}"),
    )
    rows = check_rows(machine, spaced(train, N_SHOWN))
    samples = gibbs(machine, rows, SAMPLE_SWEEPS, torch.Generator(machine.device).manual_seed(0))[0]
    return Findings(
        machine,
        {"file": str(folder.path), "data": source} if isinstance(folder, MachineFile) else folder.settings() or {},
        folder.records(),
        track,
        embed_over_starts(track),
        diagnose(track.snapshots[-1], machine, train, data.held_out),
        likelihoods,
        rank_all_fields(machine, train),
        rows.cpu(),
        samples.cpu(),
        data.image_shape,
    )
