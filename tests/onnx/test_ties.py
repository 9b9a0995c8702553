"""Gradients where a function has a kink: at ties, at bounds and at 0 imported models have PyTorch's."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx_models as models
import pytest
import torch_exports as exports

import gluongraph as mx
from gluongraph import autograd, debug, nd

X = [[0, -1, 1, 1], [3, -3, 0.5, -0.5], [2, 2, 2, -2], [-0.0, 6, -1, 0]]
Y = [[0, 1, 1, -1], [3, -3, -0.5, -0.5], [2, 1, 2, -2], [0, 6, 1, 0]]


def gradients(proto: Any, *xs: Any, hybridize: bool = False) -> tuple[Any, list[Any]]:
    """The result, and the gradients of the inputs from 1, 2, ... for its elements."""
    net, arrays = mx.onnx.load(proto), [nd.array(x) for x in xs]
    net.hybridize(hybridize)
    for a in arrays:
        a.attach_grad()
    with autograd.record():
        y = net(*arrays)
    y.backward(nd.array(np.arange(1, y.size + 1).reshape(y.shape)))
    return y.asnumpy(), [a.grad.asnumpy() for a in arrays]


# Functions of one or two arrays that have kinks; F is torch.nn.functional.
FUNCTIONS = {
    "abs": "torch.abs(x)",
    "adaptive_max_pool2d": "F.adaptive_max_pool2d(x[None, None], 1)",
    "amax": "x.amax(1)",
    "amax of two axes": "x.amax((0, 1))",
    "amin": "(-x).amin(1)",
    "celu": "F.celu(x)",
    "clamp": "x.clamp(-1, 1)",
    "clamp by arrays": "torch.clamp(x, y, y + 1)",
    "clamp by one array": "x.clamp(min=y)",
    "clamp from above": "x.clamp(max=1)",
    "clamp from below": "x.clamp(min=1)",
    "clamp to one number": "x.clamp(2, 2)",
    "detach": "x * x.detach()",
    "difference": "(x - y).abs()",
    "elu": "F.elu(x)",
    "fmod": "torch.fmod(x, 2.0)",
    "hardshrink": "F.hardshrink(x)",
    "hardsigmoid": "F.hardsigmoid(x)",
    "hardswish": "F.hardswish(x)",
    "hardtanh": "F.hardtanh(x)",
    "huber_loss": "F.huber_loss(x, y, reduction='none')",
    "leaky_relu": "F.leaky_relu(x)",
    "logsumexp": "x.logsumexp(1)",
    "max": "x.max()",
    "max along an axis": "x.max(1)[0]",
    "max along an axis that stays": "x.max(0, keepdim=True)[0]",
    "max_pool1d with dilation": "F.max_pool1d(x[None], 2, 1, 0, 2)",
    "max_pool2d": "F.max_pool2d(x[None, None], 3, 1, 1)",
    "max_pool2d with ceil_mode": "F.max_pool2d(x[None, None], 3, 2, 0, ceil_mode=True)",
    "maximum": "torch.maximum(x, y)",
    "maximum of three": "torch.maximum(torch.maximum(x, y), x)",
    "min": "(-x).min()",
    "min along an axis": "(-x).min(1)[0]",
    "minimum": "torch.minimum(x, y)",
    "norm of zeros": "(x * 0).norm(dim=1)",
    "norm of order 1": "x.norm(1, dim=1)",
    "norm of order infinity": "x.norm(float('inf'), dim=1)",
    "prelu": "F.prelu(x, torch.tensor([0.25]))",
    "relu": "torch.relu(x)",
    "relu6": "F.relu6(x)",
    "remainder": "torch.remainder(x, 2.0)",
    "selu": "F.selu(x)",
    "smooth_l1_loss": "F.smooth_l1_loss(x, y, reduction='none')",
    "softshrink": "F.softshrink(x)",
    "sort": "x.sort(1)[0]",
    "stacked": "torch.stack([x, y]).amax(0)",
    "threshold": "F.threshold(x, 1.0, 20.0)",
    "where": "torch.where(x > y, x, y)",
}


@pytest.mark.skipif(
    not (find_spec("torch") and find_spec("onnxscript")), reason="torch.onnx.export(dynamo=True) needs onnxscript"
)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_exported_functions_are_pytorchs(name: str) -> None:
    import torch

    names = "x, y" if re.search(r"\by\b", FUNCTIONS[name]) else "x"
    function = eval(f"lambda {names}: {FUNCTIONS[name]}", {"torch": torch, "F": torch.nn.functional})

    class Module(torch.nn.Module):  # type: ignore[misc]
        def forward(self, *args: Any) -> Any:
            return function(*args)

    tensors = [torch.tensor(a, requires_grad=True) for a in (X, Y)[: len(names.split(", "))]]
    y = function(*tensors)
    y.backward(torch.arange(1.0, y.numel() + 1).reshape(y.shape))
    given = tuple(t.detach() for t in tensors)
    value, found = gradients(exports.exported(Module(), given, optimize=False), *(t.numpy() for t in given))
    np.testing.assert_allclose(value, y.detach().numpy(), rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(found, tensors, strict=True):
        np.testing.assert_allclose(mine, theirs.grad.numpy(), rtol=1e-5, atol=1e-6)


def named(node: Any, operation: str) -> Any:
    """A node with the metadata of one that was exported from an operation of PyTorch's."""
    text = f"%made : [num_users=1] = call_function[target=torch.ops.{operation}](args = (%x,), kwargs = {{}})"
    node.metadata_props.add(key="pkg.torch.onnx.fx_node", value=text)
    return node


