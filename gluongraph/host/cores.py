"""Which cores a process has for its threads: affinity, hyperthreads, quotas of containers, as Linux tells them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path("/")


def cores(mine: Iterable[int] | None = None, root: Path = ROOT) -> list[int]:
    """One logical core of each physical one that this process may run on: two of the same share its vector units."""
    found: list[int] = []
    met: set[int] = set()
    for core in sorted(os.sched_getaffinity(0) if mine is None else mine):
        if core not in met:
            found.append(core)
            met.update(_siblings(core, root))
    return found


def _siblings(core: int, root: Path) -> Iterator[int]:
    """The logical cores of its physical one, or none where nothing is told."""
    with suppress(OSError, ValueError):
        text = (root / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text(encoding="utf-8")
        for part in text.split(","):
            first, _, last = part.partition("-")
            yield from range(int(first), int(last or first) + 1)


def quota(root: Path = ROOT) -> float | None:
    """How many cores' time the process may use, by the tightest of its control groups; None for no limit.

    A container may see 64 cores and be given the time of 4: as many threads as cores would be halted most of the time.
    """
    return min((limit for folder in _groups(root) if (limit := _limit(folder)) is not None), default=None)


def _groups(root: Path) -> Iterator[Path]:
    """The folders of the process's groups for processor time, of version 2 or 1, from the outermost on."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if not kinds or "cpu" in kinds.split(","):
            top, parts = root / "sys/fs/cgroup" / ("cpu" if kinds else ""), path.strip("/").split("/")
            yield from (top.joinpath(*parts[:depth]) for depth in range(len(parts) + 1))


def _limit(folder: Path) -> float | None:
    with suppress(OSError, ValueError):
        time, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
        return None if time == "max" else int(time) / int(period)
    with suppress(OSError, ValueError):
        time, period = ((folder / f"cpu.cfs_{name}_us").read_text(encoding="utf-8") for name in ("quota", "period"))
        return int(time) / int(period) if int(time) > 0 else None
    return None
