"""Speed, quality and memory compared to other libraries for restricted Boltzmann machines, on binary MNIST.

python benchmarks/peers.py [FOLDER] [--device cuda] [--hidden 500] [--rows 10000] [--k 1 10] [--seconds 60] [--out OUT]

FOLDER contains MNIST's *-images-idx3-ubyte.gz; without FOLDER, MNIST is downloaded. The other libraries are
scikit-learn, rbms 0.5.0, paysage 0.2.1 (which works with NumPy 2.4) and learnergy 2.0.2; libraries that are not
installed are skipped (`pip install -r benchmarks/peers.txt`, then `pip install --no-deps paysage==0.2.1
learnergy==2.0.2`). All measurements alternate within one process, since the speed of a shared machine varies over
time. The script prints a table for each question and writes all numbers to OUT/peers.csv:

 1. time of an epoch of PCD-k, with batches of 100, 100 chains and the same number of steps;
 2. log-likelihood of test rows by annealed importance sampling after the same training time, with the default settings
    of each library;
 3. TAP fixed points per second, to the same residual;
 4. time of annealed importance sampling;
 5. peak memory of training in a separate process, minus the memory after importing the library.

scikit-learn implements PCD-1 only, and learnergy CD-k only, which has the same cost as PCD-k. scikit-learn and paysage
(with NumPy) run on the CPU for any value of --device.
"""

import argparse
import contextlib
import csv
import importlib
import io
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from timing import seconds
from torch import Tensor
from torch.nn.functional import softplus

from tapmachine import PCD, Binary, TAPObjective, ais_log_likelihood, ais_log_partition, rbm, solve
from tapmachine.data.sources import read
from tapmachine.machine import BoltzmannMachine
from tapmachine.training import Monitor, momentum_sgd
from tapmachine.training.trainer import Trainer

BATCH, N_CHAINS, LEARNING_RATE = 100, 100, 0.01
N_TEMPERATURES, N_RUNS = 2000, 100
RESIDUAL, MOST_SWEEPS = 1e-8, 1000  # tolerance and limit for fixed points
VERIFIED_RESIDUAL = 1e-12  # sufficient to compare solutions in float32
SAME = 1e-3  # largest difference of magnetizations of equal solutions
SOLVED_ONE_BY_ONE = 100  # number of starts for libraries that solve one start at a time
FAST_ENOUGH = 1.5  # target for PCD on a CPU: time of the fastest other library relative to tapmachine

Parameters = tuple[Tensor, Tensor, Tensor]  # weights (n_visible, n_hidden), visible and hidden biases


class Ours:
    """Training by tapmachine, with default settings or with an objective and the paper's optimizer."""

    module = "tapmachine"

    def __init__(self, x: Tensor, n_hidden: int, device: str, objective=None, epochs=1000, plain=False) -> None:
        """If it is plain, then as the peers do it: gradients are not centered, and all have the same step size."""
        self.machine = rbm(Binary(x.shape[1]), Binary(n_hidden), generator=torch.Generator().manual_seed(0)).to(device)
        settings = {"objective": objective, "monitor": Monitor(n_starts=0, every=10**6)}
        if plain:
            settings |= {"optimizer": momentum_sgd(self.machine, LEARNING_RATE), "centered": False}
            settings |= {"compile": False} if device == "cpu" else {}
        self.trainer = Trainer(self.machine, x.to(device), epochs=epochs, **settings)

    def epoch(self) -> None:
        self.trainer.epoch()

    def parameters(self) -> Parameters:
        visible, hidden = self.machine.layers
        return self.machine.weights[0].detach(), visible.field.detach(), hidden.field.detach()


class ScikitLearn:
    """Training by scikit-learn's BernoulliRBM: PCD-1, in the order of the rows."""

    module = "sklearn.neural_network"

    def __init__(self, x: Tensor, n_hidden: int, device: str, rate: float = 0.1, epochs: int = 1) -> None:
        from sklearn.neural_network import BernoulliRBM

        self.x = x.numpy()
        self.model = BernoulliRBM(n_hidden, learning_rate=rate, batch_size=BATCH, n_iter=epochs, random_state=0)

    def epoch(self) -> None:
        """All epochs that it was made for: it begins anew with each call."""
        self.model.fit(self.x)

    def parameters(self) -> Parameters:
        model = self.model
        return tuple(
            torch.from_numpy(np.asarray(z)).float()
            for z in (model.components_.T, model.intercept_visible_, model.intercept_hidden_)
        )


