"""`make test-machines` runs what a processor can execute, and says what it leaves out."""

from __future__ import annotations

import sys
from pathlib import Path

import machines
import pytest

sys.path.append(str(Path(__file__).parents[1] / "codegen"))
from processors import PROCESSORS


@pytest.mark.parametrize(
    ("processor", "expected", "left_out"),
    [
        ("zen3", ["OPENBLAS_CORETYPE=Haswell GG_TARGET=x86-64-v3", "OPENBLAS_CORETYPE=Zen", ""], 2),
        ("tiger_lake", ["OPENBLAS_CORETYPE=Haswell GG_TARGET=x86-64-v3", "OPENBLAS_CORETYPE=Zen GG_TARGET=x86-64-v4",
                      "OPENBLAS_CORETYPE=SkylakeX"], 0),
        ("core2", ["", "", ""], 5),
    ],
)  # fmt: skip
def test_what_is_run(processor: str, expected: list[str], left_out: int) -> None:
    found = machines.runs(PROCESSORS[processor].features)
    assert [str(run) for run in found] == expected
    reasons = [reason for run in found for reason in run.left_out]
    assert len(reasons) == left_out and all("this processor lacks " in reason for reason in reasons)
