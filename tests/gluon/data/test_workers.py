"""What is particular about reading in processes: errors, endings, random numbers, shared memory."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

import gluongraph as mx
from gluongraph import autograd, nd
from gluongraph.gluon.data import ArrayDataset, DataLoader, Dataset, transport
from gluongraph.gluon.data.workers import WorkerTraceback


class Made(Dataset):
    """Samples made by a function of their number."""

    def __init__(self, make: Any, length: int = 8):
        self._make, self._length = make, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, idx: int) -> Any:
        return self._make(idx)


def no_such_sample(idx: int) -> int:
    raise KeyError(f"sample {idx}")


def test_the_traceback_of_a_worker_reaches_the_caller() -> None:
    with pytest.raises(KeyError, match="sample 0") as caught:
        list(DataLoader(Made(no_such_sample), batch_size=1, num_workers=1))
    assert isinstance(caught.value.__cause__, WorkerTraceback)
    assert "in no_such_sample" in "".join(traceback.format_exception(caught.value))


class Stubborn(Exception):
    """An exception that cannot be made from its message: it cannot be pickled."""

    def __init__(self, a: int, b: int):
        super().__init__(f"{a} and {b}")


def stubborn(idx: int) -> int:
    raise Stubborn(1, 2)


def test_an_exception_that_cannot_be_sent() -> None:
    with pytest.raises(RuntimeError, match="Stubborn: 1 and 2"):
        list(DataLoader(Made(stubborn), batch_size=1, num_workers=1))


def test_a_batch_that_cannot_be_sent() -> None:
    loader = DataLoader(Made(lambda i: lambda: i), batch_size=2, batchify_fn=list, num_workers=1)
    with pytest.raises(Exception, match=r"[Cc]an't pickle"):
        list(loader)


def killed_at_three(idx: int) -> int:
    if idx == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return idx


def test_a_killed_worker_is_reported_and_replaced() -> None:
    loader = DataLoader(Made(killed_at_three), batch_size=1, num_workers=2)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="killed by signal 9 while it was to read the samples"):
            list(loader)


@pytest.mark.parametrize("threads", [False, True])
def test_timeout(threads: bool) -> None:
    wanted = threading.Event()
    slow = Made(lambda i: wanted.wait(600))
    loader = DataLoader(slow, batch_size=1, num_workers=1, timeout=0.05, prefetch=1, thread_pool=threads)
    try:
        with pytest.raises(multiprocessing.TimeoutError, match=r"not read within 0\.05 seconds; a larger `timeout`"):
            next(iter(loader))
    finally:
        wanted.set()


def processes() -> set[int]:
    return {child.pid or 0 for child in multiprocessing.active_children()}


def test_no_process_stays_when_the_loader_goes() -> None:
    before = processes()
    loader = DataLoader(Made(lambda i: time.sleep(60) if i else 0), batch_size=1, num_workers=3)
    next(iter(loader))  # the others are busy
    assert len(processes() - before) == 3
    del loader
    assert processes() == before


SCRIPT = """
import os, signal, sys
import numpy as np
from gluongraph.gluon.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, i):
        return np.full(1000, i, np.float32)

if __name__ == "__main__":
    if sys.argv[1] == "spawn":
        import multiprocessing
        multiprocessing.set_start_method("spawn")
    loader = DataLoader(Numbers(), batch_size=2, num_workers=2)
    batches = iter(loader)
    print(next(batches).sum().asscalar(), *(w.process.pid for w in loader._workers._workers), flush=True)
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
"""


def is_running(pid: int) -> bool:
    try:
        return "Z" not in pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("how", ["exit", "killed", "spawn"])
def test_no_process_stays_when_the_program_ends(tmp_path: pathlib.Path, how: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script), how], capture_output=True, text=True)
    assert done.returncode == (-signal.SIGKILL if how == "killed" else 0), done.stderr
    total, *pids = done.stdout.split()
    assert float(total) == 1000 and len(pids) == 2
    deadline = time.monotonic() + 120
    while any(is_running(int(pid)) for pid in pids):
        assert time.monotonic() < deadline, "workers of a program that has ended are still there"
        time.sleep(0.01)


def noise(idx: int) -> list[float]:
    return [random.random(), np.random.rand(), float(mx.random.uniform(shape=(1,)).asscalar())]


def test_random_numbers_follow_from_the_seed_and_not_from_the_number_of_workers() -> None:
    drawn = []
    for workers in (1, 3):
        mx.random.seed(5)
        drawn.append([batch.tolist() for batch in DataLoader(Made(noise), batch_size=2, num_workers=workers)])
    assert drawn[0] == drawn[1]
    numbers = np.array(drawn[0]).ravel().tolist()
    assert len(set(numbers)) == len(numbers)  # workers that began alike would repeat themselves
    again = [batch.tolist() for batch in DataLoader(Made(noise), batch_size=2, num_workers=1)]
    assert again != drawn[0]


def test_workers_do_not_record() -> None:
    with autograd.record():
        loader = DataLoader(Made(lambda i: int(autograd.is_recording())), batch_size=8, num_workers=1)
    assert next(iter(loader)).sum().asscalar() == 0


PARALLEL = """
from gluongraph import nd
from gluongraph.gluon import data, nn

net = nn.Activation("relu")
net.hybridize()
x = nd.ones((512, 2048))
net(x)  # its kernel runs in two threads
samples = data.SimpleDataset([0]).transform(lambda i: net(x).sum().asscalar())
print([batch.asscalar() for batch in data.DataLoader(samples, batch_size=1, num_workers=1, timeout=600)])
"""


def test_a_parallel_compiled_block_runs_in_a_worker() -> None:
    """Its helper threads are not forked; the worker gets its own."""
    command = [sys.executable, "-c", PARALLEL]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TVM_NUM_THREADS": "2"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([np.float32(512 * 2048)])


VALUES: list[Any] = [
    None,
    list(range(5)),
    "x" * 5000,
    np.arange(100_000, dtype=np.float32).reshape(100, 1000),
    [np.zeros((0, 3)), np.arange(7, dtype=np.int8), {"text": "t" * 2000, "array": np.full((300,), 2, np.float16)}],
    np.arange(10_000).reshape(100, 100).T,
    [np.full(50, i) for i in range(2000)],
]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_transport(value: Any) -> None:
    here, there = multiprocessing.Pipe()
    transport.send(here, value)
    np.testing.assert_equal(transport.receive(there), value)
    assert not there.poll()


def test_arrays_come_in_shared_memory_that_can_be_written() -> None:
    here, there = multiprocessing.Pipe()
    descriptors = len(os.listdir("/proc/self/fd"))
    transport.send(here, nd.ones((64, 64)))
    array = transport.receive(there)
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 1  # a mapping may hold one open
    assert not array.storage.array.flags.owndata and array.storage.array.ctypes.data % 64 == 0
    array += 1
    assert array.sum().asscalar() == 2 * 64 * 64


def test_the_end_of_a_connection() -> None:
    here: Connection[Any, Any]
    here, there = multiprocessing.Pipe()
    here.close()
    with pytest.raises(EOFError):
        transport.receive(there)


def test_large_batches_of_a_dataset() -> None:
    images = np.random.rand(16, 3, 64, 64).astype(np.float32)
    loader = DataLoader(ArrayDataset(images, np.arange(16)), batch_size=8, num_workers=2)
    batches = list(loader)
    assert (np.concatenate([x.asnumpy() for x, _ in batches]) == images).all()
    assert (np.concatenate([y.asnumpy() for _, y in batches]) == np.arange(16)).all()
