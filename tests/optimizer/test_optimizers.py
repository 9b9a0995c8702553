"""Every optimizer against float64 numpy: one update, and five in a row."""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Any

import numpy as np
import pytest

from gluongraph import gluon, lr_scheduler, nd, optimizer
from gluongraph.gluon.parameter import Parameter
from gluongraph.ir import OPS, Graph, TensorType, node
from gluongraph.updates import apply_updates

_spec = importlib.util.spec_from_file_location("optimizer_reference", pathlib.Path(__file__).with_name("reference.py"))
assert _spec is not None and _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
FORMULAS = _module.FORMULAS

CASES: list[tuple[str, dict[str, Any]]] = [
    ("sgd", {}),
    ("sgd", {"momentum": 0.9}),
    ("sgd", {"momentum": -0.5}),
    ("adam", {}),
    ("adam", {"beta1": 0.5, "beta2": 0.9, "epsilon": 1e-3}),
    ("adamw", {}),
    ("adamw", {"correct_bias": False}),
]
SHAPES = [(7,), (3, 5), (2, 3, 3, 3)]
TOLERANCE = 1e-5  # of max|w|, design of the project


def parameters(rng: np.random.Generator) -> list[Parameter]:
    made = []
    for i, shape in enumerate(SHAPES):
        p = Parameter(f"p{i}", shape=shape)
        p.initialize(ctx=None)
        p.set_data(rng.normal(size=shape).astype(np.float32))
        made.append(p)
    return made


def give(p: Parameter, g: np.ndarray[Any, Any]) -> None:
    p.grad()[:] = g
    p.data()._fresh_grad = True


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("name,extra", CASES, ids=lambda v: v if isinstance(v, str) else "-".join(map(str, v.values())))
def test_formula(name: str, extra: dict[str, Any], clip: float | None, steps: int) -> None:
    rng = np.random.default_rng(7)
    params = parameters(rng)
    settings: dict[str, Any] = {"learning_rate": 0.05, "wd": 0.01, "clip_gradient": clip, **extra}
    trainer = gluon.Trainer(params, name, settings)
    expected = [p.data().asnumpy().astype(np.float64) for p in params]
    states: list[dict[str, Any]] = [{} for _ in params]
    for t in range(1, steps + 1):
        for i, p in enumerate(params):
            g = rng.normal(size=p.shape).astype(np.float32)
            give(p, g)
            expected[i] = FORMULAS[name](
                expected[i], g.astype(np.float64), states[i], t, lr=0.05, wd=0.01, r=0.25, clip=clip, **extra
            )
        trainer.step(4)
    for p, want, state in zip(params, expected, states, strict=True):
        assert np.abs(p.data().asnumpy() - want).max() <= TOLERANCE * np.abs(want).max()
        for key, array in trainer.state_arrays([p.name]).items():
            have = state[key.partition("/")[2]]
            assert np.abs(array.asnumpy() - have).max() <= TOLERANCE * np.abs(have).max()


def test_clip_is_active_in_the_cases_above() -> None:
    assert np.abs(np.random.default_rng(7).normal(size=50) / 4).max() > 0.3


@pytest.mark.parametrize("clip", [None, 0, 0.0, -1.0])
def test_threshold_of_zero_or_less_is_off(clip: float | None) -> None:
    off = optimizer.create("sgd", clip_gradient=clip)
    assert not off.clips and "clip" not in off.scalars(0)


def test_multipliers_and_late_parameters() -> None:
    rng = np.random.default_rng(0)
    params = parameters(rng)
    params[1].lr_mult, params[2].wd_mult = 0.5, 0.0
    trainer = gluon.Trainer(params, "adam", {"learning_rate": 0.1, "wd": 0.1})
    expected = [p.data().asnumpy().astype(np.float64) for p in params]
    states: list[dict[str, Any]] = [{} for _ in params]
    counts = [0, 0, 0]
    for step in range(3):
        for i, p in enumerate(params):
            if i == 2 and step == 0:
                continue  # joins late: its own t is then one behind
            g = rng.normal(size=p.shape).astype(np.float32)
            give(p, g)
            counts[i] += 1
            lr, wd = (0.05 if i == 1 else 0.1) * (2 if step == 2 and i == 0 else 1), 0.0 if i == 2 else 0.1
            expected[i] = FORMULAS["adam"](
                expected[i], g.astype(np.float64), states[i], counts[i], lr=lr, wd=wd, r=1.0, clip=None
            )
        if step == 2:
            params[0].lr_mult = 2.0
        trainer.step(1, ignore_stale_grad=True)
    assert [trainer.optimizer.t(i) for i in range(3)] == [3, 3, 2]
    assert trainer.optimizer.num_update == 3
    for p, want in zip(params, expected, strict=True):
        assert np.abs(p.data().asnumpy() - want).max() <= TOLERANCE * np.abs(want).max()


