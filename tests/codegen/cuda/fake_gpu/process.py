"""A process with a fake GPU: what it runs goes through TVM's unmodified runtime library for CUDA, whose driver and CUDA
runtime are the fakes that lie here. Threads are fibers (gpu.h), and arrays lie next to pages that may not be touched.

`process.py FOLDER cases`: every op, the update of every optimizer and the step of a net, kernel by kernel.
`process.py FOLDER steps`: compiled steps as users have them. What they find is in FOLDER/result.json.
`process.py FOLDER ranks`: compiled steps of several ranks, with a fake GPU each; FOLDER/<rank>/result.json.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import gluongraph as mx
from gluongraph import gluon, nd
from gluongraph.bench.workloads import UPDATES
from gluongraph.codegen import build
from gluongraph.codegen.targets import target
from gluongraph.codegen.tvm import linking, machine_code, te
from gluongraph.compiler.lower import built, lower
from gluongraph.dtypes import dtype_name, numpy_dtype
from gluongraph.gluon import nn
from gluongraph.host import cuda_compiler, nvidia
from gluongraph.host.process import import_tvm
from gluongraph.ir import interpreter
from gluongraph.ir.graph import OPS, Graph
from gluongraph.ir.plan import Buffer, Plan
from gluongraph.runtime import loader
from gluongraph.runtime.collectives import HostViews
from gluongraph.runtime.communicator import environment
from gluongraph.runtime.communicator.environment import world

import_tvm("tvm")  # without PyTorch, whose CUDA runtime would be in the process before the fake one
sys.path.insert(0, str(Path(__file__).parent.parent))
import gpu  # noqa: E402 - TVM is there now
import test_cuda  # noqa: E402 - it imports TVM, too

HERE = Path(__file__).parent
PAGE = 4096
FRONT, END = "front", "end"  # where arrays lie, of the room between two such pages
RUNS = ((FRONT, 0), (END, 1), (FRONT, 2))  # with the order of threads and blocks


def load_fakes(folder: Path) -> ctypes.CDLL:
    """The driver, and CUDA's runtime, under the names that everybody asks for."""
    for name, source, more in (
        ("libcuda.so.1", "driver.c", []),
        ("libcudart.so.13", "runtime.c", [f"-Wl,--version-script={HERE / 'runtime.map'}"]),
    ):
        command = ["gcc", "-O1", "-w", "-shared", "-fPIC", f"-Wl,-soname,{name}", *more, str(HERE / source)]
        subprocess.run([*command, "-o", str(folder / name)], check=True)
    ctypes.CDLL(str(folder / "libcudart.so.13"), ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(folder / "libcuda.so.1"), ctypes.RTLD_GLOBAL)


folder = Path(sys.argv[1])
if sys.argv[2] == "ranks":  # before the fakes are there, which MPI would ask about memory
    folder /= str(world().rank)
    folder.mkdir()
DRIVER = load_fakes(folder)

_made = [0]


def compiled_for_fibers(source: str, arch: str) -> bytes:
    """In place of nvcc."""
    assert arch == "sm_90"
    _made[0] += 1
    place = folder / f"kernels{_made[0]}"
    place.mkdir()
    return gpu.compiled_for_fibers(source, place).read_bytes()


cuda_compiler.binary = compiled_for_fibers


def order(number: int) -> None:
    ctypes.c_int.in_dll(DRIVER, "fake_order").value = number


# -- single plans


@dataclass(frozen=True)
class Case:
    """A plan, what to feed it, and what must come out."""

    plan: Plan
    given: test_cuda.Arrays
    want: Mapping[str, Any]
    least: float = 0.0  # tolerance


def cases() -> dict[str, Case]:
    made = {}
    for loops in (False, True):
        for name, graph, given in test_cuda.cases(loops):
            plan = test_cuda.plan_of(graph, dict.fromkeys(graph.inputs, "input"))
            in_f32 = any(n.op.kind == "random" for n in graph.nodes())
            made[f"op-{name}"] = Case(plan, given, interpreter.run(graph, given)[0], 2e-5 if in_f32 else 0.0)
    for name, row in UPDATES.items():
        made[f"optimizer-{name}"] = step_case(*update(row.optimizer, row.hyper))
    made["net-digits"] = step_case(*test_cuda.digits(2))
    return made


def step_case(graph: Graph, roles: Mapping[str, str]) -> Case:
    given = test_cuda.values(graph, roles)
    outputs, updates = interpreter.run(graph, given)
    return Case(test_cuda.plan_of(graph, roles), given, {**outputs, **updates})


def update(optimizer: str, hyper: Mapping[str, Any]) -> tuple[Graph, dict[str, str]]:
    """A step of one layer: a matrix, whose gradient is a product, and a vector unless the optimizer takes none."""
    net = nn.Dense(10, in_units=37, use_bias=optimizer != "groupadagrad")
    x = np.random.default_rng(0).standard_normal((12, 37)).astype("f")
    y = nd.array(np.arange(12) % 10, dtype="int32")
    return test_cuda.step_graph(net, (nd.array(x), y), optimizer, hyper)


