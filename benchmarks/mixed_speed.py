"""Training time for a table with columns of several kinds, compared to a binary machine with as many components.

    OMP_NUM_THREADS=2 python benchmarks/mixed_speed.py [rows] [columns]

The table has equal numbers of real, count, binary and categorical columns (four categories). The script measures one
epoch of gradient training of a machine with `Mixed` visible units and 100 binary hidden units, and of a machine with as
many `Binary` components. Both use the objective and batch size of `fit`. It also measures the default of `RBM` for the
table, which fits latent classes by expectation maximization on at most 20,000 rows, without epochs.
"""

import sys
import time

import numpy as np
import torch

from tapmachine import RBM, Binary, rbm
from tapmachine.data.columns import RawColumn
from tapmachine.tables.schema import Schema
from tapmachine.training import Monitor, Trainer, momentum_sgd

HIDDEN, REPEATS = 100, 3
RATE = 0.001  # small learning rate: the time does not depend on it, and counts may diverge at a large one


def table(n_rows: int, n_columns: int) -> list[RawColumn]:
    """Return columns of four kinds that depend on one of five classes."""
    rng = np.random.default_rng(0)
    kind, columns = rng.integers(0, 5, n_rows), []
    for number in range(n_columns):
        name, level = f"c{number}", rng.normal(size=5)[kind]
        if number % 4 == 0:
            columns.append(RawColumn(name, "float", level + rng.normal(size=n_rows), "float64"))
        elif number % 4 == 1:
            columns.append(RawColumn(name, "int", rng.poisson(np.exp(0.5 * level)).astype(float), "int64"))
        elif number % 4 == 2:
            columns.append(RawColumn(name, "bool", (level + rng.logistic(size=n_rows) > 0).astype(float), "bool"))
        else:
            words = np.array(["a", "b", "c", "d"])[np.clip(level + rng.normal(size=n_rows) + 2, 0, 3).astype(int)]
            columns.append(RawColumn(name, "text", words.astype(object), "object"))
    return columns


def trainer_of(visible, x: torch.Tensor) -> Trainer:
    machine = rbm(visible, Binary(HIDDEN))
    return Trainer(machine, x, epochs=1 + REPEATS, optimizer=momentum_sgd(machine, RATE), monitor=Monitor(n_starts=0))


def seconds_of(call) -> tuple[float, float]:
    """Return the wall-clock and CPU seconds of a call; CPU time does not depend on other processes."""
    clock, processor = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - clock, time.process_time() - processor


def epoch_seconds(*trainers: Trainer) -> list[tuple[float, float]]:
    """Return the shortest time of an epoch of each machine in alternation, after a first epoch for warming up."""
    for trainer in trainers:
        trainer.epoch()
    times = [[seconds_of(trainer.epoch) for trainer in trainers] for _ in range(REPEATS)]
    return [(min(clock for clock, _ in own), min(cpu for _, cpu in own)) for own in zip(*times, strict=True)]


def main() -> None:
    n_rows, n_columns = (int(word) for word in (sys.argv[1:] or ("100000", "50")))
    columns = table(n_rows, n_columns)
    kinds = {column.name: "count" for column in columns if column.type == "int"}
    schema = Schema.infer(columns, kinds)
    x = torch.from_numpy(schema.encode(columns)).float()
    bits = (torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) < 0.3).float()
    print(f"{n_rows} rows, {n_columns} columns, {x.shape[1]} components, {torch.get_num_threads()} threads", flush=True)
    mixed, binary = epoch_seconds(trainer_of(schema.units(), x), trainer_of(Binary(x.shape[1]), bits))
    for name, place in (("wall-clock time", 0), ("CPU time", 1)):
        ratio = mixed[place] / binary[place]
        print(f"gradient epoch: mixed {mixed[place]:.2f} s, binary {binary[place]:.2f} s {name}, ratio {ratio:.2f}")
    import pandas

    frame = pandas.DataFrame({column.name: column.values for column in columns})
    for column in columns:
        frame[column.name] = frame[column.name].astype(column.dtype)
    model = RBM(columns=kinds)
    clock, processor = seconds_of(lambda: model.fit(frame))
    print(f"default fit: {clock:.1f} s wall-clock time, {processor:.1f} s CPU time; {model.machine_.summary()}")


if __name__ == "__main__":
    main()
