"""Solvers for the linear relation z = Fx, given normal messages about x and z, in float64."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from tapmachine.beliefs import Moments
from tapmachine.posterior.measurements.kinds import LOG_2PI
from tapmachine.posterior.measurements.messages import SMALLEST_SHARE, Limits, Message, returned


class _Normal(NamedTuple):
    """Normal distribution of x with precision matrix γ + FᵀτF, for K signals."""

    mean: Tensor  # mean of x, (K, N)
    variance: Tensor  # variances of x, (K, N), or their mean, (K, 1)
    variance_of_outputs: Tensor  # variances of z, (K, M), or their mean, (K, 1)
    log_determinant: Tensor  # logarithm of the determinant of the precision matrix, (K,)


class LinearRelation(ABC):
    """Base class for solvers for the linear relation z = Fx under normal messages about x and z.

    Attributes:
        per_component: Whether each component has a separate precision; otherwise, there is one precision per signal.
    """

    per_component: ClassVar[bool] = False

    def __init__(self, matrix: Tensor) -> None:  # (M, N)
        self.matrix = matrix

    @property
    def values_per_signal(self) -> int:
        """Approximate number of floating-point values stored per signal."""
        return 8 * sum(self.matrix.shape)

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
        field = of_prior.field + of_outputs.field @ self.matrix
        normal = self.solve(field, of_prior.precision, of_outputs.precision)
        n = self.matrix.shape[1]
        log_integral = 0.5 * ((field * normal.mean).sum(1) - normal.log_determinant + n * LOG_2PI)
        x = Moments(normal.mean, normal.variance)
        z = Moments(normal.mean @ self.matrix.T, normal.variance_of_outputs)
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

    def __init__(self, matrix: Tensor) -> None:
        super().__init__(matrix)
        _, values, right = torch.linalg.svd(matrix, full_matrices=False)
        self.right, self.squares = right.T, values.square()

    def solve(self, field: Tensor, gamma: Tensor, tau: Tensor) -> _Normal:
        (m, n), rank = self.matrix.shape, len(self.squares)
        along = gamma + tau * self.squares  # precision along each singular vector, (K, R)
        mean = field / gamma + ((field @ self.right) * (1 / along - 1 / gamma)) @ self.right.T
        variance = ((1 / along).sum(1, keepdim=True) + (n - rank) / gamma) / n
        of_outputs = (self.squares / along).sum(1, keepdim=True) / m
        log_determinant = along.log().sum(1) + (n - rank) * gamma.log().squeeze(1)
        return _Normal(mean, variance, of_outputs, log_determinant)


class ByFactorization(LinearRelation):
    """Solver for messages with a separate precision for each component.

    For each signal, it computes the Cholesky factorization of a matrix whose size is the smaller dimension of F.
    """

    per_component = True

    @property
    def values_per_signal(self) -> int:
        return super().values_per_signal + 3 * self.matrix.numel()

    def solve(self, field: Tensor, gamma: Tensor, tau: Tensor) -> _Normal:
        m, n = self.matrix.shape
        gamma, tau = gamma.expand_as(field), tau.expand(-1, m)
        return self._by_outputs(field, gamma, tau) if m <= n else self._by_components(field, gamma, tau)

    def _by_outputs(self, field: Tensor, gamma: Tensor, tau: Tensor) -> _Normal:
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
        return _Normal(mean, variance, of_outputs, log_determinant)

    def _by_components(self, field: Tensor, gamma: Tensor, tau: Tensor) -> _Normal:
        """Solve with the precision matrix of the components."""
        precision = self.matrix.T @ (tau.unsqueeze(2) * self.matrix) + torch.diag_embed(gamma)
        factor = torch.linalg.cholesky(precision)
        covariance = torch.cholesky_inverse(factor)
        mean = (covariance @ field.unsqueeze(2)).squeeze(2)
        of_outputs = ((self.matrix @ covariance) * self.matrix).sum(2)
        log_determinant = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1)
        return _Normal(mean, covariance.diagonal(dim1=1, dim2=2), of_outputs, log_determinant)
