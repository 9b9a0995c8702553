"""Write operators_of_mxnet.json: the operators of MXNet 1.9.1 with their arrays and attributes; run where it is.

python tests/mxnet/operators_of_mxnet.py > tests/mxnet/operators_of_mxnet.json

A line for each operator that may stand in a symbol file: the names of its arrays, and its attributes with their
defaults as MXNet prints them, null where there is none. Those of mx.np and of gradients are left out.
"""

import ctypes
import json
import re

LEFT_OUT = ("_np", "_backward", "_contrib_backward", "_broadcast_backward", "_sg_", "_contrib_dgl")


def operators():
    """(name, arrays, attributes) of each, by MXNet's C library."""
    from mxnet.base import _LIB, OpHandle, check_call, mx_uint, py_str

    texts = ctypes.POINTER(ctypes.c_char_p)
    count, listed = mx_uint(), texts()
    check_call(_LIB.MXListAllOpNames(ctypes.byref(count), ctypes.byref(listed)))
    for name in sorted(py_str(listed[i]) for i in range(count.value)):
        handle = OpHandle()
        check_call(_LIB.NNGetOpHandle(ctypes.c_char_p(name.encode()), ctypes.byref(handle)))
        one = [ctypes.c_char_p() for _ in range(4)]  # its first name, what it does, how it counts arrays, what it gives
        n, names, types, about = mx_uint(), texts(), texts(), texts()
        places = [one[0], one[1], n, names, types, about, one[2], one[3]]
        check_call(_LIB.MXSymbolGetAtomicSymbolInfo(handle, *map(ctypes.byref, places)))
        if py_str(one[0].value) == name:
            yield name, [(py_str(names[i]), py_str(types[i])) for i in range(n.value)]


def main():
    """Print the table."""
    lines = []
    for name, given in operators():
        if (name.startswith(LEFT_OUT) or name.endswith("_backward")) and name != "_np_cumsum":
            continue
        arrays = [a for a, kind in given if "Symbol" in kind or "NDArray" in kind]
        defaults = {a: re.search("default=(.*)$", kind) for a, kind in given if a not in arrays}
        attributes = {a: found.group(1) if found else None for a, found in defaults.items()}
        lines.append(f"{json.dumps(name)}: {json.dumps([arrays, attributes])}")
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
