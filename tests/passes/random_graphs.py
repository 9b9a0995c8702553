"""Random graphs for the laws that every pass keeps: any declared op may occur, so a new op is tested with no edit.

An elementwise op is put on values of equal type; any other is drawn from its own samples, its float arrays replaced
by values of the graph that are brought to the sample's shape, its other arrays kept as literals.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from gluongraph import ops
from gluongraph.dtypes import dtype_name, is_float, numpy_dtype
from gluongraph.errors import MXNetError
from gluongraph.ir import interpreter
from gluongraph.ir.graph import OPS, Graph, Node, Op, TensorType, topological
from gluongraph.ir.printer import read, show
from gluongraph.ir.serialize import dumps, loads
from gluongraph.ir.verify import verify

SHAPES = ((2, 3), (3,), (), (1, 4), (2, 3, 2), (3, 3))
NUMBERS = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.0, float("inf"))
# Few examples, the same in every run: these tests are laws, not a search.
FEW = settings(max_examples=25, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))

_SKIPPED = frozenset(
    {"input", "scan", "call", "fused", "get_tuple_element"}
)  # scan is built below, the others are forms
# Indices out of range are an error; a singular matrix has no inverse: NaN by LAPACK, infinities too by elimination; the
# eigenvectors of equal eigenvalues are any basis, and so are rows of Q for dependent rows: rounding decides which.
_NOT_OF_ANY_VALUES = frozenset({"checked_index", "inverse", "syevd", "gelqf"})


def _samples(op: Op) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The op's own samples, in f32, none of them large."""
    if op.samples is None:
        return []
    found = []
    for arrays, attrs in op.samples(np.random.default_rng(0)):
        arrays = tuple(np.asarray(a) for a in arrays)
        if all(a.size <= 256 and a.dtype.name != "float64" for a in arrays):
            found.append((arrays, attrs))
    return found


SAMPLES = {op.name: _samples(op) for op in OPS.values() if op.kind not in ("leaf",) and op.name not in _SKIPPED}
ELEMENTWISE = sorted(name for name, op in OPS.items() if op.kind == "elementwise")
OTHERS = sorted(
    name
    for name, found in SAMPLES.items()
    if found and OPS[name].kind != "elementwise" and name not in _NOT_OF_ANY_VALUES
)


def to_shape(n: Node, shape: tuple[int, ...]) -> Node:
    """Some value of the given shape made of n's elements, by movement alone."""
    wanted = int(np.prod(shape, dtype=int))
    flat = ops.reshape(n, shape=(n.ty.size,))
    if wanted > n.ty.size:
        flat = ops.pad(flat, before=(0,), after=(wanted - n.ty.size,), value=0.5)
    elif wanted < n.ty.size:
        flat = ops.slice(flat, begin=(0,), end=(wanted,), strides=(1,))
    return ops.reshape(flat, shape=shape)


def _elementwise(rng: Random, op: Op, values: list[Node]) -> list[Node]:
    """The op on values of one type; nothing if it does not take that type."""
    first = rng.choice([v for v in values if op.name != "pow" or is_float(v.dtype)])  # 2 ** -1 has no integer value
    alike = [v for v in values if v.type == first.type]
    arrays, attrs = rng.choice(SAMPLES[op.name])
    src = [first, *(rng.choice(alike) for _ in arrays[1:])]
    conditions = [v for v in values if v.dtype == "bool" and v.ty.size]
    if op.name == "where" and conditions:
        src[0] = to_shape(rng.choice(conditions), first.shape)
    with contextlib.suppress(MXNetError):
        return [op(*src, **attrs)]
    return []


def _from_sample(rng: Random, op: Op, values: list[Node]) -> list[Node]:
    """The op as in one of its samples, on values of the graph where they are floats."""
    arrays, attrs = rng.choice(SAMPLES[op.name])
    src = []
    for a in arrays:
        alike = [v for v in values if v.dtype == dtype_name(a.dtype) and is_float(v.dtype) and v.ty.size]
        src.append(to_shape(rng.choice(alike), a.shape) if alike else ops.literal(a))
    made = op(*src, **attrs)
    return (
        [ops.get_tuple_element(made, index=i) for i in range(len(made.types))]
        if isinstance(made.type, tuple)
        else [made]
    )


