"""Finite mixtures of tilted visible units, with exact densities, conditional distributions and samples.

A component multiplies the prior of each unit by exp(field·x), and shifts the mean of the real-valued columns, whose
covariance all or some components share:

    P(x) ∝ Σ_c w_c N(x_real; μ_c, Σ_s(c)) Π_j P_j(x_j; U_j + W_jc).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.exact.conditioned import Conditioned
from tapmachine.exact.parts import Inverse, Observed, Part, RowGroup, row_groups
from tapmachine.units import Units

CHUNK_VALUES = 2**22  # maximum number of matrix entries per chunk of rows


class HiddenUnits(NamedTuple):
    """Coefficients of hidden units h = offset_c + scale_c·(xW) + noise, given the component c and real columns x.

    Attributes:
        weights: Weights W of the real columns, shape (n_real, n_hidden).
        offset, scale, noise: Offsets, scales and variances of the noise, shape (C, n_hidden) each.
        state_shape: Shape of the states of the hidden layer.
    """

    weights: Tensor
    offset: Tensor
    scale: Tensor
    noise: Tensor
    state_shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Mixture:
    """Mixture Σ_c w_c N(x_real; μ_c, Σ_s(c)) Π_j P_j(x_j; U_j + W_jc) of visible units.

    Attributes:
        log_weights: Logarithms of the weights w_c, shape (C,). The sum of the weights is Z.
        means: Means of the real columns, shape (C, n_real).
        covariances: Covariances of the real columns, shape (S, n_real, n_real). Component c uses the covariance with
            index c // (C / S).
        real: Indices of the real columns among all columns, shape (n_real,).
        blocks: Units of the other columns.
        places: Index of the first column of each block.
        fields: Field that each component adds to each block, shape (C, *state_shape) each.
        hidden: Hidden units of the machine, or None.

    Example:
        >>> from tapmachine import Binary, Categorical, Gaussian, Mixed, rbm
        >>> from tapmachine.exact import mixture_of
        >>> mixture_of(rbm(Mixed([Gaussian(3), Binary(2)]), Categorical(1, 4))).means.shape
        torch.Size([4, 3])
    """

    log_weights: Tensor
    means: Tensor
    covariances: Tensor
    real: Tensor
    blocks: Sequence[Units] = ()
    places: Sequence[int] = ()
    fields: Sequence[Tensor] = ()
    hidden: HiddenUnits | None = None

    @property
    def n(self) -> int:
        """Number of columns."""
        return len(self.real) + sum(math.prod(block.state_shape) for block in self.blocks)

    @property
    def per_covariance(self) -> int:
        """Number of components that share a covariance."""
        return len(self.means) // len(self.covariances)

    @property
    def log_partition(self) -> Tensor:  # ()
        """Value of ln Z, the logarithm of the sum of the weights."""
        return self.log_weights.logsumexp(0)

    @property
    def probabilities(self) -> Tensor:  # (C,)
        """Probability of each component."""
        return self.log_weights.softmax(0)

    def replace(self, **changes: Any) -> "Mixture":
        """Return a mixture with other values of some attributes."""
        return replace(self, **changes)

    def states_of(self, index: int, x: Tensor) -> Tensor:  # (..., n) -> (..., *state_shape)
        """Return the columns that belong to a block, as a view."""
        block, place = self.blocks[index], self.places[index]
        states: Tensor = x[..., place : place + math.prod(block.state_shape)].unflatten(-1, block.state_shape)
        return states

    def moments(self) -> Moments:  # (n,) each
        """Means and variances of all columns."""
        mean, variance = self.condition(self._nothing()).moments
        return Moments(mean[0], variance[0])

    # ----- densities

    def log_joint(self, x: Tensor) -> Tensor:  # (N, n) -> (N, C)
        """Logarithm of w_c P_c(x_observed) of each row and component; NaN marks missing cells."""
        return self.condition(x).log_joint

    def log_weight(self, x: Tensor) -> Tensor:  # (N, n) -> (N,)
        """Log-weight ln P(x_observed) + ln Z of each row; NaN marks missing cells."""
        return self.log_joint(x).logsumexp(1)

    def log_density(self, x: Tensor) -> Tensor:  # (N, n) -> (N,)
        """Log-likelihood ln P(x_observed) of each row; NaN marks missing cells.

        Example:
            >>> import torch
            >>> from tapmachine import Binary, Categorical, Mixed, rbm
            >>> from tapmachine.exact import mixture_of
            >>> mixture = mixture_of(rbm(Mixed([Binary(2, field=2.0)]), Categorical(1, 2), torch.zeros(2, 2)))
            >>> mixture.log_density(torch.tensor([[1.0, torch.nan]]))
            tensor([-0.1269], dtype=torch.float64)
        """
        return self.log_weight(x) - self.log_partition

    def log_blocks(self, x: Tensor) -> Tensor:  # (N, n) -> (N, C)
        """Log-probability of the observed cells of all blocks in each component."""
        total = x.new_zeros((len(x), len(self.log_weights)))
        for index, (block, field) in enumerate(zip(self.blocks, self.fields, strict=True)):
            states = self.states_of(index, x)
            missing = states.isnan()
            share = block.per_unit(missing.to(x.dtype)) / math.prod(block.state_shape[1:])  # (N, n_units)
            partly = ((share > 0) & (share < 1)).any(1)
            if bool(partly.any()):
                raise ValueError(
                    f"a category in row {int(partly.nonzero()[0])} is partly missing; expected NaN in all components "
                    "of a missing category"
                )
            seen = share == 0
            prior = block.log_prior(torch.where(missing, block.any_state(), states), validate=False)
            total = total + torch.where(missing, 0.0, states).flatten(1) @ field.flatten(1).T
            total = total - seen.to(x.dtype) @ block.log_partition(Tilt(field, 0.0)).T
            total = total + prior.masked_fill(~seen, 0.0).sum(1, keepdim=True)
        return total

    def parts(self, x: Tensor, groups: list[RowGroup] | None = None) -> Iterator[Part]:  # (N, n)
        """Condition the components on the observed cells of each row, and iterate over chunks of rows.

        Args:
            x: Rows, with NaN for missing cells.
            groups: Result of `row_groups` for these rows (default: computed by this function).
        """
        x = x.to(self.log_weights)
        if x.shape[1:] != (self.n,):
            raise ValueError(f"x has shape {tuple(x.shape)}; expected (N, {self.n})")
        real, of_blocks = x[:, self.real], self.log_weights + self.log_blocks(x)
        (n_sets, n, _), inverse = self.covariances.shape, None
        for index, same in row_groups(x, self.real) if groups is None else groups:
            size = CHUNK_VALUES // (self.means.numel() + len(self.means) + (0 if same else n_sets * n**2)) + 1
            for rows in index.split(size):
                seen = ~real[rows[:1] if same else rows].isnan()
                if not same and 2 * int((~seen).sum(1).max()) <= n:
                    inverse = Inverse.of(self.covariances) if inverse is None else inverse
                    given = inverse.given(self, real[rows], seen)
                else:
                    given = Observed.of(self, real[rows], seen).given(self)
                yield Part(rows, of_blocks[rows] + given.log_density, given.shifts, given.places, given.covariances)

    def means_given(self, x: Tensor, part: Part) -> Tensor:  # (N, n) -> (R, C, n_real)
        """Return the real columns expected given a part of the rows and the component; observed cells are kept."""
        real = x[part.rows.unsqueeze(1), self.real].unsqueeze(1)
        everywhere = part.places.unsqueeze(1).expand_as(part.shifts)
        return torch.where(real.isnan(), self.means, real).scatter_add(2, everywhere, part.shifts)

    # ----- conditional distributions and samples

    def condition(self, x: Tensor) -> Conditioned:  # (N, n)
        """Return the distribution of the missing cells (NaN) of each row, given its other cells."""
        return Conditioned(self, x.to(self.log_weights))

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:  # (count, n)
        """Draw independent rows."""
        return self.condition(self._nothing()).draws(count, generator)[:, 0]

    def measured(self, matrix: Tensor, variances: Tensor) -> "Mixture":  # (M, n_real), (M,)
        """Return the mixture with M more real columns, which measure the real columns x: z = matrix·x + noise.

        The noise is independent and Gaussian, with the given variances. The columns z follow all others.
        """
        across = matrix @ self.covariances  # (S, M, n_real)
        within = across @ matrix.T + variances.diag()
        covariances = torch.cat((torch.cat((self.covariances, across.mT), 2), torch.cat((across, within), 2)), 1)
        more = torch.arange(self.n, self.n + len(matrix), device=self.real.device)
        hidden = self.hidden
        if hidden is not None:
            zeros = hidden.weights.new_zeros((len(matrix), hidden.weights.shape[1]))
            hidden = hidden._replace(weights=torch.cat((hidden.weights, zeros)))
        means = torch.cat((self.means, self.means @ matrix.T), 1)
        return self.replace(means=means, covariances=covariances, real=torch.cat((self.real, more)), hidden=hidden)

    def _nothing(self) -> Tensor:  # (1, n)
        return self.log_weights.new_full((1, self.n), torch.nan)
