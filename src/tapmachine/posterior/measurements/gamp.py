"""Generalized approximate message passing (Rangan 2011) with a machine as the prior.

GAMP is designed for matrices with independent entries. Let a and c be the means and variances of the components. The
measured combinations z = Fx are approximately normal with variance V and mean ω,

    V = F²c,    ω = Fa − V g.

The response of the measurements is g = (E[z|y] − ω)/V, with −∂g/∂ω = (1 − Var[z|y]/V)/V. The components receive a tilt
with precision A and field B,

    A = (F²)ᵀ(−∂g/∂ω),    B = A a + Fᵀg,

and the machine responds with new values of a and c. As in TAP, the terms V g and A a remove the effect of each
component on itself.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.posterior.measurements.engine import Engine, adapted
from tapmachine.posterior.measurements.prior import Layers, flat, mean_change


class GAMPState(NamedTuple):
    """State of the iteration for K signals."""

    layers: Layers  # moments of all layers
    mean: Tensor  # a, damped, (K, N)
    variance: Tensor  # c, damped, (K, N)
    pull: Tensor  # g, damped, (K, M)
    stiffness: Tensor  # −∂g/∂ω, damped, (K, M)
    tilt: Tilt  # B and A, (K, N)
    speed: Tensor  # weight of the new values, (K,)
    change: Tensor  # mean squared change in the moments in an undamped iteration, (K,)


class GAMP(Engine[GAMPState]):
    """Engine for generalized approximate message passing (GAMP)."""

    first_speed, slowest = 0.5, 0.05

    def begin(self, layers: Layers) -> GAMPState:
        mean, variance = flat(layers)
        nothing = torch.zeros_like(self.y)
        speed = mean.new_full((len(mean),), self.first_speed)
        no_tilt = Tilt(torch.zeros_like(mean), torch.zeros_like(mean))
        return GAMPState(layers, mean, variance, nothing, nothing, no_tilt, speed, torch.full_like(speed, torch.inf))

    def step(self, state: GAMPState, rows: Tensor) -> GAMPState:
        weight, old = state.speed.unsqueeze(1), Moments(state.mean, state.variance)
        pull, stiffness, _ = self._respond(self._received(old, state.pull), rows)
        pull, stiffness = torch.lerp(state.pull, pull, weight), torch.lerp(state.stiffness, stiffness, weight)
        precision = self.operator.adjoint_squares(stiffness)  # A
        tilt = Tilt(precision * state.mean + self.operator.adjoint(pull), precision)  # B and A
        layers = self.prior.respond(tilt, state.layers)
        new = flat(layers)
        change = mean_change(new, old)
        mean, variance = (torch.lerp(before, after, weight) for before, after in zip(old, new, strict=True))
        speed = adapted(state.speed, change, state.change, self.slowest)
        return GAMPState(layers, mean, variance, pull, stiffness, tilt, speed, change)

    def free_energy(self, state: GAMPState, tilted: Tensor, rows: Tensor) -> Tensor:
        # F = F(tilted) + Σ_i (B a − ½A(a² + c)) − Σ_μ (ln ∫ P(y|z) N(z; ω, V) dz + ½V g²), with V g = Fa − ω
        (mean, variance), (field, precision) = flat(state.layers), state.tilt
        received = self._received(Moments(mean, variance), state.pull)
        _, _, log_evidence = self._respond(received, rows)
        of_pull = 0.5 * received.variance.double() * state.pull.double() ** 2
        of_outputs = (log_evidence + of_pull).where(self.seen[rows], 0.0)
        of_tilt = torch.as_tensor(field * mean - 0.5 * precision * (mean**2 + variance)).double()
        return tilted + of_tilt.sum(1) - of_outputs.sum(1)

    def about_outputs(self, state: GAMPState, rows: Tensor) -> Moments:
        received = self._received(Moments(state.mean, state.variance), state.pull)
        return self.channel.respond(self.y[rows], received, self.noise_variance[rows]).moments

    def _received(self, components: Moments, pull: Tensor) -> Moments:  # (K, M)
        """Compute the mean ω and the variance V of z before the measurement."""
        variance = self.operator.forward_squares(components.variance).clamp(min=torch.finfo(pull.dtype).tiny ** 0.5)
        return Moments(self.operator.forward(components.mean) + self.bias - variance * pull, variance)

    def _respond(self, received: Moments, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute g, −∂g/∂ω and the log-evidence of each measurement; all are 0 for missing measurements."""
        log_evidence, z = self.channel.respond(self.y[rows], received, self.noise_variance[rows])
        mean, variance = (moment.double() for moment in received)
        seen = self.seen[rows]
        pull, stiffness = (z.mean - mean) / variance, (1 - z.variance / variance) / variance
        pull, stiffness = (value.where(seen, 0.0).to(self.y.dtype) for value in (pull, stiffness))
        return pull, stiffness, log_evidence
