"""Bytes and operations of kernels, counted by hand; the roofline; a profile's rows and orders."""

from __future__ import annotations

import numpy as np
import pytest

from gluongraph import ops
from gluongraph.dtypes import dtype_name
from gluongraph.ir.cost_model import Cost, Level, Machine, cost, costs, flops
from gluongraph.ir.graph import OPS, Graph, Node, TensorType
from gluongraph.ir.plan import Buffer, Candidate, Group, Launch, Plan
from gluongraph.ops.matmul import MATMUL
from gluongraph.runtime.profile import Profile, Row


def x(*shape: int, dtype: str = "f32", name: str = "x") -> Node:
    return ops.input(name, TensorType(shape, dtype))


def launch(*results: Node, pattern: str = "loop", inplace: tuple[tuple[int, int], ...] = ()) -> Launch:
    """One kernel that computes the results of the inputs that they need."""
    inputs = dict.fromkeys(
        n for n in Graph({}, {str(i): r for i, r in enumerate(results)}).nodes() if n.op.name == "input"
    )
    body = Graph({n.attrs["name"]: n for n in inputs}, {f"y{i}": r for i, r in enumerate(results)})
    group = Group(body, pattern, inplace)
    reads = tuple(Buffer(name, n.ty, "input") for name, n in body.inputs.items())
    shared = dict(inplace)
    writes = tuple(reads[shared[j]] if j in shared else Buffer(f"y{j}", r.ty, "output") for j, r in enumerate(results))
    return Launch("k0", group, Candidate("loops"), reads, writes)


@pytest.mark.parametrize(
    ("made", "count"),
    [
        (lambda: ops.matmul(x(3, 5), x(5, 7)), 2 * 3 * 5 * 7),
        (lambda: ops.matmul(x(2, 5, 3), x(2, 5, 7), ta=True), 2 * 2 * 3 * 5 * 7),
        (lambda: ops.conv2d(x(2, 4, 8, 8), x(6, 4, 3, 3), padding=1), 2 * (2 * 6 * 8 * 8) * (4 * 3 * 3)),
        (lambda: ops.conv2d(x(2, 4, 8, 8), x(4, 1, 3, 3), stride=2, groups=4, padding=1), 2 * (2 * 4 * 4 * 4) * 9),
        (
            lambda: ops.conv2d_data_grad(x(2, 6, 8, 8), x(6, 4, 3, 3), (2, 4, 8, 8), padding=1),
            2 * (2 * 6 * 8 * 8) * (4 * 3 * 3),
        ),
        (
            lambda: ops.conv2d_weight_grad(x(2, 4, 8, 8), x(2, 6, 8, 8), (6, 4, 3, 3), padding=1),
            2 * (2 * 6 * 8 * 8) * (4 * 3 * 3),
        ),
        (lambda: ops.attention(x(2, 3, 5, 4), x(2, 3, 7, 4), x(2, 3, 7, 6)), 2 * (2 * 3 * 5 * 7) * (4 + 6)),
        (lambda: ops.attention(x(2, 3, 8, 4), x(2, 3, 8, 4), x(2, 3, 8, 4), causal=True), (2 * 3 * 8 * 8) * (4 + 4)),
        (lambda: x(3, 5) + x(3, 5, name="y"), 15),
        (lambda: ops.sum(x(3, 5), 1), 15),
        (lambda: ops.max_pool2d(x(1, 2, 8, 8), 2), 2 * 4 * 4 * 4),
        (lambda: ops.transpose(x(3, 5), (1, 0)), 0),
        (lambda: ops.take(x(9, 5), x(4, dtype="i32")), 0),
        (lambda: ops.scatter_add(x(9, 5), x(4, dtype="i32"), x(4, 5)), 20),
        (lambda: ops.mean(x(3, 5), 1), 15 + 3),  # the body of a composite: a sum, and a product for each row
    ],
)
def test_operations(made: object, count: int) -> None:
    assert flops(made()) == count


def test_a_scan_counts_every_turn() -> None:
    w = x(4, 4, name="w")
    (h,), _ = ops.scan(lambda c, s: ((ops.matmul(c[0], w) + s[0],), ()), [x(2, 4, name="h")], [x(5, 2, 4, name="s")])
    assert flops(h.src[0]) == 5 * (2 * 2 * 4 * 4 + 2 * 4)


