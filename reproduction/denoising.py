"""Denoising of images with flipped bits, as a function of the flip probability [fig:bmnist-denoise]."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sklearn.metrics import matthews_corrcoef
from torch import Tensor

from reproduction.drawing import BASELINES, hidden_color
from reproduction.lab import Lab, Row
from reproduction.models import BINARY, BINARY_MODELS, Model
from reproduction.style import PAGE, panel_title, shared_legend, styled
from tapmachine.channels import BinarySymmetric
from tapmachine.display.figures import new_figure
from tapmachine.posterior import denoise
from tapmachine.posterior.baselines import nearest_neighbors, pointwise_estimate
from tapmachine.units import Binary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "MCC of denoised binary-MNIST as a function of the flip probability"
NOISE = tuple(round(0.05 * step, 2) for step in range(11))
N_IMAGES = {False: 1000, True: 180}  # keys: whether the run is quick
EXAMPLES = ", with examples"


def needed(lab: Lab) -> list[Model]:
    """Return the models to train: all models if the table is missing, otherwise none."""
    return [] if lab.knows("bmnist-denoise") else models_of(lab)


def models_of(lab: Lab) -> list[Model]:
    """Return the models used for denoising."""
    return [model for model in BINARY_MODELS if lab.includes(model)]


def name_of(lab: Lab, model: Model) -> str:
    """Return the name of a model in the table: the number of hidden units, and the start unless it is the batch."""
    return f"{lab.model(model).hidden[0]}" + (", noisy starts" if model.noisy_starts else "")


def estimates(
    lab: Lab, x: Tensor, models: Sequence[Model], examples: bool = True
) -> Iterator[tuple[float, str, Tensor]]:
    """For each p and each method, yield p, the name of the method and its estimates from the same noisy rows.

    Args:
        lab: Directory of the reproduction.
        x: Clean rows, shape (n, n_visible).
        models: Models used for denoising.
        examples: Whether to also denoise with similar training rows as additional starting points (default: True).
    """
    train, _ = lab.rows(BINARY)
    prior = Binary(x.shape[1]).to(x.device).fit_to(train)
    machines = {name_of(lab, model): lab.machine(model) for model in models}
    for p in NOISE:
        channel = BinarySymmetric(p)
        y = channel.corrupt(x.cpu()).to(x.device)  # the same on every device
        pointwise = pointwise_estimate(prior, y, channel).mean
        yield p, "noisy", y
        yield p, "OPE", pointwise
        yield p, "1-NN", train[nearest_neighbors(train, y)[:, 0]]
        for name, machine in machines.items():
            yield p, name, denoise(machine, y, channel, starts=[pointwise]).mean
            if examples:
                yield p, f"{name}{EXAMPLES}", denoise(machine, y, channel, data=train).mean


def table(lab: Lab) -> list[Row]:
    """Return the MCC of each method at each p. The paper has OPE, 1-NN and machines with a single start."""

    def make() -> Iterable[Row]:
        x = lab.rows(BINARY)[1][: N_IMAGES[lab.quick]]
        for p, name, estimate in estimates(lab, x, models_of(lab)):
            yield {"p": p, "method": name, "mcc": mcc(x, estimate)}

    return lab.table("bmnist-denoise", make)


@styled
def draw(lab: Lab) -> "Figure":
    """Draw the figure from the table."""
    lab.require(BINARY_MODELS)
    rows = table(lab)
    figure = new_figure(PAGE, 2.9)
    methods = [name for name in dict.fromkeys(_name(row["method"]) for row in rows) if name != "noisy"]
    with_examples = [name for name in methods if name.endswith(EXAMPLES)]
    panels = {
        "one start, as in the paper": [name for name in methods if name not in with_examples],
        "also started from three similar examples": [*BASELINES, *with_examples],
    }
    axes = list(figure.subplots(1, 2, sharey=True))
    for ax, letter, (title, names) in zip(axes, "ab", panels.items(), strict=True):
        score_curves(lab, ax, rows, [name for name in names if name in methods])
        panel_title(ax, letter, title)
    axes[1].set_ylabel("")
    shared_legend(figure, axes)
    return figure


def score_curves(lab: Lab, ax: "Axes", rows: list[Row], names: Sequence[str]) -> None:
    """Draw the MCC of methods against p, with the colors and names used in all figures."""
    for name in names:
        scores = [float(row["mcc"]) for row in rows if _name(row["method"]) == name]
        ax.plot(NOISE, scores, label=label_of(name), **style_of(lab, name))
    ax.set(xlabel="flip probability $p$", ylabel="MCC")


def mcc(x: Tensor, estimate: Tensor) -> float:
    """Return the Matthews correlation coefficient of binary values and estimates, which are rounded."""
    return float(matthews_corrcoef(*((values > 0.5).flatten().cpu().numpy() for values in (x, estimate))))


def label_of(method: str) -> str:
    """Return the label of a method in a legend."""
    size = method.split(",")[0].split(" ")[0]
    return f"$N_h$ = {size}" + (", noisy starts" if "noisy starts" in method else "") if size.isdigit() else method


def style_of(lab: Lab, method: str) -> dict[str, Any]:
    """Return the keyword arguments with which `Axes.plot` draws a method."""
    if method in BASELINES:
        return BASELINES[method]
    color = hidden_color(lab, int(method.split(",")[0].split(" ")[0]))
    noisy = "noisy starts" in method
    return {
        "color": color,
        "marker": "s" if noisy else "o",
        "ls": "--" if noisy else "-",
        "mfc": "w" if noisy else color,
    }


def _name(method: float | int | str) -> str:
    """Return the name of a method as a string. The CSV reader converts names that consist of digits to numbers."""
    return method if isinstance(method, str) else f"{method:.0f}"


def best_p(rows: list[Row], first: str, second: str) -> list[float]:
    """Return the values of p above 0 at which one method is better than another."""
    scores = {(float(row["p"]), _name(row["method"])): float(row["mcc"]) for row in rows}
    return [p for p in NOISE if p > 0 and scores[p, first] > scores[p, second]]


def largest_difference(rows: list[Row], first: str, second: str, from_p: float) -> float:
    """Return the largest absolute difference between the MCCs of two methods for p ≥ `from_p`."""
    scores = {(float(row["p"]), _name(row["method"])): float(row["mcc"]) for row in rows}
    return max(abs(scores[p, first] - scores[p, second]) for p in NOISE if p >= from_p)
