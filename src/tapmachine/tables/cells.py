"""What a fitted machine says about cells of a table: probabilities, predictions, intervals, surprise and draws.

The functions take a machine, the codec of its data, and encoded rows of shape (N, n_components), in which missing cells
are NaN in all of their components. Results are in the units of the data.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tapmachine.data.checks import check_level
from tapmachine.data.columns import RawColumn
from tapmachine.data.text import columns_as_cells
from tapmachine.exact import Conditioned, mixture_of
from tapmachine.likelihood.sampling import equilibrium
from tapmachine.likelihood.tap import clamped_log_weight
from tapmachine.likelihood.unbiased import LogPartition, unbiased_log_likelihood
from tapmachine.likelihood.weight import log_weight
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_rows, in_double, take_gaps
from tapmachine.machine.conditioning import clamp
from tapmachine.machine.sampler import gibbs
from tapmachine.posterior import denoise
from tapmachine.posterior.channels import Missing
from tapmachine.solver import TAP
from tapmachine.tables.chains import Chained
from tapmachine.tables.codec import Codec
from tapmachine.tables.schema import Column
from tapmachine.training.gaps import draw_missing

Array = np.ndarray[Any, Any]

CANDIDATE_ROWS = 2**16  # maximum number of rows per batch


def posterior_of(machine: BoltzmannMachine, x: Tensor) -> Conditioned | Chained:
    """Return the posterior of missing cells: exact for mixtures, such as the default machine of most tables."""
    mixture = mixture_of(machine)
    return Chained(machine, x) if mixture is None else mixture.condition(x)


def probabilities(
    machine: BoltzmannMachine, codec: Codec, x: Tensor, column: str
) -> Array:  # (N, n_components), (N, q)
    """Compute the probability of each value of a categorical or binary column given the other columns.

    The probabilities are exact for the default machine of a table, and for rows of other machines with one hidden layer
    whose other columns are complete. The probability of a value is then the normalized weight of the row in which the
    column has this value. Otherwise, missing values in other columns are marginalized with TAP.

    Raises:
        ValueError: If the column is unknown or numeric.
    """
    target, where = codec.column(column)
    if not target.is_category:
        cure = f"; if they are classes, fit with columns={{{column!r}: 'categorical'}}" if target.type == "int" else ""
        raise ValueError(
            f"column {column!r} is {target.kind}; expected a categorical or binary column. For numbers, use predict"
            f"{cure}"
        )
    x = x.clone()
    x[:, where] = torch.nan
    if len(target.categories) == 1 or mixture_of(machine) is not None:
        return shares(target, posterior_means(machine, x)[:, where])
    others = torch.cat((x[:, : where.start], x[:, where.stop :]), 1)
    gappy = others.isnan().any(1)
    states = torch.eye(where.stop - where.start) if target.kind == "categorical" else torch.tensor([[0.0], [1.0]])
    result = np.empty((len(x), len(states)))
    for rows in (~gappy).nonzero().flatten().split(max(1, CANDIDATE_ROWS // len(states))):
        candidates = x[rows].repeat_interleave(len(states), 0)
        candidates[:, where] = states.to(x).repeat(len(rows), 1)
        log_joint = log_weights(machine, candidates).view(len(rows), len(states))
        result[rows.cpu().numpy()] = log_joint.softmax(1).cpu().numpy()
    if bool(gappy.any()):
        result[gappy.cpu().numpy()] = shares(target, posterior_means(machine, x[gappy])[:, where])
    return result


def log_weights(machine: BoltzmannMachine, x: Tensor) -> Tensor:  # (N, n) -> (N,)
    """Return ln P + ln Z of complete rows, by TAP for several hidden layers."""
    states = check_rows(machine, x).to(machine.dtype)
    return clamped_log_weight(machine, states, TAP()) if len(machine.layers) > 2 else log_weight(machine, states)


def log_likelihoods(machine: BoltzmannMachine, codec: Codec, x: Tensor, partition: LogPartition) -> Array:  # -> (N,)
    """Compute ln P of the observed cells of each row, with ln Z from `unbiased_log_partition`."""
    states, missing = take_gaps(machine, x)
    values: Array = unbiased_log_likelihood(machine, states, partition, missing=missing).values.cpu().numpy()
    return values if codec.schema is None else values - codec.log_scale(x.double().cpu().numpy())


def posterior_means(machine: BoltzmannMachine, x: Tensor) -> Array:  # (N, n_components)
    """Compute the posterior means of the components of rows with missing cells."""
    means: Array = posterior_of(machine, x).moments.mean.cpu().numpy()
    return means


def shares(column: Column, mean: Array) -> Array:  # (N, width) -> (N, q)
    """Return the probability of each value of a binary or categorical column, given the means of its components."""
    if len(column.categories) == 1:  # a constant column
        return np.ones((len(mean), 1))
    return np.concatenate((1 - mean, mean), 1) if column.kind == "binary" else mean


def impute(machine: BoltzmannMachine, x: Tensor, examples: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute posterior means, or most probable categories of plain arrays, and standard deviations of all cells.

    Args:
        machine: Machine of any type.
        x: Rows with missing cells.
        examples: Rows from which additional solutions start, if the posterior is not exact.
    """
    mixture = mixture_of(machine)
    if mixture is not None:
        moments = mixture.condition(x).moments
        return moments.mean, moments.variance.clamp(min=0).sqrt()
    posterior = denoise(in_double(machine), x, Missing(), data=examples)
    return posterior.values, posterior.deviation


