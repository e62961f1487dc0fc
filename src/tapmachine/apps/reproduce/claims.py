"""What the paper's text says, held against the tables: a verdict for each claim, and the numbers behind it."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tapmachine.analysis.plots import new_figure
from tapmachine.apps.reproduce import adaptive, deep_training, denoising, free_energy_bands, receptive_fields
from tapmachine.apps.reproduce import likelihood_estimates as estimates
from tapmachine.apps.reproduce import training_likelihood as likelihood
from tapmachine.apps.reproduce.lab import Lab, Row
from tapmachine.apps.reproduce.models import BINARY, BINARY_MODELS, REAL, Model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "What the paper's text says, with a verdict on each claim"
TAPERS_AT, TAPERED = 20, 0.8  # epoch, and the share of the rise that is behind it
FEW_UNIQUE = 0.1
ALIKE = 1.0  # nats of pseudo-likelihood
NEARLY = 0.9  # of a rise is left in the end
SMALL = 0.4  # share of the visible units that a stroke may reach
WIDTH = 60  # of a column of the picture, in letters


def needed(lab: Lab) -> list[Model]:
    """All that the figures need which it looks at."""
    looked_at = (likelihood, receptive_fields, free_energy_bands, denoising, estimates, deep_training)
    return [] if lab.knows("claims") else [model for figure in looked_at for model in figure.needed(lab)]


class Finding(NamedTuple):
    """Whether a claim holds, and the numbers."""

    verdict: str
    numbers: str


def _judge(good: Sequence[bool], numbers: str) -> Finding:
    if not good:
        return Finding("not looked at", "its data were not at hand")
    return Finding("holds" if all(good) else "holds in part" if any(good) else "does not hold", numbers)


def _groups(rows: Sequence[Row], *names: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        words = (f"{row[name]:g}" if isinstance(row[name], float) else f"{row[name]}" for name in names)
        found.setdefault(" ".join(words), []).append(row)
    return found


def _numbers(rows: Sequence[Row], name: str) -> list[float]:
    return [float(row[name]) for row in rows if row[name] != ""]


def tapers(lab: Lab) -> Finding:
    """Most of the rise of the log-likelihood is over by epoch 20."""
    good, measured = [], []
    for name, rows in _groups(likelihood.table(lab), "data", "n_hidden").items():
        rows = [row for row in rows if row["log_likelihood"] != "" and float(row["epoch"]) <= likelihood.LAST_EPOCH]
        values = _numbers(rows, "log_likelihood")
        early = [value for row, value in zip(rows, values, strict=True) if float(row["epoch"]) <= TAPERS_AT]
        if len(early) < len(values) and values[-1] > values[0]:
            share = (early[-1] - values[0]) / (values[-1] - values[0])
            good.append(share >= TAPERED)
            measured.append(f"{name}: {share:.0%}")
    return _judge(
        good,
        f"of the rise after the first epoch that was measured, behind it by epoch {TAPERS_AT}: {', '.join(measured)}",
    )


def rises_then_falls(lab: Lab) -> Finding:
    """The mean F of the solutions rises at first, then falls, and stays below."""
    good, measured = [], []
    for name, rows in _groups(free_energy_bands.table(lab), "data").items():
        values, epochs = _numbers(rows, "mean"), _numbers(rows, "epoch")
        top = next((n for n in range(len(values) - 1) if values[n] > values[n + 1]), len(values) - 1)
        low = values.index(min(values[top:]), top)
        good += [0 < top < len(values) - 1, values[-1] < values[top]]
        turns = sorted({0, top, low, len(values) - 1})
        measured.append(f"{name}: " + ", ".join(f"{values[n]:.1f} at epoch {epochs[n]:g}" for n in turns))
    return _judge(good, "; ".join(measured))


def number_grows(lab: Lab) -> Finding:
    """There is one solution at first; their number grows."""
    good, measured = [], []
    for name, rows in _groups(free_energy_bands.table(lab), "data").items():
        counts, epochs = _numbers(rows, "solutions"), _numbers(rows, "epoch")
        middle = len(counts) // 2
        good += [counts[0] == 1, counts[-1] > counts[middle] > counts[0]]
        measured.append(f"{name}: " + ", ".join(f"{counts[n]:g} at epoch {epochs[n]:g}" for n in (0, middle, -1)))
    return _judge(good, "; ".join(measured))


def few_unique(lab: Lab) -> Finding:
    """Of 100 hidden units' solutions fewer than a tenth of the starts have a separate one."""
    good, measured = [], []
    looked_at = {f"{model.data} {lab.model(model).hidden[0]}" for model in free_energy_bands.MODELS[:2]}
    for name, rows in _groups(likelihood.table(lab), "data", "n_hidden").items():
        if name in looked_at:
            share = float(rows[-1]["solutions"]) / float(rows[-1]["starts"])
            good.append(share < FEW_UNIQUE)
            measured.append(f"{name}: {float(rows[-1]['solutions']):g} of {float(rows[-1]['starts']):g}, {share:.0%}")
    return _judge(good, "; ".join(measured))


