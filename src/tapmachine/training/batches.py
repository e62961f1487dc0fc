"""Batches of data from tensors, arrays on disk, or loaders."""

import re
import warnings
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tapmachine.data.budget import LARGEST_BATCH, default_batch_size
from tapmachine.data.checks import check_count
from tapmachine.data.errors import TrainingWarning
from tapmachine.data.lazy_rows import LazyRows
from tapmachine.data.rows import SAMPLE_ROWS, Array, Rows, as_tensor, from_array, parts, place_of, spaced
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import check_rows
from tapmachine.training.gaps import Gaps, check_columns, fill_from_columns, has_gaps, take_gaps

Data = Rows | Array | Iterable[Any]
Batch = tuple[Tensor, Tensor | None]  # states of the visible layer, and weights of the rows
IN_MEMORY = "training with missing values requires data in memory, as a tensor"
Place = Tensor | Batch  # location of a batch: indices of rows in memory, or the batch itself otherwise


def check_all_rows(machine: BoltzmannMachine, x: LazyRows | Array) -> None:
    """Validate all rows, so that invalid ones are reported by their index before training starts."""
    if not x.shape:
        raise ValueError("x is a single number; expected rows of numbers")
    for first, part in parts(x):
        if has_gaps(part):
            row, column = part.isnan().nonzero()[0].tolist()[:2]
            place = place_of(first + row, x) if isinstance(x, LazyRows) else f"row {first + row}"
            raise ValueError(f"{place}, column {column} is missing (NaN); {IN_MEMORY}")
        try:
            check_rows(machine, part)
        except ValueError as error:
            within = re.search(r"x\[(\d+)", str(error))  # the row's index in this chunk
            if not within:
                raise
            row = first + int(within[1])
            place = f" ({place_of(row, x)})" if isinstance(x, LazyRows) else ""
            raise ValueError(str(error).replace(within[0], f"x[{row}", 1) + place) from None


