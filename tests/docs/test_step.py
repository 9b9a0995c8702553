"""The examples of docs/step.md run."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import debug
from gluongraph.tracing.step_graph import MODES_BY_NAME

pytestmark = pytest.mark.usefixtures("demo_environment")

TEXT = (pathlib.Path(__file__).parents[2] / "docs" / "step.md").read_text()


def test_the_examples_run() -> None:
    first, stacked = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    mx.random.seed(0)
    names: dict[str, Any] = {}
    with debug.override(backend="reference"):
        exec(compile(first, "step.md", "exec"), names)
        outputs = names["step"].predict(names["x"])
        assert names["step"].grad_norm > 0 and names["step"].trainer.optimizer.num_update == 2
        assert (names["outputs"].asnumpy() != outputs.asnumpy()).any()
        assert np.isfinite(names["loss"].asnumpy()).all()
        exec(compile(stacked, "step.md", "exec"), names)
    assert names["losses"].shape == (8, 16)
    assert names["trainer"].optimizer.num_update == 2 + 16 + 16


def test_every_mode_is_documented() -> None:
    for name in MODES_BY_NAME.keys() - {"step", "backward"}:
        assert f"step.{name}(" in TEXT, name
