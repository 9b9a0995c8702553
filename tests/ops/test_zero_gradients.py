"""Where no gradient flows it is zeros, eager, hybridized and compiled; and penalties on gradients train."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import autograd, gluon, nd
from gluongraph.errors import MXNetError
from gluongraph.ir.composite import results_of
from gluongraph.ir.graph import OPS, Op
from gluongraph.ndarray import NDArray, invoke

FLAT: dict[str, Callable[[NDArray], NDArray]] = {
    "floor": nd.floor,
    "ceil": nd.ceil,
    "round": nd.round,
    "rint": nd.rint,
    "fix": nd.fix,
    "trunc": nd.trunc,
    "sign": nd.sign,
    "logical_not": nd.logical_not,
    "greater": lambda x: x > 0,
    "equal": lambda x: x == x,
    "argmax": lambda x: nd.argmax(x, axis=0),
    "argsort": nd.argsort,
    "topk": lambda x: nd.topk(x, k=2),
    "one_hot": lambda x: nd.one_hot(nd.abs(x), 4),
    "BlockGrad": nd.BlockGrad,
    "zeros_like": nd.zeros_like,
    "shape_array": nd.shape_array,
    "to integers and back": lambda x: x.astype("int32").astype("float32"),
    "a part of integers": lambda x: x.astype("int32")[1:],
    "a condition": lambda x: nd.where(x > 0, nd.ones(3), nd.zeros(3)),
}
ONCE: dict[str, Callable[[NDArray], NDArray]] = {
    "abs": nd.abs,
    "relu": nd.relu,
    "clip": lambda x: nd.clip(x, -1, 2),
    "dropout": lambda x: nd.Dropout(x, p=0.5),
    "LeakyReLU": lambda x: nd.LeakyReLU(x, slope=0.1),
    "maximum": lambda x: nd.maximum(x, 0),
    "max": lambda x: x.max(),
    "floor": nd.floor,
}


def marked(req: str = "write", dtype: str = "float32") -> NDArray:
    x = nd.array([1.5, -2.5, 3.0], dtype=dtype)
    x.attach_grad(req)
    x.grad[:] = 7
    return x


@pytest.mark.parametrize("req, expected", [("write", 0), ("add", 7)])
@pytest.mark.parametrize("name", FLAT)
def test_no_gradient_is_zeros(name: str, req: str, expected: int) -> None:
    x = marked(req)
    with autograd.record():
        y = FLAT[name](x)
    y.backward()
    assert (x.grad.asnumpy() == expected).all() and x._fresh_grad


@pytest.mark.parametrize("name", FLAT)
def test_grad_gives_zeros_that_can_be_differentiated_again(name: str) -> None:
    x = marked()
    with autograd.record():
        (dx,) = autograd.grad(FLAT[name](x), [x], create_graph=True)
    assert dx.shape == x.shape and not dx.asnumpy().any()
    dx.backward()
    assert not x.grad.asnumpy().any()


@pytest.mark.parametrize("name", ONCE)
def test_second_gradients_are_zeros(name: str) -> None:
    x = marked()
    with autograd.record():
        (dx,) = autograd.grad(ONCE[name](x), [x], create_graph=True)
    dx.backward()
    assert not x.grad.asnumpy().any()


@pytest.mark.parametrize("name", [*FLAT, *ONCE])
def test_hybridized_and_compiled_are_eager(name: str) -> None:
    fn = (FLAT | ONCE)[name]

    class Net(gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.w = self.params.get("w", shape=(3,), init="ones")

        def forward(self, x: NDArray) -> NDArray:
            return fn(x * self.w.data()).astype("float32")

    def weights(way: str) -> np.ndarray[Any, Any]:
        mx.random.seed(3)
        net = Net()
        net.initialize()
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5, "wd": 0.1})
        x = nd.array([1.5, -2.5, 3.0])
        if way == "compiled":
            mx.compile(net, trainer=trainer)(x, batch_size=3)
        else:
            net.hybridize(way == "hybridized")
            with autograd.record():
                y = net(x)
            y.backward()
            trainer.step(3)
        found: np.ndarray[Any, Any] = net.w.data().asnumpy()
        return found

    if name not in ("zeros_like", "shape_array"):  # a graph does not hold what reads types only
        np.testing.assert_allclose(weights("compiled"), weights("eager"), rtol=1e-6)
        np.testing.assert_allclose(weights("hybridized"), weights("eager"), rtol=1e-6)
    if name in FLAT:
        assert (weights("eager") < 1).all(), "decay alone moves them"


def test_a_cast_to_integers_has_a_gradient_of_zeros() -> None:
    x = marked()
    with autograd.record():
        i = x.astype("int32")
        y = i * i
    y.backward()
    assert not x.grad.asnumpy().any()


def test_a_gradient_elsewhere_is_not_touched() -> None:
    x = marked()
    with autograd.record():
        y = nd.floor(x) + x
    y.backward()
    assert (x.grad.asnumpy() == 1).all()


def test_what_is_detached_is_not_recorded() -> None:
    x, other = marked(), marked()
    with autograd.record():
        y = x.detach() * other
    y.backward()
    assert (x.grad.asnumpy() == 7).all() and not x._fresh_grad
    with autograd.record():
        y = x.detach() * 2
    with pytest.raises(MXNetError, match="not in a computational graph"):
        y.backward()
    with pytest.raises(MXNetError, match="do not depend on"), autograd.record():
        autograd.grad(x.detach() * other, [x])

    def within(x: NDArray, other: NDArray) -> list[NDArray]:
        return autograd.grad(x.detach() * other, [x])

    with pytest.raises(MXNetError, match="do not depend on"):
        mx.compile(within).predict(x, other)


def test_a_compiled_step_leaves_detached_weights_alone() -> None:
    class Net(gluon.HybridBlock):
        def __init__(self, cut: Callable[[NDArray], NDArray]) -> None:
            super().__init__()
            self.cut, self.first, self.last = cut, gluon.nn.Dense(3, in_units=3), gluon.nn.Dense(1, in_units=3)

        def forward(self, x: NDArray) -> NDArray:
            return self.last(self.cut(self.first(x)))

    moved = []
    for cut in (NDArray.detach, nd.BlockGrad):
        net = Net(cut)
        net.initialize(mx.init.One())
        mx.compile(net, trainer=gluon.Trainer(net.collect_params(), "sgd", {"wd": 0.1}))(nd.ones((2, 3)))
        moved.append(bool((net.first.weight.data().asnumpy() != 1).any()))
    assert moved == [False, True]  # zeros are a gradient, and weights with a gradient decay


def test_what_no_gradient_flows_through_is_not_used_up() -> None:
    x = marked("add")
    with autograd.record():
        h = x * 2
        first, second = nd.BlockGrad(h) * x, h * 3
    first.backward()
    second.backward()
    assert x.grad.asnumpy().tolist() == [7 + 2 * 1.5 + 6, 7 - 2 * 2.5 + 6, 7 + 2 * 3 + 6]
    with autograd.record():
        again = nd.BlockGrad(h) * x  # h has been used up, and nothing is wanted of it
    again.backward()
    assert x.grad.asnumpy()[0] == 7 + 2 * 1.5 + 6 + 3


def test_a_used_record_lets_go_of_what_no_gradient_flows_to() -> None:
    x = marked()
    with autograd.record():
        h = x * 2
        y = nd.floor(h) + x
    kept = weakref.ref(h)
    del h
    y.backward()
    gc.collect()
    assert kept() is None


def test_a_function_that_gives_no_gradient() -> None:
    class Half(autograd.Function):
        def forward(self, a: NDArray, b: NDArray) -> NDArray:
            return a + b

        def backward(self, head: NDArray) -> Any:
            return head, None

    a, b = marked(), marked()
    with autograd.record():
        y = Half()(a, b)
    y.backward()
    assert (a.grad.asnumpy() == 1).all() and not b.grad.asnumpy().any() and b._fresh_grad


def test_rows_become_zeros() -> None:
    w = nd.ones((5, 2))
    w.attach_grad(stype="row_sparse")
    with autograd.record():
        y = nd.Embedding(nd.array([3, 1]), w, input_dim=5, output_dim=2).sum()
    y.backward()
    with autograd.record():
        y = nd.floor(w)
    y.backward()
    assert not w.grad.asnumpy().any() and w.grad.indices.size == 0


def recordable(op: Op) -> tuple[Any, dict[str, Any]] | None:
    """Arrays and attributes that the op takes, with a float among the arrays."""
    for arrays, attrs in op.samples(np.random.default_rng(0)) if op.samples else ():
        flat = all(isinstance(a, np.ndarray) for a in arrays)
        if flat and any(a.dtype in (np.float32, np.float64) for a in arrays):
            return arrays, attrs
    return None


@pytest.mark.parametrize("op", [op for op in OPS.values() if recordable(op)], ids=str)
def test_every_op_leaves_a_gradient(op: Op) -> None:
    arrays, attrs = recordable(op) or ((), {})
    given = [NDArray(np.array(a)) for a in arrays]
    for each in given:
        each.attach_grad()
    with autograd.record():
        made = invoke(lambda *x: results_of(op(*x, **attrs)), *given)
    autograd.backward(made)
    assert all(each._fresh_grad for each in given)


# -- the penalty on the norm of a critic's gradient (Gulrajani et al., Improved Training of Wasserstein GANs, 2017)


def critic() -> gluon.nn.HybridSequential:
    mx.random.seed(5)
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(4, 3, padding=1, in_channels=1),
        gluon.nn.LeakyReLU(0.2),
        gluon.nn.Conv2D(4, 3, strides=2, in_channels=4),
        gluon.nn.Activation("relu"),
        gluon.nn.Flatten(),
        gluon.nn.Dense(8, activation="relu", in_units=36),
        gluon.nn.Dense(1, in_units=8),
    )
    net.initialize(mx.init.Xavier())
    return net


@pytest.mark.parametrize("way", ["eager", "hybridized", "compiled"])
def test_wgan_gp(way: str) -> None:
    rng = np.random.default_rng(0)
    real, fake = (nd.array(rng.normal(size=(4, 1, 8, 8)).astype(np.float32)) for _ in range(2))
    share = nd.array(rng.uniform(size=(4, 1, 1, 1)).astype(np.float32))

    def loss(net: gluon.HybridBlock, traced: bool, real: NDArray, fake: NDArray, share: NDArray) -> NDArray:
        between = real * share + fake * (1 - share)
        if not traced:
            between.attach_grad()
        with autograd.record():
            scores = net(between)
            (slope,) = autograd.grad(scores, [between], create_graph=True, retain_graph=True)
            norm = (slope.square().sum(axis=(1, 2, 3)) + 1e-12).sqrt()
            return (net(fake) - net(real)).reshape((-1,)) + 10 * (norm - 1).square()

    def train(way: str) -> tuple[list[float], list[np.ndarray[Any, Any]]]:
        net = critic()
        trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 1e-3})
        net.hybridize(way == "hybridized")
        step = mx.compile(lambda *arrays: loss(net, True, *arrays), trainer=trainer) if way == "compiled" else None
        losses = []
        for _ in range(3):
            if step is not None:
                value = step(real, fake, share)
            else:
                value = loss(net, False, real, fake, share)
                value.backward()
                trainer.step(4)
            losses.append(float(value.mean()))
        return losses, [p.data().asnumpy() for p in net.collect_params().values()]

    losses, weights = train(way)
    assert losses[2] < losses[1] < losses[0]
    if way != "eager":
        same = train("eager")
        np.testing.assert_allclose(losses, same[0], rtol=1e-4)
        for found, expected in zip(weights, same[1], strict=True):
            np.testing.assert_allclose(found, expected, atol=2e-4)
