"""Visible units that suit data, chosen by their values."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from tapmachine.settings import Settings
from tapmachine.training.data import Rows, parts
from tapmachine.units import Binary, Categorical, Gaussian, Spin, TruncatedGaussBernoulli, TruncatedGaussian, Units

MOST_STATES = 30  # whole numbers up to this may be categories
MANY_ZEROS = 0.05  # share of values that are exactly 0, beyond which they are taken for a state of their own


def make_visible(settings: Settings, *data: Rows) -> tuple[Units, str]:
    """Visible units for data, and a word on them."""
    n, values = data[0].shape[1], _look_at(*data)
    low, high = settings.interval or _interval(values)
    lower, upper = (torch.tensor(bound, dtype=getattr(torch, settings.dtype)) for bound in (low, high))
    zero = torch.zeros_like(lower)
    makers: dict[str, Callable[[], Units]] = {
        "binary": lambda: Binary(n),
        "spin": lambda: Spin(n),
        "gaussian": lambda: Gaussian(n),
        "truncated-gaussian": lambda: TruncatedGaussian(n, lower, upper),
        "gauss-bernoulli": lambda: TruncatedGaussBernoulli(n, torch.minimum(lower, zero), torch.maximum(upper, zero)),
        "categorical": lambda: Categorical(n, max(2, int(values.highest) + 1)),
    }
    if settings.visible != "auto":
        return makers[settings.visible](), f"{settings.visible}, as asked for"
    name, why = _pick(values, (low, high), settings.interval is not None)
    return makers[name](), f"{name}: {why}"


class _Values(NamedTuple):
    """What all values together say about the units that suit them."""

    lowest: float
    highest: float
    zeros: float  # share of them
    are_bits: bool
    are_spins: bool
    are_whole: bool


def _look_at(*data: Rows) -> _Values:
    lowest, highest, zeros, count = math.inf, -math.inf, 0, 0
    are_bits = are_spins = are_whole = True
    for _, part in (part for x in data for part in parts(x)):
        lowest, highest = min(lowest, float(part.min())), max(highest, float(part.max()))
        is_zero = part == 0
        zeros, count = zeros + int(is_zero.sum()), count + part.numel()
        are_bits = are_bits and bool((is_zero | (part == 1)).all())
        are_spins = are_spins and bool((part.abs() == 1).all())
        are_whole = are_whole and bool((part == part.round()).all())
    return _Values(lowest, highest, zeros / count, are_bits, are_spins, are_whole)


def _hint_of_categories(values: _Values) -> str:
    """Small whole numbers may be names of states."""
    is_likely = values.are_whole and values.lowest >= 0 and values.highest <= MOST_STATES
    return " (if they are the numbers of categories, ask for categorical units)" if is_likely else ""


def _pick(values: _Values, interval: tuple[float, float], given: bool) -> tuple[str, str]:
    """The type of units that suits data, and why; none with two states, if an interval of real values was given."""
    low, high = interval
    if not given and values.are_bits:
        return "binary", "all values are 0 or 1"
    if not given and values.are_spins:
        return "spin", "all values are -1 or 1"
    between = f"values lie between {low:g} and {high:g}"
    if values.zeros > MANY_ZEROS and low <= 0 <= high:
        return "gauss-bernoulli", f"{between}, and {values.zeros:.0%} are exactly 0{_hint_of_categories(values)}"
    return "truncated-gaussian", f"{between}{_hint_of_categories(values)}"


def _interval(values: _Values) -> tuple[float, float]:
    """That the values lie in: [0, 1], if they fill it; else from the smallest to the largest."""
    low, high = values.lowest, values.highest
    if low >= 0 and 0.5 < high <= 1:
        return 0.0, 1.0
    if low == high:  # all the same: an interval must have a width
        width = 0.5 * abs(low) or 1.0
        return low - width, high + width
    return low, high
