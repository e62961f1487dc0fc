"""Categorical units with q unordered states."""

from typing import Self, final

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, one_hot

from tapmachine.beliefs import Moments, Received, Tilt
from tapmachine.data.rows import Rows
from tapmachine.units.base import Units
from tapmachine.units.numerics.columns import sum_over_rows
from tapmachine.units.numerics.draws import draw_index
from tapmachine.units.numerics.intervals import wide
from tapmachine.units.numerics.roots import simplex_root
from tapmachine.units.states import Values
from tapmachine.units.support import Simplex


@final
class Categorical(Units):
    """Units with q unordered states and the prior P(α) ∝ exp(U_α), also known as Potts spins.

    States are one-hot vectors of length q, and fields, precisions and means have shape (..., n, q). A state α has the
    tilted weight exp(U_α + B_α − ½A_αα). The off-diagonal elements of the precision matrix A have no effect, since
    x_α x_β = 0 for α ≠ β. The variance is the diagonal a_α(1 − a_α) of the covariance matrix diag(a) − a aᵀ.

    Methods accept states in two formats: one-hot vectors (a floating-point or bool tensor of shape (..., n, q)) or
    indices from 0 to q − 1 (an integer tensor of shape (..., n)). Log-probabilities and log-partition functions have
    shape (..., n).

    Args:
        n: Number of units.
        q: Number of states, at least 2.
        field: Field U, a number or a tensor of shape (n, q) (default: 0).

    Example:
        >>> import torch
        >>> from tapmachine import Categorical, Tilt
        >>> units = Categorical(n=1, q=3)
        >>> with torch.no_grad():
        ...     units.moments(Tilt(field=torch.tensor([[0.0, 1.0, 2.0]]), precision=0.0)).mean
        tensor([[0.0900, 0.2447, 0.6652]])
        >>> units.log_prior(torch.tensor([2])).exp()
        tensor([0.3333], grad_fn=<ExpBackward0>)
    """

    field: nn.Parameter

    fits_in_parts = True

    def __init__(self, n: int, q: int, field: Values = 0.0) -> None:
        super().__init__(n)
        self.q = self.as_count(q, "q", 2)
        self.field = nn.Parameter(self.as_parameter(field, "field", self.state_shape, self.common_dtype(field)))

    @property
    def support(self) -> Simplex:
        return Simplex(self.q)

    @property
    def state_shape(self) -> tuple[int, ...]:
        return (self.n, self.q)

    def extra_repr(self) -> str:
        return f"n={self.n}, q={self.q}"

    def check_states(self, x: Tensor, validate: bool = True) -> Tensor:
        is_number = isinstance(x, Tensor) and not (x.is_complex() or x.dtype == torch.bool)
        if is_number and not x.is_floating_point() and (x.dim() < 1 or x.shape[-1] != self.n):
            raise ValueError(
                f"Categorical: x has shape {tuple(x.shape)}; expected state indices of shape (..., {self.n}), or a "
                f"floating-point tensor of one-hot states whose shape ends in {self.state_shape}"
            )
        # Rows of floating-point numbers, of shape (N, n), are indices, too.
        are_rows = is_number and x.dim() == 2 and x.shape[1] == self.n and tuple(x.shape) != self.state_shape
        if is_number and (are_rows or not x.is_floating_point()):
            if validate:
                # Not all integer dtypes support comparisons.
                self.reject_states(
                    lambda z: (z.long() < 0) | (z.long() >= self.q) | (z.double() != z.long()),
                    x,
                    f"expected a state index from 0 to {self.q - 1}",
                )
            states = torch.zeros((*x.shape, self.q), dtype=self.dtype, device=x.device)
            return states.scatter_(-1, x.long().unsqueeze(-1), 1)  # one_hot would create an int64 tensor first
        x = self.as_states(x)
        if validate:
            self.reject_states(lambda z: (z != 0) & (z != 1), x, "expected 0 or 1")
            self.reject(x.sum(-1) != 1, x.sum(-1), "x.sum(-1)", "expected 1, since a one-hot state contains a single 1")
        return x

    def check_means(self, mean: Tensor) -> Tensor:
        if isinstance(mean, Tensor) and not mean.is_floating_point():
            return self.check_states(mean)
        mean = super().check_means(mean)
        total = mean.sum(-1)
        slack = 100 * torch.finfo(self.dtype).eps * self.q
        self.reject((total - 1).abs() > slack, total, "sum of the means", "expected 1 for every unit")
        return mean

    def field_with_mean(self, mean: Tensor) -> Tensor:
        return (mean.clamp(min=torch.finfo(mean.dtype).tiny).log() - log_softmax(self.field, -1)).detach()

    def weight_products(self, weights: Tensor) -> Tensor:
        by_unit = weights.unflatten(-1, self.state_shape)
        products: Tensor = (by_unit.unsqueeze(-1) * by_unit.unsqueeze(-2)).flatten(-3)
        return products

    @property
    def reaction_shape(self) -> tuple[int, ...]:
        return (self.n, self.q, self.q)

    def reaction_precision(self, reaction: Tensor) -> Tensor:
        return -reaction.diagonal(dim1=-2, dim2=-1)

    def reaction_energy(self, reaction: Tensor, moments: Moments) -> Tensor:
        """Compute the second-order term ½ tr(κC) of −F, with the covariance matrix C = diag(a) − aaᵀ."""
        mean = moments.mean
        energy: Tensor = (
            0.5 * mean * (reaction.diagonal(dim1=-2, dim2=-1) - (reaction @ mean.unsqueeze(-1)).squeeze(-1))
        )
        return energy

    def tilt_with_reaction(self, field: Tensor, reaction: Tensor, mean: Tensor, evidence: Tilt | None = None) -> Tilt:
        return Tilt(field - (reaction @ mean.unsqueeze(-1)).squeeze(-1), self.reaction_precision(reaction))

    def respond(self, field: Tensor, reaction: Tensor, mean: Tensor, precision: Tensor | float = 0.0) -> Moments:
        tilt_field = field - (reaction @ mean.unsqueeze(-1)).squeeze(-1)
        return self.moments(Tilt(tilt_field, precision - reaction.diagonal(dim1=-2, dim2=-1)))

    def settle(self, received: Received, start: Tensor, steps: int | None = None) -> tuple[Moments, Tensor]:
        """Solve the implicit equation of `Units.settle` for all q fields of a unit simultaneously by Newton's method.

        The reaction is the covariance matrix of the neighbors' field, of shape (..., n, q, q).
        """
        field, reaction, precision = received
        tilt_precision = precision - reaction.diagonal(dim1=-2, dim2=-1)
        log_prior = log_softmax(self.field, -1) - 0.5 * tilt_precision  # log-weights of the states without B
        tilt_field = simplex_root(log_prior, field, reaction, start, steps)
        moments = self.moments(Tilt(tilt_field, tilt_precision))
        return moments, field - (reaction @ moments.mean.unsqueeze(-1)).squeeze(-1)

    def log_prior(self, x: Tensor, validate: bool = True) -> Tensor:
        x = self.check_states(x, validate)
        return (x * log_softmax(self.field, -1)).sum(-1)

    def _log_weights(self, tilt: Tilt) -> Tensor:
        """Compute ln P(α) + B_α − ½A_αα, in float64 because large fields may cancel."""
        field, precision = self.unpack(tilt)
        return log_softmax(wide(self.field), -1) + (wide(field) - 0.5 * precision)

    def log_partition(self, tilt: Tilt) -> Tensor:
        return self._log_weights(tilt).logsumexp(-1).to(self.dtype)

    def moments(self, tilt: Tilt) -> Moments:
        log_weights = self._log_weights(tilt)
        mean = log_weights.softmax(-1)
        # 1 − mean, computed as a sum over the other states where the mean is near 1 and the difference would cancel
        top = mean.argmax(-1, keepdim=True)
        others = (1 - mean).scatter(-1, top, mean.scatter(-1, top, 0.0).sum(-1, keepdim=True))
        return Moments(mean.to(self.dtype), (mean * others).to(self.dtype))

    def sample(self, tilt: Tilt, generator: torch.Generator | None = None) -> Tensor:
        return one_hot(draw_index(self._log_weights(tilt).detach(), generator), self.q).to(self.dtype)

    @torch.no_grad()
    def draw(self, tilt: Tilt, uniform: Tensor) -> Tensor:
        """Draw one-hot states by selecting the first state whose cumulative probability exceeds the uniform number."""
        below = torch.softmax(self._log_weights(tilt), -1).cumsum(-1) <= uniform.unsqueeze(-1)
        return one_hot(below.sum(-1).clamp(max=self.q - 1), self.q).to(self.dtype)

    def fit_to(self, x: Rows, weights: Tensor | None = None, smoothing: float = 1.0) -> Self:
        x, weights = self.checked_rows(x, weights, smoothing)
        counts = sum_over_rows(torch.mul, x, weights) + smoothing / self.q
        log_share = (counts / counts.sum(-1, keepdim=True)).log()
        field = log_share - log_share.mean(-1, keepdim=True)
        self.check_fit("field", field)
        with torch.no_grad():
            self.field.copy_(field)
        return self
