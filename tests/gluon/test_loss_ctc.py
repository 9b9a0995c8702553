"""CTC against all paths counted one by one, and against PyTorch; lengths, layouts, and labels that do not fit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import autograd, debug, gluon, nd, ops
from gluongraph.errors import IndexRangeError
from gluongraph.ir.graph import TensorType, topological
from gluongraph.mxops import ctc as mxctc

RNG = np.random.default_rng(3)
SCORES = RNG.normal(size=(3, 5, 4))  # samples, frames, classes; the last class is the blank
LABELS = np.array([[0, 1, 1], [2, 2, -1], [1, -1, -1]])


def read(path: tuple[int, ...], blank: int) -> list[int]:
    """What a path says: repeated symbols merged, then blanks dropped."""
    return [symbol for symbol, _ in itertools.groupby(path) if symbol != blank]


def counted(scores: Any, label: list[int], blank: int) -> float:
    """-log of the summed probability of all paths that say the label."""
    p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    frames, classes = scores.shape
    paths = itertools.product(range(classes), repeat=frames)
    return float(-np.log(sum(np.prod(p[range(frames), path]) for path in paths if read(path, blank) == label)))


def slopes(function: Callable[[Any], float], at: Any) -> Any:
    found, step = np.zeros_like(at), 1e-6
    for index in np.ndindex(at.shape):
        there = np.zeros_like(at)
        there[index] = step
        found[index] = (function(at + there) - function(at - there)) / (2 * step)
    return found


def found_by(block: Any, scores: Any, *rest: Any) -> tuple[Any, Any]:
    """Losses, and the gradient of Σ (k + 1) loss_k."""
    pred = nd.array(scores, dtype=scores.dtype)
    pred.attach_grad()
    with autograd.record():
        out = block(pred, *(None if a is None else nd.array(a) for a in rest))
    out.backward(nd.array(np.arange(1.0, out.size + 1), dtype=scores.dtype))
    return out.asnumpy(), pred.grad.asnumpy()


FRAMES = np.array([5, 4, 2])
LENGTHS: list[tuple[str, Any, Any, Any]] = [
    ("padding", LABELS, None, None),
    ("label lengths", np.abs(LABELS), None, np.array([3, 2, 1])),
    ("frames", LABELS, FRAMES, None),
    ("both", np.abs(LABELS), FRAMES, np.array([3, 2, 1])),
    ("nothing to say", np.full((3, 2), -1), FRAMES, None),
    ("what stands behind the padding", np.array([[0, -1, 1], [2, -1, -1], [1, 2, -1]]), None, None),
]


@pytest.mark.parametrize("labels,frames,symbols", [c[1:] for c in LENGTHS], ids=[c[0] for c in LENGTHS])
def test_all_paths(labels: Any, frames: Any, symbols: Any) -> None:
    out, grad = found_by(gluon.loss.CTCLoss(), SCORES, labels, frames, symbols)
    for k, (scores, row) in enumerate(zip(SCORES, labels, strict=True)):
        end = len(scores) if frames is None else frames[k]
        said = list(itertools.takewhile(lambda s: s >= 0, row)) if symbols is None else list(row[: symbols[k]])
        assert out[k] == pytest.approx(counted(scores[:end], said, 3), rel=1e-9)
        rise = np.zeros_like(scores)
        rise[:end] = (k + 1) * slopes(lambda s, said=said: counted(s, said, 3), scores[:end])
        np.testing.assert_allclose(grad[k], rise, atol=1e-7)


def test_layouts_and_weights() -> None:
    plain, _ = found_by(gluon.loss.CTCLoss(), SCORES, LABELS)
    turned = np.ascontiguousarray(SCORES.swapaxes(0, 1)), LABELS.T, None, None, np.array([1.0, 2.0, 0.0])
    out, _ = found_by(gluon.loss.CTCLoss(layout="TNC", label_layout="TN", weight=3.0), *turned)
    np.testing.assert_allclose(out, 3 * plain * turned[-1])
    assert repr(gluon.loss.CTCLoss(label_layout="TN")) == "CTCLoss(batch_axis=1, w=None)"


@pytest.mark.parametrize("call", [nd.CTCLoss, nd.ctc_loss, nd.contrib.ctc_loss])
def test_function(call: Any) -> None:
    """Of nd: the blank is class 0, unless said; lengths count where they are to be used."""
    scores, labels = np.ascontiguousarray(SCORES.swapaxes(0, 1)), np.array([[1, 2, 2], [3, 3, 0], [2, 0, 0]])
    out = call(nd.array(scores), nd.array(labels), nd.array(FRAMES), nd.array([1, 1, 1])).asnumpy()
    says = [[1, 2, 2], [3, 3], [2]]
    np.testing.assert_allclose(out, [counted(s, label, 0) for s, label in zip(SCORES, says, strict=True)], rtol=1e-5)
    last = call(nd.array(scores), nd.array(LABELS), nd.array(FRAMES), use_data_lengths=True, blank_label="last")
    plain, _ = found_by(gluon.loss.CTCLoss(), SCORES, LABELS, FRAMES)
    np.testing.assert_allclose(last.asnumpy(), plain, rtol=1e-5)


def test_labels_that_need_more_frames() -> None:
    """A repeated symbol needs a blank between: such a label costs nothing and teaches nothing, as in MXNet."""
    out, grad = found_by(gluon.loss.CTCLoss(), SCORES[:, :2], np.array([[0, 0], [0, 1], [2, -1]]), np.array([2, 2, 0]))
    assert out[0] == out[2] == 0 and out[1] > 0
    assert not grad[0].any() and not grad[2].any() and grad[1].any()


def test_extremes() -> None:
    """Certain and impossible symbols, over many frames, in float32 and float16."""
    scores = np.full((1, 300, 4), -1e4, np.float32)
    scores[0, :, 3] = 1e4
    scores[0, 7, 1] = 3e4
    out, grad = found_by(gluon.loss.CTCLoss(), scores, np.array([[1]]))
    assert abs(out[0]) < 1e-3 and np.isfinite(grad).all()
    scores[0, :, 0] = -np.inf
    out, grad = found_by(gluon.loss.CTCLoss(), scores, np.array([[1]]))
    assert abs(out[0]) < 1e-3 and np.isfinite(grad).all()
    half, _ = found_by(gluon.loss.CTCLoss(), SCORES.astype(np.float16), LABELS)
    plain, _ = found_by(gluon.loss.CTCLoss(), SCORES, LABELS)
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, plain, rtol=3e-3)


SHAPE, SYMBOLS = (24, 5, 7), 6
LONG = RNG.normal(size=SHAPE).astype(np.float32) * 2
SAID = RNG.integers(0, 6, (5, SYMBOLS))
LONG_FRAMES, LONG_SYMBOLS = np.array([24, 20, 15, 24, 12]), np.array([6, 3, 1, 5, 4])


def torch_results() -> tuple[Any, Any]:
    torch = pytest.importorskip("torch")
    scores = torch.tensor(LONG.astype(np.float64), requires_grad=True)
    lengths = torch.tensor(LONG_FRAMES), torch.tensor(LONG_SYMBOLS)
    log_p = torch.log_softmax(scores, dim=2)
    losses = torch.nn.functional.ctc_loss(log_p, torch.tensor(SAID), *lengths, blank=6, reduction="none")
    (losses * torch.arange(1, 6)).sum().backward()
    return losses.detach().numpy(), scores.grad.numpy()


@pytest.mark.parametrize("mode", ["eager", "reference", "compiled"])
def test_torch(mode: str) -> None:
    """A longer one than can be counted."""
    losses, grads = torch_results()
    block = gluon.loss.CTCLoss(layout="TNC")
    if mode != "eager":
        block.hybridize()
    with debug.override(backend="reference" if mode == "reference" else ""):
        out, grad = found_by(block, LONG, SAID, LONG_FRAMES, LONG_SYMBOLS)
    np.testing.assert_allclose(out, losses, rtol=2e-6)
    np.testing.assert_allclose(grad, grads, atol=5e-6 * np.abs(grads).max())


def test_frames_are_turns_of_one_loop() -> None:
    """The graph does not grow with the number of frames."""

    def graph(frames: int) -> list[str]:
        scores = ops.input("scores", TensorType((frames, 2, 5)))
        found = mxctc.CTCLoss(scores, ops.input("labels", TensorType((2, 4), "i32")))
        return [n.op.name for n in topological([found])]

    assert graph(10) == graph(1000) and graph(10).count("scan") == 1


@pytest.mark.parametrize("wrong", [4, 5, -2, 1.5, np.nan, 2**40])
@pytest.mark.parametrize("lengths", [False, True])
def test_labels_that_are_no_classes(wrong: float, lengths: bool) -> None:
    """An error, also from a compiled step, which has then changed nothing; behind the end of a label they are free."""
    net, loss = gluon.nn.Dense(4, in_units=4, flatten=False), gluon.loss.CTCLoss()
    net.initialize(mx.init.Xavier())
    function = (lambda x, y, n: loss(net(x), y, None, n)) if lengths else (lambda x, y, n: loss(net(x), y))
    step = mx.compile(function, trainer=gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}))
    scores, symbols = SCORES.astype(np.float32), np.array([3, 2, 1], np.int32)
    bad, free = LABELS.astype(np.float64), LABELS.astype(np.float64)
    bad[1, 0], free[2, 2] = wrong, wrong
    expected = function(*map(nd.array, (scores, LABELS, symbols))).asnumpy()
    np.testing.assert_array_equal(function(*map(nd.array, (scores, free, symbols))).asnumpy(), expected)
    np.testing.assert_allclose(step.evaluate(scores, free, symbols).asnumpy(), expected, rtol=1e-5)
    before = net.weight.data().asnumpy()
    for call in (lambda *batch: function(*map(nd.array, batch)), step.evaluate, step):
        with pytest.raises(IndexRangeError, match=r"CTCLoss: label \S+ at \(1, 0\) is not an integer from 0 to 3"):
            call(scores, bad, symbols)
    np.testing.assert_array_equal(net.weight.data().asnumpy(), before)
    step(scores, free, symbols)
    assert (net.weight.data().asnumpy() != before).any()


def test_labels_of_blank_first() -> None:
    """0 ends a label; where lengths say that it counts, it is a class as others are, as in MXNet."""
    scores = nd.array(SCORES.swapaxes(0, 1))
    for end, count in ((0, [2, 1, 1]), (-5, [2, 1, 1])):
        labels = nd.array([[1, 3, 0], [2, 0, end], [3, 0, end]])
        assert (nd.CTCLoss(scores, labels).asnumpy() > 0).all()
        nd.CTCLoss(scores, labels, None, nd.array(count), use_label_lengths=True).asnumpy()
    assert np.isfinite(nd.CTCLoss(scores, labels, None, nd.array([3, 1, 1]), use_label_lengths=True).asnumpy()).all()
    with pytest.raises(IndexRangeError, match=r"CTCLoss: label -5 at \(1, 2\) is not an integer from 0 to 3"):
        nd.CTCLoss(scores, labels, None, nd.array([2, 3, 1]), use_label_lengths=True)


T, L = nd.ones((4, 2, 3)), nd.ones((2, 2))
ERRORS: list[tuple[Any, type[Exception], str]] = [
    (lambda: gluon.loss.CTCLoss(layout="NCT"), AssertionError, "'NTC' or 'TNC'"),
    (lambda: gluon.loss.CTCLoss(label_layout="TNC"), AssertionError, "'NT' or 'TN'"),
    (lambda: nd.CTCLoss(T, L, blank_label="x"), mx.MXNetError, "'first' or 'last', not 'x'"),
    (lambda: nd.CTCLoss(T, nd.ones((3, 2))), mx.MXNetError, r"labels f32\[3,2\] do not fit scores f32\[4,2,3\]"),
    (lambda: nd.CTCLoss(T, nd.ones((2,))), mx.MXNetError, "labels"),
    (lambda: nd.CTCLoss(T, nd.ones((2, 5))), mx.MXNetError, "labels of 5 symbols"),
    (lambda: nd.CTCLoss(T, L, nd.ones((3,)), use_data_lengths=True), mx.MXNetError, "data_lengths"),
    (lambda: gluon.loss.CTCLoss()(nd.ones((2, 4, 3)), L, None, L), mx.MXNetError, "label_lengths"),
]


@pytest.mark.parametrize("call,error,message", ERRORS)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
