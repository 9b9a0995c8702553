"""CUDA without a GPU: how groups become kernels, and whole training steps, their source run by an emulator of threads.

Every op, and the way through TVM's runtime library, are in test_fake_gpu.py.

Where nvcc is, the same source is compiled for sm_90. Timing, and what a real GPU does, is in benchmarks/cuda_check.py.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import gpu
import numpy as np
import pytest

import gluongraph as mx
from gluongraph import gluon, nd, ops
from gluongraph.codegen import build
from gluongraph.codegen.cuda import rules as cuda_rules
from gluongraph.codegen.cuda import te_lower
from gluongraph.codegen.rule import claim
from gluongraph.codegen.tvm import te
from gluongraph.compiler.lower import lower
from gluongraph.compiler.run_passes import run
from gluongraph.dtypes import dtype_name, is_float, numpy_dtype
from gluongraph.errors import CompileError
from gluongraph.gluon import nn
from gluongraph.ir import interpreter
from gluongraph.ir.graph import OPS, Graph, Node, Op, TensorType
from gluongraph.ir.plan import Buffer, Group, Launch, Plan
from gluongraph.ops.random import MULTIPLIERS, ROUNDS
from gluongraph.passes import assign_memory, inline, schedule, select
from gluongraph.passes.pipeline import Context
from gluongraph.step import TrainStep

Arrays = dict[str, np.ndarray[Any, Any]]
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to build the emulator of threads with")
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc: CUDA source is not compiled for sm_90")


def plan_of(graph: Graph, roles: Mapping[str, str]) -> Plan:
    graph = run(graph, Context(), "shapes", "fuse")
    return assign_memory(schedule(select(graph, partial(claim, target=gpu.CUDA), plan_of), roles))


def compare(got: Mapping[str, Any], want: Mapping[str, Any], least: float = 0.0) -> None:
    """Each within rounding of its dtype (or `least`), relative to its largest element; equal where not finite."""
    for name, w in want.items():
        w = np.asarray(w)
        finite = np.where(np.isfinite(w.astype("f8")), w.astype("f8"), 0)
        scale = max(1.0, float(np.abs(finite).max(initial=0)))
        tolerance = {2: 1e-2, 4: 2e-5, 8: 1e-11}.get(w.dtype.itemsize, 0) if is_float(dtype_name(w.dtype)) else 0
        g, atol = got[name].reshape(w.shape), max(tolerance, least) * scale
        assert np.allclose(g.astype("f8"), w.astype("f8"), rtol=0, atol=atol, equal_nan=True), name


# -- every op


def cases(loops: bool = False) -> Iterator[tuple[str, Graph, Arrays]]:
    """The first samples of every op, as graphs; 16-bit floats are compiled, but the emulator has none.

    Loops run on the host, and the emulator starts kernels itself: ops with a loop in them are cases of their own.
    """
    for op in OPS.values():
        if op.name in ("input", "literal", "get_tuple_element", "call", "fused") or op.samples is None:
            continue
        if op.kind == "collective":  # no kernel: the runtime's communicator does it
            continue
        taken = 0
        for arrays, attrs in op.samples(np.random.default_rng(zlib.crc32(op.name.encode()))):
            graph, given = case(op, arrays, attrs)
            if any(n.op.name == "scan" for n in inline(graph).nodes()) != loops:
                break
            small = any(n.dtype in ("f16", "bf16") for n in graph.nodes() if not isinstance(n.type, tuple))
            if not small and taken < 3:
                taken += 1
                yield f"{op.name}_{taken}", graph, given


def case(op: Op, arrays: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Graph, Arrays]:
    given = {f"x{i}": np.asarray(a) for i, a in enumerate(arrays)}
    inputs = {name: ops.input(name, TensorType(a.shape, dtype_name(a.dtype))) for name, a in given.items()}
    made = op(*inputs.values(), **attrs)
    results = (
        [ops.get_tuple_element(made, index=i) for i in range(len(made.types))]
        if isinstance(made.type, tuple)
        else [made]
    )
    return Graph(inputs, {f"y{j}": n for j, n in enumerate(results)}), given


@pytest.mark.parametrize("name", ["normal_1", "uniform_1", "dropout_1"])
def test_words_of_random_numbers_are_computed_once(name: str) -> None:
    """The ten rounds read each product twice: written out for each reader, they were two thousand times as long."""
    graph = next(graph for other, graph, _ in cases() if other == name)
    plan = plan_of(graph, dict.fromkeys(graph.inputs, "input"))
    source = te.source(list(gpu.functions(plan).values()), gpu.CUDA.tvm)
    assert source.count(str(MULTIPLIERS[0])) == ROUNDS


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@needs_nvcc
def test_16_bit_floats_compile(dtype: str, tmp_path: Path) -> None:
    x, w = ops.input("x", TensorType((64, 48), dtype)), ops.input("w", TensorType((48, 32), dtype))
    y = ops.tanh(ops.matmul(x, w) * 0.5)
    graph = Graph({"x": x, "w": w}, {"y": y, "p": ops.softmax(x), "s": ops.sum(x, 0)})
    plan = plan_of(graph, {"x": "input", "w": "input"})
    nvcc(te.source(list(gpu.functions(plan).values()), gpu.CUDA.tvm), tmp_path)


def nvcc(source: str, folder: Path) -> None:
    (folder / "kernels.cu").write_text(source)
    command = ["nvcc", "-w", "-arch=sm_90", "-cubin", "kernels.cu", "-o", "kernels.cubin"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    assert (folder / "kernels.cubin").stat().st_size > 0


# -- whole training steps


class Captured(Exception):
    """Carries a step's graph out of the front end."""


