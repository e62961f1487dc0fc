"""Objectives that compute F of the free machine at TAP solutions or exactly, and the default objective of `fit`."""

from typing import final

import torch
from torch import Tensor

from tapmachine.accelerator.distributed import World
from tapmachine.data.budget import default_chains
from tapmachine.data.checks import check_count
from tapmachine.exact.gaussian import Slabs, gaussian_log_partition, is_gaussian
from tapmachine.machine import BoltzmannMachine
from tapmachine.solver import TAP, Scheme, solve
from tapmachine.training.chains import CD, PCD
from tapmachine.training.context import Carry, Context
from tapmachine.training.free_energies import (
    average,
    finite_free_energy_from,
    free_energy_from,
    mixture,
)
from tapmachine.training.loss import Objective
from tapmachine.training.starts import FromBatch, Start
from tapmachine.units import Gaussian

N_SWEEPS, N_SWEEPS_OF_DEEP = 2, 5  # defaults
MOST_UNROLLED_SWEEPS = 20  # the compiler unrolls all sweeps, which takes minutes if there are more


@final
class TAPObjective(Objective):
    """Deterministic objective that evaluates F of the free machine at K mean-field solutions [alg:rbmTrain].

    Args:
        start: Initial states of the solutions (default: `FromBatch()`).
        n_particles: Number of solutions, K (default: the batch size).
        n_sweeps: Number of sweeps, which may be too few for convergence (default: 10). After the first sweep, sweeps
            are performed in steps of three (implicit) or four (fixed damping), and the last step is always completed.
            If None, sweeps continue until convergence, and steps cannot be captured as CUDA graphs.
        scheme: Mean-field scheme to solve (default: `TAP()`). `AdaptiveTAP()`, `BeliefPropagation()` and `RelaxedBP()`
            are suitable only for small machines.
        merged: Whether to use F of the mixture of distinct solutions, −ln Σ e^{−F}. Each solution is then weighted by
            its probability, regardless of the number of particles that reach it. If False, F is averaged over all
            particles, as in the paper. The default is True, unless the initial states are samples of the machine, as
            for `Chains`. Particles with a non-finite F, which occur for count units with strong couplings, are excluded
            from the mixture and reported. A step is undone if more than half of the particles have a non-finite F. For
            machines without count units, a step is undone if any particle has a non-finite F. With several processes,
            each process computes all merged solutions.

    Example:
        >>> from tapmachine import AdaptiveTAP, TAPObjective
        >>> TAPObjective()
        TAPObjective(FromBatch(), n_particles=None, n_sweeps=10, TAP(), merged=True)
        >>> TAPObjective(scheme=AdaptiveTAP(), merged=False).can_be_captured
        False
    """

    scheme: Scheme

    def __init__(
        self,
        start: Start | None = None,
        n_particles: int | None = None,
        n_sweeps: int | None = 10,
        scheme: Scheme | None = None,
        merged: bool | None = None,
    ) -> None:
        self.start = start or FromBatch()
        self.n_particles = None if n_particles is None else check_count("n_particles", n_particles)
        self.n_sweeps = None if n_sweeps is None else check_count("n_sweeps", n_sweeps)
        self.scheme = scheme or TAP()
        self.merged = not self.start.samples_machine if merged is None else merged
        self.is_split = not (self.merged or self.start.is_random)
        self.can_be_captured = n_sweeps is not None and self.scheme.can_be_captured
        self.gains_by_compilation = n_sweeps is not None
        self.has_many_sweeps = n_sweeps is not None and n_sweeps > MOST_UNROLLED_SWEEPS

    def __repr__(self) -> str:
        options = f"n_particles={self.n_particles}, n_sweeps={self.n_sweeps}, {self.scheme}, merged={self.merged}"
        return f"TAPObjective({self.start}, {options})"

    @property
    def maximized(self) -> str | None:
        """Name of the log-likelihood recorded by `Monitor` that training maximizes, or None."""
        if type(self.scheme) is not TAP or self.start.samples_machine:
            return None
        return "tap_log_sum_exp" if self.merged else "tap_log_likelihood"

    def prepare(self, context: Context) -> Carry:
        context, count = self._for_each_process(context), self.n_particles or len(context.batch)
        carry = context.share(self.start.prepare(context, count), count)
        return (*carry, torch.zeros((), device=context.machine.device)) if self.merged else carry

    def excluded(self, carry: Carry) -> Tensor | None:
        return carry[-1] if self.merged else None

    def model_free_energy(self, context: Context, carry: Carry) -> tuple[Tensor, Carry]:
        context, count = self._for_each_process(context), self.n_particles or len(context.batch)
        share, all_weights = context.world.share(count), self.start.weights(context, count)
        weights = None if all_weights is None else all_weights[share]
        carry, n_excluded = (carry[:-1], carry[-1]) if self.merged else (carry, None)
        with torch.no_grad():
            x, carry = self.start.begin(context, count, carry)
            x = x if self.start.is_carried else x[share]
        if self.n_sweeps is None:
            solution = solve(context.machine, x, self.scheme)
            carry = self.start.finish(solution.moments[0].mean, carry)
            finite = torch.isfinite(solution.free_energy)
            usable = solution.converged & finite if self.merged else finite
            n_excluded = None if n_excluded is None else n_excluded + (~finite).sum()
            solution, weights = solution.select(usable), None if weights is None else weights[usable]
            moments = list(solution.moments)
            values = self.scheme.free_energy(context.machine, moments, solution.tilts)
        elif n_excluded is not None:
            moments, values, kept = finite_free_energy_from(
                context.machine, x, self.scheme, self.n_sweeps, context.compile_sweeps
            )
            weights = None if weights is None else weights[kept]
            carry = self.start.finish(moments[0].mean, carry)
            # A step with too few finite particles is undone and reported.
            others = (kept != torch.arange(len(kept), device=kept.device)).sum()
            n_excluded = n_excluded + torch.where(torch.isfinite(values[0]), others, 0)
        else:
            moments, values = free_energy_from(context.machine, x, self.scheme, self.n_sweeps, context.compile_sweeps)
            carry = self.start.finish(moments[0].mean, carry)
        if n_excluded is not None:
            return mixture(context.machine, moments, values, weights), (*carry, n_excluded)
        value = average(values, weights)
        if context.world.size == 1:
            return value, carry
        if all_weights is None:
            return value * ((share.stop - share.start) / count), carry
        return value * all_weights[share].sum() / all_weights.sum().clamp(
            min=torch.finfo(all_weights.dtype).tiny
        ), carry

    def _for_each_process(self, context: Context) -> Context:
        """Return a context in which each process has all particles, unless the particles are split.

        A process needs all particles to identify distinct solutions.
        """
        return context if self.is_split else context._replace(world=World())


