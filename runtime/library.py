"""Compiled code through the C API of tvm_ffi: importing its Python package would add 30 ms to a warm start.

(tvm_ffi 0.1.14, tvm/ffi/c_api.h.)
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from ctypes import byref, c_char_p, c_int32, c_int64, c_size_t, c_uint32, c_void_p, sizeof

_INT, _BOOL, _POINTER, _TEXT, _FUNCTION, _MODULE = 1, 2, 4, 8, 68, 73  # tags of a TVMFFIAny
_HEADER = 24  # bytes of the header of a TVMFFIObject


class _Any(ctypes.Structure):
    _fields_ = (("tag", c_int32), ("zero", c_uint32), ("value", c_int64))


class _Bytes(ctypes.Structure):
    _fields_ = (("data", c_void_p), ("size", c_size_t))

    @property
    def text(self) -> str:
        return ctypes.string_at(self.data, self.size).decode(errors="replace")


class Library:
    """A shared library that codegen wrote, loaded by tvm_ffi (`ffi`): it stays loaded as long as this object or one of
    its functions exists.

    Raises:
        RuntimeError: it cannot be loaded.
    """

    def __init__(self, ffi: ctypes.CDLL, path: str):
        self._ffi = ffi
        self._module = _Held(ffi, _called(ffi, "ffi.Module.load_from_file.so", _text(path), _text("so")))

    def get_function(self, name: str) -> Function:
        """Return a function of the library. Raises AttributeError: it has none of that name."""
        module = _Any(_MODULE, 0, self._module.handle)
        found = _called(self._ffi, "ffi.ModuleGetFunction", (module, None), _text(name), (_Any(_BOOL, 0, 0), None))
        if found.tag != _FUNCTION:
            raise AttributeError(f"the library has no function {name!r}")
        return Function(_Held(self._ffi, found))


class Function:
    """A function of a library: called with integers, and with addresses of DLTensors as c_void_p."""

    def __init__(self, function: _Held):
        self._function = function

    def __call__(self, *arguments: int | c_void_p) -> None:
        self.on(*arguments)()

    def on(self, *arguments: int | c_void_p) -> Callable[[], None]:
        """Return a function that repeats the call with these arguments, which are converted only once.

        Raises:
            RuntimeError: the function has failed.
        """
        ffi, handle, count = self._function.ffi, c_void_p(self._function.handle), len(arguments)
        made, result = (_Any * count)(*map(_number, arguments)), _Any()
        run, at = ffi.TVMFFIFunctionCall, byref(result)

        def call(_keep: _Held = self._function) -> None:
            if run(handle, made, count, at):
                raise _raised(ffi)

        return call


def start_workers(ffi: ctypes.CDLL) -> None:
    """Let TVM start the worker threads of the calling thread, if there are none yet."""
    _called(ffi, "runtime.NumThreads")


class _Held:
    """Owns a reference to an object of tvm_ffi."""

    def __init__(self, ffi: ctypes.CDLL, found: _Any):
        self.ffi, self.handle = ffi, int(found.value)
        weakref.finalize(self, ffi.TVMFFIObjectDecRef, c_void_p(self.handle)).atexit = False


def _number(number: int | c_void_p) -> _Any:
    return _Any(_INT, 0, number) if isinstance(number, int) else _Any(_POINTER, 0, number.value)


def _text(text: str) -> tuple[_Any, object]:
    """Return a string as an argument, and the memory to which it points."""
    memory = c_char_p(text.encode())
    return _Any(_TEXT, 0, ctypes.cast(memory, c_void_p).value or 0), memory


def _called(ffi: ctypes.CDLL, name: str, *arguments: tuple[_Any, object]) -> _Any:
    """Call a global function of tvm_ffi and return its result. Raises RuntimeError: it has failed."""
    function, result = c_void_p(), _Any()
    kept = c_char_p(name.encode())
    named = _Bytes(ctypes.cast(kept, c_void_p).value, len(name))
    if ffi.TVMFFIFunctionGetGlobal(byref(named), byref(function)) or not function:
        raise RuntimeError(f"TVM's runtime has no {name}")
    given = (_Any * len(arguments))(*(each for each, _ in arguments))
    failed = ffi.TVMFFIFunctionCall(function, given, len(arguments), byref(result))
    ffi.TVMFFIObjectDecRef(function)
    if failed:
        raise _raised(ffi)
    return result


def _raised(ffi: ctypes.CDLL) -> RuntimeError:
    """Return the error that a call has raised in tvm_ffi."""
    error = c_void_p()
    ffi.TVMFFIErrorMoveFromRaised(byref(error))
    if not error.value:
        return RuntimeError("an error without a message")
    _, message = (_Bytes.from_address(error.value + _HEADER + i * sizeof(_Bytes)) for i in range(2))  # kind, message
    text = message.text
    ffi.TVMFFIObjectDecRef(error)
    return RuntimeError(text)
