"""Several processes that work as one, by torch.distributed. With a single process, nothing is sent.

Every process holds the machine and goes through the same batches in the same order; it works on its share of the rows
and particles, and what they add to the gradients is summed over all. So the result is that of one process, but for
rounding.
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

# What gloo's two threads may still hold. To free a tensor that only they hold takes Python's lock, for which they
# would wait in vain while the group is destroyed, which waits for them (torch 2.5).
_sent: deque[Tensor] = deque(maxlen=2)


class World(NamedTuple):
    """Which of how many processes this is."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """Which of so many things are this one's: consecutive ones, as many as the others' to within one."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)


def world() -> World:
    """The world as it is now."""
    if not (dist.is_available() and dist.is_initialized()):
        return World()
    return World(dist.get_rank(), dist.get_world_size())


def leads() -> bool:
    """Whether this process is the one that speaks, also before they have met."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def together(device: str) -> Iterator[str]:
    """Lets the processes that torchrun has started meet, if it has. Gives the device that is this one's."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or not dist.is_available():
        yield device
        return
    on_cuda = device.startswith("cuda")
    if on_cuda:
        here, n_devices = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if here >= n_devices:
            raise ValueError(f"process {here} of this machine has no GPU, of which there are {n_devices}; start fewer")
        device = f"cuda:{here}"
        torch.cuda.set_device(device)
    # Imported once there is a group, this module's default arguments keep it alive until Python ends, and its threads
    # with it, which abort the process now and then.
    import_module("torch.distributed.nn")
    dist.init_process_group("nccl" if on_cuda else "gloo")
    try:
        yield device
    finally:
        dist.destroy_process_group()
        _sent.clear()


def _sum_over_all(tensor: Tensor) -> None:
    """In place."""
    dist.all_reduce(tensor)
    if not tensor.is_cuda:
        _sent.append(tensor)


def add_up(tensors: Sequence[Tensor]) -> None:
    """Sums tensors of one dtype over all processes, in place, in one go."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    _sum_over_all(flat)
    for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(total.view_as(tensor))


def gathered(share: Tensor) -> Tensor:
    """The shares of all processes, one after another."""
    here = world()
    if here.size == 1:
        return share
    counts = torch.zeros(here.size, dtype=torch.long, device=share.device)
    counts[here.rank] = len(share)
    _sum_over_all(counts)
    first = int(counts[: here.rank].sum())
    whole = share.new_zeros((int(counts.sum()), *share.shape[1:]))
    whole[first : first + len(share)] = share
    _sum_over_all(whole)  # all others are 0 there
    return whole


def gathered_solutions(share: Solution) -> Solution:
    """The solutions of all processes, one after another."""
    if world().size == 1:
        return share
    return Solution(
        tuple(Moments(*(gathered(z) for z in moments)) for moments in share.moments),
        tuple(Tilt(*(gathered(torch.as_tensor(z)) for z in tilt)) for tilt in share.tilts),
        *(gathered(z) for z in (share.free_energy, share.residual, share.n_sweeps, share.status)),
    )


def any_of_all(here: bool) -> bool:
    """Whether it is true for any process; all processes have to call this."""
    if world().size == 1:
        return here
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    count = torch.tensor(int(here), device=device)
    _sum_over_all(count)
    return bool(count)


def wait_for_all() -> None:
    """Until every process has come here."""
    if world().size > 1:
        dist.barrier()
