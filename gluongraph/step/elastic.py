"""Going on without ranks that are lost: the survivors agree on one whole state, and take the step again.

A rank can be lost in the middle of a collective, which then fails on the others. One of them may have completed it
before, and be one update ahead: its state is whole, and the others continue from it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gluongraph import checkpoint
from gluongraph.dtypes import dtype_name, numpy_dtype
from gluongraph.errors import MXNetError, warn, with_user_location
from gluongraph.gluon.trainer import Trainer
from gluongraph.runtime.checkpoint import Content
from gluongraph.runtime.communicator.base import Communicator
from gluongraph.storage import Array

if TYPE_CHECKING:
    from gluongraph.step.train_step import TrainStep

VARIABLE = "GG_ELASTIC"  # set by `gluongraph run --elastic`


def is_elastic() -> bool:
    """Is the training to go on without ranks that are lost?"""
    return os.environ.get(VARIABLE, "") == "1"


def recover(step: TrainStep, trainer: Trainer) -> bool:
    """Make the ranks that are left a smaller world, with the state of those that are ahead. Return whether this rank's
    step is in that state already, since another one has completed the sum of all gradients.

    Raises:
        MXNetError: the state was divided among ranks, and a part of it is lost.
    """
    if trainer.exchange.sharding is not None:
        message = f"a rank is lost, and with it its shard of the state (strategy={trainer.strategy!r})"
        raise MXNetError(with_user_location(message, help="start again from the last checkpoint: step.load(folder)"))
    communicator = trainer.shrink()
    updates = np.zeros(communicator.size, np.int64)
    updates[communicator.rank] = trainer.optimizer.num_update
    communicator.allreduce(updates)
    root = int(updates.argmax())
    behind = bool(updates[communicator.rank] < updates[root])
    if updates.min() != updates.max():
        _share_state(step, communicator, root, behind)
    if communicator.rank == 0:
        warn(f"a rank is lost: going on with {communicator.size}, after update {updates[root]}")
    return behind


def _share_state(step: TrainStep, communicator: Communicator, root: int, behind: bool) -> None:
    """Give the state of the rank `root` to all that are behind it."""
    content = checkpoint.taken(step, None, None)
    described = json.dumps({"about": content.about, "groups": _types(content.groups), "step": content.step})
    told = json.loads(communicator.exchange(described if communicator.rank == root else "")[root])
    groups: dict[str, dict[str, Array]] = {group: {} for group in told["groups"]}
    for group, arrays in told["groups"].items():
        for name, (dtype, shape) in arrays.items():
            own = content.groups[group].get(name)
            array = own.copy() if own is not None and not behind else np.empty(shape, numpy_dtype(dtype))
            communicator.broadcast(array, root)
            groups[group][name] = array
    if behind:
        checkpoint.put(step, Content(told["step"], groups, told["about"], {}, content.writer))


def _types(groups: Mapping[str, Mapping[str, Array]]) -> dict[str, Any]:
    return {
        group: {name: (dtype_name(array.dtype), array.shape) for name, array in arrays.items()}
        for group, arrays in groups.items()
    }
