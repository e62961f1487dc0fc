"""Units whose prior is multiplied by any function of their state: a likelihood that is no tilt."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import final

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.special import gauss_legendre, wide
from tapmachine.units.base import Units
from tapmachine.units.conditioned import Conditioned, row_count

PANELS, PANEL_NODES = 8, 16  # of an interval
CHUNK = 2**22  # values at nodes held at a time


@final
class Reweighted(Conditioned):
    """Units with a prior P(x)·L(y|x), which is not normalised: summed over a set of states, or integrated.

    An interval is integrated by 8 panels of 16 Gauss–Legendre nodes: it resolves a likelihood wider than about a
    hundredth of the interval.

    Args:
        base: units with a set of numbers for states, or on a bounded support.
        log_likelihood: ln L, a function of y and x that broadcasts.
        y: observations, (K, n); NaN where there is none, and L = 1.
    """

    y: Tensor

    def __init__(self, base: Units, log_likelihood: Callable[[Tensor, Tensor], Tensor], y: Tensor) -> None:
        super().__init__(base)
        if base.n_states() is None and not base.is_bounded():
            raise ValueError(
                f"{type(base).__name__}: a likelihood that is no tilt needs units on a bounded support or with a set "
                "of states"
            )
        self.log_likelihood = log_likelihood
        self.register_buffer("y", self._evidence(y, "y", (base.n,)), persistent=False)
        _ = self.n_rows

    @property
    def n_rows(self) -> int | None:
        return row_count(self.base, (self.y, 1))

    def rows(self, index: Tensor) -> Units:
        y = self.y[index] if self.y.dim() > 1 else self.y
        return Reweighted(self.base.rows(index), self.log_likelihood, y)

    def hold(self, x: Tensor) -> Tensor:
        return self.base.hold(x)

    def n_states(self) -> list[int] | None:
        return self.base.n_states()

    def decode(self, digits: Tensor) -> Tensor:
        return self.base.decode(digits)

    def log_prior(self, x: Tensor, validate: bool = True) -> Tensor:
        x = self.check_states(x, validate)
        return self.base.log_prior(x, validate=False) + self._likelihood(self.y, x).to(self.dtype)

    def _likelihood(self, y: Tensor, x: Tensor) -> Tensor:  # float64
        """ln L(y|x); 0 where nothing was observed."""
        seen = ~torch.isnan(y)
        value = self.log_likelihood(wide(torch.where(seen, y, 0.0)), wide(x))
        if not isinstance(value, Tensor):
            raise ValueError(f"the log-likelihood returned a {type(value).__name__}; it must return a tensor")
        return torch.where(seen, wide(value), 0.0)

    def _nodes(self) -> tuple[Tensor, Tensor]:  # (Q, n) each, float64
        """States, or nodes of the interval and values with a probability of their own; and ln of prior times width."""
        counts = self.base.n_states()
        if counts is not None:
            digits = torch.arange(max(counts), device=self.device).unsqueeze(-1).expand(-1, self.n)
            states = self.base.decode(digits)
            return wide(states), wide(self.base.log_prior(states, validate=False))
        lower, upper = (wide(bound).expand(self.n) for bound in self.base.bounds())
        t, w = _panels(self.device)
        nodes = lower + (upper - lower) * t.unsqueeze(-1)
        log_mass = wide(self.base.log_prior(nodes.to(self.dtype), validate=False))
        log_mass = log_mass + w.log().unsqueeze(-1) + (upper - lower).log()
        atoms = self.base.atoms()
        if atoms is None:
            return nodes, log_mass
        own = atoms.unsqueeze(-1).expand(-1, self.n)
        at_atoms = wide(self.base.log_prior(own, validate=False))
        return torch.cat((nodes, wide(own))), torch.cat((log_mass, at_atoms))

    def _log_masses(self, tilt: Tilt) -> Iterator[tuple[Tensor, Tensor]]:
        """ln of the tilted masses at the nodes, (rows, n, Q), for some rows at a time; and the nodes, (n, Q)."""
        field, precision = (z.reshape(-1, self.n) for z in self.unpack(tilt))
        y = self.y.expand(len(field), self.n)
        x, log_mass = (z.T for z in self._nodes())
        for rows in torch.arange(len(field), device=field.device).split(max(1, CHUNK // x.numel())):
            exponent = wide(field[rows]).unsqueeze(-1) * x - wide(precision[rows]).unsqueeze(-1) * (0.5 * x**2)
            yield log_mass + exponent + self._likelihood(y[rows].unsqueeze(-1), x), x

    def log_partition(self, tilt: Tilt) -> Tensor:
        shape = self.unpack(tilt)[0].shape
        return torch.cat([masses.logsumexp(-1) for masses, _ in self._log_masses(tilt)]).view(shape).to(self.dtype)

    def moments(self, tilt: Tilt) -> Moments:
        shape = self.unpack(tilt)[0].shape
        means, variances = [], []
        for masses, x in self._log_masses(tilt):
            share = masses.softmax(-1)
            mean = (share * x).sum(-1, keepdim=True)
            means.append(mean.squeeze(-1))
            variances.append((share * (x - mean) ** 2).sum(-1))
        return Moments(*(torch.cat(z).view(shape).to(self.dtype) for z in (means, variances)))

    def sample(self, tilt: Tilt, generator: torch.Generator | None = None) -> Tensor:
        """Draws of a state; on an interval, of a node."""
        shape = self.unpack(tilt)[0].shape
        draws = []
        for masses, x in self._log_masses(tilt):
            arrival = torch.empty_like(masses).exponential_(generator=generator)
            choice = (masses - arrival.log()).argmax(-1, keepdim=True)
            draws.append(x.expand_as(masses).gather(-1, choice).squeeze(-1))
        return torch.cat(draws).view(shape).to(self.dtype)


@lru_cache(maxsize=8)  # kept, since a copy to a GPU cannot be captured
def _panels(device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes and weights on [0, 1]."""
    t, w = gauss_legendre(PANEL_NODES, torch.float64, device)
    starts = torch.arange(PANELS, dtype=torch.float64, device=device).unsqueeze(-1)
    return ((starts + t) / PANELS).flatten(), (w / PANELS).repeat(PANELS)
