"""Do all ranks do the same? One small allreduce as long as they do, and a sentence that says where they differ."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from gluongraph.errors import with_user_location
from gluongraph.runtime.communicator.base import Communicator, Disagreement

_SHOWN = 200  # characters of a line in a message
_last: tuple[str, int] = ("", 0)  # the text of the last call, mostly the same object, and its digest


def agree(communicator: Communicator, text: str, what: str) -> None:
    """Check that all ranks call this with the same text, one part of what is compared in each line.

    Raises:
        Disagreement: they do not. The message names the ranks that differ and shows the first line that does; `what`
            is what the text describes, in a sentence: "rank 1 runs another {what} than rank 0".

    >>> from gluongraph.runtime.communicator.local import LocalCommunicator
    >>> agree(LocalCommunicator(), "data0: f32[32,784]", "program")
    """
    if communicator.size == 1:
        return
    digest = _digest(text)
    lowest = np.array((digest, -digest), np.int64)
    communicator.allreduce(lowest, "min")
    if lowest[0] != -lowest[1]:
        raise Disagreement(with_user_location(difference(communicator.exchange(text), what)))


def _digest(text: str) -> int:
    """A number of 63 bits."""
    global _last
    if text is not _last[0]:
        data = text.encode("utf-8", "surrogatepass")
        _last = text, int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") >> 1
    return _last[1]


def difference(texts: Sequence[str], what: str) -> str:
    """Which ranks have another text than rank 0, and the first line of the first of them that differs.

    >>> difference(["data0: f32[32,784]\\nlabel0: i32[32]", "data0: f32[16,784]\\nlabel0: i32[16]"], "program")
    'rank 1 runs another program than rank 0: data0: f32[32,784] on rank 0, f32[16,784] on rank 1'
    """
    others = [rank for rank, text in enumerate(texts) if text != texts[0]]
    other = others[0]
    first, second = _first_difference(texts[0].splitlines(), texts[other].splitlines())
    name, separator, rest = first.partition(": ")
    name2, _, rest2 = second.partition(": ")
    if separator and name == name2:
        first, second = f"{name}: {rest}", rest2
    return f"{_names(others)} another {what} than rank 0: {first} on rank 0, {second} on rank {other}"


def _first_difference(one: Sequence[str], two: Sequence[str]) -> tuple[str, str]:
    """The first lines that differ, each shortened to where they do."""
    for first, second in zip(one, two, strict=False):
        if first != second:
            return _shown(first, second), _shown(second, first)
    longer = one[len(two) :] or two[len(one) :]
    more = longer[0][:_SHOWN] if longer else "another line break"
    return (more, "nothing") if len(one) > len(two) else ("nothing", more)


def _shown(line: str, other: str) -> str:
    """A line; of a long one the part about the first character that is not that of the other."""
    if len(line) <= _SHOWN:
        return line
    same = next((i for i, (a, b) in enumerate(zip(line, other, strict=False)) if a != b), min(len(line), len(other)))
    start = max(0, same - _SHOWN // 2)
    before = "..." if start else ""
    after = "..." if start + _SHOWN < len(line) else ""
    return f"{before}{line[start : start + _SHOWN]}{after}"


def _names(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} runs"
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} others" if len(ranks) > 8 else "")
    return f"ranks {shown} run"
