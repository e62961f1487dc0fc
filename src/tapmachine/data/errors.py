"""Exceptions and warnings of the package, and what their messages share."""

import inspect
import os
import warnings


class TapmachineError(Exception):
    """Base class for the package's exceptions, which also derive from built-in exceptions such as `ValueError`.

    Example:
        >>> from tapmachine import TapmachineError, load
        >>> try:
        ...     load("missing.safetensors")
        ... except TapmachineError as error:
        ...     print(error)
        missing.safetensors: file not found
    """


class DivergenceError(TapmachineError, RuntimeError):
    """Raised if training diverges at every learning rate that was tried.

    Example:
        >>> from tapmachine.training import DivergenceError
        >>> issubclass(DivergenceError, RuntimeError)
        True
    """


class FileError(TapmachineError, ValueError):
    """Raised if a file cannot be read, or if a machine cannot be saved in the requested format.

    Example:
        >>> from tapmachine.machine import FileError, read_rbms
        >>> try:
        ...     read_rbms("missing.h5")
        ... except FileError as error:
        ...     print(error)
        missing.h5: file not found
    """


class DataError(TapmachineError, ValueError):
    """Raised if data cannot be read or are not rows of numbers."""


class SettingsError(TapmachineError, ValueError):
    """Raised if a setting or a combination of settings is invalid."""


class RunError(TapmachineError, ValueError):
    """Raised if a run directory cannot be used."""


class EstimateError(TapmachineError, ValueError):
    """Raised if a quantity cannot be estimated for a machine.

    Example:
        >>> import torch
        >>> from tapmachine import Gaussian, exact_log_partition, rbm
        >>> from tapmachine.likelihood import EstimateError
        >>> try:
        ...     exact_log_partition(rbm(Gaussian(1), Gaussian(1), weights=torch.tensor([[2.0]])))
        ... except EstimateError as error:
        ...     print(error)
        ln Z is infinite: the couplings are too strong for units on the whole real line
    """


class Stopped(TapmachineError, RuntimeError):  # noqa: N818
    """Raised if training is stopped between two batches because `stopping` was set.

    Example:
        >>> from tapmachine.training import Stopped
        >>> issubclass(Stopped, RuntimeError)
        True
    """


class StoppedRun(TapmachineError, RuntimeError):  # noqa: N818
    """Raised if a signal stops a run. Repeating the call resumes the run from the saved state."""


class TapmachineWarning(UserWarning):
    """Base class for all warnings of the package.

    Example:
        >>> import warnings
        >>> from tapmachine import TapmachineWarning
        >>> warnings.filterwarnings("ignore", category=TapmachineWarning)
    """


class TrainingWarning(TapmachineWarning):
    """Warning about the progress or the result of training.

    Example:
        >>> import warnings
        >>> from tapmachine.training import TrainingWarning
        >>> warnings.filterwarnings("error", category=TrainingWarning)  # turns them into exceptions
    """


class DataWarning(TapmachineWarning):
    """Warning about questionable data."""


class PosteriorWarning(TapmachineWarning):
    """Warning about rows whose posterior may be unreliable.

    Example:
        >>> import warnings
        >>> from tapmachine.posterior import PosteriorWarning
        >>> warnings.filterwarnings("error", category=PosteriorWarning)  # turns them into exceptions
    """


class RunWarning(TapmachineWarning):
    """Warning about the files or the data of a run."""


class DamageWarning(RunWarning):
    """Warning about a damaged file, which commands print even with --quiet."""


class LikelihoodWarning(TapmachineWarning):
    """Warning about a log-likelihood that may be unreliable.

    Example:
        >>> import warnings
        >>> from tapmachine.likelihood import LikelihoodWarning
        >>> warnings.filterwarnings("error", category=LikelihoodWarning)  # turns them into exceptions
    """


class HiddenWarning(TapmachineWarning):
    """Warning about means of hidden units that may be unreliable.

    Example:
        >>> import warnings
        >>> from tapmachine.analysis import HiddenWarning
        >>> warnings.filterwarnings("error", category=HiddenWarning)  # turns them into exceptions
    """


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


def check_memory(n_bytes: int, what: str) -> None:
    """Raise a MemoryError if something needs more memory than the computer, or the process, may have."""
    import resource

    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limits = [limit for limit, _ in [resource.getrlimit(resource.RLIMIT_AS)] if limit != resource.RLIM_INFINITY]
    most = min([total, *limits])
    if n_bytes > most:
        raise MemoryError(f"{what} needs {n_bytes / 2**30:.3g} GiB of memory; {most / 2**30:.3g} GiB are available")


def plural(count: int, word: str = "solution") -> str:
    """Return the word in the singular or plural, depending on the count."""
    return word if count == 1 else f"{word}es" if word.endswith("s") else f"{word}s"
