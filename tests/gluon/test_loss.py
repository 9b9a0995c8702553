"""Every loss against its formula in float64 numpy: values and gradients, weighted, in every mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import autograd, debug, gluon, nd
from gluongraph.gluon import loss

RNG = np.random.default_rng(5)
P, Y = RNG.normal(size=(2, 4, 3))
SHARE = RNG.random((4, 3)) * 0.8 + 0.1
PROBABILITY = RNG.random((4, 3)) * 0.8 + 0.1
BITS = np.array([[0, 1, 1], [1, 0, 0], [0, 0, 1], [1, 1, 1]], float)
SIGNS = 2 * BITS - 1
CLASSES = np.array([0, 2, 1, 1.0])
COUNTS = RNG.integers(1, 9, (4, 3)).astype(float)
POSITIVE = np.array([[2.0, 0.5, 1.0]])
IMAGE, TARGET = RNG.normal(size=(2, 2, 3, 5))
PIXELS = RNG.integers(0, 3, (2, 5)).astype(float)
SIDES = np.array([1, -1, 1, -1.0])
X2, X3 = RNG.normal(size=(2, 4, 3)) * 0.7


# -- the formulas


def log_softmax(p: Any, axis: int = -1) -> Any:
    return p - np.log(np.exp(p).sum(axis=axis, keepdims=True))


def softplus(p: Any) -> Any:
    return np.log1p(np.exp(p))


def picked(log_p: Any, label: Any, axis: int = -1) -> Any:
    return -np.take_along_axis(log_p, np.expand_dims(label.astype(int), axis), axis)


def bce(p: Any, y: Any, c: Any = 1.0) -> Any:
    return c * y * softplus(-p) + (1 - y) * softplus(p)


def huber(rho: float) -> Callable[[Any, Any], Any]:
    def elements(p: Any, y: Any) -> Any:
        e = np.abs(y - p)
        return np.where(e > rho, e - rho / 2, e**2 / (2 * rho))

    return elements


def stirling(y: Any) -> Any:
    return np.where(y > 1, y * np.log(y) - y + np.log(2 * np.pi * y) / 2, 0)


def triplet(p: Any, near: Any, far: Any) -> Any:
    return np.maximum(((near - p) ** 2 - (far - p) ** 2).sum(axis=1) + 2, 0)


def cosine(x: Any, y: Any, side: Any) -> Any:
    cos = ((x * y).sum(-1) / np.sqrt((x * x).sum(-1) * (y * y).sum(-1))).reshape(-1, 1)
    return np.where(side.reshape(-1, 1) == 1, 1 - cos, np.maximum(cos + 0.2, 0))


def sdml(x: Any, y: Any) -> Any:
    log_p = log_softmax(-((x[:, None] - y[None]) ** 2).sum(axis=2))
    n = len(x)
    wanted = np.eye(n) * 0.7 + (1 - np.eye(n)) * 0.3 / (n - 1)
    return (wanted * (np.log(wanted) - log_p)).sum(axis=1)


class Formula(NamedTuple):
    """A loss, what it is called with, its elements, and how they become the result."""

    make: Callable[..., Any]
    arrays: tuple[Any, ...]
    elements: Callable[..., Any]
    reduce: str = "mean"
    settings: Mapping[str, Any] = MappingProxyType({})


FORMULAS = {
    "l2": Formula(loss.L2Loss, (P, Y), lambda p, y: (y - p) ** 2 / 2),
    "l2 of images": Formula(loss.L2Loss, (IMAGE, TARGET), lambda p, y: (y - p) ** 2 / 2),
    "l2 reshaped": Formula(loss.L2Loss, (P, Y.reshape(2, 6)), lambda p, y: (y.reshape(p.shape) - p) ** 2 / 2),
    "l1": Formula(loss.L1Loss, (P, Y), lambda p, y: np.abs(y - p)),
    "huber": Formula(loss.HuberLoss, (P, Y), huber(1.0)),
    "huber 0.3": Formula(loss.HuberLoss, (P, Y), huber(0.3), settings={"rho": 0.3}),
    "bce": Formula(loss.SigmoidBCELoss, (P, BITS), bce),
    "bce sigmoid": Formula(
        loss.SigmoidBinaryCrossEntropyLoss,
        (PROBABILITY, BITS),
        lambda p, y: -(y * np.log(p) + (1 - y) * np.log(1 - p)),
        settings={"from_sigmoid": True},
    ),
    "ce": Formula(loss.SoftmaxCELoss, (P, CLASSES), lambda p, y: picked(log_softmax(p), y)),
    "ce column": Formula(loss.SoftmaxCELoss, (P, CLASSES[:, None]), lambda p, y: picked(log_softmax(p), y[:, 0])),
    "ce dense": Formula(
        loss.SoftmaxCELoss,
        (P, SHARE),
        lambda p, y: -(log_softmax(p) * y).sum(axis=1, keepdims=True),
        settings={"sparse_label": False},
    ),
    "ce logits": Formula(loss.SoftmaxCELoss, (P, CLASSES), picked, settings={"from_logits": True}),
    "ce logits dense": Formula(
        loss.SoftmaxCELoss,
        (P, SHARE),
        lambda p, y: -(p * y).sum(axis=1, keepdims=True),
        settings={"from_logits": True, "sparse_label": False},
    ),
    "ce of pixels": Formula(
        loss.SoftmaxCELoss, (IMAGE, PIXELS), lambda p, y: picked(log_softmax(p, 1), y, 1), settings={"axis": 1}
    ),
    "kl": Formula(loss.KLDivLoss, (P, SHARE), lambda p, y: y * (np.log(y) - p), "sum"),
    "kl scores": Formula(
        loss.KLDivLoss,
        (P, SHARE),
        lambda p, y: y * (np.log(y) - log_softmax(p)),
        "sum",
        settings={"from_logits": False},
    ),
    "kl of images": Formula(
        loss.KLDivLoss,
        (IMAGE, np.exp(TARGET)),
        lambda p, y: y * (np.log(y) - log_softmax(p, 1)),
        "sum",
        settings={"from_logits": False, "axis": 1},
    ),
    "hinge": Formula(loss.HingeLoss, (P, SIGNS), lambda p, y: np.maximum(1 - p * y, 0)),
    "squared hinge": Formula(
        loss.SquaredHingeLoss, (P, SIGNS), lambda p, y: np.maximum(0.5 - p * y, 0) ** 2, settings={"margin": 0.5}
    ),
    "logistic": Formula(loss.LogisticLoss, (P, SIGNS), lambda p, y: softplus(-p * y)),
    "logistic binary": Formula(loss.LogisticLoss, (P, BITS), bce, settings={"label_format": "binary"}),
    "poisson": Formula(loss.PoissonNLLLoss, (P, COUNTS), lambda p, y: np.exp(p) - y * p, "all"),
    "poisson rates": Formula(
        loss.PoissonNLLLoss,
        (PROBABILITY, COUNTS),
        lambda p, y: p - y * np.log(p + 1e-8) + stirling(y),
        "all",
        settings={"from_logits": False, "compute_full": True},
    ),
    "cosine": Formula(loss.CosineEmbeddingLoss, (P, Y, SIDES), cosine, "none", settings={"margin": -0.2}),
}
UNWEIGHTED = {  # these take no sample_weight
    "triplet": Formula(loss.TripletLoss, (P, X2, X3), triplet, "none", settings={"margin": 2}),
    "sdml": Formula(loss.SDMLLoss, (P, X2), sdml, "none"),
}


def expected(row: Formula, arrays: Any, weight: Any = None, batch_axis: int = 0, sample_weight: Any = None) -> Any:
    losses = row.elements(*arrays)
    if sample_weight is not None:
        losses = losses * sample_weight
    losses = losses * (1 if weight is None else weight)
    if row.reduce == "none":
        return losses
    if row.reduce == "all":
        return losses.mean().reshape(1)
    axes = tuple(a for a in range(losses.ndim) if a != batch_axis)
    return losses.mean(axis=axes) if row.reduce == "mean" else losses.sum(axis=axes)


def slope(function: Callable[[Any], float], at: Any) -> Any:
    """Central differences in float64."""
    found, step = np.zeros_like(at), 1e-6
    for index in np.ndindex(at.shape):
        there = np.zeros_like(at)
        there[index] = step
        found[index] = (function(at + there) - function(at - there)) / (2 * step)
    return found


def found_by(block: Any, arrays: Any, dtype: str) -> tuple[Any, Any]:
    """Result, and the gradient of Σ k result_k."""
    given = [None if a is None else nd.array(a, dtype=dtype) for a in arrays]
    given[0].attach_grad()
    with autograd.record():
        out = block(*given)
    out.backward(nd.array(heads(out.shape), dtype=dtype))
    assert out.dtype == given[0].dtype
    return out.asnumpy(), given[0].grad.asnumpy()


def heads(shape: tuple[int, ...]) -> Any:
    return np.arange(1.0, np.prod(shape) + 1).reshape(shape)


def check(row: Formula, block: Any, arrays: Any, dtype: str, **how: Any) -> None:
    wanted = expected(row, row.arrays, **how)
    out, grad = found_by(block, arrays, dtype)
    exact = 1e-10 if dtype == "float64" else 5e-6
    np.testing.assert_allclose(out, wanted, rtol=exact, atol=exact)
    rest = row.arrays[1:]
    rise = slope(lambda p: float((expected(row, (p, *rest), **how) * heads(wanted.shape)).sum()), row.arrays[0])
    np.testing.assert_allclose(grad, rise, rtol=1e-5, atol=max(exact, 1e-7) * np.abs(rise).max())


def weights(row: Formula) -> Iterator[tuple[Any, Any]]:
    """Sample weights as they are given, and as they count."""
    shape = row.elements(*row.arrays).shape
    rng = np.random.default_rng(len(shape))
    yield None, None
    for given in ((shape[0], *[1] * (len(shape) - 1)), (1, *shape[1:]), shape):
        weight = rng.random(given)
        yield weight, weight
    each = rng.random(shape[0])
    spread = each.reshape(-1, *[1] * (len(shape) - 1))
    if shape[-1] != shape[0]:
        yield each, spread


@pytest.mark.parametrize("name", FORMULAS)
def test_eager(name: str) -> None:
    """Each loss, with and without `weight`, along another batch axis, under every kind of sample weight."""
    row = FORMULAS[name]
    check(row, row.make(**row.settings), row.arrays, "float32")
    variants: list[dict[str, Any]] = [{}, {"weight": 2.5}]
    if row.reduce in ("mean", "sum") and row.elements(*row.arrays).shape[1] > 1:
        variants.append({"batch_axis": 1})
    for how in variants:
        block = row.make(**row.settings, **how)
        for given, counts in weights(row):
            check(row, block, (*row.arrays, given), "float64", **how, sample_weight=counts)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", UNWEIGHTED)
def test_eager_without_sample_weights(name: str, dtype: str) -> None:
    row = UNWEIGHTED[name]
    check(row, row.make(**row.settings), row.arrays, dtype)


def test_weight_of_triplets() -> None:
    """Samples lie along batch_axis; SDML's weight counts for nothing, as in MXNet."""
    turned = [a.T.copy() for a in UNWEIGHTED["triplet"].arrays]
    out, _ = found_by(loss.TripletLoss(margin=2, weight=3.0, batch_axis=1), turned, "float64")
    np.testing.assert_allclose(out, 3 * triplet(P, X2, X3))
    out, _ = found_by(loss.SDMLLoss(weight=3.0), (P, X2), "float64")
    np.testing.assert_allclose(out, sdml(P, X2))


