"""Pieces of HTML."""

import html
from collections.abc import Iterable, Sequence

STYLE = (
    "font:13px/1.45 system-ui,sans-serif;border:1px solid rgba(128,128,128,.35);border-radius:6px;"
    "padding:.6em .9em;display:inline-block;max-width:100%;overflow-x:auto"
)


def escape(value: object) -> str:
    """Escape text for HTML."""
    return html.escape(str(value))


def number(value: object, digits: int = 3) -> str:
    """A number as text, a dash for NaN and None."""
    if value is None or (isinstance(value, float) and value != value):
        return "–"
    return f"{value:.{digits}f}".replace("-", "−") if isinstance(value, float) else escape(value)


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], name: str = "numbers", digits: int = 3) -> str:
    """A table with text in the first column and numbers in the others."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{number(cell, digits)}</td>" for cell in rest)}</tr>'
        for first, *rest in rows
    )
    return f'<table class="{name}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def pairs(rows: Iterable[tuple[str, object]]) -> str:
    """A table of names and values."""
    return "<table>" + "".join(f"<tr><th>{escape(n)}</th><td>{escape(v)}</td></tr>" for n, v in rows) + "</table>"


def items(sentences: Iterable[str], name: str = "") -> str:
    """A list of sentences; an empty string if there are none."""
    inside = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    kind = f' class="{name}"' if name else ""
    return f"<ul{kind}>{inside}</ul>" if inside else ""


def unfold(summary: str, inside: str, name: str = "", is_open: bool = False) -> str:
    """Collapsible HTML below a line of text."""
    kind = f' class="{name}"' if name else ""
    return f"<details{kind}{' open' if is_open else ''}><summary>{escape(summary)}</summary>{inside}</details>"


def card(title: str, *parts: str) -> str:
    """Notebook representation of an object: a title and HTML in a frame."""
    return f'<div style="{STYLE}"><strong>{escape(title)}</strong>{"".join(parts)}</div>'
