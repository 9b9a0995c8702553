"""Control: call and fused apply a graph once, get_tuple_element picks a result of several, depends_on orders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gluongraph.ir.composite import substitute
from gluongraph.ir.graph import Graph, Node, Op, TensorType, Types
from gluongraph.ops import constants, elementwise
from gluongraph.ops.checks import misfit
from gluongraph.ops.samples import array

# -- get_tuple_element


def _element_type(x: Types, index: int) -> TensorType:
    if not isinstance(x, tuple) or not 0 <= index < len(x):
        count = len(x) if isinstance(x, tuple) else 1
        raise misfit("get_tuple_element", f"there is no result {index} among {count}")
    return x[index]


GET_TUPLE_ELEMENT = Op(
    "get_tuple_element",
    kind="control",
    infer=_element_type,
    numpy=lambda x, index: x[index],
    samples=lambda rng: [(((array(rng, (3,)), array(rng, (2, 5), "i32")),), {"index": k}) for k in (0, 1)],
    doc="One of the results of a node that has several.",
)


def get_tuple_element(x: Node, index: int) -> Node:
    """One of the results of a node that has several."""
    return GET_TUPLE_ELEMENT(x, index=index)


def get_tuple_elements(x: Node) -> tuple[Node, ...]:
    """All results of a node that has several."""
    return tuple(GET_TUPLE_ELEMENT(x, index=k) for k in range(len(x.types)))


# -- depends_on: a control dependency


def _depends_on_numpy(x: Any, *first: Any) -> Any:
    return x


DEPENDS_ON = Op(
    "depends_on",
    kind="control",
    infer=lambda x, *first: x,
    numpy=_depends_on_numpy,
    samples=lambda rng: [((array(rng, (3,)), array(rng, (2, 5))), {})],
    doc="x, whose readers run when the other sources have been computed",
)


def depends_on(x: Node, *first: Node) -> Node:
    """x itself; a kernel that reads it through this node runs after all of `first` have been computed, without reading
    them. It delays recomputed copies until they are needed."""
    return DEPENDS_ON(x, *first) if first else x


# -- call, fused: a body graph applied once


def check_arguments(op: str, args: tuple[TensorType, ...], body: Graph) -> None:
    """Raise ShapeError unless the arguments are what the body takes."""
    wanted = tuple(n.ty for n in body.inputs.values())
    if args != wanted:
        raise misfit(op, f"the body takes ({', '.join(map(str, wanted))})", *args)


def _call_type(*args: TensorType, body: Graph) -> tuple[TensorType, ...]:
    check_arguments("call", args, body)
    return tuple(n.ty for n in body.outputs.values())


def _fused_type(*args: TensorType, body: Graph, pattern: str) -> tuple[TensorType, ...]:
    check_arguments("fused", args, body)
    return tuple(n.ty for n in body.outputs.values())


def apply_body(*args: Any, body: Graph, pattern: str = "") -> tuple[Any, ...]:
    """The outputs of a body in numpy."""
    from gluongraph.ir import interpreter

    outputs, _ = interpreter.run(body, dict(zip(body.inputs, args, strict=True)))
    return tuple(outputs.values())


def _call_grad(gs: tuple[Node, ...], ys: Any, *args: Node, body: Graph) -> tuple[Node | None, ...]:
    """A call of the gradient body, which takes the arguments and then the gradients of the results."""
    names = list(body.inputs)
    leaves = {f"x{k}": constants.input(f"x{k}", a.ty) for k, a in enumerate(args)}
    heads = {f"g{k}": constants.input(f"g{k}", g.ty) for k, g in enumerate(gs)}
    results = substitute(body, tuple(leaves.values()))
    found = dict(zip(names, gradients_of(results, tuple(heads.values()), tuple(leaves.values())), strict=True))
    outputs = {f"y{k}": g for k, g in enumerate(found.values()) if g is not None}
    if not outputs:
        return (None,) * len(args)
    made = iter(get_tuple_elements(CALL(*args, *gs, body=Graph({**leaves, **heads}, outputs))))
    return tuple(None if g is None else next(made) for g in found.values())


def gradients_of(ys: Sequence[Node], gs: Sequence[Node | None], wrt: Sequence[Node]) -> list[Node | None]:
    """Differentiate; `autodiff` is built on the ops, so it is imported at first use."""
    from gluongraph.ops.autodiff import gradients

    return gradients(ys, gs, wrt)


def _small_body(dtype: str) -> Graph:
    """tanh(x) · y, and x + y"""
    x, y = (constants.input(name, TensorType((2, 5), dtype)) for name in ("x", "y"))
    return Graph({"x": x, "y": y}, {"a": elementwise.tanh(x) * y, "b": x + y})


def _call_samples(**attrs: Any) -> Any:
    return lambda rng: [
        (tuple(array(rng, (2, 5), dtype) for _ in range(2)), {"body": _small_body(dtype), **attrs})
        for dtype in ("f32", "f64")
    ]


CALL = Op(
    "call",
    kind="control",
    infer=_call_type,
    numpy=apply_body,
    grad=_call_grad,
    samples=_call_samples(),
    doc="A body graph applied to arguments.",
)
FUSED = Op(
    "fused",
    kind="control",
    infer=_fused_type,
    numpy=apply_body,
    samples=_call_samples(pattern="loop"),
    doc="A kernel: a body graph that is computed in one loop nest of the named pattern.",
)


def call(*args: Node, body: Graph) -> tuple[Node, ...]:
    """The outputs of a body graph applied to arguments, in the order of its inputs."""
    return get_tuple_elements(CALL(*args, body=body))


def fused(*args: Node, body: Graph, pattern: str) -> Node:
    """A kernel: a body graph that is computed in one loop nest; its results are picked with `get_tuple_element`."""
    return FUSED(*args, body=body, pattern=pattern)
