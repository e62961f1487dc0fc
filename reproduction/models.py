"""Machines of the paper's experiments, with the settings of the paper's Table I."""

from dataclasses import dataclass, replace

BINARY, REAL, FACES = "binary-MNIST", "real-MNIST", "CBCL"
VISIBLE = {BINARY: "binary", REAL: "gauss-bernoulli", FACES: "truncated-gaussian"}
LETTERS = {BINARY: "a", REAL: "b", FACES: "c"}  # panel letters in figures


@dataclass(frozen=True)
class Model:
    """A machine and the settings of its training; letters are those of the paper."""

    name: str  # of the run directory
    data: str  # BINARY, REAL or FACES
    hidden: tuple[int, ...]  # number of units of each hidden layer
    epochs: int = 100  # in which all layers are trained jointly
    pretrain: int = 0  # epochs of pretraining per layer
    batch_size: int = 100  # M
    particles: int = 100  # K, solutions per gradient step
    learning_rate: float = 0.005  # γ
    decay: float = 1.0  # final learning rate as a fraction of the initial one
    weight_decay: float = 0.001  # ε
    momentum: float = 0.5  # η
    sweeps: int = 10  # per gradient step, with the accelerated iteration
    keep_every: int | None = None  # epochs between kept machines (None: about 20 machines at increasing intervals)
    measured: tuple[int, ...] = ()  # epochs at which solutions are measured (default: all kept ones)
    n_starts: int = 10_000  # training rows from which solutions are searched
    hidden_units: str = "binary"
    noisy_starts: bool = False  # whether the solutions of a gradient step start from a noisy batch
    sampled: bool = False  # whether to train with contrastive divergence instead of TAP


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
ALL_MODELS = {model.name: model for model in (*TABLE, *DEEP_MODELS, *DISCUSSED, NOISY_500)}

QUICK_EPOCHS = 24
QUICK_HIDDEN = {25: 8, 50: 12, 100: 16, 500: 32, 256: 16}


def quick(model: Model) -> Model:
    """Return a small version of a model that can be trained on scikit-learn's digits in seconds."""
    slow_units = model.data != BINARY or model.hidden_units != "binary"
    slowness = 6 if slow_units else 2 if model.pretrain else 1  # time of a step, relative to binary units
    return replace(
        model,
        hidden=tuple(16 if model.pretrain else QUICK_HIDDEN[n] for n in model.hidden),
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
