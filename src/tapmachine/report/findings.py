"""What a page says about a run, as numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tapmachine.landscape import Embedding, FieldRanking, Snapshot, Track, diagnose, track
from tapmachine.landscape.embedding import embed_over_starts
from tapmachine.landscape.fields import rank_all_fields
from tapmachine.landscape.figures import slices
from tapmachine.landscape.tracking import KeptMachines
from tapmachine.likelihood import Comparison, compare_likelihoods
from tapmachine.likelihood.score import spaced
from tapmachine.machine import BoltzmannMachine
from tapmachine.runs import MachineFile, RunFolder
from tapmachine.sampling import gibbs
from tapmachine.training_runs import data_for

N_STARTS = 500
N_EPOCHS = 24  # no more of those that were kept
N_SHOWN = 36  # samples, and rows of the data
N_SCORED = 1000
SAMPLE_SWEEPS = 500
TEMPERATURES = 1000

Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Findings:
    """What was found in a run.

    Attributes:
        machine: the last that there is.
        settings, records: as they are in its folder.
        track: the landscape at the epochs that were kept.
        embedding: of its solutions over its starts; None if there are too few.
        diagnosis: sentences on the last of these landscapes.
        likelihoods: by all estimators.
        rankings: of the receptive fields of every hidden layer.
        rows, samples: of the data, and Gibbs chains that started there.
        image_shape: of rows that are images.
    """

    machine: BoltzmannMachine
    settings: dict[str, Any]
    records: list[dict[str, Any]]
    track: Track
    embedding: Embedding | None
    diagnosis: list[str]
    likelihoods: Comparison
    rankings: tuple[FieldRanking, ...]
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
    """Follows the landscape through a run, scores its last machine and draws samples from it.

    Args:
        folder: of the run.
        device: to compute on.
        n_starts: rows of the data that solutions are started from, no more than that.
        say: what to do with a line on what happens.
        source: of other data than the run's, such as a file.
    """
    machines = KeptMachines(folder, device)
    kept = sorted(machines)
    machine = machines[kept[-1]]
    data = data_for(folder, source)
    train = data.train.to(machine.device)
    epochs = [kept[position] for position in slices(kept, N_EPOCHS)]

    def tell(found: Snapshot) -> None:
        say(f"epoch {found.epoch}: {found.n_solutions} solutions from {len(found.basin)} starts")

    found = track(machines, data.train, epochs=epochs, n_starts=n_starts, callback=tell)
    held_out = None if data.held_out is None else spaced(data.held_out, N_SCORED)
    likelihoods = compare_likelihoods(
        machine,
        spaced(train, N_SCORED),
        held_out,
        schedule=TEMPERATURES,
        data=train,
        callback=lambda name: say(f"log-likelihood by {name}"),
    )
    rows = machine.units()[0].check_states(spaced(train, N_SHOWN))
    samples = gibbs(machine, rows, SAMPLE_SWEEPS, torch.Generator(machine.device).manual_seed(0))[0]
    return Findings(
        machine,
        {"file": str(folder.path), "data": source} if isinstance(folder, MachineFile) else folder.settings() or {},
        folder.records(),
        found,
        embed_over_starts(found),
        diagnose(found.snapshots[-1], machine, train, data.held_out),
        likelihoods,
        rank_all_fields(machine, train),
        rows.cpu(),
        samples.cpu(),
        data.image_shape,
    )
