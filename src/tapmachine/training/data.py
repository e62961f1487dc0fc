"""Batches of data: from tensors, arrays on disk, or any loader."""

from collections.abc import Iterable, Iterator, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tapmachine.likelihood.score import check_rows
from tapmachine.machine import BoltzmannMachine

Data = Tensor | np.ndarray[Any, Any] | Iterable[Any]
Batch = tuple[Tensor, Tensor | None]  # states of the visible layer, and weights of the rows

SAMPLE_ROWS = 10_000  # rows that are looked at where not all are in memory


class Batches:
    """Batches of one size in a random order, a new one in every epoch; rows beyond the last whole batch sit it out.

    Args:
        machine: that the data are for, on whose device they end up.
        x: a tensor, which is moved to the machine's device; an array, as a memory map, which is read batch by batch; or
            a loader of batches, or of tuples whose first entry is one.
        batch_size: rows of each batch; for a loader, what it gives.
        weights: of the rows.
        seed: of the order.
    """

    def __init__(self, machine: BoltzmannMachine, x: Data, batch_size: int, weights: Tensor | None, seed: int) -> None:
        self.machine, self.device, self.dtype = machine, machine.device, machine.dtype
        if isinstance(batch_size, bool) or not (isinstance(batch_size, int) and batch_size >= 1):
            raise ValueError(f"batch_size is {batch_size!r}; it must be a whole number, 1 or more")
        self.batch_size = batch_size
        self.weights: Tensor | None = None
        self.order = torch.Generator().manual_seed(seed)
        self.rows: Tensor | np.ndarray[Any, Any] | None = None
        if isinstance(x, Tensor):
            self.rows = check_rows(self.machine, x)
        elif isinstance(x, np.ndarray):
            self.rows = x
        else:
            self.loader = x
            if weights is not None:
                raise ValueError("weights go with data in memory; let the loader give batches of what counts more")
        if self.rows is not None:
            self._check_sizes(len(self.rows), weights)
        self.sample = self._sample()  # rows for starts and for monitoring

    @property
    def n_batches(self) -> int | None:
        """In an epoch; None for a loader that does not say."""
        if self.rows is not None:
            return len(self.rows) // self.batch_size
        return len(self.loader) if isinstance(self.loader, Sized) else None

    def _check_sizes(self, n_rows: int, weights: Tensor | None) -> None:
        if n_rows < self.batch_size:
            raise ValueError(f"batch_size is {self.batch_size}, but there are only {n_rows} rows of data")
        if weights is None:
            return
        weights = torch.as_tensor(weights, dtype=self.dtype, device=self.device)
        if weights.shape != (n_rows,):
            raise ValueError(f"weights has shape {tuple(weights.shape)}; it must be ({n_rows},), one for each row")
        bad = ~(torch.isfinite(weights) & (weights >= 0))
        if bool(bad.any()) or not bool(weights.sum() > 0):
            raise ValueError("weights must be finite, 0 or more, and not all 0")
        self.weights = weights

    def _sample(self) -> Tensor:
        if isinstance(self.rows, Tensor):
            return self.rows
        if self.rows is not None:
            step = -(-len(self.rows) // SAMPLE_ROWS)
            return check_rows(self.machine, torch.from_numpy(np.array(self.rows[::step])))
        found: list[Tensor] = []
        for batch in self.loader:
            found.append(self._from_loader(batch))
            if sum(map(len, found)) >= SAMPLE_ROWS:
                break
        if not found:
            raise ValueError("the loader gives no batches")
        self.batch_size = len(found[0])
        return torch.cat(found)

    def _from_loader(self, batch: Any) -> Tensor:
        return check_rows(self.machine, batch[0] if isinstance(batch, tuple | list) else batch)

    def __iter__(self) -> Iterator[Batch]:
        """One epoch."""
        if self.rows is None:
            for batch in self.loader:
                x = self._from_loader(batch)
                if len(x) == self.batch_size:  # a last one that is smaller would have another shape
                    yield x, None
            return
        order = torch.randperm(len(self.rows), generator=self.order)
        order = order[: len(order) // self.batch_size * self.batch_size]
        if isinstance(self.rows, Tensor):
            order = order.to(self.device)  # once an epoch
        for index in order.split(self.batch_size):
            if isinstance(self.rows, Tensor):
                x = self.rows[index]
            else:
                x = check_rows(self.machine, torch.from_numpy(self.rows[index.numpy()]))
            yield x, None if self.weights is None else self.weights[index.to(self.device)]
