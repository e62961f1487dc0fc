"""`solve`, the driver of all schemes: from initial states to solutions, each with a verified status."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tapmachine.accelerator.compilation import compiled
from tapmachine.accelerator.precision import matmul_precision
from tapmachine.accelerator.replay import Replay
from tapmachine.beliefs import Moments, Solution, Status, Tilt
from tapmachine.data.checks import check_count
from tapmachine.machine import BoltzmannMachine
from tapmachine.solver.process import Process, choose, join, select
from tapmachine.solver.schemes.base import Scheme
from tapmachine.solver.schemes.mean_field import TAP
from tapmachine.solver.starts import StartingPoint, fitting, prior_moments, starting_moments
from tapmachine.units import Units

CPU_BATCH = 256  # particles at a time: enough for matrix products; more, if they are small
CPU_VALUES = 2**22  # few enough for elementwise operations to stay in cache
DEVICE_BATCH = 16_384
MEMORY_SHARE = 0.25  # share of a device's free memory that a batch may use
CPU_MEMORY = 2**30
ROOT_STEPS = 3  # Newton steps per root on a device and in compiled code, where reading values would synchronize
DEVICE_CHECKS = 4  # steps between convergence checks
REFILL = 0.75  # share of the batch: if at most this many are active, others join or the batch shrinks
DEVICE_REFILL = 0.5  # the same if steps have to be captured again
SMALL_DEVICE_BATCH = 512  # particles: fewer take equally long on a GPU, so the batch is not reduced further
MANY_PARTICLES, N_GROUPS = 6144, 3  # on a GPU: from this number, particles are processed in concurrent groups


class Progress(NamedTuple):
    """Progress of `solve`, for callbacks: numbers of particles."""

    finished: int
    converged: int
    total: int


@torch.no_grad()
@matmul_precision("float32")  # so that solutions are accurate, and F is that of the machine
def solve(
    machine: BoltzmannMachine,
    start: StartingPoint = None,
    scheme: Scheme | None = None,
    *,
    tol: float = 1e-8,
    max_sweeps: int = 1000,
    batch_size: int | None = None,
    compile: bool = False,
    callback: Callable[[Progress], None] | None = None,
) -> Solution:
    """Find fixed points of a machine's mean-field equations from many starting points at once.

    Particles are independent: each stops when it has converged to `tol` and is replaced by the next one, so memory does
    not grow with their number, except for the solutions themselves.

    Args:
        machine: Any machine; it may be conditioned on a row of evidence for each particle.
        start: Data x of shape (K, n_visible), which are initialized as a = x, c = 0; the `Moments` of the visible layer
            (see `random_start`), or a list of the moments of this layer and of some or all layers above it; another
            `Solution`; or None for the prior's moments.
        scheme: The equations to solve. Default: `TAP()`.
        tol: Convergence tolerance for the residual, the mean over all units of the squared changes of their mean and
            variance. The paper's 1e-8 is sufficient for training; to count solutions, use 1e-14 with a machine in
            float64.
        max_sweeps: Maximum number of sweeps per particle. After the first, sweeps are done in steps of three (implicit)
            or four (fixed damping), on a GPU in four such steps at a time, and an incomplete last step is omitted.
        batch_size: Number of particles processed at a time. Default: chosen to fit into memory. It is halved if memory
            runs out.
        compile: Whether to compile the sweeps with `torch.compile`, which takes half a minute once. Needs torch 2.11.
        callback: Called with the `Progress` each time some particles are finished.

    Returns:
        The solution for every particle, in the order of the initial states, with a status for each.

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
    if not tol > 0:
        raise ValueError(f"tol is {tol!r}; it must be greater than 0")
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
    steps = min(steps, (max_sweeps - 1) // process.sweeps_per_step)  # the first sweep is done when a particle joins
    batch = _Batch(machine, process, starts, tol, max_sweeps, steps, compile)
    size = batch_size or fitting_batch(machine, process)
    more = True
    while more:
        try:
            more = batch.fill(size)
            if more:
                batch.advance()
                if batch.retire() and callback is not None:
                    callback(Progress(batch.n_finished, batch.n_converged, batch.total))
        except RuntimeError as error:
            if size == 1 or not is_out_of_memory(error):
                raise
            size = max(1, min(size, batch.total) // 2)
            batch.put_back()
    return batch.solution()


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether memory ran out; on a CPU torch raises a plain RuntimeError."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def fitting_batch(machine: BoltzmannMachine, process: Process) -> int:
    """Number of particles that fit into memory, limited to what is useful."""
    values = process.values_per_particle()
    free, most = CPU_MEMORY, max(CPU_BATCH, CPU_VALUES // values)
    if machine.device.type == "cuda":
        free, most = int(MEMORY_SHARE * torch.cuda.mem_get_info(machine.device)[0]), DEVICE_BATCH
    bytes_each = values * torch.finfo(machine.dtype).bits // 8
    return max(1, min(most, free // bytes_each))


class _Batch:
    """Active particles, waiting particles, and the results of finished ones.

    Finished particles stay in the batch until enough of them can be removed at once.
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
        self.last_age = max_sweeps - max(1, steps) * process.sweeps_per_step  # later, the next steps would be too many
        self._step = compiled(process.step, dynamic=True) if compile else process.step
        assert starts[0] is not None
        self.total = len(starts[0].mean)
        self.n_finished = self.n_converged = 0
        self.waiting = torch.arange(self.total, device=machine.device)
        self.on_cuda = machine.device.type == "cuda"
        self.captures = self.on_cuda and process.can_be_captured
        self.layers: list[Units] = []
        self.state: Any
        self.previous: Any  # before the last steps
        self.replay: Replay | None
        self._empty()
        self._allocate()

    def _empty(self) -> None:
        """Remove all particles from the batch."""
        device = self.machine.device
        self.state = self.previous = self.replay = None
        self.rows, self.age = (torch.empty(0, dtype=torch.long, device=device) for _ in range(2))
        self.open = torch.empty(0, dtype=torch.bool, device=device)  # which are unfinished
        self.residual = torch.empty(0, dtype=self.machine.dtype, device=device)

    def put_back(self) -> None:
        """Return active particles to the queue, to restart from their initial states."""
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
        """Remove finished particles and add others if that is efficient. False if nothing is left to do."""
        n_open = int(self.open.sum())
        waiting = len(self.waiting)
        share = DEVICE_REFILL if self.on_cuda else REFILL
        joining = min(size - n_open, waiting) if n_open <= share * size else 0
        worth_it = len(self.open) > SMALL_DEVICE_BATCH or not self.on_cuda
        if joining or n_open == 0 or (worth_it and n_open <= share * len(self.open)):
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
        """Advance all particles by some steps, without reading their values."""
        if self.steps == 0:
            self.residual = torch.full_like(self.age, torch.inf, dtype=self.machine.dtype)
        elif self.captures:
            if self.replay is None:
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
        """Store finished particles. Returns their number."""
        candidates = ~(self.residual >= self.tol) | (self.age > self.last_age)  # non-finite counts as finished, too
        index = (candidates & self.open).nonzero().squeeze(-1)
        if len(index) == 0:
            return 0
        index = index[self._write(index)]
        self.open[index] = False
        self.n_finished += len(index)
        return len(index)

    def _write(self, index: Tensor) -> Tensor:
        """Verify candidates and store those that are finished. Returns a mask of these."""
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
        """Set the status of particles without a solution, and store their last finite moments."""
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
        """Results of all particles."""
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
