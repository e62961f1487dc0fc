"""Rows of a mixture given their observed cells: moments, hidden units, draws, intervals and surprise."""

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.data.checks import check_count, check_level
from tapmachine.exact.parts import LOG_2PI, Observed, Part, cholesky, row_groups
from tapmachine.units import Binary

if TYPE_CHECKING:
    from tapmachine.exact.mixture import Mixture

N_BISECTIONS = 60  # number of bisection steps for a quantile
REACH = 12.0  # search range of quantiles, in standard deviations around the component means
MOST_KEPT = 2**24  # maximum number of component means of missing cells in memory
CHUNK_DRAWS = 2**22  # maximum number of draws in memory
N_DRAWS = 1000  # number of draws for the intervals of columns that are not Gaussian


class Conditioned:
    """Distribution of the missing cells of rows, given the observed cells.

    Args:
        mixture: Distribution of complete rows.
        x: Rows, of shape (N, n), with NaN for missing cells. All components of a missing category are NaN.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, Categorical, Gaussian, Mixed, rbm
        >>> from tapmachine.exact import mixture_of
        >>> machine = rbm(Mixed([Gaussian(1), Binary(1)]), Categorical(1, 2), torch.tensor([[2.0, -2.0], [3.0, -3.0]]))
        >>> given = mixture_of(machine).condition(torch.tensor([[torch.nan, 1.0]]))
        >>> given.moments.mean.round(decimals=2)
        tensor([[1.9900, 1.0000]], dtype=torch.float64)
    """

    def __init__(self, mixture: "Mixture", x: Tensor) -> None:
        self.mixture, self.x = mixture, x
        n_kept = len(mixture.log_weights) * int(x[:, mixture.real].isnan().sum())
        self._kept = list(mixture.parts(x)) if n_kept <= MOST_KEPT else None

    @property
    def parts(self) -> Iterable[Part]:
        """Parts of the rows, which are computed in each iteration if they are too large to be kept."""
        return self.mixture.parts(self.x) if self._kept is None else self._kept

    @cached_property
    def log_joint(self) -> Tensor:  # (N, C)
        """Logarithm of w_c P_c(x_observed) of each row and component."""
        total = self.x.new_empty((len(self.x), len(self.mixture.log_weights)))
        for part in self.parts:
            total[part.rows] = part.log_joint
        return total

    @property
    def probabilities(self) -> Tensor:  # (N, C)
        """Probabilities of the components, which are classes of rows in machines without `SpikeSlab` units."""
        return self.log_joint.softmax(1)

    @property
    def log_weight(self) -> Tensor:  # (N,)
        """Log-weight ln P(x_observed) + ln Z of each row."""
        return self.log_joint.logsumexp(1)

    @cached_property
    def moments(self) -> Moments:  # (N, n) each
        """Means and variances of all cells; for categories, the means are the probabilities of the states."""
        mean, variance = torch.empty_like(self.x), torch.empty_like(self.x)
        real = self.mixture.real
        for part in self.parts:
            rows, log_joint, _, places, covariances = part
            means = self.mixture.means_given(self.x, part)
            shares, x = log_joint.softmax(1).unsqueeze(2), self.x[rows.unsqueeze(1), real]
            center = torch.where(x.isnan(), (shares * means).sum(1), x)
            spread = (shares * (means - center.unsqueeze(1)) ** 2).sum(1)
            of_sets = shares.unflatten(1, (covariances.shape[1], -1)).sum(2)  # (R, S, 1)
            within = (of_sets * covariances.diagonal(dim1=2, dim2=3).clamp(min=0)).sum(1)  # (R, m)
            mean[rows.unsqueeze(1), real] = center
            total = spread.scatter_add(1, places.expand(len(rows), -1), within) * x.isnan()
            variance[rows.unsqueeze(1), real] = total
        for index, (block, field) in enumerate(zip(self.mixture.blocks, self.mixture.fields, strict=True)):
            states = self.mixture.states_of(index, self.x)
            of_component = block.moments(Tilt(field, 0.0))
            means = torch.tensordot(self.probabilities, of_component.mean, 1)
            squares = torch.tensordot(self.probabilities, of_component.variance + of_component.mean**2, 1)
            self.mixture.states_of(index, mean).copy_(torch.where(states.isnan(), means, states))
            self.mixture.states_of(index, variance).copy_((squares - means**2).clamp(min=0) * states.isnan())
        return Moments(mean, variance)

    @property
    def hidden_moments(self) -> Moments:  # (N, *state_shape) each
        """Means and variances of the hidden units of the machine."""
        hidden = self.mixture.hidden
        if hidden is None:
            raise ValueError("the mixture has no hidden units; expected the result of mixture_of(machine)")
        linear = hidden.scale.any(0)
        where = linear.nonzero().T
        weights, scale = hidden.weights[:, linear], hidden.scale[:, linear]
        mean = self.x.new_empty((len(self.x), hidden.offset.shape[1]))
        variance = torch.empty_like(mean)
        for part in self.parts:
            rows, log_joint, _, places, covariances = part
            means = self.mixture.means_given(self.x, part)
            shares = log_joint.softmax(1)
            mean[rows] = shares @ hidden.offset
            variance[rows] = shares @ (hidden.offset**2 + hidden.noise) - mean[rows] ** 2
            sent = hidden.offset[:, linear] + scale * (means @ weights)  # (R, C, h)
            of_places = weights[places].unsqueeze(1)  # (P, 1, m, h)
            within = ((covariances @ of_places) * of_places).sum(2).clamp(min=0)  # (P, S, h)
            noise = hidden.noise[:, linear] + scale**2 * within.repeat_interleave(self.mixture.per_covariance, 1)
            center = (shares.unsqueeze(2) * sent).sum(1)
            spread = (sent - center.unsqueeze(1)).square_().add_(noise).mul_(shares.unsqueeze(2)).sum(1)
            mean[rows.unsqueeze(1), where], variance[rows.unsqueeze(1), where] = center, spread
        return Moments(*(z.unflatten(1, hidden.state_shape) for z in (mean, variance.clamp(min=0))))

    def draws(self, n: int, generator: torch.Generator | None = None) -> Tensor:  # (n, N, n_cells)
        """Draw complete rows, as in multiple imputation.

        Args:
            n: Number of draws per row.
            generator: Random number generator (default: torch's global generator).
        """
        n, mixture, x = check_count("n", n), self.mixture, self.x
        component = torch.multinomial(self.probabilities, n, replacement=True, generator=generator)  # (N, n)
        noise = torch.randn((n, len(x), len(mixture.real)), dtype=x.dtype, device=x.device, generator=generator)
        result = x.expand(n, *x.shape).clone()
        variances = mixture.covariances.diagonal(dim1=1, dim2=2)
        for part in self.parts:
            rows, _, _, places, covariances = part
            means = mixture.means_given(x, part)
            chosen, (n_gaps, n_places) = component[rows], places.shape  # (R, n)
            is_gap = x[rows[:n_gaps].unsqueeze(1), mixture.real[places]].isnan()
            padded = covariances + (~is_gap).to(x.dtype).diag_embed().unsqueeze(1)
            lower = cholesky(padded, variances[:, places].transpose(0, 1))
            everywhere = places.unsqueeze(1).expand(len(rows), n, -1)
            of_rows = noise[:, rows].transpose(0, 1).gather(2, everywhere)  # (R, n, m)
            of_set, off = (chosen // mixture.per_covariance).unsqueeze(2), torch.zeros_like(of_rows)
            for index in of_set.unique().tolist() if n_places else ():
                off = torch.where(of_set == index, of_rows @ lower[:, index].mT, off)
            center = means[torch.arange(len(rows), device=x.device).unsqueeze(1), chosen].gather(2, everywhere)
            columns = mixture.real[places].unsqueeze(1).expand_as(everywhere)
            drawn = center + torch.where(is_gap.unsqueeze(1), off, 0.0)
            result[:, rows] = result[:, rows].scatter(2, columns.transpose(0, 1), drawn.transpose(0, 1))
        for index, (block, field) in enumerate(zip(mixture.blocks, mixture.fields, strict=True)):
            sample = block.sample(Tilt(field[component.T], 0.0), generator)  # (n, N, *state_shape)
            states = mixture.states_of(index, result)
            states.copy_(torch.where(states.isnan(), sample, states))
        return result

    def intervals(self, level: float = 0.9, seed: int = 0) -> tuple[Tensor, Tensor]:  # (N, n) each
        """Compute central credible intervals for missing values; both bounds of an observed cell are its value.

        The bounds are quantiles of the mixture for Gaussian, binary and one-hot columns, and of 1000 draws for other
        columns.

        Args:
            level: Probability that an interval contains the missing value (default: 0.9).
            seed: Random seed for the draws (default: 0).

        Returns:
            Lower and upper bounds, each of shape (N, n).
        """
        check_level(level)
        others = [
            i for i, block in enumerate(self.mixture.blocks) if not (block.is_categorical or type(block) is Binary)
        ]
        levels = (1 - level) / 2, (1 + level) / 2
        ends = [torch.where(self.x.isnan(), (1 - self.moments.mean < share).to(self.x), self.x) for share in levels]
        for end, share in zip(ends, levels, strict=True):
            end[:, self.mixture.real] = self.quantiles(share)
        for index in others:
            generator = torch.Generator(self.x.device).manual_seed(seed)
            for end, quantile in zip(ends, self._quantiles_of_draws(index, levels, generator), strict=True):
                self.mixture.states_of(index, end).copy_(quantile)
        return ends[0], ends[1]

    def _quantiles_of_draws(
        self, index: int, shares: tuple[float, ...], generator: torch.Generator
    ) -> Tensor:  # (len(shares), N, *state_shape)
        """Compute quantiles of the missing cells of a block. All rows share the random numbers of their draws."""
        block, field = self.mixture.blocks[index], self.mixture.fields[index]
        states = self.mixture.states_of(index, self.x)
        drawn = block.sample(Tilt(field.unsqueeze(1).expand(-1, N_DRAWS, *field.shape[1:]), 0.0), generator)
        uniform = torch.rand(N_DRAWS, dtype=self.x.dtype, device=self.x.device, generator=generator)
        result, levels = states.repeat(len(shares), *[1] * states.dim()), torch.tensor(shares).to(self.x)
        for rows in states.isnan().flatten(1).any(1).nonzero().flatten().split(max(1, CHUNK_DRAWS // drawn[0].numel())):
            cumulative = self.probabilities[rows].cumsum(1)[:, :-1].contiguous()
            component = torch.searchsorted(cumulative, uniform.expand(len(rows), -1).contiguous())  # (R, draws)
            of_rows = drawn[component, torch.arange(N_DRAWS, device=self.x.device)]
            quantile = of_rows.quantile(levels, dim=1, interpolation="nearest")
            result[:, rows] = torch.where(states[rows].isnan(), quantile, states[rows])
        return result

    def quantiles(self, share: float) -> Tensor:  # (N, n_real)
        """Compute quantiles of the Gaussian columns by bisecting the mixture's CDF.

        Args:
            share: Probability that a value lies below the quantile.
        """
        result = self.x[:, self.mixture.real].clone()
        for part in self.parts:
            rows, log_joint, _, places, covariances = part
            row, place = result[rows].gather(1, places.expand(len(rows), -1)).isnan().nonzero(as_tuple=True)
            pattern = row if len(places) > 1 else torch.zeros_like(row)
            column, shares = places[pattern, place], log_joint.softmax(1)[row]
            means = self.mixture.means_given(self.x, part)[row, :, column]  # (gaps, C)
            deviations = covariances.diagonal(dim1=2, dim2=3)[pattern, :, place].clamp(min=0).sqrt()
            deviations = deviations.repeat_interleave(self.mixture.per_covariance, 1)
            deviations = deviations.clamp(min=torch.finfo(means.dtype).tiny)
            low, high = (means - REACH * deviations).amin(1), (means + REACH * deviations).amax(1)
            for _ in range(N_BISECTIONS):
                middle = 0.5 * (low + high)
                below = (shares * torch.special.ndtr((middle.unsqueeze(1) - means) / deviations)).sum(1)
                low, high = torch.where(below < share, middle, low), torch.where(below < share, high, middle)
            result[rows[row], column] = 0.5 * (low + high)
        return result

    def cell_surprise(self) -> Tensor:  # (N, n)
        """Compute the surprise −ln P(x_ij | other observed cells of the row) in nats; NaN for missing cells.

        The surprise of a category is stored at its first component, with 0 at its other components. The weight of a
        mixture component without the cell is w_c P_c(x)/P_c(x_ij | other cells). Within a mixture component, only the
        Gaussian columns are dependent.
        """
        surprise, mixture = torch.full_like(self.x, torch.nan), self.mixture
        real = self.x[:, mixture.real]
        for chosen, same in row_groups(real) if len(mixture.real) else ():
            for rows in chosen.split(max(1, len(chosen) if same else 2**22 // mixture.covariances.numel())):
                seen = ~real[rows[:1] if same else rows].isnan()
                places, log_cell = self._log_cells(real[rows], seen)
                without = self.log_joint[rows].unsqueeze(2) - log_cell
                of_cells = without.logsumexp(1) - self.log_weight[rows].unsqueeze(1)
                columns = mixture.real[places].expand(len(rows), -1)
                surprise[rows] = surprise[rows].scatter(1, columns, of_cells)
        for index, (block, field) in enumerate(zip(mixture.blocks, mixture.fields, strict=True)):
            states = mixture.states_of(index, self.x)
            filled = torch.where(states.isnan(), block.any_state(), states).unsqueeze(1)  # (N, 1, *state_shape)
            log_p = block.log_prior(filled, validate=False) - block.log_partition(Tilt(field, 0.0))
            without = self.log_joint.unsqueeze(2) - log_p - block.per_unit(filled * field)  # (N, C, n_units)
            of_units = without.logsumexp(1) - self.log_weight.unsqueeze(1)  # (N, n_units)
            cells = mixture.states_of(index, surprise)
            if block.is_categorical:
                cells.zero_()[:, :, 0].copy_(of_units)
            else:
                cells.copy_(of_units)
        return surprise.masked_fill(self.x.isnan(), torch.nan)

    def _log_cells(self, x: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:  # (R, n_real), (P, n_real)
        """Return the observed columns, (P, o), and their log-densities given the other columns, (R, C, o).

        With the precision matrix G of the observed columns and the deviations r from the means, column j has the mean
        x − (Gr)_j/G_jj and the variance 1/G_jj.
        """
        observed = Observed.of(self.mixture, x, seen)
        identity = torch.eye(observed.lower.shape[2], dtype=x.dtype, device=x.device)
        inverse = torch.linalg.solve_triangular(observed.lower, identity.expand_as(observed.lower), upper=False)
        precisions = inverse.square().sum(2).unsqueeze(2)  # (P, S, 1, o)
        sent = observed.solved.mT @ inverse  # (P, S, R / P · C / S, o)
        log_cell = 0.5 * (precisions.log() - LOG_2PI - sent**2 / precisions)
        return observed.places, Observed.by_row(log_cell, self.mixture)
