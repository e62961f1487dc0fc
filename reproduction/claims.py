"""Tables: the settings of all trainings [tab:params], and claims of the paper with verdicts and measured numbers."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from matplotlib.figure import Figure as Drawing

from reproduction import adaptive, denoising, models
from reproduction.features import localization
from reproduction.figure import figure, included, text_table
from reproduction.lab import Lab, Row, column, table, where
from reproduction.landscape import MODELS, bands
from reproduction.likelihoods import DEEP_LABELS, LAST_EPOCH, by_tap, estimates, of_deep_machines
from reproduction.models import BINARY, BINARY_100, BINARY_500, BINARY_MODELS, REAL, TABLE, Model
from reproduction.solutions import measure_solutions

TAPERS_AT, TAPERED = 20, 0.8  # epoch, and minimum fraction of the rise that is complete by then
FEW_UNIQUE = 0.1  # ratio of the numbers of solutions and starts below which there are few solutions
ALIKE = 0.1  # maximum difference, as a fraction of the gain in pseudo-likelihood
NEARLY = 0.9  # minimum fraction of the largest rise that remains at the end
SMALL = 0.4  # maximum fraction of the visible units in a stroke
STRONG_NOISE, CLOSE = 0.4, 0.1  # minimum p, and maximum difference between MCCs
RELATED, SURE = 0.05, 0.01  # minimum adjusted Rand index, and maximum p-value

HEADER = ("machine", "hidden", "M", "K", "visible", "γ", "γ end", "ε", "η", "pretrain", "epochs")
Checked = tuple[Sequence[bool], Sequence[str]]  # whether each part of a claim holds, and the measured numbers
CLAIMS: dict[str, tuple[Callable[[Lab], Checked], Sequence[Model]]] = {}


@table("params")
def settings(lab: Lab) -> Iterable[Row]:
    """Return the settings of each model."""
    for model in map(lab.model, (*TABLE, *models.DEEP_MODELS)):
        yield {
            "model": model.name,
            "hidden": "-".join(map(str, model.hidden)),
            "M": model.batch_size,
            "K": model.particles,
            "visible": models.VISIBLE[model.data],
            "gamma": model.learning_rate,
            "last_gamma": model.learning_rate * model.decay,
            "epsilon": model.weight_decay,
            "eta": model.momentum,
            "pretrain": model.pretrain,
            "epochs": model.epochs,
        }


@figure("params")
def draw_settings(lab: Lab) -> Drawing:
    """Table I: the settings of all trainings."""
    cells = [[f"{v:g}" if isinstance(v, float) else str(v) for v in row.values()] for row in settings(lab)]
    widths = [max(map(len, column)) + 2 for column in zip(HEADER, *cells, strict=True)]
    return text_table([HEADER, *cells], widths)


def claim(text: str, needed: Sequence[Model] = ()) -> Callable[[Callable[[Lab], Checked]], None]:
    """Decorate the function that checks a claim by the tables of some models."""
    return lambda check: CLAIMS.update({text: (check, needed)})


def judged(lab: Lab, text: str) -> Row:
    """Return the verdict on a claim."""
    check, needed = CLAIMS[text]
    good, numbers = check(lab) if included(lab, needed) == [*needed] else ([], [])
    if not good:
        return {"claim": text, "verdict": "not measured", "numbers": "data or machines are missing"}
    verdict = "holds" if all(good) else "holds in part" if any(good) else "does not hold"
    return {"claim": text, "verdict": verdict, "numbers": "; ".join(numbers)}


def by(rows: Sequence[Row], *names: str) -> Iterable[tuple[str, list[Row]]]:
    """Yield groups of rows that agree in some columns, and their names."""
    for values in dict.fromkeys(tuple(row[name] for name in names) for row in rows):
        words = (f"{value:g}" if isinstance(value, float) else str(value) for value in values)
        yield " ".join(words), where(rows, **dict(zip(names, values, strict=True)))


def at(rows: Sequence[Row], name: str, indices: Iterable[int], form: str = "g") -> str:
    """Return the values of a column at some rows, with their epochs."""
    return ", ".join(f"{float(rows[n][name]):{form}} at epoch {float(rows[n]['epoch']):g}" for n in indices)


@claim("the log-likelihood tapers near epoch 20")
def _(lab: Lab) -> Checked:
    good, numbers = [], []
    for name, rows in by(by_tap(lab), "data", "n_hidden"):
        rows = [row for row in rows if row["log_likelihood"] != "" and float(row["epoch"]) <= LAST_EPOCH]
        values = column(rows, "log_likelihood")
        early = column([row for row in rows if float(row["epoch"]) <= TAPERS_AT], "log_likelihood")
        if len(early) < len(values) and values[-1] > values[0]:
            fraction = (early[-1] - values[0]) / (values[-1] - values[0])
            good.append(fraction >= TAPERED)
            numbers.append(f"{name}: {fraction:.0%} of the rise is complete at epoch {TAPERS_AT}")
    return good, numbers


@claim("the free energy first rises, then falls")
def _(lab: Lab) -> Checked:
    good, numbers = [], []
    for name, rows in by(bands(lab), "data"):
        values = column(rows, "unnormalized_mean")  # as in the paper
        top = next((n for n in range(len(values) - 1) if values[n] > values[n + 1]), len(values) - 1)
        turns = sorted({0, top, values.index(min(values[top:]), top), len(values) - 1})
        good += [0 < top < len(values) - 1, values[-1] < values[top]]
        ours = at(rows, "mean", turns, ".1f")
        numbers.append(f"{name}: {at(rows, 'unnormalized_mean', turns, '.1f')}; with normalized priors {ours}")
    return good, numbers


@claim("the number of solutions starts at 1 and grows")
def _(lab: Lab) -> Checked:
    good, numbers = [], []
    for name, rows in by(bands(lab), "data"):
        counts, middle = column(rows, "solutions"), len(rows) // 2
        good += [counts[0] == 1, counts[-1] > counts[middle] > counts[0]]
        numbers.append(f"{name}: {at(rows, 'solutions', (0, middle, -1))}")
    return good, numbers


@claim("less than 10 % unique solutions with 100 hidden units", [BINARY_100])
def _(lab: Lab) -> Checked:
    good, numbers = [], []
    for model in included(lab, MODELS[:2]):
        last = measure_solutions(lab, model).likelihood[-1]
        starts, found, printed = (float(last[name]) for name in ("starts", "solutions", "printed_solutions"))
        good.append(found / starts < FEW_UNIQUE)
        numbers.append(
            f"{model.data}: {found / starts:.1%} of {starts:g} starts, {last['converged']:g} of which converged; with "
            f"the printed iteration {printed / starts:.1%}, {last['printed_converged']:g} converged"
        )
    return good, numbers


@claim("two bands of free energy on binary-MNIST at all epochs", [BINARY_100])
def _(lab: Lab) -> Checked:
    rows = [row for row in where(bands(lab), data=BINARY) if float(row["solutions"]) > 1]
    counts = [at(rows, name, range(len(rows))) for name in ("bands", "bands_by_starts")]
    return [row["bands"] == 2 for row in rows], [f"solutions: {counts[0]}", f"weighted by starts: {counts[1]}"]


@claim("high and low free energies are not random in space", [BINARY_100])
def _(lab: Lab) -> Checked:
    rows = [row for row in measure_solutions(lab, BINARY_100).likelihood if row.get("morans_i", "") != ""]
    return [p <= SURE for p in column(rows, "morans_p")], [f"Moran's I {at(rows, 'morans_i', range(len(rows)), '.2f')}"]


@claim("solutions cluster similar data", [BINARY_100])
def _(lab: Lab) -> Checked:
    """Check that the agreement of basins with the digits is better than chance and increases."""
    name = "adjusted_rand_index"
    rows = [row for row in measure_solutions(lab, BINARY_100).likelihood if row.get(name, "") != ""]
    index = column(rows, name)
    best = index.index(max(index))
    numbers = [f"adjusted Rand index {at(rows, name, (0, best, -1), '.2f')}", f"purity {rows[-1]['purity']:.2f}"]
    return [index[best] > RELATED, index[-1] >= index[best]], numbers


def _reach(lab: Lab, data: str) -> tuple[list[float], list[str]]:
    rows = where(localization(lab), data=data)
    numbers = [f"{row['median_reach']:.2f} with {row['n_hidden']:g}" for row in rows]
    return column(rows, "median_reach"), [f"median reach {', '.join(numbers)}"]


@claim("localization grows with the number of hidden units", BINARY_MODELS)
def _(lab: Lab) -> Checked:
    reach, numbers = _reach(lab, BINARY)
    return [later < before for before, later in pairwise(reach)], numbers


@claim("real-MNIST learns strokes")
def _(lab: Lab) -> Checked:
    reach, numbers = _reach(lab, REAL)
    return [value < SMALL for value in reach], numbers


def _mcc(lab: Lab, method: str | Model) -> dict[float, float]:
    """Return the MCC of a method or model by p."""
    name = method if isinstance(method, str) else denoising.name_of(lab, method)
    return {float(row["p"]): float(row["mcc"]) for row in where(denoising.scores(lab), method=name)}


def _worse_at(lab: Lab, method: str | Model, other: str | Model) -> list[float]:
    """Return the values of p above 0 at which one method is worse than another."""
    a, b = _mcc(lab, method), _mcc(lab, other)
    return [p for p in a if p > 0 and a[p] < b[p]]


@claim("TAP beats the pointwise estimate at every p with up to 100 hidden units", BINARY_MODELS)
def _(lab: Lab) -> Checked:
    worse = {denoising.name_of(lab, model): _worse_at(lab, model, "OPE") for model in BINARY_MODELS[:3]}
    return [not ps for ps in worse.values()], [f"{name}: worse at p in {ps}" for name, ps in worse.items()]


@claim("TAP mirrors 1-NN near p = 1/2 with up to 100 hidden units", BINARY_MODELS)
def _(lab: Lab) -> Checked:
    nearest, apart = _mcc(lab, "1-NN"), dict[str, float]()
    for model in BINARY_MODELS[:3]:
        own = _mcc(lab, model)
        apart[denoising.name_of(lab, model)] = max(abs(own[p] - nearest[p]) for p in own if p >= STRONG_NOISE)
    numbers = [f"{name}: MCC differs by up to {value:.3f}" for name, value in apart.items()]
    return [value < CLOSE for value in apart.values()], numbers


@claim("500 hidden units are over-trained", BINARY_MODELS)
def _(lab: Lab) -> Checked:
    """Check that there are many more solutions, and that denoising fails for strong noise."""
    worse, fails = (_worse_at(lab, BINARY_500, other) for other in (BINARY_100, "OPE"))
    last = [measure_solutions(lab, model).likelihood[-1] for model in (BINARY_100, BINARY_500)]
    small, large = (float(row["solutions"]) / float(row["starts"]) for row in last)
    strong = {p for p in denoising.NOISE if p >= STRONG_NOISE}
    numbers = [
        f"worse than 100 hidden units at p in {worse}, and than the pointwise estimate at p in {fails}",
        f"unique solutions per start: {small:.0%} with 100 and {large:.0%} with 500 hidden units",
    ]
    return [strong <= {*worse}, strong <= {*fails}, large > 2 * small], numbers


@claim("AIS, pseudo-likelihood and TAP rise together", [BINARY_500])
def _(lab: Lab) -> Checked:
    rows, good, numbers = estimates(lab), [], []
    for name in ("tap", "ais", "pseudo"):
        values = column(rows, name)
        good.append(values[-1] > values[0])
        best = values.index(max(values))
        numbers.append(f"{name}: {values[0]:.1f} to {values[-1]:.1f}, best {at(rows, name, [best], '.1f')}")
    return good, numbers


@claim("adaptive TAP trains as TAP does, and worse with 3 iterations")
def _(lab: Lab) -> Checked:
    good, numbers = [], []
    for scheme in list(adaptive.SCHEMES)[1:]:
        for sweeps in adaptive.SWEEPS:
            rows = where(adaptive.trainings(lab), sweeps=sweeps)
            tap, other = (column(where(rows, scheme=own), "pseudo_log_likelihood") for own in ("TAP", scheme))
            n = min(len(tap), len(other)) - 1
            gain, behind = tap[n] - tap[0], tap[n] - other[n]
            is_worse = behind > ALIKE * abs(gain)
            good.append(is_worse if sweeps == adaptive.SWEEPS[0] else abs(behind) < ALIKE * abs(gain))
            numbers.append(f"{scheme}, {sweeps} sweeps: {behind:.2g} of {gain:.2g} nats below TAP in {n} epochs")
    return good, numbers


@claim("a sweep of adaptive TAP takes a thousand times as long")
def _(lab: Lab) -> Checked:
    rows = adaptive.times(lab)
    tap, *others = (column(where(rows, scheme=scheme), "milliseconds") for scheme in adaptive.SCHEMES)
    printed, ours = ([b / a for a, b in zip(tap, own, strict=True)] for own in others)
    listed = [", ".join(f"{ratio:.0f}" for ratio in own) for own in (printed, ours)]
    particles = ", ".join(f"{n:g}" for n in column(where(rows, scheme="TAP"), "particles"))
    numbers = [f"times as printed: {listed[0]}", f"ours: {listed[1]}", f"{particles} particles on {rows[0]['device']}"]
    return [ratio >= 1000 for ratio in printed], numbers


@claim("the log-likelihood of deep machines rises")
def _(lab: Lab) -> Checked:
    good, numbers = [], []
    for layers, rows in by(of_deep_machines(lab), "hidden_layers"):
        for name, label in DEEP_LABELS.items():
            values = column(rows, name)
            best = values.index(max(values))
            good.append(values[-1] - values[0] > NEARLY * (values[best] - values[0]))
            first_last, highest = (at(rows, name, places, ".4f") for places in ((0, -1), [best]))
            numbers.append(f"{layers} layers, {label}: {first_last}, best {highest}")
    return good, numbers


@table("claims")
def verdicts(lab: Lab) -> Iterable[Row]:
    """Return the verdict on each claim."""
    return (judged(lab, text) for text in CLAIMS)


@figure("claims", TABLE)
def draw_claims(lab: Lab) -> Drawing:
    """Claims of the paper, with a verdict on each."""
    cells = [[str(cell) for cell in row.values()] for row in verdicts(lab)]
    return text_table([("claim", "verdict", "measured"), *cells], (27, 14, 62))
