"""Plan -> artefact: generate the code of each distinct kernel by its rule, link it with the entry point, cache it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gluongraph import debug
from gluongraph.codegen.cache import artifacts
from gluongraph.codegen.cache.artifacts import Artefact
from gluongraph.codegen.rule import Target, bind, emit
from gluongraph.codegen.tvm import linking, machine_code, te, tir
from gluongraph.codegen.tvm.linking import Linker
from gluongraph.codegen.tvm.merging import Merged, merge
from gluongraph.errors import CompileError
from gluongraph.host import cuda_compiler, disk, store
from gluongraph.host.interrupts import in_parallel
from gluongraph.host.process import threads
from gluongraph.host.progress import task
from gluongraph.ir.entry_point import REPEATED, program_of, segment_name, segments_of
from gluongraph.ir.plan import INDEX_FLAG, Launch, Plan

ENTRY = "step"


def build(plan: Plan, target: Target) -> Artefact:
    """Return the artefact of a plan, from the cache if the same plan was built for the same target before."""
    key, gpu = artifacts.key(plan, target), target.gpu
    program = program_of(plan)
    cached, dumps_code = artifacts.find(key, program, gpu), debug.wants("code") or bool(debug.settings().dump)
    if cached is not None and not dumps_code:
        return cached
    started = time.perf_counter()
    launches = tuple(plan.kernels.values())
    for launch in launches if dumps_code else ():
        text = str(kernel(launch, target))
        debug.log("code", text)
        debug.dump(f"{launch.kernel}.txt", text)
    if cached is not None:  # the code was generated for the dump only
        return cached
    with store.turn(key):  # ranks of one host start together: one of them compiles, the others read
        return artifacts.find(key, program, gpu) or _compiled(plan, target, key, started)


def _compiled(plan: Plan, target: Target, key: str, started: float) -> Artefact:
    """Compile the kernels of a plan and store them."""
    program, gpu, launches = program_of(plan), target.gpu, tuple(plan.kernels.values())
    entries = {segment_name(i): entry(plan, gpu, launches) for i, launches in enumerate(segments_of(plan))}
    write = _write_gpu if gpu else _write
    try:
        linker = linking.linker(linking.command_for(target.machine))
        artefact = artifacts.keep(key, program, lambda path: write(launches, entries, path, target, linker), gpu)
    except (CompileError, OSError):  # no linker on this machine: the code exists in this process only
        if gpu:  # or CUDA's compiler failed; and a module for a GPU runs only from a library
            raise
        module = machine_code.link([kernel(launch, target) for launch in launches], entries, target.tvm)
        artefact = Artefact(program, None, module, gpu=gpu)
    return replace(artefact, compiled=len(launches), seconds=time.perf_counter() - started)


Launches = Sequence[Launch]
Entries = dict[str, machine_code.Entry]
# Sizes of modules, in names of their code, of which LLVM compiles some 1,500 a second: a module has a fixed cost of 20
# ms, and the last one keeps other threads waiting. They grow with what has been generated, between two sizes.
SMALLEST, LARGEST, SHARE = 200, 1500, 8


def _write(launches: Launches, entries: Entries, library: Path, target: Target, linker: Linker) -> None:
    """Write the library from modules that are compiled in parallel, while kernels of the next are generated: TVM
    releases Python's GIL. The modules depend on the kernels only, so the code is the same for any number of threads."""

    def compiled(i: int, merged: Sequence[Merged]) -> str:
        functions = [function for each in merged for function in each.functions]
        module = machine_code.link(functions, {} if i else entries, target.tvm)
        written = machine_code.write_object(module, f"{folder}/{i}.o")
        advance(sum(max(len(each.kernels), 1) for each in merged))
        return written

    def tasks() -> Iterator[Callable[[], str]]:
        for i, module in enumerate(_modules(launches, target)):
            yield partial(compiled, i, module)

    with disk.temporary_folder() as folder, task(len(launches), "kernels") as advance:
        linker(str(library), in_parallel(tasks(), threads()))


def _modules(launches: Launches, target: Target) -> Iterator[list[Merged]]:
    """Generate the kernels, merge those that differ in integers only, and split them among modules, at least one."""
    module: list[Merged] = []
    size = total = 0
    for alike in _alike(launches):
        for function in merge([_generated(launch, target) for launch in alike]):
            module.append(function)
            size, total = size + function.size, total + function.size
            if size >= min(max(total // SHARE, SMALLEST), LARGEST):
                yield module
                module, size = [], 0
    if module or not total:
        yield module


def _alike(launches: Launches) -> list[Launches]:
    """Return the launches whose kernels may differ in integers only, together: by their rule and operations."""
    found: dict[Any, list[Launch]] = {}
    for launch in launches:
        key = launch.candidate.rule, launch.candidate.setting, *(n.op.name for n in launch.group.body.nodes())
        found.setdefault(key, []).append(launch)
    return list(found.values())


def _write_gpu(launches: Launches, entries: Entries, library: Path, target: Target, linker: Linker) -> None:
    """Write the library, and next to it the GPU's machine code, named by the digest of the CUDA source in the
    library."""
    with te.as_source(), task(len(launches), "kernels") as advance:
        written = []
        for launch in launches:
            written.append(kernel(launch, target))
            advance()
        module = machine_code.link(written, entries, target.tvm)
        machine_code.export(module, str(library), linker)
        source = te.cuda_source(module)
    if source and (binary := cuda_compiler.binary(source, target.tvm["arch"])) is not None:
        library.with_name(f"{hashlib.sha256(source.encode()).hexdigest()}.fatbin").write_bytes(binary)


def kernel(launch: Launch, target: Target) -> tir.PrimFunc:
    """Return the code of one kernel. For a GPU it is host code, which launches one or several grids of threads."""
    return _generated(launch, target).finish()


def _generated(launch: Launch, target: Target) -> tir.Kernel:
    k = target.kernel(launch.kernel)
    emit(k, launch.group, launch.candidate, bind(k, launch), target)
    return k


def entry(plan: Plan, gpu: bool, launches: Iterable[Launch] | None = None) -> machine_code.Entry:
    """Return the entry point, or a segment of it with these launches, over the program's arguments.

    It returns after a kernel that has found indices out of range; on a GPU the host checks the flag after the call.
    """
    position, flag = plan.positions, plan.outputs.get(INDEX_FLAG)

    def call(launch: Launch) -> machine_code.Call:
        counts = flag is not None and not gpu and any(b.name == flag.name for b in launch.writes)
        stop = position[flag.name] if counts and flag is not None else None
        return machine_code.Call(launch.kernel, tuple(position[b.name] for b in launch.arguments), stop)

    calls = tuple(map(call, plan.launches if launches is None else launches))
    return machine_code.Entry(calls, REPEATED if not gpu and _is_repeated(plan) else "")


def _is_repeated(plan: Plan) -> bool:
    """May the entry point be called several times at once? Only steps with updates of an optimizer are, and the
    function for it takes 5 ms to compile."""
    has_collectives = any(launch.group.collective for launch in plan.launches)
    return bool(plan.updates) and any(b.space == "scalar" for b in plan.buffers.values()) and not has_collectives
