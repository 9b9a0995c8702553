"""What only a machine with a GPU can show of the communicator over NCCL: every collective on device arrays, their
speed, that a lost rank is noticed, and compiled steps for GPUs whose ranks exchange gradients between kernels. One rank
alone; two ranks on one GPU; one rank on each GPU where there are more.

python benchmarks/nccl_check.py [--bytes 4096 1048576 67108864] [--timeout 300] [--steps-only]

A program of small integers has to be exact. Steps have to end with the losses and weights of the same steps for the
CPU, up to 1e-4 of the largest element: kernels of GPUs add in other orders.

Needs gluongraph[cuda,mpi], nccl4py and NCCL. Says in one line each what ran and what was skipped, and why. Ends with
status 0 where there is no GPU, with 1 where there is one and no nccl4py, with 2 where a result is wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import gluongraph as mx
from gluongraph import gluon, ops
from gluongraph.codegen.targets import target
from gluongraph.compiler.lower import lower
from gluongraph.dtypes import DTYPES, dtype_name
from gluongraph.host import nvidia
from gluongraph.ir.graph import Graph, TensorType
from gluongraph.runtime import loader
from gluongraph.runtime.communicator import overlap
from gluongraph.runtime.communicator.base import Communicator, PeerLost
from gluongraph.runtime.communicator.environment import world
from gluongraph.runtime.communicator.nccl import SHARES_GPUS, NcclCommunicator
from gluongraph.runtime.device import Device, DeviceExecutor, Memory
from gluongraph.runtime.table import CUDA

SIZES = (4 << 10, 1 << 20, 64 << 20)  # bytes
SETTINGS = {  # of Open MPI: as root in a container; ranks that share cores
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
WAIT = 5.0  # seconds after which a rank that does not come counts as lost
STEPS, TOLERANCE = 5, 1e-4  # of trainings; of their largest element
Array = np.ndarray[Any, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Run all jobs; the status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", nargs="*", type=int, default=list(SIZES), help="sizes in the table of speeds")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for each job")
    parser.add_argument("--steps-only", action="store_true", help="compiled steps, without collectives by themselves")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)  # this process is a rank of a job
    options = parser.parse_args(argv)
    if options.rank:
        return run_rank(options.bytes, options.steps_only)
    if not Device().exists():
        print("no CUDA device: nothing ran")
        return 0
    try:
        version = show_versions()
    except (ImportError, RuntimeError) as error:
        print(f"skipped: everything: {error}")
        return 1
    lines, wrong = [], 0
    for ranks, what in jobs():
        if reason := reason_to_skip(ranks, version):
            lines.append(f"skipped: {what}: {reason}")
            continue
        print(f"\n--- {what}", flush=True)
        outcome = run_job(ranks, options)
        wrong += bool(outcome)
        lines.append(f"ran: {what}: {outcome or 'all results are right'}")
    print("", *lines, sep="\n")
    return 2 if wrong else 0


def show_versions() -> str:
    """Print what is installed; the version of NCCL.

    Raises:
        ImportError: nccl4py or what it needs is not installed.
        RuntimeError: NCCL's library is not found.
    """
    from cuda.core import Device as Gpu
    from nccl import core

    found = core.get_version()
    if found.libnccl is None:
        raise RuntimeError("NCCL's library is not found: pip install nvidia-nccl-cu13")
    names = ("nccl4py", "cuda-core", "cuda-bindings", "apache-tvm", "apache-tvm-ffi", "mpi4py")
    there = {dist.metadata["Name"]: dist.version for dist in importlib.metadata.distributions()}
    print(f"NCCL {found.libnccl};", ", ".join(f"{name} {there.get(name, '-')}" for name in names))
    for number in range(nvidia.count()):
        print(f"GPU {number}: {Gpu(number).name}, compute capability {nvidia.capability(number)}")
    return str(found.libnccl.version)


def jobs() -> Iterator[tuple[int, str]]:
    """Numbers of ranks, with words."""
    gpus = nvidia.count()
    yield 1, "1 rank on one GPU"
    if gpus == 1:
        yield 2, "2 ranks on one GPU (NCCL_MULTI_RANK_GPU_ENABLE=1)"
    else:
        yield gpus, f"{gpus} ranks on {gpus} GPUs"
        yield 2 * gpus, f"{2 * gpus} ranks on {gpus} GPUs (NCCL_MULTI_RANK_GPU_ENABLE=1)"


def reason_to_skip(ranks: int, version: str) -> str:
    """Why a job cannot run here; "" if it can."""
    if ranks > 1 and (importlib.util.find_spec("mpi4py") is None or shutil.which("mpiexec", path=path()) is None):
        return "mpi4py or mpiexec is not installed: pip install 'gluongraph[mpi]'"
    if ranks > nvidia.count() and tuple(map(int, version.split(".")[:2])) < SHARES_GPUS:
        return f"two ranks on one GPU take NCCL 2.30, this is {version}"
    return ""


def path() -> str:
    """Where programs are: those of this environment first."""
    return os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))


def run_job(ranks: int, options: argparse.Namespace) -> str:
    """Run a job; what is wrong, or ""."""
    sizes = ["--bytes", *map(str, options.bytes)]
    more = ["--steps-only"] if options.steps_only else []
    command = [sys.executable, __file__, "--rank", *sizes, *more]
    if ranks > 1:
        launcher = str(shutil.which("mpiexec", path=path()))
        command = [launcher, "-n", str(ranks), sys.executable, "-m", "mpi4py", *command[1:]]
    try:
        environment = {**os.environ, **SETTINGS, "PATH": path(), "GG_COMM_TIMEOUT": "60"}
        done = subprocess.run(command, env=environment, timeout=options.timeout)
    except subprocess.TimeoutExpired:
        return f"not complete after {options.timeout:g} s"
    return f"exit code {done.returncode}, see above" if done.returncode else ""


# --- a rank


class OnGpu:
    """An array on a GPU."""

    def __init__(self, array: Any, number: int):
        name = dtype_name(array.dtype)
        self._memory = Memory(max(1, array.nbytes), Device(CUDA, number))
        self._span, self._like = self._memory.span(name, array.size), array
        self._span.upload(np.ascontiguousarray(array))
        self.tensor = loader.from_address(self._span.address, array.size, name, CUDA, number)

    def part(self, start: int, size: int) -> Any:
        """A tensor of some of its elements."""
        name = dtype_name(self._like.dtype)
        address = self._span.address + start * self._like.itemsize
        return loader.from_address(address, size, name, CUDA, self._memory.device.number)

    def host(self) -> Any:
        """Its elements."""
        back = np.empty_like(self._like)
        self._span.download(back)
        return back


def run_rank(sizes: Sequence[int], steps_only: bool = False) -> int:
    """What one rank of a job does; the status."""
    communicator = NcclCommunicator(world(), timeout=60)
    wrong = [] if steps_only else check(communicator)
    wrong += check_program(communicator) + check_steps(communicator)
    if not steps_only:
        measure(communicator, sizes)
        wrong += check_lost_rank(communicator) if communicator.size > 1 else []
    failed = np.array([len(wrong)], np.int64)
    communicator.allreduce(failed, "max")
    for line in wrong:
        print(f"WRONG on {communicator!r}: {line}", flush=True)
    return 2 if failed[0] else 0


def check(communicator: NcclCommunicator) -> list[str]:
    """Every collective, on every element type. What is wrong."""
    wrong: list[str] = []
    kinds = [name for name in DTYPES if name != "bool"]
    for name in kinds:
        for what, right in checks(communicator, DTYPES[name].numpy):
            if not right:
                wrong.append(f"{what} of {name}")
    if communicator.rank == 0:
        print(f"{len(kinds)} element types, collectives: {len(wrong)} wrong", flush=True)
    return wrong


def checks(communicator: NcclCommunicator, dtype: Any) -> Iterator[tuple[str, bool]]:
    """Collectives of small integers, which are exact in every type: is each right?"""
    size, rank, number = communicator.size, communicator.rank, communicator.device
    rows = np.array([(np.arange(6 * size) * 3 + r * 5) % 7 for r in range(size)])

    def on_gpu(values: Any) -> OnGpu:
        return OnGpu(np.asarray(values).astype(dtype), number)

    def is_(found: OnGpu, want: Any) -> bool:
        communicator.synchronize()
        return bool(np.array_equal(found.host().astype("f8"), want))

    for op, want in (("sum", rows.sum(0)), ("max", rows.max(0)), ("min", rows.min(0))):
        array = on_gpu(rows[rank])
        communicator.allreduce(array.tensor, op)
        yield f"allreduce {op}", is_(array, want)
        array = on_gpu(rows[rank])
        communicator.start_allreduce(array.tensor, op).wait()
        yield f"start_allreduce {op}", is_(array, want)
    if size & (size - 1) == 0:
        array = on_gpu(rows[rank])
        communicator.allreduce_tree(array.tensor)
        yield "allreduce_tree", is_(array, rows.sum(0))
    source, part, whole = on_gpu(rows[rank]), on_gpu(np.zeros(6)), on_gpu(np.zeros(6 * size))
    communicator.reduce_scatter(source.tensor, part.tensor)
    yield "reduce_scatter", is_(part, rows.sum(0).reshape(size, -1)[rank])
    communicator.allgather(part.tensor, whole.tensor)
    yield "allgather", is_(whole, rows.sum(0))
    own = on_gpu(rows[rank])
    communicator.allgather(own.part(6 * rank, 6), own.tensor)
    yield "allgather in place", is_(own, np.concatenate([rows[r].reshape(size, -1)[r] for r in range(size)]))
    communicator.alltoall(source.tensor, whole.tensor)
    yield "alltoall", is_(whole, np.concatenate([row.reshape(size, -1)[rank] for row in rows]))
    for root in range(size):
        array = on_gpu(rows[rank])
        communicator.broadcast(array.tensor, root)
        yield f"broadcast from {root}", is_(array, rows[root])


def check_program(communicator: Any) -> list[str]:
    """A program with every kind of collective between its kernels, on small integers. What is wrong."""
    ranks, shapes = communicator.size, ((3, 5), (7,))
    x, z, w = (ops.input(name, TensorType(shape)) for name, shape in zip("xzw", (*shapes, shapes[0]), strict=True))
    total, other = ops.all_reduce(x * 2.0, z + 1.0, ranks=ranks, bucket=4)  # beside the kernels of what follows
    shard = ops.reduce_scatter(x + w, z * 3.0, ranks=ranks)
    first, second = ops.all_gather(shard * 2.0, ranks=ranks, shapes=shapes)
    graph = Graph({"x": x, "z": z, "w": w}, {"z": other, "a": first * 1.0, "b": second * 1.0}, {"w": w - total})
    compiled = lower(graph, {"x": "input", "z": "input", "w": "state"}, on=target("cuda"))
    assert compiled.artefact is not None
    program, state = compiled.artefact.program, {"w": np.ones(shapes[0], "f")}
    entries = [loader.function(compiled.module(), name) for name in program.segments]
    run = DeviceExecutor(entries, program, state, Device(CUDA, communicator.device), communicator=communicator)
    batches = [[(np.arange(n, dtype="f") + r) % 7 for n in (15, 7)] for r in range(ranks)]
    own = {"x": batches[communicator.rank][0].reshape(shapes[0]), "z": batches[communicator.rank][1]}
    wrong = set()
    for _ in range(2):
        before = state["w"].copy().reshape(-1)
        found = dict(zip(run.output_names, run([own[name] for name in run.input_names]), strict=True))
        want = {
            "z": sum(b + 1 for _, b in batches),
            "a": sum(a + before for a, _ in batches) * 2,
            "b": sum(b * 6 for _, b in batches),
            "w": before - sum(a * 2 for a, _ in batches),
        }
        found["w"] = state["w"]
        wrong |= {name for name, value in want.items() if not np.array_equal(found[name].reshape(-1), value)}
    if communicator.rank == 0:
        print(f"a program with {len(program.collectives)} collectives: {len(wrong)} results wrong", flush=True)
    return [f"{name} of a program with collectives" for name in sorted(wrong)]


def check_steps(communicator: Communicator) -> list[str]:
    """Compiled steps for the GPU against those for the CPU. What is wrong."""
    wrong: list[str] = []
    cases: dict[str, dict[str, Any]] = {"sums of all gradients": {}, "from an artefact": {"loaded": True}}
    if communicator.size > 1:
        cases |= {"sums beside kernels": {"bucket": 256}, "zero1": {"strategy": "zero1"}, "fsdp": {"strategy": "fsdp"}}
    for name, how in cases.items():
        found, want = train("cuda", **how), train("cpu", **how)
        far = differences(found, want)
        weights = b"".join(value.tobytes() for key, value in found.items() if key != "losses")
        if len(set(communicator.exchange(hashlib.sha256(weights).hexdigest()))) > 1:
            far.append("ranks have other weights")
        wrong += [f"{name}: {each}" for each in far]
        if communicator.rank == 0:
            print(f"steps, {name}: {'; '.join(far) or 'as on the CPU'}", flush=True)
    return wrong


def train(on: str, strategy: str = "allreduce", bucket: int = overlap.BUCKET, loaded: bool = False) -> dict[str, Array]:
    """The losses of this rank's batches in some steps, and the weights after them."""
    mx.random.seed(0)
    net = gluon.nn.HybridSequential(prefix="n_")
    with net.name_scope():
        net.add(gluon.nn.Dense(70, activation="relu", in_units=33), gluon.nn.Dense(5, in_units=70))
    net.initialize(mx.init.Xavier())
    settings = {"learning_rate": 0.1, "momentum": 0.9}
    trainer = gluon.Trainer(net.collect_params(), "sgd", settings, kvstore="dist_sync", strategy=strategy)
    step = mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, target=on)
    rng, losses = np.random.default_rng(world().rank), []
    before, overlap.BUCKET = overlap.BUCKET, bucket
    try:
        for number in range(STEPS):
            if loaded and number == 2:
                step = exported(step)
            x, y = rng.standard_normal((64, 33)).astype("f"), rng.integers(0, 5, 64).astype("i")
            losses.append(step(x, y).asnumpy())
    finally:
        overlap.BUCKET = before
    with step.trainer.whole_parameters():
        weights = {p.name: p.data().asnumpy() for p in step.trainer.params}
    return {"losses": np.array(losses), **weights}


