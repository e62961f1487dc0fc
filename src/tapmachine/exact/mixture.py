"""Finite mixtures of tilted visible units, with exact densities, conditional distributions and samples.

A component multiplies the prior of each unit by exp(field·x), and shifts the mean of the real-valued columns, whose
covariance all or some components share:

    P(x) ∝ Σ_c w_c N(x_real; μ_c, Σ_s(c)) Π_j P_j(x_j; U_j + W_jc).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.units import Units

if TYPE_CHECKING:
    from tapmachine.exact.conditioned import Conditioned

LOG_2PI = math.log(2 * math.pi)
CHUNK_VALUES = 2**22  # maximum number of matrix entries per chunk of rows
MOST_ROWS = 512  # maximum number of rows per chunk of rows with different patterns
MOST_PATTERNS = 16  # maximum number of patterns of missing cells that have chunks of their own


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


class Part(NamedTuple):
    """Several rows, given their observed cells.

    Attributes:
        rows: Indices of the rows, shape (R,).
        log_joint: Logarithm of w_c P_c(x_observed), shape (R, C).
        means: Expected real columns given the row and the component, shape (R, C, n_real). Observed cells keep their
            values.
        places: Missing real columns, shape (P, m), where P is R, or 1 if all rows have the same missing columns. Rows
            with fewer missing columns are padded with observed columns.
        covariances: Covariances of these columns, with 0 for padding, shape (P, S, m, m).
    """

    rows: Tensor
    log_joint: Tensor
    means: Tensor
    places: Tensor
    covariances: Tensor


class RowGroup(NamedTuple):
    """Indices of rows that are conditioned together, and whether all of them have the same missing columns."""

    rows: Tensor
    same: bool


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

    def component_means(self) -> Tensor:  # (C, n)
        """Mean of each column in each component."""
        means = self.log_weights.new_zeros((len(self.log_weights), self.n))
        means[:, self.real] = self.means
        for index, (block, field) in enumerate(zip(self.blocks, self.fields, strict=True)):
            self.states_of(index, means).copy_(block.moments(Tilt(field, 0.0)).mean)
        return means

    def moments(self) -> Moments:  # (n,) each
        """Means and variances of all columns."""
        mean, variance = self.condition(self._nothing()).moments
        return Moments(mean[0], variance[0])

    # ----- densities

    def log_joint(self, x: Tensor) -> Tensor:  # (N, n) -> (N, C)
        """Logarithm of w_c P_c(x_observed) of each row and component; NaN marks missing cells."""
        total = self.log_weights.new_empty((len(x), len(self.log_weights)))
        for part in self.parts(x):
            total[part.rows] = part.log_joint
        return total

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
            seen = block.per_unit(missing.to(x.dtype)) == 0  # (N, n_units)
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
        real, of_blocks = x[:, self.real], self.log_weights + self.log_blocks(x)
        (n_sets, n, _), inverse = self.covariances.shape, None
        for index, same in row_groups(x, self.real) if groups is None else groups:
            size = CHUNK_VALUES // (self.means.numel() + len(self.means) + (0 if same else n_sets * n**2)) + 1
            for rows in index.split(size):
                seen = ~real[rows[:1] if same else rows].isnan()
                if not same and 2 * int((~seen).sum(1).max()) <= n:
                    inverse = _Inverse.of(self.covariances) if inverse is None else inverse
                    given = inverse.given(self, real[rows], seen)
                else:
                    given = Observed.of(self, real[rows], seen).given(self)
                means = torch.where(seen.unsqueeze(1), real[rows].unsqueeze(1), self.means)
                everywhere = given.places.unsqueeze(1).expand_as(given.shifts)
                means = means.expand(len(rows), -1, -1).scatter_add(2, everywhere, given.shifts)
                yield Part(rows, of_blocks[rows] + given.log_density, means, given.places, given.covariances)

    # ----- conditional distributions and samples

    def condition(self, x: Tensor) -> "Conditioned":  # (N, n)
        """Return the distribution of the missing cells (NaN) of each row, given its other cells."""
        from tapmachine.exact.conditioned import Conditioned

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


def row_groups(x: Tensor, real: Tensor | None = None, least: int = 1) -> list[RowGroup]:  # (N, n)
    """Group rows with the same or similar numbers of missing cells, for several calls of `Mixture.parts`.

    Args:
        x: Rows, with NaN for missing cells.
        real: Indices of the real columns (default: all columns).
        least: Minimum number of rows with the same missing cells in a group of their own (default: 1). Small groups
            make the result for a row independent of the other rows to the last bit, but take longer.
    """
    missing = x.isnan() if real is None else x[:, real].isnan()
    if not bool(missing.any()):
        return [RowGroup(torch.arange(len(x), device=x.device), True)]
    _, of_row, counts = missing.unique(dim=0, return_inverse=True, return_counts=True)
    frequent = counts >= max(least, 1 if len(counts) <= MOST_PATTERNS else len(x) / MOST_PATTERNS)
    groups = [RowGroup((of_row == pattern).nonzero().flatten(), True) for pattern in frequent.nonzero().flatten()]
    rare = (~frequent[of_row]).nonzero().flatten()
    by_number = rare[missing[rare].sum(1).argsort(stable=True)]
    return groups + [RowGroup(some, False) for some in by_number.split(MOST_ROWS) if len(some)]


class _Given(NamedTuple):
    """Gaussian columns of R rows given their observed cells, with P patterns of missing columns (1 or R)."""

    log_density: Tensor  # ln N(x_observed), (R, C)
    places: Tensor  # missing columns, (P, m)
    shifts: Tensor  # their means minus the means of the components, (R, C, m)
    covariances: Tensor  # (P, S, m, m)


class Observed(NamedTuple):
    """Gaussian columns conditioned with the covariances of the observed columns."""

    seen: Tensor  # (P, n)
    places: Tensor  # observed columns, (P, o)
    is_real: Tensor  # 0 for padding columns, (P, o)
    lower: Tensor  # Cholesky factors, with 1 for padding, (P, S, o, o)
    solved: Tensor  # deviations from the means, multiplied by the inverse factors, (P, S, o, R / P · C / S)

    @staticmethod
    def of(mixture: Mixture, x: Tensor, seen: Tensor) -> "Observed":  # (R, n_real), (P, n_real)
        """Condition the components on rows, given a mask of the observed columns of each pattern."""
        places, is_real = _places(seen, x.dtype)
        both = is_real.unsqueeze(2) * is_real.unsqueeze(1)
        within = _entries(mixture.covariances, places, places) * both.unsqueeze(1)
        lower = torch.linalg.cholesky(within + (1 - is_real).diag_embed().unsqueeze(1))
        off = x.unsqueeze(1) - mixture.means  # (R, C, n)
        everywhere = places.unsqueeze(1).expand(len(x), len(mixture.means), -1)
        off = torch.where(is_real.unsqueeze(1) > 0, off.gather(2, everywhere), 0.0)
        shape = (len(seen), len(x) // len(seen), len(mixture.covariances), mixture.per_covariance, places.shape[1])
        off = off.view(shape).permute(0, 2, 4, 1, 3)  # (P, S, o, R / P, C / S)
        return Observed(seen, places, is_real, lower, torch.linalg.solve_triangular(lower, off.flatten(3), upper=False))

    def given(self, mixture: Mixture) -> _Given:
        """Return the distribution of the missing columns."""
        log_det = self.lower.diagonal(dim1=2, dim2=3).log().sum(2) + 0.5 * LOG_2PI * self.is_real.sum(1, keepdim=True)
        log_density = -0.5 * self.solved.square().sum(2) - log_det.unsqueeze(2)  # (P, S, R / P · C / S)
        places, is_real = _places(~self.seen, self.solved.dtype)
        pairs = is_real.unsqueeze(2) * is_real.unsqueeze(1)
        across = _entries(mixture.covariances, self.places, places)
        across = across * (self.is_real.unsqueeze(2) * is_real.unsqueeze(1)).unsqueeze(1)
        gains = torch.linalg.solve_triangular(self.lower, across, upper=False)  # (P, S, o, m)
        covariances = _entries(mixture.covariances, places, places) * pairs.unsqueeze(1) - gains.mT @ gains
        shifts = self.by_row(self.solved.mT @ gains, mixture)
        return _Given(self.by_row(log_density.unsqueeze(3), mixture).squeeze(2), places, shifts, covariances)

    @staticmethod
    def by_row(values: Tensor, mixture: Mixture) -> Tensor:  # (P, S, R / P · C / S, k) -> (R, C, k)
        """Arrange values by rows and components."""
        by_pattern: Tensor = values.unflatten(2, (-1, mixture.per_covariance)).transpose(1, 2)
        return by_pattern.flatten(2, 3).flatten(0, 1)  # from (P, R / P, S, C / S, k)


class _Inverse(NamedTuple):
    """Gaussian columns conditioned with the precisions of the missing columns, which is fast if few are missing."""

    precisions: Tensor  # (S, n, n)
    log_det: Tensor  # (S,)

    @staticmethod
    def of(covariances: Tensor) -> "_Inverse":
        lower = torch.linalg.cholesky(covariances)
        return _Inverse(torch.cholesky_inverse(lower), 2 * lower.diagonal(dim1=1, dim2=2).log().sum(1))

    def given(self, mixture: Mixture, x: Tensor, seen: Tensor) -> _Given:  # (R, n_real) each
        """Return the distribution of the missing columns m.

        With the precision matrix Λ and the deviations r from the means, which are 0 for missing columns, it has the
        means −Λ_mm⁻¹(Λr)_m, relative to those of the component, and the covariance Λ_mm⁻¹.
        """
        (places, is_real), shape = _places(~seen, x.dtype), (len(self.precisions), mixture.per_covariance)
        both = (is_real.unsqueeze(2) * is_real.unsqueeze(1)).unsqueeze(1)
        within = _entries(self.precisions, places, places) * both
        lower = torch.linalg.cholesky(within + (1 - is_real).diag_embed().unsqueeze(1))
        covariances = torch.cholesky_inverse(lower) * both if places.shape[1] else within
        off = torch.where(seen.unsqueeze(1), x.unsqueeze(1) - mixture.means, 0.0).unflatten(1, shape)  # (R, S, C/S, n)
        sent = off @ self.precisions
        everywhere = places.view(len(x), 1, 1, -1).expand(*off.shape[:3], -1)
        field = sent.gather(3, everywhere) * is_real.view(len(x), 1, 1, -1)
        shifts = -field @ covariances
        distances = (off * sent).sum(3) + (shifts * field).sum(3)  # (R, S, C / S)
        log_det = 2 * lower.diagonal(dim1=2, dim2=3).log().sum(2) + self.log_det  # (R, S)
        log_det = log_det + LOG_2PI * seen.to(x.dtype).sum(1, keepdim=True)
        log_density = -0.5 * (distances + log_det.unsqueeze(2))
        return _Given(log_density.flatten(1), places, shifts.flatten(1, 2), covariances)


def _places(mask: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:  # (P, n) -> (P, k) each
    """Return the indices of the marked columns of each row, padded with other columns, and 1 for marked columns."""
    most = int(mask.sum(1).max())
    places = mask.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most]
    return places, mask.gather(1, places).to(dtype)


def _entries(matrices: Tensor, rows: Tensor, columns: Tensor) -> Tensor:  # (S, n, n) -> (P, S, a, b)
    """Return the entries of S matrices at P lists of rows, shape (P, a), and of columns, shape (P, b)."""
    return matrices[:, rows.unsqueeze(2), columns.unsqueeze(1)].transpose(0, 1)
