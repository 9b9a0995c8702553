"""The moving line: on a terminal alone, off by argument and variable, what is within another task in the same line."""

from __future__ import annotations

import os
import pty
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

COMPILES = """
import sys
import gluongraph as mx
from gluongraph import gluon, nd
from gluongraph.host import progress
progress.DELAY, progress.PERIOD = 0.0, 0.01
net = gluon.nn.HybridSequential()
for i in range(4):
    net.add(gluon.nn.Conv2D(8 + i, 3, padding=1, activation="relu"))
net.initialize()
trainer = gluon.Trainer(net.collect_params(), "sgd")
shown = "quiet" not in sys.argv
step = mx.compile(net, gluon.loss.L2Loss(), trainer, tune="tune" in sys.argv and 0.5, progress=shown)
x, y = nd.ones((2, 3, 8, 8)), nd.zeros((2, 11, 8, 8))
if "export" in sys.argv:
    step.export(sys.argv[1], batches=[(x, y)], modes=["step", "predict"], progress=shown)
elif "bundle" in sys.argv:
    from gluongraph.artefact.bundle import bundle
    bundle(sys.argv[1], sys.argv[2], progress=shown)
else:
    step(x, y)
print("result", flush=True)
"""


def on_a_terminal(folder: Path, *arguments: str, **environ: str) -> str:
    """What a program writes whose stderr is a terminal; its stdout is none."""
    own, theirs = pty.openpty()
    environ = {**os.environ, "GG_CACHE": str(folder / "cache"), **environ}
    process = subprocess.Popen(
        [sys.executable, "-c", COMPILES, *arguments], stderr=theirs, stdout=subprocess.PIPE, env=environ
    )
    os.close(theirs)
    said = b""
    try:
        while part := os.read(own, 4096):
            said += part
    except OSError:  # Linux's way of saying that nobody holds the other end
        pass
    finally:
        os.close(own)
    out, _ = process.communicate(timeout=300)
    assert (out, process.returncode) == (b"result\n", 0), said.decode()
    return said.decode()


def left(said: str) -> str:
    """What is on the screen at the end: what the last carriage return was followed by."""
    return said.rstrip("\r\n").rpartition("\r")[2].strip()


@pytest.mark.parametrize(
    "how, meant", [("compile", r"compiling, kernels: +\d+%\|"), ("tune", r"compiling, tuning: +\d+%")]
)
def test_compiling_and_tuning(how: str, meant: str, tmp_path: Path) -> None:
    said = on_a_terminal(tmp_path, how)
    assert re.search(meant, said)
    assert left(said) == ""
    assert said.count("\n") <= 1  # one line that moves, not many


def test_export_names_what_it_compiles(tmp_path: Path) -> None:
    said = on_a_terminal(tmp_path, str(tmp_path / "step.gga"), "export")
    assert re.search(r"exporting 0/2, compiling, kernels: +\d+%\|.*\d+/\d+ \[", said)
    assert re.search(r"exporting 1/2", said)


@pytest.mark.parametrize("how", ["variable", "argument", "debugging"])
def test_off(how: str, tmp_path: Path) -> None:
    settings = {"variable": {"GG_PROGRESS": "0"}, "argument": {}, "debugging": {"GG_LOG": "cache"}}[how]
    said = on_a_terminal(tmp_path, *(["quiet"] if how == "argument" else []), **settings)
    assert "compiling" not in said


def test_nothing_where_there_is_no_terminal(tmp_path: Path) -> None:
    environ = {**os.environ, "GG_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COMPILES], env=environ, capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_bundle_counts_the_sources(tmp_path: Path) -> None:
    """The compiler is a script that writes empty files: what is tested is the line, and the real one takes a minute."""
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nsleep 0.05\n: > "$2"\n')
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    artefact = str(tmp_path / "step.gga")
    on_a_terminal(tmp_path, artefact, "export", "quiet")
    said = on_a_terminal(tmp_path, artefact, str(tmp_path / "bundle"), "bundle", CXX=str(compiler))
    assert re.search(r"building the runner: +\d+%\|.*\d+/\d+ \[", said)
    again = on_a_terminal(
        *(tmp_path, artefact, str(tmp_path / "quiet"), "bundle", "quiet"),
        CXX=str(compiler),
        GG_CACHE=str(tmp_path / "empty"),
    )
    assert "building" not in again
