"""NVIDIA's compilers, and which machine code a GPU runs: errors are told, and code goes by the GPU that is here."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import sys
import types
from pathlib import Path

import pytest

from gluongraph.artefact import compatibility
from gluongraph.codegen import targets
from gluongraph.errors import CompileError
from gluongraph.host import cuda_compiler, nvidia

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
needs_nvrtc = pytest.mark.skipif(
    not importlib.util.find_spec("cuda") or not nvidia.packaged("libnvrtc.so.13"),
    reason="NVRTC is not installed: pip install 'gluongraph[cuda]'",
)
COMPILERS = [
    pytest.param(cuda_compiler._nvcc, marks=needs_nvcc, id="nvcc"),
    pytest.param(cuda_compiler._nvrtc, marks=needs_nvrtc, id="NVRTC"),
]
KERNEL = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] = expf(2.0f * x[threadIdx.x]); }'


@pytest.mark.parametrize("compile", COMPILERS)
def test_an_error_in_the_source_is_told(compile: object) -> None:
    assert callable(compile)
    with pytest.raises(CompileError, match=r"for sm_90: [\s\S]*identifier \"y\" is undefined"):
        compile("int x = y;", "sm_90")
    with pytest.raises(CompileError, match="does not take the kernels for sm_999"):
        compile(KERNEL, "sm_999")


@needs_nvcc
def test_nvcc_leaves_ptx_for_later_gpus() -> None:
    made = cuda_compiler._nvcc(KERNEL, "sm_90")
    assert nvidia.kind_of(made) == "fatbin" and b"sm_90" in made


@needs_nvrtc
def test_nvrtc_makes_code_of_full_precision() -> None:
    """With --use_fast_math, which TVM gives it, expf is two instructions."""
    made = cuda_compiler._nvrtc(KERNEL, "sm_90")
    assert nvidia.kind_of(made) == "cubin" and b"twice" in made


@needs_nvrtc
def test_an_error_is_not_taken_for_a_missing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert cuda_compiler.compiler() == "NVRTC"
    with pytest.raises(CompileError, match="NVRTC does not take"):
        cuda_compiler.binary("int x = y;", "sm_90")


def test_without_a_compiler_there_is_no_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(cuda_compiler, "find_spec", lambda name: None)
    assert cuda_compiler.binary(KERNEL, "sm_90") is None and nvidia.kind_of(None) == "source"


@pytest.mark.parametrize("version", [(8, 0), (9, 0), (12, 1)])
def test_the_target_is_the_gpu_that_is_here(version: nvidia.Version, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "capability", lambda number=0: version)
    assert targets.target("cuda").tvm["arch"] == nvidia.architecture(version)
    assert targets.target("cuda:sm_75").tvm["arch"] == "sm_75"


def test_without_a_gpu_the_target_is_sm_90(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "capability", lambda number=0: None)
    assert targets.target("cuda") is targets.TARGETS["cuda"]


FITS = [  # of an artefact: architecture, kind of code; the GPU; does it run?
    ("sm_80", "cubin", (8, 0), True),
    ("sm_80", "cubin", (8, 9), True),
    ("sm_86", "cubin", (8, 0), False),
    ("sm_80", "cubin", (9, 0), False),
    ("sm_80", "fatbin", (9, 0), True),
    ("sm_80", "fatbin", (12, 0), True),
    ("sm_90", "fatbin", (8, 0), False),
    ("sm_90a", "cubin", (9, 0), True),
    ("sm_90a", "fatbin", (10, 0), False),
    ("sm_100", "cubin", (10, 3), True),
    ("sm_120", "source", (9, 0), True),
]


@pytest.mark.parametrize(("arch", "code", "version", "runs"), FITS)
def test_artefacts_fit_by_rule(
    arch: str, code: str, version: nvidia.Version, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia, "capability", lambda number=0: version)
    monkeypatch.setattr(cuda_compiler, "compiler", lambda: "nvcc")
    told = {"writer": compatibility.versions(), "target": {"kind": "cuda", "arch": arch, "code": code}}
    assert nvidia.fits(arch, code, version) == runs
    here = nvidia.architecture(version)
    assert compatibility.misfit(told) == ("" if runs else f"it is for {arch}, and this GPU is {here}")


def test_what_an_artefact_for_a_gpu_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"writer": compatibility.versions(), "target": {"kind": "cuda", "arch": "sm_90", "code": "source"}}
    monkeypatch.setattr(nvidia, "capability", lambda number=0: None)
    assert "and here is none" in compatibility.misfit(told)
    monkeypatch.setattr(nvidia, "capability", lambda number=0: (9, 0))
    monkeypatch.setattr(cuda_compiler, "compiler", lambda: "")
    assert compatibility.misfit(told) == "it holds CUDA source alone, and here is no compiler of that"


def test_libraries_are_found_in_nvidias_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cu13" / "lib").mkdir(parents=True)
    place = tmp_path / "cu13" / "lib" / "libcudart.so.13"
    place.touch()
    package = types.ModuleType("nvidia")
    package.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "nvidia", package)
    assert nvidia.packaged("libcudart.so.13") == [place] and nvidia.packaged("libother.so") == []
    monkeypatch.setitem(sys.modules, "nvidia", None)
    assert nvidia.packaged("libcudart.so.13") == []


@pytest.mark.skipif(
    platform.system() != "Linux" or not nvidia.packaged("libcudart.so.13"), reason="no nvidia-cuda-runtime"
)
def test_cudart_comes_from_the_package() -> None:
    """Without it on any search path, TVM's CUDA runtime finds it: only the driver is then missing."""
    import subprocess

    program = """
from gluongraph.runtime import loader
loader._load_cudart()
print(any("nvidia" in line and "libcudart.so.13" in line for line in open("/proc/self/maps")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]
