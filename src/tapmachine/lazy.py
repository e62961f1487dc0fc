"""Public names of packages, which are imported on first access, so that the command line starts quickly."""

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package.

    The public names of the package, and the modules that define them, are stated once, by the import statements below
    `if TYPE_CHECKING:` in its `__init__.py`.

    Args:
        package: Name of the package, `__name__`.
        file: Path of its `__init__.py`, `__file__`.
    """
    blocks = [node for node in ast.parse(Path(file).read_text(encoding="utf-8")).body if isinstance(node, ast.If)]
    homes = {
        alias.name: str(statement.module)
        for block in blocks
        for statement in ast.walk(block)
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        is_module = homes[name] == package
        value = import_module(f"{package}.{name}") if is_module else getattr(import_module(homes[name]), name)
        vars(import_module(package))[name] = value
        return value

    def names() -> list[str]:
        return sorted({*vars(import_module(package)), *homes})

    return get, names, [*homes]
