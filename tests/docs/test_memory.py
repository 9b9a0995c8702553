"""The example that docs/memory.md begins with runs, and fits."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest

import gluongraph as mx
from gluongraph.compiler.memory_options import MODES, nbytes_of

pytestmark = pytest.mark.usefixtures("demo_environment")

TEXT = (pathlib.Path(__file__).parents[2] / "docs" / "memory.md").read_text()


def test_the_first_example_runs() -> None:
    found = re.match(r"# Memory\n\n```python\n(.*?)```", TEXT, re.S)
    assert found
    mx.random.seed(0)
    names: dict[str, Any] = {}
    exec(compile(found[1], "memory.md", "exec"), names)
    taken = names["step"].memory(names["x"], names["y"])
    assert taken.peak <= nbytes_of("2.5MiB") and taken.extra_time > 0
    assert names["loss"].asscalar() < 1.45


def test_every_mode_is_documented() -> None:
    for name in MODES:
        assert f'`remat="{name}"`' in TEXT, name
