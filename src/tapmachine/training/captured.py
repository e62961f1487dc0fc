"""Training steps captured as CUDA graphs."""

import gc
from collections.abc import Callable

import torch
from torch import Tensor

from tapmachine.accelerator.replay import warming_up
from tapmachine.training.batches import Batch, Batches, Selection
from tapmachine.training.step import Step, StepResult, optimizer_tensors

WARM_UP = 3  # number of steps before a capture


class CapturedStep:
    """Training step captured as a CUDA graph, including the selection of its rows.

    A captured step gives the same result as the original one, with little launch overhead. With several processes, the
    step is captured as two graphs, and the gradients are summed over all processes after the first graph.

    Args:
        step: Training step on batches of a fixed size.
        batches: Batches of the training data.
        selection: Item yielded by `Batches.epoch`, used to capture the step.
    """

    def __init__(self, step: Step, batches: Batches, selection: Selection) -> None:
        self.step, self.batches = step, batches  # keeps alive the tensors that the graph reads
        self.selection = selection.clone() if isinstance(selection, Tensor) else _copied(selection)
        restore = _snapshot(step)
        completed = None if batches.gaps is None else batches.gaps.completions
        with warming_up():
            for _ in range(WARM_UP):
                step(*batches.take(self.selection))
        gc.collect()  # frees gradient nodes of the warm-up's stream, which a compiler may have left in reference cycles
        self.graphs = [torch.cuda.CUDAGraph() for _ in range(1 if step.world.size == 1 else 2)]
        self.graphs[0].register_generator_state(step.generator)
        with torch.cuda.graph(self.graphs[0]):
            context = step.context(*batches.take(self.selection))
            self.gradients = step.backward(context, *step.loss(context, step.carry))
            if len(self.graphs) == 1:
                self.result = step.update(self.gradients)
        if len(self.graphs) == 2:
            with torch.cuda.graph(self.graphs[1]):
                self.result = step.update(self.gradients)
        restore()
        if batches.gaps is not None and completed is not None:
            batches.gaps.completions = completed

    def __call__(self, selection: Selection) -> StepResult:
        """Run a step on the selected batch."""
        if isinstance(self.selection, Tensor):
            assert isinstance(selection, Tensor)
            self.selection.copy_(selection)
        else:
            for captured, new in zip(self.selection, selection, strict=True):
                if captured is not None and new is not None:
                    captured.copy_(new)
        self.graphs[0].replay()
        if len(self.graphs) == 2:
            self.step.add_up(self.gradients)
            self.graphs[1].replay()
        return StepResult(*self.result.clone())  # the next replay overwrites the result


def _copied(batch: Batch) -> Batch:
    x, weights = batch
    return x.clone(), None if weights is None else weights.clone()


def _snapshot(step: Step) -> Callable[[], None]:
    """Return a function that restores the current parameters, momenta and chains in selection."""
    fixed = [*step.parameters, *step.carry, *step.tensors().values()]
    tensors = [*fixed, *(value for _, value in optimizer_tensors(step.optimizer))]
    saved = {id(tensor): tensor.detach().clone() for tensor in tensors}
    generator_state = step.generator.get_state()

    @torch.no_grad()
    def restore() -> None:
        for tensor in (*fixed, *(value for _, value in optimizer_tensors(step.optimizer))):
            tensor.copy_(saved[id(tensor)] if id(tensor) in saved else torch.zeros_like(tensor))
        step.generator.set_state(generator_state)

    return restore
