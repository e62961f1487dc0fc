"""Objectives that take F of the free machine at TAP solutions, or exactly; and the default objective of `fit`."""

from typing import final

import torch
from torch import Tensor

from tapmachine.data.checks import check_count
from tapmachine.likelihood.exact import gaussian_log_partition, is_gaussian
from tapmachine.likelihood.slabs import can_sum_slabs, slabs_log_partition
from tapmachine.machine import BoltzmannMachine
from tapmachine.solver import TAP, Scheme, solve
from tapmachine.training.chains import CD, PCD, HerdedPCD
from tapmachine.training.context import Carry, Context
from tapmachine.training.free_energies import average, sweep_from
from tapmachine.training.loss import Objective
from tapmachine.training.starts import FromBatch, Herded, Start, has_herded_states
from tapmachine.units import Lattice

LEAST_CHAINS = 100  # of the default objective


@final
class TAPObjective(Objective):
    """F of the free machine at K of its solutions, deterministically [alg:rbmTrain].

    Args:
        start: where the solutions start (default: `FromBatch()`).
        n_particles: K, the number of solutions (default: the batch size).
        n_sweeps: sweeps from the start, which need not reach a solution; after the first they come in steps of three
            (implicit) or four (fixed damping), and the last step is completed. None to sweep until convergence, which
            cannot be captured on a GPU.
        scheme: the equations to solve (default: `TAP()`).
    """

    scheme: Scheme
    is_split = True

    def __init__(
        self,
        start: Start | None = None,
        n_particles: int | None = None,
        n_sweeps: int | None = 10,
        scheme: Scheme | None = None,
    ) -> None:
        self.start = start or FromBatch()
        self.n_particles = None if n_particles is None else check_count("n_particles", n_particles)
        self.n_sweeps = None if n_sweeps is None else check_count("n_sweeps", n_sweeps)
        self.scheme = scheme or TAP()
        self.can_be_captured = n_sweeps is not None and self.scheme.can_be_captured

    def __repr__(self) -> str:
        return f"TAPObjective({self.start}, n_particles={self.n_particles}, n_sweeps={self.n_sweeps}, {self.scheme})"

    def prepare(self, context: Context) -> Carry:
        count = self.n_particles or len(context.batch)
        return context.share(self.start.prepare(context, count), count)

    def model_free_energy(self, context: Context, carry: Carry) -> tuple[Tensor, Carry]:
        machine, count = context.machine, self.n_particles or len(context.batch)
        share, all_weights = context.world.share(count), self.start.weights(context, count)
        weights = None if all_weights is None else all_weights[share]
        with torch.no_grad():
            x, carry = self.start.begin(context, count, carry)
            x = x if self.start.is_carried else x[share]
            if self.n_sweeps is None:
                solution = solve(machine, x, self.scheme)
                carry = self.start.finish(solution.moments[0].mean, carry)
                finite = torch.isfinite(solution.free_energy)  # the others have none
                solution = solution.select(finite)
                moments, tilts = list(solution.moments), list(solution.tilts)
                weights = None if weights is None else weights[finite]
            else:
                moments, tilts = sweep_from(machine, x, self.scheme, self.n_sweeps)
                carry = self.start.finish(moments[0].mean, carry)
        value = average(self.scheme.free_energy(machine, moments, tilts), weights)
        if context.world.size == 1:
            return value, carry
        if all_weights is None:
            return value * ((share.stop - share.start) / count), carry
        return value * all_weights[share].sum() / all_weights.sum().clamp(
            min=torch.finfo(all_weights.dtype).tiny
        ), carry


@final
class ExactGaussian(Objective):
    """The exact F of the free machine, for two layers of `Gaussian` units, whose ln Z is a determinant."""

    can_be_captured = False  # matrix factorizations wait for the device

    def __repr__(self) -> str:
        return "ExactGaussian()"

    def prepare(self, context: Context) -> Carry:
        if not is_gaussian(context.machine):
            raise ValueError(f"ExactGaussian: the machine is {context.machine.summary()}; expected two Gaussian layers")
        return ()

    def model_free_energy(self, context: Context, carry: Carry) -> tuple[Tensor, Carry]:
        return -gaussian_log_partition(context.machine).to(context.machine.dtype), carry


@final
class ExactSlabs(Objective):
    """The exact F of the free machine, for `Gaussian` visible and `SpikeSlab` hidden units, up to 12 with weights."""

    can_be_captured = False  # matrix factorizations wait for the device

    def __repr__(self) -> str:
        return "ExactSlabs()"

    def prepare(self, context: Context) -> Carry:
        if not can_sum_slabs(context.machine):
            raise ValueError(
                f"ExactSlabs: the machine is {context.machine.summary()}; expected Gaussian visible units and "
                "SpikeSlab hidden ones, at most 12 of them with weights"
            )
        return ()

    def model_free_energy(self, context: Context, carry: Carry) -> tuple[Tensor, Carry]:
        return -slabs_log_partition(context.machine).to(context.machine.dtype), carry


def default_objective(machine: BoltzmannMachine, batch_size: int = 100) -> Objective:
    """The default objective of `fit`: one herded chain per row of a batch, at least 100; or, if some units have no
    states to herd, one TAP sweep from a herded chain per row.

    A pairwise machine has no layers for chains to alternate between: its solutions start from the batch, as in the
    paper. TAP is not used with Gaussian hidden units: it subtracts the variance of the field on a unit from its
    precision until none is left, while Z is still finite. With Gaussian visible units ln Z is exact, as it is for a few
    `SpikeSlab` hidden units; with others the
    default is CD, because the unbounded field on units of chains that have lost a cluster of the data makes weights
    grow without bound.

    Example:
        >>> from tapmachine import Binary, Gaussian, TruncatedGaussian, rbm
        >>> default_objective(rbm(Binary(4), Binary(2)))
        HerdedPCD(10, n_chains=100)
        >>> default_objective(rbm(TruncatedGaussian(4), Binary(2)))
        TAPObjective(Herded(10), n_particles=100, n_sweeps=1, TAP())
        >>> default_objective(rbm(Binary(4), Gaussian(2)))
        CD(10)
    """
    if machine.is_pairwise:
        return TAPObjective()
    if is_gaussian(machine):
        return ExactGaussian()
    if can_sum_slabs(machine):
        return ExactSlabs()
    if any(bool(torch.isfinite(units.tail_precision()).any()) for units in list(machine.layers)[1:]):
        return CD(10)
    if any(isinstance(units.support, Lattice) for units in machine.layers):
        return PCD(10)  # TAP's reaction exp(½κx²) may outgrow their priors
    if all(has_herded_states(units) for units in machine.layers):
        return HerdedPCD(10, n_chains=max(batch_size, LEAST_CHAINS))
    return TAPObjective(Herded(10), n_particles=batch_size, n_sweeps=1)
