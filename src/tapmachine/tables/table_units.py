"""Visible units for the columns of a table."""

from collections.abc import Callable

from tapmachine.tables.schema import Block, Schema
from tapmachine.units import Binary, Categorical, Gaussian, Mixed, Poisson, Units


def units_for(schema: Schema) -> Units:
    """Create visible units for the encoded rows of a table, with one block per kind of column.

    Real columns become `Gaussian` units, counts become `Poisson` units, binary columns become `Binary` units, and
    categorical columns become `Categorical` units. Columns of several kinds are combined in a `Mixed` layer.
    Categorical units are always in a `Mixed` layer, whose states have one fewer dimension.

    Example:
        >>> from tapmachine.data.columns import RawColumn
        >>> from tapmachine.tables.schema import Schema
        >>> from tapmachine.tables.table_units import units_for
        >>> units_for(Schema.infer([RawColumn.of("a", [0.5, 2.0]), RawColumn.of("b", ["x", "y"])]))
        Mixed(
          n=2
          (blocks): ModuleList(
            (0): Gaussian(n=1)
            (1): Binary(n=1)
          )
        )
    """
    blocks = [_units_of(block) for block in schema.blocks()]
    return blocks[0] if len(blocks) == 1 and len(blocks[0].state_shape) == 1 else Mixed(blocks)


def _units_of(block: Block) -> Units:
    if block.kind == "categorical":
        return Categorical(block.n, block.q)
    makers: dict[str, Callable[[int], Units]] = {"real": Gaussian, "count": Poisson, "binary": Binary}
    return makers[block.kind](block.n)
