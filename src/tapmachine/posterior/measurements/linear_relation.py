"""Solvers for the linear relation z = Fx, given normal messages about x and z."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.beliefs import Moments
from tapmachine.posterior.measurements.kinds import LOG_2PI
from tapmachine.posterior.measurements.messages import SMALLEST_SHARE, Limits, Message, returned
from tapmachine.posterior.measurements.operators import Operator, SingularValues

N_PROBES = 16  # number of random vectors for estimating traces
CG_STEPS, CG_TOLERANCE = 200, 1e-6


class _Normal(NamedTuple):
    """Normal distribution of x with precision matrix γ + FᵀτF, for K signals."""

    mean: Tensor  # mean of x, (K, N)
    variance: Tensor  # variances of x, (K, N), or their mean, (K, 1)
    variance_of_outputs: Tensor  # variances of z, (K, M), or their mean, (K, 1)
    log_determinant: Tensor  # logarithm of the determinant of the precision matrix, (K,)


class LinearRelation(ABC):
    """Base class for solvers for the linear relation z = Fx under normal messages about x and z."""

    per_component = False

    def __init__(self, operator: Operator) -> None:
        self.operator = operator

    def answer(
        self, of_prior: Message, of_outputs: Message, limits: tuple[Limits, Limits]
    ) -> tuple[Message, Message, Tensor]:
        """Compute the messages to the prior and to the outputs.

        Args:
            of_prior: Message from the prior about x.
            of_outputs: Message from the outputs about z.
            limits: Limits on the precisions of messages about x and about z.

        Returns:
            The message to the prior, the message to the outputs, and the logarithm of the normal integral, of shape
            (K,).
        """
        field = of_prior.field + self.operator.adjoint(of_outputs.field)
        normal = self.solve(field, of_prior.precision, of_outputs.precision)
        n = self.operator.shape[1]
        exponent = (field.double() * normal.mean.double()).sum(1)
        log_integral = 0.5 * (exponent - normal.log_determinant.double() + n * LOG_2PI)
        x = Moments(normal.mean, normal.variance)
        z = Moments(self.operator.forward(normal.mean), normal.variance_of_outputs)
        about_x, about_z = (
            Limits(SMALLEST_SHARE * lowest, highest) for lowest, highest in limits
        )  # positive precisions
        return (
            returned(x, of_prior, self.per_component, about_x),
            returned(z, of_outputs, self.per_component, about_z),
            log_integral,
        )

    @abstractmethod
    def solve(self, field: Tensor, gamma: Tensor, tau: Tensor) -> _Normal:
        """Compute the moments of the normal distribution ∝ exp(field·x − ½xᵀ(γ + FᵀτF)x)."""


class BySingularValues(LinearRelation):
    """Solver for messages with one precision per signal, based on the singular value decomposition of F."""

    def __init__(self, operator: Operator, decomposition: SingularValues) -> None:
        super().__init__(operator)
        self.right, self.squares = decomposition.right, decomposition.values.square()

    def solve(self, field: Tensor, gamma: Tensor, tau: Tensor) -> _Normal:
        (m, n), rank = self.operator.shape, len(self.squares)
        along = gamma + tau * self.squares  # precision along each singular vector, (K, R)
        mean = field / gamma + ((field @ self.right) * (1 / along - 1 / gamma)) @ self.right.T
        variance = ((1 / along).sum(1, keepdim=True) + (n - rank) / gamma) / n
        of_outputs = (self.squares / along).sum(1, keepdim=True) / m
        log_determinant = along.double().log().sum(1) + (n - rank) * gamma.double().log().squeeze(1)
        return _Normal(mean, variance, of_outputs, log_determinant)


class ByConjugateGradients(LinearRelation):
    """Matrix-free solver that uses conjugate gradients for linear systems and random vectors for traces.

    The determinant is approximated as if all min(M, N) singular values of F were equal.
    """

    def __init__(self, operator: Operator, like: Tensor) -> None:
        super().__init__(operator)
        n = operator.shape[1]
        self.mean_square = float(operator.forward_squares(like.new_ones(1, n)).mean()) / n
        draws = torch.Generator().manual_seed(0)
        self.probes = (torch.randint(2, (N_PROBES, n), generator=draws) * 2 - 1).to(like)

    def solve(self, field: Tensor, gamma: Tensor, tau: Tensor) -> _Normal:
        count, (m, n) = len(field), self.operator.shape
        each = torch.arange(count, device=field.device).repeat_interleave(N_PROBES)
        probes = self.probes.repeat(count, 1)
        solved = self._inverse(torch.cat((field, probes)), torch.cat((gamma, gamma[each])), torch.cat((tau, tau[each])))
        trace = (probes * solved[count:]).sum(1).view(count, N_PROBES).mean(1, keepdim=True)
        trace = trace.clamp(min=torch.finfo(trace.dtype).tiny).minimum(n / gamma)
        of_outputs = (n - gamma * trace).clamp(min=torch.finfo(trace.dtype).eps) / (m * tau)  # FᵀτF = total − γ
        rank = min(m, n)
        along = gamma + tau * (self.mean_square * m * n / rank)
        log_determinant = rank * along.double().log() + (n - rank) * gamma.double().log()
        return _Normal(solved[:count], trace / n, of_outputs, log_determinant.squeeze(1))

    def _inverse(self, b: Tensor, gamma: Tensor, tau: Tensor) -> Tensor:
        """Compute (γ + τFᵀF)⁻¹b by conjugate gradients."""
        tiny = torch.finfo(b.dtype).tiny
        x, residual = torch.zeros_like(b), b.clone()
        direction, size = residual, residual.square().sum(1, keepdim=True)
        enough = CG_TOLERANCE**2 * size
        for _ in range(CG_STEPS):
            image = gamma * direction + tau * self.operator.adjoint(self.operator.forward(direction))
            step = size / (direction * image).sum(1, keepdim=True).clamp(min=tiny)
            x, residual = x + step * direction, residual - step * image
            new = residual.square().sum(1, keepdim=True)
            if bool((new <= enough).all()):
                break
            direction, size = residual + new / size.clamp(min=tiny) * direction, new
        return x


class ByFactorization(LinearRelation):
    """Solver for messages with a separate precision for each component.

    For each signal, it computes the Cholesky factorization of a matrix whose size is the smaller dimension of F.
    """

    per_component = True

    def __init__(self, operator: Operator) -> None:
        super().__init__(operator)
        matrix = operator.dense()
        if matrix is None:
            raise ValueError("expectation propagation requires an explicit matrix; use engine='gamp' or 'vamp'")
        self.matrix = matrix.double()

    def solve(self, field: Tensor, gamma: Tensor, tau: Tensor) -> _Normal:
        dtype, (m, n) = field.dtype, self.operator.shape
        field, gamma, tau = (z.double() for z in (field, gamma.expand_as(field), tau.expand(-1, m)))
        mean, variance, of_outputs, log_determinant = (
            self._by_outputs(field, gamma, tau) if m <= n else self._by_components(field, gamma, tau)
        )
        return _Normal(mean.to(dtype), variance.to(dtype), of_outputs.to(dtype), log_determinant)

    def _by_outputs(self, field: Tensor, gamma: Tensor, tau: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Solve with the covariance matrix of the outputs, S = 1/τ + F(1/γ)Fᵀ."""
        scaled = self.matrix / gamma.unsqueeze(1)  # (K, M, N)
        factor = torch.linalg.cholesky(scaled @ self.matrix.T + torch.diag_embed(1 / tau))
        whitened = torch.linalg.solve_triangular(factor, scaled, upper=False)
        along = (whitened @ field.unsqueeze(2)).squeeze(2)
        mean = field / gamma - (whitened.transpose(1, 2) @ along.unsqueeze(2)).squeeze(2)
        variance = 1 / gamma - whitened.square().sum(1)
        inverse = torch.cholesky_inverse(factor).diagonal(dim1=1, dim2=2)
        of_outputs = (1 - inverse / tau) / tau
        log_determinant = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1) + gamma.log().sum(1) + tau.log().sum(1)
        return mean, variance, of_outputs, log_determinant

    def _by_components(self, field: Tensor, gamma: Tensor, tau: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Solve with the precision matrix of the components."""
        precision = self.matrix.T @ (tau.unsqueeze(2) * self.matrix) + torch.diag_embed(gamma)
        factor = torch.linalg.cholesky(precision)
        covariance = torch.cholesky_inverse(factor)
        mean = (covariance @ field.unsqueeze(2)).squeeze(2)
        of_outputs = ((self.matrix @ covariance) * self.matrix).sum(2)
        log_determinant = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1)
        return mean, covariance.diagonal(dim1=1, dim2=2), of_outputs, log_determinant
