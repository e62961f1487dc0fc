"""All errors and warnings of this package, each under one base class."""


class TapmachineError(Exception):
    """An error that this package raises deliberately. Each is a `ValueError`, `RuntimeError` or the like as well."""


class DivergenceError(TapmachineError, RuntimeError):
    """Training diverged repeatedly, at every learning rate tried."""


class FileError(TapmachineError, ValueError):
    """A file that cannot be read as what it should be, or a machine that a file cannot hold."""


class DataError(TapmachineError, ValueError):
    """Data that cannot be read, or are not rows of numbers."""


class SettingsError(TapmachineError, ValueError):
    """Settings that do not make sense, by themselves or together."""


class RunError(TapmachineError, ValueError):
    """A run folder that cannot be used as asked."""


class EstimateError(TapmachineError, ValueError):
    """An estimator cannot give an answer for this machine."""


class MissingDataError(DataError):
    """Data that a figure of the paper needs, and that cannot be downloaded."""


class Stopped(TapmachineError, RuntimeError):  # noqa: N818
    """Training was stopped between two batches on request."""


class StoppedRun(TapmachineError, RuntimeError):  # noqa: N818
    """A run was stopped by a signal; it is saved, and the same call continues it."""


class TapmachineWarning(UserWarning):
    """A warning that this package issues deliberately."""


class TrainingWarning(TapmachineWarning):
    """A warning about a training."""


class DataWarning(TapmachineWarning):
    """Something about data that their user should know."""


class PosteriorWarning(TapmachineWarning):
    """Rows whose posterior may be unreliable."""


class RunWarning(TapmachineWarning):
    """Something about a run folder that its user should know."""


class LikelihoodWarning(TapmachineWarning):
    """A log-likelihood that may be unreliable."""


class HiddenWarning(TapmachineWarning):
    """A warning about hidden means."""