def step_graph(
    net: Any, batch: tuple[Any, ...], optimizer: str, hyper: Mapping[str, Any] | None = None
) -> tuple[Graph, dict[str, str]]:
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    net.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 1e-3, **(hyper or {})})

    def lower(graph: Graph, roles: Mapping[str, str], forward: Any, **_: Any) -> Any:
        raise Captured(graph, roles)

    with pytest.raises(Captured) as found:
        TrainStep(lambda x, y: loss(net(x), y), trainer, lower, net)(*batch)
    graph, roles = found.value.args
    return graph, roles


def digits(batch: int = 64, pixels: int = 8, optimizer: str = "adam") -> tuple[Graph, dict[str, str]]:
    """The step of a small convolutional network, as in examples/digits.py."""
    net = nn.HybridSequential()
    for channels in (8, 16):
        net.add(nn.Conv2D(channels, 3, padding=1), nn.BatchNorm(), nn.Activation("relu"), nn.MaxPool2D())
    net.add(nn.Flatten(), nn.Dense(48, activation="relu"), nn.Dropout(0.3), nn.Dense(10))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, 1, pixels, pixels)).astype("f")
    return step_graph(net, (nd.array(x), nd.array(rng.integers(0, 10, batch).astype("i"), dtype="int32")), optimizer)


def lenet(batch: int = 128, optimizer: str = "sgd") -> tuple[Graph, dict[str, str]]:
    net = nn.HybridSequential()
    for channels in (20, 50):
        net.add(nn.Conv2D(channels, 5, activation="tanh"), nn.MaxPool2D(2, 2))
    net.add(nn.Flatten(), nn.Dense(500, activation="tanh"), nn.Dense(10))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, 1, 28, 28)).astype("f")
    return step_graph(net, (nd.array(x), nd.array(rng.integers(0, 10, batch).astype("i"), dtype="int32")), optimizer)


def values(graph: Graph, roles: Mapping[str, str]) -> Arrays:
    """Something for every input: variances and second moments must not be negative."""
    rng = np.random.default_rng(1)

    def one(name: str, n: Node) -> Any:
        if is_float(n.dtype):
            low = 0.05 if roles[name] == "scalar" else 0.0
            return rng.uniform(low, 0.3, n.shape).astype(numpy_dtype(n.dtype))
        return rng.integers(0, 10, n.shape).astype(numpy_dtype(n.dtype))

    return {name: one(name, n) for name, n in graph.inputs.items()}


