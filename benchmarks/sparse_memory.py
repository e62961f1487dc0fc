"""Peak memory of training, scoring and transforming a sparse matrix, compared to the matrix and the machine.

    python benchmarks/sparse_memory.py [rows] [columns] [fraction of ones]

The memory of the machine is measured by training it with the same batches and chains on a few rows. It includes
parameters, gradients, momenta and averages, chains, a batch, and the copies that the estimator keeps for continuing and
scoring. Peaks are those of the resident memory (VmHWM), minus the memory of the process with all libraries loaded.
"""

import resource
import sys
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from tapmachine import RBM

OPTIONS = {"n_hidden": 100, "epochs": 1, "batch_size": 100}
FEW = 200  # rows


def resident(peak: bool) -> float:
    """Return the current or the peak resident memory in megabytes."""
    name = "VmHWM:" if peak else "VmRSS:"
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1000


def peak_of(function) -> tuple[float, float]:
    """Return the increase of the peak memory by a call in megabytes, and its time in seconds."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before, start = resident(peak=False), time.perf_counter()
    function()
    return resident(peak=True) - before, time.perf_counter() - start


def main() -> None:
    n_rows, n_columns, share = (float(word) for word in sys.argv[1:] or ("20000", "10000", "0.01"))
    x = sp.random(int(n_rows), int(n_columns), share, format="csr", random_state=0, dtype=np.float32)
    x.data[:] = 1
    own = (x.data.nbytes + x.indices.nbytes + x.indptr.nbytes) / 1e6
    RBM(**OPTIONS).fit(x[:FEW, :50])  # initializes libraries
    RBM(**OPTIONS).fit(x[:FEW, :50].toarray()).score(x[:FEW, :50])
    machine, _ = peak_of(lambda: RBM(**OPTIONS).fit(x[:FEW].toarray()).transform(x[:10]))
    model = RBM(**OPTIONS)
    print(f"{x.shape[0]} × {x.shape[1]} with {share:.1%} ones, {OPTIONS['n_hidden']} hidden units")
    print(f"sparse matrix {own:.0f} MB, dense {x.shape[0] * x.shape[1] * 4e-6:.0f} MB in float32")
    print(f"machine: parameters {4e-6 * x.shape[1] * OPTIONS['n_hidden']:.0f} MB, training it {machine:.0f} MB")
    print(f"bound: 2 × matrix + machine: {2 * own + machine:.0f} MB; 2 × both: {2 * (own + machine):.0f} MB")
    for name, call in (("fit", model.fit), ("transform", model.transform), ("score_samples", model.score_samples)):
        peak, seconds = peak_of(lambda call=call: call(x))
        print(f"{name:14} peak {peak:6.0f} MB  {seconds:6.1f} s")
    print(f"whole process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000:.0f} MB")


if __name__ == "__main__":
    main()
