"""Boltzmann machines, which consist of layers of units and couplings between the units."""

from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple, overload

import torch
from torch import Tensor, nn

from tapmachine.beliefs import Moments, Tilt
from tapmachine.data.errors import check_memory
from tapmachine.units import Units

SYMMETRY_SLACK = 1e-4  # tolerated asymmetry of a matrix due to rounding, relative to the largest weight
INITIAL_SPREAD = 1e-3  # standard deviation of the weights of a new machine, as in the paper


if TYPE_CHECKING:

    class Layers(nn.ModuleList):
        """Module list whose items are units."""

        @overload
        def __getitem__(self, idx: slice) -> "Layers": ...
        @overload
        def __getitem__(self, idx: int) -> Units: ...
        def __getitem__(self, idx: int | slice) -> "Units | Layers": ...
        def __iter__(self) -> Iterator[Units]: ...

else:
    Layers = nn.ModuleList


class Edge(NamedTuple):
    """Couplings between two layers, or within the single layer of a pairwise machine."""

    below: int
    above: int
    weights: Tensor  # (units below, units above), with q rows or columns for a unit with q states


class BoltzmannMachine(nn.Module):
    """A Boltzmann machine with couplings between neighboring layers, or within a single layer.

    The probability of a state is P(x) = exp(−E(x))/Z with the energy E(x) = −Σ_l ln P_l(x_l) − Σ_l x_l W_l x_{l+1},
    where P_l are the normalized priors of the units. A machine with a single layer is pairwise, with the energy
    E(x) = −ln P(x) − ½ xJx, where J is symmetric and has no self-couplings. Use `rbm`, `dbm` or `pairwise` to construct
    the common types of machines.

    Args:
        layers: Units of each layer, from the visible layer upward.
        weights: Matrices W_l of shape (n_below, n_above), one for each pair of neighboring layers; for a pairwise
            machine, a list that contains the matrix J. A layer of n units with q states has n·q rows or columns. By
            default, the weights are drawn from a normal distribution with standard deviation 0.001, as in the paper.
        generator: Random number generator for the initial weights (default: one with a fixed seed).

    Attributes:
        layers: Units of each layer, from the visible layer upward.
        weights: Trainable weights. The couplings of a pairwise machine are the symmetric part of `weights[0]` without
            self-couplings; see `coupling`.
        last_learning_rate: Learning rate at the end of the last training run, from which a warm start of `fit`
            continues; None for a new machine.

    Example:
        >>> from tapmachine import Binary
        >>> from tapmachine.machine import BoltzmannMachine
        >>> BoltzmannMachine([Binary(4), Binary(3), Binary(2)]).sizes
        (4, 3, 2)
    """

    off_diagonal: Tensor  # of pairwise machines: 0 for pairs of components of the same unit, 1 elsewhere

    def __init__(
        self,
        layers: Sequence[Units],
        weights: Sequence[Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _check_layers(layers)
        self.layers = Layers(layers)
        if self.is_pairwise:
            self.register_buffer("off_diagonal", self._off_diagonal(), persistent=False)
        self.last_learning_rate: float | None = None
        shapes = [(self.sizes[edge], self.sizes[min(edge + 1, len(layers) - 1)]) for edge in range(self.n_edges)]
        if weights is None:
            check_memory(sum(map(prod, shapes)) * self.layers[0].dtype.itemsize, "a machine with these weights")
            generator = generator or torch.Generator().manual_seed(0)
            weights = [self._draw(shape, generator) for shape in shapes]
        _check_weights(weights, shapes, self.dtype, self.device)
        if self.is_pairwise:
            self._check_symmetric(weights[0].detach())
        # A Parameter is not copied, so that conditioned machines share it.
        self.weights = nn.ParameterList(w if isinstance(w, nn.Parameter) else nn.Parameter(w.clone()) for w in weights)

    # ----- shape

    @property
    def is_pairwise(self) -> bool:
        """Whether the machine has a single layer, with couplings between its units."""
        return len(self.layers) == 1

    @property
    def n_edges(self) -> int:
        """Number of weight matrices."""
        return max(1, len(self.layers) - 1)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of state components in each layer: n, or n·q for units with q states."""
        return tuple(prod(layer.state_shape) for layer in self.layers)

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the parameters."""
        return self.layers[0].dtype

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return self.layers[0].device

    def summary(self) -> str:
        """Return a one-line summary of the layers, such as "64 Binary – 16 Binary"."""
        return " – ".join(f"{layer.n} {type(layer).__name__}" for layer in self.layers)

    def _repr_html_(self) -> str:
        from tapmachine.display.html import card, escape, table
        from tapmachine.display.summaries import distribution

        names = ["visible", *(f"hidden {index}" for index in range(1, len(self.layers)))]
        rows = [(name, type(layer).__name__, layer.n) for name, layer in zip(names, self.layers, strict=True)]
        count = sum(parameter.numel() for parameter in self.parameters())
        kind = "Pairwise Boltzmann machine" if self.is_pairwise else "Boltzmann machine"
        words = f"{count:,} parameters, {str(self.dtype).removeprefix('torch.')} on {self.device}"
        weights = [(f"weights {index}", own) for index, own in enumerate(self.weights, 1)]
        charts = "".join(distribution(own, name) for name, own in weights)
        return card(kind, table(("layer", "units", "number"), rows), f"<div>{escape(words)}</div>", charts)

    def coupling(self, edge: int) -> Tensor:
        """Return a coupling matrix that is differentiable with respect to the weights.

        The matrix is `weights[edge]` or, for a pairwise machine, the symmetric part of `weights[0]` without
        self-couplings.
        """
        weights: Tensor = self.weights[edge]
        if not self.is_pairwise:
            return weights
        return 0.5 * (weights + weights.T) * self.off_diagonal

    def edges(self) -> Iterator[Edge]:
        """Iterate over the coupling matrices of the machine."""
        for edge in range(self.n_edges):
            yield Edge(edge, min(edge + 1, len(self.layers) - 1), self.coupling(edge))

    def _draw(self, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
        drawn = torch.randn(shape, generator=generator, device=generator.device).to(self.device, self.dtype)
        return INITIAL_SPREAD * (drawn if not self.is_pairwise else self.off_diagonal * (drawn + drawn.T) / 2**0.5)

    def _off_diagonal(self) -> Tensor:
        """Mask that is 0 for pairs of components of the same unit and 1 elsewhere."""
        units = self.layers[0]
        of_unit = torch.arange(self.sizes[0], device=self.device) // (self.sizes[0] // units.n)
        for start, n, q in units.categorical_blocks if len(units.state_shape) == 1 else []:  # in a mixed layer
            of_unit[start : start + n * q] = start + torch.arange(n * q, device=self.device) // q * q
        return (of_unit[:, None] != of_unit).to(self.dtype)

    def _check_symmetric(self, weights: Tensor) -> None:
        finite = torch.nan_to_num(weights)  # the solver reports non-finite weights for each particle
        slack = SYMMETRY_SLACK * finite.abs().max()
        if ((finite - finite.T).abs() > slack).any():
            raise ValueError("pairwise: weights[0] is not symmetric; expected a matrix that equals its transpose")
        if ((1 - self.off_diagonal) * finite).abs().max() > slack:
            q = self.sizes[0] // self.layers[0].n
            where = "a zero diagonal" if q == 1 else f"zeros in the {q} by {q} block of each unit on the diagonal"
            raise ValueError(f"pairwise: weights[0] couples a unit to itself; expected {where}")

    # ----- conditioned machines

    def with_layers(self, layers: Sequence[Units]) -> "BoltzmannMachine":
        """Return a machine with different layers of the same sizes; it shares the weights of this machine."""
        return BoltzmannMachine(layers, list(self.weights))

    @property
    def n_rows(self) -> int | None:
        """Number of rows of evidence on which the machine is conditioned; None if all particles share the evidence."""
        rows = {layer.n_rows for layer in self.layers if layer.n_rows is not None}
        if len(rows) > 1:
            raise ValueError(f"the layers are conditioned on different numbers of rows: {sorted(rows)}")
        return rows.pop() if rows else None

    def rows(self, index: Tensor) -> "BoltzmannMachine":
        """Select rows of evidence by index; return the machine unchanged if all particles share the evidence."""
        if self.n_rows is None:
            return self
        return self.with_layers([layer.rows(index) for layer in self.layers])

    # ----- energies, fields and conditional moments of states

    def check_states(self, states: Sequence[Tensor] | Tensor, validate: bool = True) -> list[Tensor]:
        """Validate the states of all layers and return them in the machine's dtype.

        Args:
            states: States of each layer, or a single tensor for a pairwise machine.
            validate: Whether to check the values, which synchronizes with a GPU.

        Raises:
            ValueError: If a state is invalid; the message gives the layer and the index of the first invalid value.
        """
        states = [states] if isinstance(states, Tensor) else list(states)
        if len(states) != len(self.layers):
            raise ValueError(
                f"got states of {len(states)} layers; expected {len(self.layers)}, one tensor for each layer"
            )
        checked = []
        for layer_index, (layer, x) in enumerate(zip(self.layers, states, strict=True)):
            try:
                checked.append(layer.check_states(x, validate))
            except ValueError as error:
                raise ValueError(f"layer {layer_index}: {error}") from None
        return checked

    def energy(self, states: Sequence[Tensor] | Tensor) -> Tensor:  # (..., n_l) each -> (...)
        """Compute the energy E(x) = −Σ ln P(x) − Σ xWx' of states, for which ln Z = ln Σ_x exp(−E(x)).

        Args:
            states: States of each layer, or a single tensor for a pairwise machine.
        """
        states = self.check_states(states)
        energy = -sum(layer.log_prior(x).sum(-1) for layer, x in zip(self.layers, states, strict=True))
        flat = [x.flatten(-len(layer.state_shape)) for layer, x in zip(self.layers, states, strict=True)]
        share = 0.5 if self.is_pairwise else 1.0
        for below, above, weights in self.edges():
            energy = energy - share * ((flat[below] @ weights) * flat[above]).sum(-1)
        return torch.as_tensor(energy)

    def field_on(self, layer: int, states: Sequence[Tensor | None]) -> Tensor:
        """Compute the field ΣWx' on a layer from the states of the neighboring layers.

        Args:
            layer: Index of the layer.
            states: States of all layers; None for layers that are not neighbors.
        """
        layers = list(self.layers)
        if not isinstance(states, Sequence) or len(states) != len(layers):  # a tensor would look like a list of rows
            kind = f"{len(states)} entries" if isinstance(states, Sequence) else f"a {type(states).__name__}"
            raise ValueError(f"states is {kind}; expected a list with one entry for each of the {len(layers)} layers")
        if not 0 <= layer < len(layers):
            raise ValueError(f"layer is {layer}; expected an index from 0 to {len(layers) - 1}")
        if self.is_pairwise:
            senders = [(0, self.coupling(0))]
        else:
            senders = [(layer - 1, self.weights[layer - 1])] if layer > 0 else []
            senders += [(layer + 1, self.weights[layer].T)] if layer < len(layers) - 1 else []
        parts = []
        for sender, weights in senders:
            x = states[sender]
            if x is None:
                raise ValueError(f"layer {sender}: states are missing, but required for the field on layer {layer}")
            parts.append(x.flatten(-len(layers[sender].state_shape)) @ weights)
        total = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        field: Tensor = total.unflatten(-1, layers[layer].state_shape)
        return field

    def field_from_below(self, layer: int, x: Tensor) -> Tensor:
        """Compute the field xW on a layer from states or means x of the layer below, ignoring the layer above."""
        return field_from_below(list(self.layers), list(self.weights), layer, x)

    def conditional(self, layer: int, states: Sequence[Tensor | None]) -> Moments:
        """Compute the mean and variance of a layer's units, given the states of the neighboring layers [eq:condexp].

        Args:
            layer: Index of the layer.
            states: States of all layers; None for layers that are not neighbors.
        """
        tilt = Tilt(self.field_on(layer, states), 0.0)
        return self.layers[layer].moments(tilt)


def field_from_below(layers: Sequence[Units], weights: Sequence[Tensor], layer: int, x: Tensor) -> Tensor:
    """Compute the field xW on a layer from states or means x of the layer below."""
    flat = x.flatten(-len(layers[layer - 1].state_shape)) @ weights[layer - 1]
    field: Tensor = flat.unflatten(-1, layers[layer].state_shape)
    return field


def rbm(
    visible: Units, hidden: Units, weights: Tensor | None = None, generator: torch.Generator | None = None
) -> BoltzmannMachine:
    """Create a restricted Boltzmann machine.

    Args:
        visible: Visible units.
        hidden: Hidden units.
        weights: Initial weights, of shape (n_visible, n_hidden) (default: drawn from a normal distribution with
            standard deviation 0.001).
        generator: Random number generator for the initial weights (default: one with a fixed seed).

    Example:
        >>> from tapmachine import Binary, TruncatedGaussian, rbm
        >>> rbm(TruncatedGaussian(784), Binary(100)).weights[0].shape
        torch.Size([784, 100])
    """
    return BoltzmannMachine([visible, hidden], None if weights is None else [weights], generator)


def dbm(
    layers: Sequence[Units], weights: Sequence[Tensor] | None = None, generator: torch.Generator | None = None
) -> BoltzmannMachine:
    """Create a deep Boltzmann machine with two or more layers.

    Args:
        layers: Units of each layer, from the visible layer upward.
        weights: Initial weights between neighboring layers, each of shape (n_below, n_above) (default: drawn from a
            normal distribution with standard deviation 0.001).
        generator: Random number generator for the initial weights (default: one with a fixed seed).

    Example:
        >>> from tapmachine import Binary, dbm
        >>> [tuple(w.shape) for w in dbm([Binary(784), Binary(500), Binary(200)]).weights]
        [(784, 500), (500, 200)]
    """
    if isinstance(layers, Units):
        raise ValueError(f"dbm: layers is a {type(layers).__name__}; expected a list such as [Binary(64), Binary(16)]")
    if len(layers) < 2:
        raise ValueError(f"dbm: got {len(layers)} layers; expected at least 2")
    return BoltzmannMachine(layers, weights, generator)


def pairwise(units: Units, weights: Tensor | None = None, generator: torch.Generator | None = None) -> BoltzmannMachine:
    """Create a machine with couplings between all pairs of units, such as a Hopfield, SK or Potts model.

    The energy is E(x) = −ln P(x) − ½ xJx with normalized priors P(x). Without couplings, ln Z is therefore 0, not
    n ln 2 as for spins without priors.

    Args:
        units: Units of the only layer.
        weights: Symmetric matrix J with a zero diagonal, of shape (n, n) (default: drawn from a normal distribution
            with standard deviation 0.001). For units with q states, row i·q + α belongs to state α of unit i, and the
            q×q blocks on the diagonal are 0.
        generator: Random number generator for the initial weights (default: one with a fixed seed).

    Example:
        >>> import torch
        >>> from tapmachine import Spin, pairwise
        >>> pattern = torch.tensor([1.0, -1.0, 1.0, 1.0])
        >>> hopfield = pairwise(Spin(4), weights=(pattern.outer(pattern) - torch.eye(4)) / 4)
        >>> hopfield.energy(pattern)
        tensor(1.2726, grad_fn=<SubBackward0>)
    """
    return BoltzmannMachine([units], None if weights is None else [weights], generator)


def _check_layers(layers: Sequence[Units]) -> None:
    if len(layers) == 0:
        raise ValueError("layers is empty; expected at least one layer")
    for layer_index, layer in enumerate(layers):
        if not isinstance(layer, Units):
            raise ValueError(f"layer {layer_index} is a {type(layer).__name__}; expected units such as Binary(n)")
        for name in ("dtype", "device"):
            actual, expected = getattr(layer, name), getattr(layers[0], name)
            if actual != expected:
                raise ValueError(
                    f"layer {layer_index}: the {name} of the parameters is {actual}, but that of layer 0 is {expected}"
                )


def _check_weights(
    weights: Sequence[Tensor] | Tensor, shapes: Sequence[tuple[int, int]], dtype: torch.dtype, device: torch.device
) -> None:
    if isinstance(weights, Tensor):
        raise ValueError(
            f"weights is a Tensor; expected a list of {len(shapes)} tensors, one for each pair of neighboring layers"
        )
    if len(weights) != len(shapes):
        raise ValueError(f"got {len(weights)} weight matrices; expected {len(shapes)}")
    for edge, (w, shape) in enumerate(zip(weights, shapes, strict=True)):
        if not isinstance(w, Tensor) or tuple(w.shape) != shape:
            problem = f"has shape {tuple(w.shape)}" if isinstance(w, Tensor) else f"is a {type(w).__name__}"
            raise ValueError(f"weights[{edge}] {problem}; expected a tensor of shape {shape}")
        if w.dtype != dtype or w.device != device:
            raise ValueError(f"weights[{edge}] is {w.dtype} on {w.device}, but the units are {dtype} on {device}")
