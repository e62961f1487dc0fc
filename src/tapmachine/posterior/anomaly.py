"""How surprising rows are, as a whole and unit by unit."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tapmachine.beliefs import Solution, Tilt
from tapmachine.channels import Missing
from tapmachine.conditioning import clamp
from tapmachine.inference import Scheme, solve
from tapmachine.likelihood.pseudo import log_conditionals
from tapmachine.likelihood.score import for_scoring, in_double
from tapmachine.likelihood.tap import solve_from_rows, tap_log_likelihood
from tapmachine.machine import BoltzmannMachine
from tapmachine.posterior.denoise import denoise
from tapmachine.posterior.observations import as_observations

PARTICLES = 4096  # units of rows that are solved for at a time
TOLERANCE = 1e-12


@torch.no_grad()
def anomaly_score(
    machine: BoltzmannMachine,
    x: Tensor | np.ndarray[Any, Any],
    solutions: Solution | None = None,
    scheme: Scheme | None = None,
) -> Tensor:  # (K,), float64
    """−ln P(x) of each row in nats, by TAP: the higher, the more surprising. What is missing, NaN, is averaged over.

    Rows with gaps have fewer values to be surprised by: compare them with rows that have the same ones.

    Args:
        machine: any machine that is not conditioned.
        x: rows, (K, n_visible).
        solutions: of the free machine, as for `tap_log_likelihood`; without them it is solved from the complete rows,
            or from its prior, if there are none.
        scheme: `TAP()` unless given.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, anomaly_score, rbm
        >>> machine = rbm(Binary(2, field=2.0), Binary(2))
        >>> anomaly_score(machine, torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, torch.nan]]))
        tensor([0.2537, 4.2541, 0.1267], dtype=torch.float64)
    """
    x = as_observations(machine, x, "x")
    double = in_double(machine)
    complete = (
        ~torch.isnan(x).any(1) if x.is_floating_point() else torch.ones(len(x), dtype=torch.bool, device=x.device)
    )
    whole = x[complete].long() if len(machine.units()[0].state_shape) > 1 else x[complete]
    if solutions is None:
        solutions = (
            solve_from_rows(machine, whole, scheme) if len(whole) else solve(double, None, scheme, tol=TOLERANCE)
        )
    score = torch.full((len(x),), torch.nan, dtype=torch.float64, device=x.device)
    some = whole if len(whole) else None
    ln_z: Tensor
    if some is not None:
        found = tap_log_likelihood(machine, some, solutions, scheme=scheme).log_sum_exp
        score[complete] = -found.values
        ln_z = found.log_partition
    else:
        ln_z = -solutions.free_energy[solutions.converged].double().min()
    if not bool(complete.all()):
        gaps = denoise(double, x[~complete].to(double.dtype), Missing(), scheme=scheme)
        score[~complete] = gaps.free_energy + ln_z
    return score


@torch.no_grad()
def surprise(
    machine: BoltzmannMachine, x: Tensor | np.ndarray[Any, Any], scheme: Scheme | None = None
) -> Tensor:  # (K, n), float64
    """−ln P(x_i | all other visible units) of each value, in nats: which parts of a row do not fit the rest.

    Exact with one hidden layer or none. With more it is TAP's, by a solution for each value.

    Args:
        machine: any machine that is not conditioned.
        x: complete rows, (K, n_visible).
        scheme: for deep machines; `TAP()` unless given.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm, surprise
        >>> surprise(rbm(Binary(2, field=2.0), Binary(2)), torch.tensor([[1.0, 0.0]]))
        tensor([[0.1269, 2.1269]], dtype=torch.float64)
    """
    x = as_observations(machine, x, "x")
    if x.is_floating_point() and len(machine.units()[0].state_shape) > 1:
        x = x.long()
    double, rows = for_scoring(machine, x)
    if len(machine.layers) <= 2:
        everything = torch.arange(double.units()[0].n, device=rows.device).expand(len(rows), -1)
        return -log_conditionals(double, rows, everything)
    units = double.units()[0]
    pairs = torch.cartesian_prod(torch.arange(len(rows)), torch.arange(units.n)).to(rows.device)
    parts = []
    for some in pairs.split(PARTICLES):
        row, unit = some.unbind(1)
        known = torch.ones((len(some), units.n), dtype=torch.bool, device=rows.device)
        known[torch.arange(len(some), device=rows.device), unit] = False
        given = clamp(double, rows[row], mask=known)
        tilts = solve(given, None, scheme, tol=TOLERANCE).tilts[0]
        own = Tilt(*(torch.as_tensor(z) for z in tilts))
        log_joint = units.log_prior(rows[row], validate=False) + units.per_unit(
            rows[row] * own.field - 0.5 * own.precision * rows[row] ** 2
        )
        parts.append((units.log_partition(own) - log_joint).gather(1, unit.unsqueeze(1)).squeeze(1))
    return torch.cat(parts).view(len(rows), units.n)
