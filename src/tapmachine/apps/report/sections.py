"""Sections of the report page."""

from collections.abc import Mapping, Sequence
from typing import Any

from tapmachine.analysis.features import hidden_means
from tapmachine.analysis.landscape.output import plural
from tapmachine.apps.report import figures
from tapmachine.apps.report.explanations import EXPLANATIONS
from tapmachine.apps.report.figures import Figure
from tapmachine.apps.report.results import SAMPLE_SWEEPS, Findings, LandscapeFindings
from tapmachine.apps.report.scripted import shown_solutions
from tapmachine.apps.report.tree import draw_tree, shown_branches
from tapmachine.apps.report.views import View
from tapmachine.display.html import escape, items, number, pairs, table, unfold
from tapmachine.likelihood.compare import LikelihoodRow

N_WITHOUT_SCRIPT = 48  # number of solutions shown if scripts are disabled
N_TOP_ROWS = 6  # number of data rows shown per hidden unit


def facts(found: Findings) -> str:
    """Return the main results of a run, each with a collapsible explanation."""
    cards = [("machine", found.machine.summary())]
    if found.records:
        n_epochs = int(found.records[-1].get("epoch", 0))
        cards.append(("epoch", f"{n_epochs} {plural(n_epochs, 'epoch')}"))
    best = best_likelihood(found)
    if best is not None:
        held_out = best.test == best.test
        value = best.test if held_out else best.train
        cards.append(
            ("log-likelihood", f"{number(value, 2)} nats ({best.estimator}{', held out' if held_out else ''})")
        )
    if found.landscape is not None:
        last = found.landscape.track.snapshots[-1]
        stable = int(last.stable.sum())
        cards.append(("solution", f"{last.n_solutions} {plural(last.n_solutions)}, {stable} stable"))
        cards.append(("start", f"{len(last.basin)} starts"))
    if found.table is not None:
        gaps = f", {found.table.n_gappy} with missing values" if found.table.n_gappy else ""
        cards.append(("rows", f"{found.table.n_rows} rows{gaps}, {found.table.n_columns} columns"))
        if found.table.classes:
            cards.append(("class", f"{len(found.table.classes)} classes"))
    parts = []
    for name, words in cards:
        why = EXPLANATIONS.get(name)
        head = f'<span class="name">{escape(name)}</span><span class="value">{escape(words)}</span>'
        parts.append(
            f'<div class="fact">{head}</div>'
            if why is None
            else f'<details class="fact"><summary>{head}</summary><p>{escape(why)}</p></details>'
        )
    return f'<div class="facts">{"".join(parts)}</div>'


def best_likelihood(found: Findings) -> LikelihoodRow | None:
    """Return the most reliable log-likelihood: exact if available, otherwise annealed, otherwise by TAP."""
    rows = {row.estimator: row for row in found.likelihoods.rows if row.train == row.train}
    return next((rows[name] for name in ("exact", "annealed", "AIS", "TAP") if name in rows), None)


def likelihoods(found: Findings) -> str:
    """Return the table of log-likelihoods from all estimators."""
    rows = found.likelihoods.rows
    has_test = any(row.test == row.test for row in rows)
    heads = ["estimator", "training data", "±", *(["held-out data", "±"] if has_test else []), "rows", "ln Z", "±"]
    body = [
        (
            r.estimator, r.train, r.train_error, *((r.test, r.test_error) if has_test else ()), r.n_rows,
            r.log_partition, r.log_partition_error,
        )
        for r in rows
    ]  # fmt: skip
    note = ""
    if any(row.estimator == "pseudo" for row in rows):
        note = '<p class="small">The pseudo-likelihood has a different scale; use it only to compare machines.</p>'
    if found.landscape is None:
        note = '<p class="small">Log-likelihood of the observed values. Real columns are standardized.</p>'
    words = explain("log-likelihood", "ln Z")
    return f'<div class="wide">{table(heads, body)}</div>{note}{items(found.likelihoods.warnings)}{words}'


def explain(*names: str) -> str:
    """Return a collapsible list of explanations of terms."""
    parts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(EXPLANATIONS[name])}</dd>" for name in names)
    return unfold("What do these terms mean?", f"<dl>{parts}</dl>", "words")