@pytest.mark.parametrize(
    "name", [name for name, op in OPS.items() if op.samples and op.kind not in ("control", "leaf")]
)
def test_every_op_can_be_counted(name: str) -> None:
    """On its own samples; whatever multiplies says how often."""
    op = OPS[name]
    assert op.samples is not None and (op.kind != "contraction" or callable(op.flops))
    for arrays, attrs in op.samples(np.random.default_rng(0)):
        given = [
            ops.input(f"x{i}", TensorType(np.shape(a), dtype_name(np.asarray(a).dtype))) for i, a in enumerate(arrays)
        ]
        assert flops(op(*given, **attrs)) >= 0


def test_a_buffer_counts_once() -> None:
    a = x(16)
    assert cost(launch(a * a + a)) == Cost(64, 64, {"f32": 32}, ((128, 128),))


def test_what_is_selected_from_counts_as_what_is_selected() -> None:
    table, rows = x(1000, 8, name="table"), x(4, dtype="i32", name="rows")
    found = cost(launch(ops.take(table, rows) * 2.0))
    assert found.reads == 4 * 8 * 4 + 4 * 4 and found.writes == 4 * 8 * 4
    assert cost(launch(ops.slice(x(100), (0,), (10,)))).reads == 40


def test_rows_put_in_place_are_all_that_is_written() -> None:
    table, rows, values = x(1000, 8, name="t"), x(4, dtype="i32", name="r"), x(4, 8, name="v")
    put = ops.put_rows(table, rows, values)
    assert cost(launch(put, inplace=((0, 0),))).writes == 4 * 8 * 4
    assert cost(launch(put)).writes == 1000 * 8 * 4


def test_products_of_bf16_are_counted_apart() -> None:
    a, b = x(4, 8, dtype="bf16", name="a"), x(8, 2, dtype="bf16", name="b")
    made = MATMUL(a, b, ta=False, tb=False, dtype="f32") + 1.0
    assert cost(launch(made, pattern="gemm")) == Cost(96, 32, {"bf16": 2 * 4 * 8 * 2, "f32": 8}, ((128, 128),))


def test_what_lies_far_back_counts_as_far() -> None:
    """Two updates in place that take turns: each finds its array behind the bytes of the other."""
    first, second = launch(x(16) + 1.0, inplace=((0, 0),)), launch(x(64, name="z") + 1.0, inplace=((0, 0),))
    between = launch(ops.exp(x(64, name="z")))
    found = costs(Plan((first, second, between), {}, {}))
    assert found[0].moved == ((4 * (2 * 64 + 2 * 64), 128),)
    assert found[1].moved == ((512, 512),) and found[2].moved == ((512, 512),)
    assert MACHINE.bound(found[0]) > MACHINE.bound(cost(first))


MACHINE = Machine(1, {"f32": 100.0, "bf16": 1000.0}, (Level(100, 50.0, 10.0, 20.0), Level(10000, 5.0, 1.0, 2.0)))


def test_the_roofline() -> None:
    assert MACHINE.bound(Cost(50, 50)) == 2.0 and MACHINE.limit(Cost(50, 50)) == "memory"
    assert MACHINE.bound(Cost(0, 0, {"f32": 1000, "bf16": 1000})) == 11.0
    assert MACHINE.limit(Cost(50, 0, {"f32": 1000})) == "compute"
    assert MACHINE.bandwidth(10) == 50 and MACHINE.bandwidth(10**6) == 5
    assert MACHINE.bandwidth(1000) == pytest.approx((50 * 5) ** 0.5)


def test_a_profile_sorts_and_prints() -> None:
    rows = [Row(f"k{i}", f"op{i}", "loops", t, Cost(100, 100, {"f32": 10}), b, "memory") for i, (t, b) in enumerate(
        ((3.0, 2.9), (2.0, 0.5), (1.0, 0.1))
    )]  # fmt: skip
    profile = Profile(rows, MACHINE)
    assert [r.kernel for r in profile] == ["k0", "k1", "k2"]
    assert [r.kernel for r in profile.sorted("time")] == ["k0", "k1", "k2"]
    assert [r.kernel for r in profile.sorted("lost")] == ["k1", "k2", "k0"]
    assert [r.kernel for r in profile.sorted("share")] == ["k2", "k1", "k0"]
    assert profile.share == pytest.approx(3.5 / 6) and "58% of the roofline" in str(profile)
    assert profile.data()["rows"][1]["lost"] == 1.5
    with pytest.raises(ValueError, match="time, lost, share"):
        profile.sorted("name")


def test_the_machine_is_measured() -> None:
    from gluongraph.compiler.machine_peaks import machine

    found = machine()
    assert found is machine() and found.flops["f32"] > 1e8 and len(found.levels) == 3
    assert all(min(v.read, v.write, v.add) > 1e6 for v in found.levels)
