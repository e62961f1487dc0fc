"""A page about a run: one HTML file with its pictures inside, to be opened from disk."""

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from tapmachine.files import data_description, load, write_atomically
from tapmachine.likelihood import TAPLogLikelihood, tap_log_likelihood
from tapmachine.likelihood.score import in_double, spaced
from tapmachine.likelihood.tap import solve_from_rows
from tapmachine.machine import BoltzmannMachine
from tapmachine.merging import unique
from tapmachine.plots import heat_map, image_grid, new_figure, training_curves
from tapmachine.runs import RunFolder
from tapmachine.sampling import gibbs
from tapmachine.settings import Settings
from tapmachine.training_runs import read_data_of, settings_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

N_STARTS = 500
N_SHOWN = 36
SAMPLE_SWEEPS = 500

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
figure { margin: 1.5rem 0; } figcaption { opacity: .8; }
img { max-width: 100%; background: white; border-radius: 4px; }
table { border-collapse: collapse; } td, th { padding: .15rem .8rem .15rem 0; text-align: left; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); gap: 1rem; }
"""


class Picture(NamedTuple):
    """A figure and what it shows."""

    figure: "Figure"
    caption: str


class Findings(NamedTuple):
    """What a page says about a machine.

    Attributes:
        likelihoods: of the data, by the name of the set.
        n_solutions: different ones that were found.
        n_starts: rows that they were started from.
        solutions: their visible means, the most visited first.
    """

    likelihoods: dict[str, TAPLogLikelihood]
    n_solutions: int
    n_starts: int
    solutions: Tensor


def write_report(folder: RunFolder, device: str = "cpu", more: Sequence[Picture] = ()) -> Path:
    """Writes the page of a run, report.html, into its folder.

    Args:
        folder: of the run.
        device: to compute on.
        more: pictures to put first.

    Returns:
        Where it is.
    """
    machine = load(folder.machine_path, device=device)
    data = read_data_of(folder)
    sets = {"training data": data.train} | ({} if data.held_out is None else {"held-out data": data.held_out})
    found = look_at(machine, {key: x.to(machine.device) for key, x in sets.items()})
    pictures = [*more, *_pictures(machine, folder, found, data.train)]
    path = folder.path / "report.html"
    write_atomically(path, _page(folder, settings_of(folder), machine, found, pictures).encode())
    return path


def look_at(machine: BoltzmannMachine, sets: dict[str, Tensor]) -> Findings:
    """Solves a machine from the first set of rows and scores all of them."""
    solutions = solve_from_rows(machine, next(iter(sets.values())), n_starts=N_STARTS)
    different = unique(in_double(machine), solutions)
    by_visits = different.counts.argsort(descending=True, stable=True)
    return Findings(
        {name: tap_log_likelihood(machine, x, solutions) for name, x in sets.items()},
        len(different),
        len(solutions),
        different.solutions.moments[0].mean[by_visits],
    )


def _pictures(machine: BoltzmannMachine, folder: RunFolder, found: Findings, x: Tensor) -> list[Picture]:
    shape = data_description(folder.machine_path).get("image_shape")
    n_units = machine.units()[0].n
    pictures = [Picture(_curves(folder.records()), "The TAP log-likelihood over the epochs, in nats.")]
    weights = machine.weights[0].detach().T
    largest = weights[weights.norm(dim=1).argsort(descending=True)[:N_SHOWN]]
    caption = f"Receptive fields: the weights of the {len(largest)} hidden units with the largest, each on its scale."
    if weights.shape[1] != n_units:  # units with several states
        return [*pictures, Picture(_drawn(largest, None), caption)]
    rows = spaced(x, N_SHOWN).to(machine.device)
    samples = gibbs(machine, rows, SAMPLE_SWEEPS, torch.Generator(machine.device).manual_seed(0))[0]
    solutions = found.solutions[:N_SHOWN]
    return [
        *pictures,
        Picture(_drawn(largest, shape), caption),
        Picture(
            _drawn(solutions, shape),
            f"{len(solutions)} of its {found.n_solutions} TAP solutions, the most visited first.",
        ),
        Picture(_drawn(samples, shape), f"Samples: Gibbs chains, {SAMPLE_SWEEPS} sweeps after rows of the data."),
        Picture(_drawn(rows, shape), "Those rows of the data."),
    ]


def _curves(records: Sequence[dict[str, Any]]) -> "Figure":
    figure = new_figure(4.5, 4.5)
    training_curves(figure.subplots(), records, ("log_likelihood", "validation_log_likelihood"))
    return figure


def _drawn(rows: Tensor, shape: Sequence[int] | None) -> "Figure":
    figure = new_figure(4.5, 4.5)
    if shape is None:
        heat_map(figure.subplots(), rows)
    else:
        image_grid(figure.subplots(), rows, (shape[0], shape[1]))
    return figure


def _page(
    folder: RunFolder, settings: Settings, machine: BoltzmannMachine, found: Findings, pictures: Sequence[Picture]
) -> str:
    scores = [(f"log-likelihood, {name}", _score(score)) for name, score in found.likelihoods.items()]
    count = f"{found.n_solutions}, from {found.n_starts} rows of the data"
    facts = [("machine", machine.summary()), ("epochs", str(len(folder.records()))), *scores, ("TAP solutions", count)]
    given = [(name, str(value)) for name, value in settings.as_json().items() if value is not None]
    figures = "\n".join(
        f'<figure><img alt="{html.escape(caption)}" src="data:image/png;base64,{_png(figure)}">'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
        for figure, caption in pictures
    )
    title = html.escape(folder.path.resolve().name)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title} – tapmachine</title><style>{STYLE}</style></head><body>
<h1>{title}</h1>
{_table(facts)}
<div class="pictures">{figures}</div>
<h2>Settings</h2>
{_table(given)}
</body></html>
"""


def _score(score: TAPLogLikelihood) -> str:
    return f"{score.log_sum_exp.mean:.2f} nats a row by TAP (log-sum-exp; {score.mean:.2f} by the average of F)"


def _table(rows: Sequence[tuple[str, str]]) -> str:
    cells = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in rows)
    return f"<table>{cells}</table>"


def _png(figure: "Figure") -> str:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=90)
    return base64.b64encode(content.getvalue()).decode()
