"""The communicator over NCCL, on a fake of nccl4py with threads as ranks; on GPUs benchmarks/nccl_check.py runs it."""

from __future__ import annotations

import ctypes
import importlib.util
import inspect
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_nccl import Cluster, ThreadCommunicator, core, cuda_core, installed, tensor, tree_sum
from ranks import needs_mpi, run_ranks

from gluongraph.dtypes import numpy_dtype
from gluongraph.host import nvidia
from gluongraph.runtime import loader
from gluongraph.runtime.communicator import nccl
from gluongraph.runtime.communicator.activity import ACTIVITY
from gluongraph.runtime.communicator.base import CommunicationError, PeerLost
from gluongraph.runtime.communicator.environment import world
from gluongraph.runtime.communicator.nccl import NcclCommunicator
from gluongraph.runtime.table import CUDA

LONG = 30.0


def run(cluster: Cluster, program: Callable[..., Any], **options: Any) -> list[Any]:
    """Run a program on every rank, with a communicator over NCCL."""
    with installed(cluster):
        results = cluster.run(lambda boot: program(NcclCommunicator(boot, **options)))
    assert cluster.violations == []
    return results


@contextmanager
def on_stream(device: int, handle: int) -> Iterator[None]:
    """TVM launches kernels on this stream, in this thread."""
    before, left = ctypes.c_void_p(), ctypes.c_void_p()
    loader._libraries().TVMFFIEnvSetStream(CUDA, device, ctypes.c_void_p(handle), ctypes.byref(before))
    try:
        yield
    finally:
        loader._libraries().TVMFFIEnvSetStream(CUDA, device, before, ctypes.byref(left))


def values(rank: int, size: int, dtype: Any = "f4") -> Any:
    """Small integers, whose sums are exact in every type."""
    return ((np.arange(size) * 3 + rank * 5) % 7).astype(dtype)


FLOATS_AND_INTEGERS = ("f32", "f64", "f16", "bf16", "i8", "i32", "i64", "u8", "u32", "u64")


@pytest.mark.parametrize("dtype", FLOATS_AND_INTEGERS)
@pytest.mark.parametrize("op", ["sum", "max", "min"])
def test_allreduce(dtype: str, op: str) -> None:
    def program(communicator: NcclCommunicator) -> Any:
        array = values(communicator.rank, 24, numpy_dtype(dtype))
        communicator.allreduce(tensor(array, communicator.device), op)
        communicator.synchronize()
        return array.astype("f8")

    rows = np.array([values(rank, 24, "f8") for rank in range(3)])
    want = {"sum": rows.sum(0), "max": rows.max(0), "min": rows.min(0)}[op]
    assert all(np.array_equal(found, want) for found in run(Cluster(3), program))


def test_parts() -> None:
    size = 4

    def program(communicator: NcclCommunicator) -> None:
        rank, device = communicator.rank, communicator.device
        source, part, whole = values(rank, 8), np.empty(2, "f4"), np.empty(8, "f4")
        communicator.reduce_scatter(tensor(source, device), tensor(part, device))
        communicator.allgather(tensor(part, device), tensor(whole, device))
        communicator.synchronize()
        total = np.sum([values(r, 8) for r in range(size)], 0)
        assert np.array_equal(whole, total) and np.array_equal(part, total[2 * rank : 2 * rank + 2])

        own = np.full(8, -1, "f4")
        own[2 * rank : 2 * rank + 2] = rank
        communicator.allgather(tensor(own[2 * rank : 2 * rank + 2], device), tensor(own, device))
        communicator.synchronize()
        assert own.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]

        turned = np.empty(8, "f4")
        communicator.alltoall(tensor(source, device), tensor(turned, device))
        communicator.synchronize()
        rows = np.array([values(r, 8).reshape(size, 2)[rank] for r in range(size)])
        assert np.array_equal(turned, rows.reshape(-1))

        for root in range(size):
            array = values(rank, 5)
            communicator.broadcast(tensor(array, device), root)
            communicator.synchronize()
            assert np.array_equal(array, values(root, 5))
        communicator.barrier()

    run(Cluster(size), program)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_the_tree_has_one_order(size: int) -> None:
    rows = np.random.default_rng(0).standard_normal((size, 1000)).astype("f4")

    def program(communicator: NcclCommunicator) -> Any:
        results = []
        for _ in range(2):  # the second time the communicators of pairs are there
            array = rows[communicator.rank].copy()
            communicator.allreduce_tree(tensor(array, communicator.device))
            communicator.synchronize()
            results.append(array)
        assert np.array_equal(*results)
        return results[0]

    want = tree_sum(rows)
    assert size < 8 or not np.array_equal(want, np.add.reduce(rows))  # another order gives other bits
    assert all(np.array_equal(found, want) for found in run(Cluster(size), program))


