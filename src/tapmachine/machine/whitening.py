"""Linear coordinate transformations x = shift + transform·z of machines with Gaussian visible units.

Hidden Gaussian units represent correlations between the visible units. After integration over the hidden units, the
precision matrix of the visible units is P = D(V) − W D(1/V') Wᵀ. In whitened coordinates, P is the identity matrix, and
no hidden Gaussian units are required. Chains then mix quickly, regardless of the scales of the columns and the
correlations between columns, and gradients are well conditioned. `in_coordinates` converts a machine from whitened
coordinates to the columns of the data, and `whiten` performs the inverse conversion.
"""

import math
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.data.errors import DivergenceError, EstimateError
from tapmachine.machine.boltzmann import BoltzmannMachine, rbm
from tapmachine.units import Gaussian, Mixed, Units

MARGIN = 1.1  # visible precisions relative to the smallest possible ones, so that all hidden units have weights


class Whitened(NamedTuple):
    """A machine in whitened coordinates z with x = shift + transform·z.

    Attributes:
        machine: Machine for z in float64. The priors of its visible units have mean 0 and variance 1.
        transform: Upper triangular transformation matrix, of shape (n, n).
        shift: Shift, of shape (n,).
        log_partition_gain: ln Z of the original machine minus ln Z of the whitened machine.
    """

    machine: BoltzmannMachine
    transform: Tensor
    shift: Tensor
    log_partition_gain: float

    def rows(self, x: Tensor) -> Tensor:  # (N, n) -> (N, n)
        """Convert rows from the original coordinates x to the whitened coordinates z, in float64."""
        y = x.double() - self.shift
        z: Tensor = torch.linalg.solve_triangular(self.transform.T, y, upper=False, left=False)
        return z


@torch.no_grad()
def in_coordinates(machine: BoltzmannMachine, transform: Tensor, shift: Tensor) -> BoltzmannMachine:
    """Convert a machine for z to a float64 machine for x = shift + transform·z.

    Args:
        machine: A machine with Gaussian visible units and one hidden layer of units that have fields. It is not
            modified.
        transform: Invertible matrix, of shape (n, n).
        shift: Shift, of shape (n,).

    Returns:
        A machine with n additional `Gaussian` hidden units, which represent the correlations between the visible units.
        They precede the hidden units of the original machine.

    Raises:
        DivergenceError: If parameters are non-finite, or so large that their squares overflow.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, Gaussian, rbm
        >>> from tapmachine.machine.whitening import in_coordinates
        >>> transform = torch.tensor([[2.0, 0.0], [1.0, 3.0]])
        >>> in_coordinates(rbm(Gaussian(2), Binary(4)), transform, torch.zeros(2)).summary()
        '2 Gaussian – 6 Mixed'
    """
    visible, hidden = _visible_and_hidden(machine)
    inverse = torch.linalg.inv(transform.double().to(machine.device))
    shift = shift.double().to(machine.device)
    precision = inverse.T @ (visible.precision.double().unsqueeze(1) * inverse)
    # D − W Wᵀ = P, where D is slightly larger than necessary, relative to the diagonal of P.
    scale = precision.diagonal().sqrt()
    correlations = precision / scale.outer(scale)
    if not all(bool(torch.isfinite(z).all()) for z in (correlations, machine.weights[0])):
        raise DivergenceError("the parameters of the machine are non-finite or too large; use a smaller learning rate")
    values, vectors = torch.linalg.eigh(correlations)
    loadings = scale.unsqueeze(1) * vectors * (MARGIN * values[-1] - values).sqrt()
    diagonal = MARGIN * values[-1] * scale**2
    weights = inverse.T @ machine.weights[0].double()
    columns = Gaussian(visible.n, field=diagonal * shift + inverse.T @ visible.field.double(), precision=diagonal)
    holding = Gaussian(visible.n, field=-shift @ loadings)
    blocks = [deepcopy(block).double() for block in (hidden.blocks if isinstance(hidden, Mixed) else [hidden])]
    layer = Mixed([holding, *blocks])  # type: ignore[list-item]
    _add_to_fields(layer, torch.cat((torch.zeros_like(shift), -shift @ weights)))
    return rbm(columns, layer, torch.cat((loadings, weights), 1))