def two_bands(lab: Lab) -> Finding:
    """F of binary-MNIST's solutions lies in two bands at all epochs."""
    rows = _groups(free_energy_bands.table(lab), "data").get(BINARY, [])
    counts = [(float(row["epoch"]), float(row["bands"])) for row in rows if float(row["solutions"]) > 1]
    return _judge([bands == 2 for _, bands in counts], ", ".join(f"{bands:g} at {epoch:g}" for epoch, bands in counts))


def localizes(lab: Lab) -> Finding:
    """The more hidden units, the more localized their fields."""
    rows = _groups(receptive_fields.table(lab), "data").get(BINARY, [])
    reach = _numbers(rows, "median_reach")
    good = [later < before for before, later in pairwise(reach)]
    sizes = _numbers(rows, "n_hidden")
    return _judge(good, "median reach " + ", ".join(f"{r:.2f} with {n:g}" for r, n in zip(reach, sizes, strict=True)))


def beats_pointwise(lab: Lab) -> Finding:
    """TAP with up to 100 hidden units is better than the pointwise estimate at every p."""
    rows = denoising.table(lab)
    names = [str(lab.model(model).hidden[0]) for model in BINARY_MODELS[:3]]
    beaten = {name: denoising.best_p(rows, "OPE", name) for name in names}
    measured = "; ".join(
        f"{name}: worse at p = {', '.join(map(str, ps))}" if ps else f"{name}: at every p"
        for name, ps in beaten.items()
    )
    return _judge([not ps for ps in beaten.values()], measured)


def overtrains(lab: Lab) -> Finding:
    """With 500 hidden units there are many more solutions, and denoising fails at strong noise."""
    rows = denoising.table(lab)
    small, large = (str(lab.model(model).hidden[0]) for model in BINARY_MODELS[2:])
    worse = denoising.best_p(rows, small, large)
    found = _groups(likelihood.table(lab), "data", "n_hidden")
    shares = [
        float(found[f"{BINARY} {n}"][-1]["solutions"]) / float(found[f"{BINARY} {n}"][-1]["starts"])
        for n in (small, large)
    ]
    measured = (
        f"{large} is worse than {small} at p = {', '.join(map(str, worse)) or 'none'}; "
        f"unique solutions {shares[0]:.0%} and {shares[1]:.0%} of the starts"
    )
    return _judge([bool(worse) and worse[-1] >= denoising.NOISE[-2], shares[1] > shares[0]], measured)


def rise_together(lab: Lab) -> Finding:
    """TAP, AIS and pseudo-likelihood rise together."""
    rows = estimates.table(lab)
    columns = {name: _numbers(rows, name) for name in ("tap", "ais", "pseudo")}
    measured = "; ".join(
        f"{name}: {v[0]:.1f} to {v[-1]:.1f}, best {max(v):.1f} at epoch {_numbers(rows, 'epoch')[v.index(max(v))]:g}"
        for name, v in columns.items()
    )
    return _judge([v[-1] > v[0] for v in columns.values()], measured)


