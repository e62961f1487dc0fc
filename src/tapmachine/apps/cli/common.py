"""The command-line application, options shared by several commands, and error handling."""

import inspect
import os
import re
import sys
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
            with warnings_as_lines(values.get("quiet", False)):
                function(**values)

        return app.command(epilog=f"Example:  {example}")(run)

    return registered


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train, evaluate and use Restricted and Deep Boltzmann Machines with the TAP mean field."""


def main() -> None:
    """Run the command-line interface. Errors print a single line and set the exit status."""
    with one_line_errors():
        code = app(standalone_mode=False)
    sys.exit(code if isinstance(code, int) else 0)


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
    except typer.Abort:
        fail("interrupted", INTERRUPTED)
    except (ValueError, OSError, ImportError) as error:
        fail(" ".join(str(error).split()) or type(error).__name__, BAD_INPUT)
    except RuntimeError as error:
        from tapmachine.data.errors import DivergenceError, StoppedRun

        codes: dict[type[RuntimeError], int] = {DivergenceError: DIVERGED, StoppedRun: STOPPED}
        if type(error) not in codes:
            raise
        fail(str(error), codes[type(error)])


def _usage_message(error: Any) -> str:
    """Return the message of a usage error. Missing parameters are described by their help text."""
    missing = getattr(error, "param", None)
    if type(error).__name__ != "MissingParameter" or missing is None:
        return str(error.format_message()).rstrip(".")
    name = missing.opts[0] if missing.opts[0].startswith("-") else missing.name.upper()
    return f"missing {name}: {missing.help[:1].lower()}{missing.help[1:].rstrip('.')}"


def fail(message: str, code: int) -> NoReturn:
    """Print an error message to standard error and exit."""
    print(f"tapmachine: {message}", file=sys.stderr)
    sys.exit(code)


def speaker(silent: bool) -> Callable[[str], None]:
    """Return a function that prints messages to standard error or, if `silent` is true, does nothing."""
    return (lambda line: None) if silent else (lambda line: print(line, file=sys.stderr))


@contextmanager
def warnings_as_lines(quiet: bool) -> Iterator[None]:
    """Print warnings as single lines, without file names and source code."""

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
    return ", ".join(parts + in_words(kept))