class Library:
    """The kernels of all cases, compiled and loaded as an artefact's are."""

    def __init__(self, made: Mapping[str, Case]):
        on = target("cuda")
        functions = []
        for name, case in made.items():
            for kernel, launch in case.plan.kernels.items():
                functions.append(build.kernel(replace(launch, kernel=symbol(name, kernel)), on))
        with te.as_source():
            module = machine_code.link(functions, {}, on.tvm)
            machine_code.export(module, str(folder / "step.so"), linking.linker(linking.command_for(on.machine)))
            source = te.cuda_source(module)
        (folder / "kernels.cu").write_text(source)
        binaries = {f"{build.hashlib.sha256(source.encode()).hexdigest()}.fatbin": compiled_for_fibers(source, "sm_90")}
        self.module = loader.load_code((folder / "step.so").read_bytes(), "the library", True, binaries)

    def run(self, name: str, case: Case, where: str) -> dict[str, Any]:
        memory: dict[str, Any] = {}
        kept = []

        def place(buffer: Buffer) -> Any:
            if buffer.name in memory:
                return memory[buffer.name]
            dtype, size = buffer.type.dtype, buffer.type.size
            nbytes = max(size * numpy_dtype(dtype).itemsize, 1)
            kept.append(room := loader.allocate(nbytes, 2, 0))
            start = loader.address(room) + (-nbytes % PAGE if where == END else 0)
            tensor = memory[buffer.name] = loader.from_address(start, size, dtype, 2, 0)
            if buffer.name in case.given:
                value = np.array(case.given[buffer.name], numpy_dtype(dtype)).reshape(-1)
            elif buffer.space == "const":
                value = np.frombuffer(case.plan.constants[buffer.name], numpy_dtype(dtype)).copy()
            else:
                return tensor
            ctypes.memmove(start, value.ctypes.data, value.nbytes)
            return tensor

        for launch in case.plan.launches:
            loader.function(self.module, symbol(name, launch.kernel))(*map(place, launch.arguments))
        found = {}
        for key, buffer in {**case.plan.outputs, **case.plan.updates}.items():
            value = np.empty(buffer.type.shape, numpy_dtype(buffer.type.dtype))
            ctypes.memmove(value.ctypes.data, loader.address(place(buffer)), value.nbytes)
            found[key] = value
        return found


def symbol(name: str, kernel: str) -> str:
    return f"{name}_{kernel}".replace("-", "_")


def run_cases() -> dict[str, str]:
    """What is wrong with each case; "" if nothing is. A child does them one after the other; where it is ended, as who
    touches memory outside of its arrays is, another one goes on behind the case that it had begun."""
    made = cases()
    library, log = Library(made), folder / "log"
    log.touch()
    names = list(made)
    before = -1
    while before < (done := len(log.read_text().splitlines())) < len(names):
        before = done
        if (child := os.fork()) == 0:
            with contextlib.suppress(BaseException):
                do_cases(library, {name: made[name] for name in names[done:]}, log)
            os._exit(0)
        signal = -os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if signal > 0:
            with log.open("a") as file:
                file.write(json.dumps(f"ended by signal {signal}: {(folder / 'progress').read_text()}") + "\n")
    return dict(zip(names, map(json.loads, log.read_text().splitlines()), strict=True))


def do_cases(library: Library, made: Mapping[str, Case], log: Path) -> None:
    """A line of the log for each."""
    for name, case in made.items():
        wrong = ""
        try:
            for where, number in RUNS:
                (folder / "progress").write_text(f"{name} with its arrays at the {where}, in order {number}")
                order(number)
                test_cuda.compare(library.run(name, case, where), case.want, case.least)
        except (Exception, AssertionError) as error:
            wrong = f"{(folder / 'progress').read_text()}: {type(error).__name__}: {error}"[:2000]
        with log.open("a") as file:
            file.write(json.dumps(wrong) + "\n")


# -- steps as users have them


def dense() -> tuple[Any, tuple[int, ...]]:
    net = nn.HybridSequential()
    net.add(nn.Dense(40, activation="relu", in_units=37), nn.LayerNorm(in_channels=40), nn.Dropout(0.3))
    net.add(nn.Dense(5, in_units=40))
    return net, (33, 37)


def convolutional() -> tuple[Any, tuple[int, ...]]:
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, padding=1, in_channels=3), nn.BatchNorm(in_channels=8), nn.Activation("relu"))
    net.add(nn.MaxPool2D(), nn.Flatten(), nn.Dense(5))
    return net, (4, 3, 8, 8)


def losses(make: Callable[[], Any], on: str, path: Path | None = None) -> list[list[float]]:
    """Of three steps; the last from an artefact, if a path is given."""
    mx.random.seed(0)
    np.random.seed(0)
    net, shape = make()
    net.initialize(mx.init.Xavier())
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 1e-3})
    step = mx.compile(net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, target=on)
    rng, found = np.random.default_rng(0), []
    for number in range(3):
        x, y = rng.standard_normal(shape).astype("f"), rng.integers(0, 5, shape[0]).astype("i")
        if number == 2 and path is not None:
            step.export(path, modes=["step"])
            step = mx.load(path, trust="file")
        found.append(step(nd.array(x), nd.array(y, dtype="int32")).asnumpy().tolist())
    return found


