"""What all optimizers share: rates, multipliers, counting, names, scalars, and how updates get into a graph."""

from __future__ import annotations

import numpy as np
import pytest
import reference
from variants import VARIANTS, give

from gluongraph import gluon, lr_scheduler, nd, optimizer, random
from gluongraph.errors import ShapeError
from gluongraph.gluon import Parameter
from gluongraph.ir.graph import OPS, Graph, TensorType, node
from gluongraph.optimizer.counting import Counts
from gluongraph.tracing.optimizer_updates import apply_updates


@pytest.mark.parametrize("clip", [None, 0, 0.0, -1.0])
def test_threshold_of_zero_or_less_is_off(clip: float | None) -> None:
    off = optimizer.create("sgd", clip_gradient=clip)
    assert not off.clips and "clip" not in off.scalars(0)


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


@pytest.mark.parametrize(("name", "meant"), [("adm", "adam"), ("lambs", "lamb"), ("AdaGrd", "adagrad")])
def test_unknown_optimizer(name: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"no optimizer is called {name!r}; did you mean {meant!r}"):
        optimizer.create(name)


def test_names() -> None:
    """Those of MXNet 1.9.1 and three of 2.0; in any case; an Optimizer is itself."""
    known = (
        "adadelta adagrad adam adamax ccsgd dcasgd ftml ftrl groupadagrad lamb lars lbsgd nadam nag rmsprop sgd sgld"
    )
    for name in (*known.split(), "signum", "test", "adamw", "lans", "adabelief"):
        assert type(optimizer.create(name.upper())).__name__.lower() == name
        assert isinstance(optimizer.Optimizer.create_optimizer(name), optimizer.Optimizer.opt_registry[name])
    one = optimizer.SGD()
    assert optimizer.create(one) is one


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


def test_state_is_of_the_weights_shape() -> None:
    p = Parameter("w", shape=(2, 3))
    p.initialize()
    trainer = gluon.Trainer([p], "adam")
    assert {k: a.shape for k, a in trainer.state_arrays(["w"]).items()} == {"w/mean": (2, 3), "w/var": (2, 3)}
    assert isinstance(trainer.state_arrays(["w"])["w/mean"], nd.NDArray)


# -- multipliers


def test_multipliers_by_index_and_by_name() -> None:
    one = optimizer.SGD(learning_rate=0.5, wd=0.1, param_idx2name={0: "a_weight", 1: "a_bias", 2: "b_gamma"})
    assert [one.decay(i) for i in range(3)] == [0.1, 0.0, 0.1]  # biases decay only if they are named
    one.set_lr_mult({"a_bias": 2.0, 2: 3.0})
    one.set_wd_mult({"a_bias": 0.5})
    assert [one.rate(i) for i in range(3)] == [0.5, 1.0, 1.5]
    assert [one.decay(i) for i in range(3)] == pytest.approx([0.1, 0.05, 0.1])
    assert one.learning_rate == 0.5


def test_a_parameters_own_multipliers_go_first() -> None:
    p = Parameter("w", shape=(2,), lr_mult=0.1)
    one = optimizer.SGD(learning_rate=1.0, param_dict={0: p})
    one.set_lr_mult({0: 5.0})
    assert one.rate(0) == 0.1 and one.rate(1) == 1.0


def test_set_lr_scale_is_gone() -> None:
    with pytest.raises(DeprecationWarning, match="set_lr_mult"):
        optimizer.SGD().set_lr_scale({})


# -- counting


def test_begin_num_update() -> None:
    seen: list[int] = []
    one = optimizer.Adam(begin_num_update=10, lr_scheduler=lambda n: seen.append(n) or 0.1)
    assert one.t(0) == 11
    one.count((0, 1))
    one.count((1,))
    assert (one.t(0), one.t(1), one.num_update) == (11, 12, 12)
    one.rate(0)
    assert seen[-1] == 12
    assert one._index_update_count[1] == 12  # as optimizers written for MXNet ask for it