def exported(step: Any) -> Any:
    """The step, through an artefact."""
    with tempfile.TemporaryDirectory() as folder:
        step.export(Path(folder, "step.gga"), modes=["step"])
        return mx.load(Path(folder, "step.gga"), trust="file")


def differences(found: Mapping[str, Array], want: Mapping[str, Array]) -> list[str]:
    """Which arrays differ by more than TOLERANCE of the largest element."""
    lines = []
    for name, value in want.items():
        error = float(np.abs(found[name] - value).max() / np.abs(value).max())
        if not error <= TOLERANCE:
            lines.append(f"{name} differs by {error:.2g} of its largest element")
    return lines


def check_lost_rank(communicator: NcclCommunicator) -> list[str]:
    """The last rank does not come: the others say so instead of waiting. It is the last check of a communicator."""
    short = communicator.split(0, communicator.rank, timeout=WAIT)
    result, start = "", time.monotonic()
    if communicator.rank < communicator.size - 1:
        result = "a collective that a rank does not take part in was completed"
        array = OnGpu(np.ones(1 << 20, "f4"), communicator.device)
        try:
            short.allreduce(array.tensor)
            short.synchronize()
        except PeerLost as error:
            result = ""
            if communicator.rank == 0:
                print(f"a lost rank is noticed after {time.monotonic() - start:.1f} s: {str(error).splitlines()[0]}")
    short.exchange("")
    return [result] if result else []