@pytest.mark.parametrize("from_sigmoid", [False, True])
def test_positive_weight(from_sigmoid: bool) -> None:
    row = Formula(loss.SigmoidBCELoss, (P, BITS), lambda p, y: bce(p, y, POSITIVE))
    if from_sigmoid:
        row = row._replace(
            arrays=(PROBABILITY, BITS),
            elements=lambda p, y: -(POSITIVE * y * np.log(p) + (1 - y) * np.log(1 - p)),
        )
    block = row.make(from_sigmoid=from_sigmoid, weight=2.0)
    for given, counts in weights(row):
        check(row, block, (*row.arrays, given, POSITIVE), "float64", weight=2.0, sample_weight=counts)


def test_further_arguments_of_poisson() -> None:
    row = Formula(loss.PoissonNLLLoss, (PROBABILITY, COUNTS), lambda p, y: p - y * np.log(p + 0.1), "all")
    given = [nd.array(a) for a in row.arrays]
    out = loss.PoissonNLLLoss(from_logits=False)(*given, None, 0.1)
    np.testing.assert_allclose(out.asnumpy(), expected(row, row.arrays), rtol=1e-6)
    nothing = loss.PoissonNLLLoss(compute_full=True)(nd.array(P), nd.array(BITS))
    assert np.isnan(nothing.asnumpy()).all()  # as in MXNet: 0 log 0


