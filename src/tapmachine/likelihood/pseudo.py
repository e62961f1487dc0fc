"""Pseudo-likelihood, the product of the conditional probabilities of all visible units, which does not need ln Z."""

from collections.abc import Callable

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.data.checks import check_count
from tapmachine.data.errors import EstimateError
from tapmachine.likelihood.conditional_densities import over_densities
from tapmachine.likelihood.conditional_weights import Gains, conditional_log_weight, extreme_fields, row_chunks
from tapmachine.likelihood.result import LogLikelihood
from tapmachine.likelihood.weight import check_normalizable
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import for_scoring, n_units
from tapmachine.units import Mixed, Units
from tapmachine.units.support import Interval, Lattice

DROP = 40.0  # a sum is truncated where its terms have fallen by exp(−40)
BLOCK = 64  # number of states of a lattice that are summed at a time
MOST_STATES = 2**16
COVERED = 1e-9  # largest share of the prior's mass outside of the summed states, under any field from the hidden units


@torch.no_grad()
def pseudo_log_likelihood(
    machine: BoltzmannMachine, x: Tensor, n_visible: int | None = None, *, seed: int = 0
) -> LogLikelihood:
    """Compute the log-pseudo-likelihood Σ_i ln P(x_i | all other visible units) of each row, in float64.

    The result is exact and does not need ln Z. The conditional probabilities are summed over the hidden units, and
    normalized by a sum or integral over the states of the visible unit. Finite sets of states are summed over
    completely, and sums over lattices are truncated once the remaining terms are negligible. Intervals are integrated
    over by one-dimensional quadrature. The machine must be pairwise or have one hidden layer.

    Args:
        machine: Unconditioned machine.
        x: Data, shape (N, n_visible).
        n_visible: Number of units per row to include, selected at random (default: all units). The sum is scaled up to
            the total number of units. The paper uses 100 of 784 units.
        seed: Random seed for selecting the units (default: 0).

    Raises:
        EstimateError: If a conditional distribution cannot be normalized or resolved. Also raised if the support of a
            unit type is an interval, which is the default, but its `check_states` rejects values inside the interval.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, pseudo_log_likelihood, rbm
        >>> pseudo_log_likelihood(rbm(Binary(4), Binary(2)), torch.eye(4))
        LogLikelihood(-2.7724 ± 0.0005 nats over 4 rows)
    """
    machine, rows = for_scoring(machine, x)
    if len(machine.layers) > 2:
        raise ValueError(
            f"the conditionals of visible units are intractable with {len(machine.layers) - 1} hidden layers; "
            "use tap_log_likelihood or ais_log_likelihood"
        )
    check_normalizable(machine)
    n = machine.layers[0].n
    n_visible = n if n_visible is None else check_count("n_visible", n_visible, at_most=n)
    chosen = torch.arange(n, device=rows.device).expand(len(rows), n)
    if n_visible < n:
        keys = torch.rand((len(rows), n), generator=torch.Generator().manual_seed(seed))
        chosen = keys.argsort(-1)[:, :n_visible].to(rows.device)
    conditionals = log_conditionals(machine, rows, chosen)
    no_log_partition = conditionals.new_full((), torch.nan)
    return LogLikelihood(conditionals.sum(-1) * (n / n_visible), no_log_partition, no_log_partition, n_units(machine))


def log_conditionals(machine: BoltzmannMachine, x: Tensor, chosen: Tensor) -> Tensor:  # (N, S)
    """Conditional log-probabilities ln P(x_i | x_{−i}) of selected units in each row, shape (N, S).

    For a categorical unit of a mixed layer, the value is stored at the unit's first component.

    Args:
        machine: Pairwise machine or machine with one hidden layer, in float64.
        x: States of the visible units, shape (N, *state_shape).
        chosen: Indices of S units for each row, shape (N, S).
    """
    units = machine.layers[0]
    if isinstance(units, Mixed) and not machine.is_pairwise:
        conditionals = _of_blocks(machine, units, x).gather(1, chosen)
    else:
        conditionals = _conditionals(machine)(machine, x, chosen)
    if not bool(torch.isfinite(conditionals).all()):
        raise EstimateError("the conditionals of visible units are non-finite: the couplings are too strong")
    return conditionals


def _of_blocks(machine: BoltzmannMachine, units: Mixed, x: Tensor) -> Tensor:  # (N, n)
    """Compute all conditional log-probabilities of a mixed layer, block by block.

    The other blocks act as a field on the hidden units.
    """
    weights, hidden = machine.weights[0].detach().split(units.sizes), machine.layers[1]
    fields = [part @ w for part, w in zip(x.split(units.sizes, -1), weights, strict=True)]
    parts = []
    blocks: list[Units] = list(units.blocks)  # type: ignore[arg-type]
    for index, (block, part, w) in enumerate(zip(blocks, x.split(units.sizes, -1), weights, strict=True)):
        alone = BoltzmannMachine([block, hidden], [w])
        others = sum((field for i, field in enumerate(fields) if i != index), torch.zeros_like(fields[0]))
        everything = torch.arange(block.n, device=x.device).expand(len(x), -1)
        states = part.unflatten(-1, block.state_shape)
        found = _conditionals(alone)(alone, states, everything, others.unflatten(-1, hidden.state_shape))
        parts.append(units.at_first_component(block, found))
    return torch.cat(parts, -1)


