"""Warnings about problems in training, based on the recorded measurements."""

import math
import warnings
from typing import TYPE_CHECKING

from torch import Tensor

from tapmachine.data.errors import EstimateError, LikelihoodWarning, TrainingWarning, warn
from tapmachine.exact.gaussian import Slabs
from tapmachine.likelihood.annealing.estimate import COLLAPSED
from tapmachine.likelihood.result import disagreement
from tapmachine.machine import BoltzmannMachine
from tapmachine.training.monitor import Record
from tapmachine.units import Mixed

if TYPE_CHECKING:
    from tapmachine.training.trainer import Trainer

LARGE_VALUES = 20.0
FALL = 10.0  # nats by which the log-likelihood may fall below its best without a warning
FALL_SHARE = 0.1  # limit of the fall as a fraction of the best value, used if it is larger
WORSE = 0.1  # nats by which the final log-likelihood may be below that of independent units without a warning
IDLE = 0.01  # a layer whose means have a smaller standard deviation over the data carries no information
WORTH_CHECKING, N_SAMPLES = 4000, 500  # number of steps after which samples are compared with rows; their number
CHECKED = ("slope_of_covariances", "adversarial_accuracy", "active_in_rows", "active_in_samples", "outside")


class Watch:
    """Issue warnings about problems in training.

    A warning is issued if the log-likelihood falls, if training maximizes a TAP log-likelihood that is no longer
    accurate, if the final log-likelihood is below that of independent units, if the machine has mass where the data
    have none, or if a deep machine does not use a hidden layer.

    Args:
        maximized: Name of the recorded TAP log-likelihood that training maximizes, or None.

    Attributes:
        best: Highest log-likelihood so far; NaN after a warning about a fall.
        earlier_epochs: Number of epochs before the first epoch of this trainer, such as the pretraining epochs of the
            layers below.
    """

    def __init__(self, maximized: str | None = None) -> None:
        self.maximized = maximized
        self.best = -math.inf
        self.earlier_epochs = 0
        self.independent: float | None = None  # log-likelihood of independent units, after the first measurement
        self.warned: set[str] = set()  # problems that are reported only once

    def measured(self, record: Record, trainer: "Trainer") -> None:
        """Check the measurements of a trainer's machine."""
        is_last = trainer.finished == trainer.epochs > 1
        if is_last:
            _warn_of_idle_layers(trainer.machine, record)
        value, error = record.get("log_likelihood", math.nan), record.get("log_likelihood_error", 0.0)
        if math.isnan(value):
            return
        if self.independent is None:
            self.independent = trainer.monitor.independent(trainer.machine, trainer.batches)
        self._warn_of_a_fall(value)
        self._warn_of_drift(record, value, error)
        if is_last and value < self.independent - WORSE - 3 * error:
            warn(
                f"the final log-likelihood is {value:.4g} nats ({record['log_likelihood_method']}), below the "
                f"{self.independent:.4g} of independent units. The machine has learned nothing; try a smaller learning "
                "rate or more epochs",
                TrainingWarning,
            )

    def check_samples(self, trainer: "Trainer") -> Record:
        """Compare samples with rows after long trainings; warn if the machine has mass where the data have none.

        Nothing is reported if the samples are not in equilibrium.
        """
        batches = trainer.batches
        if trainer.finished * (batches.n_batches or 0) < WORTH_CHECKING or batches.sample_weights is not None:
            return {}
        from tapmachine.likelihood.check import check_samples  # for long trainings only

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LikelihoodWarning)
                check = check_samples(trainer.machine, batches.sample, N_SAMPLES)
        except EstimateError:
            return {}
        if check.effective_sample_size < COLLAPSED * N_SAMPLES:
            return {}
        if check.problems:
            warn(
                f"the machine has mass where the data have none: {'; '.join(check.problems)}. Train with the default "
                "objective, or with more chains, such as PCD(5, n_chains=500)",
                TrainingWarning,
            )
        return {f"samples_{name}": getattr(check, name) for name in CHECKED}

    def excluded(self, count: float, epoch: int) -> None:
        """Warn once about particles with a non-finite free energy."""
        self._warn_once(
            "excluded",
            f"epoch {epoch + self.earlier_epochs}: {count:.0f} particle{'s' if count > 1 else ''} had a non-finite "
            f"free energy and {'were' if count > 1 else 'was'} excluded from training. This happens if the scheme "
            "has no solution, for example TAP for counts with strong couplings. Use PCD(2) (--objective pcd) instead",
        )

    def _warn_of_drift(self, record: Record, value: float, error: float) -> None:
        """Warn once if training maximizes TAP's log-likelihood and it deviates significantly from the unbiased one."""
        if self.maximized is None:
            return
        method, epoch = record["log_likelihood_method"], f"epoch {record['epoch'] + self.earlier_epochs}: "
        maximized = record.get(self.maximized, math.nan)
        advice = (
            "TAP is not reliable for this machine, and training with it increases the error. Keep the machine with the "
            f"highest {method} log-likelihood, or train with PCD(10) (--objective pcd)"
        )
        excess = disagreement("TAP", maximized, method, value, error, advice) if maximized > value else None
        if excess is not None:
            self._warn_once("exceeds", epoch + excess)
            self.warned.add("drift")
        drift = disagreement("TAP", record.get("tap_log_likelihood", math.nan), method, value, error)
        if drift is not None:
            self._warn_once("drift", epoch + drift)

    def _warn_of_a_fall(self, log_likelihood: float) -> None:
        """Warn once if the log-likelihood has fallen far below its best value."""
        if log_likelihood < self.best - max(FALL, FALL_SHARE * abs(self.best)):
            warn(
                f"the log-likelihood has fallen from {self.best:.4g} to {log_likelihood:.4g} nats. The learning rate "
                "is too large, or the chains have lost part of the data, which happens for clustered data. Try a "
                "smaller learning rate, or TAPObjective() (--objective tap), which uses no chains",
                TrainingWarning,
            )
            self.best = math.nan  # comparisons with NaN are False: warn only once
        elif log_likelihood > self.best:
            self.best = log_likelihood

    def _warn_once(self, problem: str, message: str) -> None:
        if problem not in self.warned:
            self.warned.add(problem)
            warn(message, TrainingWarning)


def warn_of_scale(machine: BoltzmannMachine, x: Tensor) -> None:
    """Warn if real values are too large for training."""
    slabs = Slabs.of(machine)
    if slabs is not None and (slabs.above is None or isinstance(machine.layers[0], Mixed)):  # fitted at any scale
        return
    largest = max(abs(float(bound)) for bound in x.aminmax())
    if not machine.layers[0].support.is_countable and largest > LARGE_VALUES:
        warn(f"x has absolute values of up to {largest:g}; scale the data to values of about 1", TrainingWarning)


def _warn_of_idle_layers(machine: BoltzmannMachine, record: Record) -> None:
    for layer_index in range(2, len(machine.layers)):
        variation = record.get(f"variation_{layer_index}", math.inf)
        if variation < IDLE:
            warn(
                f"the means of hidden layer {layer_index} vary by only {variation:.2g} between rows, so the machine "
                "hardly uses this layer; pretrain the layers, or train for longer",
                TrainingWarning,
            )
