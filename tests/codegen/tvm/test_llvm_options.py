"""LLVM unrolls no loops, in modules that are compiled in parallel too."""

from __future__ import annotations

import re
from functools import partial

from gluongraph.codegen.targets import target
from gluongraph.codegen.tvm import llvm_options, machine_code
from gluongraph.codegen.tvm.tir import Kernel, PrimFunc
from gluongraph.host.interrupts import in_parallel


def _summing(name: str, count: int) -> PrimFunc:
    """y[0] = x[0] + ... + x[count - 1]: a loop of a load and an addition."""
    kernel = Kernel(name)
    x, y = kernel.param("x", count, "f32"), kernel.param("y", 1, "f32")
    kernel.store(y, 0.0, 0)
    with kernel.loop(count) as i:
        kernel.store(y, kernel.load(y, 0) + kernel.load(x, i), 0)
    return kernel.finish()


def test_the_options_can_be_set_with_the_tvm_that_is_required() -> None:
    assert llvm_options.set_options()


def test_loops_stay_loops_in_all_modules() -> None:
    counts = (4, 8, 16, 1000, 1003)  # by default few turns are unrolled whole, and many in groups of eight
    made = [partial(machine_code.build_kernels, [_summing(f"k{n}", n)], target().tvm) for n in counts]
    for module in in_parallel(made, workers=2):
        assert len(re.findall(r"fadd", module.inspect_source("ll"))) == 1