def adaptive_alike(lab: Lab) -> Finding:
    """Adaptive TAP trains as TAP does."""
    found = _groups(adaptive.table(lab), "scheme", "sweeps")
    good, measured = [], []
    for n_sweeps in adaptive.SWEEPS:
        pairs = list(zip(found[f"TAP {n_sweeps}"], found.get(f"adaTAP {n_sweeps}", []), strict=False))
        if pairs:
            apart = max(abs(float(a["pseudo_log_likelihood"]) - float(b["pseudo_log_likelihood"])) for a, b in pairs)
            good.append(apart < ALIKE)
            measured.append(f"{n_sweeps} sweeps: {apart:.2g} nats apart at most in {len(pairs)} epochs")
    return _judge(good, "; ".join(measured))


def adaptive_costs(lab: Lab) -> Finding:
    """A sweep of adaptive TAP takes a thousand times as long."""
    found = _groups(adaptive.times(lab), "scheme")
    ratios = [
        float(b["milliseconds"]) / float(a["milliseconds"]) for a, b in zip(found["TAP"], found["adaTAP"], strict=True)
    ]
    sizes = _numbers(found["TAP"], "particles")
    return _judge(
        [r >= 1000 for r in ratios],
        ", ".join(f"{r:.0f} times with {n:g} particles" for r, n in zip(ratios, sizes, strict=True)),
    )


def strokes(lab: Lab) -> Finding:
    """real-MNIST's fields are strokes, as binary-MNIST's."""
    rows = _groups(receptive_fields.table(lab), "data").get(REAL, [])
    measured = ", ".join(f"{float(r['median_reach']):.2f} with {float(r['n_hidden']):g}" for r in rows)
    return _judge([float(row["median_reach"]) < SMALL for row in rows], f"median reach {measured}; see the figure")


def deep_rises(lab: Lab) -> Finding:
    """The log-likelihood of deep machines rises, on training and test images."""
    good, measured = [], []
    for name, rows in _groups(deep_training.table(lab), "hidden_layers").items():
        for column, label in deep_training.NAMES.items():
            values = _numbers(rows, column)
            best = max(values)
            good.append(values[-1] - values[0] > NEARLY * (best - values[0]))
            epochs = [f"{float(rows[n]['epoch']):g}" for n in (values.index(best), -1)]
            measured.append(
                f"{name} layers, {label}: {values[0]:.4f} to {values[-1]:.4f} at epoch {epochs[1]}, "
                f"best {best:.4f} at {epochs[0]}"
            )
    return _judge(good, "; ".join(measured))


CLAIMS: dict[str, Callable[[Lab], Finding]] = {
    "the log-likelihood tapers near epoch 20": tapers,
    "the free energy first rises, then falls": rises_then_falls,
    "the number of solutions starts at 1 and grows": number_grows,
    "less than 10 % unique solutions with 100 hidden units": few_unique,
    "two bands of free energy on binary-MNIST at all epochs": two_bands,
    "localization grows with the number of hidden units": localizes,
    "TAP beats the pointwise estimate at every p with up to 100 hidden units": beats_pointwise,
    "500 hidden units are over-trained": overtrains,
    "AIS, pseudo-likelihood and TAP rise together": rise_together,
    "adaptive TAP trains as TAP does": adaptive_alike,
    "a sweep of adaptive TAP takes a thousand times as long": adaptive_costs,
    "real-MNIST learns strokes": strokes,
    "the log-likelihood of deep machines rises": deep_rises,
}


def table(lab: Lab) -> list[Row]:
    """A row for each claim."""

    def make() -> list[Row]:
        rows: list[Row] = []
        for text, check in CLAIMS.items():
            verdict, numbers = check(lab)
            rows.append({"claim": text, "verdict": verdict, "numbers": numbers})
        return rows

    return lab.table("claims", make)


def draw(lab: Lab) -> "Figure":
    """The table, as a picture."""
    import textwrap

    rows = table(lab)
    cells = [[textwrap.fill(str(cell), WIDTH) for cell in row.values()] for row in rows]
    lines = [max(cell.count("\n") + 1 for cell in row) for row in cells]
    figure = new_figure(13, 0.19 * sum(lines) + 0.6)
    ax = figure.subplots()
    ax.set_axis_off()
    drawn = ax.table(cells, colLabels=list(rows[0]), loc="center", cellLoc="left", colWidths=[0.33, 0.12, 0.55])
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(8)
    for (row, _), cell in drawn.get_celld().items():
        cell.set_height((lines[row - 1] if row else 1) / (sum(lines) + 2))
    return figure
