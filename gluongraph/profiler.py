"""`mx.profiler`: the times of eager ops, of hybridized blocks, and of what a program marks itself.

    mx.profiler.set_config(filename="profile.json", aggregate_stats=True)
    mx.profiler.set_state("run")
    ...
    mx.profiler.set_state("stop")
    print(mx.profiler.dumps())  # a table: count, total, smallest, largest and mean time of each op
    mx.profiler.dump()  # the file, for chrome://tracing or Perfetto

Ops have the names that they have in MXNet's graphs. Compiled steps are one call; `step.profile(x, y)` tells the time
of each of their kernels. While nothing runs, nothing is measured and ops take no longer.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from gluongraph.eager import function
from gluongraph.errors import MXNetError, warn, with_user_location
from gluongraph.host.file_names import check_name
from gluongraph.host.params_file import whole
from gluongraph.ndarray import forget_functions

SORTS = {"total": "Total", "avg": "Avg", "min": "Min", "max": "Max", "count": "Count"}


@dataclass
class Sums:
    """Statistics of one name: of times in milliseconds, or of memory in kilobytes."""

    count: int = 0
    total: float = 0.0
    least: float = float("inf")
    most: float = 0.0

    def add(self, value: float) -> None:
        """Count one more."""
        self.count += 1
        self.total += value
        self.least, self.most = min(self.least, value), max(self.most, value)

    def row(self) -> dict[str, float]:
        """The statistics by their names in `dumps`."""
        mean = self.total / self.count
        return {"Count": self.count, "Total": self.total, "Min": self.least, "Max": self.most, "Avg": mean}


@dataclass
class _Profile:
    """What is being measured, and what has been."""

    config: dict[str, Any] = field(default_factory=lambda: {"filename": "profile.json"})
    running: bool = False
    paused: bool = False
    events: list[dict[str, Any]] = field(default_factory=list)
    times: dict[str, dict[str, Sums]] = field(default_factory=dict)
    memory: dict[str, dict[str, Sums]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def live(self) -> bool:
        return self.running and not self.paused

    def event(self, **what: Any) -> None:
        """Note an event of the trace, as Chrome's trace format has it."""
        if self.live:
            place = {"pid": os.getpid(), "tid": threading.get_ident(), "ts": time.perf_counter_ns() / 1e3}
            with self.lock:
                self.events.append(place | what)

    def span(self, category: str, name: str, begin: int) -> None:
        """Note what began at `begin`, in nanoseconds, and ends now."""
        if self.live:
            taken = time.perf_counter_ns() - begin
            self.event(ph="X", cat=category, name=name, ts=begin / 1e3, dur=taken / 1e3)
            with self.lock:
                self.times.setdefault(category, {}).setdefault(name, Sums()).add(taken / 1e6)


_PROFILE = _Profile()
_SCOPE = threading.local()  # the operator in Python that is running in a thread


# -- settings


def set_config(**kwargs: Any) -> None:
    """Set `filename`, which `dump` writes; MXNet's other settings (profile_all, aggregate_stats, ...) change nothing:
    everything is measured always.

    Raises:
        ArgumentError: the name of the file is empty.
        TypeError: a setting that MXNet does not have.
    """
    known = {
        *("filename", "profile_all", "profile_symbolic", "profile_imperative", "profile_memory", "profile_api"),
        *("continuous_dump", "dump_period", "aggregate_stats", "profile_process"),
    }
    if unknown := sorted(kwargs.keys() - known):
        raise TypeError(
            with_user_location(f"profiler.set_config takes no {', '.join(unknown)}; it takes {sorted(known)}")
        )
    check_name("profiler.set_config", kwargs.get("filename"), "mx.profiler.set_config(filename='profile.json')")
    _PROFILE.config.update(kwargs)


def set_state(state: str = "stop", profile_process: str = "worker") -> None:
    """Begin to measure with "run", end with "stop". Raises ValueError for another word."""
    if state not in ("run", "stop"):
        raise ValueError(f"the profiler's state is 'run' or 'stop', not {state!r}")
    _PROFILE.running, _PROFILE.paused = state == "run", False
    function.observers[:] = [_observe] if _PROFILE.running else []
    function.spans[:] = [_cached] if _PROFILE.running else []
    forget_functions()  # they are made again, with a clock around them or without


