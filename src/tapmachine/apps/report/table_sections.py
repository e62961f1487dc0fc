"""Sections of the report page on tables: columns, associations, classes and hidden units."""

from collections.abc import Sequence

import numpy as np

from tapmachine.apps.report.columns import Array, ColumnSummary
from tapmachine.apps.report.explanations import explain
from tapmachine.apps.report.figures import Figure
from tapmachine.apps.report.sections import grid
from tapmachine.apps.report.table_results import TableResults
from tapmachine.display.charts import bars, histogram, matrix, scatter
from tapmachine.display.figures import COLORS, svg
from tapmachine.display.html import escape, number, table, unfold

MANY_BINARY = 12  # number of binary columns above which they share one figure
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
        f"{_numbers(results.summaries)}{explain('difference')}"
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
    return Figure(drawn, f"{summary.missing:.1%} missing" if summary.missing else "", f"column_{name}")


def _binary(results: TableResults, method: str) -> str:
    """Draw, in one figure, the fractions of all binary columns in data and samples."""
    labels, n = ("fraction in the data", "fraction in samples"), len(results.binary_fractions)
    drawn = svg("fractions of binary columns", scatter, results.binary_fractions, *labels, diagonal=True)
    caption = f"Fraction of the second value in data and samples ({method}), one dot for each of {n} binary columns."
    return Figure(drawn, caption, "binary_columns").html()


def _numbers(summaries: Sequence[ColumnSummary]) -> str:
    """Return a table with the fraction of missing values, mean and standard deviation of each column."""
    incomplete = any(summary.missing > 0 for summary in summaries)
    numeric = any(summary.column.is_number for summary in summaries)
    heads = ["column", "kind", *(["missing"] if incomplete else [])]
    heads += [*(["mean", "samples", "standard deviation", "samples"] if numeric else []), "difference"]
    rows = []
    for summary in summaries:
        missing = [f"{summary.missing:.1%}"] if incomplete else []
        numbers = map(_short, (*summary.means, *summary.deviations)) if numeric else ()
        rows.append((summary.column.name, summary.column.kind, *missing, *numbers, summary.difference))
    inside = f'<div class="wide">{table(heads, rows, "numbers", 2)}</div>'
    return inside if len(rows) <= LONG_TABLE else unfold(f"Table of {len(rows)} columns", inside, "words")


def _short(value: float) -> str:
    return "–" if value != value else f"{value:.4g}".replace("-", "−")


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
    """Return a table of the typical values of each class."""
    names = ("class", "share", *(column.name for column in results.columns))
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    rows = ""
    for index, summary in enumerate(results.classes, 1):
        cells = "".join(
            f'<td style="background:{_shade(deviation)}">{escape(value)}</td>'
            for value, deviation in zip(summary.values, summary.deviations, strict=True)
        )
        rows += f'<tr><th scope="row">{index}</th><td>{summary.probability:.0%}</td>{cells}</tr>'
    body = f'<table class="classes"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'
    return (
        "<h2>Classes</h2><p>Typical values of each class: means of numbers and most probable categories. "
        "Red cells are above the average of all rows, blue cells below.</p>"
        f'<div class="wide">{body}</div>{explain("class")}'
    )


def _matrix(values: Array, rows: Sequence[str], columns: Sequence[str], caption: str, name: str) -> Figure:
    """Draw a matrix of associations with cells of a fixed size, or smaller ones if there are many."""
    cell = min(26.0, max(9.0, 364 / max(values.shape)))
    size = (150 + cell * len(columns), 110 + cell * len(rows))
    return Figure(svg(f"associations: {name}", matrix, values, rows, columns, size=size), caption, name)


def _shade(deviation: float) -> str:
    hue = "192,57,43" if deviation > 0 else "46,111,183"
    return f"rgba({hue},{min(0.6, 0.3 * abs(deviation)):.2f})"
