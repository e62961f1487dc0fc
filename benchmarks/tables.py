"""Training time and test log-likelihood of binary RBMs on tables of the literature, for several methods.

    python benchmarks/tables.py FOLDER [--device cuda] [--tables jester,voting] [--hidden 23,200] [--seeds 3]
        [--methods default,tap,pcd10] [--out tables.md] [--minutes 10] [--jobs 1]
    python benchmarks/tables.py FOLDER --score-published [--device cuda]
    python benchmarks/tables.py --quick

FOLDER contains density_tables.npz, mnist_salakhutdinov_murray.npz (table mnist-sm) and MNIST's *-images-idx3-ubyte.gz
(table mnist, thresholded at one half). The methods are:

    default        `fit` with default settings, without measurements
    default+valid  default with early stopping on the validation rows of the table; the time includes measurements
    tap            `fit` with TAPObjective() and default settings otherwise
    pcd1, pcd10    plain PCD: independent chains without restarts, `momentum_sgd` without weight decay, no averaging, a
                   learning rate that decays to 1 % over 50 epochs from 1, 3 or 10 times 0.027/(λ/4), where λ is the
                   largest variance
    sklearn, rbms  BernoulliRBM (CPU only) and rbms (PCD-10) for as long as default took; learning rate 0.01, 0.03 or
                   0.1

For the last four methods, the learning rate with the best TEST score for the first seed is reported and used for the
other seeds, and only its time is counted. This favors them over default and tap, which are not tuned on test rows. The
word "edge" marks a best learning rate that is the smallest or largest tried, so that a rate beyond it may be better
(--factors 3,10,30). Epochs and times differ between methods; --pcd-epochs makes them equal.

Scores are means over test rows in nats. They are exact if the hidden states can be enumerated (23 hidden units, 100
columns: about a minute on one core), and estimated by AIS otherwise, from the means of the training rows and, as a
check, from those of short chains. A row is flagged if both estimates differ by more than 0.5 nats or if the weights
collapse.

Results are appended to a .jsonl file next to --out, and the same command continues an interrupted run. Delete the file
after changing the code. After the time limit --minutes, remaining jobs are dropped, additional seeds first. With
--jobs, several training runs share the device, and each takes longer than it would alone.
"""

import argparse
import functools
import importlib.util
import json
import math
import multiprocessing
import statistics
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sklearn.neural_network import BernoulliRBM
from table_data import LITERATURE, TABLES, Table, load, write
from timing import seconds
from torch import Tensor
from torch.nn.functional import softplus

from tapmachine import PCD, Binary, TAPObjective, fit, rbm
from tapmachine.data.errors import DivergenceError, FileError, LikelihoodWarning
from tapmachine.data.rows import spaced
from tapmachine.likelihood import ais_log_likelihood, ais_log_partition, exact_log_likelihood
from tapmachine.machine import BoltzmannMachine, from_bernoulli_rbm
from tapmachine.training import Monitor, geometric_decay, momentum_sgd
from tapmachine.training.optimizers import GROWTH, SOME_ROWS

METHODS = ("default", "default+valid", "tap", "pcd1", "pcd10", "sklearn", "rbms")
PEERS, TUNED, PEERS_RATE, BATCH = {"sklearn", "rbms"}, {"pcd1", "pcd10", "sklearn", "rbms"}, 0.01, 100
ENUMERABLE = {"cpu": 2e9, "cuda": 1e11}  # states times columns
TEMPERATURES, N_RUNS = {"cpu": 2000, "cuda": 10_000}, {"cpu": 100, "cuda": 500}
LARGEST_GAP, FEWEST_EFFECTIVE = 0.5, 0.1  # difference of both estimates in nats; fraction of effective runs
NOTES = """[1] As reported in the literature, not measured here. RBM: Salakhutdinov and Murray (2008).

Training time: mean over seeds. ± seeds: standard deviation over seeds. ± ln Z: standard error of AIS. ± rows: standard
error over test rows, which are the same for all methods. The learning rate of pcd1, pcd10, sklearn and rbms is the best
by test score, and the time is for this learning rate only. Edge: the best one is the smallest or the largest tried."""


class Job(NamedTuple):
    table: str
    hidden: int
    method: str
    factor: int  # factor of the learning rate; 1 for methods that are not tuned
    seed: int


def plain_learning_rate(x: Tensor) -> float:
    """Return the learning rate 0.027/(λ/4), at which small weights grow by 2.7 % per step."""
    rows = spaced(x, SOME_ROWS).double()
    return GROWTH / (0.25 * float(torch.linalg.matrix_norm(rows - rows.mean(0), ord=2) ** 2 / len(rows)))


