"""The first form of autograd, by MXNet's names: mx.contrib.autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from gluongraph import autograd
from gluongraph.autograd import mark_variables as mark_variables
from gluongraph.ndarray import NDArray


def set_is_training(is_train: bool) -> bool:
    """Switch recording and training mode together; gives what recording was before."""
    autograd.set_training(is_train)
    return autograd.set_recording(is_train)


def train_section() -> Any:
    """Within: operations are recorded, in training mode."""
    return autograd.record()


def test_section() -> Any:
    """Within: nothing is recorded, in prediction mode."""
    return autograd.pause()


def backward(
    outputs: Sequence[NDArray], out_grads: Sequence[NDArray | None] | None = None, retain_graph: bool = False
) -> None:
    """Gradients of the outputs into the marked arrays. Raises AssertionError unless they are a list."""
    if not isinstance(outputs, (list, tuple)):
        raise AssertionError("backward: outputs are a list or a tuple of arrays")
    autograd.backward(outputs, out_grads, retain_graph)


def compute_gradient(outputs: Sequence[NDArray]) -> None:
    """`backward` under an older name."""
    backward(outputs)


def grad_and_loss(func: Callable[..., Any], argnum: int | list[int] | None = None) -> Callable[..., tuple[Any, Any]]:
    """A function that gives the gradients by all arguments of func, or by those numbered, and its result.

    >>> from gluongraph import nd
    >>> (dx,), y = grad_and_loss(lambda x: x * x)(nd.array([3.0]))
    >>> dx.asscalar().item(), y.asscalar().item()
    (6.0, 9.0)
    """

    @wraps(func)
    def wrapped(*args: Any) -> tuple[Any, Any]:
        chosen = range(len(args)) if argnum is None else argnum if isinstance(argnum, list) else [argnum]
        variables = [args[i] for i in chosen]
        if not all(isinstance(x, NDArray) for x in variables):
            raise AssertionError("gradients are by arrays")
        grads = [x.zeros_like() for x in variables]
        mark_variables(variables, grads)
        with train_section():
            outputs = func(*args)
        backward([outputs] if isinstance(outputs, NDArray) else outputs)
        return grads, outputs

    return wrapped


def grad(func: Callable[..., Any], argnum: int | list[int] | None = None) -> Callable[..., Any]:
    """A function that gives the gradients of func by its arguments, or by those numbered."""
    with_loss = grad_and_loss(func, argnum)

    @wraps(with_loss)
    def wrapped(*args: Any) -> Any:
        return with_loss(*args)[0]

    return wrapped
