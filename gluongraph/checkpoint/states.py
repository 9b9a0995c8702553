"""The optimizer's states, master weights among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gluongraph.checkpoint.part import STATES, Groups, Part, Put, Training, misfit
from gluongraph.dtypes import dtype_name
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.gluon.trainer import Trainer
from gluongraph.ir.graph import TensorType
from gluongraph.ndarray import NDArray
from gluongraph.runtime.checkpoint import Content
from gluongraph.storage import Array


def _flat(state: Any, name: str, arrays: dict[str, Array]) -> Any:
    """The form of a state, for JSON, in which the names of arrays stand for them."""
    if isinstance(state, dict):
        return {key: _flat(part, f"{name}/{key}", arrays) for key, part in state.items()}
    if isinstance(state, (list, tuple)):
        return [_flat(part, f"{name}/{i}", arrays) for i, part in enumerate(state)]
    if isinstance(state, NDArray):
        arrays[name] = state.storage.array
        return name
    if state is not None:
        raise MXNetError(
            with_user_location(f"a state is None, an array or a tuple of those; that of {name} has {state!r}")
        )
    return None


def _built(form: Any, arrays: Mapping[str, Array], like: NDArray) -> Any:
    """The state of that form, where `like` is."""
    if isinstance(form, dict):
        return {key: _built(part, arrays, like) for key, part in form.items()}
    if isinstance(form, list):
        return tuple(_built(part, arrays, like) for part in form)
    return None if form is None else NDArray(arrays[form].copy(), like.context)


def _take(training: Training, groups: Groups) -> Any:
    states = training.trainer.whole_states()
    names = (r for replicas in training.trainer.exchange.replicas.values() for r in replicas if r in states)
    return {key: _flat(states[name], key, groups[STATES]) for name in names for key in (training.key(name),)}


def _put(training: Training, content: Content, told: Any) -> Put:
    trainer, optimizer, arrays = training.trainer, training.trainer.optimizer, content.groups[STATES]
    formula, mine = optimizer.has_formula, {training.keys[name] for name in trainer.names}
    for key, form in told.items():
        name = training.owner(key)
        if name not in mine:
            raise misfit(f"the checkpoint has states of {name}, which the trainer does not hold")
        if formula != isinstance(form, dict):
            raise misfit(f"the states of {name} are those of another {type(optimizer).__name__}")
        if formula:
            found = {k: TensorType(arrays[a].shape, dtype_name(arrays[a].dtype)) for k, a in form.items()}
            member = optimizer.member(trainer.index(training.parameters[name]))
            if found != (wanted := member.state_types(training.type(name, content))):
                raise misfit(f"the states of {name} are {_listed(found)}; the trainer keeps {_listed(wanted)}")

    def put() -> None:
        if trainer.exchange.sharding is not None:
            trainer.set_states(_whole(training, told, arrays), {})
            return
        for names in trainer.exchange.replicas.values():
            for replica in names[:1] if trainer.exchange.once else names:
                key = training.key(replica)
                form = told.get(key, told.get(training.owner(key)))
                if formula:
                    _write_states(trainer, replica, form, arrays)
                elif form is None:
                    trainer.states.pop(replica, None)
                else:
                    trainer.states[replica] = _built(form, arrays, trainer.replica(replica))

    return put


def _whole(training: Training, told: Mapping[str, Any], arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Return the states by parameter; of replicas with states of their own those of the first one."""
    found: dict[str, Any] = {}
    for key, form in told.items():
        name = training.parameters[training.owner(key)].key
        if name not in found or key == training.keys[name]:
            found[name] = _built(form, arrays, training.trainer.replica(name))
    return found


def _write_states(trainer: Trainer, replica: str, form: dict[str, str] | None, arrays: Mapping[str, Array]) -> None:
    """Write into the states where they are; those that were not saved become new, if there are any."""
    if form is None and replica not in trainer.states:
        return
    new = trainer.optimizer_of(replica).new_states(trainer.replica(replica)) if form is None else {}
    for key, array in trainer.state_arrays([replica]).items():
        name = key.removeprefix(replica + "/")
        array.storage.write(arrays[form[name]] if form is not None else new[name].storage.array)


def _listed(types: Mapping[str, TensorType]) -> str:
    return ", ".join(f"{key} {type}" for key, type in types.items()) or "none"


PART = Part(_take, _put)
