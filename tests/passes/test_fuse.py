"""fuse: how many kernels a step has and of which pattern, over models, sizes and flags; and that meaning is kept."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from models import Builder, Forward, lenet, mlp, optimized, planned, training_step, transformer
from random_graphs import FEW, assert_same_meaning, graphs

from gluongraph import ops
from gluongraph.compiler.run_passes import run
from gluongraph.ir import interpreter
from gluongraph.ir.graph import Graph, Node, TensorType
from gluongraph.ir.printer import show
from gluongraph.ir.verify import verify
from gluongraph.passes.fuse import fuse
from gluongraph.passes.fuse_emit import reads_whole_arrays
from gluongraph.passes.pipeline import Context
from gluongraph.tracing.grad_norm import measured


def patterns(graph: Graph) -> Counter[str]:
    return Counter(launch.group.pattern for launch in planned(graph).launches)


@pytest.mark.parametrize("batch", [1, 7, 8, 128])
@pytest.mark.parametrize("sizes", [(784, 512, 256, 10), (64, 10), (5, 4, 3, 2, 6)])
@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_a_dense_step_has_three_products_and_one_bias_kernel_a_layer(
    batch: int, sizes: tuple[int, ...], activation: str, optimizer: str
) -> None:
    """Per layer: forward with bias and activation, data gradient with the activation's, weight gradient with the
    update, bias gradient with the update; the first layer has no data gradient. The loss and its gradient are one."""
    layers = len(sizes) - 1
    found = patterns(training_step(mlp(batch, sizes, activation), optimizer))
    assert found["gemm"] == 3 * layers - 1
    if batch == 1:  # then the bias gradient is no sum, and all updates of biases are one kernel
        assert found == {"gemm": 3 * layers - 1, "rowwise": 1, "loop": 1}
        return
    assert found["loop"] == 0
    assert found["rowwise"] + found["reduce"] == 1 + layers


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_lenet(activation: str, optimizer: str) -> None:
    found = patterns(training_step(lenet(4, activation), optimizer))
    assert found["conv"] == 5  # two forward, two weight gradients, one data gradient
    assert found["gemm"] == 6
    assert found["pool"] == 4  # forward and backward, with the gradient of the activation before it
    assert found["rowwise"] == 1
    assert found["reduce"] == 4  # bias gradients
    assert found["loop"] == 0


def test_transformer_block_has_no_elementwise_kernel_beside_the_residual_sum() -> None:
    found = patterns(training_step(transformer(), "adam"))
    assert found["gemm"] == 21
    assert found["loop"] <= 1
    assert found["rowwise"] <= 6


def gates(h: Node, w: Node, c: Node) -> tuple[Node, Node]:
    """The new memory and state of an LSTM without biases."""
    both = ops.matmul(h, w)
    i, f, g, o = (ops.part(both, 1, k * 8, (k + 1) * 8) for k in range(4))
    memory = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)
    return memory, ops.sigmoid(o) * ops.tanh(memory)


def test_the_gates_of_an_lstm_are_one_loop_behind_their_product() -> None:
    types = {"h": (4, 8), "w": (8, 32), "c": (4, 8)}
    inputs = {name: ops.input(name, TensorType(shape)) for name, shape in types.items()}
    graph = Graph(inputs, dict(zip("ch", gates(*inputs.values()), strict=True)))
    assert patterns(graph) == {"gemm": 1, "loop": 1}
    assert_same_meaning(fuse(graph), graph)


def fused_with(pattern: str, forward: Forward, **options: object) -> list[set[str]]:
    """The op names in the groups of a pattern."""
    plan = planned(training_step(forward, **options))
    return [
        {n.op.name for n in launch.group.body.nodes()} for launch in plan.launches if launch.group.pattern == pattern
    ]


def test_the_update_rides_on_the_weight_gradient() -> None:
    groups = fused_with("gemm", mlp(), optimizer="adam")
    assert sum({"matmul", "sqrt", "div"} <= names for names in groups) == 3


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_gradient_of_an_embedding_is_not_stored(optimizer: str) -> None:
    """Nor the zeros that it begins with. A table with fewer rows than are named is smaller than the list of them."""

    def forward(b: Builder) -> Node:
        rows = b.data("rows", (5,), "i32")
        return b.cross_entropy(ops.add(ops.embedding(rows, b.param(40, 6)), ops.embedding(rows, b.param(4, 6))))

    plan = planned(training_step(forward, optimizer))
    assert [launch.group.pattern for launch in plan.launches].count("scatter") == 1
    assert all(b.space == "state" for b in plan.buffers.values() if b.type.shape == (40, 6))
    assert any(b.space == "scratch" for b in plan.buffers.values() if b.type.shape == (4, 6))


def test_kept_gradients_are_stored_beside_the_update() -> None:
    graph = training_step(mlp(), "sgd", keep_grads=True)
    plan = planned(graph)
    assert {name for name in plan.outputs if name.startswith("grad:")} == {f"grad:p{i}" for i in range(6)}
    assert len(plan.launches) == 12


def test_a_norm_of_gradients_is_summed_where_they_are_made() -> None:
    """Sums along rows that are added up in turn ride on the product; those of a softmax over a product do not."""
    graph = measured(training_step(mlp(8, (6, 5, 4)), "sgd", keep_grads=True))
    groups = [launch.group for launch in planned(graph).launches]
    assert sum(g.pattern == "gemm" and any(n.op.name == "sum" for n in g.body.nodes()) for g in groups) == 2
    assert not any("matmul" in {n.op.name for n in g.body.nodes()} for g in groups if g.pattern == "rowwise")
    x, w = ops.input("data", TensorType((40, 6))), ops.input("w", TensorType((6, 30)))
    y = ops.matmul(x, w)
    plan = planned(Graph({"data": x, "w": w}, {"y": y / ops.sum(ops.exp(y), -1, keepdims=True)}))
    assert [launch.group.pattern for launch in plan.launches] == ["gemm", "rowwise"]


def test_the_update_waits_for_every_reader_of_the_old_weight() -> None:
    """In place, the weight gradient's kernel must come after the data gradient, which reads the weight."""
    plan = planned(training_step(mlp(8, (6, 5, 4)), "sgd"))
    writer = next(i for i, launch in enumerate(plan.launches) if "p2" in {w.name for w in launch.writes})
    readers = [i for i, launch in enumerate(plan.launches) if "p2" in {r.name for r in launch.reads}]
    assert max(readers) == writer and len(readers) == 3


