"""Small models made with onnx.helper, as exporters write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

OPSET = 20


def model(
    nodes: Sequence[Any],
    inputs: Mapping[str, Sequence[int | str | None]],
    outputs: Sequence[str],
    arrays: Mapping[str, Any] | None = None,
    *,
    opset: int = OPSET,
    types: Mapping[str, int] | None = None,
    domains: Mapping[str, int] | None = None,
    functions: Sequence[Any] = (),
) -> Any:
    """A ModelProto; inputs and outputs are float32 where `types` says nothing else."""
    kinds = types or {}
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info(n, kinds.get(n, TensorProto.FLOAT), shape) for n, shape in inputs.items()],
        [helper.make_tensor_value_info(n, kinds.get(n, TensorProto.FLOAT), None) for n in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in (arrays or {}).items()],
    )
    versions = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, v) for d, v in (domains or {}).items())]
    return helper.make_model(graph, opset_imports=versions, functions=list(functions))


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> Any:
    """A node; names are separated by blanks, and "_" is one that is left out."""
    names = ["" if n == "_" else n for n in inputs.split()]
    return helper.make_node(op, names, outputs.split(), name=f"{op.lower()}_{outputs.split()[0]}", **attrs)


def random(*shape: int, seed: int = 0, scale: float = 0.5) -> Any:
    """Numbers for a weight."""
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * scale).astype(np.float32)


def cnn() -> Any:
    """Convolution, batch norm, relu, pooling, and a reshape whose shape is computed from the input's, as by PyTorch."""
    nodes = [
        node("Conv", "x c.weight c.bias", "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c bn.weight bn.bias bn.mean bn.var", "b", epsilon=1e-3, momentum=0.8),
        node("Relu", "b", "r"),
        node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Shape", "p", "shape"),
        node("Gather", "shape zero", "n", axis=0),
        node("Unsqueeze", "n axis0", "n1"),
        node("Concat", "n1 rest", "flat", axis=0),
        node("Reshape", "p flat", "f"),
        node("Gemm", "f fc.weight fc.bias", "y", transB=1),
    ]
    arrays = {
        "c.weight": random(3, 2, 3, 3),
        "c.bias": random(3),
        "bn.weight": 1 + random(3, seed=1, scale=0.1),
        "bn.bias": random(3, seed=2),
        "bn.mean": random(3, seed=3, scale=0.1),
        "bn.var": np.abs(random(3, seed=4)) + 0.5,
        "fc.weight": random(4, 27),
        "fc.bias": random(4),
        "zero": np.array(0, np.int64),
        "axis0": np.array([0], np.int64),
        "rest": np.array([-1], np.int64),
    }
    return model(nodes, {"x": ["n", 2, 6, 6]}, ["y"], arrays)


def transformer() -> Any:
    """One block: layer norm, attention of two heads with a mask, residuals, an MLP with Gelu."""
    width, heads = 8, 2
    nodes = [
        node("LayerNormalization", "x n1.weight n1.bias", "n1", axis=-1),
        node("MatMul", "n1 qkv.weight", "qkv0"),
        node("Add", "qkv0 qkv.bias", "qkv"),
        node("Split", "qkv", "q k v", axis=2, num_outputs=3),
        *(node("Reshape", f"{n} by_head", f"{n}h") for n in "qkv"),
        node("Transpose", "qh", "qt", perm=[0, 2, 1, 3]),
        node("Transpose", "kh", "kt", perm=[0, 2, 3, 1]),
        node("Transpose", "vh", "vt", perm=[0, 2, 1, 3]),
        node("MatMul", "qt kt", "scores0"),
        node("Mul", "scores0 scale", "scores1"),
        node("Where", "mask scores1 low", "scores"),
        node("Softmax", "scores", "weights", axis=-1),
        node("MatMul", "weights vt", "heads"),
        node("Transpose", "heads", "joined0", perm=[0, 2, 1, 3]),
        node("Reshape", "joined0 joined_shape", "joined"),
        node("MatMul", "joined out.weight", "out"),
        node("Add", "x out", "x1"),
        node("LayerNormalization", "x1 n2.weight n2.bias", "n2", axis=-1),
        node("MatMul", "n2 up.weight", "up"),
        node("Gelu", "up", "act"),
        node("MatMul", "act down.weight", "down"),
        node("Add", "x1 down", "y"),
    ]
    arrays = {
        **{f"n{k}.weight": 1 + random(width, seed=k, scale=0.1) for k in (1, 2)},
        **{f"n{k}.bias": random(width, seed=k + 2, scale=0.1) for k in (1, 2)},
        "qkv.weight": random(width, 3 * width),
        "qkv.bias": random(3 * width),
        "out.weight": random(width, width),
        "up.weight": random(width, 2 * width),
        "down.weight": random(2 * width, width),
        "by_head": np.array([0, 0, heads, -1], np.int64),
        "joined_shape": np.array([0, 0, -1], np.int64),
        "scale": np.array((width // heads) ** -0.5, np.float32),
        "low": np.array(-1e9, np.float32),
        "mask": np.tril(np.ones((5, 5), bool)),
    }
    return model(nodes, {"x": ["n", 5, width]}, ["y"], arrays)


def lstm() -> Any:
    """Both directions, with biases, and a product on the last states."""
    width, hidden = 3, 4
    nodes = [
        node("LSTM", "x w r b", "_ h _", direction="bidirectional", hidden_size=hidden),
        node("Transpose", "h", "t", perm=[1, 0, 2]),
        node("Flatten", "t", "f"),
        node("MatMul", "f out", "y"),
    ]
    nodes[0].output[0] = nodes[0].output[2] = ""
    arrays = {
        "w": random(2, 4 * hidden, width),
        "r": random(2, 4 * hidden, hidden),
        "b": random(2, 8 * hidden),
        "out": random(2 * hidden, 2),
    }
    return model(nodes, {"x": [6, "n", width]}, ["y"], arrays)


INPUTS: dict[str, tuple[int, ...]] = {"cnn": (3, 2, 6, 6), "transformer": (2, 5, 8), "lstm": (6, 2, 3)}
MAKERS: dict[str, Any] = {"cnn": cnn, "transformer": transformer, "lstm": lstm}