def pause(profile_process: str = "worker") -> None:
    """Measure nothing until `resume`."""
    _PROFILE.paused = True


def resume(profile_process: str = "worker") -> None:
    """Measure again."""
    _PROFILE.paused = False


def profiler_set_config(mode: str = "symbolic", filename: str = "profile.json") -> None:
    """`set_config` under an older name."""
    set_config(filename=filename)
    warn("profiler_set_config is deprecated; set_config takes its place")


def profiler_set_state(state: str = "stop") -> None:
    """`set_state` under an older name."""
    warn("profiler_set_state is deprecated; set_state takes its place")
    set_state(state)


# -- results


def dump(finished: bool = True, profile_process: str = "worker") -> None:
    """Write all events so far to the file of `set_config`, in Chrome's trace format; with `finished`, stop."""
    with _PROFILE.lock:
        text = json.dumps({"traceEvents": _PROFILE.events, "displayTimeUnit": "ms"})
    whole(str(_PROFILE.config["filename"]), lambda file: file.write(text.encode()))
    if finished and _PROFILE.running:
        set_state("stop")


def dump_profile() -> None:
    """`dump` under an older name."""
    warn("dump_profile is deprecated; dump takes its place")
    dump()


def dumps(reset: bool = False, format: str = "table", sort_by: str = "total", ascending: bool = False) -> str:
    """Statistics by name as a "table", or as "json": times in milliseconds, memory of results in kilobytes.

    Raises:
        ValueError: `format` or `sort_by` is none of table, json or of total, avg, min, max, count.
    """
    if format not in ("table", "json"):
        raise ValueError(f"format is 'table' or 'json', not {format!r}")
    if sort_by not in SORTS:
        raise ValueError(f"sort_by is one of {', '.join(SORTS)}, not {sort_by!r}")
    with _PROFILE.lock:
        found = {
            kind: {
                category: dict(
                    sorted(
                        ((name, sums.row()) for name, sums in names.items()),
                        key=lambda item: item[1][SORTS[sort_by]],
                        reverse=not ascending,
                    )
                )
                for category, names in table.items()
            }
            for kind, table in (("Time", _PROFILE.times), ("Memory", _PROFILE.memory))
        }
        if reset:
            _PROFILE.times, _PROFILE.memory = {}, {}
    if format == "json":
        return json.dumps({**found, "Unit": {"Time": "ms", "Memory": "kB"}})
    return _table(found)


def _table(found: dict[str, dict[str, dict[str, dict[str, float]]]]) -> str:
    lines = []
    for kind, unit in (("Time", "ms"), ("Memory", "kB")):
        for category, names in found[kind].items():
            columns = "".join(f"{c:>14}" for c in SORTS.values())
            lines += ["", f"{kind} ({unit}), {category}", f"{'Name':<40}{columns}"]
            for name, row in names.items():
                shown = "".join(f"{row[c]:>14.4f}" if c != "Count" else f"{row[c]:>14.0f}" for c in SORTS.values())
                lines.append(f"{name:<40}{shown}")
    return "\n".join(["Profile Statistics:", *lines])


# -- what is measured by itself


