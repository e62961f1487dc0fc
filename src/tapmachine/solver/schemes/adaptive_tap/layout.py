"""Concatenation of the units of all layers, for adaptive TAP."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tapmachine.beliefs import Moments
from tapmachine.machine import BoltzmannMachine


class Layout:
    """Concatenation of the units of all layers, with the even layers first and the odd layers last."""

    def __init__(self, machine: BoltzmannMachine) -> None:
        layers = list(machine.layers)
        self.even, self.odd = range(0, len(layers), 2), range(1, len(layers), 2)
        self.order = [*self.even, *self.odd]
        self.shapes = [layer.state_shape for layer in layers]
        self.sizes = [machine.sizes[index] for index in self.order]
        self.weights = [weights.detach() for weights in machine.weights]
        self.senders: list[list[tuple[int, Tensor]]] = [[] for _ in layers]
        for below, above, coupling in machine.edges():
            self.senders[above].append((below, coupling))
            if below != above:
                self.senders[below].append((above, coupling.T))

    def joined(self, parts: Sequence[Tensor]) -> Tensor:  # (K, N)
        """Concatenate the values of all layers."""
        return torch.cat([parts[index].flatten(1) for index in self.order], 1)

    def split(self, z: Tensor) -> list[Tensor]:
        """Split concatenated values into one tensor per layer; the inverse of `joined`."""
        parts: list[Tensor | None] = [None] * len(self.order)
        for index, part in zip(self.order, z.split(self.sizes, 1), strict=True):
            parts[index] = part.reshape(len(z), *self.shapes[index])
        return [part for part in parts if part is not None]

    def mean_field(self, layer_index: int, moments: Sequence[Moments]) -> Tensor:
        """Return the mean field Ja on a layer, differentiable with respect to the couplings."""
        first, *others = (moments[sender].mean.flatten(1) @ weights for sender, weights in self.senders[layer_index])
        total: Tensor = sum(others, first)
        return total.view(-1, *self.shapes[layer_index])

    def between(self, machine: BoltzmannMachine) -> Tensor:  # (N_even, N_odd), differentiable
        """Return the couplings between all even and all odd layers as one matrix."""
        rows = []
        for below in self.even:
            blocks = []
            for above in self.odd:
                if above == below + 1:
                    blocks.append(machine.coupling(below))
                elif above == below - 1:
                    blocks.append(machine.coupling(above).T)
                else:
                    like = machine.weights[0]
                    blocks.append(like.new_zeros(machine.sizes[below], machine.sizes[above]))
            rows.append(torch.cat(blocks, 1))
        return torch.cat(rows)
