"""Validation of machines and of data rows."""

import copy
import hashlib

import torch
from torch import Tensor

from tapmachine.data.checks import SUPPORTED_DTYPES, check_tensor
from tapmachine.data.rows import has_gaps
from tapmachine.machine.boltzmann import BoltzmannMachine
from tapmachine.machine.conditioning import is_clamped
from tapmachine.units import Gaussian, Mixed


def in_double(machine: BoltzmannMachine) -> BoltzmannMachine:
    """Return the machine in float64: a copy, or the machine itself if it already has this dtype."""
    if machine.dtype == torch.float64 or machine.device.type == "mps":  # mps has no float64
        return machine
    return copy.deepcopy(machine).double()


def check_machine(machine: object) -> None:
    """Raise a ValueError unless the argument is a machine that can be scored."""
    if not isinstance(machine, BoltzmannMachine):
        hint = (
            "the attribute machine_ of a fitted RBM"
            if hasattr(machine, "fit")
            else "a machine such as rbm(Binary(4), Binary(2))"
        )
        raise ValueError(f"machine is a {type(machine).__name__}; expected {hint}")
    if machine.dtype not in SUPPORTED_DTYPES:
        raise ValueError(f"the machine is {machine.dtype}; expected float32 or float64")
    for name, parameter in machine.named_parameters():
        bad = ~torch.isfinite(parameter.detach())
        if bool(bad.any()):
            index = tuple(bad.nonzero()[0].tolist())
            where = ", ".join(map(str, index))
            raise ValueError(f"the machine's {name}[{where}] is {parameter[index].item():g}; expected a finite value")


def check_rows(machine: BoltzmannMachine, x: Tensor) -> Tensor:  # (N, n_visible) -> (N, *state_shape)
    """Validate rows of data and return them as visible states in the machine's dtype and on its device."""
    units = machine.layers[0]
    if machine.n_rows is not None:
        raise ValueError(
            f"the machine is conditioned on {machine.n_rows} rows; use the unconditioned machine to score data"
        )
    if is_clamped(machine):
        raise ValueError("the machine has clamped units; use the unconditioned machine to score data")
    x = check_tensor(x)
    x = x.to(machine.device, machine.dtype) if x.is_floating_point() else x.to(machine.device)
    x = units.check_states(x)
    if x.dim() != 1 + len(units.state_shape) or len(x) == 0:
        shape = ", ".join(map(str, units.state_shape))
        raise ValueError(f"x has shape {tuple(x.shape)}; expected (N, {shape}) with at least one row")
    return x


def take_gaps(machine: BoltzmannMachine, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Split rows into states of the visible layer and a mask of the missing units.

    Missing units are set to an arbitrary state. A missing categorical unit is marked by NaN, either as its state index
    or in all components of its one-hot vector.

    Returns:
        The states, shape (N, *state_shape), and the mask, shape (N, n), or None if no values are missing.
    """
    units = machine.layers[0]
    if not has_gaps(x) or tuple(x.shape[1:]) not in ((units.n,), units.state_shape):
        return check_rows(machine, x), None
    x = x.to(machine.device, machine.dtype)
    by_number = len(units.state_shape) == 2 and x.dim() == 2
    missing = x.isnan()
    if x.dim() == 3:  # one-hot vectors
        partly = missing.any(-1) & ~missing.all(-1)
        if bool(partly.any()):
            row, unit = partly.nonzero()[0].tolist()
            raise ValueError(f"x[{row}, {unit}] is partly missing; expected NaN in all components of a missing unit")
    anything = units.any_state()
    filled = torch.where(missing, anything.argmax(-1).to(x) if by_number else anything, x)
    if by_number:
        fraction = filled != filled.round()
        if bool(fraction.any()):
            row, column = fraction.nonzero()[0].tolist()
            raise ValueError(f"x[{row}, {column}] is {x[row, column]:g}; expected a state index, 0, 1, 2, …")
        filled = filled.long()
    states = check_rows(machine, filled)
    return states, missing.flatten(2).all(-1) if missing.dim() > 2 else missing


def for_scoring(machine: BoltzmannMachine, x: Tensor) -> tuple[BoltzmannMachine, Tensor]:
    """Return the machine and the rows in float64, after validating the rows in the machine's dtype."""
    check_machine(machine)
    x = check_rows(machine, x)
    double = in_double(machine)
    return double, x.to(double.dtype)


def fingerprint(machine: BoltzmannMachine) -> str:
    """Return a hash of the parameters and buffers that does not depend on their dtype or device."""
    return hash_of(*machine.parameters(), *machine.buffers())


def hash_of(*tensors: Tensor) -> str:
    """Return a hash of the values of tensors that does not depend on their dtype or device."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        digest.update(tensor.detach().double().cpu().numpy().tobytes())
    return digest.hexdigest()


def n_units(machine: BoltzmannMachine) -> int:
    """Return the total number of units in all layers."""
    return sum(layer.n for layer in machine.layers)


def models_correlations(machine: BoltzmannMachine) -> bool:
    """Return whether hidden `Gaussian` units represent the correlations between `Gaussian` visible units.

    This is the case for machines fitted to real-valued tables: some, but not all, blocks of the only hidden layer are
    Gaussian.
    """
    layers = list(machine.layers)
    if len(layers) != 2 or not isinstance(layers[0], Gaussian) or not isinstance(layers[1], Mixed):
        return False
    others = [block for block in layers[1].blocks if not isinstance(block, Gaussian)]
    return 0 < len(others) < len(layers[1].blocks) and all(block.prior_field is not None for block in others)