def test_far_from_zero() -> None:
    """No overflow where e^p would; no NaN for vectors of length 0."""
    far = nd.array([[800.0, -800.0]])
    far.attach_grad()
    for block, label, wanted, rise in (
        (loss.SigmoidBCELoss(), [[0, 0]], 400.0, [0.5, 0]),
        (loss.LogisticLoss(), [[-1, -1]], 400.0, [0.5, 0]),
        (loss.SoftmaxCELoss(), [1], 1600.0, [1, -1]),
        (loss.KLDivLoss(from_logits=False), [[0, 1]], 1600.0, [1, -1]),
    ):
        with autograd.record():
            out = block(far, nd.array(label))
        out.backward()
        assert out.asscalar() == pytest.approx(wanted)
        np.testing.assert_allclose(far.grad.asnumpy(), [rise], atol=1e-6)
    zero = nd.zeros((1, 3))
    zero.attach_grad()
    with autograd.record():
        out = loss.CosineEmbeddingLoss()(zero, nd.ones((1, 3)), nd.array([1]))
    out.backward()
    assert out.asscalar() == 1 and np.isfinite(zero.grad.asnumpy()).all()


@pytest.mark.parametrize("from_logits", [False, True])
def test_numbers_that_are_no_class(from_logits: bool) -> None:
    """Padding such as -1 is taken out by a sample weight of 0."""
    x, keeps = nd.array(P), nd.array([1, 0, 1, 0])
    x.attach_grad()
    with autograd.record():
        each = loss.SoftmaxCELoss(from_logits=from_logits)(x, nd.array([0, -1, 1, 7]), keeps)
    each.backward()
    log_p = P if from_logits else log_softmax(P)
    np.testing.assert_allclose(each.asnumpy(), [-log_p[0, 0], 0, -log_p[2, 1], 0], rtol=1e-6)
    assert not x.grad.asnumpy()[[1, 3]].any() and x.grad.asnumpy()[[0, 2]].any()


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64"])
def test_classes_of_any_type(dtype: str) -> None:
    x = nd.array(P)
    x.attach_grad()
    with autograd.record():
        each = loss.SoftmaxCELoss()(x, nd.array(CLASSES, dtype=dtype))
    each.backward()
    share = np.exp(log_softmax(P)) - np.eye(3)[CLASSES.astype(int)]
    np.testing.assert_allclose(x.grad.asnumpy(), share, atol=2e-6)


