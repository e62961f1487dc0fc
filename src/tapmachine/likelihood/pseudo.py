"""The pseudo-likelihood: every visible unit given all others, which needs no ln Z."""

from collections.abc import Callable

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.likelihood.score import (
    CHUNK_VALUES,
    EstimateError,
    LogLikelihood,
    check_normalisable,
    for_scoring,
    n_units,
)
from tapmachine.machine import BoltzmannMachine
from tapmachine.special import gauss_legendre
from tapmachine.units import Units
from tapmachine.units.checks import check_count

DROP = 40.0  # a density is cut off where it has fallen by exp(−40), or so many standard deviations away
DOUBLINGS = 60  # to find where that is, where nothing else tells
PANEL_NODES = 16
FEWEST_PANELS, MOST_PANELS = 4, 4096
ACCURACY = 1e-12  # of ln of an integral, by doubling the panels

BLOCK = 64  # states of a countable support that are summed at a time
MOST_STATES = 2**16
COVERED = 1e-9  # the share of the prior's mass, under any field that occurs, that may lie beyond the states summed

LogDensity = Callable[[Tensor], Tensor]  # (Q, N, S) -> (Q, N, S): at Q values of each of S units in N rows


@torch.no_grad()
def pseudo_log_likelihood(
    machine: BoltzmannMachine, x: Tensor, n_visible: int | None = None, *, seed: int = 0
) -> LogLikelihood:
    """The log-pseudo-likelihood Σ_i ln P(x_i | all other visible units) of rows of data, in float64.

    Exact: the hidden units are summed over, and so is the unit itself: over its states (of infinitely many, until the
    rest is negligible) or, if it is real-valued, by quadrature of its one-dimensional conditional density. It needs no
    ln Z. For machines with one hidden layer, or pairwise ones.

    Args:
        machine: a machine that is not conditioned.
        x: data, (N, n_visible).
        n_visible: how many units to take, drawn at random for each row; the sum is scaled up to all units. The paper
            took 100 of 784. Without it, all of them.
        seed: of that draw.

    Raises:
        EstimateError: if a conditional cannot be normalised or resolved, or if values between the states of a unit
            are no states although its type does not say that they are countable (`Units.is_countable`).

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
    check_normalisable(machine)
    n = machine.units()[0].n
    n_visible = n if n_visible is None else check_count("n_visible", n_visible, at_most=n)
    chosen = torch.arange(n, device=rows.device).expand(len(rows), n)
    if n_visible < n:
        keys = torch.rand((len(rows), n), generator=torch.Generator().manual_seed(seed))
        chosen = keys.argsort(-1)[:, :n_visible].to(rows.device)
    found = log_conditionals(machine, rows, chosen)
    no_log_partition = found.new_full((), torch.nan)
    return LogLikelihood(found.sum(-1) * (n / n_visible), no_log_partition, no_log_partition, n_units(machine))


def log_conditionals(machine: BoltzmannMachine, x: Tensor, chosen: Tensor) -> Tensor:  # (N, S)
    """ln P(x_i | x_{−i}) of some units of each row: of rows in float64, and the numbers of S units for each."""
    found = _conditionals(machine)(machine, x, chosen)
    if not bool(torch.isfinite(found).all()):
        raise EstimateError("the conditionals of visible units are not finite: the couplings are too strong")
    return found


def _conditionals(machine: BoltzmannMachine) -> Callable[[BoltzmannMachine, Tensor, Tensor], Tensor]:
    """How to find ln P(x_i | x_{−i}), of shape (N, S), from data and the numbers of S units for each row."""
    if machine.is_pairwise:
        return _with_all_others
    units = machine.units()[0]
    if units.n_states() is not None:
        return _over_states
    return _over_numbered_states if units.is_countable() else _over_densities


def _with_all_others(machine: BoltzmannMachine, x: Tensor, chosen: Tensor) -> Tensor:
    """ln P(x_i) + x_i B_i − ln Z_i(B_i), B = xJ: nothing is hidden."""
    units = machine.units()[0]
    field = machine.field_on(0, [x])
    log_joint = units.log_prior(x, validate=False) + units.per_unit(x * field)
    return (log_joint - units.log_partition(Tilt(field, 0.0))).gather(1, chosen)


def _over_states(machine: BoltzmannMachine, x: Tensor, chosen: Tensor) -> Tensor:
    """Sums over the states of units that have finitely many."""
    units = machine.units()[0]
    n_states = (units.n_states() or [0])[0]
    digits = torch.arange(n_states, device=x.device).unsqueeze(-1).expand(n_states, units.n)
    states = units.decode(digits)  # (Q, n, ...)
    log_prior = units.log_prior(states, validate=False)  # (Q, n)
    own = units.log_prior(x, validate=False).gather(1, chosen)  # (N, S)
    parts = []
    for rows in _row_chunks(machine, x, n_states):
        gains = _Gains(machine, x[rows])
        total = [(log_prior[:, unit] + gains(unit, states[:, unit])).logsumexp(0) for unit in chosen[rows].unbind(1)]
        parts.append(own[rows] - torch.stack(total, -1))
    return torch.cat(parts)


def _over_numbered_states(machine: BoltzmannMachine, x: Tensor, chosen: Tensor) -> Tensor:
    """Sums over the states of units with countably many, in the order of their numbers."""
    units = machine.units()[0]
    least = _states_that_matter(machine)
    own = units.log_prior(x, validate=False).gather(1, chosen)
    parts = []
    for rows in _row_chunks(machine, x, BLOCK):
        log_weight = _log_density(machine, x[rows], chosen[rows])
        total = torch.full_like(own[rows], -torch.inf)
        for first in range(0, MOST_STATES, BLOCK):
            states = _numbered_states(units, first)  # (Q, n)
            block = log_weight(states[:, chosen[rows]]).logsumexp(0)
            total = torch.logaddexp(total, block)
            if first + BLOCK >= least and bool((block <= total - DROP).all()):
                break
        else:
            raise _too_many_states(units)
        parts.append(own[rows] - total)
    return torch.cat(parts)


def _states_that_matter(machine: BoltzmannMachine) -> int:
    """How many states hold the prior's mass under the weakest and the strongest field that hidden units can send.

    The weight of a state is a mixture of the prior's under fields between these two. All mass is covered when ln of the
    sum is ln Z(B,0), so that a gap between states of some weight cannot be mistaken for the tail.
    """
    units = machine.units()[0]
    extremes = _extreme_fields(machine)
    zero = torch.zeros(units.n, dtype=units.dtype, device=units.device)
    fields = torch.stack([zero] if extremes is None else [zero, *extremes])
    everything = units.log_partition(Tilt(fields, 0.0))
    covered = torch.full_like(everything, -torch.inf)
    for first in range(0, MOST_STATES, BLOCK):
        states = _numbered_states(units, first).unsqueeze(1)  # (Q, 1, n)
        block = (units.log_prior(states, validate=False) + fields * states).logsumexp(0)
        covered = torch.logaddexp(covered, block)
        if bool(((everything - covered).abs() <= COVERED * (1 + everything.abs())).all()):
            return first + BLOCK
    raise _too_many_states(units)


def _numbered_states(units: Units, first: int) -> Tensor:  # (Q, n)
    numbers = torch.arange(first, first + BLOCK, device=units.device)
    return units.decode(numbers.unsqueeze(-1).expand(BLOCK, units.n))


def _too_many_states(units: Units) -> EstimateError:
    return EstimateError(
        f"the conditionals of {type(units).__name__} units are not summed by their first {MOST_STATES} states: the "
        "couplings are too strong, or log_partition, log_prior and decode do not belong together"
    )


def _over_densities(machine: BoltzmannMachine, x: Tensor, chosen: Tensor) -> Tensor:
    """Integrates over the values of real-valued units, and sums over those that have a probability of their own."""
    units = machine.units()[0]
    atoms = units.atoms()
    own = units.log_prior(x, validate=False).gather(1, chosen)
    parts = []
    for rows in _row_chunks(machine, x, PANEL_NODES):
        log_density = _log_density(machine, x[rows], chosen[rows])
        total = _log_integral(log_density, machine, x[rows], chosen[rows])
        if atoms is not None:
            at_atoms = log_density(atoms.view(-1, 1, 1).expand(len(atoms), *chosen[rows].shape))
            total = torch.logaddexp(total, at_atoms.logsumexp(0))
        parts.append(own[rows] - total)
    return torch.cat(parts)


def _log_density(machine: BoltzmannMachine, x: Tensor, chosen: Tensor) -> LogDensity:
    """ln of the joint weight as one chosen unit takes other values, relative to that of the rest of the row."""
    units, gains = machine.units()[0], _Gains(machine, x)

    def log_density(values: Tensor) -> Tensor:  # (Q, N, S)
        # The prior is told for all units at once: put the values of the chosen ones in their places.
        everywhere = x.expand(len(values), *x.shape).clone()
        everywhere.scatter_(-1, chosen.expand(values.shape), values)
        own = units.log_prior(everywhere, validate=False).gather(-1, chosen.expand(values.shape))
        gained = [gains(unit, values[..., number]) for number, unit in enumerate(chosen.unbind(1))]
        return own + torch.stack(gained, -1)

    return log_density


class _Gains:
    """By how much Σ_j ln Z_j of the hidden units changes with one visible unit."""

    def __init__(self, machine: BoltzmannMachine, x: Tensor) -> None:
        self.hidden, self.x = machine.units()[1], x
        self.row = torch.arange(len(x), device=x.device)
        self.field = machine.field_on(1, [x, None])
        self.weights = machine.coupling(0).detach().unflatten(0, (machine.units()[0].n, -1))  # (n, 1 or q, n_hidden)

    def __call__(self, unit: Tensor, values: Tensor) -> Tensor:  # (N,), and (Q, N) or (Q, N, q) -> (Q, N)
        """As a unit of each row takes Q values."""
        change = values - self.x[self.row, unit]
        weights = self.weights[unit]  # (N, 1 or q, n_hidden)
        if change.dim() == 2:
            moved = change.unsqueeze(-1) * weights.squeeze(1)
        else:
            moved = torch.einsum("anq,nqh->anh", change, weights)
        after = self.field + moved.unflatten(-1, self.hidden.state_shape)
        return self.hidden.log_partition_gain(self.field.expand_as(after), after)


def _row_chunks(machine: BoltzmannMachine, x: Tensor, n_values: int) -> list[slice]:
    """So many rows at a time that the fields for all values of a unit fit into memory."""
    size = max(1, CHUNK_VALUES // (n_values * max(machine.sizes)))
    return [slice(first, first + size) for first in range(0, len(x), size)]


def _log_integral(log_density: LogDensity, machine: BoltzmannMachine, x: Tensor, chosen: Tensor) -> Tensor:  # (N, S)
    """ln ∫ exp(log_density) over the support of each unit, by Gauss–Legendre panels, as many as it takes."""
    low, high = _window(log_density, machine, x, chosen)
    _check_interval(machine.units()[0], x[0], chosen[0], low[0], high[0])
    nodes, weights = gauss_legendre(PANEL_NODES, x.dtype, x.device)

    def with_panels(n_panels: int) -> Tensor:
        width = (high - low) / n_panels
        total = torch.full_like(low, -torch.inf)
        for panel in range(n_panels):
            points = low + (panel + nodes.view(-1, 1, 1)) * width
            values = log_density(_off_atoms(machine.units()[0], points)) + weights.log().view(-1, 1, 1)
            total = torch.logaddexp(total, values.logsumexp(0))
        return total + width.log()

    n_panels = FEWEST_PANELS
    coarse = with_panels(n_panels)
    while n_panels < MOST_PANELS:
        n_panels *= 2
        fine = with_panels(n_panels)
        if bool(((fine - coarse).abs() <= ACCURACY * (1 + fine.abs())).all()):
            return fine
        coarse = fine
    raise EstimateError(
        f"the conditional density of a visible unit is not resolved by {MOST_PANELS} panels: couplings are too strong"
    )


def _check_interval(units: Units, x: Tensor, chosen: Tensor, low: Tensor, high: Tensor) -> None:  # (n,), (S,) each
    """Raises an EstimateError if values to be integrated over are no states: a countable support was not declared.

    The integral of such a prior would converge, to a wrong number.
    """
    nodes, _ = gauss_legendre(PANEL_NODES, x.dtype, x.device)
    values = (low + nodes.unsqueeze(-1) * (high - low)).clamp(low, high)
    points = x.expand(len(values), -1).scatter(-1, chosen.expand(values.shape), _off_atoms(units, values))
    try:
        units.check_states(points)
    except ValueError as error:
        raise EstimateError(
            f"the conditional density of a visible unit cannot be integrated, since values in between are no states "
            f"({error}); if the values are countable, override is_countable and decode"
        ) from None


def _window(
    log_density: LogDensity, machine: BoltzmannMachine, x: Tensor, chosen: Tensor
) -> tuple[Tensor, Tensor]:  # (N, S) each
    """Where a unit's conditional density is not negligible.

    It is a mixture of the prior under fields from Σ min Wh to Σ max Wh, so its mass lies between that of the prior
    under the one and under the other.
    """
    units = machine.units()[0]
    lower, upper = (bound.expand(units.n)[chosen] for bound in units.bounds())
    if units.atoms() is not None and bool(torch.isfinite(upper - lower).all()):
        return lower, upper  # the moments are not those of the density alone
    fields = _extreme_fields(machine)
    if fields is None or units.atoms() is not None:
        return _searched_window(log_density, units, x, chosen)
    (low_mean, low_variance), (high_mean, high_variance) = (units.moments(Tilt(field, 0.0)) for field in fields)
    unbounded = torch.isinf(units.bounds()[0]) & torch.isinf(units.bounds()[1])
    deviations = torch.where(unbounded, (2 * DROP) ** 0.5 + 1, DROP)  # a Gaussian falls faster than at an edge
    reach = deviations * torch.maximum(low_variance, high_variance).sqrt()
    low, high = (low_mean - reach)[chosen], (high_mean + reach)[chosen]
    return torch.maximum(low, lower), torch.minimum(high, upper)


def _extreme_fields(machine: BoltzmannMachine) -> tuple[Tensor, Tensor] | None:  # (n,) each
    """The least and the greatest field that hidden units can send; None if it has no limit."""
    hidden = machine.units()[1]
    if not hidden.is_bounded():
        return None
    products = [machine.coupling(0).detach() * bound.expand(hidden.state_shape).flatten() for bound in hidden.bounds()]
    return torch.minimum(*products).sum(-1), torch.maximum(*products).sum(-1)


def _searched_window(log_density: LogDensity, units: Units, x: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The support or, where it has no bounds, as far from the data as the density takes to become negligible."""
    lower, upper = (bound.expand(units.n)[chosen] for bound in units.bounds())
    values = x.gather(1, chosen)
    zero = torch.zeros(units.n, dtype=x.dtype, device=x.device)
    step = units.moments(Tilt(zero, 0.0)).variance.sqrt()[chosen]
    reach = [step, step]
    best = log_density(_off_atoms(units, values.unsqueeze(0)))[0]
    for _ in range(DOUBLINGS):
        open_sides = False
        for side, (sign, bound) in enumerate(((-1, lower), (1, upper))):
            at_end = log_density((values + sign * reach[side]).clamp(lower, upper).unsqueeze(0))[0]
            best = torch.maximum(best, at_end)
            further = torch.isinf(bound) & (at_end > best - DROP)
            reach[side] = torch.where(further, 2 * reach[side], reach[side])
            open_sides = open_sides or bool(further.any())
        if not open_sides:
            low, high = values - reach[0], values + reach[1]
            return torch.where(torch.isinf(lower), low, lower), torch.where(torch.isinf(upper), high, upper)
    raise EstimateError("the conditional density of a visible unit cannot be normalised: the couplings are too strong")


def _off_atoms(units: Units, values: Tensor) -> Tensor:
    """Values at which the prior is a density."""
    atoms = units.atoms()
    if atoms is None:
        return values
    nudge = torch.finfo(values.dtype).eps
    return torch.where((values.unsqueeze(-1) == atoms).any(-1), values + nudge, values)
