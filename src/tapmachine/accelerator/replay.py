"""Capture of iteration steps as CUDA graphs, which removes most of the overhead of launching kernels.

Captured steps require fixed shapes and cannot read values back from the device. Large numbers of particles are split
into a few groups that run concurrently, each on a separate stream, so that one group computes while another waits for
memory.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tapmachine.beliefs import over_tensors

Step = Callable[[Any], tuple[Any, Tensor]]


class Replay:
    """CUDA graph of several iteration steps, captured once and replayed on every call.

    The state is stored in a buffer that every call overwrites, so all calls return the same tensors.

    Args:
        step: Function that maps a state to the next state and its residual, without reading values from the device.
        state: Initial state, nested tuples of tensors on one CUDA device. Later states must have the same shapes.
        n_steps: Number of steps per call.
        generator: Random number generator used by the steps; every call continues its sequence.
        n_groups: Number of groups of particles that run concurrently. With more than one group, the steps must be
            deterministic and independent of the number of particles.
    """

    def __init__(
        self, step: Step, state: Any, n_steps: int, generator: torch.Generator | None = None, n_groups: int = 1
    ) -> None:
        if generator is not None and n_groups > 1:
            raise ValueError(f"n_groups is {n_groups}; concurrent groups cannot share a generator")
        self.state = over_tensors(lambda z: z.clone(memory_format=torch.contiguous_format), state)
        groups = _groups(self.state, n_groups)
        with warming_up():
            for group in groups:
                step(group)
        self._step = step  # also keeps alive the tensors that the graph reads
        self.graph = torch.cuda.CUDAGraph()
        if generator is not None:
            self.graph.register_generator_state(generator)
        with torch.cuda.graph(self.graph):
            streams = [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in groups[1:])]
            for stream in streams[1:]:
                stream.wait_stream(streams[0])
            results = [(group, torch.empty(0)) for group in groups]
            try:
                for _ in range(n_steps):  # alternating, so that no group gets ahead of the others
                    for i, stream in enumerate(streams):
                        with torch.cuda.stream(stream):
                            results[i] = step(results[i][0])
                for group, (result, _), stream in zip(groups, results, streams, strict=True):
                    with torch.cuda.stream(stream):
                        over_tensors(Tensor.copy_, group, result)
            finally:  # also if memory ran out: a capture cannot end before its streams are joined
                for stream in streams[1:]:
                    streams[0].wait_stream(stream)
            residuals = [residual for _, residual in results]
            self.residual = torch.cat(residuals) if len(groups) > 1 else residuals[0]

    def __call__(self, state: Any) -> tuple[Any, Tensor]:
        """Replay the captured steps from a state; return the final state and its residual."""
        if state is not self.state:
            over_tensors(Tensor.copy_, self.state, state)
        self.graph.replay()
        return self.state, self.residual


@contextmanager
def warming_up() -> Iterator[None]:
    """Context manager that runs warm-up calls on a separate stream, as required before capturing a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TensorFloat32", category=UserWarning)  # tf32 is the user's choice
        yield
    torch.cuda.current_stream().wait_stream(stream)


def _groups(state: Any, n_groups: int) -> list[Any]:
    """Split a state into views of consecutive particles, in groups of nearly equal size."""
    if n_groups == 1:
        return [state]
    return [over_tensors(lambda z, i=i: z.tensor_split(n_groups)[i], state) for i in range(n_groups)]
