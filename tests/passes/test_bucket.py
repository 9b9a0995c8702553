"""bucket: independent sums over ranks are one collective, or several of about the size that is asked for."""

from __future__ import annotations

from hypothesis import given
from random_graphs import FEW, assert_laws, graphs

from gluongraph import ops
from gluongraph.ir.graph import Graph, Node, TensorType
from gluongraph.ir.printer import show
from gluongraph.passes.bucket import LIMIT, bucket

SHAPES = ((2, 3), (7,), (4, 4), (5,))
LEAVES = {f"x{i}": ops.input(f"x{i}", TensorType(shape)) for i, shape in enumerate(SHAPES)}


def collectives(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes() if n.op.kind == "collective"]


def summed(x: Node, bucket: int = 0) -> Node:
    return ops.all_reduce(x, ranks=2, bucket=bucket)[0]


@given(graphs())
@FEW
def test_laws(graph: Graph) -> None:
    assert_laws(graph, bucket)


def test_golden(golden) -> None:
    results = {name: ops.exp(summed(ops.tanh(x))) for name, x in LEAVES.items()}
    golden("bucket", show(bucket(Graph(LEAVES, results))))


def test_independent_sums_are_one_collective_and_keep_their_results() -> None:
    graph = Graph(LEAVES, {name: summed(x) for name, x in LEAVES.items()})
    after = bucket(graph)
    (one,) = collectives(after)
    assert len(one.src) == len(SHAPES)
    assert [n.ty for n in after.outputs.values()] == [n.ty for n in graph.outputs.values()]
    assert [n.src[0].src[n.attrs["index"]] for n in after.outputs.values()] == list(LEAVES.values())
    assert bucket(after) is after


def test_sums_that_depend_on_one_another_are_not_merged() -> None:
    first = summed(LEAVES["x0"])
    after = bucket(Graph(LEAVES, {"a": summed(ops.exp(first)), "b": summed(LEAVES["x1"])}))
    assert sorted(len(n.src) for n in collectives(after)) == [1, 2]


def test_dtypes_are_apart() -> None:
    graph = Graph(LEAVES, {"a": summed(LEAVES["x0"]), "b": summed(ops.cast(LEAVES["x0"], "f64"))})
    assert bucket(graph) is graph


def test_a_bucket_size_gives_several_collectives() -> None:
    graph = Graph(LEAVES, {name: summed(x, 40) for name, x in LEAVES.items()})
    sizes = [[s.ty.nbytes for s in n.src] for n in collectives(bucket(graph))]
    assert len(sizes) == 3 and all(sum(each[:-1]) < 40 for each in sizes)


def test_there_are_not_too_many() -> None:
    leaves = {f"x{i}": ops.input(f"x{i}", TensorType((16,))) for i in range(500)}
    graph = Graph(leaves, {name: summed(x, 1) for name, x in leaves.items()})
    assert len(collectives(bucket(graph))) <= LIMIT + 1
