"""The command-line application, options shared by several commands, and error handling."""

import contextlib
import inspect
import os
import re
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from tapmachine import __version__
from tapmachine.data.errors import DamageWarning
from tapmachine.data.progress import shown

if TYPE_CHECKING:
    from tapmachine.runs.registry import ModelWord
    from tapmachine.runs.session import Session

app = typer.Typer(
    name="tapmachine",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

USAGE_ERROR: Any = typer.BadParameter.__base__  # click's class, or typer's copy of it
LEAST_MEMORY = 3 * 2**29  # bytes of address space
BAD_INPUT, DIVERGED, STOPPED, INTERRUPTED = 2, 4, 75, 130  # exit status; see docs/reliability.md


def with_default(text: str, default: str) -> str:
    """Insert a default into the first sentence of a help text.

    Example:
        >>> with_default("Title of the page. Spaces are allowed.", "none")
        'Title of the page (default: none). Spaces are allowed.'
    """
    sentence, *rest = re.split(r"\.(?= |$)", text, maxsplit=1)
    return f"{sentence} (default: {default}).{''.join(rest)}"


def with_options(
    options: Sequence[inspect.Parameter], after: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the argument `**` of a command by options, which follow the parameter `after`."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command).parameters.values()
        parameters = [parameter for parameter in own if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
        place = [parameter.name for parameter in parameters].index(after) + 1
        parameters[place:place] = options
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorated


def model_options(models: "Mapping[str, ModelWord]", hints: Mapping[str, Any]) -> list[inspect.Parameter]:
    """Create one option for each parameter of the models, such as noisy channels. The first model describes it."""
    helps: dict[str, str] = {}
    for entry in models.values():
        helps = {**entry.parameters, **helps}
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[hints.get(name, float) | None, typer.Option(help=text, show_default=False)],
        )
        for name, text in helps.items()
    ]


def make_model(option: str, name: str, models: "Mapping[str, ModelWord]", given: Mapping[str, Any], *first: Any) -> Any:
    """Create the model that an option names, with the arguments that were given as options.

    Raises:
        ValueError: If an option is missing, or if it is not available for this model.
    """
    entry, values = models[name], {parameter: value for parameter, value in given.items() if value is not None}
    for parameter in values:
        if parameter not in entry.parameters:
            others = " or ".join(f"--{other}" for other in entry.parameters)
            raise ValueError(f"--{parameter} is not available for --{option} {name}; use {others}")
    for parameter in entry.required:
        if parameter not in values:
            raise ValueError(f"missing --{parameter}: --{option} {name} requires a value")
    return resolve_name(entry.home)(*first, **values)


Run = Annotated[Path, typer.Argument(help="Run directory or machine file.", show_default=False)]
Device = Annotated[str, typer.Option(help="Device: cpu, cuda, or auto (GPU if available).")]
Data = Annotated[
    str | None,
    typer.Option(
        help="Data set, in any format that train accepts (default: the run's data). Required for a machine file.",
        show_default=False,
    ),
]
TableFile = Annotated[
    Path | None, typer.Option("--out", "-o", help="Output file: .csv, .tsv or .parquet (default: standard output).")
]
Seed = Annotated[int, typer.Option(help="Random seed.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print results only.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _show_version(asked: bool) -> None:
    if asked:
        print(f"tapmachine {__version__}")
        raise typer.Exit


def command(example: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator that registers a command, with an example for its help text.

    Warnings are printed as single lines. With `quiet`, and in all processes but the first, nothing but the result is
    printed.
    """

    def registered(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def run(**values: Any) -> None:
            if os.environ.get("RANK", "0") != "0" and "quiet" in values:
                values["quiet"] = True
            quiet = values.get("quiet", False)
            on_terminal = (
                bool(sys.stderr and sys.stderr.isatty()) and not quiet and function.__name__ != "train"
            )  # which has its own bar
            with shown(on_terminal), escaped_output(), warnings_as_lines(quiet):
                limit = resource.getrlimit(resource.RLIMIT_AS)[0]
                if 0 <= limit < LEAST_MEMORY:  # some libraries would abort the process without a message
                    raise MemoryError(f"the limit is {limit / 2**30:.3g} GiB, less than {LEAST_MEMORY / 2**30:g} GiB")
                function(**values)

        return app.command(epilog=f"Example:  {example}")(run)

    return registered


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train, evaluate and use restricted and deep Boltzmann machines."""


def main() -> None:
    """Run the command-line interface. Errors print a single line and set the exit status."""
    for number in range(3):  # files must not take the number of a closed standard stream
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    with one_interrupt(), one_line_errors():
        code = app(standalone_mode=False)
    sys.exit(code if isinstance(code, int) else 0)


@contextmanager
def one_interrupt() -> Iterator[None]:
    """Ignore interrupts after the first one, which would stop the process before it has cleaned up."""

    def interrupt(number: int, frame: object) -> NoReturn:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_default or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Print user errors as a single line and exit. Other errors are bugs and keep their traceback."""
    try:
        yield
    except USAGE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
            sys.exit(BAD_INPUT)
        command = error.ctx.command_path if error.ctx else "tapmachine"
        fail(f"{_usage_message(error)}; see {command} --help", BAD_INPUT)
    except (typer.Abort, KeyboardInterrupt):
        fail("interrupted", INTERRUPTED)
    except (MemoryError, RuntimeError, SystemError, ImportError) as error:
        from tapmachine.data.errors import DivergenceError, StoppedRun

        if _is_out_of_memory(error):
            command = " ".join(["tapmachine", *sys.argv[1:2]])
            fail(f"not enough memory for {command}{f': {error}' if str(error) else ''}", BAD_INPUT)
        codes: dict[type[Exception], int] = {DivergenceError: DIVERGED, StoppedRun: STOPPED}
        if type(error) not in codes and not isinstance(error, ImportError):
            raise
        fail(str(error), codes.get(type(error), BAD_INPUT))
    except OSError as error:
        named = error.filename is not None and error.strerror is not None
        fail(f"{error.filename}: {error.strerror}" if named else str(error) or type(error).__name__, BAD_INPUT)
    except ValueError as error:
        fail(str(error) or type(error).__name__, BAD_INPUT)


def _is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out. PyTorch and Python's import system raise other errors than MemoryError then."""
    words = (
        "allocate memory",
        "failed to map segment",
        "out of memory",
        "bad_alloc",
        "malloc of size",
        "can't start new thread",
    )
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def _usage_message(error: Any) -> str:
    """Return the message of a usage error. Missing parameters are described by their help text."""
    missing = getattr(error, "param", None)
    if type(error).__name__ != "MissingParameter" or missing is None:
        return str(error.format_message()).rstrip(".")
    name = missing.opts[0] if missing.opts[0].startswith("-") else missing.name.upper()
    return f"missing {name}: {missing.help[:1].lower()}{missing.help[1:].rstrip('.')}"


def fail(message: str, code: int) -> NoReturn:
    """Print an error message to standard error in a single line and exit."""
    with contextlib.suppress(OSError):
        print(f"tapmachine: {escaped(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(code)


# Control characters, which could change what the terminal shows, and characters that change the direction of text.
DECEPTIVE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def escaped(text: str) -> str:
    r"""Escape control characters, except tabs and line ends, and bidirectional characters.

    Example:
        >>> print(escaped("a column \x1b[31m"))
        a column \x1b[31m
    """
    return DECEPTIVE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class _Escaping:
    """Standard stream that escapes what is written to it.

    Args:
        stream: Stream to write to.
        is_result: Whether errors are raised, with the name of the stream; messages may be lost.
    """

    def __init__(self, stream: Any, is_result: bool) -> None:
        self.stream, self.is_result = stream, is_result

    def write(self, text: str) -> int:
        """Write text."""
        with self._errors():
            self.stream.write(escaped(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        with self._errors():
            self.stream.flush()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            with contextlib.suppress(OSError, ValueError):  # Python would fail again when it flushes the stream at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())
            if self.is_result:
                raise OSError(f"standard output: {error.strerror}") from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def escaped_output() -> Iterator[None]:
    """Escape everything that is printed, including characters that the encoding of a stream lacks."""
    before = sys.stdout, sys.stderr
    for stream in before:
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = (stream and _Escaping(stream, stream is before[0]) for stream in before)
    try:
        yield
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    finally:
        sys.stdout, sys.stderr = before


def speaker(silent: bool) -> Callable[[str], None]:
    """Return a function that prints messages to standard error or, if `silent` is true, does nothing."""
    return (lambda line: None) if silent else (lambda line: print(line, file=sys.stderr))


@contextmanager
def warnings_as_lines(quiet: bool) -> Iterator[None]:
    """Print warnings as single lines, without file names and source code.

    If `quiet` is true, only damage is reported.
    """

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        if not quiet or issubclass(category, DamageWarning):
            print(f"tapmachine: warning: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


TABLES = (".csv", ".tsv", ".parquet")
SUFFIXES = (".npy", *TABLES)


def default_target(stem: str, source: str) -> Path:
    """Return the default output file: text for text input, Parquet for Parquet input, otherwise .npy."""
    from tapmachine.data.formats import is_text

    name, suffix = source.removesuffix(".gz"), ".npy"
    if source.endswith(".parquet"):
        suffix = ".parquet"
    elif is_text(source):
        suffix = ".tsv" if name.endswith(".tsv") else ".csv"
    path = Path(stem + suffix)
    if path.absolute() == Path(source).absolute():
        raise ValueError(f"{source}: the input is also the default output file; choose another output file with --out")
    return path


def check_targets(*targets: tuple[Path | None, tuple[str, ...]]) -> None:
    """Check output paths before the computation. Raises ValueError if a path cannot be written."""
    if sys.stdout is None and (None, TABLES) in targets:
        raise ValueError("standard output is closed; use --out FILE")
    given = [(path, suffixes) for path, suffixes in targets if path is not None]
    for path, suffixes in given:
        if path.suffix not in suffixes or path.is_dir():
            raise ValueError(f"{path}: expected a {' or '.join(suffixes)} output file, such as results{suffixes[0]}")
        if not path.absolute().parent.is_dir():
            raise ValueError(f"{path}: directory {path.parent} not found")
    paths = [path.absolute() for path, _ in given]
    if len(set(paths)) < len(paths):
        raise ValueError("two output options have the same path; choose different files")


def check_word(option: str, word: str | None, words: Iterable[str]) -> None:
    """Raise a ValueError if the value of an option is not one of the known words."""
    if word is not None and word not in words:
        raise ValueError(f"--{option} is {word!r}; expected one of {', '.join(words)}")


def open_session(run: Path, device: str = "cpu") -> "Session":
    """Open a run directory or machine file, with its machine on a device: cpu, cuda or auto."""
    from tapmachine.accelerator.distributed import pick_device
    from tapmachine.runs.session import Session

    return Session(run, pick_device(device))


def summary(records: Sequence[dict[str, Any]]) -> str:
    """Return a one-line summary of training, with the measurements of the machine that was kept."""
    from tapmachine.training.progress import in_words

    if not records:
        return "no epochs"
    last = records[-1]
    kept = next((own for own in records if own["epoch"] == last.get("kept_epoch")), last)
    parts = ["fitted" if last.get("is_fitted") else f"epoch {last['epoch']}"]
    if kept is not last:
        parts.append(f"epoch {kept['epoch']} kept")
    return ", ".join(parts + in_words({name: value for name, value in kept.items() if name != "seconds"}))
