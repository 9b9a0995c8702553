"""Labels and token ids out of range: an error, from compiled code before it has changed anything."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import autograd, gluon, nd, ops
from gluongraph.codegen.tvm import machine_code
from gluongraph.errors import IndexRangeError, TraceError
from gluongraph.ir.graph import Graph, TensorType
from gluongraph.ir.plan import INDEX_FLAG
from gluongraph.ops.index_checks import checks_of, flagged

ROWS, CLASSES = 11, 5
TOKENS = np.array([[0, 10, 3], [4, 4, 1], [9, 2, 0], [1, 1, 1]], np.int32)
LABELS = np.array([0, 4, 2, 1], np.int32)
LOSS = gluon.loss.SoftmaxCrossEntropyLoss()


class Net(gluon.HybridBlock):
    """An embedding, and what changes besides weights: running statistics, random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = gluon.nn.Embedding(ROWS, 6), gluon.nn.BatchNorm(in_channels=6)
        self.drop, self.out = gluon.nn.Dropout(0.3), gluon.nn.Dense(CLASSES, in_units=6)

    def forward(self, tokens: Any) -> Any:
        return self.out(self.drop(self.norm(self.words(tokens).sum(axis=1))))


class Late(Net):
    """Indices that are computed from what a batch norm makes: 0 to 4, and 12 where `tokens` hold a 10."""

    def forward(self, tokens: Any) -> Any:
        seen = self.norm(self.words(tokens).sum(axis=1))
        chosen = nd.argmax(self.out(self.drop(seen)), axis=1) + 12.0 * (nd.max(tokens.astype("float32"), axis=1) == 10)
        return self.out(self.words(chosen))


class Training:
    """A net, a trainer with states, a step; and by value all that a step may change."""

    def __init__(self, net: type[Net] = Net, **options: Any) -> None:
        mx.random.seed(1)
        self.net = net()
        self.net.initialize(mx.init.Xavier())
        self.trainer = gluon.Trainer(self.net.collect_params(), "adam", {"learning_rate": 1e-2})
        self.step = mx.compile(self.net, LOSS, self.trainer, **options)

    def state(self) -> dict[str, Any]:
        optimizer, trainer = self.trainer.optimizer, self.trainer
        found = {p.name: p.data().asnumpy().tobytes() for p in trainer.params}
        for name, states in trainer.states.items():
            found |= {f"{name}/{key}": array.asnumpy().tobytes() for key, array in states.items()}
        return {**found, "counts": optimizer.counts(), "random": mx.random.get_state()}


def with_value(array: Any, at: tuple[int, ...], value: float) -> Any:
    """A copy with one other element; as floats where an integer does not hold it."""
    made = array.astype(np.float32) if value != value or value % 1 else array.copy()
    made[at] = value
    return made


WRONG = [-1, ROWS, math.nan, 1.5, 2**30]


@pytest.fixture(scope="module")
def training() -> Training:
    made = Training()
    made.step(TOKENS, LABELS)
    return made


@pytest.mark.parametrize("value", WRONG)
@pytest.mark.parametrize("mode", ["__call__", "accumulate", "evaluate", "grads"])
def test_a_compiled_call_refuses_and_has_changed_nothing(training: Training, mode: str, value: float) -> None:
    call, before = getattr(training.step, mode), training.state()
    with pytest.raises(IndexRangeError, match=rf"Embedding: index {value} at \(2, 1\) is not an integer") as caught:
        call(with_value(TOKENS, (2, 1), value), LABELS)
    assert "made by embedding" in str(caught.value) and f"{pathlib.Path(__file__).name}:" in str(caught.value)
    with pytest.raises(IndexRangeError, match=rf"SoftmaxCrossEntropyLoss: label {value} at 3 is not"):
        call(TOKENS, with_value(LABELS, (3,), value))
    assert training.state() == before
    if mode == "__call__":
        assert np.isfinite(training.step(TOKENS, LABELS).asnumpy()).all()


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("value", WRONG)
def test_eager_and_hybridized_calls_refuse(value: float, hybrid: bool) -> None:
    net = Net()
    net.initialize()
    net.hybridize(hybrid)
    tokens = nd.array(with_value(TOKENS, (0, 2), value))
    with pytest.raises(IndexRangeError, match=rf"Embedding: index {value} at \(0, 2\)"):
        net(tokens)
    with autograd.record(), pytest.raises(IndexRangeError, match=rf"Embedding: index {value} at \(0, 2\)"):
        net(tokens)
    assert np.isfinite(net(nd.array(TOKENS)).asnumpy()).all()


