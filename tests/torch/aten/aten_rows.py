"""One row of the table of ATen's operators beside PyTorch's own operator: results, element types, gradients."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from gluongraph import ops
from gluongraph.ir import interpreter
from gluongraph.ir.graph import Node, TensorType
from gluongraph.ops.autodiff import gradients
from gluongraph.torch.aten.context import DTYPE_NAMES, OpContext
from gluongraph.torch.aten.table import ATEN, PLACEMENT, TABLE
from gluongraph.torch.tensors import to_numpy

# Relative and absolute: of results, and of gradients.
FORWARD = {"f64": (1e-12, 1e-12), "f32": (2e-6, 2e-6), "f16": (2e-3, 2e-3), "bf16": (2e-2, 2e-2)}
BACKWARD = (1e-10, 1e-10)
_KEPT = ("dtype",)  # keywords that the block's builder leaves out, as it does PLACEMENT


class Sample:
    """Arguments of an operator. With `grad=False` only results are compared, with `f32=False` only in float64; `close`
    are other tolerances of the gradients."""

    def __init__(self, *args: Any, grad: bool = True, f32: bool = True, close: Any = None, **kwargs: Any):
        self.args, self.kwargs, self.grad, self.f32, self.close = args, kwargs, grad, f32, close

    def __repr__(self) -> str:
        def shown(value: Any) -> str:
            if isinstance(value, torch.Tensor):
                return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
            return f"[{', '.join(map(shown, value))}]" if isinstance(value, (list, tuple)) else repr(value)

        named = [f"{k}={shown(v)}" for k, v in self.kwargs.items()]
        return f"({', '.join([*map(shown, self.args), *named])})"

    def single(self) -> Sample | None:
        """The sample in float32; None if it has no float64."""
        if not self.f32 or not any(t.dtype is torch.float64 for t in tensors_of([self.args, self.kwargs])):
            return None

        def half(t: Any) -> Any:
            return t.float() if t.dtype is torch.float64 else t

        kwargs = mapped(half, self.kwargs)
        if kwargs.get("dtype") is torch.float64:
            kwargs["dtype"] = torch.float32
        args = tuple(torch.float32 if a is torch.float64 else a for a in mapped(half, self.args))
        return Sample(*args, grad=False, **kwargs)


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """The arguments with a function of each tensor in its place."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {k: mapped(function, v) for k, v in value.items()}
    return type(value)(mapped(function, v) for v in value) if isinstance(value, (list, tuple)) else value


def tensors_of(value: Any) -> Iterator[Any]:
    """The tensors among arguments."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from tensors_of(each)


class _NoProgram:
    """What an OpContext asks, where there is no program: the state of a random generator, that of a seed."""

    def __init__(self, seed: int = 0):
        self.state = ops.literal(np.array([seed, 1, 2, 3], np.uint32))
        self.draws = 0

    def draw(self) -> tuple[Node, int]:
        self.draws += 1
        return self.state, self.draws - 1


def torch_operator(key: str) -> Callable[..., Any]:
    """PyTorch's own overload."""
    name, _, overload = key.partition(".")
    return getattr(getattr(torch.ops.aten, name), overload)  # type: ignore[no-any-return]


def as_list(made: Any) -> list[Any]:
    return list(made) if isinstance(made, (list, tuple)) else [made]


def build(
    key: str, args: Any, kwargs: Any, expected: Sequence[Any], seed: int = 0, prefix: str = ""
) -> tuple[list[Any], dict[Any, Any]]:
    """The results of the row as nodes, and the arrays of their inputs, whose names have the prefix."""
    env: dict[Any, Any] = {}

    def leaf(t: Any) -> Node:
        node = ops.input(f"{prefix}x{len(env)}", TensorType(tuple(t.shape), DTYPE_NAMES[str(t.dtype)]))
        env[node] = to_numpy(t).copy()
        return node

    dtypes = [DTYPE_NAMES[str(t.dtype)] if isinstance(t, torch.Tensor) else None for t in expected]
    at = OpContext(_NoProgram(seed), key, dtypes)  # type: ignore[arg-type]
    named = {k: v for k, v in mapped(leaf, kwargs).items() if k not in PLACEMENT and k not in _KEPT}
    made = TABLE[ATEN + key](at, *mapped(leaf, args), **named)
    return as_list(made), env


