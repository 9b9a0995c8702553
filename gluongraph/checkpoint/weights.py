"""Weights: every parameter; where contexts may differ, their mean and each replica."""

from __future__ import annotations

from typing import Any

from gluongraph.checkpoint.part import REST, WEIGHTS, Groups, Part, Put, Training, misfit
from gluongraph.dtypes import dtype_name
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.gluon.parameter import Parameter
from gluongraph.ir.graph import TensorType
from gluongraph.ndarray import NDArray
from gluongraph.runtime.checkpoint import Content
from gluongraph.storage import Array

REPLICA = "replica:"


def _take(training: Training, groups: Groups) -> Any:
    _check_held(training)
    contexts = [repr(ctx) for ctx in training.trainer.contexts]
    with training.trainer.whole_parameters():
        _take_whole(training, groups)
    return {"contexts": contexts}


def _take_whole(training: Training, groups: Groups) -> None:
    for key, parameter in training.parameters.items():
        arrays = parameter.list_data()
        if len(arrays) == 1 or (parameter.grad_req != "null" and training.trainer.exchange.once):
            groups[WEIGHTS][key] = arrays[0].storage.array
        else:
            groups[WEIGHTS][key] = parameter.averaged()
            groups[REST] |= {f"{REPLICA}{key}@{array.context}": array.storage.array for array in arrays}


def _check_held(training: Training) -> None:
    """Raise where the step writes an array that is no parameter known here, and would be lost."""
    known = {id(array.storage) for p in training.parameters.values() for array in p.list_data()}
    known |= {id(array.storage) for array in training.step.kept_elsewhere}
    for specialization in training.step._specializations.all:
        traced = specialization.traced
        for name in traced.graph.updates:
            if id(traced.captured[name].storage) not in known:
                message = f"the step changes {name}, which is no parameter of its trainer or net"
                help = "make the Trainer with the collect_params() of every net that the function runs"
                raise MXNetError(with_user_location(message, help=help))


def _put(training: Training, content: Content, told: Any) -> Put:
    saved, rest, parameters = content.groups[WEIGHTS], content.groups[REST], training.parameters
    for names, what in (
        (parameters.keys() - saved.keys(), "missing in the checkpoint"),
        (saved.keys() - parameters.keys(), "in the checkpoint, but not in the net"),
    ):
        if names:
            raise misfit(f"{what}: {', '.join(sorted(names))}")
    for key, parameter in parameters.items():
        _check_type(key, parameter, saved[key])

    def put() -> None:
        with training.trainer.whole_parameters():
            for key, parameter in parameters.items():
                put_one(key, parameter)

    def put_one(key: str, parameter: Parameter) -> None:
        if not parameter.ready:
            parameter.shape = saved[key].shape
        parameter.set_data(saved[key])
        parameter.finish_deferred_init()
        for array in parameter.list_data():
            own = rest.get(f"{REPLICA}{key}@{array.context}")
            if own is not None and told["contexts"] == [repr(ctx) for ctx in parameter.list_ctx()]:
                array[:] = NDArray(own, array.context)

    return put


def _check_type(key: str, parameter: Parameter, saved: Array) -> None:
    if parameter._arrays is None and not parameter.deferred:
        raise misfit(f"{key} has not been initialized", help="call net.initialize(), first")
    shape = parameter.shape
    fits = shape is None or (
        len(shape) == saved.ndim and all(n <= 0 or n == m for n, m in zip(shape, saved.shape, strict=True))
    )
    if not fits or dtype_name(parameter.dtype) != dtype_name(saved.dtype):
        found = TensorType(saved.shape, dtype_name(saved.dtype))
        wanted = f"{dtype_name(parameter.dtype)}[{','.join(map(str, shape or ()))}]"
        raise misfit(f"{key} is {found} in the checkpoint and {wanted} in the net")


PART = Part(_take, _put)