@final
class ExactGaussian(Objective):
    """Objective with the exact F of the free machine, for two layers of `Gaussian` units.

    The logarithm of Z is computed from a determinant.
    """

    can_be_captured = False  # matrix factorizations synchronize with the device

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
    """Objective with the exact F of the free machine, for `Gaussian` visible units and a few `SpikeSlab` hidden units.

    At most 12 hidden units may have nonzero weights. One hidden unit may be `Categorical`. The states of this unit and
    the sets of active units together define at most 2^12 Gaussians.
    """

    can_be_captured = False  # matrix factorizations synchronize with the device

    def __repr__(self) -> str:
        return "ExactSlabs()"

    def prepare(self, context: Context) -> Carry:
        if _slabs(context.machine) is None:
            raise ValueError(
                f"ExactSlabs: the machine is {context.machine.summary()}; expected Gaussian visible units and "
                "SpikeSlab hidden units, at most 12 of them with weights, and at most one Categorical unit"
            )
        return ()

    def model_free_energy(self, context: Context, carry: Carry) -> tuple[Tensor, Carry]:
        slabs = _slabs(context.machine)
        assert slabs is not None
        return -slabs.log_partition().to(context.machine.dtype), carry


def _slabs(machine: BoltzmannMachine) -> Slabs | None:
    """Return the hidden units of a machine whose Gaussian visible units are coupled to no other Gaussian units."""
    slabs = Slabs.of(machine) if isinstance(machine.layers[0], Gaussian) else None
    return slabs if slabs is not None and slabs.above is None else None


def default_objective(machine: BoltzmannMachine, n_rows: int = 0) -> Objective:
    """Return the default objective of `fit`.

    Most machines are trained by PCD, with two sweeps per step, or five sweeps for machines with several hidden layers.
    There are 100 chains for up to 12,000 rows and 500 chains for 60,000 rows or more, because longer training on more
    rows requires more accurate gradients. On a GPU, where chains cost little, there are 500 to 800 chains.

    Pairwise machines have no layers for chains to alternate between. These machines are trained with TAP solutions that
    start from the batch, as in the paper. For Gaussian visible units with Gaussian hidden units or a few `SpikeSlab`
    hidden units, ln Z is computed exactly. Other machines with Gaussian or spike-and-slab hidden units are trained by
    CD. The fields on their visible units are unbounded, so the weights would grow without bound if the chains lost a
    cluster of the data.

    Args:
        machine: Machine to train.
        n_rows: Number of training rows, which determines the number of chains (default: 0).

    Example:
        >>> from tapmachine import Binary, Gaussian, TruncatedGaussian, rbm
        >>> default_objective(rbm(Binary(4), Binary(2)))
        PCD(2, n_chains=100)
        >>> default_objective(rbm(Binary(4), Gaussian(2)))
        CD(10)
    """
    if machine.is_pairwise:
        return TAPObjective()
    if is_gaussian(machine):
        return ExactGaussian()
    if _slabs(machine) is not None:
        return ExactSlabs()
    if any(bool(torch.isfinite(units.tail_precision()).any()) for units in list(machine.layers)[1:]):
        return CD(10)
    n_sweeps = N_SWEEPS if len(machine.layers) == 2 else N_SWEEPS_OF_DEEP
    return PCD(n_sweeps, n_chains=default_chains(n_rows, machine.device.type != "cpu"))