def test_a_tree_of_three_is_refused() -> None:
    def program(communicator: NcclCommunicator) -> None:
        with pytest.raises(CommunicationError, match=r"needs 2, 4, 8, ... ranks, not 3"):
            communicator.allreduce_tree(np.ones(3, "f"))

    run(Cluster(3), program)


def test_arrays_of_the_host_go_through_boot() -> None:
    cluster = Cluster(2)

    def program(communicator: NcclCommunicator) -> None:
        rank = communicator.rank
        array, part, whole = np.full(4, rank + 1.0), np.empty(2), np.empty(4)
        communicator.allreduce(array)
        assert array.tolist() == [3] * 4
        communicator.allreduce_tree(array)
        assert array.tolist() == [6] * 4
        communicator.reduce_scatter(array, part)
        communicator.allgather(part, whole)
        assert whole.tolist() == [12] * 4
        communicator.alltoall(np.array([rank, rank + 10]), part)
        assert part.tolist() == ([0, 1] if rank == 0 else [10, 11])
        communicator.broadcast(array[:1], 1)
        assert communicator.exchange(f"from {rank}") == ["from 0", "from 1"]

    run(cluster, program)
    assert cluster.calls == []


# --- streams


def test_collectives_come_between_kernels() -> None:
    """On whatever stream TVM launches them; and the host does not wait."""
    cluster, handle, opened = Cluster(2), 4660, threading.Event()

    def program(communicator: NcclCommunicator) -> None:
        array, later = np.zeros(4, "f"), np.zeros(4, "f")
        stream = cluster.stream(handle)
        stream.launch(lambda: (opened.wait(LONG), array.__setitem__(slice(None), communicator.rank + 1)))
        with on_stream(communicator.device, handle):
            communicator.allreduce(tensor(array, communicator.device))
        stream.launch(lambda: later.__setitem__(slice(None), array))
        assert not array.any() and not opened.is_set()
        communicator._boot.barrier()
        opened.set()
        stream.sync()
        assert later.tolist() == [3] * 4

    run(cluster, program)
    assert sorted(cluster.calls) == [(0, "allreduce", handle), (1, "allreduce", handle)]


def test_a_started_collective_runs_beside_kernels() -> None:
    """After those launched before it, on a stream of its own; those launched after `wait` come after it."""
    cluster, opened = Cluster(2), threading.Event()

    def program(communicator: NcclCommunicator) -> None:
        first, second, later = np.zeros(4, "f"), np.ones(4, "f"), np.zeros((2, 4), "f")
        stream = cluster.stream(0)
        stream.launch(lambda: (opened.wait(LONG), first.__setitem__(slice(None), 1)))
        works = [communicator.start_allreduce(tensor(each, communicator.device)) for each in (first, second)]
        assert not any(work.done() for work in works)
        for work in works:
            work.wait()  # the host goes on: the kernel before still waits
        assert not opened.is_set()
        stream.launch(lambda: later.__setitem__(slice(None), [first, second]))
        communicator._boot.barrier()
        opened.set()
        stream.sync()
        assert later.tolist() == [[2] * 4] * 2 and all(work.done() for work in works)

    run(cluster, program)
    handles = {handle for _, _, handle in cluster.calls}
    assert len(cluster.calls) == 4 and 0 not in handles


def test_the_tree_waits_for_what_was_started() -> None:
    """Kernels of two communicators that wait for other ranks must not run at the same time."""

    def program(communicator: NcclCommunicator) -> None:
        started, array = np.ones(4, "f"), np.ones(4, "f")
        opened = threading.Event()
        communicator._side.launch(lambda: opened.wait(LONG))
        communicator.start_allreduce(tensor(started, communicator.device))
        communicator.allreduce_tree(tensor(array, communicator.device))
        assert array.tolist() == [1] * 4
        opened.set()
        communicator.synchronize()
        assert started.tolist() == array.tolist() == [2] * 4

    run(Cluster(2), program)


# --- ranks that are lost, and other errors


