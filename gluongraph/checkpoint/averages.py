"""The running averages of the parameters."""

from __future__ import annotations

from typing import Any

from gluongraph.checkpoint.part import REST, Groups, Part, Put, Training, misfit
from gluongraph.errors import MXNetError, with_user_location
from gluongraph.runtime.checkpoint import Content
from gluongraph.tracing.ema import AVERAGE


def _check_out(training: Training) -> None:
    """Raise where the averages are in place of the weights."""
    if (averages := training.step.averages) is not None and averages.shown:
        raise MXNetError(
            with_user_location("a checkpoint within averaged()", help="leave the block first: weights come back")
        )


def _take(training: Training, groups: Groups) -> Any:
    _check_out(training)
    if (averages := training.step.averages) is None:
        return None
    groups[REST] |= {AVERAGE + training.keys[name]: array.storage.array for name, array in averages.items()}
    return {"decay": averages.decay}


def _put(training: Training, content: Content, told: Any) -> Put:
    _check_out(training)
    averages = training.step.averages
    if told is not None and averages is None:
        raise misfit(
            "the checkpoint holds averages of the parameters, this step keeps none",
            "mx.compile(..., ema=0.999), and of a Trainer callbacks=[EMAWeightAveraging()]",
        )
    arrays = content.groups[REST]

    def put() -> None:
        if averages is None:
            return
        own = {key: name for name, key in training.keys.items()}
        found = {key.removeprefix(AVERAGE): array for key, array in arrays.items() if key.startswith(AVERAGE)}
        averages.put(training.trainer, {own[key]: array for key, array in found.items()})
        averages.decay = averages.decay if told is None else told["decay"]

    return put


PART = Part(_take, _put)
