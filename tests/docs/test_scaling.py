"""docs/scaling.md: its program runs, on a small step."""

from __future__ import annotations

import pathlib
import re

import pytest

import gluongraph as mx
from gluongraph import gluon, nd

pytestmark = pytest.mark.usefixtures("demo_environment")

PAGE = (pathlib.Path(__file__).parent.parent.parent / "docs" / "scaling.md").read_text(encoding="utf-8")


def test_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    net = gluon.nn.Dense(3, in_units=4)
    net.initialize()
    step = mx.compile(net, gluon.loss.L2Loss(), gluon.Trainer(net.collect_params(), "adam"))
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(block, "scaling.md", "exec"), {"step": step, "x": nd.ones((8, 4)), "y": nd.ones((8, 3))})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == ["8", "64", "512"]
    assert all(0 < float(exposed) < float(seconds) for _, seconds, exposed, _ in lines)
