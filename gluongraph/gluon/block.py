"""Blocks: trees of layers that own parameters, and hybrid blocks, which can be traced and compiled."""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, ClassVar, TypeVar, cast

import numpy as np

from gluongraph import nd
from gluongraph.context import Context, current_context
from gluongraph.errors import (
    HostCallError,
    MXNetError,
    NamesInstead,
    is_own_file,
    runs_a_layer,
    warn,
    with_user_location,
)
from gluongraph.gluon import parameter_files, structure, trace_guards
from gluongraph.gluon.cached_op import CachedOp
from gluongraph.gluon.parameter import Constant, Parameter, ParameterDict
from gluongraph.gluon.trace_guards import Edits, is_setting
from gluongraph.host import params_file
from gluongraph.host.file_names import check_name
from gluongraph.name import NameManager
from gluongraph.nd import files
from gluongraph.ndarray import NDArray
from gluongraph.tracing import tracer

_Forward = TypeVar("_Forward", bound=Callable[..., Any])


class _Names(threading.local):
    """Which blocks' `name_scope` is open, the innermost last."""

    def __init__(self) -> None:
        self.open: list[Block] = []


_NAMES = _Names()


class _NameScope:
    """`with block.name_scope():` blocks made within are named below `block`; one with prefix="" changes nothing."""

    def __init__(self, block: Block):
        self._block = block

    def __enter__(self) -> None:
        if not self._block._unnamed:
            _NAMES.open.append(self._block)

    def __exit__(self, *exc: object) -> None:
        if not self._block._unnamed:
            _NAMES.open.pop()


class HookHandle:
    """A registered hook; `detach()` takes it off."""

    def __init__(self, hooks: dict[int, Callable[..., Any]], hook: Callable[..., Any]):
        self._hooks, self._key = hooks, max(hooks, default=-1) + 1
        hooks[self._key] = hook

    def detach(self) -> None:
        """Take the hook off; again does nothing."""
        self._hooks.pop(self._key, None)

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *exc: object) -> None:
        self.detach()


