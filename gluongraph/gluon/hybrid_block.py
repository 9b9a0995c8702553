"""Hybrid blocks, which can be traced and compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from gluongraph import nd
from gluongraph.context import Context, current_context
from gluongraph.errors import HostCallError, MXNetError, is_own_file, warn, with_user_location
from gluongraph.gluon.block import Block
from gluongraph.gluon.cached_op import CachedOp
from gluongraph.gluon.parameter import Parameter
from gluongraph.gluon.parameter_dict import ParameterDict
from gluongraph.host.file_names import check_name
from gluongraph.ndarray import NDArray
from gluongraph.tracing import tracer

_Forward = TypeVar("_Forward", bound=Callable[..., Any])
_HYBRIDIZE_ARGUMENTS = frozenset(
    {
        "backend",
        "backend_opts",
        "clear",
        "partition_if_dynamic",
        "static_alloc",
        "static_shape",
        "inline_limit",
        "forward_bulk_size",
        "backward_bulk_size",
    }
)


def _settling(forward: _Forward) -> _Forward:
    """`forward`, preceded by what waits for the shapes of its inputs: programs call it by itself, too."""

    @wraps(forward)
    def settled(self: HybridBlock, *args: Any, **kwargs: Any) -> Any:
        for parameter in self._reg_params.values():
            if parameter._waiting is not None and args:  # without any, forward says which it misses
                self._settle(args)
                break
        return forward(self, *args, **kwargs)

    return cast(_Forward, settled)


class HybridBlock(Block):
    """A block that can be traced: its computation on given shapes is one graph.

    Says what it computes in `forward(self, x, ...)`, or in `hybrid_forward(self, F, x, ..., weight=...)`, where F is
    `gluongraph.nd` and own parameters come as keywords. A block with parameters of unknown shape says them in
    `infer_shape(self, x, ...)`. `hybridize()` compiles forward and backward of the whole block.

    >>> from gluongraph import gluon, nd
    >>> class Scale(gluon.HybridBlock):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.scale = self.params.get("scale", shape=(1,), init="ones")
    ...
    ...     def hybrid_forward(self, F, x, scale):
    ...         return F.broadcast_mul(x, scale)
    >>> net = Scale()
    >>> net.initialize()
    >>> net(nd.array([1, 2])).asnumpy().tolist()
    [1.0, 2.0]

    Source: `mxnet.gluon.HybridBlock` (MXNet 1.9).
    """

    def __init__(self, prefix: str | None = None, params: ParameterDict | None = None):
        super().__init__(prefix, params)
        self._active = False
        self._cached: CachedOp | None = None
        self._op_hook: tuple[Callable[[str, str, NDArray], Any], bool] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "forward" in vars(cls):
            setattr(cls, "forward", _settling(cls.forward))  # noqa: B010  # a method is no attribute to mypy

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if isinstance(value, (Block, Parameter)):
            self._forget()

    def register_child(self, block: Block, name: str | None = None) -> None:
        """Make `block` a child.

        Raises:
            ValueError: it is no hybrid block.
            TypeError: it is no block at all.

        >>> from gluongraph import gluon
        >>> net = gluon.HybridBlock()
        >>> net.register_child(gluon.nn.Dense(2, in_units=3, prefix="d_"), "first")
        >>> list(net.collect_params())
        ['d_weight', 'd_bias']
        """
        if isinstance(block, Block) and not isinstance(block, HybridBlock):
            raise ValueError(
                f"children of the hybrid block {self.name!r} must be hybrid blocks, and {block.name!r} "
                f"({type(block).__name__}) is not; derive it from HybridBlock, or use a plain Block or Sequential here"
            )
        super().register_child(block, name)
        self._forget()

    def _forget(self) -> None:
        self.__dict__["_cached"] = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cached": None}  # compiled code works on the arrays of this block, not on a copy's

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        """Compile forward and backward from the next call on, once per input types and mode.

        Gluon's tuning arguments (static_alloc, static_shape, ...) are accepted and change nothing: memory is always
        planned ahead, and shapes are always static.

        Raises:
            TypeError: an argument that Gluon does not have.

        >>> from gluongraph import nd
        >>> from gluongraph.gluon import nn
        >>> net = nn.Dense(2, in_units=3)
        >>> net.initialize()
        >>> net.hybridize()
        >>> net(nd.ones((4, 3))).shape
        (4, 2)
        """
        unknown = kwargs.keys() - _HYBRIDIZE_ARGUMENTS
        if unknown:
            raise TypeError(f"hybridize takes no argument {', '.join(sorted(unknown))}")
        self._active = active
        self._forget()
        super().hybridize(active, **kwargs)

    def cast(self, dtype: Any) -> None:
        self._forget()
        super().cast(dtype)

    def export(self, path: str, epoch: int = 0, remove_amp_cast: bool = True) -> tuple[str, str]:
        """Write path-symbol.json and path-<epoch>.params, which SymbolBlock.imports reads, here and in MXNet.

        The graph is that of the forward in prediction mode, without loss, gradient and optimizer. Its inputs are called
        data, or data0, data1, ...; parameters have their full names. `remove_amp_cast` changes nothing. Gives the two
        file names.

        Raises:
            ArgumentError: the name of the file is empty.
            RuntimeError: the block has not been hybridized and then called, so that its inputs are not known.
            MXNetError: it computes something that MXNet has no operator for.

        >>> import os, tempfile
        >>> from gluongraph import nd
        >>> from gluongraph.gluon import nn
        >>> net = nn.Dense(2, in_units=3)
        >>> net.initialize()
        >>> net.hybridize()
        >>> y = net(nd.ones((4, 3)))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [os.path.basename(file) for file in net.export(folder + "/net")]
        ['net-symbol.json', 'net-0000.params']
        """
        check_name("export", path, "net.export('net')")
        from gluongraph import symbol

        graph, made = self._recorded("export")
        arrays = {p.name: p.averaged() for p in self.collect_params().values()}
        arrays |= {n: a.asnumpy() for n, a in made.captured.items() if n not in arrays} | made.constants
        return symbol.write(path, epoch, graph, arrays)

    @property
    def _is_traced(self) -> bool:
        """Has it been hybridized and then called, so that its inputs are known?"""
        return self._cached is not None and self._cached.example is not None

    def _exported_symbol(self) -> Any:
        """The graph that `export` writes, as a Symbol. Raises what `export` raises."""
        return self._recorded("symbol")[0]

    def _recorded(self, what: str) -> Any:
        from gluongraph.symbol.recording import record

        if self._cached is None or self._cached.example is None:
            raise RuntimeError(f"{what} of {self.name!r}: hybridize() and call it first, so that its inputs are known")
        return record(lambda *args: Block.__call__(self, *args), self._cached.example)

    def export_onnx(
        self,
        path: str,
        *inputs: Any,
        dynamic_batch: bool | None = None,
        batch_axis: int | Sequence[int] = 0,
    ) -> str:
        """Write the forward in prediction mode as an ONNX model of standard operators; `mx.onnx.load` reads it back.

        `inputs` are arrays (or TensorTypes) like those to come; without them, those of the last call when hybridized.
        Their extent along `batch_axis` (a number for each input, or one for all) is free in the file where the graph
        allows it. `dynamic_batch=False` fixes it, and True insists on it. Parameters have their full names. Gives the
        path. docs/onnx.md says more.

        Raises:
            ArgumentError: the name of the file is empty.
            UnsupportedError: it computes something that ONNX has no operator for; names op, layer and line.
            MXNetError: the inputs are not known, or the package onnx is not installed.

        >>> import os, tempfile
        >>> from gluongraph import nd
        >>> from gluongraph.gluon import nn
        >>> net = nn.Dense(2, in_units=3)
        >>> net.initialize()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     os.path.basename(net.export_onnx(folder + "/net.onnx", nd.ones((4, 3))))
        'net.onnx'
        """
        check_name("export_onnx", path, "net.export_onnx('net.onnx', x)")
        from gluongraph.onnx.export import export

        return export(self, path, inputs, dynamic_batch, batch_axis)

    def register_op_hook(self, callback: Callable[[str, str, NDArray], Any], monitor_all: bool = False) -> None:
        super().register_op_hook(callback, monitor_all)
        self._op_hook = (callback, monitor_all)

    def _computed(self, *args: Any) -> Any:
        """What the block computes, layer by layer."""
        return Block.__call__(self, *args)

    def infer_shape(self, *args: Any) -> None:
        """Set the unknown extents of this block's own parameters from its inputs; layers override it.

        Of a block that computes in `hybrid_forward` they follow from the operators that the parameters go into.

        Raises:
            MXNetError: shapes that do not follow from the inputs.

        >>> from gluongraph import nd
        >>> from gluongraph.gluon import nn
        >>> net = nn.Dense(2)
        >>> net.infer_shape(nd.ones((4, 3)))
        >>> net.weight.shape
        (2, 3)
        """
        from gluongraph.gluon.shape_inference import infer

        reason = infer(self, args) if type(self).hybrid_forward is not HybridBlock.hybrid_forward else None
        waiting = [p.name for p in self._reg_params.values() if p.deferred and not p.ready]
        if not waiting:
            return
        raise MXNetError(
            with_user_location(
                f"{type(self).__name__} {self.name!r} has parameters of unknown shape: {', '.join(waiting)}",
                help="give them full shapes, or define infer_shape(self, x, ...) that sets parameter.shape",
                scope=self.name,
            )
        ) from reason

    def _run(self, *args: Any) -> Any:
        ctx, here = _context_of(args), current_context()
        try:
            if ctx is None or ctx is here or ctx == here:
                return self._run_here(*args)
            with ctx:  # the parameters' replicas there, and arrays made on the way
                return self._run_here(*args)
        except (AttributeError, TypeError) as error:
            own = type(self).__module__.startswith("gluongraph.") and _raised_here(error)  # others may take lists
            if not own or (strange := _no_array(args)) is None or isinstance(error, MXNetError):
                raise
            message = f"{type(self).__name__} {self.name!r} was given {strange}"
            raise TypeError(
                with_user_location(message, help="make an array of it: nd.array(...)", scope=self.name)
            ) from error

    def _run_here(self, *args: Any) -> Any:
        if self._active and not tracer.tracing():
            cached = self._cached
            if cached is None:  # not set as an attribute: it is no setting that a trace may depend on
                cached = self.__dict__["_cached"] = CachedOp(self)
            if cached.in_python is None:
                try:
                    made = cached(*args)
                except HostCallError as reason:
                    cached.in_python = str(reason).split("\n")[0]
                    warn(
                        f"the hybridized block {self.name!r} is not compiled, it runs in eager mode: {cached.in_python}"
                    )
                else:
                    if self._op_hook is not None:
                        from gluongraph.gluon import op_hooks

                        op_hooks.show(self, args, *self._op_hook)
                    return made
        return super()._run(*args)

    def _settle(self, args: tuple[Any, ...]) -> None:
        """Finish what waited for the shapes of these inputs."""
        waiting = [p for p in self._reg_params.values() if p.deferred]
        if not all(p.ready for p in waiting):
            self.infer_shape(*args)
        for parameter in waiting:
            parameter.finish_deferred_init()

    @_settling
    def forward(self, *args: Any) -> Any:
        """`hybrid_forward` with F and this block's own parameters.

        >>> from gluongraph import nd
        >>> from gluongraph.gluon import nn
        >>> net = nn.Dense(2, in_units=3)
        >>> net.initialize()
        >>> net.forward(nd.ones((4, 3))).shape
        (4, 2)
        """
        own = {name: parameter.data() for name, parameter in self._reg_params.items()}
        return self.hybrid_forward(nd, *args, **own)

    def hybrid_forward(self, F: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        """What the block computes, with operators from F; subclasses say this, or `forward`.

        >>> from gluongraph import gluon, nd
        >>> class Double(gluon.HybridBlock):
        ...     def hybrid_forward(self, F, x):
        ...         return F.elemwise_add(x, x)
        >>> Double()(nd.ones((2,))).asnumpy().tolist()
        [2.0, 2.0]
        """
        raise NotImplementedError(
            f"{type(self).__name__} says what it computes in forward(self, x, ...) or hybrid_forward(self, F, x, ...)"
        )


def _context_of(args: Iterable[Any]) -> Context | None:
    """Where the first array among the arguments lies."""
    for part in args:
        if isinstance(part, NDArray):
            return part._ctx
        if isinstance(part, (list, tuple)) and (found := _context_of(part)) is not None:
            return found
    return None


def _no_array(args: Iterable[Any]) -> str | None:
    """What among these arguments somebody may have taken for an array: numpy's, a library's, or a list of numbers."""
    for number, part in enumerate(args):
        if isinstance(part, np.ndarray):
            return f"a numpy array as argument {number}"
        if hasattr(part, "__array__") and not isinstance(part, (NDArray, np.generic)):
            return f"a {type(part).__module__}.{type(part).__name__} as argument {number}"
        if isinstance(part, (list, tuple)) and _context_of(part) is None:
            return f"a {type(part).__name__} as argument {number}"
    return None


def _raised_here(error: BaseException) -> bool:
    """Was an error raised in gluongraph's code, and not in a user's?"""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and is_own_file(place.tb_frame.f_code.co_filename)
