"""Options of training, each declared once with its default, help text and check.

The command line, settings files and `RBM` take the plain values from here, without importing torch. To add an option,
declare it here and use it, for example in `step.py`, as `options.name`.
"""

from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Self, get_type_hints

from tapmachine.data.declarations import (
    BELOW_ONE,
    FRACTION_KEPT,
    POSITIVE,
    at_least,
    check_value,
    from_json,
    option_of,
    setting,
    with_attributes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from tapmachine.machine import BoltzmannMachine
    from tapmachine.training.loss import Objective
    from tapmachine.training.monitor import Monitor

OF_DEFAULT_OPTIMIZER = ("learning_rate", "decay", "momentum", "weight_decay")

# Tuned on MNIST and on tables with 400 to 16,000 rows and 15 to 800 columns (docs/design_notes.md). Small data sets are
# trained for up to 300 epochs, so that 200 hidden units do not memorize 400 rows.
LARGEST_BATCH, SMALLEST_BATCH, FEWEST_BATCHES = 100, 10, 4
FEWEST_EPOCHS, MOST_EPOCHS, ENOUGH_STEPS = 50, 300, 20_000


@with_attributes
@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """Options of training that are plain values, so that they can be written to a file."""

    epochs: int | None = setting(
        None,
        "Number of passes over the data.",
        at_least(0),
        default_text="enough for 20,000 steps, from 50 to 300",
    )
    batch_size: int | None = setting(
        None, "Number of rows per gradient step.", at_least(1), default_text="a quarter of the rows, from 10 to 100"
    )
    learning_rate: float | None = setting(None, "Initial learning rate.", POSITIVE, default_text="chosen from the data")
    decay: float = setting(0.01, "Final learning rate as a fraction of the initial one.", FRACTION_KEPT, on_shell=False)
    momentum: float = setting(0.5, "Momentum of the gradient steps.", BELOW_ONE, on_shell=False)
    weight_decay: float = setting(0.0, "Coefficient of the L2 penalty on the weights.", at_least(0), on_shell=False)
    l1: float = setting(0.0, "Coefficient of the L1 penalty on the weights.", at_least(0), on_shell=False)
    centered: bool | None = setting(
        None,
        "Whether to center the gradients.",
        default_text="True for unit types that support it",
        on_shell=False,
    )
    averaged: bool | None = setting(
        None,
        "Whether to average the parameters over the last eighth of the steps.",
        default_text="True with the default optimizer",
        on_shell=False,
    )
    early_stopping: bool = setting(
        True,
        "Whether to stop when the held-out log-likelihood keeps falling, and to return to the best epoch.",
        flags="--early-stopping/--no-early-stopping",
    )
    seed: int = setting(0, "Random seed.")

    def __post_init__(self) -> None:
        hints = get_type_hints(Hyperparameters)
        for declared in fields(Hyperparameters):
            value = getattr(self, declared.name)
            value = value.item() if type(value).__module__ == "numpy" else value
            value = from_json(declared.name, value, hints[declared.name])
            check_value(declared.name, value, option_of(declared))
            object.__setattr__(self, declared.name, value)

    def penalty(self, weights: "Iterable[Tensor]") -> "Tensor | float":
        """Return the L1 penalty on weights, which is added to the loss."""
        return self.l1 and self.l1 * sum(w.abs().sum() for w in weights)


@with_attributes
@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingOptions(Hyperparameters):
    """Options of `fit`, `pretrain` and `Trainer`.

    Example:
        >>> import torch
        >>> from tapmachine import PCD, Binary, fit, rbm
        >>> from tapmachine.training import TrainingOptions
        >>> options = TrainingOptions(epochs=2, objective=PCD(1), learning_rate=0.05)
        >>> len(fit(rbm(Binary(4), Binary(2)), torch.eye(4).repeat(20, 1), options))
        2
    """

    objective: "Objective | None" = setting(
        None,
        "Training objective, such as `PCD(k)`, `TAPObjective(…)` or `CD(k)`.",
        default_text="see `default_objective`",
    )
    optimizer: "Optimizer | Callable[[BoltzmannMachine], Optimizer] | None" = setting(
        None,
        "PyTorch optimizer for the machine's parameters, or a function that creates the optimizer of a machine.",
        default_text="`momentum_sgd` with the learning rate, momentum and weight decay given here",
    )
    scheduler: "LRScheduler | None" = setting(
        None,
        "PyTorch learning rate scheduler of `optimizer`, stepped after every epoch. `ReduceLROnPlateau` receives the "
        "loss.",
        default_text="none if an optimizer is given, and otherwise a geometric decay",
    )
    validation: "Tensor | None" = setting(
        None,
        "Held-out rows. Their log-likelihood is recorded and, unless `early_stopping` is False, decides when training "
        "stops and which epoch's machine is kept.",
        default_text="none",
    )
    weights: "Tensor | None" = setting(
        None,
        "Weight of each row, shape (N,), for data in memory or in a memory map.",
        default_text="equal weights",
    )
    compile: bool | None = setting(
        None,
        "Whether to compile training steps with `torch.compile`, which takes about a minute and needs torch 2.11.",
        default_text="True for `TAPObjective` on a GPU, if there are enough steps to pay for it",
    )
    warm_start: bool = setting(
        False,
        "Whether to keep the priors of the visible units instead of fitting them to the data first. The default "
        "optimizer then continues at the final learning rate of the machine's previous training. A small learning rate "
        "preserves what the machine has learned, but learning is slow; for longer training, call `fit` once with more "
        "epochs, or set `learning_rate`.",
    )
    monitor: "Monitor | None" = setting(None, "Measurements made after each epoch.", default_text="`Monitor()`")

    @classmethod
    def of(cls, values: Hyperparameters, **others: Any) -> Self:
        """Return options with the given plain values, such as the settings of a run, and with other options by name."""
        return cls(**{declared.name: getattr(values, declared.name) for declared in fields(Hyperparameters)} | others)

    @classmethod
    def changed(cls, options: Self | None, changes: dict[str, Any]) -> Self:
        """Return options, or the defaults, with changes by name, after checking that they go together.

        Raises:
            TypeError: If there is no option with a name.
            ValueError: If options for the default optimizer are combined with another optimizer, or if the scheduler
                belongs to another optimizer.
        """
        known = [declared.name for declared in fields(cls)]
        for name in changes.keys() - known:
            near = get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}"
            raise TypeError(f"there is no training option {name!r}; {hint}")
        if options is not None and not isinstance(options, cls):
            raise TypeError(f"options is a {type(options).__name__}; expected TrainingOptions")
        options = replace(options or cls(), **changes)
        if options.scheduler is not None and getattr(options.scheduler, "optimizer", None) is not options.optimizer:
            raise ValueError("the scheduler belongs to another optimizer; pass its optimizer as well")
        defaults = {declared.name: declared.default for declared in fields(cls)}
        unused = [name for name in OF_DEFAULT_OPTIMIZER if getattr(options, name) != defaults[name]]
        if options.optimizer is not None and unused:
            raise ValueError(f"{' and '.join(unused)} cannot be combined with an optimizer; set them in the optimizer")
        return options


def default_batch_size(n_rows: int) -> int:
    """Return the default batch size: a quarter of the number of rows, but at least 10 and at most 100.

    Example:
        >>> [default_batch_size(n) for n in (5, 100, 60_000)]
        [5, 25, 100]
    """
    return min(n_rows, max(SMALLEST_BATCH, min(LARGEST_BATCH, n_rows // FEWEST_BATCHES)))


def default_epochs(n_batches: int | None) -> int:
    """Return the default number of epochs: enough for 20,000 gradient steps, but at least 50 and at most 300.

    Args:
        n_batches: Number of gradient steps per epoch; None if unknown.

    Example:
        >>> [default_epochs(n) for n in (10, 100, 600)]
        [300, 200, 50]
    """
    if not n_batches:
        return FEWEST_EPOCHS
    return max(FEWEST_EPOCHS, min(MOST_EPOCHS, ENOUGH_STEPS // n_batches))