class Block(NamesInstead):
    """A node in the tree of layers: assign blocks and parameters as attributes, say what it computes in `forward`.

    Parameters are called `prefix` + local name. The prefix is the class name in lower case with a number, below the
    prefix of the block whose `name_scope` is open; `params` shares the parameters of another block.

    >>> from gluongraph import gluon, nd
    >>> class Sum(gluon.Block):
    ...     def forward(self, x, y):
    ...         return x + y
    >>> Sum()(nd.ones((2,)), nd.ones((2,))).asnumpy().tolist()
    [2.0, 2.0]

    Source: `mxnet.gluon.Block` (MXNet 1.9).
    """

    _instead: ClassVar[Mapping[str, str]] = {
        "optimize_for": "hybridize()",
        **dict.fromkeys(("_children", "_reg_params"), "super().__init__() comes first in the __init__ of a block"),
    }

    def __init__(self, prefix: str | None = None, params: ParameterDict | None = None):
        if prefix is not None and not isinstance(prefix, str):
            message = f"{type(self).__name__}: prefix is a text, not {prefix!r}"
            raise TypeError(with_user_location(message, help="net.add(...) takes the layers of a Sequential"))
        hint = self._alias()
        parent = _NAMES.open[-1] if _NAMES.open else None
        self._unnamed = prefix == ""
        if prefix is None:
            names = NameManager.current if parent is None else parent._names_below
            prefix = names.get(None, hint) + "_"
        self._prefix = prefix if parent is None else parent.prefix + prefix
        if params is not None:
            self._params = ParameterDict(params.prefix, params)
        elif parent is None:
            self._params = ParameterDict(prefix)
        else:
            self._params = ParameterDict(parent.params.prefix + prefix, parent.params._shared)
        self._names_below: NameManager = NameManager()  # of the blocks made within its name_scope
        self._name = self._prefix.removesuffix("_")
        self._children: OrderedDict[str, Block] = OrderedDict()
        self._reg_params: dict[str, Parameter] = {}
        self._forward_hooks: dict[int, Callable[..., Any]] = {}
        self._forward_pre_hooks: dict[int, Callable[..., Any]] = {}

    def _alias(self) -> str:
        return type(self).__name__.lower()

    def __repr__(self) -> str:
        rows = [f"  ({key}): {_indented(repr(child))}" for key, child in self._children.items()]
        return f"{type(self).__name__}(\n" + "\n".join(rows) + "\n)" if rows else f"{type(self).__name__}(\n\n)"

    def __setattr__(self, name: str, value: Any) -> None:
        existing = self.__dict__.get(name)
        if isinstance(existing, (Parameter, Block)) and not isinstance(value, type(existing)):
            wanted = Block if isinstance(existing, Block) else Parameter
            if not isinstance(value, wanted):
                raise TypeError(
                    f"{type(self).__name__}.{name} is a {type(existing).__name__}; a {type(value).__name__} cannot "
                    "take its place"
                )
        if isinstance(value, Block):
            self.register_child(value, name)
        elif isinstance(value, Parameter):
            taken = self._reg_params.get(name)
            if taken is not None and taken is not value and not isinstance(existing, Parameter):
                raise AssertionError(f"{type(self).__name__} already has a parameter called {name!r}")
            self._reg_params[name] = value
        if not (is_setting(value) and type(existing) is type(value) and existing == value and name in self.__dict__):
            Edits.count += 1
        super().__setattr__(name, value)

    # -- names and parameters

    @property
    def prefix(self) -> str:
        """What its parameters' names begin with.

        >>> from gluongraph.gluon import nn
        >>> nn.Dense(2, prefix="out_").prefix
        'out_'
        """
        return self._prefix

    @property
    def name(self) -> str:
        """The prefix without its last underscore.

        >>> from gluongraph.gluon import nn
        >>> nn.Dense(2, prefix="out_").name
        'out'
        """
        return self._name

    def name_scope(self) -> _NameScope:
        """Within: blocks that are made get names below this one's.

        >>> from gluongraph.gluon import nn
        >>> net = nn.Sequential(prefix="net_")
        >>> with net.name_scope():
        ...     net.add(nn.Dense(2))
        >>> net[0].name
        'net_dense0'
        """
        return _NameScope(self)

    @property
    def params(self) -> ParameterDict:
        """This block's own parameters, without those of its children.

        >>> from gluongraph.gluon import nn
        >>> list(nn.Dense(2, in_units=3, prefix="d_").params)
        ['d_weight', 'd_bias']
        """
        return self._params

    def collect_params(self, select: str | None = None) -> ParameterDict:
        """The parameters of the whole tree; `select` is a regular expression that their names must match.

        >>> from gluongraph.gluon import nn
        >>> list(nn.Dense(2, in_units=3, prefix="d_").collect_params(".*bias"))
        ['d_bias']
        """
        found = ParameterDict(self._params.prefix)
        self._collect(found, None if select is None else re.compile(select))
        return found

    def _collect(self, into: ParameterDict, pattern: re.Pattern[str] | None) -> None:
        self._look_into_lists()
        for parameters in (self._params.values(), self._reg_params.values()):
            for parameter in parameters:
                if pattern is None or pattern.match(parameter.name):
                    one = ParameterDict()
                    one._params[parameter.name] = parameter
                    into.update(one)
        for child in self._children.values():
            child._collect(into, pattern)

    def _look_into_lists(self) -> None:
        """Warn of blocks in lists and dicts: they are no children, so their parameters are nobody's."""
        own = {id(child) for child in self._children.values()}
        for name, value in self.__dict__.items():
            if name not in _OWN_DICTS and any(id(block) not in own for block in _blocks_in(value)):
                warn(
                    f"{type(self).__name__}.{name} holds blocks that are no children of {self.name!r}, so they are "
                    "neither initialized nor trained; use nn.Sequential, or register_child on each"
                )

    def _collect_params_with_prefix(self, prefix: str = "") -> dict[str, Parameter]:
        """Parameters by their place in the tree, '0.weight': their names in files.

        Blocks may override it, as in MXNet, to keep names that their files have.
        """
        dot = prefix + "." if prefix else ""
        found = {dot + name: parameter for name, parameter in self._reg_params.items()}
        for key, child in self._children.items():
            found.update(child._collect_params_with_prefix(dot + key))
        return found

    def register_child(self, block: Block, name: str | None = None) -> None:
        """Make `block` a child; attributes that are blocks are registered by themselves.

        Raises:
            TypeError: it is no block.

        >>> from gluongraph import gluon
        >>> block = gluon.Block()
        >>> block.register_child(gluon.nn.Dense(2, in_units=3, prefix="d_"), "first")
        >>> list(block.collect_params())
        ['d_weight', 'd_bias']
        """
        if not isinstance(block, Block):
            message = f"children of a block are blocks, and {block!r} is a {type(block).__name__}"
            raise TypeError(with_user_location(message, help="nn.Lambda, nn.HybridLambda make a layer of a function"))
        self._children[str(len(self._children)) if name is None else name] = block
        Edits.count += 1

    def apply(self, fn: Callable[[Block], Any]) -> Block:
        """fn on every block of the tree, children first.

        >>> from gluongraph.gluon import nn
        >>> net = nn.Sequential()
        >>> net.add(nn.Dense(2))
        >>> _ = net.apply(lambda block: print(type(block).__name__))
        Dense
        Sequential
        """
        for child in self._children.values():
            child.apply(fn)
        fn(self)
        return self

    def initialize(
        self,
        init: Any = None,
        ctx: Context | Sequence[Context] | None = None,
        verbose: bool = False,
        force_reinit: bool = False,
    ) -> None:
        """Initialize all parameters; `init` (default Uniform) is for those without an initializer of their own.

        >>> import gluongraph as mx
        >>> net = mx.gluon.nn.Dense(2, in_units=3)
        >>> net.initialize(mx.init.One())
        >>> net.weight.data().shape
        (2, 3)
        """
        self.collect_params().initialize(init, ctx, verbose, force_reinit)

    def cast(self, dtype: Any) -> None:
        """Change the element type of all parameters.

        >>> from gluongraph.gluon import nn
        >>> net = nn.Dense(2, in_units=3)
        >>> net.cast("float16")
        >>> net.weight.dtype.__name__
        'float16'
        """
        for child in self._children.values():
            child.cast(dtype)
        for parameter in {**dict(self._params.items()), **self._reg_params}.values():
            parameter.cast(dtype)

    def zero_grad(self) -> None:
        """Set all gradients to 0.

        >>> from gluongraph import autograd, nd
        >>> from gluongraph.gluon import nn
        >>> net = nn.Dense(1, in_units=2)
        >>> net.initialize()
        >>> with autograd.record():
        ...     loss = net(nd.ones((4, 2))).sum()
        >>> loss.backward()
        >>> net.zero_grad()
        >>> net.weight.grad().asnumpy().tolist()
        [[0.0, 0.0]]
        """
        self.collect_params().zero_grad()

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        """Compile the hybrid blocks among the children.

        >>> from gluongraph.gluon import nn
        >>> net = nn.Sequential()  # no hybrid block itself
        >>> net.add(nn.Dense(2), nn.Lambda(lambda x: x))
        >>> net.hybridize()
        """
        for child in self._children.values():
            child.hybridize(active, **kwargs)

    # -- files

    def save_parameters(self, filename: str, deduplicate: bool = False) -> None:
        """Write all parameters, by structural name ('0.weight'), to a safetensors file.

        Raises:
            ArgumentError: the name of the file is empty.

        >>> import os, tempfile
        >>> from gluongraph.gluon import nn
        >>> net = nn.Dense(2, in_units=3)
        >>> net.initialize()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     net.save_parameters(folder + "/net.params")
        ...     os.listdir(folder)
        ['net.params']
        """
        check_name("save_parameters", filename, "net.save_parameters('net.params')")
        table, seen = {}, set()
        for name, parameter in self._collect_params_with_prefix().items():
            if deduplicate and id(parameter) in seen:
                continue
            seen.add(id(parameter))
            table[name] = parameter.averaged()
        files.save(filename, table)

    def load_parameters(
        self,
        filename: str,
        ctx: Context | Sequence[Context] | None = None,
        allow_missing: bool = False,
        ignore_extra: bool = False,
        cast_dtype: bool = False,
        dtype_source: str = "current",
    ) -> None:
        """Read what `save_parameters` wrote, here or in MXNet; parameters that were not initialized are, on `ctx`.

        `cast_dtype` converts where element types differ: to the block's with dtype_source="current", to the file's with
        "saved".

        Raises:
            ArgumentError: the name of the file is empty.
            AssertionError: a parameter is not in the file, or has another shape or element type there.
            ValueError: the file has one that the block lacks.

        >>> import tempfile
        >>> from gluongraph.gluon import nn
        >>> net, other = nn.Dense(2, in_units=3), nn.Dense(2)
        >>> net.initialize()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     net.save_parameters(folder + "/net.params")
        ...     other.load_parameters(folder + "/net.params")
        >>> bool((net.weight.data().asnumpy() == other.weight.data().asnumpy()).all())
        True
        """
        check_name("load_parameters", filename, "net.load_parameters('net.params')")
        if dtype_source not in ("current", "saved"):
            raise ValueError(f"dtype_source is 'current' or 'saved', not {dtype_source!r}")
        whole = self.collect_params()
        legacy = {name.removeprefix(self.prefix): p for name, p in whole.items()}
        own = self._collect_params_with_prefix()
        parameter_files.fill(filename, own, ctx, allow_missing, ignore_extra, cast_dtype, dtype_source, legacy=legacy)

    def save(self, prefix: str) -> None:
        """Write the parameters to <prefix>-model.params, and what the blocks are called to <prefix>-model.json.

        Raises:
            ArgumentError: the name of the file is empty.
            FormatError: several children of a block have the same name; nothing is written.

        >>> import os, tempfile
        >>> from gluongraph.gluon import nn
        >>> net = nn.Dense(2, in_units=3)
        >>> net.initialize()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     net.save(folder + "/net")
        ...     sorted(os.listdir(folder))
        ['net-model.json', 'net-model.params']
        """
        check_name("save", prefix, "net.save('net')")
        text = json.dumps(structure.described(self))
        self.save_parameters(f"{prefix}-model.params")
        params_file.whole(f"{prefix}-model.json", lambda file: file.write(text.encode()))

    def load(self, prefix: str) -> None:
        """Read what `save` wrote, here or in MXNet, into the same blocks made in the same order.

        Children get the keys that they had then; the computation is that of the blocks, not of a graph in the file.

        Raises:
            ArgumentError: the name of the file is empty.
            FormatError: the files are of other blocks; nothing is changed by the first.

        >>> import tempfile
        >>> from gluongraph.gluon import nn
        >>> net, other = nn.Dense(2, in_units=3), nn.Dense(2, in_units=3)
        >>> net.initialize()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     net.save(folder + "/net")
        ...     other.load(folder + "/net")
        >>> bool((net.weight.data().asnumpy() == other.weight.data().asnumpy()).all())
        True
        """
        check_name("load", prefix, "net.load('net')")
        file = f"{prefix}-model.json"
        with open(file, encoding="utf-8") as opened:
            structure.take_keys(self, opened.read(), file)
        self.load_parameters(f"{prefix}-model.params")

    def save_params(self, filename: str) -> None:
        """MXNet's first format, by full name without the prefix; deprecated: `save_parameters`.

        Raises:
            ArgumentError: the name of the file is empty.

        >>> import os, tempfile, warnings
        >>> from gluongraph.gluon import nn
        >>> net = nn.Dense(2, in_units=3)
        >>> net.initialize()
        >>> with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     net.save_params(folder + "/net.params")
        ...     os.listdir(folder)
        ['net.params']
        """
        check_name("save_params", filename, "net.save_parameters('net.params')")
        warn("save_params is deprecated; save_parameters takes its place")
        self.collect_params().save(filename, strip_prefix=self.prefix)

    def load_params(
        self, filename: str, ctx: Any = None, allow_missing: bool = False, ignore_extra: bool = False
    ) -> None:
        """`load_parameters` under the name that it had in MXNet before 1.3; deprecated.

        Raises:
            ArgumentError: the name of the file is empty.

        >>> import tempfile, warnings
        >>> from gluongraph.gluon import nn
        >>> net = nn.Dense(2, in_units=3)
        >>> net.initialize()
        >>> with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     net.save_parameters(folder + "/net.params")
        ...     net.load_params(folder + "/net.params")
        """
        check_name("load_params", filename, "net.load_parameters('net.params')")
        warn("load_params is deprecated; load_parameters takes its place")
        self.load_parameters(filename, ctx, allow_missing, ignore_extra)

    # -- calls

    def register_forward_pre_hook(self, hook: Callable[[Block, tuple[Any, ...]], Any]) -> HookHandle:
        """hook(block, inputs) before each forward.

        The hook's result is not used; `detach()` of the handle takes the hook off.

        >>> from gluongraph import nd
        >>> from gluongraph.gluon import nn
        >>> net = nn.Dense(2, in_units=3)
        >>> net.initialize()
        >>> handle = net.register_forward_pre_hook(lambda block, inputs: print(inputs[0].shape))
        >>> y = net(nd.ones((4, 3)))
        (4, 3)
        >>> handle.detach()
        """
        return HookHandle(self._forward_pre_hooks, hook)

    def register_forward_hook(self, hook: Callable[[Block, tuple[Any, ...], Any], Any]) -> HookHandle:
        """hook(block, inputs, outputs) after each forward.

        The hook's result is not used; `detach()` of the handle takes the hook off.

        >>> from gluongraph import nd
        >>> from gluongraph.gluon import nn
        >>> net = nn.Dense(2, in_units=3)
        >>> net.initialize()
        >>> handle = net.register_forward_hook(lambda block, inputs, outputs: print(outputs.shape))
        >>> y = net(nd.ones((4, 3)))
        (4, 2)
        >>> handle.detach()
        """
        return HookHandle(self._forward_hooks, hook)

    def register_op_hook(self, callback: Callable[[str, str, NDArray], Any], monitor_all: bool = False) -> None:
        """callback(name, operator, array) for each output of the operators that hybridized children run; for each input
        too with `monitor_all`. Names and values are those of the graph that `export` writes, in prediction mode.

        >>> from gluongraph import nd
        >>> from gluongraph.gluon import nn
        >>> net = nn.Dense(2, in_units=3)
        >>> net.initialize()
        >>> net.hybridize()
        >>> net.register_op_hook(lambda name, operator, array: print(operator, array.shape))
        >>> y = net(nd.ones((4, 3)))
        FullyConnected (4, 2)
        """
        for child in self._children.values():
            child.register_op_hook(callback, monitor_all)

    @runs_a_layer
    def __call__(self, *args: Any) -> Any:
        """What `forward` gives for these arguments, with the hooks called before and after it.

        >>> from gluongraph import nd
        >>> from gluongraph.gluon import nn
        >>> net = nn.Dense(2, in_units=3)
        >>> net.initialize()
        >>> net(nd.ones((4, 3))).shape
        (4, 2)
        """
        for hook in list(self._forward_pre_hooks.values()):
            hook(self, args)
        with tracer.scope(self._name, self):
            out = self._run(*args)
        for hook in list(self._forward_hooks.values()):
            hook(self, args, out)
        return out

    def _run(self, *args: Any) -> Any:
        out = self.forward(*args)
        trace_guards.note(self)
        return out

    def forward(self, *args: Any) -> Any:
        """What the block computes; subclasses say.

        >>> from gluongraph import gluon, nd
        >>> class Double(gluon.Block):
        ...     def forward(self, x):
        ...         return 2 * x
        >>> Double()(nd.ones((2,))).asnumpy().tolist()
        [2.0, 2.0]
        """
        raise NotImplementedError(f"{type(self).__name__} says what it computes in forward(self, x, ...)")

    def summary(self, *inputs: Any) -> None:
        """Print each layer's output shape and number of parameters for these inputs.

        Raises:
            AssertionError: a layer is hybridized, so that its own layers are not called one by one.

        >>> from gluongraph import nd
        >>> from gluongraph.gluon import nn
        >>> net = nn.Dense(2, in_units=3, prefix="d_")
        >>> net.initialize()
        >>> net.summary(nd.ones((4, 3)))  # doctest: +NORMALIZE_WHITESPACE
        Layer       Output shape    Parameters
        Dense d     (4, 2)                   8
        all                                  8
        """

        def check(block: Block) -> None:
            if getattr(block, "_active", False):
                help = "call it before hybridize(), or hybridize(False) first"
                raise AssertionError(with_user_location(f"summary: {block.name!r} is hybridized", help=help))

        self.apply(check)
        rows: list[tuple[str, str, int]] = []

        def note(block: Block, _args: tuple[Any, ...], out: Any) -> None:
            shapes = [str(tuple(o.shape)) for o in _arrays_in(out)]
            own = [p.data().size for p in block._reg_params.values()]
            rows.append((f"{type(block).__name__} {block.name}", " ".join(shapes), sum(own)))

        handles: list[HookHandle] = []
        self.apply(lambda block: handles.append(block.register_forward_hook(note)))
        try:
            Block.__call__(self, *inputs)
        finally:
            for handle in handles:
                handle.detach()
        print(f"{'Layer':<44}{'Output shape':<28}{'Parameters':>12}")
        for layer, shape, count in rows:
            print(f"{layer:<44}{shape:<28}{count:>12}")
        print(f"{'all':<72}{sum(count for _, _, count in rows):>12}")


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


_OWN_DICTS = ("_children", "_forward_hooks", "_forward_pre_hooks", "_reg_params")


def _blocks_in(value: Any) -> Iterator[Block]:
    """The blocks in lists, tuples and dicts, however deep."""
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
        if isinstance(part, Block):
            yield part
        else:
            yield from _blocks_in(part)


def _arrays_in(out: Any) -> list[Any]:
    """Arrays in lists, however deep, in order."""
    return [a for part in out for a in _arrays_in(part)] if isinstance(out, (list, tuple)) else [out]


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


def _indented(text: str) -> str:
    first, *rest = text.split("\n")
    return "\n".join([first, *("  " + line for line in rest)])


__all__ = ["Block", "Constant", "HookHandle", "HybridBlock", "Parameter", "ParameterDict"]
