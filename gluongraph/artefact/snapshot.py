"""The training state in an artefact: what training resumes from, as in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gluongraph import checkpoint
from gluongraph.artefact import file
from gluongraph.checkpoint.part import REST, STATES, WEIGHTS
from gluongraph.gluon.block import Block
from gluongraph.storage import Array

if TYPE_CHECKING:
    from gluongraph.step import TrainStep

OF_GROUPS = {WEIGHTS: file.PARAMS, STATES: file.STATES, REST: file.REST}


def current(step: TrainStep) -> tuple[dict[str, Array], Mapping[str, Any] | None]:
    """The arrays of a step by their names in the file, and all else that it is; None where nothing is trained."""
    if step.trainer is None:
        found = step.net._collect_params_with_prefix() if isinstance(step.net, Block) else {}
        return {file.PARAMS + key: p.data().storage.array for key, p in found.items()}, None
    content = checkpoint.taken(step, None, None)
    content.about["parts"]["random"] = {"gluongraph": content.about["parts"]["random"]["gluongraph"]}
    groups = {OF_GROUPS[group] + name: a for group, arrays in content.groups.items() for name, a in arrays.items()}
    return groups, dict(content.about)
