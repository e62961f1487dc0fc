"""Write docs/reference.md: every public name with the summary of its docstring, grouped by module.

Run `python tools/reference.py` after changing public names or their docstrings.
"""

import inspect
import textwrap
from pathlib import Path
from types import ModuleType

import tapmachine

FILE = Path(__file__).parents[1] / "docs" / "reference.md"
HEAD = """\
# Reference

This page lists every public name with the summary of its docstring. The reference pages of the documentation site and
`help(name)` have the details. Names in the first section are imported from `tapmachine` itself, all others from the
module in the heading of their section.

```python
from tapmachine import Binary, rbm
from tapmachine.solver import random_start

print(random_start(rbm(Binary(4), Binary(2)), n_particles=3).mean.shape)
```
"""


def summary(thing: object) -> str:
    """First paragraph of a docstring as a single line."""
    return (inspect.getdoc(thing) or "").partition("\n\n")[0].replace("\n", " ")


def modules() -> dict[str, ModuleType]:
    """Public modules by name."""
    values = {name: getattr(tapmachine, name) for name in tapmachine.__all__}
    return {name: value for name, value in values.items() if isinstance(value, ModuleType)}


def wrapped(text: str, indent: str = "  ") -> str:
    """Text wrapped to lines of at most 118 characters."""
    return textwrap.fill(text, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def section(title: str, module: ModuleType, names: list[str]) -> str:
    """Markdown of a section."""
    lines = [wrapped(f"- `{name}`: {summary(getattr(module, name))}") for name in names]
    return "\n".join([f"## {title}", "", *lines, ""])


def text() -> str:
    """Content of docs/reference.md."""
    spaces = modules()
    parts = [HEAD, section("tapmachine", tapmachine, [name for name in tapmachine.__all__ if name not in spaces])]
    for name, module in spaces.items():
        rest = [own for own in module.__all__ if own not in tapmachine.__all__]
        also = [f"`{own}`" for own in module.__all__ if own in tapmachine.__all__]
        part = section(f"tapmachine.{name}", module, rest)
        head = summary(module) + (f" Also available in this module: {', '.join(also)}." if also else "")
        parts.append(part.replace("\n\n", f"\n\n{wrapped(head, '')}\n\n", 1))
    return "\n".join(parts)


if __name__ == "__main__":
    FILE.write_text(text())
