"""Which settings of blocks a trace depended on, and whether they are still what they were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from gluongraph.eager.tape import STATE
from gluongraph.ndarray import NDArray
from gluongraph.tracing import tracer

if TYPE_CHECKING:
    from gluongraph.gluon.block import Block

PLAIN = (bool, int, float, str, type(None), np.generic)
_BOOKKEEPING = frozenset(
    {
        *("_active", "_cached", "_prefix", "_name", "_names_below"),
        *("_children", "_reg_params", "_forward_hooks", "_forward_pre_hooks"),
    }
)
_CONTAINERS = (list, dict, set, np.ndarray)
MANY = 256  # entries: longer lists are data, not settings, and would cost each call time


class Edits:
    """`count` grows whenever any block's settings, children or parameter arrays change: nothing else need be asked."""

    count = 0


def is_setting(value: Any) -> bool:
    """Is this an attribute's value that a forward may branch on: a number, a text, or a tuple of those?"""
    return isinstance(value, PLAIN) or (isinstance(value, tuple) and all(map(is_setting, value)))


class TraceGuards:
    """The blocks that one trace has run through."""

    def __init__(self) -> None:
        self._blocks: dict[int, tuple[Block, tuple[Any, ...]]] = {}
        self._containers: dict[int, tuple[Any, Any]] = {}  # lists and the like change without an edit of their block
        self._edits = Edits.count

    def add(self, block: Block) -> None:
        """Note what the block is like now, after its forward."""
        self._blocks[id(block)] = (block, _settings(block))
        for k, v in vars(block).items():
            if isinstance(v, _CONTAINERS) and k not in _BOOKKEEPING:
                self._containers[id(v)] = (v, contents(v))
        self._edits = Edits.count

    @property
    def unchanged(self) -> bool:
        """Are all of them as they were?"""
        if any(contents(now) != before for now, before in self._containers.values()):
            return False
        if self._edits != Edits.count:
            if any(_settings(block) != before for block, before in self._blocks.values()):
                return False
            self._edits = Edits.count
        return True


def _settings(block: Block) -> tuple[Any, ...]:
    own = [(k, v) for k, v in vars(block).items() if k not in _BOOKKEEPING]
    plain = tuple((k, v) for k, v in own if is_setting(v))
    objects = tuple((k, id(v)) for k, v in own if isinstance(v, (NDArray, *_CONTAINERS)))
    parameters = (*block._reg_params.values(), *block.params.values())
    arrays = tuple(id(a) for p in parameters for a in p._arrays or ())
    return plain, objects, tuple(map(id, block._children.values())), arrays


def contents(value: Any, depth: int = 3) -> Any:
    """What a forward may read of a container: settings by their values; blocks, and arrays that are traced, as such."""
    if isinstance(value, np.ndarray):  # a trace takes its numbers for constants
        return value.tobytes() if value.size <= MANY else id(value)
    if depth and isinstance(value, (tuple, *_CONTAINERS)) and len(value) <= MANY:
        entries = value.items() if isinstance(value, dict) else value
        return tuple(contents(entry, depth - isinstance(value, _CONTAINERS)) for entry in entries)
    return value if isinstance(value, PLAIN) else id(value)


_GUARDS: WeakKeyDictionary[Any, TraceGuards] = WeakKeyDictionary()


def note(block: Block) -> None:
    """The trace in progress has run through this block: it holds only while the block stays as it is."""
    current = STATE.tracer
    if current is None:
        return
    guards = _GUARDS.get(current)
    if guards is None:
        guards = _GUARDS[current] = TraceGuards()
        tracer.guard(guards, "unchanged")
    guards.add(block)
