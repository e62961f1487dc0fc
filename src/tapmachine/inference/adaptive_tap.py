"""Adaptive TAP: units with their own priors on one side, all couplings in a Gaussian on the other [alg:rbmInfada].

Both sides have the same means and variances at a solution. On the one, each unit is its prior under a tilt (B, A). On the
other, it is Gaussian with mean m and variance v before the couplings J act, and C = (diag(1/v) − J)⁻¹ after. Written in
m and v, and in the reaction κ with 1/C_ii = 1/v − ..., nothing diverges where a unit is certain, v = 0:

    v = c/(1 − Ac),  m = (a − Bc)/(1 − Ac);   A = −κ/(1 + vκ),  B = (Ja − κm)/(1 + vκ),  κ = diag(J + JCJ).
"""

from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from tapmachine.beliefs import Moments, Tilt
from tapmachine.inference.mean_field import Scheme
from tapmachine.inference.process import Outcome, Process, State
from tapmachine.machine import BoltzmannMachine
from tapmachine.units import Units

LARGEST = 0.98  # of 1, the eigenvalue at which the Gaussian side would stop being one
POWER_STEPS = 20  # of the power method that estimates it


class Response(NamedTuple):
    """What the Gaussian side makes of m and v: (K, N) each, and a number a particle."""

    field: Tensor  # Ja, with the means a of the coupled Gaussian
    reaction: Tensor  # κ
    log_det: Tensor  # ln det(1 − √v J √v), (K,)


class AdaptiveState(NamedTuple):
    """The tilts and moments of all layers, and which particles failed."""

    tilts: tuple[Tilt, ...]
    moments: tuple[Moments, ...]
    unnormalisable: Tensor


