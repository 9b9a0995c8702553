"""The example that docs/checkpoints.md begins with runs: at once, stopped and started again, with the same result."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import nd

pytestmark = pytest.mark.usefixtures("demo_environment")

PAGE = pathlib.Path(__file__).parent.parent.parent / "docs" / "checkpoints.md"


class Stopped(Exception):
    """The user has had enough."""


def run_example(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, stop_after: int | None = None) -> Any:
    """What the example defines in the end, or when its step has been called so often."""
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    monkeypatch.chdir(folder)
    mx.random.seed(1)
    np.random.seed(1)
    names: dict[str, Any] = {}
    program, line = found[1], "        if trainer."
    assert line in program
    if stop_after is not None:
        names |= {"left": iter(range(stop_after)), "Stopped": Stopped}
        stop = "        if next(left, None) is None:\n            step.wait()\n            raise Stopped\n"
        program = program.replace(line, stop + line)
    exec(compile(program, str(PAGE), "exec"), names)
    return names


def test_the_example(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    straight.mkdir()
    stopped.mkdir()
    expected = run_example(straight, monkeypatch)
    with pytest.raises(Stopped):
        run_example(stopped, monkeypatch, stop_after=12)
    assert (stopped / "run" / "last").resolve().name == "step-00000010"
    found = run_example(stopped, monkeypatch)
    assert found["trainer"].optimizer.num_update == 24 and found["extra"]["epoch"] == 2
    x = nd.ones((2, 8))
    np.testing.assert_array_equal(found["net"](x).asnumpy(), expected["net"](x).asnumpy())
    assert {"last", "best"} < {path.name for path in (stopped / "run").iterdir()}
