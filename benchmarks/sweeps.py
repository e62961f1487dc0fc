"""Cost of a sweep relative to its four matrix products in the same process.

python benchmarks/sweeps.py            on a GPU if available, otherwise on a CPU
python benchmarks/sweeps.py --tf32     on a GPU, with matrix products in TensorFloat32
                            [--hidden 100 500] [--particles 100 10000]
"""

import argparse
import time
from collections.abc import Callable

import torch

from tapmachine import TAP, Binary, rbm
from tapmachine.accelerator.replay import Replay
from tapmachine.solver.driver import MANY_PARTICLES, N_GROUPS
from tapmachine.solver.schemes.layered import LayeredState
from tapmachine.solver.starts import starting_moments
from tapmachine.units import Units


def best_of(functions: dict[str, Callable[[], object]], device: torch.device, seconds: float = 4.0) -> dict[str, float]:
    """Return a low quantile of the times of each call. Calls alternate, so that a disturbance affects all of them."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        for _ in range(5):
            function()
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop:
        for name, function in functions.items():
            if device.type == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(10):
                function()
            if device.type == "cuda":
                torch.cuda.synchronize()
            times[name].append((time.perf_counter() - begin) / 10)
    return {name: sorted(found)[len(found) // 10] for name, found in times.items()}


def measure(n_hidden: int, n_particles: int, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = (0.1 * torch.randn(784, n_hidden, generator=generator)).to(device)
    machine = rbm(Binary(784).to(device), Binary(n_hidden).to(device), weights)
    layers = list(machine.layers)
    x = torch.bernoulli(torch.full((n_particles, 784), 0.3), generator=generator).to(device)

    explicit = TAP("explicit", damping=0.0).bind(machine)
    implicit = TAP(accelerate=False).bind(machine)
    explicit_state = explicit.begin(layers, starting_moments(machine, x))
    implicit_state = implicit.begin(layers, starting_moments(machine, x))
    implicit.root_steps = 2
    for _ in range(10):
        explicit_state, _ = explicit.step(layers, explicit_state)
        implicit_state, _ = implicit.step(layers, implicit_state)

    (a, c), (h, v) = explicit_state.moments
    down, up = implicit.couplings.senders[0][0], implicit.couplings.senders[1][0]

    def products() -> object:
        return a @ up.weights, c @ up.squares, h @ down.weights, v @ down.squares

    # A step consists of several sweeps and a check of the residual, as in `solve`.
    compiled_explicit, compiled_implicit = torch.compile(explicit.step), torch.compile(implicit.step)
    functions = {
        "products": (products, 1),
        "explicit, eager": (lambda: explicit.step(layers, explicit_state), explicit.sweeps_per_step),
        "explicit, compiled": (lambda: compiled_explicit(layers, explicit_state), explicit.sweeps_per_step),
        "implicit, eager": (lambda: implicit.step(layers, implicit_state), implicit.sweeps_per_step),
        "implicit, compiled": (lambda: compiled_implicit(layers, implicit_state), implicit.sweeps_per_step),
    }
    with torch.no_grad():
        times = best_of({name: function for name, (function, _) in functions.items()}, device)
    times = {name: seconds / functions[name][1] for name, seconds in times.items()}
    if device.type == "cuda":

        def implicit_sweep(layers: list[Units], state: LayeredState) -> LayeredState:
            return implicit.sweep(layers, state, implicit.root_steps)

        sweeps = (("explicit", explicit.sweep, explicit_state), ("implicit", implicit_sweep, implicit_state))
        for name, sweep, state in sweeps:
            compiled = torch.compile(sweep, dynamic=False)
            for n_groups in (1, N_GROUPS) if n_particles >= MANY_PARTICLES else (1,):
                times[f"{name}, captured, {n_groups} group{'s' if n_groups > 1 else ''}"] = captured_time(
                    lambda s, f=compiled: (f(layers, s), torch.zeros(1)), state, n_groups
                )
    flops = 8 * n_particles * 784 * n_hidden
    print(f"784x{n_hidden}, K={n_particles}, float32 on {device}")
    for name, seconds in times.items():
        ratio, speed = seconds / times["products"], flops / seconds / 1e12
        print(f"  {name:32s} {1e6 * seconds:9.1f} us  {ratio:5.2f}x the products  {speed:7.2f} TFLOP/s", flush=True)


def captured_time(sweep: Callable[[object], object], state: object, n_groups: int, n_sweeps: int = 30) -> float:
    """Return the seconds per sweep in a captured loop."""
    replay = Replay(sweep, state, n_sweeps, n_groups=n_groups)
    times = []
    for _ in range(20):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(10):
            replay(replay.state)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / 10 / n_sweeps)
    return sorted(times)[2]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--hidden", type=int, nargs="+", default=[100, 500])
    parser.add_argument(
        "--particles", type=int, nargs="+", help="numbers of particles (default: 100, and 10,000 on a GPU)"
    )
    options = parser.parse_args()
    if options.tf32:
        torch.set_float32_matmul_precision("high")
    where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_grad_enabled(False)
    for particles in options.particles or ([100, 10_000] if where.type == "cuda" else [100]):
        for hidden in options.hidden:
            measure(hidden, particles, where)
