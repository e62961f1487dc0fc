"""Time to compute fixed points from many data points, compared to the explicit iteration.

    python benchmarks/solver.py MACHINE.npz IMAGES

MACHINE.npz contains W, bv and bh of a binary machine that was trained on IMAGES, an idx file of 8-bit images (.gz). The
script compares three methods:

- the default of `solve` (converged particles are removed, implicit half-steps, extrapolation), eager and compiled;
- the explicit sweep of the paper, with converged particles removed;
- the explicit sweep of the whole batch until all particles converge, at most 2,000 sweeps, extrapolated from the time
  of 100 sweeps.
"""

import argparse
import gzip
import time
from pathlib import Path

import numpy as np
import torch

from tapmachine import TAP, Binary, rbm, solve
from tapmachine.beliefs import Solution
from tapmachine.solver.starts import starting_moments

MOST_SWEEPS = 2000


def timed(name: str, device: torch.device, **arguments: object) -> tuple[Solution, float]:
    if device.type == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    solution = solve(**arguments)
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    sweeps = solution.n_sweeps.double()
    quantiles = " ".join(f"{sweeps.quantile(q):.0f}" for q in (0.5, 0.9, 0.99, 1.0))
    residual = solution.residual[solution.converged].max()
    print(f"  {name:34s} {seconds:8.2f} s  {solution}, sweeps {quantiles}, residual < {residual:.1e}", flush=True)
    return solution, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("machine", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("--starts", type=int, default=10_000)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    device = torch.device(options.device)

    arrays = {name: torch.from_numpy(value).to(device) for name, value in np.load(options.machine).items()}
    n_visible, n_hidden = arrays["W"].shape
    visible = Binary(n_visible, field=arrays["bv"]).to(device)
    hidden = Binary(n_hidden, field=arrays["bh"]).to(device)
    machine = rbm(visible, hidden, arrays["W"])
    pixels = np.frombuffer(gzip.decompress(options.images.read_bytes()), np.uint8, offset=16).reshape(-1, n_visible)
    x = torch.from_numpy((pixels[: options.starts] > 127).astype(np.float32)).to(device)
    print(f"{n_visible}x{n_hidden}, {len(x)} starts, float32 on {device}")

    solve(machine, x[:512])
    _, plain = timed("default", device, machine=machine, start=x)
    for n in (300, 512, len(x)) if device.type == "cuda" else (300, 512):  # compile for all sizes that occur
        solve(machine, x[:n], compile=True)
    _, compiled = timed("default, compiled", device, machine=machine, start=x, compile=True)
    explicit, per_particle = timed(
        "explicit, converged removed",
        device, machine=machine, start=x, scheme=TAP("explicit", damping=0.0), max_sweeps=MOST_SWEEPS,
    )  # fmt: skip

    process = TAP("explicit", damping=0.0).bind(machine)
    layers = list(machine.layers)
    with torch.no_grad():
        state = process.begin(layers, starting_moments(machine, x))
        begin = time.perf_counter()
        for _ in range(25):
            state, residual = process.step(layers, state)
        residual.max().item()
        hundred = time.perf_counter() - begin
    slowest = MOST_SWEEPS if not bool(explicit.converged.all()) else int(explicit.n_sweeps.max())
    whole = hundred * slowest / 100
    print(f"  {'explicit, whole batch':34s} {whole:8.2f} s  {slowest} sweeps, from {hundred:.2f} s for 100")
    for name, seconds in (("default", plain), ("default, compiled", compiled)):
        ratios = f"{whole / seconds:.1f}x the whole batch, {per_particle / seconds:.2f}x with converged removed"
        print(f"  speed of {name}, relative to explicit sweeps: {ratios}", flush=True)


if __name__ == "__main__":
    main()
