"""SVG charts for HTML pages and notebooks. Text has the color of the page's text, so charts also work in dark mode."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tapmachine.display.html import escape

# Readable on white and on black backgrounds, and chosen to be distinguishable by color-blind readers.
COLORS = (
    "#4c82c3", "#e8872b", "#d9534f", "#3fa7a0", "#5aa54b", "#c9a227", "#a773ab", "#ef8aa5", "#9c755f", "#8a8f98",
)  # fmt: skip
OTHERS = "#b4b8bf"
AXIS = "stroke:currentColor;stroke-opacity:.45;fill:none"
TEXT = "fill:currentColor;font:11px system-ui,sans-serif"

Points = Sequence[tuple[float, float]]


def color(index: int) -> str:
    """Return the color of the series or class at an index.

    The first ten colors are fixed. Further hues are spaced by the golden angle around the color wheel.
    """
    return COLORS[index] if index < len(COLORS) else f"hsl({(index * 137.5) % 360:.0f} 50% 52%)"


class Axes(NamedTuple):
    """Plot axes, which convert data coordinates to pixel coordinates."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: float = 460.0
    height: float = 260.0
    left: float = 52.0
    right: float = 12.0
    top: float = 10.0
    bottom: float = 34.0
    log_x: bool = False

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the position of a data point in pixels."""
        low, high = (math.log(1 + z) for z in self.x) if self.log_x else self.x
        share_x = ((math.log(1 + x) if self.log_x else x) - low) / ((high - low) or 1.0)
        share_y = (y - self.y[0]) / ((self.y[1] - self.y[0]) or 1.0)
        inner_x, inner_y = self.width - self.left - self.right, self.height - self.top - self.bottom
        return self.left + inner_x * share_x, self.height - self.bottom - inner_y * share_y

    def path(self, points: Points) -> str:
        """Return the SVG path data of a line through the points."""
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in (self.at(*point) for point in points))

    def frame(self, x_label: str, y_label: str, x_ticks: Sequence[float] | None = None) -> str:
        """Draw the axis lines with ticks and labels."""
        x0, y0 = self.left, self.height - self.bottom
        parts = [f'<path d="M{x0:.1f} {self.top:.1f}V{y0:.1f}H{self.width - self.right:.1f}" style="{AXIS}"/>']
        for value in x_ticks if x_ticks is not None else ticks(*self.x):
            x, _ = self.at(value, self.y[0])
            parts.append(text(x, y0 + 14, short(value), "middle"))
            parts.append(f'<path d="M{x:.1f} {y0:.1f}v3" style="{AXIS}"/>')
        for value in ticks(*self.y, 4):
            _, y = self.at(self.x[0], value)
            parts.append(text(x0 - 6, y + 4, short(value), "end"))
            parts.append(f'<path d="M{x0:.1f} {y:.1f}h-3" style="{AXIS}"/>')
        parts.append(text((x0 + self.width - self.right) / 2, y0 + 29, x_label, "middle"))
        middle = (self.top + y0) / 2
        parts.append(
            f'<text transform="translate(11 {middle:.1f}) rotate(-90)" text-anchor="middle" style="{TEXT}">'
            f"{escape(y_label)}</text>"
        )
        return "".join(parts)


def svg(width: float, height: float, inside: str, label: str) -> str:
    """Wrap SVG content in an `<svg>` element that shrinks to the available width."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="{escape(label)}" style="width:{width:.0f}px;max-width:100%;height:auto">{inside}</svg>'
    )


