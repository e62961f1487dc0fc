"""Training: objectives, where solutions start, optimisers, and the loop."""

from tapmachine.training.fit import DivergenceError, History, fit
from tapmachine.training.monitor import Monitor, TrainingWarning
from tapmachine.training.objectives import CD, PCD, Objective, TAPObjective
from tapmachine.training.optimizers import geometric_decay, paper_sgd
from tapmachine.training.report import TensorBoard
from tapmachine.training.starts import FromBatch, FromData, Herded, NoisyBatch, Persistent, RandomPoints, Start

__all__ = [
    "CD",
    "PCD",
    "DivergenceError",
    "FromBatch",
    "FromData",
    "Herded",
    "History",
    "Monitor",
    "NoisyBatch",
    "Objective",
    "Persistent",
    "RandomPoints",
    "Start",
    "TAPObjective",
    "TensorBoard",
    "TrainingWarning",
    "fit",
    "geometric_decay",
    "paper_sgd",
]
