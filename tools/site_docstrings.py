"""Docstrings for the documentation site: Google's "Example:" becomes "Examples:", which is shown as code."""

import griffe


class Examples(griffe.Extension):
    """Renames the section of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Called for every object that is documented."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
