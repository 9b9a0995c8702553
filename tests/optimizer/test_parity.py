"""Every optimizer against the real MXNet 1.9.1, where GG_MXNET_PYTHON names an interpreter that has it."""

from __future__ import annotations

import importlib
import os
import pathlib

import pytest

BENCHMARKS = pathlib.Path(__file__).parent.parent.parent / "benchmarks"


@pytest.mark.skipif(not os.environ.get("GG_MXNET_PYTHON"), reason="no MXNet 1.9.1: GG_MXNET_PYTHON names none")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_all_cases_are_as_expected(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    assert importlib.import_module("parity_mxnet").main([]) == 0, capsys.readouterr().out


def test_without_mxnet_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delenv("GG_MXNET_PYTHON", raising=False)
    with pytest.raises(SystemExit, match="no MXNet to compare with"):
        importlib.import_module("parity_mxnet").main([])
