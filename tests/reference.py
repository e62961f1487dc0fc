"""Writes docs/reference.md: every public name with the summary of its docstring, grouped by namespace.

Run `python tests/reference.py` after a change of public names or of their docstrings.
"""

import inspect
from pathlib import Path
from types import ModuleType

import tapmachine

FILE = Path(__file__).parents[1] / "docs" / "reference.md"
HEAD = """\
# Reference

Every public name with the summary of its docstring; `help(name)` shows the rest. This file is written by
`python tests/reference.py`. The names in the first section are in `tapmachine` itself, the others in a namespace. Where
a heading has a second name, use that one in import statements.

```python
from tapmachine import Binary, rbm
from tapmachine.solver import random_start

print(random_start(rbm(Binary(4), Binary(2)), n_particles=3).mean.shape)
```
"""


def summary(thing: object) -> str:
    """The first paragraph of a docstring, on one line."""
    return (inspect.getdoc(thing) or "").partition("\n\n")[0].replace("\n", " ")


def namespaces() -> dict[str, ModuleType]:
    """The public namespaces by their names."""
    values = {name: getattr(tapmachine, name) for name in tapmachine.__all__}
    return {name: value for name, value in values.items() if isinstance(value, ModuleType)}


def section(title: str, module: ModuleType, names: list[str]) -> str:
    lines = [f"- `{name}`: {summary(getattr(module, name))}" for name in names]
    return "\n".join([f"## {title}", "", *lines, ""])


def text() -> str:
    """The content of docs/reference.md."""
    spaces = namespaces()
    parts = [HEAD, section("tapmachine", tapmachine, [name for name in tapmachine.__all__ if name not in spaces])]
    for name, module in spaces.items():
        title = f"tapmachine.{name}"
        if module.__name__ != title:  # a short name, for attributes; imports need the full one
            title += f" ({module.__name__})"
        rest = [own for own in module.__all__ if own not in tapmachine.__all__]
        also = [f"`{own}`" for own in module.__all__ if own in tapmachine.__all__]
        part = section(title, module, rest)
        head = summary(module) + (f" Also here: {', '.join(also)}." if also else "")
        parts.append(part.replace("\n\n", f"\n\n{head}\n\n", 1))
    return "\n".join(parts)


if __name__ == "__main__":
    FILE.write_text(text())
