"""Batches and sequences of many lengths: at most three programs, and the results of exact shapes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import autograd, debug, gluon, nd
from gluongraph.errors import ArgumentError, IndexRangeError, MXNetError, ShapeError
from gluongraph.gluon import nn, rnn
from gluongraph.step.dynamic import check_alone
from gluongraph.step.sizes import LIMIT, few, policy_of

SOFTMAX = gluon.loss.SoftmaxCrossEntropyLoss()
WORDS = 12
SEQUENCE = {0: {1: "length"}, 1: {1: "length"}}
BOTH = {0: {0: "batch", 1: "length"}, 1: {0: "batch", 1: "length"}}


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs in numpy: what is tested is which they are."""
    monkeypatch.setenv("GG_BACKEND", "reference")


class Transformer(gluon.HybridBlock):
    """One layer with attention over the whole sequence, and no mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv = nn.Embedding(WORDS, 8), nn.Dense(24, flatten=False, in_units=8)
        self.norm, self.out = nn.LayerNorm(in_channels=8), nn.Dense(WORDS, flatten=False, in_units=8)

    def forward(self, words: Any) -> Any:
        batch, length = words.shape
        h = self.embed(words) + nd.arange(length).reshape((1, length, 1)) * 0.01
        heads = self.qkv(h).reshape((batch, length, 3, 2, 4)).transpose((2, 0, 3, 1, 4)).reshape((3, -1, length, 4))
        scores = nd.softmax(nd.batch_dot(heads[0], heads[1], transpose_b=True) * 0.5, axis=-1)
        mixed = nd.batch_dot(scores, heads[2]).reshape((batch, 2, length, 4)).transpose((0, 2, 1, 3))
        return self.out(self.norm(h + mixed.reshape((batch, length, 8))))


class Recurrent(gluon.HybridBlock):
    """A recurrent layer in both directions, of which the mean and the last state are read."""

    def __init__(self, cell: Any = rnn.LSTM) -> None:
        super().__init__()
        self.layer = cell(4, layout="NTC", input_size=3, bidirectional=True)
        self.out = nn.Dense(5, in_units=16)

    def forward(self, x: Any) -> Any:
        h = self.layer(x)
        return self.out(nd.concat(h.mean(axis=1), h[:, -1], dim=1))


def perceptron() -> Any:
    net = nn.HybridSequential()
    net.add(nn.Dense(8, activation="relu", in_units=4), nn.Dropout(0.0), nn.Dense(5, in_units=8))
    return net


def images() -> Any:
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, padding=1, in_channels=2), nn.BatchNorm(in_channels=4), nn.Activation("relu"))
    net.add(nn.MaxPool2D(2), nn.Flatten(), nn.Dense(5, in_units=16))
    return net


def trained(net: Any, optimizer: str = "sgd", **options: Any) -> Any:
    """A step of a net."""
    trainer = gluon.Trainer(net.collect_params(), optimizer, {"learning_rate": 0.05})
    return mx.compile(net, options.pop("loss", SOFTMAX), trainer, **options)


def pair(make: Any, **options: Any) -> tuple[Any, Any]:
    """The step of a net, and an equal net for the exact results."""
    nets = []
    for _ in range(2):
        mx.random.seed(5)
        np.random.seed(5)
        net = make()
        net.initialize(mx.init.Xavier())
        nets.append(net)
    return trained(nets[0], **options), nets[1]


def eager(net: Any, trainer: Any, x: Any, y: Any) -> Any:
    """The loss of one step as it is computed eagerly, on arrays of exact shapes: by numpy, since kernels would be
    compiled for each of the shapes."""
    with debug.override(backend="reference"):
        with autograd.record():
            loss = SOFTMAX(net(nd.array(x, dtype=x.dtype)), nd.array(y, dtype=y.dtype))
        loss.backward()
        trainer.step(len(x))
        return loss.asnumpy()


def weights(net: Any) -> list[Any]:
    """Of a net, or those that a trainer updates."""
    parameters = net.params if isinstance(net, gluon.Trainer) else net.collect_params().values()
    return [p.data().asnumpy() for p in parameters]


def same(a: Any, b: Any, atol: float = 2e-6) -> None:
    for one, other in zip(weights(a), weights(b), strict=True):
        np.testing.assert_allclose(one, other, atol=atol, rtol=1e-5)


def words(rng: Any, batch: int, length: int) -> tuple[Any, Any]:
    return tuple(rng.integers(0, WORDS, (batch, length)).astype(np.int32) for _ in range(2))  # type: ignore[return-value]


def samples(*shape: int) -> Any:
    def batch(rng: Any, n: int) -> tuple[Any, Any]:
        return rng.normal(size=(n, *shape)).astype(np.float32), rng.integers(0, 5, n).astype(np.int32)

    return batch


FORTY: dict[str, tuple[Any, Any, Any]] = {
    "perceptron": (perceptron, samples(4), "batch"),
    "images and batch normalization": (images, samples(2, 4, 4), "batch"),
    "transformer": (Transformer, lambda rng, n: words(rng, 2, n), SEQUENCE),
}


@pytest.mark.parametrize("name", FORTY)
def test_forty_lengths(name: str) -> None:
    make, batch, dynamic = FORTY[name]
    rng = np.random.default_rng(7)
    step, exact = pair(make, dynamic=dynamic)
    trainer = gluon.Trainer(exact.collect_params(), "sgd", {"learning_rate": 0.05})
    lengths = [11, *(n for n in rng.permutation(np.arange(3, 43)) if n != 11)]
    assert len(set(lengths)) == 40
    for n in lengths:
        x, y = batch(rng, int(n))
        np.testing.assert_allclose(step(x, y).asnumpy(), eager(exact, trainer, x, y), rtol=1e-6, atol=1e-6)
    assert step.dynamic.compilations <= 3
    same(step.net, exact)


@pytest.mark.parametrize("lengths", [(2,), (2, 1), (3, 2), (1, 2, 3), (9, 2)])
def test_short_lengths_first(lengths: tuple[int, ...], reference: None) -> None:
    """Down to the smallest size that there is, of which a program is another one for the only shorter length."""
    rng = np.random.default_rng(7)
    step, exact = pair(perceptron, dynamic="batch")
    trainer = gluon.Trainer(exact.collect_params(), "sgd", {"learning_rate": 0.05})
    for n in lengths:
        x, y = samples(4)(rng, n)
        np.testing.assert_allclose(step(x, y).asnumpy(), eager(exact, trainer, x, y), rtol=1e-6, atol=1e-6)
    same(step.net, exact)


def test_forty_lengths_of_a_recurrent_layer(reference: None) -> None:
    """In both directions, with a batch that varies too."""
    rng = np.random.default_rng(7)
    free = {0: {0: "batch", 1: "length"}, 1: {0: "batch"}}
    step, exact = pair(Recurrent, dynamic=free, sizes={"length": [8, 20, 41], "batch": [4]})
    trainer = gluon.Trainer(exact.collect_params(), "sgd", {"learning_rate": 0.05})
    for n in rng.permutation(np.arange(2, 42)):
        batch = int(rng.integers(1, 5))
        x, y = rng.normal(size=(batch, int(n), 3)).astype(np.float32), rng.integers(0, 5, batch).astype(np.int32)
        np.testing.assert_allclose(step(x, y).asnumpy(), eager(exact, trainer, x, y), rtol=1e-6, atol=2e-6)
    assert step.dynamic.compilations == 3
    same(step.net, exact)


def test_a_loop_is_compiled() -> None:
    rng = np.random.default_rng(7)
    step, exact = pair(lambda: Recurrent(rnn.GRU), dynamic={0: {1: "length"}}, sizes=[9])
    trainer = gluon.Trainer(exact.collect_params(), "sgd", {"learning_rate": 0.05})
    for n in (9, 4, 7):
        x, y = rng.normal(size=(2, n, 3)).astype(np.float32), rng.integers(0, 5, 2).astype(np.int32)
        np.testing.assert_allclose(step(x, y).asnumpy(), eager(exact, trainer, x, y), rtol=1e-6, atol=1e-6)
    same(step.net, exact)


def test_forty_lengths_from_torch() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(3)
    layers = [torch.nn.Conv2d(2, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten()]
    module = torch.nn.Sequential(*layers, torch.nn.Linear(64, 5))
    rows = torch.export.Dim("rows", max=48)
    net = mx.from_torch(module, (torch.zeros(4, 2, 4, 4),), dynamic_shapes=({0: rows},))
    step = trained(net, loss=torch.nn.CrossEntropyLoss(), dynamic=True)
    optimizer = torch.optim.SGD(module.parameters(), 0.05)
    rng = np.random.default_rng(0)
    lengths = rng.permutation(np.arange(4, 44))
    for n in lengths:
        x, y = samples(2, 4, 4)(rng, int(n))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(torch.tensor(x)), torch.tensor(y, dtype=torch.long))
        loss.backward()
        optimizer.step()
        np.testing.assert_allclose(step(x, y).asscalar(), loss.item(), rtol=2e-6)
    assert step.dynamic.compilations <= 3
    for name, value in net.state_dict().items():  # with the running variance, by the count of valid rows less one
        np.testing.assert_allclose(value.numpy(), module.state_dict()[name].numpy(), rtol=2e-5, atol=2e-6)


def test_an_encoder_from_torch_with_two_free_axes(reference: None) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(3)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    module = torch.nn.Sequential(torch.nn.Embedding(WORDS, 8), layer, torch.nn.Linear(8, WORDS))
    axes = {0: torch.export.Dim("rows", max=8), 1: torch.export.Dim("length", max=40)}
    net = mx.from_torch(module, (torch.zeros(3, 7, dtype=torch.long),), dynamic_shapes=(axes,))
    step = trained(net, dynamic=True)
    optimizer = torch.optim.SGD(module.parameters(), 0.05)
    rng = np.random.default_rng(0)
    for rows, length in ((3, 7), (2, 5), (8, 30), (4, 12), (1, 40)):
        x, y = (part.astype(np.int64) for part in words(rng, rows, length))
        optimizer.zero_grad()
        losses = torch.nn.functional.cross_entropy(
            module(torch.tensor(x)).permute(0, 2, 1), torch.tensor(y), reduction="none"
        ).mean(1)
        losses.mean().backward()
        optimizer.step()
        np.testing.assert_allclose(step(x, y).asnumpy(), losses.detach().numpy(), rtol=2e-6, atol=2e-6)
    for name, value in net.state_dict().items():
        np.testing.assert_allclose(value.numpy(), module.state_dict()[name].numpy(), rtol=2e-5, atol=2e-6)
    assert len(step.dynamic.sizes) == 2 and max(map(len, step.dynamic.sizes.values())) <= 3


def test_forty_lengths_of_an_onnx_net(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    net = images()
    net.initialize(mx.init.Xavier())
    path = net.export_onnx(str(tmp_path / "net.onnx"), nd.ones((4, 2, 4, 4)), dynamic_batch=True)
    exact, loaded = mx.onnx.load(path), mx.onnx.load(path)
    step = trained(loaded, dynamic=True)
    trainer = gluon.Trainer(exact.collect_params(), "sgd", {"learning_rate": 0.05})
    rng = np.random.default_rng(0)
    for n in rng.permutation(np.arange(4, 44)):
        x, y = samples(2, 4, 4)(rng, int(n))
        np.testing.assert_allclose(step(x, y).asnumpy(), eager(exact, trainer, x, y), rtol=1e-6, atol=1e-6)
    assert step.dynamic.compilations <= 3
    same(loaded, exact)


# -- options


@pytest.mark.parametrize(
    "options",
    [
        {"clip_norm": 0.05},
        {"grad_norm": True},
        {"keep_grads": True},
        {"ema": 0.9},
        {"detect_anomaly": True},
        {"precision": "bf16-mixed"},
        {"precision": "16-mixed"},
        {"precision": "64"},
    ],
    ids=lambda o: str(next(iter(o.items()))),
)
def test_options(options: dict[str, Any], reference: None) -> None:
    """Each step is that of a step on exact shapes with the same option."""
    rng = np.random.default_rng(1)
    padded, _ = pair(images, dynamic="batch", sizes=[8], **options)
    exact, _ = pair(images, **options)
    loose = "mixed" in str(options)
    for n in (5, 8, 3):
        x, y = samples(2, 4, 4)(rng, n)
        one, other = padded(x, y), exact(x, y)
        assert one.shape == (n,)
        np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=2e-2 if loose else 2e-6, atol=1e-6)
        if padded.grad_norm is not None:
            assert padded.grad_norm == pytest.approx(exact.grad_norm, rel=1e-4)
    same(padded.trainer, exact.trainer, 2e-3 if loose else 2e-6)
    if padded.averages is not None:
        with padded.averaged(), exact.averaged():
            same(padded.net, exact.net)


def test_calls_that_do_not_update(reference: None) -> None:
    rng = np.random.default_rng(1)
    step, net = pair(images, dynamic="batch", sizes=[8])
    x, y = samples(2, 4, 4)(rng, 5)
    with autograd.record():
        loss = SOFTMAX(net(nd.array(x)), nd.array(y))
    loss.backward()
    grads = step.grads(x, y)
    for own, parameter in zip(step.net.collect_params(), net.collect_params().values(), strict=True):
        if own in grads:
            np.testing.assert_allclose(grads[own].asnumpy(), parameter.grad().asnumpy(), atol=2e-6)
    np.testing.assert_allclose(step.predict(x).asnumpy(), net(nd.array(x)).asnumpy(), atol=2e-6)
    np.testing.assert_allclose(
        step.evaluate(x, y).asnumpy(), SOFTMAX(net(nd.array(x)), nd.array(y)).asnumpy(), atol=2e-6
    )
    assert step.predict(nd.array(x)).shape == (5, 5)


def test_accumulated_batches_count_their_samples(reference: None) -> None:
    rng = np.random.default_rng(1)
    whole, _ = pair(perceptron)
    parts, _ = pair(perceptron, dynamic="batch", sizes=[16])
    x, y = samples(4)(rng, 24)
    whole(x, y)
    for part in (slice(0, 5), slice(5, 21), slice(21, 24)):
        parts.accumulate(x[part], y[part])
    assert parts.accumulator.samples == 24
    parts.apply()
    same(parts.net, whole.net)


def test_several_steps_by_one_call(reference: None) -> None:
    rng = np.random.default_rng(1)
    single, _ = pair(images, dynamic="batch", sizes=[8])
    stacked, _ = pair(images, dynamic="batch", sizes=[8], steps_per_call=4)
    batches = [samples(2, 4, 4)(rng, 5) for _ in range(3)]
    losses = stacked(*(np.stack(arrays) for arrays in zip(*batches, strict=True)))
    np.testing.assert_array_equal(losses.asnumpy(), [single(*batch).asnumpy() for batch in batches])
    same(single.net, stacked.net, 0)


def test_metrics_and_a_scalar_loss(reference: None) -> None:
    net = perceptron()
    net.initialize(mx.init.Xavier())

    def program(x: Any, y: Any) -> Any:
        out = net(x)
        hits = nd.cast(nd.argmax(out, axis=1), dtype="float32") == y
        return SOFTMAX(out, y).mean(), {"hits": hits.sum(), "largest": out.max(axis=0), "out": out}

    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.05})
    step = mx.compile(program, trainer=trainer, dynamic="batch", sizes=[16])
    exact = mx.compile(program, trainer=trainer)
    x, y = samples(4)(np.random.default_rng(2), 11)
    y = y.astype(np.float32)
    for one, other in zip(step.evaluate(x, y)[1].values(), exact.evaluate(x, y)[1].values(), strict=True):
        np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-6)
    assert step(x, y)[0].asscalar() == pytest.approx(exact.evaluate(x, y)[0].asscalar(), abs=0.1)


def test_checkpoints_and_files(tmp_path: Path, reference: None) -> None:
    rng = np.random.default_rng(1)
    step, _ = pair(images, dynamic="batch", sizes=[8], optimizer="adam")
    batches = [samples(2, 4, 4)(rng, n) for n in (5, 8, 3, 2)]
    for batch in batches[:2]:
        step(*batch)
    folder = step.save(tmp_path / "run")
    rest = [step(*batch).asnumpy() for batch in batches[2:]]
    assert folder is not None
    again, _ = pair(images, dynamic="batch", sizes=[8], optimizer="adam")
    again.load(tmp_path / "run")
    for batch, wanted in zip(batches[2:], rest, strict=True):
        np.testing.assert_array_equal(again(*batch).asnumpy(), wanted)
    with pytest.raises(MXNetError, match="entry points are for exact shapes"):
        step.export(tmp_path / "step.gga")


def test_an_export_names_its_shapes(tmp_path: Path) -> None:
    step, _ = pair(perceptron, dynamic="batch", sizes=[8])
    x, y = samples(4)(np.random.default_rng(0), 5)
    wanted = step.evaluate(x, y).asnumpy()
    step.export(tmp_path / "step.gga", batches=[(x, y)], modes=["evaluate"])
    np.testing.assert_allclose(mx.load(tmp_path / "step.gga").evaluate(x, y).asnumpy(), wanted, atol=1e-6)


def test_random_numbers(reference: None) -> None:
    """Valid elements are dropped like others; which, depends on the padded shape."""
    net = nn.HybridSequential()
    net.add(nn.Dropout(0.5))
    step = mx.compile(lambda x: net(x) + 0.0, trainer=None, dynamic="batch", sizes=[64])
    assert (step.predict(nd.ones((33, 8))).asnumpy() == 1).all()
    weight = gluon.Parameter("w", shape=(8,))
    weight.initialize(mx.init.One())
    trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 0.0})
    step = mx.compile(lambda x: net(x * weight.data()).sum(axis=1), trainer=trainer, dynamic="batch", sizes=[64])
    found = step(nd.ones((33, 8))).asnumpy()
    assert found.shape == (33,) and found.std() > 0


# -- which size


def test_few_sizes_for_any_order() -> None:
    for seed in range(20):
        used: list[int] = []
        for n in np.random.default_rng(seed).integers(1, 257, 40):
            size = few(int(n), used, 256)
            assert size >= n
            used = sorted({*used, size})
        assert len(used) <= 3


@pytest.mark.parametrize(
    "sizes, wanted",
    [("powers of two", [2, 4, 8, 32]), (6, [6, 6, 6, 18]), ([4, 20], [4, 4, 20, 20])],
)
def test_policies(sizes: Any, wanted: list[int]) -> None:
    policy = policy_of("n", sizes)
    assert policy is not None
    assert [policy(n, [], None) for n in (1, 4, 5, 17)] == wanted


def test_a_length_that_grows_is_told(reference: None) -> None:
    step, _ = pair(perceptron, dynamic="batch")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (4, 16, 60):
            step.predict(np.ones((n, 4), np.float32))
    assert str(step.dynamic) == "batch: 4, 32, 256; 3 compilations"
    with pytest.warns(UserWarning, match="'batch' grows: it has been padded to 4, 32, 256, 1024"):
        step.predict(np.ones((257, 4), np.float32))
    assert str(step.dynamic) == "batch: 4, 32, 256, 1024; 4 compilations"


@pytest.mark.parametrize("first", [1, 2, 5, 16, 40, 100])
@pytest.mark.parametrize("order", ["growing", "shrinking", "random"])
def test_at_most_three_sizes_by_default(first: int, order: str) -> None:
    """Of 40 lengths from any one on, in any order."""
    lengths = list(range(first, first + 40))
    lengths = lengths[::-1] if order == "shrinking" else lengths
    if order == "random":
        np.random.default_rng(first).shuffle(lengths)
    used: list[int] = []
    for length in lengths:
        size = few(length, used)
        assert size >= length
        used = sorted({*used, size})
    assert len(used) <= LIMIT


def test_exact_axes_are_not_padded(reference: None) -> None:
    step, _ = pair(Transformer, dynamic=BOTH, sizes={"length": "exact", "batch": 4})
    step.predict(words(np.random.default_rng(0), 3, 5)[0])
    assert step.dynamic.sizes == {"batch": (4,)}


# -- programs that are not the same for all lengths


def test_conditions_on_lengths(reference: None) -> None:
    def program(x: Any) -> Any:
        return (nd.exp(x) if x.shape[0] > 6 else nd.sqrt(x)).sum(axis=1)

    step = mx.compile(program, dynamic="batch", sizes=[16])
    x = np.full((9, 2), 4, np.float32)
    np.testing.assert_allclose(step.predict(x).asnumpy(), np.exp(x).sum(1), rtol=1e-6)
    with pytest.raises(MXNetError, match="for another length the program computes sqrt here, not exp"):
        step.predict(x[:5])
    assert step.predict(x[:7]).shape == (7,)


def test_a_part_that_short_arrays_do_not_have(reference: None) -> None:
    step = mx.compile(lambda x: x[:4].sum(axis=1), dynamic="batch", sizes=[16])
    x = np.arange(18, dtype=np.float32).reshape(9, 2)
    np.testing.assert_array_equal(step.predict(x).asnumpy(), x[:4].sum(1))
    np.testing.assert_array_equal(step.predict(x[:5]).asnumpy(), x[:4].sum(1))
    with pytest.raises(ShapeError, match="'batch' has 3 elements, and the program reads 4"):
        step.predict(x[:3])


def test_a_refused_op_names_the_line_and_the_way_out(reference: None) -> None:
    step = mx.compile(lambda x: x[::2] * 1.0, dynamic="batch")
    with pytest.raises(MXNetError) as caught:
        step.predict(np.ones((9, 2), np.float32))
    assert "slice(f32[9,2]) cannot be computed on padded arrays: it takes every so many elements" in str(caught.value)
    assert "test_dynamic.py" in str(caught.value) and '"exact"' in str(caught.value)
    assert step.dynamic.sizes == {"batch": ()} and not step.dynamic.compilations


def test_what_fails_for_the_padded_size_says_so(reference: None) -> None:
    table = nd.ones((8, 2))
    step = mx.compile(lambda x: x + table[: x.shape[0]], dynamic="batch", sizes=[16])
    with pytest.raises(MXNetError) as caught:
        step.predict(np.ones((8, 2), np.float32))
    assert any("'batch' is padded to 16" in note for note in caught.value.__notes__)


def test_labels_are_checked(reference: None) -> None:
    step, _ = pair(perceptron, dynamic="batch", sizes=[16])
    x, y = samples(4)(np.random.default_rng(0), 5)
    before = weights(step.net)
    with pytest.raises(IndexRangeError, match="9"):
        step(x, np.where(np.arange(5) == 4, 9, y).astype(np.int32))
    for old, new in zip(before, weights(step.net), strict=True):
        np.testing.assert_array_equal(old, new)


# -- bad input


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"dynamic": "rows"}, TypeError, "dynamic is 'batch', True, or says which axes are free"),
        ({"dynamic": {0: {"batch": 0}}}, TypeError, "by array of the batch and axis"),
        ({"dynamic": True}, ArgumentError, "the net does not say which axes are free"),
        ({"sizes": [8]}, ValueError, "sizes= without dynamic="),
        ({"dynamic": "batch", "sizes": {"length": 8}}, ValueError, "there is no free axis 'length'"),
        ({"dynamic": "batch", "sizes": "many"}, TypeError, "'batch' cannot have 'many'"),
        ({"dynamic": "batch", "sizes": [0]}, ValueError, "sizes are 1 or more"),
        ({"dynamic": "batch", "sizes": []}, ValueError, "sizes are 1 or more"),
        ({"dynamic": "batch", "deterministic": True}, ValueError, "dynamic, with deterministic"),
    ],
)
def test_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        pair(perceptron, **arguments)


def test_arrays_that_do_not_fit(reference: None) -> None:
    step, _ = pair(perceptron, dynamic="batch", sizes=[8])
    x, y = samples(4)(np.random.default_rng(0), 5)
    with pytest.raises(ShapeError, match="axis 0 of array 1 has 4 elements; 'batch' is 5"):
        step(x, y[:4])
    with pytest.raises(ShapeError, match="'batch' has 9 elements, and the largest of its sizes is 8"):
        step(np.ones((9, 4), np.float32), np.ones(9, np.int32))
    step = mx.compile(perceptron(), dynamic={0: {3: "rows"}})
    with pytest.raises(ShapeError, match="array 0 has no axis 3"):
        step.predict(x)


def test_several_contexts() -> None:
    net = perceptron()
    net.initialize(mx.init.Xavier(), ctx=[mx.cpu(0), mx.cpu(1)])
    step = trained(net, dynamic="batch")
    with pytest.raises(MXNetError, match="several contexts"):
        step(*samples(4)(np.random.default_rng(0), 4))


def test_without_a_terminal_nothing_is_told(capfd: pytest.CaptureFixture[str], reference: None) -> None:
    step, _ = pair(perceptron, dynamic="batch")
    step.predict(np.ones((3, 4), np.float32))
    assert capfd.readouterr() == ("", "")


def test_on_a_terminal_each_new_size_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], reference: None
) -> None:
    monkeypatch.setattr("gluongraph.host.progress.wanted", lambda: True)
    step, _ = pair(perceptron, dynamic="batch", sizes=[8])
    for n in (3, 5):
        step.predict(np.ones((n, 4), np.float32))
    assert [line for line in capfd.readouterr().err.splitlines() if "padded" in line] == [
        "gluongraph: a length of 3 of 'batch' is padded to 8"
    ]


# -- what imported nets say


def test_symbols_of_an_exported_program() -> None:
    torch = pytest.importorskip("torch")
    module, example = torch.nn.Linear(4, 3), (torch.zeros(5, 4),)
    free = mx.from_torch(module, example, dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)).free_axes
    ((axis, name),) = free.inputs[0].items()
    assert axis == 0 and free.ranges[name][1] is None
    assert not mx.from_torch(module, example).free_axes.ranges


def test_a_computed_extent_cannot_be_padded() -> None:
    torch = pytest.importorskip("torch")

    class Pairs(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any, y: Any) -> Any:
            return x.reshape(y.shape[0], 2, 4).sum(1) + y

    rows = torch.export.Dim("rows", max=64)
    net = mx.from_torch(Pairs(), (torch.zeros(10, 4), torch.zeros(5, 4)), dynamic_shapes=({0: 2 * rows}, {0: rows}))
    with pytest.raises(ArgumentError, match=r"is computed from .*, which cannot be padded"):
        mx.compile(net, dynamic=True)
    (name,) = net.free_axes.ranges
    step = mx.compile(net, dynamic=True, sizes={name: "exact"})
    assert step.predict(np.ones((6, 4), np.float32), np.ones((3, 4), np.float32)).shape == (3, 4)


def test_labels_follow_the_inputs(reference: None) -> None:
    """An array of labels has the axes of an input that is as long at the same place, from the first call on."""
    torch = pytest.importorskip("torch")
    rows = torch.export.Dim("rows", max=16)
    net = mx.from_torch(torch.nn.Linear(4, 3), (torch.zeros(5, 4),), dynamic_shapes=({0: rows},))
    step = trained(net, loss=gluon.loss.L2Loss(), dynamic=True)
    rng = np.random.default_rng(0)
    for n in (5, 3, 4):
        x, y = rng.normal(size=(n, 4)).astype(np.float32), rng.normal(size=(n, 3)).astype(np.float32)
        wanted = ((net(nd.array(x)).asnumpy() - y) ** 2).mean(1) / 2
        np.testing.assert_allclose(step(x, y).asnumpy(), wanted, rtol=2e-5)
    with pytest.raises(ShapeError, match="axis 0 of array 1 has 4 elements"):
        step(x[:3], y)
    assert step.dynamic.compilations == 1


@pytest.mark.parametrize("contexts, ranks", [(2, 1), (1, 2)])
def test_steps_of_which_each_part_has_a_length(contexts: int, ranks: int) -> None:
    with pytest.raises(MXNetError, match="several"):
        check_alone(contexts, ranks)
