"""Batches of training data from tensors, arrays on disk, or data loaders."""

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tapmachine.data.errors import TrainingWarning, warn
from tapmachine.data.rows import (
    SAMPLE_ROWS,
    Array,
    LazyRows,
    Rows,
    as_tensor,
    from_array,
    has_gaps,
    parts,
    place_of,
    spaced,
)
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_rows, take_gaps
from tapmachine.training.gaps import Gaps, check_columns, fill_from_columns
from tapmachine.training.options import LARGEST_BATCH, TrainingOptions, default_batch_size

Data = Rows | Array | Iterable[Any]
Batch = tuple[Tensor, Tensor | None]  # states of the visible layer, and weights of the rows
IN_MEMORY = "training with missing values requires a tensor in memory"
Selection = Tensor | Batch  # row indices of a batch if the rows are in memory, otherwise the batch itself


def check_all_rows(machine: BoltzmannMachine, x: LazyRows | Array) -> None:
    """Validate all rows before training starts, and report the index of the first invalid row."""
    if not x.shape:
        raise ValueError("x is a scalar; expected an array of rows")
    for first, part in parts(x):
        if has_gaps(part):
            row, column = part.isnan().nonzero()[0].tolist()[:2]
            where = place_of(first + row, x) if isinstance(x, LazyRows) else f"row {first + row}"
            raise ValueError(f"{where}, column {column} is missing (NaN); {IN_MEMORY}")
        try:
            check_rows(machine, part)
        except ValueError as error:
            within = re.search(r"x\[(\d+)", str(error))  # the row's index in this chunk
            if not within:
                raise
            row = first + int(within[1])
            where = f" ({place_of(row, x)})" if isinstance(x, LazyRows) else ""
            raise ValueError(str(error).replace(within[0], f"x[{row}", 1) + where) from None


