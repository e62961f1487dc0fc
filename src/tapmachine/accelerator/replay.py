"""Steps of an iteration captured as a CUDA graph: fixed shapes, no access to the values, hardly any launch cost.

Very many particles are captured as a few groups side by side, each on its own stream: while one waits for memory,
another computes.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tapmachine.accelerator.nested import over_tensors

Step = Callable[[Any], tuple[Any, Tensor]]


class Replay:
    """Some steps from one state to another, captured once and replayed.

    The state is kept in a buffer that every call overwrites: the result is the same object each time.

    Args:
        step: function from a state to the next one and its residual, without access to the values.
        state: nested tuples of tensors on one CUDA device; later states must have the same shapes.
        n_steps: number of steps per call.
        generator: generator that the steps draw from, if they draw; every call continues its sequence.
        n_groups: number of groups of particles to work on side by side. With more than one, the steps must neither draw
            nor depend on the number of particles.
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
            results = [(group, torch.empty(0)) for group in groups]
            try:
                for _ in range(n_steps):  # in turns, so that none gets ahead of the others
                    for i, stream in enumerate(streams):
                        with torch.cuda.stream(stream):
                            results[i] = step(results[i][0])
                for group, (result, _), stream in zip(groups, results, streams, strict=True):
                    with torch.cuda.stream(stream):
                        over_tensors(Tensor.copy_, group, result)
            finally:  # also where memory ran out, for a capture that is not joined cannot end
                for stream in streams[1:]:
                    streams[0].wait_stream(stream)
            residuals = [residual for _, residual in results]
            self.residual = torch.cat(residuals) if len(groups) > 1 else residuals[0]

    def __call__(self, state: Any) -> tuple[Any, Tensor]:
        """The state after the steps, and its residual."""
        if state is not self.state:
            over_tensors(Tensor.copy_, self.state, state)
        self.graph.replay()
        return self.state, self.residual


@contextmanager
def warming_up() -> Iterator[None]:
    """A separate stream for calls before a capture, in which libraries initialize and compilers compile."""
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
    return [over_tensors(lambda z, i=i: z.tensor_split(n_groups)[i], state) for i in range(n_groups)]