class Rbms:
    """Training by the loop of `train` in rbms, without its file output, which takes longer with every step."""

    module = "rbms.training.pcd"

    def __init__(
        self, x: Tensor, n_hidden: int, device: str, k: int, rate: float = 0.01, centered: bool = True
    ) -> None:
        from rbms.bernoulli_bernoulli.classes import BBRBM
        from rbms.dataset.dataset_class import RBMDataset
        from rbms.training.pcd import fit_batch_pcd

        rows, names = x.numpy(), np.arange(len(x))
        self.data = RBMDataset(rows, names, np.ones(len(x)), names, "MNIST", True, device=device)
        self.model = BBRBM.init_parameters(n_hidden, self.data, torch.device(device), torch.float32)
        self.chains = self.model.init_chains(N_CHAINS)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate, maximize=True)
        for p in self.model.parameters():
            p.grad = torch.zeros_like(p)
        self.step, self.k, self.centered = fit_batch_pcd, k, centered

    @torch.no_grad()
    def epoch(self) -> None:
        for _ in range(len(self.data) // BATCH):
            rows = torch.randperm(len(self.data))[:BATCH]
            self.optimizer.zero_grad(set_to_none=False)
            batch = self.data.data[rows], self.data.weights[rows]
            self.chains, _ = self.step(batch, self.chains, self.model, self.k, 1.0, centered=self.centered)
            self.optimizer.step()

    def parameters(self) -> Parameters:
        return self.model.weight_matrix, self.model.vbias, self.model.hbias


class Paysage:
    """Training by paysage with NumPy: PCD-k or TAP, stochastic gradient descent, without its monitor.

    The driven sampler, which varies the temperature of the chains, is the default of paysage and is disabled for PCD-k.
    """

    module = "paysage.fit"

    def __init__(self, x: Tensor, n_hidden: int, device: str, k: int = 1, tap: bool = False, driven=False) -> None:
        from paysage import batch, fit, layers, models, optimizers, schedules

        self.data = batch.Batch({"train": batch.InMemoryTable(x.numpy(), BATCH)})
        self.model = models.BoltzmannMachine([layers.BernoulliLayer(x.shape[1]), layers.BernoulliLayer(n_hidden)])
        self.model.initialize(self.data, "hinton")
        self.trainer = fit.SGD(self.model, self.data)
        self.trainer.monitor = None
        rate = schedules.PowerLawDecay(initial=0.001, coefficient=0.1)  # as in its examples
        self.optimizer = optimizers.ADAM(stepsize=rate)
        self.settings = {"mcsteps": k, "method": fit.TAP().tap_update if tap else fit.pcd}
        self.settings |= {"beta_std": 0.6 if driven else 0.0, "verbose": False}

    def epoch(self) -> None:
        self.trainer.train(self.optimizer, 1, **self.settings)

    def parameters(self) -> Parameters:
        weights, (visible, hidden) = self.model.connections[0].weights.W(), self.model.layers
        return tuple(torch.from_numpy(np.array(z)).float() for z in (weights, visible.params.loc, hidden.params.loc))


class Learnergy:
    """Training by learnergy's RBM: CD-k with automatic differentiation; the data loader returns single rows."""

    module = "learnergy.models.bernoulli"

    def __init__(self, x: Tensor, n_hidden: int, device: str, k: int, rate: float = 0.1) -> None:
        from learnergy.models.bernoulli import RBM

        with silent():
            self.model = RBM(x.shape[1], n_hidden, steps=k, learning_rate=rate, use_gpu=device == "cuda")
        self.data = torch.utils.data.TensorDataset(x, torch.zeros(len(x)))

    def epoch(self) -> None:
        with silent():
            self.model.fit(self.data, batch_size=BATCH, epochs=1)

    def parameters(self) -> Parameters:
        return self.model.W.detach(), self.model.a.detach(), self.model.b.detach()


@contextlib.contextmanager
def silent():
    """Suppress the output of libraries."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def installed(*peers: type) -> set[type]:
    """Return the libraries that can be imported, and print the errors of the others."""
    found = {Ours}
    for peer in peers:
        try:
            with silent():
                importlib.import_module(peer.module)
            found.add(peer)
        except Exception as error:  # old libraries may raise any error on import
            print(f"{peer.__name__} is skipped: {type(error).__name__}: {error}")
    return found


class Results:
    """Results of all questions, printed as tables and written to a CSV file."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.rows = path, []

    def table(self, question: str, rows: list[dict]) -> None:
        """Print rows with the same keys as a Markdown table, and write all results so far."""
        print(f"\n{question}\n\n| {' | '.join(rows[0])} |\n| {' | '.join('---' for _ in rows[0])} |")
        for row in rows:
            print(f"| {' | '.join(shown(value) for value in row.values())} |", flush=True)
            name = next(iter(row.values()))
            self.rows += [
                {"question": question, "name": name, "quantity": key, "value": value}
                for key, value in row.items()
                if isinstance(value, int | float)
            ]
        if self.path is not None:
            with self.path.open("w", newline="") as file:
                writer = csv.DictWriter(file, ["question", "name", "quantity", "value"])
                writer.writeheader()
                writer.writerows(self.rows)


def shown(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return "–" if math.isnan(value) else f"{value:.4g}"


def in_turns(calls: dict[str, Callable[[], object]], repeats: int, device: str) -> dict[str, list[float]]:
    """Return the times of all calls in alternation; a first round for warming up is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats + 1):
        for name, call in calls.items():
            own = seconds(call, device)
            if repeat:
                taken[name].append(own)
    return taken


def ratio(taken: dict[str, list[float]], name: str, to: str) -> float:
    """Return the median ratio of the times of two calls over all rounds."""
    return statistics.median(a / b for a, b in zip(taken[name], taken[to], strict=True))


def samplers(k: int, peers: set[type]) -> dict[str, Callable[..., object]]:
    """Return functions that create a trainer of PCD-k or CD-k from rows, the number of hidden units and a device."""
    made: dict[type, dict[str, Callable[..., object]]] = {
        Ours: {
            f"tapmachine PCD-{k}, stratified": lambda *given: Ours(*given, PCD(k, N_CHAINS), plain=True),
            f"tapmachine PCD-{k}": lambda *given: Ours(*given, PCD(k, N_CHAINS, stratified=False), plain=True),
        },
        ScikitLearn: {"scikit-learn PCD-1": ScikitLearn} if k == 1 else {},
        Rbms: {f"rbms PCD-{k}": lambda *given: Rbms(*given, k, centered=False)},
        Paysage: {f"paysage PCD-{k}": lambda *given: Paysage(*given, k)},
        Learnergy: {f"learnergy CD-{k}": lambda *given: Learnergy(*given, k)},
    }
    return {name: make for peer, own in made.items() if peer in peers for name, make in own.items()}


def epoch_times(results: Results, peers: set[type], x: Tensor, options: argparse.Namespace) -> None:
    for k in options.k:
        made = {name: make(x, options.hidden, options.device) for name, make in samplers(k, peers).items()}
        taken = in_turns({name: own.epoch for name, own in made.items()}, options.repeats, options.device)
        ours, n_steps = f"tapmachine PCD-{k}", len(x) // BATCH
        rows = [
            {
                "library": name,
                "seconds per epoch": statistics.median(own),
                "fastest": min(own),
                "ms per step": 1e3 * statistics.median(own) / n_steps,
                "ratio to tapmachine PCD": ratio(taken, name, ours),
            }
            for name, own in taken.items()
        ]
        results.table(f"1. An epoch of {n_steps} steps, k = {k}, {x.shape[1]}×{options.hidden}", rows)
        others = {name: ratio(taken, name, ours) for name in taken if not name.startswith("tapmachine")}
        if others and options.device == "cpu":
            fastest = min(others, key=others.get)
            kept = "met" if others[fastest] >= FAST_ENOUGH else "not met"
            print(f"\nFastest other library: {fastest}, ratio {others[fastest]:.2f}; target {FAST_ENOUGH} {kept}.")


def as_machine(parameters: Parameters, device: str) -> BoltzmannMachine:
    W, b, c = (z.to(device) for z in parameters)
    return rbm(Binary(len(b), field=b), Binary(len(c), field=c), W).to(device)


def trained_for(make: Callable[[int], object], n_seconds: float, device: str) -> tuple[object, int, float]:
    """Train for about the given time in whole epochs; returns the trainer, the number of epochs and the seconds.

    The number of epochs is estimated from a separate first epoch, since the decay of the learning rate depends on it.
    """
    one = make(1)
    taken = seconds(one.epoch, device)
    if taken < n_seconds / 3:  # the first epoch also warms up
        taken = min(taken, seconds(one.epoch, device))
    epochs = max(1, round(n_seconds / taken))
    trained = make(epochs)
    if isinstance(trained, ScikitLearn):
        return trained, epochs, seconds(trained.epoch, device)
    done, total = 0, 0.0
    while done < epochs and total < 1.2 * n_seconds:
        total += seconds(trained.epoch, device)
        done += 1
    return trained, done, total


def qualities(
    results: Results, peers: set[type], x: Tensor, test: Tensor, options: argparse.Namespace
) -> BoltzmannMachine:
    """Compare log-likelihoods after the same training time; returns the best machine of tapmachine."""
    n_hidden, device = options.hidden, options.device
    given = x, n_hidden, device
    ways: dict[str, tuple[type, Callable[[int], object]]] = {
        "tapmachine, defaults": (Ours, lambda epochs: Ours(*given, epochs=epochs)),
        "tapmachine, PCD(1, 100)": (Ours, lambda epochs: Ours(*given, PCD(1, N_CHAINS), epochs)),
        "tapmachine, TAPObjective()": (Ours, lambda epochs: Ours(*given, TAPObjective(), epochs)),
        "scikit-learn, defaults": (ScikitLearn, lambda epochs: ScikitLearn(*given, epochs=epochs)),
        "scikit-learn, rate 0.01": (ScikitLearn, lambda epochs: ScikitLearn(*given, LEARNING_RATE, epochs)),
        "rbms, k = 10": (Rbms, lambda epochs: Rbms(*given, 10)),
        "rbms, k = 100 (its default)": (Rbms, lambda epochs: Rbms(*given, 100)),
        "paysage, PCD-1": (Paysage, lambda epochs: Paysage(*given, driven=True)),
        "paysage, TAP": (Paysage, lambda epochs: Paysage(*given, tap=True)),
        "learnergy, CD-1, defaults": (Learnergy, lambda epochs: Learnergy(*given, 1)),
        "learnergy, CD-1, rate 0.01": (Learnergy, lambda epochs: Learnergy(*given, 1, LEARNING_RATE)),
    }
    rows, best, highest = [], None, -math.inf
    for name, (peer, make) in ways.items():
        if peer not in peers:
            continue
        trained, epochs, taken = trained_for(make, options.seconds, device)
        machine = as_machine(trained.parameters(), device)
        row = {"library": name, "epochs": epochs, "seconds": taken, "log-likelihood": math.nan}
        row |= {"± of ln Z": math.nan, "effective runs": math.nan}
        if all(bool(torch.isfinite(p).all()) for p in machine.parameters()):
            estimate = ais_log_partition(machine, options.temperatures, N_RUNS, data=x.to(device))
            score = ais_log_likelihood(machine, test.to(device), estimate)
            row |= {"log-likelihood": float(score.mean), "± of ln Z": float(estimate.standard_error)}
            row |= {"effective runs": float(estimate.effective_sample_size)}
        if peer is Ours and (best is None or row["log-likelihood"] > highest):
            best, highest = machine, row["log-likelihood"]
        rows.append(row)
        print(f"({name}: {shown(row['log-likelihood'])} nats after {epochs} epochs)", flush=True)
    question = f"2. AIS log-likelihood of {len(test)} test rows, {len(x)} for training, {options.temperatures} "
    results.table(question + "temperatures", rows)
    return best


class PaysageSolver:
    """Fixed points by paysage's iteration of the TAP equations, `compute_StateTAP`, one start at a time.

    Its stopping criterion is the change of the free energy, which in float32 is dominated by rounding errors before the
    residual is small. The iteration therefore runs ten sweeps at a time, with a check of the residual in between.
    """

    at_once = 10

    def __init__(self, machine: BoltzmannMachine, tolerance: float) -> None:
        from paysage import layers, models

        self.tolerance = tolerance
        W, b, c = (np.ascontiguousarray(z.detach().cpu().numpy()) for z in _parameters(machine))
        self.model = models.BoltzmannMachine([layers.BernoulliLayer(len(b)), layers.BernoulliLayer(len(c))])
        self.model.layers[0].params.loc[:], self.model.layers[1].params.loc[:] = b, c
        self.model.connections[0].weights.params.matrix[:] = W
        self.cache = self.model._get_rescaled_weights()

    def sweep(self, state, n_sweeps: int):
        settings = {"tol": 0.0, "max_iters": n_sweeps, "rescaled_weight_cache": self.cache}
        return self.model.compute_StateTAP(use_GD=False, seed=state, **settings)[0]

    def __call__(self, row: np.ndarray) -> tuple[np.ndarray, bool]:
        """Return the visible magnetizations reached from a row, and whether the residual is below the tolerance."""
        from paysage.models.state import StateTAP

        visible, hidden = self.model.layers
        mean = np.clip(row, 1e-6, 1 - 1e-6).astype(np.float32)  # paysage takes the logarithm of the mean
        start = [visible.get_magnetization(mean), hidden.get_magnetization(np.full(hidden.len, 0.5, np.float32))]
        state = StateTAP(start, self.model.lagrange_multipliers_analytic(start))
        for _ in range(0, MOST_SWEEPS, self.at_once):
            state = self.sweep(state, self.at_once - 1)
            before = [(own.mean.copy(), own.variance.copy()) for own in state.cumulants]
            state = self.sweep(state, 1)
            changes = [
                np.concatenate([now - then for now, then in zip(own, old, strict=True)])
                for own, old in zip(state.cumulants, before, strict=True)
            ]
            if 2 * np.square(np.concatenate(changes)).mean() <= self.tolerance:  # of mean and variance, over units
                return state.cumulants[0].mean, True
        return state.cumulants[0].mean, False


def _parameters(machine: BoltzmannMachine) -> Parameters:
    visible, hidden = machine.layers
    return machine.weights[0], visible.field, hidden.field


def fixed_points(
    results: Results, peers: set[type], machine: BoltzmannMachine, x: Tensor, options: argparse.Namespace
) -> None:
    """Compare the number of fixed points per second and, for the first starts, the accuracy of the solutions.

    A small change in the next sweep does not imply a small distance from the solution. Each solution is therefore
    refined in float64 to 1e-14, which gives the distance, and is compared to the solution of tapmachine from the same
    start.
    """
    device, rows = options.device, []
    few = x[:SOLVED_ONE_BY_ONE].to(device)
    exact = as_machine(tuple(z.detach() for z in _parameters(machine)), device).double()

    def followed_up(means: Tensor) -> Tensor:
        return solve(exact, means.double(), tol=1e-14, max_sweeps=10 * MOST_SWEEPS).moments[0].mean

    goal = followed_up(few)

    def add(name: str, means: Tensor, done: Tensor, taken: float) -> None:
        means = means[: len(few)].to(device)
        ended, solved = followed_up(means), done[: len(few)].to(device)
        distance, other = (ended - means).abs().amax(1)[solved], (ended - goal).abs().amax(1)[solved]
        row = {"library": name, "fixed points per second": float(done.sum()) / taken}
        row |= {"solved": float(done.double().mean()), "largest distance, median": float(distance.median())}
        rows.append(row | {"same solution": float((other <= SAME).double().mean())})

    for count in (100, 1000):
        starts = x[:count].to(device)
        taken = []
        for _ in range(4):
            begin = time.perf_counter()
            found = solve(machine, starts, tol=RESIDUAL, max_sweeps=MOST_SWEEPS)
            means = found.moments[0].mean.cpu()  # waits for the GPU
            taken.append(time.perf_counter() - begin)
        add(f"tapmachine, {count} starts", means, found.converged.cpu(), statistics.median(taken[1:]))
    if Paysage in peers:
        given = x[:SOLVED_ONE_BY_ONE].numpy()
        for tolerance in (RESIDUAL, VERIFIED_RESIDUAL):
            solver = PaysageSolver(machine, tolerance)
            solver(given[0])
            begin = time.perf_counter()
            ended = [solver(row) for row in given]
            taken_by_peer = time.perf_counter() - begin
            means = torch.from_numpy(np.stack([mean for mean, _ in ended]))
            done = torch.tensor([own for _, own in ended])
            add(f"paysage to {tolerance:g}, {len(given)} starts one by one", means, done, taken_by_peer)
    results.table(f"3. TAP fixed points, mean squared change ≤ {RESIDUAL:g}", rows)
    print(
        "\nThe distance is the largest difference of a visible magnetization from the solution refined in float64. "
        f"'Same solution': within {SAME:g} of the solution of tapmachine from the same start, both refined."
    )


def annealing_times(
    results: Results, peers: set[type], machine: BoltzmannMachine, x: Tensor, options: argparse.Namespace
) -> None:
    device, n_temperatures = options.device, 300
    W, b, c = (z.detach() for z in _parameters(machine))
    found: dict[str, float] = {}

    def ours() -> None:
        estimate = ais_log_partition(machine, n_temperatures, N_RUNS, data=x.to(device))
        found["tapmachine"] = float(estimate.log_partition + softplus(b).sum() + softplus(c).sum())

    calls = {"tapmachine": ours}
    if Rbms in peers:
        from rbms.bernoulli_bernoulli.classes import BBRBM
        from rbms.partition_function.ais import compute_partition_function_ais

        peer = BBRBM(weight_matrix=W, vbias=b, hbias=c)

        def theirs() -> None:
            found["rbms"] = compute_partition_function_ais(N_RUNS, n_temperatures + 1, peer)

        calls["rbms"] = theirs
    taken = in_turns(calls, options.repeats, device)
    rows = [
        {
            "library": name,
            "ms per temperature": 1e3 * statistics.median(own) / n_temperatures,
            "ratio to tapmachine": ratio(taken, name, "tapmachine"),
            "ln Z": found[name],
        }
        for name, own in taken.items()
    ]
    results.table(f"4. Annealed importance sampling, {N_RUNS} runs, {n_temperatures} temperatures", rows)
    print("\nscikit-learn, paysage and learnergy do not implement annealed importance sampling.")


def resident(peak: bool = False) -> float:
    """Return the current or the peak memory of this process in MiB."""
    name = "VmHWM:" if peak else "VmRSS:"
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def measure_memory(peer: type, make: Callable[..., object], options: argparse.Namespace) -> None:
    """Train for one epoch in the current process, which must be new, and print the memory use as JSON."""
    with silent():
        importlib.import_module(peer.module)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident()
    with silent():
        make(torch.from_numpy(np.load(options.folder)), options.hidden, options.device).epoch()
    print(json.dumps({"peak": resident(peak=True) - before, "import": before}))


def memories(results: Results, peers: set[type], x: Tensor, options: argparse.Namespace) -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        np.save(path, x.numpy())
        for name in samplers(1, peers):
            words = [sys.executable, __file__, str(path), "--memory", name]
            words += ["--device", options.device, "--hidden", str(options.hidden)]
            answer = subprocess.run(words, capture_output=True, text=True, check=False)
            if answer.returncode:
                print(f"{name}: {answer.stderr.splitlines()[-1]}")
                continue
            found = json.loads(answer.stdout.splitlines()[-1])
            rows.append({"library": name, "peak, MiB": found["peak"], "importing, MiB": found["import"]})
    data, parameters = (4 * n / 2**20 for n in (x.numel(), x.shape[1] * options.hidden))
    question = f"5. Peak memory of an epoch beyond importing; data {data:.1f} MiB, parameters {parameters:.1f}"
    results.table(question, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="folder that contains MNIST (default: download it)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--hidden", type=int, default=500)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--k", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--seconds", type=float, default=60.0, help="training time of each library in question 2")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--temperatures", type=int, default=N_TEMPERATURES)
    parser.add_argument("--questions", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--memory", help=argparse.SUPPRESS)  # internal, for the separate process
    options = parser.parse_args()
    if options.memory:
        for peer in (Ours, ScikitLearn, Rbms, Paysage, Learnergy):
            own = samplers(1, {peer})
            if options.memory in own:
                measure_memory(peer, own[options.memory], options)
        return
    torch.manual_seed(0)
    np.random.seed(0)  # scikit-learn has a separate seed, paysage uses the global generator
    sources = ("mnist", "mnist-test")
    if options.folder:
        sources = (options.folder / f"{name}-images-idx3-ubyte.gz" for name in ("train", "t10k"))
    train, test = (torch.from_numpy(read(source).rows > 0.5).float() for source in sources)
    x = train[: options.rows].contiguous()
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
    results = Results(options.out and options.out / "peers.csv")
    peers = installed(ScikitLearn, Rbms, Paysage, Learnergy)
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"{x.shape[1]}×{options.hidden}, {len(x)} rows, batches of {BATCH}, {where}, torch {torch.__version__}")
    if 1 in options.questions:
        epoch_times(results, peers, x, options)
    if 2 in options.questions:
        machine = qualities(results, peers, x, test, options)
    elif {3, 4} & set(options.questions):
        ours = Ours(x, options.hidden, options.device, epochs=3)
        for _ in range(3):
            ours.epoch()
        machine = as_machine(ours.parameters(), options.device)
    if 3 in options.questions:
        fixed_points(results, peers, machine, x, options)
    if 4 in options.questions:
        annealing_times(results, peers, machine, x, options)
    if 5 in options.questions:
        memories(results, peers, x, options)


if __name__ == "__main__":
    main()
