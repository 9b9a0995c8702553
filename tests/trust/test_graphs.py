"""Graphs of strangers are data: one that no program was traced to is refused, and nothing is compiled of it."""

from __future__ import annotations

import copy
import json
import pathlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attack import X, Y, assembled

import gluongraph as mx
from gluongraph import ops
from gluongraph.artefact.file import DESCRIPTOR, GRAPHS, _digest
from gluongraph.artefact.graphs import graph_of
from gluongraph.compiler import lower
from gluongraph.errors import FormatError
from gluongraph.ir import serialize
from gluongraph.ir.graph import OPS, Graph, TensorType
from gluongraph.runtime import tensorfile

Edit = Callable[[dict[str, Any], dict[str, Any]], None]  # of an entry and the data of its graph


def edited(path: pathlib.Path, to: pathlib.Path, edit: Edit) -> pathlib.Path:
    """The artefact with another step.0, digests right."""
    arrays, metadata = tensorfile.parse_all(np.fromfile(path, np.uint8), "")
    told = json.loads(arrays.pop(DESCRIPTOR).tobytes())
    name = GRAPHS + "step.0"
    data = json.loads(arrays[name].tobytes())
    edit(next(e for e in told["entries"] if e["id"] == "step.0"), data)
    arrays[name] = np.frombuffer(json.dumps(data).encode(), np.uint8)
    told["tensors"][name] = ["u8", list(arrays[name].shape), _digest(arrays[name])]
    to.write_bytes(assembled(told, arrays, metadata))
    return to


def _swapped_updates(entry: dict[str, Any], data: dict[str, Any]) -> None:
    """What is written over an array is larger than it."""
    updates = data["graphs"][-1]["updates"]
    assert len(updates) == 2  # of the weight and the bias
    updates[0][1], updates[1][1] = updates[1][1], updates[0][1]


def _strange_update(entry: dict[str, Any], data: dict[str, Any]) -> None:
    data["graphs"][-1]["updates"][0][0] = "nobody"


def _another_role(entry: dict[str, Any], data: dict[str, Any]) -> None:
    entry["roles"][data["graphs"][-1]["updates"][0][0]] = "input"


def _no_role(entry: dict[str, Any], data: dict[str, Any]) -> None:
    del entry["roles"]["data0"]


def _role_of_scratch(entry: dict[str, Any], data: dict[str, Any]) -> None:
    entry["roles"]["data0"] = "scratch"


def _unlisted_input(entry: dict[str, Any], data: dict[str, Any]) -> None:
    data["graphs"][-1]["inputs"].pop()


def _no_op(entry: dict[str, Any], data: dict[str, Any]) -> None:
    data["graphs"][-1]["nodes"][-1][0] = "system"


def _deep(entry: dict[str, Any], data: dict[str, Any]) -> None:
    part: list[Any] = []
    for _ in range(900):
        part = [part]
    data["graphs"][-1]["nodes"][-1][2]["deep"] = part


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (_swapped_updates, "is not sound: update "),
        (_strange_update, "writes over no input"),
        (_another_role, "which is no state"),
        (_no_role, "does not say of each input"),
        (_role_of_scratch, "does not say of each input"),
        (_unlisted_input, "not among the inputs"),
        (_no_op, "there is no op 'system'"),
        (_deep, "nested too deeply"),
    ],
)
def test_graphs_that_no_program_was_traced_to(
    edit: Edit, said: str, exported: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = edited(exported, tmp_path / "step.gga", edit)
    monkeypatch.setattr(lower, "lower", lambda *args, **how: pytest.fail("it has been compiled"))
    with pytest.raises(mx.MXNetError, match=said):
        mx.load(path, trust="none")(X, Y)


def test_kernels_are_made_by_passes_alone() -> None:
    """A `fused` node names the pattern of a loop nest; rules believe it. Within a body too."""
    x = ops.input("x", TensorType((3,)))
    made = ops.get_tuple_element(ops.fused(x, body=Graph({"x": x}, {"y": ops.exp(x)}), pattern="loop"), 0)
    graph = Graph({"x": x}, {"y": made})
    within = Graph({"x": x}, {"y": ops.call(x, body=graph)[0]})
    told = {"id": "step.0", "roles": {"x": "input"}}
    for each in (graph, within):
        with pytest.raises(FormatError, match="which passes alone make"):
            graph_of(told, serialize.dumps(each))


VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2, 7, 1 << 31, 1 << 40, -(1 << 40), 0.5, 1.0, {"float": "7ff8000000000000"}),
    *("", "f32", '"; system("x");', "../../x", [], [1], [-1], [0.5], [1, 1, 1], [[1]], {"base64": ""}),
)


def test_attributes_that_are_anything() -> None:
    """Whatever stands in an attribute of any op, there is one kind of error, or a node of a sound type."""
    chance, read = random.Random(0), 0
    for op in OPS.values():
        for arrays, attrs in list(op.samples(np.random.default_rng(0)))[:2] if op.samples else ():
            if not attrs or any(isinstance(a, tuple) for a in arrays):
                continue
            leaves = {f"x{i}": ops.input(f"x{i}", mx.nd.array(a, dtype=a.dtype).type) for i, a in enumerate(arrays)}
            made = op(*leaves.values(), **attrs)
            outputs = {"y": ops.get_tuple_element(made, 0) if isinstance(made.type, tuple) else made}
            data = serialize.to_data(Graph(leaves, outputs))
            for name in attrs:
                for value in chance.sample(VALUES, 8):
                    other = copy.deepcopy(data)
                    row = next(row for row in other["graphs"][-1]["nodes"] if row[0] == op.name)
                    row[2][name] = value
                    try:
                        found = serialize.from_data(other)
                    except FormatError:
                        continue
                    read += 1
                    assert found.outputs["y"].ty == outputs["y"].ty
    assert read > 100


def test_arrays_that_kernels_cannot_count() -> None:
    """Their elements are numbered in 32 bits: beyond, a kernel would read and write memory of others."""
    x, k = ops.input("x", TensorType((50_000, 50_000), "i8")), ops.input("k", TensorType((2,), "i32"))
    big = Graph({"x": x, "k": k}, {"y": ops.take(x, k, axis=0)})
    with pytest.raises(mx.errors.CompileError, match=r"is i8\[50000,50000\]: arrays of compiled code have at most"):
        lower.lower(big, {"x": "input", "k": "input"})
    row = ops.input("r", TensorType((50_000, 1)))
    flat = ops.reshape(ops.expand(row, (50_000, 50_000)), (2_500_000_000,))
    inside = Graph({"r": row, "k": k}, {"y": ops.take(flat, k, axis=0)})
    with pytest.raises(mx.errors.CompileError, match="elements"):
        lower.lower(inside, {"r": "input", "k": "input"})
