"""Tour of the unit types: plot each prior with and without a tilt, its exact moments, and a histogram of draws.

    python examples/units_tour.py [folder]

Writes units.png to the folder (default: demo) and prints a table.
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import Tensor

from tapmachine import Binary, Categorical, Custom, Gaussian, Spin, Tilt, TruncatedGaussBernoulli, TruncatedGaussian
from tapmachine.units import Units

DRAWS = 200_000
INK, PRIOR, TILTED, MEAN = "#222222", "#9aa5b1", "#2f6fb0", "#d1495b"


def tour() -> list[tuple[str, Units, Tilt]]:
    """Return a title, a layer of one unit, and a tilt for each panel, in float64."""
    torch.set_default_dtype(torch.float64)
    inf = float("inf")
    return [
        ("Binary", Binary(1, field=-1.0), Tilt(1.5, 0.0)),
        ("Spin", Spin(1, field=0.3), Tilt(-1.0, 0.0)),
        ("Categorical, 5 states", Categorical(1, 5), Tilt(torch.tensor([[0.0, 1.0, 2.0, 0.5, -1.0]]), 0.0)),
        ("Gaussian", Gaussian(1), Tilt(1.5, 1.0)),
        ("TruncatedGaussian, V + A > 0", TruncatedGaussian(1, precision=8.0), Tilt(4.0, 12.0)),
        ("TruncatedGaussian, V + A < 0", TruncatedGaussian(1, precision=8.0), Tilt(-9.0, -28.0)),
        ("TruncatedGaussian at an edge, B = −20", TruncatedGaussian(1, precision=1.0), Tilt(-20.0, 0.0)),
        ("TruncatedGaussian on [0, ∞)", TruncatedGaussian(1, 0.0, inf, precision=1.0), Tilt(1.5, -0.5)),
        ("TruncatedGaussBernoulli", TruncatedGaussBernoulli(1, active_probability=0.4), Tilt(3.0, 6.0)),
        ("Custom: −3|x| on [−1, 1]", Custom(1, lambda x: -3 * x.abs(), -1.0, 1.0), Tilt(1.5, 0.0)),
    ]


def tilted_log_probability(units: Units, x: Tensor, tilt: Tilt) -> Tensor:
    """Return the tilted log-probability of one unit, ln P(x) + Bx − ½Ax² − ln Z(B,A)."""
    exponent = tilt.field * x - 0.5 * tilt.precision * x**2
    if isinstance(units, Categorical):
        exponent = exponent.sum(-1)
    return (units.log_prior(x) + exponent - units.log_partition(tilt)).flatten()


def states_of(units: Units) -> Tensor | None:
    """Return all states of a discrete unit, or None for a continuous one."""
    if isinstance(units, Binary):
        return torch.tensor([[0.0], [1.0]])
    if isinstance(units, Spin):
        return torch.tensor([[-1.0], [1.0]])
    if isinstance(units, Categorical):
        return torch.eye(units.q).unsqueeze(1)
    return None


def draw(axes: plt.Axes, title: str, units: Units, tilt: Tilt, draws: Tensor) -> None:
    """Plot the prior in gray, the tilted prior in blue, draws as a histogram, and the mean in red."""
    no_tilt = Tilt(0.0, 0.0)
    states = states_of(units)
    if states is not None:
        one_number = states.argmax(-1).flatten() if isinstance(units, Categorical) else states.flatten()
        width = 0.3
        seen = [(draws == state).flatten(1).all(-1).double().mean().item() for state in states]
        axes.bar(one_number, seen, 2 * width, color=TILTED, alpha=0.25)
        axes.plot(one_number, tilted_log_probability(units, states, no_tilt).exp(), "_", ms=16, mew=2, color=PRIOR)
        axes.plot(one_number, tilted_log_probability(units, states, tilt).exp(), "_", ms=16, mew=2, color=TILTED)
        axes.set_xticks(one_number)
        axes.set_ylim(0, None)
    else:
        low, high = draws.min().item(), draws.max().item()
        if isinstance(units, Gaussian):
            low, high = -3.0, 4.0
        elif not isinstance(units, TruncatedGaussian) or torch.isfinite(units.upper).all():
            low, high = float(units.lower), float(units.upper)
        active = draws[draws != 0] if isinstance(units, TruncatedGaussBernoulli) else draws.flatten()
        share = len(active) / len(draws)
        bins = torch.linspace(low, high, 61)
        counts = torch.histogram(active, bins).hist / (len(active) * (bins[1] - bins[0])) * share
        axes.stairs(counts, bins, fill=True, color=TILTED, alpha=0.25)
        x = torch.linspace(low, high, 801)[1:-1].unsqueeze(-1)
        axes.plot(x, tilted_log_probability(units, x, no_tilt).exp(), color=PRIOR, lw=1.5)
        axes.plot(x, tilted_log_probability(units, x, tilt).exp(), color=TILTED, lw=1.5)
        if isinstance(units, TruncatedGaussBernoulli):
            spike = torch.zeros(1, 1)
            for kind, color, label in ((no_tilt, PRIOR, "prior"), (tilt, TILTED, "tilted")):
                probability = tilted_log_probability(units, spike, kind).exp().item()
                axes.plot([0, 0], [0, probability], color=color, lw=3, solid_capstyle="butt")
                axes.annotate(
                    f"P[x = 0] = {probability:.2f}  ({label})",
                    (0.97, 0.92 if kind is no_tilt else 0.83), xycoords="axes fraction", ha="right", va="top",
                    fontsize=8, color=color,
                )  # fmt: skip
            axes.margins(y=0.35)
        axes.set_ylim(0, None)
    if not isinstance(units, Categorical):
        axes.axvline(units.moments(tilt).mean.item(), color=MEAN, lw=1.2, ls=(0, (4, 2)))
    axes.set_title(title, fontsize=10, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    figure, axes = plt.subplots(2, 5, figsize=(16, 6.2), layout="constrained")
    print(f"{'unit type':40} {'ln Z':>9} {'mean':>9} {'variance':>9}   mean and variance of {DRAWS:,} draws")
    with torch.no_grad():
        for panel, (title, units, tilt) in zip(axes.flat, tour(), strict=True):
            field = torch.as_tensor(tilt.field).expand(DRAWS, *units.state_shape)
            draws = units.sample(Tilt(field, tilt.precision), generator=generator)
            mean, variance = (z.flatten()[-1].item() for z in units.moments(tilt))
            seen_mean, seen_variance = (z.flatten()[-1].item() for z in (draws.mean(0), draws.var(0)))
            figures = f"{units.log_partition(tilt).item():9.4f} {mean:9.4f} {variance:9.4f}"
            print(f"{title:40} {figures}   {seen_mean:9.4f} {seen_variance:9.4f}")
            draw(panel, title, units, tilt, draws)
    handles = [
        plt.Line2D([], [], color=PRIOR, label="prior P(x)"),
        plt.Line2D([], [], color=TILTED, label="tilted, ∝ P(x) exp(Bx − ½Ax²)"),
        plt.Rectangle((0, 0), 1, 1, color=TILTED, alpha=0.25, label=f"{DRAWS:,} draws"),
        plt.Line2D([], [], color=MEAN, ls=(0, (4, 2)), label="mean"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    target = folder / "units.png"
    figure.savefig(target, dpi=110)
    print(f"\nWrote {target}")


if __name__ == "__main__":
    main()
