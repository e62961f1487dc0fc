"""Populations in the tree of solutions of a machine trained on genomes, compared to k-means and Ward clustering.

python benchmarks/genomes.py genomes_805snp.npz RUN

RUN is the folder of a training run on the haplotypes, as described in docs/benchmarks/quality.md.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from sklearn.cluster import AgglomerativeClustering, KMeans
from sklearn.metrics import adjusted_rand_score

from tapmachine.landscape import track_landscape
from tapmachine.runs.session import Session


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--clusters", type=int, nargs="*", default=[2, 3, 4, 5, 6, 8])
    parser.add_argument("--epochs", type=int, nargs="*", help="epochs of the tree (default: all kept epochs)")
    options = parser.parse_args()
    with np.load(options.data) as file:
        x, truth = file["haplotypes"].astype(float), file["super_population"]
    start = time.perf_counter()
    session = Session(options.run)
    found = track_landscape(session.machines, session.training_data().train, n_starts=len(x), epochs=options.epochs)
    print(f"{found}, {found.tree}, {time.perf_counter() - start:.0f} s")
    print(f"lineages: {dict(zip(found.epochs, found.tree.n_lineages, strict=True))}")
    print(f"{'clusters':>10}{'tree':>8}{'of size':>40}{'k-means':>10}{'Ward':>8}")
    for count in options.clusters:
        own = found.tree.cut(count).numpy()
        sizes = np.sort(np.bincount(own[own >= 0]))[::-1]
        means = KMeans(count, n_init=10, random_state=0).fit_predict(x)
        ward = AgglomerativeClustering(count).fit_predict(x)
        scores = [adjusted_rand_score(truth, labels) for labels in (own, means, ward)]
        text = " ".join(map(str, sizes[:8])) + (" …" if len(sizes) > 8 else "")
        print(f"{count:>10}{scores[0]:>8.3f}{text:>40}{scores[1]:>10.3f}{scores[2]:>8.3f}", flush=True)


if __name__ == "__main__":
    main()
