"""Entry points: the calls of a step one after the other, however many there are."""

from __future__ import annotations

import numpy as np
import pytest

from gluongraph.codegen.targets import target
from gluongraph.codegen.tvm import machine_code
from gluongraph.codegen.tvm.machine_code import PART, Call, Entry
from gluongraph.codegen.tvm.tir import Kernel, cast, compare, index, logical
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


@pytest.mark.parametrize("ends", ["refused", "going"])
@pytest.mark.parametrize(("sent", "made"), [([5, 7, 9], 3), ([5, 0, 9], 2), ([0, 7, 9], 1), ([5, 7, 0], 3), ([], 0)])
def test_calls_are_repeated_on_several_tables_until_one_ends_them(sent: list[int], made: int, ends: str) -> None:
    """y[i] = x[i] + total, total += x[i], for each i, and no further where x[i] is 0."""
    kernel = Kernel("add")
    x, total, y, refused = (kernel.param(name, 1, "i32") for name in ("x", "total", "y", "refused"))
    going = kernel.param("going", 4, "bool")
    kernel.store(y, kernel.load(x, 0) + kernel.load(total, 0), 0)
    kernel.store(total, kernel.load(x, 0) + kernel.load(total, 0), 0)
    is_zero = compare("equal", kernel.load(x, 0), index(0))
    if ends == "refused":
        kernel.store(refused, cast(is_zero, "i32") * 256, 0)
    else:
        kernel.store(going, logical("not", is_zero), 2)
    entry = Entry((Call("add", (0, 1, 2, 3, 4)),), "several")
    module = machine_code.link([kernel.finish()], {"step": entry}, target().tvm)
    given, results = np.array([*sent, 99], np.int32), np.full(len(sent) + 1, -1, np.int32)
    total_array, flag, flags = np.zeros(1, np.int32), np.zeros(1, np.int32), np.ones(4, np.bool_)
    args = [Arg(name, "i32", (1,), "state") for name in ("x", "total", "y", "refused")]
    table = Table([*args, Arg("going", "bool", (4,), "state")], CPU, 0)
    for i, array in enumerate((given[:1], total_array, results[:1], flag, flags)):
        table.put(i, array)
    tables, numbers = table.copies(len(given)), np.array([len(sent), 0])
    tables["data"][:, [0, 2]] += np.arange(len(given), dtype=np.uint64)[:, None] * 4
    addresses = (array.ctypes.data for array in (numbers, flag, flags))
    loader.function(module, "several")(tables.ctypes.data, tables.strides[0], *addresses)
    assert numbers[1] == made
    assert results.tolist() == [*np.cumsum(sent[:made]), *[-1] * (len(results) - made)]
    assert total_array[0] == sum(sent[:made])