def _conditionals(machine: BoltzmannMachine) -> Callable[..., Tensor]:
    """Return the function that computes ln P(x_i | x_{−i}), with the arguments of `log_conditionals`.

    For machines with hidden units, the function also accepts an additional field on the hidden units.
    """
    if machine.is_pairwise:
        return _with_all_others
    match machine.layers[0].support:
        case Interval():
            return over_densities
        case Lattice():
            return _over_lattice
        case _:
            return _over_states


def _with_all_others(machine: BoltzmannMachine, x: Tensor, chosen: Tensor) -> Tensor:
    """Compute ln P(x_i) + x_i B_i − ln Z_i(B_i) with B = xJ, for pairwise machines."""
    units = machine.layers[0]
    field = machine.field_on(0, [x])
    log_joint = units.log_prior(x, validate=False) + units.per_unit(x * field)
    return (log_joint - units.log_partition(Tilt(field, 0.0))).gather(1, chosen)


def _over_states(machine: BoltzmannMachine, x: Tensor, chosen: Tensor, others: Tensor | None = None) -> Tensor:
    """Compute conditional log-probabilities of units with finitely many states, by summing over all states."""
    units = machine.layers[0]
    n_states = units.support.n_states or 0
    digits = torch.arange(n_states, device=x.device).unsqueeze(-1).expand(n_states, units.n)
    states = units.decode(digits)  # (Q, n, ...)
    log_prior = units.log_prior(states, validate=False)  # (Q, n)
    at_data = units.log_prior(x, validate=False).gather(1, chosen)  # (N, S)
    parts = []
    for rows in row_chunks(machine, x, n_states):
        gains = Gains(machine, x[rows], None if others is None else others[rows])
        total = [(log_prior[:, unit] + gains(unit, states[:, unit])).logsumexp(0) for unit in chosen[rows].unbind(1)]
        parts.append(at_data[rows] - torch.stack(total, -1))
    return torch.cat(parts)


def _over_lattice(machine: BoltzmannMachine, x: Tensor, chosen: Tensor, others: Tensor | None = None) -> Tensor:
    """Compute conditional log-probabilities of units on a lattice, by summing over states in index order."""
    units = machine.layers[0]
    least = _states_that_matter(machine)
    at_data = units.log_prior(x, validate=False).gather(1, chosen)
    parts = []
    for rows in row_chunks(machine, x, BLOCK):
        beside = None if others is None else others[rows]
        log_weight = conditional_log_weight(machine, x[rows], chosen[rows], beside)
        total = torch.full_like(at_data[rows], -torch.inf)
        for first in range(0, MOST_STATES, BLOCK):
            states = _states_from(units, first)  # (Q, n)
            block = log_weight(states[:, chosen[rows]]).logsumexp(0)
            total = torch.logaddexp(total, block)
            if first + BLOCK >= least and bool((block <= total - DROP).all()):
                break
        else:
            raise _too_many_states(units)
        parts.append(at_data[rows] - total)
    return torch.cat(parts)


def _states_that_matter(machine: BoltzmannMachine) -> int:
    """Return the number of states that contain the mass of the prior under any field from the hidden units.

    The weight of a state is a mixture of the prior's weights under fields between the smallest and the largest one. The
    mass is covered when the log of the sum reaches ln Z(B, 0) for both of these fields. Therefore, a gap between states
    with nonzero weight cannot be mistaken for the tail.
    """
    units = machine.layers[0]
    extremes = extreme_fields(machine)
    zero = torch.zeros(units.n, dtype=units.dtype, device=units.device)
    fields = torch.stack([zero] if extremes is None else [zero, *extremes])
    everything = units.log_partition(Tilt(fields, 0.0))
    covered = torch.full_like(everything, -torch.inf)
    for first in range(0, MOST_STATES, BLOCK):
        states = _states_from(units, first).unsqueeze(1)  # (Q, 1, n)
        block = (units.log_prior(states, validate=False) + fields * states).logsumexp(0)
        covered = torch.logaddexp(covered, block)
        if bool(((everything - covered).abs() <= COVERED * (1 + everything.abs())).all()):
            return first + BLOCK
    raise _too_many_states(units)


def _states_from(units: Units, first: int) -> Tensor:  # (Q, n)
    """Return a block of states that starts at an index, shape (Q, n)."""
    indices = torch.arange(first, first + BLOCK, device=units.device)
    return units.decode(indices.unsqueeze(-1).expand(BLOCK, units.n))


def _too_many_states(units: Units) -> EstimateError:
    return EstimateError(
        f"the conditionals of {type(units).__name__} units do not converge within the first {MOST_STATES} states: the "
        "couplings are too strong, or log_partition, log_prior and support are inconsistent"
    )
