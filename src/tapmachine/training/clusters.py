"""Persistent chains that know the clusters of the data, although Gibbs sweeps do not move them from one to another.

From time to time, as many chains are annealed from classes of rows to the machine. Their weights give the probability
of each class under the machine. The annealed chains, resampled by weight, replace the persistent chains if these have
other shares of the classes, or if many annealed chains have weight.

Where the shares have differed once, the persistent chains have weights, which follow the change of the machine in each
training step: the weight of a chain is multiplied by the ratio of its probabilities after and before the step, and
averaged over all chains of its class, within which Gibbs sweeps move the chains. Errors of these products add up, so
that the chains lose their weights when annealed chains no longer confirm them.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor

from tapmachine.accelerator.distributed import gathered
from tapmachine.accelerator.precision import full_precision
from tapmachine.data.rows import spaced
from tapmachine.likelihood.annealing.bases import class_base, classes_of
from tapmachine.likelihood.annealing.paths import path_from, seeded
from tapmachine.training.free_energies import summed_over_odd_layers
from tapmachine.training.step import Step

N_TEMPERATURES = 20
SHORTEST, FIRST, LONGEST = 10, 20, 80  # training steps between comparisons; the longest cost a tenth of an epoch
MANY = 100  # comparisons after which the time between them is the longest, whether or not the shares differ
MOST_ROWS = 1000  # number of rows whose classes are used
ALL, SINGLE = 2.0, 3.0  # standard deviations above which the shares of all classes together, or of one, differ
CLUSTERED = 3.0  # ratio to these limits above which the chains get weights
ENOUGH, FEWEST = 1 / 3, 0.1  # effective sample size, as a fraction of the chains, in general and if the shares differ
USUAL = 0.5  # share of valid comparisons below which annealed chains are not used: a single one may be mistaken
EVEN = 0.25  # share of the chains that is divided evenly among the classes
RARE = 1e-6  # probability below which a class gets no chain
COLLAPSED = 0.5  # effective sample size of the weights, as a fraction of the chains, below which they are resampled


class ClusteredChains:
    """Weights of the persistent chains of a training, and their comparison with draws from the machine.

    The time between two comparisons is halved if the shares differ, and doubled otherwise; later in training, it is the
    longest, because machines of many dimensions are never in equilibrium after so few temperatures. All draws depend
    only on the seed and on the number of steps, so that trainings can be resumed and divided among processes.

    Args:
        step: Training step whose objective keeps chains.
        rows: Rows of data, from whose classes the annealed chains start.
        seed: Random seed.

    Attributes:
        n_steps, n_compared: Number of training steps and of comparisons so far.
        n_valid: Number of comparisons in which enough annealed chains had weight.
        interval: Number of steps between two comparisons.
        due: Number of steps after which the chains are compared.
        is_clustered: Whether the chains have weights.
    """

    def __init__(self, step: Step, rows: Tensor, seed: int) -> None:
        self.step, self.machine, self.seed = step, step.machine, seed
        self.rows = spaced(rows, MOST_ROWS)
        self.members = classes_of(self.rows, seed)  # (N, C)
        self.means = (self.members / self.members.sum(0)).T @ self.rows.flatten(1)  # (C, n)
        self.n_steps, self.n_compared, self.n_valid, self.is_clustered = 0, 0, 0, False
        self.interval = self.due = FIRST

    def as_json(self) -> dict[str, int]:
        """Return all numbers that change during training."""
        names = ("n_steps", "n_compared", "n_valid", "interval", "due", "is_clustered")
        return {name: int(getattr(self, name)) for name in names}

    def restore(self, values: dict[str, int]) -> None:
        """Restore the output of `as_json`."""
        self.n_steps, self.n_compared, self.n_valid = (values[name] for name in ("n_steps", "n_compared", "n_valid"))
        self.interval, self.due = values["interval"], values["due"]
        self.is_clustered = bool(values["is_clustered"])

    @torch.no_grad()
    @full_precision()
    def after_step(self) -> None:
        """Count a step, update the weights of the chains, and compare the chains with draws if it is time."""
        self.n_steps += 1
        if self.is_clustered:
            self._follow()
        if self.n_steps >= self.due:
            difference = self._compare()
            self.is_clustered |= difference > CLUSTERED
            self.n_compared += 1
            self.interval = max(self.interval // 2, SHORTEST) if difference > 1 else min(2 * self.interval, LONGEST)
            self.interval = LONGEST if self.n_compared >= MANY else self.interval
            self.due = self.n_steps + self.interval

    def _chain(self) -> tuple[list[Tensor], Tensor, Tensor]:
        """Return the states of all layers, the weights, and F of the chains of all processes."""
        *states, _, weights, free_energies = (gathered(x) if self._is_split else x for x in self.step.carry)
        return states, weights.double(), free_energies

    @property
    def _is_split(self) -> bool:
        return self.step.objective.is_split

    def _classes(self, x: Tensor) -> Tensor:  # (K,)
        """Return the class of each state of the visible layer, which is that with the nearest mean."""
        return torch.cdist(x.flatten(1), self.means).argmin(1)

    def _follow(self) -> None:
        """Update the weights after a change of the machine's parameters."""
        states, weights, before = self._chain()
        fields = {index: self.machine.field_on(index, states) for index in range(1, len(states), 2)}
        gain = (before - summed_over_odd_layers(self.machine, states, fields)).double()
        if not bool(torch.isfinite(gain).all()):  # the step was undone
            return
        weights = (weights.log() + gain).softmax(0)
        classes = self._classes(states[0])
        counts = torch.bincount(classes, minlength=self.members.shape[1]).clamp(min=1)
        weights = (self._shares(classes, weights) / counts)[classes]
        if float(1 / weights.square().sum()) < COLLAPSED * len(weights):
            chosen, weights = self._resample(classes, weights)
            states = [x[chosen] for x in states]
        self._put(states, weights)

    def _compare(self) -> float:
        """Compare the chains with annealed ones, and return how much their shares of the classes differ.

        Values above 1 are significant.
        """
        states, weights, _ = self._chain()
        classes, n_chains = self._classes(states[0]), len(weights)
        generator = seeded(self.machine.device, self.seed, "chains", self.n_steps)
        path = path_from(class_base(self.machine, self.rows, members=self.members), self.machine)
        drawn, log_weights = path.draw(n_chains, generator), torch.zeros_like(weights)
        for before, after in pairwise(torch.linspace(0, 1, N_TEMPERATURES + 1).tolist()):
            drawn, gain = path.step(drawn, before, after, generator)
            log_weights += gain
        of_drawn, drawn_classes = log_weights.softmax(0), self._classes(drawn[0])
        effective, of_chains = (float(1 / w.square().sum()) for w in (of_drawn, weights))
        shares = self._shares(classes, weights), self._shares(drawn_classes, of_drawn)
        difference = _difference(*shares, of_chains, effective)
        self.n_valid += effective >= FEWEST * n_chains
        if effective < FEWEST * n_chains or self.n_valid < USUAL * (self.n_compared + 1):
            if self.is_clustered:  # the annealed chains are far from equilibrium, and the weights unconfirmed
                self._put(states, torch.full_like(weights, 1 / n_chains))
                self.is_clustered = False
            return 0.0
        if effective > ENOUGH * n_chains or difference > 1:
            chosen, weights = self._resample(drawn_classes, of_drawn)
            self._put(path.all_layers(tuple(x[chosen] for x in drawn), generator), weights)
        return difference

    def _shares(self, classes: Tensor, weights: Tensor) -> Tensor:  # (K,) each -> (C,)
        """Return the total weight of each class."""
        return weights.new_zeros(self.members.shape[1]).index_add_(0, classes, weights)

    def _resample(self, classes: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:  # (K,) each, both ways
        """Choose chains with replacement, with more chains in improbable classes, and return their weights."""
        chances = weights
        if self.is_clustered:
            shares = self._shares(classes, weights)
            even = torch.where(shares > RARE, 1 / shares.clamp(min=RARE), 0.0)[classes] * weights
            chances = (1 - EVEN) * weights + EVEN * even / even.sum()
        points = (torch.arange(len(weights), device=weights.device) + 0.5) / len(weights)
        chosen = torch.searchsorted(chances.cumsum(0), points).clamp(max=len(weights) - 1)
        ratios = (weights / chances)[chosen]
        return chosen, ratios / ratios.sum()

    def _put(self, states: list[Tensor], weights: Tensor) -> None:
        """Copy states and weights into the chains of this process, in place, because captured steps use them."""
        part = self.step.world.part(len(weights)) if self._is_split else slice(None)
        for x, new in zip(self.step.carry, states, strict=False):
            x.copy_(new[part])
        self.step.carry[-2].copy_(weights[part])


def _difference(first: Tensor, second: Tensor, n_first: float, n_second: float) -> float:
    """Return how much the shares of classes in two samples differ, relative to the limit of significance.

    The limits apply to the squared difference of a single class, and to the χ² statistic of all classes.
    """
    pooled = (n_first * first + n_second * second) / (n_first + n_second)
    seen = pooled > 0
    terms = (first - second).square()[seen] / pooled[seen] / (1 / n_first + 1 / n_second)
    degrees = max(1, len(terms) - 1)
    largest = float((terms / (1 - pooled[seen]).clamp(min=1 / n_first)).max())
    return max(float(terms.sum()) / (degrees + ALL * math.sqrt(2 * degrees)), largest / SINGLE**2)
