"""Sections of the report page on tables: columns, associations, classes and hidden units."""

from collections.abc import Sequence

import torch

from tapmachine.apps.report.columns import Array, ColumnSummary
from tapmachine.apps.report.figures import Figure
from tapmachine.apps.report.sections import explain, grid
from tapmachine.apps.report.table_results import TableFindings
from tapmachine.display.charts import bars, histogram, matrix, scatter
from tapmachine.display.figures import COLORS, svg
from tapmachine.display.html import escape, number, table, unfold

MANY_BINARY = 12  # number of binary columns above which they share one figure
LONG_TABLE = 15  # number of rows above which a table is collapsed


def columns(found: TableFindings) -> str:
    """Return the distributions and statistics of all columns."""
    how = "independent samples" if found.independent else "final states of Gibbs chains"
    gaps = (
        f" {found.n_gappy} of {found.n_rows} rows have missing values." if found.n_gappy else " No values are missing."
    )
    n_shown = len(found.summaries)
    which = f" Of {found.n_columns} columns, the {n_shown} with the largest differences are shown."
    key = (
        f'<p class="legend"><i style="background:{COLORS[0]}"></i>data <i style="background:{COLORS[1]}"></i>samples '
        f'<span class="small">({how})</span></p>'
    )
    together = len(found.binary_shares) > MANY_BINARY
    drawn = [_column(own).html() for own in found.summaries if not (together and own.column.kind == "binary")]
    pictures = f'{key}<div class="small-pictures">{"".join(drawn)}</div>' if drawn else ""
    return (
        f"<h2>Columns</h2><p>Distribution of each column in the data and in samples.{gaps}"
        f"{which if n_shown < found.n_columns else ''}</p>{_binary(found, how) if together else ''}{pictures}"
        f"{_numbers(found.summaries)}{explain('difference')}"
    )


def _column(own: ColumnSummary) -> Figure:
    """Draw the distribution of a column in data and samples."""
    name, series = own.column.name, dict(zip(("data", "samples"), own.shares, strict=True))
    label, categories = f"distribution of {name} in data and samples", own.column.categories
    if own.column.is_number:
        drawn = svg(label, histogram, series, own.edges, name, size=(280, 120))
    else:
        drawn = svg(label, bars, categories, series, name, size=(280, 30 + 24 * len(categories)))
    return Figure(drawn, "" if own.gaps == 0 else f"{own.gaps:.1%} missing", f"column_{name}")


def _binary(found: TableFindings, how: str) -> str:
    """Draw, in one figure, the fractions of all binary columns in data and samples."""
    labels, n = ("fraction in the data", "fraction in samples"), len(found.binary_shares)
    drawn = svg("fractions of binary columns", scatter, found.binary_shares, *labels, diagonal=True)
    caption = f"Fraction of the second value in data and samples ({how}), one dot for each of {n} binary columns."
    return Figure(drawn, caption, "binary_columns").html()


def _numbers(summaries: Sequence[ColumnSummary]) -> str:
    gappy = any(own.gaps > 0 for own in summaries)
    numeric = any(own.column.is_number for own in summaries)
    heads = ["column", "kind", *(["missing"] if gappy else [])]
    heads += [*(["mean", "samples", "standard deviation", "samples"] if numeric else []), "difference"]
    rows = [
        (
            own.column.name, own.column.kind, *([f"{own.gaps:.1%}"] if gappy else []),
            *(map(_short, (*own.mean, *own.deviation)) if numeric else ()), own.difference,
        )
        for own in summaries
    ]  # fmt: skip
    inside = f'<div class="wide">{table(heads, rows, "numbers", 2)}</div>'
    return inside if len(rows) <= LONG_TABLE else unfold(f"Table of {len(rows)} columns", inside, "words")


def _short(value: float) -> str:
    return "–" if value != value else f"{value:.4g}".replace("-", "−")


def associations(found: TableFindings) -> str:
    """Return the associations between pairs of columns in data and samples."""
    if len(found.paired) < 2:
        return ""
    data, samples = found.associations
    gap = abs(samples - data)
    worst = divmod(int(torch.from_numpy(gap).nan_to_num(0.0).argmax()), len(gap))
    first, second = found.paired[worst[0]], found.paired[worst[1]]
    shown = [
        _matrix(values, found.paired, found.paired, f"{name.capitalize()}, in percent.", name)
        for name, values in (("data", data), ("samples", samples))
    ]
    some = "" if len(found.paired) == found.n_columns else f" of {len(found.paired)} columns"
    return (
        f"<h2>Associations</h2><p>Pairwise associations{some} in the data and in samples. The largest difference is "
        f"that of {escape(first)} and {escape(second)}: {number(float(data[worst]), 2)} in the data and "
        f"{number(float(samples[worst]), 2)} in samples.</p>{grid(shown)}{explain('association')}"
    )


def responses(found: TableFindings, names: Sequence[str]) -> str:
    """Return the classes of the table, or the associations between hidden units and columns."""
    if found.classes:
        heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("class", "share", *names))
        rows = ""
        for index, own in enumerate(found.classes, 1):
            cells = "".join(
                f'<td style="background:{_shade(pull)}">{escape(value)}</td>'
                for value, pull in zip(own.values, own.pulls, strict=True)
            )
            rows += f'<tr><th scope="row">{index}</th><td>{own.share:.0%}</td>{cells}</tr>'
        body = f'<table class="classes"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'
        return (
            "<h2>Classes</h2><p>Typical values of each class: means of numbers and most probable categories. "
            "Red cells are above the average of all rows, blue cells below.</p>"
            f'<div class="wide">{body}</div>{explain("class")}'
        )
    heading = "<h2>Hidden units and columns</h2>"
    if not found.units:
        return (
            f"{heading}<p>No hidden unit depends on the columns. The machine models the table by the distributions of "
            "the columns and their correlations alone.</p>"
        )
    caption = "Association of the columns with the mean of each hidden unit given a row, in percent."
    figure = _matrix(found.responses, found.units, found.paired, caption, "responses").html()
    return f"{heading}{figure}{explain('association')}"


def _matrix(values: Array, rows: Sequence[str], columns: Sequence[str], caption: str, name: str) -> Figure:
    """Draw a matrix of associations with cells of a fixed size, or smaller ones if there are many."""
    cell = min(26.0, max(9.0, 364 / max(values.shape)))
    size = (150 + cell * len(columns), 110 + cell * len(rows))
    return Figure(svg(f"associations: {name}", matrix, values, rows, columns, size=size), caption, name)


def _shade(pull: float) -> str:
    hue = "192,57,43" if pull > 0 else "46,111,183"
    return f"rgba({hue},{min(0.6, 0.3 * abs(pull)):.2f})"
