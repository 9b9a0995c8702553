"""Files of trainer states: safetensors by parameter name, and the optimizer's progress as JSON beside them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gluongraph.errors import FormatError, with_user_location
from gluongraph.host import json_text
from gluongraph.nd import files
from gluongraph.optimizer.updater import packed, unpacked
from gluongraph.storage import Array
from gluongraph.tracing.optimizer_updates import state_name

if TYPE_CHECKING:
    from gluongraph.gluon.trainer import Trainer

FORMAT = 2
KEY = "trainer"


def save(trainer: Trainer, filename: str) -> None:
    """Write states, counters, rate, and what gradient compression keeps back."""
    optimizer, arrays = trainer.optimizer, dict[str, Array]()
    states: dict[str, Any] = {}
    whole = trainer.whole_states()
    for name in trainer.names:
        if (state := whole.get(name)) is None:
            continue
        if optimizer.has_formula:
            states[name] = {key: packed(array, state_name(name, key), arrays) for key, array in state.items()}
        else:
            states[name] = packed(state, name, arrays)
    progress = optimizer.progress()
    progress["counts"] = {trainer.names[index]: t for index, t in progress["counts"]}
    residuals = {key: packed(array, key, arrays) for key, array in trainer.residual_arrays(trainer.names).items()}
    about = {"format": FORMAT, "progress": progress, "states": states, "residuals": residuals}
    if residuals and trainer.communicator.size > 1:
        about["rank"] = trainer.communicator.rank  # whose residuals they are
    files.save(filename, arrays, {KEY: json.dumps(about)})


def load(trainer: Trainer, filename: str) -> None:
    """Read what `save` wrote, into the states of every replica.

    Raises:
        FormatError: not such a file, or one for another optimizer or other parameters; nothing is changed.
    """
    about, arrays = _read(filename)
    try:
        _load(trainer, filename, about, arrays)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(with_user_location(f"{filename} is not as save_states writes it: {error!r}")) from None


def _load(trainer: Trainer, filename: str, about: dict[str, Any], arrays: dict[str, Array]) -> None:
    """Raises FormatError, or what Python raises of a strange structure."""
    optimizer, progress = trainer.optimizer, about["progress"]
    if progress["optimizer"] != type(optimizer).__name__:
        message = f"{filename} is of {progress['optimizer']}, the trainer uses {type(optimizer).__name__}"
        raise FormatError(
            with_user_location(message, help="make the Trainer with the optimizer that the saved one had")
        )
    strange = sorted((about["states"].keys() | progress["counts"].keys()) - set(trainer.names))
    if strange:
        raise FormatError(
            with_user_location(f"{filename} is about {', '.join(strange)}, which the trainer does not hold")
        )
    states: dict[str, Any] = {}
    for name, form in about["states"].items():
        if _by_name(form) != optimizer.has_formula:
            message = f"{filename}: the states of {name} are of another {type(optimizer).__name__}, "
            message += "which has no formula" if optimizer.has_formula else "which has a formula"
            raise FormatError(
                with_user_location(message, help="make the Trainer with the class that the saved one had")
            )
        if optimizer.has_formula:
            states[name] = {key: unpacked(part, arrays) for key, part in form.items()}
            _check(trainer, name, states[name], filename)
        else:
            states[name] = unpacked(form, arrays)
    residuals = {key: unpacked(form, arrays) for key, form in about["residuals"].items()}
    if about.get("rank", trainer.communicator.rank) != trainer.communicator.rank:
        residuals = {}  # they would be applied several times
    numbers = {name: index for index, name in enumerate(trainer.names)}
    counts = [[numbers[name], t] for name, t in progress["counts"].items()]
    optimizer.resume({**progress, "counts": counts})
    trainer.set_states(states, residuals)


def _by_name(form: Any) -> bool:
    """Are these states of a formula, each under its name? Of others there is one form, of an array perhaps."""
    return isinstance(form, dict) and all(isinstance(part, dict) for part in form.values())


def _check(trainer: Trainer, name: str, state: dict[str, Any], filename: str) -> None:
    """Raise unless the trainer's optimizer would make such a state for this parameter."""
    wanted = trainer.optimizer_of(name).state_types(trainer.replica(name).type)
    found = {key: array.type for key, array in state.items()}
    if found != wanted:
        message = f"{filename}: the states of {name} are {_listed(found)}; the trainer keeps {_listed(wanted)}"
        raise FormatError(
            with_user_location(message, help="make the Trainer with the arguments that the saved one had")
        )


def _listed(types: dict[str, Any]) -> str:
    return ", ".join(f"{key} {type}" for key, type in types.items()) or "none"


def _read(filename: str) -> tuple[dict[str, Any], dict[str, Array]]:
    """What the file tells, and its arrays."""
    arrays, texts = files.read(filename)
    if KEY not in texts:
        raise FormatError(
            with_user_location(f"{filename} is not a file of trainer states", help="save_states writes such files")
        )
    try:
        about: dict[str, Any] = json_text.parse(texts[KEY])
        format = about["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(with_user_location(f"{filename} is not as save_states writes it: {error}")) from None
    if format != FORMAT:
        raise FormatError(with_user_location(f"{filename} has format {format}; this version reads {FORMAT}"))
    return about, arrays