def prediction(
    machine: BoltzmannMachine, codec: Codec, x: Tensor, column: str, level: float | None = 0.9
) -> list[RawColumn]:
    """Predict a column from the other columns: the most probable category, or the posterior mean of a number.

    Returns:
        The predicted column, followed by the probability of each category, or by the ends of the intervals of numbers
        if `level` is not None.
    """
    target, where = codec.column(column)
    if target.is_category:
        chosen = probabilities(machine, codec, x, column)
        best = target.decode(1 - chosen[:, :1] if target.kind == "binary" else chosen)
        names = [str(value) for value in target.categories]
        return [best, *(RawColumn(n, "float", z, "float64") for n, z in zip(names, chosen.T, strict=True))]
    x = x.clone()
    x[:, where] = torch.nan
    posterior = posterior_of(machine, x)
    ends = () if level is None else posterior.intervals(level)
    found = zip((column, "lower", "upper"), (posterior.moments.mean, *ends), strict=False)
    return [replace(target.decode(values[:, where].cpu().numpy()), name=name) for name, values in found]


def intervals(machine: BoltzmannMachine, codec: Codec, x: Tensor, level: float = 0.9) -> list[Any]:
    """Compute central credible intervals of missing numbers.

    Args:
        machine, codec, x: See the module.
        level: Probability that an interval contains the missing value (default: 0.9).

    Returns:
        The lower and upper ends: lists of the columns with numbers for tables with a schema, otherwise arrays. For
        observed cells, both ends are equal to the observed value.
    """
    check_level(level)
    numbers = [] if codec.schema is None else [own for own in codec.schema.columns if not own.is_category]
    if codec.schema is not None and not numbers:
        return [[], []]
    ends = [end.cpu().numpy() for end in posterior_of(machine, x).intervals(level)]
    if codec.schema is None:
        return ends
    return [[own.decode(end[:, codec.schema.components[own.name]]) for own in numbers] for end in ends]


def gap_table(machine: BoltzmannMachine, codec: Codec, x: Tensor, level: float = 0.9) -> list[RawColumn]:
    """Create a table with one line per missing cell.

    Each line has the row, the column, the imputed value, and either the ends of the interval or the probabilities of
    the categories.
    """
    posterior = posterior_of(machine, x)
    mean, missing = posterior.moments.mean.cpu().numpy(), x.isnan().cpu().numpy()
    ends = [end.cpu().numpy() for end in posterior.intervals(level)]
    lines: list[tuple[int, int, list[str]]] = []
    for place, column in enumerate(codec.schema.columns if codec.schema else ()):
        _, where = codec.column(column.name)
        rows = np.flatnonzero(missing[:, where].any(1))
        cells = [columns_as_cells([column.decode(z[rows][:, where])]) for z in (mean, *ends)] if len(rows) else []
        chosen = shares(column, mean[rows][:, where]) if column.is_category else None
        for number, row in enumerate(rows.tolist()):
            value, lower, upper = (own[number][0] for own in cells)
            words = ""
            if chosen is not None:
                pairs = zip(column.categories, chosen[number], strict=True)
                lower, upper, words = "", "", "; ".join(f"{name} {share:.4g}" for name, share in pairs)
            lines.append((row, place, [column.name, value, lower, upper, words]))
    lines.sort(key=lambda line: line[:2])
    numbers = RawColumn("row", "int", np.array([line[0] for line in lines], np.float64), "int64")
    texts = [
        RawColumn.of(name, [line[2][place] or None for line in lines], "text")
        for place, name in enumerate(("column", "value", "lower", "upper", "probabilities"))
    ]
    return [numbers, *(replace(own, type="text") for own in texts)]


