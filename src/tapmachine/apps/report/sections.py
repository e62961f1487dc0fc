"""Sections of the report page."""

from collections.abc import Sequence
from typing import Any

from tapmachine.analysis.features import hidden_means
from tapmachine.apps.report import figures
from tapmachine.apps.report.explanations import EXPLANATIONS, explain
from tapmachine.apps.report.figures import Figure
from tapmachine.apps.report.results import SAMPLE_SWEEPS, LandscapeResults, RunResults
from tapmachine.apps.report.scripted import shown_solutions
from tapmachine.apps.report.tree import draw_tree, shown_branches
from tapmachine.apps.report.views import View
from tapmachine.data.errors import plural
from tapmachine.display.html import escape, items, number, pairs, table, unfold, with_minus_signs
from tapmachine.likelihood.compare import comparison_of

N_WITHOUT_SCRIPT = 48  # number of solutions shown if scripts are disabled
N_LISTED = 10  # number of solutions listed with their probabilities
N_TOP_ROWS = 6  # number of data rows shown per hidden unit


def facts(run: RunResults) -> str:
    """Return the main results of a run, each with a collapsible explanation."""
    cards = []
    if run.table is not None:
        n = run.table.n_incomplete
        incomplete = f", {n} with missing values" if n else ""
        cards.append(("rows", f"{run.table.n_rows} rows{incomplete}, {len(run.table.columns)} columns"))
    elif run.likelihoods is not None:
        rows = [
            f"{len(score):,} {'held-out ' * (name == 'held out')}rows" for name, score in run.likelihoods.scores.items()
        ]
        cards.append(("scored rows", ", ".join(rows)))
    is_fitted = bool(run.records) and run.records[-1].get("is_fitted")
    if run.table is not None and run.table.classes:
        n = len(run.table.classes)
        cards.append(("classes", f"{n} {plural(n, 'class')} of rows"))
    if not is_fitted:
        cards.append(("machine", run.machine.summary()))
    if run.records and not is_fitted:
        n_epochs = int(run.records[-1].get("epoch", 0))
        cards.append(("training", f"{n_epochs} {plural(n_epochs, 'epoch')}"))
    if run.likelihoods is not None:
        report, method = run.likelihoods, run.likelihoods.partition.method
        *_, name = report.scores
        names = {"train": "training rows", "held out": "held-out rows"}
        value = number(float(report.scores[name]), 2)
        error = f" ± {report.partition.error:.2g}" if report.partition.error else ""
        text = f"{value}{error} nats ({method}, {names.get(name, name)})"
        if report.independent:
            text += f"; independent units {number(float(report.independent[name]), 2)}"
        cards.append(("log-likelihood", text))
    if run.landscape is not None:
        last = run.landscape.track.snapshots[-1]
        stable = int(last.stable.sum())
        found = f"{last.n_solutions} {plural(last.n_solutions)}, {stable} stable"
        cards.append(("solutions", f"{found}, from {len(last.basin)} {plural(len(last.basin), 'start')}"))
    parts = []
    for name, text in cards:
        head = f'<span class="name">{escape(name)}</span><span class="value">{escape(text)}</span>'
        parts.append(
            f'<details class="fact"><summary>{head}</summary><p>{escape(EXPLANATIONS[name])}</p></details>'
            if name in EXPLANATIONS
            else f'<div class="fact">{head}</div>'
        )
    return f'<div class="facts">{"".join(parts)}</div>'


def likelihoods(run: RunResults) -> str:
    """Return the table of log-likelihoods from all estimators."""
    if run.likelihoods is None:
        return "<p>The log-likelihood is not available.</p>"
    comparison = comparison_of(run.likelihoods)
    has_test = len(run.likelihoods.scores) > 1
    heads = ["estimator", "training data", "±", *(["held-out data", "±"] if has_test else []), "rows", "ln Z", "±"]
    body = [
        (
            r.estimator, r.train, r.train_error, *((r.test, r.test_error) if has_test else ()), r.n_rows,
            r.log_partition, r.log_partition_error,
        )
        for r in comparison.rows
    ]  # fmt: skip
    terms = explain("log-likelihood", "ln Z")
    return f'<div class="wide">{table(heads, body)}</div>{items(map(with_minus_signs, comparison.warnings))}{terms}'


def training(run: RunResults) -> str:
    """Return the training curves, and the number and free energies of solutions by epoch."""
    shown = [figures.training(run.records)]
    if run.landscape is not None and len(run.landscape.track.epochs) > 1:
        shown.append(figures.free_energies_by_epoch(run.landscape.track))
    return grid([figure for figure in shown if figure is not None])


def grid(shown: Sequence[Figure]) -> str:
    """Arrange as many figures side by side as fit on the page."""
    return f'<div class="pictures">{"".join(figure.html() for figure in shown)}</div>' if shown else ""


def legend(landscape: LandscapeResults) -> str:
    """Return the color legend of labels and free energies."""
    labels = landscape.labels
    names = "" if labels is None else "".join(
        f'<li><i style="background:{color}"></i>{escape(name)}</li>'
        for name, color in zip(labels.names, labels.colors, strict=True)
    )  # fmt: skip
    by_label = (
        f'<ul class="legend" data-part="label-legend" aria-label="Colors of labels">{names}</ul>' if names else ""
    )
    hidden = " hidden" if names else ""
    return (
        f'{by_label}<p class="legend" data-part="energy-legend"{hidden}>low F <i class="ramp"></i> high F '
        '<span class="small">(by rank)</span></p>'
    )


