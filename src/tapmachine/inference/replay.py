"""Steps of an iteration captured as a CUDA graph: fixed shapes, no look at the values, hardly any cost to launch."""

from collections.abc import Callable
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
    """

    def __init__(self, step: Step, state: Any, n_steps: int, generator: torch.Generator | None = None) -> None:
        self.state = over_tensors(lambda z: z.clone(memory_format=torch.contiguous_format), state)
        warm_up = torch.cuda.Stream()
        warm_up.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm_up):  # libraries set themselves up here, and compilers compile
            self._run(step, self.state, 1)
        torch.cuda.current_stream().wait_stream(warm_up)
        self._step = step  # and with it the tensors that the graph reads
        self.graph = torch.cuda.CUDAGraph()
        if generator is not None:
            self.graph.register_generator_state(generator)
        with torch.cuda.graph(self.graph):
            result, self.residual = self._run(step, self.state, n_steps)
            over_tensors(Tensor.copy_, self.state, result)

    @staticmethod
    def _run(step: Step, state: Any, n_steps: int) -> tuple[Any, Tensor]:
        for _ in range(n_steps):
            state, residual = step(state)
        return state, residual

    def __call__(self, state: Any) -> tuple[Any, Tensor]:
        """The state after the steps, and its residual."""
        if state is not self.state:
            over_tensors(Tensor.copy_, self.state, state)
        self.graph.replay()
        return self.state, self.residual
