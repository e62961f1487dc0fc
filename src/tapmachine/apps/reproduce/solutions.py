"""What several figures look at: the solutions of a model over its training, and the log-likelihood by them."""

from collections.abc import Iterable

import torch

from tapmachine.analysis.landscape.find import Landscape, find_solutions
from tapmachine.apps.reproduce.lab import Lab, Row
from tapmachine.apps.reproduce.models import Model
from tapmachine.data.rows import spaced
from tapmachine.likelihood.tap import tap_log_likelihood
from tapmachine.solver.starts import StartingPoint

MAX_SWEEPS = 1000


def starts(lab: Lab, model: Model) -> torch.Tensor:
    """The first rows of the training data, as in the paper."""
    return lab.rows(model.data)[0][: lab.model(model).n_starts]


def solutions_at(lab: Lab, model: Model, epoch: int, begin: StartingPoint = None) -> Landscape:
    """The different solutions at an epoch, from the data unless told."""
    begin = starts(lab, model) if begin is None else begin
    return find_solutions(lab.machines(model)[epoch], begin, stability=False, max_sweeps=MAX_SWEEPS)


def solutions_table(lab: Lab, model: Model) -> list[Row]:
    """F of every solution at every epoch, and the starts that lead to it."""

    def make() -> Iterable[Row]:
        likelihoods: list[Row] = []
        found: list[Row] = []
        rows = starts(lab, model)
        for epoch in lab.epochs(model):
            landscape = solutions_at(lab, model, epoch)
            for value, count in zip(landscape.free_energy.tolist(), landscape.counts.tolist(), strict=True):
                found.append({"epoch": epoch, "free_energy": value, "starts": count})
            lost = landscape.n_not_converged
            likelihoods.append({"epoch": epoch, "not_converged": lost, **_scores(lab, model, epoch, rows, landscape)})
        lab.table(f"likelihood-{model.name}", lambda: likelihoods)
        return found

    return lab.table(f"solutions-{model.name}", make)


def likelihood_table(lab: Lab, model: Model) -> list[Row]:
    """The TAP log-likelihood of training data at every epoch, with all different solutions."""
    if not lab.knows(f"likelihood-{model.name}"):
        solutions_table(lab, model)
    return lab.table(f"likelihood-{model.name}", list)


def _scores(lab: Lab, model: Model, epoch: int, rows: torch.Tensor, landscape: Landscape) -> Row:
    if len(landscape) == 0:  # nothing has converged: there is no F
        return {"solutions": 0, "starts": len(rows)}
    machine = lab.machines(model)[epoch]
    held_out = spaced(lab.rows(model.data)[1], len(rows))
    scored = [tap_log_likelihood(machine, x, landscape.solutions) for x in (rows, held_out)]
    return {
        "solutions": len(landscape),
        "starts": len(rows),
        "log_likelihood": float(scored[0].mean),
        "standard_error": float(scored[0].standard_error),
        "per_unit": float(scored[0].per_unit),
        "test_log_likelihood": float(scored[1].mean),
        "log_sum_exp": float(scored[0].log_sum_exp.mean),
        "mean_free_energy": float(landscape.free_energy.mean()),
    }
