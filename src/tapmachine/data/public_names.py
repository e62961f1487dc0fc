"""Public names of packages, stated once for readers and type checkers and imported on first access."""

import ast
from pathlib import Path


def homes_of(file: str) -> dict[str, str]:
    """Map the names that a package imports for type checkers, under `if TYPE_CHECKING`, to the modules they come from.

    Args:
        file: `__file__` of the package.
    """
    return {
        alias.name: str(statement.module)
        for statement in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8")))
        if isinstance(statement, ast.ImportFrom) and str(statement.module).startswith("tapmachine")
        for alias in statement.names
        if alias.asname == alias.name
    }