@cache
def planned(model: Callable[[], tuple[Graph, dict[str, str]]]) -> Plan:
    """The plan of a whole step, which several tests look at."""
    return plan_of(*model())


@pytest.mark.parametrize("model", [digits, lenet])
def test_step_fills_the_machine(model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Every kernel has several thread blocks, all loops are bound, and which rule made it is told."""
    plan = planned(model)
    table = cuda_rules.table(plan, gpu.CUDA)
    with capsys.disabled():
        print(f"\n{model.__name__}\n{table}")
    assert len(table.splitlines()) == len(plan.kernels) + 1
    for name, f in gpu.functions(plan).items():
        for blocks, threads in te.grids(f):
            assert blocks > 1 or plan.kernels[name].writes[0].type.size <= te_lower.FEW, (name, blocks)
            assert 32 <= threads <= 1024
    rules = {launch.candidate.schedule for launch in plan.launches}
    assert {"dlight.Matmul", "dlight.GeneralReduction", "threads"} <= rules


@pytest.mark.parametrize("model", [digits, lenet])
@needs_nvcc
def test_step_compiles_for_sm_90(model: Any, tmp_path: Path) -> None:
    source = te.source(list(gpu.functions(planned(model)).values()), gpu.CUDA.tvm)
    assert "__global__" in source and "expf" in source and "__expf" not in source
    nvcc(source, tmp_path)


@pytest.mark.parametrize(
    "model", [lambda: digits(3), lambda: lenet(1), lambda: digits(2, optimizer="sgd")], ids=["adam", "lenet", "sgd"]
)
@needs_compiler
def test_step_is_right(model: Any, tmp_path: Path) -> None:
    """Loss, weights and optimizer states after one step, whichever thread comes first."""
    graph, roles = model()
    given = values(graph, roles)
    outputs, updates = interpreter.run(graph, given)
    plan = plan_of(graph, roles)
    emulator = gpu.Emulator(gpu.functions(plan), tmp_path)
    for order in (0, 1, 2):
        memory = {name: a.copy() for name, a in given.items()}
        compare(gpu.run(plan, emulator, memory, order), {**outputs, **updates})


def test_artefact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's side: one entry point, a library that holds the CUDA module."""
    monkeypatch.setenv("GG_CACHE", str(tmp_path))
    plan = planned(digits)
    artefact = build.build(plan, gpu.CUDA)
    assert artefact.path is not None and artefact.compiled > 10
    assert b"__global__" in artefact.path.read_bytes()
    assert len(list(artefact.path.parent.glob("*.fatbin"))) == (shutil.which("nvcc") is not None)
    again = build.build(plan, gpu.CUDA)
    assert again.compiled == 0 and again.path == artefact.path


# -- how groups become kernels


def body(outputs: list[Node], *inputs: Node) -> Graph:
    return Graph({n.attrs["name"]: n for n in inputs}, {f"y{j}": n for j, n in enumerate(outputs)})


def inputs(*shapes: tuple[int, ...]) -> list[Node]:
    return [ops.input(f"x{i}", TensorType(s)) for i, s in enumerate(shapes)]


def rules(group: Group) -> str:
    candidate = claim(group, gpu.CUDA)
    assert candidate is not None
    return candidate.schedule


def test_update_in_the_epilogue_is_one_kernel() -> None:
    x, g, w, m = inputs((40, 64), (40, 96), (64, 96), (64, 96))
    moment = m * 0.9 + ops.matmul(x, g, ta=True)
    assert rules(Group(body([moment, w - moment * 0.1], x, g, w, m), "gemm", ((0, 3), (1, 2)))) == "dlight.Matmul"


def state_of_rows(g: Node, w: Node, h: Node) -> list[Node]:
    """Weights and history, as GroupAdaGrad has them."""
    new = h + ops.sum(g * g, 1, keepdims=True) * (1 / g.shape[1])
    return [w - g / ops.expand(ops.sqrt(new), g.shape), new]


def updates() -> Iterator[Any]:
    """Groups that write over what they read, one for each way that a schedule stores its result."""

    def one(rule: str, shapes: list[tuple[int, ...]], outputs: Any, inplace: tuple[tuple[int, int], ...]) -> Any:
        x = inputs(*shapes)
        pattern = "loop" if rule == "threads" else "reduce" if len(shapes) == 2 else "gemm"
        pattern = "rowwise" if outputs is state_of_rows else pattern
        return pytest.param(rule, Group(body(outputs(*x), *x), pattern, inplace), id=f"{rule}-{shapes[0]}")

    def product(a: Node, b: Node, y: Node) -> list[Node]:
        return [y - ops.matmul(a, b) * 0.1]

    last = ((0, 2),)
    yield one("dlight.GEMV", [(128, 256), (256, 1), (128, 1)], product, last)
    yield one("dlight.Reduction", [(1, 256), (256, 128), (1, 128)], product, last)
    yield one("dlight.Matmul", [(3, 40, 50), (3, 50, 33), (3, 40, 33)], product, last)
    yield one("dlight.Reduction", [(128, 256), (128,)], lambda a, y: [y - ops.sum(a, 1)], ((0, 1),))
    yield one("dlight.Reduction", [(128, 256), (256,)], lambda a, y: [y - ops.sum(a, 0)], ((0, 1),))
    yield one("dlight.Reduction", [(80, 16, 30), (16,)], lambda a, y: [y - ops.sum(a, (0, 2))], ((0, 1),))
    yield one("dlight.Reduction", [(64, 64), ()], lambda a, y: [y - ops.sum(a)], ((0, 1),))
    yield one(
        "dlight.GeneralReduction",
        [(8, 16, 30), (16,)],
        lambda a, y: [y - ops.sum(a, (0, 2)), ops.sum(a * a, (0, 2))],
        ((0, 1),),
    )
    yield one("threads", [(7, 3), (7, 3)], lambda a, b: [b, a], ((0, 0), (1, 1)))
    # Every element of a row reads the row's old state.
    yield one("dlight.Reduction", [(9, 300), (9, 300), (9, 1)], state_of_rows, ((0, 1), (1, 2)))
    yield one("dlight.Reduction", [(70, 40), (70, 40), (70, 1)], state_of_rows, ((0, 1), (1, 2)))
    yield one("threads+threads", [(90, 30), (90, 30), (90, 1)], state_of_rows, ((0, 1), (1, 2)))
    yield one("dlight.Transpose", [(70, 33), (33, 70)], lambda a, y: [y - ops.transpose(a), y * 2.0], ((0, 1),))


@needs_compiler
@pytest.mark.parametrize(("rule", "group"), list(updates()))
def test_in_place(rule: str, group: Group, tmp_path: Path) -> None:
    """Each element is read, then written, by one thread and once."""
    candidate = claim(group, gpu.CUDA)
    assert candidate is not None and candidate.schedule == rule
    reads = tuple(Buffer(f"x{i}", t, "state") for i, t in enumerate(group.inputs))
    over = dict(group.inplace)
    writes = tuple(reads[over[j]] if j in over else Buffer(f"o{j}", t, "output") for j, t in enumerate(group.outputs))
    size = candidate.workspace
    workspace = Buffer("workspace", TensorType((size,), "u8"), "scratch", 0) if size else None
    launch = Launch("k0", group, candidate, reads, writes, workspace)
    plan = Plan((launch,), {}, {f"y{j}": w for j, w in enumerate(writes)})
    emulator = gpu.Emulator(gpu.functions(plan), tmp_path)
    given = values(group.body, dict.fromkeys(group.body.inputs, "state"))
    for order in (0, 1, 2):
        memory = {name: a.copy() for name, a in given.items()}
        compare(gpu.run(plan, emulator, memory, order), interpreter.run(group.body, given)[0])


@pytest.mark.parametrize("name", ["conv2d", "conv2d_data_grad", "conv2d_weight_grad"])
def test_reads_at_a_padding_stay_in_the_array(name: str) -> None:
    """Schedules read them before they ask whether they count: at the first or last element of the array instead."""
    graph = next(graph for other, graph, _ in cases() if other == f"{name}_1")
    plan = plan_of(graph, dict.fromkeys(graph.inputs, "input"))
    source = te.source(list(gpu.functions(plan).values()), gpu.CUDA.tvm)
    reads = re.findall(r"x0_\d+_ptr\[(max\(min\()?", source)
    assert reads and all(reads)


def test_rows_and_row_values_in_one_kernel() -> None:
    (x,) = inputs((64, 300))
    top = ops.max(x, 1, keepdims=True)
    e = ops.exp(x - ops.expand(top, x.shape))
    total = ops.sum(e, 1, keepdims=True)
    group = Group(body([e / ops.expand(total, x.shape), total], x), "rowwise")
    assert rules(group) == "dlight.GeneralReduction"


@needs_compiler
def test_several_spaces_are_one_kernel(tmp_path: Path) -> None:
    """Updates of many small parameters: no thread block serves two of them."""
    x, y, z = inputs((64, 8), (5,), ())
    group = Group(body([x * 2.0, y + 1.0, z - 1.0], x, y, z), "loop")
    assert rules(group) == "threads"
    fused = ops.fused(x, y, z, body=group.body, pattern="loop")
    graph = Graph({"x0": x, "x1": y, "x2": z}, {f"y{j}": ops.get_tuple_element(fused, index=j) for j in range(3)})
    roles = dict.fromkeys(graph.inputs, "input")
    plan = assign_memory(schedule(select(graph, partial(claim, target=gpu.CUDA), plan_of), roles))
    functions = gpu.functions(plan)
    assert [te.grids(f) for f in functions.values()] == [[(18, 32)]]
    given = values(graph, roles)
    compare(gpu.run(plan, gpu.Emulator(functions, tmp_path), given), interpreter.run(graph, given)[0])


def test_grids_are_counted_in_32_bits() -> None:
    """Updates of large parameters are several grids: together they have more elements than an index can count."""
    x = [ops.input(f"x{i}", TensorType((1_000_000_000 - i,), "i8")) for i in range(5)]
    group = Group(body([a + a for a in x], *x), "loop")
    candidate = claim(group, gpu.CUDA)
    assert candidate is not None
    reads, writes = ([Buffer(f"{name}{i}", a.ty, "state") for i, a in enumerate(x)] for name in "xy")
    launch = Launch("k0", group, candidate, tuple(reads), tuple(writes))
    assert [blocks for blocks, _ in te.grids(build.kernel(launch, gpu.CUDA))] == [7812500, 7812500, 3906250]


@pytest.mark.parametrize("rows", [2**16, 2**18])
def test_results_that_cannot_be_counted_are_refused(rows: int) -> None:
    x, a, b = inputs((rows, 1), (rows, 4), (4, 2**15))
    wide = ops.expand(x, (rows, 2**15))
    for results in ([wide * 2.0], [ops.matmul(a, b)], [ops.softmax(wide * 2.0), ops.exp(x)]):
        graph = body(results, x, a, b)
        with pytest.raises(CompileError, match=r"arrays of compiled code have at most 2147418112 elements"):
            lower(graph, dict.fromkeys(graph.inputs, "input"), on=gpu.CUDA)


@pytest.mark.parametrize("shape", [(2**17, 2, 3), (3, 2**22, 2), (2, 3, 2**22)])
def test_grids_are_those_that_cuda_starts(shape: tuple[int, int, int]) -> None:
    """Of 65,535 blocks at most along y and z: whatever a schedule gives more is laid along x."""
    n, rows, columns = shape
    x, w = inputs((n, rows, 3), (n, 3, columns))
    graph = body([ops.matmul(x, w), ops.sum(x, 2), ops.transpose(x, (0, 2, 1))], x, w)
    plan = plan_of(graph, dict.fromkeys(graph.inputs, "input"))
    found = [grid for f in gpu.functions(plan).values() for grid in te.launches(f)]
    for (along_x, *others), threads in found:
        assert along_x < 2**31 and max(others) <= te.MAX_GRID_YZ and threads[2] <= 64
    assert max(blocks[0] for blocks, _ in found) > te.MAX_GRID_YZ


@needs_compiler
def test_a_grid_laid_along_x_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(te, "MAX_GRID_YZ", 4)
    x, w = inputs((5, 70, 33), (5, 33, 190))
    graph = body([ops.matmul(x, w)], x, w)
    roles = dict.fromkeys(graph.inputs, "input")
    cuda_rules.lowering.cache_clear()
    functions = gpu.functions(plan := plan_of(graph, roles))
    cuda_rules.lowering.cache_clear()
    assert [te.launches(f) for f in functions.values()] == [[((45, 1, 1), (8, 16, 1))]]
    given = values(graph, roles)
    compare(gpu.run(plan, gpu.Emulator(functions, tmp_path), given), interpreter.run(graph, given)[0])


@needs_compiler
def test_folds_of_different_shape_go_through_a_workspace(tmp_path: Path) -> None:
    x, w = inputs((40, 48), (48, 64))
    product = ops.matmul(x, w)
    norm = ops.sum(product * product, 1, keepdims=True)
    group = Group(body([product / ops.expand(ops.sqrt(norm), product.shape), norm], x, w), "opaque")
    candidate = claim(group, gpu.CUDA)
    assert candidate is not None and candidate.schedule == "dlight.Matmul+dlight.Reduction+threads"
    assert candidate.workspace == 40 * 64 * 4
    fused = ops.fused(x, w, body=group.body, pattern="opaque")
    graph = Graph({"x0": x, "x1": w}, {f"y{j}": ops.get_tuple_element(fused, index=j) for j in range(2)})
    plan = assign_memory(
        schedule(select(graph, partial(claim, target=gpu.CUDA), plan_of), {"x0": "input", "x1": "input"})
    )
    given = values(graph, {"x0": "input", "x1": "input"})
    emulator = gpu.Emulator(gpu.functions(plan), tmp_path)
    compare(gpu.run(plan, emulator, given), interpreter.run(graph, given)[0])


def test_a_sum_of_everything_is_one_block() -> None:
    """There is one result: the named kernel with a single block."""
    (x,) = inputs((64, 300))
    graph = Graph({"x0": x}, {"y0": ops.sum(x)})
    plan = plan_of(graph, {"x0": "input"})
    ((blocks, threads),) = (grid for f in gpu.functions(plan).values() for grid in te.grids(f))
    assert blocks == 1 and threads >= 256


@pytest.mark.parametrize(("graph", "given"), [pytest.param(*rest, id=name) for name, *rest in cases(loops=True)])
def test_loop(graph: Graph, given: Arrays) -> None:
    """The loop runs on the host, and here its kernels do too, without threads."""
    from gluongraph.codegen.tvm import machine_code
    from gluongraph.ir.entry_point import program_of
    from gluongraph.runtime import loader
    from gluongraph.runtime.executor import Executor

    plan = plan_of(graph, dict.fromkeys(graph.inputs, "input"))
    assert "scan" in [launch.candidate.rule for launch in plan.launches]
    program = program_of(plan)
    functions = [gpu.serial(f) for f in gpu.functions(plan).values()]
    entry = loader.function(
        gpu.compiled([*functions, *machine_code.calling("step", build.entry(plan, gpu=True))]), "step"
    )
    executor = Executor(entry, program, {})
    results = executor([given[name] for name in executor.input_names])
    compare(dict(zip(executor.output_names, results, strict=True)), interpreter.run(graph, given)[0])
    assert te.source(list(gpu.functions(plan).values()), gpu.CUDA.tvm).count("__global__ void") > 1
