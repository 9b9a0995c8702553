"""Files of the states of servers' optimizers: as `Updater` writes them, by key, whatever the number of servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gluongraph.errors import FormatError, with_user_location
from gluongraph.kvstore.server_optimizer import optimizer_of, told_of
from gluongraph.kvstore.server_parts import Placement, divided, joined
from gluongraph.optimizer import Optimizer
from gluongraph.optimizer.updater import Updater


def joined_states(optimizer: Optimizer, states: Sequence[bytes], placement: Placement, dump_optimizer: bool) -> bytes:
    """What is written, from the states of all servers. The number of updates, which schedules are asked with, is that
    of the worker's optimizer."""
    updaters = [_updater(optimizer) for _ in states]
    for updater, data in zip(updaters, states, strict=True):
        updater.set_states(data)
    whole = _updater(optimizer)
    for key, parts in placement.parts.items():
        found = [updaters[part.server].states for part in parts]
        if all(key in states for states in found):
            whole.states[key] = joined([states[key] for states in found]) if len(parts) > 1 else found[0][key]
    counts = {key: t for updater in updaters for key, t in updater.optimizer.counts().items()}
    progress = updaters[0].optimizer.progress()
    whole.optimizer.resume({**progress, "lr": optimizer.lr, "counts": counts, "num_update": optimizer.num_update})
    return whole.get_states(dump_optimizer)


def divided_states(optimizer: Optimizer, data: bytes, placement: Placement) -> tuple[Any, list[bytes]]:
    """The optimizer's progress, None where the file does not tell it, and the states for each server.

    Raises:
        FormatError: these are no such bytes, or they are of another optimizer or of keys that the store does not hold.
    """
    whole = _updater(optimizer)
    not_told = object()
    vars(whole.optimizer)["lr"] = not_told
    whole.set_states(data)
    progress = whole.optimizer.progress() if whole.optimizer.lr is not not_told else None
    if strange := [key for key in whole.states if key not in placement.parts]:
        raise FormatError(with_user_location(f"the states of key {strange[0]!r}, which the kvstore does not hold"))
    return progress, [_of_server(optimizer, whole, progress, placement, i) for i in range(placement.servers)]


def _of_server(
    optimizer: Optimizer, whole: Updater, progress: Mapping[str, Any] | None, placement: Placement, server: int
) -> bytes:
    """The states of the values and parts of values that a server has."""
    updater = _updater(optimizer)
    held = {key: part for key, parts in placement.parts.items() for part in parts if part.server == server}
    updater.states = {key: divided(state, held[key]) for key, state in whole.states.items() if key in held}
    if progress is not None:
        counts = {key: t for key, t in progress["counts"] if key in held}
        largest = max(counts.values(), default=optimizer.begin_num_update)
        updater.optimizer.resume({**progress, "counts": counts, "num_update": largest})
    return updater.get_states(dump_optimizer=progress is not None)


def _updater(optimizer: Optimizer) -> Updater:
    """An updater with such an optimizer, without states and counts."""
    return Updater(optimizer_of(told_of(optimizer)))
