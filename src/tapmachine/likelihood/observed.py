"""Weights of rows with missing values, in which missing units are summed over like hidden units."""

import math
import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.data.errors import LikelihoodWarning
from tapmachine.likelihood.annealing.estimate import ais_log_partition
from tapmachine.likelihood.exact import all_digits, can_enumerate, exact_log_partition
from tapmachine.likelihood.products import as_product_mixture, is_product_mixture
from tapmachine.likelihood.slabs import GaussianMixture, as_gaussian_mixture, is_gaussian_mixture
from tapmachine.likelihood.weight import CHUNK_VALUES
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.conditioning import clamp

N_RUNS = 20  # number of runs per row
CLOSE = 0.1  # nats by which the logarithm of an annealed average may be too low


@torch.no_grad()
def observed_log_weight(
    machine: BoltzmannMachine,
    x: Tensor,
    missing: Tensor,
    bits: int = 16,
    temperatures: Sequence[int] = (300, 1000, 3000),
    seed: int = 0,
    most_rows: int | None = None,
) -> Tensor:  # (N,), float64
    """Log-weight ln P(x_obs) + ln Z of the observed values of each row, shape (N,), in float64.

    The result is exact if the hidden or the visible units have at most 2^bits states. The result is also exact for the
    default machines for tables, which are mixtures. For other machines, the log-weight of each row is estimated by
    annealed importance sampling.

    Args:
        machine: Unconditioned machine in float64.
        x: States of the visible layer, shape (N, *state_shape). States of missing units are ignored.
        missing: Mask of the missing units, shape (N, n).
        bits: Binary logarithm of the maximum number of states to enumerate (default: 16).
        temperatures: Numbers of temperatures, tried in turn until the estimates are accurate to 0.1 nats on average
            (default: 300, 1,000 and 3,000).
        seed: Random seed for annealing (default: 0).
        most_rows: Maximum number of evenly spaced rows to anneal (default: all rows). The result is NaN for other rows.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.likelihood.observed import observed_log_weight
        >>> machine = rbm(Binary(2, field=2.0), Binary(1), weights=torch.zeros(2, 1)).double()
        >>> observed_log_weight(machine, torch.ones(1, 2).double(), torch.tensor([[False, True]]))
        tensor([-0.1269], dtype=torch.float64)
    """
    if is_product_mixture(machine):
        return as_product_mixture(machine).log_joint(x.masked_fill(missing, torch.nan).double()).logsumexp(1)
    if is_gaussian_mixture(machine):
        return _of_mixture(machine, x, missing)
    if len(machine.layers) == 2 and _log2_states(machine.layers[1].n_states()) <= bits:
        return _over_hidden_states(machine, x, missing)
    if most_rows is not None and len(x) > most_rows and not can_enumerate(machine, bits):
        chosen = torch.arange(0, len(x), -(-len(x) // most_rows), device=x.device)
        some = observed_log_weight(machine, x[chosen], missing[chosen], bits, temperatures, seed)
        return some.new_full((len(x),), torch.nan).index_copy_(0, chosen, some)
    conditioned = clamp(machine, x, mask=~missing, validate=False)
    if can_enumerate(machine, bits):
        return exact_log_partition(conditioned)
    for n_temperatures in temperatures:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LikelihoodWarning)
            estimate = ais_log_partition(conditioned, n_temperatures, N_RUNS, seed=seed)
        if float(0.5 * estimate.standard_error.square().mean()) < CLOSE:
            break
    return estimate.log_partition


def _log2_states(counts: list[int] | None) -> float:
    return math.inf if counts is None else sum(math.log2(count) for count in counts)


def _over_hidden_states(machine: BoltzmannMachine, x: Tensor, missing: Tensor) -> Tensor:
    """Log-weight of the observed values of each row, summed over all states of the hidden units.

    The result is ln Σ_h P(h) Π_observed P_i(x_i) exp(x_i f_i) Π_missing Z_i(f_i), where f = Wh is the field on the
    visible units.
    """
    visible, hidden = machine.layers
    known = (~missing).to(x.dtype)
    seen = (x * known.view(*known.shape, *[1] * (x.dim() - 2))).flatten(1)
    prior = (visible.log_prior(x, validate=False) * known).sum(-1)
    total = torch.full((len(x),), -torch.inf, dtype=torch.float64, device=x.device)
    widest = max(*machine.sizes, len(x))
    for digits in all_digits(hidden.n_states() or [], max(1, CHUNK_VALUES // widest), x.device):
        states = hidden.decode(digits)
        field = machine.field_on(0, [None, states])
        log_prior = hidden.log_prior(states, validate=False).sum(-1)
        of_missing = missing.to(x.dtype) @ visible.log_partition(Tilt(field, 0.0)).T
        log_weights = (seen @ field.flatten(1).T + of_missing + log_prior).double()
        total = torch.logaddexp(total, log_weights.logsumexp(1))
    return total + prior.double()


def _of_mixture(machine: BoltzmannMachine, x: Tensor, missing: Tensor) -> Tensor:
    """Compute ln Σ_c w_c N(x_obs; μ_c, Σ_c) for each row.

    Rows with the same missing columns are processed together.
    """
    mixture = as_gaussian_mixture(machine)
    total = torch.empty(len(x), dtype=torch.float64, device=x.device)
    for rows, seen in _patterns(missing):
        total[rows] = _log_densities(mixture, x[rows], seen).logsumexp(1)
    return total


@torch.no_grad()
def draw_missing_of_mixture(
    machine: BoltzmannMachine, x: Tensor, missing: Tensor, generator: torch.Generator | None = None
) -> Tensor:  # (N, n), float64
    """Fill in missing values with exact draws, for a machine that is a mixture of Gaussians.

    Args:
        machine: Machine in float64 that satisfies `is_gaussian_mixture`.
        x: Rows, shape (N, n). Entries of missing values are ignored.
        missing: Mask of the missing values, shape (N, n).
        generator: Random number generator (default: torch's global generator).
    """
    mixture, x = as_gaussian_mixture(machine), x.double().clone()
    for rows, seen in _patterns(missing):
        if bool(seen.all()):
            continue
        probabilities = _log_densities(mixture, x[rows], seen).softmax(1)
        component = torch.multinomial(probabilities, 1, generator=generator).squeeze(1)
        for index in component.unique():
            own = rows[component == index]
            mean, covariance = mixture.means[index], mixture.covariances[index]
            gain = torch.linalg.solve(covariance[seen][:, seen], covariance[seen][:, ~seen])  # (n_seen, n_missing)
            spread = covariance[~seen][:, ~seen] - covariance[~seen][:, seen] @ gain
            lower = torch.linalg.cholesky(0.5 * (spread + spread.T))
            noise = torch.randn((len(own), len(lower)), dtype=x.dtype, device=x.device, generator=generator)
            drawn = mean[~seen] + (x[own][:, seen] - mean[seen]) @ gain + noise @ lower.T
            x[own] = x[own].masked_scatter(~seen.expand(len(own), -1), drawn)
    return x


def _patterns(missing: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Iterate over the patterns of missing values.

    Yields the indices of the rows with each pattern, and the mask of their observed columns, shape (n,).
    """
    patterns, pattern_of = (~missing).unique(dim=0, return_inverse=True)
    for index, seen in enumerate(patterns):
        yield (pattern_of == index).nonzero().flatten(), seen


def _log_densities(mixture: GaussianMixture, x: Tensor, seen: Tensor) -> Tensor:  # (N, C)
    """Compute ln w_c + ln N(x_obs; μ_c, Σ_c) for each row and component, shape (N, C)."""
    lower = torch.linalg.cholesky(mixture.covariances[:, seen][:, :, seen])
    deviations = x[:, seen].double().unsqueeze(1) - mixture.means[:, seen]  # (N, C, n_seen)
    whitened = torch.linalg.solve_triangular(lower, deviations.permute(1, 2, 0), upper=False)
    log_determinant = lower.diagonal(dim1=-2, dim2=-1).log().sum(-1) + 0.5 * int(seen.sum()) * math.log(2 * math.pi)
    log_densities: Tensor = mixture.log_weights - 0.5 * whitened.square().sum(1).T - log_determinant
    return log_densities
