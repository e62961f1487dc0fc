"""The project keeps its own rules: imports go one way, importing is quiet, the documentation's code runs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tapmachine

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
    "exact",
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
