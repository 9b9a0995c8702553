"""The package `onnx`, which knows the file format and the operators' versions. It is imported when a model is read."""

from __future__ import annotations

from typing import Any

from gluongraph.errors import MXNetError, with_user_location
from gluongraph.host.interrupts import import_whole

# Versions of the default domain whose changes the table knows; of older ones, operators that have not changed since.
OLDEST = 7
NEWEST = 28


def onnx(part: str = "") -> Any:
    """The package, or a module of it: onnx("numpy_helper").

    Raises:
        MXNetError: it is not installed.
    """
    try:
        return import_whole(f"onnx.{part}" if part else "onnx")
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] != "onnx":
            raise
        help = "pip install onnx, or gluongraph[onnx]"
        raise MXNetError(
            with_user_location("ONNX models need the package onnx, which is not installed", help=help)
        ) from None
