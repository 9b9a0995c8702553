"""Runs examples that are written for Lightning: as they are, and with the one line changed that imports it."""

from __future__ import annotations

import importlib.util
import pathlib
import subprocess
import sys
from typing import Any

import pytest

EXAMPLES = pathlib.Path(__file__).parent.parent.parent / "examples"
OURS, THEIRS = "import gluongraph.lightning as L\n", "import lightning.pytorch as L\n"
# No look for MPI, which would start it.
WITHOUT_MPI = """from lightning.fabric.plugins.environments import MPIEnvironment
MPIEnvironment.detect = staticmethod(lambda: False)
"""
needs_torch = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="PyTorch is not installed")
needs_lightning = pytest.mark.skipif(not importlib.util.find_spec("lightning"), reason="Lightning is not installed")


def with_both(test: Any) -> Any:
    """Run a test with each framework; its argument `theirs` says whether with Lightning."""
    theirs = pytest.param(True, id="Lightning", marks=needs_lightning)
    return needs_torch(pytest.mark.parametrize("theirs", [pytest.param(False, id="gluongraph"), theirs])(test))


def run(name: str, folder: pathlib.Path, theirs: bool, *line: str) -> str:
    """What the example prints, in a process of its own, which sees all packages."""
    text = (EXAMPLES / f"{name}.py").read_text()
    assert text.count(OURS) == 1
    script = folder / f"{name}.py"
    script.write_text(text.replace(OURS, WITHOUT_MPI + THEIRS) if theirs else text)
    command = [sys.executable, str(script), "--folder", str(folder), *line]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
