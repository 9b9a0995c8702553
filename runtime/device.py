"""Memory of a GPU, and the executor of artefacts that run there. Tensors are spans of a few large allocations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gluongraph.dtypes import DTYPES, numpy_dtype
from gluongraph.errors import CompileError
from gluongraph.host import nvidia
from gluongraph.ir.entry_point import Arg, Program
from gluongraph.ir.plan import INDEX_FLAG
from gluongraph.runtime import loader
from gluongraph.runtime.collectives import Gaps, HostViews, Scalars, Segments, Views, flat_bytes
from gluongraph.runtime.communicator.base import Communicator
from gluongraph.runtime.executor import Refuse, Segment, out_of_range
from gluongraph.runtime.table import CPU, CUDA, Table, address_of
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


class TensorViews:
    """Memory of a device as flat DLPack tensors, which communicators of GPUs take."""

    def __init__(self, device: Device):
        self._device = device
        self._zeros: list[Memory] = []

    def flat(self, address: int, nbytes: int, dtype: str) -> Any:
        """Return memory as a flat tensor, without a copy; the caller keeps it alive."""
        size = nbytes // DTYPES[dtype].nbytes
        return loader.from_address(address, size, dtype, self._device.kind, self._device.number)

    def clearing(self, address: int, gaps: Gaps) -> Callable[[], None]:
        """Return a function that starts to set these parts of the memory at an address to zero: copies on the device,
        between the kernels launched before and after it."""
        most = max(nbytes for _, nbytes in gaps)
        zeros = Memory(most, self._device)
        zeros.span("u8", most).upload(np.zeros(most, np.uint8))
        self._zeros.append(zeros)
        copies = [
            (self.flat(zeros.address, nbytes, "u8"), self.flat(address + at, nbytes, "u8")) for at, nbytes in gaps
        ]

        def clear() -> None:
            for source, target in copies:
                loader.copy(source, target)

        return clear


Flats = Sequence[tuple[Sequence[str], int]]  # arguments that lie one after another, in so many bytes


def layout(
    args: Sequence[Arg], spaces: Sequence[str], flats: Flats = (), parts: Mapping[str, tuple[str, int]] | None = None
) -> tuple[dict[str, int], int]:
    """Return an offset for every argument of these spaces, one after another; and the total bytes.

    `parts`: arguments that share memory with another one, so many bytes behind its start.
    """
    wanted = {arg.name: arg.nbytes for arg in args if arg.space in spaces}
    parts = parts or {}
    places: dict[str, int] = {}
    end = 0
    inside = {name for names, _ in flats for name in names}
    alone = [([name], 0) for name in wanted if name not in inside and name not in parts]
    for names, nbytes in (*flats, *alone):
        if names[0] not in wanted or names[0] in places:
            continue
        start = end
        for name in names:
            places[name] = end
            end += aligned(wanted[name])
        end = max(end, start + aligned(nbytes))
    return {**places, **{name: places[first] + at for name, (first, at) in parts.items()}}, end


def parts_of(state: Mapping[str, Array], flats: Flats) -> dict[str, tuple[str, int]]:
    """Return the state arrays that lie on the host in the flat memory of others: (the first of these, bytes from its
    start). Such an array, a rank's part of parameters, changes when the others are gathered."""
    found = {}
    for names, nbytes in flats:
        if names[0] not in state:
            continue
        start = address_of(state[names[0]])
        for name, array in state.items():
            at = address_of(array) - start
            if name not in names and at >= 0 and at + array.nbytes <= nbytes:
                found[name] = (names[0], at)
    return found


class _Ranks:
    """The communicators of a program on a device: `host` is of host arrays, `connect` returns that of its `views`."""

    def __init__(self, device: Device, given: Communicator | None):
        from gluongraph.runtime.communicator.environment import world, world_on_gpus  # not for a process of its own

        on_host = device.kind == CPU
        self.host = world() if given is None else given
        self.views: Views = HostViews() if on_host else TensorViews(device)
        self.connect = (lambda: given) if given is not None else world if on_host else world_on_gpus


def _own_gpu() -> Device:
    from gluongraph.runtime.communicator.environment import local_gpu

    return Device(CUDA, local_gpu())


