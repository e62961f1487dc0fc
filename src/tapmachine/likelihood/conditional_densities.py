"""Conditional densities of real-valued visible units, normalized by adaptive quadrature."""

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.data.errors import EstimateError
from tapmachine.likelihood.conditional_weights import LogWeight, conditional_log_weight, extreme_fields, row_chunks
from tapmachine.machine import BoltzmannMachine
from tapmachine.units import Units
from tapmachine.units.numerics.intervals import gauss_legendre

DROP = 40.0  # a density is truncated where it has fallen by exp(−40), or at 40 standard deviations
DOUBLINGS = 60  # maximum number of doublings in the search for the point of truncation if no moments are available
PANEL_NODES = 16
FEWEST_PANELS, MOST_PANELS = 4, 4096
ACCURACY = 1e-12  # accuracy of the log of an integral, reached by doubling the number of panels


def over_densities(machine: BoltzmannMachine, x: Tensor, chosen: Tensor, others: Tensor | None = None) -> Tensor:
    """Conditional log-densities ln P(x_i | x_{−i}) of real-valued units.

    The normalization is an integral over the values of a unit and a sum over its atoms.
    """
    units = machine.layers[0]
    atoms = units.atoms()
    at_data = units.log_prior(x, validate=False).gather(1, chosen)
    parts = []
    for rows in row_chunks(machine, x, PANEL_NODES):
        beside = None if others is None else others[rows]
        log_density = conditional_log_weight(machine, x[rows], chosen[rows], beside)
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
    fields = extreme_fields(machine)
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