def test_a_lost_rank_is_noticed_by_who_waits_and_the_others_go_on() -> None:
    cluster = Cluster(3)

    def program(communicator: NcclCommunicator) -> None:
        if communicator.rank == 1:
            return
        array = np.ones(4, "f")
        communicator.allreduce(tensor(array, communicator.device))
        text = rf"rank {communicator.rank} of 3 has waited 0.3 s for allreduce: another rank has ended.*shrink\(\)"
        with pytest.raises(PeerLost, match=f"(?s){text}"):
            communicator.synchronize()
        with pytest.raises(PeerLost):  # from now on
            communicator.allreduce(tensor(array, communicator.device))
        cluster.lost.add(1)
        left = communicator.shrink()
        assert (left.size, left.rank, left.device) == (2, communicator.rank // 2, communicator.device)
        array[:] = 1
        left.allreduce(tensor(array, left.device))
        left.synchronize()
        assert array.tolist() == [2] * 4

    run(cluster, program, timeout=0.3)
    assert sorted(cluster.aborted) == [0, 2]


def test_who_waits_for_the_stream_is_freed() -> None:
    """As a copy from the device does, which knows nothing of NCCL."""
    cluster = Cluster(2)

    def program(communicator: NcclCommunicator) -> None:
        if communicator.rank == 1:
            return
        array = np.ones(4, "f")
        work = communicator.start_allreduce(tensor(array, communicator.device))
        work.wait()
        cluster.stream(0).sync()
        for call in (work.wait, work.done, lambda: communicator.start_allreduce(tensor(array, communicator.device))):
            with pytest.raises(PeerLost, match="has waited"):
                call()

    run(cluster, program, timeout=0.3)
    assert cluster.aborted == [0]


@pytest.mark.parametrize("fault_tolerant", [True, False])
def test_a_rank_that_mpi_has_lost_ends_a_collective(fault_tolerant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before its time is over: the supervision has revoked MPI's communicators. Without it, MPI is not asked."""
    monkeypatch.setenv("OMPI_MCA_mpi_ft_enable", str(int(fault_tolerant)))
    revoked = threading.Event()
    cluster = Cluster(2)
    raw = SimpleNamespace(Is_revoked=revoked.is_set)
    monkeypatch.setattr(ThreadCommunicator, "raw", raw, raising=False)

    def program(communicator: NcclCommunicator) -> None:
        if communicator.rank == 0:
            array = np.ones(4, "f")
            communicator.allreduce(tensor(array, communicator.device))
            revoked.set()
            text = "a rank has ended while rank 0 of 2 waited" if fault_tolerant else "has waited 0.4 s"
            with pytest.raises(PeerLost, match=text):
                communicator.synchronize()

    run(cluster, program, timeout=30 if fault_tolerant else 0.4)
    assert cluster.aborted == [0]


def test_the_supervision_sees_who_waits() -> None:
    seen: list[Any] = []

    def program(communicator: NcclCommunicator) -> None:
        def kernel() -> None:
            until = time.monotonic() + LONG
            while ACTIVITY.inside is None and time.monotonic() < until:
                time.sleep(0.001)
            seen.append(ACTIVITY.inside)

        array = np.ones(4, "f")
        cluster.stream(0).launch(kernel)
        communicator.allreduce(tensor(array, communicator.device))
        communicator.synchronize()
        assert [(each.name, each.owner) for each in seen] == [("synchronize", communicator)]
        assert (communicator.members, communicator.calls, ACTIVITY.inside) == ("", -1, None)

    cluster = Cluster(1)
    run(cluster, program)


@pytest.mark.parametrize(("result", "kind"), [(6, PeerLost), (1, CommunicationError)])
def test_results_of_nccl_become_errors(result: int, kind: type[CommunicationError]) -> None:
    cluster = Cluster(2)

    def program(communicator: NcclCommunicator) -> None:
        if communicator.rank == 1:
            return
        array = np.ones(4, "f")
        communicator.allreduce(tensor(array, communicator.device))
        cluster.failing[0] = result
        with pytest.raises(
            CommunicationError, match=r"allreduce on rank 0 of 2 has failed: .* \(what NCCL says on 0\)"
        ) as e:
            communicator.synchronize()
        assert type(e.value) is kind

    run(cluster, program)
    assert cluster.aborted == [0]


def test_an_error_of_the_device_is_one() -> None:
    cluster = Cluster(1)

    def program(communicator: NcclCommunicator) -> None:
        array = np.ones(4, "f")
        cluster.device_error = "CUDA_ERROR_ILLEGAL_ADDRESS"
        communicator.allreduce(tensor(array, communicator.device))
        with pytest.raises(CommunicationError, match="the device of rank 0 of 1 has failed: CUDA_ERROR_ILLEGAL"):
            communicator.synchronize()

    run(cluster, program)


def test_a_call_that_fails_ends_the_communicator() -> None:
    cluster = Cluster(1, refusing={(0, "allgather"): "ncclInvalidUsage"})

    def program(communicator: NcclCommunicator) -> None:
        array = np.ones(4, "f")
        for _ in range(2):
            with pytest.raises(CommunicationError, match="allgather on rank 0 of 1 has failed: ncclInvalidUsage"):
                communicator.allgather(tensor(array, 0), tensor(array, 0))

    run(cluster, program)
    assert cluster.aborted == [0]


def test_what_cannot_be_is_refused_and_the_communicator_lives() -> None:
    def program(communicator: NcclCommunicator) -> None:
        def on_gpu(size: int, dtype: str = "f4", device: int | None = None) -> Any:
            arrays.append(np.ones(size, dtype))
            return tensor(arrays[-1], communicator.device if device is None else device)

        arrays: list[Any] = []
        refused = [
            ("8 elements of the source do not fit 3", lambda: communicator.reduce_scatter(on_gpu(8), on_gpu(3))),
            ("4 elements of the source do not fit 9", lambda: communicator.allgather(on_gpu(4), on_gpu(9))),
            ("3 elements of the source do not fit 3", lambda: communicator.alltoall(on_gpu(3), on_gpu(3))),
            ("no reduction 'mean'; there are sum, max, min", lambda: communicator.allreduce(on_gpu(2), "mean")),
            ("no reduction 'mean'", lambda: communicator.start_allreduce(on_gpu(2), "mean")),
            ("NCCL does not take this allreduce: .*bool", lambda: communicator.allreduce(on_gpu(2, "?"))),
            ("communicator is on device", lambda: communicator.allreduce(on_gpu(2, device=7))),
            ("Dtype mismatch", lambda: communicator.alltoall(on_gpu(2), on_gpu(2, "i4"))),
        ]
        for text, call in refused:
            with pytest.raises(CommunicationError, match=text):
                call()
        communicator.allreduce(last := on_gpu(2))
        communicator.synchronize()
        assert last.shape == (2,) and arrays[-1].tolist() == [2, 2]

    run(Cluster(2), program)


# --- which ranks there are, on which GPUs


def test_ranks_have_the_gpus_in_turn() -> None:
    def program(communicator: NcclCommunicator) -> tuple[int, str | None]:
        return communicator.device, os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE")

    assert run(Cluster(3, gpus=3), program) == [(0, None), (1, None), (2, None)]
    assert run(Cluster(4, gpus=2), program) == [(0, "1"), (1, "1"), (0, "1"), (1, "1")]
    assert run(Cluster(2, gpus=8), program, device=5) == [(5, "1"), (5, "1")]


@pytest.mark.parametrize(
    ("cluster", "text"),
    [
        (Cluster(4, gpus=3, version="2.29.7"), "ranks 0 and 3 share a GPU: that takes NCCL 2.30, this is 2.29.7"),
        (Cluster(2, gpus=0), "no NCCL: rank 0: there is no GPU of number 0, or no driver.*; rank 1: "),
        (Cluster(2, version=""), "no NCCL: rank 0: NCCL's library is not found; rank 1"),
        (Cluster(2, missing="nccl"), r"no NCCL: rank 0: \w+: .*nccl.core(?s:.*)pip install 'gluongraph\[nccl\]'"),
        (Cluster(2, missing="cuda"), r"no NCCL: rank 0: \w+: .*cuda.core"),
    ],
)
def test_no_rank_waits_for_one_that_has_no_nccl(cluster: Cluster, text: str) -> None:
    def program(boot: ThreadCommunicator) -> str:
        with pytest.raises(CommunicationError) as caught:
            NcclCommunicator(boot)
        return str(caught.value)

    with installed(cluster):
        messages = cluster.run(program)
    assert len({message.partition("\n")[0] for message in messages}) == 1
    with pytest.raises(CommunicationError, match=text):
        raise CommunicationError(messages[0])


def two_ranks_without_gpu() -> None:
    nvidia.count = lambda: 0
    try:
        NcclCommunicator(world())
    except CommunicationError as error:
        print(str(error).partition("\n")[0])


@needs_mpi
def test_no_rank_of_mpi_waits_either() -> None:
    first, second = run_ranks(2, two_ranks_without_gpu)
    assert first == second and first.startswith("no NCCL: rank 0: ") and "; rank 1: " in first


def test_a_rank_that_does_not_connect_is_not_waited_for() -> None:
    cluster = Cluster(2, refusing={(1, "init"): "ncclSystemError"})

    def program(boot: ThreadCommunicator) -> None:
        kind, text = (
            (PeerLost, "waited .* for the others to connect")
            if boot.rank == 0
            else (
                CommunicationError,
                "no NCCL communicator on rank 1 of 2: ncclSystemError",
            )
        )
        with pytest.raises(kind, match=text):
            NcclCommunicator(boot, timeout=0.3)

    with installed(cluster):
        cluster.run(program)
    assert cluster.aborted == [0] and cluster.violations == []


def test_split() -> None:
    def program(communicator: NcclCommunicator) -> tuple[int, int, list[float]]:
        half = communicator.split(communicator.rank % 2, -communicator.rank)
        array = np.full(2, communicator.rank, "f")
        half.allreduce(tensor(array, half.device))
        half.synchronize()
        assert half.device == communicator.device
        return half.rank, half.size, array.tolist()

    assert run(Cluster(4), program) == [(1, 2, [2, 2]), (1, 2, [4, 4]), (0, 2, [2, 2]), (0, 2, [4, 4])]


def test_abort_ends_all_ranks() -> None:
    def program(communicator: NcclCommunicator) -> None:
        with pytest.raises(SystemExit) as caught:
            communicator.abort(3)
        assert caught.value.code == 3

    run(Cluster(1), program)


def test_a_smaller_communicator_replaces_one_that_works() -> None:
    cluster = Cluster(2)

    def program(communicator: NcclCommunicator) -> None:
        left, array = communicator.shrink(), np.ones(2, "f")
        left.allreduce(tensor(array, left.device))
        left.synchronize()
        assert array.tolist() == [2, 2]
        with pytest.raises(CommunicationError, match=r"has been aborted: .* by a smaller one: shrink\(\)"):
            communicator.synchronize()

    run(cluster, program)
    assert sorted(cluster.aborted) == [0, 1]


def test_nccl_has_one_thread_at_a_time() -> None:
    """The one that watches waits while another one is within a call."""
    cluster, opened = Cluster(1), threading.Event()

    def program(communicator: NcclCommunicator) -> None:
        arrays = [np.ones(2, "f") for _ in range(2)]
        cluster.stream(0).launch(lambda: opened.wait(LONG))
        for array in arrays:  # the first is watched during the second call
            communicator.allreduce(tensor(array, communicator.device))
            cluster.seconds = 4 * nccl._PERIOD
        opened.set()
        communicator.synchronize()

    run(cluster, program)


# --- the script for machines with GPUs


class OnHost:
    """In place of its arrays."""

    def __init__(self, array: Any, number: int) -> None:
        self._array, self._number = array.copy(), number
        self.tensor = tensor(self._array, number)

    def part(self, start: int, size: int) -> Any:
        return tensor(self._array[start : start + size], self._number)

    def host(self) -> Any:
        return self._array


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    module = importlib.import_module("nccl_check")
    monkeypatch.setattr(module, "OnGpu", OnHost)
    monkeypatch.setattr(module, "WAIT", 0.3)
    return module


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_script_finds_all_right(script: Any, size: int, capsys: pytest.CaptureFixture[str]) -> None:
    def program(communicator: NcclCommunicator) -> list[str]:
        wrong: list[str] = script.check(communicator)
        script.measure(communicator, [4096])
        return wrong + (script.check_lost_rank(communicator) if size > 1 else [])

    assert run(Cluster(size), program) == [[]] * size
    shown = capsys.readouterr().out
    assert "10 element types, collectives: 0 wrong" in shown and "alltoall                4,096 B" in shown
    assert ("a lost rank is noticed" in shown) == (size > 1)


def test_the_script_finds_what_is_wrong(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def sum_twice(self: NcclCommunicator, array: Any) -> None:
        self.allreduce(array)
        self.allreduce(array)

    monkeypatch.setattr(NcclCommunicator, "allreduce_tree", sum_twice)
    names = ("f32", "f64", "f16", "bf16", "i8", "i32", "i64", "u8", "u32", "u64")
    assert run(Cluster(2), script.check) == [[f"allreduce_tree of {name}" for name in names]] * 2


def test_the_script_finds_steps_that_differ(script: Any) -> None:
    """Its steps run on a fake GPU in tests/codegen/cuda."""
    want = {"w": np.array([-8, 4], "f"), "b": np.ones(3, "f")}
    near = {"w": want["w"] + np.float32(7e-4), "b": want["b"]}
    assert script.differences(near, want) == []
    far = {"w": want["w"] + np.float32(9e-4), "b": np.array([1, np.nan, 1], "f")}
    assert script.differences(far, want) == [
        "w differs by 0.00011 of its largest element",
        "b differs by nan of its largest element",
    ]


def test_the_script_says_that_nothing_ran(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nvidia, "count", lambda: 0)
    assert script.main([]) == 0
    assert capsys.readouterr().out == "no CUDA device: nothing ran\n"


def test_the_script_skips_what_cannot_run(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "count", lambda: 1)
    monkeypatch.setattr(script.shutil, "which", lambda *_, **__: "mpiexec")
    monkeypatch.setattr(script.importlib.util, "find_spec", lambda _: True)
    assert [ranks for ranks, _ in script.jobs()] == [1, 2]
    assert script.reason_to_skip(2, "2.29.7") == "two ranks on one GPU take NCCL 2.30, this is 2.29.7"
    assert script.reason_to_skip(2, "2.30.3") == script.reason_to_skip(1, "2.29.7") == ""
    monkeypatch.setattr(script.shutil, "which", lambda *_, **__: None)
    assert "mpiexec is not installed" in script.reason_to_skip(2, "2.30.3")


# --- the real package

needs_nccl4py = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("nccl", "cuda")),
    reason="nccl4py is not installed: pip install 'gluongraph[nccl]'",
)


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def public(cls: type) -> list[str]:
    return [name for name in vars(cls) if not name.startswith("_")]


@needs_nccl4py
def test_the_fake_has_the_signatures_of_nccl4py() -> None:
    real, fake = importlib.import_module("nccl.core"), core()
    for name in ("get_unique_id", "get_version", "get_error_string"):
        assert parameters(getattr(fake, name)) == parameters(getattr(real, name)), name
    for cls in ("Communicator", "UniqueId"):
        for name in public(getattr(fake, cls)):
            ours, theirs = (getattr(getattr(module, cls), name) for module in (fake, real))
            assert isinstance(ours, property) == isinstance(theirs, property), name
            assert isinstance(ours, property) or parameters(ours) == parameters(theirs), name
    assert {each.name for each in fields(fake.NCCLConfig)} <= {each.name for each in fields(real.NCCLConfig)}
    assert issubclass(real.NcclInvalid, Exception) and int(real.SUM) == fake.SUM
    assert (int(real.MAX), int(real.MIN)) == (fake.MAX, fake.MIN)
    assert len(real.UniqueId.from_bytes(bytes(128)).as_bytes) == 128
    assert {"version"} <= {each.name for each in fields(real.LibraryInfo)}


@needs_nccl4py
def test_the_fake_has_the_signatures_of_cuda_core() -> None:
    real, fake = importlib.import_module("cuda.core"), cuda_core()
    for cls, names in {"Device": ["set_current", "create_stream"], "Stream": ["record", "wait", "from_handle"]}.items():
        for name in names:
            ours, theirs = (getattr(getattr(module, cls), name) for module in (fake, real))
            assert parameters(ours) == parameters(theirs), name
    assert hasattr(real.Event, "is_done") and hasattr(real.Device, "uuid")
    assert int(real.LEGACY_DEFAULT_STREAM.handle) == fake.LEGACY_DEFAULT_STREAM.handle


@needs_nccl4py
@pytest.mark.parametrize("dtype", FLOATS_AND_INTEGERS)
def test_nccl4py_reads_our_tensors_where_they_lie(dtype: str) -> None:
    """No GPU is needed for that."""
    from nccl.core.buffer import NcclBuffer

    array = np.ones(5, numpy_dtype(dtype))
    found = NcclBuffer(tensor(array, 3))
    assert (found.ptr, found.count, found.device_id) == (array.ctypes.data, 5, 3)
    assert found.dtype.numpy_dtype == array.dtype
