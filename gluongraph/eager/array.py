"""The array base class, and conversion to Python and numpy; NDArray adds the operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gluongraph.context import Context, cpu
from gluongraph.dtypes import dtype_name, numpy_dtype
from gluongraph.eager.tape import Entry, Leaf, no_value
from gluongraph.errors import TraceError
from gluongraph.host import params_file
from gluongraph.ir.graph import Node, TensorType
from gluongraph.storage import Array, Storage, absent_error

if TYPE_CHECKING:
    from gluongraph.ndarray import NDArray
    from gluongraph.tracing.tracer import Tracer

DEFAULT = cpu(0)


class Handle:
    """A handle on memory, or within a trace on a node; with its place in the record."""

    __array_priority__ = 1000.0
    __hash__ = object.__hash__

    # What most arrays have is said once, here; only what differs is kept per array.
    _storage: Storage | None
    _node: Node | None = None  # in a trace
    _tracer: Tracer | None = None  # which trace that is
    _source: tuple[Entry, int] | None = None  # the recorded call that made it
    _leaf: Leaf | None = None  # set by attach_grad
    _ctx: Context = DEFAULT
    name: str = ""  # of a parameter: what traces call it
    _view: tuple[NDArray, Callable[..., Any], dict[str, Any]] | None = None  # the array that it is a view of, and how
    _part: bool = False  # a recorded slice: a copy, and not to be written
    _alias: bool = False  # made by detach
    _observes: bool = False  # takes down what programs do: written by a step too that is left out otherwise

    def __init__(self, array: Array | None, ctx: Context = DEFAULT):
        """Of this array; pickles by MXNet make one of None, and fill it with `__setstate__`."""
        self._storage = Storage(np.empty((0,), np.float32) if array is None else array)
        if ctx is not DEFAULT:
            self._ctx = ctx

    # -- what it is

    @property
    def storage(self) -> Storage:
        """The memory.

        Raises:
            TraceError: a traced value has none.
        """
        if self._storage is None:
            raise TraceError(no_value("its memory"))
        return self._storage

    @property
    def type(self) -> TensorType:
        """Shape and dtype."""
        if self._storage is None:
            assert self._node is not None
            return self._node.ty
        array = self._storage.form
        return TensorType(array.shape, dtype_name(array.dtype))

    @property
    def shape(self) -> tuple[int, ...]:
        storage = self._storage
        if storage is None:
            return self.type.shape
        shape: tuple[int, ...] = storage.form.shape if storage.absent else storage.array.shape
        return shape

    @property
    def dtype(self) -> Any:
        """The numpy type of the elements: `numpy.float32`."""
        array_dtype = self._storage.form.dtype if self._storage is not None else numpy_dtype(self.type.dtype)
        return array_dtype.type

    @property
    def size(self) -> int:
        return self.type.size

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def context(self) -> Context:
        return self._ctx

    ctx = context

    @property
    def stype(self) -> str:
        return "default"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without axes")
        return self.shape[0]

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.shape))
        if self._storage is None:
            return f"<NDArray {shape} {self.type.dtype}, traced>"
        elements = "on all ranks" if self._storage.absent else str(self._storage.array)
        return f"\n{elements}\n<NDArray {shape} @{self._ctx}>"

    # -- out to Python and numpy

    def asnumpy(self) -> Array:
        """A copy as numpy array."""
        if self._storage is None:
            raise TraceError(no_value("asnumpy()"))
        if self._storage.absent:
            raise absent_error()
        return np.array(self._storage.array, order="C")

    def asscalar(self) -> Any:
        """The only element, as a numpy scalar."""
        return self._one("asscalar()")[()]

    def item(self) -> Any:
        """The only element, as a Python number."""
        return self._one("item()").item()

    def tolist(self) -> Any:
        return self.asnumpy().tolist()

    def _one(self, what: str) -> Array:
        if self._storage is None:
            raise TraceError(no_value(what))
        if self._storage.absent:
            raise absent_error()
        if self._storage.array.size != 1:
            raise ValueError(f"{what} needs an array of one element; this one has shape {self.shape}")
        return self._storage.array.reshape(())

    def __format__(self, how: str) -> str:
        """An array of one element as its number, by a format as ".3f"; without a format as `str` shows it.

        >>> from gluongraph import nd
        >>> f"{nd.array([0.25]):.3f}"
        '0.250'
        """
        return format(self.asscalar(), how) if how else str(self)

    def __float__(self) -> float:
        return float(self._one("float()"))

    def __int__(self) -> int:
        return int(self._one("int()"))

    def __index__(self) -> int:
        array = self._one("an index")
        if array.dtype.kind not in "iu":
            raise TypeError("only arrays of integers can be an index")
        return int(array)

    def __bool__(self) -> bool:
        if self._storage is None:
            raise TraceError(no_value("a branch (if, while, and, or, not)"))
        if self.size == 0:
            return False
        if self.size > 1:
            raise ValueError(
                "the truth value of an array with several elements is ambiguous; use asnumpy().all() or any()"
            )
        return bool(self._one("bool()"))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.asnumpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(self, **how: Any) -> Any:
        return self.storage.lend().__dlpack__(**how)

    def to_dlpack_for_read(self) -> Any:
        """A DLPack capsule of the array's memory."""
        return self.__dlpack__()

    to_dlpack_for_write = to_dlpack_for_read

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._ctx.device_typeid, self._ctx.device_id

    def __getstate__(self) -> dict[str, Any]:
        return {"array": self.asnumpy(), "ctx": (self._ctx.device_type, self._ctx.device_id)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """What `__getstate__` gave, or MXNet's: {"handle": the array as it is in MXNet's files}."""
        if "handle" in state:
            array = params_file.parse_one(bytes(state["handle"]), "a pickled NDArray of MXNet")
            state = {"array": array, "ctx": ("cpu", 0)}
        self._storage = Storage(state["array"])
        self._ctx = Context(*state["ctx"])

    def wait_to_read(self) -> None:
        """Nothing: eager ops are done when they return."""

    wait_to_write = wait_to_read
