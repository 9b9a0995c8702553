"""Updater: states at the first update, lists, and states as bytes without pickle."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from variants import CLIP, VARIANTS, gradients, named, parameters, settings, types

import gluongraph as mx
from gluongraph import nd, optimizer
from gluongraph.errors import FormatError, MXNetError


def made(name: str, extra: dict[str, Any]) -> optimizer.Updater:
    return optimizer.get_updater(optimizer.create(name, **settings(name, CLIP), **extra, multi_precision=True))


def same(a: list[nd.NDArray], b: list[nd.NDArray]) -> bool:
    return all((x.asnumpy() == y.asnumpy()).all() for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(("name", "extra"), VARIANTS, ids=named)
def test_training_goes_on_from_saved_states_to_the_bit(name: str, extra: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    params = parameters(rng, types(name, "float16", "bfloat16"))
    weights, indices = [p.data() for p in params], list(range(len(params)))
    batches = [
        [nd.array(g, dtype=w.dtype) for g, w in zip(gradients(rng, params), weights, strict=True)] for _ in "12345"
    ]
    updater = made(name, extra)
    for batch in batches[:3]:
        updater(indices, batch, weights)
    saved, copies = updater.get_states(dump_optimizer=True), [w.copy() for w in weights]
    other = made(name, extra)
    other.set_states(saved)
    for batch in batches[3:]:
        updater(indices, batch, weights)
        other(indices, batch, copies)
    assert same(weights, copies) and other.optimizer.progress() == updater.optimizer.progress()


def test_states_are_made_at_the_first_update_of_an_index() -> None:
    updater = made("adam", {})
    weights = [nd.ones((2,)), nd.ones((3,))]
    updater(1, nd.ones((3,)), weights[1])
    assert set(updater.states) == {1} and updater.states[1][0].shape == (3,)
    updater([0, 1], [nd.ones((2,)), nd.ones((3,))], weights)
    assert updater.optimizer.counts() == {1: 2, 0: 1}


def test_names_are_indices_too() -> None:
    updater, w = made("sgd", {"momentum": 0.9}), nd.ones((2,))
    updater("weight", nd.ones((2,)), w)
    other = made("sgd", {"momentum": 0.9})
    other.set_states(updater.get_states())
    assert other.states["weight"].asnumpy().tolist() == updater.states["weight"].asnumpy().tolist()
    assert other.optimizer.counts() == {}  # the optimizer is told only with dump_optimizer


def test_states_follow_their_weight_to_a_device() -> None:
    updater, w = made("adam", {}), nd.ones((2,))
    updater(0, nd.ones((2,)), w)
    other, elsewhere = made("adam", {}), nd.ones((2,), ctx=mx.cpu(1))
    other.set_states(updater.get_states())
    other(0, nd.ones((2,), ctx=mx.cpu(1)), elsewhere)
    assert other.states[0][0].context == mx.cpu(1)


@pytest.mark.parametrize(("name", "extra"), VARIANTS, ids=named)
def test_states_fit_the_weight_they_were_made_for(name: str, extra: dict[str, Any]) -> None:
    opt = made(name, extra).optimizer
    for p in parameters(np.random.default_rng(0), types(name, "float32", "float16")):
        state = opt.create_state_multi_precision(0, p.data())
        assert opt.fits(state, p.data().type)
        assert not opt.fits((state, p.data()), p.data().type)


@pytest.mark.parametrize(("before", "after", "kept"), [(0.9, 0.0, None), (0.0, 0.9, [-0.5, -0.5])])
def test_states_follow_the_settings(before: float, after: float, kept: list[float] | None) -> None:
    updater, w = optimizer.get_updater(optimizer.SGD(learning_rate=0.5, momentum=before)), nd.ones((2,))
    updater(0, nd.ones((2,)), w)
    updater.optimizer.momentum = after
    updater(0, nd.ones((2,)), w)
    assert w.asnumpy().tolist() == [0.0, 0.0]
    assert (None if updater.states[0] is None else updater.states[0].asnumpy().tolist()) == kept


def test_a_state_for_other_settings_is_refused() -> None:
    opt, w = optimizer.SGD(momentum=0.9), nd.ones((2,))
    with pytest.raises(
        MXNetError, match=r"SGD keeps mom of parameter 0, and the state given has 0 arrays[\s\S]*create_state"
    ):
        opt.update(0, w, w, None)
    adam, updater = made("adam", {}), made("sgd", {"momentum": 0.9})
    adam(0, w, w)
    updater.set_states(adam.get_states())
    with pytest.raises(FormatError, match=r"loaded for 0 is not that of SGD for a f32\[2\]"):
        updater(0, w, w)
    assert opt.counts() == updater.optimizer.counts() == {}


def test_an_error_changes_nothing() -> None:
    updater, w = made("adam", {}), nd.ones((2,))
    updater(0, nd.ones((2,)), w)
    before = w.asnumpy()
    with pytest.raises(ValueError, match="shapes"):
        updater(0, nd.ones((3,)), w)
    assert (w.asnumpy() == before).all() and updater.optimizer.counts() == {0: 1}


BAD: list[tuple[str, Any, str]] = [
    ("pickle", pickle.dumps({0: None}), "no states of an Updater"),
    ("empty", b"", "no states of an Updater"),
    ("cut", None, "no states of an Updater"),
    ("other optimizer", None, "progress of Adam, not of SGD"),
]


@pytest.mark.parametrize(("kind", "data", "message"), BAD, ids=[kind for kind, *_ in BAD])
def test_what_is_no_state_is_refused(kind: str, data: Any, message: str) -> None:
    source = made("adam", {})
    source(0, nd.ones((2,)), nd.ones((2,)))
    data = {"cut": source.get_states()[:-3], "other optimizer": source.get_states(dump_optimizer=True)}.get(kind, data)
    updater = made("sgd", {"momentum": 0.9})
    updater(0, nd.ones((2,)), nd.ones((2,)))
    state = updater.states[0]
    with pytest.raises(FormatError, match=message):
        updater.set_states(data)
    assert updater.states == {0: state} and updater.optimizer.counts() == {0: 1}


def test_states_of_ones_own_kind_have_no_bytes() -> None:
    updater = made("adam", {})
    updater.states[0] = {"mean": nd.ones((2,))}
    with pytest.raises(FormatError, match="None, an array or a tuple of those"):
        updater.get_states()
