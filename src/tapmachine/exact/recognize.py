"""Recognition of machines whose visible units are a finite mixture."""

import math
from copy import deepcopy
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.exact.gaussian import (
    MOST_BITS,
    Slabs,
    active_sets,
    blocks_of,
    gaussian_log_partition,
    infinite,
    is_gaussian,
)
from tapmachine.exact.mixture import HiddenUnits, Mixture
from tapmachine.machine import BoltzmannMachine
from tapmachine.machine.checks import fingerprint, in_double
from tapmachine.units import Categorical, Gaussian, Mixed, SpikeSlab, Units

_known: "WeakKeyDictionary[BoltzmannMachine, tuple[str, Mixture]]" = WeakKeyDictionary()


@torch.no_grad()
def mixture_of(machine: BoltzmannMachine, bits: float | None = None) -> Mixture | None:
    """Return the distribution of a machine's visible units as a mixture in float64, or None.

    The distribution is a mixture if the visible units are `Gaussian` units coupled to hidden `SpikeSlab` units, to one
    `Categorical` hidden unit or to both, which may stand beside `Gaussian` hidden units. In a `Mixed` visible layer,
    the other columns must be coupled only to the categorical unit, as in machines fitted to tables. A mixture has at
    most 4,096 components: one for each set of active units and each category, of which the category varies fastest.

    The mixture is kept until the machine is deleted or its parameters change.

    Args:
        machine: Any machine.
        bits: If given, machines of two Gaussian layers, which have one component, and machines with one hidden layer of
            at most 2^bits states, which have one component per state, are recognized as well (default: None).

    Raises:
        EstimateError: If Z is infinite.

    Example:
        >>> from tapmachine import Binary, Gaussian, SpikeSlab, rbm
        >>> from tapmachine.exact import mixture_of
        >>> mixture_of(rbm(Gaussian(3), SpikeSlab(2))).means.shape
        torch.Size([4, 3])
        >>> machine = rbm(Binary(3), Binary(2))
        >>> mixture_of(machine) is None, len(mixture_of(machine, bits=2).log_weights)
        (True, 4)
    """
    slabs = Slabs.of(machine)
    if slabs is not None and not _is_mixture(machine):
        slabs = None
    if slabs is None and not (bits is not None and _has_few_components(machine, bits)):
        return None
    digest = f"{fingerprint(machine)} on {machine.device}"
    known = _known.get(machine)
    if known is None or known[0] != digest:
        gaussian = Slabs.read(machine) if slabs is None and is_gaussian(machine) else slabs
        mixture = _mixture_of_states(machine) if gaussian is None else _mixture(machine, gaussian)
        known = _known[machine] = digest, mixture
    return known[1]


def _has_few_components(machine: BoltzmannMachine, bits: float) -> bool:
    if len(machine.layers) != 2 or machine.n_rows is not None:
        return False
    counts = machine.layers[1].n_states()
    return is_gaussian(machine) or (counts is not None and sum(map(math.log2, counts)) <= bits)


def closed_log_partition(machine: BoltzmannMachine, bits: float = MOST_BITS) -> Tensor | None:  # (), float64
    """Return ln Z of a machine that needs no enumeration, or None.

    The value is differentiable for Gaussian visible units. If the couplings are too strong for a finite Z, it is
    infinite, or an error is raised.

    Args:
        machine: Any machine.
        bits: Binary logarithm of the maximum number of sets of active `SpikeSlab` units and categories to sum over, for
            Gaussian visible units (default: 12).

    Raises:
        EstimateError: If Z is infinite, and the visible layer is `Mixed` or `Gaussian` units stand beside other hidden
            units.
    """
    if is_gaussian(machine):
        return gaussian_log_partition(machine)
    if isinstance(machine.layers[0], Mixed):
        mixture = mixture_of(machine)
        return None if mixture is None else mixture.log_partition
    slabs = Slabs.of(machine, bits)
    return None if slabs is None else slabs.log_partition()


def _is_mixture(machine: BoltzmannMachine) -> bool:
    """Return whether all columns that are not Gaussian are coupled only to the categorical hidden unit."""
    weights = machine.weights[0].detach()
    others = torch.ones(len(weights), dtype=torch.bool, device=weights.device)
    others[_real_columns(machine)] = False
    labels = [block for block, _ in blocks_of(machine.layers[1]) if type(block) is Categorical]
    if bool(others.any()) and not labels:
        return False
    sends = [
        weights[others, first : first + block.n].any()
        for block, first in blocks_of(machine.layers[1])
        if type(block) is not Categorical
    ]
    return not any(map(bool, sends))


def _real_columns(machine: BoltzmannMachine) -> Tensor:
    blocks = blocks_of(machine.layers[0])
    places = [torch.arange(first, first + block.n) for block, first in blocks if type(block) is Gaussian]
    return torch.cat([torch.arange(0), *places]).to(machine.device)


