"""Loads the compiled code that an artefact holds, after all checks, since loading code runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gluongraph.runtime import loader
from gluongraph.storage import Array


def module_of(library: Array, what: str, gpu: bool, binaries: Mapping[str, Array]) -> Any:
    """The module in a library's bytes; for a `gpu` there are `binaries`, its machine code by file name.

    `what` names the artefact in errors.

    Raises:
        CompileError: the system does not load it.
    """
    return loader.load_code(library.data, what, gpu, {name: binary.data for name, binary in binaries.items()})
