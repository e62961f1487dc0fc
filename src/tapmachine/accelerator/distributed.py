"""Data parallelism over several processes with torch.distributed.

Every process holds a copy of the machine and iterates over the same batches in the same order. Each process handles a
share of the rows and particles, and the gradients are summed over all processes. The result equals that of a single
process up to rounding errors. Without a process group, the functions of this module do not communicate.
"""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from tapmachine.beliefs import Moments, Solution, Tilt
from tapmachine.data.errors import SettingsError

# Tensors that gloo's two threads may still hold. Freeing a tensor requires Python's global lock, which causes a
# deadlock if the process group is being destroyed and waits for these threads (torch 2.5).
_sent: deque[Tensor] = deque(maxlen=2)


class World(NamedTuple):
    """Rank of the current process and number of processes."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether the current process is the one that writes files and prints output (rank 0)."""
        return self.rank == 0

    def part(self, count: int) -> slice:
        """Return the slice of `count` items that belongs to this process.

        The shares of any two processes differ by at most one item.
        """
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)


def world() -> World:
    """Return the rank and the number of processes of the current process group."""
    if not (dist.is_available() and dist.is_initialized()):
        return World()
    return World(dist.get_rank(), dist.get_world_size())


def leads() -> bool:
    """Return whether the current process has rank 0; can be called before the process group exists."""
    return os.environ.get("RANK", "0") == "0"


def pick_device(name: str) -> str:
    """Return the device for a name: cpu, cuda, or auto (a GPU if available)."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise SettingsError("device is 'cuda', but no CUDA device is available; use cpu")
    if name not in ("cpu", "cuda"):
        raise SettingsError(f"device is {name!r}; expected cpu, cuda or auto")
    return name


@contextmanager
def together(device: str) -> Iterator[str]:
    """Join the process group if the process was started by torchrun, and yield the device of this process."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or not dist.is_available():
        yield device
        return
    on_cuda = device.startswith("cuda")
    if on_cuda:
        here, n_devices = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if here >= n_devices:
            raise ValueError(f"process {here} has no GPU; found {n_devices}, expected one GPU per process")
        device = f"cuda:{here}"
        torch.cuda.set_device(device)
    # If this module is imported while a group exists, its default arguments keep the group and its threads alive until
    # Python exits, and these threads occasionally abort the process.
    import_module("torch.distributed.nn")
    dist.init_process_group("nccl" if on_cuda else "gloo")
    try:
        yield device
    finally:
        dist.destroy_process_group()
        _sent.clear()


def _sum_over_all(tensor: Tensor) -> None:
    """Sum a tensor over all processes, in place."""
    dist.all_reduce(tensor)
    if not tensor.is_cuda:
        _sent.append(tensor)


def add_up(tensors: Sequence[Tensor]) -> None:
    """Sum tensors of the same dtype over all processes, in place and in a single all-reduce."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    _sum_over_all(flat)
    for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(total.view_as(tensor))


def gathered(part: Tensor) -> Tensor:
    """Concatenate the tensors of all processes along the first dimension, in the order of the ranks."""
    here = world()
    if here.size == 1:
        return part
    counts = torch.zeros(here.size, dtype=torch.long, device=part.device)
    counts[here.rank] = len(part)
    _sum_over_all(counts)
    first = int(counts[: here.rank].sum())
    whole = part.new_zeros((int(counts.sum()), *part.shape[1:]))
    whole[first : first + len(part)] = part
    _sum_over_all(whole)  # the entries of the other processes are 0 here
    return whole


def gathered_solutions(part: Solution) -> Solution:
    """Concatenate the solutions of all processes, in the order of the ranks."""
    if world().size == 1:
        return part
    return Solution(
        tuple(Moments(*(gathered(z) for z in moments)) for moments in part.moments),
        tuple(Tilt(*(gathered(torch.as_tensor(z)) for z in tilt)) for tilt in part.tilts),
        *(gathered(z) for z in (part.free_energy, part.residual, part.n_sweeps, part.status)),
    )


def any_of_all(here: bool) -> bool:
    """Return whether the flag is true in any process; must be called by all processes."""
    if world().size == 1:
        return here
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    count = torch.tensor(int(here), device=device)
    _sum_over_all(count)
    return bool(count)


def wait_for_all() -> None:
    """Wait until every process has reached this call."""
    if world().size > 1:
        dist.barrier()
