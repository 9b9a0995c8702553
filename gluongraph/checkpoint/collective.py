"""Saving and loading of several ranks, who all call them: rank 0 writes and reads the files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gluongraph import checkpoint
from gluongraph.checkpoint import ranks
from gluongraph.checkpoint.part import Training
from gluongraph.errors import FormatError, MXNetError, with_user_location
from gluongraph.host.json_text import parse
from gluongraph.runtime.checkpoint import Content, Damaged, Keep
from gluongraph.runtime.communicator.agreement import Agreement
from gluongraph.runtime.communicator.base import Communicator, Disagreement
from gluongraph.runtime.saving import Saver

if TYPE_CHECKING:
    from gluongraph.step import TrainStep

_FORMATS = {error.__name__: error for error in (Damaged, FormatError)}


def save(step: TrainStep, saver: Saver, folder: Path, content: Content, keep: Keep, asynchronous: bool) -> Path:
    """Write the content of all ranks, once; return its folder when it is on disk, or with `asynchronous` when rank 0
    has a copy.

    Raises:
        OSError: rank 0 could not write it; on all ranks.
        Disagreement: the ranks have made different numbers of updates, or do not all save.
    """
    training = Training(step)
    if (communicator := training.communicator).size == 1:
        return saver.save(folder, content, keep, asynchronous)
    Agreement(communicator, f"step.save after {content.step} updates")()
    whole = gathered(step, content)
    return Path(on_rank_0(communicator, lambda: str(saver.save(folder, whole, keep, asynchronous))))


def gathered(step: TrainStep, content: Content) -> Content:
    """The content of rank 0 with what other ranks have otherwise; complete on rank 0 alone. All ranks call this."""
    training = Training(step)
    statistics = [key for key, parameter in training.parameters.items() if parameter.grad_req == "null"]
    return ranks.gathered(content, statistics, training.communicator)


def load(step: TrainStep, folder: Path) -> dict[str, Any]:
    """Make the state of all ranks what a checkpoint holds; return `extra`.

    Raises:
        FileNotFoundError: there is none; FormatError: it is damaged, or does not fit; on all ranks.
        Disagreement: it does not fit on another rank, or the ranks do not all load.
    """
    communicator = Training(step).communicator
    if communicator.size == 1:
        return checkpoint.put_all(*checkpoint.ready(step, checkpoint.read(folder), 0, 1))
    Agreement(communicator, "step.load")()
    found: list[Content] = []
    on_rank_0(communicator, lambda: found.append(checkpoint.read(folder)))
    content = ranks.broadcast(found[0] if found else None, communicator)
    error: Exception | None = None
    try:
        parts, extra = checkpoint.ready(step, content, communicator.rank, communicator.size)
    except Exception as wrong:
        error = wrong
    _compare(communicator, error)
    return checkpoint.put_all(parts, extra)


def _compare(communicator: Communicator, error: Exception | None) -> None:
    """Raise the error of this rank, or a Disagreement if another one has an error."""
    texts = communicator.exchange("" if error is None else str(error).partition("\n")[0] or type(error).__name__)
    if error is not None:
        raise error
    for rank, text in enumerate(texts):
        if text:
            message = f"rank {rank} cannot go on from this checkpoint: {text}"
            raise Disagreement(with_user_location(message, help="all ranks build the same net, trainer and step"))


def on_rank_0(communicator: Communicator, action: Callable[[], Any]) -> Any:
    """Return on all ranks what an action returns on rank 0. Its error is raised on all of them."""
    told: dict[str, Any] = {}
    error: Exception | None = None
    if communicator.rank == 0:
        try:
            told["result"] = action()
        except Exception as wrong:
            error = wrong
            told["error"] = [type(wrong).__name__, str(wrong)]
            if isinstance(wrong, OSError):
                told["system"] = [wrong.errno, wrong.strerror, wrong.filename]
    found = parse(communicator.exchange(json.dumps(told))[0])
    if error is not None:
        raise error
    if "system" in found:
        number, message, name = found["system"]
        raise OSError(number, f"rank 0: {message}", *([] if name is None else [name]))
    if "error" in found:
        name, message = found["error"]
        raise _FORMATS.get(name, MXNetError)(f"rank 0: {message}")
    return found["result"]
