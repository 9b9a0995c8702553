"""Every op, compiled alone for this machine, against its numpy meaning; a new op is tested here without an edit."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest
from kernels import compiled, spoiled

from gluongraph import ops
from gluongraph.codegen.build import bind
from gluongraph.codegen.rule import emit
from gluongraph.codegen.rules import offer
from gluongraph.codegen.targets import target
from gluongraph.codegen.tvm import tir
from gluongraph.compiler.lower import compile_graph
from gluongraph.dtypes import dtype_name, is_float, numpy_dtype
from gluongraph.ir import interpreter
from gluongraph.ir.graph import OPS, Graph, TensorType
from gluongraph.ir.plan import Buffer, Group, Launch
from gluongraph.runtime import loader

COMPUTED = sorted(name for name, op in OPS.items() if op.lower is not None and op.samples is not None)
TOLERANCE = {"f64": 1e-12, "f32": 3e-6, "f16": 2e-3, "bf16": 2e-2}


def launches(name: str) -> list[tuple[Launch, list[Any], Any]]:
    """One launch per sample of the op, with its arguments and what numpy gives."""
    found = []
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    for number, (arrays, attrs) in enumerate(OPS[name].samples(rng)):
        arrays = [np.asarray(a) for a in arrays]
        inputs = {f"x{i}": ops.input(f"x{i}", TensorType(a.shape, dtype_name(a.dtype))) for i, a in enumerate(arrays)}
        made = OPS[name](*inputs.values(), **attrs)
        if isinstance(made.type, tuple) or made.ty.size == 0 or any(a.size == 0 for a in arrays):
            continue
        pattern = {"matmul": "gemm", "conv2d": "conv"}.get(name, "opaque")
        pattern = "conv" if name.startswith("conv2d_") else pattern
        pattern = "pool" if made.op.kind == "window" else pattern
        pattern = "loop" if made.op.kind in ("elementwise", "movement", "random") else pattern
        group = Group(Graph(inputs, {"y0": made}), pattern)
        candidate = offer(target())(group) or offer(target())(Group(group.body, "opaque"))
        assert candidate is not None, f"{name}: no rule takes {[str(i.ty) for i in inputs.values()]} {attrs}"
        buffers = tuple(Buffer(f"x{i}", n.ty, "input") for i, n in enumerate(inputs.values()))
        launch = Launch(f"k{number}", group, candidate, buffers, (Buffer("y0", made.ty, "output"),))
        with np.errstate(all="ignore"):
            found.append((launch, arrays, OPS[name].numpy(*arrays, **attrs)))
    return found


@pytest.mark.parametrize("name", COMPUTED)
def test_compiled_op_is_its_numpy_meaning(name: str) -> None:
    cases = launches(name)
    kernels = []
    for launch, _, _ in cases:
        k = tir.Kernel(launch.kernel)
        cpu = target()
        assert cpu is not None
        emit(k, launch.group, launch.candidate, bind(k, launch), cpu)
        kernels.append(k)
    library = compiled(kernels, target())
    for launch, arrays, want in cases:
        (made,) = launch.group.outputs
        got = spoiled(made.shape, numpy_dtype(made.dtype))
        args = [np.array(a, copy=True) for a in arrays] + [got]
        if launch.candidate.workspace:
            args.append(spoiled((launch.candidate.workspace,), np.uint8))
        library[launch.kernel](*map(loader.view, args))
        exact = "f32" if OPS[name].kind == "random" else None  # random numbers are made in f32, whatever they become
        compare(got, np.asarray(want), f"{name} {launch.candidate.rule} {launch.group.inputs}", exact)


def test_composites_and_scans_are_their_numpy_meaning() -> None:
    """All samples as one program, so that all their kernels are compiled at once."""
    inputs, outputs, values = {}, {}, {}
    for name, op in sorted(OPS.items()):
        if op.samples is None or not (op.kind == "composite" or name == "scan"):
            continue
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        for number, (arrays, attrs) in enumerate(op.samples(rng)):
            sources = []
            for i, a in enumerate(map(np.asarray, arrays)):
                key = f"{name}_{number}_x{i}"
                values[key], inputs[key] = a, ops.input(key, TensorType(a.shape, dtype_name(a.dtype)))
                sources.append(inputs[key])
            made = op(*sources, **attrs)
            results = ops.get_tuple_elements(made) if isinstance(made.type, tuple) else (made,)
            outputs.update({f"{name}_{number}_y{i}": n for i, n in enumerate(results)})
    graph = Graph(inputs, outputs)
    got, _ = compile_graph(graph, "samples")(values)
    want, _ = interpreter.run(graph, values)
    for key, array in want.items():
        compare(got[key], np.asarray(array), key, None)


def compare(got: np.ndarray, want: np.ndarray, what: str, precision: str | None) -> None:
    assert got.shape == want.shape, what
    dtype = precision or dtype_name(got.dtype)
    if not is_float(dtype_name(got.dtype)):
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    a, b = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(a), np.isnan(b), err_msg=what)
    finite = np.isfinite(b)
    np.testing.assert_array_equal(a[~finite & ~np.isnan(b)], b[~finite & ~np.isnan(b)], err_msg=what)
    scale = max(1.0, float(np.abs(b[finite]).max(initial=0.0)))
    np.testing.assert_allclose(a[finite], b[finite], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * scale, err_msg=what)
