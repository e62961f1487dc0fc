"""Objectives that compute F of the free machine at TAP solutions or exactly, and the default objective of `fit`."""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from tapmachine.accelerator.distributed import World
from tapmachine.data.checks import check_count
from tapmachine.exact.gaussian import Slabs, gaussian_log_partition, is_gaussian
from tapmachine.machine import BoltzmannMachine
from tapmachine.solver import TAP, Scheme
from tapmachine.training.chains import CD, PCD
from tapmachine.training.context import Carry, Context
from tapmachine.training.free_energies import (
    average,
    finite_free_energy_from,
    free_energy_from,
    mixture,
)
from tapmachine.training.loss import Objective
from tapmachine.units import Gaussian

N_SWEEPS = 1, 2, 5  # default number of sweeps for machines with one, two, and more layers
FEWEST_CHAINS, MOST_CHAINS, ROWS_PER_CHAIN = 100, 500, 120
FEWEST_ON_DEVICE, MOST_ON_DEVICE, ROWS_PER_CHAIN_ON_DEVICE = 500, 800, 75  # chains are cheap on an accelerator
MOST_UNROLLED_SWEEPS = 20  # the compiler unrolls all sweeps, which takes minutes if there are more


Start = Callable[[Context, int], Tensor]  # initial means of the visible layer for a number of particles


def from_batch(context: Context, n_particles: int) -> Tensor:  # (K, *state_shape)
    """Return the rows of the batch as initial states, truncated or repeated to match the number of particles."""
    return _rows(context.batch, n_particles)


@final
class TAPObjective(Objective):
    """Deterministic objective that evaluates F of the free machine at K mean-field solutions [alg:rbmTrain].

    Args:
        n_particles: Number of solutions, K (default: the batch size).
        n_sweeps: Number of sweeps, which may be too few for convergence (default: 10). After the first sweep, sweeps
            are performed in steps of three (implicit) or four (fixed damping), and the last step is always completed.
        scheme: Mean-field scheme to solve (default: `TAP()`). `AdaptiveTAP()`, `BeliefPropagation()` and `RelaxedBP()`
            are suitable only for small machines.
        merged: Whether to use F of the mixture of distinct solutions, −ln Σ e^{−F} (default: True). Each solution is
            then weighted by its probability, regardless of the number of particles that reach it. If False, F is
            averaged over all particles, as in the paper. Particles with a non-finite F, which occur for count units
            with strong couplings, are excluded from the mixture and reported. A step is undone if more than half of the
            particles have a non-finite F. For machines without count units, a step is undone if any particle has a
            non-finite F. With several processes, each process computes all merged solutions.
        start: Function that returns initial means of the visible layer, shape (K, *state_shape), given the context of
            the step and K (default: the rows of the batch, as in the paper). Shapes are fixed, and tensor values are
            not read, so that a step can be captured.

    Example:
        >>> from tapmachine import AdaptiveTAP, TAPObjective
        >>> TAPObjective()
        TAPObjective(n_particles=None, n_sweeps=10, TAP(), merged=True)
        >>> TAPObjective(scheme=AdaptiveTAP(), merged=False).can_be_captured
        False
    """

    scheme: Scheme
    gains_by_compilation = True

    def __init__(
        self,
        n_particles: int | None = None,
        n_sweeps: int = 10,
        scheme: Scheme | None = None,
        merged: bool = True,
        start: Start = from_batch,
    ) -> None:
        self.n_particles = None if n_particles is None else check_count("n_particles", n_particles)
        self.n_sweeps = check_count("n_sweeps", n_sweeps)
        self.scheme, self.merged, self.start = scheme or TAP(), merged, start
        self.is_split = not merged
        self.can_be_captured = self.scheme.can_be_captured
        self.has_many_sweeps = n_sweeps > MOST_UNROLLED_SWEEPS
        if type(self.scheme) is TAP:
            self.maximized = "tap_log_sum_exp" if merged else "tap_log_likelihood"

    def __repr__(self) -> str:
        return (
            f"TAPObjective(n_particles={self.n_particles}, n_sweeps={self.n_sweeps}, {self.scheme}, "
            f"merged={self.merged})"
        )

    def advice(self, machine: BoltzmannMachine) -> str:
        layers = list(machine.layers)
        if any(isinstance(units, Gaussian) for units in layers[1:]):
            return "use the default objective, because TAP has no solution for Gaussian units with strong couplings"
        if any(units.has_counts for units in layers):
            return "use the default objective, because TAP has no solution for counts with strong couplings"
        return super().advice(machine)

    def prepare(self, context: Context) -> Carry:
        return (torch.zeros((), device=context.machine.device),) if self.merged else ()

    def excluded(self, carry: Carry) -> Tensor | None:
        return carry[0] if self.merged else None

    def model_free_energy(self, context: Context, carry: Carry) -> tuple[Tensor, Carry]:
        # A process needs all particles to identify distinct solutions.
        world, count = context.world if self.is_split else World(), self.n_particles or len(context.batch)
        with torch.no_grad():
            x = self.start(context, count)[world.part(count)]
        all_weights = None if context.weights is None else _rows(context.weights, count)
        weights = None if all_weights is None else all_weights[world.part(count)]
        arguments = context.machine, x, self.scheme, self.n_sweeps, context.compile_sweeps
        if self.merged:
            moments, values, kept = finite_free_energy_from(*arguments)
            if kept is not None:
                weights = None if weights is None else weights[kept]
                # A step with too few finite particles is undone and reported.
                others = (kept != torch.arange(len(kept), device=kept.device)).sum()
                carry = (carry[0] + torch.where(torch.isfinite(values[0]), others, 0),)
            return mixture(context.machine, moments, values, weights), carry
        value = average(free_energy_from(*arguments)[1], weights)
        if world.size == 1:
            return value, carry
        if weights is None or all_weights is None:
            return value * (len(x) / count), carry
        return value * weights.sum() / all_weights.sum().clamp(min=torch.finfo(weights.dtype).tiny), carry


