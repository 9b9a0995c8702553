"""trainer._updaters and trainer._kvstore._updater: MXNet's names for the states of a Trainer."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from gluongraph import autograd, cpu, gluon, init, nd, optimizer
from gluongraph.errors import MXNetError
from gluongraph.gluon import Parameter, Trainer
from gluongraph.kvstore import KVStore
from gluongraph.ndarray import NDArray


def parameter(ctx: Any, dtype: str = "float32") -> Parameter:
    p = gluon.Parameter("w", shape=(3,), dtype=dtype)
    p.initialize(init.Constant(1), ctx=ctx)
    return p


def step(trainer: Trainer, p: Parameter) -> None:
    with autograd.record():
        losses = [w * nd.array([1, 2, 3], ctx=w.context).astype(w.dtype) for w in p.list_data()]
    autograd.backward(losses)
    trainer.step(1)


def flat(state: Any) -> list[NDArray]:
    parts = state if isinstance(state, tuple) else (state,)
    return [array for part in parts for array in (flat(part) if isinstance(part, tuple) else [part])]


@pytest.mark.parametrize("on_store", [True, False])
@pytest.mark.parametrize(
    "name,settings,dtype",
    [
        ("sgd", {"momentum": 0.5}, "float32"),
        ("adam", {}, "float32"),
        ("adam", {"multi_precision": True}, "float16"),
        ("lamb", {"multi_precision": True}, "float16"),
        ("sgd", {}, "float32"),
    ],
)
def test_states_are_those_of_an_updater(name: str, settings: dict[str, Any], dtype: str, on_store: bool) -> None:
    p = parameter([cpu(0), cpu(1)], dtype)
    trainer = Trainer([p], name, settings, update_on_kvstore=on_store)
    updater = optimizer.get_updater(optimizer.create(name, **settings))
    weight = nd.ones(3, dtype=dtype)
    for _ in range(3):
        step(trainer, p)
        updater(0, nd.array([2, 4, 6], dtype=dtype), weight)
    shown = [trainer._kvstore._updater] if on_store else trainer._updaters
    assert len(shown) == (1 if on_store else 2)
    for each in shown:
        assert each.optimizer is trainer.optimizer and list(each.states) == [0]
        found, expected = each.states[0], updater.states[0]
        assert isinstance(found, tuple) == isinstance(expected, tuple)
        if expected is None:
            assert found is None
            continue
        for a, b in zip(flat(found), flat(expected), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), rtol=1e-5)


def test_what_an_updater_updates_the_trainer_goes_on_from() -> None:
    trainer = Trainer([parameter(cpu())], "sgd", {"momentum": 0.5, "learning_rate": 1})
    (updater,) = trainer._updaters
    assert updater.states == {}
    weight = trainer.params[0].data()
    updater(0, nd.ones(3), weight)
    kept = deepcopy(updater.states)
    assert weight.asnumpy().tolist() == [0, 0, 0] and kept[0].asnumpy().tolist() == [-1, -1, -1]
    step(trainer, trainer.params[0])
    assert weight.asnumpy().tolist() == [-1.5, -2.5, -3.5]
    assert updater.states[0].asnumpy().tolist() == [-1.5, -2.5, -3.5] and kept[0].asnumpy().tolist() == [-1, -1, -1]


def test_states_of_an_optimizer_without_a_formula() -> None:
    class Counting(optimizer.Optimizer):
        def create_state(self, index: Any, weight: NDArray) -> NDArray:
            return nd.zeros(1)

        def update(self, index: Any, weight: NDArray, grad: NDArray, state: NDArray) -> None:
            state += 1

    p = parameter([cpu(0), cpu(1)])
    trainer = Trainer([p], Counting(), update_on_kvstore=False)
    step(trainer, p)
    first, second = trainer._updaters
    second(0, p.list_grad()[1], p.list_data()[1])
    assert (first.states[0].asscalar(), second.states[0].asscalar()) == (1, 2)


def test_a_store_that_others_may_have_keeps_its_updater() -> None:
    store = KVStore("device")
    p = parameter([cpu(0), cpu(1)])
    trainer = Trainer([p], "sgd", kvstore=store)
    step(trainer, p)
    assert store._updater is None
    with pytest.raises(MXNetError, match="load_states"):
        trainer._updaters[0].set_states(b"")
