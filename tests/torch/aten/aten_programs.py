"""A module of PyTorch's, traced and interpreted: results, moved buffers and gradients beside PyTorch's own."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gluongraph import ops
from gluongraph.ir import interpreter
from gluongraph.ir.graph import Node, TensorType
from gluongraph.ops.autodiff import gradients
from gluongraph.torch import export
from gluongraph.torch.aten.context import DTYPE_NAMES
from gluongraph.torch.build import Building
from gluongraph.torch.program import Program
from gluongraph.torch.tensors import to_numpy

STATE = np.array([0, 1, 2, 3], np.uint32)  # of the random generator


class Traced:
    """A module's program in one mode, built once for the arguments' own shapes."""

    def __init__(self, module: Any, args: Sequence[Any], training: bool):
        self.module, self.args = export.as_module(module), tuple(args)
        self.tensors = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        with export.mode(self.module, training):
            self.program = Program(export.export(self.module, self.args, {}, None), {n: n for n in self.tensors})
        self.env: dict[Node, Any] = {}
        given = [a for a in torch.utils._pytree.tree_flatten(self.args)[0] if isinstance(a, torch.Tensor)]
        self.inputs = [self._leaf(f"x{k}", t) for k, t in enumerate(given)]
        state = {name: self._leaf(name, t) for name, t in self.tensors.items()}
        self.parameters = [state[name] for name, _ in self.module.named_parameters()]
        source = ops.input("random", TensorType((4,), "u32"))
        self.env[source] = STATE
        building = Building(self.program, None, [(source, k) for k in range(self.program.draws)])
        self.results, self.moved = building.run(self.inputs, state)

    def _leaf(self, name: str, tensor: Any) -> Node:
        node = ops.input(name, TensorType(tuple(tensor.shape), DTYPE_NAMES[str(tensor.dtype)]))
        self.env[node] = to_numpy(tensor).copy()
        return node

    def values(self, nodes: Sequence[Node]) -> list[Any]:
        """The elements of nodes."""
        return list(interpreter.evaluate(nodes, dict(self.env)))


def flat(results: Any) -> list[Any]:
    """The tensors among results."""
    return [r for r in torch.utils._pytree.tree_flatten(results)[0] if isinstance(r, torch.Tensor)]


def compare(module: Any, args: Sequence[Any], training: bool, forward: float = 1e-5, backward: float = 1e-4) -> None:
    """Assert that results, what buffers become, and gradients of inputs and parameters are PyTorch's."""
    traced = Traced(module, args, training)
    own = copy.deepcopy(traced.module)
    with export.mode(own, training):
        leaves, spec = torch.utils._pytree.tree_flatten(traced.args)
        leaves = [a.clone().requires_grad_(a.is_floating_point()) if isinstance(a, torch.Tensor) else a for a in leaves]
        expected = flat(own(*torch.utils._pytree.tree_unflatten(leaves, spec)))
    got = traced.values(traced.results)
    assert len(got) == len(expected)
    for mine, theirs in zip(got, expected, strict=True):
        _close(mine, theirs, forward, "result")
    buffers = dict(own.named_buffers())
    for name, mine in zip(traced.moved, traced.values(list(traced.moved.values())), strict=True):
        _close(mine, buffers[name], forward, name)
    given = [a for a in leaves if isinstance(a, torch.Tensor)]
    _compare_gradients(traced, expected, given, list(own.named_parameters()), backward)


def _compare_gradients(traced: Traced, expected: Any, given: Any, parameters: Any, tolerance: float) -> None:
    """Of a weighted sum of the results, for the inputs that are floats and for the parameters."""
    heads, theirs, draw = [], [], torch.Generator().manual_seed(0)
    for k, (node, tensor) in enumerate(zip(traced.results, expected, strict=True)):
        if tensor.requires_grad:
            weight = torch.rand(tensor.shape, generator=draw, dtype=tensor.dtype) + 0.5
            head = ops.input(f"g{k}", node.ty)
            traced.env[head] = to_numpy(weight).copy()
            heads.append((node, head))
            theirs.append((tensor, weight))
    floats = [
        (f"input {k}", n, t) for k, (n, t) in enumerate(zip(traced.inputs, given, strict=True)) if t.requires_grad
    ]
    named = [(name, n, t) for (name, t), n in zip(parameters, traced.parameters, strict=True) if t.requires_grad]
    wanted = [*floats, *named]
    if not heads or not wanted:
        return
    want = torch.autograd.grad(
        [t for t, _ in theirs], [t for *_, t in wanted], [w for _, w in theirs], allow_unused=True
    )
    found = gradients([n for n, _ in heads], [h for _, h in heads], [n for _, n, _ in wanted])
    arrays = iter(traced.values([n for n in found if n is not None]))
    for (name, _, tensor), node, expected_one in zip(wanted, found, want, strict=True):
        mine = np.zeros(tuple(tensor.shape)) if node is None else next(arrays)
        _close(
            mine, torch.zeros_like(tensor) if expected_one is None else expected_one, tolerance, f"gradient of {name}"
        )


def _close(mine: Any, theirs: Any, tolerance: float, what: str) -> None:
    wanted = to_numpy(theirs)
    assert mine.shape == wanted.shape, f"{what}: shape {mine.shape}, not {wanted.shape}"
    np.testing.assert_allclose(mine, wanted, rtol=tolerance, atol=tolerance, err_msg=what)
