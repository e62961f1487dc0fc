"""What users read is plain technical English: no long lines, and no words that only the authors would use."""

import ast
import re
from pathlib import Path

import pytest

import tapmachine

ROOT = Path(__file__).parents[1]
PACKAGE = Path(tapmachine.__file__).parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.md")])
MODULES = sorted([*PACKAGE.rglob("*.py"), *(ROOT / "examples").rglob("*.py")])
WIDTH = 120
AVOIDED = [
    r"\banew\b",
    r"\bis told\b|\bare told\b|\btold (that|to|by|relative)\b",
    r"\ba look at\b|\btakes a look\b",
    r"\b(goes|go|went|gone|going) on\b",
    r"\b(is|are|was) come back to\b",
    r"\b(is|are|was|were) not finite\b",
    r"\bled to\b",
    r"\bof its own\b|\bof their own\b",
    r"\b(says|say|said) so\b",
    r"\bunless given\b",
    r"\bthe day before\b",
    r"\b(the|a) bars? (of|is|are|was)\b",
    r"\bstep sizes?\b",
    r"\bworked out\b",
]
WORDS = re.compile("|".join(AVOIDED), re.IGNORECASE)


def prose(path: Path) -> list[tuple[int, str]]:
    """The lines of a page outside of code and tables, numbered."""
    lines, code = [], False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code and not line.lstrip().startswith("|"):
            lines.append((number, line))
    return lines


def visible_strings(path: Path) -> list[tuple[int, str]]:
    """The strings of a module: docstrings, help texts, messages."""
    tree = ast.parse(path.read_text())
    return [
        (node.lineno, " ".join(node.value.split()))
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
    ]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_line_is_long(page):
    assert [number for number, line in prose(page) if len(line) > WIDTH] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_words_of_a_page(page):
    text = " ".join(page.read_text().split())
    assert [text[max(0, found.start() - 30) : found.end() + 20] for found in WORDS.finditer(text)] == []


@pytest.mark.parametrize("module", MODULES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_words_of_a_module(module):
    hits = [(line, found.group()) for line, text in visible_strings(module) for found in WORDS.finditer(text)]
    assert hits == []


def test_the_words_are_found():
    """The test would notice."""
    for text in ("measure anew", "it goes on", "steps that are not finite", "the default step size", "and says so"):
        assert WORDS.search(text), text
    assert not WORDS.search("the learning rate of each step; non-finite values")
