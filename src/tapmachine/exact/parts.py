"""Gaussian columns of a mixture, given the observed cells of rows with several patterns of missing cells."""

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from tapmachine.data.errors import EstimateError

if TYPE_CHECKING:
    from tapmachine.exact.mixture import Mixture

LOG_2PI = math.log(2 * math.pi)
JITTERS = (1e-14, 1e-12, 1e-10, 1e-8)  # added variances of nearly collinear columns, relative to their variances
MOST_ROWS = 512  # maximum number of rows per chunk of rows with different patterns
MOST_PATTERNS = 16  # maximum number of patterns of missing cells that have chunks of their own


class Part(NamedTuple):
    """Several rows, given their observed cells.

    Attributes:
        rows: Indices of the rows, shape (R,).
        log_joint: Logarithm of w_c P_c(x_observed), shape (R, C).
        shifts: Expected missing columns given the row and the component, minus their means in the component, shape
            (R, C, m); see `Mixture.means_given`.
        places: Missing real columns, shape (P, m), where P is R, or 1 if all rows have the same missing columns. Rows
            with fewer missing columns are padded with observed columns.
        covariances: Covariances of these columns, with 0 for padding, shape (P, S, m, m).
    """

    rows: Tensor
    log_joint: Tensor
    shifts: Tensor
    places: Tensor
    covariances: Tensor


class RowGroup(NamedTuple):
    """Indices of rows that are conditioned together, and whether all of them have the same missing columns."""

    rows: Tensor
    same: bool


def row_groups(x: Tensor, real: Tensor | None = None, least: int = 1) -> list[RowGroup]:  # (N, n)
    """Group rows with the same or similar numbers of missing cells, for several calls of `Mixture.parts`.

    Args:
        x: Rows, with NaN for missing cells.
        real: Indices of the real columns (default: all columns).
        least: Minimum number of rows with the same missing cells in a group of their own (default: 1). Small groups
            take longer. With many patterns of missing cells, rare ones share groups in any case, so that the result for
            a row depends on the other rows by rounding errors.
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
    def of(mixture: "Mixture", x: Tensor, seen: Tensor) -> "Observed":  # (R, n_real), (P, n_real)
        """Condition the components on rows, given a mask of the observed columns of each pattern."""
        places, is_real = _places(seen, x.dtype)
        both = is_real.unsqueeze(2) * is_real.unsqueeze(1)
        within = _entries(mixture.covariances, places, places) * both.unsqueeze(1)
        lower = cholesky(within + (1 - is_real).diag_embed().unsqueeze(1))
        off = x.unsqueeze(1) - mixture.means  # (R, C, n)
        everywhere = places.unsqueeze(1).expand(len(x), len(mixture.means), -1)
        off = torch.where(is_real.unsqueeze(1) > 0, off.gather(2, everywhere), 0.0)
        shape = (len(seen), len(x) // len(seen), len(mixture.covariances), mixture.per_covariance, places.shape[1])
        off = off.view(shape).permute(0, 2, 4, 1, 3)  # (P, S, o, R / P, C / S)
        return Observed(seen, places, is_real, lower, torch.linalg.solve_triangular(lower, off.flatten(3), upper=False))

    def given(self, mixture: "Mixture") -> _Given:
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
    def by_row(values: Tensor, mixture: "Mixture") -> Tensor:  # (P, S, R / P · C / S, k) -> (R, C, k)
        """Arrange values by rows and components."""
        by_pattern: Tensor = values.unflatten(2, (-1, mixture.per_covariance)).transpose(1, 2)
        return by_pattern.flatten(2, 3).flatten(0, 1)  # from (P, R / P, S, C / S, k)


class Inverse(NamedTuple):
    """Gaussian columns conditioned with the precisions of the missing columns, which is fast if few are missing."""

    precisions: Tensor  # (S, n, n)
    log_det: Tensor  # (S,)

    @staticmethod
    def of(covariances: Tensor) -> "Inverse":
        """Invert the covariances of all columns."""
        lower = cholesky(covariances)
        return Inverse(torch.cholesky_inverse(lower), 2 * lower.diagonal(dim1=1, dim2=2).log().sum(1))

    def given(self, mixture: "Mixture", x: Tensor, seen: Tensor) -> _Given:  # (R, n_real) each
        """Return the distribution of the missing columns m.

        With the precision matrix Λ and the deviations r from the means, which are 0 for missing columns, it has the
        means −Λ_mm⁻¹(Λr)_m, relative to those of the component, and the covariance Λ_mm⁻¹.
        """
        (places, is_real), shape = _places(~seen, x.dtype), (len(self.precisions), mixture.per_covariance)
        both = (is_real.unsqueeze(2) * is_real.unsqueeze(1)).unsqueeze(1)
        within = _entries(self.precisions, places, places) * both
        lower = cholesky(within + (1 - is_real).diag_embed().unsqueeze(1))
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


def cholesky(matrices: Tensor, scale: Tensor | None = None) -> Tensor:  # (..., n, n), (..., n)
    """Compute Cholesky factors, and increase the diagonal of matrices that are indefinite because of rounding.

    Args:
        matrices: Symmetric matrices.
        scale: Size of the diagonal entries before rounding errors (default: the diagonal).

    Raises:
        EstimateError: If a matrix is not positive definite.
    """
    lower: Tensor
    lower, failed = torch.linalg.cholesky_ex(matrices)
    scale = matrices.diagonal(dim1=-2, dim2=-1) if scale is None else scale
    for jitter in JITTERS:
        if not bool(failed.any()):
            return lower
        again, still = torch.linalg.cholesky_ex(matrices + jitter * scale.diag_embed())
        lower = torch.where(failed[..., None, None] > 0, again, lower)
        failed = torch.where(failed > 0, still, failed)
    if bool(failed.any()):
        raise EstimateError("columns are collinear, so that they have no joint density; remove one of them")
    return lower


def _places(mask: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:  # (P, n) -> (P, k) each
    """Return the indices of the marked columns of each row, padded with other columns, and 1 for marked columns."""
    most = int(mask.sum(1).max())
    places = mask.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most]
    return places, mask.gather(1, places).to(dtype)


def _entries(matrices: Tensor, rows: Tensor, columns: Tensor) -> Tensor:  # (S, n, n) -> (P, S, a, b)
    """Return the entries of S matrices at P lists of rows, shape (P, a), and of columns, shape (P, b)."""
    return matrices[:, rows.unsqueeze(2), columns.unsqueeze(1)].transpose(0, 1)
