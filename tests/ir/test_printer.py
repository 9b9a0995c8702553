"""What is printed is read back to the very same nodes; what is not such a text is refused with its line."""

from __future__ import annotations

import base64
import math
import struct
import subprocess
import sys

import numpy as np
import pytest

from gluongraph import ops
from gluongraph.errors import FormatError, MXNetError, Origin
from gluongraph.ir.graph import OPS, Graph, TensorType, node
from gluongraph.ir.plan import Buffer, Candidate, Group, Launch, Plan
from gluongraph.ir.printer import read, show, show_plan

X = ops.input("fc1.weight", TensorType((2, 3)))
LR = ops.input("lr", TensorType(()))


def step() -> Graph:
    """A small training step with all that a text has to carry."""
    v = ops.mul(X, ops.expand(ops.reshape(LR, shape=(1, 1)), shape=(2, 3)))
    new = ops.sub(X, node(v.op, v.src, v.attrs, copy_id=2))
    origins = {X: Origin("", 0, "fc1"), v: Origin("/home/u/mnist.py", 14, "fc1"), new: Origin("/home/u/mnist.py", 15)}
    return Graph({"fc1.weight": X, "lr": LR}, {"loss": ops.sum(v, axis=None)}, {"fc1.weight": new}, origins)


def scan() -> Graph:
    """A loop: a body graph within the graph."""
    c0, x0 = ops.input("c0", TensorType(())), ops.input("x0", TensorType((3,)))
    body = Graph({"c0": c0, "x0": x0}, {"c0": ops.add(c0, ops.sum(x0, axis=None)), "y0": ops.tanh(x0)})
    xs = ops.input("xs", TensorType((4, 3)))
    loop = OPS["scan"](LR, xs, body=body, length=4, carries=1, xs=1, reverse=False)
    back = OPS["scan"](LR, xs, body=body, length=4, carries=1, xs=1, reverse=True)
    results = {"sum": ops.get_tuple_element(loop, index=0), "ys": ops.get_tuple_element(back, index=1)}
    return Graph({"lr": LR, "xs": xs}, results)


def test_a_step_prints_as_expected(golden) -> None:
    golden("step", show(step(), "step · traced"))


def test_a_loop_prints_as_expected(golden) -> None:
    golden("scan", show(scan()))


@pytest.mark.parametrize("graph", [step(), scan()], ids=["step", "scan"])
def test_read_gives_the_identical_graph(graph: Graph) -> None:
    back = read(show(graph, "any title · at all"))
    assert back == graph
    assert all(a is b for a, b in zip(back.results, graph.results, strict=True))
    assert show(back) == show(Graph(graph.inputs, graph.outputs, graph.updates))  # all but the origins


def test_read_takes_the_older_name_of_a_copys_number() -> None:
    assert read(show(step()).replace("copy_id=2", "again=2")) == step()


QUIET_NAN, NEGATIVE_NAN = math.nan, struct.unpack("<d", bytes.fromhex("000000000000f8ff"))[0]
NUMBERS = (0.0, -0.0, math.inf, -math.inf, QUIET_NAN, NEGATIVE_NAN, 1e-45, 0.1, -3.5e38, 1, True)


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_survive_to_the_bit(number: float) -> None:
    n = node(OPS["const"], (), {"value": number, "dtype": "f64", "shape": ()})
    assert read(show(Graph({}, {"n": n}))).outputs["n"] is n


def test_literals_survive() -> None:
    n = ops.literal(np.array([1.5, -0.0, np.nan], "float32"))
    assert read(show(Graph({}, {"n": n}))).outputs["n"] is n
    assert base64.b64encode(n.attrs["data"]).decode() in show(Graph({}, {"n": n}))


@pytest.mark.parametrize(
    "names", [("a.b", "a_b", "a b"), ("v0", "v1"), ("class", "inf", "nan"), ("1", ""), ('"', "é\n")]
)
def test_any_name_of_an_input_or_output_survives(names: tuple[str, ...]) -> None:
    inputs = {name: ops.input(name, TensorType((len(name), 2))) for name in names}
    graph = Graph(inputs, {name: ops.tanh(n) for name, n in inputs.items()})
    assert read(show(graph)) == graph


