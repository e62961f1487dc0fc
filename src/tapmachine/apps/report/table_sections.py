"""Sections of the report page on tables: columns, associations, classes and hidden units."""

from collections.abc import Sequence

import numpy as np

from tapmachine.apps.report.columns import Array, ColumnSummary
from tapmachine.apps.report.explanations import explain
from tapmachine.apps.report.figures import Figure
from tapmachine.apps.report.quality import UnusualCell
from tapmachine.apps.report.sections import grid
from tapmachine.apps.report.table_results import TableResults
from tapmachine.data.errors import plural
from tapmachine.display.charts import bars, histogram, matrix, scatter
from tapmachine.display.figures import COLORS, svg
from tapmachine.display.html import escape, number, readable, table, unfold

MANY_BINARY = 12  # number of binary columns above which they share one figure
MOST_CLASSES = 8  # maximum number of classes shown
LONG_TABLE = 15  # number of rows above which a table is collapsed


def columns(results: TableResults) -> str:
    """Return the distributions and statistics of all columns."""
    n_columns, n_shown = len(results.columns), len(results.summaries)
    method = "independent samples" if results.independent else "annealed samples"
    missing = " No values are missing."
    if results.n_incomplete:
        missing = f" {results.n_incomplete} of {results.n_rows} rows have missing values."
    which = f" Of {n_columns} columns, the {n_shown} with the largest differences are shown."
    key = (
        f'<p class="legend"><i style="background:{COLORS[0]}"></i>data <i style="background:{COLORS[1]}"></i>samples '
        f'<span class="small">({method})</span></p>'
    )
    together = len(results.binary_fractions) > MANY_BINARY
    drawn = [_column(summary).html() for summary in results.summaries if not (together and _is_binary(summary))]
    pictures = f'{key}<div class="small-pictures">{"".join(drawn)}</div>' if drawn else ""
    return (
        f"<h2>Columns</h2><p>Distribution of each column in the data and in samples.{missing}"
        f"{which if n_shown < n_columns else ''}</p>{_binary(results, method) if together else ''}{pictures}"
        f"{explain('difference')}"
    )


def _is_binary(summary: ColumnSummary) -> bool:
    return summary.column.kind == "binary"


def _column(summary: ColumnSummary) -> Figure:
    """Draw the distribution of a column in data and samples."""
    name, series = summary.column.name, dict(zip(("data", "samples"), summary.fractions, strict=True))
    label, categories = f"distribution of {name} in data and samples", summary.column.categories
    if summary.column.is_number:
        drawn = svg(label, histogram, series, summary.edges, name, size=(280, 120))
    else:
        drawn = svg(label, bars, categories, series, name, size=(280, 30 + 24 * len(categories)))
    words = [f"difference {summary.difference:.2f}", *([f"{summary.missing:.1%} missing"] if summary.missing else [])]
    return Figure(drawn, ", ".join(words), f"column_{name}")


def _binary(results: TableResults, method: str) -> str:
    """Draw, in one figure, the fractions of all binary columns in data and samples."""
    labels, n = ("fraction in the data", "fraction in samples"), len(results.binary_fractions)
    drawn = svg("fractions of binary columns", scatter, results.binary_fractions, *labels, diagonal=True)
    caption = f"Fraction of the second value in data and samples ({method}), one dot for each of {n} binary columns."
    return Figure(drawn, caption, "binary_columns").html()


def imputation(results: TableResults) -> str:
    """Return a table with the errors of hidden cells that were filled in, and the coverage of intervals."""
    found = results.imputation
    if not found:
        return ""
    where = "held-out rows" if results.is_held_out else (
        "training rows, which is optimistic; hold rows out with --validation for an unbiased test"
    )  # fmt: skip
    heads = ("column", "hidden cells", "error", "error of the column average", "within 90% intervals")
    rows = []
    for own in found:
        errors = [readable(z) if own.is_number else f"{z:.0%} wrong" for z in (own.error, own.baseline)]
        rows.append((own.column, own.n_hidden, *errors, f"{own.coverage:.0%}" if own.is_number else "–"))
    numbers = [own for own in found if own.is_number]
    covered = sum(own.coverage * own.n_hidden for own in numbers) / max(1, sum(own.n_hidden for own in numbers))
    coverage = f" Of the hidden numbers, {covered:.0%} lie within their 90% intervals." if numbers else ""
    inside = f'<div class="wide">{table(heads, rows)}</div>'
    inside = inside if len(rows) <= LONG_TABLE else unfold(f"Table of {len(rows)} columns", inside, "words")
    return (
        f"<h2>Imputation</h2><p>A fifth of the cells were hidden and filled in again, in {where}.{coverage}</p>"
        f"{inside}{explain('imputation error')}"
    )


