"""Parameters: named arrays with gradients, whose shape may be known only at the first forward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from gluongraph import autograd, initializer, nd, random
from gluongraph.context import Context, check_context, cpu, current_context
from gluongraph.dtypes import DTYPES, dtype_name, is_float
from gluongraph.eager.tape import concrete
from gluongraph.errors import MXNetError, NamesInstead, warn, with_user_location
from gluongraph.gluon.trace_guards import Edits
from gluongraph.ir.plain import extents
from gluongraph.ndarray import NDArray
from gluongraph.optimizer.multipliers import Multipliers
from gluongraph.storage import given_array
from gluongraph.tracing.optimizer_updates import is_reserved

GRAD_REQS = ("write", "add", "null")
STYPES = ("default", "row_sparse")
DRAWS = 16  # how many random draws are set aside for one parameter's initializer


class DeferredInitializationError(MXNetError):
    """A parameter is asked for before the first forward has told its shape.

    >>> from gluongraph import gluon
    >>> net = gluon.nn.Dense(2)
    >>> net.initialize()
    >>> try:
    ...     net.weight.data()
    ... except gluon.DeferredInitializationError:
    ...     print("the shape is not known yet")
    the shape is not known yet
    """


class Parameter(Multipliers, NamesInstead):
    """One trainable array: `name`, data, gradient, and how it is initialized and updated.

    A 0 (or -1) in `shape` is unknown until the first forward. `grad_req` is "write" (each backward overwrites the
    gradient), "add" (it accumulates until `zero_grad`) or "null". `lr_mult` and `wd_mult` scale the optimizer's rate
    and decay for this parameter and are read at each update. With `grad_stype` "row_sparse" optimizers that can do so
    (SGD, Adam, AdaGrad, GroupAdaGrad) update the rows that a gradient touches, and leave the others alone.

    >>> from gluongraph import gluon
    >>> weight = gluon.Parameter("weight", shape=(2, 3), init="ones")
    >>> weight.initialize()
    >>> weight.data().asnumpy().tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]

    Source: `mxnet.gluon.Parameter` (MXNet 1.9).

    Raises:
        ValueError: a name that compiled code uses itself.
        AssertionError: no such `grad_req`, `stype` or `grad_stype`.
        MXNetError: a storage type that MXNet has, and that does not exist here.
    """

    _instead: ClassVar[Mapping[str, str]] = {
        "list_row_sparse_data": "list_data(); weights are dense",
        "row_sparse_data": "data()[rows]; weights are dense",
    }

    def __init__(
        self,
        name: str,
        grad_req: str = "write",
        shape: int | Sequence[int] | None = None,
        dtype: Any = "float32",
        lr_mult: float = 1.0,
        wd_mult: float = 1.0,
        init: Any = None,
        allow_deferred_init: bool = False,
        differentiable: bool = True,
        stype: str = "default",
        grad_stype: str = "default",
    ):
        super().__init__(lr_mult, wd_mult)
        if is_reserved(name):
            message = f"a parameter cannot be called {name!r}, which is what compiled code calls an input of its own"
            raise ValueError(with_user_location(message, help="give its block another prefix"))
        for what, given, known in (("", stype, STYPES[:1]), ("grad_", grad_stype, STYPES)):
            if given not in known:
                message = f"parameter {name!r}: {what}stype={given!r} does not exist here, only {' and '.join(known)}"
                error = MXNetError if given in (*STYPES, "csr") else AssertionError  # as MXNet has it
                raise error(with_user_location(message, help="leave it out; csr and row-sparse weights are kept dense"))
        self._grad_stype = grad_stype
        self.name = self._key = name
        self.init = init
        self._shape = None if shape is None else extents(shape)
        self._dtype = dtype_name(dtype)
        self._differentiable = differentiable
        self._allow_deferred_init = allow_deferred_init
        self._arrays: list[NDArray] | None = None
        self._waiting: tuple[Any, list[Context], NDArray | None] | None = None  # initializer, contexts, data
        self._global_init: Any = None  # the one of the whole net, which a parameter's own initializer goes through
        self._reserved = (0, 0)  # seed and number of the first draw that are set aside for the initializer
        self._grad_req = "null"
        self.grad_req = grad_req

    def __repr__(self) -> str:
        return f"Parameter {self.name} (shape={self.shape}, dtype={self.dtype})"

    # -- what it is

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape; 0 or -1 where it is not known yet; None where nothing is.

        Raises:
            AssertionError: a shape is set that does not fit the extents that are known.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("weight", shape=(2, 0))
        >>> weight.shape = (2, 3)
        >>> weight.shape
        (2, 3)
        """
        return self._shape

    @shape.setter
    def shape(self, new: Sequence[int]) -> None:
        new = extents(new)
        old = self._shape
        if old is not None and (len(old) != len(new) or any(o > 0 and o != n for o, n in zip(old, new, strict=True))):
            raise AssertionError(f"parameter {self.name!r} has shape {old}, which does not fit the new shape {new}")
        self._shape = new

    @property
    def dtype(self) -> Any:
        """The element type, as numpy's scalar type.

        >>> from gluongraph import gluon
        >>> gluon.Parameter("weight", shape=(2,), dtype="float16").dtype.__name__
        'float16'
        """
        return DTYPES[self._dtype].numpy.type

    @dtype.setter
    def dtype(self, dtype: Any) -> None:
        self.cast(dtype)

    @property
    def grad_req(self) -> str:
        """What backward does with the gradient: "write", "add" or "null".

        Raises:
            AssertionError: it is set to something else.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("weight", shape=(2,))
        >>> weight.grad_req = "null"  # frozen: no gradient, no update
        >>> weight.grad_req
        'null'
        """
        return self._grad_req

    @grad_req.setter
    def grad_req(self, req: str) -> None:
        if req not in GRAD_REQS:
            raise AssertionError(f"grad_req is one of {', '.join(GRAD_REQS)}, not {req!r}")
        req = req if self._differentiable else "null"
        if req != self._grad_req:
            self._grad_req = req
            Edits.count += 1
            for array in self._arrays or ():
                array.attach_grad(req, self._grad_stype)

    @property
    def stype(self) -> str:
        """How the data are stored: "default", which is dense.

        >>> from gluongraph import gluon
        >>> gluon.Parameter("weight", shape=(2,)).stype
        'default'
        """
        return "default"

    @property
    def grad_stype(self) -> str:
        """How the gradient is stored: "default", or "row_sparse" where few rows are touched, see RowSparseNDArray.

        >>> from gluongraph import gluon
        >>> gluon.nn.Embedding(10, 4, sparse_grad=True).weight.grad_stype
        'row_sparse'
        """
        return self._grad_stype

    @property
    def ready(self) -> bool:
        """Is the shape known in full?

        >>> from gluongraph import gluon
        >>> gluon.Parameter("weight", shape=(2, 0)).ready
        False
        """
        return self._shape is not None and all(n > 0 for n in self._shape)

    @property
    def deferred(self) -> bool:
        """Does initialization wait for the shape?

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("weight", shape=(2, 0), allow_deferred_init=True)
        >>> weight.initialize()
        >>> weight.deferred
        True
        """
        return self._waiting is not None

    @property
    def _deferred_init(self) -> tuple[Any, ...]:
        """MXNet's name of what waits: (initializer, contexts, default initializer, data); () if nothing does."""
        if self._waiting is None:
            return ()
        init, contexts, data = self._waiting
        return init, contexts, self._global_init, data

    @_deferred_init.setter
    def _deferred_init(self, waiting: tuple[Any, ...]) -> None:
        self._waiting = None
        if waiting:
            init, contexts, self._global_init, data = waiting
            self._waiting = init, contexts, data

    # Further names of MXNet's, which subclasses copy from one parameter to another. Gradients and contexts hang on the
    # arrays, and are not set apart from them.
    _var: Any = None
    _trainer: Any = None
    _ctx_map: Any = None

    @property
    def _data(self) -> list[NDArray] | None:
        return self._arrays

    @_data.setter
    def _data(self, arrays: list[NDArray] | None) -> None:
        self._arrays = arrays

    @property
    def _grad(self) -> list[NDArray] | None:
        return None if self._arrays is None or self._grad_req == "null" else self.list_grad()

    @_grad.setter
    def _grad(self, arrays: list[NDArray] | None) -> None:
        pass

    @property
    def _ctx_list(self) -> list[Context] | None:
        return None if self._arrays is None else self.list_ctx()

    @_ctx_list.setter
    def _ctx_list(self, contexts: list[Context] | None) -> None:
        pass

    def _check_and_get(self, arrays: list[NDArray] | None, ctx: Any = None) -> Any:
        """Those of `arrays` on a context; all for ctx=list."""
        found = self._ready_arrays() if arrays is None else arrays
        return found if ctx is list else self._at(found, ctx)

    def var(self) -> Any:
        """A Symbol, a variable of the parameter's name.

        >>> from gluongraph import gluon
        >>> gluon.Parameter("weight", shape=(2,)).var().name
        'weight'
        """
        from gluongraph import symbol

        return symbol.var(self.name)

    # -- its arrays

    def initialize(
        self,
        init: Any = None,
        ctx: Context | Sequence[Context] | None = None,
        default_init: Any = None,
        force_reinit: bool = False,
    ) -> None:
        """Allocate, and draw the first values: `init`, else the parameter's own, else `default_init`, else Uniform().

        Values are drawn once, the same whatever the contexts, and copied to each of them.

        Raises:
            ValueError: the shape is not known, and the parameter is none that may wait for it; no context, or one
                that is named twice.
            MXNetError: a context where no arrays can live.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("weight", shape=(2,))
        >>> weight.initialize(init="zeros")
        >>> weight.data().asnumpy().tolist()
        [0.0, 0.0]
        """
        if self._arrays is not None and not force_reinit:
            warn(f"parameter {self.name!r} is already initialized, nothing is done; force_reinit=True does it again")
            return
        chosen = init if init is not None else self.init if self.init is not None else default_init
        contexts = _contexts(ctx)
        if not self.ready and not self._allow_deferred_init:
            raise ValueError(
                f"parameter {self.name!r} cannot be initialized: its shape is {self._shape}. Give all extents, "
                "or allow_deferred_init=True"
            )
        with self._kept_on_error():
            self._arrays = None
            self._global_init = default_init
            self._waiting = (initializer.Uniform() if chosen is None else chosen, contexts, None)
            # Random numbers are set aside now, so that what is drawn does not depend on when the shape becomes known.
            self._reserved = random.get_state(cpu())
            random.set_state((self._reserved[0], self._reserved[1] + DRAWS), cpu())
            if self.ready:
                self.finish_deferred_init()

    @contextmanager
    def _kept_on_error(self) -> Iterator[None]:
        """Within: if something raises, the parameter has the data and the initializer that it had."""
        before = self._arrays, self._global_init, self._waiting, self._reserved
        try:
            yield
        except BaseException:
            self._arrays, self._global_init, self._waiting, self._reserved = before
            raise

    def finish_deferred_init(self) -> None:
        """Do now what was waiting for the shape; nothing if nothing was.

        Raises:
            DeferredInitializationError: the shape is still not known.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("weight", shape=(2, 0), allow_deferred_init=True)
        >>> weight.initialize()
        >>> weight.shape = (2, 3)
        >>> weight.finish_deferred_init()
        >>> weight.data().shape
        (2, 3)
        """
        if self._waiting is None:
            return
        init, contexts, data = self._waiting
        if not self.ready:
            raise DeferredInitializationError(
                with_user_location(
                    f"parameter {self.name!r} still has the shape {self._shape}",
                    help="give the layer its input size (in_units, in_channels), or a method infer_shape(self, x, ...) "
                    "that sets the shapes",
                )
            )
        assert self._shape is not None
        with autograd.pause(), concrete(), cpu():
            first = nd.zeros(self._shape, dtype=self._dtype)
            if data is None:
                desc = initializer.InitDesc(self.name, {"__init__": init})
                now = random.get_state()
                seeded_since = now[0] != self._reserved[0]
                if not seeded_since:
                    random.set_state(self._reserved)
                try:
                    initializer.create(init if self._global_init is None else self._global_init)(desc, first)
                finally:
                    if not seeded_since:
                        random.set_state(now)
            else:
                first[:] = data
            self._waiting = None
            self._adopt([first.as_in_context(contexts[0]), *(first.copyto(c) for c in contexts[1:])])

    def _adopt(self, arrays: list[NDArray]) -> None:
        self._arrays = arrays
        Edits.count += 1
        for number, array in enumerate(arrays):
            array.name = f"{self.key}@{array.context}" if number else self.key
            if self._grad_req != "null":
                array.attach_grad(self._grad_req, self._grad_stype)

    @property
    def key(self) -> str:
        """What its Trainer and compiled steps call it: its name, with a number where another one has that name.

        >>> from gluongraph import gluon
        >>> gluon.Parameter("weight", shape=(2,)).key
        'weight'
        """
        return self._key

    @key.setter
    def key(self, key: str) -> None:
        self._key = key
        for number, array in enumerate(self._arrays or ()):
            array.name = f"{key}@{array.context}" if number else key

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._arrays is not None and not self._arrays[0].name:  # copies, which have neither name nor gradient
            self._adopt(self._arrays)

    def _ready_arrays(self) -> list[NDArray]:
        if self._arrays is not None:
            return self._arrays
        if self._waiting is not None:
            raise DeferredInitializationError(
                with_user_location(
                    f"parameter {self.name!r} has no data yet: the first forward completes its shape {self._shape}",
                    help="pass one batch through the network first, or give the layer its input size",
                )
            )
        raise RuntimeError(
            with_user_location(
                f"parameter {self.name!r} has not been initialized", help="call initialize() on the block, first"
            )
        )

    def _at(self, arrays: list[NDArray], ctx: Context | None) -> NDArray:
        if ctx is None:
            if len(arrays) == 1:
                return arrays[0]
            ctx = current_context()
        for array in arrays:
            if array.context == ctx:
                return array
        raise RuntimeError(
            f"parameter {self.name!r} was not initialized on {ctx}, only on {[a.context for a in arrays]}"
        )

    def data(self, ctx: Context | None = None) -> NDArray:
        """The array itself, not a copy. With several contexts and no `ctx`, the current one.

        Raises:
            DeferredInitializationError: the shape is not known yet.
            RuntimeError: not initialized, or not on that context.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("weight", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> weight.data().asnumpy().tolist()
        [1.0, 1.0]
        """
        arrays = self._arrays
        if arrays is not None and ctx is None and len(arrays) == 1:
            return arrays[0]
        return self._at(self._ready_arrays(), ctx)

    def list_data(self) -> list[NDArray]:
        """The arrays on all contexts.

        >>> import gluongraph as mx
        >>> weight = mx.gluon.Parameter("weight", shape=(2,))
        >>> weight.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
        >>> [array.context for array in weight.list_data()]
        [cpu(0), cpu(1)]
        """
        return list(self._ready_arrays())

    def grad(self, ctx: Context | None = None) -> NDArray:
        """The gradient of `data(ctx)`, not a copy.

        Raises:
            RuntimeError: `grad_req` is "null"; a compiled step has used the gradient up; or what `data` raises.

        >>> from gluongraph import autograd, gluon
        >>> weight = gluon.Parameter("weight", shape=(2,), init="ones")
        >>> weight.initialize()
        >>> with autograd.record():
        ...     loss = (weight.data() ** 2).sum()
        >>> loss.backward()
        >>> weight.grad().asnumpy().tolist()
        [2.0, 2.0]
        """
        leaf = self._at(self._ready_arrays(), ctx)._leaf
        if leaf is None:
            raise RuntimeError(f"parameter {self.name!r} has no gradient: its grad_req is 'null'")
        if leaf.spent:
            raise RuntimeError(
                with_user_location(
                    f"the gradient of {self.name!r} was used up by a compiled step, and is nowhere in memory",
                    help="mx.compile(..., keep_grads=True) writes gradients as an eager backward does; "
                    "step.grads(*batch) computes them alone",
                )
            )
        return leaf.grad

    def list_grad(self) -> list[NDArray]:
        """The gradients on all contexts.

        >>> import gluongraph as mx
        >>> weight = mx.gluon.Parameter("weight", shape=(2,))
        >>> weight.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
        >>> [gradient.shape for gradient in weight.list_grad()]
        [(2,), (2,)]
        """
        return [self.grad(array.context) for array in self._ready_arrays()]

    def list_ctx(self) -> list[Context]:
        """The contexts it is, or will be, initialized on.

        >>> import gluongraph as mx
        >>> weight = mx.gluon.Parameter("weight", shape=(2,))
        >>> weight.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
        >>> weight.list_ctx()
        [cpu(0), cpu(1)]
        """
        if self._arrays is None and self._waiting is not None:
            return list(self._waiting[1])
        return [array.context for array in self._ready_arrays()]

    def averaged(self) -> np.ndarray[Any, Any]:
        """The data, as it is saved: the mean over the contexts where they differ, as running statistics do.

        >>> import gluongraph as mx
        >>> weight = mx.gluon.Parameter("weight", shape=(2,), init="zeros")
        >>> weight.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
        >>> weight.data(mx.cpu(1))[:] = 1
        >>> weight.averaged().tolist()
        [0.5, 0.5]
        """
        first, *others = (array.asnumpy() for array in self._ready_arrays())
        if all(np.array_equal(first, other) for other in others):
            return first
        return np.mean([first, *others], axis=0, dtype=np.float64).astype(first.dtype)

    def set_data(self, data: Any) -> None:
        """Overwrite the data on all contexts.

        Raises:
            AssertionError: not initialized, or the shape does not fit.

        >>> from gluongraph import gluon, nd
        >>> weight = gluon.Parameter("weight", shape=(2,))
        >>> weight.initialize()
        >>> weight.set_data(nd.array([3, 4]))
        >>> weight.data().asnumpy().tolist()
        [3.0, 4.0]
        """
        if self._arrays is None and self._waiting is None:
            help = "call initialize() on the block, first"
            raise AssertionError(with_user_location(f"parameter {self.name!r} has not been initialized", help=help))
        self.shape = data.shape
        if self._arrays is None and self._waiting is not None:
            given = data if isinstance(data, NDArray) else nd.array(data, dtype=self._dtype)
            self._waiting = (*self._waiting[:2], given)
            return
        with autograd.pause():
            for array in self._ready_arrays():
                array[:] = data

    def zero_grad(self) -> None:
        """Set the gradients to 0; nothing where there are none yet.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("weight", shape=(2,), grad_req="add")
        >>> weight.initialize()
        >>> weight.grad()[:] = 1
        >>> weight.zero_grad()
        >>> weight.grad().asnumpy().tolist()
        [0.0, 0.0]
        """
        if self._grad_req != "null":
            with autograd.pause():
                for array in self._arrays or ():
                    array.zero_grad()

    def cast(self, dtype: Any) -> None:
        """Change the element type of data and gradient; the gradient starts at 0 again.

        >>> from gluongraph import gluon
        >>> weight = gluon.Parameter("weight", shape=(2,))
        >>> weight.initialize()
        >>> weight.cast("float64")
        >>> weight.data().dtype.__name__
        'float64'
        """
        name = dtype_name(dtype)
        self._dtype = name
        if self._arrays is not None:
            with autograd.pause():
                self._adopt([array.astype(name) for array in self._arrays])

    def reset_ctx(self, ctx: Context | Sequence[Context]) -> None:
        """Move to other contexts; where the data differ between contexts, their mean moves.

        Raises:
            ValueError: not initialized; no context, or one that is named twice.

        >>> import gluongraph as mx
        >>> weight = mx.gluon.Parameter("weight", shape=(2,))
        >>> weight.initialize()
        >>> weight.reset_ctx(mx.cpu(1))
        >>> weight.list_ctx()
        [cpu(1)]
        """
        contexts = _contexts(ctx)
        if self._waiting is not None:
            self._waiting = (self._waiting[0], contexts, self._waiting[2])
        elif self._arrays is not None:
            data = self.averaged()
            self._adopt([NDArray(data.copy(), c) for c in contexts])
        else:
            raise ValueError(
                with_user_location(
                    f"parameter {self.name!r} cannot move, it has no data yet", help="call initialize() first"
                )
            )


