"""How long the parts of a loop take."""

from __future__ import annotations

import cProfile
import io
import pstats
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gluongraph.host.interrupts import import_whole
from gluongraph.lightning.errors import misconfigured

CALLS = ("run_training_batch", "validation_step", "test_step", "predict_step")  # the parts that are calls of a step


class PassThroughProfiler:
    """Measures nothing."""

    @contextmanager
    def profile(self, name: str) -> Iterator[None]:
        """Within: nothing is measured."""
        yield

    def describe(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """End what is measured, also where a run has failed."""


class _Report(PassThroughProfiler, ABC):
    """The base of those that tell a text in the end: they print it, or with `filename` write it to a file in `dirpath`,
    by default the working folder."""

    def __init__(self, dirpath: Any = None, filename: str | None = None) -> None:
        self.dirpath, self.filename = None if dirpath is None else Path(dirpath), filename

    @abstractmethod
    def summary(self) -> str:
        """The text."""

    def describe(self) -> None:
        """Print the text, or write it into the file."""
        if self.filename is None:
            print(self.summary())
            return
        folder = self.dirpath or Path()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.filename}.txt").write_text(self.summary() + "\n", encoding="utf-8")


class SimpleProfiler(_Report):
    """The number and the time of each part. `extended` is taken: the table has all that there is.

    >>> profiler = SimpleProfiler()
    >>> with profiler.profile("setup"):
    ...     pass
    >>> list(profiler.seconds)
    ['setup']
    """

    def __init__(self, dirpath: Any = None, filename: str | None = None, extended: bool = True) -> None:
        super().__init__(dirpath, filename)
        self.seconds: dict[str, list[float]] = {}

    @contextmanager
    def profile(self, name: str) -> Iterator[None]:
        """Within: the time counts for this part."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds.setdefault(name, []).append(time.perf_counter() - begin)

    def summary(self) -> str:
        """The table: name, number, mean and total seconds, by total."""
        rows = sorted(self.seconds.items(), key=lambda item: -sum(item[1]))
        width = max([len(name) for name, _ in rows] + [6])
        lines = [f"{'action':<{width}}  {'calls':>7}  {'mean s':>10}  {'total s':>10}"]
        for name, each in rows:
            lines.append(f"{name:<{width}}  {len(each):>7}  {sum(each) / len(each):>10.6f}  {sum(each):>10.4f}")
        return "\n".join(lines)


class AdvancedProfiler(SimpleProfiler):
    """The functions that take the time, by Python's cProfile.

    Of these the first `line_count_restriction` are told, or that share of all, where it is a float. With `dump_stats`
    and `filename` a file .prof for pstats is there as well.
    """

    def __init__(
        self,
        dirpath: Any = None,
        filename: str | None = None,
        line_count_restriction: float = 30,
        dump_stats: bool = False,
    ) -> None:
        super().__init__(dirpath, filename)
        self.line_count_restriction, self.dump_stats = line_count_restriction, dump_stats
        self._profile = cProfile.Profile()
        self._depth = 0

    @contextmanager
    def profile(self, name: str) -> Iterator[None]:
        """Within: function calls are measured."""
        self._depth += 1
        if self._depth == 1:
            self._profile.enable()
        try:
            with super().profile(name):
                yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._profile.disable()

    def summary(self) -> str:
        """The table of the parts, and the functions with the most time."""
        text = io.StringIO()
        pstats.Stats(self._profile, stream=text).sort_stats("cumulative").print_stats(self.line_count_restriction)
        return f"{super().summary()}\n{text.getvalue()}"

    def describe(self) -> None:
        """Print the tables, or write them into the file."""
        super().describe()
        if self.dump_stats and self.filename is not None:
            self._profile.dump_stats((self.dirpath or Path()) / f"{self.filename}.prof")


class PyTorchProfiler(_Report):
    """What PyTorch's profiler sees: the parts of the loop, and within them the operators of eager steps.

    A compiled step is one range, "run_training_batch" or "validation_step", and so are several steps that are one call.

    `schedule` says which calls are recorded, as `torch.profiler.schedule(...)`; by default three after two that are
    left out, again and again, of which the last are told. None records all. With `dirpath` and `filename` the table
    goes to a file; with `dirpath` and `export_to_chrome` a trace for Chrome is there as well. The other arguments are
    those of Lightning's and of `torch.profiler.profile`; names of layers are not recorded.

    Raises:
        MisconfigurationException: `emit_nvtx`, or PyTorch is not installed.
    """

    def __init__(
        self,
        dirpath: Any = None,
        filename: str | None = None,
        group_by_input_shapes: bool = False,
        emit_nvtx: bool = False,
        export_to_chrome: bool = True,
        row_limit: int = 20,
        sort_by_key: str | None = None,
        record_module_names: bool = True,
        table_kwargs: Mapping[str, Any] | None = None,
        **profiler_kwargs: Any,
    ) -> None:
        if emit_nvtx:
            raise misconfigured("PyTorchProfiler(emit_nvtx=True): there is no such thing here", help="leave it out")
        if find_spec("torch") is None:
            raise misconfigured("PyTorchProfiler: PyTorch is not installed", help='profiler="simple"')
        super().__init__(dirpath, filename)
        self.row_limit, self.sort_by_key = row_limit, sort_by_key or "cpu_time_total"
        self._by_shapes = group_by_input_shapes and bool(profiler_kwargs.get("record_shapes"))
        self._export, self._table = export_to_chrome, dict(table_kwargs or {})
        self._arguments = profiler_kwargs
        self._on_trace_ready = profiler_kwargs.pop("on_trace_ready", None)
        self._running: Any = None
        self._open: list[tuple[str, Any]] = []  # the ranges that it is within, by their names
        self._seen: Any = None  # the events of what was recorded last

    @contextmanager
    def profile(self, name: str) -> Iterator[None]:
        """Within: the time counts for this part."""
        import_whole("torch")
        from torch import profiler

        if self._running is None:
            self._running = self._begin(profiler)
        self._open.append((name, _begun(profiler, name)))
        try:
            yield
        finally:
            self._open.pop()[1].__exit__(None, None, None)
        if name in CALLS:
            self._step(profiler)

    def _step(self, profiler: Any) -> None:
        """Count a call. Where that begins or ends a recording, ranges around it end before and begin again after it:
        PyTorch writes the end of a range to the memory of the recording that it began in, which has been freed."""
        running = self._running
        before, after = running.current_action, running.schedule(running.step_num + 1)
        if after == before and before != profiler.ProfilerAction.RECORD_AND_SAVE:
            running.step()
            return
        for _, range in reversed(self._open):
            range.__exit__(None, None, None)
        running.step()
        self._open = [(name, _begun(profiler, name)) for name, _ in self._open]

    def _begin(self, profiler: Any) -> Any:
        warnings.filterwarnings("ignore", message=".*Profiler clears events")  # those of the last cycle are told
        arguments = {"schedule": profiler.schedule(wait=1, warmup=1, active=3), **self._arguments}
        if not any(arguments.get(name) for name in ("activities", "use_cuda")):
            arguments["activities"] = [profiler.ProfilerActivity.CPU]
        running = profiler.profile(on_trace_ready=self._recorded, **arguments)
        running.start()
        return running

    def _recorded(self, running: Any) -> None:
        """A part of the schedule has been recorded."""
        self._seen = running.key_averages(group_by_input_shape=self._by_shapes)
        if self.dirpath is not None and self._export:
            self.dirpath.mkdir(parents=True, exist_ok=True)
            running.export_chrome_trace(str(self.dirpath / f"{self.filename or 'profile'}.json"))
        if self._on_trace_ready is not None:
            self._on_trace_ready(running)

    def close(self) -> None:
        """End the profile, if there is one that runs."""
        running, self._running = self._running, None
        if running is not None:
            running.stop()

    def describe(self) -> None:
        """Print the table, or write it into the file."""
        self.close()
        super().describe()

    def summary(self) -> str:
        """The table of operators and ranges, those that take longest first."""
        if not self._seen:
            return "PyTorchProfiler has recorded nothing: its schedule begins later; schedule=None records all calls"
        how = {"sort_by": self.sort_by_key, "row_limit": self.row_limit, **self._table}
        return str(self._seen.table(**how))


def _begun(profiler: Any, name: str) -> Any:
    """A range of PyTorch's profiler that has begun."""
    return profiler.record_function(name).__enter__()


def profiler_of(given: Any) -> Any:
    """A profiler by its name, or as it is.

    Raises:
        MisconfigurationException: there is none of that name.
    """
    if given is None:
        return PassThroughProfiler()
    if given == "simple":
        return SimpleProfiler()
    if given == "advanced":
        return AdvancedProfiler()
    if given == "pytorch":
        return PyTorchProfiler()
    if hasattr(given, "profile"):
        return given
    kernels = "kernels are profiled by `gluongraph bench --profile`"
    help = f'"simple", "advanced", "pytorch", or an object with profile(name); {kernels}'
    raise misconfigured(f"profiler={given!r}: there is none of that name", help=help)
