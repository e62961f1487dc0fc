"""Pseudo-likelihood, the product of the conditional probabilities of all visible units, which does not need ln Z."""

from collections.abc import Callable

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.data.checks import check_count
from tapmachine.data.errors import EstimateError
from tapmachine.likelihood.result import LogLikelihood
from tapmachine.likelihood.weight import CHUNK_VALUES, check_normalizable
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import for_scoring, n_units
from tapmachine.units import Mixed, Units
from tapmachine.units.numerics.intervals import gauss_legendre
from tapmachine.units.support import Interval, Lattice

DROP = 40.0  # sums and densities are truncated where they have fallen by exp(−40) or at 40 standard deviations
DOUBLINGS = 60  # maximum number of doublings in the search for the point of truncation if no moments are available
PANEL_NODES = 16
FEWEST_PANELS, MOST_PANELS = 4, 4096
ACCURACY = 1e-12  # accuracy of the log of an integral, reached by doubling the number of panels
BLOCK = 64  # number of states of a lattice that are summed at a time
MOST_STATES = 2**16
COVERED = 1e-9  # largest share of the prior's mass outside of the summed states, under any field from the hidden units

LogWeight = Callable[[Tensor], Tensor]  # (Q, N, S) -> (Q, N, S): at Q values of each of S units in N rows


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
            return _over_densities
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
    for rows in _row_chunks(machine, x, n_states):
        gains = _Gains(machine, x[rows], None if others is None else others[rows])
        total = [(log_prior[:, unit] + gains(unit, states[:, unit])).logsumexp(0) for unit in chosen[rows].unbind(1)]
        parts.append(at_data[rows] - torch.stack(total, -1))
    return torch.cat(parts)


def _over_lattice(machine: BoltzmannMachine, x: Tensor, chosen: Tensor, others: Tensor | None = None) -> Tensor:
    """Compute conditional log-probabilities of units on a lattice, by summing over states in index order."""
    units = machine.layers[0]
    least = _states_that_matter(machine)
    at_data = units.log_prior(x, validate=False).gather(1, chosen)
    parts = []
    for rows in _row_chunks(machine, x, BLOCK):
        beside = None if others is None else others[rows]
        log_weight = _log_weight_of_unit(machine, x[rows], chosen[rows], beside)
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
    extremes = _extreme_fields(machine)
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


def _log_weight_of_unit(
    machine: BoltzmannMachine, x: Tensor, chosen: Tensor, others: Tensor | None = None
) -> LogWeight:
    """Return the log-weight as a function of one unit, relative to the log-weight of the rest of the row.

    Args:
        machine: Machine with one hidden layer.
        x: States of the visible units, shape (N, n).
        chosen: Indices of S units for each row, shape (N, S).
        others: Additional field on the hidden units, shape (N, *state_shape), or None.
    """
    units, gains = machine.layers[0], _Gains(machine, x, others)

    def log_weight(values: Tensor) -> Tensor:  # (Q, N, S)
        # The prior is a function of all units at once: insert the values of the chosen ones.
        everywhere = x.expand(len(values), *x.shape).clone()
        everywhere.scatter_(-1, chosen.expand(values.shape), values)
        log_prior = units.log_prior(everywhere, validate=False).gather(-1, chosen.expand(values.shape))
        gained = [gains(unit, values[..., column]) for column, unit in enumerate(chosen.unbind(1))]
        return log_prior + torch.stack(gained, -1)

    return log_weight


class _Gains:
    """Change in Σ_j ln Z_j of the hidden units as a function of one visible unit."""

    def __init__(self, machine: BoltzmannMachine, x: Tensor, others: Tensor | None = None) -> None:
        self.visible, self.hidden = list(machine.layers)
        self.x = x
        self.row = torch.arange(len(x), device=x.device)
        self.field = machine.field_on(1, [x, None])
        self.field = self.field if others is None else self.field + others
        self.weights = machine.coupling(0).detach().unflatten(0, (self.visible.n, -1))  # (n, 1 or q, n_hidden)

    def __call__(self, unit: Tensor, values: Tensor) -> Tensor:  # (N,), and (Q, N) or (Q, N, q) -> (Q, N)
        """Return the changes for Q values of one unit in each row, shape (Q, N)."""
        change = values - self.x[self.row, unit]
        weights = self.weights[unit]  # (N, 1 or q, n_hidden)
        if change.dim() == 3:
            moved = torch.einsum("anq,nqh->anh", change, weights)
        else:
            moved = change.unsqueeze(-1) * weights.squeeze(1)
        after = self.field + moved.unflatten(-1, self.hidden.state_shape)
        return self.hidden.log_partition_gain(self.field.expand_as(after), after)


