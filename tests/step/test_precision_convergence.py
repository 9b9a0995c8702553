"""Training in 16 bit ends where float32 ends: digits and a character transformer, overflows induced, three seeds."""

from __future__ import annotations

import importlib
import pathlib

import pytest

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("task", ["digits", "characters"])
def test_final_losses_lie_within_the_noise_of_float32(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    convergence = importlib.import_module("convergence")
    told: list[str] = []
    assert all(convergence.compare(convergence.SHORT[task], told.append).values()), told
