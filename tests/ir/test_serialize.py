"""Graphs as JSON: the identical graph comes back; anything else is refused; fingerprints are stable."""

from __future__ import annotations

import copy
import json
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gluongraph import ops
from gluongraph.errors import FormatError, Origin
from gluongraph.ir import printer
from gluongraph.ir.graph import OPS, RENAMED, Graph, TensorType, node
from gluongraph.ir.serialize import dumps, fingerprint, from_data, loads, to_data

X = ops.input("x", TensorType((2, 3)))


def example(origin: int = 1) -> Graph:
    c0 = ops.input("c0", TensorType((2, 3)))
    body = Graph({"c0": c0}, {"y": ops.tanh(c0)})
    loop = OPS["call"](X, body=body)
    picked = ops.get_tuple_element(loop, index=0) if isinstance(loop.type, tuple) else loop
    scale = ops.const(-0.0, dtype="f32", shape=(2, 3))
    last = node(OPS["add"], (ops.mul(picked, scale), ops.literal(np.arange(6, dtype="float32").reshape(2, 3))), {}, 4)
    return Graph({"x": X}, {"y": last}, {"x": picked}, {last: Origin("user.py", origin, "fc1")})


def test_the_identical_graph_comes_back_with_origins() -> None:
    graph = example()
    back = loads(dumps(graph))
    assert back == graph and back.origins == graph.origins
    assert loads(dumps(graph, origins=False)).origins == {}


@pytest.mark.parametrize("number", [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, 1, True])
def test_numbers_survive_to_the_bit(number: float) -> None:
    n = node(OPS["const"], (), {"value": number, "dtype": "f64", "shape": ()})
    assert loads(dumps(Graph({}, {"n": n}))).outputs["n"] is n


def test_it_is_plain_json() -> None:
    """No NaN or Infinity, which JSON does not have."""
    graph = Graph({}, {"n": ops.const(math.nan, dtype="f32", shape=())})
    json.loads(dumps(graph), parse_constant=lambda name: pytest.fail(name))


def test_fingerprint_tells_graphs_apart_and_ignores_origins() -> None:
    assert fingerprint(example(1)) == fingerprint(example(2))
    others = [example(), Graph({"x": X}, {"y": ops.tanh(X)}), Graph({"x": X}, {"z": ops.tanh(X)})]
    others += [Graph({"x": X}, {"y": X, "z": X}), Graph({"x": X}, {"z": X, "y": X})]
    assert len({fingerprint(g) for g in others}) == len(others)


def test_fingerprint_is_the_same_in_every_process() -> None:
    """Written down: a change of it throws away every cache, so it must be meant."""
    expected = "b5a63c49a51bbcff6b41d95b1ae509595add99f43f3b62150ec3543793827309"
    assert fingerprint(Graph({"x": X}, {"y": ops.tanh(X)})) == expected


def calls(work: Callable[[], object]) -> int:
    """How many functions run meanwhile: how long something takes, whatever else the machine does."""
    count = 0

    def counted(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_the_work_of_a_fingerprint_grows_with_the_graph() -> None:
    """And no faster: the deepest graphs have thousands of nodes."""
    taken = []
    for size in (1000, 3000):
        n = X
        for i in range(size):
            n = ops.add(n, ops.const(float(i), dtype="f32", shape=(2, 3)))
        graph = Graph({"x": X}, {"n": n})
        taken.append(calls(lambda graph=graph: fingerprint(graph)))
    assert size < taken[1] < 3.5 * taken[0]


def _set(data: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        data = data[key]
    data[path[-1]] = value


WRONG = {
    "format": (("format",), "other", "not a graph"),
    "version": (("version",), 99, "version 99"),
    "no graphs": (("graphs",), [], "no graph"),
    "no nodes": (("graphs", 0, "nodes"), None, "no nodes"),
    "a row": (("graphs", 0, "nodes", 0), "tanh", "not a node"),
    "unknown op": (("graphs", 0, "nodes", 1, 0), "explode", "no op 'explode'"),
    "source ahead": (("graphs", 0, "nodes", 1, 1), [1], "are not nodes before it"),
    "negative source": (("graphs", 0, "nodes", 1, 1), [-1], "are not nodes before it"),
    "other type": (("graphs", 0, "nodes", 1, 3), "f32[9]", "its rule says f32[2,3]"),
    "no type": (("graphs", 0, "nodes", 1, 3), "f32[2", "not a type"),
    "attribute too many": (("graphs", 0, "nodes", 1, 2), {"colour": 1}, "colour"),
    "strange attribute": (("graphs", 0, "nodes", 1, 2), {"colour": {"python": "1"}}, "not an attribute"),
    "missing body": (("graphs", 0, "nodes", 1, 2), {"body": {"graph": 7}}, "not an attribute"),
    "output nowhere": (("graphs", 0, "outputs"), [["y", 5]], "does not name a node"),
    "output twice": (("graphs", 0, "outputs"), [["y", 0], ["y", 1]], "twice"),
    "no updates": (("graphs", 0, "updates"), None, "no updates"),
    "origin": (("graphs", 0, "origins"), [[0, "a.py"]], "not an origin"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_graph_is_refused(name: str) -> None:
    path, value, message = WRONG[name]
    data = copy.deepcopy(to_data(Graph({"x": X}, {"y": ops.tanh(X)})))
    from_data(data)
    _set(data, path, value)
    with pytest.raises(FormatError) as caught:
        from_data(data)
    assert message in str(caught.value)


def test_text_that_is_no_json() -> None:
    with pytest.raises(FormatError, match="not JSON"):
        loads("{")


@pytest.mark.parametrize("name", RENAMED)
def test_ops_are_known_by_their_names_before(name: str) -> None:
    x = ops.input("x", TensorType((3,)))
    several = ops.call(x, body=Graph({"x": x}, {"y": ops.exp(x)}))
    made = {"item": several[0], "after": ops.depends_on(x, ops.exp(x)), "pinned": ops.keep_precision(x)}[name]
    graph = Graph({"x": x}, {"y": made})
    for write, read in ((dumps, loads), (printer.show, printer.read)):
        now = write(graph)
        before = now.replace(RENAMED[name], name)
        assert before != now and read(before).outputs["y"] is made
