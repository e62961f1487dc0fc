"""How well flipped bits are restored, over the share of them [fig:bmnist-denoise]."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from tapmachine.analysis.plots import denoising_curves, new_figure
from tapmachine.analysis.scores import mcc
from tapmachine.apps.reproduce.lab import Lab, Row
from tapmachine.apps.reproduce.models import BINARY, BINARY_MODELS, Model
from tapmachine.posterior import denoise, nearest_neighbors, pointwise_estimate
from tapmachine.posterior.channels import BinarySymmetric
from tapmachine.units import Binary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "MCC of denoised binary-MNIST over the probability of a flip"
NOISE = tuple(round(0.05 * step, 2) for step in range(11))
N_IMAGES = {False: 1000, True: 180}


def needed(lab: Lab) -> list[Model]:
    """All models, unless the scores are known."""
    return [] if lab.knows("bmnist-denoise") else models_of(lab)


def models_of(lab: Lab) -> list[Model]:
    """The models that denoise."""
    return [model for model in BINARY_MODELS if lab.includes(model)]


def name_of(lab: Lab, model: Model) -> str:
    """The number of hidden units, and what else tells a model from others."""
    return f"{lab.model(model).hidden[0]}" + ("" if model.start == "batch" else f", {model.start} starts")


def estimates(
    lab: Lab, x: Tensor, models: Sequence[Model], examples: bool = True
) -> Iterator[tuple[float, str, Tensor]]:
    """What each method makes of the same noisy rows, for each p; machines with similar examples as starts, too."""
    train, _ = lab.rows(BINARY)
    prior = Binary(x.shape[1]).to(x.device).fit_to(train)
    machines = {name_of(lab, model): lab.machine(model) for model in models}
    for p in NOISE:
        channel = BinarySymmetric(p)
        y = channel.corrupt(x.cpu()).to(x.device)  # the same on every device
        own = pointwise_estimate(prior, y, channel).mean
        yield p, "noisy", y
        yield p, "OPE", own
        yield p, "1-NN", train[nearest_neighbors(train, y)[:, 0]]
        for name, machine in machines.items():
            yield p, name, denoise(machine, y, channel, starts=[own]).mean
            if examples:
                yield p, f"{name}, with examples", denoise(machine, y, channel, data=train).mean


def table(lab: Lab) -> list[Row]:
    """MCC of each method at each p; the paper's are the pointwise estimate, 1-NN, and machines from one start."""

    def make() -> Iterable[Row]:
        x = lab.rows(BINARY)[1][: N_IMAGES[lab.quick]]
        for p, name, estimate in estimates(lab, x, models_of(lab)):
            yield {"p": p, "method": name, "mcc": mcc(x, estimate)}

    return lab.table("bmnist-denoise", make)


def draw(lab: Lab) -> "Figure":
    """The figure, from the table."""
    rows = table(lab)
    figure = new_figure(10, 4)
    methods = list(dict.fromkeys(_name(row["method"]) for row in rows))
    ours = [name for name in methods if "examples" in name]
    sides = {"one start, as in the paper": [name for name in methods if name not in (*ours, "noisy")]}
    sides["with three similar examples as starts besides"] = ["OPE", "1-NN", *ours]
    for ax, (title, names) in zip(figure.subplots(1, 2, sharey=True), sides.items(), strict=True):
        scores = {n: [float(row["mcc"]) for row in rows if _name(row["method"]) == n] for n in names}
        denoising_curves(ax, NOISE, scores)
        ax.set_title(title, fontsize=9)
        ax.set_xlabel("probability of a flip")
    return figure


def _name(method: float | int | str) -> str:
    """Of a method; the number of hidden units was read as a number."""
    return method if isinstance(method, str) else f"{method:.0f}"


def best_p(rows: list[Row], first: str, second: str) -> list[float]:
    """The p at which one method is better than another."""
    scores = {(float(row["p"]), _name(row["method"])): float(row["mcc"]) for row in rows}
    return [p for p in NOISE if p > 0 and scores[p, first] > scores[p, second]]


def largest_difference(rows: list[Row], first: str, second: str, from_p: float) -> float:
    """The largest difference of the MCC of two methods, from some p on."""
    scores = {(float(row["p"]), _name(row["method"])): float(row["mcc"]) for row in rows}
    return max(abs(scores[p, first] - scores[p, second]) for p in NOISE if p >= from_p)
