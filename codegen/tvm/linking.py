"""The linker that makes a shared library from object files, for this machine and for others.

On this machine it is `ld` itself where there is one: a compiler takes 20 ms more to start it, a fifth of what a small
kernel takes.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from gluongraph.errors import CompileError, with_user_location
from gluongraph.host.interrupts import guarded

Linker = Callable[..., None]
COMPILERS = ("g++", "gcc", "clang++", "clang", "c++", "cc")
LD = ("--eh-frame-hdr", "--hash-style=gnu", "-z", "noexecstack")  # as compilers start it
LIBRARIES = ("--as-needed", "-lm", "-lc")  # with the versions of `exp` and `memcpy` that they have today
LLDS = ("ld.lld", *(f"ld.lld-{version}" for version in range(25, 11, -1)))


def command_for(machine: str) -> list[str]:
    """Return the command that links for a machine, by its name in `platform.machine`; `CXX` and `CC` come first.

    The code needs no libraries but C's, which every process has, so a linker without a compiler is sufficient.

    Raises:
        CompileError: there is none here.
    """
    own = machine == platform.machine()
    cross = [f"{machine}-linux-gnu-gcc"]
    asked, ld = (os.environ.get("CXX"), os.environ.get("CC")), shutil.which("ld")
    direct = ["ld"] if own and not any(asked) and ld is not None and _links(ld) else []
    for name in [*([*asked, *direct, *COMPILERS] if own else cross), *LLDS]:
        if name and (found := shutil.which(name)) is not None:
            return [found]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "ld.lld"]
    missing = "C compiler" if own else cross[0]
    help = "apt-get install lld, or pip install ziglang, which brings one"
    raise CompileError(
        with_user_location(f"nothing here links for {machine}: no {missing} and no ld.lld in PATH", help=help)
    )


@cache
def _links(ld: str) -> bool:
    """Does `ld` alone find the libraries of C? It does not where they are in an unusual place, or are not for it."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([ld, "-shared", *LD, "-o", f"{folder}/empty.so", *LIBRARIES], capture_output=True)
    return done.returncode == 0


def linker(command: Sequence[str]) -> Linker:
    """Return a function that links object files into a library with this command: `link(library, objects)`.

    Raises:
        CompileError: linking failed.
    """

    name = os.path.basename(command[-1])
    before, behind = (LD, LIBRARIES) if name == "ld" else ((), ())
    # More than half of the objects is TVM's debugging information: names and types of values in generated code.
    without_debugging = "-S" if name.startswith("ld") else "-Wl,-S"

    def link(output: str, objects: Sequence[str], **_: Any) -> None:
        line = [*command, "-shared", without_debugging, *before, "-o", output, *objects, *behind]
        done = subprocess.run(guarded(line), capture_output=True, text=True)
        if done.returncode:
            raise CompileError(f"cannot link {output}: {' '.join(command)}: {done.stderr.strip()}")

    return link
