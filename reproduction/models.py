"""Machines of the paper's experiments, with the settings of the paper's Table I."""

from dataclasses import dataclass, replace

from reproduction.procedure import Procedure
from tapmachine.runs.settings import Settings

BINARY, REAL, FACES = "binary-MNIST", "real-MNIST", "CBCL"
VISIBLE = {BINARY: "binary", REAL: "gauss-bernoulli", FACES: "truncated-gaussian"}
LETTERS = {BINARY: "a", REAL: "b", FACES: "c"}  # panel letters in figures


@dataclass(frozen=True)
class Model:
    """A machine and the settings of its training.

    Attributes:
        name: Name of the run directory.
        data: Name of the data set: `BINARY`, `REAL` or `FACES`.
        hidden: Number of units of each hidden layer.
        epochs: Number of epochs in which all layers are trained jointly (default: 100).
        pretrain: Number of epochs of pretraining per layer (default: 0).
        batch_size: Batch size, M in the paper (default: 100).
        particles: Number of TAP solutions per gradient step, K in the paper (default: 100).
        learning_rate: Initial learning rate, γ in the paper (default: 0.005).
        decay: Final learning rate as a fraction of the initial learning rate (default: 1).
        weight_decay: Weight decay, ε in the paper (default: 0.001).
        momentum: Momentum, η in the paper (default: 0.5).
        sweeps: Number of sweeps per gradient step with the accelerated iteration (default: 10).
        keep_every: Number of epochs between kept machines (default: about 20 machines at increasing intervals).
        measured: Epochs at which solutions are measured, if their machines are kept (default: all kept epochs).
        n_starts: Number of training rows from which solutions are searched (default: 10,000).
        hidden_units: Type of the hidden units (default: binary).
        noisy_starts: Whether the solutions of a gradient step start from a noisy batch instead of the batch.
        sampled: Whether to train with contrastive divergence instead of TAP (default: False).
    """

    name: str
    data: str
    hidden: tuple[int, ...]
    epochs: int = 100
    pretrain: int = 0
    batch_size: int = 100
    particles: int = 100
    learning_rate: float = 0.005
    decay: float = 1.0
    weight_decay: float = 0.001
    momentum: float = 0.5
    sweeps: int = 10
    keep_every: int | None = None
    measured: tuple[int, ...] = ()
    n_starts: int = 10_000
    hidden_units: str = "binary"
    noisy_starts: bool = False
    sampled: bool = False

    def settings(
        self, train: str, test: str | float, seed: int, procedure: Procedure | None = None, quick: bool = False
    ) -> Settings:
        """Return the settings of the training.

        Args:
            train: Source of the training rows.
            test: Source of the held-out rows, or the fraction of the training rows to hold out.
            seed: Random seed.
            procedure: Procedure of the reproduction (default: `Procedure()`).
            quick: Whether the run is quick (default: False).
        """
        procedure = procedure or Procedure()
        return Settings(
            train,
            validation=test,
            binarize=0.5 if self.data == BINARY else None,
            visible=VISIBLE[self.data],
            interval=None if self.data == BINARY else (0.0, 1.0),
            hidden=self.hidden,
            hidden_units=self.hidden_units,
            pretrain=self.pretrain,
            epochs=self.epochs,
            batch_size=self.batch_size,
            objective="cd" if self.sampled else "tap",
            n_sweeps=self.sweeps if self.sampled else procedure.n_sweeps(self.sweeps, quick),
            n_particles=None if self.sampled else self.particles,
            learning_rate=self.learning_rate,
            decay=self.decay,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            centered=None if procedure.centered else False,
            averaged=False,
            early_stopping=False,
            seed=seed,
            measure_every=5,
            save_every=5,
            keep_every=self.keep_every,
        )


BINARY_EPOCHS = (1, 2, 3, 5, 7, 10, 20, 35, 50, 75, 100)  # dense at the beginning, where most changes occur
BINARY_MODELS = tuple(
    Model(f"binary-mnist-{n}", BINARY, (n,), keep_every=1, measured=BINARY_EPOCHS) for n in (25, 50, 100, 500)
)
BINARY_100, BINARY_500 = BINARY_MODELS[2:]
REAL_100, REAL_500 = REAL_MODELS = tuple(
    Model(
        f"real-mnist-{n}",
        REAL,
        (n,),
        learning_rate=1e-2,
        decay=1e-3,
        keep_every=1,
        measured=(1, 3, 5, 10, 15, 20, 25, 35, 50, 75, 100),
        n_starts=2000,  # a sweep takes fifty times as long as a sweep with binary units
    )
    for n in (100, 500)
)
FACES_256 = Model(
    "cbcl-256",
    FACES,
    (256,),
    epochs=500,
    batch_size=20,
    particles=20,
    weight_decay=0.01,
    keep_every=5,
    measured=(5, 10, 15, 20, 30, 40, 60, 80, 100, 150, 200, 300, 400, 500),
    n_starts=2400,
)
DEEP_2, DEEP_3 = DEEP_MODELS = tuple(
    Model(f"deep-{n}", BINARY, (500,) * n, epochs=500, pretrain=50, learning_rate=0.001, keep_every=0) for n in (2, 3)
)
TABLE = (*BINARY_MODELS, *REAL_MODELS, FACES_256)  # Table I
# Proposals of the paper's discussion: other types of hidden units, and training from noisy starts.
# TAP has no solution for unbounded hidden units with strong couplings, so Gaussian units are trained by sampling.
_DISCUSSED = replace(BINARY_100, learning_rate=0.05, epochs=20, sweeps=4, measured=(1, 2, 5, 10, 15, 20), n_starts=1000)
DISCUSSED = (
    replace(_DISCUSSED, name="discussed-binary", hidden_units="binary"),
    replace(_DISCUSSED, name="hopfield", hidden_units="gaussian", sampled=True),
    replace(_DISCUSSED, name="bounded-hopfield", hidden_units="truncated-gaussian"),
    replace(_DISCUSSED, name="spike-slab", hidden_units="gauss-bernoulli"),
)
NOISY_500 = replace(BINARY_500, name="noisy-starts-500", noisy_starts=True)
ALL_MODELS = (*TABLE, *DEEP_MODELS, *DISCUSSED, NOISY_500)

QUICK_EPOCHS = 24
QUICK_HIDDEN = {25: 8, 50: 12, 100: 16, 500: 32, 256: 16}


def quick(model: Model) -> Model:
    """Return a small version of a model that can be trained on scikit-learn's digits in seconds."""
    hidden = tuple(QUICK_HIDDEN[n] if model.pretrain == 0 else 16 for n in model.hidden)
    slow_units = model.data != BINARY or model.hidden_units != "binary"
    slowness = 6 if slow_units else 2 if model.pretrain else 1  # time of a step, relative to binary units
    return replace(
        model,
        hidden=hidden,
        epochs=QUICK_EPOCHS // slowness,
        pretrain=QUICK_EPOCHS // 4 if model.pretrain else 0,
        batch_size=100,
        particles=50,
        sweeps=4,
        learning_rate=0.3,
        decay=1.0,
        weight_decay=0.0,
        keep_every=None if model.keep_every is None else min(model.keep_every, 1),
        measured=(1, 4, 12, QUICK_EPOCHS),
        n_starts=300,
    )
