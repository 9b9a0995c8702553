"""Memory of a GPU, and the executor of artefacts that run there. Tensors are spans of a few large allocations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np

from gluongraph.dtypes import DTYPES, numpy_dtype
from gluongraph.errors import CompileError
from gluongraph.host import nvidia
from gluongraph.ir.entry_point import Arg, Program
from gluongraph.ir.plan import INDEX_FLAG
from gluongraph.runtime import loader
from gluongraph.runtime.executor import Refuse, out_of_range
from gluongraph.runtime.table import CPU, CUDA, Table
from gluongraph.storage import aligned, aligned_empty

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Device:
    """A device by its DLPack type and number. (A CPU is one too: that is how this module is tested without a GPU.)"""

    kind: int = CUDA
    number: int = 0

    def exists(self) -> bool:
        """Is there such a device, with a working driver?"""
        if self.kind == CPU:
            return True
        return self.number < nvidia.count()


class Memory:
    """An allocation on a device, divided into spans: typed flat tensors at byte offsets."""

    def __init__(self, nbytes: int, device: Device):
        self.nbytes, self.device = nbytes, device
        self._tensor = loader.allocate(aligned(nbytes), device.kind, device.number)

    def span(self, dtype: str, size: int, offset: int = 0) -> Span:
        """Return `size` elements from byte `offset` on."""
        if offset + size * DTYPES[dtype].nbytes > self.nbytes:
            raise CompileError(f"{size} elements of {dtype} at {offset} exceed {self.nbytes} bytes of device memory")
        return Span(self, dtype, size, offset)

    @property
    def address(self) -> int:
        """Its address on the device."""
        return loader.address(self._tensor)


class Span:
    """Elements on a device, at `address`; `upload` and `download` copy from and to numpy arrays."""

    def __init__(self, memory: Memory, dtype: str, size: int, offset: int):
        self._memory = memory  # keeps the allocation alive
        device = memory.device
        self.dtype, self.size, self.address = dtype, size, memory.address + offset
        self._tensor = loader.from_address(self.address, size, dtype, device.kind, device.number)

    def upload(self, array: Array) -> None:
        """Copy the array to the device. When the call returns, the array may be changed."""
        loader.copy_in(self._tensor, _checked(array, self))

    def download(self, array: Array) -> None:
        """Copy the elements to the array, after all kernels that were launched before."""
        loader.copy_out(self._tensor, _checked(array, self))


def _checked(array: Array, span: Span) -> Array:
    if array.size != span.size or array.dtype != numpy_dtype(span.dtype) or not array.flags.c_contiguous:
        raise CompileError(f"{span.size} elements of {span.dtype} on the device, not {array.dtype}{list(array.shape)}")
    return array


@cache
def layout(args: tuple[Arg, ...], spaces: tuple[str, ...]) -> tuple[dict[str, int], int]:
    """Return an offset for every argument of these spaces, one after another; and the total bytes."""
    places: dict[str, int] = {}
    end = 0
    for arg in args:
        if arg.space in spaces:
            places[arg.name] = end
            end += aligned(arg.nbytes)
    return places, end


class DeviceExecutor:
    """One entry point of an artefact on a GPU: `Executor`'s interface, with arrays of the host going in and out.

    The state lives on the device; `send` copies the host's arrays there, `fetch` copies back what the step has changed.
    With `mirror` each call does both, so that arrays of the host always tell the truth, as they do on a CPU; without,
    whoever reads or writes the state says so. A call copies inputs and scalars over and the outputs back.

    A GPU runs to the end where the program has counted indices out of range: the host's state is as it was then, and is
    sent again by the next call; without `mirror` the device's has changed.
    """

    def __init__(
        self,
        function: Callable[[int], None],
        program: Program,
        state: Mapping[str, Array],
        device: Device | None = None,
        mirror: bool = True,
        refuse: Refuse = out_of_range,
    ):
        self._refuse = refuse
        self._outputs = dict(program.positions("output"))
        self._flag = self._outputs.pop(INDEX_FLAG, None)
        self.program, self.device, self.mirror = program, device or Device(), mirror
        self._function = function
        self._scalars = aligned_empty((program.scalar_bytes,), np.uint8)
        self._scalars[:] = 0
        places, nbytes = layout(program.args, ("input", "output", "state", "const"))
        arenas = {
            "scratch": Memory(program.scratch_bytes, self.device),
            "scalar": Memory(program.scalar_bytes, self.device),
        }
        own = Memory(nbytes, self.device)
        self._spans = {
            arg.name: arenas[arg.space].span(arg.dtype, arg.size, arg.offset)
            if arg.space in arenas
            else own.span(arg.dtype, arg.size, places[arg.name])
            for arg in program.args
        }
        self._table = Table(program.args, self.device.kind, self.device.number)
        for position, arg in enumerate(program.args):
            self._table.point(position, self._spans[arg.name].address)
        self._all_scalars = arenas["scalar"].span("u8", program.scalar_bytes)
        for name, data in program.constants.items():
            if name in self._spans:
                self._spans[name].upload(np.frombuffer(data, numpy_dtype(self._spans[name].dtype)))
        self._state: dict[str, Array] = {}
        self.bind(state)

    def bind(self, state: Mapping[str, Array]) -> None:
        """Use these arrays as the state from now on: they are copied to the device."""
        self._state = {name: state[name] for name in self.program.positions("state")}
        self.send()

    def send(self) -> None:
        """Copy the host's state to the device."""
        for name, array in self._state.items():
            self._spans[name].upload(array)

    def fetch(self) -> None:
        """Copy the state that the step has changed back to the host's arrays."""
        for name in self.program.updates:
            if name in self._state:
                self._spans[name].download(self._state[name])

    def scalar(self, name: str) -> memoryview[Any]:
        """Return the memory of a host scalar, to be written before a call."""
        arg = self.program.args[self.program.positions("scalar")[name]]
        return self._scalars[arg.offset : arg.offset + arg.nbytes].view(numpy_dtype(arg.dtype)).data

    communicates = False

    collectives: ClassVar[list[Callable[[], None]]] = []  # programs of GPUs have none yet

    @property
    def checks_indices(self) -> bool:
        """Does a call raise if an index is out of range?"""
        return self._flag is not None

    @property
    def input_names(self) -> tuple[str, ...]:
        """The inputs that a call takes, in order."""
        return tuple(self.program.positions("input"))

    @property
    def output_names(self) -> tuple[str, ...]:
        """The outputs that a call returns, in order."""
        return tuple(self._outputs)

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """Run once. `inputs` follow `input_names`; the results are host arrays."""
        for name, array in zip(self.input_names, inputs, strict=True):
            self._spans[name].upload(array)
        if self.mirror:
            self.send()
        if self.program.scalar_bytes:
            self._all_scalars.upload(self._scalars)
        with (
            loader.on_stream_of_copies(self.device.kind, self.device.number),
            loader.device_errors("the launch of a kernel"),
        ):
            self._function(self._table.address)
        if self._flag is not None and self._fetched(self._flag):
            scalars = {name: np.asarray(self.scalar(name)) for name in self.program.positions("scalar")}
            self._refuse({**self._state, **scalars, **dict(zip(self.input_names, inputs, strict=True))})
        results = [self._fetched(position) for position in self._outputs.values()]
        if self.mirror:
            self.fetch()
        return results

    def _fetched(self, position: int) -> Array:
        """Return an argument's value as a host array."""
        arg = self.program.args[position]
        made = np.empty(arg.shape, numpy_dtype(arg.dtype))
        self._spans[arg.name].download(made)
        return made

    @contextmanager
    def lent(self, inputs: Sequence[Array]) -> Iterator[list[Any]]:
        """Yield all arguments in order, for callers that run kernels themselves; the state is restored afterwards."""
        for name, array in zip(self.input_names, inputs, strict=True):
            self._spans[name].upload(array)
        state = {name: array.copy() for name, array in self._state.items()}
        for name, array in state.items():
            self._spans[name].download(array)
        try:
            with loader.on_stream_of_copies(self.device.kind, self.device.number):
                yield [self._table.tensor(i) for i in range(len(self.program.args))]
        finally:
            for name, array in state.items():
                self._spans[name].upload(array)

    def wait(self) -> None:
        """Wait until all kernels that were launched are done."""
        loader.synchronize(self.device.kind, self.device.number)
