"""Threads of the runner: as many as in Python, on the same cores, whatever affinity and quota say."""

from __future__ import annotations

import os
import pathlib
import random
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from gluongraph.artefact import bundle
from gluongraph.host.cores import cores, quota
from gluongraph.host.process import THREADS

TOLD = ("TVM_BIND_THREADS", *THREADS)
PROGRAM = """
#include <cstdio>
#include <cstdlib>
#include "cores.h"

int main(int count, char** words) {  // root, then the cores that are ours
  std::vector<int> mine;
  for (int i = 2; i < count; ++i) mine.push_back(std::atoi(words[i]));
  const auto found = gg::cores(mine, words[1]);
  for (const int core : found) std::printf("%d ", core);
  const auto time = gg::quota(words[1]);
  std::printf("| %.6g | %d", time.value_or(-1.0), gg::within(found, time));
}
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A program that prints what runtime/native/cores.cc says."""
    if shutil.which(bundle.compiler()[0]) is None:
        pytest.skip("there is no C++ compiler: install g++")
    folder = tmp_path_factory.mktemp("cores")
    (folder / "main.cc").write_text(PROGRAM)
    sources = [str(folder / "main.cc"), str(bundle.NATIVE / "cores.cc")]
    line = [*bundle.compiler(), f"-I{bundle.NATIVE}", *sources, "-o", str(folder / "told")]
    subprocess.run(line, check=True)
    return folder / "told"


def machines(chance: random.Random) -> Iterator[tuple[list[int], dict[str, str]]]:
    """Layouts of cores and control groups, with the cores that a process has of them."""
    for _ in range(40):
        physical, each = chance.randint(1, 12), chance.choice([1, 2, 2, 4])
        count, files = physical * each, dict[str, str]()
        near = chance.random() < 0.5  # siblings are neighbours, or a number of cores apart
        for core in range(count if chance.random() < 0.9 else 0):
            own = core // each if near else core % physical
            others = [own * each + i if near else own + physical * i for i in range(each)]
            text = f"{others[0]}-{others[-1]}" if near and each > 1 else ",".join(map(str, others))
            files[f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"] = text + "\n"
        period = chance.choice([50000, 100000])
        time = chance.choice(["max", str(chance.randint(10000, 900000))])
        kind = chance.choice(["none", "2", "2 nested", "1", "damaged"])
        if kind.startswith("2"):
            path = "/a/b c" if kind == "2 nested" else "/"
            files["proc/self/cgroup"] = f"0::{path}\n"
            files[f"sys/fs/cgroup/{'a/' if kind == '2 nested' else ''}cpu.max"] = f"{time} {period}\n"
            if kind == "2 nested":
                files["sys/fs/cgroup/a/b c/cpu.max"] = f"{chance.randint(10000, 900000)} {period}\n"
        elif kind == "1":
            files["proc/self/cgroup"] = "7:memory:/m\n3:cpu,cpuacct:/in/the/host\n"
            files["sys/fs/cgroup/cpu/cpu.cfs_quota_us"] = f"{-1 if time == 'max' else time}\n"
            files["sys/fs/cgroup/cpu/cpu.cfs_period_us"] = f"{period}\n"
        elif kind == "damaged":
            files |= {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "many\n"}
        yield sorted(chance.sample(range(count), chance.randint(1, count))), files


def test_the_same_rule_as_in_python(told: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for i, (mine, files) in enumerate(machines(random.Random(0))):
        root = tmp_path / str(i)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        found, time = cores(mine, root), quota(root)
        many = len(found) if time is None else max(1, min(int(time), len(found)))
        said = subprocess.run([told, f"{root}/", *map(str, mine)], capture_output=True, text=True, check=True).stdout
        assert said == f"{''.join(f'{core} ' for core in found)}| {-1 if time is None else time:.6g} | {many}", files


ALL = ",".join(map(str, sorted(os.sched_getaffinity(0))))
WHOLE = quota() is None or int(quota() or 0) >= len(cores())


@pytest.mark.skipif(shutil.which("taskset") is None, reason="taskset is not installed")
@pytest.mark.skipif(len(cores()) < 2 or not WHOLE, reason="this process has the time of one core")
@pytest.mark.parametrize(
    ("on", "words", "environment", "workers"),
    [
        (str(cores()[0]), [], {}, []),
        (str(cores()[-1]), [], {}, []),
        (",".join(map(str, cores()[:2])), [], {}, [{core} for core in cores()[1:2]]),
        (ALL, [], {}, [{core} for core in cores()[1:]]),
        (ALL, ["--threads", "0"], {"GG_THREADS": "1"}, [{core} for core in cores()[1:]]),
        (ALL, [], {"GG_THREADS": "1"}, []),
        (ALL, [], {"OMP_NUM_THREADS": "1"}, []),
        (ALL, ["--threads", "1"], {}, []),
        # Workers that are not bound start with the first parallel kernel, and this net has none.
        (ALL, [], {"TVM_BIND_THREADS": "0"}, []),
        (str(cores()[0]), ["--threads", "2"], {}, []),
    ],
)
def test_threads_of_the_runner(
    on: str,
    words: list[str],
    environment: dict[str, str],
    workers: list[set[int]],
    artefact: pathlib.Path,
    runner: pathlib.Path,
) -> None:
    """The workers while it trains, and where they may run; the thread that calls them goes where the process may."""
    data = ["--data", str(artefact.with_name("data.safetensors")), "--drop-last"]
    line = ["taskset", "-c", on, str(runner / "gg-run"), str(artefact), *data, "--steps", "1000000000", "--print", "1"]
    clean = {name: text for name, text in os.environ.items() if name not in TOLD} | environment
    with subprocess.Popen([*line, *words], stdout=subprocess.PIPE, text=True, env=clean) as process:
        try:
            assert process.stdout is not None and process.stdout.readline().startswith("update 2 ")
            tasks = sorted(map(int, os.listdir(f"/proc/{process.pid}/task")))
            found = [os.sched_getaffinity(task) for task in tasks]
        finally:
            process.kill()
    assert tasks[0] == process.pid and found == [set(map(int, on.split(","))), *workers]
