"""Products by libraries: they compute what our own do, and are called where they were found to be faster only."""

from __future__ import annotations

import pathlib
from importlib import metadata

import numpy as np
import pytest
from kernels import spoiled

import gluongraph as mx
from gluongraph import gluon, ops
from gluongraph.codegen.build import kernel
from gluongraph.codegen.cache.measurements import Found, table
from gluongraph.codegen.cache.selections import key_of
from gluongraph.codegen.contraction.libraries import LIBRARIES, find
from gluongraph.codegen.rules import alternatives, offer
from gluongraph.codegen.targets import TARGETS, Target, target, with_libraries
from gluongraph.codegen.tvm import machine_code
from gluongraph.dtypes import numpy_dtype
from gluongraph.errors import CompileError
from gluongraph.host import process
from gluongraph.ir.graph import OPS, Graph, TensorType, node
from gluongraph.ir.plan import Buffer, Candidate, Group, Launch
from gluongraph.runtime import loader
from gluongraph.step import TrainStep

NAMES = sorted(LIBRARIES)
pytestmark = pytest.mark.usefixtures("own_cache")
DRAW = np.random.default_rng(0)
X, Y = DRAW.standard_normal((64, 48), np.float32), DRAW.integers(0, 40, 64).astype(np.int32)


def installed(name: str) -> bool:
    try:
        return bool(metadata.version(LIBRARIES[name].package))
    except metadata.PackageNotFoundError:
        return False


def allowed(name: str) -> Target:
    if not installed(name):
        pytest.skip(f"{name} is not installed")
    return with_libraries(target(), name)


def by_library(group: Group, on: Target) -> list[Candidate]:
    """The candidates for a group that call the library that is allowed."""
    usual = offer(on)(group)
    assert usual is not None and on.cpu is not None
    (library,) = on.cpu.libraries
    return [c for c in alternatives(group, usual, on) if c.setting.startswith(library.name)]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", NAMES)
def test_a_library_multiplies_as_numpy_does(name: str, dtype: str) -> None:
    """All transposes, odd extents, with work on the result, in few and in many pieces."""
    on, (m, n, kk) = allowed(name), (70, 133, 37)
    launches, arrays, meant = [], [], []
    for number in range(4):
        ta, tb = bool(number & 1), bool(number & 2)
        shapes = ((kk, m) if ta else (m, kk)), ((n, kk) if tb else (kk, n))
        x, w = (ops.input(f"x{i}", TensorType(shape, dtype)) for i, shape in enumerate(shapes))
        into = {"dtype": "f32"} if dtype == "bf16" else {}
        result = node(OPS["matmul"], (x, w), {"ta": ta, "tb": tb, **into}) + 1.0
        group = Group(Graph({"x0": x, "x1": w}, {"y0": result}), "gemm")
        given = [DRAW.standard_normal(shape).astype(numpy_dtype(dtype)) for shape in shapes]
        a, b = (
            x.astype(np.float64).T if turned else x.astype(np.float64)
            for x, turned in zip(given, (ta, tb), strict=True)
        )
        reads = tuple(Buffer(f"x{i}", t, "input") for i, t in enumerate(group.inputs))
        candidates = by_library(group, on)
        assert len(candidates) > 1
        for candidate in (candidates[0], candidates[-1]):
            writes = (Buffer("y0", group.outputs[0], "output"),)
            launches.append(Launch(f"k{len(launches)}", group, candidate, reads, writes))
            arrays.append(given)
            meant.append(a @ b + 1)
    module = machine_code.build_kernels([kernel(launch, on) for launch in launches], on.tvm)
    results: list[list[bytes]] = []
    for threads in (1, 2, process.threads()):
        loader._runtime("config_threadpool")(1, threads)
        results.append([])
        for launch, given, right in zip(launches, arrays, meant, strict=True):
            y, space = spoiled((m, n), np.float32), spoiled((launch.candidate.workspace,), np.uint8)
            module[launch.kernel](*map(loader.view, (*given, y, space)))
            np.testing.assert_allclose(y, right, rtol=1e-4, atol=1e-4, err_msg=launch.candidate.setting)
            results[-1].append(y.tobytes())
    assert results[0] == results[1], "the number of threads changes no bit"


def made(**how: str) -> TrainStep:
    """A step of one layer, with the same numbers each time."""
    mx.random.seed(3)
    net = gluon.nn.Dense(40, in_units=48)
    net.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    return mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, **how)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_calls_it_where_it_was_found_to_be_faster(name: str, tmp_path: pathlib.Path) -> None:
    on, plain = allowed(name), made()
    plain.memory(X, Y)  # compiles it
    (gradient,) = (x for x in plain.plan.launches if x.group.pattern == "gemm" and x.group.inplace)  # and its update
    found = Found(by_library(gradient.group, on)[0], 1e-6, 2e-6)
    table(on).put({key_of(gradient.group): found})
    step, usual = made(libraries=name), made()
    for _ in range(2):
        np.testing.assert_allclose(step(X, Y).asnumpy(), usual(X, Y).asnumpy(), rtol=1e-5)
    assert [x.candidate for x in step.plan.launches if x.label == gradient.label] == [found.candidate]
    assert [x.candidate for x in usual.plan.launches] == [x.candidate for x in plain.plan.launches]
    file = LIBRARIES[name].file.encode()
    assert step.artefact.path is not None and file in step.artefact.path.read_bytes()
    step.export(tmp_path / "step.gga", modes=["step"])
    assert file not in (tmp_path / "step.gga").read_bytes(), "it must train where there is no such library"


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(CompileError, match="there is no library 'openmath'; there is mkl"):
        made(libraries="openmath")
    with pytest.raises(CompileError, match="libraries are of a CPU, not of cuda"):
        with_libraries(TARGETS["cuda"], NAMES)
    for name in NAMES:
        if not installed(name):
            with pytest.raises(CompileError, match=f"{name} is not installed.*\n.*\n?.*pip install"):
                find(name)


def test_nothing_asks_for_one() -> None:
    """A target has none by itself."""
    assert all(row.cpu is None or not row.cpu.libraries for row in (target(), *TARGETS.values()))
