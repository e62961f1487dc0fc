"""Results shown on the report page of a run."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tapmachine.analysis import ReceptiveFields
from tapmachine.analysis.landscape import Embedding, LandscapeTrack, diagnose, track_landscape
from tapmachine.analysis.landscape.diagnosis import describe_solutions
from tapmachine.analysis.landscape.embedding import embed_over_starts
from tapmachine.analysis.landscape.tracking import Snapshot
from tapmachine.analysis.receptive import rank_all_fields
from tapmachine.apps.report.labels import Labels, labels_of
from tapmachine.apps.report.table_results import TableResults, table_results
from tapmachine.data.rows import spaced
from tapmachine.display.html import plural
from tapmachine.likelihood import Annealing, LikelihoodComparison, compare_likelihoods
from tapmachine.likelihood.compare import likelihood_row
from tapmachine.likelihood.report import likelihood_report
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_rows, in_double, take_gaps
from tapmachine.machine.sampler import gibbs
from tapmachine.runs.data import RunData
from tapmachine.runs.session import Session
from tapmachine.solver.validity import has_mean_field

N_STARTS = 500
N_EPOCHS = 24  # maximum number of epochs shown
N_SHOWN = 36  # number of samples and of data rows shown
N_SCORED = 1000
SAMPLE_SWEEPS = 500
TEMPERATURES = 1000

Say = Callable[[str], None]


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
        rows, samples: Data rows, and samples of Gibbs chains started from these rows.
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
        likelihoods: Log-likelihoods from all estimators.
        landscape: TAP solutions, or None for machines of tables, which are solved exactly.
        images: Samples and receptive fields, or None for data that are not images.
        table: Statistics of the columns, or None for images.
    """

    name: str
    machine: BoltzmannMachine
    settings: dict[str, Any]
    records: list[dict[str, Any]]
    likelihoods: LikelihoodComparison
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
    data = session.data(source, gaps=not has_solutions)
    row_labels = labels_of(data, labels)
    if session.run is None:
        name, settings = session.path.stem, {"file": str(session.path), "data": source}
    else:
        name, settings = session.path.resolve().name, session.settings.as_json()
    shape = data.image_shape if has_solutions and len(machine.layers[0].state_shape) == 1 else None
    table, images, landscape = None, None, None
    if shape is None:
        say("comparing columns of data and samples …")
        table = table_results(data, machine)
    if has_solutions:
        landscape = _landscape(session, data, n_starts, say, row_labels)
    say("computing the log-likelihood …")
    likelihoods = _likelihoods(machine, data) if has_solutions else table_likelihoods(machine, data)
    if shape is not None:
        images = _images(machine, data, row_labels, (shape[0], shape[1]))
    return RunResults(name, machine, settings, records, likelihoods, landscape, images, table)


def _images(
    machine: BoltzmannMachine, data: RunData[Tensor], labels: Labels | None, shape: tuple[int, int]
) -> ImageResults:
    """Draw samples with Gibbs chains, find the data row that is nearest to each sample, and rank receptive fields."""
    train = data.train.to(machine.device)
    rows = check_rows(machine, spaced(train, N_SHOWN))
    samples = gibbs(machine, rows, SAMPLE_SWEEPS, torch.Generator(machine.device).manual_seed(0))[0]
    if labels is not None:
        labels = labels.rows(torch.cdist(samples.double(), train.double()).argmin(1).cpu())
    return ImageResults(rows.cpu(), samples.cpu(), labels, rank_all_fields(machine, train), shape)


def _landscape(
    session: Session, data: RunData[Tensor], n_starts: int, say: Say, labels: Labels | None
) -> LandscapeResults:
    """Track the solutions over the epochs, and describe them in sentences."""
    kept, records = sorted(session.machines), session.records()
    steps = min(len(kept), N_EPOCHS)
    epochs = [kept[round(step * (len(kept) - 1) / max(1, steps - 1))] for step in range(steps)]

    def report(snapshot: Snapshot) -> None:
        if snapshot.epoch in (epochs[0], epochs[len(epochs) // 2], epochs[-1]):
            n = snapshot.n_solutions
            say(f"epoch {snapshot.epoch}: {n} {plural(n)} from {len(snapshot.basin)} starts")

    track = track_landscape(session.machines, data.train, epochs=epochs, n_starts=n_starts, callback=report)
    labels = None if labels is None else labels.rows(track.rows)
    sentences = [
        [*describe_solutions(snapshot), *_on_record(records, snapshot.epoch)] for snapshot in track.snapshots[:-1]
    ]
    machine = session.machines[kept[-1]]
    sentences.append(diagnose(track.snapshots[-1], machine, data.train.to(machine.device), data.held_out))
    for listed, snapshot in zip(sentences, track.snapshots, strict=True):
        if labels is not None and snapshot.n_solutions > 1:
            purity = labels.purity(snapshot.basin)
            listed.append(f"{purity:.0%} of the starts have the most frequent label of their basin.")
    return LandscapeResults(track, embed_over_starts(track), sentences, labels)


def _on_record(records: list[dict[str, Any]], epoch: int) -> list[str]:
    """Describe the log-likelihood at a given epoch, or return an empty list if none was measured at this epoch."""
    for record in records:
        if record.get("epoch") == epoch and record.get("log_likelihood") is not None:
            method = record.get("log_likelihood_method")
            by = f" ({method})" if method else ""
            held_out = record.get("validation_log_likelihood")
            also = "" if held_out is None else f", and that of the held-out data is {held_out:.2f} nats"
            return [f"The log-likelihood of the training data is {record['log_likelihood']:.2f} nats{by}{also}."]
    return []


def _likelihoods(machine: BoltzmannMachine, data: RunData[Tensor]) -> LikelihoodComparison:
    """Estimate the log-likelihood of the data with several methods."""
    train = data.train.to(machine.device)
    held_out = None if data.held_out is None else spaced(data.held_out, N_SCORED)
    return compare_likelihoods(
        machine, spaced(train, N_SCORED), held_out, annealing=Annealing(TEMPERATURES, data=train)
    )


@torch.no_grad()
def table_likelihoods(machine: BoltzmannMachine, data: RunData[Tensor]) -> LikelihoodComparison:
    """Compute the log-likelihood of the observed cells of a table, and that of a model with independent columns."""
    begin, machine = time.perf_counter(), in_double(machine)
    sets = {
        name: take_gaps(machine, spaced(x.to(machine.device), N_SCORED).double())
        for name, x in (("train", data.train), ("held out", data.held_out))
        if x is not None
    }
    first, missing = sets["train"]
    complete = first if missing is None else first[~missing.any(1)]
    report = likelihood_report(machine, sets, baseline=complete if len(complete) else None)
    rows = [likelihood_row(report.partition.method, list(report.scores.values()), time.perf_counter() - begin)]
    if report.independent:
        rows.append(likelihood_row("independent columns", list(report.independent.values()), 0.0))
    return LikelihoodComparison(tuple(rows), ())
