"""The examples of docs/artefact.md run, and the page knows every field of the descriptor."""

from __future__ import annotations

import math
import pathlib
import re
from typing import Any

import pytest
from exporting import LOSS, batch, network

import gluongraph as mx
from gluongraph import gluon
from gluongraph.artefact import file
from gluongraph.formulas.tape import FUNCTIONS

pytestmark = pytest.mark.usefixtures("demo_environment")

PAGE = pathlib.Path(__file__).parent.parent.parent / "docs" / "artefact.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_example(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(BLOCKS[0], str(PAGE), "exec"), names)
    printed = re.fullmatch(r"(\d+) ([\d.]+) (.*)\n", capsys.readouterr().out)
    assert printed is not None
    count, rate, shape = printed.groups()
    assert (count, shape) == ("9", "(32, 4)") and 0 < float(rate) < 0.01
    text, told = PAGE.read_text(), file.read("digits.gga").told
    named = {*told, *told["entries"][0], *told["parameters"][0], *told["target"], *FUNCTIONS}
    assert not {name for name in named if not re.search(rf"[`(\s]{name}[`\s,\"]", text)}


def test_the_rate_of_a_schedule_that_is_the_callers(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block's two lines are two ways: a step is taken after each."""
    monkeypatch.chdir(tmp_path)

    def schedule(num_update: int) -> float:
        return math.exp(-num_update)  # no formula: math wants a number

    net = network(layers=False)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"lr_scheduler": schedule})
    mx.compile(net, LOSS, trainer).export("digits.gga", batches=[batch(0)], modes=["step"])
    names: dict[str, Any] = {"mx": mx, "step": mx.load("digits.gga"), "schedule": schedule}
    for line, rate in zip(BLOCKS[1].splitlines(), (0.1, schedule(0)), strict=True):
        exec(compile(line, str(PAGE), "exec"), names)
        names["step"](*batch(0))
        assert names["step"].trainer.learning_rate == pytest.approx(rate if rate == 0.1 else schedule(1))
