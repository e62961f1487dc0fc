"""Command `tapmachine train`, whose options are the fields of `Settings`."""

import inspect
import json
from collections.abc import Callable
from dataclasses import Field, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from tapmachine.apps.cli.common import (
    INTERRUPTED,
    AsJson,
    Device,
    Quiet,
    app,
    fail,
    speaker,
    summary,
    warnings_as_lines,
    with_default,
)
from tapmachine.data.declarations import default_in_words, from_text, item_kind, kinds, option_of
from tapmachine.runs.settings import Settings, read_settings

HINTS = get_type_hints(Settings)


def parameter(declared: "Field[Any]", hint: Any) -> inspect.Parameter:
    """Create the command-line option of a setting. Its default, None, does not override a settings file."""
    option, name = option_of(declared), declared.name
    (kind,) = {str} if item_kind(hint) or str in kinds(hint) else {*kinds(hint)} - {type(None)}
    if name == "data":
        info: Any = typer.Argument(help=option.help_text(), show_default=False)
    else:
        flags = option.flags or f"--{name.replace('_', '-')}"
        text = with_default(option.help_text(), default_in_words(declared))
        # Flags have a separate panel, because the column of negative flags leaves too little room for other help texts.
        info = typer.Option(flags, help=text, show_default=False, rich_help_panel="Flags" if kind is bool else None)
    keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD if name == "data" else inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=None, annotation=Annotated[kind | None, info])


def _with_settings_as_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the argument `**flags` of a command by one parameter per setting."""
    parameters = inspect.signature(command).parameters.values()
    options = [parameter(declared, HINTS[declared.name]) for declared in fields(Settings)]
    first = [option for option in options if option.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    before = [parameter for parameter in parameters if parameter.name in ("out", "settings")]
    after = [p for p in parameters if p not in before and p.kind is not inspect.Parameter.VAR_KEYWORD]
    signature = inspect.Signature([*first, *before, *(option for option in options if option not in first), *after])
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    return command


@app.command(epilog="Example:  tapmachine train digits --binarize 0.5 --hidden 64 --epochs 100 --out runs/d")
@_with_settings_as_options
def train(
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Run directory to create or continue.", show_default=False)],
    settings: Annotated[
        Path | None, typer.Option(help="JSON settings file. Command-line options take precedence.")
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: AsJson = False,
    **flags: Any,
) -> None:
    """Train a machine in a run directory, or continue a run.

    To resume a run after a crash, pass only --out. The results are
    bit-identical to those of an uninterrupted run.
    To train a finished run further, increase --epochs.
    """
    chosen = _settings(out, settings, {name: value for name, value in flags.items() if value is not None})
    from tapmachine.accelerator.distributed import leads, together
    from tapmachine.runs.build import pick_device
    from tapmachine.runs.training import run_training

    quiet = quiet or not leads()
    silent = quiet or as_json
    try:
        with warnings_as_lines(quiet), together(pick_device(device)) as local_device:
            run = run_training(chosen, out, local_device, progress=not silent, say=speaker(silent))
    except KeyboardInterrupt:
        fail("interrupted; the last checkpoint is saved; rerun the command to continue", INTERRUPTED)
    last = run.records[-1] if run.records else {}
    if as_json and leads():
        print(json.dumps({"run": str(out), "resumed_at": run.resumed_at, "last": last}))
    elif not quiet:
        print(f"{out}: {summary(last)}")


def _settings(out: Path, path: Path | None, flags: dict[str, Any]) -> Settings:
    """Read settings from a file or from the run to continue, and override them with command-line options."""
    in_run = out / "settings.json"
    if path is None and "data" not in flags and in_run.exists():
        path = in_run
    values = {} if path is None else read_settings(path)
    values |= {name: from_text(name, value, HINTS[name]) for name, value in flags.items()}
    for name in ("data", "validation", "weights"):
        if isinstance(values.get(name), str):
            values[name] = _absolute(values[name])
    if "data" not in values:
        raise ValueError(
            "missing data: give a data set, a file or a directory, as in: tapmachine train digits --out RUN"
        )
    return Settings(**values)


def _absolute(source: str) -> str:
    """Make the path of a data file absolute, so that training can be resumed from any directory."""
    from tapmachine.data.sources import NAMED

    path, mark, key = source.partition(".npz:")
    file = Path(path + ".npz" if mark else path)
    is_path = file.is_file() or (file.is_dir() and source not in NAMED)
    return f"{file.resolve()}{mark and ':' + key}" if is_path else source
