"""Entry points: the calls of a step one after the other, however many there are."""

from __future__ import annotations

import numpy as np
import pytest

from gluongraph.codegen.targets import target
from gluongraph.codegen.tvm import machine_code
from gluongraph.codegen.tvm.machine_code import DLTENSOR, PART, Call, Entry
from gluongraph.codegen.tvm.tir import Kernel, minimum
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


@pytest.mark.parametrize(("sent", "made"), [([5, 7, 9], 3), ([5, 0, 9], 2), ([0, 7, 9], 1), ([5, 7, 0], 3), ([], 0)])
def test_calls_are_repeated_on_moved_addresses_until_one_stops(sent: list[int], made: int) -> None:
    """y[i] = x[i] + total, total += x[i], for each i, and no further where x[i] is 0."""
    kernel = Kernel("add")
    x, total, y, going = (kernel.param(name, 1, "i32") for name in ("x", "total", "y", "going"))
    kernel.store(y, kernel.load(x, 0) + kernel.load(total, 0), 0)
    kernel.store(total, kernel.load(x, 0) + kernel.load(total, 0), 0)
    kernel.store(going, minimum(kernel.load(x, 0), 1), 0)
    entry = Entry((Call("add", (0, 1, 2, 3)),), "several")
    module = machine_code.link([kernel.finish()], {"step": entry}, target().tvm)
    given, results = np.array([*sent, 99], np.int32), np.full(len(sent) + 1, -1, np.int32)
    arrays = [given[:1], np.zeros(1, np.int32), results[:1], np.ones(1, np.int32)]
    table = Table([Arg(name, "i32", (1,), "state") for name in ("x", "total", "y", "going")], CPU, 0)
    for i, array in enumerate(arrays):
        table.put(i, array)
    slot = [table.address + i * DLTENSOR for i in range(4)]
    counts = np.array([len(sent), 0])
    moves, stops = np.array([(slot[0], 4), (slot[2], 4)]), np.array([(slot[3], 1)])
    loader.function(module, "several")(table.address, counts.ctypes.data, moves.ctypes.data, 2, stops.ctypes.data, 1)
    assert counts[1] == made
    expected = np.cumsum(sent[:made])
    assert results.tolist() == [*expected, *[-1] * (len(results) - made)]
    assert arrays[1][0] == sum(sent[:made])
