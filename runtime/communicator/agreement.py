"""Do all ranks do the same? One small allreduce as long as they do, and a sentence that says where they differ."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from gluongraph.errors import with_user_location
from gluongraph.runtime.communicator.base import Communicator, Disagreement

_SHOWN = 200  # characters of a line in a message
_SAME = "all ranks run the same program on batches of the same shapes, in the same order"


class Numbers(Protocol):
    """Numbers that all ranks have equal, and that change from call to call."""

    def digest(self) -> int:
        """Return a digest of them that fits into 32 bits."""

    def text(self) -> str:
        """Return them line by line, with their names."""


class Agreement:
    """Compares digests of a text and of numbers on all ranks, and whether one of them has failed, by one small
    collective.

    Each line of the text is one part of what is compared; `what` the text describes, in a sentence: "rank 1 runs
    another {what} than rank 0".

    >>> from gluongraph.runtime.communicator.local import LocalCommunicator
    >>> Agreement(LocalCommunicator(), "data0: f32[32,784]")()
    True
    """

    def __init__(self, communicator: Communicator, text: str, numbers: Numbers | None = None, what: str = "program"):
        self.communicator, self.text, self.numbers, self._what = communicator, text, numbers, what
        digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little")
        self._digest = digest
        self._values = np.empty(5, np.int64)

    def __call__(self, failed: bool = False) -> bool:
        """Return whether all ranks can go on; False if this one has failed.

        Raises:
            Disagreement: the texts or the numbers differ, or another rank has failed.
        """
        values, digest = self._values, self._digest
        number = self.numbers.digest() if self.numbers is not None else 0
        values[:] = digest, -digest, number, -number, failed
        self.communicator.allreduce(values, "max")
        largest, smallest, largest_number, smallest_number, any_failed = values.tolist()
        if largest == -smallest and largest_number == -smallest_number and not any_failed:
            return True
        state = "failed" if failed else "ok"
        text = f"{self.text}\n{self.numbers.text()}" if self.numbers is not None else self.text
        found = [each.split("\n", 1) for each in self.communicator.exchange(f"{state}\n{text}")]
        if failed:
            return False
        if lost := [str(rank) for rank, (state, _) in enumerate(found) if state == "failed"]:
            who = f"rank {lost[0]} has" if len(lost) == 1 else f"ranks {', '.join(lost)} have"
            message = f"{who} refused the batch of this step, see the error there; no rank has changed anything"
            raise Disagreement(with_user_location(message, help="check the data of that rank"))
        raise Disagreement(with_user_location(difference([text for _, text in found], self._what), help=_SAME))


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