def text(x: float, y: float, words: object, anchor: str = "start") -> str:
    """Return an SVG text element."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" style="{TEXT}">{escape(words)}</text>'


def short(value: float) -> str:
    """Format a number as a tick label, with up to four significant digits."""
    return f"{value:.4g}".replace("-", "−")


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return evenly spaced round numbers between two values, used as axis ticks."""
    if not (math.isfinite(low) and math.isfinite(high) and high > low):
        return [low] if math.isfinite(low) else []
    rough = 0.7 * (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def limits(values: Sequence[float], margin: float = 0.05) -> tuple[float, float]:
    """Return the range of the finite values, widened by a margin on both sides."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    room = margin * (high - low) or 0.5
    return low - room, high + room


def legend(names: Sequence[str], x: float, y: float, colors: Sequence[str]) -> str:
    """Draw a vertical legend with one colored square per name."""
    return "".join(
        f'<rect x="{x:.1f}" y="{y + 15 * index - 8:.1f}" width="10" height="10" rx="2" fill="{own}"/>'
        + text(x + 15, y + 15 * index + 1, name)
        for index, (name, own) in enumerate(zip(names, colors, strict=True))
    )


def line_chart(series: Mapping[str, Points], x_label: str, y_label: str, height: float = 260.0) -> str:
    """Draw a line chart with one named line per series. Series with fewer than 20 points also have markers."""
    known = {name: [p for p in points if math.isfinite(p[1])] for name, points in series.items()}
    known = {name: points for name, points in known.items() if points}
    every = [point for points in known.values() for point in points]
    room = 16.0 * -(-len(known) // 2) + 6
    axes = Axes(limits([x for x, _ in every], 0.0), limits([y for _, y in every]), height=height + room)
    axes = axes._replace(bottom=axes.bottom + room)
    parts = [axes.frame(x_label, y_label)]
    for index, points in enumerate(known.values()):
        parts.append(
            f'<path d="{axes.path(points)}" style="fill:none;stroke:{color(index)};stroke-width:2;'
            'stroke-linejoin:round"/>'
        )
        if len(points) < 20:
            parts += [dot(*axes.at(*point), 3, color(index)) for point in points]
    base = axes.height - room
    for index, name in enumerate(known):
        parts.append(legend([name], axes.left + 205 * (index % 2), base + 14 + 16 * (index // 2), [color(index)]))
    return svg(axes.width, axes.height + 4, "".join(parts), f"{y_label} over {x_label}: {', '.join(known)}")


def dot(x: float, y: float, radius: float, fill: str, opacity: float = 1.0) -> str:
    """Return a filled SVG circle."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{fill}" fill-opacity="{opacity:.2f}"/>'


def scatter(points: Points, x_label: str, y_label: str, line: Points = (), log_x: bool = False, label: str = "") -> str:
    """Draw a scatter plot, optionally with a line on top of it."""
    every = [*points, *line]
    axes = Axes(limits([x for x, _ in every], 0.02), limits([y for _, y in every]), log_x=log_x)
    if log_x:
        axes = axes._replace(x=(min(x for x, _ in every), max(x for x, _ in every)))
    spots = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]
    x_ticks = [z for z in spots if axes.x[0] <= z <= axes.x[1]] if log_x else None
    size, opacity = (4.0, 0.75) if len(points) < 100 else (2.5, 0.45)
    dots = "".join(dot(*axes.at(*point), size, COLORS[0], opacity) for point in points)
    drawn = f'<path d="{axes.path(line)}" style="fill:none;stroke:{COLORS[1]};stroke-width:2"/>' if line else ""
    return svg(axes.width, axes.height, axes.frame(x_label, y_label, x_ticks) + dots + drawn, label or y_label)