def _mixture(machine: BoltzmannMachine, slabs: Slabs) -> Mixture:
    """Convert a machine to a mixture.

    In coordinates y relative to the mean of `slabs.base()`, the exponent of a set of active units and a category is
    linear·y − ½ y·precision·y, up to a constant.
    """
    base = slabs.base()
    active = active_sets(slabs.weights.shape[1], slabs.weights)  # (S, s)
    precisions = base.matrix - (active.unsqueeze(1) * slabs.weights / slabs.precision) @ slabs.weights.T
    lower, failed = torch.linalg.cholesky_ex(precisions)
    if bool(failed.any()):
        raise infinite()
    field = slabs.field + base.mean @ slabs.weights
    linear = (active @ (slabs.weights * (field / slabs.precision)).T).unsqueeze(1) + slabs.centers.T  # (S, K, n)
    means = torch.cholesky_solve(linear.mT, lower).mT
    of_slabs = slabs._replace(field=field).log_odds_at_rest
    log_weights = (active @ of_slabs).unsqueeze(1) + slabs.log_shares + base.mean @ slabs.centers
    log_weights = log_weights + 0.5 * (linear * means).sum(2)
    log_det = lower.diagonal(dim1=1, dim2=2).log().sum(1, keepdim=True) - base.lower.diagonal().log().sum()
    at_rest = torch.nn.functional.softplus(slabs.log_odds_at_rest).sum()
    log_weights = (log_weights - log_det + base.log_partition - at_rest).flatten()
    labels = [(block, first) for block, first in blocks_of(machine.layers[1]) if isinstance(block, Categorical)]
    all_fields = log_weights.new_zeros((1, machine.sizes[0]))
    for label, first in labels:
        all_fields = machine.weights[0].double()[:, first : first + label.q].T
    blocks = _Blocks.of(machine, all_fields.repeat(len(active), 1))
    hidden = _hidden_units(machine, slabs, active)
    means = (base.mean + means).flatten(0, 1)
    covariances = torch.cholesky_inverse(lower)
    real = _real_columns(machine)
    return Mixture(log_weights + blocks.log_partition, means, covariances, real, *blocks[:3], hidden)


def _mixture_of_states(machine: BoltzmannMachine) -> Mixture:
    """Convert a machine with few hidden states to a mixture with one component for each of them."""
    double, real = in_double(machine), _real_columns(machine)
    visible, layer = double.layers
    counts = layer.n_states() or []
    digits = torch.cartesian_prod(*(torch.arange(n, device=machine.device) for n in counts)).view(-1, len(counts))
    states = layer.decode(digits)
    flat, weights = states.flatten(1), double.weights[0].detach()
    all_fields = flat @ weights.T  # (C, n)
    blocks = _Blocks.of(double, all_fields)
    log_weights = layer.log_prior(states, validate=False).sum(1) + blocks.log_partition
    precision, mean = weights.new_ones(len(weights)), torch.zeros_like(all_fields)
    for block, first in blocks_of(visible):
        if isinstance(block, Gaussian):
            columns = slice(first, first + block.n)
            log_weights = log_weights + block.log_partition(Tilt(all_fields[:, columns], 0.0)).sum(1)
            precision[columns] = block.precision
            mean[:, columns] = (block.field + all_fields[:, columns]) / block.precision
    zeros = torch.zeros_like(flat)
    hidden = HiddenUnits(weights[real], flat, zeros, zeros, layer.state_shape)
    covariance = (1 / precision[real]).diag().unsqueeze(0)
    return Mixture(log_weights, mean[:, real], covariance, real, *blocks[:3], hidden)


class _Blocks(NamedTuple):
    """Blocks of the visible units that are not Gaussian, the fields of C components on them, and their ln Z."""

    blocks: tuple[Units, ...]
    places: tuple[int, ...]
    fields: tuple[Tensor, ...]
    log_partition: Tensor  # (C,)

    @staticmethod
    def of(machine: BoltzmannMachine, all_fields: Tensor) -> "_Blocks":  # (C, n)
        others = [(block, first) for block, first in blocks_of(machine.layers[0]) if type(block) is not Gaussian]
        blocks = [deepcopy(block).double().requires_grad_(False) for block, _ in others]
        fields, total = [], all_fields.new_zeros(len(all_fields))
        for block, (_, first) in zip(blocks, others, strict=True):
            field = all_fields[:, first : first + math.prod(block.state_shape)].unflatten(1, block.state_shape)
            fields.append(field)
            total = total + block.log_partition(Tilt(field, 0.0)).sum(1)
        return _Blocks(tuple(blocks), tuple(first for _, first in others), tuple(fields), total)


def _hidden_units(machine: BoltzmannMachine, slabs: Slabs, active: Tensor) -> HiddenUnits:
    """Return the coefficients of the hidden units for each component."""
    n_states, parts = slabs.centers.shape[1], []
    sets = active.repeat_interleave(n_states, 0)  # (C, s)
    for block, _ in blocks_of(machine.layers[1]):
        if isinstance(block, Categorical):
            states = torch.eye(n_states, dtype=active.dtype, device=active.device).repeat(len(active), 1)
            parts.append((states, torch.zeros_like(states), torch.zeros_like(states)))
            continue
        assert isinstance(block, Gaussian | SpikeSlab)
        is_active = active.new_ones((len(sets), block.n))
        if isinstance(block, SpikeSlab):
            is_active = torch.zeros_like(is_active)
            is_active[:, slabs.coupled] = sets
        scale = is_active / block.precision.double()
        offset, noise = scale * block.field.double(), scale
        if isinstance(block, SpikeSlab):  # units without weights have the moments of their prior
            prior = deepcopy(block).double().moments(Tilt(torch.zeros_like(block.field, dtype=active.dtype), 0.0))
            offset = torch.where(slabs.coupled, offset, prior.mean)
            noise = torch.where(slabs.coupled, noise, prior.variance)
        parts.append((offset, scale, noise))
    weights = machine.weights[0].double()[_real_columns(machine)]
    offset, scale, noise = (torch.cat(z, 1) for z in zip(*parts, strict=True))
    return HiddenUnits(weights, offset, scale, noise, machine.layers[1].state_shape)
