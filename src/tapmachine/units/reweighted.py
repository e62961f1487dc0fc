"""Units whose prior is multiplied by an arbitrary likelihood."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import final

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.units.base import Units
from tapmachine.units.conditioned import Conditioned, row_count
from tapmachine.units.numerics.draws import draw_index
from tapmachine.units.numerics.intervals import gauss_legendre, moments_at_nodes, wide

PANELS, PANEL_NODES = 8, 16  # number of panels over the relevant part of an interval, and number of nodes per panel
DROP = 80.0  # nats below the maximum at which the density is negligible under any tilt
ZOOMS, GRID = 5, 33  # the relevant part is located by repeatedly placing a grid over the remaining part
CHUNK = 2**22  # maximum number of node values in memory


@final
class Reweighted(Conditioned):
    """Units with the unnormalized prior P(x)·L(y|x), where L is an arbitrary likelihood of observations y.

    On an interval, integrals use 8 panels of 16 Gauss–Legendre nodes, which cover the part of the interval where
    P(x)·L(y|x) is not negligible. This part is determined separately for each observation.

    Args:
        base: Units whose states are numeric and either finite in number or bounded.
        log_likelihood: Function that maps two broadcastable tensors y and x to ln L(y|x).
        y: Observations, of shape (K, n). NaN marks a missing observation, for which L = 1.
        window: Start and length of the interval of integration, two tensors of shape (K, n) (default: determined from
            the prior and y).
    """

    y: Tensor
    start: Tensor
    length: Tensor

    def __init__(
        self,
        base: Units,
        log_likelihood: Callable[[Tensor, Tensor], Tensor],
        y: Tensor,
        window: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        super().__init__(base)
        self.counts = base.n_states()  # number of states of each unit; None for an interval
        if self.counts is None and not base.is_bounded():
            raise ValueError(
                f"{type(base).__name__}: this likelihood is not a tilt; expected units with a bounded support or a "
                "finite set of states"
            )
        self.log_likelihood = log_likelihood
        self.register_buffer("y", self._evidence(y, "y", (base.n,)), persistent=False)
        _ = self.n_rows
        start, length = window if window is not None else self._window()
        self.register_buffer("start", start, persistent=False)
        self.register_buffer("length", length, persistent=False)

    @property
    def n_rows(self) -> int | None:
        return row_count(self.base, (self.y, 1))

    def rows(self, index: Tensor) -> Units:
        y, *window = (z[index] if self.y.dim() > 1 else z for z in (self.y, self.start, self.length))
        return Reweighted(self.base.rows(index), self.log_likelihood, y, (window[0], window[1]))

    def log_prior(self, x: Tensor, validate: bool = True) -> Tensor:
        x = self.check_states(x, validate)
        return self.base.log_prior(x, validate=False) + self._likelihood(self.y, x).to(self.dtype)

    def _likelihood(self, y: Tensor, x: Tensor) -> Tensor:  # float64
        """Evaluate ln L(y|x), which is 0 for missing observations."""
        seen = ~torch.isnan(y)
        value = self.log_likelihood(wide(torch.where(seen, y, 0.0)), wide(x))
        shape = torch.broadcast_shapes(y.shape, x.shape)
        if not isinstance(value, Tensor) or value.shape != shape:
            returned = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"the log-likelihood returned {returned}; expected a tensor of shape {tuple(shape)}")
        return torch.where(seen, wide(value), 0.0)

    # ----- location of the mass

    def _log_density(self, y: Tensor, x: Tensor) -> Tensor:  # (Q, K, n) -> (Q, K, n), float64
        """Compute ln[P(x)·L(y|x)] at points inside an interval."""
        return wide(self.base.log_prior(x.to(self.dtype), validate=False)) + self._likelihood(y, x)

    @torch.no_grad()
    def _window(self) -> tuple[Tensor, Tensor]:  # (K, n) each, float64
        """Locate the part of the interval in which the density is not negligible; return its start and length."""
        like = wide(self.y)
        if self.counts is not None:
            return torch.zeros_like(like), torch.zeros_like(like)
        lower, upper = (wide(bound).expand_as(like) for bound in self.base.bounds())
        parts = [
            self._zoomed(*part)
            for part in zip(*(z.reshape(-1, self.n).split(256) for z in (self.y, lower, upper)), strict=True)
        ]
        start, end = (torch.cat(z).view_as(like) for z in zip(*parts, strict=True))
        return start, end - start

    def _zoomed(self, y: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        fraction = torch.linspace(0, 1, GRID, dtype=low.dtype, device=low.device).view(-1, 1, 1)
        margin = 1e-9 * (high - low)  # avoids the edges, where a density may be infinite
        for _ in range(ZOOMS):
            points = (low + (high - low) * fraction).clamp(low + margin, high - margin)
            value = self._log_density(y.unsqueeze(0), points)
            matters = value >= value.amax(0) - DROP
            first = (matters.int().argmax(0) - 1).clamp(min=0)
            last = (GRID - matters.flip(0).int().argmax(0)).clamp(max=GRID - 1)
            low, high = low + (high - low) * first / (GRID - 1), low + (high - low) * last / (GRID - 1)
        return low, high

    def _masses(self, tilt: Tilt) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over chunks of rows; yield nodes and tilted log-masses, each of shape (rows, n, Q)."""
        field, precision = (wide(z.reshape(-1, self.n)) for z in self.unpack(tilt))
        y, start, length = (z.expand(len(field), self.n) for z in (self.y, self.start, self.length))
        counts = self.counts
        n_nodes = PANELS * PANEL_NODES + 1 if counts is None else max(counts)
        for rows in torch.arange(len(field), device=field.device).split(max(1, CHUNK // (n_nodes * self.n))):
            if counts is not None:
                digits = torch.arange(max(counts), device=field.device).unsqueeze(-1).expand(-1, self.n)
                states = self.base.decode(digits)
                x, mass = wide(states).unsqueeze(1), wide(self.base.log_prior(states, validate=False)).unsqueeze(1)
                mass = mass + self._likelihood(y[rows], x)
                x = x.expand_as(mass)
            else:
                x, mass = self._at_nodes(y[rows], start[rows], length[rows])
            value = mass + field[rows] * x - precision[rows] * (0.5 * x**2)
            yield x.movedim(0, -1), value.movedim(0, -1)

    def _at_nodes(self, y: Tensor, start: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:  # (Q, rows, n) each
        t, w = (z.view(-1, 1, 1) for z in _panels(self.device))
        x = start + length * t
        mass = self._log_density(y, x) + w.log() + length.log()
        atoms = self.base.atoms()
        if atoms is None:
            return x, mass
        at_atoms = atoms.view(-1, 1, 1).expand(-1, *y.shape)
        return torch.cat((x, wide(at_atoms))), torch.cat((mass, self._log_density(y, at_atoms)))

    def log_partition(self, tilt: Tilt) -> Tensor:
        shape = self.unpack(tilt)[0].shape
        return torch.cat([masses.logsumexp(-1) for _, masses in self._masses(tilt)]).view(shape).to(self.dtype)

    def moments(self, tilt: Tilt) -> Moments:
        shape = self.unpack(tilt)[0].shape
        return Moments(*(z.to(self.dtype) for z in moments_at_nodes(self._masses(tilt), shape)))

    def sample(self, tilt: Tilt, generator: torch.Generator | None = None) -> Tensor:
        """Draw a state from the tilted prior; on an interval, draw one of the quadrature nodes."""
        shape = self.unpack(tilt)[0].shape
        draws = []
        for x, masses in self._masses(tilt):
            draws.append(x.gather(-1, draw_index(masses, generator).unsqueeze(-1)).squeeze(-1))
        return torch.cat(draws).view(shape).to(self.dtype)


@lru_cache(maxsize=8)  # cached, since a copy to a GPU cannot be captured
def _panels(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the nodes and weights of the Gauss–Legendre panels on [0, 1]."""
    t, w = gauss_legendre(PANEL_NODES, torch.float64, device)
    starts = torch.arange(PANELS, dtype=torch.float64, device=device).unsqueeze(-1)
    return ((starts + t) / PANELS).flatten(), (w / PANELS).repeat(PANELS)
