"""Posteriors as mixtures of solutions, weighted by exp(−F)."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Solution, Status
from tapmachine.data.errors import PosteriorWarning, warn
from tapmachine.solver.merging import ROUGHLY_SAME, spread
from tapmachine.units import Units

if TYPE_CHECKING:
    from tapmachine.posterior.channels import Channel
    from tapmachine.posterior.measurements import Measurements

OF_ROWS = ("free_energy", "n_solutions", "status")  # attributes of a posterior with one value per row


@dataclass(frozen=True, eq=False)
class Posterior:
    """Posterior of states given K observations, a mixture of solutions weighted by exp(−F).

    Attributes:
        moments: Posterior mean and variance of the units in each layer, each of shape (K, *state_shape).
        free_energy: Free energy −ln Σ_x exp(−E(x))·P(y|x) of each row in nats, of shape (K,). The log-evidence is
            ln P(y) = −free_energy − ln Z, where Z is the partition function of the unconditioned machine. NaN if the
            method is "gibbs".
        n_solutions: Number of distinct solutions of each row, of shape (K,).
        status: `Status` of each row as an integer, of shape (K,). It is CONVERGED if the row has a converged solution.
        channel: Channel or measurements, including estimated parameters.
        units: Visible units of the machine.
        method: Method by which the posterior was computed: "exact", "tap", "adaptive", "gibbs", "recovery", or the
            name of the scheme that was specified.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, BinarySymmetric, denoise, rbm
        >>> denoise(rbm(Binary(2), Binary(2)), torch.tensor([[1.0, 0.0]]), BinarySymmetric(0.1)).mean
        tensor([[0.9001, 0.0999]])
    """

    moments: tuple[Moments, ...]
    free_energy: Tensor
    n_solutions: Tensor
    status: Tensor
    channel: "Channel | Measurements"
    units: Units
    method: str

    @property
    def mean(self) -> Tensor:  # (K, *state_shape)
        """Posterior means of the visible units; for categorical units, the probabilities of the states."""
        return self.moments[0].mean

    @property
    def variance(self) -> Tensor:  # (K, *state_shape)
        """Posterior variances of the visible units, which are the expected squared errors of `mean`."""
        return self.moments[0].variance

    @property
    def states(self) -> Tensor:  # (K, n)
        """Most probable state of each visible unit, in the format of the data.

        For units with more than two numeric states, the state nearest to the mean is returned. For real-valued units,
        the mean is returned.
        """
        return self.units.to_data(self.units.nearest_states(self.mean))

    @property
    def values(self) -> Tensor:  # (K, n)
        """Means of the visible units in the format of the data; the most probable states of categorical units."""
        return self.mean if len(self.units.state_shape) == 1 else self.states

    @property
    def deviation(self) -> Tensor:  # (K, n)
        """Standard deviation of each visible unit; for categorical units, of the one-hot vector around its mean."""
        variance = self.variance if len(self.units.state_shape) == 1 else self.variance.sum(-1)
        return variance.clamp(min=0).sqrt()

    @property
    def converged(self) -> Tensor:  # (K,), bool
        """Whether each row has a converged solution."""
        return self.status == Status.CONVERGED

    def __len__(self) -> int:
        return len(self.status)

    def select(self, index: Tensor) -> "Posterior":
        """Select rows by index or by a boolean mask."""
        moments = tuple(Moments(*(z[index] for z in layer)) for layer in self.moments)
        return replace(self, moments=moments, **{name: getattr(self, name)[index] for name in OF_ROWS})

    def __repr__(self) -> str:
        failed = int((~self.converged).sum())
        not_converged = f", {failed} not converged" if failed else ""
        return f"Posterior({len(self)} rows through {self.channel}, method {self.method}{not_converged})"

    def _repr_html_(self) -> str:
        from tapmachine.display.html import card, escape
        from tapmachine.display.summaries import first_rows, thumbnails

        deviation = self.variance.clamp(min=0).sqrt()
        pictures = thumbnails(self.mean, "posterior means") + thumbnails(deviation, "standard deviations")
        shown = pictures or first_rows(self.mean, deviation)
        return card("Posterior", f"<div>{escape(repr(self)[10:-1])}</div>", shown)


def mixture(
    layers: list[Units],
    solutions: list[Solution],
    temperature: float,
    log_scale: Tensor | float,
    channel: "Channel | Measurements",
    method: str,
) -> Posterior:
    """Combine the distinct solutions of each row into a mixture, weighted by exp(−F/T).

    Args:
        layers: Units of each layer.
        solutions: Solutions of all rows, one element for each initial state.
        temperature: Temperature T of the weights.
        log_scale: Value to subtract from the free energy of each row, of shape (K,).
        channel: Channel or measurements.
        method: Name of the method.
    """
    status = torch.stack([solution.status for solution in solutions])  # (S, K)
    free_energies = torch.stack([solution.free_energy.double() for solution in solutions])
    converged = status == Status.CONVERGED
    usable = converged | (~converged.any(0) & (status == Status.MAX_SWEEPS))  # unconverged solutions if none converged
    usable &= torch.isfinite(free_energies)
    usable &= ~_repeated(layers, solutions, usable, free_energies)
    exponents = torch.where(usable, -free_energies, -torch.inf)
    none = ~usable.any(0)
    probabilities = ((exponents - exponents.amax(0)) / temperature).where(usable, -torch.inf).softmax(0)
    probabilities = torch.where(none, 0.0, probabilities)
    probabilities[0] = torch.where(none, 1.0, probabilities[0])  # for failed rows, the last finite moments
    layers_of = zip(*(solution.moments for solution in solutions), strict=True)
    return Posterior(
        tuple(_mixed(probabilities, list(moments)) for moments in layers_of),
        torch.where(none, torch.inf, -exponents.logsumexp(0)) - log_scale,
        (usable & converged).sum(0),
        torch.where(converged.any(0), int(Status.CONVERGED), status[0]).to(status.dtype),
        channel,
        layers[0],
        method,
    )


def joined(parts: list[Posterior]) -> Posterior:
    """Concatenate the posteriors of subsets of the rows."""
    layers = zip(*(part.moments for part in parts), strict=True)
    moments = tuple(Moments(*(torch.cat(z) for z in zip(*layer, strict=True))) for layer in layers)
    of_rows: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts]) for name in OF_ROWS}
    return replace(parts[0], moments=moments, **of_rows)


def warn_of_failures(status: Tensor) -> None:
    """Issue a PosteriorWarning if some rows have no converged solution."""
    failed = (status != Status.CONVERGED).nonzero().squeeze(-1)
    if len(failed) == 0:
        return
    counts = {s.name.lower(): int((status == s).sum()) for s in Status if s != Status.CONVERGED}
    reasons = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    warn(
        f"{len(failed)} of {len(status)} rows have no converged solution ({reasons}); the first "
        f"is row {int(failed[0])}",
        PosteriorWarning,
    )


def _repeated(
    layers: list[Units], solutions: list[Solution], usable: Tensor, free_energies: Tensor
) -> Tensor:  # (S, K), bool
    """Return a mask of duplicate solutions, which are close to a solution of the same row with lower F.

    Among solutions with the same F, the first is kept. Distances are root-mean-square differences over all units with
    nonzero variance, relative to the size of each unit's support.
    """
    scales = [spread(units) for units in layers]
    repeated = torch.zeros_like(usable)
    for index in range(1, len(solutions)):
        for other in range(index):
            total, count = torch.zeros_like(free_energies[0]), torch.zeros_like(free_energies[0])
            for first, second, scale in zip(solutions[index].moments, solutions[other].moments, scales, strict=True):
                free = ((first.variance > 0) | (second.variance > 0)).flatten(1)
                off = ((first.mean - second.mean) / scale).flatten(1).square()
                total, count = total + off.where(free, 0.0).sum(1), count + free.sum(1)
            same = (total / count.clamp(min=1)).sqrt() < ROUGHLY_SAME
            both = same & usable[index] & usable[other]
            lower = free_energies[index] < free_energies[other]
            repeated[index] |= both & ~lower
            repeated[other] |= both & lower
    return repeated


def _mixed(probabilities: Tensor, parts: list[Moments]) -> Moments:
    """Compute the mean and variance of a mixture."""
    weights = [
        probability.to(part.mean.dtype).view(-1, *[1] * (part.mean.dim() - 1))
        for probability, part in zip(probabilities, parts, strict=True)
    ]
    mean = sum((w * part.mean for w, part in zip(weights, parts, strict=True)), torch.zeros_like(parts[0].mean))
    within = [w * (part.variance + (part.mean - mean) ** 2) for w, part in zip(weights, parts, strict=True)]
    return Moments(mean, sum(within, torch.zeros_like(mean)))
