"""From a block to a symbol file: it is traced, and each call of a builder is written down as MXNet's operator."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gluongraph.dtypes import DTYPES, numpy_dtype
from gluongraph.eager.tape import STATE
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.ir.graph import Node, recording_origins
from gluongraph.mxops import images as mximages
from gluongraph.mxops import layers as mxlayers
from gluongraph.mxops import ops as mxops
from gluongraph.mxops import rnn as mxrnn
from gluongraph.mxops import shapes as mxshapes
from gluongraph.ndarray import NDArray
from gluongraph.storage import Array
from gluongraph.symbol import VARIABLE, Entry, Symbol, SymbolNode
from gluongraph.tracing.tracer import Tracer

Given = dict[str, Any]  # a builder's arguments by name

# Arithmetic: of two arrays; of an array and a number behind it, or before it.
_BINARY: dict[Callable[..., Any], tuple[str, str, str]] = {
    mxops.add: ("broadcast_add", "_plus_scalar", "_plus_scalar"),
    mxops.subtract: ("broadcast_sub", "_minus_scalar", "_rminus_scalar"),
    mxops.multiply: ("broadcast_mul", "_mul_scalar", "_mul_scalar"),
    mxops.divide: ("broadcast_div", "_div_scalar", "_rdiv_scalar"),
    mxops.modulo: ("broadcast_mod", "_mod_scalar", "_rmod_scalar"),
    mxops.power: ("broadcast_power", "_power_scalar", "_rpower_scalar"),
    mxops.maximum: ("broadcast_maximum", "_maximum_scalar", "_maximum_scalar"),
    mxops.minimum: ("broadcast_minimum", "_minimum_scalar", "_minimum_scalar"),
    mxops.equal: ("broadcast_equal", "_equal_scalar", "_equal_scalar"),
    mxops.not_equal: ("broadcast_not_equal", "_not_equal_scalar", "_not_equal_scalar"),
    mxops.lesser: ("broadcast_lesser", "_lesser_scalar", "_greater_scalar"),
    mxops.lesser_equal: ("broadcast_lesser_equal", "_lesser_equal_scalar", "_greater_equal_scalar"),
    mxops.greater: ("broadcast_greater", "_greater_scalar", "_lesser_scalar"),
    mxops.greater_equal: ("broadcast_greater_equal", "_greater_equal_scalar", "_lesser_equal_scalar"),
}

# Builders whose operator has the same arguments: under their own name, or under another.
_SAME: dict[Callable[..., Any], str] = {
    **{getattr(mxops, name): name for name in (
        "abs", "sign", "exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "square", "reciprocal", "sin",
        "cos", "tanh", "erf", "sigmoid", "relu", "softsign", "floor", "ceil", "round", "clip", "where", "sum", "mean",
        "prod", "max", "min", "norm", "argmax", "argmin", "negative", "logical_not", "zeros_like", "ones_like",
    )},
    **{getattr(mxshapes, name): name for name in (
        "expand_dims", "squeeze", "transpose", "broadcast_to", "broadcast_like", "broadcast_axis", "tile", "repeat",
        "slice", "slice_axis", "slice_like", "take", "pick", "one_hot", "reshape_like",
    )},
    **{getattr(mxlayers, name): name for name in (
        "softmax", "log_softmax", "SoftmaxActivation", "dot", "batch_dot", "Activation", "LeakyReLU", "LayerNorm",
        "GroupNorm", "InstanceNorm",
    )},
    **{getattr(mximages, name): name for name in ("LRN", "L2Normalization")},
    mxshapes.reshape: "Reshape",
    mxshapes.flatten: "Flatten",
    mxshapes.swapaxes: "SwapAxis",
    mxshapes.flip: "reverse",
    mximages.pad: "Pad",
    mxops.stop_gradient: "BlockGrad",
    mxops.cast: "Cast",
}  # fmt: skip


def operator_name(build: Callable[..., Any], args: Sequence[Any]) -> str:
    """What MXNet calls a builder on these arguments; the builder's own name where it has none.

    >>> from gluongraph import nd
    >>> operator_name(mxops.subtract, (1.0, nd.ones((2,)))), operator_name(mxops.sqrt, (nd.ones((2,)),))
    ('_rminus_scalar', 'sqrt')
    """
    if build in _BINARY and len(args) == 2:
        return _BINARY[build][0 if all(map(_is_array, args)) else 1 if _is_array(args[0]) else 2]
    return _SAME.get(build, getattr(build, "__name__", "function"))


def _is_array(value: Any) -> bool:
    return isinstance(value, (NDArray, Node))


def _text(value: Any) -> str:
    """An attribute as MXNet writes it."""
    if isinstance(value, str) and value in DTYPES:
        return DTYPES[value].long
    return str(list(value)).replace("[", "(").replace("]", ")") if isinstance(value, tuple | list) else str(value)


_LEAVES = ("input", "literal", "const")  # variables and numbers: written down when something reads them


class Recorder(Tracer):
    """A trace that also writes down MXNet's operators. `nodes` are those so far, `constants` arrays without a name."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[SymbolNode] = []
        self.entries: dict[Node, Entry] = {}  # what has been computed, and by which output of which operator
        self.constants: dict[str, Array] = {}
        self.counts: dict[str, int] = {}

    # -- writing down

    def name(self, op: str) -> str:
        """A new name: the layer's and the operator's, and from the second on a number."""
        hint = f"{self.scopes[-1]}_fwd" if self.scopes else op.lower().lstrip("_")
        number = self.counts.get(hint, 0)
        self.counts[hint] = number + 1
        return f"{hint}{number}" if number else hint

    def variable(self, name: str, of: Node) -> Entry:
        """The variable of this name."""
        self.nodes.append(SymbolNode(VARIABLE, name))
        self.entries[of] = (len(self.nodes) - 1, 0)
        return self.entries[of]

    def entry(self, n: Node) -> Entry:
        """Where a value comes from: inputs and constants become variables when something reads them first.

        Raises:
            MXNetError: it was made by a write into a part of an array, which has no operator.
        """
        if n in self.entries:
            return self.entries[n]
        if n.op.name == "input":
            return self.variable(n.attrs["name"], n)
        if n.op.name == "literal":
            name = f"constant{len(self.constants)}"
            self.constants[name] = np.frombuffer(n.attrs["data"], numpy_dtype(n.dtype)).reshape(n.shape).copy()
            return self.variable(name, n)
        if n.op.name == "const":
            value, name = n.attrs["value"], DTYPES[n.dtype].long
            return self.operator("_full", [], {"shape": n.shape, "value": float(value), "dtype": name}, [n])
        raise MXNetError(with_user_location(f"export: {n!r} is made in a way that has no operator of MXNet's"))

    def operator(
        self, op: str, inputs: Sequence[Node | Entry], attrs: Mapping[str, Any], outputs: Sequence[Node] = ()
    ) -> Entry:
        """Write down an operator, and which values its outputs are; known values stay where they are."""
        sources = tuple(self.entry(n) if isinstance(n, Node) else n for n in inputs)
        texts = {k: _text(v) for k, v in attrs.items() if v is not None}
        self.nodes.append(SymbolNode(op, self.name(op), texts, sources))
        number = len(self.nodes) - 1
        for which, value in enumerate(outputs):
            self.entries.setdefault(value, (number, which))
        return (number, 0)

    # -- calls

    def call(self, build: Callable[..., Any], args: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
        made = super().call(build, args, attrs)
        results = [self.node(m) for m in (made if isinstance(made, list) else [made])]
        if any(r not in self.entries and r.op.name not in _LEAVES for r in results):
            given = [self.node(a) if isinstance(a, NDArray) else a for a in args]
            named = {k: self.node(a) if isinstance(a, NDArray) else a for k, a in attrs.items()}
            self._write(build, given, named, results)
        return made

    def _write(self, build: Callable[..., Any], args: list[Any], attrs: dict[str, Any], results: list[Node]) -> None:
        if build in _BINARY:
            _binary(self, build, results[0], *args)
            return
        bound = inspect.signature(build).bind(*args, **attrs)
        given: Given = {}
        for name, value in bound.arguments.items():
            if bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                given.update(value)
            else:
                given[name] = value
        if build in _SAME:
            self.operator(_SAME[build], _nodes(given), _others(given), results)
        elif build in _RULES:
            _RULES[build](self, given, results)
        else:
            raise MXNetError(
                with_user_location(
                    f"export: MXNet has no operator for {build.__name__}",
                    help="save_parameters keeps the parameters; build the network here with the same code",
                )
            )


def _nodes(given: Given) -> list[Node]:
    """The arrays among the arguments, in order."""
    found: list[Node] = []
    for value in given.values():
        found += [v for v in (value if _several(value) else [value]) if isinstance(v, Node)]
    return found


def _several(value: Any) -> bool:
    return isinstance(value, tuple | list)


def _others(given: Given) -> Given:
    """The arguments that are no arrays."""
    return {k: v for k, v in given.items() if not isinstance(v, Node) and not (_several(v) and _nodes({k: v}))}


# -- builders that need more than another name

Rule = Callable[[Recorder, Given, list[Node]], Any]


def _binary(to: Recorder, build: Callable[..., Any], result: Node, lhs: Any, rhs: Any) -> None:
    both, behind, before = _BINARY[build]
    if isinstance(lhs, Node) and isinstance(rhs, Node):
        to.operator(both, [lhs, rhs], {}, [result])
    elif isinstance(lhs, Node):
        to.operator(behind, [lhs], {"scalar": float(rhs)}, [result])
    else:
        to.operator(before, [rhs], {"scalar": float(lhs)}, [result])


def _as(op: str, **more: Any) -> Rule:
    """The operator with the builder's arguments and some more."""
    return lambda to, given, results: to.operator(op, _nodes(given), {**_others(given), **more}, results)


def _joined(op: str) -> Rule:
    return lambda to, given, results: _as(op, num_args=len(_nodes(given)))(to, given, results)


def _dense(to: Recorder, given: Given, results: list[Node]) -> None:
    bare = given.get("bias") is None
    _as("FullyConnected", num_hidden=given["weight"].shape[0], no_bias=bare, bias=None)(to, given, results)


def _convolution(op: str) -> Rule:
    def rule(to: Recorder, given: Given, results: list[Node]) -> None:
        weight, last = given["weight"], (given.get("layout") or "NCW")[1] != "C"
        kernel = weight.shape[1:-1] if last else weight.shape[2:]
        spans = {k: _per_axis(given.get(k), len(kernel)) for k in ("stride", "dilate", "pad", "adj", "target_shape")}
        filters, bare = results[0].shape[-1 if last else 1], given.get("bias") is None
        _as(op, **spans, kernel=kernel, num_filter=filters, no_bias=bare, bias=None)(to, given, results)

    return rule


def _per_axis(value: Any, axes: int) -> Any:
    if value is None or value == ():
        return None
    return (value,) * axes if isinstance(value, int) else tuple(value)


def _pooling(to: Recorder, given: Given, results: list[Node]) -> None:
    axes = given["data"].ty.rank - 2
    spans = {k: _per_axis(given.get(k), axes) for k in ("stride", "pad")}
    _as("Pooling", **spans, kernel=_per_axis(given.get("kernel"), axes) or (1,) * axes)(to, given, results)


def _embedding(to: Recorder, given: Given, results: list[Node]) -> None:
    rows, width = given["weight"].shape
    to.operator("Embedding", [given["data"], given["weight"]], {"input_dim": rows, "output_dim": width}, results)


def _index(to: Recorder, given: Given, results: list[Node]) -> None:
    spans, _ = given["plan"]
    if given.get("indices") or any(step <= 0 for _, _, step in spans):
        raise MXNetError(
            with_user_location("export: indexing by arrays, or backwards, has no operator", help="use take or flip")
        )
    begin, end, step = zip(*spans, strict=True)
    part = to.operator("slice", [given["data"]], {"begin": begin, "end": end, "step": step})
    to.operator("Reshape", [part], {"shape": results[0].shape}, results)


def _matmul(to: Recorder, given: Given, results: list[Node]) -> None:
    ranks = [a.ty.rank for a in _nodes(given)]
    if ranks not in ([2, 2], [3, 3]):
        raise MXNetError(
            with_user_location(f"export: @ on arrays of {ranks[0]} and {ranks[1]} axes has no operator of MXNet's")
        )
    _as("dot" if ranks[0] == 2 else "batch_dot")(to, given, results)


def _recurrent(to: Recorder, given: Given, results: list[Node]) -> None:
    """A layer as the operator RNN of one layer, which has all matrices and then all biases in one vector."""
    if given.get("clip") is not None or given.get("sequence_length") is not None:
        raise MXNetError(with_user_location("export: a recurrent layer with clipped states, or with lengths"))
    data, weights, kind = given["data"], given["weights"], given["mode"]
    directions, width = given.get("directions", 1), given["weights"][1].shape[0] // mxrnn.MODES[kind].gates
    flat = [to.operator("Reshape", [w], {"shape": (-1,)}) for rank in (2, 1) for w in weights if w.ty.rank == rank]
    packed = to.operator("_rnn_param_concat", flat, {"dim": 0, "num_args": len(flat)})
    out = weights[1].shape[1]
    begin: list[Node | Entry] = [given[k] for k in ("state", "state_cell") if given.get(k) is not None]
    for n in (out, width)[len(begin) : mxrnn.MODES[kind].states]:
        begin.append(to.operator("_zeros", [], {"shape": (directions, data.shape[1], n), "dtype": "float32"}))
    how = {
        "mode": f"rnn_{given['act']}" if kind == "rnn" else kind,
        "state_size": width,
        "num_layers": 1,
        "bidirectional": directions == 2,
        "state_outputs": True,
        "projection_size": out if len(weights) == 5 * directions else None,
    }
    to.operator("RNN", [data, packed, *begin], how, results)


_RULES: dict[Callable[..., Any], Rule] = {
    mxlayers.FullyConnected: _dense,
    mximages.Convolution: _convolution("Convolution"),
    mximages.Deconvolution: _convolution("Deconvolution"),
    mximages.Pooling: _pooling,
    mxlayers.batch_norm_by_moving: _as("BatchNorm", use_global_stats=False),
    mxshapes.embedding: _embedding,
    mxshapes.concat: _joined("Concat"),
    mxshapes.stack: _joined("stack"),
    mxops.add_n: _joined("add_n"),
    mxshapes.split: _as("SliceChannel"),
    mxshapes.index: _index,
    mxlayers.matmul: _matmul,
    mxrnn.layer: _recurrent,
    mxops.softrelu: _as("Activation", act_type="softrelu"),
}


def record(fn: Callable[..., Any], args: Sequence[Any]) -> tuple[Symbol, Recorder]:
    """fn(*args) in prediction mode as a symbol, with inputs data, or data0, data1, ...; and the trace it came from.

    Raises:
        MXNetError: something in it has no operator of MXNet's.
    """
    tracer = Recorder()
    before = STATE.tracer, STATE.recording, STATE.training
    STATE.tracer, STATE.recording, STATE.training = tracer, False, False
    try:
        with recording_origins(tracer.where):
            given = _each(tracer.argument, list(args))
            if len(tracer.arguments) == 1:
                (only,) = tracer.arguments.values()
                tracer.variable("data", only)
            made = fn(*given)
            heads = [tracer.entry(tracer.node(a)) for a in _arrays(made)]
    finally:
        STATE.tracer, STATE.recording, STATE.training = before
    return Symbol(tracer.nodes, heads), tracer


def _each(fn: Callable[[Any], Any], part: Any) -> Any:
    return [_each(fn, p) for p in part] if isinstance(part, list | tuple) else fn(part)


def _arrays(made: Any) -> list[NDArray]:
    if isinstance(made, NDArray):
        return [made]
    return [a for part in made for a in _arrays(part)] if isinstance(made, list | tuple) else []