def train(job: Job, table: Table, options: argparse.Namespace) -> tuple[BoltzmannMachine | None, dict]:
    """Train a machine; returns it, or None if training diverged, with the time, epochs and initial learning rate."""
    machine = rbm(Binary(table.train.shape[1]), Binary(job.hidden), generator=torch.Generator().manual_seed(job.seed))
    machine, epochs, history = machine.to(options.device), options.epochs or options.pcd_epochs, []
    settings = {"monitor": Monitor(n_starts=0, likelihood=job.method == "default+valid"), "epochs": options.epochs}
    if job.method == "default+valid":
        settings["validation"] = table.valid
    elif job.method == "tap":
        settings["objective"] = TAPObjective()
    elif job.method != "default":
        optimizer = momentum_sgd(machine, job.factor * plain_learning_rate(table.train), weight_decay=0.0)
        settings |= {"optimizer": optimizer, "scheduler": geometric_decay(optimizer, 0.01, epochs), "epochs": epochs}
        settings |= {"objective": PCD(int(job.method[3:]), stratified=False, restarts=False)}
        settings |= {"averaged": False, "batch_size": BATCH}
    settings |= {"seed": job.seed, "progress": False}
    try:
        taken = seconds(lambda: history.extend(fit(machine, table.train, **settings).records), options.device)
    except DivergenceError:
        return None, {"seconds": math.nan, "epochs": 0, "learning_rate": math.nan}
    return machine, {"seconds": taken, "epochs": len(history), "learning_rate": history[0]["learning_rate"]}


def train_peer(job: Job, table: Table, budget: float, device: str) -> tuple[BoltzmannMachine | None, dict]:
    """Train with another library for about `budget` seconds; returns the same as `train`."""
    rate, x = PEERS_RATE * job.factor, table.train.cpu()
    if job.method == "rbms":
        from peers import Rbms, as_machine

        torch.manual_seed(job.seed)
        peer, taken, epochs = Rbms(x, job.hidden, device, 10, rate), 0.0, 0
        while taken < budget:
            taken, epochs = taken + seconds(peer.epoch, device), epochs + 1
        return as_machine(peer.parameters(), device), {"seconds": taken, "epochs": epochs, "learning_rate": rate}
    settings = {"batch_size": BATCH, "learning_rate": rate, "random_state": job.seed}
    one_epoch = seconds(lambda: BernoulliRBM(job.hidden, n_iter=1, **settings).fit(x.numpy()), "cpu")
    model = BernoulliRBM(job.hidden, n_iter=max(1, round(budget / one_epoch)), **settings)
    record = {"seconds": seconds(lambda: model.fit(x.numpy()), "cpu"), "epochs": model.n_iter, "learning_rate": rate}
    try:
        return from_bernoulli_rbm(model).float().to(device), record
    except FileError:  # non-finite parameters
        return None, record


def score(machine: BoltzmannMachine | None, table: Table, options: argparse.Namespace) -> dict:
    """Return the mean log-likelihood of the test rows with its errors, and an estimate from another base as a check."""
    if machine is None:
        return {"test": -math.inf, "rows_error": 0.0, "partition_error": 0.0, "by": "diverged"}
    n_visible, n_hidden = machine.sizes
    if n_hidden <= 25 and 2**n_hidden * n_visible <= ENUMERABLE[options.device]:
        exact = exact_log_likelihood(machine, table.test)
        return {"test": float(exact), "rows_error": float(exact.standard_error), "partition_error": 0.0, "by": "exact"}
    n_runs = N_RUNS[options.device]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LikelihoodWarning)  # collapsed weights are flagged
        estimates = [
            ais_log_partition(machine, options.temperatures, n_runs, data=data) for data in (table.train, None)
        ]
    first, check = estimates
    scored, gap = ais_log_likelihood(machine, table.test, first), float(first.log_partition - check.log_partition)
    effective = min(float(z.effective_sample_size) for z in estimates) / n_runs
    record = {"test": float(scored), "rows_error": float(scored.standard_error), "by": "AIS"}
    record |= {"partition_error": float(first.standard_error), "log_partition": float(first.log_partition)}
    flagged = abs(gap) > LARGEST_GAP or effective < FEWEST_EFFECTIVE
    return record | {"check": float(scored) + gap, "flagged": flagged}


