"""The linker that makes a shared library from object files, for this machine and for others."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from gluongraph.errors import CompileError, with_user_location
from gluongraph.host.interrupts import guarded

Linker = Callable[..., None]
COMPILERS = ("g++", "gcc", "clang++", "clang", "c++", "cc")
LLDS = ("ld.lld", *(f"ld.lld-{version}" for version in range(25, 11, -1)))


def command_for(machine: str) -> list[str]:
    """Return the command that links for a machine, by its name in `platform.machine`. The code needs no libraries, so a
    linker without a compiler is sufficient.

    Raises:
        CompileError: there is none here.
    """
    own = machine == platform.machine()
    cross = [f"{machine}-linux-gnu-gcc"]
    names = [*([os.environ.get("CXX"), os.environ.get("CC"), *COMPILERS] if own else cross), *LLDS]
    for name in names:
        if name and (found := shutil.which(name)) is not None:
            return [found]
    if importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "ld.lld"]
    missing = "C compiler" if own else cross[0]
    help = "apt-get install lld, or pip install ziglang, which brings one"
    raise CompileError(
        with_user_location(f"nothing here links for {machine}: no {missing} and no ld.lld in PATH", help=help)
    )


def linker(command: Sequence[str]) -> Linker:
    """Return a function that links object files into a library with this command: `link(library, objects)`.

    Raises:
        CompileError: linking failed.
    """

    def link(output: str, objects: Sequence[str], **_: Any) -> None:
        done = subprocess.run(guarded([*command, "-shared", "-o", output, *objects]), capture_output=True, text=True)
        if done.returncode:
            raise CompileError(f"cannot link {output}: {' '.join(command)}: {done.stderr.strip()}")

    return link
