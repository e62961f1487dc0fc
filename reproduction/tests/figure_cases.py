"""What every figure must satisfy at its printed size."""

from matplotlib.text import Text

from reproduction.figure import FONT_SIZE, PAGE, PAGE_HEIGHT

DPI = 200  # of figures saved as PNG


def style_faults(figure):
    """Faults of a figure that was just saved as PNG: small letters, letters outside of it, a size that no page has."""
    width, height = figure.get_size_inches()
    faults = [f"{width}×{height} inches"] if width > PAGE + 1e-6 or height > PAGE_HEIGHT else []
    for text in visible_texts(figure):
        if text.get_fontsize() < FONT_SIZE:
            faults.append(f"{text.get_text()!r} has {text.get_fontsize()} pt")
        box = text.get_window_extent(dpi=DPI)
        if min(box.x0, box.y0) < -2 or box.x1 > width * DPI + 2 or box.y1 > height * DPI + 2:
            faults.append(f"{text.get_text()!r} lies outside: {box}")
    return faults


def visible_texts(figure):
    shown = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    hidden = {t for ax in figure.axes if not ax.axison for axis in (ax.xaxis, ax.yaxis) for t in axis.findobj(Text)}
    for axis in (axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)):
        low, high = sorted(axis.get_view_interval())
        for tick in (*axis.majorTicks, *axis.minorTicks):  # those beyond the axis are not drawn
            if not low <= tick.get_loc() <= high:
                hidden |= {tick.label1, tick.label2}
    return [text for text in shown if text not in hidden]


def titles_above(figure):
    """The labels above the columns of a figure with one grid of images."""
    return figure.axes[0].get_xticklabels()
