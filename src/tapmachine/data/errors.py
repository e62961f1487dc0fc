"""All errors and warnings of this package, each under one base class."""


class TapmachineError(Exception):
    """Base class of all errors of this package. Subclasses also derive from a built-in error such as `ValueError`."""


class DivergenceError(TapmachineError, RuntimeError):
    """Training diverged repeatedly, at every learning rate tried."""


class FileError(TapmachineError, ValueError):
    """A file cannot be read, or a machine cannot be saved in a format."""


class DataError(TapmachineError, ValueError):
    """Data cannot be read, or are not rows of numbers."""


class SettingsError(TapmachineError, ValueError):
    """Invalid settings or combinations of settings."""


class RunError(TapmachineError, ValueError):
    """A run folder cannot be used."""


class EstimateError(TapmachineError, ValueError):
    """An estimator cannot give an answer for this machine."""


class MissingDataError(DataError):
    """Data for a figure of the paper are missing and cannot be downloaded."""


class Stopped(TapmachineError, RuntimeError):  # noqa: N818
    """Training was stopped between two batches on request."""


class StoppedRun(TapmachineError, RuntimeError):  # noqa: N818
    """A run was stopped by a signal. It is saved; repeat the call to resume it."""


class TapmachineWarning(UserWarning):
    """Base class of all warnings of this package."""


class TrainingWarning(TapmachineWarning):
    """Warning about training."""


class DataWarning(TapmachineWarning):
    """Warning about data."""


class PosteriorWarning(TapmachineWarning):
    """Warning about rows whose posterior may be unreliable."""


class RunWarning(TapmachineWarning):
    """Warning about a run folder."""


class LikelihoodWarning(TapmachineWarning):
    """Warning about a log-likelihood that may be unreliable."""


class HiddenWarning(TapmachineWarning):
    """Warning about hidden means."""
