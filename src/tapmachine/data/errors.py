"""Exceptions and warnings of the package."""

import inspect
import warnings


class TapmachineError(Exception):
    """Base class for the package's exceptions, which also derive from built-in exceptions such as `ValueError`."""


class DivergenceError(TapmachineError, RuntimeError):
    """Raised if training diverges at every learning rate that was tried."""


class FileError(TapmachineError, ValueError):
    """Raised if a file cannot be read, or if a machine cannot be saved in the requested format."""


class DataError(TapmachineError, ValueError):
    """Raised if data cannot be read or are not rows of numbers."""


class SettingsError(TapmachineError, ValueError):
    """Raised if a setting or a combination of settings is invalid."""


class RunError(TapmachineError, ValueError):
    """Raised if a run directory cannot be used."""


class EstimateError(TapmachineError, ValueError):
    """Raised if a quantity cannot be estimated for a machine."""


class MissingDataError(DataError):
    """Raised if the data for a figure of the paper are missing and cannot be downloaded."""


class Stopped(TapmachineError, RuntimeError):  # noqa: N818
    """Raised if training is stopped between two batches because `stopping` was set."""


class StoppedRun(TapmachineError, RuntimeError):  # noqa: N818
    """Raised if a signal stops a run. Repeating the call resumes the run from the saved state."""


class TapmachineWarning(UserWarning):
    """Base class for all warnings of the package."""


class TrainingWarning(TapmachineWarning):
    """Warning about the progress or the result of training."""


class DataWarning(TapmachineWarning):
    """Warning about questionable data."""


class PosteriorWarning(TapmachineWarning):
    """Warning about rows whose posterior may be unreliable."""


class RunWarning(TapmachineWarning):
    """Warning about the files or the data of a run."""


class LikelihoodWarning(TapmachineWarning):
    """Warning about a log-likelihood that may be unreliable."""


class HiddenWarning(TapmachineWarning):
    """Warning about means of hidden units that may be unreliable."""


# The package, and what may lie between it and the user: decorators, contexts, and wrappers of scikit-learn.
_INSIDE = {"tapmachine", "torch", "sklearn", "contextlib"}


def warn(message: str, category: type[TapmachineWarning]) -> None:
    """Issue a warning that names the line of the user's code that called the package, from any depth.

    Args:
        message: The text.
        category: The class of the warning.
    """
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
