"""Initializers that go by the parameter's name: patterns, or what a file holds."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gluongraph import nd
from gluongraph.errors import with_user_location
from gluongraph.host.file_names import check_name
from gluongraph.host.params_file import is_params
from gluongraph.initializer.base import Initializer, create, register
from gluongraph.ndarray import NDArray


@register
class Mixed(Initializer):
    """The initializer of the first pattern that matches the parameter's name from its beginning.

    Raises:
        AssertionError: as many initializers as patterns are needed.
        ValueError: no pattern matches a name.

    >>> from gluongraph import init, nd
    >>> mixed = init.Mixed(["embed", ".*"], [init.One(), init.Zero()])
    >>> w = nd.zeros((2,))
    >>> mixed("embed_weight", w)
    >>> w.asnumpy().tolist()
    [1.0, 1.0]
    """

    def __init__(self, patterns: Sequence[str], initializers: Sequence[Any]):
        super().__init__(patterns=tuple(patterns), initializers=tuple(initializers))
        if len(patterns) != len(initializers):
            raise AssertionError(
                with_user_location(f"{len(patterns)} patterns do not fit {len(initializers)} initializers")
            )
        self._table = [(re.compile(p), create(i)) for p, i in zip(patterns, initializers, strict=True)]

    def __call__(self, desc: str, arr: NDArray) -> None:
        self._chosen(desc)(desc, arr)

    def _init_weight(self, name: str, arr: NDArray) -> None:
        self._chosen(name)._init_weight(name, arr)

    def _chosen(self, name: str) -> Initializer:
        for pattern, init in self._table:
            if pattern.match(name):
                return init
        raise ValueError(f"no pattern matches {str(name)!r}; end the list with '.*'")


@register
class Load(Initializer):
    """Values by name from a file (safetensors, or MXNet's .params) or a dict; others by `default_init`.

    The names of what is loaded may begin with "arg:" or "aux:".

    Raises:
        ArgumentError: the name of the file is empty.
        AssertionError: an array of another shape; a name that is not there, without a `default_init`.

    >>> from gluongraph import init, nd
    >>> w = nd.zeros((2,))
    >>> init.Load({"arg:dense_weight": nd.array([1, 2])})("dense_weight", w)
    >>> w.asnumpy().tolist()
    [1.0, 2.0]
    """

    def __init__(self, param: str | Mapping[str, Any], default_init: Any = None, verbose: bool = False):
        super().__init__(param=param, default_init=default_init)
        if isinstance(param, str):
            check_name("Load", param, "init.Load('net.params')")
            param = _read(param)
        if not isinstance(param, Mapping):
            raise AssertionError(
                with_user_location(f"Load takes a file of named arrays or a dict of arrays, not {type(param).__name__}")
            )
        arrays = {name: a if isinstance(a, NDArray) else np.asarray(a) for name, a in param.items()}
        self.param = {name.removeprefix("arg:").removeprefix("aux:"): array for name, array in arrays.items()}
        self.default_init = None if default_init is None else create(default_init)
        self.verbose = verbose

    def __call__(self, desc: str, arr: NDArray) -> None:
        if not self._loaded(desc, arr):
            self._default(desc)(desc, arr)

    def _init_weight(self, name: str, arr: NDArray) -> None:
        if not self._loaded(name, arr):
            self._default(name)._init_weight(name, arr)

    def _loaded(self, name: str, arr: NDArray) -> bool:
        value = self.param.get(name)
        if value is not None and value.shape != arr.shape:
            raise AssertionError(f"parameter {str(name)!r} has shape {arr.shape}, what is loaded has {value.shape}")
        if value is not None:
            arr[:] = value
        if self.verbose:
            logging.info("Initialized %s by %s", name, "default" if value is None else "loading")
        return value is not None

    def _default(self, name: str) -> Initializer:
        if self.default_init is None:
            raise AssertionError(
                f"parameter {str(name)!r} is not among what is loaded ({', '.join(self.param)}), and there is no "
                "default_init for it"
            )
        return self.default_init


def _read(filename: str) -> Any:
    from gluongraph.nd import files  # whose parameters have initializers

    with open(filename, "rb") as file:
        by_mxnet = is_params(file.read(8))
    return nd.load(filename) if by_mxnet else files.load(filename)
