"""Tables used by several figures: the solutions of a model during training, and the TAP log-likelihood."""

import json
from math import isnan
from typing import NamedTuple

import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from reproduction.lab import PARTS, Lab, Row
from reproduction.models import FACES, Model
from reproduction.statistics import count_bands, effective_number, morans_i, overlaps, prior_log_normalizer, purity
from tapmachine.analysis.landscape.find import Landscape, find_solutions
from tapmachine.data.files import write_atomically
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


def solutions_at(lab: Lab, model: Model, epoch: int, starts: StartingPoint = None) -> Landscape:
    """Find the distinct solutions at a given epoch, by default from the starts of the model."""
    starts = lab.starts(model) if starts is None else starts
    scheme = lab.procedure.scheme()
    return find_solutions(lab.machine(model, epoch), starts, scheme, stability=False, max_sweeps=MAX_SWEEPS)


class Measured(NamedTuple):
    """Tables of a model: F and starts of every solution, likelihoods and statistics by epoch, and overlaps."""

    solutions: list[Row]
    likelihood: list[Row]
    overlaps: list[Row]


def measure_solutions(lab: Lab, model: Model) -> Measured:
    """Return the tables of a model, measured epoch by epoch. After a crash, measured epochs are reused."""
    names = [f"{kind}-{model.name}" for kind in Measured._fields]
    rows = Measured([], [], [])
    for epoch in [] if lab.knows(*names) else lab.epochs(model):
        path = lab.out / f"{PARTS}{model.name}-{epoch}.json"
        if not path.exists():
            lab.say(f"measuring solutions of {model.name} at epoch {epoch}")
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, json.dumps(_measured(lab, model, epoch)).encode())
        for found, part in zip(rows, json.loads(path.read_text()), strict=True):
            found += part
    return Measured(*(lab.table(name, lambda own=own: own) for name, own in zip(names, rows, strict=True)))  # type: ignore[misc]


def _measured(lab: Lab, model: Model, epoch: int) -> Measured:
    machine, rows = lab.machine(model, epoch), lab.starts(model)
    landscape, constant = solutions_at(lab, model, epoch), prior_log_normalizer(machine)
    solutions: list[Row] = [
        {"epoch": epoch, "free_energy": value, "unnormalized_free_energy": value - constant, "starts": count}
        for value, count in zip(landscape.free_energy.tolist(), landscape.counts.tolist(), strict=True)
    ]
    numbers: Row = {
        "epoch": epoch,
        "solutions": len(landscape),
        "starts": len(rows),
        "converged": len(rows) - landscape.n_not_converged,
        **_printed(machine, rows),
        "prior_log_normalizer": constant,
    }
    if len(landscape):  # F is undefined without solutions
        numbers |= _scores(lab, model, machine, rows, landscape) | _numbers(landscape)
        numbers |= {} if model.data == FACES else _by_label(landscape, lab.labels()[: len(rows)])
    return Measured(solutions, [numbers], _overlaps(landscape, epoch))


def _scores(lab: Lab, model: Model, machine: BoltzmannMachine, rows: Tensor, landscape: Landscape) -> Row:
    held_out = spaced(lab.rows(model.data)[1], len(rows))
    train, test = (tap_log_likelihood(machine, x, landscape.solutions) for x in (rows, held_out))
    return {
        "log_likelihood": float(train.mean),
        "standard_error": float(train.standard_error),
        "per_unit": float(train.per_unit),
        "test_log_likelihood": float(test.mean),
        "log_sum_exp": float(train.log_sum_exp.mean),
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
    index, p_value = morans_i(values, points)
    return {
        "populated": int((counts >= max(2.0, POPULATED * landscape.n_starts)).sum()),
        "effective": effective_number(counts),
        "bands": count_bands(values),
        "bands_by_starts": count_bands(values.repeat_interleave(counts)),
        **({} if isnan(index) else {"morans_i": index, "morans_p": p_value}),
    }


def _by_label(landscape: Landscape, labels: Tensor) -> Row:
    """Measure the agreement between basins and digits, and the mean F over the starts of each digit."""
    basin = landscape.basin.cpu()
    converged = basin >= 0
    reached = torch.where(converged, landscape.free_energy.cpu()[basin.clamp(min=0)], torch.nan)
    return {
        "purity": purity(basin[converged], labels[converged]),
        "adjusted_rand_index": float(adjusted_rand_score(labels[converged], basin[converged])),
        **{f"free_energy_of_{digit}": float(reached[labels == digit].nanmean()) for digit in range(10)},
    }


def _overlaps(landscape: Landscape, epoch: int) -> list[Row]:
    """Return histograms of the overlaps of visible means, unweighted and weighted by the number of starts."""
    if len(landscape) < 2:
        return []
    means, edges = landscape.solutions.moments[0].mean, torch.linspace(-1, 1, OVERLAP_BINS + 1, dtype=torch.float64)
    densities = [overlaps(means, weights, edges).tolist() for weights in (torch.ones(len(means)), landscape.counts)]
    middles = ((edges[1:] + edges[:-1]) / 2).tolist()
    names = ("overlap", "of_solutions", "of_starts")
    return [{"epoch": epoch, **dict(zip(names, own, strict=True))} for own in zip(middles, *densities, strict=True)]
