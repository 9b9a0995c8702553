"""The training state in an artefact: what training resumes from, as in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gluongraph import checkpoint
from gluongraph.artefact import file
from gluongraph.checkpoint import collective
from gluongraph.checkpoint.part import REST, STATES, WEIGHTS
from gluongraph.gluon.block import Block
from gluongraph.storage import Array

if TYPE_CHECKING:
    from gluongraph.step import TrainStep

OF_GROUPS = {WEIGHTS: file.PARAMS, STATES: file.STATES, REST: file.REST}


def is_of_all_ranks(step: TrainStep) -> bool:
    """Has each of several ranks a part of the state that no other one has: shards of it, or what compression has kept
    back? Then all export together, and the first one writes."""
    if (trainer := step.trainer) is None or trainer.exchange.ranks == 1:
        return False
    compression = trainer.exchange.compression
    return trainer.exchange.sharding is not None or (compression is not None and compression.keeps_residual)


def current(step: TrainStep) -> tuple[dict[str, Array], Mapping[str, Any] | None]:
    """The arrays of a step by their names in the file, and all else that it is; None where nothing is trained. Where
    each rank has a part of it all ranks call this, and the first one's result is complete."""
    if step.trainer is None:
        found = step.net._collect_params_with_prefix() if isinstance(step.net, Block) else {}
        return {file.PARAMS + key: p.data().storage.array for key, p in found.items()}, None
    content = checkpoint.taken(step, None, None)
    content.about["parts"]["random"] = {"gluongraph": content.about["parts"]["random"]["gluongraph"]}
    if is_of_all_ranks(step):
        content = collective.gathered(step, content)
    groups = {OF_GROUPS[group] + name: a for group, arrays in content.groups.items() for name, a in arrays.items()}
    return groups, dict(content.about)
