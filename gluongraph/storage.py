"""The memory behind an NDArray: one numpy array, which may be moved while handles on it live on."""

from __future__ import annotations

import ctypes
import math
import mmap
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from gluongraph.errors import DTypeError, MXNetError, with_user_location

ALIGNMENT = 64  # bytes: a cache line, and the widest vector there is; what lies in an arena starts on such a boundary

_MAPPED = 1 << 16  # bytes: below that a mapping of its own costs more than it saves

Array = np.ndarray[Any, np.dtype[Any]]


def aligned(nbytes: int) -> int:
    """Rounded up to the alignment; what is empty takes a place too."""
    return -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT


def native(array: Array) -> Array:
    """The array in the byte order of this machine: itself, if it has that."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


_SHARED: dict[int, weakref.ref[Array]] = {}  # by identity: the arrays that `shared_view` has made read-only


def shared_view(array: Array) -> Array:
    """A view of the array that may be written as before, while the array itself becomes read-only.

    An array that was lent before is made a view of once more, as writable as the first one.
    """
    known = _SHARED.get(id(array))
    if known is not None and known() is array:
        with suppress(ValueError):  # what it is a part of has become read-only
            array.flags.writeable = True
    made = array.view()
    if made.flags.writeable:
        key = id(array)
        _SHARED[key] = weakref.ref(array, lambda _: _SHARED.pop(key, None))
    array.flags.writeable = False
    return made


def given_array(given: Any, dtype: Any = None, copy: bool = False) -> Array:
    """numpy's array of what a user gives: numbers, lists, arrays of numpy or of another library.

    Raises:
        DTypeError: it is of a library that does not hand it over, as PyTorch's tensors that require gradients.
    """
    try:
        if hasattr(given, "__array__") and not isinstance(given, np.ndarray | np.generic):
            given = np.asarray(given)  # asked for a copy, a library that does not know of copies is warned of
        return np.array(given, dtype, order="C") if copy else np.asarray(given, dtype)
    except (RuntimeError, TypeError) as error:
        if isinstance(error, TypeError) and (type(given).__module__ == "numpy" or not hasattr(given, "__array__")):
            raise
        kind = f"{type(given).__module__}.{type(given).__name__}".removeprefix("builtins.")
        reason = " ".join(str(error).split())
        help = "of a torch tensor t take t.detach().cpu(): no gradient goes from here to there"
        raise DTypeError(with_user_location(f"numbers of a {kind} cannot be had: {reason}", help=help)) from error


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> Array:
    """Uninitialized memory whose first byte is 64-byte aligned."""
    dtype = np.dtype(dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    array: Array = raw[start : start + nbytes].view(dtype).reshape(shape)
    return array


_PAGE = 2 << 20  # bytes of a huge page
_HUGE, _COLLAPSE = 14, 25  # advice to madvise: use huge pages from now on; copy what is there into some, Linux 6.1
_POPULATE = 23  # give pages that are not there yet, to be written to, Linux 5.14


def use_huge_pages(arrays: Iterable[Array]) -> None:
    """Ask the system to put huge pages under large arrays where they lie. Nothing moves, as far as a pointer can tell.

    Sweeping over many arrays once, an update looks up a small page every 4 KiB: that takes 4 % of Adam's time. numpy
    asks for huge pages under each array of 4 MiB and more, which misses their ends and all smaller ones beside them.
    Does nothing where the system has no such call or is short of memory.
    """
    for start, end in whole_pages(arrays):
        for advice in (_HUGE, _COLLAPSE):
            _advise(start, end, advice)


def expect_huge_pages(array: Array) -> None:
    """Have the system give huge pages when the array is first written to, as numpy asks for those that it makes."""
    for start, end in whole_pages([array]):
        _advise(start, end, _HUGE)


def populate(array: Array) -> None:
    """Have the system give the memory of an array now, all at once: page by page, as each is written to for the first
    time, takes it half as long again where pages are small. Does nothing where the system has no such call."""
    start = array.ctypes.data
    _advise(start // mmap.PAGESIZE * mmap.PAGESIZE, start + array.nbytes, _POPULATE)


def _advise(start: int, end: int, advice: int) -> None:
    """Tell the system about these addresses, if it listens. Other threads go on meanwhile."""
    try:
        madvise = ctypes.CDLL(None).madvise
    except (AttributeError, OSError):
        return
    madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice)


def whole_pages(arrays: Iterable[Array]) -> list[tuple[int, int]]:
    """Runs of huge pages, (start, end), that lie among the arrays; gaps of less than a page count as array."""
    runs: list[tuple[int, int]] = []
    for start, end in sorted((a.ctypes.data, a.ctypes.data + a.nbytes) for a in arrays):
        if runs and start <= runs[-1][1] + _PAGE:
            start, last = runs.pop()
            end = max(end, last)
        runs.append((start, end))
    inner = ((-(-start // _PAGE) * _PAGE, end // _PAGE * _PAGE) for start, end in runs)
    return [(start, end) for start, end in inner if start < end]


def untouched_zeros(shape: tuple[int, ...], dtype: Any) -> Array:
    """Zeros that take no memory until they are written to, page by page: of gradients that compiled steps never store,
    and of optimizer states before the first step. 64-byte aligned.

    Memory from malloc that has been used before would be written at once.
    """
    dtype = np.dtype(dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < _MAPPED:
        small = aligned_empty(shape, dtype)
        small.reshape(-1)[:] = 0
        return small
    pages = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, dtype).reshape(shape)


_moves = 0  # how often any storage has changed its place


def moves() -> int:
    """Counts the moves of all storages: who holds raw pointers asks whether it has grown."""
    return _moves


_writes = 0  # into storages that have copies
_copies = 0  # that have been made
_lent = 0  # storages that somebody may write into unseen


def writes() -> int:
    """Counts the writes into storages that have copies: who made a copy asks whether it has grown."""
    return _writes


def copies() -> int:
    """Counts the copies that have been made: who writes by address asks whether there are others."""
    return _copies


def lent() -> int:
    """Counts the storages whose memory other libraries have, to write into as they like."""
    return _lent


def keep(storage: Storage, dtype: str, copy: Any) -> None:
    """A copy of a storage in another dtype, as new as after a write."""
    global _copies, _writes
    storage.copies = {**storage.copies, dtype: copy}
    _copies += 1
    _writes += 1


class Storage:
    """One array's memory: `array` is what it holds now.

    NDArrays refer to a Storage and never keep its `array`, so that `rehome` can move a parameter into an arena and
    every handle taken before follows. `copies` of it, by dtype, are others' to keep up to date: see `writes()`.
    """

    __slots__ = ("array", "copies", "lent")

    absent: ClassVar[bool] = False  # are the elements elsewhere? See `Absent`.

    def __init__(self, array: Array):
        self.array = array
        self.copies: Mapping[str, Any] = NONE  # arrays
        self.lent = False

    @property
    def form(self) -> Array:
        """An array of this shape and dtype: also where the elements are elsewhere."""
        return self.array

    def write(self, value: Any, key: Any = ...) -> None:
        """array[key] = value"""
        self.array[key] = value
        self.written()

    def written(self) -> None:
        """Say that the memory has been written into by its address."""
        if self.copies:
            global _writes
            _writes += 1

    @staticmethod
    def without_elements() -> type[Storage]:
        """The class of such a storage whose elements are on other ranks; it has the same slots."""
        return Absent

    @staticmethod
    def with_elements() -> type[Storage]:
        """The class of such a storage with its elements."""
        return Storage

    def lend(self) -> Array:
        """The array, for somebody who may write into its memory at any time."""
        if not self.lent:
            global _lent
            self.lent = True
            _lent += 1
        return self.array

    def rehome(self, array: Array, *, copy: bool = True) -> None:
        """Live in `array` from now on: same shape and dtype, content moved there (unless `copy=False`)."""
        if array.shape != self.array.shape or array.dtype != self.array.dtype:
            raise ValueError(
                f"rehome: {array.dtype}{list(array.shape)} cannot hold {self.array.dtype}{list(self.array.shape)}"
            )
        global _moves
        if copy:
            array[...] = self.array
        self.array = array
        _moves += 1


class AbsentElements:
    """What a storage is whose elements are on other ranks: who asks for `array` gets an error; `form` has the right
    shape and dtype, and no memory."""

    __slots__ = ()

    absent = True

    @property
    def array(self) -> Array:
        """Raise MXNetError: there is nothing to read."""
        raise absent_error()

    @property
    def form(self) -> Array:
        """An array of this shape and dtype."""
        found: Array = vars(Storage)["array"].__get__(self)
        return found

    def write(self, value: Any, key: Any = ...) -> None:
        """Raise MXNetError: there is nothing to write to."""
        raise absent_error()


class Absent(AbsentElements, Storage):  # type: ignore[override]  # `array` is an attribute of all others
    """A storage whose elements are on other ranks."""

    __slots__ = ()


def absent_error() -> MXNetError:
    """The error for reading or writing an array whose elements are divided among ranks."""
    message = "the elements of this parameter are divided among ranks"
    return MXNetError(with_user_location(message, help='"with trainer.whole_parameters():" gathers them, on all ranks'))


def release(storage: Storage) -> None:
    """Give back the memory of a storage, whose elements have been stored elsewhere."""
    empty = np.zeros((), storage.array.dtype)
    storage.rehome(np.broadcast_to(empty, storage.array.shape), copy=False)
    storage.__class__ = storage.without_elements()


def restore(storage: Storage, array: Array) -> None:
    """Let a released storage live in this array."""
    storage.__class__ = storage.with_elements()
    storage.rehome(array, copy=False)


class Written:
    """Storages that a call writes into by address. Told of once it has, it passes that on to those that have copies."""

    def __init__(self, storages: Iterable[Storage]):
        self._all = list(storages)
        self._made = -1
        self._copied: list[Storage] = []

    def tell(self) -> None:
        """The call has written: of hundreds of storages mostly none is to know."""
        if self._made != _copies:
            self._made = _copies
            self._copied = [s for s in self._all if isinstance(s, View) or s.copies]
        for storage in self._copied:
            storage.written()


NONE: Mapping[str, Any] = MappingProxyType({})


class View(Storage):
    """A part or another shape of a storage: always of what that holds now, wherever it lives."""

    __slots__ = ("base", "of")

    def __init__(self, base: Storage, of: Callable[[Array], Array]):
        self.base, self.of = base, of

    @property
    def array(self) -> Array:  # type: ignore[override]  # an attribute of all others, which every call reads
        """The view, made anew."""
        return self.of(self.base.array)

    def written(self) -> None:
        self.base.written()

    def lend(self) -> Array:
        self.base.lend()
        return self.array

    def rehome(self, array: Array, *, copy: bool = True) -> None:
        """A view lives where the whole lives.

        Raises:
            ValueError: always.
        """
        raise ValueError("rehome: a view cannot move; move the array that it is a view of")
