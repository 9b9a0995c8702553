"""Which settings of blocks a trace depended on, and whether they are still what they were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from gluongraph import trace
from gluongraph.tape import STATE

if TYPE_CHECKING:
    from gluongraph.gluon.block import Block

PLAIN = (bool, int, float, str, type(None))
_BOOKKEEPING = frozenset({"_active", "_cached", "_prefix", "_name"})


class Edits:
    """`count` grows whenever any block's settings, children or parameter arrays change: nothing else need be asked."""

    count = 0


def is_setting(value: Any) -> bool:
    """Is this an attribute's value that a forward may branch on: a number, a text, or a tuple of those?"""
    return isinstance(value, PLAIN) or (isinstance(value, tuple) and all(map(is_setting, value)))


class Watch:
    """The blocks that one trace has run through."""

    def __init__(self) -> None:
        self._blocks: dict[int, tuple[Block, tuple[Any, ...]]] = {}
        self._edits = Edits.count

    def add(self, block: Block) -> None:
        """Note what the block is like now, after its forward."""
        self._blocks[id(block)] = (block, _settings(block))
        self._edits = Edits.count

    @property
    def unchanged(self) -> bool:
        """Are all of them as they were?"""
        if self._edits != Edits.count:
            if any(_settings(block) != before for block, before in self._blocks.values()):
                return False
            self._edits = Edits.count
        return True


def _settings(block: Block) -> tuple[Any, ...]:
    plain = tuple((k, v) for k, v in vars(block).items() if k not in _BOOKKEEPING and is_setting(v))
    parameters = (*block._reg_params.values(), *block.params.values())
    arrays = tuple(id(a) for p in parameters for a in p._arrays or ())
    return plain, tuple(map(id, block._children.values())), arrays


_WATCHES: WeakKeyDictionary[Any, Watch] = WeakKeyDictionary()


def note(block: Block) -> None:
    """The trace in progress has run through this block: it holds only while the block stays as it is."""
    tracer = STATE.tracer
    if tracer is None:
        return
    watch = _WATCHES.get(tracer)
    if watch is None:
        watch = _WATCHES[tracer] = Watch()
        trace.guard(watch, "unchanged")
    watch.add(block)
