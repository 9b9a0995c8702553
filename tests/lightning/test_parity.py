"""The same small runs with Lightning and with ours: hooks, counters, rows, metrics, files, results, weights."""

from __future__ import annotations

import importlib
import importlib.util
import pathlib
import warnings
from types import ModuleType
from typing import Any

import pytest
from parity_differences import DIFFERENCES
from parity_frameworks import lightning, ours
from parity_table import CASES, differing

pytest.importorskip("torch")
if importlib.util.find_spec("lightning") is None:
    pytest.skip("Lightning is not installed", allow_module_level=True)
for name in ("loops", "logging", "metrics", "optimizers", "finetuning", "checkpoints", "evaluation", "errors", "steps"):
    importlib.import_module(f"parity_{name}")


def ran(name: str, framework: ModuleType, folder: pathlib.Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The result of a case, in a folder of its own."""
    folder.mkdir()
    patch.chdir(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return CASES[name](framework)


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ran(name, lightning(), tmp_path / "expected", monkeypatch)
    got = ran(name, ours(), tmp_path / "got", monkeypatch)
    known = {key for each in DIFFERENCES if each.case == name for key in each.keys}
    lines = differing(
        {k: v for k, v in expected.items() if k not in known}, {k: v for k, v in got.items() if k not in known}
    )
    assert not lines, "\n".join(["Lightning, gluongraph:", *lines])
    agreeing = [key for key in sorted(known) if not differing(expected.get(key), got.get(key))]
    assert not agreeing, f"these are listed as different, and are the same: {agreeing}"