ZERO, SIX, AXIS = {"low": np.float32(0)}, {"high": np.float32(6)}, {"axis": np.array([1])}
# One node, what PyTorch calls it, the arrays that it reads beside x, x, and the gradient by numbers of 1, 2, ...
KINKS: list[tuple[Any, str, dict[str, Any], Any, Any]] = [
    (models.node("Clip", "x low high", "y"), "aten.hardtanh.default", ZERO | SIX, [0, 3, 6, 7], [0, 2, 0, 0]),
    (models.node("Clip", "x low high", "y"), "aten.clamp.default", ZERO | SIX, [0, 3, 6, 7], [1, 2, 3, 0]),
    (models.node("Clip", "x low high", "y"), "", ZERO | SIX, [0, 3, 6, 7], [1, 2, 3, 0]),
    (models.node("Max", "x low", "y"), "aten.clamp.default", ZERO, [0, 3, -1], [1, 2, 0]),
    (models.node("Max", "x low", "y"), "aten.clamp_min.default", ZERO, [0, 3, -1], [1, 2, 0]),
    (models.node("Max", "x low", "y"), "aten.maximum.default", ZERO, [0, 3, -1], [0.5, 2, 0]),
    (models.node("Max", "x low", "y"), "", ZERO, [0, 3, -1], [0.5, 2, 0]),
    (models.node("Min", "x high", "y"), "aten.clamp_max.default", SIX, [6, 3, 7], [1, 2, 0]),
    (models.node("Min", "x high", "y"), "aten.minimum.default", SIX, [6, 3, 7], [0.5, 2, 0]),
    (models.node("ReduceMax", "x axis", "y"), "aten.max.dim", AXIS, [[1, 3, 3], [2, 2, 1]], [[0, 1, 0], [2, 0, 0]]),
    (models.node("ReduceMin", "x axis", "y"), "aten.min.dim", AXIS, [[1, 0, 0], [2, 2, 3]], [[0, 1, 0], [2, 0, 0]]),
    (models.node("ReduceMax", "x axis", "y"), "aten.amax.default", AXIS, [[3, 3, 1]], [[0.5, 0.5, 0]]),
    (models.node("Identity", "x", "y"), "aten.detach.default", {}, [1, 2], [0, 0]),
    (models.node("Identity", "x", "y"), "aten.clone.default", {}, [1, 2], [1, 2]),
    (models.node("LeakyRelu", "x", "y", alpha=0.5), "", {}, [0, 3, -1], [0.5, 2, 1.5]),
    (models.node("HardSigmoid", "x", "y", alpha=0.5), "", {}, [-1, 0, 1], [0, 1, 0]),
    (models.node("HardSwish", "x", "y"), "", {}, [-3, 0, 3], [0, 1, 3]),
    (models.node("Mod", "x high", "y", fmod=1), "", SIX, [0, 7, -7], [1, 2, 3]),
]


@pytest.mark.parametrize("hybridize", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("case", KINKS, ids=lambda case: f"{case[0].op_type} {case[1]}")
def test_gradients_at_kinks(case: Any, hybridize: bool) -> None:
    node, operation, arrays, x, want = case
    node = type(node).FromString(node.SerializeToString())
    proto = models.model([named(node, operation) if operation else node], {"x": np.shape(x)}, ["y"], arrays)
    with debug.override(backend="reference"):
        _, (found,) = gradients(proto, np.array(x, "f4"), hybridize=hybridize)
    np.testing.assert_allclose(found, want, rtol=1e-6)


@pytest.mark.parametrize("name", ["ReduceMax", "ReduceMin"])
def test_an_extreme_of_nan_is_nan(name: str) -> None:
    node = named(models.node(name, "x axis", "y", keepdims=0), f"aten.{name[6:].lower()}.dim")
    net = mx.onnx.load(models.model([node], {"x": [2, 3]}, ["y"], AXIS))
    found = net(nd.array([[1, np.nan, 3], [4, 4, 4]])).asnumpy()
    np.testing.assert_array_equal(found, [np.nan, 4])
