"""Machines for tables with columns of several types, which are mixtures of products of independent distributions.

A categorical hidden unit represents the class of a row. Each class k shifts the means of the Gaussian columns and the
fields of all other columns, so that P(x) = Σ_k π_k N(x_real; μ_k, Σ) Π_j P_j(x_j; U_j + W_jk). Gaussian and
spike-and-slab hidden units are coupled only to the Gaussian columns. Therefore ln Z, conditional distributions and
samples are exact.
"""

import math
from collections.abc import Iterator
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.likelihood.slabs import as_gaussian_mixture, is_gaussian_mixture
from tapmachine.machine import BoltzmannMachine, rbm
from tapmachine.units import Categorical, Gaussian, Mixed, Units

LOG_2PI = math.log(2 * math.pi)
CHUNK_VALUES = 2**22  # maximum number of matrix entries per chunk of rows


class ProductMixture(NamedTuple):
    """Visible units of a machine as a mixture Σ_c w_c N(x_real; μ_c, Σ_s(c)) Π_j P_j(x_j; U_j + W_jc).

    Attributes:
        log_weights: Logarithms of the weights w_c, shape (C,). The sum of the weights is the machine's Z.
        means: Means of the Gaussian columns, shape (C, n_real).
        covariances: Covariances of the Gaussian columns, shape (S, n_real, n_real). Component c uses the covariance
            with index c // (C / S).
        real: Indices of the Gaussian columns among all components, shape (n_real,).
        blocks: Units of the other columns.
        places: Index of the first component of each block.
        fields: Field added to each block by each component, shape (C, *state_shape) each.
    """

    log_weights: Tensor
    means: Tensor
    covariances: Tensor
    real: Tensor
    blocks: list[Units]
    places: list[int]
    fields: list[Tensor]

    @property
    def n(self) -> int:
        """Number of components of the visible states."""
        return len(self.real) + sum(math.prod(block.state_shape) for block in self.blocks)

    def states_of(self, index: int, x: Tensor) -> Tensor:  # (N, n) -> (N, *state_shape)
        """Return the columns of the rows that belong to a block."""
        block, place = self.blocks[index], self.places[index]
        states: Tensor = x[:, place : place + math.prod(block.state_shape)].unflatten(1, block.state_shape)
        return states

    def log_probabilities(self, index: int, x: Tensor) -> Tensor:  # (N, n) -> (N, C, n_units)
        """Log-probability of each unit of a block in each component, with 0 for missing values (NaN)."""
        block, field, states = self.blocks[index], self.fields[index], self.states_of(index, x)
        missing = states.isnan()
        filled = torch.where(missing, _any_state(block), states).unsqueeze(1)
        prior = block.log_prior(filled, validate=False)
        log_p = prior + block.per_unit(filled * field) - block.log_partition(Tilt(field, 0.0))
        return log_p.masked_fill(block.per_unit(missing.to(x.dtype)).unsqueeze(1) > 0, 0.0)

    def log_joint(self, x: Tensor) -> Tensor:  # (N, n) -> (N, C)
        """Logarithm of w_c P_c(x) for the observed values of each row, with NaN marking missing values."""
        parts = [chunk.log_joint for chunk in self.of_gaussian(x)]
        total = torch.cat(parts) if parts else self.log_weights.expand(len(x), -1)
        for index in range(len(self.blocks)):
            total = total + self.log_probabilities(index, x).sum(2)
        return total

    def of_gaussian(self, x: Tensor) -> "Iterator[GaussianPart]":  # of rows in order
        """Iterate over chunks of rows, with the statistics of their observed Gaussian columns for each component.

        The iterator is empty if the mixture has no Gaussian columns.
        """
        n, (n_sets, _, _) = len(self.real), self.covariances.shape
        if n == 0:
            return
        size = max(1, CHUNK_VALUES // (n_sets * n**2 + len(self.means) * n))
        for rows in x[:, self.real].split(size):
            yield GaussianPart.of(self, rows)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:  # (count, n)
        """Draw independent samples of the visible units."""
        component = torch.multinomial(self.log_weights.softmax(0), count, replacement=True, generator=generator)
        x = self.log_weights.new_empty((count, self.n))
        noise = torch.randn(
            (count, len(self.real)), dtype=x.dtype, device=x.device, generator=generator
        )  # noise of the Gaussian columns
        lower = torch.linalg.cholesky(self.covariances)[component // (len(self.means) // len(self.covariances))]
        x[:, self.real] = self.means[component] + (lower @ noise.unsqueeze(2)).squeeze(2)
        for index, (block, field) in enumerate(zip(self.blocks, self.fields, strict=True)):
            self.states_of(index, x).copy_(block.sample(Tilt(field[component], 0.0), generator))
        return x


class GaussianPart(NamedTuple):
    """Gaussian columns of several rows, conditioned on the observed values in each component.

    Let G be the precision matrix of the observed columns, with 0 for missing columns, and r the deviations from the
    means. Missing columns have the mean μ + Σ G r and the covariance Σ − Σ G Σ. Given all other observed columns, an
    observed column j has the mean x − (Gr)/G_jj and the variance 1/G_jj.
    """

    log_joint: Tensor  # ln w_c N(x_observed), (R, C)
    precisions: Tensor  # G, (R, S, n, n)
    solved: Tensor  # G r, (R, C, n)

    @staticmethod
    def of(mixture: ProductMixture, x: Tensor) -> "GaussianPart":  # (R, n_real)
        """Condition the components on the observed real values of each row."""
        seen = ~x.isnan()
        precisions, log_det = observed_precisions(mixture.covariances, seen)
        off = torch.where(seen, x, 0.0).unsqueeze(1) - mixture.means * seen.unsqueeze(1)  # (R, C, n)
        n_sets = precisions.shape[1]
        solved = (off.unflatten(1, (n_sets, -1)) @ precisions).flatten(1, 2)
        per_set = -0.5 * (log_det + LOG_2PI * seen.to(x.dtype).sum(1, keepdim=True)).repeat_interleave(
            off.shape[1] // n_sets, 1
        )
        return GaussianPart(mixture.log_weights + per_set - 0.5 * (solved * off).sum(2), precisions, solved)


def observed_precisions(covariances: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inverse covariances of the observed columns and the log-determinants of their covariances.

    Args:
        covariances: Covariances of all columns, shape (S, n, n).
        seen: Boolean mask of the observed columns, shape (R, n).

    Returns:
        Precision matrices with 0 for missing columns, shape (R, S, n, n), and log-determinants, shape (R, S).
    """
    patterns, of_row = seen.unique(dim=0, return_inverse=True)
    kept = patterns.to(covariances.dtype).unsqueeze(1)  # (P, 1, n)
    lower = torch.linalg.cholesky(kept.unsqueeze(3) * covariances * kept.unsqueeze(2) + (1 - kept).diag_embed())
    precisions = torch.cholesky_inverse(lower) * kept.unsqueeze(2)
    log_det = 2 * lower.diagonal(dim1=2, dim2=3).log().sum(2)
    return precisions[of_row], log_det[of_row]


def is_product_mixture(machine: BoltzmannMachine) -> bool:
    """Return whether the machine is a mixture of latent classes.

    In a mixture of latent classes, `Mixed` visible units are coupled to one hidden `Categorical` unit. Gaussian visible
    units may also be coupled to hidden `Gaussian` and `SpikeSlab` units.
    """
    layers = list(machine.layers)
    if len(layers) != 2 or machine.n_rows is not None or not isinstance(layers[0], Mixed):
        return False
    blocks, weights = _blocks(layers[1]), machine.weights[0].detach()
    classes = [block for block, _ in blocks if type(block) is Categorical and block.n == 1]
    if len(classes) != 1:
        return False
    real = _real_places(layers[0])
    others = torch.ones(layers[0].n, dtype=torch.bool)
    others[real] = False
    if any(
        bool(weights[others][:, place : place + block.n].any()) for block, place in blocks if block is not classes[0]
    ):
        return False
    if len(real) == 0:
        return len(blocks) == 1
    return is_gaussian_mixture(_gaussian_machine(machine, real))


@torch.no_grad()
def as_product_mixture(machine: BoltzmannMachine) -> ProductMixture:  # in float64
    """Convert the visible units of a machine that satisfies `is_product_mixture` to a mixture, in float64.

    Raises:
        EstimateError: If Z is infinite.

    Example:
        >>> from tapmachine import Binary, Categorical, Gaussian, Mixed, rbm
        >>> from tapmachine.likelihood.products import as_product_mixture
        >>> machine = rbm(Mixed([Gaussian(3), Binary(2)]), Mixed([Gaussian(3), Categorical(1, 4)]))
        >>> as_product_mixture(machine).means.shape
        torch.Size([4, 3])
    """
    visible, real = machine.layers[0], _real_places(machine.layers[0])
    classes, first = next((block, place) for block, place in _blocks(machine.layers[1]) if type(block) is Categorical)
    weights = machine.weights[0].double()[:, first : first + classes.q].T
    if len(real):
        gaussians = as_gaussian_mixture(_gaussian_machine(machine, real))
        log_weights, means, covariances = gaussians.log_weights, gaussians.means, gaussians.covariances[:: len(weights)]
    else:
        log_weights = classes.field.double()[0].log_softmax(0)
        means, covariances = weights[:, :0], weights.new_zeros((1, 0, 0))
    others = [(block, place) for block, place in _blocks(visible) if type(block) is not Gaussian]
    blocks, fields = [deepcopy(block).double().requires_grad_(False) for block, _ in others], []
    for block, (_, place) in zip(blocks, others, strict=True):
        field = weights[:, place : place + math.prod(block.state_shape)].unflatten(1, block.state_shape)
        field = field.repeat(len(log_weights) // len(weights), *[1] * len(block.state_shape))  # classes vary fastest
        log_weights = log_weights + block.log_partition(Tilt(field, 0.0)).sum(1)
        fields.append(field)
    return ProductMixture(log_weights, means, covariances, real, blocks, [place for _, place in others], fields)


def _blocks(layer: Units) -> list[tuple[Units, int]]:
    """Return the blocks of a layer with the indices of their first components."""
    blocks: list[Units] = list(layer.blocks) if isinstance(layer, Mixed) else [layer]  # type: ignore[arg-type]
    sizes = [math.prod(block.state_shape) for block in blocks]
    return [(block, sum(sizes[:index])) for index, block in enumerate(blocks)]


def _real_places(layer: Units) -> Tensor:
    """Return the indices of the components of `Gaussian` blocks."""
    places = [torch.arange(place, place + block.n) for block, place in _blocks(layer) if type(block) is Gaussian]
    return torch.cat([torch.arange(0), *places]).to(layer.device)


def _gaussian_machine(machine: BoltzmannMachine, real: Tensor) -> BoltzmannMachine:
    """Return the machine of the Gaussian columns only."""
    columns = [block for block, _ in _blocks(machine.layers[0]) if type(block) is Gaussian]
    field, precision = (torch.cat([getattr(b, name).detach() for b in columns]) for name in ("field", "precision"))
    hidden = deepcopy(machine.layers[1])
    units = Gaussian(len(real), field=field.double().cpu(), precision=precision.double().cpu()).to(machine.device)
    return rbm(units, hidden.double(), machine.weights[0].detach()[real].double())


def _any_state(block: Units) -> Tensor:
    """Return a valid state of each unit as a placeholder for missing values."""
    if block.is_categorical:
        return torch.ones((), dtype=block.dtype, device=block.device)
    lower, upper = block.bounds()
    return torch.where(torch.isfinite(lower), lower, torch.where(torch.isfinite(upper), upper, 0.0))
