"""Artefacts for other machines: made here, and run where this machine can."""

from __future__ import annotations

import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
from exporting import run, state, training

import gluongraph as mx
from gluongraph.artefact import file
from gluongraph.codegen.targets import TARGETS, cpu_flags, target
from gluongraph.codegen.tvm import linking
from gluongraph.errors import CompileError

MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine of ELF


def _machine(library: Any) -> int:
    return int.from_bytes(library[18:20].tobytes(), "little")


@pytest.mark.skipif(
    not cpu_flags().issuperset(TARGETS["x86-64-v3"].needs), reason="this CPU does not run x86-64-v3 code"
)
def test_an_older_processor(tmp_path: pathlib.Path) -> None:
    step = training("sgd", layers=False)
    run(step, range(2))
    step.export(tmp_path / "step.gga", modes=["step"], target="x86-64-v3")
    told = file.read(tmp_path / "step.gga").told["target"]
    assert (told["name"], set(told["needs"])) == ("x86-64-v3", set(TARGETS["x86-64-v3"].needs))
    twin = mx.load(tmp_path / "step.gga")
    np.testing.assert_allclose(run(twin, range(4)), run(step, range(4)), rtol=1e-5)
    assert twin._specializations.last.told["code"] in file.read(tmp_path / "step.gga").arrays
    assert state(twin)["parts"] == state(step)["parts"]


def test_another_machine_wants_a_linker(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = training("sgd", layers=False)
    step.export(tmp_path / "here.gga", modes=["step"], batches=[_batch()])
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(linking.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CompileError, match=r"links for aarch64: no aarch64-linux-gnu-gcc and no ld.lld(.|\n)*apt-get"):
        step.export(tmp_path / "step.gga", target="aarch64", batches=[_batch()])
    assert not (tmp_path / "step.gga").exists()


def _batch() -> tuple[Any, Any]:
    return np.zeros((4, 5), np.float32), np.zeros(4, np.int32)


def _links(machine: str) -> bool:
    try:
        return bool(linking.command_for(machine))
    except CompileError:
        return False


@pytest.mark.skipif(not _links("aarch64"), reason="nothing here links for aarch64")
def test_arm(tmp_path: pathlib.Path) -> None:
    step = training("sgd", layers=False)
    step.export(tmp_path / "step.gga", modes=["step"], target="aarch64", batches=[_batch()])
    found = file.read(tmp_path / "step.gga")
    assert _machine(found.arrays["code/step.0"]) == MACHINES["aarch64"]
    with pytest.warns(UserWarning, match="it is for Linux on aarch64, and this is"):
        twin = mx.load(tmp_path / "step.gga")
    assert run(twin, range(2)) == run(step, range(2))


def test_a_gpu(tmp_path: pathlib.Path) -> None:
    """Its code is made without one; here it is compiled again for the CPU."""
    step = training("sgd", layers=False)
    step.export(tmp_path / "step.gga", modes=["step"], target="cuda:sm_80", batches=[_batch()])
    found = file.read(tmp_path / "step.gga")
    assert (found.told["target"]["kind"], found.told["target"]["arch"]) == ("cuda", "sm_80")
    if (why := mx.artefact.compatibility.misfit(found.told)) == "":
        pytest.skip("there is such a GPU; tests/codegen/cuda/test_cuda.py runs code on it")
    with pytest.warns(UserWarning, match="it is for a GPU, sm_80" if "driver" in why else "compiled again"):
        twin = mx.load(tmp_path / "step.gga")
    assert run(twin, range(2)) == run(step, range(2))


@pytest.mark.parametrize("name", ["x86-64:sm_80", "cuda:80", "cuda:sm_", "z80"])
def test_targets_that_there_are_not(name: str) -> None:
    with pytest.raises(CompileError, match="unknown target"):
        target(name)


def test_a_gpu_by_its_architecture() -> None:
    assert target("cuda:sm_80").tvm == {**TARGETS["cuda"].tvm, "arch": "sm_80"}
