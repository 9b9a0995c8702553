"""Checks the number of arrays in a call of a step, before anything is traced."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from gluongraph.errors import pluralize, with_user_location
from gluongraph.gluon.block import Block
from gluongraph.gluon.hybrid_block import HybridBlock
from gluongraph.gluon.loss import Loss
from gluongraph.gluon.nn import Sequential


def check_call(function: Callable[..., Any], count: int) -> None:
    """Raise TypeError if a net, or a function that returns a loss, cannot be called with so many arrays."""
    if wrong := _refusal(function, count):
        help = f"the arrays go to {_shown(function)} as they come"
        raise TypeError(with_user_location(f"{pluralize(count, 'array')} for {_name(function)}: {wrong}", help=help))


def check_batch(net: Callable[..., Any], loss: Callable[..., Any], inputs: int, count: int) -> None:
    """Raise TypeError if loss(net(*batch[:inputs]), *batch[inputs:]) cannot be called with so many arrays."""
    of_net = min(inputs, count)
    for function, given in ((net, of_net), (loss, 1 + count - of_net)):
        if wrong := _refusal(function, given):
            help = (
                f"{_shown(net)} gets the first of them (mx.compile: inputs={inputs}), "
                f"{_shown(loss)} what it gives and the others, the labels"
            )
            raise TypeError(
                with_user_location(f"a step on {pluralize(count, 'array')}: {_name(function)}: {wrong}", help=help)
            )


def check_inputs(net: Any, inputs: int) -> None:
    """Raise TypeError if a net that declares its inputs, as imported ones do, takes another number of arrays."""
    declared = getattr(net, "inputs", None) if isinstance(net, Block) else None
    if isinstance(declared, tuple) and max(len(declared), 1) != inputs:
        takes = f"{_name(net)} takes {pluralize(len(declared), 'array')}: {', '.join(declared)}"
        help = "leave `inputs` out: such a net knows it; what follows its arrays in a batch goes to the loss"
        message = f"compile: {takes}; inputs={inputs} gives it {pluralize(inputs, 'array')} of a batch"
        raise TypeError(with_user_location(message, help=help))


def check_outputs(net: Callable[..., Any], loss: Callable[..., Any], made: Any) -> None:
    """Raise TypeError if a net has given several arrays to a loss of gluon.loss, all of which take one prediction."""
    if not isinstance(made, (tuple, list)) or not isinstance(loss, Loss) or not _own(loss):
        return
    names = ", ".join(map(repr, getattr(net, "outputs", ())))
    gives = f"{_name(net)} gives {pluralize(len(made), 'array')}{f' ({names})' if names else ''}"
    help = "name the one that it is for: mx.compile(net, lambda outputs, *labels: loss(outputs[0], *labels), trainer)"
    raise TypeError(with_user_location(f"{gives}, and {_name(loss)} takes one prediction", help=help))


def _own(loss: Loss) -> bool:
    return type(loss).__module__.startswith(Loss.__module__.rpartition(".")[0])


def _refusal(function: Callable[..., Any], count: int) -> str:
    """Return why a callable cannot be called with so many arrays; empty if it can."""
    if (signature := _signature(function)) is None:
        return ""
    try:
        signature.bind(*range(count))
    except TypeError as error:
        return str(error)
    return ""


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of a callable, of a block that of its forward; None if it has no signature."""
    try:
        if not isinstance(function, Block):
            return inspect.signature(function)
        if type(function).forward is Sequential.forward and function._children:
            return _signature(next(iter(function._children.values())))
        if not isinstance(function, HybridBlock) or type(function).forward is not HybridBlock.forward:
            return inspect.signature(function.forward)
        taken = list(inspect.signature(function.hybrid_forward).parameters.values())[1:]  # without F
        return inspect.Signature([p for p in taken if p.name not in function._reg_params])
    except (TypeError, ValueError):
        return None


def _shown(function: Callable[..., Any]) -> str:
    """Return a callable as text, `Dense(x)`: its name and parameters, without annotations."""
    signature = _signature(function)
    taken = signature.parameters.values() if signature is not None else ()
    return f"{_name(function)}({', '.join(str(p.replace(annotation=p.empty)) for p in taken)})"


def _name(function: Callable[..., Any]) -> str:
    return type(function).__name__ if isinstance(function, Block) else getattr(function, "__name__", repr(function))
