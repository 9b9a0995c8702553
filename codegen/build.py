"""Plan -> artefact: each distinct kernel written once by its rule, linked with the entry point, kept in the cache."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gluongraph import debug
from gluongraph.codegen import cache, cuda, te, tir
from gluongraph.codegen.cuda_math import GpuKernel
from gluongraph.codegen.rule import bind
from gluongraph.codegen.rules import emit
from gluongraph.codegen.targets import Target
from gluongraph.errors import CompileError
from gluongraph.plan import Launch, Plan
from gluongraph.program import Program, program_of

ENTRY = "step"


@dataclass(frozen=True)
class Artefact:
    """Compiled code and its description. `path` is None where nothing could be linked and `module` holds the code."""

    program: Program
    path: Path | None
    module: Any = None
    compiled: int = 0  # kernels compiled now; 0 when the cache had them
    seconds: float = 0.0
    gpu: bool = False  # do its kernels run on a GPU?


def build(plan: Plan, target: Target) -> Artefact:
    """The artefact of a plan, from the cache if the same plan was built before for the same target."""
    key, gpu = cache.key(plan, target), target.cpu is None
    program = program_of(plan)
    found, shown = cache.find(key), debug.wants("code") or bool(debug.settings().dump)
    if found is not None and not shown:
        return Artefact(program, found, gpu=gpu)
    started = time.perf_counter()
    functions = [kernel(launch, target) for launch in plan.kernels.values()]
    for function in functions if shown else ():
        debug.log("code", str(function))
        debug.dump(f"{tir.name_of(function)}.txt", str(function))
    if found is not None:  # written for the reader only
        return Artefact(program, found, gpu=gpu)
    module = tir.link(functions, {ENTRY: entry(plan, program)}, target.tvm)
    seconds = time.perf_counter() - started
    try:
        library = cache.store(key, program, lambda path: _export(module, path, target))
    except CompileError:  # no linker on this machine: the code lives in this process only
        return Artefact(program, None, module, len(functions), seconds, gpu)
    return Artefact(program, library, None, len(functions), seconds, gpu)


def _export(module: Any, library: Path, target: Target) -> None:
    """The library; for a GPU, beside it, machine code named by the digest of the source that the library holds."""
    tir.export(module, str(library), target.machine)
    if target.cpu is None:
        source = te.cuda_source(module)
        if source and (binary := te.binary(source, target.tvm["arch"])) is not None:
            library.with_name(f"{hashlib.sha256(source.encode()).hexdigest()}.fatbin").write_bytes(binary)


def kernel(launch: Launch, target: Target) -> tir.PrimFunc:
    """The code of one kernel. On a GPU it is code of the host, which starts one grid of threads or several."""
    if target.cpu is None:
        gpu = GpuKernel(launch.kernel)
        cuda.emit(gpu, launch.group, bind(gpu, launch))
        return gpu.finish()
    k = tir.Kernel(launch.kernel)
    emit(k, launch.group, launch.candidate, bind(k, launch), target.cpu)
    return k.finish()


def entry(plan: Plan, program: Program) -> tir.Entry:
    """The entry point: the plan's launches over the program's arguments."""
    position = {arg.name: i for i, arg in enumerate(program.args)}
    calls = [tir.Call(launch.kernel, tuple(position[b.name] for b in launch.arguments)) for launch in plan.launches]
    return tir.Entry(tuple(calls))
