"""CUDA kernels without a GPU: their source is compiled for the CPU against gpu.h, which plays the threads."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from gluongraph.codegen import build
from gluongraph.codegen.cuda.cuda_math import C_TYPES
from gluongraph.codegen.rule import Target
from gluongraph.codegen.targets import TARGETS
from gluongraph.codegen.tvm import te
from gluongraph.codegen.tvm.tir import name_of
from gluongraph.dtypes import numpy_dtype
from gluongraph.ir.plan import Buffer, Plan

CUDA = TARGETS["cuda"]
KERNEL = re.compile(r"__global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(([^)]*)\) \{")


def functions(plan: Plan, target: Target = CUDA) -> dict[str, Any]:
    """The function of each kernel of a plan."""
    return {name: build.kernel(launch, target) for name, launch in plan.kernels.items()}


class Emulator:
    """The kernels of some functions, ready to be called with arrays. `rules`: see te.grids."""

    def __init__(self, made: dict[str, Any], folder: Path):
        self.grids = {name: te.launches(f) for name, f in made.items()}
        self.arguments = {name: [str(p.name) for p in f.params] for name, f in made.items()}
        self.source = te.source(list(made.values()), CUDA.tvm)
        self.kernels = {name: _parameters(text) for name, text in KERNEL.findall(self.source)}
        self.library = ctypes.CDLL(str(compiled_for_fibers(self.source, folder)))

    def call(self, name: str, arrays: Sequence[np.ndarray[Any, Any]], order: int = 0) -> None:
        """Start every kernel of a function, one after the other. `order`: see gpu.h."""
        memory = dict(zip(self.arguments[name], arrays, strict=True))
        workspace = next((a for n, a in memory.items() if n.startswith("workspace")), None)  # kernels take views of it
        for kernel, (blocks, threads) in self._launches(name):
            found = [memory.get(p.removesuffix("_ptr"), workspace) for _, p in self.kernels[kernel]]
            pointers = [a.ctypes.data for a in found if a is not None]
            assert len(pointers) == len(found)
            dims = (ctypes.c_int * 7)(*blocks, *threads, order)
            values = [ctypes.c_void_p(p) for p in pointers]
            places = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
            self.library[f"run_{kernel}"](places, dims)

    def _launches(self, name: str) -> Iterable[tuple[str, Any]]:
        grids = self.grids[name]
        kernels = [f"{name}_kernel"] + [f"{name}_kernel_{i}" for i in range(1, len(grids))]
        return zip(kernels, grids, strict=True)


def compiled_for_fibers(source: str, folder: Path) -> Path:
    """CUDA source as a shared library that runs it on the CPU: `run_NAME(addresses of arguments, grid)`."""
    bodies = source[source.index('extern "C" __global__') :].replace("__shared__ alignas(64)", "alignas(64) __shared__")
    bodies = re.sub(r"\n#.*?(?=\nextern \"C\" __global__)", "", bodies, flags=re.S)
    entries = [_entry(name, _parameters(text)) for name, text in KERNEL.findall(source)]
    (folder / "kernels.cc").write_text("\n".join(['#include "gpu.h"', bodies, *entries]))
    here = Path(__file__).parent
    command = [
        "g++",
        "-O1",
        "-w",
        "-U_FORTIFY_SOURCE",
        "-std=c++17",
        "-shared",
        "-fPIC",
        f"-I{here}",
        "kernels.cc",
        "-o",
        "kernels.so",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    return folder / "kernels.so"


def _parameters(text: str) -> list[tuple[str, str]]:
    """(type, name) of each parameter of a kernel."""
    found = [re.fullmatch(r"\s*(.*?)\s*(?:__restrict__\s*)?(\w+)", part) for part in text.split(",") if part.strip()]
    return [(m[1], m[2]) for m in found if m]


def _entry(name: str, parameters: list[tuple[str, str]]) -> str:
    names = "".join(f"auto p{i} = *({kind}*)a[{i}]; " for i, (kind, _) in enumerate(parameters))
    args = ", ".join(f"p{i}" for i in range(len(parameters)))
    return (
        f'extern "C" void run_{name}(void** a, int* d) '
        f"{{ {names}gpu::launch({{d[0], d[1], d[2]}}, {{d[3], d[4], d[5]}}, d[6], [=] {{ {name}({args}); }}); }}"
    )


def run(
    plan: Plan, emulator: Emulator, given: dict[str, np.ndarray[Any, Any]], order: int = 0, prefix: str = ""
) -> dict[str, Any]:
    """Run a plan's launches; `given` are inputs, states and scalars by name, states are written in place."""
    memory: dict[str, np.ndarray[Any, Any]] = {n: np.ascontiguousarray(a).reshape(-1) for n, a in given.items()}

    def place(buffer: Buffer) -> np.ndarray[Any, Any]:
        if buffer.name not in memory:
            if buffer.space == "const":
                memory[buffer.name] = np.frombuffer(plan.constants[buffer.name], numpy_dtype(buffer.type.dtype)).copy()
            else:
                memory[buffer.name] = np.full(buffer.type.size, 77, numpy_dtype(buffer.type.dtype))
        return memory[buffer.name]

    for launch in plan.launches:
        emulator.call(prefix + launch.kernel, [place(b) for b in launch.arguments], order)
    return {name: memory[b.name].reshape(b.type.shape) for name, b in {**plan.outputs, **plan.updates}.items()}


def serial(func: Any) -> Any:
    """The same loops with no threads: what a kernel computes, without its races, for any CPU."""

    def loop(node: Any) -> Any:
        if node.thread_binding is None and not node.annotations:
            return node
        kind = node.kind if node.thread_binding is None else 0
        return tirx.For(node.loop_var, node.min, node.extent, kind, node.body)

    def call(node: Any) -> Any:
        named = getattr(node.op, "name", "") == "tirx.call_extern" and node.args[0] in C_TYPES.values()
        return node.args[1] if named else node

    return func.with_body(tvm_ffi.structural_map(func.body, [(tirx.For, loop), (tvm.ir.Call, call)]))


def compiled(functions: Sequence[Any]) -> Any:
    """Serial functions as a module for this CPU, by all of TVM's passes: there are blocks of its schedules in them."""
    return tirx.build(tvm.IRModule({name_of(f): f for f in functions}), "llvm", pipeline="s_tir")