def _row_chunks(machine: BoltzmannMachine, x: Tensor, n_values: int) -> list[slice]:
    """Split rows into chunks, so that the fields for all values of a unit fit into memory."""
    size = max(1, CHUNK_VALUES // (n_values * max(machine.sizes)))
    return [slice(first, first + size) for first in range(0, len(x), size)]


def _extreme_fields(machine: BoltzmannMachine) -> tuple[Tensor, Tensor] | None:  # (n,) each
    """Return the smallest and largest fields from the hidden units, or None if the fields are unbounded."""
    hidden = machine.layers[1]
    if not hidden.is_bounded():
        return None
    products = [machine.coupling(0).detach() * bound.expand(hidden.state_shape).flatten() for bound in hidden.bounds()]
    return torch.minimum(*products).sum(-1), torch.maximum(*products).sum(-1)


def _over_densities(machine: BoltzmannMachine, x: Tensor, chosen: Tensor, others: Tensor | None = None) -> Tensor:
    """Conditional log-densities ln P(x_i | x_{−i}) of real-valued units.

    The normalization is an integral over the values of a unit and a sum over its atoms.
    """
    units = machine.layers[0]
    atoms = units.atoms()
    at_data = units.log_prior(x, validate=False).gather(1, chosen)
    parts = []
    for rows in _row_chunks(machine, x, PANEL_NODES):
        beside = None if others is None else others[rows]
        log_density = _log_weight_of_unit(machine, x[rows], chosen[rows], beside)
        total = _log_integral(log_density, machine, x[rows], chosen[rows])
        if atoms is not None:
            at_atoms = log_density(atoms.view(-1, 1, 1).expand(len(atoms), *chosen[rows].shape))
            total = torch.logaddexp(total, at_atoms.logsumexp(0))
        parts.append(at_data[rows] - total)
    return torch.cat(parts)


def _log_integral(log_density: LogWeight, machine: BoltzmannMachine, x: Tensor, chosen: Tensor) -> Tensor:  # (N, S)
    """Compute ln ∫ exp(log_density) over the support of each unit, with as many Gauss–Legendre panels as needed."""
    low, high = _window(log_density, machine, x, chosen)
    _check_interval(machine.layers[0], x[0], chosen[0], low[0], high[0])
    nodes, weights = gauss_legendre(PANEL_NODES, x.dtype, x.device)

    def with_panels(n_panels: int) -> Tensor:
        width = (high - low) / n_panels
        total = torch.full_like(low, -torch.inf)
        for panel in range(n_panels):
            points = low + (panel + nodes.view(-1, 1, 1)) * width
            values = log_density(_off_atoms(machine.layers[0], points)) + weights.log().view(-1, 1, 1)
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
        f"the conditional density of a visible unit is not resolved by {MOST_PANELS} panels: the couplings are too "
        "strong"
    )


def _check_interval(units: Units, x: Tensor, chosen: Tensor, low: Tensor, high: Tensor) -> None:  # (n,), (S,) each
    """Raise an EstimateError if the interval contains values that are not states of the units.

    Unit types that do not declare their support can cause this error. Without the check, the integral would converge to
    a wrong value.
    """
    nodes, _ = gauss_legendre(PANEL_NODES, x.dtype, x.device)
    values = (low + nodes.unsqueeze(-1) * (high - low)).clamp(low, high)
    points = x.expand(len(values), -1).scatter(-1, chosen.expand(values.shape), _off_atoms(units, values))
    try:
        units.check_states(points)
    except ValueError as error:
        raise EstimateError(
            "the conditional density of a visible unit cannot be integrated, because values inside its support are not "
            f"states ({error}); declare the support in {type(units).__name__}, such as support = Lattice() for counts"
        ) from None


def _window(
    log_density: LogWeight, machine: BoltzmannMachine, x: Tensor, chosen: Tensor
) -> tuple[Tensor, Tensor]:  # (N, S) each
    """Return an interval outside of which the conditional density of a unit is negligible.

    The conditional density is a mixture of priors under fields from Σ min Wh to Σ max Wh. The mass of the conditional
    density therefore lies in the range spanned by the prior under the two extreme fields.
    """
    units = machine.layers[0]
    lower, upper = (bound.expand(units.n)[chosen] for bound in units.bounds())
    if units.atoms() is not None and bool(torch.isfinite(upper - lower).all()):
        return lower, upper  # the moments include the atoms
    fields = _extreme_fields(machine)
    if fields is None or units.atoms() is not None:
        return _searched_window(log_density, units, x, chosen)
    (low_mean, low_variance), (high_mean, high_variance) = (units.moments(Tilt(field, 0.0)) for field in fields)
    unbounded = torch.isinf(units.bounds()[0]) & torch.isinf(units.bounds()[1])
    deviations = torch.where(unbounded, (2 * DROP) ** 0.5 + 1, DROP)  # Gaussian tails fall faster than at an edge
    reach = deviations * torch.maximum(low_variance, high_variance).sqrt()
    low, high = (low_mean - reach)[chosen], (high_mean + reach)[chosen]
    return torch.maximum(low, lower), torch.minimum(high, upper)


def _searched_window(log_density: LogWeight, units: Units, x: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the support or, if it is unbounded, an interval around the data that contains almost all of the mass."""
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
    raise EstimateError("the conditional density of a visible unit cannot be normalized: the couplings are too strong")


def _off_atoms(units: Units, values: Tensor) -> Tensor:
    """Move values away from atoms, so that the prior is a density at the new values."""
    atoms = units.atoms()
    if atoms is None:
        return values
    nudge = torch.finfo(values.dtype).eps
    return torch.where((values.unsqueeze(-1) == atoms).any(-1), values + nudge, values)
