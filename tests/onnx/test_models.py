"""Imported models: parameters, gradients, training, modes, free axes; against PyTorch where it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_models as models
import pytest
from onnx import AttributeProto, TensorProto, helper

import gluongraph as mx
from gluongraph import autograd, debug, gluon, nd
from gluongraph.errors import DTypeError, MXNetError, ShapeError, UnsupportedError
from gluongraph.onnx import program, report


def loaded(name: str, **how: Any) -> Any:
    return mx.onnx.load(models.MAKERS[name](), **how)


def data(name: str, dtype: str = "float32") -> Any:
    return nd.array(models.random(*models.INPUTS[name], seed=9, scale=1.0), dtype=dtype)


def test_parameters_are_the_float_arrays() -> None:
    net = loaded("cnn")
    assert list(net.collect_params()) == [
        "c.weight", "c.bias", "bn.weight", "bn.bias", "bn.mean", "bn.var", "fc.weight", "fc.bias",
    ]  # fmt: skip
    assert [p.name for p in net.collect_params().values() if p.grad_req == "null"] == ["bn.mean", "bn.var"]
    assert net.inputs == ("'x' f32[n,2,6,6]",) and net.outputs == ("y",)
    assert "scale" not in loaded("transformer").collect_params()  # a number without an axis is no parameter


def test_freeze() -> None:
    net = loaded("cnn", freeze=r"c\..*|bn\..*")
    assert [p.name for p in net.collect_params().values() if p.grad_req != "null"] == ["fc.weight", "fc.bias"]
    before = {n: p.data().asnumpy() for n, p in net.collect_params().items()}
    with autograd.record():
        loss = net(data("cnn")).sum()
    loss.backward()
    for name, p in net.collect_params().items():  # frozen running statistics stay, too
        assert (p.data().asnumpy() == before[name]).all()


@pytest.mark.parametrize("name", models.MAKERS)
def test_gradients_are_slopes(name: str) -> None:
    """Along a random direction of all parameters, in float64: the gradient is the quotient of differences."""
    net, x, rng = loaded(name), data(name, "float64"), np.random.default_rng(0)
    net.cast("float64")
    trained = [p for p in net.collect_params().values() if p.grad_req != "null"]
    with debug.override(backend="reference"):
        with autograd.record(train_mode=False):
            y = net(x)
        head = rng.standard_normal(y.shape)
        y.backward(nd.array(head, dtype="float64"))
        assert y.dtype == np.float64
        steps = [rng.standard_normal(p.shape) for p in trained]
        slope = sum((p.grad().asnumpy() * s).sum() for p, s in zip(trained, steps, strict=True))
        start, h, values = [p.data().asnumpy() for p in trained], 1e-6, []
        for t in (h, -h):
            for p, a, s in zip(trained, start, steps, strict=True):
                p.set_data(nd.array(a + t * s, dtype="float64"))
            values.append((net(x).asnumpy() * head).sum())
    np.testing.assert_allclose(slope, (values[0] - values[1]) / (2 * h), rtol=1e-6)


# ONNX's node tests as models: one or more for each family of operators that has a gradient.
SMOOTH = (
    "test_averagepool_2d_pads_count_include_pad", "test_averagepool_2d_ceil", "test_batchnorm_example",
    "test_conv_with_strides_padding", "test_convtranspose_pads", "test_convtranspose_group_2",
    "test_cumsum_2d_axis_1", "test_einsum_batch_matmul", "test_elu", "test_erf", "test_gather_1",
    "test_gathernd_example_float32", "test_gelu_tanh_2", "test_gemm_all_attributes", "test_gridsample_bilinear",
    "test_group_normalization_example", "test_gru_seq_length", "test_instancenorm_epsilon",
    "test_layer_normalization_4d_axis2", "test_logsoftmax_axis_1", "test_lrn", "test_lstm_with_peepholes",
    "test_matmul_4d", "test_maxpool_2d_strides", "test_nllloss_NCd1d2_with_weight_reduction_mean",
    "test_constant_pad", "test_prelu_broadcast", "test_reduce_log_sum_exp_keepdims_random",
    "test_reduce_prod_keepdims_random", "test_resize_upsample_scales_linear", "test_resize_downsample_scales_cubic",
    "test_rms_normalization_2d_axis1", "test_rnn_seq_length", "test_scatter_elements_with_axis",
    "test_softmax_axis_0", "test_sce_NCd1d2d3d4d5_mean_weight", "test_sce_mean_no_weight_ii", "test_top_k",
    "test_transpose_all_permutations_4", "test_where_example",
)  # fmt: skip


@pytest.fixture(scope="module")
def node_tests() -> dict[str, report.Case]:
    return {case.name: case for case in report.cases() if case.name in SMOOTH}


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_of_operators_are_slopes(name: str, node_tests: dict[str, report.Case]) -> None:
    """Along a random direction of all inputs that are floats, in float64, and a little beside numbers with kinks."""
    case, rng, h = node_tests[name], np.random.default_rng(0), 1e-6
    inputs = dict(zip((v.name for v in case.model.graph.input), report.arrays_of(case.data[0][0]), strict=True))
    probe = mx.onnx.load(case.model)
    net = mx.onnx.load(case.model, fixed={n: inputs[n] for n in probe.deciding})
    free = [a for n, a in inputs.items() if n not in probe.deciding]
    wide = [a + 0.01 * rng.random(a.shape) if a.dtype.kind == "f" else a for a in free]
    args = [nd.array(a, dtype=a.dtype) for a in wide]
    floats = [k for k, a in enumerate(wide) if a.dtype.kind == "f"]
    for k in floats:
        args[k].attach_grad()
    with debug.override(backend="reference"):
        with autograd.record(train_mode=False):
            made = net(*args)
            ys = [y for y in (made if isinstance(made, list) else [made]) if y.dtype == np.float64]
            heads = [rng.standard_normal(y.shape) for y in ys]
            total = sum((y * nd.array(head, dtype="float64")).sum() for y, head in zip(ys, heads, strict=True))
        total.backward()
        steps = {k: rng.standard_normal(wide[k].shape) for k in floats}
        slope = sum((args[k].grad.asnumpy() * steps[k]).sum() for k in floats)
        values = []
        for t in (h, -h):
            moved = [a + t * steps[k] if k in steps else a for k, a in enumerate(wide)]
            made = net(*(nd.array(a, dtype=a.dtype) for a in moved))
            found = [y for y in (made if isinstance(made, list) else [made]) if y.dtype == np.float64]
            values.append(sum((y.asnumpy() * head).sum() for y, head in zip(found, heads, strict=True)))
    np.testing.assert_allclose(slope, (values[0] - values[1]) / (2 * h), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", models.MAKERS)
def test_trains(name: str) -> None:
    """A step lowers the loss, and predicts what eager mode does; of the first model compiled, of others in numpy."""
    net, x = loaded(name), data(name)
    eager = net(x).asnumpy()
    label = nd.zeros(eager.shape)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01})
    with debug.override(backend="" if name == "cnn" else "reference"):
        step = mx.compile(net, gluon.loss.L2Loss(), trainer)
        np.testing.assert_allclose(step.predict(x).asnumpy(), eager, rtol=1e-4, atol=1e-5)
        losses = [float(step(x, label).asnumpy().sum()) for _ in range(4)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]


def test_batch_norm_follows_the_mode_and_moves_its_statistics() -> None:
    net, x = loaded("cnn"), data("cnn")
    conv = net.collect_params()["c.weight"].data(), net.collect_params()["c.bias"].data()
    made = nd.Convolution(x, *conv, kernel=(3, 3), pad=(1, 1), num_filter=3).asnumpy()
    running = net.collect_params()["bn.mean"]
    old = running.data().asnumpy()
    net(x)
    assert (running.data().asnumpy() == old).all()
    with autograd.record():
        net(x)
    np.testing.assert_allclose(running.data().asnumpy(), 0.8 * old + 0.2 * made.mean((0, 2, 3)), rtol=1e-4, atol=1e-6)


def test_dropout_follows_the_mode() -> None:
    proto = models.model([models.node("Dropout", "x ratio", "y")], {"x": ["n"]}, ["y"], {"ratio": np.float32(0.5)})
    net, x = mx.onnx.load(proto), nd.ones((1000,))
    assert (net(x).asnumpy() == 1).all()
    with autograd.train_mode():
        dropped = net(x).asnumpy()
    assert set(dropped.tolist()) == {0.0, 2.0} and 350 < (dropped == 0).sum() < 650


def test_free_axes_have_any_extent() -> None:
    net = loaded("cnn")
    for n in (1, 5):
        assert net(nd.ones((n, 2, 6, 6))).shape == (n, 4)


def test_arguments_are_checked() -> None:
    net = loaded("cnn")
    with pytest.raises(MXNetError, match=r"2 inputs for a model that takes 1: 'x' f32\[n,2,6,6\]"):
        net(data("cnn"), data("cnn"))
    with pytest.raises(ShapeError, match=r"input 'x' f32\[n,2,6,6\] cannot be f32\[1,2,6,7\]"):
        net(nd.ones((1, 2, 6, 7)))
    with pytest.raises(DTypeError, match=r"cannot be i32"):
        net(nd.ones((1, 2, 6, 6), dtype="int32"))


def test_inputs_that_decide_shapes_are_fixed() -> None:
    proto = models.model(
        [models.node("Reshape", "x shape", "y")],
        {"x": [6], "shape": [2]},
        ["y"],
        types={"shape": TensorProto.INT64},
    )
    net = mx.onnx.load(proto)
    assert net.deciding == ("shape",)
    with pytest.raises(UnsupportedError, match=r"Reshape 'reshape_y': the numbers of shape .* fixed=\{'shape'"):
        net(nd.ones((6,)), nd.array([2, 3], dtype="int64"))
    assert mx.onnx.load(proto, fixed={"shape": [2, 3]})(nd.ones((6,))).shape == (2, 3)


def test_functions_of_the_file() -> None:
    """An operator that the file itself defines, with an attribute."""
    half = helper.make_function(
        "mine", "Scaled", ["a"], ["b"],
        [helper.make_node("Constant", [], ["s"]), helper.make_node("Mul", ["a", "s"], ["b"])],
        [helper.make_opsetid("", 20)], ["by"],
    )  # fmt: skip
    half.node[0].attribute.add(name="value_float", type=AttributeProto.FLOAT, ref_attr_name="by")
    scaled = helper.make_node("Scaled", ["x"], ["y"], domain="mine", by=0.5)
    proto = models.model([scaled], {"x": [2]}, ["y"], domains={"mine": 1}, functions=[half])
    assert mx.onnx.load(proto)(nd.array([2, 4])).asnumpy().tolist() == [1, 2]


def test_updates_of_the_training_domain() -> None:
    """A model that computes its own gradient and takes a step of momentum: numbers by hand."""
    nodes = [
        models.node("Mul", "w x", "p"),
        models.node("ReduceSum", "p", "y", keepdims=0),
        models.node("Gradient", "w", "g", xs=["w"], y="y", domain="ai.onnx.preview.training"),
        models.node(
            "Momentum", "rate t w g v", "w1 v1", domain="ai.onnx.preview.training", alpha=0.9, beta=1.0,
            mode="standard", norm_coefficient=0.0,
        ),
    ]  # fmt: skip
    shapes: dict[str, Any] = {"w": [2], "x": [2], "v": [2], "rate": [], "t": []}
    proto = models.model(
        nodes, shapes, ["w1", "v1"], types={"t": TensorProto.INT64}, domains={"ai.onnx.preview.training": 1}
    )
    net = mx.onnx.load(proto)
    args = [nd.array(a) for a in ([1, 2], [3, 4], [10, 20], [0.1])]
    w, v = net(*args, nd.array([1], dtype="int64"))
    np.testing.assert_allclose(v.asnumpy(), [12, 22])
    np.testing.assert_allclose(w.asnumpy(), [-0.2, -0.2], rtol=1e-5)


DRAWN = [
    ("RandomUniformLike", "shape", {"low": 2.0, "high": 4.0}, 3.0),
    ("RandomNormalLike", "shape", {"mean": 3.0, "scale": 0.5}, 3.0),
    ("Bernoulli", "chance", {}, 0.25),
    ("RandomUniform", "", {"shape": [50, 20], "low": 2.0, "high": 4.0}, 3.0),
    ("RandomNormal", "", {"shape": [50, 20], "mean": 3.0, "scale": 0.5}, 3.0),
]


def test_all_random_operators_are_tested() -> None:
    assert {name for name, *_ in DRAWN} == program.DRAWING


@pytest.mark.parametrize(("name", "source", "attrs", "mean"), DRAWN, ids=[name for name, *_ in DRAWN])
def test_random_numbers_in_the_shape_of_a_constant(name: str, source: str, attrs: dict[str, Any], mean: float) -> None:
    """They are drawn at each call, eager and compiled; the constant tells their shape, or how likely they are."""
    constants = {"shape": np.zeros((50, 20), "f4"), "chance": np.full((50, 20), 0.25, "f4")}
    nodes = [models.node(name, source, "r", **attrs), models.node("Add", "x r", "y")]
    net = mx.onnx.load(models.model(nodes, {"x": [50, 20]}, ["y"], {source: constants[source]} if source else {}))
    x = nd.zeros((50, 20))
    first, second = net(x).asnumpy(), net(x).asnumpy()
    assert (first != second).any() and abs(first.mean() - mean) < 0.1
    net.hybridize()
    with debug.override(backend="reference"):
        third, fourth = net(x).asnumpy(), net(x).asnumpy()
    assert (third != fourth).any() and abs(third.mean() - mean) < 0.1


def test_stochastic_depth_of_a_torch_model(tmp_path: Path) -> None:
    """As in torchvision's networks: whole samples are left out by noise of a shape that is known."""
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.dense = torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            noise = torch.empty([64, 1]).bernoulli_(0.5).div_(0.5)
            return x + self.dense(x) * noise

    theirs, x, file = Net().train(), torch.randn(64, 4), tmp_path / "net.onnx"
    with pytest.warns(Warning):  # PyTorch's own, about its exporter
        torch.onnx.export(
            theirs, (x,), file, input_names=["x"], dynamo=False, do_constant_folding=False,
            training=torch.onnx.TrainingMode.TRAINING,
        )  # fmt: skip
    net, mine = mx.onnx.load(file), nd.array(x.numpy())
    with autograd.record():
        y = net(mine)
    y.backward()
    kept = (y.asnumpy() != x.numpy()).all(axis=1)
    assert 16 < kept.sum() < 48
    want = (x + 2 * theirs.dense(x)).detach().numpy()
    np.testing.assert_allclose(y.asnumpy()[kept], want[kept], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(net.collect_params()["dense.bias"].grad().asnumpy(), 2.0 * kept.sum(), rtol=1e-5)


def gradients(proto: Any, *xs: Any) -> list[Any]:
    """Of the inputs, from 1, 2, ... for the elements of the result."""
    net, arrays = mx.onnx.load(proto), [nd.array(x) for x in xs]
    for a in arrays:
        a.attach_grad()
    with autograd.record():
        y = net(*arrays)
    y.backward(nd.array(np.arange(1, y.size + 1).reshape(y.shape)))
    return [a.grad.asnumpy() for a in arrays]


EQUAL = np.array([[1, 3, 3, 0], [2, 2, 2, 2], [0, 5, 1, 5]], "f4")
SHARES = np.array([[0, 0.5, 0.5, 0], [0.5, 0.5, 0.5, 0.5], [0, 1.5, 0, 1.5]], "f4")


@pytest.mark.parametrize(("name", "sign"), [("ReduceMax", 1), ("ReduceMin", -1)])
def test_equal_extremes_share_the_gradient(name: str, sign: int) -> None:
    """As in PyTorch's amax; MXNet's nd.max gives each of them the whole."""
    proto = models.model([models.node(name, "x a", "y", keepdims=0)], {"x": [3, 4]}, ["y"], {"a": np.array([1])})
    np.testing.assert_array_equal(gradients(proto, sign * EQUAL)[0], SHARES)
    x = nd.array(EQUAL)
    x.attach_grad()
    with autograd.record():
        y = nd.max(x, axis=1)
    y.backward()
    np.testing.assert_array_equal(x.grad.asnumpy(), SHARES > 0)


@pytest.mark.parametrize(("name", "sign"), [("Max", 1), ("Min", -1)])
def test_of_two_equal_elements_each_has_half_of_the_gradient(name: str, sign: int) -> None:
    proto = models.model([models.node(name, "x y", "z")], {"x": [4], "y": [4]}, ["z"])
    x, y = (sign * np.array(a, "f4") for a in ([1, 5, 2, np.inf], [1, 4, 3, np.inf]))
    for found, want in zip(gradients(proto, x, y), ([0.5, 2, 0, 2], [0.5, 0, 3, 2]), strict=True):
        np.testing.assert_array_equal(found, want)


def test_the_largest_of_a_channel_has_the_gradient_once() -> None:
    proto = models.model([models.node("GlobalMaxPool", "x", "y")], {"x": [1, 3, 4]}, ["y"])
    want = [[0, 1, 0, 0], [2, 0, 0, 0], [0, 3, 0, 0]]
    np.testing.assert_array_equal(gradients(proto, EQUAL[None])[0][0], want)


def test_the_norm_of_zeros_has_no_gradient() -> None:
    """PyTorch's has none; the square root's would be infinite, and spoil all that it is multiplied with."""
    proto = models.model([models.node("ReduceL2", "x a", "y", keepdims=0)], {"x": [2, 2]}, ["y"], {"a": np.array([1])})
    np.testing.assert_allclose(gradients(proto, np.array([[0, 0], [3, 4]], "f4"))[0], [[0, 0], [1.2, 1.6]], rtol=1e-6)


def test_a_torch_model_and_one_training_step(tmp_path: Path) -> None:
    """Exported by PyTorch in training mode: the same outputs, and the same weights after a step of SGD."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(1, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(48, 4)
    )
    x, label = torch.randn(5, 1, 6, 6), torch.tensor([0, 1, 2, 3, 0])
    file = tmp_path / "net.onnx"
    with pytest.warns(Warning):  # PyTorch's own, about its exporter
        torch.onnx.export(
            theirs, (x,), file, input_names=["x"], dynamo=False, do_constant_folding=False,
            training=torch.onnx.TrainingMode.TRAINING, dynamic_axes={"x": {0: "n"}},
        )  # fmt: skip
    net = mx.onnx.load(file)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    with debug.override(backend="reference"):
        step = mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer)
        loss = step(nd.array(x.numpy()), nd.array(label.numpy()))
    expected = torch.nn.functional.cross_entropy(theirs(x), label)
    expected.backward()
    torch.optim.SGD(theirs.parameters(), 0.1).step()
    np.testing.assert_allclose(loss.asnumpy().mean(), expected.item(), rtol=1e-5)
    for name, value in theirs.named_parameters():
        np.testing.assert_allclose(
            net.collect_params()[name].data().asnumpy(), value.detach().numpy(), rtol=1e-4, atol=1e-6
        )


# -- messages of mx.compile and of training


def linear(shape: list[Any], outputs: list[str], inputs: tuple[str, ...] = ("x",)) -> Any:
    """y = x w, plus the other inputs; z = relu(y)."""
    nodes = [models.node("MatMul", f"{inputs[0]} w", "p")]
    nodes += [models.node("Sum", " ".join(("p", *inputs[1:])), "y"), models.node("Relu", "y", "z")]
    proto = models.model(nodes, dict.fromkeys(inputs, shape), outputs, {"w": models.random(3, 3)})
    return mx.onnx.load(proto)


def compiled(net: Any, **how: Any) -> Any:
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    return mx.compile(net, gluon.loss.L2Loss(), trainer, **how)


def test_two_outputs_and_one_loss() -> None:
    net, x = linear(["n", 3], ["y", "z"]), nd.ones((4, 3))
    before = net.collect_params()["w"].data().asnumpy()
    with pytest.raises(
        TypeError, match=r"ONNXBlock gives 2 arrays \('y', 'z'\), and L2Loss takes one prediction"
    ) as told:
        compiled(net)(x, x)
    assert "outputs[0]" in str(told.value) and (net.collect_params()["w"].data().asnumpy() == before).all()
    loss = gluon.loss.L2Loss()
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    step = mx.compile(net, lambda outputs, *labels: loss(outputs[0], *labels), trainer)  # as the message says
    with debug.override(backend="reference"):
        assert step(x, x).shape == (4,)


def test_a_model_of_two_inputs_and_one_loss() -> None:
    """The number of inputs is known; another one is refused at once."""
    net, x = linear(["n", 3], ["y"], ("a", "b")), nd.ones((4, 3))
    with debug.override(backend="reference"):
        assert compiled(net)(x, x, x).shape == (4,)
    with pytest.raises(
        TypeError, match=r"ONNXBlock takes 2 arrays: 'a' f32\[n,3\], 'b' f32\[n,3\]; inputs=1 gives it 1"
    ):
        compiled(net, inputs=1)


def test_modules_of_pytorch_are_told_what_to_do() -> None:
    torch = pytest.importorskip("torch")
    for call in (mx.compile, mx.onnx.load):
        with pytest.raises(TypeError, match=r"torch.nn.Module \(Linear\)(?s:.*)mx.from_torch\(model, \(example,\)\)"):
            call(torch.nn.Linear(2, 2))


def test_a_fixed_batch_that_does_not_divide_the_data() -> None:
    """Where somebody knows how many rows there are, before anything is trained."""
    net = linear([4, 3], ["y"])
    assert net.fixed_batch == 4 and linear(["n", 3], ["y"]).fixed_batch is None
    x = nd.ones((10, 3))
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    estimator = gluon.contrib.estimator.Estimator(net, gluon.loss.L2Loss(), mx.metric.Loss(), trainer=trainer)
    estimator.logger.setLevel("WARNING")
    before = net.collect_params()["w"].data().asnumpy()

    def loader(last_batch: str) -> Any:
        return gluon.data.DataLoader(gluon.data.ArrayDataset(x, x), 4, last_batch=last_batch)

    message = "the net takes batches of 4 alone, and of 10 rows the last batch has 2"
    for how in ({"train_data": loader("keep")}, {"train_data": loader("discard"), "val_data": loader("keep")}):
        with pytest.raises(ShapeError, match=message):
            estimator.fit(**how, epochs=1)
    assert (net.collect_params()["w"].data().asnumpy() == before).all()
    estimator.fit(loader("discard"), epochs=1)
    with pytest.raises(ShapeError, match=r"cannot be f32\[2,3\](?s:.*)dynamic_shapes(?s:.*)discard"):
        net(x[:2])
