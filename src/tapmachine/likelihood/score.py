"""What a log-likelihood is, whichever way it was found, and the part of it that needs no ln Z."""

import copy
import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.conditioning import is_clamped
from tapmachine.machine import BoltzmannMachine
from tapmachine.units.checks import SUPPORTED_DTYPES, check_tensor

CHUNK_VALUES = 2**22  # numbers held at a time, in the fields on the hidden side


class LikelihoodWarning(UserWarning):
    """A log-likelihood that is not to be trusted as it stands."""


class EstimateError(ValueError):
    """An estimator has no answer for this machine, though it was asked in the right way."""


@dataclass(frozen=True, eq=False)
class LogLikelihood:
    """ln P(x) of some rows of data, in nats, in float64.

    It is the logarithm of a probability for units with finitely many states and of a density for real-valued ones,
    which depends on the scale of the data and may be positive; of a `TruncatedGaussBernoulli` unit it is the one at 0
    and the other elsewhere.

    Attributes:
        values: ln P(x) of each row, (N,); NaN for a row that could not be scored.
        log_partition: the ln Z that was subtracted, (); NaN for a pseudo-likelihood, which needs none. It is relative
            to normalised priors: 0 without couplings.
        common_error: the standard error of ln Z, (), which all values share; 0 if it is exact, NaN if it is not known
            or there is no ln Z.
        n_units: units of the machine, in all layers.

    `float(likelihood)` is its mean.
    """

    values: Tensor
    log_partition: Tensor
    common_error: Tensor
    n_units: int

    @property
    def mean(self) -> Tensor:  # ()
        """The average over the rows that could be scored."""
        return self.values[self.scored].mean()

    @property
    def standard_error(self) -> Tensor:  # ()
        """Of the mean, as an estimate for the population the rows are drawn from, without `common_error`."""
        values = self.values[self.scored]
        return values.std() / len(values) ** 0.5 if len(values) > 1 else values.new_tensor(torch.nan)

    @property
    def per_unit(self) -> Tensor:  # ()
        """The mean, divided by the number of visible and hidden units, as in the paper's figures."""
        return self.mean / self.n_units

    @property
    def scored(self) -> Tensor:  # (N,), bool
        """Which rows could be scored."""
        return ~torch.isnan(self.values)

    def with_log_partition(self, log_partition: Tensor, error: Tensor) -> "LogLikelihood":
        """The same rows with another ln Z."""
        values = self.values + self.log_partition - log_partition
        return LogLikelihood(values, log_partition, error, self.n_units)

    def __float__(self) -> float:
        return float(self.mean)

    def __format__(self, spec: str) -> str:
        return format(float(self), spec) if spec else repr(self)

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._summary()})"

    def _summary(self) -> str:
        unscored = int((~self.scored).sum())
        rows = f"{len(self)} row{'s' if len(self) > 1 else ''}" + (f", {unscored} not scored" if unscored else "")
        over_rows = f" ± {self.standard_error:.4f}" if len(self) > 1 else ""
        of_log_partition = f", ± {self.common_error:.4f} of ln Z" if bool(self.common_error > 0) else ""
        return f"{self.mean:.4f}{over_rows} nats over {rows}{of_log_partition}"


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
    units = machine.units()[0]
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


def spaced(x: Tensor, most: int) -> Tensor:
    """Rows at even distances, no more than so many."""
    return x[:: -(-len(x) // most)]


def fingerprint(machine: BoltzmannMachine) -> str:
    """The same for machines of the same parameters, whatever their dtype and device."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in (*machine.parameters(), *machine.buffers()):
        digest.update(tensor.detach().double().cpu().numpy().tobytes())
    return digest.hexdigest()


@torch.no_grad()
def log_weight(machine: BoltzmannMachine, x: Tensor) -> Tensor:  # (N, *state_shape) -> (N,), float64
    """ln of the weight of visible states, with the hidden units summed over: ln P(x) + ln Z.

    Σ_i ln P_i(x_i) + Σ_j ln Z_j(Σ_i W_ij x_i, 0), exact. Only for machines with one hidden layer or none.
    """
    layers = machine.units()
    if len(layers) > 2:
        raise ValueError(f"the weight of visible states is intractable with {len(layers) - 1} hidden layers")
    parts = []
    for rows in x.split(max(1, CHUNK_VALUES // max(machine.sizes))):
        total = layers[0].log_prior(rows, validate=False).sum(-1, dtype=torch.float64)
        if machine.is_pairwise:
            flat = rows.flatten(1)
            total += 0.5 * ((flat @ machine.coupling(0)) * flat).sum(-1, dtype=torch.float64)
        else:
            tilt = Tilt(machine.field_on(1, [rows, None]), 0.0)
            total += layers[1].log_partition(tilt).sum(-1, dtype=torch.float64)
        parts.append(total)
    return torch.cat(parts)


def check_normalisable(machine: BoltzmannMachine) -> None:
    """Raises a ValueError if the couplings between units on the whole real line are too strong for a finite Z.

    Their energy is quadratic, and must be so upwards in all directions: with their couplings in units of the standard
    deviations, no eigenvalue may reach 1. Chains may wander off too slowly for their weights to tell.
    """
    layers = machine.units()
    unbounded = [all(bool(torch.isinf(bound).all()) for bound in layer.bounds()) for layer in layers]
    if machine.n_rows is not None or not any(
        unbounded[edge.below] and unbounded[edge.above] for edge in machine.edges()
    ):
        return
    deviations = [
        layer.moments(Tilt(torch.zeros(layer.state_shape, dtype=layer.dtype, device=layer.device), 0.0)).variance.sqrt()
        if free
        else torch.zeros(size, dtype=layer.dtype, device=layer.device)
        for layer, free, size in zip(layers, unbounded, machine.sizes, strict=True)
    ]
    first = [sum(machine.sizes[:number]) for number in range(len(layers) + 1)]
    scaled = torch.zeros((first[-1], first[-1]), dtype=torch.float64, device=machine.device)
    for below, above, weights in machine.edges():
        block = deviations[below].unsqueeze(-1) * weights * deviations[above]
        scaled[first[below] : first[below + 1], first[above] : first[above + 1]] = block.double()
    scaled = scaled if machine.is_pairwise else scaled + scaled.T
    if bool(torch.isfinite(scaled).all()) and float(torch.linalg.eigvalsh(scaled)[-1]) >= 1:
        raise EstimateError("ln Z is infinite: the couplings are too strong for units on the whole real line")


def n_units(machine: BoltzmannMachine) -> int:
    """Units in all layers."""
    return sum(layer.n for layer in machine.units())
