"""Hidden means as features of data."""

import warnings

import torch
from torch import Tensor

from tapmachine.beliefs import Solution
from tapmachine.data.errors import HiddenWarning
from tapmachine.likelihood.weight import CHUNK_VALUES
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_rows
from tapmachine.machine.conditioning import hidden_machine
from tapmachine.solver import Scheme, solve


@torch.no_grad()
def hidden_means(machine: BoltzmannMachine, x: Tensor, scheme: Scheme | None = None) -> list[Tensor]:
    """Means of every hidden layer given data, as features, (N, *state_shape) each.

    Exact with one hidden layer. With more, they are those of the mean-field solution clamped to each row; a warning
    reports rows that do not converge.

    Args:
        machine: any machine with a hidden layer.
        x: data, (N, n_visible).
        scheme: mean-field scheme for deep machines (default: `TAP()`).

    Example:
        >>> import torch
        >>> from tapmachine import Binary, dbm
        >>> from tapmachine.analysis import hidden_means
        >>> [tuple(layer.shape) for layer in hidden_means(dbm([Binary(6), Binary(4), Binary(3)]), torch.eye(6))]
        [(6, 4), (6, 3)]
    """
    if machine.is_pairwise:
        raise ValueError("a pairwise machine has no hidden units")
    rows = check_rows(machine, x)
    if len(machine.layers) == 2:
        parts = [machine.conditional(1, [part, None]).mean for part in rows.split(_fitting(machine))]
        return [torch.cat(parts)]
    solution = solve(hidden_machine(machine, rows, validate=False), None, scheme)
    warn_of_failures(solution, "hidden means")
    return [moments.mean for moments in solution.moments]


def warn_of_failures(solution: Solution, what: str) -> None:
    """Warn about rows without a converged solution."""
    failed = (~solution.converged).nonzero().squeeze(-1)
    if len(failed):
        warnings.warn(
            f"{len(failed)} of {len(solution)} rows have no converged solution, the first is row {int(failed[0])}: "
            f"their {what} are those of the last sweep",
            HiddenWarning,
            stacklevel=4,
        )


def _fitting(machine: BoltzmannMachine) -> int:
    """Rows at a time."""
    return max(1, CHUNK_VALUES // max(machine.sizes))
