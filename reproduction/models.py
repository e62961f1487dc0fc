"""Machines of the paper's experiments; their settings are in models.toml."""

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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


_VALUES: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("models.toml").read_text())
ALL_MODELS = {
    name: Model(name, **own | {key: tuple(value) for key, value in own.items() if isinstance(value, list)})
    for name, own in _VALUES.items()
}
BINARY_MODELS = tuple(ALL_MODELS[f"binary-mnist-{n}"] for n in (25, 50, 100, 500))
BINARY_100, BINARY_500 = BINARY_MODELS[2:]
REAL_100, REAL_500, FACES_256 = (ALL_MODELS[name] for name in ("real-mnist-100", "real-mnist-500", "cbcl-256"))
TABLE = (*BINARY_MODELS, REAL_100, REAL_500, FACES_256)  # Table I
DEEP_2, DEEP_3 = DEEP_MODELS = ALL_MODELS["deep-2"], ALL_MODELS["deep-3"]
DISCUSSED = tuple(ALL_MODELS[name] for name in ("discussed-binary", "hopfield", "bounded-hopfield", "spike-slab"))
NOISY_500 = ALL_MODELS["noisy-starts-500"]

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
