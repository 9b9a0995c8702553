"""The parts of a training step's state, and how each is restored: what `step.save` writes and `step.load` reads.

A checkpoint holds `PARTS`, each of which says what it takes and how that is put back. To save one more kind of state,
add its `Part` to the table.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import gluongraph
from gluongraph import autograd
from gluongraph.checkpoint import averages, gradients, progress, random_state, states, weights
from gluongraph.checkpoint.part import REST, STATES, WEIGHTS, Groups, Part, Put, Training, check_json, misfit
from gluongraph.checkpoint.ranks import of_rank
from gluongraph.errors import with_user_location
from gluongraph.ndarray import NDArray
from gluongraph.runtime import checkpoint as disk
from gluongraph.runtime.checkpoint import Content, Keep

if TYPE_CHECKING:
    from gluongraph.step import TrainStep

__all__ = ["Keep"]

PARTS: dict[str, Part] = {  # weights first, since the others may need their shapes; random numbers last
    "weights": weights.PART,
    "progress": progress.PART,
    "states": states.PART,
    "gradients": gradients.GRADIENTS,
    "window": gradients.WINDOWS,
    "residuals": gradients.RESIDUALS,
    "averages": averages.PART,
    "random": random_state.PART,
}


def taken(step: TrainStep, extra: Mapping[str, Any] | None, metrics: Mapping[str, Any] | None) -> Content:
    """The content of a checkpoint of this step, its arrays live.

    Raises:
        TypeError: `extra` is more than JSON holds, or a metric is no number.
    """
    check_json(extra := dict(extra or {}), "extra")
    training = Training(step)
    groups: Groups = {WEIGHTS: {}, STATES: {}, REST: {}}
    told = {name: part.take(training, groups) for name, part in PARTS.items()}
    return Content(
        step=training.trainer.optimizer.num_update,
        groups=groups,
        about={"parts": {name: each for name, each in told.items() if each is not None}, "extra": extra},
        metrics={name: _number(name, value) for name, value in (metrics or {}).items()},
        writer={"gluongraph": gluongraph.__version__, "numpy": np.__version__, "python": platform.python_version()},
    )


def put(step: TrainStep, content: Content) -> dict[str, Any]:
    """Make a step's state what a checkpoint holds; gives the user's own part of it.

    Raises:
        FormatError: it does not fit; nothing is changed.
    """
    return put_all(*ready(step, content))


def put_all(parts: Sequence[Put], extra: dict[str, Any]) -> dict[str, Any]:
    """Restore parts that are ready; gives `extra`."""
    with autograd.pause():
        for each in parts:
            each()
    return extra


def ready(step: TrainStep, content: Content, rank: int = 0, size: int = 0) -> tuple[list[Put], dict[str, Any]]:
    """What is to be done to restore each part, and the user's own. With a `size`, of one of so many ranks, which may be
    others than those that have saved.

    Raises:
        FormatError: it does not fit.
    """
    try:
        content = of_rank(content, rank, size) if size else content
        extra: dict[str, Any] = content.about["extra"]
        return _parts(step, content), extra
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise misfit(f"the checkpoint is not as step.save writes it: {error!r}") from None


def _parts(step: TrainStep, content: Content) -> list[Put]:
    """What is to be done for each part, all of which fit. Raises FormatError, or what a strange structure leads to."""
    training, parts = Training(step), content.about["parts"]
    if strange := sorted(parts.keys() - PARTS.keys()):
        raise misfit(f"the checkpoint holds {', '.join(strange)}, of which this version of gluongraph knows nothing")
    return [part.put(training, content, parts.get(name)) for name, part in PARTS.items()]


def keeping(keep: int | Keep | None, metrics: Mapping[str, Any] | None) -> Keep:
    """What `keep` means: a number of newest ones, a policy, or everything.

    Raises:
        ValueError: it is monitored by a metric that is not given.
    """
    if not isinstance(keep, Keep):
        return Keep(last=keep)
    if keep.monitor is not None and keep.monitor not in (metrics or {}):
        given = ", ".join(metrics or {}) or "none"
        help = f"step.save(dir, keep=..., metrics={{{keep.monitor!r}: value}})"
        raise ValueError(
            with_user_location(f"keep goes by the metric {keep.monitor!r}; the metrics given: {given}", help=help)
        )
    return keep


def read(dir: Any) -> Content:
    """The newest whole checkpoint in a folder, or that one. Raises what `runtime.checkpoint.load` does."""
    return disk.load(Path(dir))


def _number(name: str, value: Any) -> float:
    try:
        return float(value.asscalar() if isinstance(value, NDArray) else value)
    except (TypeError, ValueError):
        raise TypeError(with_user_location(f"metrics: {name!r} is no number but {type(value).__name__}")) from None