def test_scheduler_sees_the_update_that_begins() -> None:
    seen: list[int] = []

    def schedule(n: int) -> float:
        seen.append(n)
        return 0.1

    opt = optimizer.SGD(lr_scheduler=schedule)
    opt.count((0, 1))
    assert opt.rate(0) == pytest.approx(0.1)
    assert seen[-1] == 1 and opt.num_update == 1


def test_only_a_rate_that_was_given_overwrites_the_schedulers() -> None:
    scheduler = lr_scheduler.FactorScheduler(step=10, base_lr=0.3)
    assert optimizer.Adam(lr_scheduler=scheduler).learning_rate == 0.3
    assert optimizer.Adam(learning_rate=0.2, lr_scheduler=scheduler).learning_rate == 0.2 == scheduler.base_lr


def test_the_rate_is_fixed_under_a_scheduler() -> None:
    opt = optimizer.SGD(lr_scheduler=lr_scheduler.FactorScheduler(step=1))
    with pytest.raises(UserWarning, match="decided by lr_scheduler"):
        opt.set_learning_rate(1.0)


@pytest.mark.parametrize("name", ["adm", "lambs"])
def test_unknown_optimizer(name: str) -> None:
    with pytest.raises(ValueError, match="no optimizer is called"):
        optimizer.create(name)


def test_unknown_keyword() -> None:
    with pytest.raises(TypeError, match="bta1"):
        optimizer.create("adam", bta1=0.5)


def test_defaults() -> None:
    assert (optimizer.SGD().lr, optimizer.Adam().lr, optimizer.AdamW().epsilon) == (0.01, 0.001, 1e-6)
    assert optimizer.create("CCSGD", momentum=0.5).states(TensorType((2,))) == {"mom": TensorType((2,))}


def test_structure_tells_graphs_apart() -> None:
    made = [optimizer.SGD(), optimizer.SGD(momentum=0.9), optimizer.SGD(clip_gradient=1.0), optimizer.Adam()]
    assert len({o.structure() for o in made}) == 4
    assert optimizer.SGD(momentum=0.9).structure() == optimizer.SGD(momentum=0.8, learning_rate=3.0).structure()


def gradient_graph(*names: str) -> Graph:
    inputs = {n: node(OPS["input"], (), {"name": n}, type=TensorType((4,))) for n in names}
    return Graph(inputs, {f"grad:{n}": x * 2.0 for n, x in inputs.items()} | {"loss": inputs[names[0]]})


def test_updates_replace_gradients() -> None:
    graph, table = apply_updates(gradient_graph("b", "a"), optimizer.Adam(), ["a", "b", "unused"])
    assert list(graph.outputs) == ["loss"]
    assert list(graph.updates) == ["a", "a/mean", "a/var", "b", "b/mean", "b/var"]
    assert table.indices == (0, 1) and table.groups == ((0, 1),)
    assert set(table.keys) == {"lr", "wd", "rescale", "beta1", "beta2", "new1", "new2", "epsilon"}
    kept, _ = apply_updates(gradient_graph("b", "a"), optimizer.Adam(), ["a", "b"], keep_grads=True)
    assert {"grad:a", "grad:b"} <= set(kept.outputs)


def test_scalars_come_apart_where_multipliers_do() -> None:
    params = [Parameter(n, shape=(4,)) for n in "ab"]
    opt = optimizer.SGD(learning_rate=0.5, wd=0.1, param_dict=dict(enumerate(params)))
    _, table = apply_updates(gradient_graph("a", "b"), opt, ["a", "b"])
    edits = opt.edits
    assert table.keys == ("lr", "wd", "rescale") and table.holds(opt)
    params[1].lr_mult = 0.1
    assert opt.edits != edits and not table.holds(opt)
    graph, table = apply_updates(gradient_graph("a", "b"), opt, ["a", "b"])
    assert table.keys == ("lr:0", "wd:0", "rescale", "lr:1", "wd:1")
    assert table.values(opt) == [0.5, 0.1, 1.0, 0.05, 0.1]
    assert "scalar:lr:1" in graph.inputs


def test_gradient_of_a_stranger_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"'a'.*does not hold"):
        apply_updates(gradient_graph("a"), optimizer.SGD(), ["b"])


def test_double_precision_weights() -> None:
    p = Parameter("w", shape=(3,), dtype="float64")
    p.initialize()
    before = p.data().asnumpy()
    give(p, np.ones(3))
    gluon.Trainer([p], "sgd", {"learning_rate": 0.5}).step(1)
    assert p.data().dtype == np.float64
    np.testing.assert_allclose(p.data().asnumpy(), before - 0.5, rtol=1e-12)


def test_state_is_of_the_weights_shape() -> None:
    p = Parameter("w", shape=(2, 3))
    p.initialize()
    trainer = gluon.Trainer([p], "adam")
    assert {k: a.shape for k, a in trainer.state_arrays(["w"]).items()} == {"w/mean": (2, 3), "w/var": (2, 3)}
    assert isinstance(trainer.state_arrays(["w"])["w/mean"], nd.NDArray)