def _with_number(rng: Random, values: list[Node]) -> list[Node]:
    """Arithmetic with a constant: what most rules look for."""
    x = rng.choice([v for v in values if v.dtype == "f32"])
    number = ops.const(rng.choice(NUMBERS), dtype="f32", shape=x.shape)
    operands = (x, number) if rng.random() < 0.5 else (number, x)
    return [OPS[rng.choice(("add", "mul", "sub", "div", "pow", "maximum"))](*operands)]


def _scan(rng: Random, values: list[Node]) -> list[Node]:
    """A loop of three turns whose body is a small random graph."""
    floats = [v for v in values if v.dtype == "f32" and v.ty.size]
    start, each = rng.choice(floats), rng.choice(floats)
    c0, x0 = ops.input("c0", start.ty), ops.input("x0", TensorType((2,)))
    inside = [c0, ops.mul(c0, ops.sum(x0, axis=None)), ops.sub(c0, c0)]
    for _ in range(3):
        inside += _elementwise(rng, OPS[rng.choice(ELEMENTWISE)], inside)
    fits = [v for v in inside if v.type == c0.type]
    body = Graph({"c0": c0, "x0": x0}, {"c0": rng.choice(fits), "y0": inside[-1]})
    reverse = rng.random() < 0.5
    made = OPS["scan"](start, to_shape(each, (3, 2)), body=body, length=3, carries=1, xs=1, reverse=reverse)
    return [ops.get_tuple_element(made, index=i) for i in range(2)]


def _more(rng: Random, values: list[Node]) -> list[Node]:
    """One more op on what is there, equal chances for each kind of step."""
    kind = rng.choice(("elementwise", "elementwise", "sample", "sample", "number", "number", "scan"))
    if kind == "elementwise":
        return _elementwise(rng, OPS[rng.choice(ELEMENTWISE)], values)
    if kind == "sample":
        return _from_sample(rng, OPS[rng.choice(OTHERS)], values)
    return _scan(rng, values) if kind == "scan" else _with_number(rng, values)


@st.composite
def graphs(draw: st.DrawFn, most: int = 12) -> Graph:
    """A graph of `make`, of up to `most` steps.

    A generator of its own chooses the ops: hypothesis favours the first of a list, and all should have their turn.
    """
    return make(draw(st.integers(1, most)), Random(draw(st.integers(0, 2**32))))


def make(steps: int, rng: Random) -> Graph:
    """A graph of a few f32 inputs and so many steps, with everything that nobody reads as outputs, maybe an update."""
    inputs = [ops.input(f"in.{i}", TensorType(rng.choice(SHAPES))) for i in range(3)]
    values: list[Node] = list(inputs)
    for _ in range(steps):
        values += _more(rng, values)
    read = {s for n in topological(values) for s in n.src}
    outputs = {f"out{i}": n for i, n in enumerate(v for v in dict.fromkeys(values) if v not in read)}
    fits = [v for v in values if v.type == inputs[0].type]
    updates = {"in.0": rng.choice(fits)} if rng.random() < 0.5 else {}
    return Graph({n.attrs["name"]: n for n in inputs}, outputs, updates)


def values_for(graph: Graph, seed: int = 0) -> dict[str, Any]:
    """Arrays for the inputs."""
    rng = np.random.default_rng(seed)
    return {k: (2 * rng.normal(size=n.shape)).astype(numpy_dtype(n.dtype)) for k, n in graph.inputs.items()}


def assert_same_meaning(before: Graph, after: Graph, given: dict[str, Any] | None = None) -> None:
    """Both graphs compute the same from the same inputs, NaN and infinities included."""
    given = given or values_for(before)
    with np.errstate(all="ignore"):
        expected, got = interpreter.run(before, given), interpreter.run(after, given)
    for old, new in zip(expected, got, strict=True):
        _assert_close(old, new)


def _assert_close(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    assert list(old) == list(new)
    for name, array in old.items():
        assert array.dtype == new[name].dtype and array.shape == new[name].shape
        wide = (np.asarray(a, "float64") for a in (new[name], array))
        np.testing.assert_allclose(*wide, rtol=1e-5, atol=1e-6, err_msg=name)


def assert_laws(graph: Graph, each: Callable[[Graph], Graph]) -> None:
    """What every pass keeps: the rules of `verify`, the meaning, types and names; and twice is once."""
    after = each(graph)
    verify(graph)
    verify(after)
    assert {k: n.type for k, n in after.outputs.items()} == {k: n.type for k, n in graph.outputs.items()}
    assert_same_meaning(graph, after)
    again = each(after)
    assert again is after
    assert read(show(after)) == after
    assert loads(dumps(after)) == after
