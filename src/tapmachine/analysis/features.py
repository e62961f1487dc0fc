"""Features of data: means of the hidden units."""

import torch
from torch import Tensor

from tapmachine.beliefs import Solution
from tapmachine.data.errors import HiddenWarning, warn
from tapmachine.likelihood.weight import CHUNK_VALUES
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_rows, in_double
from tapmachine.machine.conditioning import clamp, hidden_machine
from tapmachine.posterior import denoise
from tapmachine.posterior.channels import Missing
from tapmachine.solver import Scheme, solve


@torch.no_grad()
def hidden_means(machine: BoltzmannMachine, x: Tensor, scheme: Scheme | None = None) -> list[Tensor]:
    """Compute the means of all hidden units given data, for use as features.

    The means are exact for machines with one hidden layer. For deep machines, they are the moments of the mean-field
    solution with the visible units clamped to each row.

    Args:
        machine: A machine with at least one hidden layer.
        x: Data of shape (N, n_visible).
        scheme: Mean-field scheme for deep machines (default: `TAP()`).

    Returns:
        Means of each hidden layer, as a list of tensors of shape (N, *state_shape).

    Warns:
        HiddenWarning: If the mean-field equations do not converge for some rows.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, dbm
        >>> from tapmachine.analysis import hidden_means
        >>> [tuple(layer.shape) for layer in hidden_means(dbm([Binary(6), Binary(4), Binary(3)]), torch.eye(6))]
        [(6, 4), (6, 3)]
    """
    if machine.is_pairwise:
        raise ValueError("a pairwise machine has no hidden units; expected a machine with hidden layers")
    rows = check_rows(machine, x)
    if len(machine.layers) == 2:
        parts = [machine.conditional(1, [part, None]).mean for part in rows.split(_fitting(machine))]
        return [torch.cat(parts)]
    solution = solve(hidden_machine(machine, rows, validate=False), None, scheme)
    warn_of_failures(solution, "hidden means")
    return [moments.mean for moments in solution.moments]


@torch.no_grad()
def features_of(machine: BoltzmannMachine, x: Tensor) -> Tensor:  # (N, n) -> (N, n_hidden)
    """Compute the means of the last hidden layer given the observed values of each row, in float64.

    Args:
        machine: A machine with at least one hidden layer.
        x: Rows, with NaN for missing values.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.analysis.features import features_of
        >>> tuple(features_of(rbm(Binary(3), Binary(2)), torch.tensor([[1.0, 0.0, torch.nan]])).shape)
        (1, 2)
    """
    machine = in_double(machine)
    gappy = x.flatten(1).isnan().any(1)
    result = torch.empty((len(x), machine.sizes[-1]), dtype=machine.dtype, device=x.device)
    if not bool(gappy.all()):
        complete = machine.layers[0].from_data(x[~gappy])
        result[~gappy] = hidden_means(machine, complete)[-1].flatten(1)
    if bool(gappy.any()):
        result[gappy] = denoise(machine, x[gappy], Missing()).moments[-1].mean.flatten(1)
    return result


@torch.no_grad()
def visible_means(machine: BoltzmannMachine, features: Tensor) -> Tensor:  # (N, n_hidden) -> (N, *state_shape)
    """Compute the means of the visible units given values of the last layer.

    The means are exact for machines with one hidden layer, and mean-field solutions for deep machines.

    Args:
        machine: A machine with at least one hidden layer.
        features: States or means of the last layer, of shape (N, n_hidden).

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.analysis.features import visible_means
        >>> tuple(visible_means(rbm(Binary(6), Binary(4)), torch.zeros(5, 4)).shape)
        (5, 6)
    """
    top = len(machine.layers) - 1
    values = features.to(machine.device, machine.dtype).unflatten(1, machine.layers[top].state_shape)
    if top == 1:
        return machine.conditional(0, [None, values]).mean
    solution = solve(clamp(machine, values, layer=top, validate=False), None)
    warn_of_failures(solution, "visible means")
    return solution.moments[0].mean


def warn_of_failures(solution: Solution, what: str) -> None:
    """Warn about rows without a converged solution."""
    failed = (~solution.converged).nonzero().squeeze(-1)
    if len(failed):
        warn(
            f"{len(failed)} of {len(solution)} rows have no converged solution; the first is row {int(failed[0])}. "
            f"The {what} after the last sweep are used",
            HiddenWarning,
        )


def _fitting(machine: BoltzmannMachine) -> int:
    """Return the number of rows processed at a time."""
    return max(1, CHUNK_VALUES // max(machine.sizes))