def _rows(x: Tensor, count: int) -> Tensor:
    """Return `count` rows, repeating rows if there are fewer."""
    return x[:count] if count <= len(x) else x[torch.arange(count, device=x.device) % len(x)]


@final
class Exact(Objective):
    """Objective with the exact F of the free machine, for `Gaussian` visible units.

    The hidden units are one layer of `Gaussian` units, or of `SpikeSlab` units, of which at most 12 have nonzero
    weights. One unit beside the `SpikeSlab` units may be `Categorical`: its states and the sets of active units
    together define at most 2^12 Gaussians.
    """

    can_be_captured = False  # matrix factorizations synchronize with the device

    def __repr__(self) -> str:
        return "Exact()"

    def prepare(self, context: Context) -> Carry:
        if not is_gaussian(context.machine) and _slabs(context.machine) is None:
            raise ValueError(
                f"Exact: the machine is {context.machine.summary()}; expected Gaussian visible units, and Gaussian "
                "hidden units or SpikeSlab hidden units, at most 12 of them with weights"
            )
        return ()

    def advice(self, machine: BoltzmannMachine) -> str:
        return "try a smaller learning rate"

    def model_free_energy(self, context: Context, carry: Carry) -> tuple[Tensor, Carry]:
        log_partition = _log_partition(context.machine)
        assert log_partition is not None
        return -log_partition.to(context.machine.dtype), carry


def _log_partition(machine: BoltzmannMachine) -> Tensor | None:
    """Return the differentiable ln Z of a machine with Gaussian visible units, or None if it has no closed form."""
    if is_gaussian(machine):
        return gaussian_log_partition(machine)
    slabs = _slabs(machine)
    return None if slabs is None else slabs.log_partition()


def _slabs(machine: BoltzmannMachine) -> Slabs | None:
    """Return the hidden units of a machine whose Gaussian visible units are coupled to no other Gaussian units."""
    slabs = Slabs.of(machine) if isinstance(machine.layers[0], Gaussian) else None
    return slabs if slabs is not None and slabs.above is None else None


def default_objective(machine: BoltzmannMachine, n_rows: int | None = None) -> Objective:
    """Return the default objective of `fit`.

    Most machines are trained by PCD, with two sweeps per step, or five sweeps for machines with several hidden layers.
    There are 100 chains for up to 12,000 rows and 500 chains for 60,000 rows or more, because longer training on more
    rows requires more accurate gradients. On a GPU, where chains cost little, there are 500 to 800 chains.

    Pairwise machines are trained by PCD with one sweep per step, which draws all units one after another. If their
    units are unbounded, chains could diverge, and TAP solutions that start from the batch are used. For Gaussian
    visible units with Gaussian hidden units or a few `SpikeSlab` hidden units, ln Z is computed exactly. Other machines
    with Gaussian or spike-and-slab hidden units are trained by CD. The fields on their visible units are unbounded, so
    the weights would grow without bound if the chains lost a cluster of the data.

    Args:
        machine: Machine to train.
        n_rows: Number of training rows, which determines the number of chains; None if unknown.

    Example:
        >>> from tapmachine import Binary, Gaussian, TruncatedGaussian, rbm
        >>> default_objective(rbm(Binary(4), Binary(2)))
        PCD(2, n_chains=100)
        >>> default_objective(rbm(Binary(4), Gaussian(2)))
        CD(10)
    """
    if machine.is_pairwise and not machine.layers[0].is_bounded():
        return TAPObjective()
    if is_gaussian(machine) or _slabs(machine) is not None:
        return Exact()
    if any(bool(torch.isfinite(units.tail_precision()).any()) for units in list(machine.layers)[1:]):
        return CD(10)
    n_sweeps = N_SWEEPS[min(len(machine.layers), len(N_SWEEPS)) - 1]
    return PCD(n_sweeps, n_chains=default_chains(n_rows or 0, machine.device.type != "cpu"))


def default_chains(n_rows: int, on_device: bool = False) -> int:
    """Return the default number of persistent chains.

    The default is one chain per 120 rows, with a minimum of 100 and a maximum of 500 chains. On accelerators, the
    default is one chain per 75 rows, with a minimum of 500 and a maximum of 800 chains.

    Example:
        >>> [default_chains(n) for n in (400, 15_000, 60_000)]
        [100, 125, 500]
        >>> [default_chains(n, on_device=True) for n in (400, 15_000, 60_000)]
        [500, 500, 800]
    """
    if on_device:
        return max(FEWEST_ON_DEVICE, min(MOST_ON_DEVICE, n_rows // ROWS_PER_CHAIN_ON_DEVICE))
    return max(FEWEST_CHAINS, min(MOST_CHAINS, n_rows // ROWS_PER_CHAIN))