def models_correlations(machine: BoltzmannMachine) -> bool:
    """Return whether hidden `Gaussian` units represent the correlations between `Gaussian` visible units.

    This is the case for machines fitted to real-valued tables: some, but not all, blocks of the only hidden layer are
    Gaussian.
    """
    layers = list(machine.layers)
    if len(layers) != 2 or type(layers[0]) is not Gaussian or not isinstance(layers[1], Mixed):
        return False
    are_gaussian = [type(block) is Gaussian for block in layers[1].blocks]
    others = [block for block, gaussian in zip(layers[1].blocks, are_gaussian, strict=True) if not gaussian]
    return any(are_gaussian) and bool(others) and all(block.prior_field is not None for block in others)


@torch.no_grad()
def whiten(machine: BoltzmannMachine) -> Whitened | None:
    """Integrate over the hidden Gaussian units, and transform the visible units to independent coordinates.

    The result is None unless `models_correlations(machine)`.

    Args:
        machine: Any machine. It is not modified.

    Raises:
        EstimateError: If Z is infinite.
    """
    if not models_correlations(machine):
        return None
    visible, hidden = _visible_and_hidden(machine)
    assert isinstance(hidden, Mixed)
    blocks: list[Units] = [deepcopy(block).double() for block in hidden.blocks]  # type: ignore[misc]
    weights = machine.weights[0].double().split(hidden.sizes, 1)
    precision, linear = visible.precision.double().diag(), visible.field.double().clone()
    for block, w in zip(blocks, weights, strict=True):
        if type(block) is Gaussian:
            precision -= (w / block.precision) @ w.T
            linear += w @ (block.field / block.precision)
    lower, failed = torch.linalg.cholesky_ex(precision)
    if int(failed) or not bool(torch.isfinite(lower).all()):
        raise EstimateError("ln Z is infinite: the couplings are too strong for units on the whole real line")
    shift = torch.cholesky_solve(linear.unsqueeze(1), lower).squeeze(1)
    others = [(block, w) for block, w in zip(blocks, weights, strict=True) if type(block) is not Gaussian]
    layer = others[0][0] if len(others) == 1 else Mixed([block for block, _ in others])
    couplings = torch.cat([w for _, w in others], 1)
    _add_to_fields(layer, shift @ couplings)
    independent = Gaussian(visible.n, field=torch.zeros_like(shift))
    result = rbm(independent, layer, torch.linalg.solve_triangular(lower, couplings, upper=False))
    transform = torch.linalg.inv(lower).T.contiguous()
    # Both machines describe the same density of x, up to the volume factor of the transformation.
    gain = _log_weight(machine, shift) - _log_weight(result, torch.zeros_like(shift))
    return Whitened(result, transform, shift, float(gain - lower.diagonal().log().sum()))


def _visible_and_hidden(machine: BoltzmannMachine) -> tuple[Gaussian, Units]:
    visible, *others = machine.layers
    if not isinstance(visible, Gaussian) or len(others) != 1:
        raise ValueError(f"the machine is {machine.summary()}; expected Gaussian visible units and one hidden layer")
    return visible, others[0]


def _add_to_fields(layer: Units, change: Tensor) -> None:
    blocks: list[Units] = list(layer.blocks) if isinstance(layer, Mixed) else [layer]  # type: ignore[arg-type]
    for block, part in zip(blocks, change.split([math.prod(block.state_shape) for block in blocks]), strict=True):
        field = block.prior_field
        if field is None:
            raise ValueError(f"a shift changes the hidden fields, but {type(block).__name__} units have no field")
        field.add_(part.view_as(field))


def _log_weight(machine: BoltzmannMachine, x: Tensor) -> Tensor:  # (n,) -> ()
    """Compute the log-weight of one visible state, summed over the hidden states."""
    double = deepcopy(machine).double()
    hidden = double.layers[1]
    of_hidden = hidden.log_partition(Tilt((x @ double.weights[0]).view(hidden.state_shape), 0.0))
    return double.layers[0].log_prior(x).sum() + of_hidden.sum()
