"""`mx.operator`: operators in Python, with a gradient of their own: CustomOp, CustomOpProp, register, and nd.Custom.

They run where Python runs: in eager mode, with autograd. A hybridized block that calls one is not compiled but runs in
eager mode, and says so once; the blocks in it that call none are compiled. A step of `mx.compile` cannot contain one.
`autograd.Function` is the shorter way to the same.

>>> from gluongraph import autograd, nd, operator
>>> class Double(operator.CustomOp):
...     def forward(self, is_train, req, in_data, out_data, aux):
...         self.assign(out_data[0], req[0], 2 * in_data[0])
...
...     def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
...         self.assign(in_grad[0], req[0], 2 * out_grad[0])
>>> @operator.register("double")
... class DoubleProp(operator.CustomOpProp):
...     def create_operator(self, ctx, in_shapes, in_dtypes):
...         return Double()
>>> x = nd.array([1.0, 2.0])
>>> x.attach_grad()
>>> with autograd.record():
...     y = nd.Custom(x, op_type="double")
>>> y.backward()
>>> y.asnumpy().tolist(), x.grad.asnumpy().tolist()
([2.0, 4.0], [2.0, 2.0])
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

from gluongraph import autograd, nd
from gluongraph.context import Context, current_context
from gluongraph.eager.function import spans
from gluongraph.eager.tape import STATE, tracked
from gluongraph.errors import HostCallError, MXNetError, ShapeError, with_user_location
from gluongraph.ndarray import NDArray
from gluongraph.storage import Array
from gluongraph.symbol.argument_texts import argument_text

Shape = Sequence[int]
_PROPS: dict[str, type[CustomOpProp]] = {}
P = TypeVar("P", bound="type[CustomOpProp]")


class CustomOp:
    """What an operator computes, and its gradient. One object is one call; `backward` sees what `forward` kept."""

    def forward(
        self, is_train: bool, req: list[str], in_data: list[NDArray], out_data: list[NDArray], aux: list[NDArray]
    ) -> None:
        """Write the results into out_data; subclasses say. `req` says how, for `assign`."""
        raise NotImplementedError(f"{type(self).__name__} says forward(self, is_train, req, in_data, out_data, aux)")

    def backward(
        self,
        req: list[str],
        out_grad: list[NDArray],
        in_data: list[NDArray],
        out_data: list[NDArray],
        in_grad: list[NDArray],
        aux: list[NDArray],
    ) -> None:
        """Write the gradients of the inputs into in_grad; subclasses say. Without it they are zeros."""

    def assign(self, dst: NDArray, req: str, src: Any) -> None:
        """Write src into dst: dst[:] = src for "write" and "inplace", dst[:] += src for "add", nothing for "null"."""
        if req == "add":
            dst[:] += src
        elif req != "null":
            dst[:] = src


class CustomOpProp:
    """What is known of an operator before it runs: names, shapes and types; subclasses say what differs.

    By default it has one input, "data", and one output of the same shape and type. Keyword arguments of `nd.Custom`
    arrive in `__init__` as texts. `need_top_grad` changes nothing: upstream gradients always come.
    """

    def __init__(self, need_top_grad: bool = True):
        self.need_top_grad_ = need_top_grad

    def list_arguments(self) -> list[str]:
        """The names of the inputs."""
        return ["data"]

    def list_outputs(self) -> list[str]:
        """The names of the outputs."""
        return ["output"]

    def list_auxiliary_states(self) -> list[str]:
        """The names of arrays that come behind the inputs, have no gradient, and may be written."""
        return []

    def infer_shape(self, in_shape: list[Any]) -> Any:
        """(shapes of inputs, of outputs) or (of inputs, of outputs, of auxiliary states)"""
        return in_shape, [in_shape[0]] * len(self.list_outputs()), []

    def infer_type(self, in_type: list[Any]) -> Any:
        """(types of inputs, of outputs, of auxiliary states)"""
        others = [in_type[0]] * len(self.list_auxiliary_states())
        return in_type, [in_type[0]] * len(self.list_outputs()), others

    def create_operator(self, ctx: Context, in_shapes: list[Any], in_dtypes: list[Any]) -> CustomOp:
        """The operator for inputs of these shapes and types; subclasses say."""
        raise NotImplementedError(f"{type(self).__name__} says create_operator(self, ctx, in_shapes, in_dtypes)")


def register(reg_name: str) -> Callable[[P], P]:
    """Decorator of a subclass of CustomOpProp: nd.Custom(..., op_type=reg_name) calls its operator.

    Raises:
        TypeError: it is no such class.
    """

    def decorate(prop_cls: P) -> P:
        if not (isinstance(prop_cls, type) and issubclass(prop_cls, CustomOpProp)):
            raise TypeError(
                with_user_location(f"register({reg_name!r}) decorates a subclass of CustomOpProp, not {prop_cls!r}")
            )
        _PROPS[reg_name] = prop_cls
        return prop_cls

    return decorate


def get_all_registered() -> list[str]:
    """The names of the operators in Python."""
    return sorted(_PROPS)


def get_all_registered_operators() -> list[str]:
    """The names of the functions of `nd`."""
    return sorted(n for n in dir(nd) if not n.startswith("_") and inspect.isfunction(getattr(nd, n)))


@dataclass(frozen=True)
class OperatorArguments:
    """The arguments of an operator: how many, their names, and their types as they are written."""

    narg: int
    names: list[str]
    types: list[str]


def get_operator_arguments(op_name: str) -> OperatorArguments:
    """The arguments of a function of `nd`, their types as MXNet writes them.

    Raises:
        MissingError: there is none of that name.

    >>> get_operator_arguments("Activation").types
    ['NDArray-or-Symbol', "{'relu', 'sigmoid', 'softrelu', 'softsign', 'tanh'}, required"]
    """
    everything = inspect.signature(inspect.unwrap(getattr(nd, op_name))).parameters.values()
    arguments = [p for p in everything if p.kind is not p.VAR_KEYWORD]
    types = [argument_text(p) for p in arguments]
    return OperatorArguments(len(types), [p.name for p in arguments], types)


# -- calls


def call(data: Sequence[Any], op_type: str, named: dict[str, Any]) -> list[NDArray]:
    """The outputs of an operator; inputs in order, or by name among the keyword arguments.

    Raises:
        HostCallError: a graph is being traced, which Python cannot be part of.
        MXNetError: no operator of that name; a wrong number of inputs, or shapes that its own rules contradict.
    """
    if STATE.tracer is not None:
        raise HostCallError(host_call(f"nd.Custom(op_type={op_type!r})"))
    if op_type not in _PROPS:
        known = ", ".join(_PROPS) or "none"
        help = f"there are: {known}; decorate a CustomOpProp with @mx.operator.register({op_type!r})"
        raise MXNetError(with_user_location(f"nd.Custom: no operator is registered as {op_type!r}", help=help))
    settings: Any = {k: str(v) for k, v in named.items() if not isinstance(v, NDArray)}
    prop = _PROPS[op_type](**settings)
    arguments, states = prop.list_arguments(), prop.list_auxiliary_states()
    given = dict(zip([*arguments, *states], data, strict=False)) | {
        k: v for k, v in named.items() if isinstance(v, NDArray)
    }
    if missing := [name for name in [*arguments, *states] if not isinstance(given.get(name), NDArray)]:
        raise MXNetError(with_user_location(f"nd.Custom({op_type!r}): arrays are missing: {', '.join(missing)}"))
    return _Call(prop, op_type, [given[n] for n in arguments], [given[n] for n in states]).outputs


def host_call(what: str) -> str:
    """The message where Python code stands in the way of a graph."""
    return with_user_location(
        f"{what} is Python, which cannot be part of a compiled graph",
        help="call it in eager mode, outside of mx.compile; a hybridized block with it runs in eager mode by itself;"
        " or write it with operators of nd",
    )


def _span(name: str) -> AbstractContextManager[None]:
    return spans[0](name) if spans else nullcontext()


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Within: what an operator raises is an MXNetError, with what it raised as its cause."""
    try:
        yield
    except MXNetError:
        raise
    except Exception as error:
        raise MXNetError(with_user_location(f"nd.Custom({name!r}): {type(error).__name__}: {error}")) from error


