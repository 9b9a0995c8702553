"""Updater: an optimizer and the states that it needs, as a function of (index, gradient, weight)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from gluongraph import autograd
from gluongraph.context import Context
from gluongraph.dtypes import numpy_dtype
from gluongraph.errors import FormatError
from gluongraph.host import json_text
from gluongraph.host.interrupts import import_whole
from gluongraph.ndarray import NDArray
from gluongraph.optimizer.base import Optimizer
from gluongraph.optimizer.counting import Index
from gluongraph.storage import Array

FORMAT = 1
State = Any  # None, an array, or a tuple of states


class Updater:
    """updater(index, grad, weight) updates a weight, or a list of them; states are made at the first update of each.

    >>> from gluongraph import nd, optimizer
    >>> updater = optimizer.get_updater(optimizer.SGD(learning_rate=0.5))
    >>> weight = nd.ones((2,))
    >>> updater(0, nd.array([1.0, 2.0]), weight)
    >>> weight.asnumpy().tolist()
    [0.5, 0.0]
    """

    def __init__(self, optimizer: Optimizer):
        self.optimizer = optimizer
        self.states: dict[Index, State] = {}
        self._elsewhere: set[Index] = set()  # states that were loaded, and may have to follow their weight

    def __call__(self, index: Any, grad: Any, weight: Any) -> None:
        """Update one weight, or lists of indices, gradients and weights."""
        if not isinstance(index, (list, tuple)):
            index, grad, weight = [index], [grad], [weight]
        with autograd.pause():
            for i, g, w in zip(index, grad, weight, strict=True):
                self.optimizer.update_multi_precision(i, w, g, self._state(i, w))

    def _state(self, index: Index, weight: NDArray) -> State:
        """The state for the settings of now: a new one where one of them, momentum say, asks for other arrays."""
        if index in self._elsewhere:
            self.states[index] = self._arrived(index, weight)
            self._elsewhere.discard(index)
        elif index not in self.states or not self._fits(index, weight):
            self.states[index] = self.optimizer.create_state_multi_precision(index, weight)
        return self.states[index]

    def _fits(self, index: Index, weight: NDArray) -> bool:
        optimizer = self.optimizer.member(index)
        return not optimizer.has_formula or optimizer.fits(self.states[index], weight.type)

    def _arrived(self, index: Index, weight: NDArray) -> State:
        if not self._fits(index, weight):
            name = type(self.optimizer).__name__
            raise FormatError(f"the state that was loaded for {index!r} is not that of {name} for a {weight.type}")
        return self.sync_state_context(self.states[index], weight.context)

    def sync_state_context(self, state: State, context: Context) -> State:
        """The state on a device.

        >>> from gluongraph import cpu, nd, optimizer
        >>> updater = optimizer.get_updater(optimizer.SGD())
        >>> updater.sync_state_context((nd.ones((1,)), None), cpu())[0].context
        cpu(0)
        """
        if isinstance(state, NDArray):
            return state.as_in_context(context)
        if isinstance(state, (list, tuple)):
            return tuple(self.sync_state_context(part, context) for part in state)
        return state

    def get_states(self, dump_optimizer: bool = False) -> bytes:
        """The states as bytes (safetensors); with `dump_optimizer` also the optimizer's counts and rate.

        >>> from gluongraph import nd, optimizer
        >>> updater = optimizer.get_updater(optimizer.SGD(momentum=0.5))
        >>> updater(0, nd.ones((2,)), nd.ones((2,)))
        >>> type(updater.get_states()).__name__
        'bytes'
        """
        arrays: dict[str, Array] = {}
        forms = [[index, packed(state, str(index), arrays)] for index, state in self.states.items()]
        about: dict[str, Any] = {"format": FORMAT, "states": forms}
        if dump_optimizer:
            about["optimizer"] = self.optimizer.progress()
        return bytes(import_whole("safetensors.numpy").save(arrays, {"updater": json.dumps(about)}))

    def set_states(self, states: bytes) -> None:
        """Take over what `get_states` gave; where it tells of the optimizer, that goes on from there.

        >>> from gluongraph import nd, optimizer
        >>> updater = optimizer.get_updater(optimizer.SGD(momentum=0.5, learning_rate=0.5))
        >>> updater(0, nd.array([4.0]), nd.array([1.0]))
        >>> other = optimizer.get_updater(optimizer.SGD(momentum=0.5))
        >>> other.set_states(updater.get_states(dump_optimizer=True))
        >>> other.states[0].asnumpy().tolist(), other.optimizer.lr
        ([-2.0], 0.5)

        Raises:
            FormatError: these are no such bytes, or they are of another optimizer; nothing is changed.
        """
        about, found = _read(states)
        if "optimizer" in about:
            self.optimizer.resume(about["optimizer"])
        self.states, self._elsewhere = found, set(found)


def get_updater(optimizer: Optimizer) -> Updater:
    """A function (index, grad, weight) that updates by this optimizer and keeps its states.

    >>> from gluongraph.optimizer import get_updater
    >>> from gluongraph import nd, optimizer
    >>> update, weight = get_updater(optimizer.create("sgd", learning_rate=0.5)), nd.array([1.0])
    >>> update(0, nd.array([2.0]), weight)
    >>> weight.asnumpy().tolist()
    [0.0]
    """
    return Updater(optimizer)


def packed(state: State, name: str, arrays: dict[str, Array]) -> Any:
    """The form of a state, for JSON: None, a list of forms, or name and dtype of an array put among `arrays`.

    >>> from gluongraph.optimizer.updater import packed
    >>> from gluongraph import nd
    >>> arrays = {}
    >>> packed((None, nd.ones((2,))), "0", arrays)
    [None, {'array': '0/1', 'dtype': 'f32'}]
    >>> list(arrays)
    ['0/1']
    """
    if state is None:
        return None
    if isinstance(state, (list, tuple)):
        return [packed(part, f"{name}/{i}", arrays) for i, part in enumerate(state)]
    if not isinstance(state, NDArray):
        raise FormatError(f"a state is None, an array or a tuple of those, and the state of {name} has {state!r}")
    array = state.asnumpy().reshape(state.type.shape)  # MXNet gives a scalar the shape (1,)
    # safetensors gives no bfloat16 back to numpy; float32 holds the same numbers
    arrays[name] = array.astype(np.float32) if state.type.dtype == "bf16" else array
    return {"array": name, "dtype": state.type.dtype}


def unpacked(form: Any, arrays: dict[str, Array]) -> State:
    """The state that `packed` gave this form of.

    >>> import numpy as np
    >>> from gluongraph.optimizer.updater import unpacked
    >>> unpacked({"array": "0", "dtype": "f32"}, {"0": np.zeros(2)}).shape
    (2,)
    """
    if isinstance(form, list):
        return tuple(unpacked(part, arrays) for part in form)
    return None if form is None else NDArray(arrays[form["array"]].astype(numpy_dtype(form["dtype"])))


def _read(states: bytes) -> tuple[dict[str, Any], dict[Index, State]]:
    """What the bytes tell of the optimizer, and the states."""
    safetensors: Any = import_whole("safetensors.numpy")
    try:
        arrays = safetensors.load(bytes(states))
        header = json_text.parse(states[8 : 8 + int.from_bytes(states[:8], "little")])
        about = json_text.parse(header["__metadata__"]["updater"])
        if about["format"] != FORMAT:
            raise FormatError(f"states of format {about['format']}; this version reads {FORMAT}")
        return about, {index: unpacked(form, arrays) for index, form in about["states"]}
    except (import_whole("safetensors").SafetensorError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"these are no states of an Updater: {error!r}") from None
