"""A training step as a CUDA graph."""

import gc
from collections.abc import Callable

import torch
from torch import Tensor

from tapmachine.inference.replay import warming_up
from tapmachine.training.data import Batch, Batches, Place
from tapmachine.training.step import Step, StepResult, optimizer_tensors

WARM_UP = 3  # steps before a capture


class CapturedStep:
    """A step captured as a CUDA graph, with the gathering of its rows: the same, with hardly any cost to launch. Of
    several processes it is two graphs, between which they meet.

    Args:
        step: on batches of a fixed size.
        batches: that it takes its rows from.
        place: where one of them is.
    """

    def __init__(self, step: Step, batches: Batches, place: Place) -> None:
        self.step, self.batches = step, batches  # whose tensors the graph reads
        self.place = place.clone() if isinstance(place, Tensor) else _copied(place)
        before = _snapshot(step)
        with warming_up():
            for _ in range(WARM_UP):
                step(*batches.take(self.place))
        gc.collect()  # nodes of gradients that belong to the warm-up's stream, which a compiler may have left in cycles
        self.graphs = [torch.cuda.CUDAGraph() for _ in range(1 if step.world.size == 1 else 2)]
        self.graphs[0].register_generator_state(step.generator)
        with torch.cuda.graph(self.graphs[0]):
            self.found = step.gradients(*batches.take(self.place))
            if len(self.graphs) == 1:
                self.result = step.update(self.found)
        if len(self.graphs) == 2:
            with torch.cuda.graph(self.graphs[1]):
                self.result = step.update(self.found)
        before()

    def __call__(self, place: Place) -> StepResult:
        """A step on the batch in that place."""
        if isinstance(self.place, Tensor):
            assert isinstance(place, Tensor)
            self.place.copy_(place)
        else:
            for own, given in zip(self.place, place, strict=True):
                if own is not None and given is not None:
                    own.copy_(given)
        self.graphs[0].replay()
        if len(self.graphs) == 2:
            self.step.add_up(self.found)
            self.graphs[1].replay()
        return StepResult(*self.result.clone())  # the next replay overwrites it


def _copied(batch: Batch) -> Batch:
    x, weights = batch
    return x.clone(), None if weights is None else weights.clone()


def _snapshot(step: Step) -> Callable[[], None]:
    """Puts parameters, momentum and chains back to what they are now, in place."""
    own = [*step.parameters, *step.last_good, *step.carry, *step.offsets]
    tensors = [*own, *(value for _, value in optimizer_tensors(step.optimizer))]
    saved = {id(tensor): tensor.detach().clone() for tensor in tensors}
    generator_state = step.generator.get_state()

    @torch.no_grad()
    def restore() -> None:
        for tensor in (*own, *(value for _, value in optimizer_tensors(step.optimizer))):
            tensor.copy_(saved[id(tensor)] if id(tensor) in saved else torch.zeros_like(tensor))
        step.generator.set_state(generator_state)

    return restore