def _observe(observed: function.Function, build: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Put a clock around a new function of eager mode, and around its gradient."""
    from gluongraph.symbol.recording import operator_name

    name = operator_name(build, args)
    record = observed._record

    def recorded(mask: tuple[bool, ...]) -> function.Recorded:
        made = record(mask)
        made.forward, made.backward = _timed(name, made.forward), _timed(f"_backward_{name}", made.backward)
        return made

    observed.call = _timed(name, observed.call)
    observed._record = recorded  # type: ignore[method-assign]  # of this object alone, while the profiler runs


def _timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(call)
    def measured(*arrays: Any) -> Any:
        begin = time.perf_counter_ns()
        made = call(*arrays)
        _PROFILE.span(*_shown(name), begin)
        if _PROFILE.live:
            size = sum(getattr(array, "nbytes", 0) for array in made) / 1e3
            with _PROFILE.lock:
                _PROFILE.memory.setdefault("operator", {}).setdefault(name, Sums()).add(size)
        return made

    return measured


@contextmanager
def _cached(name: str) -> Iterator[None]:
    """Within: a hybridized block runs, an operator in Python, or what makes an array of nothing."""
    before, begin = getattr(_SCOPE, "name", None), time.perf_counter_ns()
    shown = _shown(name)
    if name.endswith("::pure_python"):
        shown, _SCOPE.name = ("Custom Operator", name), name.removesuffix("::pure_python")
    try:
        yield
    finally:
        _SCOPE.name = before
        _PROFILE.span(*shown, begin)


def _shown(name: str) -> tuple[str, str]:
    """The category and the name of an operator, which may be called by one in Python."""
    inner = getattr(_SCOPE, "name", None)
    return ("operator", name) if inner is None else ("Custom Operator", f"{inner}::{name}")


# -- what programs mark


class Domain:
    """A group of tasks, frames, counters and markers."""

    def __init__(self, name: str):
        self.name = name

    def __str__(self) -> str:
        return self.name

    def new_task(self, name: str) -> Task:
        """A task of this domain."""
        return Task(self, name)

    def new_frame(self, name: str) -> Frame:
        """A frame of this domain."""
        return Frame(self, name)

    def new_counter(self, name: str, value: float | None = None) -> Counter:
        """A counter of this domain."""
        return Counter(self, name, value)

    def new_marker(self, name: str) -> Marker:
        """A marker of this domain."""
        return Marker(self, name)


class _Span:
    """Something that begins with `start()` and ends with `stop()`; also `with task:`."""

    def __init__(self, category: str, name: str):
        self.name, self._category, self._begin = name, category, -1

    def start(self) -> None:
        """It begins."""
        self._begin = time.perf_counter_ns()

    def stop(self) -> None:
        """It ends. Raises MXNetError if it has not begun."""
        if self._begin < 0:
            raise MXNetError(with_user_location(f"{type(self).__name__} {self.name!r} is stopped, and was not started"))
        _PROFILE.span(self._category, self.name, self._begin)
        self._begin = -1

    def __enter__(self) -> _Span:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def __str__(self) -> str:
        return self.name


class Task(_Span):
    """A piece of work; several of one name may overlap."""

    def __init__(self, domain: Domain, name: str):
        super().__init__(domain.name, name)


class Frame(_Span):
    """A piece of work that comes again and again, such as a frame of a film."""

    def __init__(self, domain: Domain, name: str):
        super().__init__(domain.name, name)


class Event(_Span):
    """A piece of work of one thread, of no domain."""

    def __init__(self, name: str):
        super().__init__("event", name)


class Counter:
    """A number that changes: `counter += 1`."""

    def __init__(self, domain: Domain, name: str, value: float | None = None):
        self.name, self._category, self.value = name, domain.name, 0.0
        if value is not None:
            self.set_value(value)

    def set_value(self, value: float) -> None:
        """Set the number."""
        self.value = value
        _PROFILE.event(ph="C", cat=self._category, name=self.name, args={self.name: value})

    def increment(self, delta: float = 1) -> None:
        """Add to the number."""
        self.set_value(self.value + delta)

    def decrement(self, delta: float = 1) -> None:
        """Subtract from the number."""
        self.set_value(self.value - delta)

    def __iadd__(self, delta: float) -> Counter:
        self.increment(delta)
        return self

    def __isub__(self, delta: float) -> Counter:
        self.decrement(delta)
        return self

    def __str__(self) -> str:
        return self.name


class Marker:
    """A moment."""

    def __init__(self, domain: Domain, name: str):
        self.name, self._category = name, domain.name

    def mark(self, scope: str = "process") -> None:
        """It is now; `scope` is global, process or thread."""
        _PROFILE.event(ph="i", cat=self._category, name=self.name, s=scope[0])

    def __str__(self) -> str:
        return self.name
