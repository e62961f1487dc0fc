"""Griffe extension that renames the section "Example:" of docstrings to "Examples:", which is rendered as code."""

import griffe


class Examples(griffe.Extension):
    """Rename the section "Example:" in every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Process the docstring of one documented object."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
