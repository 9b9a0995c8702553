"""Blocks: trees of layers that own parameters."""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from gluongraph.context import Context
from gluongraph.errors import NamesInstead, runs_a_layer, warn, with_user_location
from gluongraph.gluon import parameter_files, structure, trace_guards
from gluongraph.gluon.parameter import Constant, Parameter
from gluongraph.gluon.parameter_dict import ParameterDict
from gluongraph.gluon.trace_guards import Edits, is_setting
from gluongraph.host import params_file
from gluongraph.host.file_names import check_name
from gluongraph.name import NameManager
from gluongraph.nd import files
from gluongraph.ndarray import NDArray
from gluongraph.tracing import tracer


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


def _indented(text: str) -> str:
    first, *rest = text.split("\n")
    return "\n".join([first, *("  " + line for line in rest)])


__all__ = ["Block", "Constant", "HookHandle", "Parameter", "ParameterDict"]


def __getattr__(name: str) -> Any:
    """HybridBlock, which programs for MXNet import from here."""
    if name != "HybridBlock":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gluongraph.gluon.hybrid_block import HybridBlock  # which is derived from Block

    return HybridBlock
