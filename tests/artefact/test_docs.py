"""The example that docs/artefact.md begins with runs, and the page knows every field of the descriptor."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest

from gluongraph.artefact import file
from gluongraph.formulas.tape import FUNCTIONS

PAGE = pathlib.Path(__file__).parent.parent.parent / "docs" / "artefact.md"


def test_the_example(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(found[1], str(PAGE), "exec"), names)
    printed = re.fullmatch(r"(\d+) ([\d.]+) (.*)\n", capsys.readouterr().out)
    assert printed is not None
    count, rate, shape = printed.groups()
    assert (count, shape) == ("9", "(32, 4)") and 0 < float(rate) < 0.01
    text, told = PAGE.read_text(), file.read("digits.gga").told
    named = {*told, *told["entries"][0], *told["parameters"][0], *told["target"], *FUNCTIONS}
    assert not {name for name in named if not re.search(rf"[`(\s]{name}[`\s,\"]", text)}
