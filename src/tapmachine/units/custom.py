"""Units with a user-defined prior."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Self, final

import numpy as np
import torch
from torch import Tensor, nn

from tapmachine.beliefs import Moments, Tilt
from tapmachine.units.base import Units
from tapmachine.units.numerics.draws import draw_index
from tapmachine.units.numerics.intervals import gauss_legendre, moments_at_nodes, wide
from tapmachine.units.support import FiniteSet, Interval

PANEL_NODES = 10
EVEN_PANELS = 32  # panels of equal width over the interval, which resolve a precision of 10⁴ per squared length
EDGE_PANELS = 14  # additional panels at each edge, each half as wide as the last, for fields of up to 10⁶ per length
CHUNK = 2**22  # maximum number of node values in memory
INVERSION_STEPS = 7


@final
class Custom(Units):
    """Units with a user-defined prior on a bounded interval or on a finite set of values.

    On a finite set, integrals are sums. On an interval, integrals are computed with 10-point Gauss–Legendre quadrature
    on a fixed mesh of panels that is refined toward the edges. The mesh resolves features of the log-prior that are
    wider than a hundredth of the interval, but not a discontinuity inside a panel.

    Args:
        n: Number of units.
        log_prior: Function that computes ln P(x) of every unit, up to a constant, by elementwise operations on a
            tensor x of shape (..., n). If it is an `nn.Module`, its parameters are trained.
        lower, upper: Finite bounds of the interval.
        values: Distinct numbers that form the finite set; alternative to `lower` and `upper`.

    Example:
        >>> import torch
        >>> from tapmachine import Custom, Tilt
        >>> laplace = Custom(2, lambda x: -3 * x.abs(), lower=-1.0, upper=1.0)
        >>> with torch.no_grad():
        ...     laplace.moments(Tilt(field=torch.tensor([-2.0, 2.0]), precision=0.0)).mean
        tensor([-0.2719,  0.2719])
    """

    values: Tensor
    lower: Tensor
    upper: Tensor

    def __init__(
        self,
        n: int,
        log_prior: Callable[[Tensor], Tensor],
        lower: float | None = None,
        upper: float | None = None,
        *,
        values: Sequence[float] | Tensor | None = None,
    ) -> None:
        super().__init__(n)
        if (values is None) == (lower is None and upper is None):
            raise ValueError("Custom: expected either lower and upper, or values, but not both")
        self.prior_function = log_prior
        parameter = next(log_prior.parameters(), None) if isinstance(log_prior, nn.Module) else None
        dtype = self.common_dtype(parameter, values if isinstance(values, Tensor) else None)
        if values is not None:
            support = self.as_tensor(values, "values").to(dtype).flatten()
            self.reject(~torch.isfinite(support), support, "values", "expected a finite number")
            if len(support) == 0 or len(support.unique()) < len(support):
                raise ValueError(f"Custom: values has {len(support)} elements; expected one or more distinct numbers")
            bounds = [support.amin(), support.amax()]
        else:
            support = torch.empty(0, dtype=dtype)
            bounds = [torch.tensor(float("nan") if b is None else b, dtype=dtype) for b in (lower, upper)]
            for name, bound in zip(("lower", "upper"), bounds, strict=True):
                self.reject(~torch.isfinite(bound), bound, name, "expected a finite number")
            self.reject(bounds[0] >= bounds[1], bounds[0], "lower", f"expected a number less than upper = {upper}")
        self.register_buffer("values", support)
        self.register_buffer("lower", bounds[0].clone())
        self.register_buffer("upper", bounds[1].clone())
        ends = [float(bound) for bound in bounds]
        self._support = FiniteSet(tuple(support.tolist())) if values is not None else Interval(ends[0], ends[1])
        log_weights = self._log_weights()
        self.reject(torch.isnan(log_weights), log_weights, "log_prior(x)", "expected a number or -inf")
        self.reject(log_weights == torch.inf, log_weights, "log_prior(x)", "expected a number less than inf")
        empty = torch.isinf(log_weights).all(0)
        self.reject(empty, log_weights.amax(0), "log_prior(x)", "expected a finite number for at least one x")

    @property
    def support(self) -> FiniteSet | Interval:
        return self._support

    @property
    def discrete(self) -> bool:
        """Whether the support is a finite set."""
        return len(self.values) > 0

    def _nodes(self) -> tuple[Tensor, Tensor]:
        """Quadrature nodes and their log-weights in float64; on a finite set, the values with log-weights 0."""
        if self.discrete:
            return wide(self.values), torch.zeros_like(wide(self.values))
        t, w = _mesh(self.device)
        length = wide(self.upper) - wide(self.lower)
        return wide(self.lower) + length * t, (w * length).log()

    def extra_repr(self) -> str:
        if self.discrete:
            return f"n={self.n}, values={len(self.values)}"
        return f"n={self.n}, lower={self.lower:g}, upper={self.upper:g}"

    def _log_density(self, x: Tensor) -> Tensor:  # (..., n) -> (..., n), float64
        """Evaluate the user-defined log-prior, which is ln P(x) up to a constant."""
        density = self.prior_function(x)
        if not isinstance(density, Tensor) or density.shape not in ((), (self.n,), x.shape):
            returned = tuple(density.shape) if isinstance(density, Tensor) else type(density).__name__
            raise ValueError(
                f"Custom: log_prior returned {returned} for x of shape {tuple(x.shape)}; expected the same shape"
            )
        return wide(density).expand(x.shape)

    def _log_weights(self) -> Tensor:  # (nodes, n), float64
        """Log-prior plus log-weight at each node, up to a constant."""
        nodes, log_widths = self._nodes()
        at_nodes = self._log_density(nodes.to(self.dtype).unsqueeze(-1).expand(-1, self.n))
        return at_nodes + log_widths.unsqueeze(-1)

    def bounds(self) -> tuple[Tensor, Tensor]:
        return self.lower, self.upper

    def decode(self, digits: Tensor) -> Tensor:
        return self.values[digits] if self.discrete else super().decode(digits)

    def log_prior(self, x: Tensor, validate: bool = True) -> Tensor:
        x = self.check_states(x, validate)
        return (self._log_density(x) - self._log_weights().logsumexp(0)).to(self.dtype)

    def _log_masses(self, log_prior: Tensor, field: Tensor, precision: Tensor) -> Tensor:
        """Compute the tilted log-mass at each node, (..., n) -> (..., n, nodes)."""
        x, _ = self._nodes()
        return log_prior + wide(field).unsqueeze(-1) * x - wide(precision).unsqueeze(-1) * (0.5 * x**2)

    def _parts(self, tilt: Tilt) -> tuple[Tensor, list[tuple[Tensor, Tensor]], torch.Size]:
        """Return the normalized log-prior at the nodes, (n, nodes), the tilt in chunks of rows, and its full shape."""
        log_prior = self._log_weights().log_softmax(0).T
        field, precision = self.unpack(tilt)
        rows = max(1, CHUNK // log_prior.numel())
        fields, precisions = (z.reshape(-1, self.n).split(rows) for z in (field, precision))
        return log_prior, list(zip(fields, precisions, strict=True)), field.shape

    def log_partition(self, tilt: Tilt) -> Tensor:
        log_prior, parts, shape = self._parts(tilt)
        logs = [self._log_masses(log_prior, *part).logsumexp(-1) for part in parts]
        return torch.cat(logs).view(shape).to(self.dtype)

    def moments(self, tilt: Tilt) -> Moments:
        log_prior, parts, shape = self._parts(tilt)
        x, _ = self._nodes()
        mean, variance = moments_at_nodes(((x, self._log_masses(log_prior, *part)) for part in parts), shape)
        return Moments(mean.to(self.dtype).clamp(self.lower, self.upper), variance.to(self.dtype))

    @torch.no_grad()
    def sample(self, tilt: Tilt, generator: torch.Generator | None = None) -> Tensor:
        """Draw from the tilted priors; on an interval, draw a panel, then a point by inverting the CDF on the panel."""
        log_prior, parts, shape = self._parts(tilt)
        draws = []
        for field, precision in parts:
            log_masses = self._log_masses(log_prior, field, precision)
            if not self.discrete:
                log_masses = log_masses.unflatten(-1, (-1, PANEL_NODES)).logsumexp(-1)
            choice = draw_index(log_masses, generator)
            draws.append(
                wide(self.values)[choice] if self.discrete else self._invert(field, precision, choice, generator)
            )
        return torch.cat(draws).view(shape).to(self.dtype)

    def _invert(self, field: Tensor, precision: Tensor, panel: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw a point within a panel for every element, by inverting the CDF with a bracketed Newton method."""
        edges = wide(self.lower) + (wide(self.upper) - wide(self.lower)) * _edges(self.device)
        start = edges[panel]
        t, w = gauss_legendre(PANEL_NODES, edges.dtype, edges.device)
        t, w = t.view(-1, 1, 1), w.view(-1, 1, 1)

        def log_density(x: Tensor) -> Tensor:  # (..., rows, n)
            return self._log_density(x.to(self.dtype)) + wide(field) * x - 0.5 * wide(precision) * x**2

        width = edges[panel + 1] - start
        at_nodes = log_density(start + t * width)
        peak = at_nodes.amax(0)
        mass = (w * (at_nodes - peak).exp()).sum(0) * width
        uniform = torch.rand(start.shape, dtype=start.dtype, device=start.device, generator=generator)
        # The initial guess is exact for an exponential density. It is refined by Newton's method inside a bracket.
        growth = (at_nodes[-1] - at_nodes[0]).nan_to_num(nan=0.0).clamp(-700, 700)
        guess = torch.log1p(uniform * torch.expm1(growth)) / growth
        distance = width * torch.where(growth.abs() < 1e-6, uniform, guess)
        low, high = torch.zeros_like(start), width
        for _ in range(INVERSION_STEPS):
            passed = (w * (log_density(start + t * distance) - peak).exp()).sum(0) * distance
            excess = passed - uniform * mass
            low, high = torch.where(excess < 0, distance, low), torch.where(excess < 0, high, distance)
            newton = distance - excess / (log_density(start + distance) - peak).exp()
            distance = torch.where((newton >= low) & (newton <= high), newton, 0.5 * (low + high))
        return start + distance

    def fit_to(self, x: Tensor, weights: Tensor | None = None, smoothing: float = 1.0) -> Self:
        """Validate x; the user-defined prior is left unchanged."""
        self.checked_rows(x, weights, smoothing)
        return self


@lru_cache(maxsize=8)
def _edges(device: torch.device) -> Tensor:
    """Return the edges of the quadrature panels on [0, 1]."""
    even = np.arange(1, EVEN_PANELS) / EVEN_PANELS
    fine = even[0] * 0.5 ** np.arange(1, EDGE_PANELS + 1)
    return torch.from_numpy(np.sort(np.concatenate(([0.0, 1.0], even, fine, 1 - fine)))).to(device)


@lru_cache(maxsize=8)  # cached, since a copy to a GPU cannot be captured
def _mesh(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the nodes and weights of the Gauss–Legendre panels on [0, 1]."""
    edges = _edges(device)
    t, w = gauss_legendre(PANEL_NODES, torch.float64, device)
    width = edges.diff().unsqueeze(-1)
    return (edges[:-1].unsqueeze(-1) + width * t).flatten(), (width * w).flatten()
