"""Where arrays live: `mx.cpu()`, `mx.gpu(0)`, and the current one."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cache, lru_cache
from numbers import Integral
from typing import ClassVar

from gluongraph.errors import MXNetError, with_user_location
from gluongraph.host import nvidia

DEVICES = {"cpu": 1, "gpu": 2}  # the DLPack numbers, which are MXNet's too
HOST_MEMORY = ("cpu_pinned", "cpu_shared")  # MXNet's names for kinds of memory of the CPU, of which there is one here


class _WithDefault(type):
    """`Context.default_ctx`, MXNet's old name of the current context."""

    devtype2str: ClassVar[Mapping[int, str]] = {number: name for name, number in DEVICES.items()}
    devstr2type: ClassVar[Mapping[str, int]] = DEVICES

    @property
    def default_ctx(cls) -> Context:
        """The current context; what is assigned to it is the current one of this thread outside of any `with`."""
        return current_context()

    @default_ctx.setter
    def default_ctx(cls, ctx: Context) -> None:
        set_default(ctx)


class Context(metaclass=_WithDefault):
    """A device: its type and number. `with mx.gpu(1):` makes it the current one.

    >>> from gluongraph.context import cpu, current_context
    >>> with cpu(1):
    ...     current_context()
    cpu(1)
    """

    __slots__ = ("device_id", "device_type")

    def __init__(self, device_type: str | Context, device_id: int = 0):
        name = device_type.device_type if isinstance(device_type, Context) else device_type
        name = "cpu" if name in HOST_MEMORY else name
        if name not in DEVICES:
            raise MXNetError(f"unknown device {name!r}; there are {', '.join(DEVICES)}")
        if not isinstance(device_id, Integral):
            raise TypeError(with_user_location(f"a device has a whole number, as {name}(0), not {device_id!r}"))
        self.device_type: str = name
        self.device_id: int = device_type.device_id if isinstance(device_type, Context) else device_id

    @property
    def device_typeid(self) -> int:
        """The number of the device type in DLPack and MXNet."""
        return DEVICES[self.device_type]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Context) and self.device_type == other.device_type and self.device_id == other.device_id
        )

    def __hash__(self) -> int:
        return hash((self.device_type, self.device_id))

    def __repr__(self) -> str:
        return f"{self.device_type}({self.device_id})"

    def __enter__(self) -> Context:
        _stack().append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _stack().pop()


# Whose random numbers are the same on all ranks, for updates of parameters that all of them have.
SHARED = Context("cpu", 1 << 16)

_LOCAL = threading.local()


def _stack() -> list[Context]:
    stack: list[Context] | None = getattr(_LOCAL, "stack", None)
    if stack is None:
        stack = _LOCAL.stack = []
    return stack


@cache
def cpu(device_id: int = 0) -> Context:
    """The CPU. All its numbers share one memory; they exist so that code for several devices runs on one."""
    return Context("cpu", device_id)


def cpu_pinned(device_id: int = 0) -> Context:
    """The CPU: its memory is of one kind here."""
    return cpu(device_id)


@cache
def gpu(device_id: int = 0) -> Context:
    """A CUDA device."""
    return Context("gpu", device_id)


_DEFAULT = cpu()  # one object: arrays on the same device are told by `is`, and only otherwise compared


def current_context() -> Context:
    """The innermost `with ctx:`; cpu(0) outside of any."""
    stack = _stack()
    return stack[-1] if stack else _DEFAULT


def set_default(ctx: Context) -> None:
    """Make `ctx` the current context of this thread outside of any `with ctx:`."""
    if not isinstance(ctx, Context):
        raise TypeError(with_user_location(f"ctx is a context, as mx.cpu(), not {ctx!r}"))
    stack = _stack()
    if stack and stack[0] is getattr(_LOCAL, "default", None):
        stack[0] = ctx
    else:
        stack.insert(0, ctx)
    _LOCAL.default = ctx


@lru_cache(maxsize=1)
def num_gpus() -> int:
    """How many CUDA devices the driver reports; 0 without a driver."""
    return nvidia.count()


def check_context(ctx: Context) -> None:
    """Raise unless it is a context, and eager arrays can live there."""
    if not isinstance(ctx, Context):
        raise TypeError(with_user_location(f"ctx is a context, as mx.cpu(), not {ctx!r}"))
    if ctx.device_type != "cpu":
        raise MXNetError(
            with_user_location(
                f"arrays on {ctx} do not exist: eager ops run on the CPU",
                help="use mx.cpu(); a compiled step chooses its device by target",
            )
        )