class _Call:
    """One call of an operator: its outputs, recorded."""

    def __init__(self, prop: CustomOpProp, name: str, inputs: list[NDArray], aux: list[NDArray]):
        self.name, self.aux = name, aux
        self.inputs = [x.detach() for x in inputs]
        shapes, made = prop.infer_shape([list(x.shape) for x in inputs])[:2]
        types, dtypes = prop.infer_type([x.dtype for x in inputs])[:2]
        if [tuple(s) for s in shapes] != [x.shape for x in inputs]:
            got = ", ".join(str(x.type) for x in inputs)
            wanted = ", ".join(str(tuple(s)) for s in shapes)
            raise ShapeError(with_user_location(f"nd.Custom({name!r}): inputs {got}, where infer_shape wants {wanted}"))
        self.ctx = inputs[0].context if inputs else current_context()
        self.op = prop.create_operator(self.ctx, [list(s) for s in shapes], list(types))
        self.outputs = [nd.zeros(tuple(s), self.ctx, t) for s, t in zip(made, dtypes, strict=True)]
        with autograd.pause(train_mode=STATE.training), _span(f"{name}::pure_python"), _told(name):
            self.op.forward(STATE.training, ["write"] * len(self.outputs), self.inputs, self.outputs, aux)
        self.reqs = ["write" if tracked(x) else "null" for x in inputs]
        self.kept = [y.detach() for y in self.outputs]
        autograd.attach(self.outputs, inputs, self.pull)

    def pull(self, *heads: Array) -> list[Array | None]:
        grads = [nd.zeros(x.shape, self.ctx, x.dtype) for x in self.inputs]
        above = [nd.array(h, self.ctx, h.dtype) for h in heads]
        with autograd.pause(), _span(f"_backward_{self.name}::pure_python"), _told(self.name):
            self.op.backward(self.reqs, above, self.inputs, self.kept, grads, self.aux)
        return [g.storage.array for g in grads]