def surprise(
    machine: BoltzmannMachine, codec: Codec, x: Tensor, standardized: bool = False
) -> Array:  # (N, n_components) -> (N, n_columns)
    """Compute the surprise −ln P(x_ij | other cells of the row) of each cell in nats; NaN for missing cells.

    If `standardized` is True, numbers are in units of the standard deviation of their column, so that the surprise of
    different columns can be compared. Otherwise, they are in the units of the data.
    """
    posterior = posterior_of(machine, x)
    cells = posterior.cell_surprise()
    if standardized and isinstance(posterior, Conditioned):
        real = posterior.mixture.real
        cells[:, real] -= posterior.mixture.moments().variance[real].sqrt().log()
    values: Array = cells.cpu().numpy()
    if codec.schema is None:
        return values
    return codec.schema.by_column(values) + (0.0 if standardized else codec.schema.log_scales)


@torch.no_grad()
def draw(
    machine: BoltzmannMachine,
    count: int,
    rows: Callable[[], Tensor | None],
    n_sweeps: int,
    generator: torch.Generator,
    given: Tensor | None = None,
    from_data: bool = False,
) -> Tensor:  # (count, *state_shape)
    """Draw rows. Rows of mixtures, such as the machine of a table, are exact; otherwise, chains are annealed.

    Args:
        machine: Machine to sample from.
        count: Number of rows.
        rows: Function that returns rows near which the machine may have modes. It is not called for mixtures.
        n_sweeps: Number of Gibbs sweeps per chain, after annealing.
        generator: Random number generator on the machine's device.
        given: Row of fixed values, with NaN for the values to draw (default: all values are drawn).
        from_data: Whether Gibbs chains start from rows instead of annealed states (default: False).

    Example:
        >>> import torch
        >>> from tapmachine import Binary, Categorical, Gaussian, Mixed, rbm
        >>> from tapmachine.tables.cells import draw
        >>> machine = rbm(Mixed([Gaussian(1), Binary(1)]), Categorical(1, 2), torch.tensor([[2.0, -2.0], [9.0, -9.0]]))
        >>> given, generator = torch.tensor([9.0, torch.nan]), torch.Generator().manual_seed(0)
        >>> draw(machine, 3, lambda: None, 10, generator, given)[:, 1]
        tensor([1., 1., 1.], dtype=torch.float64)
    """
    mixture = mixture_of(machine)
    if mixture is not None:
        if given is None:
            return mixture.sample(count, generator)
        return mixture.condition(given.unsqueeze(0)).draws(count, generator)[:, 0]
    row, missing = (None, None) if given is None else take_gaps(machine, given.unsqueeze(0))
    if row is not None and missing is None:
        return row.expand(count, *row.shape[1:]).clone()
    if not from_data:
        seed = int(torch.randint(2**31, (1,), generator=generator, device=generator.device))
        if row is None or missing is None:
            return equilibrium(machine, count, rows(), n_sweeps, seed).states[0]
        conditioned = clamp(machine, row[0], mask=~missing[0], validate=False)
        return equilibrium(conditioned, count, None, n_sweeps, seed).states[0]
    examples = rows()
    if examples is None:
        raise ValueError("chains cannot start from data, because the data are not available")
    chosen = torch.randint(len(examples), (count,), generator=generator, device=generator.device)
    states = check_rows(machine, examples[chosen])
    if row is None or missing is None:
        return gibbs(machine, states, n_sweeps, generator)[0]
    drawn = missing.view(*missing.shape, *[1] * (states.dim() - 2))
    states = torch.where(drawn, states, row.to(states))
    return draw_missing(machine, states, missing.expand(len(states), -1), max(1, n_sweeps), generator)
