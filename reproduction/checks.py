"""Checks of the paper's claims. Each check returns a verdict and the numbers on which the verdict is based."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from reproduction import adaptive, deep_training, denoising, free_energy_bands, receptive_fields
from reproduction import likelihood_estimates as estimates
from reproduction import training_likelihood as likelihood
from reproduction.lab import Lab, Row
from reproduction.models import BINARY, BINARY_100, BINARY_MODELS, REAL
from reproduction.solutions import likelihood_table

TAPERS_AT, TAPERED = 20, 0.8  # epoch, and minimum fraction of the rise that is complete by then
FEW_UNIQUE = 0.1  # ratio of the numbers of solutions and starts below which there are few solutions
ALIKE = 0.1  # maximum difference, as a fraction of the gain in pseudo-likelihood
NEARLY = 0.9  # minimum fraction of the largest rise that remains at the end
SMALL = 0.4  # maximum fraction of the visible units in a stroke
STRONG_NOISE, CLOSE = 0.4, 0.1  # minimum p, and maximum difference between MCCs
RELATED, SURE = 0.05, 0.01  # minimum adjusted Rand index, and maximum p-value
COUNTED = ("solutions", "starts", "not_converged", "printed_converged", "printed_solutions")


class Finding(NamedTuple):
    """Verdict on a claim, and the numbers on which the verdict is based."""

    verdict: str
    numbers: str


def judge(good: Sequence[bool], numbers: str) -> Finding:
    """Return the verdict on a claim, given whether each part of the claim holds."""
    if not good:
        return Finding("not measured", "data or machines are missing")
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
    """Check that most of the increase in the log-likelihood is complete at epoch 20."""
    good, measured = [], []
    for name, rows in _groups(likelihood.table(lab), "data", "n_hidden").items():
        rows = [row for row in rows if row["log_likelihood"] != "" and float(row["epoch"]) <= likelihood.LAST_EPOCH]
        values = _numbers(rows, "log_likelihood")
        early = [value for row, value in zip(rows, values, strict=True) if float(row["epoch"]) <= TAPERS_AT]
        if len(early) < len(values) and values[-1] > values[0]:
            share = (early[-1] - values[0]) / (values[-1] - values[0])
            good.append(share >= TAPERED)
            measured.append(f"{name}: {share:.0%}")
    return judge(
        good,
        f"fraction of the rise since the first measured epoch, complete at epoch {TAPERS_AT}: {', '.join(measured)}",
    )


def rises_then_falls(lab: Lab) -> Finding:
    """Check that the solutions' mean F, in the paper's convention, first rises, then falls and ends below the peak."""
    good, measured = [], []
    for name, rows in _groups(free_energy_bands.table(lab), "data").items():
        values, ours, epochs = (_numbers(rows, column) for column in ("unnormalized_mean", "mean", "epoch"))
        top = next((n for n in range(len(values) - 1) if values[n] > values[n + 1]), len(values) - 1)
        low = values.index(min(values[top:]), top)
        good += [0 < top < len(values) - 1, values[-1] < values[top]]
        turns = sorted({0, top, low, len(values) - 1})
        measured.append(
            f"{name}: "
            + ", ".join(f"{values[n]:.1f} ({ours[n]:.1f} with normalized priors) at epoch {epochs[n]:g}" for n in turns)
        )
    return judge(good, "; ".join(measured))


def number_grows(lab: Lab) -> Finding:
    """Check that the number of solutions is initially 1 and grows."""
    good, measured = [], []
    for name, rows in _groups(free_energy_bands.table(lab), "data").items():
        counts, epochs = _numbers(rows, "solutions"), _numbers(rows, "epoch")
        middle = len(counts) // 2
        good += [counts[0] == 1, counts[-1] > counts[middle] > counts[0]]
        measured.append(f"{name}: " + ", ".join(f"{counts[n]:g} at epoch {epochs[n]:g}" for n in (0, middle, -1)))
    return judge(good, "; ".join(measured))


def few_unique(lab: Lab) -> Finding:
    """Check that machines with 100 hidden units have fewer than a tenth as many distinct solutions as starts."""
    good, measured = [], []
    checked = {f"{model.data} {lab.model(model).hidden[0]}" for model in free_energy_bands.MODELS[:2]}
    for name, rows in _groups(likelihood.table(lab), "data", "n_hidden").items():
        if name in checked:
            last = {key: float(rows[-1][key]) for key in COUNTED}
            share, printed = last["solutions"] / last["starts"], last["printed_solutions"] / last["starts"]
            good.append(share < FEW_UNIQUE)
            measured.append(
                f"{name}: {last['solutions']:g} solutions ({share:.1%}), {last['starts'] - last['not_converged']:g} of "
                f"{last['starts']:g} starts converged; with the printed iteration {last['printed_solutions']:g} "
                f"({printed:.1%}), {last['printed_converged']:g} converged"
            )
    return judge(good, "; ".join(measured))


def two_bands(lab: Lab) -> Finding:
    """Check that the free energies of the binary-MNIST solutions form two bands at all epochs."""
    rows = _groups(free_energy_bands.table(lab), "data").get(BINARY, [])
    rows = [row for row in rows if float(row["solutions"]) > 1]
    measured = ", ".join(
        f"{float(row['bands']):g} ({float(row['bands_by_starts']):g}) at epoch {float(row['epoch']):g}" for row in rows
    )
    return judge([float(row["bands"]) == 2 for row in rows], f"bands of solutions (weighted by starts): {measured}")


def clusters(lab: Lab) -> Finding:
    """Check that basins contain similar data: their agreement with the digits is better than chance and increases."""
    rows = [row for row in likelihood_table(lab, BINARY_100) if row.get("adjusted_rand_index", "") != ""]
    index, epochs = _numbers(rows, "adjusted_rand_index"), _numbers(rows, "epoch")
    best = index.index(max(index))
    measured = (
        f"adjusted Rand index {index[0]:.2f} at epoch {epochs[0]:g}, {index[best]:.2f} at {epochs[best]:g}, "
        f"{index[-1]:.2f} at {epochs[-1]:g}; purity {float(rows[-1]['purity']):.2f}"
    )
    return judge([index[best] > RELATED, index[-1] >= index[best]], measured)


def ordered_in_space(lab: Lab) -> Finding:
    """Check that neighboring solutions have similar F."""
    rows = [row for row in likelihood_table(lab, BINARY_100) if row.get("morans_i", "nan") not in ("", "nan")]
    rows = [row for row in rows if float(row["morans_i"]) == float(row["morans_i"])]
    measured = ", ".join(f"{float(row['morans_i']):.2f} at epoch {float(row['epoch']):g}" for row in rows)
    return judge([float(row["morans_p"]) <= SURE for row in rows], f"Moran's I {measured}")


def localizes(lab: Lab) -> Finding:
    """Check that receptive fields are more localized with more hidden units."""
    rows = _groups(receptive_fields.table(lab), "data").get(BINARY, [])
    reach = _numbers(rows, "median_reach")
    good = [later < before for before, later in pairwise(reach)]
    sizes = _numbers(rows, "n_hidden")
    return judge(good, "median reach " + ", ".join(f"{r:.2f} with {n:g}" for r, n in zip(reach, sizes, strict=True)))


def beats_pointwise(lab: Lab) -> Finding:
    """Check that TAP with up to 100 hidden units is better than the pointwise estimate at every p."""
    rows = denoising.table(lab)
    names = [str(lab.model(model).hidden[0]) for model in BINARY_MODELS[:3]]
    beaten = {name: denoising.best_p(rows, "OPE", name) for name in names}
    measured = "; ".join(
        f"{name}: worse at p = {', '.join(map(str, ps))}" if ps else f"{name}: better at every p"
        for name, ps in beaten.items()
    )
    return judge([not ps for ps in beaten.values()], measured)


def mirrors_neighbors(lab: Lab) -> Finding:
    """Check that TAP with up to 100 hidden units is as good as 1-NN when p approaches ½."""
    rows = denoising.table(lab)
    names = [str(lab.model(model).hidden[0]) for model in BINARY_MODELS[:3]]
    apart = {name: denoising.largest_difference(rows, name, "1-NN", STRONG_NOISE) for name in names}
    measured = ", ".join(f"{name}: {value:.3f}" for name, value in apart.items())
    return judge(
        [value < CLOSE for value in apart.values()], f"largest difference of MCC for p ≥ {STRONG_NOISE}: {measured}"
    )


def overtrains(lab: Lab) -> Finding:
    """Check that machines with 500 hidden units have many more solutions, and that denoising fails for strong noise."""
    rows = denoising.table(lab)
    small, large = (str(lab.model(model).hidden[0]) for model in BINARY_MODELS[2:])
    worse, fails = denoising.best_p(rows, small, large), denoising.best_p(rows, "OPE", large)
    found = _groups(likelihood.table(lab), "data", "n_hidden")
    shares = [
        float(found[f"{BINARY} {n}"][-1]["solutions"]) / float(found[f"{BINARY} {n}"][-1]["starts"])
        for n in (small, large)
    ]
    measured = (
        f"values of p at which {large} is worse than {small}: {', '.join(map(str, worse)) or 'none'}; worse than the "
        f"pointwise estimate: {', '.join(map(str, fails)) or 'none'}; unique solutions per start: {shares[0]:.0%} with "
        f"{small}, {shares[1]:.0%} with {large}"
    )
    strong = [p for p in denoising.NOISE if p >= STRONG_NOISE]
    return judge([{*strong} <= {*worse}, {*strong} <= {*fails}, shares[1] > 2 * shares[0]], measured)


def rise_together(lab: Lab) -> Finding:
    """Check that the TAP, AIS and pseudo-likelihood estimates rise together."""
    rows = estimates.table(lab)
    columns = {name: _numbers(rows, name) for name in ("tap", "ais", "pseudo")}
    measured = "; ".join(
        f"{name}: {v[0]:.1f} to {v[-1]:.1f}, best {max(v):.1f} at epoch {_numbers(rows, 'epoch')[v.index(max(v))]:g}"
        for name, v in columns.items()
    )
    return judge([v[-1] > v[0] for v in columns.values()], measured)


def adaptive_alike(lab: Lab) -> Finding:
    """Check that adaptive TAP trains as well as TAP, except with 3 iterations, where it is worse."""
    found = _groups(adaptive.table(lab), "scheme", "sweeps")
    good, measured = [], []
    for name in list(adaptive.SCHEMES)[1:]:
        for n_sweeps in adaptive.SWEEPS:
            pairs = list(zip(found[f"TAP {n_sweeps}"], found[f"{name} {n_sweeps}"], strict=False))
            gain, behind = (
                float(pairs[-1][0]["pseudo_log_likelihood"]) - float(other["pseudo_log_likelihood"])
                for other in (pairs[0][0], pairs[-1][1])
            )
            good.append(
                behind > ALIKE * abs(gain) if n_sweeps == adaptive.SWEEPS[0] else abs(behind) < ALIKE * abs(gain)
            )
            measured.append(
                f"{name}, {n_sweeps} sweeps: {behind:.2g} nats below TAP, which gained {gain:.2g} nats in "
                f"{len(pairs) - 1} epochs"
            )
    return judge(good, "; ".join(measured))


def adaptive_costs(lab: Lab) -> Finding:
    """Check that a sweep of adaptive TAP as printed in the paper takes a thousand times as long as a sweep of TAP."""
    found = _groups(adaptive.times(lab), "scheme")
    ratios = {
        name: [
            float(b["milliseconds"]) / float(a["milliseconds"]) for a, b in zip(found["TAP"], found[name], strict=True)
        ]
        for name in list(adaptive.SCHEMES)[1:]
    }
    sizes = _numbers(found["TAP"], "particles")
    measured = "; ".join(
        f"{name}: " + ", ".join(f"{r:.0f} times with {n:g} particles" for r, n in zip(own, sizes, strict=True))
        for name, own in ratios.items()
    )
    return judge([r >= 1000 for r in ratios["adaTAP as printed"]], f"{measured}; on {found['TAP'][0]['device']}")


def strokes(lab: Lab) -> Finding:
    """Check that the receptive fields of real-MNIST are strokes, like those of binary-MNIST."""
    rows = _groups(receptive_fields.table(lab), "data").get(REAL, [])
    measured = ", ".join(f"{float(r['median_reach']):.2f} with {float(r['n_hidden']):g}" for r in rows)
    return judge([float(row["median_reach"]) < SMALL for row in rows], f"median reach {measured}; see the figure")


def deep_rises(lab: Lab) -> Finding:
    """Check that the log-likelihood of deep machines increases for both training and test images."""
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
    return judge(good, "; ".join(measured))
