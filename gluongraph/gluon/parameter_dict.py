"""Parameters by name: mx.gluon.ParameterDict."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Sequence, ValuesView
from contextlib import ExitStack
from typing import Any

import numpy as np

from gluongraph import initializer
from gluongraph.context import Context
from gluongraph.dtypes import dtype_name
from gluongraph.gluon import parameter_files
from gluongraph.gluon.parameter import Constant, Parameter
from gluongraph.host.file_names import check_name
from gluongraph.ir.plain import extents
from gluongraph.nd import files
from gluongraph.ndarray import NDArray
from gluongraph.storage import given_array


class ParameterDict:
    """Parameters by full name, in order of creation; `get` makes them, with `prefix` in front of the name.

    >>> from gluongraph import gluon
    >>> params = gluon.ParameterDict("net_")
    >>> weight = params.get("weight", shape=(2, 3))
    >>> list(params)
    ['net_weight']

    Source: `mxnet.gluon.ParameterDict` (MXNet 1.9).
    """

    def __init__(self, prefix: str = "", shared: ParameterDict | None = None):
        self._prefix, self._shared = prefix, shared
        self._params: dict[str, Parameter] = {}

    @property
    def prefix(self) -> str:
        """What `get` puts in front of names.

        >>> from gluongraph import gluon
        >>> gluon.ParameterDict("net_").prefix
        'net_'
        """
        return self._prefix

    def __repr__(self) -> str:
        rows = "\n".join(f"  {p}" for p in self.values())
        return f"{self._prefix + ' ' if self._prefix else ''}(\n{rows}\n)"

    def __getitem__(self, key: str) -> Parameter:
        return self._params[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._params)

    def __contains__(self, key: object) -> bool:
        return key in self._params

    def __len__(self) -> int:
        return len(self._params)

    def keys(self) -> KeysView[str]:
        """Full names.

        >>> from gluongraph import gluon
        >>> list(gluon.nn.Dense(2, prefix="d_").collect_params().keys())
        ['d_weight', 'd_bias']
        """
        return self._params.keys()

    def values(self) -> ValuesView[Parameter]:
        """Parameters.

        >>> from gluongraph import gluon
        >>> [p.shape for p in gluon.nn.Dense(2, in_units=3).collect_params().values()]
        [(2, 3), (2,)]
        """
        return self._params.values()

    def items(self) -> ItemsView[str, Parameter]:
        """(full name, parameter).

        >>> from gluongraph import gluon
        >>> {name: p.shape for name, p in gluon.nn.Dense(2, in_units=3, prefix="d_").collect_params().items()}
        {'d_weight': (2, 3), 'd_bias': (2,)}
        """
        return self._params.items()

    def _find(self, name: str) -> Parameter | None:
        if name not in self._params and self._shared is not None and name in self._shared:
            self._params[name] = self._shared[name]
        return self._params.get(name)

    def get(self, name: str, **kwargs: Any) -> Parameter:
        """The parameter prefix + name; made if there is none, else checked against the arguments.

        Raises:
            AssertionError: there is one, with other attributes.

        >>> from gluongraph import gluon
        >>> params = gluon.ParameterDict("net_")
        >>> weight = params.get("weight", shape=(2, 3))
        >>> params.get("weight") is weight
        True
        """
        full = self._prefix + name
        found = self._find(full)
        if found is None:
            found = self._params[full] = Parameter(full, **kwargs)
            return found
        for key, wanted in kwargs.items():
            has = getattr(found, key, None)
            if key == "shape" and wanted is not None and has is not None:
                wanted = extents(wanted)
                if len(wanted) == len(has):
                    found.shape = tuple(h if w <= 0 else w for h, w in zip(has, wanted, strict=True))
                    continue
            elif key == "shape" and wanted is not None:
                found.shape = extents(wanted)
                continue
            elif key == "dtype" and dtype_name(wanted) == dtype_name(has):
                continue
            if wanted is not None and has is not None and wanted != has:
                raise AssertionError(f"parameter {full!r} exists with {key}={has!r}, not {wanted!r}")
        return found

    def get_constant(self, name: str, value: Any = None) -> Constant:
        """The constant prefix + name; made from `value` if there is none.

        Raises:
            KeyError: there is none, and no value.
            AssertionError: there is one, with another value; or a parameter has the name.

        >>> from gluongraph import gluon
        >>> gluon.ParameterDict("net_").get_constant("mean", [0.5, 0.25])
        Constant net_mean (shape=(2,), dtype=<class 'numpy.float32'>)
        """
        full = self._prefix + name
        found = self._find(full)
        if found is None:
            if value is None:
                raise KeyError(f"there is no constant {full!r}; give a value to make it")
            made = self._params[full] = Constant(full, value)
            return made
        if not isinstance(found, Constant):
            raise AssertionError(f"{full!r} is a parameter, not a constant")
        if value is not None:
            given = value.asnumpy() if isinstance(value, NDArray) else given_array(value)
            if given.shape != found.value.shape or not np.array_equal(given.astype(found.value.dtype), found.value):
                raise AssertionError(f"constant {full!r} exists with another value")
        return found

    def update(self, other: ParameterDict) -> None:
        """Take in the parameters of another dictionary.

        Raises:
            ValueError: two different parameters of one name.

        >>> from gluongraph import gluon
        >>> params = gluon.ParameterDict()
        >>> params.update(gluon.nn.Dense(2, prefix="d_").collect_params())
        >>> len(params)
        2
        """
        for name, parameter in other.items():
            if self._params.setdefault(name, parameter) is not parameter:
                raise ValueError(
                    f"two different parameters are called {name!r}; give one of their blocks another prefix"
                )

    def initialize(
        self,
        init: Any = None,
        ctx: Context | Sequence[Context] | None = None,
        verbose: bool = False,
        force_reinit: bool = False,
    ) -> None:
        """Initialize all; `init` is only for parameters without an initializer of their own.

        With `verbose` each is logged (logging.info), as `Initializer.set_verbosity` says.

        >>> from gluongraph import gluon
        >>> params = gluon.nn.Dense(2, in_units=3, prefix="d_").collect_params()
        >>> params.initialize("ones")
        >>> params["d_weight"].data().shape
        (2, 3)
        """
        if verbose:
            init = initializer.create(initializer.Uniform() if init is None else init).set_verbosity(True)
        with ExitStack() as kept:
            for parameter in self.values():
                kept.enter_context(parameter._kept_on_error())
                parameter.initialize(None, ctx, init, force_reinit=force_reinit)

    def zero_grad(self) -> None:
        """Set all gradients to 0.

        >>> from gluongraph import gluon
        >>> params = gluon.nn.Dense(2, in_units=3, prefix="d_").collect_params()
        >>> params.initialize()
        >>> params.zero_grad()
        >>> params["d_bias"].grad().asnumpy().tolist()
        [0.0, 0.0]
        """
        for parameter in self.values():
            parameter.zero_grad()

    def reset_ctx(self, ctx: Context | Sequence[Context]) -> None:
        """Move all to other contexts.

        >>> import gluongraph as mx
        >>> params = mx.gluon.nn.Dense(2, in_units=3).collect_params()
        >>> params.initialize()
        >>> params.reset_ctx(mx.cpu(1))
        >>> params.list_ctx()
        [cpu(1)]
        """
        for parameter in self.values():
            parameter.reset_ctx(ctx)

    def list_ctx(self) -> list[Context]:
        """All contexts that some parameter is on.

        >>> from gluongraph import gluon
        >>> params = gluon.nn.Dense(2, in_units=3).collect_params()
        >>> params.initialize()
        >>> params.list_ctx()
        [cpu(0)]
        """
        return list(dict.fromkeys(ctx for parameter in self.values() for ctx in parameter.list_ctx()))

    def setattr(self, name: str, value: Any) -> None:
        """Set one attribute of all: `params.setattr("grad_req", "null")`.

        >>> from gluongraph import gluon
        >>> params = gluon.nn.Dense(2, in_units=3, prefix="d_").collect_params()
        >>> params.setattr("lr_mult", 0.1)
        >>> params["d_weight"].lr_mult
        0.1
        """
        for parameter in self.values():
            setattr(parameter, name, value)

    def save(self, filename: str, strip_prefix: str = "") -> None:
        """Write all parameters by full name, without `strip_prefix`, to a safetensors file.

        Raises:
            ArgumentError: the name of the file is empty.
            ValueError: a name does not begin with the prefix.

        >>> import os, tempfile
        >>> from gluongraph import gluon
        >>> params = gluon.nn.Dense(2, in_units=3).collect_params()
        >>> params.initialize()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     params.save(folder + "/net.params")
        ...     os.listdir(folder)
        ['net.params']
        """
        check_name("ParameterDict.save", filename, "params.save('net.params')")
        table = {}
        for name, parameter in self.items():
            if not name.startswith(strip_prefix):
                raise ValueError(f"{name!r} does not begin with the prefix {strip_prefix!r}")
            table[name.removeprefix(strip_prefix)] = parameter.averaged()
        files.save(filename, table)

    def load(
        self,
        filename: str,
        ctx: Context | Sequence[Context] | None = None,
        allow_missing: bool = False,
        ignore_extra: bool = False,
        restore_prefix: str = "",
        cast_dtype: bool = False,
        dtype_source: str = "current",
    ) -> None:
        """Read what `save` wrote; `restore_prefix` is put in front of its names. Errors: see load_parameters.

        Raises:
            ArgumentError: the name of the file is empty.

        >>> import tempfile
        >>> from gluongraph import gluon
        >>> params = gluon.nn.Dense(2, in_units=3).collect_params()
        >>> params.initialize()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     params.save(folder + "/net.params")
        ...     params.load(folder + "/net.params")
        """
        check_name("ParameterDict.load", filename, "params.load('net.params')")
        found = {n.removeprefix(restore_prefix): p for n, p in self.items() if n.startswith(restore_prefix)}
        parameter_files.fill(filename, found, ctx, allow_missing, ignore_extra, cast_dtype, dtype_source)
