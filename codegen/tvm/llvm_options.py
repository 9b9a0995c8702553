"""LLVM's options: loops whose turns are more than a few instructions stay loops. They hold for the process.

The loops of a kernel are written with the unrolling that they need (a tile's registers are variables of their own).
Where LLVM writes out all turns of a loop besides, that takes a quarter of the compile time and makes steps no faster
(docs/dev/measurements.md, "Compiling and starting"). It still unrolls loops of few instructions, and groups of turns:
GEMMs are 2 % slower without.

TVM 0.27 sets LLVM's options by `cl-opt` of a target, which cannot serve here: it changes them while a module is
compiled and back after that, in the whole process, so modules that are compiled in parallel undo one another's; and it
stores the values only, while LLVM asks for these whether its parser of command lines has read them. The build for
Hexagon, of all of TVM, hands options to that parser: once, before it looks at the functions. So a function that it
refuses is built for Hexagon.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from gluongraph.codegen.tvm.tir import index, tirx, tvm

OPTIONS = ("-unroll-full-max-count=0",)
KNOWN_LLVM = 22  # LLVM's parser ends the process at an option that it does not know


@cache
def set_options() -> bool:
    """Set the options, if they are not set yet; return whether that was possible, which it is with the TVM that
    pyproject.toml names. Without them code computes the same, and takes longer to compile."""
    build: Any = tvm.get_global_func("target.build.hexagon", allow_missing=True)
    if build is None or tvm.get_global_func("target.llvm_version_major")() != KNOWN_LLVM:
        return False
    refused = tirx.PrimFunc([], tirx.Evaluate(index(0))).with_attrs({"tirx.is_entry_func": True})  # and has no symbol
    target = {"kind": "hexagon", "mtriple": "hexagon", "mcpu": "hexagonv68", "llvm-options": list(OPTIONS)}
    try:
        build(tvm.IRModule({"refused": refused}), tvm.target.Target(target))
    except Exception as error:
        return "global_symbol" in str(error)
    return False
