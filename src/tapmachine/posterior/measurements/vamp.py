"""Vector approximate message passing (Rangan, Schniter, Fletcher 2016) and expectation propagation (Minka 2001).

Both algorithms can be used with any matrix. Three parts exchange normal messages: the machine (the prior of x), the
measurements (the likelihood P(y|z)) and the linear relation z = Fx. A part that receives a message with field h and
precision γ computes its mean a and variance c. It returns the corresponding normal distribution divided by the incoming
message, with precision γ' and field h',

    γ' = 1/c − γ,    h' = a/c − h.

VAMP uses one precision per signal, where c is the mean of the variances. It solves the linear relation in the basis of
the singular vectors of F. VAMP is accurate if each measurement depends equally on many components. Expectation
propagation uses a separate precision for each component and factorizes one matrix per signal. It is also accurate for
local measurements such as a blur.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.posterior.measurements.base import Measurements
from tapmachine.posterior.measurements.engine import Engine, adapted
from tapmachine.posterior.measurements.kinds import LOG_2PI, CountMeasurements, LinearMeasurements
from tapmachine.posterior.measurements.linear_relation import (
    ByConjugateGradients,
    ByFactorization,
    BySingularValues,
    LinearRelation,
)
from tapmachine.posterior.measurements.messages import Limits, Message, log_normal, returned
from tapmachine.posterior.measurements.operators import Operator
from tapmachine.posterior.measurements.prior import Layers, MachinePrior, flat, mean_change

UNEXPLAINED = 0.1  # fraction of the residual that counts as noise, so that early estimates keep some uncertainty


class VAMPState(NamedTuple):
    """State of the iteration for K signals."""

    layers: Layers  # moments of all layers
    to_prior: Message  # about x, (K, N)
    to_outputs: Message  # about z, (K, M)
    speed: Tensor  # weight of the new messages, (K,)
    change: Tensor  # mean squared change in the moments without damping, (K,)

    @property
    def tilt(self) -> Tilt:
        """Tilt on the components of the visible states."""
        field, precision = self.to_prior
        return Tilt(field, precision.expand_as(field))


class VAMP(Engine[VAMPState]):
    """Engine for vector approximate message passing (VAMP)."""

    first_speed, slowest = 0.7, 0.1
    per_component = False

    def __init__(
        self, prior: MachinePrior, operator: Operator, channel: Measurements, y: Tensor, noise_variance: Tensor
    ) -> None:
        super().__init__(prior, operator, channel, y, noise_variance)
        self.limits = Limits(0.0, torch.inf), Limits(0.0, torch.inf)  # limits of messages about x and z, set by begin
        self.linear = self.relation(operator, y)

    def relation(self, operator: Operator, like: Tensor) -> LinearRelation:
        """Create the solver for the linear relation z = Fx."""
        decomposition = operator.singular_values()
        return BySingularValues(operator, decomposition) if decomposition else ByConjugateGradients(operator, like)

    def begin(self, layers: Layers) -> VAMPState:
        mean, variance = flat(layers)
        spread = variance if self.per_component else variance.mean(1, keepdim=True)
        spread = spread.clamp(min=torch.finfo(mean.dtype).eps)
        known = Message(mean / spread, 1 / spread)  # as for a normal prior with these moments
        variance_of_z = self.operator.forward_squares(variance).mean(1, keepdim=True)
        variance_of_z = variance_of_z.clamp(min=torch.finfo(mean.dtype).tiny ** 0.5)
        self.limits = Limits.around(variance), Limits.around(variance_of_z)
        z = self.operator.forward(mean)
        rows = torch.arange(len(mean), device=mean.device)
        of_outputs = self._of_outputs(Message(z / variance_of_z, 1 / variance_of_z), z, rows)
        to_prior, to_outputs, _ = self.linear.answer(known, of_outputs, self.limits)
        speed = mean.new_full((len(mean),), self.first_speed)
        return VAMPState(layers, to_prior, to_outputs, speed, torch.full_like(speed, torch.inf))

    def step(self, state: VAMPState, rows: Tensor) -> VAMPState:
        weight = state.speed.unsqueeze(1)
        layers = self.prior.respond(state.tilt, state.layers)
        new, old = flat(layers), flat(state.layers)
        of_prior = returned(new, state.to_prior, self.per_component, self.limits[0])
        of_outputs = self._of_outputs(state.to_outputs, self.operator.forward(new.mean), rows)
        to_prior, to_outputs, _ = self.linear.answer(of_prior, of_outputs, self.limits)
        change = mean_change(new, old) / state.speed**2
        return VAMPState(
            layers,
            to_prior.damped(state.to_prior, weight),
            to_outputs.damped(state.to_outputs, weight),
            adapted(state.speed, change, state.change, self.slowest),
            change,
        )

    def free_energy(self, state: VAMPState, tilted: Tensor, rows: Tensor) -> Tensor:
        # Log-integrals of the three parts, minus the log-integrals of the message products that two parts exchange.
        of_prior = returned(flat(state.layers), state.to_prior, self.per_component, self.limits[0])
        of_outputs = self._of_outputs(state.to_outputs, None, rows)
        *_, log_integral = self.linear.answer(of_prior, of_outputs, self.limits)
        log_evidence = log_integral - log_normal(of_prior.times(state.to_prior)) + self._log_outputs(state, rows)
        if not isinstance(self.channel, LinearMeasurements):
            log_evidence = log_evidence - log_normal(of_outputs.times(state.to_outputs))
        return tilted - log_evidence

    def about_outputs(self, state: VAMPState, rows: Tensor) -> Moments:
        return self.channel.respond(self.y[rows], self._received(state.to_outputs), self.noise_variance[rows]).moments

    def _of_outputs(self, received: Message, estimate: Tensor | None, rows: Tensor) -> Message:
        """Compute the message from the measurements about z = Fx, given an estimate of z."""
        y, noise = self.y[rows], self.noise_variance[rows]
        if estimate is not None and isinstance(self.channel, LinearMeasurements | CountMeasurements):
            unexplained = (y - self.bias - estimate).square().mean(1, keepdim=True)
            noise = torch.maximum(noise, UNEXPLAINED * unexplained)
        if isinstance(self.channel, LinearMeasurements):  # a normal message, independent of the received one
            precision = (1 / noise).expand_as(y) if self.per_component else 1 / noise
            return Message(precision * (y - self.bias), precision)
        z = self.channel.respond(y, self._received(received), noise).moments
        centered = Moments((z.mean - self.bias).to(y.dtype), z.variance.to(y.dtype))
        return returned(centered, received, self.per_component, self.limits[1])

    def _received(self, message: Message) -> Moments:
        """Compute the mean and variance of Fx + b under a message about Fx."""
        variance = 1 / message.precision
        return Moments(message.field * variance + self.bias, variance.expand_as(message.field))

    def _log_outputs(self, state: VAMPState, rows: Tensor) -> Tensor:
        """Compute the contribution of the measurements to the log-evidence."""
        if not isinstance(self.channel, LinearMeasurements):
            received = self._received(state.to_outputs)
            log_evidence = self.channel.respond(self.y[rows], received, self.noise_variance[rows]).log_evidence
            return log_evidence.sum(1) + log_normal(state.to_outputs)
        y, noise = (self.y[rows] - self.bias).double(), self.noise_variance[rows].double()
        return -0.5 * (y**2 / noise + LOG_2PI + noise.log()).sum(1)


class ExpectationPropagation(VAMP):
    """Engine for expectation propagation (EP)."""

    per_component = True

    def relation(self, operator: Operator, like: Tensor) -> LinearRelation:
        return ByFactorization(operator)
