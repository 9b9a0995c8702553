"""Functions of shared libraries, called without the Python package tvm_ffi."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from ctypes import addressof, c_int64, c_void_p
from pathlib import Path
from typing import Any

import pytest

from gluongraph.runtime import loader

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler: install gcc")

CODE = """
typedef struct { int tag; unsigned zero; long long value; } Any;
void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message);

int __tvm_ffi_put(void *self, const Any *args, int count, Any *result) {
  *(long long *)args[0].value = args[1].value + count;
  return 0;
}

int __tvm_ffi_fail(void *self, const Any *args, int count, Any *result) {
  TVMFFIErrorSetRaisedFromCStr("RuntimeError", "there is no memory");
  return -1;
}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "code.c").write_text(CODE)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", "step.so", "code.c"], cwd=tmp_path, check=True)
    return tmp_path / "step.so"


def mapped() -> int:
    """Pieces of memory that are of loaded code."""
    return Path("/proc/self/maps").read_text().count("/memfd:gluongraph")


@pytest.mark.parametrize("kind", [int, c_void_p])
def test_numbers_and_addresses_arrive(path: Path, kind: Callable[[int], Any]) -> None:
    found = c_int64(0)
    put = loader.function(loader.load_code(path.read_bytes(), "step.so"), "put")
    put(kind(addressof(found)), 40)
    assert found.value == 42


def test_a_call_may_be_made_many_times(path: Path) -> None:
    found = c_int64(0)
    call = loader.load_code(path.read_bytes(), "step.so").get_function("put").on(addressof(found), 40)
    for _ in range(2):
        found.value = 0
        call()
        assert found.value == 42


def test_a_function_that_fails(path: Path) -> None:
    fail = loader.function(loader.load_code(path.read_bytes(), "step.so"), "fail")
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"^there is no memory$"):
            fail()


def test_a_function_that_is_not_there(path: Path) -> None:
    with pytest.raises(AttributeError, match="the library has no function 'nothing'"):
        loader.function(loader.load_code(path.read_bytes(), "step.so"), "nothing")


def test_a_library_stays_as_long_as_its_functions(path: Path) -> None:
    before = mapped()
    library = loader.load_code(path.read_bytes(), "step.so")
    call = library.get_function("put").on(0, 0)
    del library
    assert mapped() > before
    del call
    assert mapped() == before


def test_the_path_of_code_is_never_another_files(tmp_path: Path) -> None:
    """TVM opens the paths of loaded libraries again for tracebacks: an empty file in place of one is a bus error."""
    program = """
import gluongraph as mx, sys
from gluongraph import gluon, nd
from gluongraph.host.process import import_tvm
net = gluon.nn.Dense(3, in_units=4)
net.initialize()
step = mx.compile(net, gluon.loss.L2Loss(), gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}))
step(nd.ones((2, 4)), nd.ones((2, 3)))
print("tvm" in sys.modules)
held = [open(f"{i}", "wb") for i in range(20)]  # one of them gets the number that the library's file had
import_tvm("tvm")
"""
    env = {**os.environ, "GG_CACHE": str(tmp_path / "cache")}
    seen = [
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True)
        for _ in range(2)
    ]
    assert [(done.returncode, done.stdout.strip()) for done in seen] == [(0, "True"), (0, "False")], seen[1].stderr