class DeviceExecutor:
    """One entry point of an artefact on a GPU: `Executor`'s interface, with arrays of the host going in and out.

    The state lives on the device; `send` copies the host's arrays there, `fetch` copies back what the step has changed.
    With `mirror` each call does both, so that arrays of the host always tell the truth, as they do on a CPU; without,
    whoever reads or writes the state says so. A call copies inputs and scalars over and the outputs back.

    A GPU runs to the end where the program has counted indices out of range: the host's state is as it was then, and is
    sent again by the next call; without `mirror` the device's has changed. A program with collectives ends before the
    first of them, on all ranks.

    Collectives run on the device's memory, between its kernels. A call returns when they are complete; where one cannot
    be, as a rank is lost, it raises PeerLost, and the host's state is as it was.
    """

    def __init__(
        self,
        function: Segment | Sequence[Segment],
        program: Program,
        state: Mapping[str, Array],
        device: Device | None = None,
        mirror: bool = True,
        refuse: Refuse = out_of_range,
        text: str = "",
        communicator: Communicator | None = None,
    ):
        """`function` and `text` as of `Executor`. `device` is by default this rank's GPU, and `communicator` that of
        all ranks for arrays there."""
        self._refuse = refuse
        self._outputs = dict(program.positions("output"))
        self._flag = self._outputs.pop(INDEX_FLAG, None)
        self.program, self.device, self.mirror = program, device or _own_gpu(), mirror
        self._scalars = aligned_empty((program.scalar_bytes,), np.uint8)
        self._scalars[:] = 0
        ranks = _Ranks(self.device, communicator) if program.steps else None
        self._spans = self._placed(state, 1 if ranks is None else ranks.host.size)
        self._table = Table(program.args, self.device.kind, self.device.number)
        for position, arg in enumerate(program.args):
            self._table.point(position, self._spans[arg.name].address)
        for name, data in program.constants.items():
            if name in self._spans:
                self._spans[name].upload(np.frombuffer(data, numpy_dtype(self._spans[name].dtype)))
        functions = function if isinstance(function, Sequence) else [function]
        self._runs = [partial(self._launch, each) for each in functions]
        self._segments: Segments | None = None
        if ranks is not None:
            scalars = Scalars(program, self._scalars)
            self._segments = Segments(self._runs, program, ranks.host, text, scalars, ranks.views, ranks.connect)
            self._segments.bind(self._table.address_at)
        self._state: dict[str, Array] = {}
        self.bind(state)

    def _placed(self, state: Mapping[str, Array], ranks: int) -> dict[str, Span]:
        """Allocate memory; return the span of each argument."""
        args = self.program.args
        flats = [
            ([args[position].name for position in each.flat], flat_bytes(each, args, ranks))
            for each in self.program.collectives
        ]
        names = self.program.positions("state")
        parts = parts_of({name: array for name, array in state.items() if name in names}, flats)
        places, nbytes = layout(args, ("input", "output", "state", "const"), flats, parts)
        arenas = {
            "scratch": Memory(self.program.scratch_bytes, self.device),
            "scalar": Memory(self.program.scalar_bytes, self.device),
        }
        self._all_scalars = arenas["scalar"].span("u8", self.program.scalar_bytes)
        own = Memory(nbytes, self.device)
        return {
            arg.name: arenas[arg.space].span(arg.dtype, arg.size, arg.offset)
            if arg.space in arenas
            else own.span(arg.dtype, arg.size, places[arg.name])
            for arg in args
        }

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

    @property
    def collectives(self) -> list[Callable[[], None]]:
        """The collectives of the program, in the order of its launches, as functions that complete them."""
        return [] if self._segments is None else self._segments.collectives

    @property
    def communicates(self) -> bool:
        """Has the program collectives between ranks?"""
        return self._segments is not None

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
        with loader.on_stream_of_copies(self.device.kind, self.device.number):
            if self._segments is None:
                self._runs[0]()
                refused = self._is_refused()
            else:
                refused = not self._segments(self._is_refused)
        if refused:
            scalars = {name: np.asarray(self.scalar(name)) for name in self.program.positions("scalar")}
            self._refuse({**self._state, **scalars, **dict(zip(self.input_names, inputs, strict=True))})
        results = [self._fetched(position) for position in self._outputs.values()]
        if self.mirror:
            self.fetch()
        return results

    def _launch(self, function: Segment) -> None:
        """Start the kernels of a segment."""
        with loader.device_errors("the launch of a kernel"):
            function(self._table.address)

    def _is_refused(self) -> bool:
        """Has the program counted indices out of range? All that has been started is complete then."""
        if self._segments is not None and self._segments.connected is not None:
            self._segments.connected.synchronize()  # first: a copy would wait without end for a rank that is lost
        return self._flag is not None and bool(self._fetched(self._flag))

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
