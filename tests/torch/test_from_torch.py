"""Modules of PyTorch's as blocks: the same results, gradients and states; and what is refused."""

from __future__ import annotations

import copy
import dataclasses
from functools import partial
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import autograd, gluon, nd
from gluongraph.errors import MXNetError

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional


class Net(nn.Module):
    """A convolution, batch normalization, a tied weight, a scalar parameter, a frozen one, buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8, momentum=0.3)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.frozen = nn.Parameter(torch.ones(8), requires_grad=False)
        self.register_buffer("mask", torch.tensor([1.0, 0.0] * 4))
        self.register_buffer("places", torch.arange(8))
        self.register_buffer("hidden", torch.ones(8), persistent=False)

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            weighted = self.first.bias * 2
        y = functional.relu(self.norm(self.conv(x))).mean((2, 3))
        y = self.second(self.first(y)) * self.scale + self.mask * self.frozen + self.hidden + weighted
        return y[:, self.places.flip(0)]


def made(share: bool = False, **how: Any) -> tuple[Any, Any, Any]:
    """A net, its twin in PyTorch, and a batch."""
    torch.manual_seed(3)
    module, x = Net(), torch.randn(6, 3, 5, 5)
    return mx.from_torch(module, (x,), share=share, **how), module if share else copy.deepcopy(module), x


def gradients(net: Any, twin: Any, x: Any) -> dict[str, float]:
    """The relative error of each gradient of a loss."""
    twin.zero_grad()
    (twin(x) ** 2).sum().backward()
    with autograd.record():
        loss = (net(x) ** 2).sum()
    loss.backward()
    parameters = net.collect_params()
    expected = {name: p.grad.numpy() for name, p in twin.named_parameters() if p.grad is not None}
    largest = max(np.abs(g).max() for g in expected.values())
    return {
        name: float(np.abs(parameters[name].grad().asnumpy() - g).max() / max(np.abs(g).max(), 1e-3 * largest))
        for name, g in expected.items()
    }


def test_training_and_prediction() -> None:
    net, twin, x = made()
    twin.train()
    errors = gradients(net, twin, x)
    assert set(errors) == {"conv.weight", "conv.bias", "norm.weight", "norm.bias", "first.weight", "first.bias",
                           "second.bias", "scale"}  # fmt: skip
    assert max(errors.values()) < 1e-4, errors
    state, expected = net.state_dict(), twin.state_dict()
    assert list(state) == list(expected)
    assert {n: t.dtype for n, t in state.items()} == {n: t.dtype for n, t in expected.items()}
    for name, tensor in expected.items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-5, atol=1e-6)
    twin.eval()
    np.testing.assert_allclose(net(x).asnumpy(), twin(x).detach().numpy(), rtol=1e-5, atol=1e-5)


def test_the_module_is_left_as_it_was() -> None:
    module = Net()
    module.norm.eval()
    before, flags = copy.deepcopy(module.state_dict()), [m.training for m in module.modules()]
    net = mx.from_torch(module, (torch.randn(6, 3, 5, 5),))
    with autograd.record():
        net(torch.randn(6, 3, 5, 5))
    net(torch.randn(6, 3, 5, 5))
    assert [m.training for m in module.modules()] == flags
    assert all(torch.equal(a, b) for a, b in zip(before.values(), module.state_dict().values(), strict=True))


def test_frozen_statistics() -> None:
    """A submodule that its user has set to eval() stays so in training."""
    module, x = Net(), torch.randn(6, 3, 5, 5)
    module.norm.eval()
    net = mx.from_torch(module, (x,))
    with autograd.record():
        y = net(x)
    np.testing.assert_allclose(y.asnumpy(), module(x).detach().numpy(), rtol=1e-5, atol=1e-5)
    assert float(net.state_dict()["norm.num_batches_tracked"]) == 0


def test_a_buffer_that_forward_assigns() -> None:
    class Running(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x: Any) -> Any:
            self.mean = 0.5 * self.mean + 0.5 * x.mean(0)
            return x - self.mean

    module, x = Running(), torch.randn(6, 4)
    net = mx.from_torch(module, (x,))
    for _ in range(2):
        with autograd.record():
            y = net(x)
        np.testing.assert_allclose(y.asnumpy(), module(x).numpy(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(net.state_dict()["mean"], module.mean)


def test_a_buffer_keeps_its_shape() -> None:
    class Grows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x: Any) -> Any:
            self.seen = x
            return x

    with pytest.raises(MXNetError, match=r"the buffer 'seen' is assigned a tensor of shape \(6, 4\), and it has shape"):
        mx.from_torch(Grows(), (torch.randn(6, 4),))


def test_for_prediction_alone() -> None:
    net, twin, x = made(train=False)
    twin.eval()
    with autograd.record():
        y = net(x)
    np.testing.assert_allclose(y.asnumpy(), twin(x).detach().numpy(), rtol=1e-5, atol=1e-5)


def test_steps_with_shared_memory() -> None:
    net, module, x = made(share=True)
    twin, labels = copy.deepcopy(module), torch.randint(0, 8, (6,))
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9})
    step = mx.compile(net, nn.CrossEntropyLoss(label_smoothing=0.1), trainer)
    optimizer = torch.optim.SGD([p for p in twin.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    twin.train()
    for _ in range(4):
        loss = step(x.numpy(), labels.numpy())
        optimizer.zero_grad()
        expected = functional.cross_entropy(twin(x), labels, label_smoothing=0.1)
        expected.backward()
        optimizer.step()
        assert loss.shape == ()
        np.testing.assert_allclose(loss.asscalar(), expected.item(), rtol=1e-5)
    for (name, ours), theirs in zip(module.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6, msg=name)
    module.eval()
    np.testing.assert_allclose(step.predict(x.numpy()).asnumpy(), module(x).detach().numpy(), rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        module.scale.fill_(3.0)  # and what PyTorch writes is read here
    assert net.collect_params()["scale"].data().asscalar() == 3.0


def test_free_axes() -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    net, twin, _ = made(dynamic_shapes={"x": {0: batch}})
    twin.eval()
    for n in (2, 5, 64):
        given = torch.randn(n, 3, 5, 5)
        np.testing.assert_allclose(net(given).asnumpy(), twin(given).detach().numpy(), rtol=1e-5, atol=1e-5)
    with pytest.raises(mx.errors.ShapeError, match="lies between 2 and 64"):
        net(torch.randn(65, 3, 5, 5))
    with pytest.raises(mx.errors.ShapeError, match="axis 3 was exported with 5"):
        net(torch.randn(4, 3, 5, 6))


def test_state_of_another_module() -> None:
    net, twin, x = made()
    other = Net()
    net.load_state_dict(other.state_dict())
    other.eval()
    np.testing.assert_allclose(net(x).asnumpy(), other(x).detach().numpy(), rtol=1e-5, atol=1e-5)
    changed = {**other.state_dict(), "places": torch.arange(8).flip(0)}  # a constant of the program
    other.load_state_dict(changed)
    net.load_state_dict(changed)
    np.testing.assert_allclose(net(x).asnumpy(), other(x).detach().numpy(), rtol=1e-5, atol=1e-5)
    with pytest.raises(KeyError, match="missing: scale"):
        net.load_state_dict({n: t for n, t in changed.items() if n != "scale"})
    with pytest.raises(mx.errors.ShapeError, match="'scale'"):
        net.load_state_dict({**changed, "scale": torch.ones(2)})
    twin.load_state_dict(net.state_dict())


def test_a_changed_constant_is_seen_by_a_step() -> None:
    net, _, x = made()
    step = mx.compile(net)
    before = step.predict(x.numpy()).asnumpy()
    net.load_state_dict({"places": torch.arange(8).flip(0)}, strict=False)
    np.testing.assert_array_equal(step.predict(x.numpy()).asnumpy(), before[:, ::-1])


@dataclasses.dataclass
class Found:
    scores: Any
    hidden: Any


torch.export.register_dataclass(Found, serialized_type_name="tests.torch.Found")


class Structured(nn.Module):
    def forward(self, pair: Any, *, scale: float = 2.0, more: Any = None) -> Any:
        a, b = pair["a"], pair["b"]
        return Found(a @ b * scale, (a, [b, 7, None if more is None else more + 1]))


def test_structures() -> None:
    a, b, more = torch.randn(2, 3), torch.randn(3, 4), torch.ones(1)
    net = mx.from_torch(Structured(), ({"a": a, "b": b},), {"more": more, "scale": 3.0})
    made = net({"a": a, "b": b}, scale=3.0, more=more)
    expected = Structured()({"a": a, "b": b}, scale=3.0, more=more)
    np.testing.assert_allclose(made.scores.asnumpy(), expected.scores.numpy(), rtol=1e-5)
    assert made.hidden[1][1] == 7
    np.testing.assert_array_equal(made["hidden"][1][2].asnumpy(), [2.0])
    flat = net(a, b, more)  # the arrays alone, in their order
    np.testing.assert_array_equal(flat.scores.asnumpy(), made.scores.asnumpy())
    with pytest.raises(TypeError, match=r"exported for 3\.0"):
        net({"a": a, "b": b}, scale=2.0, more=more)
    with pytest.raises(TypeError, match="'pair_a' f32"):
        net({"a": a}, scale=3.0, more=more)


def test_the_loss_of_the_model() -> None:
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x: Any, labels: Any) -> Any:
            scores = self.inner(x)
            return {"loss": functional.cross_entropy(scores, labels), "scores": scores}

    x, labels = torch.randn(5, 4), torch.randint(0, 3, (5,))
    net = mx.from_torch(WithLoss(), (x, labels))
    step = mx.compile(net, trainer=gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5}))
    losses = [step(x.numpy(), labels.numpy())["loss"].asscalar() for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


def test_functions() -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    net = mx.from_torch(lambda a, b: torch.einsum("ij,jk->ki", a, b), (a, b))
    np.testing.assert_allclose(net(a, b).asnumpy(), (a @ b).T.numpy(), rtol=1e-5, atol=1e-6)


def test_dropout_draws_of_the_generator() -> None:
    net = mx.from_torch(nn.Dropout(0.4), (torch.ones(200, 200),))
    mx.random.seed(1)
    with autograd.record():
        first, second = net(nd.ones((200, 200))).asnumpy(), net(nd.ones((200, 200))).asnumpy()
    mx.random.seed(1)
    with autograd.record():
        again = net(nd.ones((200, 200))).asnumpy()
    assert (first != second).any()
    np.testing.assert_array_equal(first, again)
    assert abs((first == 0).mean() - 0.4) < 0.02
    np.testing.assert_array_equal(net(nd.ones((200, 200))).asnumpy(), np.ones((200, 200)))


@pytest.mark.parametrize("precision", ["bf16-mixed", "64", "bf16-true"])
def test_precisions(precision: str) -> None:
    net, _, x = made()
    settings = {"learning_rate": 0.05, "multi_precision": precision == "bf16-true"}
    trainer = gluon.Trainer(net.collect_params(), "sgd", settings)
    step = mx.compile(net, nn.CrossEntropyLoss(), trainer, precision=precision)
    labels = np.arange(6) % 8
    losses = [float(step(x.numpy(), labels).asscalar()) for _ in range(8)]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]


def test_a_custom_operator() -> None:
    @torch.library.custom_op("gluongraph_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    with pytest.raises(mx.errors.UnsupportedError, match=r"gluongraph_test\.twice\.default"):
        mx.from_torch(lambda x: twice(x), (torch.ones(3),))

    @mx.torch.operator("gluongraph_test::twice")
    def built(at: Any, x: Any) -> Any:
        return x + x

    net = mx.from_torch(lambda x: twice(x), (torch.ones(3),))
    np.testing.assert_array_equal(net(nd.ones(3)).asnumpy(), [2.0, 2.0, 2.0])


def test_one_tensor_as_two_arguments() -> None:
    x = torch.ones(3)
    net = mx.from_torch(lambda a, b: a - 2 * b, (x, x))
    np.testing.assert_array_equal(net(nd.array([1, 2, 3]), nd.array([10, 10, 20])).asnumpy(), [-19, -18, -37])


def test_branches() -> None:
    def branch(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    net = mx.from_torch(branch, (torch.ones(3),))
    for x in (torch.ones(3), -torch.ones(3)):
        np.testing.assert_allclose(net(x).asnumpy(), branch(x).numpy(), rtol=1e-6)


def test_export_of_a_step(tmp_path: Any) -> None:
    net, _, x = made()
    labels = np.arange(6) % 8
    step = mx.compile(net, nn.CrossEntropyLoss(), gluon.Trainer(net.collect_params(), "adam"))
    step(x.numpy(), labels)
    step.export(tmp_path / "step.gga", batches=[(x.numpy(), labels)], modes=["step"])
    loaded = mx.load(tmp_path / "step.gga")
    np.testing.assert_array_equal(loaded(x.numpy(), labels).asnumpy(), step(x.numpy(), labels).asnumpy())


# -- what is refused


class Branch(nn.Module):
    def forward(self, x: Any) -> Any:
        return x if x.sum() > 0 else -x


class Item(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * x.sum().item()


class Singular(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.linalg.svd(x)[1]


class Mantissa(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.frexp(x)[0]


class Asserts(nn.Module):
    def forward(self, x: Any) -> Any:
        assert x.ndim == 4, "x is a batch of images"
        return x


class Reshaped(nn.Module):
    def halves(self, x: Any) -> Any:
        return x.reshape(2, 3)  # in a method that is not called forward

    def forward(self, x: Any) -> Any:
        return self.halves(x)


class Slope(nn.Module):
    def forward(self, x: Any) -> Any:
        x = x.clone().requires_grad_(True)
        return torch.autograd.grad(x.pow(2).sum(), x)[0]


class Backward(nn.Module):
    def forward(self, x: Any) -> Any:
        x = x.clone().requires_grad_(True)
        x.pow(2).sum().backward()
        return x.grad


class Numpy(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.from_numpy(x.numpy())


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Asserts, ["batch of images", "the module itself raises this, given f32[3,3]"]),
        (Reshaped, ["in halves", "invalid for input of size 9", "the module itself raises this, given f32[3,3]"]),
        (partial(nn.Linear, 4, 3), ["reduction dim", "the module itself raises this, given f32[3,3]"]),
        (Slope, ["torch.autograd.grad within it", "in forward", "test_from_torch.py", "of what it gives"]),
        (Backward, ["backward within it", "in forward", "test_from_torch.py"]),
        (Numpy, ["no numpy on the way", "test_from_torch.py"]),
        (Branch, ["cannot trace Branch", "asks for the elements", "torch.cond"]),
        (Item, ["aten.item.default", "asks for an element", "test_from_torch.py"]),
        (Singular, ["linalg_svd", "no such factorization", "test_from_torch.py", "linalg.qr"]),
        (Mantissa, ["frexp", "no such operator", "test_from_torch.py", "mx.torch.operator"]),
    ],
)
def test_modules_without_a_graph(module: Any, words: list[str]) -> None:
    with pytest.raises(mx.errors.UnsupportedError) as caught:
        mx.from_torch(module(), (torch.randn(3, 3),))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_errors_of_a_step_name_the_line_that_forward_calls() -> None:
    class Classes(nn.Module):
        def scores(self, x: Any) -> Any:
            return nn.functional.embedding(x, torch.eye(3))  # the line

        def forward(self, x: Any) -> Any:
            return self.scores(x)

    net = mx.from_torch(Classes(), (torch.tensor([0, 2]),))
    first = Classes.scores.__code__.co_firstlineno
    with pytest.raises(mx.errors.MXNetError, match=rf"test_from_torch\.py:{first + 1}"):
        mx.compile(net).predict(np.array([0, 3]))


def test_bad_arguments() -> None:
    linear = nn.Linear(3, 2)
    with pytest.raises(TypeError, match="with the comma"):
        mx.from_torch(linear, torch.ones(1, 3))
    with pytest.raises(TypeError, match="Module or a function"):
        mx.from_torch("linear", (torch.ones(1, 3),))
    with pytest.raises(mx.torch.ExportError, match="cannot trace Linear"):
        mx.from_torch(linear, (torch.ones(1, 4),))
    with pytest.raises(mx.torch.ExportError, match="on meta"):
        mx.from_torch(nn.Linear(3, 2, device="meta"), (torch.ones(1, 3),))
    with pytest.raises(mx.torch.ExportError, match=r"weight is a tensor of torch\.complex64"):
        mx.from_torch(nn.Linear(3, 2, dtype=torch.complex64), (torch.ones(1, 3, dtype=torch.complex64),))
    with pytest.raises(mx.torch.ExportError, match="weight has no shape yet, since its lazy layer"):
        mx.from_torch(nn.LazyLinear(2), (torch.ones(1, 3),))
    for example, words in (
        (
            torch.ones(1, 3, dtype=torch.complex64),
            r"argument 0 is a tensor of torch\.complex64 on cpu: there is no such",
        ),
        (torch.ones(1, 3, device="meta"), "argument 0 is a tensor of torch.float32 on meta"),
        (torch.ones(1, 3).to_sparse(), "only dense tensors"),
    ):
        with pytest.raises(mx.torch.ExportError, match=words):
            mx.from_torch(linear, (example,))
    net = mx.from_torch(linear, (torch.ones(1, 3),))
    with pytest.raises(mx.errors.DTypeError, match="astype"):
        net(torch.ones(1, 3, dtype=torch.int64))
    with pytest.raises(TypeError, match="as in the example"):
        net(torch.ones(1, 3), torch.ones(1, 3))
    with pytest.raises(mx.torch.ExportError, match="has parameters"):
        mx.torch.Loss(linear)


def test_two_parameters_of_one_memory_are_refused() -> None:
    """They would be two, of which one is trained; one that stands there twice is tied."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    net[2].weight.data = net[0].weight.data
    with pytest.raises(mx.torch.ExportError, match=r"0\.weight and 2\.weight are two tensors in the same memory"):
        mx.from_torch(net, (torch.ones(2, 4),))
    net[2].weight = net[0].weight
    tied = mx.from_torch(net, (torch.ones(2, 4),))
    assert len(tied.collect_params()) == 3


