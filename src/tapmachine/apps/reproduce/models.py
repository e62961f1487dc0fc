"""The machines of the paper's experiments, with the settings of its Table I."""

from dataclasses import dataclass, replace

from tapmachine.runs.settings import Settings

BINARY, REAL, FACES = "binary-MNIST", "real-MNIST", "CBCL"
VISIBLE = {BINARY: "binary", REAL: "gauss-bernoulli", FACES: "truncated-gaussian"}
LETTERS = {BINARY: "a", REAL: "b", FACES: "c"}  # of the panels


@dataclass(frozen=True)
class Model:
    """A machine and how it is trained: by TAP solutions from the batch.

    Attributes:
        name: of its run folder.
        data: which of the three data sets.
        hidden: units of each hidden layer.
        epochs: of training; of all layers together, if there are several.
        pretrain: epochs for each of several layers before that.
        batch_size, particles: M and K.
        learning_rate, decay: γ, and what is left of it in the end.
        weight_decay, momentum: ε and η.
        sweeps: from the batch toward a solution.
        keep_every: epochs between machines that are kept; by default about 20, at rising distances.
        measured: epochs whose solutions are looked at, of those that are kept; by default all.
        n_starts: rows that solutions are looked for from.
        centered: whether gradients are centered, where the units allow it; not in the paper.
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
    centered: bool = False

    def settings(self, train: str, test: str | float, seed: int) -> Settings:
        """Of its training on given rows; rows held out may be a share of them."""
        return Settings(
            train,
            validation=test,
            binarize=0.5 if self.data == BINARY else None,
            visible=VISIBLE[self.data],
            interval=None if self.data == BINARY else (0.0, 1.0),
            hidden=self.hidden,
            pretrain=self.pretrain,
            pretrain_layers="all",
            epochs=self.epochs,
            batch_size=self.batch_size,
            objective="tap-average",
            n_sweeps=self.sweeps,
            n_particles=self.particles,
            learning_rate=self.learning_rate,
            decay=self.decay,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            centered=None if self.centered else False,
            averaged=False,
            early_stopping=False,
            seed=seed,
            measure_every=5,
            save_every=5,
            keep_every=self.keep_every,
        )


BINARY_MODELS = tuple(Model(f"binary-mnist-{n}", BINARY, (n,)) for n in (25, 50, 100, 500))
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
        n_starts=2000,  # their sweeps take fifty times as long as those of binary units
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
    Model(f"deep-{n}", BINARY, (500,) * n, pretrain=50, learning_rate=0.001, keep_every=0) for n in (2, 3)
)
TABLE = (*BINARY_MODELS, *REAL_MODELS, FACES_256)  # I

QUICK_EPOCHS = 24
QUICK_HIDDEN = {25: 8, 50: 12, 100: 16, 500: 32, 256: 16}


def quick(model: Model) -> Model:
    """The same for the embedded digits: fewer units and epochs, and larger steps, so that it takes seconds."""
    hidden = tuple(QUICK_HIDDEN[n] if model.pretrain == 0 else 16 for n in model.hidden)
    slowness = 6 if model.data != BINARY else 2 if model.pretrain else 1  # of a step
    return replace(
        model,
        hidden=hidden,
        epochs=QUICK_EPOCHS // slowness,
        pretrain=QUICK_EPOCHS // 4 if model.pretrain else 0,
        batch_size=100,
        particles=50,
        sweeps=4,
        learning_rate=0.1 if model.data == BINARY else 0.3,
        decay=1.0,
        weight_decay=0.0,
        keep_every=None if model.keep_every is None else min(model.keep_every, 1),
        measured=(1, 2, 4, 8, 16, QUICK_EPOCHS),
        n_starts=300,
    )
