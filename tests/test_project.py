"""The project keeps the rules of its architecture, and importing is quick and quiet."""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import tapmachine
from tapmachine.units.registry import UNIT_TYPES

PACKAGE = Path(tapmachine.__file__).parent

# The tree is the architecture: every folder may import those before it, and itself. The last three only give names.
ORDER = [
    *("lazy", "display", "beliefs", "data", "accelerator", "units", "machine", "exact", "solver", "likelihood"),
    *("posterior", "training", "tables", "analysis", "runs", "apps", "channels", "measurements", "landscape"),
]

# Exceptions from the rules below, which are to become fewer. Names are relative to the package.

CYCLES: set[str] = set()  # modules that are imported by what they import
UNIT_TYPES_ASKED: dict[str, int] = {}  # how often modules ask for the exact type of a unit
SHORT_MODULES = {  # and why they stand alone
    "__main__": "runs with python -m",
    "channels": "public name",
    "landscape": "public name",
    "measurements": "public name",
    "apps.cli.interchange": "a command",
    "apps.cli.predict": "a command",
    "apps.cli.report": "a command",
    "posterior.measurements.exact": "the only answer that needs no engine",
    "units.numerics.strata": "numerics know no machines",
}
DEEP_INHERITANCE = {
    "Binary", "Clamped", "Reweighted", "SpikeSlab", "Spin", "ThirdOrderTAP", "Tilted", "TruncatedGaussBernoulli",
}  # fmt: skip


def read() -> dict[str, ast.Module]:
    """The syntax trees of all modules, by name relative to the package."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts)] = ast.parse(path.read_text())
    return found


TREES = read()


def imports(module: str, annotations: bool = True) -> Iterator[str]:
    """The modules that one imports, relative to the package, with or without those for annotations only."""
    unused = [
        node for node in TREES[module].body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    ]
    skipped = {id(part) for node in unused for part in node.body if not annotations}
    for node in ast.walk(TREES[module]):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} uses a relative import"
            source = (node.module or "").partition("tapmachine.")[2]
            names = [f"{source}.{alias.name}" for alias in node.names] if source else []
            yield from (name if name in TREES else source for name in names)
        elif isinstance(node, ast.Import):
            yield from (alias.name.partition("tapmachine.")[2] for alias in node.names if "tapmachine." in alias.name)


IMPORTS = {module: {*imports(module)} for module in TREES}
INSIDE = [module for module in TREES if module not in ("__init__", "__main__")]


def folder_of(module: str) -> str:
    return module.partition(".")[0]


def test_folders_import_downwards():
    for module in INSIDE:
        for name in IMPORTS[module]:
            assert ORDER.index(folder_of(name)) <= ORDER.index(folder_of(module)), f"{module} imports {name}"


def test_sub_folders_import_downwards():
    """A sub-folder as a whole has a place between the modules beside it."""
    packages = [module.removesuffix(".__init__") for module in TREES if module.count(".") >= 1 and "__init__" in module]
    for package in packages:
        graph: dict[str, set[str]] = {}
        for module in INSIDE:
            if module.startswith(f"{package}.") and not module.endswith("__init__"):
                part = entry(package, module)
                below = {entry(package, name) for name in imports(module, False) if name.startswith(f"{package}.")}
                graph[part] = graph.get(part, set()) | below - {part} - CYCLES
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            raise AssertionError(f"{package}: {' imports '.join(reversed(error.args[1]))}") from None


def entry(package: str, module: str) -> str:
    """The module or sub-folder of a package that a module is part of."""
    return ".".join(module.split(".")[: package.count(".") + 2])


def test_types_of_units_are_asked_in_units_and_exact_only():
    """`type(x) is Binary`, and `is_categorical`: a layer knows what a caller needs."""
    classes = {unit_type.home.partition(":")[2] for unit_type in UNIT_TYPES.values()} | {"Mixed", "Custom", "Units"}
    counts: Counter[str] = Counter()
    for module, tree in TREES.items():
        if folder_of(module) in ("units", "exact"):
            continue
        for node in ast.walk(tree):
            compared = [] if not isinstance(node, ast.Compare) else [node.left, *node.comparators]
            of_type = any(isinstance(part, ast.Call) and ast.unparse(part.func) == "type" for part in compared)
            asks = of_type and any(isinstance(part, ast.Name) and part.id in classes for part in compared)
            counts[module] += asks or (isinstance(node, ast.Attribute) and node.attr == "is_categorical")
    assert not counts - Counter(UNIT_TYPES_ASKED)


def test_short_modules_have_two_importers():
    users = Counter(name for names in IMPORTS.values() for name in names)
    lengths = {module: (PACKAGE / f"{module.replace('.', '/')}.py").read_text().count("\n") for module in TREES}
    short = {module for module in TREES if lengths[module] < 60 and "__init__" not in module and users[module] < 2}
    assert short - {*SHORT_MODULES} == set()


def test_inheritance_is_at_most_two_deep():
    bases = {
        node.name: [ast.unparse(base).partition("[")[0] for base in node.bases]
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }

    def depth(name: str) -> int:
        return max((1 + depth(base) for base in bases[name] if base in bases and base != name), default=0)

    assert {name for name in bases if depth(name) > 2} - DEEP_INHERITANCE == set()


def test_functions_have_at_most_eight_parameters():
    """Except for the constructors of options, of the estimator, and for commands, whose parameters are options."""
    many = {}
    for module, tree in TREES.items():
        owners = {
            id(part): node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for part in node.body
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and (not node.name.startswith("_") or node.name == "__init__"):
                every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                count = len([own for own in every if own.arg not in ("self", "cls")])
                if count > 8 and not module.startswith("apps.cli"):
                    many[owners.get(id(node), "") if node.name == "__init__" else node.name] = count
    assert many.keys() <= {"RBM"}


@pytest.mark.long
def test_importing_is_quiet_and_has_no_side_effects():
    code = (
        "import torch; before = (torch.get_default_dtype(), torch.get_num_threads(), torch.initial_seed());"
        "import tapmachine;"
        "assert before == (torch.get_default_dtype(), torch.get_num_threads(), torch.initial_seed())"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.long
def test_importing_is_quick():
    """Without what would double the time that it takes: torch's compiler, matplotlib, scikit-learn."""
    code = (
        "import sys; from tapmachine import rbm; assert not {'torch._dynamo', 'matplotlib', 'sklearn'} & {*sys.modules}"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
