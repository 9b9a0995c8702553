"""`net.export_onnx(path)`: a block's forward in prediction mode as an ONNX model of standard operators."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gluongraph import nd
from gluongraph.errors import MXNetError, UnsupportedError, warn, with_user_location
from gluongraph.gluon.block import Block
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.ir.graph import Graph, TensorType
from gluongraph.ndarray import NDArray
from gluongraph.onnx.export.rules.extents import BATCHES, FixedBatchError, Free, Pairs, paired
from gluongraph.onnx.export.rules.view import View, opened
from gluongraph.onnx.export.writer import Names, Writer, declared, tensor
from gluongraph.onnx.export.writing import write
from gluongraph.onnx.format.package import onnx
from gluongraph.ops.index_checks import unchecked
from gluongraph.storage import Array
from gluongraph.tracing.tracer import Traced, is_rng, scope, trace

OPSET = 23  # the first with Attention
IR_VERSION = 11  # of the file format, which goes with that opset


def export(
    net: HybridBlock, path: str, inputs: Sequence[Any], dynamic_batch: bool | None, batch_axis: int | Sequence[int]
) -> str:
    """Write the ONNX model of a block; see `HybridBlock.export_onnx`."""
    write(path, prediction(net, inputs, dynamic_batch, batch_axis))
    return os.fspath(path)


def prediction(
    net: HybridBlock, inputs: Sequence[Any], dynamic_batch: bool | None = None, batch_axis: int | Sequence[int] = 0
) -> Any:
    """The ModelProto of a block for inputs like these."""
    inputs = [nd.array(x, dtype=x.dtype) if isinstance(x, np.ndarray) else x for x in inputs] or _example(net)
    if any(p.deferred for p in net.collect_params().values()):
        net(*inputs)
    if dynamic_batch is not False:
        try:
            one, other = (_traced(net, _batched(inputs, batch_axis, n)) for n in BATCHES)
            return _model(net, one, other)
        except MXNetError as reason:
            if dynamic_batch or (isinstance(reason, UnsupportedError) and not isinstance(reason, FixedBatchError)):
                raise
            why = str(reason).split("\n")[0]
            warn(f"export_onnx: the batch is fixed to that of the inputs: {why}")
    return _model(net, _traced(net, inputs), None)


def _example(net: HybridBlock) -> Sequence[Any]:
    if net._cached is None or net._cached.example is None:
        help = "export_onnx(path, x) with inputs like those to come, or hybridize() and call it first"
        raise MXNetError(with_user_location(f"export_onnx of {net.name!r}: its inputs are not known", help=help))
    return net._cached.example


def _traced(net: HybridBlock, inputs: Sequence[Any]) -> Traced:
    def body(*args: Any) -> Any:
        with scope(net.name):
            return Block.__call__(net, *args)

    traced = trace(body, inputs, training=False)
    return replace(traced, graph=unchecked(traced.graph))  # what runs the model checks indices itself, or clips them


def _batched(inputs: Sequence[Any], axis: int | Sequence[int], batch: int) -> list[Any]:
    """The types of the inputs with another batch."""
    axes = [axis] * len(inputs) if isinstance(axis, int) else list(axis)
    if len(axes) != len(inputs):
        raise ValueError(f"export_onnx: batch_axis has {len(axes)} numbers for {len(inputs)} inputs")
    return [_sized(x, a, batch) for x, a in zip(inputs, axes, strict=True)]


def _sized(part: Any, axis: int, batch: int) -> Any:
    """The types of arrays with another batch."""
    if isinstance(part, list | tuple):
        return type(part)(_sized(p, axis, batch) for p in part)
    kind = part.type if isinstance(part, NDArray) else part
    if not isinstance(kind, TensorType):
        return part
    if not 0 <= axis < kind.rank:
        raise FixedBatchError(f"an input {kind} has no axis {axis}")
    return TensorType((*kind.shape[:axis], batch, *kind.shape[axis + 1 :]), kind.dtype)


def _model(net: HybridBlock, traced: Traced, twin: Traced | None) -> Any:
    if traced.graph.updates:
        raise UnsupportedError(
            with_user_location(f"export_onnx: the forward writes into {', '.join(traced.graph.updates)}")
        )
    known = {p.name: p.averaged() for p in net.collect_params().values() if p.name in traced.captured}
    arrays = {name: known[name] if name in known else a.asnumpy() for name, a in traced.captured.items()}
    return standard(traced.graph, None if twin is None else twin.graph, arrays, net.name)


def standard(graph: Graph, twin: Graph | None, arrays: Mapping[str, Array], title: str) -> Any:
    """The model of a graph; those of its inputs that are in `arrays` are initializers.

    Raises:
        UnsupportedError: a node that nothing says.
        FixedBatchError: the twin, which was traced for another batch, differs in more than extents.
    """
    origins = dict(graph.origins)
    graph = opened(graph, origins)
    View(graph, Pairs({}), origins).check()
    pairs = Pairs(paired(graph, opened(twin, {})) if twin is not None else {})
    view = View(graph, pairs, origins)
    data = [name for name in graph.inputs if name not in arrays and not is_rng(name)]
    named = {name: name if len(data) > 1 else "data" for name in data} | {name: name for name in arrays}
    writer = Writer(view, Names(list(named.values())), _batch(view, named))
    for name, given in named.items():
        writer.leaf(graph.inputs[name], given)
    writer.write(tuple(graph.outputs.values()))
    several = len(graph.outputs) > 1
    outputs = [writer.result(n, f"output{k}" if several else "output") for k, n in enumerate(graph.outputs.values())]
    inputs = [declared(named[name], graph.inputs[name].dtype, view.sizes(graph.inputs[name])) for name in data]
    initializers = [*(tensor(name, a) for name, a in arrays.items()), *writer.initializers]
    made = onnx("helper").make_graph(writer.protos, title, inputs, outputs, initializers)
    return assembled(made, {"": OPSET})


def _batch(view: View, named: Mapping[str, str]) -> tuple[str, int] | None:
    """The input that has the batch, and its axis."""
    for name, given in named.items():
        for axis, n in enumerate(view.sizes(view.graph.inputs[name])):
            if n == Free(1):
                return given, axis
    return None


def assembled(graph: Any, opsets: Mapping[str, int], functions: Sequence[Any] = ()) -> Any:
    """A model of a graph."""
    helper = onnx("helper")
    versions = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(
        graph, opset_imports=versions, ir_version=IR_VERSION, producer_name="gluongraph", functions=functions
    )
