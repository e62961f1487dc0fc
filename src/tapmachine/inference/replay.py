"""Steps of an iteration captured as a CUDA graph: fixed shapes, no look at the values, hardly any cost to launch.

Very many particles are captured as a few groups of them side by side, each on a stream of its own: while one waits for
memory, another computes.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tapmachine.inference.process import over_tensors

Step = Callable[[Any], tuple[Any, Tensor]]


class Replay:
    """Some steps from one state to another, captured once and replayed.

    The state lives in memory of its own, which every call overwrites: the result is the same object each time.

    Args:
        step: from a state to the next one and its residual, without looking at the values.
        state: nested tuples of tensors on one CUDA device; later states must have the same shapes.
        n_steps: how many steps one call makes.
        generator: that the steps draw from, if they draw: every call goes on where the last one left it.
        n_groups: how many groups of particles to work on side by side; for more than one, the steps must not know how
            many there are, nor draw.
    """

    def __init__(
        self, step: Step, state: Any, n_steps: int, generator: torch.Generator | None = None, n_groups: int = 1
    ) -> None:
        if generator is not None and n_groups > 1:
            raise ValueError("groups of particles cannot draw from one generator side by side")
        self.state = over_tensors(lambda z: z.clone(memory_format=torch.contiguous_format), state)
        groups = _groups(self.state, n_groups)
        with warming_up():
            for group in groups:
                step(group)
        self._step = step  # and with it the tensors that the graph reads
        self.graph = torch.cuda.CUDAGraph()
        if generator is not None:
            self.graph.register_generator_state(generator)
        with torch.cuda.graph(self.graph):
            streams = [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in groups[1:])]
            for stream in streams[1:]:
                stream.wait_stream(streams[0])
            found = [(group, torch.empty(0)) for group in groups]
            try:
                for _ in range(n_steps):  # in turns, so that none gets ahead of the others
                    for number, stream in enumerate(streams):
                        with torch.cuda.stream(stream):
                            found[number] = step(found[number][0])
                for group, (result, _), stream in zip(groups, found, streams, strict=True):
                    with torch.cuda.stream(stream):
                        over_tensors(Tensor.copy_, group, result)
            finally:  # also where memory ran out, for a capture that is not joined cannot end
                for stream in streams[1:]:
                    streams[0].wait_stream(stream)
            residuals = [residual for _, residual in found]
            self.residual = torch.cat(residuals) if len(groups) > 1 else residuals[0]

    def __call__(self, state: Any) -> tuple[Any, Tensor]:
        """The state after the steps, and its residual."""
        if state is not self.state:
            over_tensors(Tensor.copy_, self.state, state)
        self.graph.replay()
        return self.state, self.residual


@contextmanager
def warming_up() -> Iterator[None]:
    """A stream of its own for calls before a capture, in which libraries set themselves up and compilers compile."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TensorFloat32", category=UserWarning)  # that is for users to say
        yield
    torch.cuda.current_stream().wait_stream(stream)


def _groups(state: Any, n_groups: int) -> list[Any]:
    """Views of consecutive particles of a state, in groups of nearly one size."""
    if n_groups == 1:
        return [state]
    return [over_tensors(lambda z, own=own: z.tensor_split(n_groups)[own], state) for own in range(n_groups)]
