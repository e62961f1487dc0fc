"""Validation of machines and of data rows."""

import copy
import hashlib

import torch
from torch import Tensor

from tapmachine.data.checks import SUPPORTED_DTYPES, check_tensor
from tapmachine.machine.boltzmann import BoltzmannMachine
from tapmachine.machine.conditioning import is_clamped


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


def for_scoring(machine: BoltzmannMachine, x: Tensor) -> tuple[BoltzmannMachine, Tensor]:
    """Return the machine and the rows in float64, after validating the rows in the machine's dtype."""
    check_machine(machine)
    x = check_rows(machine, x)
    double = in_double(machine)
    return double, x.to(double.dtype)


def fingerprint(machine: BoltzmannMachine) -> str:
    """Return a hash of the parameters and buffers that does not depend on their dtype or device."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in (*machine.parameters(), *machine.buffers()):
        digest.update(tensor.detach().double().cpu().numpy().tobytes())
    return digest.hexdigest()


def n_units(machine: BoltzmannMachine) -> int:
    """Return the total number of units in all layers."""
    return sum(layer.n for layer in machine.layers)
