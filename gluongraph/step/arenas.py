"""The arenas of a trainer: contiguous memory for all weights, and for all optimizer states."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from gluongraph.gluon.trainer import Trainer
from gluongraph.ndarray import NDArray
from gluongraph.runtime.arena import Arena
from gluongraph.storage import Storage


def settle(
    trainer: Trainer, names: Sequence[str], states: Mapping[str, NDArray], had: Container[str] | None = None
) -> None:
    """Move weights and optimizer states into the trainer's arenas, one per role, dtype and context, that are not there.

    The order is that of the gradients: the parameters' reversed. States of weights that are not among those that `had`
    some are new, and most of them zeros that nobody has looked at.
    """
    zero: set[Storage] = set()
    groups: dict[tuple[str, str], list[Storage]] = {}
    of: dict[str, dict[str, NDArray]] = {}
    for state, array in states.items():
        owner, _, role = state.rpartition("/")
        of.setdefault(owner, {})[role] = array
        if had is not None and owner not in had and trainer.optimizer_of(owner).starts_at_zero(role):
            zero.add(array.storage)
    sharding = trainer.exchange.sharding  # whose arenas are there
    sharded = frozenset() if sharding is None else sharding.parameters
    for name in reversed(names):
        weight = trainer.replica(name)
        if name in sharded or weight.storage.absent:
            continue
        own = {"weight": weight, **of.get(name, {})}
        at = "" if name in trainer.exchange.replicas else f"@{weight.context}"
        for role, array in own.items():
            groups.setdefault((role + at, str(array.type.dtype)), []).append(array.storage)
    for key, members in groups.items():
        arena = trainer.arenas.get(key)
        if not isinstance(arena, Arena) or not arena.holds(members):
            trainer.arenas[key] = Arena(members, zero)