# -- traced and compiled

ROWS = {**FORMULAS, **UNWEIGHTED}
COMPILED = (  # one of each loss; every further one costs a second of LLVM
    *("l2", "l1", "huber 0.3", "bce", "bce sigmoid", "ce", "ce dense", "ce of pixels", "kl scores", "hinge"),
    *("squared hinge", "logistic", "poisson rates", "cosine", "triplet", "sdml"),
)
WEIGHT = np.array([0.5, 2.0, 1.0, 0.0])


class All(gluon.HybridBlock):
    """Several losses, each with a weight and a sample weight; predictions are arguments, or parameters."""

    def __init__(self, names: Sequence[str], trained: bool):
        super().__init__()
        self.names = tuple(names)
        self.losses = gluon.nn.HybridSequential()
        self.losses.add(*(ROWS[name].make(**ROWS[name].settings, weight=1.5) for name in names))
        self.preds = []
        for k, name in enumerate(names if trained else ()):
            first = ROWS[name].arrays[0]
            setattr(self, f"pred{k}", gluon.Parameter(f"pred{k}", shape=first.shape, init=mx.init.Constant(first)))
            self.preds.append(getattr(self, f"pred{k}"))

    def forward(self, *preds: Any) -> Any:
        results = []
        preds = tuple(p.data() for p in self.preds) or preds
        for name, block, pred in zip(self.names, self.losses._children.values(), preds, strict=True):
            rest = [nd.array(a) for a in ROWS[name].arrays[1:]]
            if name not in UNWEIGHTED:
                rest.append(nd.array(WEIGHT[: pred.shape[0]]))
            results.append(block(pred, *rest))
        return results


def found_of(block: All) -> tuple[list[Any], list[Any]]:
    """All results, and the gradients of their sum."""
    preds = [nd.array(ROWS[name].arrays[0]) for name in block.names]
    for p in preds:
        p.attach_grad()
    with autograd.record():
        out = block(*preds)
    autograd.backward(out)
    return [x.asnumpy() for x in out], [p.grad.asnumpy() for p in preds]


def compare(names: Sequence[str], found: Any, wanted: Any) -> None:
    for name, x, y in zip(names, found, wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=5e-6 * max(1, np.abs(y).max()), err_msg=name)


