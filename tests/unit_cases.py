"""Every unit type, with points that stress it and an independent oracle. A new unit type is one line in CASES."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from mpmath import mp, mpf
from oracles import DIGITS, Answer, truncated_gaussian_integral

from tapmachine import (
    Binary,
    Categorical,
    Custom,
    Gaussian,
    Mixed,
    Poisson,
    SpikeSlab,
    Spin,
    TruncatedGaussBernoulli,
    TruncatedGaussian,
)
from tapmachine.units import Units

INF = float("inf")


class Case(NamedTuple):
    name: str
    stressed: Callable[[np.random.Generator, int, torch.dtype], tuple[Units, torch.Tensor, torch.Tensor]]
    oracle: Callable[[dict, float, float], Answer]  # parameters by their names in the unit, B, A
    support: tuple[float, float]
    # A constrained parameter is stored as another one: its name, and the public one it stands for.
    stored: Mapping[str, str] = MappingProxyType({})

    def simple(self, n: int = 5, dtype: torch.dtype = torch.float64) -> Units:
        """n units with ordinary parameters."""
        return self.stressed(np.random.default_rng(7), n, dtype, 1.0)[0]


def signed(rng, size, low, high):
    """Numbers of either sign, log-uniform in size."""
    return np.exp(rng.uniform(np.log(low), np.log(high), size)) * rng.choice([-1.0, 1.0], size)


def tensor(values, dtype):
    return torch.as_tensor(np.asarray(values), dtype=dtype)


def fields(rng, n, reach):
    """U and B up to `reach` in size; in a fifth of the cases they nearly cancel, in a few there is no tilt."""
    U, B = signed(rng, n, 1e-6 * reach, reach), signed(rng, n, 1e-6 * reach, reach)
    cancel = rng.random(n) < 0.2
    B = np.where(cancel, -U + signed(rng, n, 1e-4, 10.0), B)
    return U, np.where(rng.random(n) < 0.02, 0.0, B)


def precisions(rng, n, reach):
    """A of either sign."""
    return np.where(rng.random(n) < 0.05, 0.0, signed(rng, n, 1e-6 * reach, reach))


# ----- two states, q states


def stressed_two_states(kind):
    def build(rng, n, dtype, reach=1e4):
        U, B = fields(rng, n, reach)
        A = precisions(rng, n, reach)
        balance = rng.random(n) < 0.2  # all three large, their sum small
        A = np.where(balance, 2 * (U + B) + signed(rng, n, 1e-3, 10.0), A)
        return kind(n, field=tensor(U, dtype)), tensor(B, dtype), tensor(A, dtype)

    return build


def finite_set_answer(values, log_priors, B, A) -> Answer:
    """ln Z, mean and variance by summing over a finite set with unnormalized log-priors."""
    with mp.workdps(DIGITS):
        prior = mp.log(mp.fsum(mp.exp(p) for p in log_priors))
        logs = [p - prior + mpf(B) * x - mpf(A) * mpf(x) ** 2 / 2 for x, p in zip(values, log_priors, strict=True)]
        peak = max(logs)
        weights = [mp.exp(z - peak) for z in logs]
        total = mp.fsum(weights)
        mean = mp.fsum(w * x for w, x in zip(weights, values, strict=True)) / total
        variance = mp.fsum(w * (x - mean) ** 2 for w, x in zip(weights, values, strict=True)) / total
        return Answer(peak + mp.log(total), mean, variance)


def binary_oracle(p, B, A):
    return finite_set_answer([0, 1], [mpf(0), mpf(p["field"])], B, A)


def spin_oracle(p, B, A):
    return finite_set_answer([-1, 1], [-mpf(p["field"]), mpf(p["field"])], B, A)


def stressed_categorical(rng, n, dtype, reach=1e4):
    q = 4
    U, B, A = (signed(rng, (n, q), 1e-6 * reach, reach) for _ in range(3))
    close = rng.random((n, 1)) < 0.3  # all states of nearly the same weight
    A = np.where(close, 2 * (U + B) + signed(rng, (n, q), 1e-3, 10.0), A)
    return Categorical(n, q, field=tensor(U, dtype)), tensor(B, dtype), tensor(A, dtype)


def categorical_oracle(p, B, A):
    """Moments are lists, one entry a state."""
    with mp.workdps(DIGITS):
        U = [mpf(u) for u in p["field"]]
        weights = [mp.exp(u) for u in U]
        tilted = [w * mp.exp(mpf(b) - mpf(a) / 2) for w, b, a in zip(weights, B, A, strict=True)]
        total = mp.fsum(tilted)
        share = [t / total for t in tilted]
        others = [mp.fsum(share[:i] + share[i + 1 :]) for i in range(len(share))]
        return Answer(mp.log(total / mp.fsum(weights)), share, [s * o for s, o in zip(share, others, strict=True)])


# ----- Gaussian and truncated Gaussian


def total_precisions(rng, n, V, lowest, reach):
    """A such that V + A spans 1e-12 to `reach` in size; V is what the unit really holds."""
    v = signed(rng, n, 1e-12, reach)
    v = np.where(rng.random(n) < 0.02, 0.0, v)
    v = np.abs(v) if lowest >= 0 else v
    return np.where(rng.random(n) < 0.05, 0.0, v - V)


def stressed_gaussian(rng, n, dtype, reach=1e4):
    U, B = fields(rng, n, reach)
    units = Gaussian(
        n,
        field=tensor(U, dtype),
        precision=tensor(np.abs(signed(rng, n, 1e-4 if reach > 1 else 0.3, max(reach, 3.0))), dtype),
    )
    V = units.precision.detach().double().numpy()
    return units, tensor(B, dtype), tensor(total_precisions(rng, n, V, 0, reach), dtype)


def gaussian_oracle(p, B, A):
    with mp.workdps(DIGITS):
        U, V, B, A = (mpf(z) for z in (p["field"], p["precision"], B, A))
        u, v = U + B, V + A
        return Answer(u**2 / (2 * v) - U**2 / (2 * V) - mp.log(v / V) / 2, u / v, 1 / v)


def truncated_parameters(rng, n, dtype, lower, upper, reach):
    """U, V, and a function of the unit that gives B and A: the mass in the bulk, at an edge, or at both."""
    U, B = fields(rng, n, reach)
    bounded = np.isfinite(lower) and np.isfinite(upper)
    V = signed(rng, n, 1e-4 if reach > 1 else 0.3, max(reach, 3.0))
    if not bounded or (reach <= 1 and upper > 10):
        V = np.abs(V)

    def tilt(units):
        V = units.precision.detach().double().numpy()
        A = total_precisions(rng, n, V, -reach if bounded else 0, reach)
        v = V + A
        inside = rng.random(n) < 0.2  # mode, or valley, in the interval
        span = (lower, upper) if bounded else (lower, lower + 3) if np.isfinite(lower) else (upper - 3, upper)
        target = np.where(inside, v * rng.uniform(*span, n) - U, B)
        if bounded:  # both edges of nearly the same weight
            both = rng.random(n) < 0.15
            target = np.where(both, v * (lower + upper) / 2 + signed(rng, n, 1e-3, 10.0) / (upper - lower) - U, target)
        return tensor(np.clip(target, -reach, reach), dtype), tensor(A, dtype)

    return tensor(U, dtype), tensor(V, dtype), tilt


def stressed_truncated_gaussian(lower, upper):
    def build(rng, n, dtype, reach=1e4):
        U, V, tilt = truncated_parameters(rng, n, dtype, lower, upper, reach)
        units = TruncatedGaussian(n, tensor(lower, dtype), tensor(upper, dtype), field=U, precision=V)
        return units, *tilt(units)

    return build


def truncated_gaussian_oracle(p, B, A):
    with mp.workdps(DIGITS):
        U, V, B, A = (mpf(z) for z in (p["field"], p["precision"], B, A))
        prior = truncated_gaussian_integral(U, V, p["lower"], p["upper"])
        tilted = truncated_gaussian_integral(U + B, V + A, p["lower"], p["upper"])
        return Answer(tilted.log - prior.log, tilted.mean, tilted.variance)


def stressed_gauss_bernoulli(lower, upper):
    def build(rng, n, dtype, reach=1e4):
        U, V, tilt = truncated_parameters(rng, n, dtype, lower, upper, reach)
        bounds = tensor(lower, dtype), tensor(upper, dtype)
        share = rng.uniform(0.01, 0.99, n)
        units = TruncatedGaussBernoulli(n, *bounds, field=U, precision=V, active_probability=tensor(share, dtype))
        return units, *tilt(units)

    return build


def gauss_bernoulli_oracle(p, B, A):
    with mp.workdps(DIGITS):
        U, V, B, A, r = (mpf(z) for z in (p["field"], p["precision"], B, A, p["active_logit"]))
        prior = truncated_gaussian_integral(U, V, p["lower"], p["upper"])
        tilted = truncated_gaussian_integral(U + B, V + A, p["lower"], p["upper"])
        slab = mp.exp(r + tilted.log)
        active = slab / (1 + slab)
        mean = active * tilted.mean
        variance = active * (tilted.variance + tilted.mean**2) - mean**2
        return Answer(mp.log1p(slab) - mp.log1p(mp.exp(r + prior.log)), mean, variance)


def stressed_spike_slab(rng, n, dtype, reach=1e4):
    slab, B, A = stressed_gaussian(rng, n, dtype, reach)
    units = SpikeSlab(n, slab.field.detach(), slab.precision.detach())
    with torch.no_grad():
        units.log_odds.copy_(tensor(signed(rng, n, 1e-3, 5.0), dtype))
    return units, B, A


def spike_slab_oracle(p, B, A):
    with mp.workdps(DIGITS):
        U, V, B, A, r = (mpf(z) for z in (p["field"], p["precision"], B, A, p["log_odds"]))
        u, v = U + B, V + A
        prior, slab = (mp.exp(r + f**2 / (2 * w)) * mp.sqrt(2 * mp.pi / w) for f, w in ((U, V), (u, v)))
        active, inactive = slab / (1 + slab), 1 / (1 + slab)
        mean = active * u / v
        return Answer(mp.log1p(slab) - mp.log1p(prior), mean, active / v + active * inactive * (u / v) ** 2)


# ----- counts


def stressed_poisson(rng, n, dtype, reach=1e4):
    """Rates e^{U+B} up to e^12 without a precision; means up to 10⁴ with one."""
    reach = min(reach, 6.0)
    U, B = (signed(rng, n, 1e-4 * reach, reach) for _ in range(2))
    A = np.where(rng.random(n) < 0.2, 0.0, signed(rng, n, 1e-4, 1e3))
    B = np.where(rng.random(n) < 0.3, B + np.abs(A) * 10.0 ** rng.uniform(0, 3, n), B)  # a mode far from 0
    return Poisson(n, field=tensor(U, dtype)), tensor(B, dtype), tensor(A, dtype)


def poisson_oracle(p, B, A):
    with mp.workdps(DIGITS):
        U, B, A = mpf(p["field"]), mpf(B), mpf(A)
        if A == 0:
            rate = mp.exp(U + B)
            return Answer(rate - mp.exp(U), rate, rate)
        mode = (mp.lambertw(A * mp.exp(U + B)) / A).real  # ln x + Ax = U + B
        deviation = 1 / mp.sqrt(1 / (mode + 1) + A)
        first = max(0, int(mode - 9 * deviation) - 25)
        counts = range(first, int(mode + 9 * deviation) + 26)
        logs = [(U + B) * k - A * k * k / 2 - mp.loggamma(k + 1) for k in counts]
        peak = max(logs)
        weights = [mp.exp(z - peak) for z in logs]
        total = mp.fsum(weights)
        mean = mp.fsum(w * k for w, k in zip(weights, counts, strict=True)) / total
        variance = mp.fsum(w * (k - mean) ** 2 for w, k in zip(weights, counts, strict=True)) / total
        return Answer(peak + mp.log(total) - mp.exp(U), mean, variance)


# ----- blocks of two types


def stressed_mixed(rng, n, dtype, reach=1e4):
    """Gaussian units first, then binary ones."""
    parts = stressed_gaussian(rng, n // 2, dtype, reach), stressed_two_states(Binary)(rng, n - n // 2, dtype, reach)
    (gaussian, B, A), (binary, b, a) = parts
    return Mixed([gaussian, binary]), torch.cat((B, b)), torch.cat((A, a))


def mixed_oracle(p, B, A):
    return gaussian_oracle(p, B, A) if "precision" in p else binary_oracle(p, B, A)


# ----- custom priors


class Quadratic(torch.nn.Module):
    """The exponent of a truncated Gaussian, as a user would write it."""

    def __init__(self, field, precision):
        super().__init__()
        self.field, self.precision = torch.nn.Parameter(field), torch.nn.Parameter(precision)

    def forward(self, x):
        return x * (self.field - 0.5 * self.precision * x)


def stressed_custom_interval(rng, n, dtype, reach=1e4):
    prior = Quadratic(tensor(signed(rng, n, 1e-3, 30.0), dtype), tensor(signed(rng, n, 1e-3, 100.0), dtype))
    B = signed(rng, n, 1e-6 * reach, reach)
    A = precisions(rng, n, reach)
    inside = rng.random(n) < 0.3
    B = np.where(inside, A * rng.uniform(0, 1, n), B)
    return Custom(n, prior, lower=0.0, upper=1.0), tensor(B, dtype), tensor(A, dtype)


def stressed_custom_set(rng, n, dtype, reach=1e4):
    prior = Quadratic(tensor(signed(rng, n, 1e-3, 30.0), dtype), tensor(signed(rng, n, 1e-3, 30.0), dtype))
    B, A = signed(rng, n, 1e-6 * reach, reach), precisions(rng, n, reach)
    return Custom(n, prior, values=[-1.0, 0.0, 0.5, 2.0]), tensor(B, dtype), tensor(A, dtype)


def custom_set_oracle(p, B, A):
    with mp.workdps(DIGITS):
        U, V = mpf(p["prior_function.field"]), mpf(p["prior_function.precision"])
        values = [mpf(-1), mpf(0), mpf("0.5"), mpf(2)]
        return finite_set_answer(values, [U * x - V * x * x / 2 for x in values], B, A)


def custom_interval_oracle(p, B, A):
    names = {"field": "prior_function.field", "precision": "prior_function.precision"}
    return truncated_gaussian_oracle({k: p[v] for k, v in names.items()} | {"lower": 0, "upper": 1}, B, A)


def truncated_case(lower, upper):
    stored = {"free_precision": "precision"}
    name = f"TruncatedGaussian[{lower:g},{upper:g}]"
    return Case(name, stressed_truncated_gaussian(lower, upper), truncated_gaussian_oracle, (lower, upper), stored)


def gauss_bernoulli_case(lower, upper):
    stored = {"slab.field": "field", "slab.free_precision": "precision"}
    name = f"TruncatedGaussBernoulli[{lower:g},{upper:g}]"
    return Case(name, stressed_gauss_bernoulli(lower, upper), gauss_bernoulli_oracle, (lower, upper), stored)


CASES = [
    Case("Binary", stressed_two_states(Binary), binary_oracle, (0, 1)),
    Case("Spin", stressed_two_states(Spin), spin_oracle, (-1, 1)),
    Case("Categorical", stressed_categorical, categorical_oracle, (0, 1)),
    Case("Gaussian", stressed_gaussian, gaussian_oracle, (-INF, INF), {"log_growth": "precision"}),
    Case(
        "SpikeSlab",
        stressed_spike_slab,
        spike_slab_oracle,
        (-INF, INF),
        {"slab.field": "field", "slab.log_growth": "precision"},
    ),
    Case("Poisson", stressed_poisson, poisson_oracle, (0, INF)),
    Case("Mixed", stressed_mixed, mixed_oracle, (-INF, INF), {"log_growth": "precision"}),
    truncated_case(0.0, 1.0),
    truncated_case(-1.0, 2.0),
    truncated_case(1e-3, 1e3),
    truncated_case(0.0, INF),
    truncated_case(-INF, 0.5),
    gauss_bernoulli_case(0.0, 1.0),
    gauss_bernoulli_case(-1.0, 2.0),
    gauss_bernoulli_case(0.0, INF),
    Case("Custom on an interval", stressed_custom_interval, custom_interval_oracle, (0, 1)),
    Case("Custom on a set", stressed_custom_set, custom_set_oracle, (-1, 2)),
]


def parameters_of(units: Units, case: Case, index: int) -> dict[str, float]:
    """The parameters of one unit, by public name, as the exact numbers that the unit computes with."""
    if isinstance(units, Mixed):
        first = units.blocks[0].n
        return parameters_of(units.blocks[index >= first], case, index if index < first else index - first)
    found = {}
    for name, value in units.named_parameters():
        public = case.stored.get(name, name)
        value = value if public == name else getattr(units, public)
        value = value.detach().double()[index]
        found[public] = value.tolist()
    for bound in ("lower", "upper"):
        if hasattr(units, bound) and "Custom" not in case.name:
            found[bound] = float(getattr(units, bound))
    return found
