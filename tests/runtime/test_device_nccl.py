"""Programs with collectives on GPUs that are fakes: their memory is the host's, their kernels are code for this CPU,
which a stream's thread runs, and NCCL is the fake of its tests. Ranks are threads."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from fake_nccl import Cluster, ThreadCommunicator, installed

from gluongraph import ops
from gluongraph.compiler.lower import Compiled, lower
from gluongraph.errors import IndexRangeError
from gluongraph.ir.graph import Graph, TensorType
from gluongraph.runtime import loader
from gluongraph.runtime.collectives import HostViews
from gluongraph.runtime.communicator import environment
from gluongraph.runtime.communicator.agreement import Agreement
from gluongraph.runtime.communicator.base import Disagreement, PeerLost
from gluongraph.runtime.communicator.local import LocalCommunicator
from gluongraph.runtime.communicator.nccl import NcclCommunicator
from gluongraph.runtime.device import CUDA, Device, DeviceExecutor
from gluongraph.storage import aligned_empty

RANKS, ROWS = 2, 5
SHAPES = ((3, 5), (7,))  # of what is scattered: there is a gap behind each
LONG = 30.0


class Memory(NamedTuple):
    """An allocation, as the loader has it."""

    array: Any

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Within: GPUs have memory, and whatever goes there is done in the order of the default stream."""
    made = Cluster(RANKS)

    def allocate(nbytes: int, kind: int, number: int) -> Memory:
        assert kind == CUDA
        array = aligned_empty((nbytes,), np.uint8)
        array.fill(0xFF)
        made.kept.append(array)
        return Memory(array)

    def move(target: int, source: int, nbytes: int, waits: bool = True) -> None:
        made.stream(0).launch(lambda: ctypes.memmove(target, source, nbytes))
        if waits:
            made.stream(0).sync()

    def copy(source: Any, target: Any) -> None:
        move(target.data_ptr(), source.data_ptr(), source.shape[0], waits=False)

    monkeypatch.setattr(loader, "allocate", allocate)
    monkeypatch.setattr(loader, "copy", copy)
    monkeypatch.setattr(loader, "copy_in", lambda t, a: move(t.data_ptr(), a.ctypes.data, a.nbytes))
    monkeypatch.setattr(loader, "copy_out", lambda t, a: move(a.ctypes.data, t.data_ptr(), a.nbytes))
    monkeypatch.setattr(loader, "synchronize", lambda kind, number: made.stream(0).sync())
    with installed(made):
        yield made
    assert made.violations == []


def program() -> tuple[Compiled, dict[str, Any]]:
    """A sum beside which a kernel runs, a scattered and a gathered one, and a check of indices; and its state."""
    x, z = ops.input("x", TensorType(SHAPES[0])), ops.input("z", TensorType(SHAPES[1]))
    w, lr = ops.input("w", TensorType(SHAPES[0])), ops.input("lr", TensorType(()))
    rows = ops.input("rows", TensorType((4,), "i32"))
    index = ops.checked_index(rows, ROWS, what="row", help="rows from 0 to 4")
    total, other = ops.all_reduce(x * 2.0, z + 1.0, ranks=RANKS, bucket=4)
    taken = ops.take(ops.literal(np.arange(ROWS, dtype="f")), index)
    beside = ops.exp(w)
    shard = ops.reduce_scatter(x + w, z * 3.0, ranks=RANKS)
    first, second = ops.all_gather(shard * 2.0, ranks=RANKS, shapes=SHAPES)
    outputs = {"other": other, "taken": taken, "beside": beside, "shard": shard + 0.0, "first": first * 1.0}
    inputs = {"x": x, "z": z, "w": w, "lr": lr, "rows": rows}
    graph = Graph(inputs, {**outputs, "second": second * 1.0}, {"w": w - total * lr})
    roles = {"x": "input", "z": "input", "w": "state", "lr": "scalar", "rows": "input"}
    return lower(graph, roles), {"w": np.arange(15, dtype="f").reshape(SHAPES[0]) % 4}


COMPILED, STATE = program()
Batch = dict[str, Any]


def batch(rank: int) -> Batch:
    """Small integers, whose sums are exact."""
    x = (np.arange(15, dtype="f").reshape(SHAPES[0]) * 3 + rank * 5) % 7
    return {"x": x, "z": (np.arange(7, dtype="f") + rank) % 5, "rows": np.array([rank, 2, 4, 0], np.int32)}


