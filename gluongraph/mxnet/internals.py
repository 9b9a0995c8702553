"""Names of MXNet's that begin with an underscore, or nearly, and that Gluon code imports all the same."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gluongraph.gluon.nn import Conv2D
from gluongraph.host.download import repository_url
from gluongraph.ndarray import NDArray
from gluongraph.symbol import Symbol

py_slice = slice
tensor_types = (Symbol, NDArray)

_DTYPE_MX_TO_NP: dict[int, Any] = dict(
    enumerate((np.float32, np.float64, np.float16, np.uint8, np.int32, np.int8, np.int64, np.bool_))
)
_DTYPE_NP_TO_MX: dict[Any, int] = {dtype: number for number, dtype in _DTYPE_MX_TO_NP.items()}
_STORAGE_TYPE_STR_TO_ID = {"undefined": -1, "default": 0, "row_sparse": 1, "csr": 2}
_STORAGE_TYPE_ID_TO_STR = {number: name for name, number in _STORAGE_TYPE_STR_TO_ID.items()}
_GRAD_REQ_MAP = {"null": 0, "write": 1, "add": 3}


# -- gluon.block


def _flatten(args: Any, inout_str: str) -> tuple[list[Any], Any]:
    """Nested lists of arrays as one list, and what `_regroup` needs to nest them again.

    Raises:
        ValueError: something else than arrays, None, lists and tuples.

    >>> from gluongraph import nd
    >>> flat, form = _flatten([nd.ones(1), [None, nd.ones(2)]], "input")
    >>> len(flat), form
    (3, [0, [-1, 0]])
    """
    if isinstance(args, Symbol):
        return [args], len(args) if len(args) > 1 else 0
    if args is None or isinstance(args, NDArray):
        return [args], -1 if args is None else 0
    if not isinstance(args, (list, tuple)):
        raise ValueError(f"the {inout_str} of a HybridBlock are nested lists of arrays, not a {type(args).__name__}")
    parts = [_flatten(part, inout_str) for part in args]
    return [array for flat, _ in parts for array in flat], [form for _, form in parts]


def _regroup(args: Sequence[Any], fmt: Any) -> tuple[Any, Sequence[Any]]:
    """What `_flatten` made flat, nested again, and the rest of the list."""
    if isinstance(fmt, int):
        if fmt <= 0:
            return args[0], args[1:]
        return args[:fmt], args[fmt:]
    made = []
    for part in fmt:
        one, args = _regroup(args, part)
        made.append(one)
    return made, args


def _indent(s_: str, numSpaces: int) -> str:
    """A text whose lines but the first are moved to the right."""
    return s_.replace("\n", "\n" + numSpaces * " ")


# -- gluon.model_zoo.vision.resnet


def _conv3x3(channels: int, stride: int, in_channels: int) -> Conv2D:
    """A convolution of 3 x 3 without bias that keeps the size of the image, where the stride is 1."""
    return Conv2D(channels, kernel_size=3, strides=stride, padding=1, use_bias=False, in_channels=in_channels)


# -- gluon.utils


def _get_repo_url() -> str:
    """The server of MXNet's models and data sets, with a slash in the end; MXNET_GLUON_REPO names another one."""
    return repository_url("", "").rstrip("/") + "/"


def _get_repo_file_url(namespace: str, filename: str) -> str:
    """Where on that server a file is."""
    return repository_url(namespace, filename)


def _brief_print_list(lst: Iterable[Any], limit: int = 7) -> str:
    """At most so many elements in quotes, those in the middle as dots."""
    shown = [f"'{each}'" for each in lst]
    half = limit // 2
    return ", ".join([*shown[:half], "...", *shown[-half:]] if len(shown) > limit else shown)


def replace_file(src: str, dst: str) -> None:
    """Give a file another's name, in one step."""
    os.replace(src, dst)


# -- image


def _get_interp_method(interp: int, sizes: Sequence[int] = ()) -> int:
    """The kind of interpolation, 0 to 4. 9 is chosen by `sizes`, old height and width, new height and width: cubic to
    enlarge, by area to shrink or where there are none, else bilinear; 10 is chosen at random.

    Raises:
        ValueError: no such kind.
    """
    if interp == 9:
        if not sizes:
            return 2
        old_height, old_width, height, width = sizes
        if height > old_height and width > old_width:
            return 2
        return 3 if height < old_height and width < old_width else 1
    if interp == 10:
        return int(np.random.randint(0, 5))
    if interp not in range(5):
        raise ValueError(f"interp is 0 to 4, 9 or 10, not {interp}")
    return interp
