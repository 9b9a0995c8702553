"""The interpreter: runs a graph node by node in numpy, the reference for every compiled program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gluongraph.dtypes import numpy_dtype
from gluongraph.errors import MXNetError
from gluongraph.ir.composite import body_of
from gluongraph.ir.graph import Graph, Node

Watch = Callable[[Node, Any], None]


def run(graph: Graph, values: Mapping[str, Any], watch: Watch | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return outputs and updates, by name, from the arrays of the inputs, by name.

    `watch(node, value)` is called with every value when it is computed; its exceptions end the run. Arrays that are
    returned may be views of the inputs.

    Raises:
        MXNetError: an input is missing, or its array has another shape or dtype.
    """
    if missing := [name for name in graph.inputs if name not in values]:
        raise MXNetError(f"no value is given for {', '.join(missing)}")
    env = {n: np.asarray(values[name]) for name, n in graph.inputs.items()}
    for name, (n, array) in zip(graph.inputs, env.items(), strict=True):
        if array.shape != n.shape or array.dtype != numpy_dtype(n.dtype):
            raise MXNetError(f"input {name} is {n.ty}, not {array.dtype} {array.shape}")
    found = evaluate(graph.results, env, watch)
    outputs = dict(zip(graph.outputs, found, strict=False))
    return outputs, dict(zip(graph.updates, found[len(outputs) :], strict=True))


def evaluate(nodes: Sequence[Node], env: Mapping[Node, Any], watch: Watch | None = None) -> list[Any]:
    """Return the values of the nodes, given those of the nodes in `env`. Values are freed after their last reader."""
    order = _needed(nodes, env)
    left = Counter(s for n in order for s in n.src)
    left.update(nodes)
    values = dict(env)
    with np.errstate(all="ignore"):  # compiled code does not warn of overflows either
        for n in order:
            values[n] = apply(n, [values[s] for s in n.src])
            if watch is not None:
                watch(n, values[n])
            for s in n.src:
                left[s] -= 1
                if not left[s]:
                    del values[s]
    return [values[n] for n in nodes]


def apply(n: Node, arrays: Sequence[Any]) -> Any:
    """Return the value of a node from those of its sources: by its numpy implementation, or its body."""
    if n.op.numpy is not None:
        value = n.op.numpy(*arrays, **n.attrs)
    elif n.op.body is not None:
        body = body_of(n)
        found = evaluate(body.results, dict(zip(body.inputs.values(), arrays, strict=True)))
        value = tuple(found) if isinstance(n.type, tuple) else found[0]
    else:
        raise MXNetError(f"no value is given for {n!r}" + (f" {n.attrs['name']!r}" if "name" in n.attrs else ""))
    return value if isinstance(value, tuple) else np.asarray(value)


def _needed(nodes: Sequence[Node], env: Mapping[Node, Any]) -> list[Node]:
    """Return the nodes to be computed, sources first, down to those in `env`."""
    order: dict[Node, None] = {}
    stack = [(n, False) for n in reversed(nodes)]
    while stack:
        n, ready = stack.pop()
        if ready:
            order[n] = None
        elif n not in order and n not in env:
            stack.append((n, True))
            stack.extend((s, False) for s in reversed(n.src))
    return list(order)
