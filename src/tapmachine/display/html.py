"""Helper functions that generate HTML."""

import html
import math
import re
from collections.abc import Iterable, Sequence

STYLE = (
    "font:13px/1.45 system-ui,sans-serif;border:1px solid rgba(128,128,128,.35);border-radius:6px;"
    "padding:.6em .9em;display:inline-block;max-width:100%;overflow-x:auto"
)


def escape(value: object) -> str:
    """Escape special characters for use in HTML."""
    return html.escape(str(value))


def number(value: object, digits: int = 3) -> str:
    """Format a number for HTML. NaN and None are shown as a dash."""
    if value is None or (isinstance(value, float) and value != value):
        return "–"
    return f"{value:.{digits}f}".replace("-", "−") if isinstance(value, float) else escape(value)


def readable(value: float) -> str:
    """Format a number with four significant digits as people write it, without an exponent if possible.

    Example:
        >>> readable(54638.2), readable(3.14159), readable(-0.02), readable(7.0)
        ('54,638', '3.142', '−0.02', '7')
    """
    if value != value or not 1e-5 <= abs(value) < 1e15:
        return "–" if value != value else f"{value:.4g}".replace("-", "−")
    text = f"{value:,.{max(0, 3 - math.floor(math.log10(abs(value))))}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", "−")


def with_minus_signs(text: str) -> str:
    """Replace the hyphens before numbers by minus signs."""
    return re.sub(r"(?<![\w.])-(?=[\d.])", "−", text)


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], name: str = "numbers", digits: int = 3) -> str:
    """Return an HTML table with row headers in the first column and formatted numbers in the others."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{number(cell, digits)}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    return f'<table class="{name}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def pairs(rows: Iterable[tuple[str, object]]) -> str:
    """Return an HTML table with one row per name and value."""
    return "<table>" + "".join(f"<tr><th>{escape(n)}</th><td>{escape(v)}</td></tr>" for n, v in rows) + "</table>"


def items(sentences: Iterable[str], name: str = "") -> str:
    """Return an HTML list of sentences, or an empty string if there are no sentences."""
    inside = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    kind = f' class="{name}"' if name else ""
    return f"<ul{kind}>{inside}</ul>" if inside else ""


def unfold(summary: str, inside: str, name: str = "") -> str:
    """Return a collapsible HTML block with a summary line."""
    kind = f' class="{name}"' if name else ""
    return f"<details{kind}><summary>{escape(summary)}</summary>{inside}</details>"


def card(title: str, *parts: str) -> str:
    """Return a framed block of HTML with a title, used as the notebook representation of an object."""
    return f'<div style="{STYLE}"><strong>{escape(title)}</strong>{"".join(parts)}</div>'