def score_published(options: argparse.Namespace) -> None:
    """Score the machine of Salakhutdinov and Murray, whose published ln Z includes the normalizers of the priors."""
    with np.load(options.folder / "mnist_salakhutdinov_murray.npz") as file:
        w, a, b = (torch.from_numpy(file[name]) for name in ("weights", "visible_field", "hidden_field"))
    machine = rbm(Binary(len(a), a), Binary(len(b), b), w).to(options.device)
    found = score(machine, load(options.folder, "mnist-sm", options.device), options)
    log_partition = found["log_partition"] + float(softplus(a.double()).sum() + softplus(b.double()).sum())
    check = log_partition + found["test"] - found["check"]
    flag = " (AIS unreliable)" * found["flagged"]
    print(f"ln Z {log_partition:.2f} ± {found['partition_error']:.2f}, check {check:.2f}, published 451.28{flag}")
    print(f"test {found['test']:.2f} ± {found['rows_error']:.2f}, check {found['check']:.2f}, published −86.34")


class Results:
    """Records by job, stored in a JSON Lines file. Records in the file with other settings are ignored."""

    def __init__(self, path: Path, options: argparse.Namespace) -> None:
        names = ("device", "temperatures", "epochs", "pcd_epochs")
        self.settings, self.records = {name: getattr(options, name) for name in names}, {}
        self.path, self.tried = path, options.factors
        for line in path.read_text().splitlines() if path.exists() else ():
            record = json.loads(line) if line.endswith("}") else {}  # an interrupted write
            if record.get("settings") == self.settings:
                self.records[Job(*(record[name] for name in Job._fields))] = record

    def add(self, job: Job, record: dict) -> None:
        self.records[job] = job._asdict() | record | {"settings": self.settings}
        with self.path.open("a") as file:
            file.write("\n" + json.dumps(self.records[job]))

    def factors(self, table: str, hidden: int, method: str, seed: int) -> list[int]:
        """Return the learning rate factors to try: all for the first seed, then the one with the best test score."""
        if method not in TUNED:
            return [1]
        scores = {f: self.records.get(Job(table, hidden, method, f, 0), {}).get("test") for f in self.tried}
        known = {f: value for f, value in scores.items() if value is not None}
        return [max(known, key=known.get)] if seed and known else self.tried

    def row(self, table: str, hidden: int, method: str, n_seeds: int) -> dict | None:
        factor = self.factors(table, hidden, method, 1)[0]
        jobs = [Job(table, hidden, method, factor, seed) for seed in range(n_seeds)]
        own = [self.records[job] for job in jobs if job in self.records]
        if not own:
            return None
        test, taken, epochs, rate = (
            statistics.fmean(record[name] for record in own) for name in ("test", "seconds", "epochs", "learning_rate")
        )
        tried = [f for f in self.tried if jobs[0]._replace(factor=f) in self.records]
        edge = ", edge" if factor in (min(self.tried), max(self.tried)) else ""
        return {
            "table": table,
            "hidden": hidden,
            "method": method,
            "learning rate": f"{rate:.3g}" + (f" (×{factor}, best of {len(tried)}{edge})" if method in TUNED else ""),
            "seeds": len(own),
            "epochs": f"{epochs:.0f}",
            "training, s": f"{taken:.1f}",
            "test, nats": f"{test:.2f}",
            "± seeds": f"{statistics.stdev(r['test'] for r in own):.2f}" if len(own) > 1 else "",
            "± ln Z": f"{max(r['partition_error'] for r in own):.2f}",
            "± rows": f"{own[0]['rows_error']:.2f}",
            "by": own[0]["by"],
            "check": f"{statistics.fmean(r['check'] for r in own):.2f}" if "check" in own[0] else "",
            "flag": "AIS unreliable" if any(r.get("flagged") for r in own) else "",
            "literature": LITERATURE.get(table, ""),
        }


def warm_up(device: str) -> None:
    fit(rbm(Binary(8), Binary(4)).to(device), torch.eye(8).to(device), epochs=2)


def run_job(job: Job, options: argparse.Namespace, budget: float, deadline: float) -> dict | None:
    """Return the record of a job, or None after the deadline. Other libraries train for as long as the default took."""
    if time.time() > deadline:
        return None
    start, table = time.monotonic(), cached(options.folder, job.table, options.device)
    if job.method in PEERS:
        machine, record = train_peer(job, table, budget, options.device)
    else:
        machine, record = train(job, table, options)
    record |= score(machine, table, options)
    return record | {"cost": time.monotonic() - start}


cached = functools.lru_cache(maxsize=1)(load)