def training(found: Findings) -> str:
    """Return the training curves, and the number and free energies of solutions by epoch."""
    shown = [figures.training(found.records)]
    if found.landscape is not None and len(found.landscape.track.epochs) > 1:
        shown.append(figures.solutions(found.landscape.track))
    return grid([figure for figure in shown if figure is not None])


def grid(shown: Sequence[Figure]) -> str:
    """Arrange as many figures side by side as fit on the page."""
    return f'<div class="pictures">{"".join(own.html() for own in shown)}</div>' if shown else ""


def legend(landscape: LandscapeFindings) -> str:
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


def solutions_without_script(found: Findings) -> str:
    """Return a figure or table of the solutions with the largest basins at the last epoch."""
    assert found.landscape is not None
    last = found.landscape.track.snapshots[-1]
    numbers = shown_solutions(last, N_WITHOUT_SCRIPT)
    if len(numbers) == 0:
        return ""
    view = View(found)
    if view.kind == "image":
        images = view.values(last.means[0][numbers])
        caption = f"The {len(numbers)} solutions with the largest basins at epoch {last.epoch}, largest first."
        return figures.images(images, (view.height, view.width), caption, "solutions").html()
    rows = [(f"solution {i}", float(last.free_energy[i]), int(last.counts[i])) for i in numbers.tolist()]
    return f'<div class="wide">{table(("", "F", "starts"), rows)}</div>'


def tree(found: Findings) -> str:
    """Return the tree of solutions, or an empty string if only one epoch was analyzed."""
    assert found.landscape is not None
    track = found.landscape.track
    if len(track.epochs) < 2 or len(track.tree.counts) == 0:
        return ""
    places = {number: place for place, number in enumerate(shown_solutions(track.snapshots[-1]).tolist())}
    svg = draw_tree(track.tree, View(found), found.landscape.labels, places)
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


def learned(found: Findings) -> str:
    """Return samples, data and receptive fields, or an empty string for data that are not images."""
    shape = found.image_shape
    if shape is None:
        return ""
    size = (shape[0], shape[1])
    parts = []
    for ranking in found.rankings:
        figure = figures.receptive_fields(ranking, size)
        parts.append(
            f'<div class="fields" data-layer="{ranking.layer}">{figure.html()}'
            '<div class="card" data-part="field" aria-live="polite" hidden></div></div>'
        )
    near = ", framed in the color of the nearest row's label" if found.sample_labels is not None else ""
    caption = f"Samples after {SAMPLE_SWEEPS} Gibbs sweeps, starting from the data rows shown{near}."
    shown = [
        figures.samples(found.samples, size, caption, "samples", found.sample_labels),
        figures.samples(found.rows, size, "Data rows.", "data"),
    ]
    heading = "<h2>What the machine has learned</h2>"
    return f"{heading}{grid(shown)}<h3>Receptive fields</h3>{''.join(parts)}{explain('receptive field')}"


def fields_for_script(found: Findings) -> list[dict[str, Any]]:
    """Collect the data that the script shows when a receptive field is selected."""
    if found.image_shape is None or found.landscape is None:
        return []
    starts = found.landscape.track.starts
    x = found.machine.layers[0].to_data(starts)
    means = hidden_means(found.machine, x.to(found.machine.device, found.machine.dtype))
    layers = []
    for ranking, own in zip(found.rankings, means, strict=True):
        order = figures.shown_fields(ranking)
        values = own.flatten(1).cpu()[:, order]
        layers.append(
            {
                "layer": ranking.layer,
                "columns": figures.field_columns(ranking),
                "unit": order.tolist(),
                "activation": [round(value, 3) for value in ranking.activation[order].tolist()],
                "rows": values.argsort(dim=0, descending=True)[:N_TOP_ROWS].T.tolist(),
                "ratio": found.image_shape[0] / found.image_shape[1],
            }
        )
    return layers


def settings(found: Findings) -> str:
    """Return a collapsible table of the settings of a run."""
    values: Mapping[str, object] = found.settings
    known = [(name, str(value)) for name, value in values.items() if value is not None]
    return unfold("Settings of the run", f'<div class="wide">{pairs(known)}</div>', "settings")