class Batches:
    """Batches of equal size, in a new random order in every epoch; an incomplete last batch is dropped.

    Args:
        machine: The machine to train; batches are on its device.
        x: A tensor, which is moved to the machine's device, with NaN for missing values; an array, such as a memory
            map, or rows on disk, which are read batch by batch; or a loader of batches, or of tuples whose first entry
            is a batch.
        batch_size: Number of rows in a batch (default: `default_batch_size`); ignored for a loader.
        weights: Weight of each row.
        seed: Random seed of the order.
        validate: False skips validation of a tensor or an array, which may then contain means of units.
        generator: Random number generator for missing values, on the machine's device.

    Attributes:
        sample: Rows for initial states and monitoring: all, if they are in memory.
        gaps: Missing values and their completions; None if there are none. `rows` and `sample` are complete.
        missing: Mask of the units of the rows in memory that were not observed, (N, n); None if all were.
    """

    def __init__(
        self,
        machine: BoltzmannMachine,
        x: Data,
        batch_size: int | None,
        weights: Tensor | None,
        seed: int,
        validate: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        self.machine, self.device, self.dtype = machine, machine.device, machine.dtype
        self.weights: Tensor | None = None  # 1 on average
        self.sample_weights: Tensor | None = None
        self.order = torch.Generator().manual_seed(seed)
        self.rows: Rows | Array | None = None
        self.gaps: Gaps | None = None
        self.missing: Tensor | None = None
        if type(x) is np.ndarray and x.dtype.kind == "f" and bool(np.isnan(x).any()):
            x = from_array(x, "x")
        if has_gaps(x):
            assert isinstance(x, Tensor)
            self.rows, weights = self._complete(x, weights, seed, generator)
        elif isinstance(x, Tensor):
            self.rows = check_rows(machine, x) if validate else machine.layers[0].check_states(x, validate=False)
        elif isinstance(x, np.ndarray | LazyRows):
            self.rows = x
            if validate:
                check_all_rows(machine, x)
        elif not isinstance(x, Iterable):
            raise ValueError(f"x is a {type(x).__name__}; expected a tensor, an array, or a loader of batches")
        elif isinstance(x, Iterator):
            raise ValueError("the loader can be iterated over only once; it must yield batches in every epoch")
        else:
            self.loader = x
            if weights is not None:
                raise ValueError("weights require data in memory; a loader can repeat rows with larger weight instead")
        wanted = batch_size if batch_size is not None else default_batch_size(self.n_rows or LARGEST_BATCH)
        self.batch_size = check_count("batch_size", wanted)
        if self.rows is not None:
            self._check_sizes(len(self.rows), weights)
        self.sample = self._sample()

    def _complete(
        self, x: Tensor, weights: Tensor | None, seed: int, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor | None]:
        """Rows with an initial completion, and their weights; rows without observed values are dropped."""
        states, missing = take_gaps(self.machine, x)
        assert missing is not None
        check_columns(missing)
        checked = self._check_weights(len(states), weights)
        seen = ~missing.all(1)
        if not bool(seen.all()):
            n_empty = int((~seen).sum())
            warnings.warn(f"rows without any observed value are dropped: {n_empty}", TrainingWarning, stacklevel=5)
            states, missing, checked = states[seen], missing[seen], None if checked is None else checked[seen]
        rows = fill_from_columns(states, missing, checked, seed)
        self.gaps, self.missing = Gaps(self.machine, rows, missing, generator), missing
        return rows, checked

    @property
    def n_rows(self) -> int | None:
        """Number of rows; None for a loader."""
        return None if self.rows is None else len(self.rows)

    @property
    def to_fit(self) -> tuple[Rows, Tensor | None]:
        """Rows to fit visible units to, and their weights: a sample, or all rows if it is small."""
        if isinstance(self.rows, LazyRows) and self.rows.is_sparse and self.machine.layers[0].fits_in_parts:
            return self.rows, self.weights
        return self.sample, self.sample_weights

    @property
    def n_batches(self) -> int | None:
        """Number of batches in an epoch; None for a loader without a length."""
        if self.rows is not None:
            return len(self.rows) // self.batch_size
        try:
            return len(self.loader)  # type: ignore[arg-type]
        except TypeError:
            return None

    def _check_sizes(self, n_rows: int, weights: Tensor | None) -> None:
        if n_rows < self.batch_size:
            raise ValueError(f"batch_size is {self.batch_size}, but there are only {n_rows} rows of data")
        self.weights = self._check_weights(n_rows, weights)

    def _check_weights(self, n_rows: int, weights: Tensor | None) -> Tensor | None:
        """Validate weights and scale them to a mean of 1."""
        if weights is None:
            return None
        try:
            weights = torch.as_tensor(weights, dtype=self.dtype, device=self.device)
        except (TypeError, RuntimeError) as error:
            raise ValueError(f"weights must be numbers, one for each row: {error}") from None
        if weights.shape != (n_rows,):
            raise ValueError(f"weights has shape {tuple(weights.shape)}; expected ({n_rows},), one for each row")
        bad = ~(torch.isfinite(weights) & (weights >= 0))
        if bool(bad.any()) or not bool(weights.sum() > 0):
            raise ValueError("weights must be finite, 0 or more, and not all 0")
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
            raise ValueError("the loader yields no batches")
        self.batch_size = len(first[0])
        return torch.cat(first)

    def _from_loader(self, batch: Any, index: int) -> Tensor:
        if has_gaps(batch[0] if isinstance(batch, tuple | list) else batch):
            raise ValueError(f"batch {index} of the loader has missing values (NaN); {IN_MEMORY}")
        try:
            return check_rows(self.machine, batch[0] if isinstance(batch, tuple | list) else batch)
        except ValueError as error:
            raise ValueError(f"batch {index} of the loader: {error}") from None

    def epoch(self, done: int = 0) -> Iterator[Place]:
        """Iterate over the places of the batches of one epoch, skipping the first `done`."""
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

    def take(self, place: Place) -> Batch:
        """Return the batch at a place; for rows in memory, this can be captured in a CUDA graph."""
        if not isinstance(place, Tensor):
            return place
        assert isinstance(self.rows, Tensor)
        weights = None if self.weights is None else self.weights[place]
        if self.gaps is not None:
            return self.gaps.take(place), weights
        # `index_select` copies whole rows, several times as fast on a CPU as rows[place]
        return self.rows.index_select(0, place), weights

    def _whole_batches(self) -> Iterator[Batch]:
        """Batches of a loader with the size of the first one, because a step has a fixed shape."""
        left_out = 0
        for index, batch in enumerate(self.loader):
            if left_out:
                warnings.warn(
                    f"batch {index - 1} of the loader has {left_out} rows, but the first one had {self.batch_size}; "
                    "it is dropped; use batches of equal size",
                    TrainingWarning,
                    stacklevel=6,
                )
            x = self._from_loader(batch, index)
            left_out = 0 if len(x) == self.batch_size else len(x)
            if not left_out:
                yield x, None