def test_hybridized() -> None:
    """All losses as one block: traced and differentiated; run node by node, which costs no compilation."""
    values, grads = found_of(All(tuple(ROWS), trained=False))
    block = All(tuple(ROWS), trained=False)
    block.hybridize()
    with debug.override(backend="reference"):
        found = found_of(block)
    compare(block.names, found[0], values)
    compare(block.names, found[1], grads)


def test_compiled() -> None:
    """In one compiled training step, whose weights are the predictions."""
    values, grads = found_of(All(COMPILED, trained=False))
    net = All(COMPILED, trained=True)
    net.initialize()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    step = mx.compile(lambda _: nd.concat(*(x.reshape((-1,)) for x in net()), dim=0), trainer=trainer)
    before = [p.data().asnumpy() for p in net.preds]
    out = step(np.zeros(1, np.float32), batch_size=1)
    np.testing.assert_allclose(out.asnumpy(), np.concatenate([v.ravel() for v in values]), rtol=1e-5, atol=1e-5)
    found = [(a - p.data().asnumpy()) / 0.5 for a, p in zip(before, net.preds, strict=True)]
    compare(COMPILED, found, grads)


# -- what users write


def test_losses_written_for_mxnet() -> None:
    class Scaled(loss.Loss):
        def __init__(self, scale: float, weight: Any = None, batch_axis: int = 0):
            super().__init__(weight, batch_axis)
            self._scale = scale

        def hybrid_forward(self, F: Any, pred: Any, label: Any, sample_weight: Any = None) -> Any:
            label = loss._reshape_like(F, label, pred)
            losses = loss._apply_weighting(F, F.abs(pred - label) * self._scale, self._weight, sample_weight)
            return F.mean(losses, axis=self._batch_axis, exclude=True)

    block = Scaled(3.0, weight=2.0)
    given = nd.array(P), nd.array(Y.reshape(2, 6)), nd.array(WEIGHT)
    wanted = (6 * np.abs(P - Y) * WEIGHT[:, None]).mean(axis=1)
    np.testing.assert_allclose(block(*given).asnumpy(), wanted, rtol=1e-5)
    block.hybridize()
    with debug.override(backend="reference"):
        np.testing.assert_allclose(block(*given).asnumpy(), wanted, rtol=1e-5)


def test_printed() -> None:
    assert repr(loss.L2Loss(weight=2.0, batch_axis=1)) == "L2Loss(batch_axis=1, w=2.0)"


A, B = nd.array(P), nd.array(CLASSES)
ERRORS: list[tuple[Any, type[Exception], str]] = [
    (lambda: loss.SoftmaxCELoss()(A, B[:3]), ValueError, r"labels f32\[3\] do not fit[\s\S]*test_loss.py"),
    (lambda: loss.SoftmaxCELoss(axis=2)(A, B), ValueError, "SoftmaxCrossEntropyLoss: .* no axis 2"),
    (lambda: loss.KLDivLoss(from_logits=False, axis=2)(A, A), ValueError, "KLDivLoss: .* no axis 2"),
    (lambda: loss.L2Loss()(A, B), mx.MXNetError, r"L2Loss: the label f32\[4\]"),
    (lambda: loss.L1Loss(batch_axis=2)(A, A), ValueError, "axis 2 does not exist"),
    (lambda: loss.L1Loss()(A, A, nd.ones((2,))), ValueError, r"the sample weight f32\[2\] does not fit losses f32\[4"),
    (lambda: loss.L1Loss(weight="2"), AssertionError, "L1Loss: weight must be a number, not '2'"),
    (lambda: loss._apply_weighting(nd, A, A), AssertionError, "weight must be a number"),
    (lambda: loss.HuberLoss(rho=0), ValueError, "HuberLoss: rho"),
    (lambda: loss.LogisticLoss(label_format="x"), ValueError, "'signed' or 'binary', not 'x'"),
    (lambda: loss.CosineEmbeddingLoss()(A, A, nd.ones((3,))), ValueError, "not one for each vector"),
    (lambda: loss.SDMLLoss()(A, A[:2]), ValueError, "SDMLLoss: .* not pairs"),
    (lambda: loss.SDMLLoss()(A[:1], A[:1]), ValueError, "two samples or more"),
    (lambda: loss.TripletLoss()(A, A, A, A), TypeError, "positional"),
    (lambda: loss.Loss(None, 0)(A, A), NotImplementedError, "forward"),
]


@pytest.mark.parametrize("call,error,message", ERRORS)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