def test_a_reader_of_the_new_weight_and_the_old_one_forces_a_copy() -> None:
    x, w = ops.input("data", TensorType((4, 4))), ops.input("w", TensorType((4, 4)))
    new = ops.add(w, ops.matmul(x, x))
    out = ops.matmul(new, w)  # needs both
    plan = planned(Graph({"data": x, "w": w}, {"out": out}, {"w": new}))
    assert plan.launches[-1].label == "copy"
    assert plan.launches[-1].writes[0].name == "w"


def test_swapping_two_states_copies_one_first() -> None:
    a, b = ops.input("a", TensorType((4,))), ops.input("b", TensorType((4,)))
    plan = planned(Graph({"a": a, "b": b}, {}, {"a": b, "b": a}))  # which replays the plan
    assert [w.space for launch in plan.launches for w in launch.writes] == ["scratch", "state", "state"]


def test_the_old_weight_is_kept_by_the_kernel_that_overwrites_it() -> None:
    w, g, before = (ops.input(name, TensorType((6, 5))) for name in ("w", "g", "before"))
    new = w - 0.1 * (g + (w - before))
    (launch,) = planned(Graph({"w": w, "g": g, "before": before}, {}, {"w": new, "before": w})).launches
    assert {launch.writes[j].name for j, _ in launch.group.inplace} == {"w", "before"}


def test_what_reads_an_old_state_beside_its_new_value_is_no_kernel_of_its_own() -> None:
    d, z, g = (ops.input(name, TensorType((6, 5))) for name in ("d", "z", "g"))
    new = ops.sqrt(g) * 2.0
    graph = Graph({"d": d, "z": z, "g": g}, {}, {"d": new, "z": z - (new - 0.5 * d)})
    (launch,) = planned(graph).launches
    assert {launch.writes[j].name for j, _ in launch.group.inplace} == {"d", "z"}


