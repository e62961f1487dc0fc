"""Visible units that suit data, chosen by their values."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.settings import Settings
from tapmachine.training.data import Rows, parts
from tapmachine.units import Binary, Categorical, Gaussian, Spin, TruncatedGaussBernoulli, TruncatedGaussian, Units

MOST_STATES = 30  # whole numbers up to this may be categories
UNEQUAL = 100  # times the median of the columns' ranges, beyond which the largest drowns others
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
        units, why = makers[settings.visible](), f"{settings.visible}, as asked for"
    else:
        name, reason = _pick(values, (low, high), settings.interval is not None)
        units, why = makers[name](), f"{name}: {reason}"
    return units, why if units.n_states() is not None else why + _hint_of_scales(values)


class _Values(NamedTuple):
    """What all values together say about the units that suit them."""

    lowest: float
    highest: float
    zeros: float  # share of them
    are_bits: bool
    are_spins: bool
    are_whole: bool
    ranges: Tensor  # of each column


def _look_at(*data: Rows) -> _Values:
    lowest, highest, zeros, count = math.inf, -math.inf, 0, 0
    are_bits = are_spins = are_whole = True
    ends = torch.tensor([[math.inf], [-math.inf]]).expand(2, data[0].shape[1])  # of each column
    for _, part in (part for x in data for part in parts(x)):
        ends = torch.stack((ends[0].minimum(part.amin(0).cpu()), ends[1].maximum(part.amax(0).cpu())))
        lowest, highest = min(lowest, float(part.min())), max(highest, float(part.max()))
        is_zero = part == 0
        zeros, count = zeros + int(is_zero.sum()), count + part.numel()
        are_bits = are_bits and bool((is_zero | (part == 1)).all())
        are_spins = are_spins and bool((part.abs() == 1).all())
        are_whole = are_whole and bool((part == part.round()).all())
    return _Values(lowest, highest, zeros / count, are_bits, are_spins, are_whole, ends[1] - ends[0])


def _hint_of_scales(values: _Values) -> str:
    """All columns share an interval and a scale."""
    ranges = values.ranges[values.ranges > 0]
    if len(ranges) < 2 or float(ranges.max()) <= UNEQUAL * float(ranges.median()):
        return ""
    low, high = float(ranges.min()), float(ranges.max())
    return f"; columns have ranges from {low:.3g} to {high:.3g}: scale them alike, for example to [0, 1]"


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
