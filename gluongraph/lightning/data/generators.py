"""Where the random generators of the process are: Python's, numpy's, gluongraph's and, once it is loaded, PyTorch's."""

from __future__ import annotations

import base64
import random as python_random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from gluongraph import random
from gluongraph.host.torch_module import is_torch_loaded

Json = dict[str, Any]


class States(NamedTuple):
    """The states as the generators give them; `to_json` writes them out."""

    python: Any
    numpy: Any
    own: Json
    torch: Any  # None where PyTorch is not loaded


def take() -> States:
    """Where the generators are now.

    >>> import numpy as np
    >>> from gluongraph.lightning.data import generators
    >>> states = generators.take()
    >>> drawn = np.random.rand()
    >>> generators.put(states)
    >>> np.random.rand() == drawn
    True
    """
    torch = sys.modules["torch"].get_rng_state() if is_torch_loaded() else None
    return States(python_random.getstate(), np.random.get_state(legacy=False), random.all_states(), torch)


def put(states: States) -> None:
    """Let the generators go on from there; PyTorch's where it is loaded, and was."""
    python_random.setstate(states.python)
    np.random.set_state(states.numpy)
    random.set_all_states(states.own)
    if states.torch is not None and is_torch_loaded():
        sys.modules["torch"].set_rng_state(states.torch)


@contextmanager
def kept() -> Iterator[None]:
    """Within: what is drawn changes nothing for what comes after.

    >>> import numpy as np
    >>> from gluongraph.lightning.data import generators
    >>> np.random.seed(0)
    >>> with generators.kept():
    ...     first = np.random.rand()
    >>> np.random.rand() == first
    True
    """
    states = take()
    try:
        yield
    finally:
        put(states)


def to_json(states: States) -> Json:
    """The states in numbers, texts and lists.

    >>> from gluongraph.lightning.data import generators
    >>> sorted(generators.to_json(generators.take()))
    ['numpy', 'own', 'python', 'torch']
    """
    version, words, gauss = states.python
    numpy = states.numpy
    inner = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in numpy["state"].items()}
    torch = None if states.torch is None else generator_text(states.torch)
    return {
        "python": [version, list(words), gauss],
        "numpy": {**numpy, "state": inner},
        "own": states.own,
        "torch": torch,
    }


def from_json(told: Json) -> States:
    """What `to_json` was given.

    >>> from gluongraph.lightning.data import generators
    >>> told = generators.to_json(generators.take())
    >>> generators.to_json(generators.from_json(told)) == told
    True
    """
    version, words, gauss = told["python"]
    torch = None
    if told["torch"] is not None and is_torch_loaded():
        torch = generator_bytes(told["torch"])
    return States((version, tuple(words), gauss), told["numpy"], told["own"], torch)


def generator_text(state: Any) -> str:
    """The state of a generator of PyTorch's, a tensor of bytes, as a text."""
    return base64.b64encode(state.numpy().tobytes()).decode()


def generator_bytes(text: str) -> Any:
    """The tensor of bytes that `generator_text` was given."""
    return sys.modules["torch"].frombuffer(bytearray(base64.b64decode(text)), dtype=sys.modules["torch"].uint8)
