"""An ONNX model as a hybrid block: `load`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gluongraph import initializer, nd, ops, random
from gluongraph.context import Context
from gluongraph.dtypes import DTYPES, dtype_name, is_float
from gluongraph.eager.tape import STATE
from gluongraph.errors import ArgumentError, DTypeError, MXNetError, ShapeError, pluralize, with_user_location
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.gluon.parameter import Parameter
from gluongraph.gluon.parameter_dict import ParameterDict
from gluongraph.host.torch_module import FROM_TORCH, is_torch_module
from gluongraph.ir.graph import Node
from gluongraph.ndarray import NDArray, OwnedBuilder, invoke
from gluongraph.onnx.build import Building
from gluongraph.onnx.format.model import ValueDef
from gluongraph.onnx.format.reader import read
from gluongraph.onnx.program import Program
from gluongraph.onnx.trained import Trained, listed, matcher
from gluongraph.storage import given_array
from gluongraph.tracing.padding.free_axes import FreeAxes

SHOWN = 40  # rows of parameters in the text of a block


def load(
    model: Any,
    freeze: str | None = None,
    fixed: Mapping[str, Any] | None = None,
    ctx: Context | Sequence[Context] | None = None,
    trained: Trained | None = None,
) -> ONNXBlock:
    """The model in an ONNX file as a block with its parameters, ready to predict and to be trained.

    Of a file that `torch.onnx.export(..., dynamo=True, optimize=False)` has written, the parameters are those of the
    module, scalars too. Of other files they are the float arrays with an axis. Names are those of the file, with
    characters other than letters, digits, points and underscores made underscores. All else is constant.

    Args:
        model: a path; or the bytes of a file, or a ModelProto.
        freeze: a regular expression; parameters whose whole name matches it get grad_req "null", and a
            BatchNormalization whose statistics match it goes on using them in training.
        fixed: inputs of the model that become constants, such as a shape that it takes as an array.
        ctx: where the parameters are.
        trained: the float arrays that are parameters, whatever the file says: a regular expression for whole names,
            or a list of names; (), for predictions, makes all constants.

    Raises:
        ArgumentError: the name of the file is empty; `freeze` or `trained` matches nothing or is no regular expression.
        FileNotFoundError: there is no such file.
        FormatError: it holds no ONNX model, or one that contradicts itself.
        UnsupportedError: it needs something that does not exist here, and the message names the operator; or an
            exporter has fused, untied or merged the parameters, and `trained` is not given.
        TypeError: a module of PyTorch's, which is no file.
        MXNetError: the package onnx is not installed.

    >>> import tempfile
    >>> import gluongraph as mx
    >>> from gluongraph import gluon, nd
    >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
    >>> net.initialize(mx.init.One())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     block = mx.onnx.load(net.export_onnx(folder + "/net.onnx", nd.ones((4, 2))))
    >>> block(nd.ones((4, 2))).asnumpy().tolist()
    [[2.0], [2.0], [2.0], [2.0]]
    """
    if is_torch_module(model):
        message = f"mx.onnx.load takes a file, and not a torch.nn.Module ({type(model).__name__})"
        raise TypeError(with_user_location(message, help=FROM_TORCH))
    return ONNXBlock(Program(read(model), fixed or {}, trained), freeze, ctx)


class ONNXBlock(HybridBlock):
    """A model that was read from ONNX: `load` makes it. Called with the inputs of the model, in their order.

    Each set of input shapes is built anew, so that axes which the file leaves free may have any extent. In training
    mode BatchNormalization normalizes by the batch and moves its running statistics, and Dropout drops, as the layers
    of `gluon.nn` do, whatever mode the model was exported in.

    >>> import tempfile
    >>> import gluongraph as mx
    >>> from gluongraph import gluon, nd
    >>> net = gluon.nn.Dense(1, in_units=2, prefix="d_")
    >>> net.initialize(mx.init.One())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     block = mx.onnx.load(net.export_onnx(folder + "/net.onnx", nd.ones((4, 2))))
    >>> sorted(block.collect_params())
    ['d_bias', 'd_weight']
    >>> len(block.inputs)
    1
    """

    def __init__(self, program: Program, freeze: str | None = None, ctx: Any = None):
        super().__init__(prefix="", params=ParameterDict(""))
        self._program = program
        self._builder = OwnedBuilder(self._build)
        pattern = None if freeze is None else matcher("freeze", freeze)
        if pattern is not None and not any(map(pattern.fullmatch, program.parameters)):
            help = f"it is a regular expression for whole names, of: {listed(list(program.parameters))}"
            raise ArgumentError(with_user_location(f"freeze={freeze!r} matches no parameter", help=help))
        running = {program.names[name] for name in program.statistics}
        for name, array in program.parameters.items():
            frozen = name in running or (pattern is not None and pattern.fullmatch(name) is not None)
            parameter = self.params.get(
                name,
                shape=array.shape,
                dtype=array.dtype,
                init=initializer.Zero(),
                grad_req="null" if frozen else "write",
                differentiable=name not in running,
            )
            parameter.initialize(ctx=ctx)
            parameter.set_data(nd.array(array, dtype=array.dtype))
            self._reg_params[name] = parameter
        self._frozen = frozenset(
            name for name in program.statistics if pattern is not None and pattern.fullmatch(program.names[name])
        )

    @property
    def inputs(self) -> tuple[str, ...]:
        """What the model takes: name, element type and shape of each input, as 'x' f32[batch,3,224,224]."""
        return tuple(map(str, self._program.inputs))

    @property
    def declared(self) -> tuple[ValueDef, ...]:
        """The same as data: `name`, `dtype`, and `shape`, in which names stand for free extents."""
        return self._program.inputs

    @property
    def free_axes(self) -> FreeAxes:
        """The axes that the file leaves free, by the names that they have there; without one, by input and axis."""
        places = [
            {k: f"{v.name}.{k}" if n == "?" else n for k, n in enumerate(v.shape or ()) if isinstance(n, str)}
            for v in self.declared
        ]
        names = dict.fromkeys(name for axes in places for name in axes.values())
        return FreeAxes(tuple(places), dict.fromkeys(names, (0, None)), {})

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of what the model gives."""
        return tuple(v.name for v in self._program.model.graph.outputs)

    @property
    def fixed_batch(self) -> int | None:
        """The extent of the first axis, where the file declares one number for that of every input; else None."""
        firsts = {v.shape[0] for v in self._program.inputs if v.shape}
        (first,) = firsts if len(firsts) == 1 else (None,)
        return first if isinstance(first, int) else None

    def __repr__(self) -> str:
        """What goes in, what comes out, and the parameters with their types; "null" marks what is not trained."""
        rows = [f"    {p.name} {_type_of(p)}" for p in self._reg_params.values()]
        if len(rows) > SHOWN:
            rows[SHOWN - 1 :] = [f"    ... ({len(rows)} in all)"]
        outputs = ", ".join(map(str, self._program.model.graph.outputs))
        lines = [f"  inputs: {', '.join(self.inputs) or 'none'}", f"  outputs: {outputs}"]
        lines += ["  parameters:", *rows] if rows else ["  parameters: none"]
        return "\n".join([f"{type(self).__name__}(", *lines, ")"])

    @property
    def deciding(self) -> tuple[str, ...]:
        """The names of inputs whose numbers may decide shapes, so that `load(..., fixed=...)` must have them."""
        return self._program.deciding

    def draws(self, training: bool) -> int:
        """How many times a call draws random numbers."""
        return self._program.draws + (self._program.drops if training else 0)

    def forward(self, *args: Any) -> Any:
        training = STATE.training
        arrays = self._checked(args)
        parameters = [p.data() for p in self._reg_params.values()]
        ctx = arrays[0].context if arrays else None
        sources = [random.source(ctx) for _ in range(self.draws(training))]
        made = invoke(
            self._builder,
            *arrays,
            *parameters,
            *(state for state, _ in sources),
            numbers=tuple(number for _, number in sources),
            training=training,
            wide=self._wide(arrays),
        )
        results = made if isinstance(made, list) else [made]
        count = len(self.outputs)
        self._move(results[count:])
        return results[0] if count == 1 else results[:count]

    def _build(self, *nodes: Node, numbers: tuple[int, ...], training: bool, wide: Any) -> tuple[Node, ...]:
        """The model as a builder: its outputs, and in training what the running statistics become."""
        program = self._program
        inputs, held = len(program.inputs), len(program.parameters)
        sources = list(zip(nodes[inputs + held :], numbers, strict=True))
        building = Building(program, training, wide, sources, self._frozen)
        outputs = building.model(nodes[:inputs], nodes[inputs : inputs + held])
        if not training:
            return tuple(outputs)
        return (*outputs, *(building.statistics.get(n, building.held[n]) for n in self._moving))

    @property
    def _moving(self) -> list[str]:
        return [n for n in self._program.statistics if n not in self._frozen]

    def _move(self, statistics: Sequence[NDArray]) -> None:
        """Write running statistics, outside of any record."""
        before, STATE.recording = STATE.recording, False
        try:
            for name, value in zip(self._moving, statistics, strict=False):
                self._reg_params[self._program.names[name]].data()[:] = value.detach()
        finally:
            STATE.recording = before

    # -- arguments

    def _checked(self, args: Sequence[Any]) -> list[NDArray]:
        """The arguments as arrays of the declared types.

        Raises:
            MXNetError: not as many as the model has inputs.
            DTypeError: integers where it takes floats, or the reverse.
            ShapeError: other shapes than the file declares.
        """
        wanted = self._program.inputs
        if len(args) != len(wanted):
            what = f"{pluralize(len(args), 'input')} for a model that takes {len(wanted)}: {', '.join(self.inputs)}"
            raise MXNetError(with_user_location(f"{self._program.model.what}: {what}"))
        free: dict[str, int] = {}
        return [self._one(value, arg, free) for value, arg in zip(wanted, args, strict=True)]

    def _one(self, value: ValueDef, arg: Any, free: dict[str, int]) -> NDArray:
        array = arg if isinstance(arg, NDArray) else nd.array(given_array(arg), dtype=value.dtype or None)
        given = array.type
        what = f"{self._program.model.what}: input {value}"
        if value.dtype and given.dtype != value.dtype:
            families = DTYPES[given.dtype].family, DTYPES[value.dtype].family
            if "float" in families and families[0] != families[1]:
                help = f"x.astype({DTYPES[value.dtype].long!r})"
                raise DTypeError(with_user_location(f"{what} cannot be {given}", help=help))
            if families != ("float", "float"):
                array = array.astype(DTYPES[value.dtype].long)
        if value.shape == () and given.shape == (1,):  # nd.array makes no arrays without an axis
            return invoke(_without_axis, array)
        if value.shape is not None:
            if len(value.shape) != given.rank:
                raise ShapeError(with_user_location(f"{what} cannot be {given}"))
            for extent, n in zip(value.shape, given.shape, strict=True):
                if n != (free.setdefault(extent, n) if isinstance(extent, str) and extent != "?" else extent) and (
                    extent != "?"
                ):
                    help = "an export with a free axis (torch.onnx.export: dynamic_shapes) takes other extents"
                    if extent == self.fixed_batch and n < extent and extent == value.shape[0]:
                        help += '; DataLoader(..., last_batch="discard") leaves a smaller last batch out'
                    raise ShapeError(with_user_location(f"{what} cannot be {given}", help=help))
        return array

    def _wide(self, arrays: Sequence[NDArray]) -> tuple[str, str] | None:
        """The file's float type, and that which the inputs or the parameters have been cast to."""
        pairs = [(v.dtype, a.type.dtype) for v, a in zip(self._program.inputs, arrays, strict=True)]
        for name, array in self._program.parameters.items():
            pairs.append((dtype_name(array.dtype), self._reg_params[name].data().type.dtype))
        return next(((was, now) for was, now in pairs if was and was != now and is_float(was)), None)


def _type_of(p: Parameter) -> str:
    """A parameter's element type and shape, and its grad_req where it is not trained."""
    text = f"{dtype_name(p.dtype)}[{','.join(map(str, p.shape or ()))}]"
    return text if p.grad_req != "null" else f"{text} null"


def _without_axis(x: Node) -> Node:
    return ops.reshape(x, ())
