"""Single kernels for tests: graphs of a few ops, each claimed by a rule, compiled in one module, held against numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gluongraph import ops
from gluongraph.codegen.rule import Target, bind, emit
from gluongraph.codegen.rules import offer, tuning_variants
from gluongraph.codegen.targets import target
from gluongraph.codegen.tvm import machine_code, tir
from gluongraph.codegen.tvm.merging import merge
from gluongraph.dtypes import dtype_name, is_float, numpy_dtype
from gluongraph.ir import interpreter
from gluongraph.ir.graph import Graph, Node, TensorType
from gluongraph.ir.plan import Buffer, Group, Launch
from gluongraph.passes.inline import inline
from gluongraph.runtime import loader

Array = Any
TOLERANCE = {"f64": 1e-12, "f32": 4e-6, "f16": 4e-3, "bf16": 2e-2}


@dataclass(frozen=True)
class Case:
    """A kernel: what it computes of inputs of these types, by which rule, and which outputs lie over which inputs.

    `setting` is the tuning variant of the rule, "" its default.
    """

    name: str
    fn: Callable[..., Node | tuple[Node, ...]]
    inputs: Sequence[tuple[tuple[int, ...], str] | tuple[int, ...]]
    pattern: str
    rule: str = ""
    inplace: tuple[tuple[int, int], ...] = ()
    tolerance: float = 0.0
    setting: str = ""

    def types(self) -> list[TensorType]:
        """Of the inputs; f32 where nothing is said."""
        return [TensorType(*i) if i and isinstance(i[0], tuple) else TensorType(i) for i in self.inputs]

    def graph(self) -> Graph:
        """Over primitives."""
        inputs = {f"x{i}": ops.input(f"x{i}", t) for i, t in enumerate(self.types())}
        made = self.fn(*inputs.values())
        outputs = made if isinstance(made, tuple) else (made,)
        return inline(Graph(inputs, {f"y{i}": n for i, n in enumerate(outputs)}))


class Library:
    """All the cases compiled, for this machine or a target that it can run."""

    def __init__(self, cases: Sequence[Case], where: Target | None = None):
        self.target = where or target()
        self.launches = {c.name: self._launch(c, f"k{number}") for number, c in enumerate(cases)}
        cpu = self.target
        assert cpu is not None
        kernels = []
        for launch in self.launches.values():
            k = tir.Kernel(launch.kernel)
            emit(k, launch.group, launch.candidate, bind(k, launch), cpu)
            kernels.append(k)
        self.kernels = compiled(kernels, self.target)

    def _launch(self, case: Case, name: str) -> Launch:
        group = Group(case.graph(), case.pattern, case.inplace)
        candidate = offer(self.target)(group)
        assert candidate is not None, f"{case.name}: no rule takes it"
        if case.setting:
            variants = {each.setting: each for each in tuning_variants(group, candidate, self.target)}
            candidate = variants[case.setting]
        reads = tuple(Buffer(f"x{i}", t, "input") for i, t in enumerate(group.inputs))
        writes = tuple(Buffer(f"y{i}", t, "output") for i, t in enumerate(group.outputs))
        return Launch(name, group, candidate, reads, writes)

    def check(self, case: Case) -> None:
        """Right rule, right numbers, and inputs untouched."""
        launch, shared = self.launches[case.name], dict(case.inplace)
        assert launch.candidate.rule == (case.rule or case.pattern)
        rng = np.random.default_rng(1)
        values = {f"x{i}": numbers(rng, t) for i, t in enumerate(launch.group.inputs)}
        with np.errstate(all="ignore"):
            want, _ = interpreter.run(launch.group.body, values)
        memory, results = self.run(case, [*values.values()])
        for got, true in zip(results, want.values(), strict=True):
            compare(got, np.asarray(true), case)
        for i, (before, after) in enumerate(zip(values.values(), memory, strict=True)):
            assert i in shared.values() or before.tobytes() == after.tobytes(), f"{case.name} writes over input {i}"

    def run(self, case: Case, values: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """Return the inputs' memory after the kernel has run on copies of these values, and the results."""
        launch = self.launches[case.name]
        memory = [np.array(v, copy=True) for v in values]
        shared = dict(case.inplace)
        fresh = [spoiled(t.shape, numpy_dtype(t.dtype)) for j, t in enumerate(launch.group.outputs) if j not in shared]
        queue = iter(fresh)
        results = [memory[shared[j]] if j in shared else next(queue) for j in range(len(launch.group.outputs))]
        extra = [spoiled((launch.candidate.workspace,), np.uint8)] if launch.candidate.workspace else []
        self.kernels[launch.kernel](*map(loader.view, [*memory, *fresh, *extra]))
        return memory, results


def compiled(kernels: Sequence[tir.Kernel], where: Target) -> Any:
    """Kernels as they are in a library: those that differ in integers only call one function."""
    made = [function for each in merge(kernels) for function in each.functions]
    return machine_code.build_kernels(made, where.tvm) if made else {}


def spoiled(shape: tuple[int, ...], dtype: Any) -> Array:
    """An array of NaN, -1 or true: whoever reads what nobody wrote is found out."""
    array = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8).fill(0xFF)
    return array


def numbers(rng: np.random.Generator, t: TensorType) -> Array:
    """Small numbers of either sign; 0 and 1 for integers."""
    if is_float(t.dtype):
        return np.asarray(rng.uniform(-2, 2, t.shape)).astype(numpy_dtype(t.dtype))
    return np.asarray(rng.integers(0, 2, t.shape)).astype(numpy_dtype(t.dtype))


def compare(got: Array, want: Array, case: Case) -> None:
    """Equal up to rounding relative to the largest element; integers exactly."""
    assert got.shape == want.shape and got.dtype == want.dtype
    dtype = dtype_name(got.dtype)
    if not is_float(dtype):
        np.testing.assert_array_equal(got, want)
        return
    tolerance = case.tolerance or TOLERANCE[dtype]
    a, b = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1.0, float(np.abs(b).max(initial=0))))
