"""Denoising of images with flipped bits [fig:bmnist-denoise], [fig:bmnist-denoise-images].

The paper suggests training from noisy starts as a remedy for overtraining with 500 hidden units.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from sklearn.metrics import matthews_corrcoef
from torch import Tensor

from reproduction.figure import PAGE, figure, hidden_color, included, panel, panels, shared_legend
from reproduction.lab import Lab, Row, column, curve, images_of, images_table, table, where
from reproduction.models import BINARY, BINARY_500, BINARY_MODELS, NOISY_500, Model
from reproduction.solutions import measure_solutions
from tapmachine.channels import BinarySymmetric
from tapmachine.display.figures import new_figure
from tapmachine.display.images import image_strips
from tapmachine.posterior import denoise
from tapmachine.posterior.baselines import nearest_neighbors, pointwise_estimate
from tapmachine.units import Binary

NOISE = tuple(round(0.05 * step, 2) for step in range(11))
N_IMAGES = {False: 1000, True: 180}  # keys: whether the run is quick
DIGIT = 0  # index of the test image that is shown
NOISY = ", noisy starts"
BASELINES = {"OPE": {"color": "k", "ls": "--"}, "1-NN": {"color": "k"}, "noisy": {}}
REMEDIED = (BINARY_500, NOISY_500)


def name_of(lab: Lab, model: Model) -> str:
    """Return the name of a model in the tables."""
    return f"{lab.model(model).hidden[0]} hidden units{NOISY if model.noisy_starts else ''}"


def label_of(method: str) -> str:
    """Return the label of a method in a legend."""
    return method if method in BASELINES else f"$N_h$ = {method.split(' ')[0]}{NOISY if NOISY in method else ''}"


def style_of(lab: Lab, method: str) -> dict[str, Any]:
    """Return the keyword arguments with which `Axes.plot` draws a method."""
    if method in BASELINES:
        return BASELINES[method]
    color = hidden_color(lab, int(method.split(" ")[0]))
    return {"color": color, "marker": "o"} | ({"marker": "s", "ls": "--", "mfc": "w"} if NOISY in method else {})


def mcc(x: Tensor, estimate: Tensor) -> float:
    """Return the Matthews correlation coefficient of binary values and estimates, which are rounded."""
    return float(matthews_corrcoef(*((values > 0.5).flatten().cpu().numpy() for values in (x, estimate))))


def estimates(lab: Lab, x: Tensor, models: Sequence[Model]) -> Iterator[tuple[float, str, Tensor]]:
    """For each p and each method, yield p, the name of the method and its estimates from the same noisy rows."""
    train, _ = lab.rows(BINARY)
    prior = Binary(x.shape[1]).to(x.device).fit_to(train)
    machines = {name_of(lab, model): lab.machine(model) for model in included(lab, models)}
    for p in NOISE:
        channel = BinarySymmetric(p)
        y = channel.corrupt(x.cpu()).to(x.device)  # the same on every device
        pointwise = pointwise_estimate(prior, y, channel).mean
        yield p, "noisy", y
        yield p, "OPE", pointwise
        yield p, "1-NN", train[nearest_neighbors(train, y)[:, 0]]
        for name, machine in machines.items():
            yield p, name, denoise(machine, y, channel, starts=[pointwise]).mean


def _scores(lab: Lab, models: Sequence[Model]) -> Iterable[Row]:
    x = lab.rows(BINARY)[1][: N_IMAGES[lab.quick]]
    for p, name, estimate in estimates(lab, x, models):
        yield {"p": p, "method": name, "mcc": mcc(x, estimate)}


@table("bmnist-denoise")
def scores(lab: Lab) -> Iterable[Row]:
    """Return the MCC of each method at each p."""
    return _scores(lab, BINARY_MODELS)


@table("noisy-starts")
def scores_of_noisy_starts(lab: Lab) -> Iterable[Row]:
    """Return the MCC at each p of machines trained from the batch and from a noisy batch."""
    return _scores(lab, REMEDIED)


@table("bmnist-denoise-images")
def images(lab: Lab) -> Iterable[Row]:
    """Return the estimates of one image by each method at each p."""
    x = lab.rows(BINARY)[1][DIGIT : DIGIT + 1]
    for p, name, estimate in estimates(lab, x, BINARY_MODELS):
        yield from images_table((100 * estimate).round() / 100, p=[p], method=[name])


def _score_curves(lab: Lab, ax: Axes, rows: list[Row]) -> None:
    for method in dict.fromkeys(str(row["method"]) for row in rows if row["method"] != "noisy"):
        ax.plot(*curve(where(rows, method=method), "p", "mcc"), label=label_of(method), **style_of(lab, method))
    ax.set(xlabel="flip probability $p$", ylabel="MCC")


@figure("bmnist-denoise", BINARY_MODELS)
def _draw_scores(lab: Lab) -> Drawing:
    """MCC of denoised binary-MNIST as a function of the flip probability."""
    drawing, ax = panel(2.9)
    _score_curves(lab, ax, scores(lab))
    shared_legend(drawing, [ax], columns=3)
    return drawing


@figure("bmnist-denoise-images", BINARY_MODELS)
def _draw_images(lab: Lab) -> Drawing:
    """One digit with increasing noise, and its estimate by each method."""
    rows = images(lab)
    names = dict.fromkeys(str(row["method"]) for row in rows)
    strips = {label_of(name): images_of(where(rows, method=name)) for name in names}
    noise = sorted({*column(rows, "p")})
    width = (PAGE - 0.8) / len(noise)  # beside the labels of the rows
    drawing = new_figure(PAGE, width * len(strips) + 0.25)
    ax = drawing.subplots()
    image_strips(ax, strips, lab.image_shape(BINARY), [f"$p$ = {p:g}" for p in noise])
    ax.set_anchor("E")
    return drawing


@figure("noisy-starts", REMEDIED)
def _draw_noisy_starts(lab: Lab) -> Drawing:
    """500 hidden units, trained from the batch and from a noisy batch: denoising and numbers of solutions."""
    drawing, axes = panels(["denoising", "number of solutions", "likelihood"])
    _score_curves(lab, axes[0], scores_of_noisy_starts(lab))
    for model in included(lab, REMEDIED):
        method, own = name_of(lab, model), measure_solutions(lab, model).likelihood
        style = style_of(lab, method) | {"label": label_of(method)}
        fractions = [found / n for found, n in zip(column(own, "solutions"), column(own, "starts"), strict=True)]
        axes[1].plot(column(own, "epoch"), fractions, **style)
        axes[2].plot(*curve(own, "epoch", "test_log_likelihood"), **style)
    axes[1].set(xlabel="epoch", ylabel="solutions / starts")
    axes[2].set(xlabel="epoch", ylabel="TAP log-likelihood of\ntest images (nats)")
    shared_legend(drawing, axes)
    return drawing
