"""Loads the compiled code that an artefact holds. Only once everything has been checked: loading runs it."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gluongraph.errors import CompileError
from gluongraph.runtime import loader
from gluongraph.storage import Array


def module_of(library: Array, gpu: bool, binaries: Mapping[str, Array]) -> Any:
    """The module in a library's bytes; for a `gpu` there are `binaries`, its machine code by file name.

    The system loads files, so it becomes one for as long as that takes; a GPU's stays until the process ends.

    Raises:
        CompileError: the system does not load it.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="gluongraph-"))
    except OSError as error:
        raise CompileError(f"an artefact's code needs a temporary folder to be loaded from: {error}") from error
    if gpu:
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        place = folder / "step.so"
        place.write_bytes(library.data)
        for name, binary in binaries.items():
            (folder / Path(name).name).write_bytes(binary.data)
        return loader.load_library(place, gpu)
    finally:
        if not gpu:
            shutil.rmtree(folder, ignore_errors=True)