def solutions_without_script(run: RunResults) -> str:
    """Return a figure of the solutions with the largest basins at the last epoch, if they are images."""
    assert run.landscape is not None
    last, view = run.landscape.track.snapshots[-1], View(run)
    numbers = shown_solutions(last, N_WITHOUT_SCRIPT)
    if len(numbers) == 0 or view.kind != "image":
        return ""
    images = view.values(last.means[0][numbers])
    caption = f"The {len(numbers)} solutions with the largest basins at epoch {last.epoch}, largest first."
    return figures.images(images, (view.height, view.width), caption, "solutions").html()


def solutions(run: RunResults) -> str:
    """Return a table of the most probable solutions at the last epoch, beside the shares of the starts."""
    assert run.landscape is not None
    last = run.landscape.track.snapshots[-1]
    probabilities, shares = last.probabilities.tolist(), (last.counts / max(1, int(last.counts.sum()))).tolist()
    rows = [
        (f"solution {i}", f"{probabilities[i]:.1%}", f"{shares[i]:.1%}", f, "yes" if stable else "no")
        for i, (f, stable) in enumerate(zip(last.free_energy.tolist(), last.stable.tolist(), strict=True))
    ][:N_LISTED]
    heads = ("", "probability", "share of the starts", "F (nats)", "stable")
    listed = f'<div class="wide">{table(heads, rows, digits=2)}</div>{explain("probability")}' if rows else ""
    of = "" if len(rows) == last.n_solutions else f" (the {len(rows)} most probable of {last.n_solutions})"
    return f"<h3>Probabilities{of}</h3>{listed}" if rows else ""


def tree(run: RunResults) -> str:
    """Return the tree of solutions, or an empty string if only one epoch was analyzed."""
    assert run.landscape is not None
    track = run.landscape.track
    if len(track.epochs) < 2 or len(track.tree.counts) == 0:
        return ""
    positions = {solution: index for index, solution in enumerate(shown_solutions(track.snapshots[-1]).tolist())}
    svg = draw_tree(track.tree, View(run), run.landscape.labels, positions)
    n_leaves = sum(node.leaf >= 0 for node in shown_branches(track.tree))
    of = "" if n_leaves == len(track.tree.counts) else f" (the {n_leaves} with the largest basins)"
    caption = (
        f"Tree of the solutions of the last epoch{of}. Branches split during training, from left to right. Line "
        "widths show the number of starts."
    )
    help_text = (
        '<p class="small scripted" hidden>Click a branch to collapse or expand it, or a leaf to pin its solution.</p>'
    )
    figure = f'<figure class="figure" data-name="tree"><div class="wide">{svg}</div><figcaption>{escape(caption)}'
    return f"<h3>Tree</h3>{figure}</figcaption></figure>{help_text}{explain('tree', 'start', 'basin')}"


def learned(run: RunResults) -> str:
    """Return samples, data and receptive fields, or an empty string for data that are not images."""
    images = run.images
    if images is None:
        return ""
    parts = []
    for ranking in images.rankings:
        figure = figures.receptive_fields(ranking, images.shape)
        parts.append(
            f'<div class="fields" data-layer="{ranking.layer}">{figure.html()}'
            '<div class="card" data-part="field" aria-live="polite" hidden></div></div>'
        )
    caption, frames = f"Samples after {SAMPLE_SWEEPS} Gibbs sweeps, starting from the data rows shown", None
    if images.sample_labels is not None:
        frames = [images.sample_labels.colors[label] for label in images.sample_labels.index.tolist()]
        caption += ", framed in the color of the nearest row's label"
    shown = [
        figures.images(images.samples, images.shape, f"{caption}.", "samples", frames=frames),
        figures.images(images.rows, images.shape, "Data rows.", "data"),
    ]
    heading = "<h2>What the machine has learned</h2>"
    return f"{heading}{grid(shown)}<h3>Receptive fields</h3>{''.join(parts)}{explain('receptive field')}"


def fields_for_script(run: RunResults) -> list[dict[str, Any]]:
    """Collect the data that the script shows when a receptive field is selected."""
    if run.images is None or run.landscape is None:
        return []
    starts, (height, width) = run.landscape.track.starts, run.images.shape
    x = run.machine.layers[0].to_data(starts)
    means = hidden_means(run.machine, x.to(run.machine.device, run.machine.dtype))
    layers = []
    for ranking, of_layer in zip(run.images.rankings, means, strict=True):
        order = figures.shown_fields(ranking)
        values = of_layer.flatten(1).cpu()[:, order]
        layers.append(
            {
                "layer": ranking.layer,
                "columns": figures.field_columns(ranking),
                "unit": order.tolist(),
                "activation": [round(value, 3) for value in ranking.activation[order].tolist()],
                "rows": values.argsort(dim=0, descending=True)[:N_TOP_ROWS].T.tolist(),
                "ratio": height / width,
            }
        )
    return layers


def settings(run: RunResults) -> str:
    """Return a collapsible table of the settings of a run."""
    known = [(name, str(value)) for name, value in run.settings.items() if value is not None]
    return unfold("Settings of the run", f'<div class="wide">{pairs(known)}</div>', "settings")