def test_counts() -> None:
    counts = Counts(0)
    for _ in range(3):
        counts.count((0, 1))
    edits = counts.edits
    counts.count((0, 1))
    assert counts.edits == edits and dict(counts) == {0: 4, 1: 4}
    before = counts.snapshot()
    for index in (0, 1, 1, 2):
        counts.count((index,))
    assert dict(counts) == {0: 5, 1: 6, 2: 1} and counts.largest == 6
    counts.rollback(before)
    assert dict(counts) == {0: 4, 1: 4} and counts.largest == 4
    counts.count((1, 2))
    assert dict(counts) == {0: 4, 1: 5, 2: 1} and counts.largest == 5
    counts.restore({0: 7}, 9)
    counts.count((0,))
    assert dict(counts) == {0: 8} and counts.largest == 9


def test_progress_is_taken_up() -> None:
    one = optimizer.LARS(momentum=0.9, learning_rate=0.1)
    one.count((0, 1))
    one.set_learning_rate(0.2)
    one.count((1,))
    other = optimizer.LARS(momentum=0.9)
    other.resume(one.progress())
    assert other.progress() == one.progress() and other.scalars(1) == one.scalars(1)
    with pytest.raises(ValueError, match="the progress of LARS, not of SGD"):
        optimizer.SGD().resume(one.progress())


# -- states


def test_states_begin_at_zero_or_as_the_weight() -> None:
    w = nd.array(np.arange(6).reshape(2, 3))
    mean, var = optimizer.Adam().create_state(0, w)
    assert mean.shape == var.shape == (2, 3) and not mean.asnumpy().any()
    previous = optimizer.DCASGD().create_state(0, w)
    assert (previous == w).asnumpy().all() and previous is not w
    assert optimizer.SGD().create_state(0, w) is None
    assert optimizer.GroupAdaGrad().create_state(0, w).shape == (2, 1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "name,last", [("sgd", True), ("nag", True), ("lars", True), ("signum", False), ("lamb", False)]
)
def test_layout_of_the_state_with_a_master_weight(name: str, last: bool, dtype: str) -> None:
    """(state, master) of SGD, NAG and LARS, (master, state) of the others, as in MXNet."""
    w = nd.array([1.0, 2.0], dtype=dtype)
    one = optimizer.create(name, multi_precision=True, **({} if name == "lamb" else {"momentum": 0.9}))
    state = one.create_state_multi_precision(0, w)
    master, inner = state[:: -1 if last else 1]
    assert master.dtype == np.float32 and master.asnumpy().tolist() == [1, 2]
    for array in inner if isinstance(inner, tuple) else (inner,):
        assert array.dtype == np.float32 and not array.asnumpy().any()
    one.update_multi_precision(0, w, nd.array([0.5, -0.5], dtype=dtype), state)
    assert (master.asnumpy() != [1, 2]).all() and (w == master.astype(dtype)).asnumpy().all()


def test_float32_weights_have_no_master() -> None:
    w = nd.ones((2,))
    assert optimizer.SGD(multi_precision=True).create_state_multi_precision(0, w) is None
    p = Parameter("w", shape=(2,))
    p.initialize()
    trainer = gluon.Trainer([p], "adam", {"multi_precision": True})
    give(p, np.ones(2))
    trainer.step(1)
    assert set(trainer.state_arrays(["w"])) == {"w/mean", "w/var"}


def test_an_update_that_fails_takes_back_what_it_has_drawn() -> None:
    """The gradient does not fit, which shows after the random numbers of SGLD have been taken."""
    sgld = optimizer.create("sgld")
    before = random.get_state()
    with pytest.raises(ShapeError):
        sgld.update(0, nd.ones((3,)), nd.ones((4,)), sgld.create_state(0, nd.ones((3,))))
    assert random.get_state() == before and sgld.num_update == 0


def test_every_optimizer_has_a_reference_and_a_variant() -> None:
    """`ccsgd` is another name of SGD; SGLD, which draws noise, has tests of its own."""
    registry = optimizer.Optimizer.opt_registry.items()
    registered = {name for name, kind in registry if kind.__module__.startswith("gluongraph.")}  # tests have others
    registered -= {name for name in registered if name.startswith("torch.")}  # whose reference is torch
    assert registered - set(reference.FORMULAS) == {"ccsgd"}
    assert registered - {name for name, _ in VARIANTS} == {"ccsgd", "sgld"}
