"""LLVM does not write out all turns of a loop, in modules that are compiled in parallel either."""

from __future__ import annotations

from functools import partial

from gluongraph.codegen.targets import target
from gluongraph.codegen.tvm import llvm_options, machine_code
from gluongraph.codegen.tvm.tir import Kernel, PrimFunc
from gluongraph.host.interrupts import in_parallel

ROWS, LANES = 12, 16


def _adding(name: str, turns: int) -> PrimFunc:
    """y[i] += x[0, i] + ... + x[11, i]: each turn of the loop has 12 additions of vectors."""
    kernel = Kernel(name)
    size = turns * LANES
    x, y = kernel.param("x", ROWS * size, "f32"), kernel.param("y", size, "f32")
    with kernel.loop(turns) as i:
        total = kernel.load(y, i * LANES, LANES)
        for row in range(ROWS):
            total = total + kernel.load(x, i * LANES + row * size, LANES)
        kernel.store(y, total, i * LANES)
    return kernel.finish()


def test_the_options_can_be_set_with_the_tvm_that_is_required() -> None:
    assert llvm_options.set_options()


def test_loops_stay_loops_in_all_modules() -> None:
    """Of 5 to 7 turns LLVM makes 60 to 84 additions otherwise."""
    made = [partial(machine_code.build_kernels, [_adding(f"k{n}", n)], target().tvm) for n in (5, 6, 7)]
    for module in in_parallel(made, workers=2):
        assert module.inspect_source("ll").count("fadd") <= 3 * ROWS