def refused() -> str:
    """What is said of a kernel that CUDA does not start."""
    graph = test_cuda.body([test_cuda.inputs((64,))[0] * 2.0], *test_cuda.inputs((64,)))
    compiled = lower(graph, {"x0": "input"}, on=target("cuda"))
    executor = compiled.executor({})
    ctypes.c_int.in_dll(DRIVER, "fake_refuses").value = 1
    try:
        executor([np.ones(64, "f")])
    except mx.MXNetError as error:
        return str(error)
    finally:
        ctypes.c_int.in_dll(DRIVER, "fake_refuses").value = 0
    return ""


def too_large() -> str:
    """What is said of memory that the GPU does not have."""
    try:
        loader.allocate(90 << 30, 2, 0)
    except mx.MXNetError as error:
        return str(error)
    return ""


def collectives_alone() -> list[str]:
    """Which collectives of a single rank the script for machines with GPUs finds wrong."""
    sys.path.insert(0, str(Path(__file__).parents[4] / "benchmarks"))
    import cuda_check

    wrong = []
    for name in [name for name, op in OPS.items() if op.kind == "collective"]:
        for graph, given in cuda_check.samples(OPS[name]):
            executor = lower(graph, dict.fromkeys(graph.inputs, "input"), on=target("cuda")).executor({})
            results = executor([given[each] for each in executor.input_names])
            want = interpreter.run(graph, given)[0]
            if any(cuda_check.error_of(a, want[k]) for k, a in zip(executor.output_names, results, strict=True)):
                wrong.append(name)
    return wrong


def run_steps() -> dict[str, Any]:
    found: dict[str, Any] = {"gpus": mx.context.num_gpus(), "capability": nvidia.capability()}
    for name, make in (("dense", dense), ("convolutional", convolutional)):
        found[name] = {"cpu": losses(make, "cpu")}
        loader.allocate(64, 2, 0)  # from here on TVM's CUDA runtime is in the process
        previous = ctypes.c_void_p()
        loader._libraries().TVMFFIEnvSetStream(2, 0, ctypes.c_void_p(1234), ctypes.byref(previous))  # as others may
        found[name]["cuda"] = losses(make, "cuda", folder / f"{name}.gga" if name == "dense" else None)
        left = ctypes.c_void_p()
        loader._libraries().TVMFFIEnvSetStream(2, 0, previous, ctypes.byref(left))
        found[name]["stream"] = left.value
    found["launches"] = ctypes.c_long.in_dll(DRIVER, "fake_launches").value
    found["other streams"] = ctypes.c_long.in_dll(DRIVER, "fake_other_streams").value
    found["refused"], found["too large"], found["wrong alone"] = refused(), too_large(), collectives_alone()
    graph = test_cuda.body([test_cuda.inputs((65,))[0] * 3.0], *test_cuda.inputs((65,)))
    plan = test_cuda.plan_of(graph, {"x0": "input"})
    before, artefact = _made[0], built(plan, target("cuda"))
    assert artefact is not None
    holds = any(b"__global__" in data for name, data in artefact.files.items() if name.endswith(".so"))
    found["library"] = {"source": holds, "binaries": len(artefact.binaries), "compiled": _made[0] - before}
    found["source"] = te.source(list(gpu.functions(plan).values()), gpu.CUDA.tvm)
    return found


# -- ranks


class OverMpi:
    """In place of NCCL: MPI, on the memory of the fake GPU, whose kernels are done when they have been launched."""

    device = 0

    def __init__(self, boot: Any):
        self._boot, self.size, self.rank, self.exchange = boot, boot.size, boot.rank, boot.exchange
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*given: Any, **how: Any) -> Any:
            if any(map(on_gpu, given)):
                self.calls.append(name)
            return getattr(self._boot, name)(*(in_memory(each) if on_gpu(each) else each for each in given), **how)

        return call


def on_gpu(given: Any) -> bool:
    return hasattr(given, "__dlpack_device__") and given.__dlpack_device__() == (2, 0)


def in_memory(tensor: Any) -> Any:
    dtype = dtype_name(str(tensor.dtype))
    return HostViews().flat(tensor.data_ptr(), tensor.shape[0] * numpy_dtype(dtype).itemsize, dtype)


def run_ranks() -> dict[str, Any]:
    """What the script for machines with GPUs finds wrong with compiled steps; and the collectives of them."""
    sys.path.insert(0, str(Path(__file__).parents[4] / "benchmarks"))
    import nccl_check

    made = OverMpi(world())
    environment.world_on_gpus = lambda: made
    wrong = [*nccl_check.check_program(made), *nccl_check.check_steps(made)]
    other_streams = ctypes.c_long.in_dll(DRIVER, "fake_other_streams").value
    return {"wrong": wrong, "calls": made.calls, "other streams": other_streams}


if __name__ == "__main__":
    result = {"cases": run_cases, "steps": run_steps, "ranks": run_ranks}[sys.argv[2]]()
    (folder / "result.json").write_text(json.dumps(result))
