"""Batched solver that finds fixed points from initial states and verifies the status of each solution."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from tapmachine.accelerator.compilation import compiled
from tapmachine.accelerator.precision import full_precision
from tapmachine.beliefs import Moments, Solution, Status, Tilt
from tapmachine.data.checks import check_count
from tapmachine.data.progress import report
from tapmachine.machine import BoltzmannMachine
from tapmachine.solver.schemes.base import Scheme
from tapmachine.solver.schemes.mean_field import TAP
from tapmachine.solver.schemes.process import Process, choose, join, select
from tapmachine.solver.starts import StartingPoint, fitting, prior_moments, starting_moments
from tapmachine.units import Units

if TYPE_CHECKING:
    from tapmachine.accelerator.replay import Replay

CPU_BATCH = 256  # particles per batch, enough for efficient matrix products; small machines use larger batches
CPU_VALUES = 2**22  # values per batch for which elementwise operations stay in cache
DEVICE_BATCH = 16_384
MEMORY_SHARE = 0.25  # share of a device's free memory that a batch may use
CPU_MEMORY = 2**30
TOLERANCES = {torch.float32: 1e-8, torch.float64: 1e-14}  # of the residual
ROOT_STEPS = 3  # Newton steps per root on a device and in compiled code, where reading values would synchronize
DEVICE_CHECKS = 4  # steps between convergence checks
REFILL = 0.75  # the batch is refilled or shrunk when at most this fraction of its particles is active
DEVICE_REFILL = 0.5  # value of REFILL on a GPU, where a changed batch requires a new CUDA graph
SMALL_DEVICE_BATCH = 512  # particles; smaller batches take equally long on a GPU, so the batch is not reduced further
MANY_PARTICLES, N_GROUPS = 6144, 3  # a GPU processes at least MANY_PARTICLES particles in N_GROUPS concurrent groups


class Progress(NamedTuple):
    """Numbers of finished, converged and total particles, which are passed to the callback of `solve`."""

    finished: int
    converged: int
    total: int


@torch.no_grad()
@full_precision()  # lower precision would shift the solutions and their free energies
def solve(
    machine: BoltzmannMachine,
    start: StartingPoint = None,
    scheme: Scheme | None = None,
    *,
    tol: float | None = None,
    max_sweeps: int = 1000,
    batch_size: int | None = None,
    compile: bool = False,
    callback: Callable[[Progress], None] | None = None,
) -> Solution:
    """Find fixed points of a machine's mean-field equations from many starting points at once.

    Each starting point is a particle, and particles are independent of each other. A particle that has converged to
    `tol` is replaced by the next one, so only the memory for the solutions grows with the number of particles.

    Args:
        machine: The machine to solve. It may be conditioned on one row of evidence per particle.
        start: Starting points. A tensor x of shape (K, n_visible) contains data and sets the visible means to x and the
            visible variances to 0. `Moments` specify the visible layer (see `random_start`), and a list of `Moments`
            specifies the visible layer and some or all of the layers above it. With a `Solution`, the iteration starts
            from the moments of the solution. By default, the iteration starts from the mean and variance of the prior.
        scheme: The equations to solve (default: `TAP()`).
        tol: Convergence tolerance for the residual, which is the mean, over all units, of the squared changes in mean
            and variance in one sweep (default: 1e-14 in float64, for errors of the means of about 1e-6, and the
            paper's 1e-8 in float32, for errors of about 1e-3). To count solutions, use float64.
        max_sweeps: Maximum number of sweeps per particle. After the first sweep, each step consists of three sweeps for
            implicit updates and of four sweeps for fixed damping. On a GPU, convergence is checked every four steps. A
            final step that would exceed the maximum is omitted.
        batch_size: Number of particles processed at a time (default: chosen to fit into memory). The batch size is
            halved whenever memory runs out.
        compile: Whether to compile the sweeps with `torch.compile`, which takes half a minute once and requires
            torch 2.11.
        callback: Function called with a `Progress` each time some particles are finished.

    Returns:
        A `Solution` with the result and the status of each particle, in the order of the starting points.

    Raises:
        ValueError: If an argument is invalid, or if `start` does not fit the machine.

    Example:
        >>> import torch
        >>> from tapmachine import Binary, rbm, solve
        >>> machine = rbm(Binary(4, field=1.0), Binary(2))
        >>> solution = solve(machine, start=torch.eye(4))
        >>> solution
        Solution(4 converged)
        >>> solution.moments[0].mean[0]
        tensor([0.7312, 0.7309, 0.7308, 0.7312])
    """
    tol = TOLERANCES[machine.dtype] if tol is None else tol
    if not tol > 0:
        raise ValueError(f"tol is {tol!r}; expected a number greater than 0")
    max_sweeps = check_count("max_sweeps", max_sweeps)
    batch_size = None if batch_size is None else check_count("batch_size", batch_size)
    if not isinstance(scheme, Scheme | None):
        raise ValueError(f"scheme is {scheme!r}; expected a scheme such as TAP()")
    starts = starting_moments(machine, fitting(machine, start))
    scheme = scheme or TAP()
    process = scheme.bind(machine)
    on_device = machine.device.type != "cpu"
    if on_device or compile:
        process.root_steps = ROOT_STEPS
    steps = DEVICE_CHECKS if on_device else 1
    steps = min(steps, (max_sweeps - 1) // process.sweeps_per_step)  # `Process.begin` does the first sweep
    batch = _Batch(machine, process, starts, tol, max_sweeps, steps, compile)
    size = batch_size or fitting_batch(machine, process)
    more = True
    while more:
        try:
            more = batch.fill(size)
            if more:
                batch.advance()
                if batch.retire():
                    report("solving", batch.n_finished, batch.total)
                    if callback is not None:
                        callback(Progress(batch.n_finished, batch.n_converged, batch.total))
        except RuntimeError as error:
            if size == 1 or not is_out_of_memory(error):
                raise
            size = max(1, min(size, batch.total) // 2)
            batch.put_back()
    return batch.solution()


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether an error indicates that memory ran out; on a CPU, torch raises a plain RuntimeError."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def fitting_batch(machine: BoltzmannMachine, process: Process) -> int:
    """Return the default batch size: as many particles as fit into memory, up to a useful maximum."""
    values = process.values_per_particle()
    free, most = CPU_MEMORY, max(CPU_BATCH, CPU_VALUES // values)
    if machine.device.type == "cuda":
        free, most = int(MEMORY_SHARE * torch.cuda.mem_get_info(machine.device)[0]), DEVICE_BATCH
    bytes_each = values * torch.finfo(machine.dtype).bits // 8
    return max(1, min(most, free // bytes_each))


class _Batch:
    """Active particles, waiting particles, and the results of finished particles.

    Finished particles are removed from the batch in groups, not one by one.
    """

    def __init__(
        self,
        machine: BoltzmannMachine,
        process: Process,
        starts: list[Moments | None],
        tol: float,
        max_sweeps: int,
        steps: int,
        compile: bool,
    ) -> None:
        self.machine, self.process, self.starts, self.tol, self.steps = machine, process, starts, tol, steps
        # An older particle would exceed `max_sweeps` in its next steps.
        self.last_age = max_sweeps - max(1, steps) * process.sweeps_per_step
        self._step = compiled(process.step, dynamic=True) if compile else process.step
        assert starts[0] is not None
        self.total = len(starts[0].mean)
        self.n_finished = self.n_converged = 0
        self.waiting = torch.arange(self.total, device=machine.device)
        self.on_cuda = machine.device.type == "cuda"
        self.captures = self.on_cuda and process.can_be_captured
        self.layers: list[Units] = []
        self.state: Any
        self.previous: Any  # the state before the last steps
        self.replay: Replay | None
        self._empty()
        self._allocate()

    def _empty(self) -> None:
        """Remove all particles from the batch."""
        device = self.machine.device
        self.state = self.previous = self.replay = None
        self.rows, self.age = (torch.empty(0, dtype=torch.long, device=device) for _ in range(2))
        self.open = torch.empty(0, dtype=torch.bool, device=device)  # mask of the unfinished particles
        self.residual = torch.empty(0, dtype=self.machine.dtype, device=device)

    def put_back(self) -> None:
        """Return the active particles to the queue, from which they restart at their initial states."""
        self.waiting = torch.cat((self.rows[self.open], self.waiting))
        self._empty()
        if self.on_cuda:
            torch.cuda.empty_cache()

    def _allocate(self) -> None:
        like = torch.empty(self.total, dtype=self.machine.dtype, device=self.machine.device)

        def per_unit() -> list[Tensor]:
            shapes = [layer.state_shape for layer in self.machine.layers]
            return [torch.zeros((self.total, *shape), dtype=like.dtype, device=like.device) for shape in shapes]

        self.moments = [Moments(*pair) for pair in zip(per_unit(), per_unit(), strict=True)]
        self.tilts = [Tilt(*pair) for pair in zip(per_unit(), per_unit(), strict=True)]
        self.free_energy, self.final_residual = (torch.full_like(like, torch.inf) for _ in range(2))
        self.n_sweeps = torch.zeros_like(like, dtype=torch.long)
        self.status = torch.full_like(like, Status.MAX_SWEEPS, dtype=torch.int8)

    def fill(self, size: int) -> bool:
        """Replace finished particles with waiting ones if this is efficient; return False if no particles are left."""
        n_open = int(self.open.sum())
        waiting = len(self.waiting)
        threshold = DEVICE_REFILL if self.on_cuda else REFILL
        joining = min(size - n_open, waiting) if n_open <= threshold * size else 0
        worth_it = len(self.open) > SMALL_DEVICE_BATCH or not self.on_cuda
        if joining or n_open == 0 or (worth_it and n_open <= threshold * len(self.open)):
            self._keep(self.open)
            if joining:
                self._join(self.waiting[:joining])
            self.layers = list(self.machine.rows(self.rows).layers)
            self.replay = None
        return len(self.rows) > 0

    def _keep(self, keep: Tensor) -> None:
        self.rows, self.age, self.open = self.rows[keep], self.age[keep], self.open[keep]
        self.state = select(self.state, keep) if self.state is not None else None

    def _join(self, rows: Tensor) -> None:
        new = self.process.begin(list(self.machine.rows(rows).layers), self._starts(rows))
        self.state = new if self.state is None else join(self.state, new)
        self.waiting = self.waiting[len(rows) :]
        self.rows = torch.cat((self.rows, rows))
        self.age = torch.cat((self.age, torch.ones_like(rows)))
        self.open = torch.cat((self.open, torch.ones_like(rows, dtype=torch.bool)))

    def _starts(self, rows: Tensor) -> list[Moments | None]:
        return [None if start is None else Moments(*(z[rows] for z in start)) for start in self.starts]

    def advance(self) -> None:
        """Advance all particles by a fixed number of steps without synchronizing with the device."""
        if self.steps == 0:
            self.residual = torch.full_like(self.age, torch.inf, dtype=self.machine.dtype)
        elif self.captures:
            if self.replay is None:
                from tapmachine.accelerator.replay import Replay  # only for GPUs

                many = len(self.rows) >= MANY_PARTICLES and self.machine.n_rows is None
                groups = N_GROUPS if many else 1
                self.replay = Replay(lambda state: self._step(self.layers, state), self.state, 1, n_groups=groups)
            self.previous = None if self.state is self.replay.state else self.state  # the replay overwrites its state
            for _ in range(self.steps):
                self.state, self.residual = self.replay(self.state)
        else:
            self.previous = self.state
            for _ in range(self.steps):
                self.state, self.residual = self._step(self.layers, self.state)
        self.age += self.steps * self.process.sweeps_per_step

    def retire(self) -> int:
        """Store the results of finished particles and return their number."""
        candidates = ~(self.residual >= self.tol) | (self.age > self.last_age)  # a non-finite residual also ends one
        index = (candidates & self.open).nonzero().squeeze(-1)
        if len(index) == 0:
            return 0
        index = index[self._write(index)]
        self.open[index] = False
        self.n_finished += len(index)
        return len(index)

    def _write(self, index: Tensor) -> Tensor:
        """Verify the candidates, store the results of the finished particles, and return a mask of these particles."""
        rows = self.rows[index]
        layers = list(self.machine.rows(rows).layers)
        state = select(self.state, index)
        moments = self.process.moments(state)
        outcome = self.process.outcome(layers, state)
        finite = torch.isfinite(outcome.residual) & torch.isfinite(outcome.free_energy) & _all_finite(moments)
        converged = finite & (outcome.residual < self.tol)
        done = converged | ~finite | (self.age[index] > self.last_age)

        status = torch.where(converged, Status.CONVERGED, Status.MAX_SWEEPS).to(torch.int8)
        self.status[rows] = status
        self.n_sweeps[rows] = self.age[index]
        good = rows[finite]
        for mine, theirs in zip((*self.moments, *self.tilts), (*moments, *outcome.tilts), strict=True):
            for target, value in zip(mine, theirs, strict=True):
                target[good] = value[finite]  # type: ignore[index]
        self.free_energy[good] = outcome.free_energy[finite].to(self.free_energy.dtype)
        self.final_residual[good] = outcome.residual[finite]
        if not bool(finite.all()):
            self._write_failures(index[~finite])
        self.n_converged += int((converged & done).sum())
        return done

    def _write_failures(self, index: Tensor) -> None:
        """Set the status of particles without a solution and store their last finite moments."""
        rows = self.rows[index]
        layers = list(self.machine.rows(rows).layers)
        unnormalizable = self.process.unnormalizable(select(self.state, index))
        moments = self.process.moments(select(self.state if self.previous is None else self.previous, index))
        finite = _all_finite(moments)
        moments = [
            choose(finite, last, prior_moments(layer, len(rows)) if start is None else start)
            for layer, last, start in zip(layers, moments, self._starts(rows), strict=True)
        ]
        self.status[rows] = torch.where(unnormalizable, Status.UNNORMALIZABLE, Status.NONFINITE).to(torch.int8)
        for mine, theirs in zip(self.moments, moments, strict=True):
            for target, value in zip(mine, theirs, strict=True):
                target[rows] = value

    def solution(self) -> Solution:
        """Return the results of all particles."""
        return Solution(
            tuple(self.moments),
            tuple(self.tilts),
            self.free_energy,
            self.final_residual,
            self.n_sweeps,
            self.status,
        )


def _all_finite(moments: list[Moments]) -> Tensor:  # (K,), bool
    checks = [torch.isfinite(z).flatten(1).all(-1) for layer_moments in moments for z in layer_moments]
    return torch.stack(checks).all(0)
