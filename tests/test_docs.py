"""Each block of Python in README.md and docs/ is run by a test, and the command line's page has all commands."""

from __future__ import annotations

import pathlib
import re

import pytest

from gluongraph.cli import COMMANDS

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

# page -> how many blocks of Python it has, and the test that runs them all
RUN = {
    "README.md": (2, "examples/test_examples.py"),
    "artefact.md": (2, "artefact/test_docs.py"),
    "checkpoints.md": (1, "checkpoint/test_docs.py"),
    "cli.md": (1, "cli/test_examples.py"),
    "deploy.md": (3, "examples/test_examples.py"),
    "memory.md": (1, "memory/test_docs.py"),
    "migrating.md": (3, "guides/test_pages.py"),
    "onnx.md": (3, "onnx/test_docs.py"),
    "precision.md": (1, "precision/test_docs.py"),
    "pytorch.md": (1, "guides/test_pages.py"),
    "step.md": (1, "compiler/test_docs.py"),
    "tuning.md": (1, "tuner/test_docs.py"),
}


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_every_block_is_run(page: pathlib.Path) -> None:
    count, file = RUN.get(page.name, (0, ""))
    assert page.read_text().count("```python") == count, f"run all blocks of {page.name} in a test, and say which here"
    assert not count or page.name in (ROOT / "tests" / file).read_text()


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_files_that_a_page_names_exist(page: pathlib.Path) -> None:
    """Those of this repository, by their paths in it; NAME is for the reader to choose."""
    named = re.findall(
        r"(?<![\w/.-])((?:docs|examples|benchmarks|tests|passes|codegen|runtime|gluongraph)/[\w/]+\.\w+)",
        page.read_text(),
    )
    missing = [name for name in named if "NAME" not in name and not (ROOT / name).exists()]
    assert not missing


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_of_the_command_line_has_all_commands(command: str) -> None:
    assert re.search(rf"^\| `{command}` \| .+ \|$", (ROOT / "docs" / "cli.md").read_text(), re.MULTILINE)
