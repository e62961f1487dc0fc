"""What data look like to the hidden units."""

import warnings

import torch
from torch import Tensor

from tapmachine.beliefs import Solution
from tapmachine.conditioning import hidden_given
from tapmachine.inference import Scheme, solve
from tapmachine.likelihood.score import CHUNK_VALUES, check_rows
from tapmachine.machine import BoltzmannMachine


class HiddenWarning(UserWarning):
    """Something about hidden means that their user should know."""


@torch.no_grad()
def hidden_means(machine: BoltzmannMachine, x: Tensor, scheme: Scheme | None = None) -> list[Tensor]:
    """The means of every hidden layer given data, (N, *state_shape) each: features.

    Exact with one hidden layer. With more they are those of the solution of the machine clamped to each row; rows for
    which it does not converge are reported by a warning.

    Args:
        machine: with a hidden layer.
        x: data, (N, n_visible).
        scheme: for deep machines; `TAP()` unless given.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, dbm, hidden_means
        >>> [tuple(layer.shape) for layer in hidden_means(dbm([Binary(6), Binary(4), Binary(3)]), torch.eye(6))]
        [(6, 4), (6, 3)]
    """
    if machine.is_pairwise:
        raise ValueError("a pairwise machine has no hidden units")
    rows = check_rows(machine, x)
    if len(machine.layers) == 2:
        parts = [machine.conditional(1, [part, None]).mean for part in rows.split(_fitting(machine))]
        return [torch.cat(parts)]
    solution = solve(hidden_given(machine, rows, validate=False), None, scheme)
    warn_of_failures(solution, "hidden means")
    return [own.mean for own in solution.moments]


def warn_of_failures(solution: Solution, what: str) -> None:
    """Says which rows have no converged solution."""
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