def test_an_unlisted_leaf_is_still_printed() -> None:
    """A dump of a broken graph must show what is wrong with it."""
    graph = Graph({}, {"y": ops.tanh(X)})
    assert 'input(name="fc1.weight", type=f32[2,3])' in show(graph)
    assert read(show(graph)) == graph


def test_texts_do_not_depend_on_hashes() -> None:
    program = (
        "from gluongraph.ir.printer import show; import importlib.util as u, sys;"
        f"s = u.spec_from_file_location('t', {__file__!r}); m = u.module_from_spec(s); s.loader.exec_module(m);"
        "print(show(m.step()) + show(m.scan()))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert texts == {show(step()) + show(scan()) + "\n"}


HEAD = "def g(x: f32[2,3]):\n"
WRONG = {
    "syntax": ("def g(:", "not the text of a graph"),
    "no function": ("import os", "one function definition"),
    "import inside": (HEAD + "    import os\n    return {}", "line 2: a statement that no graph has"),
    "unknown op": (HEAD + "    v = explode(x)\n    return {}", "line 2: there is no op 'explode'"),
    "unknown value": (HEAD + "    v = tanh(z)\n    return {}", "z is not a value defined above"),
    "call as attribute": (HEAD + "    v = sum(x, axes=list(), keepdims=False)\n    return {}", "is no attribute"),
    "attribute access": (HEAD + "    v = x.__class__\n    return {}", "expected: name = op"),
    "nested call": (HEAD + "    v = tanh(tanh(x))\n    return {}", "is not a value"),
    "no type": ("def g(x):\n    return {}", "parameter x has no type"),
    "bad type": ("def g(x: f99[2]):\n    return {}", "f99"),
    "bad shape": ("def g(x: f32[-2]):\n    return {}", "is no type"),
    "twice": (HEAD + "    v = tanh(x)\n    v = exp(x)\n    return {}", "assigned twice"),
    "no return": (HEAD + "    v = tanh(x)", "must return"),
    "attribute too many": (HEAD + "    v = tanh(x, colour=1)\n    return {}", "colour"),
    "three dicts": (HEAD + "    return {}, {}, {}", "outputs and updates"),
    "decorator": ("@print\n" + HEAD + "    return {}", "only plain parameters"),
    "key": (HEAD + "    return {x: x}", "names of results"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_graph_is_refused(name: str) -> None:
    text, message = WRONG[name]
    with pytest.raises(FormatError) as caught:
        read(text)
    assert message in str(caught.value)


def test_a_graph_with_wrong_shapes_cannot_be_read() -> None:
    with pytest.raises(MXNetError, match="add"):
        read("def g(x: f32[2], y: f32[3]):\n    v = add(x, y)\n    return {'v': v}")


def test_a_plan_prints_one_line_per_launch(golden) -> None:
    x0, x1 = ops.input("x0", TensorType((2, 3))), ops.input("x1", TensorType((2, 3)))
    add = Group(Graph({"x0": x0, "x1": x1}, {"y0": ops.add(x0, x1)}), "loop")
    update = Group(Graph({"x0": x0, "x1": x1}, {"y0": ops.sub(x0, x1)}), "loop", inplace=((0, 0),))
    a, w = Buffer("a", x0.ty, "input"), Buffer("fc1.weight", x0.ty, "state")
    v0 = Buffer("v0", x0.ty, "scratch", 0)
    work = Buffer("work0", TensorType((4096,), "u8"), "scratch", 64)
    launches = (
        Launch("k0", add, Candidate("loop"), (a, a), (v0,), work, Origin("/home/u/mnist.py", 3, "fc1"), "add"),
        Launch("k1", update, Candidate("loop"), (w, v0), (w,), None, None, "sub"),
    )
    golden("plan", show_plan(Plan(launches, {"a": a, "fc1.weight": w}, {}, {"fc1.weight": w}, scratch_bytes=4160)))
