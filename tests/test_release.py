"""What a release consists of agrees with the package: versions, dependencies, workflows, citation."""

import ast
import re
import sys
import tomllib
from importlib.metadata import distribution, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import tapmachine
from tapmachine.apps.cli import doctor

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
ROOT = Path(__file__).parents[1]
PACKAGE = Path(tapmachine.__file__).parent
METADATA = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = METADATA["project"]
EXTRAS = PROJECT["optional-dependencies"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_citation():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == tapmachine.__version__
    assert citation["license"] == PROJECT["license"] == "MIT"
    assert citation["references"][0]["doi"] in (ROOT / "README.md").read_text()


def test_workflows_run_what_the_makefile_has():
    assert len(WORKFLOWS) >= 3
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in WORKFLOWS:
        jobs = yaml.safe_load(path.read_text())["jobs"]
        steps = [step.get("run", "") for job in jobs.values() for step in job["steps"]]
        for target in re.findall(r"make ([\w-]+)", "\n".join(steps)):
            assert target in targets, f"{path.name}: make {target}"


def test_workflows_leave_out_the_system_that_the_install_page_leaves_out():
    """Run directories import fcntl, which Windows does not have."""
    assert "Windows is not supported" in (ROOT / "docs" / "start" / "install.md").read_text()
    assert not [path.name for path in WORKFLOWS if "windows" in path.read_text()]


def test_workflows_cover_the_versions_of_python_in_the_classifiers():
    matrix = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())["jobs"]["test"]["strategy"]
    stated = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)}
    assert set(matrix["matrix"]["python"]) == stated
    assert all(version in SpecifierSet(PROJECT["requires-python"]) for version in stated)


def test_the_paper_cites_what_its_bibliography_has():
    text, entries = ((ROOT / "docs" / "paper" / f"paper.{kind}").read_text() for kind in ("md", "bib"))
    keys = set(re.findall(r"@\w+\{(\w+),", entries))
    assert set(re.findall(r"@(\w+\d{4})", text)) == keys
    header = yaml.safe_load(text.split("---")[1])
    assert {"title", "tags", "authors", "affiliations", "date", "bibliography"} <= header.keys()
    assert 250 <= len(text.split("---", 2)[2].split()) <= 1000


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"])
def test_files_that_contributors_look_for(name):
    assert (ROOT / ".github" / name).stat().st_size > 300


# ----- what is installed

FOR_USERS = [own for name in EXTRAS if name not in ("dev", "docs") for own in EXTRAS[name]]


def all_packages() -> tuple[set[str], set[str]]:
    """Every package that a development environment gets, by what is installed here; and those which another one pins,
    as torch does the libraries of a GPU.
    """
    names, pinned, seen = set[str](), set[str](), set[tuple[str, str]]()
    waiting = [(Requirement(own), "") for own in (*METADATA["build-system"]["requires"], "editables")]
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
            needed = [*PROJECT["dependencies"], *EXTRAS.get(extra, ())]
        else:
            names.add(name)
            needed = [own for own in distribution(name).requires or [] if applies(Requirement(own), extra)]
        waiting += [(own, more) for own in map(Requirement, needed) for more in (own.extras or {""})]
    return names, pinned


def applies(wanted: Requirement, extra: str) -> bool:
    return wanted.marker is None or wanted.marker.evaluate({"extra": extra})


def direct_dependencies() -> list[str]:
    return [*PROJECT["dependencies"], *FOR_USERS]


def canonical(name: str) -> str:
    """A package's name as all spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def versions_in(file: str) -> dict[str, Version]:
    pins = (line.split("==") for line in (ROOT / "requirements" / file).read_text().splitlines() if line[0] != "#")
    return {canonical(pin[0]): Version(pin[1]) for pin in pins if len(pin) == 2}


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
        pytest.skip("the versions of constraints.txt are not installed: VERSIONS=oldest and newest have others")
    names, pinned = all_packages()
    assert len(names) > 50
    assert names - pinned <= versions.keys()


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
    asked_for = {Requirement(own).name for own in PROJECT["dependencies"]}
    assert {ELSEWHERE.get(name, name) for name in imported} == asked_for


def test_the_doctor_looks_for_every_dependency():
    assert sorted(doctor.NEEDED) == sorted(Requirement(own).name for own in PROJECT["dependencies"])
    assert {Requirement(own).name for own in FOR_USERS} <= doctor.OPTIONAL.keys()
