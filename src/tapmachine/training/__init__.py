"""Training: objectives, initial states of TAP solutions, optimizers, and the training loop."""

from tapmachine.accelerator.precision import matmul_precision
from tapmachine.data.errors import DivergenceError, Stopped, TrainingWarning
from tapmachine.training.chains import CD, PCD, Chains
from tapmachine.training.loop import History, Training, fit
from tapmachine.training.loss import Objective
from tapmachine.training.monitor import Monitor
from tapmachine.training.objectives import TAPObjective
from tapmachine.training.optimizers import default_learning_rate, geometric_decay, momentum_sgd
from tapmachine.training.pretraining import Pretraining, pretrain
from tapmachine.training.starts import FromBatch, FromData, NoisyBatch, Persistent, RandomPoints, Start
from tapmachine.training.trainer import Trainer

__all__ = [
    "CD",
    "PCD",
    "Chains",
    "DivergenceError",
    "FromBatch",
    "FromData",
    "History",
    "Monitor",
    "NoisyBatch",
    "Objective",
    "Persistent",
    "Pretraining",
    "RandomPoints",
    "Start",
    "Stopped",
    "TAPObjective",
    "Trainer",
    "Training",
    "TrainingWarning",
    "default_learning_rate",
    "fit",
    "geometric_decay",
    "matmul_precision",
    "momentum_sgd",
    "pretrain",
]