def test_rows_are_overwritten_in_place() -> None:
    w, h = ops.input("w", TensorType((6, 5))), ops.input("h", TensorType((6, 1)))
    more = h + ops.sum(w * w, 1, keepdims=True)
    (launch,) = planned(Graph({"w": w, "h": h}, {}, {"w": w / more, "h": more})).launches
    assert launch.group.pattern == "rowwise"
    assert {launch.writes[j].name for j, _ in launch.group.inplace} == {"w", "h"}


def test_batch_norm_statistics_of_one_tensor_share_a_kernel() -> None:
    def forward(b: Builder) -> Node:
        x = b.conv(b.data("data", (8, 3, 8, 8)), 4, 3)
        y, *_ = ops.batch_norm(x, b.param(4), b.param(4), axis=1, eps=1e-5)
        return ops.sum(ops.mul(ops.relu(y), ops.relu(y)), axis=(1, 2, 3))

    plan = planned(training_step(forward, "sgd"))
    reductions = [launch for launch in plan.launches if launch.group.pattern == "reduce"]
    both = [g for g in reductions if sum(n.op.name == "sum" for n in g.group.body.nodes()) >= 2]
    assert both, [launch.label for launch in reductions]


def residual(b: Builder) -> Node:
    """A convolution, a matrix product, and a pooling, each of a value that is added to its result."""
    x = ops.tanh(b.data("x", (2, 4, 8, 8)))
    y = ops.relu(ops.add(ops.conv2d(x, b.param(4, 4, 3, 3), padding=(1, 1)), x))
    y = ops.add(ops.max_pool2d(y, kernel=(3, 3), stride=(1, 1), padding=(1, 1)), y)
    flat = ops.tanh(ops.reshape(y, (2, 256)))
    return b.cross_entropy(ops.add(ops.matmul(flat, b.param(256, 256), tb=True), flat))


def operands_computed_inside(graph: Graph) -> list[Node]:
    """Contractions and poolings that read as an array what their own kernel computes, which no kernel can."""

    def is_computed(n: Node) -> bool:
        return any(map(is_computed, n.src)) if n.op.kind == "movement" else n.op.kind != "leaf"

    bodies = [n.attrs["body"] for n in graph.nodes() if n.op.name == "fused" and n.attrs["pattern"] in WHOLE]
    anchors = [n for body in bodies for n in body.nodes() if reads_whole_arrays(n)]
    return [n for n in anchors if any(map(is_computed, n.src))]


WHOLE = ("gemm", "conv", "pool")


def test_no_kernel_computes_the_operand_of_its_own_contraction() -> None:
    graph = training_step(residual, "adam")
    assert operands_computed_inside(optimized(graph)) == []
    assert patterns(graph)["conv"] == 2  # forward, and the gradient of the weight


@pytest.mark.parametrize(
    "forward",
    [mlp(4, (6, 5, 3)), lenet(4), transformer(), residual],
    ids=["mlp", "lenet", "transformer", "residual"],
)
def test_meaning_is_kept(forward: Forward) -> None:
    graph = training_step(forward, "adam")
    rng = np.random.default_rng(0)
    values = {}
    for name, n in graph.inputs.items():
        drawn = rng.integers(0, 2, n.shape) if n.dtype == "i32" else abs(rng.standard_normal(n.shape)) * 0.1
        values[name] = np.asarray(drawn, np.int32 if n.dtype == "i32" else np.float32)
    before, after = interpreter.run(graph, values), interpreter.run(optimized(graph), values)
    for kept, had in zip(after, before, strict=True):
        assert kept.keys() == had.keys()
        for name in had:
            np.testing.assert_allclose(kept[name], had[name], rtol=2e-4, atol=1e-5, err_msg=name)


@given(graphs())
@FEW
def test_random_graphs_become_kernels(graph: Graph) -> None:
    """The meaning stays, outside of kernels nothing is left to compute, and the plan leaves what the graph says."""
    graph = run(graph, Context(), "shapes", "layout")
    after = fuse(graph)
    verify(after, "fuse")
    assert_same_meaning(graph, after)
    assert operands_computed_inside(after) == []
    assert {n.op.name for n in after.nodes()} <= {
        "input",
        "get_tuple_element",
        "fused",
        "reshape",
        "depends_on",
        "literal",
    }
    planned(graph, {name: "state" if name in graph.updates else "input" for name in graph.inputs})


def test_golden(golden: object) -> None:
    golden("fuse", show(optimized(training_step(mlp(4, (6, 5, 3)), "sgd"))))
