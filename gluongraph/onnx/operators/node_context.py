"""The context of an operator: what its builder may ask for beside its inputs and attributes."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gluongraph import ops
from gluongraph.dtypes import numpy_dtype
from gluongraph.errors import FormatError, UnsupportedError, pluralize
from gluongraph.ir.graph import Node
from gluongraph.onnx.format.model import GraphDef, NodeDef
from gluongraph.onnx.format.tensors import LARGEST, dtype_of
from gluongraph.storage import Array

if TYPE_CHECKING:
    from gluongraph.onnx.build import Building

Value = Any  # a Node; a tuple of them, which is a sequence; None where an optional one is left out
Values = MutableMapping[str, Value]  # by their names; of a graph within another, before those around it
CONSTANTS = frozenset({"const", "literal", "iota"})
FOLDED = 1 << 16  # elements: larger arrays of constants are computed by the compiled code


class UnknownNumbersError(UnsupportedError):
    """Numbers that decide shapes are not known when the graph is built."""


class NodeContext:
    """One node of the model, being built.

    `node` is its definition, `version` that of its domain, `training` the mode, `values` what is known around it.
    """

    def __init__(self, building: Building, node: NodeDef, version: int, values: Values):
        self.building, self.node, self.version, self.values = building, node, version, values
        self.training = building.training

    # -- refusing

    def unsupported(self, why: str) -> UnsupportedError:
        """The error for what exists in ONNX and not here; the caller raises it."""
        return UnsupportedError(f"{self.node.where}: {why}")

    def wrong(self, why: str) -> FormatError:
        """The error for what ONNX does not allow; the caller raises it."""
        return FormatError(f"{self.node.where}: {why}")

    def choose(self, what: str, given: Any, *allowed: Any) -> Any:
        """`given`, if it is among those allowed.

        Raises:
            UnsupportedError: it is not.
        """
        if given not in allowed:
            raise self.unsupported(f"{what}={given!r}; there are {', '.join(map(repr, allowed))}")
        return given

    def from_torch(self, *operations: str) -> bool:
        """Was the node exported from one of these operations of PyTorch's, named as "aten.clamp"?"""
        return any(f"{self.node.torch_op}.".startswith(f"{name}.") for name in operations)

    # -- numbers that are known now

    def known(self, value: Node, what: str) -> Array:
        """The numbers of an input.

        Raises:
            UnknownNumbersError: they depend on the model's inputs.
        """
        if value.op.name in CONSTANTS:
            assert value.op.numpy is not None
            if value.ty.size > FOLDED:
                raise self.unsupported(f"{what} has {value.ty.size} elements, too many to be looked at")
            return np.asarray(value.op.numpy(**value.attrs))
        deciding = self.building.program.deciding
        whose = f", as an input of the model ({', '.join(deciding)}) decides them" if deciding else ""
        help = f"; load(..., fixed={{{deciding[0]!r}: numbers}}) makes it part of the model" if deciding else ""
        raise UnknownNumbersError(f"{self.node.where}: the numbers of {what} are not known ahead{whose}{help}")

    def ints(self, value: Node | None, what: str) -> tuple[int, ...] | None:
        """The integers of an input, as a tuple; None where it is left out."""
        if value is None:
            return None
        found = self.known(value, what)
        if found.dtype.kind not in "iu":
            raise self.wrong(f"{what} are integers, not {found.dtype}")
        return tuple(int(n) for n in found.reshape(-1))

    def number(self, value: Node, what: str) -> Any:
        """The one number of an input, in Python."""
        found = self.known(value, what)
        if found.size != 1:
            raise self.wrong(f"{what} is one number, not {found.size}")
        return found.reshape(-1)[0].item() if found.dtype != numpy_dtype("bf16") else float(found.reshape(-1)[0])

    # -- types

    def dtype(self, number: int) -> str:
        """The element type of a number that files have for it, in the precision that the model runs in."""
        return self.building.widened(dtype_of(number, self.node.where))

    def constant(self, array: Any) -> Node:
        """An array as part of the graph."""
        return constant(array, self.building.widened)

    def axis(self, axis: int, rank: int, what: str = "axis") -> int:
        """The axis counted from the front."""
        if not -rank <= axis < rank:
            raise self.wrong(f"{what}={axis} does not exist in {rank} axes")
        return axis % rank

    def axes(self, axes: Sequence[int], rank: int, what: str = "axes") -> tuple[int, ...]:
        """The axes counted from the front, in the order given."""
        found = tuple(self.axis(a, rank, what) for a in axes)
        if len(set(found)) < len(found):
            raise self.wrong(f"{what}={list(axes)} names an axis twice")
        return found

    def room(self, shape: Sequence[int], nbytes: int = 4) -> tuple[int, ...]:
        """The shape, if an array of it is of a sane size.

        Raises:
            FormatError: it is not.
        """
        total = nbytes
        for n in shape:
            if n < 0:
                raise self.wrong(f"the shape {list(shape)} has a negative extent")
            total *= n
        if total > LARGEST:
            raise self.wrong(f"an array of shape {list(shape)} would take {total:.3g} bytes")
        return tuple(shape)

    # -- more than one node

    def wants(self, output: int) -> bool:
        """Does the model use this output?"""
        return output < len(self.node.outputs) and bool(self.node.outputs[output])

    def graph(self, graph: GraphDef, inputs: Sequence[Value] = ()) -> list[Value]:
        """The outputs of a graph within this one, which may read the values around it."""
        if len(inputs) != len(graph.inputs):
            raise self.wrong(
                f"the graph {graph.name!r} takes {pluralize(len(graph.inputs), 'input')}, not {len(inputs)}"
            )
        return self.building.graph(graph, inputs, self.values)

    def operator(self, name: str, *inputs: Value, **attrs: Any) -> Value:
        """Another operator of the default domain, of the same version, on these inputs."""
        return self.building.operator(self, name, inputs, attrs)

    def draw(self) -> tuple[Node, int]:
        """The state of the random generator, and the number of a draw."""
        return self.building.draw(self)

    def statistic(self, position: int, batch: Node, momentum: float) -> bool:
        """In training, move the running statistic that is this input towards the batch's; False if it is none."""
        return self.building.statistic(self.node.inputs[position], batch, momentum)

    @property
    def moves(self) -> bool:
        """Is this a BatchNormalization whose running statistics training moves?"""
        return self.building.moves(self.node)


def constant(array: Any, widened: Any = str) -> Node:
    """An array as a node, in the precision that the model runs in."""
    return retyped(ops.constant(array), widened)


def retyped(made: Node, widened: Any) -> Node:
    """A constant in the precision that the model runs in."""
    wide = widened(made.dtype)
    if wide == made.dtype:
        return made
    assert made.op.numpy is not None
    return constant(np.asarray(made.op.numpy(**made.attrs)).astype(numpy_dtype(wide)))
