"""Exact posteriors of missing cells in tables: moments, probabilities, intervals, samples and surprise."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.data.checks import check_count
from tapmachine.likelihood.products import LOG_2PI, ProductMixture, as_product_mixture, is_product_mixture
from tapmachine.likelihood.slabs import as_gaussian_mixture, is_gaussian_mixture
from tapmachine.machine import BoltzmannMachine
from tapmachine.units import Gaussian, Mixed, Units

N_BISECTIONS = 60  # number of bisection steps for a quantile
REACH = 12.0  # search range of quantiles, in standard deviations around the component means
N_DRAWS = 1000  # number of draws for the intervals of columns that are not Gaussian


class TablePosterior(NamedTuple):
    """Posterior of the missing cells of a table, a mixture of product distributions.

    Attributes:
        mixture: Distribution of the visible units as a mixture.
        x: Rows, of shape (N, n), with NaN for missing cells.
        log_joint: Logarithm of w_c P_c(x_observed) for each component c, of shape (N, C).
        means: Conditional means of the Gaussian columns in each component, of shape (N, C, n_real).
        variances: Conditional variances of the Gaussian columns, of shape (N, S, n_real); 0 for observed cells.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, Categorical, Gaussian, Mixed, rbm
        >>> from tapmachine.posterior.table import TablePosterior
        >>> machine = rbm(Mixed([Gaussian(1), Binary(1)]), Categorical(1, 2), torch.tensor([[2.0, -2.0], [3.0, -3.0]]))
        >>> posterior = TablePosterior.of(machine, torch.tensor([[torch.nan, 1.0]]))
        >>> posterior.moments.mean.round(decimals=2)
        tensor([[1.9900, 1.0000]], dtype=torch.float64)
    """

    mixture: ProductMixture
    x: Tensor
    log_joint: Tensor
    means: Tensor
    variances: Tensor

    @staticmethod
    @torch.no_grad()
    def of(machine: BoltzmannMachine, x: Tensor) -> "TablePosterior":  # (N, n)
        """Condition a machine fitted to a table on the observed cells of each row.

        Args:
            machine: A machine whose visible distribution is a mixture of products, such as one fitted to a table.
            x: Rows, of shape (N, n), with NaN for missing cells. All q components of a missing category are NaN.

        Raises:
            ValueError: If the visible units of the machine are not a mixture of products.
        """
        mixture = mixture_of(machine)
        x = x.to(mixture.log_weights)
        covariances = mixture.covariances
        means, variances, log_joint = [], [], []
        for part in mixture.of_gaussian(x):
            solved = part.solved.unflatten(1, (len(covariances), -1))
            means.append(mixture.means + (solved @ covariances).flatten(1, 2))
            explained = ((covariances @ part.precisions) * covariances).sum(3)  # diagonal of Σ G Σ
            variances.append((covariances.diagonal(dim1=1, dim2=2) - explained).clamp(min=0))
            log_joint.append(part.log_joint)
        n_real = len(mixture.real)
        if n_real == 0:
            empty = x.new_zeros((len(x), len(mixture.log_weights), 0))
            means, variances = [empty], [x.new_zeros((len(x), 1, 0))]
            log_joint = [mixture.log_weights.expand(len(x), -1)]
        total = torch.cat(log_joint)
        for index in range(len(mixture.blocks)):
            total = total + mixture.log_probabilities(index, x).sum(2)
        missing = x[:, mixture.real].isnan().unsqueeze(1)
        observed = x[:, mixture.real].unsqueeze(1)
        return TablePosterior(
            mixture, x, total, torch.where(missing, torch.cat(means), observed), torch.cat(variances) * missing
        )

    @property
    def classes(self) -> Tensor:  # (N, C)
        """Probabilities of the mixture components, which are classes of rows in machines without `SpikeSlab` units."""
        return self.log_joint.softmax(1)

    @property
    def log_weight(self) -> Tensor:  # (N,)
        """Log-weight ln P(x_observed) + ln Z of each row."""
        return self.log_joint.logsumexp(1)

    @property
    def moments(self) -> Moments:  # (N, n) each
        """Means and variances of all cells; for categories, the means are the probabilities of the states."""
        shares = self.classes.unsqueeze(2)
        mean, variance = torch.empty_like(self.x), torch.empty_like(self.x)
        real = self.mixture.real
        missing = self.x[:, real].isnan()
        mean[:, real] = torch.where(missing, (shares * self.means).sum(1), self.x[:, real])
        spread = (shares * (self.means - mean[:, real].unsqueeze(1)) ** 2).sum(1)
        n_per_set = self.means.shape[1] // self.variances.shape[1]
        within = (shares * self.variances.repeat_interleave(n_per_set, 1)).sum(1)
        variance[:, real] = (spread + within) * missing
        for index, (block, field) in enumerate(zip(self.mixture.blocks, self.mixture.fields, strict=True)):
            states = self.mixture.states_of(index, self.x)
            of_component = block.moments(Tilt(field, 0.0))
            means = torch.tensordot(self.classes, of_component.mean, 1)
            squares = torch.tensordot(self.classes, of_component.variance + of_component.mean**2, 1)
            self.mixture.states_of(index, mean).copy_(torch.where(states.isnan(), means, states))
            self.mixture.states_of(index, variance).copy_((squares - means**2).clamp(min=0) * states.isnan())
        return Moments(mean, variance)

    def imputed(self) -> Tensor:  # (N, n)
        """Rows with missing cells replaced by their means, or by the most probable category or binary value."""
        filled = self.moments.mean
        for index, block in enumerate(self.mixture.blocks):
            part = self.mixture.states_of(index, filled)
            if block.is_categorical:
                part.copy_(torch.nn.functional.one_hot(part.argmax(-1), part.shape[-1]).to(part))
            elif block.has_two_states:
                lower, upper = block.bounds()
                part.copy_(torch.where(2 * part > lower + upper, upper, lower))
        return filled

    def intervals(self, level: float = 0.9, seed: int = 0) -> tuple[Tensor, Tensor]:  # (N, n) each
        """Compute central credible intervals for missing values; both bounds of an observed cell are its value.

        The bounds are quantiles of the mixture for Gaussian columns, and quantiles of 1000 draws for other columns.

        Args:
            level: Probability that an interval contains the missing value (default: 0.9).
            seed: Random seed for the draws (default: 0).

        Returns:
            Lower and upper bounds, each of shape (N, n).
        """
        if not 0 < level < 1:
            raise ValueError(f"level is {level!r}; expected a number between 0 and 1, such as 0.9")
        ends = []
        drawn = self.draws(N_DRAWS, torch.Generator(self.x.device).manual_seed(seed)) if self.mixture.blocks else None
        for share in ((1 - level) / 2, (1 + level) / 2):
            end = self.x.clone() if drawn is None else drawn.quantile(share, dim=0, interpolation="nearest")
            end[:, self.mixture.real] = self.quantiles(share)
            ends.append(end)
        return ends[0], ends[1]

    def quantiles(self, share: float) -> Tensor:  # (N, n_real)
        """Compute quantiles of the Gaussian columns by bisecting the mixture's CDF.

        Args:
            share: Probability that a value lies below the quantile.
        """
        result = self.x[:, self.mixture.real].clone()
        rows, columns = result.isnan().nonzero(as_tuple=True)
        n_per_set = self.means.shape[1] // self.variances.shape[1]
        means = self.means[rows, :, columns]  # (gaps, C)
        deviations = self.variances[rows, :, columns].sqrt().repeat_interleave(n_per_set, 1)
        deviations = deviations.clamp(min=torch.finfo(means.dtype).tiny)
        shares = self.classes[rows]
        low = (means - REACH * deviations).amin(1)
        high = (means + REACH * deviations).amax(1)
        for _ in range(N_BISECTIONS):
            middle = 0.5 * (low + high)
            below = (shares * torch.special.ndtr((middle.unsqueeze(1) - means) / deviations)).sum(1)
            low, high = torch.where(below < share, middle, low), torch.where(below < share, high, middle)
        result[rows, columns] = 0.5 * (low + high)
        return result

    def draws(self, n: int, generator: torch.Generator | None = None) -> Tensor:  # (n, N, n_cells)
        """Draw complete rows from the posterior, as in multiple imputation.

        Args:
            n: Number of draws per row.
            generator: Random number generator (default: torch's global generator).
        """
        n, mixture, x = check_count("n", n), self.mixture, self.x
        component = torch.multinomial(self.classes, n, replacement=True, generator=generator)  # (N, n)
        result = x.expand(n, *x.shape).clone()
        n_per_set = len(mixture.means) // len(mixture.covariances)
        real = mixture.real
        for row in x[:, real].isnan().any(1).nonzero().flatten().tolist():
            gaps = x[row, real].isnan()
            for c in component[row].unique().tolist():
                here = (component[row] == c).nonzero().flatten()
                covariance = mixture.covariances[c // n_per_set]
                across = covariance[gaps][:, ~gaps]
                within = covariance[gaps][:, gaps]
                if bool((~gaps).any()):
                    within = within - across @ torch.linalg.solve(covariance[~gaps][:, ~gaps], across.T)
                lower = torch.linalg.cholesky(0.5 * (within + within.T))
                noise = torch.randn((len(here), len(lower)), dtype=x.dtype, device=x.device, generator=generator)
                result[here.unsqueeze(1), row, real[gaps]] = self.means[row, c, gaps] + noise @ lower.T
        for index, (block, field) in enumerate(zip(mixture.blocks, mixture.fields, strict=True)):
            size, place = math.prod(block.state_shape), mixture.places[index]
            drawn = block.sample(Tilt(field[component.T], 0.0), generator).flatten(2)  # (n, N, size)
            part = result[:, :, place : place + size]
            part.copy_(torch.where(part.isnan(), drawn, part))
        return result

    def cell_surprise(self) -> Tensor:  # (N, n)
        """Compute the surprise −ln P(x_ij | other observed cells of the row) in nats; NaN for missing cells.

        The surprise of a category is stored at its first component, with 0 at its other components. The weight of a
        mixture component without the cell is w_c P_c(x)/P_c(x_ij | other cells). Within a mixture component, only the
        Gaussian columns are dependent.
        """
        surprise, mixture = torch.full_like(self.x, torch.nan), self.mixture
        log_joint, first, n_per_set = self.log_joint, 0, len(mixture.means) // len(mixture.covariances)
        for part in mixture.of_gaussian(self.x):
            rows = slice(first, first + len(part.log_joint))
            precision = part.precisions.diagonal(dim1=2, dim2=3).repeat_interleave(n_per_set, 1)  # (R, C, n)
            log_cell = 0.5 * (precision.log() - LOG_2PI - part.solved**2 / precision)
            without = log_joint[rows].unsqueeze(2) - log_cell
            surprise[rows, mixture.real] = without.logsumexp(1) - self.log_weight[rows].unsqueeze(1)
            first = rows.stop
        for index, block in enumerate(mixture.blocks):
            states = mixture.states_of(index, self.x)
            without = log_joint.unsqueeze(2) - mixture.log_probabilities(index, self.x)
            of_units = without.logsumexp(1) - self.log_weight.unsqueeze(1)  # (N, n_units)
            cells = mixture.states_of(index, surprise)
            if block.is_categorical:
                cells.zero_()[:, :, 0].copy_(of_units)
            else:
                cells.copy_(of_units)
            cells.masked_fill_(states.isnan(), torch.nan)
        return surprise.masked_fill(self.x.isnan(), torch.nan)

    def row_surprise(self) -> Tensor:  # (N,)
        """Compute the surprise −ln P(x_observed) of each row in nats."""
        return self.mixture.log_weights.logsumexp(0) - self.log_weight

    def hidden_moments(self, machine: BoltzmannMachine) -> Moments:  # (N, n_hidden) each
        """Compute the means and variances of the hidden units of a machine without active `SpikeSlab` units."""
        layer, means, variances = machine.layers[1], [], []
        blocks: list[Units] = list(layer.blocks) if isinstance(layer, Mixed) else [layer]  # type: ignore[arg-type]
        first = 0
        visible = self.moments
        for block in blocks:
            size = math.prod(block.state_shape)
            weights = machine.weights[0].detach()[:, first : first + size]
            first += size
            if block.is_categorical:
                classes = self.classes.unflatten(1, (-1, size)).sum(1)
                means.append(classes)
                variances.append(classes * (1 - classes))
            elif type(block) is Gaussian:
                precision = block.precision.detach()
                means.append((block.field.detach() + visible.mean @ weights) / precision)
                variances.append(1 / precision + self._variance_along(weights[self.mixture.real] / precision))
            else:
                at_rest = block.moments(Tilt(visible.mean.new_zeros((len(visible.mean), block.n)), 0.0))
                means.append(at_rest.mean)
                variances.append(at_rest.variance)
        return Moments(torch.cat(means, 1), torch.cat(variances, 1))

    def _variance_along(self, weights: Tensor) -> Tensor:  # (n_real, h) -> (N, h)
        """Compute the conditional variances of linear combinations of the Gaussian columns."""
        covariances, first, results = self.mixture.covariances, 0, []
        n_per_set = self.means.shape[1] // len(covariances)
        for part in self.mixture.of_gaussian(self.x):
            shares = self.classes[first : first + len(part.log_joint)]
            along = self.means[first : first + len(shares)] @ weights  # (R, C, h)
            center = (shares.unsqueeze(2) * along).sum(1, keepdim=True)
            sent = covariances @ weights  # (S, n, h)
            within = (weights * sent).sum(1) - (sent * (part.precisions @ sent)).sum(2)  # (R, S, h)
            within = within.clamp(min=0).repeat_interleave(n_per_set, 1)
            results.append((shares.unsqueeze(2) * (within + (along - center) ** 2)).sum(1))
            first += len(shares)
        return torch.cat(results)


def mixture_of(machine: BoltzmannMachine) -> ProductMixture:
    """Return the distribution of a machine's visible units as a mixture of products.

    Raises:
        ValueError: If the visible units of the machine are not a mixture of products.
    """
    if is_product_mixture(machine):
        return as_product_mixture(machine)
    if not is_gaussian_mixture(machine):
        raise ValueError(f"the machine is {machine.summary()}; expected a machine fitted to a table")
    gaussians = as_gaussian_mixture(machine)
    real = torch.arange(machine.layers[0].n, device=machine.device)
    return ProductMixture(gaussians.log_weights, gaussians.means, gaussians.covariances, real, [], [], [])