@pytest.mark.parametrize("options", [{"precision": "bf16-mixed"}, {"precision": "16-mixed"}, {"clip_norm": 1.0}])
def test_other_steps_change_nothing_either(options: dict[str, Any]) -> None:
    training = Training(**options)
    training.step(TOKENS, LABELS)
    before = training.state()
    for batch in ((with_value(TOKENS, (0, 0), ROWS), LABELS), (TOKENS, with_value(LABELS, (0,), -1))):
        with pytest.raises(IndexRangeError):
            training.step(*batch)
    assert training.state() == before


def test_indices_that_are_computed_late_are_checked_before_anything_is_written() -> None:
    """Running statistics, which the index depends on, are not written in place then."""
    training = Training(Late)
    tokens = np.minimum(TOKENS, 9)
    training.step(tokens, LABELS)
    before = training.state()
    with pytest.raises(IndexRangeError, match=r"Embedding: index 1[2-6] at 0 is not"):
        training.step(TOKENS, LABELS)
    assert training.state() == before
    training.step(tokens, LABELS)
    assert training.state() != before


def test_an_entry_point_of_several_parts_ends_too(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setattr(machine_code, "PART", 2)
    monkeypatch.setenv("GG_CACHE", str(tmp_path))
    training = Training()
    training.step(TOKENS, LABELS)
    before = training.state()
    with pytest.raises(IndexRangeError):
        training.step(with_value(TOKENS, (0, 0), ROWS), LABELS)
    assert training.state() == before


def test_the_reference_backend_refuses_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GG_BACKEND", "reference")
    training = Training()
    training.step(TOKENS, LABELS)
    before = training.state()
    with pytest.raises(IndexRangeError, match="Embedding: index 11"):
        training.step(with_value(TOKENS, (0, 0), ROWS), LABELS)
    assert training.state() == before


def test_code_is_that_of_plain_indices_and_one_flag() -> None:
    """No kernel but those that count is another for a graph that checks its indices."""
    x, w = ops.input("x", TensorType((4,), "i32")), ops.input("w", TensorType((ROWS, 6)))
    checked = Graph({"x": x, "w": w}, {"y": ops.embedding(ops.checked_index(x, ROWS, what="a", help=""), w)})
    made = flagged(checked)
    assert made.outputs["y"] is ops.embedding(x, w)
    assert set(made.outputs) == {"y", INDEX_FLAG} and not checks_of(made)
    assert flagged(made) is made


# -- losses


def labelled(
    loss: gluon.loss.Loss, label: Any, *weight: Any, shape: tuple[int, ...] = (3, 4, CLASSES)
) -> tuple[Any, Any]:
    """The loss of random predictions, and its gradient."""
    pred = nd.array(np.random.RandomState(5).randn(*shape).astype(np.float32))
    pred.attach_grad()
    with autograd.record():
        value = loss(pred, nd.array(label), *map(nd.array, weight))
    value.backward()
    return value.asnumpy(), pred.grad.asnumpy()


@pytest.mark.parametrize("from_logits", [False, True])
@pytest.mark.parametrize("ignored", [-100, -1, 2])
def test_ignore_index_is_that_of_pytorch(ignored: int, from_logits: bool) -> None:
    torch = pytest.importorskip("torch")
    label = np.array([[0, ignored, 4, 1], [ignored] * 4, [3, 3, 1, ignored]])
    loss = gluon.loss.SoftmaxCrossEntropyLoss(ignore_index=ignored, from_logits=from_logits)
    value, grad = labelled(loss, label)
    pred = torch.tensor(np.random.RandomState(5).randn(3, 4, CLASSES).astype(np.float32), requires_grad=True)
    function = torch.nn.functional.nll_loss if from_logits else torch.nn.functional.cross_entropy
    each = function(pred.movedim(2, 1), torch.tensor(label), ignore_index=ignored, reduction="none")
    wanted = each.sum(1) / (torch.tensor(label) != ignored).sum(1).clamp(min=1)
    wanted.sum().backward()
    np.testing.assert_allclose(value, wanted.detach().numpy(), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(grad, pred.grad.numpy(), rtol=1e-5, atol=1e-7)
    assert (value[1], np.abs(grad[1]).max()) == (0, 0)


@pytest.mark.parametrize("shape", [(3, 1, 1), (3, 4, 1), (1, 4, 1)])
def test_a_label_whose_weight_is_0_may_be_anything(shape: tuple[int, ...]) -> None:
    weight = np.ones(shape, np.float32)
    weight.reshape(shape[0], -1)[-1] = 0  # the last sample, or of weights per position all
    label = np.array([[0, 1, 4, 1], [3, 3, 1, 0], [2, 2, 2, 2]])
    free = np.broadcast_to(weight.reshape((*shape, 1, 1)[:3]), (3, 4, 1))[..., 0] == 0
    value, grad = labelled(LOSS, np.where(free, -7, label), weight)
    wanted, slope = labelled(LOSS, label, weight)
    np.testing.assert_array_equal(value, wanted)
    np.testing.assert_array_equal(grad, slope)
    if not free.all():
        with pytest.raises(IndexRangeError, match="label -7"):
            labelled(LOSS, np.where(free, label, -7), weight)


def test_ignore_index_is_for_class_numbers() -> None:
    with pytest.raises(ValueError, match="ignore_index"):
        gluon.loss.SoftmaxCrossEntropyLoss(sparse_label=False, ignore_index=-1)


# -- other places that take indices


CALLS: list[tuple[str, Callable[[Any], Any], float, float]] = [
    ("Embedding", lambda k: nd.Embedding(nd.array([k]), nd.ones((3, 2)), input_dim=3, output_dim=2), 2, 3),
    ("gather_nd", lambda k: nd.gather_nd(nd.ones((3, 2)), nd.array([[0, k]])), -3, -4),
    ("gather_nd", lambda k: nd.gather_nd(nd.ones((3, 2)), nd.array([[0, 0], [k, 1]])), 1, 2),
    ("scatter_nd", lambda k: nd.scatter_nd(nd.ones(1), nd.array([[k]]), shape=(3,)), 2, 3),
    ("softmax_cross_entropy", lambda k: nd.softmax_cross_entropy(nd.ones((1, 3)), nd.array([k])), 2, 3),
    ("SoftmaxOutput", lambda k: nd.SoftmaxOutput(nd.ones((1, 3)), nd.array([k])), -1, -2),
    ("CTCLoss", lambda k: nd.CTCLoss(nd.ones((2, 1, 3)), nd.array([[k]])), 2, 3),
    ("CTCLoss", lambda k: gluon.loss.CTCLoss()(nd.ones((1, 2, 3)), nd.array([[1, k]])), 0, 3),
    ("SVMOutput", lambda k: nd.SVMOutput(nd.ones((1, 3)), nd.array([k])), 0, -1),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_the_last_that_fits_and_the_first_that_does_not(number: int) -> None:
    name, call, fits, wrong = CALLS[number]
    assert np.isfinite(call(fits).asnumpy()).all()
    for value in (wrong, fits + 0.5, math.nan):
        with pytest.raises(IndexRangeError, match=rf"^{name}: (index|label) {value} at"):
            call(value)


def test_take_pick_and_one_hot_clip_as_they_say() -> None:
    x = nd.array([[1.0, 2.0, 3.0]])
    assert nd.take(x, nd.array([7]), axis=1).asscalar() == 3
    assert nd.pick(x, nd.array([-2])).asscalar() == 1
    assert nd.one_hot(nd.array([9]), 3).sum().asscalar() == 0


def test_a_gradient_with_rows_is_refused_too() -> None:
    net = gluon.nn.Embedding(ROWS, 3, sparse_grad=True)
    net.initialize()
    with autograd.record(), pytest.raises(IndexRangeError):
        net(nd.array([ROWS]))


def test_loops_check_when_they_run_in_eager_mode() -> None:
    """In compiled loops nothing is checked: the flag is of the graph itself."""
    weight = nd.ones((3, 2))

    def body(token: Any, state: Any) -> Any:
        return nd.Embedding(token, weight, input_dim=3, output_dim=2), state

    try:
        with pytest.raises(IndexRangeError):
            nd.contrib.foreach(body, nd.array([[3]]), nd.zeros(1))
    except TraceError:
        pytest.fail("an eager loop runs")