def histogram(
    series: Mapping[str, Sequence[float]], edges: Sequence[float], x_label: str, height: float = 120.0
) -> str:
    """Draw several histograms in one chart, the first as a filled area and the others as outlines."""
    highest = max((value for values in series.values() for value in values), default=1.0) or 1.0
    axes = Axes((edges[0], edges[-1]), (0.0, highest), 300, height, 8, 8, 6, 30)
    parts = [f'<path d="M{axes.left} {height - axes.bottom}H{axes.width - axes.right}" style="{AXIS}"/>']
    for value in ticks(edges[0], edges[-1], 4):
        parts.append(text(axes.at(value, 0)[0], height - 17, short(value), "middle"))
    for index, values in enumerate(series.values()):
        steps = [(edges[0], 0.0)]
        for value, low, high in zip(values, edges[:-1], edges[1:], strict=True):
            steps += [(low, value), (high, value)]
        path = axes.path([*steps, (edges[-1], 0.0)])
        own = color(index)
        style = f"fill:{own};fill-opacity:.45;stroke:none" if index == 0 else f"fill:none;stroke:{own};stroke-width:2"
        parts.append(f'<path d="{path}" style="{style}"/>')
    parts.append(text(axes.width / 2, height - 3, x_label, "middle"))
    return svg(axes.width, height, "".join(parts), f"distribution of {x_label}: {', '.join(series)}")


def bar_chart(names: Sequence[str], series: Mapping[str, Sequence[float]], title: str, width: float = 300.0) -> str:
    """Draw a horizontal bar chart with one bar per name and series, labeled in percent."""
    row, left = 9.0 * len(series) + 7.0, min(150.0, 12.0 + 7.5 * max((len(name) for name in names), default=0))
    highest = max((value for values in series.values() for value in values), default=1.0) or 1.0
    length, parts = (width - left - 62) / highest, [text(left, 12, title)]
    for place, name in enumerate(names):
        top, shares = 20 + row * place, [values[place] for values in series.values()]
        parts.append(text(left - 6, top + row / 2 + 1, _cut(name, 20), "end"))
        for index, share in enumerate(shares):
            parts.append(
                f'<rect x="{left:.1f}" y="{top + 9 * index:.1f}" width="{max(length * share, 0.5):.1f}" height="8" '
                f'rx="1.5" fill="{color(index)}"/>'
            )
        beside = " / ".join(f"{100 * share:.0f}" for share in shares)
        parts.append(text(left + length * max(shares) + 5, top + row / 2 + 1, f"{beside} %"))
    return svg(width, 24 + row * len(names), "".join(parts), f"{title}: shares of {', '.join(names)}")


def matrix(values: Sequence[Sequence[float]], names: Sequence[str], label: str, columns: Sequence[str] = ()) -> str:
    """Draw a matrix of values between −1 and 1 as a heat map with row and column names. NaN cells are left blank."""
    heads = list(columns) or list(names)
    cell = 26.0 if max(len(names), len(heads)) <= 14 else max(9.0, 364.0 / max(len(names), len(heads)))
    is_large = cell >= 20
    left = min(150.0, 10 + 6.5 * max((len(name) for name in names), default=0))
    top = min(110.0, 12 + 4.6 * max((len(name) for name in heads), default=0))
    parts = []
    for place, name in enumerate(heads):
        x = left + cell * (place + 0.5)
        parts.append(
            f'<text transform="translate({x + 3:.1f} {top - 5:.1f}) rotate(-45)" style="{TEXT}">'
            f"{escape(_cut(name, 20))}</text>"
        )
    for row, (name, own) in enumerate(zip(names, values, strict=True)):
        y = top + cell * row
        parts.append(text(left - 6, y + cell / 2 + 4, _cut(name, 22), "end"))
        for column, value in enumerate(own):
            if value != value:
                continue
            x, hue = left + cell * column, "#c0392b" if value > 0 else "#2e6fb7"
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{cell - 1:.1f}" height="{cell - 1:.1f}" fill="{hue}" '
                f'fill-opacity="{min(1.0, abs(value)):.2f}" style="stroke:currentColor;stroke-opacity:.15"/>'
            )
            if is_large:
                parts.append(
                    f'<text x="{x + cell / 2:.1f}" y="{y + cell / 2 + 3:.1f}" text-anchor="middle" '
                    f'style="fill:currentColor;font:9px system-ui,sans-serif">{100 * value:.0f}</text>'
                )
    width, height = left + cell * len(heads) + 60, top + cell * len(names) + 6
    return svg(width, height, "".join(parts), label)


def _cut(name: str, most: int) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