def unusual(results: TableResults) -> str:
    """Return the rows and the cells with the highest surprise."""
    if results.unusual is None:
        return ""
    cells = [
        (
            f"row {cell.row}",
            cell.column.name,
            _value(cell, cell.value),
            _value(cell, cell.expected),
            f"{cell.nats:.1f}",
        )
        for cell in results.unusual.cells
    ]
    rows = [
        (f"row {row}", f"{nats:.1f}", "; ".join(f"{cell.column.name} {_value(cell, cell.value)}" for cell in own))
        for row, nats, own in results.unusual.rows
    ]
    heads = ("", "column", "value", "expected", "surprise (nats)")
    return (
        "<h2>Unusual cells and rows</h2><p>Cells that are least consistent with the rest of their row, and rows with "
        "the lowest probability. The first row has the number 0.</p>"
        f'<div class="wide">{table(heads, cells, "words")}</div><h3>Rows</h3>'
        f'<div class="wide">{table(("", "surprise (nats)", "most surprising cells"), rows, "words")}</div>'
        f"{explain('surprise')}"
    )


def _value(cell: UnusualCell, value: float) -> str:
    return readable(value) if cell.column.is_number else cell.column.categories[int(value)]


def associations(results: TableResults) -> str:
    """Return the associations between pairs of columns in data and samples."""
    if len(results.paired) < 2:
        return ""
    data, samples = results.associations
    worst = np.unravel_index(np.nan_to_num(abs(samples - data)).argmax(), data.shape)
    first, second = (escape(results.paired[index]) for index in worst)
    shown = [
        _matrix(values, results.paired, results.paired, f"{name.capitalize()}, in percent.", name)
        for name, values in (("data", data), ("samples", samples))
    ]
    selected = "" if len(results.paired) == len(results.columns) else f" of {len(results.paired)} columns"
    return (
        f"<h2>Associations</h2><p>Pairwise associations{selected} in the data and in samples. The largest difference "
        f"is that of {first} and {second}: {number(float(data[worst]), 2)} in the data and "
        f"{number(float(samples[worst]), 2)} in samples.</p>{grid(shown)}{explain('association')}"
    )


def responses(results: TableResults) -> str:
    """Return the classes of the table, or the associations between hidden units and columns."""
    if results.classes:
        return _classes(results)
    heading = "<h2>Hidden units and columns</h2>"
    if not results.units:
        return (
            f"{heading}<p>No hidden unit depends on the columns. The machine models the table by the distributions of "
            "the columns and their correlations alone.</p>"
        )
    caption = "Association of the columns with the mean of each hidden unit given a row, in percent."
    figure = _matrix(results.responses, results.units, results.paired, caption, "responses").html()
    return f"{heading}{figure}{explain('association')}"


def _classes(results: TableResults) -> str:
    """Return a table of the typical values of each class, with one row per column of the data."""
    shown = results.classes[:MOST_CLASSES]
    heads = "".join(
        f'<th scope="col">class {index}<br>{own.probability:.0%} of rows</th>' for index, own in enumerate(shown, 1)
    )
    rows = ""
    for place, column in enumerate(results.columns):
        cells = "".join(
            f'<td style="background:{_shade(own.deviations[place], column.kind)}">{escape(own.values[place])}</td>'
            for own in shown
        )
        rows += f'<tr><th scope="row">{escape(column.name)}</th>{cells}</tr>'
    body = f'<table class="classes"><thead><tr><th></th>{heads}</tr></thead><tbody>{rows}</tbody></table>'
    n_rest = len(results.classes) - len(shown)
    rest = f" {n_rest} smaller {plural(n_rest, 'class')} not shown." if n_rest else ""
    return (
        "<h2>Classes</h2><p>Typical values of each class: means of numbers and most probable categories. Red values "
        "are above the average of all rows, and blue values below. The darker a gray cell, the more the categories of "
        f'the class differ from those of all rows.{rest}</p><div class="wide">{body}</div>{explain("classes")}'
    )


def _matrix(values: Array, rows: Sequence[str], columns: Sequence[str], caption: str, name: str) -> Figure:
    """Draw a matrix of associations with cells of a fixed size, or smaller ones if there are many."""
    cell = min(26.0, max(9.0, 364 / max(values.shape)))
    size = (150 + cell * len(columns), 110 + cell * len(rows))
    return Figure(svg(f"associations: {name}", matrix, values, rows, columns, size=size), caption, name)


def _shade(deviation: float, kind: str) -> str:
    hue = "128,128,128" if kind == "categorical" else "192,57,43" if deviation > 0 else "46,111,183"
    return f"rgba({hue},{min(0.6, 0.3 * abs(deviation)):.2f})"
