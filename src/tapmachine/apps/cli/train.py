"""Command `tapmachine train`, whose options are the fields of `Settings`."""

import inspect
import json
from dataclasses import Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from tapmachine.apps.cli.common import (
    INTERRUPTED,
    AsJson,
    Device,
    Quiet,
    command,
    fail,
    speaker,
    summary,
    with_default,
    with_options,
)
from tapmachine.data.declarations import default_in_words, from_text, item_kind, kinds, option_of
from tapmachine.runs.settings import Settings, read_settings

if TYPE_CHECKING:
    from tapmachine.runs.folder import RunFolder

HINTS = get_type_hints(Settings)
ON_SHELL = [each for each in fields(Settings) if option_of(each).on_shell]
IN_FILES = ", ".join(each.name for each in fields(Settings) if not option_of(each).on_shell)


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
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=None, annotation=Annotated[kind | None, info])


@command("tapmachine train digits --binarize 0.5 --hidden 64 --epochs 100 --out runs/d")
@with_options([parameter(each, HINTS[each.name]) for each in ON_SHELL], after="settings")
def train(
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Run directory to create or continue.", show_default=False)],
    settings: Annotated[
        Path | None,
        typer.Option(help=f"JSON settings file, which can also contain {IN_FILES}. Options take precedence."),
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
    from tapmachine.accelerator.distributed import leads, pick_device, together
    from tapmachine.runs.folder import RunFolder
    from tapmachine.runs.training import run_training

    run = RunFolder(out)
    chosen = _settings(run, settings, {name: value for name, value in flags.items() if value is not None})
    silent = quiet or as_json
    try:
        with together(pick_device(device)) as local_device:
            done = run_training(chosen, run, local_device, progress=not silent, say=speaker(silent))
    except KeyboardInterrupt:
        fail("interrupted; the last checkpoint is saved; rerun the command to continue", INTERRUPTED)
    last = done.records[-1] if done.records else {}
    if as_json and leads():
        print(json.dumps({"run": str(out), "resumed_at": done.resumed_at, "last": last}))
    elif not quiet:
        print(f"{out}: {summary(done.records)}")


def _settings(run: "RunFolder", path: Path | None, flags: dict[str, Any]) -> Settings:
    """Read settings from a file or from the run to continue, and override them with command-line options."""
    values = {name: from_text(name, value, HINTS[name]) for name, value in flags.items()}
    before = run.settings() if path is None else None
    if before is not None:
        values = vars(before) | values
    elif path is not None:
        values = read_settings(path) | values
    if "data" not in values:
        raise ValueError(
            "missing data: give a data set, a file or a directory, as in: tapmachine train digits --out RUN"
        )
    return Settings(**values).with_absolute_paths()
