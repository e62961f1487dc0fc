"""Tables used by several figures: the solutions of a model during training, and the TAP log-likelihood."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache

import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from reproduction.lab import PARTS, Lab, Row
from reproduction.models import FACES, Model
from reproduction.statistics import (
    effective_number,
    energy_bands,
    overlaps,
    purity,
    spatial_correlation,
)
from reproduction.temperature import prior_log_normalizer
from tapmachine.analysis.landscape.find import Landscape, find_solutions
from tapmachine.data.rows import spaced
from tapmachine.likelihood.tap import tap_log_likelihood
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import in_double
from tapmachine.solver import TAP, solve
from tapmachine.solver.merging import merge_solutions
from tapmachine.solver.starts import StartingPoint

MAX_SWEEPS = 1000
PRINTED_MAX_SWEEPS, PRINTED_TOLERANCE = 400, 1e-8  # for the iteration as printed in the paper
POPULATED = 5e-4  # minimum fraction of the starts for a populated solution: 5 of 10,000
OVERLAP_BINS = 40
TABLES = "solutions", "likelihood", "overlaps"


def starts(lab: Lab, model: Model) -> Tensor:
    """Return the starts of a model: the first rows of its training data, as in the paper."""
    return lab.rows(model.data)[0][: lab.model(model).n_starts]


def solutions_at(lab: Lab, model: Model, epoch: int, begin: StartingPoint = None) -> Landscape:
    """Find the distinct solutions at a given epoch.

    Args:
        lab: Directory of the reproduction.
        model: Model whose solutions are to be found.
        epoch: Training epoch.
        begin: Starting points (default: the rows of `starts`).
    """
    begin = starts(lab, model) if begin is None else begin
    scheme = lab.procedure.scheme()
    return find_solutions(lab.machine(model, epoch), begin, scheme, stability=False, max_sweeps=MAX_SWEEPS)


def solutions_table(lab: Lab, model: Model) -> list[Row]:
    """Return, for every solution at every epoch, F and the number of starts that converge to the solution."""
    return _tables(lab, model)["solutions"]


def likelihood_table(lab: Lab, model: Model) -> list[Row]:
    """Return the TAP log-likelihood and statistics of the solutions at every epoch."""
    return _tables(lab, model)["likelihood"]


def overlaps_table(lab: Lab, model: Model) -> list[Row]:
    """Return the distribution of overlaps between solutions at every epoch."""
    return _tables(lab, model)["overlaps"]


def needs_solutions(lab: Lab, model: Model) -> bool:
    """Return whether a table of a model is missing."""
    return not lab.knows(*(f"{kind}-{model.name}" for kind in TABLES))


def measure_solutions(lab: Lab, model: Model) -> None:
    """Compute all tables of the solutions of a model."""
    _tables(lab, model)


def _tables(lab: Lab, model: Model) -> dict[str, list[Row]]:
    """Return all tables of a model by kind. Each epoch is saved once complete, so a crash loses at most one epoch."""
    if needs_solutions(lab, model):
        for epoch in lab.epochs(model):
            lab.say(f"measuring solutions of {model.name} at epoch {epoch}")
            measured = cache(lambda epoch=epoch: _measured(lab, model, epoch))
            for kind in TABLES:
                lab.table(_part(kind, model, epoch), _getter(measured, kind))
    found = {}
    for kind in TABLES:

        def make(kind: str = kind) -> Iterable[Row]:
            return [row for epoch in lab.epochs(model) for row in lab.table(_part(kind, model, epoch), list)]

        found[kind] = lab.table(f"{kind}-{model.name}", make)
    return found


def _part(kind: str, model: Model, epoch: int) -> str:
    return f"{PARTS}{kind}-{model.name}-{epoch}"


def _getter(measured: Callable[[], dict[str, list[Row]]], kind: str) -> Callable[[], list[Row]]:
    return lambda: measured()[kind]


def _measured(lab: Lab, model: Model, epoch: int) -> dict[str, list[Row]]:
    machine, rows = lab.machine(model, epoch), starts(lab, model)
    landscape = solutions_at(lab, model, epoch)
    constant = prior_log_normalizer(machine)
    solutions: list[Row] = [
        {"epoch": epoch, "free_energy": value, "unnormalized_free_energy": value - constant, "starts": count}
        for value, count in zip(landscape.free_energy.tolist(), landscape.counts.tolist(), strict=True)
    ]
    numbers: Row = {
        "epoch": epoch,
        "solutions": len(landscape),
        "starts": len(rows),
        "not_converged": landscape.n_not_converged,
        **_printed(machine, rows),
        "prior_log_normalizer": constant,
    }
    if len(landscape):  # F is undefined without solutions
        numbers |= _scores(lab, model, machine, rows, landscape) | _numbers(landscape)
        numbers |= {} if model.data == FACES else _by_label(landscape, lab.labels()[: len(rows)])
    return {"solutions": solutions, "likelihood": [numbers], "overlaps": _overlaps(landscape, epoch)}


def _scores(lab: Lab, model: Model, machine: BoltzmannMachine, rows: Tensor, landscape: Landscape) -> Row:
    held_out = spaced(lab.rows(model.data)[1], len(rows))
    scored = [tap_log_likelihood(machine, x, landscape.solutions) for x in (rows, held_out)]
    return {
        "log_likelihood": float(scored[0].mean),
        "standard_error": float(scored[0].standard_error),
        "per_unit": float(scored[0].per_unit),
        "test_log_likelihood": float(scored[1].mean),
        "log_sum_exp": float(scored[0].log_sum_exp.mean),
        "mean_free_energy": float(landscape.free_energy.mean()),
    }


@torch.no_grad()
def _printed(machine: BoltzmannMachine, rows: Tensor) -> Row:
    """Count the starts from which the iteration printed in the paper converges, and the distinct solutions it finds."""
    double = in_double(machine)
    solved = solve(double, rows.double(), TAP("explicit", 0.0), tol=PRINTED_TOLERANCE, max_sweeps=PRINTED_MAX_SWEEPS)
    return {
        "printed_converged": int(solved.converged.sum()),
        "printed_solutions": len(merge_solutions(double, solved)),
    }


def _numbers(landscape: Landscape) -> Row:
    counts, values = landscape.counts, landscape.free_energy
    points = torch.cat([layer.mean.flatten(1) for layer in landscape.solutions.moments], 1)
    correlation = spatial_correlation(values, points)
    return {
        "populated": int((counts >= max(2.0, POPULATED * landscape.n_starts)).sum()),
        "effective": effective_number(counts),
        "bands": len(energy_bands(values)),
        "bands_by_starts": len(energy_bands(values.repeat_interleave(counts))),
        "morans_i": correlation.morans_i,
        "morans_p": correlation.p_value,
    }


def _by_label(landscape: Landscape, labels: Tensor) -> Row:
    """Measure the agreement between basins and digits, and the mean F over the starts of each digit."""
    basin, labels = landscape.basin.cpu(), labels.cpu()
    inside = basin >= 0
    reached = torch.where(basin < 0, torch.nan, landscape.free_energy.cpu()[basin.clamp(min=0)])
    by_digit = {f"free_energy_of_{digit}": float(reached[labels == digit].nanmean()) for digit in range(10)}
    agreement: Row = {
        "purity": purity(basin[inside], labels[inside]),
        "adjusted_rand_index": float(adjusted_rand_score(labels[inside], basin[inside])),
    }
    return agreement | by_digit


def _overlaps(landscape: Landscape, epoch: int) -> list[Row]:
    """Return histograms of the overlaps of visible means, unweighted and weighted by the number of starts."""
    if len(landscape) == 0:
        return []
    means = landscape.solutions.moments[0].mean
    edges = torch.linspace(-1, 1, OVERLAP_BINS + 1, dtype=torch.float64)
    densities = [
        torch.histogram(overlaps(means, weights), edges, density=True).hist.tolist()
        for weights in (None, landscape.counts)
    ]
    middles = ((edges[1:] + edges[:-1]) / 2).tolist()
    return [
        {"epoch": epoch, "overlap": q, "of_solutions": a, "of_starts": b}
        for q, a, b in zip(middles, *densities, strict=True)
    ]


def column(rows: Sequence[Row], name: str) -> list[float]:
    """Return the values of a column, omitting empty cells."""
    return [float(row[name]) for row in rows if row.get(name, "") != ""]
