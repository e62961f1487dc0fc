"""Results shown on the report page of a run."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tapmachine.analysis import ReceptiveFields
from tapmachine.analysis.landscape import Embedding, LandscapeTrack, track_landscape
from tapmachine.analysis.landscape.diagnosis import describe, describe_solutions
from tapmachine.analysis.landscape.embedding import embed_over_starts
from tapmachine.analysis.landscape.tracking import Snapshot
from tapmachine.analysis.receptive import rank_all_fields
from tapmachine.apps.report.labels import Labels, labels_of
from tapmachine.apps.report.table_results import TableResults, table_results
from tapmachine.data.errors import EstimateError, plural
from tapmachine.data.rows import spaced
from tapmachine.display.html import with_minus_signs
from tapmachine.likelihood.report import LikelihoodReport
from tapmachine.likelihood.sampling import equilibrium
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_rows
from tapmachine.runs.data import RunData
from tapmachine.runs.evaluation import Say, evaluate
from tapmachine.runs.session import Session
from tapmachine.solver.validity import has_mean_field

N_STARTS = 500
N_EPOCHS = 24  # maximum number of epochs shown
N_SHOWN = 36  # number of samples and of data rows shown
SAMPLE_SWEEPS = 500


class LandscapeResults(NamedTuple):
    """TAP solutions of a run.

    Attributes:
        track: Solutions at the kept epochs.
        embedding: Embedding of the solutions, fitted to the starts; None if there are too few starts.
        sentences: Description of the solutions at each epoch, as a list of sentences.
        labels: Labels of the starts, or None.
    """

    track: LandscapeTrack
    embedding: Embedding | None
    sentences: list[list[str]]
    labels: Labels | None


class ImageResults(NamedTuple):
    """Images learned by a machine.

    Attributes:
        rows, samples: Data rows, and samples of the machine.
        sample_labels: For each sample, the label of the nearest data row, or None without labels.
        rankings: Receptive fields of each hidden layer.
        shape: Height and width of the images.
    """

    rows: Tensor
    samples: Tensor
    sample_labels: Labels | None
    rankings: tuple[ReceptiveFields, ...]
    shape: tuple[int, int]


@dataclass(frozen=True, eq=False)
class RunResults:
    """Results shown on a report page.

    Attributes:
        name: Name of the run.
        machine: Last machine of the run.
        settings, records: Settings and training records of the run.
        likelihoods: Log-likelihoods of the training and held-out data, or None if they cannot be estimated.
        landscape: TAP solutions, or None for machines of tables, which are solved exactly.
        images: Samples and receptive fields, or None for data that are not images.
        table: Statistics of the columns, or None for images.
    """

    name: str
    machine: BoltzmannMachine
    settings: dict[str, Any]
    records: list[dict[str, Any]]
    likelihoods: LikelihoodReport | None
    landscape: LandscapeResults | None = None
    images: ImageResults | None = None
    table: TableResults | None = None


def analyze(
    session: Session,
    n_starts: int = N_STARTS,
    say: Say = lambda line: None,
    source: str | None = None,
    labels: str | None = None,
) -> RunResults:
    """Track the TAP solutions of a run over its epochs, score its last machine and draw samples.

    Args:
        session: Run directory or machine file, with its machine on the device to compute on.
        n_starts: Maximum number of data rows used as starting points (default: 500).
        say: Callback that receives progress messages (default: messages are ignored).
        source: Data set to use instead of the run's data. Required for machine files.
        labels: Path of a file with one label per row of the data (default: built-in labels, if any).
    """
    machine, records = session.machine, session.records()
    has_solutions = has_mean_field(machine)
    observed = session.data(source, gaps=True)
    data = observed.in_memory() if has_solutions else observed
    row_labels = labels_of(data, labels)
    if session.run is None:
        name, settings = session.path.stem, {"file": str(session.path), "data": source}
    else:
        name, settings = session.path.resolve().name, session.settings.as_json()
    shape = data.image_shape if has_solutions and len(machine.layers[0].state_shape) == 1 else None
    table, images, landscape = None, None, None
    try:
        likelihoods = evaluate(session, source, say=say, data=observed)
    except EstimateError as error:
        say(f"the log-likelihood is not available: {error}")
        likelihoods = None
    if shape is None:
        say("comparing columns of data and samples …")
        table = table_results(data, machine, session.codec, likelihoods)
    if has_solutions:
        landscape = _landscape(session, data, n_starts, say, row_labels, likelihoods)
    if shape is not None:
        images = _images(machine, data, row_labels, (shape[0], shape[1]))
    return RunResults(name, machine, settings, records, likelihoods, landscape, images, table)


def _images(
    machine: BoltzmannMachine, data: RunData[Tensor], labels: Labels | None, shape: tuple[int, int]
) -> ImageResults:
    """Draw samples, find the data row that is nearest to each sample, and rank receptive fields."""
    train = data.train.to(machine.device)
    rows = check_rows(machine, spaced(train, N_SHOWN))
    samples = equilibrium(machine, len(rows), train, SAMPLE_SWEEPS).states[0]
    if labels is not None:
        labels = labels.rows(torch.cdist(samples.double(), train.double()).argmin(1).cpu())
    return ImageResults(rows.cpu(), samples.cpu(), labels, rank_all_fields(machine, train), shape)


def _landscape(
    session: Session,
    data: RunData[Tensor],
    n_starts: int,
    say: Say,
    labels: Labels | None,
    likelihoods: LikelihoodReport | None,
) -> LandscapeResults:
    """Track the solutions over the epochs, and describe them in sentences."""
    kept = sorted(session.machines)
    steps = min(len(kept), N_EPOCHS)
    epochs = [kept[round(step * (len(kept) - 1) / max(1, steps - 1))] for step in range(steps)]

    def report(snapshot: Snapshot) -> None:
        if snapshot.epoch in (epochs[0], epochs[len(epochs) // 2], epochs[-1]):
            n = snapshot.n_solutions
            say(f"epoch {snapshot.epoch}: {n} {plural(n)} from {len(snapshot.basin)} starts")

    track = track_landscape(session.machines, data.train, epochs=epochs, n_starts=n_starts, callback=report)
    labels = None if labels is None else labels.rows(track.rows)
    *before, last = track.snapshots
    sentences = [*map(describe_solutions, before), [*map(with_minus_signs, describe(last, likelihoods))]]
    for listed, snapshot in zip(sentences, track.snapshots, strict=True):
        if labels is not None and snapshot.n_solutions > 1:
            purity, chance = labels.purity(snapshot.basin), labels.chance(snapshot.basin)
            listed.append(
                f"{purity:.0%} of the starts have the most frequent label of their basin; with shuffled labels, "
                f"{chance:.0%} have."
            )
    return LandscapeResults(track, embed_over_starts(track), sentences, labels)
