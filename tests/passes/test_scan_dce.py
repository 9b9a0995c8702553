"""scan_dce: loops hand out what somebody reads, and nothing else."""

from __future__ import annotations

from hypothesis import given
from random_graphs import FEW, assert_laws, assert_same_meaning, graphs

from gluongraph import ops
from gluongraph.errors import Origin
from gluongraph.ir.graph import OPS, Graph, Node, TensorType
from gluongraph.ir.printer import show
from gluongraph.ops.autodiff import gradients
from gluongraph.passes import scan_dce

H, X, W = (ops.input(name, TensorType(shape)) for name, shape in (("h", (2, 3)), ("x", (5, 2, 3)), ("w", (2, 3))))
INPUTS = {"h": H, "x": X, "w": W}


def loop(h: Node, x: Node) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Hands out the state, a gate, and something that only the gate's reader would want."""

    def turn(carries: tuple[Node, ...], xs: tuple[Node, ...]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
        gate = ops.sigmoid(carries[0])
        new = ops.tanh(gate * xs[0])
        return (new,), (new, gate, ops.exp(gate * W))

    return ops.scan(turn, (h,), (x,))


@given(graphs())
@FEW
def test_laws(graph: Graph) -> None:
    assert_laws(graph, scan_dce)


def test_golden(golden) -> None:
    (last,), (y, *_) = loop(H, X)
    golden(
        "scan_dce",
        show(scan_dce(Graph(INPUTS, {"last": last, "y": y}, origins={y: Origin("net.py", 9, "lstm")}))),
    )


def scans(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes() if n.op is OPS["scan"]]


def test_what_is_read_stays() -> None:
    last, ys = loop(H, X)
    whole = Graph(INPUTS, {f"y{k}": y for k, y in enumerate((*last, *ys))})
    assert scan_dce(whole) is whole
    gate = Graph(INPUTS, {"gate": ys[1]})
    (left,) = scans(scan_dce(gate))
    assert list(left.attrs["body"].outputs) == ["c0", "y0"] and len(left.src) == 2, "w is not read any more"
    assert_same_meaning(gate, scan_dce(gate))


def test_loops_that_read_one_another() -> None:
    """The second one goes on where the first, which has become another, ends."""
    (last,), (y, *_) = loop(H, X)
    (last,), (y, *_) = loop(last, y)
    before = Graph(INPUTS, {"last": last, "y": y}, {"h": last})
    after = scan_dce(before)
    assert [len(n.types) for n in scans(after)] == [2, 2]
    assert_same_meaning(before, after)


def test_gradients_keep_what_they_read() -> None:
    (last,), _ = loop(H, X)
    (g,) = gradients([last], [ops.ones(last.ty)], [X])
    graph = Graph(INPUTS, {"g": g})
    assert [len(n.types) for n in scans(scan_dce(graph))] == [3, 2]
    assert_same_meaning(graph, scan_dce(graph))
