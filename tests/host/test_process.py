"""What is asked of the process: imports that are whole, interrupts that stay interrupts, threads that do not fight."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gluongraph.host.cores import cores, quota
from gluongraph.host.process import THREADS, collecting_later


@pytest.mark.parametrize("on", [True, False])
def test_garbage_is_collected_later_where_it_was_before(on: bool) -> None:
    before = gc.isenabled()
    (gc.enable if on else gc.disable)()
    try:
        with pytest.raises(ZeroDivisionError), collecting_later():
            assert not gc.isenabled()
            raise ZeroDivisionError
        assert gc.isenabled() is on
    finally:
        (gc.enable if before else gc.disable)()


NAMES = ("OPENBLAS_THREAD_TIMEOUT", "TVM_BIND_THREADS", *THREADS)


@pytest.mark.skipif(len(cores()) < 2, reason="this machine has one core: there are no threads to bind")
@pytest.mark.parametrize(
    ("first", "more", "bound"),
    [("gluongraph", {}, True), ("numpy", {}, False), ("gluongraph", {"GG_THREADS": "1"}, False)],
)
def test_threads_do_not_fight(first: str, more: dict[str, str], bound: bool) -> None:
    """Workers have a core each where all cores are ours and BLAS sleeps; the thread that calls goes where it likes."""
    program = f"""
import {first}, gluongraph, os
from gluongraph.runtime import loader
mine, before = os.sched_getaffinity(0), set(os.listdir("/proc/self/task"))
loader._libraries()
workers = sorted(set(os.listdir("/proc/self/task")) - before, key=int)
print(os.sched_getaffinity(0) == mine, [sorted(os.sched_getaffinity(int(worker))) for worker in workers])
"""
    clean = {k: v for k, v in os.environ.items() if k not in NAMES}
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=clean | more
    )
    assert found.stdout.strip() == f"True {[[core] for core in cores()[1:]] if bound else []}"


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("siblings", "mine", "expected"),
    [
        (["0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"], range(8), [0, 1, 2, 3]),
        (["0-1", "0-1", "2-3", "2-3", "4", "5"], range(6), [0, 2, 4, 5]),  # some have one thread only
        (["0-1", "0-1", "2-3", "2-3"], [1, 3], [1, 3]),  # of which another process may have the rest
        ([], [4, 2], [2, 4]),
    ],
)
def test_hyperthreads_are_no_cores(tmp_path: Path, siblings: list[str], mine: list[int], expected: list[int]) -> None:
    places = (f"sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list" for n in range(len(siblings)))
    assert cores(mine, written(tmp_path, dict(zip(places, siblings, strict=True)))) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2.5),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "100000 50000\n"}, 2.0),
        (
            {
                "proc/self/cgroup": "7:memory:/m\n3:cpu,cpuacct:/in/the/host\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            4.0,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
    ],
)
def test_quotas_of_containers(tmp_path: Path, files: dict[str, str], expected: float | None) -> None:
    assert quota(written(tmp_path, files)) == expected
