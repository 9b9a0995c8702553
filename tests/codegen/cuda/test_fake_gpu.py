"""CUDA through TVM's unmodified runtime library, on a fake GPU (fake_gpu/): every op, optimizer and whole steps.

The fakes are a driver and a CUDA runtime whose memory is the host's, with pages that may not be touched before and
behind each array. Blocks and threads run in several orders. What a real GPU does is in benchmarks/cuda_check.py.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_cuda
from ranks import needs_mpi, run_ranks

from gluongraph.bench.workloads import UPDATES

HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("g++")), reason="no gcc to build the fake GPU with"),
    pytest.mark.skipif(platform.system() != "Linux", reason="the fake GPU stands in for libraries of Linux"),
]
OPS = [f"op-{name}" for loops in (False, True) for name, _, _ in test_cuda.cases(loops)]
CASES = [*OPS, *(f"optimizer-{name}" for name in UPDATES), "net-digits"]


def process(folder: Path, what: str) -> Any:
    """What a process with a fake GPU has found."""
    program = [sys.executable, str(HERE / "fake_gpu" / "process.py"), str(folder), what]
    environment = {**os.environ, "GG_CACHE": str(folder / "cache")}
    done = subprocess.run(program, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "result.json").read_text())


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], Path]:
    folder = tmp_path_factory.mktemp("cases")
    return process(folder, "cases"), folder / "kernels.cu"


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found: dict[str, Any] = process(tmp_path_factory.mktemp("steps"), "steps")
    return found


@pytest.mark.parametrize("name", CASES)
def test_results_are_right_and_nothing_else_is_touched(cases: tuple[dict[str, str], Path], name: str) -> None:
    """Against numpy, with arrays at both ends of the memory that may be touched, threads and blocks in three orders."""
    assert cases[0][name] == ""


def test_nothing_was_left_out(cases: tuple[dict[str, str], Path]) -> None:
    assert set(cases[0]) == set(CASES)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc: CUDA source is not compiled for sm_90")
def test_all_of_them_compile(cases: tuple[dict[str, str], Path], tmp_path: Path) -> None:
    test_cuda.nvcc(cases[1].read_text(), tmp_path)


@pytest.mark.parametrize("net", ["dense", "convolutional"])
def test_steps_are_those_of_the_cpu(steps: dict[str, Any], net: str) -> None:
    """Losses of three steps, the last of the dense net from an artefact. The driver is there from the start, so that
    TVM would go its other way in building modules."""
    assert steps["gpus"] == 1 and steps["capability"] == [9, 0]
    assert np.allclose(steps[net]["cpu"], steps[net]["cuda"], rtol=0, atol=2e-6)


def test_collectives_of_a_single_rank(steps: dict[str, Any]) -> None:
    assert steps["wrong alone"] == []


@needs_mpi
@pytest.mark.parametrize("ranks", [1, 2])
def test_steps_of_ranks_are_those_of_the_cpu(ranks: int, tmp_path: Path) -> None:
    """By the script for machines with GPUs (benchmarks/nccl_check.py). MPI plays NCCL, in the memory of fake GPUs."""
    environment = {"GG_CACHE": str(tmp_path / "cache")}
    run_ranks(ranks, HERE / "fake_gpu" / "process.py", tmp_path, "ranks", env=environment, timeout=500)
    for rank in range(ranks):
        found = json.loads((tmp_path / str(rank) / "result.json").read_text())
        assert found["wrong"] == [] and found["other streams"] == 0
        beside = {"start_allreduce"} if ranks > 1 else set()
        assert {*found["calls"]} == {"allreduce", "reduce_scatter", "allgather"} | beside


def test_kernels_run_on_the_stream_of_copies(steps: dict[str, Any]) -> None:
    """Others in the process may have set another for TVM, which they find as it was."""
    assert steps["launches"] > 50 and steps["other streams"] == 0
    assert steps["dense"]["stream"] == steps["convolutional"]["stream"] == 1234


def test_artefacts_are_the_same_with_a_driver(steps: dict[str, Any]) -> None:
    """The library holds source, and machine code of our own compiler lies beside it, made once."""
    assert steps["library"] == {"source": True, "binaries": 1, "compiled": 1}
    assert "__global__" in steps["source"]


def test_cudas_reasons_are_told(steps: dict[str, Any]) -> None:
    assert "CUDA_ERROR_INVALID_VALUE" in steps["refused"] and "grid=(2,1,1)" in steps["refused"]
    assert "__global__" not in steps["refused"]  # TVM's error goes on with the source
    assert "96,636,764,160 bytes" in steps["too large"] and "out of memory" in steps["too large"]