def expected(w: Any, lr: float) -> dict[str, Any]:
    """The results of each rank that all have in common, and the flat memory of the scattered sums."""
    batches = [batch(rank) for rank in range(RANKS)]
    flat = np.zeros(48, "f")  # of 32-byte shards, 64-byte arrays
    flat[:15], flat[16:23] = sum(b["x"] + w for b in batches).reshape(-1), sum(b["z"] * 3 for b in batches)
    return {
        "other": sum(b["z"] + 1 for b in batches),
        "first": flat[:15].reshape(SHAPES[0]) * 2,
        "second": flat[16:23] * 2,
        "flat": flat[:32],
        "w": w - sum(b["x"] * 2 for b in batches) * np.float32(lr),
    }


def executor(cluster: Cluster, communicator: Any, state: dict[str, Any], **how: Any) -> DeviceExecutor:
    """One on the GPU of a rank, whose kernels are launched on the default stream. Without a communicator it finds that
    of its process."""
    assert COMPILED.artefact is not None
    module = COMPILED.module()

    def launched(function: Callable[[int], None], table: int) -> None:
        cluster.stream(0).launch(partial(function, table))

    entries = [partial(launched, loader.function(module, name)) for name in COMPILED.artefact.program.segments]
    device = Device(CUDA, 0 if communicator is None else communicator.device)
    made = DeviceExecutor(
        entries, COMPILED.artefact.program, state, device, refuse=refuse, text="same", communicator=communicator, **how
    )
    made.scalar("lr")[0] = 0.5
    cluster.kept.append(made)
    return made


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The world of each rank is its `worlds.own`: processes have one each."""
    here = threading.local()
    monkeypatch.setattr(environment, "world", lambda: here.own)
    return here


def refuse(values: Any) -> Any:
    raise IndexRangeError(f"rows {values['rows'].tolist()}")


def call(executor: DeviceExecutor, batch: Batch) -> dict[str, Any]:
    results = executor([batch[name] for name in executor.input_names])
    return dict(zip(executor.output_names, results, strict=True))


def spoil(executor: DeviceExecutor) -> None:
    """Scratch memory is NaN, with what lies between arrays."""
    name = next(arg.name for arg in executor.program.args if arg.space == "scratch")
    memory = executor._spans[name]._memory
    HostViews().flat(memory.address, memory.nbytes, "u8")[:] = 0xFF


def test_the_program_has_all_of_it() -> None:
    assert COMPILED.artefact is not None
    steps, ops_of = COMPILED.artefact.program.steps, [c.op for c in COMPILED.artefact.program.collectives]
    assert sorted(ops_of) == ["all_gather", "all_reduce", "reduce_scatter"]
    number = ops_of.index("all_reduce")
    between = steps[steps.index(("start", number)) : steps.index(("wait", number))]
    assert "run" in {what for what, _ in between}


@pytest.mark.parametrize("mirror", [True, False])
def test_calls(cluster: Cluster, mirror: bool) -> None:
    def train(boot: ThreadCommunicator) -> tuple[Any, ...]:
        communicator, state = NcclCommunicator(boot), {"w": STATE["w"].copy()}
        found = executor(cluster, communicator, state, mirror=mirror)
        w, rank = state["w"].copy(), boot.rank
        for _ in range(3):
            spoil(found)
            results, want = call(found, batch(rank)), expected(w, 0.5)
            for name in ("other", "first", "second"):
                assert np.array_equal(results[name], want[name]), name
            size = results["shard"].size
            assert np.array_equal(results["shard"], want["flat"][rank * size :][:size])  # zeros between the arrays
            assert results["taken"].tolist() == batch(rank)["rows"].tolist()
            w = want["w"]
            assert np.array_equal(state["w"], w) == mirror
        found.fetch()
        assert np.array_equal(state["w"], w)
        return found.communicates, communicator.device

    assert cluster.run(train) == [(True, 0), (True, 1)]
    streams = {name: {handle for _, other, handle in cluster.calls if other == name} for _, name, _ in cluster.calls}
    assert 0 not in streams["allreduce"] and streams["reduce_scatter"] == streams["allgather"] == {0}


def test_a_refused_batch_changes_nothing(cluster: Cluster) -> None:
    def train(boot: ThreadCommunicator) -> None:
        state = {"w": STATE["w"].copy()}
        found = executor(cluster, NcclCommunicator(boot), state)
        for _ in range(2):
            wrong = batch(boot.rank)
            if boot.rank == 1:
                wrong["rows"][2] = ROWS
            error = IndexRangeError if boot.rank == 1 else Disagreement
            with pytest.raises(error, match=r"rows \[1, 2, 5, 0\]|rank 1 has refused the batch"):
                call(found, wrong)
            assert np.array_equal(state["w"], STATE["w"])
        call(found, batch(boot.rank))
        assert np.array_equal(state["w"], expected(STATE["w"], 0.5)["w"])

    cluster.run(train)
    assert len([name for _, name, _ in cluster.calls if name == "allreduce"]) == RANKS


def test_other_scalars_are_found_before_the_first_collective(cluster: Cluster) -> None:
    def train(boot: ThreadCommunicator) -> None:
        state = {"w": STATE["w"].copy()}
        found = executor(cluster, NcclCommunicator(boot), state)
        found.scalar("lr")[0] = boot.rank
        with pytest.raises(Disagreement, match=r"lr: 0\.0 on rank 0, 1\.0 on rank 1"):
            call(found, batch(boot.rank))
        assert np.array_equal(state["w"], STATE["w"])

    cluster.run(train)
    assert cluster.calls == []


def test_a_lost_rank_leaves_the_hosts_state(cluster: Cluster) -> None:
    """It has agreed, and does not come to the collectives: the other one does not wait for it in a copy."""
    gone = threading.Event()

    def train(boot: ThreadCommunicator) -> None:
        state = {"w": STATE["w"].copy()}
        communicator = NcclCommunicator(boot, timeout=0.5)
        found = executor(cluster, communicator, state)
        if boot.rank == 1:
            assert found._segments is not None
            found._segments._agreement(False)
            assert gone.wait(LONG)
            return
        with pytest.raises(PeerLost, match=r"rank 0 of 2 has waited 0\.5 s for allreduce"):
            call(found, batch(0))
        gone.set()
        assert np.array_equal(state["w"], STATE["w"])

    cluster.run(train)
    assert cluster.aborted == [0]


def test_collectives_can_be_completed_one_by_one(cluster: Cluster) -> None:
    """As a profile does; the state is restored."""

    def train(boot: ThreadCommunicator) -> None:
        state = {"w": STATE["w"].copy()}
        found = executor(cluster, NcclCommunicator(boot), state)
        with found.lent([batch(boot.rank)[name] for name in found.input_names]):
            for complete in found.collectives:
                complete()
                found.wait()
        assert np.array_equal(state["w"], STATE["w"])

    cluster.run(train)
    assert len(cluster.calls) == 3 * RANKS


# -- which communicator


def test_ranks_are_connected_by_nccl_once(cluster: Cluster, worlds: Any) -> None:
    def ask(boot: ThreadCommunicator) -> tuple[Any, ...]:
        worlds.own = boot
        first = environment.world_on_gpus()
        assert environment.world_on_gpus() is first
        worlds.own = smaller = boot.split(boot.rank)
        assert environment.world_on_gpus() is smaller  # one rank needs none
        return type(first), first.rank, first.size

    assert cluster.run(ask) == [(NcclCommunicator, rank, RANKS) for rank in range(RANKS)]


def test_ranks_are_connected_when_all_have_agreed(cluster: Cluster, worlds: Any) -> None:
    """One that has failed to compile the program says so instead: nobody waits for it in NCCL."""

    def train(boot: ThreadCommunicator) -> None:
        worlds.own, state = boot, {"w": STATE["w"].copy()}
        if boot.rank == 1:
            Agreement(boot, "")(failed=True)
            return
        found = executor(cluster, None, state)
        with pytest.raises(Disagreement, match="rank 1 has refused"):
            call(found, batch(0))
        assert found._segments is not None and found._segments.connected is None

    cluster.run(train)
    assert cluster.groups == {}


def test_programs_use_the_communicator_of_their_process(cluster: Cluster, worlds: Any) -> None:
    cluster.version = "2.30.3"  # both ranks are on one GPU

    def train(boot: ThreadCommunicator) -> None:
        worlds.own, state = boot, {"w": STATE["w"].copy()}
        boot.local_rank = 0
        call(executor(cluster, None, state), batch(boot.rank))
        assert np.array_equal(state["w"], expected(STATE["w"], 0.5)["w"])

    cluster.run(train)
    assert len(cluster.groups) == 1


def test_a_rank_has_the_gpu_of_its_number_on_the_host(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_gpu", None)
    monkeypatch.setattr(environment, "_world", None)
    assert environment.local_gpu() == 0
    rank = LocalCommunicator()
    monkeypatch.setattr(rank, "local_rank", 5, raising=False)
    monkeypatch.setattr(environment, "_world", rank)
    cluster.gpus = 4
    assert environment.local_gpu() == 1
    environment.use_world(LocalCommunicator())  # others are lost
    assert environment.local_gpu() == 1


def test_without_a_gpu_its_number_is_0(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_gpu", None)
    monkeypatch.setattr(environment, "_world", LocalCommunicator())
    cluster.gpus = 0
    assert environment.local_gpu() == 0
