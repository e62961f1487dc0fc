"""Block Gibbs sampling, which draws the odd and the even layers of a machine in turn."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, one_hot

from tapmachine.beliefs import Solution, Tilt
from tapmachine.data.checks import check_count, check_tensor
from tapmachine.data.errors import EstimateError
from tapmachine.machine.boltzmann import BoltzmannMachine
from tapmachine.machine.checks import models_correlations
from tapmachine.units import Gaussian, Mixed, Units

Draw = Callable[[int, Tensor], Tensor]  # states of a layer, given its index and the field on it


@torch.no_grad()
def gibbs(
    machine: BoltzmannMachine,
    states: Sequence[Tensor] | Tensor | np.ndarray,
    n_sweeps: int = 1,
    generator: torch.Generator | None = None,
) -> list[Tensor]:  # (K, *state_shape) for each layer
    """Draw states of all layers by block Gibbs sampling.

    A sweep draws all odd layers given the even layers, then all even layers given the odd layers. In a pairwise
    machine, a sweep draws the units one after another.

    Args:
        machine: Any machine; clamped units keep their values.
        states: Initial states of K chains: either states of the visible layer, of shape (K, n_visible), or a list of
            states of all layers. In the first case, initial states of the hidden layers are drawn.
        n_sweeps: Number of sweeps (default: 1).
        generator: Random number generator on the machine's device (default: torch's global generator).

    Returns:
        A list with the states of each layer; for a pairwise machine, a list of one tensor.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, gibbs, rbm
        >>> machine = rbm(Binary(5), Binary(3))
        >>> visible, hidden = gibbs(machine, torch.zeros(2, 5), n_sweeps=10, generator=torch.Generator().manual_seed(1))
        >>> visible.shape, hidden.shape
        (torch.Size([2, 5]), torch.Size([2, 3]))
    """
    n_sweeps = check_count("n_sweeps", n_sweeps, 0)
    layers = list(machine.layers)
    if isinstance(states, np.ndarray):
        states = check_tensor(states, "states").to(machine.device, machine.dtype)
        if states.dim() == 0 or len(states) == 0:
            raise ValueError(f"states has shape {tuple(states.shape)}; expected at least one chain")
    if not isinstance(states, Tensor | Sequence):
        raise ValueError(f"states is a {type(states).__name__}; expected a torch.Tensor or a list of tensors")
    initial = [states] if isinstance(states, Tensor) else list(states)
    if len(initial) not in (1, len(layers)):
        raise ValueError(
            f"got states of {len(initial)} layers; expected states of layer 0 or of all {len(layers)} layers"
        )
    chain = []
    for layer_index, (layer, x) in enumerate(zip(layers, initial, strict=False)):
        try:
            chain.append(layer.check_states(x))
        except ValueError as error:
            raise ValueError(f"states, layer {layer_index}: {error}") from None
    leading = {tuple(x.shape[: x.dim() - len(layer.state_shape)]) for layer, x in zip(layers, chain, strict=False)}
    rows = machine.n_rows
    if len(leading) > 1 or (rows is not None and leading != {(rows,)}):
        expected = f"; the machine is conditioned on {rows} rows" if rows is not None else ""
        raise ValueError(f"the layers have states with different leading shapes {sorted(leading)}{expected}")
    chain = [layer.with_clamped(x) for layer, x in zip(layers, chain, strict=False)]
    chain = upward(machine, chain, independently(machine, generator))
    if n_sweeps and rows is None and models_correlations(machine):
        return _correlated_gibbs(machine, chain, n_sweeps, generator)
    for _ in range(n_sweeps):
        chain = sweep_chain(machine, chain, generator)
    return chain


def _correlated_gibbs(
    machine: BoltzmannMachine, chain: Sequence[Tensor], n_sweeps: int, generator: torch.Generator | None
) -> list[Tensor]:
    """Run Gibbs chains of correlated columns, which are drawn jointly, given the hidden units that are not Gaussian.

    Integration over the Gaussian hidden units leaves the precision matrix P = D(V) − W D(1/V') Wᵀ. Chains that drew
    these units as well would mix slowly.
    """
    visible, hidden = machine.layers
    assert isinstance(visible, Gaussian)
    assert isinstance(hidden, Mixed)
    precision, field = visible.precision.double().diag(), visible.field.double().clone()
    couplings = machine.weights[0].double().split(hidden.sizes, 1)
    for block, weights in zip(hidden.blocks, couplings, strict=True):
        if isinstance(block, Gaussian):
            precision -= (weights / block.precision) @ weights.T
            field += weights @ (block.field / block.precision).double()
    lower, failed = torch.linalg.cholesky_ex(precision)
    if int(failed) or not bool(torch.isfinite(lower).all()):
        raise EstimateError("ln Z is infinite: the couplings are too strong for units on the whole real line")
    x, above = chain
    for _ in range(n_sweeps):
        parts = zip(hidden.blocks, couplings, above.double().split(hidden.sizes, -1), strict=True)
        sent = [part @ weights.T for block, weights, part in parts if not isinstance(block, Gaussian)]
        linear = torch.linalg.solve_triangular(lower.T, field + torch.stack(sent).sum(0), upper=True, left=False)
        noise = torch.randn(linear.shape, generator=generator, dtype=linear.dtype, device=linear.device)
        draws = torch.linalg.solve_triangular(lower, linear + noise, upper=False, left=False)
        x = draws.to(machine.dtype)
        above = hidden.sample(Tilt(machine.field_from_below(1, x), 0.0), generator)
    return [x, above]


@torch.no_grad()
def sample_solutions(
    machine: BoltzmannMachine, solution: Solution, generator: torch.Generator | None = None
) -> list[Tensor]:  # (K, *state_shape) for each layer
    """Draw states of all layers from mean-field solutions, for example to initialize Gibbs chains.

    Units are drawn independently from their tilted priors.

    Args:
        machine: Machine to which the solutions belong.
        solution: One or more solutions returned by `solve`.
        generator: Random number generator on the machine's device (default: torch's global generator).

    Raises:
        ValueError: If a solution diverged; exclude it with `solution.select`.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, gibbs, rbm, solve
        >>> from tapmachine.machine import sample_solutions
        >>> machine, draws = rbm(Binary(5), Binary(3)), torch.Generator().manual_seed(0)
        >>> states = sample_solutions(machine, solve(machine, torch.eye(5)), draws)
        >>> gibbs(machine, states, n_sweeps=10, generator=draws)[0].shape
        torch.Size([5, 5])
    """
    failed = (~torch.isfinite(solution.free_energy)).nonzero().squeeze(-1)
    if len(failed):
        raise ValueError(
            f"{len(failed)} of {len(solution)} solutions diverged, the first at index {int(failed[0])}: {solution}"
        )
    return [units.sample(tilt, generator) for units, tilt in zip(machine.layers, solution.tilts, strict=True)]


@torch.no_grad()
def sweep_chain(
    machine: BoltzmannMachine, chain: Sequence[Tensor], generator: torch.Generator | None = None
) -> list[Tensor]:
    """Run one sweep of `gibbs`, starting from states of all layers, without validation."""
    if machine.is_pairwise:
        return [sweep_units(machine.layers[0], machine.coupling(0), chain[0], generator)]
    draw = independently(machine, generator)
    return draw_layers(machine, draw_layers(machine, chain, 1, draw), 0, draw)


def independently(machine: BoltzmannMachine, generator: torch.Generator | None = None) -> Draw:
    """Return a function that draws all units of a layer independently, given the field on it."""
    return lambda index, field: machine.layers[index].sample(Tilt(field, 0.0), generator)


def upward(machine: BoltzmannMachine, states: Sequence[Tensor], draw: Draw) -> list[Tensor]:
    """Complete states, or means, of the lowest layers to those of all layers, in one pass that ignores layers above.

    Gradients are recorded unless the caller disables them, as for `draw_layers`.

    Args:
        machine: Machine with two or more layers, or a pairwise machine, for which nothing is drawn.
        states: States of one or more layers from the visible layer upward, which are not validated.
        draw: Function that returns states of a layer, given its index and the field on it.
    """
    states = list(states)
    for index in range(len(states), len(machine.layers)):
        states.append(draw(index, machine.field_from_below(index, states[-1])))
    return states


def draw_layers(machine: BoltzmannMachine, chain: Sequence[Tensor], first: int, draw: Draw) -> list[Tensor]:
    """Draw every other layer given the remaining layers, which is half of a sweep.

    Args:
        machine: A machine with two or more layers.
        chain: States of all layers, which are not validated.
        first: Index of the first layer to draw.
        draw: Function that returns states of a layer, given its index and the field on it.
    """
    chain = list(chain)
    for index in range(first, len(chain), 2):
        chain[index] = draw(index, machine.field_on(index, chain))
    return chain


@torch.no_grad()
def sweep_units(
    units: Units,
    coupling: Tensor,
    x: Tensor,
    generator: torch.Generator | None,
    scale: Tensor | float = 1.0,
    offset: Tensor | float = 0.0,
) -> Tensor:
    """Draw the units of a pairwise machine one after another, each given all other units.

    The field on the units is scale·xJ + offset. Units with two states are drawn by comparing this field with a random
    threshold, and categorical units by adding a random number to the field on each state, so that a unit takes a few
    operations for all chains. Units of other types are drawn by `sample`.

    Args:
        units: Units of the machine.
        coupling: Coupling matrix J.
        x: States of the chains.
        generator: Random number generator.
        scale, offset: Coefficients of the field, such as those of a path of distributions (default: 1 and 0).
    """
    coupling = scale * coupling
    if units.has_two_states:
        return _sweep_two_states(units, coupling, x, generator, offset)
    if len(units.state_shape) == 2:
        return _sweep_categories(units, coupling, x, generator, offset)
    field, x = x @ coupling + offset, x.clone()
    for unit in range(units.n):
        draws = units.sample(Tilt(field, 0.0), generator)[..., unit]
        field += (draws - x[..., unit]).unsqueeze(-1) * coupling[unit]
        x[..., unit] = draws
    return x


def _sweep_two_states(
    units: Units, coupling: Tensor, x: Tensor, generator: torch.Generator | None, offset: Tensor | float
) -> Tensor:
    """Draw each unit in turn, which is in the upper of its two states if its field exceeds a random threshold."""
    lower, upper = units.support.bounds
    width, shape = upper - lower, x.shape
    at_lower, at_upper = _log_weights(units, torch.stack([x.new_full((units.n,), value) for value in (lower, upper)]))
    noise = torch.rand(shape, dtype=x.dtype, device=x.device, generator=generator).logit_(torch.finfo(x.dtype).tiny)
    thresholds = (noise - (at_upper - at_lower)) / width - offset - lower * coupling.sum(0)
    bits, thresholds = (z.reshape(-1, units.n).T.contiguous() for z in ((x - lower) / width, thresholds))  # (n, K)
    field = bits.new_empty(bits.shape[1])
    for weights, threshold, bit in zip(width * coupling, thresholds, bits, strict=True):
        torch.mv(bits.T, weights, out=field)
        torch.gt(field, threshold, out=bit)
    return (lower + width * bits.T).reshape(shape)


def _sweep_categories(
    units: Units, coupling: Tensor, x: Tensor, generator: torch.Generator | None, offset: Tensor | float
) -> Tensor:
    """Draw each unit in turn, whose state is that with the largest sum of field, log-weight and Gumbel noise."""
    n, q = units.state_shape
    at_states = torch.eye(q, dtype=x.dtype, device=x.device).unsqueeze(1).expand(q, n, q)
    arrival = torch.empty_like(x).exponential_(generator=generator)
    noise = _log_weights(units, at_states).movedim(0, -1) - arrival.log() + offset
    rows = x.reshape(-1, n, q).argmax(-1) + q * torch.arange(n, device=x.device)  # of the couplings, for each state
    parts = coupling.unflatten(1, (n, q)).movedim(1, 0).contiguous(), noise.reshape(-1, n, q).unbind(1)
    for unit, (weights, added) in enumerate(zip(*parts, strict=True)):
        rows[:, unit] = embedding_bag(rows, weights, mode="sum").add_(added).argmax(1).add_(q * unit)
    return one_hot(rows.view(x.shape[:-1]) % q, q).to(x.dtype)


def _log_weights(units: Units, states: Tensor) -> Tensor:  # (S, *state_shape) -> (S, n) or (S, rows, n)
    """Return ln P of S states of each unit, which is −inf for units that are clamped to another state."""
    states = states if units.n_rows is None else states.unsqueeze(1)
    is_other = units.with_clamped(states) != states
    is_other = is_other if len(units.state_shape) == 1 else is_other.any(-1)
    return torch.where(is_other, -torch.inf, units.log_prior(states, validate=False))
