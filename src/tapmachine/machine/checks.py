"""Validation of machines and of rows of data."""

import copy
import hashlib

import torch
from torch import Tensor

from tapmachine.data.checks import SUPPORTED_DTYPES, check_tensor
from tapmachine.machine.boltzmann import BoltzmannMachine
from tapmachine.machine.conditioning import is_clamped


def in_double(machine: BoltzmannMachine) -> BoltzmannMachine:
    """The machine in float64, which all scores use; a copy unless it is already in float64."""
    if machine.dtype == torch.float64 or machine.device.type == "mps":  # mps has no float64
        return machine
    return copy.deepcopy(machine).double()


def check_machine(machine: object) -> None:
    """Raise a ValueError unless the argument is a machine that can be scored."""
    if not isinstance(machine, BoltzmannMachine):
        hint = "its machine_, after fitting" if hasattr(machine, "fit") else "one such as rbm(Binary(4), Binary(2))"
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
        raise ValueError(f"the machine is conditioned on {machine.n_rows} rows; score data with the free one")
    if is_clamped(machine):
        raise ValueError("the machine has clamped units; score data with the free one")
    x = check_tensor(x)
    x = x.to(machine.device, machine.dtype) if x.is_floating_point() else x.to(machine.device)
    x = units.check_states(x)
    if x.dim() != 1 + len(units.state_shape) or len(x) == 0:
        shape = ", ".join(map(str, units.state_shape))
        raise ValueError(f"x has shape {tuple(x.shape)}; expected (N, {shape}) with at least one row")
    return x


def for_scoring(machine: BoltzmannMachine, x: Tensor) -> tuple[BoltzmannMachine, Tensor]:
    """The machine and the rows in float64; rows are validated in the machine's dtype, like the bounds of its units."""
    check_machine(machine)
    x = check_rows(machine, x)
    double = in_double(machine)
    return double, x.to(double.dtype)


def fingerprint(machine: BoltzmannMachine) -> str:
    """Hash of the parameters, independent of dtype and device."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in (*machine.parameters(), *machine.buffers()):
        digest.update(tensor.detach().double().cpu().numpy().tobytes())
    return digest.hexdigest()


def n_units(machine: BoltzmannMachine) -> int:
    """Number of units in all layers."""
    return sum(layer.n for layer in machine.layers)