def test_parameter_files(tmp_path: Any) -> None:
    """Written here, read by safetensors there; and the reverse."""
    safetensors = pytest.importorskip("safetensors.torch")
    net, twin, x = made()
    with torch.no_grad():
        twin.scale.fill_(0.25)
    file = str(tmp_path / "theirs.safetensors")
    own = {name: tensor for name, tensor in twin.state_dict().items() if name != "second.weight"}  # it is tied
    safetensors.save_file(own, file)
    net.load_parameters(file, ignore_extra=True)
    twin.eval()
    np.testing.assert_allclose(net(x).asnumpy(), twin(x).detach().numpy(), rtol=1e-5, atol=1e-5)
    net.collect_params()["conv.bias"].data()[:] = 1
    net.save_parameters(str(tmp_path / "ours.safetensors"))
    found = safetensors.load_file(str(tmp_path / "ours.safetensors"))
    missing, unknown = twin.load_state_dict(found, strict=False)
    assert not unknown
    assert set(missing) == {"second.weight", "places"}
    np.testing.assert_allclose(net(x).asnumpy(), twin(x).detach().numpy(), rtol=1e-5, atol=1e-5)


def test_as_any_other_block() -> None:
    """Hybridized, copied, cast, initialized again, a part of another net."""
    net, twin, x = made()
    twin.eval()
    expected = twin(x).detach().numpy()
    net.hybridize()
    np.testing.assert_allclose(net(x).asnumpy(), expected, rtol=1e-5, atol=1e-5)
    net.hybridize(False)
    other = copy.deepcopy(net)
    other.collect_params()["conv.weight"].data()[:] = 0
    np.testing.assert_allclose(net(x).asnumpy(), expected, rtol=1e-5, atol=1e-5)
    assert np.abs(other(x).asnumpy() - expected).max() > 1e-3
    other.initialize(force_reinit=True)
    np.testing.assert_allclose(other(x).asnumpy(), expected, rtol=1e-5, atol=1e-5)
    net.cast("float64")
    assert net(x).dtype == np.float64
    net.cast("float32")

    class Around(gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = net, gluon.nn.Dense(3)

        def forward(self, x: Any) -> Any:
            return self.head(self.body(x))

    whole = Around()
    whole.head.initialize()
    trainer = gluon.Trainer(whole.collect_params(), "adam")
    step = mx.compile(whole, gluon.loss.SoftmaxCrossEntropyLoss(), trainer)
    losses = [step(x.numpy(), np.arange(6) % 3).mean().asscalar() for _ in range(10)]
    assert losses[-1] < losses[0]


def test_examples_may_be_arrays() -> None:
    module = nn.Bilinear(3, 4, 2)
    x = {"input1": np.ones((5, 3), np.float32), "input2": nd.ones((5, 4))}
    net = mx.from_torch(module, (), x)
    expected = module(torch.ones(5, 3), torch.ones(5, 4)).detach().numpy()
    np.testing.assert_allclose(net(**x).asnumpy(), expected, rtol=1e-5, atol=1e-6)
    assert mx.from_torch(nn.Linear(3, 2), (x["input1"],))(x["input1"]).shape == (5, 2)


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_wrong_parts_are_named_with_the_way_out() -> None:
    module, example = nn.Linear(3, 2), (torch.ones(5, 3),)
    net, optimizer = mx.from_torch(module, example), torch.optim.SGD(module.parameters(), 0.1)
    with pytest.raises(TypeError, match=r"(?s)optimizer of PyTorch's \(SGD\).*Trainer\.from_torch\(optimizer\)"):
        mx.compile(net, nn.MSELoss(), optimizer)
    step = mx.compile(net, lambda made, y: functional.mse_loss(made, y), gluon.Trainer.from_torch(optimizer))
    with pytest.raises(TypeError, match=r"(?s)test_from_torch\.py.*mx\.torch\.Loss\(loss\)"):
        step(np.ones((5, 3), np.float32), np.ones((5, 2), np.float32))
    with pytest.raises(TypeError, match=r"(?s)TorchScript has compiled.*torch\.jit\.script was given"):
        mx.from_torch(torch.jit.script(module), example)
    with pytest.raises(mx.errors.NameNotFoundError) as error:
        net.load_state_dict({})
    assert str(error.value).startswith("load_state_dict of Linear: missing: weight, bias\n  at ")
    step = mx.compile(net, nn.MSELoss(), gluon.Trainer.from_torch(optimizer))
    with pytest.raises(mx.MXNetError, match=r"missing a required argument: 'target'\n  at .*test_from_torch\.py"):
        step(np.ones((5, 3), np.float32))


def test_state_dict_tells_the_versions_of_parts() -> None:
    class Versioned(nn.Linear):
        _version = 2

        def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *rest: Any) -> None:
            assert metadata.get("version") == 2
            super()._load_from_state_dict(state, prefix, metadata, *rest)

    module = nn.Sequential(Versioned(3, 2), nn.BatchNorm1d(2))
    net = mx.from_torch(module, (torch.ones(4, 3),))
    state = net.state_dict()
    assert list(state) == list(module.state_dict())
    assert str(module.load_state_dict(state)) == "<All keys matched successfully>"
    state["0.weight"].zero_()
    assert module[0].weight.abs().sum() > 0 and net.state_dict()["0.weight"].abs().sum() > 0
