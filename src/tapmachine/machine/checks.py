"""Checks of machines and of rows of data for them."""

import copy
import hashlib

import torch
from torch import Tensor

from tapmachine.data.checks import SUPPORTED_DTYPES, check_tensor
from tapmachine.machine.boltzmann import BoltzmannMachine
from tapmachine.machine.conditioning import is_clamped


def in_double(machine: BoltzmannMachine) -> BoltzmannMachine:
    """The machine in float64, in which everything is scored; a copy, unless it is so already."""
    if machine.dtype == torch.float64 or machine.device.type == "mps":  # which has no float64
        return machine
    return copy.deepcopy(machine).double()


def check_machine(machine: object) -> None:
    """Raises a ValueError unless it is a machine that can be scored."""
    if not isinstance(machine, BoltzmannMachine):
        hint = "its machine_, once it is fitted" if hasattr(machine, "fit") else "one such as rbm(Binary(4), Binary(2))"
        raise ValueError(f"machine is a {type(machine).__name__}; it must be {hint}")
    if machine.dtype not in SUPPORTED_DTYPES:
        raise ValueError(f"the machine is {machine.dtype}; it must be float32 or float64")
    for name, parameter in machine.named_parameters():
        bad = ~torch.isfinite(parameter.detach())
        if bool(bad.any()):
            index = tuple(bad.nonzero()[0].tolist())
            where = ", ".join(map(str, index))
            raise ValueError(f"the machine's {name}[{where}] is {parameter[index].item():g}; it must be finite")


def check_rows(machine: BoltzmannMachine, x: Tensor) -> Tensor:  # (N, n_visible) -> (N, *state_shape)
    """Rows of data as states of the visible layer, in the machine's dtype and on its device, or a ValueError."""
    units = machine.layers[0]
    if machine.n_rows is not None:
        raise ValueError(f"the machine is conditioned on {machine.n_rows} rows; score data with the free one")
    if is_clamped(machine):
        raise ValueError("the machine has units that are clamped; score data with the free one")
    x = check_tensor(x)
    x = x.to(machine.device, machine.dtype) if x.is_floating_point() else x.to(machine.device)
    x = units.check_states(x)
    if x.dim() != 1 + len(units.state_shape) or len(x) == 0:
        shape = ", ".join(map(str, units.state_shape))
        raise ValueError(f"x has shape {tuple(x.shape)}; it must hold one row or more, (N, {shape})")
    return x


def for_scoring(machine: BoltzmannMachine, x: Tensor) -> tuple[BoltzmannMachine, Tensor]:
    """The machine and the rows in float64; the rows are checked in the machine's own dtype, which its bounds have."""
    check_machine(machine)
    x = check_rows(machine, x)
    double = in_double(machine)
    return double, x.to(double.dtype)


def fingerprint(machine: BoltzmannMachine) -> str:
    """The same for machines of the same parameters, whatever their dtype and device."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in (*machine.parameters(), *machine.buffers()):
        digest.update(tensor.detach().double().cpu().numpy().tobytes())
    return digest.hexdigest()


def n_units(machine: BoltzmannMachine) -> int:
    """Units in all layers."""
    return sum(layer.n for layer in machine.layers)
