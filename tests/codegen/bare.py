"""Compiled kernels in a C program of their own, without TVM: how code for another machine runs in its emulator."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gluongraph.dtypes import DTYPES, numpy_dtype
from gluongraph.ir.entry_point import Arg, program_of
from gluongraph.ir.plan import Plan

# What kernels find at run time: arguments as TVM passes them, parallel regions run as one task.
RUNTIME = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
typedef struct { uint8_t code, bits; uint16_t lanes; } Type;
typedef struct {
  void *data;
  int32_t device, number, rank;
  Type type;
  int64_t *shape, *strides;
  uint64_t offset;
} Tensor;
typedef struct { int32_t type, zero; union { int64_t number; void *pointer; }; } Any;
typedef struct { void *sync; int32_t tasks; } Group;
void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count, const void *trace) {
  fprintf(stderr, "%s: ", kind);
  for (int i = 0; i < count; i++) fputs(parts[i], stderr);
  exit(3);
}
int TVMBackendParallelLaunch(int (*task)(int, Group *, void *), void *data, int count) {
  Group group = {0, 1};
  return task(0, &group, data);
}
int (*__TVMBackendParallelLaunch)(int (*)(int, Group *, void *), void *, int) = TVMBackendParallelLaunch;
static int64_t one = 1;
static void run(int (*kernel)(void *, Any *, int32_t, Any *), Tensor **tensors, int count) {
  Any args[64], result = {0};
  for (int i = 0; i < count; i++) { args[i].type = 7; args[i].zero = 0; args[i].pointer = tensors[i]; }
  if (kernel(0, args, count, &result)) exit(4);
}
static void *bytes(size_t count) { return aligned_alloc(64, (count + 127) / 64 * 64); }
"""
_CODES = {"int": 0, "uint": 1, "float": 2, "bool": 6}


def source(plan: Plan) -> str:
    """A program that reads inputs, state, scalars and constants, runs all launches, writes outputs and state."""
    program = program_of(plan)
    arenas = {"scratch": program.scratch_bytes, "scalar": program.scalar_bytes}
    body = [f"  char *{name} = bytes({size});" for name, size in arenas.items()]
    for i, arg in enumerate(program.args):
        place = f"{arg.space} + {arg.offset}" if arg.space in arenas else f"bytes({arg.nbytes})"
        row = DTYPES[arg.dtype]
        code = 4 if arg.dtype == "bf16" else _CODES[row.family]
        kind = f"{{{code}, {8 * row.nbytes}, 1}}"
        size = arg.nbytes // row.nbytes
        body.append(f"  int64_t n{i} = {size}; Tensor t{i} = {{{place}, 1, 0, 1, {kind}, &n{i}, &one, 0}};")
    body += [_move("fread", i, arg, "in") for i, arg in enumerate(program.args) if arg.space in GIVEN]
    position = plan.positions
    for launch in plan.launches:
        tensors = [f"&t{position[b.name]}" for b in launch.arguments]
        body.append(f"  run(__tvm_ffi_{launch.kernel}, (Tensor *[]){{{', '.join(tensors)}}}, {len(tensors)});")
    body += [_move("fwrite", i, arg, "out") for i, arg in enumerate(program.args) if arg.space in MADE]
    kernels = [f"int __tvm_ffi_{name}(void *, Any *, int32_t, Any *);" for name in plan.kernels]
    opened = '  FILE *in = fopen(argv[1], "rb"), *out = fopen(argv[2], "wb");'
    return "\n".join(
        [RUNTIME, *kernels, "int main(int argc, char **argv) {", opened, *body, "  return fclose(out);\n}"]
    )


GIVEN = ("input", "state", "scalar", "const")
MADE = ("output", "state")


def _move(function: str, i: int, arg: Arg, file: str) -> str:
    return f"  if ({function}(t{i}.data, 1, {arg.nbytes}, {file}) != {arg.nbytes}) return 2;"


def run(
    plan: Plan, code: Any, values: Mapping[str, Any], compiler: str, emulator: Sequence[str], folder: Path
) -> dict[str, np.ndarray[Any, Any]]:
    """Compile the program around the machine code, run it, and return outputs and new state by the argument's name."""
    program = program_of(plan)
    (folder / "main.c").write_text(source(plan))
    code.write_to_file(str(folder / "step.o"), "o")
    command = [compiler, "-O1", "-static", "main.c", "step.o", "-lm", "-o", "main"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    constants = {k: np.frombuffer(v, np.uint8) for k, v in program.constants.items()}
    given = {**values, **constants}
    data = b"".join(np.ascontiguousarray(given[arg.name]).tobytes() for arg in program.args if arg.space in GIVEN)
    (folder / "in").write_bytes(data)
    subprocess.run([*emulator, "./main", "in", "out"], cwd=folder, check=True, timeout=120)
    found, at, data = {}, 0, (folder / "out").read_bytes()
    for arg in program.args:
        if arg.space in MADE:
            found[arg.name] = np.frombuffer(data[at : at + arg.nbytes], numpy_dtype(arg.dtype)).reshape(arg.shape)
            at += arg.nbytes
    assert at == len(data)
    return found
