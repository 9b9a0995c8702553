"""docs/gluon.md: the names that it says are there are there, and the tests that it names exist."""

from __future__ import annotations

import ast
import importlib
import pathlib
import re

import pytest

import gluongraph as mx

ROOT = pathlib.Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs" / "gluon.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in TEXT.splitlines() if line.startswith("| ")]


def owner(row: str) -> object:
    """The module that a row of the tables of names is about."""
    name = re.fullmatch(r"`(mx|nd)([\w.]*)`", row)
    found: object = mx if name is not None and name[1] == "mx" else mx.nd
    for part in (name[2] if name is not None else "").split(".")[1:]:
        found = getattr(found, part) if hasattr(found, part) else importlib.import_module(f"{found.__name__}.{part}")
    return found


NAMES = TEXT[TEXT.index("## What is there") : TEXT.index("### Files")]
NAMED = [row for row in ROWS if len(row) == 2 and f"| {row[0]} | {row[1]} |" in NAMES and row[1] != "names"]


@pytest.mark.parametrize(("about", "names"), NAMED, ids=[row[0] for row in NAMED])
def test_what_is_said_to_be_there_is_there(about: str, names: str) -> None:
    listed = re.findall(r"`([A-Za-z_]\w*)`", re.sub(r"\([^)]*\)", "", names))
    assert listed
    missing = [n for n in listed if not hasattr(owner(about), n)]
    assert not missing


def test_the_number_of_functions() -> None:
    claimed = int(re.search(r"`mx\.nd` has more than (\d+) functions", TEXT)[1])
    own = [n for n, v in vars(mx.nd).items() if callable(v) and not n.startswith("_") and not isinstance(v, type)]
    assert claimed < len(own) < claimed + 20


def test_the_tests_that_it_names_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", TEXT)
    differences = TEXT[TEXT.index("on purpose") : TEXT.index("What looks odd")]
    rows = [line for line in differences.splitlines() if line.startswith("| ") and "MXNet 1.9.1 | here" not in line]
    assert len(rows) > 25 and all("`tests/" in row for row in rows), "each difference has a test"
    for file, test in named:
        functions = {n.name for n in ast.parse((ROOT / file).read_text()).body if isinstance(n, ast.FunctionDef)}
        assert test in functions, f"{file} has no {test}"
