"""layout: convolutions take images in blocks, what is around them goes on in blocks, and turns are left at the ends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from models import lenet, roles, training_step
from random_graphs import FEW, assert_laws, assert_same_meaning, graphs

from gluongraph import debug, ops
from gluongraph.bench.own import step_of
from gluongraph.bench.workloads import WORKLOADS
from gluongraph.codegen.rules import preferred_lanes
from gluongraph.codegen.targets import TARGETS
from gluongraph.compiler.pipeline import plan_of, prepared
from gluongraph.ir.graph import Graph, Node, TensorType, node
from gluongraph.ir.plan import Plan
from gluongraph.ir.printer import show
from gluongraph.ir.verify import verify_plan
from gluongraph.ops.blocked_layout import IN_BLOCKS
from gluongraph.passes import inline, layout

WIDE = TARGETS["x86-64-v4"]  # 16 images side by side


def pairs(n: Node, met: bool) -> int:
    """Two images side by side, where the batch is even."""
    images = n.shape[0] if n.op.name != "conv2d_weight_grad" else n.src[0].shape[0]
    return 2 if n.op.name in IN_BLOCKS and n.dtype == "f32" and images % 2 == 0 else 0


def block(x: Node, w: Node, scale: Node) -> Node:
    """A convolution, a batch norm without a shift, relu."""
    y = ops.conv2d(x, w, padding=(1, 1))
    mean, power = (ops.mean(v, axis=(0, 2, 3), keepdims=True) for v in (y, y * y))
    return ops.relu((y - mean) * ops.rsqrt(power - mean * mean + 1e-3) * ops.reshape(scale, (1, -1, 1, 1)))


def net(batch: int = 4) -> Graph:
    """Two of them around a shortcut, pooled two ways."""
    shapes = {"data": (batch, 3, 6, 6), "v": (3, 3, 3, 3), "w": (3, 3, 3, 3), "s": (3,)}
    b = {name: ops.input(name, TensorType(shape)) for name, shape in shapes.items()}
    y = block(b["data"], b["v"], b["s"])
    y = ops.max_pool2d(y + block(y, b["w"], b["s"]), kernel=(2, 2), stride=(2, 2))
    return inline(Graph(b, {"y": ops.mean(ops.avg_pool2d(y, kernel=(3, 3), stride=(3, 3)), axis=(2, 3)), "whole": y}))


@given(graphs())
@FEW
def test_laws(graph: Graph) -> None:
    assert_laws(graph, lambda g: layout(g, lanes=pairs))


def test_laws_of_a_net() -> None:
    assert_laws(net(), lambda g: layout(g, lanes=pairs))


def test_golden(golden) -> None:
    golden("layout", show(layout(net(), lanes=pairs)))


def test_nothing_changes_where_nobody_asks() -> None:
    even, odd = net(), net(3)
    assert layout(even) is even
    assert layout(odd, lanes=pairs) is odd


@pytest.mark.parametrize("axes", [(0,), (1,), (2, 3), (1, 2, 3), (0, 2, 3), (0, 1, 2, 3), (0, 1)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions_go_on_in_blocks(axes: tuple[int, ...], keepdims: bool) -> None:
    x, w = ops.input("x", TensorType((4, 3, 5, 4))), ops.input("w", TensorType((2, 3, 3, 3)))
    y = ops.conv2d(x, w)
    before = Graph({"x": x, "w": w}, {"y": ops.sum(y, axes, keepdims), "on": y - ops.max(y, axes, keepdims=True)})
    after = layout(before, lanes=pairs)
    rng = np.random.default_rng(0)
    assert_same_meaning(before, after, {n: rng.standard_normal(v.shape, np.float32) for n, v in before.inputs.items()})
    turned = [n for n in after.nodes() if n.op.name == "transpose" and n.ty.size == y.ty.size]
    assert len(turned) == 1, "the convolution's result is turned for the one that is an output, not to be summed"


def test_a_recomputed_convolution_stays_one() -> None:
    graph = net()
    first = next(n for n in graph.nodes() if n.op.name == "conv2d")
    both = Graph(graph.inputs, {"y": ops.relu(first), "z": ops.relu(node(first.op, first.src, first.attrs, copy_id=1))})
    after = layout(both, lanes=pairs).nodes()
    assert sorted(n.copy_id for n in after if n.op.name == "conv2d_blocks") == [0, 1]


def nodes_of(plan: Plan) -> list[Node]:
    """What the kernels compute, launch by launch."""
    return [n for launch in plan.launches for n in launch.group.body.nodes()]


def turned(plan: Plan) -> list[str]:
    """What is turned, by its type."""
    return [str(n.ty) for n in nodes_of(plan) if n.op.name == "transpose"]


def planned(graph: Graph) -> Plan:
    plan, kernels = plan_of(graph, roles(graph), WIDE)
    verify_plan(plan, kernels)
    return plan


def test_lenet_is_turned_at_its_ends() -> None:
    """The images, the second pooling for the dense layer, and its gradient."""
    plan = planned(training_step(lenet(32)))
    assert turned(plan) == ["f32[2,1,28,28,16]", "f32[2,16,50,4,4]", "f32[2,50,4,4,16]"]
    names = [n.op.name for n in nodes_of(plan) if n.op.name.endswith("_blocks")]
    assert len(names) == 5 + 4, "two convolutions, but no gradient of the data; two poolings and their gradients"


def names_of(plan: Plan) -> list[str]:
    return sorted(n.op.name for n in nodes_of(plan) if n.op.name.startswith("conv2d"))


@pytest.mark.parametrize("stride", [(1, 1), (2, 2)])
def test_convolutions_of_points_begin_no_blocks(stride: tuple[int, int]) -> None:
    """As they are they are products of matrices: alone they are left so, and after one that is not they go on."""
    b = {name: ops.input(name, TensorType(shape)) for name, shape in SHAPES.items()}
    alone = ops.conv2d(b["x"], b["point"], stride=stride)
    plan = planned(Graph({k: b[k] for k in ("x", "point")}, {"y": alone}))
    assert names_of(plan) == ["conv2d"] and not turned(plan)
    after = ops.conv2d(ops.relu(ops.conv2d(b["x"], b["w"], padding=(1, 1))), b["point"], stride=stride)
    plan = planned(Graph(b, {"y": after}))
    assert names_of(plan) == ["conv2d_blocks"] * 2 and len(turned(plan)) == 2


SHAPES = {"x": (32, 32, 16, 16), "w": (32, 32, 3, 3), "point": (32, 32, 1, 1)}


def test_odd_batches_are_left_as_they_are() -> None:
    assert not turned(planned(training_step(lenet(20))))


def test_a_gpu_has_no_blocks() -> None:
    graph = training_step(lenet(32))
    on = TARGETS["cuda"]
    assert not any(preferred_lanes(on)(n, met) for n in graph.nodes() for met in (False, True))
    assert not any(n.op.name.endswith("_blocks") for n in prepared(graph, on).nodes())


@pytest.mark.parametrize(("name", "images", "most"), [("resnet20-32px", 32, 3), ("dcgan", 32, 3), ("mobilenet", 32, 3)])
def test_nets_are_turned_at_their_ends(name: str, images: int, most: int) -> None:
    """The batch (of DCGAN the wanted images too), what goes on without pixels, and the gradient of that."""
    step, (batch, *_) = step_of(replace(WORKLOADS[name], batch=images), target=WIDE.name)
    with debug.override(backend="reference"):
        step.memory(*batch)
    plan = step.plan
    assert len(turned(plan)) <= most
    assert all(n.op.name.endswith("_blocks") for n in nodes_of(plan) if n.op.name.startswith("conv2d"))
