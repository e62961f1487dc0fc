"""The default optimizer, the default learning rate, and its decay."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import ExponentialLR

from tapmachine.beliefs import Tilt
from tapmachine.data.checks import check_count, check_tensor
from tapmachine.data.rows import LazyRows, Rows, rows_at_a_time, spaced
from tapmachine.exact.gaussian import is_gaussian
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_rows
from tapmachine.training.factors import largest_variance
from tapmachine.units import Gaussian

SLOWEST, FASTEST, TYPICAL_ROWS, AT_TYPICAL = 4.0, 8.0, 1500, 5.0
GROWTH, LARGEST_RATE, SOME_ROWS = 0.027, 2.0, 2000
POWER_STEPS = 8  # enough to estimate the largest variance of rows outside of memory to a few percent
LARGEST_OF_GAUSSIAN = 0.5  # with Gaussian visible units: at larger rates, steps in ln V overshoot for large means
PACE_OF_DEEP = 0.55  # factor applied to the learning rate of machines with several hidden layers


def momentum_sgd(
    machine: BoltzmannMachine,
    learning_rate: float = 0.005,
    momentum: float = 0.5,
    weight_decay: float = 0.001,
) -> SGD:
    """SGD with momentum and an ℓ2 penalty on the weights, as in the paper (erratum E4).

    The weights are updated by v ← γ(ΔW − εW) + ηv, W ← W + v. On a GPU, the learning rate is a tensor, so that a
    captured step uses its current value.

    Args:
        machine: Machine to train.
        learning_rate, momentum, weight_decay: Learning rate γ, momentum η and weight decay ε of the paper's Table I
            [tab:params].

    Example:
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.training import momentum_sgd
        >>> len(momentum_sgd(rbm(Binary(4), Binary(2))).param_groups)
        2
    """
    weights = list(machine.weights)
    others = [p for p in machine.parameters() if not any(p is w for w in weights)]
    on_cuda = machine.device.type == "cuda"
    groups: list[dict[str, Any]] = [{"params": weights, "weight_decay": weight_decay}, {"params": others}]
    for group in groups:  # separate tensors: a shared one would be reduced twice after a divergence
        group["lr"] = torch.tensor(learning_rate, device=machine.device) if on_cuda else learning_rate
    return SGD(groups, lr=learning_rate, momentum=momentum, fused=True)


def default_learning_rate(machine: BoltzmannMachine, x: Rows, n_rows: int | None = None) -> float:
    """Compute the initial learning rate from the scale and the size of the data.

    For binary MNIST, the result is 0.16. Small weights grow by a factor of 1 + γλc per step, where λ is the largest
    variance of the data in any direction and c is the variance of a hidden unit. The learning rate γ is chosen such
    that γλc is 0.027 times a factor from 4 to 8, which depends on the number of rows (`pace`). With several hidden
    layers, the learning rate is 0.55 times as large.

    With Gaussian visible and hidden units, c is the largest variance of the hidden units. Training starts at the
    maximum of the likelihood, where the curvature is 2λc. For these machines, λ is at least 1 and the factor is 1.

    Args:
        machine: Machine to train.
        x: Data, shape (N, n_visible), which need not be in memory. A sample of the rows is sufficient.
        n_rows: Total number of rows (default: the number of rows of `x`).

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.training import default_learning_rate
        >>> 0 < default_learning_rate(rbm(Binary(4), Binary(2)), torch.eye(4)) < 10
        True
    """
    if isinstance(x, LazyRows) and x.most_sampled < min(len(x), SOME_ROWS):
        spread = _largest_variance_of_rows(machine, x)
        x = spaced(x, SOME_ROWS)
    else:
        x = check_rows(machine, spaced(x, SOME_ROWS)) if isinstance(x, LazyRows) else check_tensor(x)
        if x.dim() < 2 or x.numel() == 0:
            raise ValueError(f"x has shape {tuple(x.shape)}; expected (N, n_visible) with at least one row")
        rows = spaced(x, SOME_ROWS).flatten(1).double()
        if not bool(torch.isfinite(rows).all()):
            raise ValueError("x contains non-finite values; expected finite numbers")
        spread = torch.linalg.matrix_norm(rows - rows.mean(0), ord=2) ** 2 / len(rows)
    hidden_variance, factor = 0.25, pace(n_rows or len(x)) * (PACE_OF_DEEP if len(machine.layers) > 2 else 1.0)
    if is_gaussian(machine):
        spread = spread.clamp(min=1.0)  # the curvature in the hidden fields is c
        hidden_variance, factor = largest_variance(machine), 1.0
    elif len(machine.layers) > 1:
        above = machine.layers[1]
        nothing = torch.zeros((1, *above.state_shape), dtype=above.dtype, device=above.device)
        hidden_variance = float(above.moments(Tilt(nothing, 0.0)).variance.detach().mean())
    largest = LARGEST_OF_GAUSSIAN if isinstance(machine.layers[0], Gaussian) else LARGEST_RATE
    return min(largest, factor * GROWTH / max(float(spread) * hidden_variance, 1e-12))


def pace(n_rows: int) -> float:
    """Return a factor for the learning rate, from 4 for small data sets, which overfit quickly, to 8 for large ones."""
    return min(FASTEST, max(SLOWEST, AT_TYPICAL * math.sqrt(n_rows / TYPICAL_ROWS)))


def _largest_variance_of_rows(machine: BoltzmannMachine, x: LazyRows) -> Tensor:
    """Estimate the largest variance in any direction by power iteration, reading at most 2000 rows in chunks."""
    chosen = torch.arange(0, len(x), -(-len(x) // SOME_ROWS))

    def parts() -> Iterator[Tensor]:
        for indices in chosen.split(rows_at_a_time(x.shape[1])):
            yield check_rows(machine, torch.from_numpy(x[indices.numpy()])).flatten(1).double()

    nothing = torch.zeros((), dtype=torch.float64, device=machine.device)
    mean = sum((part.sum(0) for part in parts()), nothing) / len(chosen)
    direction = torch.randn(mean.shape, generator=torch.Generator().manual_seed(0)).to(mean)
    for _ in range(POWER_STEPS):
        direction = direction / direction.norm()
        centered = (part - mean for part in parts())
        direction = sum((part.T @ (part @ direction) for part in centered), nothing) / len(chosen)
    largest: Tensor = direction.norm()
    return largest


def geometric_decay(optimizer: Optimizer, factor: float, epochs: int) -> ExponentialLR:
    """Create a scheduler that decays the learning rate geometrically, by a factor of `factor` over `epochs` epochs.

    Example:
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.training import geometric_decay, momentum_sgd
        >>> optimizer = momentum_sgd(rbm(Binary(4), Binary(2)), learning_rate=0.02)
        >>> round(geometric_decay(optimizer, factor=0.01, epochs=50).gamma ** 50, 6)
        0.01
    """
    if not 0 < factor <= 1:
        raise ValueError(f"factor is {factor!r}; expected a number in (0, 1]")
    return ExponentialLR(optimizer, factor ** (1 / check_count("epochs", epochs)))


def can_be_captured(optimizer: Optimizer) -> bool:
    """Return whether the optimizer's step can be part of a CUDA graph and use the current learning rate."""
    groups = optimizer.param_groups
    return all(isinstance(g["lr"], torch.Tensor) and (g.get("fused") or g.get("capturable")) for g in groups)