def run_all(results: Results, sizes: list[tuple[str, int]], options: argparse.Namespace) -> list[str]:
    """Run the missing jobs until the time limit; returns notes on omitted results.

    Jobs run in rounds, since other libraries need the time of the default, and further seeds need the best learning
    rate of the first seed.
    """
    deadline, notes, dropped = time.time() + 60 * options.minutes, {}, {}  # without repeats, in order
    rounds = [(seeds, peers) for seeds in ([0], list(range(1, options.seeds))) for peers in (False, True)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, context, initializer=warm_up, initargs=(options.device,)) as pool:
        for seeds, peers in rounds:
            running = {}
            methods = [method for method in options.methods if (method in PEERS) == peers]
            todo = ((seed, *size, method) for seed in seeds for size in sizes for method in methods)
            for seed, name, hidden, method in todo:
                default = results.records.get(Job(name, hidden, "default", 1, seed))
                if method == "default+valid" and name.startswith("mnist"):
                    notes[f"{name}: no validation rows; default+valid skipped."] = None
                elif peers and default is None:
                    notes[f"{name} {hidden} seed {seed}: {method} needs the time of default; skipped."] = None
                else:
                    jobs = [Job(name, hidden, method, f, seed) for f in results.factors(name, hidden, method, seed)]
                    budget = default["seconds"] if peers else math.nan
                    for job in (job for job in jobs if job not in results.records):
                        running[pool.submit(run_job, job, options, budget, deadline)] = job
            for done in as_completed(running):
                job, record = running[done], done.result()
                if record is None:
                    dropped[f"{job.table} {job.hidden} {job.method} seed {job.seed}"] = None
                else:
                    results.add(job, record)
                    print(*job, f"{record['seconds']:.1f} s", f"{record['test']:.2f} nats", flush=True)
    return [*notes, *([f"Dropped after {options.minutes:g} minutes: {', '.join(dropped)}."] if dropped else [])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(), help="directory with the tables")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--tables", default=",".join(TABLES), help="names of the tables (default: %(default)s)")
    parser.add_argument("--hidden", help="numbers of hidden units (default: 23,200, and 500 for MNIST)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", help=f"names of the methods (default: {','.join(METHODS)})")
    parser.add_argument("--factors", default="1,3,10", help="factors of the learning rate (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("tables.md"), help=".md or .csv file (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel training runs (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=10.0, help="time limit in minutes (default: %(default)s)")
    parser.add_argument("--temperatures", type=int, help="temperatures of AIS (default: 2000 on a CPU, 10000 on a GPU)")
    parser.add_argument("--pcd-epochs", type=int, default=50, help="epochs of pcd1 and pcd10 (default: %(default)s)")
    parser.add_argument("--score-published", action="store_true", help="score the published machine for mnist-sm")
    parser.add_argument("--quick", action="store_true", help="smoke test: a small synthetic table, 2 epochs, 1 seed")
    options = parser.parse_args()
    options.epochs = None
    if options.quick:
        options.tables, options.hidden, options.seeds, options.epochs = "synthetic", "5,30", 1, 2
    options.temperatures = options.temperatures or (100 if options.quick else TEMPERATURES[options.device])
    if options.score_published:
        score_published(options)
        return
    left_out = {"rbms": "not installed"} if importlib.util.find_spec("rbms") is None else {}
    left_out |= {"sklearn": "runs on the CPU only"} if options.device == "cuda" and not options.methods else {}
    options.methods = [m for m in (options.methods or ",".join(METHODS)).split(",") if m not in left_out]
    options.tables, options.factors = options.tables.split(","), [int(f) for f in options.factors.split(",")]
    unknown = {*options.tables, *options.methods} - {*TABLES, *METHODS, "synthetic"}
    if unknown:
        parser.error(f"unknown {', '.join(sorted(unknown))}; there are {', '.join((*TABLES, *METHODS))}")
    hidden = [int(n) for n in options.hidden.split(",")] if options.hidden else []
    sizes = [(t, n) for t in options.tables for n in hidden or ([500] if t.startswith("mnist") else [23, 200])]
    sizes.sort(key=lambda size: -size[1])  # the longest first
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results = Results(options.out.with_suffix(".jsonl"), options)
    notes = [NOTES, *(f"{name}: left out ({left_out[name]})." for name in left_out), *run_all(results, sizes, options)]
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} CPU thread(s)"
    runs = f"{options.temperatures} temperatures and {N_RUNS[options.device]} runs of AIS"
    notes.append(f"{where}, torch {torch.__version__}, {runs}.")
    rows = [results.row(*size, method, options.seeds) for size in sizes for method in options.methods]
    write([row for row in rows if row], notes, options.out)
    print("\n" + options.out.read_text())


if __name__ == "__main__":
    main()
