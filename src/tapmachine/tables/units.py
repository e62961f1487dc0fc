"""Visible units for data, whose type is taken from the settings or inferred from the values."""

import math
from collections.abc import Callable
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor

from tapmachine.data.rows import Rows, parts
from tapmachine.tables.options import MachineOptions
from tapmachine.units import Units
from tapmachine.units.registry import UNIT_TYPES

UnitMaker = Units | Callable[[int], Units]  # units, or a function that creates n units

MOST_STATES = 30  # integers up to this limit may be categories
UNEQUAL = 100  # ratio of the largest column range to the median above which a warning is issued
LARGEST_BYTE = 255  # integers up to this limit may be intensities
NEAR_END = 0.02  # a column fills an interval if it comes within this fraction of the interval's length of both ends
MOST_COLUMNS = 0.9  # the columns share an interval if more than this fraction of the columns fill the interval
SCALED_COLUMNS = 0.5  # columns were scaled one by one if this fraction of them contains exact zeros and ones
MANY_ZEROS = 0.05  # exact zeros are a separate state if they make up more than this fraction of the values


def make_visible(options: MachineOptions, *data: Rows) -> tuple[Units, str]:
    """Create visible units for data. Returns the units and an explanation of their type."""
    n, values = data[0].shape[1], _look_at(*data)
    low, high = options.interval or _interval(values)
    if options.visible != "auto":
        word, reason = options.visible, ", as specified"
    else:
        word, reason = _pick(values, (low, high), options.interval is not None)
        reason = f": {reason}"
    unit_type = UNIT_TYPES[word]
    lower, upper = (torch.tensor(bound, dtype=getattr(torch, options.dtype)) for bound in (low, high))
    if unit_type.contains_zero:
        lower, upper = lower.clamp(max=0), upper.clamp(min=0)
    units = unit_type.make(n, max(2, int(values.highest) + 1) if unit_type.states else 0, (lower, upper))
    has_one_scale = not units.support.is_countable and word != "gaussian"
    return units, word + reason + (_hint_of_scales(values) if has_one_scale else "")


def given_units(maker: UnitMaker, n: int) -> tuple[Units, str]:
    """Return visible units passed by the user, and their description."""
    units = deepcopy(maker) if isinstance(maker, Units) else maker(n)
    if not isinstance(units, Units):
        raise ValueError(f"visible returned a {type(units).__name__}; expected units, a unit type, or its name")
    if units.n != n:
        raise ValueError(f"visible has {units.n} units, but the data have {n} columns; expected one unit per column")
    return units, f"{type(units).__name__}, as specified"


class _Values(NamedTuple):
    """Properties of the data from which the visible unit type is inferred."""

    lowest: float
    highest: float
    zeros: float  # fraction of exact zeros among the values of non-constant columns
    are_bits: bool
    are_spins: bool
    are_whole: bool
    ends: Tensor  # smallest and largest value of each column, (2, n)

    @property
    def ranges(self) -> Tensor:
        """Range of each column."""
        return self.ends[1] - self.ends[0]


def _look_at(*data: Rows) -> _Values:
    lowest, highest, count = math.inf, -math.inf, 0
    zeros = torch.zeros(data[0].shape[1])  # of each column
    are_bits = are_spins = are_whole = True
    ends = torch.tensor([[math.inf], [-math.inf]]).expand(2, data[0].shape[1])  # of each column
    for _, part in (part for x in data for part in parts(x)):
        ends = torch.stack((ends[0].minimum(part.amin(0).cpu()), ends[1].maximum(part.amax(0).cpu())))
        lowest, highest = min(lowest, float(part.min())), max(highest, float(part.max()))
        is_zero = part == 0
        zeros, count = zeros + is_zero.sum(0).cpu(), count + len(part)
        are_bits = are_bits and bool((is_zero | (part == 1)).all())
        are_spins = are_spins and bool((part.abs() == 1).all())
        are_whole = are_whole and bool((part == part.round()).all())
    varies = ends[1] > ends[0]
    share = float(zeros[varies].mean() / count) if bool(varies.any()) else float(zeros.mean() / count)
    return _Values(lowest, highest, share, are_bits, are_spins, are_whole, ends)


def _hint_of_scales(values: _Values) -> str:
    """Return a hint if columns have very different ranges, because all columns share an interval and a scale."""
    ranges = values.ranges[values.ranges > 0]
    if len(ranges) < 2 or float(ranges.max()) <= UNEQUAL * float(ranges.median()):
        return ""
    low, high = float(ranges.min()), float(ranges.max())
    return f"; columns have ranges from {low:.3g} to {high:.3g}: scale them to the same range, such as [0, 1]"


def _hint_of_categories(values: _Values) -> str:
    """Return a hint if the values are small non-negative integers, which may be categories."""
    is_likely = values.are_whole and values.lowest >= 0 and values.highest <= MOST_STATES
    return " (if the values are category codes, set visible to categorical)" if is_likely else ""


def _pick(values: _Values, interval: tuple[float, float], has_interval: bool) -> tuple[str, str]:
    """Return the name of the unit type and the reason for it. If an interval is given, the type is real-valued."""
    low, high = interval
    if not has_interval and values.are_bits:
        return "binary", "all values are 0 or 1"
    if not has_interval and values.are_spins:
        return "spin", "all values are -1 or 1"
    between = f"values lie between {low:g} and {high:g}"
    if values.zeros > MANY_ZEROS and low <= 0 <= high:
        return "gauss-bernoulli", f"{between}, and {values.zeros:.0%} are exactly 0{_hint_of_categories(values)}"
    if has_interval or _share_an_interval(values, interval):
        return "truncated-gaussian", f"{between}{_hint_of_categories(values)}"
    return "gaussian", f"real-valued columns with different ranges{_hint_of_categories(values)}"


def _share_an_interval(values: _Values, interval: tuple[float, float]) -> bool:
    """Return whether the columns share an interval, as pixels do, unlike columns that were scaled one by one."""
    low, high = interval
    lowest, highest = values.ends[:, values.ranges > 0]
    if not len(lowest):
        return True
    if interval == (0.0, 1.0):
        return min(float((lowest == low).double().mean()), float((highest == high).double().mean())) < SCALED_COLUMNS
    if values.are_whole and low >= 0 and high <= LARGEST_BYTE:
        return True
    if len(lowest) == 1:
        return False
    near = NEAR_END * (high - low)
    fill = (lowest <= low + near) & (highest >= high - near)
    return max(float(share.double().mean()) for share in (fill, lowest == low, highest == high)) > MOST_COLUMNS


def _interval(values: _Values) -> tuple[float, float]:
    """Return the interval [0, 1] if the values fill it, and otherwise the range of the values."""
    low, high = values.lowest, values.highest
    if low >= 0 and 0.5 < high <= 1:
        return 0.0, 1.0
    if low == high:  # an interval needs a positive width, also for constant data
        width = 0.5 * abs(low) or 1.0
        return low - width, high + width
    return low, high