class _Bipartite:
    """Couplings between two groups of units: only a matrix of the size of the smaller one is inverted."""

    def __init__(self, weights: Tensor) -> None:  # (N_first, N_second)
        self.n_first = weights.shape[0]
        self.swapped = weights.shape[0] < weights.shape[1]
        self.weights = weights.T if self.swapped else weights  # (many, few)

    def values_per_particle(self) -> int:
        many, few = self.weights.shape
        return 3 * many * few + 8 * few**2

    def _split(self, z: Tensor) -> tuple[Tensor, Tensor]:
        first, second = z[:, : self.n_first], z[:, self.n_first :]
        return (second, first) if self.swapped else (first, second)

    def _join(self, many: Tensor, few: Tensor) -> Tensor:
        return torch.cat((few, many) if self.swapped else (many, few), 1)

    def _through(self, v_many: Tensor) -> Tensor:  # (K, few, few)
        """WᵀvW: how the few act on each other through the many."""
        return self.weights.T @ (v_many.unsqueeze(-1) * self.weights)

    def safe(self, v: Tensor) -> Tensor:  # (K,)
        """By what v must be multiplied for C to be positive definite, with some room; 1 where it is so already."""
        many, few = self._split(v)
        vector = torch.ones_like(few)
        for _ in range(POWER_STEPS):
            vector = vector / torch.linalg.vector_norm(vector, dim=1, keepdim=True).clamp(min=1e-30)
            moved = few.sqrt() * ((many * ((few.sqrt() * vector) @ self.weights.T)) @ self.weights)
            largest, vector = (moved * vector).sum(1), moved
        return (LARGEST / largest.clamp(min=LARGEST)).sqrt()

    def covariance(self, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of the few, (K, few, few); WᵀvW; and ln det."""
        many, few = self._split(v)
        root, through = few.sqrt(), self._through(many)
        identity = torch.eye(few.shape[1], dtype=v.dtype, device=v.device)
        lower, _ = torch.linalg.cholesky_ex(identity - root.unsqueeze(-1) * through * root.unsqueeze(-2))
        log_det = 2 * lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return root.unsqueeze(-1) * torch.cholesky_inverse(lower) * root.unsqueeze(-2), through, log_det

    def respond(self, v: Tensor, m: Tensor) -> Response:
        (v_many, _), (m_many, m_few) = self._split(v), self._split(m)
        inner, through, log_det = self.covariance(v)
        pull = (m_many + v_many * (m_few @ self.weights.T)) @ self.weights
        a_few = m_few + (inner @ pull.unsqueeze(-1)).squeeze(-1)
        at_many = a_few @ self.weights.T
        at_few = (m_many + v_many * at_many) @ self.weights
        of_many = ((self.weights @ inner) * self.weights).sum(-1)
        of_few = through.diagonal(dim1=-2, dim2=-1) + ((through @ inner) * through).sum(-1)
        return Response(self._join(at_many, at_few), self._join(of_many, of_few), log_det)

    def log_det(self, v: Tensor) -> Tensor:
        """ln det(1 − √v J √v), differentiable in the weights."""
        return self.covariance(v)[2]

    def energy(self, a: Tensor) -> Tensor:  # (K,)
        """½ aJa."""
        many, few = self._split(a)
        return ((many @ self.weights) * few).sum(1)


class _Dense:
    """Couplings among all units, of a pairwise machine."""

    def __init__(self, weights: Tensor) -> None:  # (N, N)
        self.weights = weights

    def values_per_particle(self) -> int:
        return 6 * self.weights.numel()

    def safe(self, v: Tensor) -> Tensor:  # (K,)
        """As for two groups; the eigenvalue is found of the square, whose sign does not matter."""
        root, vector = v.sqrt(), torch.ones_like(v)
        for _ in range(POWER_STEPS):
            vector = vector / torch.linalg.vector_norm(vector, dim=1, keepdim=True).clamp(min=1e-30)
            moved = root * ((root * vector) @ self.weights)
            moved = root * ((root * moved) @ self.weights)
            largest, vector = (moved * vector).sum(1).clamp(min=0).sqrt(), moved
        return LARGEST / largest.clamp(min=LARGEST)

    def covariance(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """C, and ln det."""
        root = v.sqrt()
        identity = torch.eye(v.shape[1], dtype=v.dtype, device=v.device)
        lower, _ = torch.linalg.cholesky_ex(identity - root.unsqueeze(-1) * self.weights * root.unsqueeze(-2))
        log_det = 2 * lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return root.unsqueeze(-1) * torch.cholesky_inverse(lower) * root.unsqueeze(-2), log_det

    def respond(self, v: Tensor, m: Tensor) -> Response:
        inner, log_det = self.covariance(v)
        a = m + (inner @ (m @ self.weights).unsqueeze(-1)).squeeze(-1)
        return Response(a @ self.weights, ((self.weights @ inner) * self.weights).sum(-1), log_det)

    def log_det(self, v: Tensor) -> Tensor:
        return self.covariance(v)[1]

    def energy(self, a: Tensor) -> Tensor:
        return 0.5 * ((a @ self.weights) * a).sum(1)


class _SelfAveraging:
    """One variance for all units of a group, as if W were rotated at random: two products with W a sweep, one SVD before.

    C is the same on all units of a group but for the directions of W, so that only the singular values s enter.
    """

    def __init__(self, weights: Tensor) -> None:  # (N_first, N_second)
        self.weights = weights
        self.sizes = weights.shape
        self.left, self.values, right = torch.linalg.svd(weights, full_matrices=False)
        self.right = right.T

    def values_per_particle(self) -> int:
        return 12 * sum(self.sizes)

    def averaged(self, z: Tensor) -> Tensor:
        """The mean over each group, for all of its units."""
        first, second = z.split(list(self.sizes), 1)
        return torch.cat([part.mean(1, keepdim=True).expand_as(part) for part in (first, second)], 1)

    def _rest(self, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The variances of both groups, (K, 1) each, and 1 − v v' s²."""
        first, second = v[:, :1], v[:, -1:]
        return first, second, 1 - first * second * self.values**2

    def safe(self, v: Tensor) -> Tensor:
        first, second = v[:, 0], v[:, -1]
        return (LARGEST / (first * second * self.values[0] ** 2).clamp(min=LARGEST)).sqrt()

    def respond(self, v: Tensor, m: Tensor) -> Response:
        v_first, v_second, rest = self._rest(v)
        m_first, m_second = m.split(list(self.sizes), 1)
        pull = (m_first + v_first * (m_second @ self.weights.T)) @ self.weights
        seen = pull @ self.right
        a_second = m_second + v_second * (pull + (seen / rest - seen) @ self.right.T)
        at_first = a_second @ self.weights.T
        at_second = (m_first + v_first * at_first) @ self.weights
        power = (self.values**2 / rest).sum(1, keepdim=True)  # tr of JCJ over v, in either group
        of_first = (v_second * power / self.sizes[0]).expand(-1, self.sizes[0])
        of_second = (v_first * power / self.sizes[1]).expand(-1, self.sizes[1])
        return Response(torch.cat((at_first, at_second), 1), torch.cat((of_first, of_second), 1), rest.log().sum(1))

    def log_det(self, v: Tensor) -> Tensor:
        first, second, _ = self._rest(v)
        return (1 - first * second * torch.linalg.svdvals(self.weights) ** 2).log().sum(1)

    def energy(self, a: Tensor) -> Tensor:
        first, second = a.split(list(self.sizes), 1)
        return ((first @ self.weights) * second).sum(1)


Couplings = _Bipartite | _Dense | _SelfAveraging


class AdaptiveProcess(Process):
    """The iteration: moments of the priors, then of the Gaussian, then new tilts, damped."""

    def __init__(self, machine: BoltzmannMachine, damping: float, self_averaging: bool) -> None:
        self.damping = damping
        self.layout = _Layout(machine)
        self.couplings = _couplings(machine, self.layout, self_averaging)

    def values_per_particle(self) -> int:
        return 16 * sum(self.layout.sizes) + self.couplings.values_per_particle()

    def begin(self, layers: list[Units], moments: list[Moments | None]) -> State:
        started: list[Moments] = []
        for number, own in enumerate(moments):
            if own is None:  # from the means of the layer below alone
                field = self.layout.upwards(number, started[-1].mean)
                own = layers[number].moments(Tilt(field, 0.0))
            started.append(own)
        a, c = (self.layout.joined([getattr(own, name) for own in started]) for name in ("mean", "variance"))
        none = torch.zeros_like(a)
        return self._next(layers, none, none, a, c, 0.0, torch.zeros_like(a[:, 0], dtype=torch.bool))[0]

    def step(self, layers: list[Units], state: AdaptiveState) -> tuple[State, Tensor]:
        field, precision, a, c = self._joined(state)
        return self._next(layers, field, precision, a, c, self.damping, state.unnormalisable)

    def moments(self, state: AdaptiveState) -> list[Moments]:
        return list(state.moments)

    def beliefs(self, layers: list[Units], state: AdaptiveState) -> tuple[list[Moments], list[Tilt]]:
        return list(state.moments), list(state.tilts)

    def unnormalisable(self, state: AdaptiveState) -> Tensor:
        return state.unnormalisable

    def outcome(self, layers: list[Units], state: AdaptiveState) -> Outcome:
        field, precision, a, c = self._joined(state)
        v, m = self._uncoupled(field, precision, a, c)
        found = self.couplings.respond(v, m)
        return Outcome(
            list(state.tilts),
            self._mismatch(a, c, v, m, found),
            _free_energy(layers, self.layout, self.couplings, state.moments, state.tilts),
        )

    def _joined(self, state: AdaptiveState) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        fields, precisions = ([torch.as_tensor(getattr(t, name)) for t in state.tilts] for name in Tilt._fields)
        means, variances = ([getattr(own, name) for own in state.moments] for name in Moments._fields)
        field, precision, a, c = (self.layout.joined(z) for z in (fields, precisions, means, variances))
        return field, precision, a, c

    def _uncoupled(self, field: Tensor, precision: Tensor, a: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """v and m."""
        if isinstance(self.couplings, _SelfAveraging):
            c = self.couplings.averaged(c)
        rest = 1 - precision * c
        return c / rest, (a - field * c) / rest

    def _mismatch(self, a: Tensor, c: Tensor, v: Tensor, m: Tensor, found: Response) -> Tensor:  # (K,)
        """The mean squared difference of the moments of both sides."""
        if isinstance(self.couplings, _SelfAveraging):
            c = self.couplings.averaged(c)
        mean, variance = m + v * found.field, v * (1 + v * found.reaction)
        return ((mean - a).square() + (variance - c).square()).mean(1)

    def _next(
        self,
        layers: list[Units],
        field: Tensor,
        precision: Tensor,
        a: Tensor,
        c: Tensor,
        damping: float,
        failed: Tensor,
    ) -> tuple[AdaptiveState, Tensor]:
        v, m = self._uncoupled(field, precision, a, c)
        scale = self.couplings.safe(v).unsqueeze(1)
        v, rescaled = v * scale, scale.squeeze(1) < 1
        found = self.couplings.respond(v, m)
        change = self._mismatch(a, c, v, m, found)
        share = 1 + v * found.reaction
        new_field = damping * field + (1 - damping) * (found.field - found.reaction * m) / share
        new_precision = damping * precision - (1 - damping) * found.reaction / share
        tilts = [
            Tilt(*pair) for pair in zip(self.layout.split(new_field), self.layout.split(new_precision), strict=True)
        ]
        for layer, tilt in zip(layers, tilts, strict=True):
            failed = failed | ~layer.normalisable(tilt).all(1)
        moments = [layer.moments(tilt) for layer, tilt in zip(layers, tilts, strict=True)]
        state = AdaptiveState(tuple(tilts), tuple(moments), failed)
        return state, torch.where(rescaled, torch.inf, change)


class _Layout:
    """Layers with even numbers first, then those with odd ones, all units side by side."""

    def __init__(self, machine: BoltzmannMachine) -> None:
        layers = machine.units()
        self.order = [*range(0, len(layers), 2), *range(1, len(layers), 2)]
        self.shapes = [layer.state_shape for layer in layers]
        self.sizes = [machine.sizes[number] for number in self.order]
        self.n_even = sum(machine.sizes[0::2])
        self.weights = [weights.detach() for weights in machine.weights]

    def joined(self, parts: Sequence[Tensor]) -> Tensor:  # (K, N)
        """Numbers of all layers, side by side."""
        return torch.cat([parts[number].flatten(1) for number in self.order], 1)

    def split(self, z: Tensor) -> list[Tensor]:
        """The reverse."""
        parts: list[Tensor | None] = [None] * len(self.order)
        for number, part in zip(self.order, z.split(self.sizes, 1), strict=True):
            parts[number] = part.reshape(len(z), *self.shapes[number])
        return [part for part in parts if part is not None]

    def upwards(self, layer: int, mean: Tensor) -> Tensor:
        """The field on a layer from the one below."""
        return (mean.flatten(1) @ self.weights[layer - 1]).unflatten(-1, self.shapes[layer])

    def between(self, machine: BoltzmannMachine) -> Tensor:  # (N_even, N_odd), differentiable
        """All couplings of a machine with layers."""
        even, odd = ([n for n in self.order if n % 2 == parity] for parity in (0, 1))
        rows = []
        for below in even:
            blocks = []
            for above in odd:
                if above == below + 1:
                    blocks.append(machine.coupling(below))
                elif above == below - 1:
                    blocks.append(machine.coupling(above).T)
                else:
                    like = machine.weights[0]
                    blocks.append(like.new_zeros(machine.sizes[below], machine.sizes[above]))
            rows.append(torch.cat(blocks, 1))
        return torch.cat(rows)


def _couplings(
    machine: BoltzmannMachine, layout: _Layout, self_averaging: bool, differentiable: bool = False
) -> Couplings:
    weights = machine.coupling(0) if machine.is_pairwise else layout.between(machine)
    weights = weights if differentiable else weights.detach()
    if machine.is_pairwise:
        if self_averaging:
            raise ValueError("AdaptiveTAP: self_averaging needs layers; it is not for a pairwise machine")
        return _Dense(weights)
    return _SelfAveraging(weights) if self_averaging else _Bipartite(weights)


def _free_energy(
    layers: Sequence[Units],
    layout: _Layout,
    couplings: Couplings,
    moments: Sequence[Moments],
    tilts: Sequence[Tilt],
) -> Tensor:  # (K,), float64
    """F = Σ KL(tilted prior ‖ prior) − ½aJa + ½ΣAc + ½ ln det(1 − √v J √v) + ½Σ ln(c/v).

    It is stationary in moments and tilts at a solution, so that its gradient in J is −½(aaᵀ + C).
    """
    total = torch.zeros(len(moments[0].mean), dtype=torch.float64, device=moments[0].mean.device)
    for layer, tilt, own in zip(layers, tilts, moments, strict=True):
        total = total + layer.divergence(tilt, own).sum(-1, dtype=torch.float64)
    a, c = (layout.joined([getattr(own, name) for own in moments]) for name in Moments._fields)
    precision = layout.joined([torch.as_tensor(tilt.precision).expand_as(tilt.field) for tilt in tilts])
    spread = couplings.averaged(c) if isinstance(couplings, _SelfAveraging) else c
    rest = 1 - precision * spread
    terms = 0.5 * (precision * spread + rest.log()).sum(1, dtype=torch.float64)
    return total + terms - couplings.energy(a).double() + 0.5 * couplings.log_det(spread / rest).double()


@final
class AdaptiveTAP(Scheme):
    """Adaptive TAP: the reaction of the couplings on each unit adapts to the couplings as they are, correlated or not.

    TAP takes couplings for independent; on machines with correlated ones, such as trained ones, this is closer, at the
    price of a matrix inverse a particle and sweep: of the size of the smaller half of a layered machine. For all unit
    types; the states of categorical units are taken for units of their own.

    Args:
        damping: how much of the last tilts is kept, from 0 to less than 1.
        self_averaging: one variance for all units of even layers and one for all of odd ones: no inverse, but a singular
            value decomposition before. Right only for couplings without structure; on trained machines TAP is better.

    Example:
        >>> import torch
        >>> from tapmachine import TAP, AdaptiveTAP, Spin, exact_log_partition, pairwise, solve
        >>> magnet = pairwise(Spin(8).double(), weights=0.1 * (torch.ones(8, 8) - torch.eye(8)).double())
        >>> [round(float(-solve(magnet, scheme=s).free_energy - exact_log_partition(magnet)), 4)
        ...  for s in (TAP(), AdaptiveTAP())]
        [-0.0502, -0.0008]
    """

    def __init__(self, damping: float = 0.5, self_averaging: bool = False) -> None:
        if not 0 <= damping < 1:
            raise ValueError(f"damping is {damping!r}; it must be at least 0 and less than 1")
        self.damping, self.self_averaging = damping, self_averaging

    def __repr__(self) -> str:
        return f"AdaptiveTAP(damping={self.damping}{', self_averaging=True' if self.self_averaging else ''})"

    def bind(self, machine: BoltzmannMachine) -> Process:
        return AdaptiveProcess(machine, self.damping, self.self_averaging)

    def free_energy(self, machine: BoltzmannMachine, moments: Sequence[Moments], tilts: Sequence[Tilt]) -> Tensor:
        layout = _Layout(machine)
        couplings = _couplings(machine, layout, self.self_averaging, differentiable=True)
        return _free_energy(machine.units(), layout, couplings, moments, tilts)
