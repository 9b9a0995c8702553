"""The example that docs/precision.md begins with runs, and trains."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest

import gluongraph as mx
from gluongraph.tracing.precision import PRECISIONS

pytestmark = pytest.mark.usefixtures("demo_environment")

TEXT = (pathlib.Path(__file__).parents[2] / "docs" / "precision.md").read_text()


def test_the_first_example_runs() -> None:
    found = re.match(r"# Precision\n\n```python\n(.*?)```", TEXT, re.S)
    assert found
    mx.random.seed(0)
    names: dict[str, Any] = {}
    exec(compile(found[1], "precision.md", "exec"), names)
    assert names["loss"].asscalar() < 0.5
    assert names["step"].grad_norm > 0


def test_every_precision_is_documented() -> None:
    for name in PRECISIONS:
        assert f'`"{name}"`' in TEXT, name
