"""mx.profiler: what it measures, what it writes, and that it leaves nothing behind."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from gluongraph import autograd, gluon, nd, operator, profiler
from gluongraph.eager import function
from gluongraph.errors import MXNetError


@pytest.fixture
def running(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    path = tmp_path / "profile.json"
    profiler.dumps(reset=True)
    profiler.set_config(filename=str(path), aggregate_stats=True)
    profiler.set_state("run")
    try:
        yield path
    finally:
        profiler.set_state("stop")
        profiler.dumps(reset=True)


def test_ops_gradients_and_hybridized_blocks(running: pathlib.Path) -> None:
    x = nd.ones((10, 10))
    x.attach_grad()
    with autograd.record():
        y = (x.sqrt() + 1) + 1
    y.backward()
    net = gluon.nn.Dense(2, in_units=10, prefix="d_")
    net.initialize()
    net.hybridize()
    net(x)
    found = json.loads(profiler.dumps(format="json"))["Time"]["operator"]
    assert found["sqrt"]["Count"] == 1 and found["_plus_scalar"]["Count"] == 2
    assert found["_backward_sqrt"]["Count"] == 1 and found["CachedOp d"]["Count"] == 1
    assert all(0 < row["Min"] <= row["Avg"] <= row["Max"] <= row["Total"] + 1e-9 for row in found.values())
    assert "_plus_scalar" in profiler.dumps() and json.loads(profiler.dumps(format="json"))["Memory"]["operator"]


def test_what_makes_arrays_is_an_operator(running: pathlib.Path) -> None:
    class Made(operator.CustomOp):
        def forward(self, is_train: bool, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
            self.assign(out_data[0], req[0], in_data[0] + nd.zeros(2))

    @operator.register("test_profiler_made")
    class MadeProp(operator.CustomOpProp):
        def create_operator(self, ctx: Any, in_shapes: Any, in_dtypes: Any) -> operator.CustomOp:
            return Made()

    x = nd.ones((3, 2))
    nd.full(3, 7), nd.arange(4), nd.linspace(0, 1, 3), nd.eye(2), nd.zeros(3)
    profiler.dumps(reset=True)
    for _ in range(2):
        nd.ones((3, 2)), nd.full(3, 7), nd.arange(4), nd.linspace(0, 1, 3), nd.eye(2), nd.zeros(3)
    found = json.loads(profiler.dumps(format="json", reset=True))["Time"]["operator"]
    made = ("_ones", "_full", "_arange", "_linspace", "_eye", "_zeros")
    assert {name: row["Count"] for name, row in found.items()} == dict.fromkeys(made, 2)
    nd.Custom(x, op_type="test_profiler_made")
    found = json.loads(profiler.dumps(format="json"))["Time"]["Custom Operator"]
    assert found["test_profiler_made::_zeros"]["Count"] == found["test_profiler_made::pure_python"]["Count"] == 1


def test_what_programs_mark(running: pathlib.Path) -> None:
    domain = profiler.Domain("data")
    with domain.new_task("read"), profiler.Event("all"):
        pass
    counter = domain.new_counter("rows", 5)
    counter += 2
    domain.new_marker("now").mark()
    profiler.pause()
    with domain.new_frame("unseen"):
        nd.ones(2).exp()
    profiler.resume()
    profiler.dump(finished=False)
    events = json.loads(running.read_text())["traceEvents"][-5:]
    assert [(e["name"], e["ph"]) for e in events] == [
        *(("all", "X"), ("read", "X"), ("rows", "C"), ("rows", "C"), ("now", "i")),
    ]
    assert events[-2]["args"] == {"rows": 7} and "unseen" not in running.read_text()
    with pytest.raises(MXNetError, match="Task 'idle' is stopped, and was not started"):
        domain.new_task("idle").stop()


def test_orders_and_errors(running: pathlib.Path) -> None:
    nd.ones(3).exp()
    nd.ones((100, 100)).exp().log()
    for by in profiler.SORTS:
        for ascending in (False, True):
            rows = json.loads(profiler.dumps(format="json", sort_by=by, ascending=ascending))["Time"]["operator"]
            values = [row[profiler.SORTS[by]] for row in rows.values()]
            assert values == sorted(values, reverse=not ascending)
    with pytest.raises(ValueError, match="sort_by is one of"):
        profiler.dumps(sort_by="name")
    with pytest.raises(ValueError, match="'table' or 'json'"):
        profiler.dumps(format="xml")
    with pytest.raises(ValueError, match="'run' or 'stop'"):
        profiler.set_state("go")
    with pytest.raises(TypeError, match="takes no speed"):
        profiler.set_config(speed=1)


def test_nothing_is_measured_afterwards() -> None:
    profiler.set_state("run")
    nd.ones(2).exp()
    profiler.set_state("stop")
    assert not function.observers and not function.spans
    before = profiler.dumps(reset=True)
    assert "exp" in before
    nd.ones(2).exp()
    assert "exp" not in profiler.dumps()