class Batches:
    """Batches of equal size, in a new random order in every epoch.

    An incomplete last batch is dropped.

    Args:
        machine: Machine to train. Batches are placed on the device of the machine.
        x: Training data. A tensor is moved to the machine's device; NaN marks missing values. Arrays (such as memory
            maps) and rows on disk are read batch by batch. A data loader yields batches, or tuples whose first entry is
            a batch.
        options: Batch size (ignored for a data loader), row weights, and the random seed for shuffling and for the
            initial states of missing units.
        generator: Random number generator for missing values, on the machine's device.

    Attributes:
        sample: Rows used for initialization and monitoring; a subset of the rows if the data are not in memory.
        gaps: Missing values and their current completions; None if no values are missing. `rows` and `sample` contain
            completed rows.
    """

    def __init__(
        self,
        machine: BoltzmannMachine,
        x: Data,
        options: TrainingOptions,
        generator: torch.Generator | None = None,
    ) -> None:
        weights, seed = options.weights, options.seed
        self.machine, self.device, self.dtype = machine, machine.device, machine.dtype
        self.weights: Tensor | None = None  # 1 on average
        self.sample_weights: Tensor | None = None
        self.order = torch.Generator().manual_seed(seed)
        self.rows: Rows | Array | None = None
        self.gaps: Gaps | None = None
        if type(x) is np.ndarray and x.dtype.kind == "f" and bool(np.isnan(x).any()):
            x = from_array(x, "x")
        if has_gaps(x):
            assert isinstance(x, Tensor)
            self.rows, weights = self._complete(x, weights, seed, generator)
        elif isinstance(x, Tensor):
            self.rows = check_rows(machine, x)
        elif isinstance(x, np.ndarray | LazyRows):
            self.rows = x
            check_all_rows(machine, x)
        elif not isinstance(x, Iterable):
            raise ValueError(f"x is a {type(x).__name__}; expected a tensor, an array, or a loader of batches")
        elif isinstance(x, Iterator):
            raise ValueError(
                "the loader can be iterated over only once; expected an iterable that yields batches in every epoch"
            )
        else:
            self.loader = x
            if weights is not None:
                raise ValueError(
                    "weights cannot be used with a data loader; pass the data as an array, or repeat rows in the loader"
                )
        self.batch_size = options.batch_size or default_batch_size(self.n_rows or LARGEST_BATCH)
        if self.rows is not None:
            if len(self.rows) < self.batch_size:
                raise ValueError(f"batch_size is {self.batch_size}, but the data have only {len(self.rows)} rows")
            self.weights = self._check_weights(len(self.rows), weights)
        self.sample = self._sample()

    def _complete(
        self, x: Tensor, weights: Tensor | None, seed: int, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the rows with missing values filled in, and their weights.

        Rows without observed values are dropped.
        """
        states, missing = take_gaps(self.machine, x)
        assert missing is not None
        check_columns(missing)
        checked = self._check_weights(len(states), weights)
        seen = ~missing.all(1)
        if not bool(seen.all()):
            n_empty = int((~seen).sum())
            warn(f"number of rows dropped because they have no observed values: {n_empty}", TrainingWarning)
            states, missing, checked = states[seen], missing[seen], None if checked is None else checked[seen]
        rows = fill_from_columns(states, missing, checked, seed)
        self.gaps = Gaps(self.machine, rows, missing, generator)
        return rows, checked

    @property
    def missing(self) -> Tensor | None:
        """Mask of the missing units of rows in memory, shape (N, n); None if no values are missing."""
        return None if self.gaps is None else self.gaps.missing

    @property
    def n_rows(self) -> int | None:
        """Number of rows, or None for a data loader."""
        return None if self.rows is None else len(self.rows)

    @property
    def to_fit(self) -> tuple[Rows, Tensor | None]:
        """Rows to which the visible units are fitted, and their weights.

        All rows are used if they are sparse and the units can be fitted in chunks. Otherwise, `sample` is used.
        """
        if isinstance(self.rows, LazyRows) and self.rows.is_sparse and self.machine.layers[0].fits_in_parts:
            return self.rows, self.weights
        return self.sample, self.sample_weights

    @property
    def for_learning_rate(self) -> Rows:
        """Rows from which to compute the default learning rate; large sparse rows need not be in memory."""
        return self.rows if isinstance(self.rows, LazyRows) else self.sample

    @property
    def n_batches(self) -> int | None:
        """Number of batches per epoch, or None for a data loader without a length."""
        if self.rows is not None:
            return len(self.rows) // self.batch_size
        try:
            return len(self.loader)  # type: ignore[arg-type]
        except TypeError:
            return None

    def _check_weights(self, n_rows: int, weights: Tensor | None) -> Tensor | None:
        """Validate the weights and scale them to a mean of 1."""
        if weights is None:
            return None
        try:
            weights = torch.as_tensor(weights, dtype=self.dtype, device=self.device)
        except (TypeError, RuntimeError) as error:
            raise ValueError(f"weights cannot be converted to a tensor: {error}; expected one number per row") from None
        if weights.shape != (n_rows,):
            raise ValueError(f"weights has shape {tuple(weights.shape)}; expected ({n_rows},), one weight per row")
        bad = ~(torch.isfinite(weights) & (weights >= 0))
        if bool(bad.any()) or not bool(weights.sum() > 0):
            raise ValueError(
                "weights has negative or non-finite entries, or only zeros; expected finite weights with a positive sum"
            )
        return weights / weights.mean()

    def _from_array(self, x: Tensor | Array) -> Tensor:
        rows = as_tensor(x)
        rows = rows.to(self.device, self.dtype) if rows.is_floating_point() else rows.to(self.device)
        return self.machine.layers[0].check_states(rows, validate=False)

    def _sample(self) -> Tensor:
        if isinstance(self.rows, Tensor):
            self.sample_weights = self.weights
            return self.rows
        if self.rows is not None:
            self.sample_weights = None if self.weights is None else spaced(self.weights, SAMPLE_ROWS)
            return self._from_array(spaced(self.rows, SAMPLE_ROWS))
        first: list[Tensor] = []
        for index, batch in enumerate(self.loader):
            first.append(self._from_loader(batch, index))
            if sum(map(len, first)) >= SAMPLE_ROWS:
                break
        if not first:
            raise ValueError("the loader yielded no batches")
        self.batch_size = len(first[0])
        return torch.cat(first)

    def _from_loader(self, batch: Any, index: int) -> Tensor:
        if has_gaps(batch[0] if isinstance(batch, tuple | list) else batch):
            raise ValueError(f"batch {index} of the loader has missing values (NaN); {IN_MEMORY}")
        try:
            return check_rows(self.machine, batch[0] if isinstance(batch, tuple | list) else batch)
        except ValueError as error:
            raise ValueError(f"batch {index} of the loader: {error}") from None

    def epoch(self, done: int = 0) -> Iterator[Selection]:
        """Iterate over the batches of one epoch, skipping the first `done` batches.

        Yields the row indices of each batch if the rows are in memory; otherwise, yields the batch itself.
        """
        if self.rows is None:
            yield from islice(self._whole_batches(), done, None)
            return
        order = torch.randperm(len(self.rows), generator=self.order)
        order = order[: len(order) // self.batch_size * self.batch_size]
        if isinstance(self.rows, Tensor):
            order = order.to(self.device)  # once per epoch
        for index in order.split(self.batch_size)[done:]:
            if isinstance(self.rows, Tensor):
                yield index
            else:
                x = self._from_array(self.rows[index.numpy()])
                yield x, None if self.weights is None else self.weights[index.to(self.device)]

    def take(self, selection: Selection) -> Batch:
        """Return the batch for an item yielded by `epoch`.

        For rows in memory, the selection can be captured in a CUDA graph.
        """
        if not isinstance(selection, Tensor):
            return selection
        assert isinstance(self.rows, Tensor)
        weights = None if self.weights is None else self.weights[selection]
        if self.gaps is not None:
            return self.gaps.take(selection), weights
        # On a CPU, `index_select` copies whole rows and is several times as fast as rows[selection].
        return self.rows.index_select(0, selection), weights

    def _whole_batches(self) -> Iterator[Batch]:
        """Iterate over the batches of a data loader that have the same size as the first batch.

        Other batches are dropped, because training steps have fixed shapes.
        """
        left_out = 0
        for index, batch in enumerate(self.loader):
            if left_out:
                warn(
                    f"batch {index - 1} of the loader has {left_out} rows and is dropped, because the first batch has "
                    f"{self.batch_size} rows; use batches of equal size",
                    TrainingWarning,
                )
            x = self._from_loader(batch, index)
            left_out = 0 if len(x) == self.batch_size else len(x)
            if not left_out:
                yield x, None
