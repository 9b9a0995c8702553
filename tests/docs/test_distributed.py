"""docs/distributed.md: its program runs, on one process as on two; its two commands are those of a new user."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
from ranks import needs_mpi, run_ranks

import gluongraph as mx
from gluongraph import gluon, nd

pytestmark = pytest.mark.usefixtures("demo_environment")

ROOT = pathlib.Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")


def program() -> None:
    """The block of distributed.md, on a net and a batch."""
    net = gluon.nn.Dense(3, in_units=4)
    net.initialize(mx.init.Xavier())
    given = {"mx": mx, "gluon": gluon, "net": net, "loss": gluon.loss.SoftmaxCrossEntropyLoss()}
    names = {**given, "x": nd.ones((8, 4)), "y": nd.zeros((8,))}
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    before = net.weight.data().asnumpy()
    exec(compile(block, "distributed.md", "exec"), names)
    assert names["loss_of_my_samples"].shape == (8,)
    assert not np.allclose(net.weight.data().asnumpy(), before)


def test_the_program_on_one_process() -> None:
    program()


@needs_mpi
def test_the_program_on_two_processes() -> None:
    run_ranks(2, program)


@needs_mpi
def test_the_second_command(tmp_path: pathlib.Path) -> None:
    (command,) = re.findall(r"^    gluongraph (run .*)$", PAGE, re.MULTILINE)
    line = [sys.executable, "-m", "gluongraph", *command.split(), "--epochs", "1", "--steps", "3"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and re.search(r"\[0\] test accuracy [\d.]+%", done.stdout), done
