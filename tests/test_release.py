"""What a release consists of agrees with the package: versions, dependencies, workflows, citation."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import tapmachine

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CONDA = {"torch": "pytorch", "matplotlib": "matplotlib-base"}  # packages that have another name there


def test_citation():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == tapmachine.__version__
    assert citation["license"] == PROJECT["license"] == "MIT"
    assert citation["references"][0]["doi"] in (ROOT / "README.md").read_text()


def test_the_conda_recipe_has_the_dependencies_of_the_package():
    text = (ROOT / "conda.recipe" / "meta.yaml").read_text()
    assert f'version = "{tapmachine.__version__}"' in text
    run = re.search(r"  run:\n((?:    - .*\n)+)", text)
    stated = dict(line.strip().removeprefix("- ").split(" ") for line in run[1].splitlines())
    assert stated.pop("python") == PROJECT["requires-python"]
    wanted = {CONDA.get(own.name, own.name): str(own.specifier) for own in map(Requirement, PROJECT["dependencies"])}
    assert stated == wanted
    for name, command in PROJECT["scripts"].items():
        assert f"- {name} = {command}" in text


def test_workflows_run_what_the_makefile_has():
    assert len(WORKFLOWS) >= 3
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in WORKFLOWS:
        jobs = yaml.safe_load(path.read_text())["jobs"]
        steps = [step.get("run", "") for job in jobs.values() for step in job["steps"]]
        for target in re.findall(r"make ([\w-]+)", "\n".join(steps)):
            assert target in targets, f"{path.name}: make {target}"


def test_workflows_cover_the_versions_of_python_in_the_classifiers():
    matrix = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())["jobs"]["test"]["strategy"]
    stated = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)}
    assert set(matrix["matrix"]["python"]) == stated
    assert all(version in SpecifierSet(PROJECT["requires-python"]) for version in stated)


def test_the_paper_cites_what_its_bibliography_has():
    text, entries = (ROOT / "paper.md").read_text(), (ROOT / "paper.bib").read_text()
    keys = set(re.findall(r"@\w+\{(\w+),", entries))
    assert set(re.findall(r"@(\w+\d{4})", text)) == keys
    header = yaml.safe_load(text.split("---")[1])
    assert {"title", "tags", "authors", "affiliations", "date", "bibliography"} <= header.keys()
    assert 250 <= len(text.split("---", 2)[2].split()) <= 1000


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", ".pre-commit-config.yaml"])
def test_files_that_contributors_look_for(name):
    assert (ROOT / name).stat().st_size > 300