def compare(key: str, sample: Sample) -> None:
    """Assert that results and gradients of the row are PyTorch's."""
    args, kwargs = (mapped(lambda t: t.detach().clone(), v) for v in (sample.args, sample.kwargs))
    leaves = list(tensors_of([args, kwargs]))
    with torch.no_grad():
        expected = as_list(torch_operator(key)(*args, **kwargs))
    got, env = build(key, args, kwargs, expected)
    inputs = list(env)
    assert len(got) <= len(expected)
    results = dict(zip([n for n in got if isinstance(n, Node)], evaluated(got, env), strict=True))
    for node, want in zip(got, expected, strict=False):
        if not isinstance(node, Node):
            assert node is None or node == want  # None is a result that nothing asks for
            continue
        _same(results[node], to_numpy(want), FORWARD.get(node.dtype, (0, 0)), "result")
    if sample.grad and any(t.dtype is torch.float64 for t in leaves):
        _compare_gradients(key, sample, args, kwargs, got, inputs, env)


def evaluated(nodes: Sequence[Any], env: Any) -> list[Any]:
    """The elements of those that are nodes."""
    return list(interpreter.evaluate([n for n in nodes if isinstance(n, Node)], dict(env)))


def _same(got: Any, want: Any, tolerance: tuple[float, float], what: str) -> None:
    assert got.shape == want.shape, f"{what}: shape {got.shape}, not {want.shape}"
    assert got.dtype == want.dtype, f"{what}: {got.dtype}, not {want.dtype}"
    wide = [a if a.dtype.kind in "iub" else a.astype(np.float64) for a in (got, want)]
    np.testing.assert_allclose(*wide, rtol=tolerance[0], atol=tolerance[1], err_msg=what)


def _differentiable(key: str, args: Any, kwargs: Any) -> list[Any]:
    """PyTorch's results, of floats that require a gradient, but for arguments of which it says that they have none."""
    operator = torch_operator(key)
    names = [a.name for a in operator._schema.arguments]  # type: ignore[attr-defined]
    given = dict(zip(names, args, strict=False)) | kwargs
    for name in [*given]:
        for t in tensors_of(given[name]):
            t.requires_grad_(t.is_floating_point())
    while True:
        try:
            with torch.enable_grad():
                return as_list(operator(*args, **kwargs))
        except RuntimeError as error:
            found = re.search(r"not differentiable with respect to argument '(\w+)'", str(error))
            if found is None:
                raise
            given[found[1]].requires_grad_(False)


def _compare_gradients(
    key: str, sample: Sample, args: Any, kwargs: Any, got: Sequence[Any], inputs: Any, env: Any
) -> None:
    """The gradient of a weighted sum of all results."""
    leaves = list(tensors_of([args, kwargs]))
    results = _differentiable(key, args, kwargs)[: len(got)]
    heads: list[tuple[Node, Node]] = []
    want: list[tuple[Any, Any]] = []
    draw = torch.Generator().manual_seed(1)
    for node, result in zip(got, results, strict=True):
        if isinstance(node, Node) and result.is_floating_point():
            weight = torch.rand(result.shape, generator=draw, dtype=torch.float64).to(result.dtype) + 0.5
            head = ops.input(f"g{len(env)}", node.ty)
            env[head] = to_numpy(weight).copy()
            heads.append((node, head))
            want += [(result, weight)] if result.requires_grad else []
    floats = [(node, t) for node, t in zip(inputs, leaves, strict=True) if t.requires_grad]
    given = [t for _, t in floats]
    expected: Sequence[Any] = [None] * len(given)
    if want:
        expected = torch.autograd.grad([r for r, _ in want], given, [w for _, w in want], allow_unused=True)
    found = gradients([n for n, _ in heads], [h for _, h in heads], [node for node, _ in floats])
    arrays = iter(interpreter.evaluate([n for n in found if n is not None], dict(env)))
    for k, ((_, t), node, grad) in enumerate(zip(floats, found, expected, strict=True)):
        zeros = np.zeros(tuple(t.shape), to_numpy(t).dtype)
        array = zeros if node is None else next(arrays)
        wanted = zeros if grad is None else to_numpy(torch.zeros_like(t).copy_(grad))  # not PyTorch's ZeroTensor
        _same(array, wanted, sample.close or BACKWARD, f"gradient of tensor {k}")
