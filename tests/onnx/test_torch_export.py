"""Files of torch.onnx.export(dynamo=True): exactly the module's parameters are trained, or the file is refused."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx_models as models
import pytest
import torch_exports as exports

import gluongraph as mx
from gluongraph import autograd, debug, gluon, nd
from gluongraph.errors import ArgumentError, UnsupportedError
from gluongraph.onnx.format.torch_metadata import torch_metadata

needs_exporter = pytest.mark.skipif(
    not (find_spec("torch") and find_spec("onnxscript")), reason="torch.onnx.export(dynamo=True) needs onnxscript"
)
TAKEN = [name for name, (*_, message) in exports.EXPORTS.items() if not message]
REFUSED = [name for name, (*_, message) in exports.EXPORTS.items() if message]
SOURCES = [
    pytest.param(exports.recorded, id="recorded"),
    pytest.param(exports.export_of, id="now", marks=needs_exporter),
]

# Of the recorded modules: the names of state_dict(), those of named_parameters() first.
PARAMETERS = {
    "every_kind": [
        "gate", "head.weight", "norm.weight", "norm.bias", "batch_norm.weight", "batch_norm.bias", "dense.weight",
        "dense.bias",
    ],
    "convolution": ["0.weight", "0.bias", "1.weight", "1.bias"],
    "tied": ["head.weight"],
    "alike": ["0.weight", "0.bias", "1.weight", "1.bias"],
    "scaled": ["dense.weight", "dense.bias", "gate"],
    "reparametrized": ["bias", "parametrizations.weight.original0", "parametrizations.weight.original1"],
    "plain": ["0.weight", "0.bias", "2.weight", "2.bias"],
    "plain_optimized": ["0.weight", "0.bias", "2.weight", "2.bias"],
}  # fmt: skip


def trained(net: Any) -> dict[str, Any]:
    return {name: p for name, p in net.collect_params().items() if p.grad_req != "null"}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", TAKEN)
def test_the_parameters_of_the_module_are_trained(name: str, source: Callable[[str], Any]) -> None:
    """Scalars, too; buffers and constants are not, and running statistics are there untrained."""
    net = mx.onnx.load(source(name))
    assert sorted(trained(net)) == sorted(PARAMETERS[name])
    rest = net.collect_params().keys() - trained(net).keys()
    assert all(each.endswith(("running_mean", "running_var")) for each in rest)
    assert ("gate" not in trained(net)) or trained(net)["gate"].shape == ()


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", REFUSED)
def test_files_whose_parameters_were_changed_are_refused(name: str, source: Callable[[str], Any]) -> None:
    """The message names what was done, and the call that does not do it; `trained` says that it does not matter."""
    proto = source(name)
    with pytest.raises(UnsupportedError, match=exports.EXPORTS[name][2]) as refused:
        mx.onnx.load(proto)
    assert "dynamo=True, optimize=False" in str(refused.value) and "trained=()" in str(refused.value)
    assert not trained(mx.onnx.load(proto, trained=()))


@pytest.mark.parametrize("name", exports.EXPORTS)
def test_all_that_was_exported_predicts(name: str) -> None:
    """The refused files as well, once it is said that nothing is trained."""
    proto = exports.recorded(name)
    net = mx.onnx.load(proto, trained=())
    (value,) = net.declared
    x = (
        models.random(*value.shape)
        if value.dtype == "f32"
        else np.arange(np.prod(value.shape)).reshape(value.shape) % 8
    )
    plain = exports.recorded(name.removesuffix("_optimized"))
    a, b = net(nd.array(x, dtype=x.dtype)), mx.onnx.load(plain)(nd.array(x, dtype=x.dtype))
    np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), rtol=1e-4, atol=1e-5)


@needs_exporter
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_training_is_that_of_the_module(backend: str) -> None:
    """Three steps of SGD in training mode, of a module with every kind of array."""
    import torch

    theirs, (tokens,) = exports.module_of("every_kind")
    net = mx.onnx.load(exports.exported(theirs, (tokens,), optimize=False))
    expected = dict(theirs.named_parameters())
    expected["head.weight"] = expected.pop("embedding.weight")
    assert trained(net).keys() == {n for n in expected if not n.startswith("unused")}
    optimizer = torch.optim.SGD(theirs.parameters(), 0.1)
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    step = mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer)
    labels = torch.tensor([0, 1, 2, 3, 4, 5])
    for _ in range(3):
        loss = torch.nn.functional.cross_entropy(theirs(tokens), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with debug.override(backend=backend if backend == "reference" else None):
            mine = step(nd.array(tokens.numpy(), dtype="int64"), nd.array(labels.numpy()))
        np.testing.assert_allclose(mine.asnumpy().mean(), loss.item(), rtol=1e-5)
    for name, p in trained(net).items():
        np.testing.assert_allclose(p.data().asnumpy(), expected[name].detach().numpy(), rtol=1e-4, atol=1e-5)


@needs_exporter
def test_free_axes_and_what_stands_for_no_operator() -> None:
    """Nothing of an export that was not optimized counts as removed: shapes, parts of tuples, branches, loops."""
    import torch
    from torch import nn

    class Net(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.lstm = nn.Linear(4, 4), nn.LSTM(4, 5, batch_first=True)

        def forward(self, x: Any) -> Any:
            b, t, _ = x.shape
            y = torch.cond(x.sum() > 0, lambda x: self.dense(x) + 1, lambda x: self.dense(x) - 1, (x,))
            z, (h, _) = self.lstm(y.clone().view(b, t, 4).contiguous())
            return {"z": z.chunk(2, -1)[0], "x": x, "h": h, "none": None}

    dim = torch.export.Dim
    shapes = ({0: dim("b", min=2), 1: dim("t", min=2)},)
    module = Net()
    proto = exports.exported(module, (torch.randn(2, 3, 4),), optimize=False, dynamic_shapes=shapes)
    found = torch_metadata(proto)
    assert found is not None and not found.removed and set(found.kinds) == dict(module.named_parameters()).keys()
    assert trained(mx.onnx.load(proto)).keys() == dict(module.named_parameters()).keys()


# -- other files


def older(tmp_path: Path, module: Any, args: tuple[Any, ...], **how: Any) -> Path:
    """What the exporter without torch.export has written, which needs no onnxscript."""
    torch = pytest.importorskip("torch")
    with pytest.warns(Warning):  # PyTorch's own, about its exporter
        torch.onnx.export(module, args, tmp_path / "older.onnx", dynamo=False, **how)
    return tmp_path / "older.onnx"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("convolution", "BatchNorm was fused into '/0/Conv': its weight is 'onnx::Conv_"),
        ("tied", "'embedding.weight' was untied: 'onnx::MatMul_.*' is the same array, transposed"),
        ("alike", "'1.bias' was merged with '0.bias', which was equal"),
    ],
)
def test_the_older_exporter_is_refused_by_what_its_names_tell(name: str, message: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    module, args = exports.module_of(name)
    with pytest.raises(UnsupportedError, match=message):
        mx.onnx.load(older(tmp_path, module.eval(), args))


def arrays_model() -> Any:
    nodes = [models.node("MatMul", "x w:0", "p"), models.node("Add", "p table", "q"), models.node("Mul", "q s", "y")]
    arrays = {"w:0": models.random(3, 3), "table": models.random(3), "s": np.float32(2)}
    return models.model(nodes, {"x": ["n", 3]}, ["y"], arrays)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (None, {"w_0", "table"}),
        ("w.*|s", {"w_0", "s"}),
        (["w:0", "s"], {"w_0", "s"}),
        (["w_0"], {"w_0"}),
        ((), set()),
    ],
)
def test_trained_names_the_parameters(given: Any, names: set[str]) -> None:
    net = mx.onnx.load(arrays_model(), trained=given)
    assert net.collect_params().keys() == names
    x = nd.array(models.random(2, 3, seed=1))
    with autograd.record():
        y = net(x)
    if names:
        y.backward()
    assert all(p.grad().asnumpy().any() and p.grad().shape == p.shape for p in net.collect_params().values())
    np.testing.assert_array_equal(y.asnumpy(), mx.onnx.load(arrays_model())(x).asnumpy())


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"trained": "v.*"}, "trained: 'v.*' matches no float array"),
        ({"trained": ["w:0", "v"]}, "trained: 'v' matches no float array"),
        ({"trained": "("}, r"trained='\(' is no regular expression"),
        ({"freeze": "v.*"}, "freeze='v.*' matches no parameter"),
        ({"freeze": "("}, r"freeze='\(' is no regular expression"),
    ],
)
def test_names_that_match_nothing(how: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        mx.onnx.load(arrays_model(), **how)


def test_scalars_are_saved_and_loaded(tmp_path: Path) -> None:
    net = mx.onnx.load(arrays_model(), trained=".*")
    net.collect_params()["s"].set_data(nd.array(3.0))
    net.save_parameters(str(tmp_path / "p.safetensors"))
    other = mx.onnx.load(arrays_model(), trained=".*")
    other.load_parameters(str(tmp_path / "p.safetensors"))
    assert other.collect_params()["s"].data().asnumpy() == 3.0


def test_the_text_of_a_model() -> None:
    text = repr(mx.onnx.load(arrays_model(), freeze="table"))
    assert text.splitlines() == [
        "ONNXBlock(",
        "  inputs: 'x' f32[n,3]",
        "  outputs: 'y' f32[...]",
        "  parameters:",
        "    w_0 f32[3,3]",
        "    table f32[3] null",
        ")",
    ]
    assert "  parameters: none" in repr(mx.onnx.load(arrays_model(), trained=()))


@pytest.mark.parametrize("value", ["", "p_x: PARAMETER", "%" * 50, "\n# inputs\n: PARAMETER target=''\n", "['", "é\0"])
def test_metadata_that_is_none_is_read_or_refused(value: str) -> None:
    """Whatever stands in the metadata, a file is loaded or refused by one sentence."""
    for name in ("every_kind", "every_kind_optimized"):
        proto = exports.recorded(name)
        for part in (proto.graph, *proto.graph.node, *proto.graph.value_info, *proto.graph.initializer):
            for entry in part.metadata_props:
                entry.value = value
        try:
            mx.onnx.load(proto)
        except UnsupportedError as error:
            assert "does not hold the parameters" in str(error)
