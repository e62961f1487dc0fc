"""Weights of rows with missing values, in which missing units are summed over like hidden units."""

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.data.errors import LikelihoodWarning
from tapmachine.exact import mixture_of
from tapmachine.likelihood.annealing.estimate import ais_log_partition
from tapmachine.likelihood.exact import all_digits, can_enumerate, exact_log_partition
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
    mixture = mixture_of(machine)
    if mixture is not None:
        return mixture.log_weight(x.masked_fill(missing, torch.nan))
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
