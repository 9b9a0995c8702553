"""`mx.base`: the types that scripts compare with, the errors, and small helpers."""

from __future__ import annotations

from typing import Any

import numpy as np

from gluongraph.errors import MXNetError as MXNetError

numeric_types = (float, int, np.generic)
integer_types = (int, np.int32, np.int64)
string_types = (str,)
mx_real_t = np.float32


class NotImplementedForSymbol(MXNetError):
    """A method of arrays that symbols do not have: NotImplementedForSymbol(function, alias, *arguments)."""

    def __init__(self, function: Any, alias: str | None, *args: Any):
        other = "" if alias is None else f" (namely operator {alias!r})"
        super().__init__(f"{getattr(function, '__name__', function)}{other} of {args} does not exist for symbols")


class NotSupportedForSparseNDArray(MXNetError):
    """A method that arrays by rows do not have: NotSupportedForSparseNDArray(function, alias, *arguments)."""

    def __init__(self, function: Any, alias: str | None, *args: Any):
        other = "" if alias is None else f" (namely operator {alias!r})"
        super().__init__(f"{getattr(function, '__name__', function)}{other} of {args} does not exist for sparse arrays")


def py_str(x: bytes | str) -> str:
    """The text that bytes hold in UTF-8; texts are what they are, as names that callbacks get."""
    return x if isinstance(x, str) else x.decode("utf-8")


def data_dir_default() -> str:
    """Where data sets and models lie unless MXNET_HOME says else: ~/.mxnet."""
    import os

    return os.path.join(os.path.expanduser("~"), ".mxnet")


def data_dir() -> str:
    """Where data sets and models lie: the folder in the variable MXNET_HOME, else ~/.mxnet."""
    from gluongraph.host import download

    return download.data_dir()


def _as_list(obj: Any) -> Any:
    """A list or tuple as it is, anything else as a list of one."""
    return obj if isinstance(obj, (list, tuple)) else [obj]
