"""Entry points: the calls of a step one after the other, however many there are."""

from __future__ import annotations

import numpy as np
import pytest

from gluongraph.codegen.targets import target
from gluongraph.codegen.tvm import machine_code
from gluongraph.codegen.tvm.machine_code import PART, Call, Entry
from gluongraph.codegen.tvm.tir import Kernel
from gluongraph.ir.entry_point import Arg
from gluongraph.runtime import loader
from gluongraph.runtime.table import CPU, Table


@pytest.mark.parametrize("calls", [0, 3, PART, PART + 1, 2 * PART + 5])
def test_each_call_is_made_once_and_in_order(calls: int) -> None:
    count, mark = Kernel("count"), Kernel("mark")
    x = count.param("x", 1, "i32")
    count.store(x, count.load(x, 0) + 1, 0)
    last, x = mark.param("last", 1, "i32"), mark.param("x", 1, "i32")
    mark.store(last, mark.load(x, 0), 0)
    entry = Entry((*(Call("count", (1,)) for _ in range(calls)), Call("mark", (0, 1)), Call("count", (1,))))
    module = machine_code.link([count.finish(), mark.finish()], {"step": entry}, target().tvm)
    arrays = [np.full(1, -1, np.int32), np.zeros(1, np.int32)]
    table = Table([Arg(name, "i32", (1,), "state") for name in ("last", "x")], CPU, 0)
    for i, array in enumerate(arrays):
        table.put(i, array)
    loader.function(module, "step")(table.address)
    assert [int(a[0]) for a in arrays] == [calls, calls + 1]