class Constant(Parameter):
    """A parameter that is never trained: a name for a fixed array that moves and is saved with the block.

    Its element type is float32, unless `value` is an NDArray.

    >>> from gluongraph import gluon
    >>> mean = gluon.Constant("mean", [0.5, 0.25])
    >>> mean.initialize()
    >>> mean.data().asnumpy().tolist()
    [0.5, 0.25]

    Source: `mxnet.gluon.Constant` (MXNet 1.9).
    """

    def __init__(self, name: str, value: Any):
        array = value.asnumpy() if isinstance(value, NDArray) else given_array(value, np.float32)
        self.value = array
        super().__init__(
            name,
            grad_req="null",
            shape=array.shape,
            dtype=array.dtype,
            init=initializer.Constant(array),
            differentiable=is_float(dtype_name(array.dtype)),
        )

    def __repr__(self) -> str:
        return f"Constant {self.name} (shape={self.shape}, dtype={self.dtype})"

    @property
    def grad_req(self) -> str:
        """Always "null".

        >>> from gluongraph import gluon
        >>> gluon.Constant("mean", [0.5]).grad_req
        'null'
        """
        return "null"

    @grad_req.setter
    def grad_req(self, req: str) -> None:
        if req != "null":
            warn(f"constant {self.name!r} has no gradient; grad_req={req!r} changes nothing")


def _contexts(ctx: Context | Sequence[Context] | None) -> list[Context]:
    if ctx is None:
        return [current_context()]
    contexts = [ctx] if isinstance(ctx, Context | str) else list(ctx)
    if not contexts or len(set(contexts)) < len(contexts):
        raise ValueError(
            with_user_location(f"ctx={contexts}: a parameter lies on one context, or on several different ones")
        )
    for each in contexts:
        check_context(each)
    return contexts


def __getattr__(name: str) -> Any:
    """ParameterDict, which programs for MXNet import from here."""
    if name != "ParameterDict":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gluongraph.gluon.parameter_dict import ParameterDict  # which is made of parameters

    return ParameterDict
