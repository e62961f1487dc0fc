"""The project keeps its own rules: imports go one way, importing is quiet, the documentation's code runs."""

import ast
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution, version
from pathlib import Path
from shutil import copy

import pytest
import reference
from hashes import canonical, pins
from marks import drifting_tap
from packaging.requirements import Requirement
from packaging.version import Version
from run_cases import command

import tapmachine
from tapmachine.apps import doctor

ROOT = Path(__file__).parents[1]
PACKAGE = Path(tapmachine.__file__).parent

# The tree is the architecture: every folder may import those before it, and itself.
ORDER = [
    "display",
    "beliefs",
    "data",
    "accelerator",
    "units",
    "machine",
    "solver",
    "likelihood",
    "posterior",
    "training",
    "tables",
    "analysis",
    "runs",
    "apps",
]


def layer_of(module: str) -> int:
    top = module.removeprefix("tapmachine.").split(".")[0]
    return ORDER.index(top)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    if parts in (("__init__",), ("__main__",)):
        return
    own = layer_of(parts[0])
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} uses a relative import"
            names = [node.module or ""]
        for name in names:
            if name.startswith("tapmachine."):
                assert layer_of(name) <= own, f"{path.name} imports {name}, which lies above it"


def test_importing_is_quiet_and_has_no_side_effects():
    code = (
        "import torch; before = (torch.get_default_dtype(), torch.get_num_threads(), torch.initial_seed());"
        "import tapmachine;"
        "assert before == (torch.get_default_dtype(), torch.get_num_threads(), torch.initial_seed())"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def public_names() -> list:
    """All names of the package and of its namespaces, with what they stand for."""
    spaces = {"tapmachine": tapmachine, **reference.namespaces()}
    return [
        pytest.param(name, getattr(module, name), id=f"{space}.{name}")
        for space, module in spaces.items()
        for name in module.__all__
    ]


DOCUMENTATION = "\n".join(path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize(("name", "value"), public_names())
def test_every_public_name_is_documented(name, value):
    assert reference.summary(value)
    assert re.search(rf"\b{re.escape(name)}\b", DOCUMENTATION), f"{name} is nowhere in the documentation"


def test_names_in_import_statements():
    """What a namespace lists can be imported from it, and is listed once."""
    for module in reference.namespaces().values():
        assert len({*module.__all__}) == len(module.__all__)
        exec(f"from {module.__name__} import {', '.join(module.__all__)}", {})


def test_the_reference_is_up_to_date():
    assert reference.FILE.read_text() == reference.text(), "run python tests/reference.py"


TABLE = ROOT / "examples" / "penguins.csv"  # which the guide reads


def code_blocks(language: str) -> list:
    found = []
    for path in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]):
        for number, block in enumerate(re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)):
            found.append(pytest.param(block, id=f"{path.relative_to(ROOT)}#{number}"))
    return found


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
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text().replace("\n", " ")):
            if not target.startswith("http"):
                assert (path.parent / target).exists(), f"{path.name}: {target}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["units", "solver", "likelihood"])
def test_the_demo_runs(tmp_path, name):
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}_tour.py"), str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / f"{name}.png").stat().st_size > 20_000


def test_importing_is_quick():
    """Without what would double the time that it takes: torch's compiler, matplotlib, scikit-learn."""
    code = (
        "import sys; from tapmachine import rbm; assert not {'torch._dynamo', 'matplotlib', 'sklearn'} & {*sys.modules}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ----- what is installed

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
FOR_USERS = [own for name in EXTRAS if name not in ("dev", "docs") for own in EXTRAS[name]]


def all_packages() -> tuple[set[str], set[str]]:
    """Every package that a development environment gets, by what is installed here; and those which another one pins,
    as torch does the libraries of a GPU.
    """
    names, pinned, seen = set[str](), set[str](), set[tuple[str, str]]()
    waiting = [(Requirement(own), "") for own in (*PROJECT["build-system"]["requires"], "editables")]
    waiting.append((Requirement("tapmachine"), "dev"))
    while waiting:
        wanted, extra = waiting.pop()
        name = canonical(wanted.name)
        if any(rule.operator == "==" for rule in wanted.specifier):
            pinned.add(name)
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        if name == "tapmachine":
            needed = [*PROJECT["project"]["dependencies"], *EXTRAS.get(extra, ())]
        else:
            names.add(name)
            needed = [own for own in distribution(name).requires or [] if applies(Requirement(own), extra)]
        waiting += [(own, more) for own in map(Requirement, needed) for more in (own.extras or {""})]
    return names, pinned


def applies(wanted: Requirement, extra: str) -> bool:
    return wanted.marker is None or wanted.marker.evaluate({"extra": extra})


def direct_dependencies() -> list[str]:
    return [*PROJECT["project"]["dependencies"], *FOR_USERS]


def versions_in(file: str) -> dict[str, Version]:
    return {name: Version(line.split("==")[1]) for name, line in pins(ROOT / file).items()}


def test_the_oldest_versions_tested_are_the_lower_bounds():
    bounds = {}
    for requirement in map(Requirement, direct_dependencies()):
        (rule,) = requirement.specifier
        assert rule.operator == ">="
        bounds[canonical(requirement.name)] = Version(rule.version)
    assert versions_in("oldest.txt") == bounds


def test_every_package_is_pinned():
    versions = versions_in("constraints.txt")
    if any(Version(version(name).partition("+")[0]) != versions[name] for name in versions_in("oldest.txt")):
        pytest.skip("the versions of constraints.txt are not installed: make test-oldest and test-newest have others")
    names, pinned = all_packages()
    assert len(names) > 50
    assert names - pinned <= versions.keys()


def test_digests_are_of_the_versions_in_use():
    versions, digests = pins(ROOT / "constraints.txt"), pins(ROOT / "hashes.txt")
    assert len(digests) > 40
    for name, line in digests.items():
        assert re.fullmatch(re.escape(versions[name]) + r" --hash=sha256:[0-9a-f]{64}", line)


ELSEWHERE = {"sklearn": "scikit-learn", "PIL": "matplotlib"}  # which packages modules of other names come with


def test_a_plain_installation_has_all_that_the_package_imports():
    """Apart from the extras, without which everything but their file formats and DataFrames works."""
    imported = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            imported |= {name.split(".")[0] for name in names}
    imported -= {*sys.stdlib_module_names, "tapmachine", *(Requirement(own).name for own in FOR_USERS)}
    asked_for = {Requirement(own).name for own in PROJECT["project"]["dependencies"]}
    assert {ELSEWHERE.get(name, name) for name in imported} == asked_for


def test_the_doctor_looks_for_every_dependency():
    assert sorted(doctor.NEEDED) == sorted(Requirement(own).name for own in PROJECT["project"]["dependencies"])
    assert {Requirement(own).name for own in FOR_USERS} <= doctor.OPTIONAL.keys()


def test_advice_to_install_can_be_followed():
    """The package itself has no release."""
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *PACKAGE.rglob("*.py")]:
        assert not re.search(r"pip install [`'\"]*tapmachine", path.read_text()), path
