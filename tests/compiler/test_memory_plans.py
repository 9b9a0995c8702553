"""Scratch of the benchmark models against its lower bound; what may lie over what. Plans only: nothing is compiled."""

from __future__ import annotations

import importlib
import pathlib
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest

from gluongraph import ops
from gluongraph.errors import VerifyError
from gluongraph.ir.graph import Graph, Node, TensorType
from gluongraph.ir.plan import Buffer, Candidate, Plan
from gluongraph.ir.verify import verify_plan
from gluongraph.passes import assign_memory, schedule, select
from gluongraph.passes.assign_memory import lower_bound
from gluongraph.passes.fuse import fuse
from gluongraph.passes.schedule_order import Jobs, live_bytes, order_of
from gluongraph.storage import ALIGNMENT

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
MODELS = (
    *("mlp-8", "mlp-128", "mlp-256", "lenet-128", "digits-64", "resnet18-32", "resnet20-32px", "resnet20-64px"),
    *("resnet50-32px", "resnet50-64px", "mobilenet", "gpt", "gpt-small", "bert", "lstm", "dcgan", "dlrm"),
)


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("memory")


def test_all_models_are_in_the_table(benchmark: ModuleType) -> None:
    assert sorted(benchmark.MODELS) == sorted(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_scratch_is_within_five_percent_of_the_lower_bound(benchmark: ModuleType, name: str) -> None:
    bound, taken = benchmark.planned(benchmark.find(name))
    assert 0 < bound <= taken <= 1.05 * bound


def planned(graph: Graph) -> tuple[Plan, Graph]:
    """The plan for a target that takes every group, and the graph of its kernels."""
    selection = select(fuse(graph), lambda group: Candidate(group.pattern), lambda g, roles: planned(g)[0])
    plan = assign_memory(schedule(selection, dict.fromkeys(graph.inputs, "input")))
    verify_plan(plan, selection.graph)
    return plan, selection.graph


def softmax(x: Node) -> Node:
    e = ops.exp(x - ops.broadcast_to(ops.max(x, 1, keepdims=True), x.shape))
    return e / ops.broadcast_to(ops.sum(e, 1, keepdims=True), x.shape)


def turned(x: Node) -> Node:
    """Reads its operand at other places than it writes."""
    return ops.exp(x) + ops.exp(ops.transpose(x, (1, 0)))


W = ops.input("w", TensorType((8, 8)))
SECOND: list[tuple[str, Callable[[Node], Node], bool]] = [  # after a product, whose result dies here
    ("elementwise", lambda x: ops.matmul(W, W) * ops.exp(x) + x, True),
    ("softmax", lambda x: softmax(ops.exp(x)), True),
    ("a product's operand", lambda x: ops.exp(ops.matmul(x, W)), False),
    ("transposed", turned, False),
    (
        "a sum over the other axis",
        lambda x: ops.broadcast_to(ops.sum(ops.exp(x), 0, keepdims=True), x.shape) + W,
        False,
    ),
]


@pytest.mark.parametrize(("second", "wanted"), [row[1:] for row in SECOND], ids=[row[0] for row in SECOND])
def test_a_result_lies_over_an_operand_that_is_read_where_it_is_written(
    second: Callable[[Node], Node], wanted: bool
) -> None:
    x = ops.matmul(W, W, tb=True)
    plan, _ = planned(Graph({"w": W}, {"y": ops.matmul(ops.matmul(second(x), W), W)}))
    first = plan.launches[0].writes[0].name
    over = [launch for launch in plan.launches for o, i in launch.group.inplace if launch.reads[i].name == first]
    assert bool(over) == wanted


def test_an_operand_that_is_read_again_later_stays() -> None:
    x = ops.matmul(W, W, tb=True)
    y = ops.matmul(softmax(x), W)
    plan, _ = planned(Graph({"w": W}, {"y": ops.matmul(y, x)}))
    assert not any(launch.group.inplace for launch in plan.launches)


def test_a_wrong_place_is_found() -> None:
    """A result put over an operand that a later kernel reads: the plan replayed shows it."""
    x = ops.matmul(W, W, tb=True)
    plan, graph = planned(Graph({"w": W}, {"y": ops.matmul(ops.matmul(softmax(x), W), x)}))
    one = next(i for i, launch in enumerate(plan.launches) if launch.group.pattern == "rowwise")
    old, new = plan.launches[one].writes[0], plan.launches[one].reads[0]

    def moved(b: Buffer) -> Buffer:
        return replace(new, type=b.type) if b.name == old.name else b

    launches = [
        replace(launch, reads=tuple(map(moved, launch.reads)), writes=tuple(map(moved, launch.writes)))
        for launch in plan.launches
    ]
    group = replace(launches[one].group, inplace=((0, 0),))
    launches[one] = replace(launches[one], group=group)
    with pytest.raises(VerifyError, match="what the graph never computes"):
        verify_plan(replace(plan, launches=tuple(launches)), graph)


def test_the_order_with_the_lowest_peak_is_taken() -> None:
    """Two chains, each large within and small at its end: one must be over before the other begins."""
    jobs = Jobs(
        waits=[set(), set(), {0}, {1}, {2, 3}],
        makes=[(0,), (1,), (2,), (3,), (4,)],
        reads=[(), (), (0,), (1,), (2, 3)],
        workspace=[0] * 5,
        size=[100, 100, 1, 1, 1],
    )
    order = order_of(jobs)
    assert order is not None and max(live_bytes(jobs, order)) == 102
    assert max(live_bytes(jobs, [0, 1, 2, 3, 4])) == 201


def test_jobs_in_a_circle_have_no_order() -> None:
    jobs = Jobs(waits=[{1}, {0}], makes=[(), ()], reads=[(), ()], workspace=[0, 0])
    assert order_of(jobs) is None


def test_places_are_aligned() -> None:
    plan, _ = planned(Graph({"w": W}, {"y": ops.matmul(softmax(ops.matmul(W, W)), W)}))
    assert lower_bound(plan) == plan.scratch_bytes
    assert all((b.offset or 0) % ALIGNMENT == 0 for b in plan.buffers.values() if b.space == "scratch")
