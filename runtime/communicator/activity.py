"""What the main thread of this process does, as far as it concerns other ranks.

Written by each collective, without a lock and in some 50 ns; read by the thread of `supervision.py`.
"""

from __future__ import annotations

from typing import Protocol

_LONGEST = 500  # characters: it is part of each report


class Group(Protocol):
    """A communicator, as far as supervision is concerned."""

    calls: int  # number of collectives that this rank has entered
    members: str  # its ranks by their numbers in the job, as `ranges` writes them; "" for all


class Collective(Protocol):
    """A collective that has been entered."""

    @property
    def name(self) -> str: ...

    @property
    def owner(self) -> Group: ...


class Activity:
    """The collective that a thread is within, or None."""

    __slots__ = ("inside",)

    def __init__(self) -> None:
        self.inside: Collective | None = None


ACTIVITY = Activity()
"""That of the main thread."""


def ranges(ranks: list[int]) -> str:
    """Ranks in few characters; "?" if they are too many.

    >>> ranges([0, 1, 2, 3, 8])
    '0-3,8'
    """
    found: list[list[int]] = []
    for rank in sorted(ranks):
        if found and found[-1][1] == rank - 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
    return text if len(text) <= _LONGEST else "?"


def within(rank: int, members: str) -> bool:
    """Is a rank known to be among those that `ranges` wrote; "" for all?

    >>> within(2, "0-3,8"), within(4, "0-3,8"), within(7, ""), within(7, "?")
    (True, False, True, False)
    """
    if not members:
        return True
    if members == "?":
        return False
    spans = (span.partition("-") for span in members.split(","))
    return any(int(first) <= rank <= int(last or first) for first, _, last in spans)
