"""Training: objectives, where solutions start, optimisers, and the loop."""

from tapmachine.training.fit import History, fit
from tapmachine.training.monitor import Monitor, TrainingWarning
from tapmachine.training.objectives import CD, PCD, HerdedPCD, Objective, TAPObjective, default_objective
from tapmachine.training.optimizers import default_learning_rate, geometric_decay, paper_sgd
from tapmachine.training.pretraining import Pretraining, PretrainingTrainer, pretrain
from tapmachine.training.report import TensorBoard
from tapmachine.training.starts import FromBatch, FromData, Herded, NoisyBatch, Persistent, RandomPoints, Start
from tapmachine.training.state import TrainingState
from tapmachine.training.trainer import DivergenceError, Stopped, Trainer

__all__ = [
    "CD",
    "PCD",
    "DivergenceError",
    "FromBatch",
    "FromData",
    "Herded",
    "HerdedPCD",
    "History",
    "Monitor",
    "NoisyBatch",
    "Objective",
    "Persistent",
    "Pretraining",
    "PretrainingTrainer",
    "RandomPoints",
    "Start",
    "Stopped",
    "TAPObjective",
    "TensorBoard",
    "Trainer",
    "TrainingState",
    "TrainingWarning",
    "default_learning_rate",
    "default_objective",
    "fit",
    "geometric_decay",
    "paper_sgd",
    "pretrain",
]
