"""The example that docs/tuning.md begins with runs."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("demo_environment")

TEXT = (pathlib.Path(__file__).parents[2] / "docs" / "tuning.md").read_text()


def test_the_first_example_runs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GG_CACHE", str(tmp_path))
    found = re.match(r"# Tuning\n\n```python\n(.*?)```", TEXT, re.S)
    assert found
    names: dict[str, Any] = {}
    exec(compile(found[1], "tuning.md", "exec"), names)
    assert np.isfinite(names["loss"].asnumpy()).all()
    assert "measured in" in capsys.readouterr().out
