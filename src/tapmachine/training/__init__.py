"""Training: options, objectives, optimizers, monitors, pretraining, and the training loop."""

from typing import TYPE_CHECKING

from tapmachine.lazy import lazy_names

# Each name is imported on first access, because the options do not need torch, which keeps --help fast.
if TYPE_CHECKING:
    from tapmachine.data.errors import DivergenceError as DivergenceError
    from tapmachine.data.errors import Stopped as Stopped
    from tapmachine.data.errors import TrainingWarning as TrainingWarning
    from tapmachine.training.chains import CD as CD
    from tapmachine.training.chains import PCD as PCD
    from tapmachine.training.loop import History as History
    from tapmachine.training.loop import Training as Training
    from tapmachine.training.loop import fit as fit
    from tapmachine.training.loss import Objective as Objective
    from tapmachine.training.monitor import Monitor as Monitor
    from tapmachine.training.objectives import TAPObjective as TAPObjective
    from tapmachine.training.optimizers import default_learning_rate as default_learning_rate
    from tapmachine.training.optimizers import geometric_decay as geometric_decay
    from tapmachine.training.optimizers import momentum_sgd as momentum_sgd
    from tapmachine.training.options import TrainingOptions as TrainingOptions
    from tapmachine.training.pretraining import pretrain as pretrain
    from tapmachine.training.trainer import Trainer as Trainer

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
