"""A scalar function, and a composite with a kernel, are added by one file: from_outside.py does it from outside."""

import os
import subprocess
import sys
from pathlib import Path


def test_a_program_adds_ops_of_its_own(tmp_path: Path) -> None:
    """In a process of its own: the tables of ops and rules are those of the process."""
    program = [sys.executable, str(Path(__file__).with_name("from_outside.py"))]
    found = subprocess.run(program, env={**os.environ, "GG_CACHE": str(tmp_path)}, capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "added from outside\n"), found.stderr
