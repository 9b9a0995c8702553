"""Shapes of parameters from the data that meets them: what a block says nothing about, and MXNet works out itself."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gluongraph import nd
from gluongraph.ndarray import NDArray
from gluongraph.tracing import tracer

if TYPE_CHECKING:
    from gluongraph.gluon.hybrid_block import HybridBlock
    from gluongraph.gluon.parameter import Parameter

Shape = tuple[int, ...]


def _dense(data: Shape, how: Mapping[str, Any]) -> list[Shape]:
    units = how["num_hidden"]
    return [(units, math.prod(data[1:]) if how.get("flatten", True) else data[-1]), (units,)]


def _channels_last(how: Mapping[str, Any]) -> bool:
    layout = how.get("layout")
    return layout is not None and layout[1] != "C"


def _convolution(data: Shape, how: Mapping[str, Any]) -> list[Shape]:
    filters, kernel = how["num_filter"], tuple(how["kernel"])
    channels = data[-1] if _channels_last(how) else data[1]
    each = channels // how.get("num_group", 1)
    return [(filters, *kernel, each) if _channels_last(how) else (filters, each, *kernel), (filters,)]


def _deconvolution(data: Shape, how: Mapping[str, Any]) -> list[Shape]:
    filters, kernel = how["num_filter"], tuple(how["kernel"])
    each = filters // how.get("num_group", 1)
    shape = (data[-1], *kernel, each) if _channels_last(how) else (data[1], each, *kernel)
    return [shape, (filters,)]


def _along(axis: int) -> Callable[[Shape, Mapping[str, Any]], list[Shape]]:
    return lambda data, how: [(data[how.get("axis", axis)],)] * 4


def _recurrent(data: Shape, how: Mapping[str, Any]) -> list[Shape]:
    gates = {"lstm": 4, "gru": 3}.get(how["mode"], 1)
    width, directions, inputs = how["state_size"], 2 if how.get("bidirectional") else 1, data[-1]
    out = how.get("projection_size") or width
    count = 0
    for _ in range(how["num_layers"]):
        each = gates * width * (inputs + out + 2) + (out * width if how.get("projection_size") else 0)
        count, inputs = count + directions * each, directions * out
    return [(count,)]


# Operator -> the shapes of its inputs behind the data, from the data's shape and the operator's attributes.
_RULES: dict[str, Callable[[Shape, Mapping[str, Any]], list[Shape]]] = {
    "FullyConnected": _dense,
    "Convolution": _convolution,
    "Deconvolution": _deconvolution,
    "BatchNorm": _along(1),
    "_contrib_SyncBatchNorm": _along(1),
    "LayerNorm": _along(-1),
    "InstanceNorm": _along(1),
    "GroupNorm": lambda data, how: [(how.get("num_groups", 1),)] * 2,
    "Embedding": lambda data, how: [(how["input_dim"], how["output_dim"])],
    "LeakyReLU": _along(1),
    "RNN": _recurrent,
}


def parameter_shapes(op: str, data: Shape, how: Mapping[str, Any]) -> list[Shape]:
    """The shapes of an operator's parameters, in order; none for operators that have none.

    >>> parameter_shapes("Convolution", (8, 3, 32, 32), {"num_filter": 16, "kernel": (3, 3)})
    [(16, 3, 3, 3), (16,)]
    """
    rule = _RULES.get(op)
    return rule(data, how) if rule is not None else []


class _Waiting:
    """Stands for a parameter whose shape nothing has told yet."""

    def __init__(self, parameter: Parameter):
        self.parameter = parameter


class _Namespace:
    """`F` while shapes are being worked out: operators that know the shapes of their parameters set them."""

    def __init__(self, module: ModuleType):
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if isinstance(found, ModuleType):
            return _Namespace(found)
        return _telling(name, found) if name in _RULES else found


def _telling(op: str, call: Callable[..., Any]) -> Callable[..., Any]:
    names = list(inspect.signature(call).parameters)

    def told(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if isinstance(data := given[names[0]], NDArray):
            shapes = dict(zip(names[1:], parameter_shapes(op, data.shape, given), strict=False))
            for name, each in given.items():
                if isinstance(each, _Waiting):
                    each.parameter.shape = shapes[name]
                    given[name] = _now(each.parameter)
        return call(**given)

    return told


def _now(parameter: Parameter) -> Any:
    if not parameter.ready:
        return _Waiting(parameter)
    parameter.finish_deferred_init()
    return parameter.data()


def infer(block: HybridBlock, args: tuple[Any, ...]) -> Exception | None:
    """Run `hybrid_forward` on types alone, and set the shapes that operators tell of the block's own parameters.

    What stopped it, if something did: an operator that needs the shape of a parameter before any told it, or a fault
    of the block.
    """

    def run(*inputs: Any) -> None:
        own = {name: _now(p) for name, p in block._reg_params.items()}
        block.hybrid_forward(_Namespace(nd), *inputs, **own)

    try:
        tracer.trace(run, args, training=False)
    except Exception as error:  # the block's own code runs: whatever it raises
        return error
    return None
