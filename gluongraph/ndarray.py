"""NDArray, and the one way from arrays to arrays: `invoke(build, *arrays, **attrs)`, eager, recorded or traced."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, overload
from weakref import WeakSet

import numpy as np

from gluongraph import debug
from gluongraph.context import Context, check_context, current_context
from gluongraph.dtypes import dtype_name, numpy_dtype
from gluongraph.eager.array import DEFAULT, Handle
from gluongraph.eager.function import Function, leaf, observers
from gluongraph.eager.tape import STATE, Entry, mark, no_value, outlived, source_of, sources_of, tracked
from gluongraph.errors import MXNetError, ShapeError, TraceError, with_user_location
from gluongraph.ir.graph import Node, TensorType, attr_key
from gluongraph.ir.plain import PLAIN, extents, is_flat, plain
from gluongraph.mxops import images as mximages
from gluongraph.mxops import index as mxindex
from gluongraph.mxops import layers as mxlayers
from gluongraph.mxops import math as mxmath
from gluongraph.mxops import ops as mxops
from gluongraph.mxops import shapes as mxshapes
from gluongraph.ops.autodiff import gradients
from gluongraph.storage import Array, View, absent_error, given_array

if not TYPE_CHECKING:  # a checker is to go on knowing what is in this file

    def __getattr__(name: str) -> Any:
        """To MXNet's users this is `mx.nd.ndarray`, which has the functions of `mx.nd` too, and some names inside."""
        if name.startswith("__"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if place := importlib.import_module("gluongraph.mxnet.names").ATTRIBUTES.get(("ndarray.ndarray", name)):
            module, _, attribute = place.partition(":")
            return getattr(importlib.import_module(module), attribute)
        return getattr(importlib.import_module("gluongraph.nd"), name)


MAX_FUNCTIONS = 8192  # Python numbers are part of a function; a program that counts must not fill the memory


def of_arrays(build: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the builder's arguments if all of them are arrays, or numbers in their place; else ().

    MXNet's operators of this kind take any keywords besides, and ignore them.
    """
    wants = {name: kind for name, kind in build.__annotations__.items() if name != "return"}
    several = build.__code__.co_flags & inspect.CO_VARARGS
    return tuple(wants) if not several and set(wants.values()) <= {"Node", "Value"} else ()


@overload
def _method(build: Callable[..., Node]) -> Callable[..., NDArray]: ...
@overload
def _method(build: Callable[..., Sequence[Node]]) -> Callable[..., list[NDArray]]: ...
def _method(build: Callable[..., Any]) -> Callable[..., Any]:
    """The builder as a method; like MXNet's methods it also takes `out`, which np.sum(array) hands on."""
    only = of_arrays(build)

    @wraps(build, assigned=("__name__", "__doc__"))
    def method(self: NDArray, /, *args: Any, out: NDArray | None = None, **kwargs: Any) -> Any:
        if kwargs and only:
            kwargs = {name: value for name, value in kwargs.items() if name in only}
        made = invoke(build, self, *args, **kwargs)
        if out is None:
            return made
        out[:] = made
        return out

    return method


def _operator(build: Callable[..., Node]) -> Callable[[NDArray, Any], NDArray]:
    def operator(self: NDArray, other: Any) -> NDArray:
        return invoke(build, self, _operand(other, self))

    return operator


def _swapped(build: Callable[..., Node]) -> Callable[[NDArray, Any], NDArray]:
    def operator(self: NDArray, other: Any) -> NDArray:
        return invoke(build, _operand(other, self), self)

    return operator


def _inplace(build: Callable[..., Node]) -> Callable[[NDArray, Any], NDArray]:
    def operator(self: NDArray, other: Any) -> NDArray:
        if STATE.tracer is None and self._storage is not None:
            self._check_write(other)
        self[:] = invoke(build, self, _operand(other, self))
        return self

    return operator


class NDArray(Handle):
    """An array on a device; within a trace, a node of the graph that is being built.

    Arithmetic broadcasts as in numpy. Contiguous slices and reshaped arrays share their memory with the array, other
    parts are copies. Comparisons give 0 and 1 in the dtype of the array.

    >>> from gluongraph import nd
    >>> nd.array([[1, 2], [3, 4]]) * 2
    <BLANKLINE>
    [[2. 4.]
     [6. 8.]]
    <NDArray 2x2 @cpu(0)>
    """

    @property
    def T(self) -> NDArray:
        return invoke(mxshapes.transpose, self)

    def __iter__(self) -> Iterator[NDArray]:
        return (self[i] for i in range(len(self)))

    def __deepcopy__(self, memo: object) -> NDArray:
        return self.copy()

    # -- copies

    def copy(self) -> NDArray:
        """A copy, through which gradients flow."""
        return invoke(mxops.identity, self)

    def copyto(self, other: NDArray | Context) -> NDArray:
        """A copy on another device, or into another array, which is returned."""
        if isinstance(other, NDArray):
            other[:] = self.as_in_context(other._ctx)
            return other
        made = self.copy()
        check_context(other)
        made._ctx = other
        return made

    def as_in_context(self, context: Context) -> NDArray:
        """Itself if it is there already, else a copy on that device."""
        return self if context == self._ctx else self.copyto(context)

    as_in_ctx = as_in_context

    def as_nd_ndarray(self) -> NDArray:
        return self

    def tostype(self, stype: str) -> NDArray:
        """Itself, of storage "default". Raises NotImplementedError for other storage."""
        from gluongraph.nd.sparse import check_storage

        check_storage("tostype", stype)
        return self

    def astype(self, dtype: Any, copy: bool = True) -> NDArray:
        """The elements as another type; itself with copy=False where it has that type."""
        name = dtype_name(dtype)
        if not copy and name == self.type.dtype:
            return self
        return invoke(mxops.cast, self, dtype=name)

    # -- gradients

    def attach_grad(self, grad_req: str = "write", stype: str | None = None) -> None:
        """Mark the array: backward puts its gradient into `grad`. The array becomes a leaf of the record.

        With `stype` "row_sparse" the gradient is a RowSparseNDArray, of which only rows that are touched are written.
        """
        if self._storage is None:
            raise TraceError(no_value("attach_grad()"))
        from gluongraph.nd.row_sparse_array import gradient_like

        mark(self, gradient_like(self, stype), grad_req)

    @property
    def grad(self) -> NDArray | None:
        """The gradient that the last backward left; None if nothing is attached."""
        return None if self._leaf is None else self._leaf.grad

    @property
    def grad_req(self) -> str:
        return "null" if self._leaf is None else self._leaf.req

    @property
    def _fresh_grad(self) -> bool:
        return self._leaf is not None and self._leaf.fresh

    @_fresh_grad.setter
    def _fresh_grad(self, fresh: bool) -> None:
        if self._leaf is not None:
            self._leaf.fresh = fresh

    def detach(self) -> NDArray:
        """The same memory, apart from the record: no gradient flows through it."""
        if STATE.tracer is not None or self._storage is None:
            return invoke(mxops.detach, self)
        other = NDArray.__new__(NDArray)
        other._storage, other._ctx, other.name = self._storage, self._ctx, self.name
        other._view, other._part, other._alias = self._view, self._part, True
        return other

    def zero_grad(self) -> None:
        """Fill the attached gradient with zeros."""
        if self._leaf is not None:
            self._leaf.clear()

    # -- reading and writing parts

    @staticmethod
    def _basic_indexing_slice_is_contiguous(slc_key: Sequence[slice], shape: Sequence[int]) -> bool:
        """Does what the slices choose lie without gaps in an array of the shape? MXNet's name of the question."""
        return np.empty(tuple(shape), np.bool_)[tuple(slc_key)].flags.c_contiguous

    def __getitem__(self, key: Any) -> NDArray:
        plan, indices = mxshapes.index_plan(key, self.shape)
        if indices:
            return invoke(mxshapes.index, self, *map(_index_array, indices), plan=plan)
        if mxshapes.is_contiguous(plan, self.shape):
            return self._viewed(mxshapes.index, plan=plan)
        return _part(self, plan)

    def _viewed(self, build: Callable[..., Any], **how: Any) -> NDArray:
        """A part or another shape that shares its memory with this array, as in MXNet.

        Under a record, where the gradient flows through it, it is a copy that must not be written.
        """
        tracing = STATE.tracer is not None or self._storage is None
        if tracing or (STATE.recording and tracked(self)):
            part: NDArray = _part(self, **how) if build is mxshapes.index else invoke(build, self, **how)
            if tracing:
                part._view = (self, build, how)
            else:
                part._part = True
            return part
        part = NDArray.__new__(NDArray)
        part._storage = View(self.storage, _VIEWS[build](**how))
        part._ctx, part._view = self._ctx, (self, build, how)
        return part

    def __setitem__(self, key: Any, value: Any) -> None:
        if STATE.tracer is not None or self._storage is None:
            if STATE.tracer is None:
                raise TraceError(outlived())
            STATE.tracer.assign(self, key, value)
            return
        self._check_write(value)
        if isinstance(value, NDArray):
            value = value.storage.array
        elif not isinstance(value, np.ndarray | np.generic | int | float):
            value = given_array(value)
        if isinstance(value, np.ndarray) and value.size == 1:
            value = value.reshape(())  # numpy takes no array for one element
        parts = tuple(map(_numpy_key, mxshapes.basic_key(key, self.shape)))
        try:
            self._storage.write(value, parts)
        except ValueError as error:
            raise ShapeError(with_user_location(f"array[...] = value: {error}")) from None

    def _check_write(self, value: object) -> None:
        """Raise where a write would be lost or would spoil a record."""
        if self._part:
            raise MXNetError(
                with_user_location(
                    "in-place write into a slice or a reshaped array that was recorded: the array it came from would"
                    " not change",
                    help="write into that array: a[1:3] = value; or make the copy plain: a[1:3].copy()",
                )
            )
        if STATE.recording and (tracked(self) or (isinstance(value, NDArray) and tracked(value))):
            raise MXNetError(
                with_user_location(
                    "Inplace operations (+=, -=, x[:]=, etc) are not supported when recording with autograd",
                    help="write x = x + y, or put the write under autograd.pause()",
                )
            )

    # -- operators

    __add__, __radd__, __iadd__ = _operator(mxops.add), _swapped(mxops.add), _inplace(mxops.add)
    __sub__, __rsub__, __isub__ = _operator(mxops.subtract), _swapped(mxops.subtract), _inplace(mxops.subtract)
    __mul__, __rmul__, __imul__ = _operator(mxops.multiply), _swapped(mxops.multiply), _inplace(mxops.multiply)
    __truediv__, __rtruediv__, __itruediv__ = _operator(mxops.divide), _swapped(mxops.divide), _inplace(mxops.divide)
    __mod__, __rmod__, __imod__ = _operator(mxops.modulo), _swapped(mxops.modulo), _inplace(mxops.modulo)
    __pow__, __rpow__ = _operator(mxops.power), _swapped(mxops.power)
    __lt__, __le__ = _operator(mxops.lesser), _operator(mxops.lesser_equal)
    __gt__, __ge__ = _operator(mxops.greater), _operator(mxops.greater_equal)
    __matmul__ = _method(mxlayers.matmul)
    __neg__, __abs__ = _method(mxops.negative), _method(mxops.abs)

    def __eq__(self, other: object) -> Any:
        return False if other is None else invoke(mxops.equal, self, _operand(other, self))

    def __ne__(self, other: object) -> Any:
        return True if other is None else invoke(mxops.not_equal, self, _operand(other, self))

    # -- methods of the same name as a function of `nd`, which documents them

    def reshape(self, *extents: Any, shape: Any = None, reverse: bool = False) -> NDArray:
        """Another shape: 0 keeps an axis, -1 is inferred, -2 keeps the rest, -3 joins two axes, -4 splits one."""
        new = mxshapes.reshaped(self.shape, _spread("reshape: shape", extents, shape), reverse)
        if self._storage is not None and not self._storage.array.flags.c_contiguous:
            return invoke(mxshapes.reshape, self, shape=new)
        return self._viewed(mxshapes.reshape, shape=new)

    def transpose(self, *order: Any, axes: Any = None) -> NDArray:
        """Axes in another order; in reversed order by default."""
        given = _spread("transpose: axes", order, axes)
        return invoke(mxshapes.transpose, self, given or None)

    def flatten(self, inplace: bool = False) -> NDArray:
        """All axes but the first as one. With `inplace` it shares its memory with this array."""
        return self._reshaped(mxshapes.flatten, inplace)

    def expand_dims(self, axis: int, inplace: bool = False) -> NDArray:
        """With an axis of 1 put in. With `inplace` it shares its memory with this array."""
        return self._reshaped(mxshapes.expand_dims, inplace, axis=axis)

    def squeeze(self, axis: int | Sequence[int] | None = None, inplace: bool = False) -> NDArray:
        """Without axes of 1, all or these. With `inplace` it shares its memory with this array."""
        return self._reshaped(mxshapes.squeeze, inplace, axis=axis)

    def _reshaped(self, build: Callable[..., Node], inplace: bool, **how: Any) -> NDArray:
        """What `build` makes; with `inplace` by way of `reshape`, whose results are views."""
        if not inplace:
            return invoke(build, self, **how)
        return self.reshape(build(leaf("data", self.type), **how).shape)

    def backward(self, out_grad: NDArray | None = None, retain_graph: bool = False, train_mode: bool = True) -> None:
        """Gradients of the sum of this array, or of <out_grad, this array>, into the marked arrays."""
        from gluongraph import autograd

        autograd.backward([self], None if out_grad is None else [out_grad], retain_graph, train_mode)

    take = _method(mxshapes.take)
    abs = _method(mxops.abs)
    sign = _method(mxops.sign)
    exp = _method(mxops.exp)
    expm1 = _method(mxops.expm1)
    log = _method(mxops.log)
    log1p = _method(mxops.log1p)
    log2 = _method(mxops.log2)
    log10 = _method(mxops.log10)
    sqrt = _method(mxops.sqrt)
    rsqrt = _method(mxops.rsqrt)
    square = _method(mxops.square)
    reciprocal = _method(mxops.reciprocal)
    sin = _method(mxops.sin)
    cos = _method(mxops.cos)
    tanh = _method(mxops.tanh)
    sigmoid = _method(mxops.sigmoid)
    relu = _method(mxops.relu)
    floor = _method(mxops.floor)
    ceil = _method(mxops.ceil)
    round = _method(mxops.round)
    clip = _method(mxops.clip)
    sum = _method(mxops.sum)
    mean = _method(mxops.mean)
    prod = _method(mxops.prod)
    max = _method(mxops.max)
    min = _method(mxops.min)
    norm = _method(mxops.norm)
    argmax = _method(mxops.argmax)
    argmin = _method(mxops.argmin)
    cumsum = _method(mxops.cumsum)
    zeros_like = _method(mxops.zeros_like)
    ones_like = _method(mxops.ones_like)
    reshape_like = _method(mxshapes.reshape_like)
    swapaxes = _method(mxshapes.swapaxes)
    broadcast_to = _method(mxshapes.broadcast_to)
    broadcast_like = _method(mxshapes.broadcast_like)
    tile = _method(mxshapes.tile)
    repeat = _method(mxshapes.repeat)
    flip = _method(mxshapes.flip)
    split: Callable[..., Any] = _method(mxshapes.split)
    slice = _method(mxshapes.slice)
    slice_axis = _method(mxshapes.slice_axis)
    slice_like = _method(mxshapes.slice_like)
    pick = _method(mxshapes.pick)
    one_hot = _method(mxshapes.one_hot)
    softmax = _method(mxlayers.softmax)
    log_softmax = _method(mxlayers.log_softmax)
    dot = _method(mxlayers.dot)
    softmin = _method(mxlayers.softmin)
    tan = _method(mxmath.tan)
    arcsin = _method(mxmath.arcsin)
    arccos = _method(mxmath.arccos)
    arctan = _method(mxmath.arctan)
    sinh = _method(mxmath.sinh)
    cosh = _method(mxmath.cosh)
    arcsinh = _method(mxmath.arcsinh)
    arccosh = _method(mxmath.arccosh)
    arctanh = _method(mxmath.arctanh)
    degrees = _method(mxmath.degrees)
    radians = _method(mxmath.radians)
    cbrt = _method(mxmath.cbrt)
    rcbrt = _method(mxmath.rcbrt)
    rint = _method(mxmath.rint)
    fix = trunc = _method(mxmath.trunc)
    nansum = _method(mxindex.nansum)
    nanprod = _method(mxindex.nanprod)
    argmax_channel = _method(mxops.argmax_channel)
    argsort = _method(mxindex.argsort)
    sort = _method(mxindex.sort)
    topk: Callable[..., Any] = _method(mxindex.topk)
    diag = _method(mxindex.diag)
    depth_to_space = _method(mxindex.depth_to_space)
    space_to_depth = _method(mxindex.space_to_depth)
    split_v2: Callable[..., Any] = _method(mxindex.split_v2)
    broadcast_axes = _method(mxshapes.broadcast_axis)
    pad = _method(mximages.pad)
    shape_array = _method(mxshapes.shape_array)
    size_array = _method(mxshapes.size_array)


# -- making arrays


def placed(array: NDArray, ctx: Context | None) -> NDArray:
    """A new array said to live on `ctx`, or on the current device."""
    if ctx is None:
        ctx = current_context()
    if ctx is not array._ctx:
        check_context(ctx)
        array._ctx = ctx
    return array


def zeros(type: TensorType, ctx: Context | None) -> NDArray:
    """A new array of zeros on `ctx`, or on the current device; it takes no memory until it is written."""
    return placed(NDArray(np.zeros(type.shape, numpy_dtype(type.dtype))), ctx)


def traced(node: Node) -> NDArray:
    """The handle on a node of the graph that is being traced."""
    array = NDArray.__new__(NDArray)
    array._storage, array._node, array._tracer = None, node, STATE.tracer
    return array


def _index_array(part: Any) -> NDArray:
    """An array that selects, from what stood between the brackets."""
    if isinstance(part, NDArray):
        return part
    array = given_array(part)
    if array.dtype == bool:
        raise MXNetError(
            with_user_location("indexing with a mask has a result whose shape depends on values", help="use where()")
        )
    if array.dtype.kind in "USO":  # texts, and what is no number
        message = f"an array is indexed by numbers, slices, arrays, None and ..., not by {part!r}"
        raise IndexError(with_user_location(message))
    return NDArray(array.astype(np.int32))


def _spread(what: str, given: tuple[Any, ...], named: Any) -> tuple[int, ...]:
    """Numbers that are given one by one, as one tuple or list, or by name."""
    if named is None:
        named = given[0] if len(given) == 1 and isinstance(given[0], tuple | list) else given
    elif given:
        raise TypeError(f"{what} is given twice: {given} and {named}")
    return extents(named)


def _numpy_key(part: Any) -> Any:
    if isinstance(part, NDArray):
        array = part.storage.array
        return array if array.dtype.kind in "iub" else array.astype(np.int64)
    return part


def _operand(value: Any, beside: NDArray) -> Any:
    """The other side of an operator: numpy arrays become arrays on the same device."""
    if isinstance(value, np.ndarray):
        return NDArray(value.astype(beside.dtype), beside._ctx)
    return value


def _part(array: NDArray, plan: mxshapes.Plan) -> NDArray:
    """A part of an array as a copy, for a plan without index arrays.

    Outside of a trace it does not go through `invoke`: a program that walks over an array asks for another part each
    time, and each would be a function of its own.
    """
    if STATE.tracer is not None or array._storage is None:
        return invoke(mxshapes.index, array, plan=plan)
    part = NDArray(_index_view(plan)(array._storage.array).copy(order="C"), array._ctx)
    if STATE.recording and (source := source_of(array)) is not None:
        flows = array.type.dtype != "bool"
        parents, constants = ([source], ()) if flows else ((), [source])
        part._source = (Entry(_PartGradient(array, part, plan), (), parents, (array,), constants), 0)
    return part


class _PartGradient:
    """The gradient of a part: zeros around it."""

    def __init__(self, whole: NDArray, part: NDArray, plan: mxshapes.Plan):
        self.shape, self.plan = whole.shape, plan
        self.zeros: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...] = ((part.shape, part.storage.array.dtype),)

    def backward(self, head: Array) -> Sequence[Array]:
        found = np.zeros(self.shape, head.dtype)
        part = found[_spans_key(self.plan)]
        part[...] = head.reshape(part.shape)
        return [found]

    def again(self, whole: Node, head: Node) -> Node:
        """The same as a builder, for a gradient of the gradient."""
        (found,) = gradients([mxshapes.index(whole, plan=self.plan)], [head], [whole])
        assert found is not None
        return found


def _spans_key(plan: mxshapes.Plan) -> tuple[slice, ...]:
    """What numpy takes for the spans of a plan; an end before the first element is written None."""
    return tuple([slice(begin, end if end >= 0 else None, step) for begin, end, step in plan[0]])


def _index_view(plan: mxshapes.Plan) -> Callable[[Array], Array]:
    key, shape = _spans_key(plan), plan[1] or (1,)
    return lambda array: array[key].reshape(shape)


def _shape_view(shape: tuple[int, ...]) -> Callable[[Array], Array]:
    return lambda array: array.reshape(shape)


_VIEWS: dict[Any, Callable[..., Callable[[Array], Array]]] = {
    mxshapes.index: _index_view,
    mxshapes.reshape: _shape_view,
}


# -- calls


class OwnedBuilder:
    """A builder that keeps its functions itself, so that they end with it: an imported net, as a whole, is one."""

    def __init__(self, build: Callable[..., Any]):
        self.build, self.functions = build, dict[tuple[Any, ...], Function]()
        self.__name__ = getattr(build, "__name__", type(build).__name__)
        _OWNED.add(self)

    def __call__(self, *args: Any, **attrs: Any) -> Any:
        return self.build(*args, **attrs)


_FUNCTIONS: dict[tuple[Any, ...], Function] = {}
_OWNED: WeakSet[OwnedBuilder] = WeakSet()
_KEYS = PLAIN | {tuple}  # what is part of a key as it is
_INTEGERS = frozenset({int})
_ARRAY = object()  # stands for an array among the arguments of a function


@overload
def invoke(build: Callable[..., Node], *args: Any, **attrs: Any) -> NDArray: ...
@overload
def invoke(build: Callable[..., Sequence[Node]], *args: Any, **attrs: Any) -> list[NDArray]: ...
def invoke(build: Callable[..., Any], *args: Any, **attrs: Any) -> Any:
    """`build` on arrays: the one function through which every op of every front end goes.

    `build` takes nodes, gives a node (or a tuple of nodes), and depends on nothing but its arguments. NDArrays among
    `args` and `attrs` become nodes; all else must be hashable, and numbers become Python's own (`attribute`). Within a
    trace the result is a traced array. Otherwise it is computed at once, by a function that is made once per builder,
    types and other arguments; under `autograd.record()` it is also written down how to go back. A builder with several
    results gives a list.
    """
    state = STATE
    if state.tracer is not None:
        return state.tracer.call(build, args, attrs)
    arrays: list[Array] = []
    handles: list[NDArray] = []
    key: list[Any] = [build]
    for value in (*args, *attrs.values()) if attrs else args:
        if isinstance(value, NDArray):
            if (storage := value._storage) is None:
                raise TraceError(outlived())
            if storage.absent:
                raise absent_error()
            array = storage.array
            arrays.append(array)
            handles.append(value)
            key += (array.shape, array.dtype.num)
        else:
            kind = value.__class__
            if kind not in _KEYS:
                value = plain(value)
                kind = value.__class__
            if kind is float and (value == 0.0 or value != value):
                value = value.hex()  # 0.0 == -0.0, and nan is not nan: here both are what they look like
            elif kind is tuple and not is_flat(value, _INTEGERS):
                value = attr_key(plain(value))  # the same holds of what is in it, and 3.0 is not 3
            key += (kind, value)
    key.extend(attrs)
    functions = build.functions if isinstance(build, OwnedBuilder) else _FUNCTIONS
    try:
        function = functions[tuple(key)]
    except KeyError:
        function = _function(tuple(key), build, args, attrs)
    except TypeError:
        plainer, named = [plain(v) for v in args], {k: attribute(v) for k, v in attrs.items()}
        odd = [v for v in (*plainer, *named.values()) if not isinstance(v, NDArray) and not _hashable(v)]
        if not odd:
            return invoke(build, *plainer, **named)
        raise TypeError(
            with_user_location(
                f"{getattr(build, '__name__', build)}: arguments are NDArrays, numbers, texts and tuples of those; not"
                f" {', '.join(type(v).__name__ for v in odd)}",
                help="make arrays of numpy arrays with nd.array(...)",
            )
        ) from None
    ctx = handles[0]._ctx if handles else DEFAULT
    for other in handles:
        if other._ctx is not ctx:
            _same_device(handles)
    if state.recording:
        mask = tuple([tracked(h) for h in handles])
        if True in mask:
            recorded = function.recorded(mask)
            values = state.run(recorded.forward, *arrays)
            count = len(recorded.zeros)
            parents = sources_of(handles, recorded.wants)
            constants = sources_of(handles, recorded.constant) if recorded.constant else ()
            entry = Entry(recorded, values[count:], parents, tuple(handles), constants)
            results = _wrapped(function, values[:count], arrays, ctx)
            for i, result in enumerate(results):
                result._source = (entry, i)
            return results[0] if function.single else results
    if function.single:
        value = state.run(function.call, *arrays)[0]
        if function.aliases:
            value = _own(value, arrays)
        return NDArray(value, ctx)
    return _wrapped(function, state.run(function.call, *arrays), arrays, ctx)


def _wrapped(function: Function, values: tuple[Array, ...], arrays: list[Array], ctx: Context) -> list[NDArray]:
    owned = [_own(v, arrays) if i in function.aliases else v for i, v in enumerate(values)]
    return [NDArray(v, ctx) for v in owned]


def _own(value: Array, arrays: list[Array]) -> Array:
    """The value in memory of its own: no later write into an argument may change it."""
    if value.base is not None or any(value is a for a in arrays) or not value.flags.writeable:
        return value.copy(order="C")
    return value


def _function(key: tuple[Any, ...], build: Callable[..., Any], args: Any, attrs: dict[str, Any]) -> Function:
    """The function of a call, which is kept: it must hold nothing of the arrays of this one but their types."""
    types = [v.type for v in (*args, *attrs.values()) if isinstance(v, NDArray)]
    positional = [_ARRAY if isinstance(v, NDArray) else attribute(v) for v in args]
    named = {k: _ARRAY if isinstance(v, NDArray) else attribute(v) for k, v in attrs.items()}

    def on_nodes(*nodes: Node) -> Any:
        given = iter(nodes)
        values = [next(given) if v is _ARRAY else v for v in positional]
        return build(*values, **{k: next(given) if v is _ARRAY else v for k, v in named.items()})

    functions = build.functions if isinstance(build, OwnedBuilder) else _FUNCTIONS
    if len(functions) >= MAX_FUNCTIONS:
        functions.clear()
    with naming_what_is_no_array(build, args, attrs):
        made = functions[key] = Function(on_nodes, types)
    for observe in observers:
        observe(made, build, args)
    return made


def forget_functions() -> None:
    """Make all functions of eager mode anew when they are called next."""
    _FUNCTIONS.clear()
    for each in _OWNED:
        each.functions.clear()


debug.when_overridden(forget_functions)  # under GG_CHECK=nan they are other functions


def attribute(value: Any) -> Any:
    """What a builder gets for an argument that is no NDArray: `plain`, and vectors of integers by numpy as tuples."""
    found = plain(value)
    if isinstance(found, np.ndarray) and found.ndim == 1 and found.dtype.kind in "iu":
        return tuple(found.tolist())
    return found


@contextmanager
def naming_what_is_no_array(build: Callable[..., Any], args: Sequence[Any], attrs: Mapping[str, Any]) -> Iterator[None]:
    """Within: an error that a builder makes of something else than an array says so.

    Raises:
        TypeError: an argument is a number or a list where the builder takes arrays only.
    """
    try:
        yield
    except (AttributeError, TypeError) as error:
        names = build.__code__.co_varnames[: build.__code__.co_argcount] if hasattr(build, "__code__") else ()
        given = {**dict(zip(names, args, strict=False)), **attrs}
        wants = getattr(build, "__annotations__", {})
        if len(names) < len(args) and build.__code__.co_flags & inspect.CO_VARARGS:
            several = build.__code__.co_varnames[build.__code__.co_argcount + build.__code__.co_kwonlyargcount]
            given |= {f"{several}[{i}]": value for i, value in enumerate(args[len(names) :])}
            wants = wants | {name: wants.get(several) for name in given if name.startswith(f"{several}[")}
        for name, value in given.items():
            if wants.get(name) == "Node" and not isinstance(value, (NDArray, Node)):
                message = f"{build.__name__}: {name} expects an NDArray, got {value!r}"
                raise TypeError(with_user_location(message, help="make an array of it: nd.array(...)")) from error
        raise


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _same_device(handles: list[NDArray]) -> None:
    devices = list(dict.fromkeys(h._ctx for h in handles))
    if len(devices) > 1:
        raise MXNetError(
            with_user_location(
                f"arrays on different devices in one op: {' and '.join(map(str, devices))}",
                help="bring them together with as_in_context",
            )
        )