def measure(communicator: NcclCommunicator, sizes: Sequence[int]) -> None:
    """Print a table: bytes of the larger array, microseconds, and bytes a second, by collective."""
    for nbytes in sizes:
        count = max(1, nbytes // 4 // communicator.size)
        whole, part, other = (
            OnGpu(np.zeros(n, "f4"), communicator.device)
            for n in (count * communicator.size, count, count * communicator.size)
        )
        calls: dict[str, Callable[[], Any]] = {
            "allreduce": lambda a=whole: communicator.allreduce(a.tensor),
            "start_allreduce": lambda a=whole: communicator.start_allreduce(a.tensor).wait(),
            "reduce_scatter": lambda a=whole, b=part: communicator.reduce_scatter(a.tensor, b.tensor),
            "allgather": lambda a=part, b=whole: communicator.allgather(a.tensor, b.tensor),
            "alltoall": lambda a=whole, b=other: communicator.alltoall(a.tensor, b.tensor),
            "broadcast": lambda a=whole: communicator.broadcast(a.tensor),
        }
        for name, call in calls.items():
            seconds, enqueued = timed(communicator, call, 20 if nbytes <= 1 << 20 else 5)
            if communicator.rank == 0:
                speed = f"{nbytes / seconds / 1e9:8.2f} GB/s"
                print(f"{name:16} {nbytes:>12,} B {seconds * 1e6:10.1f} us {speed}, host {enqueued * 1e6:6.1f} us")


def timed(communicator: NcclCommunicator, call: Callable[[], Any], times: int) -> tuple[float, float]:
    """Seconds of a call until it is complete, and until the host goes on: the best of 3 runs, by their mean."""
    call()
    best = [float("inf"), float("inf")]
    for _ in range(3):
        communicator.barrier()
        start = time.perf_counter()
        for _ in range(times):
            call()
        enqueued = time.perf_counter() - start
        communicator.synchronize()
        best = [min(best[0], (time.perf_counter() - start) / times), min(best[1], enqueued / times)]
    return best[0], best[1]


if __name__ == "__main__":
    sys.exit(main())
