"""The documentation covers every public name, its code and its commands run, and its links lead somewhere."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import copy
from types import ModuleType

import pytest
import reference
from marks import drifting_tap
from run_cases import command

import tapmachine
from tapmachine.runs import settings
from tapmachine.training import trainer

ROOT = Path(__file__).parents[1]
PACKAGE = Path(tapmachine.__file__).parent


def public_names() -> list:
    """All names of the package and of its namespaces, with what they stand for."""
    spaces = {"tapmachine": tapmachine, **reference.modules()}
    return [
        pytest.param(name, getattr(module, name), id=f"{space}.{name}")
        for space, module in spaces.items()
        for name in module.__all__
    ]


DOCUMENTATION = "\n".join(path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize(("name", "value"), public_names())
def test_every_public_name_is_documented_with_an_example(name, value):
    assert reference.summary(value)
    if not isinstance(value, ModuleType) and value.__module__ != "tapmachine.training.starts":
        assert ">>> " in value.__doc__, "no runnable example"
    assert re.search(rf"\b{re.escape(name)}\b", DOCUMENTATION), f"{name} is nowhere in the documentation"


def test_names_in_import_statements():
    """What a module lists can be imported from it, and is listed once."""
    names = {*tapmachine.__all__}
    for space, module in reference.modules().items():
        assert len({*module.__all__}) == len(module.__all__)
        exec(f"import tapmachine.{space}\nfrom tapmachine.{space} import {', '.join(module.__all__)}", {})
        names |= {*module.__all__}
    assert len(names) <= 150


def test_the_reference_is_up_to_date():
    assert reference.FILE.read_text() == reference.text(), "run python tools/reference.py"


TABLE = ROOT / "examples" / "penguins.csv"  # which the guide reads


def code_blocks(language: str) -> list:
    found = []
    for path in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]):
        blocks = re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)
        if language == "python" and path.name == "five_minutes.md":
            blocks = ["\n".join(blocks)]  # a single session
        for number, block in enumerate(blocks):
            found.append(pytest.param(block, id=f"{path.relative_to(ROOT)}#{number}"))
    return found


@pytest.fixture
def few_epochs(monkeypatch):
    """The pages show defaults, which take several seconds each."""
    for module in (trainer, settings):
        monkeypatch.setattr(module, "default_epochs", lambda n_batches: 10)


@pytest.mark.long
@pytest.mark.usefixtures("few_epochs")
@drifting_tap  # of which the guide tells
@pytest.mark.parametrize("block", code_blocks("python"))
def test_the_documentation_runs(block, tmp_path, monkeypatch):
    copy(TABLE, tmp_path)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "documentation", "exec"), {"__name__": "documentation"})


def shell_blocks() -> Iterator:
    """Those of the guide take longer, and are much the same as those of the README."""
    for case in code_blocks("shell"):
        marks = () if case.id.startswith("README") else (pytest.mark.slow,)
        yield pytest.param(*case.values, id=case.id, marks=marks)


def command_lines(block: str) -> list[list[str]]:
    """The words of each command, whose quotes may go over several lines."""
    found, begun = [], ""
    for line in block.replace("\\\n", " ").splitlines():
        begun += line + "\n"
        try:
            words = shlex.split(begun, comments=True)
        except ValueError:  # a quotation is still open
            continue
        found, begun = [*found, words] if words else found, ""
    return found


@pytest.mark.long
@pytest.mark.usefixtures("few_epochs")
@pytest.mark.parametrize("block", list(shell_blocks()))
def test_the_documentations_commands_run(block, tmp_path, monkeypatch):
    copy(TABLE, tmp_path)
    monkeypatch.chdir(tmp_path)
    lines = command_lines(block)
    if all(
        words[0] == "python" or (words[0] == "tapmachine" and not set("|<>&;$*") & set("".join(words)))
        for words in lines
    ):
        for words in lines:  # in this process, which saves to start ten others
            if words[0] == "python":
                subprocess.run([sys.executable, *words[1:]], check=True)
                continue
            code, _, errors = command(*words[1:])
            assert code == 0, errors
            assert "at a bound of the search" not in errors
        return
    dry_run = f"make --dry-run --directory {shlex.quote(str(ROOT))}"  # what make does is tested elsewhere
    python = shlex.quote(sys.executable)
    names = (
        f'python() {{ {python} "$@"; }}; tapmachine() {{ {python} -m tapmachine "$@"; }}; '
        f'make() {{ command {dry_run} "$@"; }}'
    )
    done = subprocess.run(
        ["bash", "-e", "-c", f"{names}\n{block}"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "at a bound of the search" not in done.stderr  # what is denoised has noise


def test_links_in_the_documentation_lead_somewhere():
    for path in [ROOT / "README.md", ROOT / "reproduction" / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text().replace("\n", " ")):
            if not target.startswith("http"):
                assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_advice_to_install_can_be_followed():
    """The package itself has no release."""
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *PACKAGE.rglob("*.py")]:
        assert not re.search(r"pip install [`'\"]*tapmachine", path.read_text()), path
